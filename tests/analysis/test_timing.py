from __future__ import annotations

from dataclasses import fields

import pytest

from ddpprof.analysis.timing import PHASES, are_apart, changes, compare, job_steps, of_job, of_ranks, timing, unsteady
from ddpprof.model import IterationRecord, KeptRun, Records, RunRecord, Timing, TimingRow


def iteration(rank: int, step: int, step_ns: int, *, is_captured: bool = False) -> IterationRecord:
    """Backward takes half of the step, its host time a tenth, the optimizer a hundredth."""
    return IterationRecord(
        rank=rank,
        step=step,
        is_captured=is_captured,
        step_ns=step_ns,
        forward_ns=1,
        backward_host_ns=step_ns // 10,
        backward_ns=step_ns // 2,
        optimizer_host_ns=step_ns // 100,
        loss=0.5,
        replica_hash="",
    )


def run(rank: int, clock: str = "cuda-event") -> RunRecord:
    return RunRecord(
        rank=rank,
        world_size=2,
        case="fine1_cap4",
        device="cuda",
        backend="nccl",
        bucket_cap_mb=4,
        iterations=3,
        seed=0,
        torch_version="2.9.1",
        clock=clock,
    )


RECORDS = Records(
    runs=(run(0), run(1)),
    iterations=(
        *(iteration(0, 3, 700), iteration(0, 4, 100), iteration(0, 5, 500), iteration(0, 6, 9_000, is_captured=True)),
        *(iteration(1, 3, 200), iteration(1, 4, 400), iteration(1, 5, 300), iteration(1, 6, 9_000, is_captured=True)),
    ),
)


@pytest.mark.parametrize(
    ("values", "median", "p95", "mad"),
    [
        ([7], 7, 7, 0),
        ([1, 9], 1, 9, 0),
        ([5, 1, 9], 5, 9, 4),
        ([1, 2, 3, 4], 2, 4, 1),
        (list(range(1, 21)), 10, 19, 5),
        (list(range(1, 101)), 50, 95, 25),
    ],
)
def test_statistics_are_values_that_were_measured(values: list[int], median: int, p95: int, mad: int) -> None:
    expected = Timing(n=len(values), median_ns=median, p95_ns=p95, min_ns=min(values), max_ns=max(values), mad_ns=mad)
    assert timing(values) == expected
    assert timing(values[::-1]) == expected


def test_of_nothing_there_is_no_timing() -> None:
    assert timing([]) is None
    assert of_ranks(Records()) == of_job(Records()) == ()


def test_a_step_of_the_job_is_that_of_its_slowest_rank_and_the_captured_one_is_none() -> None:
    assert job_steps(RECORDS) == [700, 400, 500]
    assert job_steps(RECORDS, "backward_ns") == [350, 200, 250]


def test_each_rank_has_its_phases_on_the_clock_they_were_timed_with() -> None:
    rows = of_ranks(RECORDS)
    assert [(row.rank, row.phase, row.clock, row.median_ns) for row in rows] == [
        (0, "step", "cuda-event", 500),
        (0, "backward", "cuda-event", 250),
        (0, "backward host", "wall", 50),
        (0, "optimizer host", "wall", 5),
        (1, "step", "cuda-event", 300),
        (1, "backward", "cuda-event", 150),
        (1, "backward host", "wall", 30),
        (1, "optimizer host", "wall", 3),
    ]
    assert {(row.case, row.n) for row in rows} == {("fine1_cap4", 3)}


def test_the_job_has_them_too_and_no_rank() -> None:
    rows = of_job(RECORDS)
    assert [row.phase for row in rows] == list(PHASES)
    assert {row.rank for row in rows} == {None}
    assert (rows[0].median_ns, rows[0].min_ns, rows[0].max_ns, rows[0].mad_ns) == (500, 400, 700, 100)
    assert rows[0].caution == "only 3 iterations: fewer than 5 have no spread to speak of"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([100] * 4, "only 4 iterations: fewer than 5 have no spread to speak of"),
        ([100] * 5, None),
        ([80, 90, 100, 110, 120], None),
        ([70, 85, 100, 115, 130], "iterations spread by 15 % of their median, more than 10 %"),
        ([797, 898, 1000, 1101, 1202], "iterations spread by just over 10 % of their median"),
    ],
)
def test_few_or_scattered_iterations_bear_no_conclusion(values: list[int], reason: str | None) -> None:
    assert unsteady(timing(values)) == reason


