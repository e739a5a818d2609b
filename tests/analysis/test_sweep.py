"""The caps of a sweep judged, on rows whose every number a reader can check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import captured
import pytest

from ddpprof import inputs
from ddpprof.analysis import sweep
from ddpprof.analysis.part import Options
from ddpprof.model import Analysis, CapRow, IterationRecord, Records, Timing

MIB = 2**20


def timed(median: int, mad: int = 2, n: int = 10) -> Timing:
    return Timing(n=n, median_ns=median, p95_ns=median + mad, min_ns=median - mad, max_ns=median + mad, mad_ns=mad)


def row(cap: float, timing: Timing | None = None, sizes_mib: tuple[int, ...] | None = None, **other: object) -> CapRow:
    sizes = None if sizes_mib is None else tuple(size * MIB for size in sizes_mib)
    fixed = {
        "cap_mb": cap, "rounds": 1, "timing": timing, "launches": None if sizes is None else len(sizes), "bucket_bytes": sizes,
        "worst_rank": 0, "overlap_ns": 0, "overlap_ratio": 0.0, "exposed_comm_ns": 0, "tail_ns": 0, "is_correct": None,
        "unsteady": None, "failure": None,
    }  # fmt: skip
    return CapRow(**(fixed | other))  # type: ignore[arg-type]


def analysis_of(path: Path, case: str) -> Analysis:
    return inputs.read([captured.report(path, case)]).analyze(Options(buckets=True))


# ------------------------------------------------------------------------------------------------------------ one cap


def test_a_row_holds_all_rounds_and_one_rank_of_the_capture(tmp_path: Path) -> None:
    found = sweep.cap_row(4, analysis_of(tmp_path / "a.sqlite", "delay_cap4"), [[10, 12, 14], [11, 13]], is_correct=True)
    assert found.timing == Timing(n=5, median_ns=12, p95_ns=14, min_ns=10, max_ns=14, mad_ns=1)
    assert (found.rounds, found.launches, found.bucket_bytes) == (2, 12, (4 * MIB,) * 12)
    assert (found.worst_rank, found.overlap_ns, found.exposed_comm_ns) == (0, 66_000_000, 42_000_000)
    assert (found.is_correct, found.unsteady, found.failure) == (True, None, None)


def test_the_rank_of_a_row_is_the_one_with_the_most_exposed_communication(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path / "a.sqlite", "delay_cap4")
    first, second = analysis.ranks
    worse = replace(second, exposed_comm_ns=first.exposed_comm_ns + 1, overlap_ns=7, tail_ns=8, overlap_ratio=0.9)
    found = sweep.cap_row(4, replace(analysis, ranks=(first, worse)), [])
    assert (found.worst_rank, found.overlap_ns, found.tail_ns, found.overlap_ratio) == (1, 7, 8, 0.9)


def test_a_cap_without_capture_and_rounds_has_nothing_to_show() -> None:
    found = sweep.cap_row(4, None, [], failure="rank 1 died")
    assert (found.timing, found.launches, found.worst_rank, found.exposed_comm_ns) == (None, None, None, None)
    assert (found.unsteady, found.failure) == ("no timed iterations", "rank 1 died")


def test_sizes_that_are_not_all_known_are_not_known(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path / "a.sqlite", "delay_cap4")
    unmarked = tuple(replace(bucket, size_bytes=None) if bucket.bucket == 3 else bucket for bucket in analysis.buckets)
    found = sweep.cap_row(4, replace(analysis, buckets=unmarked), [])
    assert (found.launches, found.bucket_bytes) == (12, None)


def test_steps_are_the_slowest_ranks_without_the_warm_up() -> None:
    assert sweep.slowest([(3, 999), (4, 10), (5, 30), (4, 20), (5, 25)]) == [20, 30]
    assert sweep.slowest([]) == []


def test_captured_steps_need_step_ranges(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path / "a.sqlite", "delay_cap4")
    longest = max(step.step_ns for step in analysis.breakdown)
    assert (captured.STEP >= sweep.WARMUP, sweep.captured_steps(analysis)) == (True, [longest])
    assert sweep.captured_steps(replace(analysis, window="capture")) == []
    cut = tuple(replace(step, reason="cut by the end of the capture") for step in analysis.breakdown)
    assert sweep.captured_steps(replace(analysis, breakdown=cut)) == []


# ---------------------------------------------------------------------------------------------------------- correctness


def iteration(rank: int, step: int, loss: float, replica: str, *, is_captured: bool = False) -> IterationRecord:
    return IterationRecord(
        rank=rank, step=step, is_captured=is_captured, step_ns=1, forward_ns=1, backward_host_ns=1, backward_ns=1,
        optimizer_host_ns=1, loss=loss, replica_hash=replica,
    )  # fmt: skip


def test_what_a_run_trained_is_its_losses_and_replicas() -> None:
    rows = (iteration(0, 3, 0.5, "ab"), iteration(1, 3, 0.25, "ab"), iteration(0, 4, 0.5, "cd", is_captured=True))
    found = sweep.trajectory(Records(iterations=rows))
    assert found == {(3, 0): (0.5, "ab"), (3, 1): (0.25, "ab")}
    assert sweep.has_equal_replicas(found)
    assert not sweep.has_equal_replicas({(3, 0): (0.5, "ab"), (3, 1): (0.5, "cd")})


# ----------------------------------------------------------------------------------------------- does the cap matter?


@pytest.mark.parametrize(
    ("small", "large", "expected"),
    [
        ((4,) * 12, (48,), None),
        ((4,) * 12, (4,) * 12, "ignored"),
        ((48,), (48,), "ignored"),
        ((64,), (64,), "parameters"),
        ((64, 80, 3), (64, 80, 3), "parameters"),
        ((64, 3, 80), (64, 3, 80), "ignored"),
        ((2, 2), (2, 2), "fits"),
        (None, None, None),
    ],
    ids=str,
)
def test_why_two_caps_give_the_same_buckets(small, large, expected) -> None:
    """At 4 and 64 MiB: a bucket between the two that is not the last one was closed by another cap than one of these."""
    assert sweep.sameness([row(4, sizes_mib=small), row(64, sizes_mib=large)]) == expected


def test_without_sizes_the_number_of_launches_must_do() -> None:
    assert sweep.sameness([row(4, launches=12), row(64, launches=12)]) == "ignored"
    assert sweep.sameness([row(4, launches=12), row(64, launches=1)]) is None
    assert sweep.sameness([row(4, launches=12), row(64)]) is None


# ---------------------------------------------------------------------------------------------------- recommendation


def test_the_range_is_what_the_spread_does_not_set_apart_from_the_fastest() -> None:
    """104 − 100 = 4 is not more than the spreads 2 + 2; 105 − 100 is."""
    rows = [row(1, timed(105)), row(4, timed(104)), row(16, timed(100)), row(64, timed(103, mad=1))]
    assert sweep.recommended(rows) == (4, 16, 64)


def test_overlap_decides_nothing() -> None:
    assert sweep.recommended([row(1, timed(200), overlap_ratio=1.0), row(64, timed(100), overlap_ratio=0.0)]) == (64,)


def test_a_cap_that_failed_or_trained_otherwise_is_never_recommended() -> None:
    rows = [
        row(1, timed(50), is_correct=False),
        row(4, timed(60), failure="died"),
        row(16, timed(100), is_correct=True),
        row(64),
    ]
    assert sweep.recommended(rows) == (16,)
    assert sweep.recommended(rows[:2]) == ()


def test_the_same_buckets_with_another_time_are_drift() -> None:
    rows = [row(1, timed(100), (4, 4)), row(2, timed(110), (4, 4)), row(64, timed(120), (8,))]
    expected = "apart from {} MiB, where the buckets are the same: the machine drifts more than this spread"
    assert [found.unsteady for found in sweep.drifting(rows)] == [expected.format(2), expected.format(1), None]
    calm = [row(1, timed(100), (4, 4)), row(2, timed(104), (4, 4)), row(4, None, (4, 4))]
    assert sweep.drifting(calm) == tuple(calm)


def test_what_is_unsteady_already_stays_so_for_its_own_reason() -> None:
    rows = [row(1, timed(100), (4, 4), unsteady="only 3 iterations"), row(2, timed(200), (4, 4))]
    assert sweep.drifting(rows)[0].unsteady == "only 3 iterations"
