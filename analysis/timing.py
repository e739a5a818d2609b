"""What unprofiled iterations took: order statistics that are observed values, and whether they are steady."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ddpprof.model import Records, Timing

LEAST = 5
"""Fewer iterations than this have no spread to speak of."""

LARGEST_SPREAD = 0.10
"""A median absolute deviation above this share of the median is unsteady."""


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


def unsteady(found: Timing | None) -> str | None:
    """Why no conclusion should rest on these iterations; None when they are enough and steady."""
    if found is None:
        return "no timed iterations"
    if found.n < LEAST:
        return f"only {found.n} iterations: fewer than {LEAST} have no spread to speak of"
    if found.mad_ns > LARGEST_SPREAD * found.median_ns:
        share = 100 * found.mad_ns / found.median_ns
        return f"iterations spread by {share:.0f} % of their median, more than {100 * LARGEST_SPREAD:.0f} %"
    return None


def _middle(ordered: Sequence[int]) -> int:
    return ordered[(len(ordered) - 1) // 2]
