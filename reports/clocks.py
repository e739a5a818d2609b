"""The clocks of a run side by side: the run's own timing, the comm hook, the DDP logger, the timeline.

They are shown in columns of their own and never added to or subtracted from each other: each has its own zero, and the
logger's "overlap" is a span.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby

from ddpprof.model import Analysis, BucketRecord, IterationRecord, Records
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


def iterations(records: Records) -> Table:
    """The run's own timing without the profiler, one row for each rank; P95 by nearest rank."""
    timed = sorted((row for row in records.iterations if not row.is_captured), key=lambda row: row.rank)
    groups = [list(group) for _, group in groupby(timed, key=lambda row: row.rank)]
    clocks = {run.rank: run.clock for run in records.runs}
    ranks = [group[0].rank for group in groups]

    def quantile(heading: str, name: str, share: float) -> Values:
        (column,) = declared(IterationRecord, (), name)
        values = [sorted(getattr(row, name) for row in group)[math.ceil(share * len(group)) - 1] for group in groups]
        return replace(column, heading=heading, values=values)

    return table(
        "Timed iterations, without the profiler",
        Values("rank", "id", ranks, "RANK", is_key=True),
        Values("iterations", "count", [len(group) for group in groups], "timed iterations"),
        quantile("step median", "step_ns", 0.5),
        quantile("step P95", "step_ns", 0.95),
        quantile("backward median", "backward_ns", 0.5),
        quantile("backward host median", "backward_host_ns", 0.5),
        quantile("optimizer host median", "optimizer_host_ns", 0.5),
        Values("clock", "text", [clocks.get(rank) for rank in ranks], "what step and backward are timed with"),
    )


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
