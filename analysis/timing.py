"""What unprofiled iterations took: order statistics that are observed values, and whether they are steady."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from ddpprof.model import Comparison, IterationRecord, KeptRun, Records, Timing, TimingRow

LEAST = 5
"""Fewer iterations than this have no spread to speak of."""

LARGEST_SPREAD = 0.10
"""A median absolute deviation above this share of the median is unsteady."""

BEFORE = 10
"""Earlier runs at most that a run is held against."""

PHASES = {
    "step": "step_ns",
    "backward": "backward_ns",
    "backward host": "backward_host_ns",
    "optimizer host": "optimizer_host_ns",
}
"""Phase of an iteration to its column in the records; "host" is on the host's clock whatever the clock of the run."""


def timing(values_ns: Sequence[int]) -> Timing | None:
    """Median, 95th percentile, least, greatest and median absolute deviation; None of no values.

    Each is one of the values (the lower middle one for a median, the nearest rank for a percentile), so nothing is rounded.
    """
    if not values_ns:
        return None
    ordered = sorted(values_ns)
    median = _middle(ordered)
    return Timing(
        n=len(ordered),
        median_ns=median,
        p95_ns=ordered[-(-len(ordered) * 95 // 100) - 1],
        min_ns=ordered[0],
        max_ns=ordered[-1],
        mad_ns=_middle(sorted(abs(value - median) for value in ordered)),
    )


def job_steps(records: Records, column: str = "step_ns") -> list[int]:
    """What each timed step took the job: the slowest rank's time of it, in step order."""
    by_step: dict[int, list[int]] = defaultdict(list)
    for row in records.iterations:
        if not row.is_captured:
            by_step[row.step].append(getattr(row, column))
    return [max(by_step[step]) for step in sorted(by_step)]


def of_ranks(records: Records) -> tuple[TimingRow, ...]:
    """Each phase of each rank's timed iterations, by rank."""
    by_rank: dict[int, list[IterationRecord]] = defaultdict(list)
    for row in records.iterations:
        by_rank[row.rank].append(row)
    return tuple(row for rank in sorted(by_rank) for row in _phases(replace(records, iterations=tuple(by_rank[rank])), rank))


def of_job(records: Records) -> tuple[TimingRow, ...]:
    """Each phase of the job's timed iterations, in each of them that of its slowest rank."""
    return tuple(_phases(records, None))


def _phases(records: Records, rank: int | None) -> Iterator[TimingRow]:
    run = next((run for run in records.runs if rank in (None, run.rank)), None)
    case, clock = (run.case, run.clock) if run is not None else (None, None)
    for phase, column in PHASES.items():
        found = timing(job_steps(records, column))
        if found is not None:
            yield TimingRow(
                **asdict(found),
                case=case,
                rank=rank,
                phase=phase,
                clock="wall" if phase.endswith("host") else clock,
                caution=unsteady(found),
            )


def compare(row: TimingRow, against: TimingRow) -> Comparison:
    """The step of one case against that of another; both are of named cases."""
    assert row.case is not None
    assert against.case is not None
    least, most = against.median_ns - against.mad_ns, against.median_ns + against.mad_ns
    cautions = [f"{item.case}: {item.caution}" for item in (row, against) if item.caution]
    return Comparison(
        case=row.case,
        against=against.case,
        median_ratio=row.median_ns / against.median_ns,
        least_ratio=(row.median_ns - row.mad_ns) / most,
        most_ratio=(row.median_ns + row.mad_ns) / least if least > 0 else None,
        caution="; ".join(cautions) or None,
    )


def are_apart(one: Timing, other: Timing) -> bool:
    """Whether two medians differ by more than their two median absolute deviations together."""
    return abs(one.median_ns - other.median_ns) > one.mad_ns + other.mad_ns


def changes(runs: Sequence[KeptRun]) -> list[int | None]:
    """For each run, oldest first, how much longer (ns) its median is than that of those before it; None when none can be told.

    Those before are the last BEFORE of the same case, kind, ranks, device and cap. They count with the larger of two spreads:
    that of their medians, and the usual one within a run.
    """
    found: list[int | None] = []
    before: dict[tuple[object, ...], list[Timing]] = defaultdict(list)
    for run in runs:
        alike = before[run.case_name, run.kind, run.world_size, run.device, run.device_model, run.bucket_cap_mb]
        found.append(_change(run.timing, alike[-BEFORE:]))
        alike += [run.timing] if run.timing else []
    return found


def _change(now: Timing | None, before: Sequence[Timing]) -> int | None:
    usual = timing([run.median_ns for run in before])
    if now is None or usual is None:
        return None
    spread = max(usual.mad_ns, _middle(sorted(run.mad_ns for run in before)))
    difference = now.median_ns - usual.median_ns
    return difference if abs(difference) > now.mad_ns + spread else None


def unsteady(found: Timing | None) -> str | None:
    """Why no conclusion should rest on these iterations; None when they are enough and steady."""
    if found is None:
        return "no timed iterations"
    if found.n < LEAST:
        return f"only {found.n} iterations: fewer than {LEAST} have no spread to speak of"
    if found.mad_ns > LARGEST_SPREAD * found.median_ns:
        share, most = f"{100 * found.mad_ns / found.median_ns:.0f} %", f"{100 * LARGEST_SPREAD:.0f} %"
        compared = f"just over {most} of their median" if share == most else f"{share} of their median, more than {most}"
        return f"iterations spread by {compared}"
    return None


def _middle(ordered: Sequence[int]) -> int:
    return ordered[(len(ordered) - 1) // 2]
