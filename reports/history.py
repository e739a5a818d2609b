"""The runs of a case over time: what each took and hid, on which versions, and where it changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from ddpprof.model import FORMAT_VERSION, KeptRun
from ddpprof.reports import quantities, text
from ddpprof.reports.views import Table, Values, table

NOTE = (
    "step: without a profiler, of the slowest rank of each step (of a sweep of a job that does not time itself: under nsys). "
    "change: against the median of the runs before of the same kind, ranks, device and cap (10 at most), "
    "where the spread of both sets it apart. Overlap and exposed: the rank with the most exposed communication."
)


def render(runs: Sequence[KeptRun], changes: Sequence[int | None], *, width: int = 120) -> str:
    """The table, newest last; ``changes`` (ns) has an entry for each run."""
    title = f"{runs[0].case_name}: {len(runs)} run{'' if len(runs) == 1 else 's'}, newest last"
    return "\n".join([*text.layout(rows(runs, changes, title), width), "", text.wrapped(NOTE, width)]) + "\n"


def render_cases(cases: Sequence[tuple[str, int, str]], form: str) -> str:
    """Which cases have runs: name, how many, when the newest ended."""
    if form == "json":
        listed = [{"case": name, "runs": count, "newest_utc": newest} for name, count, newest in cases]
        return json.dumps({"format_version": FORMAT_VERSION, "cases": listed}, indent=2) + "\n"
    names, counts, newest = zip(*cases, strict=True) if cases else ((), (), ())
    columns = (
        Values("case", "text", names),
        Values("runs", "count", counts),
        Values("newest (UTC)", "text", list(map(_time, newest))),
    )
    return "\n".join(text.layout(table("Runs kept", *columns), 120)) + "\n"


def to_json(runs: Sequence[KeptRun], changes: Sequence[int | None]) -> str:
    """The same for programs, times in ns."""
    listed = [asdict(run) | {"change_ns": change} for run, change in zip(runs, changes, strict=True)]
    return json.dumps({"format_version": FORMAT_VERSION, "runs": listed}, indent=2, allow_nan=False) + "\n"


def rows(runs: Sequence[KeptRun], changes: Sequence[int | None], title: str) -> Table:
    """One row for each run; columns that say the same of all runs are left out, as far as they only describe."""
    worst = [max(run.ranks, key=lambda row: row.exposed_comm_ns, default=None) for run in runs]
    described = [
        Values("kind", "text", [run.kind for run in runs]),
        Values("ranks", "count", [run.world_size for run in runs]),
        Values("on", "text", [run.device_model or run.device for run in runs]),
        Values("cap MiB", "id", [None if run.bucket_cap_mb is None else f"{run.bucket_cap_mb:g}" for run in runs]),
        Values("ddpprof", "text", [run.ddpprof_version for run in runs]),
        Values("torch", "text", [run.torch_version for run in runs]),
        Values("nsys", "text", [run.nsys_version for run in runs]),
        Values("NCCL", "text", [run.nccl_version for run in runs]),
        Values("commit", "text", [run.git_commit for run in runs]),
    ]
    return table(
        title,
        Values("finished (UTC)", "text", [_time(run.finished_utc) for run in runs], is_key=True),
        Values("step median", "ns", [run.timing and run.timing.median_ns for run in runs]),
        Values("MAD", "ns", [run.timing and run.timing.mad_ns for run in runs]),
        Values("change", "text", [_change(run, change) for run, change in zip(runs, changes, strict=True)]),
        Values("overlap", "ratio", [row and row.overlap_ratio for row in worst]),
        Values("exposed", "ns", [row and row.exposed_comm_ns for row in worst]),
        *(column for column in described if column.is_known),
    )


def _time(finished_utc: str) -> str:
    return finished_utc[:19].replace("T", " ")


def _change(run: KeptRun, change_ns: int | None) -> str:
    """``slower by 12.0 %``; "" for no change that can be told."""
    if change_ns is None or run.timing is None:
        return ""
    before = run.timing.median_ns - change_ns
    return f"{'slower' if change_ns > 0 else 'faster'} by {quantities.share(abs(change_ns) / before)}"