def test_no_iterations_bear_none_either() -> None:
    assert unsteady(None) == "no timed iterations"


def step(case: str, median_ns: int, mad_ns: int, caution: str | None = None) -> TimingRow:
    return TimingRow(
        case=case,
        rank=None,
        phase="step",
        clock="wall",
        caution=caution,
        n=10,
        median_ns=median_ns,
        p95_ns=median_ns,
        min_ns=median_ns,
        max_ns=median_ns,
        mad_ns=mad_ns,
    )


def test_a_ratio_spreads_as_far_as_both_of_its_medians() -> None:
    found = compare(step("fine", 300, 30), step("coarse", 200, 20))
    assert (found.case, found.against, found.caution) == ("fine", "coarse", None)
    assert (found.median_ratio, found.least_ratio, found.most_ratio) == (300 / 200, 270 / 220, 330 / 180)


def test_a_ratio_to_what_may_be_nothing_has_no_upper_end() -> None:
    found = compare(step("fine", 300, 0, "scattered"), step("coarse", 200, 200, "few"))
    assert (found.least_ratio, found.most_ratio) == (300 / 400, None)
    assert found.caution == "fine: scattered; coarse: few"


# ------------------------------------------------------------------------------------------------- one against others


def took(median: int, mad: int = 2) -> Timing:
    return Timing(n=10, median_ns=median, p95_ns=median, min_ns=median, max_ns=median, mad_ns=mad)


def kept(timing: Timing | None, **other: object) -> KeptRun:
    fixed: dict[str, object] = dict.fromkeys(item.name for item in fields(KeptRun))
    return KeptRun(**(fixed | {"case_name": "delay_cap4", "kind": "profile", "timing": timing} | other))  # type: ignore[arg-type]


def test_two_medians_are_apart_when_they_differ_by_more_than_both_spreads() -> None:
    assert not are_apart(took(100, mad=2), took(105, mad=3))
    assert are_apart(took(100, mad=2), took(106, mad=3))
    assert are_apart(took(106, mad=3), took(100, mad=2))


def test_a_change_is_what_the_spread_sets_apart_from_the_median_before() -> None:
    """The median of 100, 102, 104 is 102: 106 lies within 2 + 2 of it, 107 does not. That of the four before 96 is 102 too."""
    runs = [kept(took(median)) for median in (100, 102, 104, 106, 96)]
    assert changes(runs) == [None, None, None, None, -6]
    assert changes([*runs[:3], kept(took(107))]) == [None, None, None, 5]


def test_runs_that_differ_among_each_other_make_a_change_harder_to_tell() -> None:
    """The medians 100, 120, 140 have an absolute deviation of 20: 141 is not more than 2 + 20 from 120, 143 is."""
    before = [kept(took(median)) for median in (100, 140, 120)]
    assert changes([*before, kept(took(141))])[-1] is None
    assert changes([*before, kept(took(143))])[-1] == 23


def test_only_alike_runs_count_and_only_the_last_ten_of_them() -> None:
    other = [kept(took(500), bucket_cap_mb=64.0), kept(took(500), kind="sweep"), kept(took(500), device_model="B"), kept(None)]
    assert changes([kept(took(100)), *other, kept(took(100))]) == [None] * 6
    old = [kept(took(500))] * 10
    assert changes([*old, *[kept(took(100))] * 10, kept(took(100))])[-1] is None


def test_a_run_without_timing_has_no_change() -> None:
    assert changes([kept(took(100)), kept(None)]) == [None, None]
