"""The clocks of a run side by side: the run's own timing, the comm hook, the DDP logger, the timeline.

They are shown in columns of their own and never added to or subtracted from each other: each has its own zero, and the
logger's "overlap" is a span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpprof.model import Analysis, BucketRecord, ClockRow, Records, TimingRow, columns
from ddpprof.reports import quantities
from ddpprof.reports.views import Table, Values, declared, from_step_start, identity, number, table

HOOK = (
    "Hook: host time (`perf_counter_ns`) at which the comm hook was entered (ready) and its all-reduce call returned (launch)."
)
TIMELINE = "Timeline: the intervals of the report, on the report's clock."
APART = "Each counts from its own start of the step: read down a column, never subtract across."
LOGGER = (
    "DDP logger: sampled by DDP on its own clock and refreshed one iteration late. "
    "`backward_compute_comm_overlap_time` is the span from the first communication launch to the end of the backward "
    "compute: an upper bound, whether or not anything was in flight, and not overlap."
)
TIMED = "Timed iterations, without the profiler"


def iterations(timings: Sequence[TimingRow]) -> Table:
    """The run's own timing without the profiler, one row for each rank."""
    of = {phase: [row for row in timings if row.phase == phase] for phase in dict.fromkeys(row.phase for row in timings)}
    steps = of.get("step", [])
    (p95,) = declared(TimingRow, steps, "p95_ns")
    medians = {phase: declared(TimingRow, rows, "median_ns")[0] for phase, rows in of.items()}
    shown = [replace(column, heading=f"{phase} median") for phase, column in medians.items()]
    shown[1:1] = [replace(p95, heading="step P95")]
    return table(
        TIMED,
        *(replace(column, is_key=True) for column in declared(TimingRow, steps, "rank")),
        *(replace(column, heading="iterations") for column in declared(TimingRow, steps, "n")),
        *shown,
        *declared(TimingRow, steps, "clock"),
    )


def of_jobs(timings: Sequence[TimingRow]) -> Table:
    """The timing of several jobs without the profiler: a row for each phase of each."""
    keys = (replace(column, is_key=True) for column in declared(TimingRow, timings, "case", "phase"))
    clock, n, *times = declared(TimingRow, timings, "clock", "n", "median_ns", "p95_ns", "min_ns", "max_ns", "mad_ns")
    steady = Values("steady", "text", ["no" if row.caution else "yes" for row in timings])
    return table(f"{TIMED}: in each step the slowest rank", *keys, clock, replace(n, heading="iterations"), *times, steady)


def apart(rows: Sequence[ClockRow]) -> Table:
    """The clocks of each rank in columns of their own."""
    case, rank, *times = declared(ClockRow, rows, *(column.name for column in columns(ClockRow)))
    return table("Three clocks", replace(case, is_key=True), replace(rank, is_key=True), *times)


def hook_and_timeline(analysis: Analysis, records: Records) -> Table | None:
    """One row for each communication interval that the hook saw too, both clocks; None when there is no such interval."""
    hooks: dict[tuple[int | None, int | None, int | None], BucketRecord] = {
        (hook.rank, hook.step, hook.bucket): hook for hook in records.buckets
    }
    joined = [(row, hooks.get((row.rank, row.step, row.bucket))) for row in analysis.buckets]
    if not any(hook for _, hook in joined):
        return None
    rows = analysis.buckets
    launch, start, end = from_step_start(analysis, "launch_ns", "start_ns", "end_ns")
    ready = [hook and hook.ready_ns for _, hook in joined]
    called = [hook and hook.launch_ns for _, hook in joined]
    return table(
        "Hook and timeline",
        *identity(rows, analysis),
        Values("step", "id", [number(row.step) for row in rows], is_key=True),
        Values("bucket", "id", [number(row.bucket) for row in rows], is_key=True),
        Values("size", "bytes", [hook.size_bytes if hook else row.size_bytes for row, hook in joined]),
        Values("hook ready", "ns", ready),
        Values("hook launch", "ns", called),
        Values("timeline launch", "ns", launch.values),
        Values("timeline start", "ns", start.values),
        Values("timeline end", "ns", end.values),
    )


def logger(records: Records) -> Table | None:
    """The time fields of the last reading of the DDP logger, under DDP's own names; None without any."""
    if not records.loggers:
        return None
    last = records.loggers[-1]
    times = {name: value for name, value in last.fields.items() if "_time" in name and isinstance(value, int)}
    return table(
        f"DDP logger, read after step {last.step}",
        Values("field", "text", list(times), is_key=True),
        Values("value", "id", [quantities.ns(value) for value in times.values()]),
        Values("exact", "id", [f"{quantities.count(value)} ns" for value in times.values()]),
    )
