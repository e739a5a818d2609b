"""Expectations: what can be said, and what holds on which rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from nsight import build

from ddpprof.analysis import check, job, load
from ddpprof.analysis.check import Expectation, Result
from ddpprof.analysis.part import Options
from ddpprof.errors import UsageError
from ddpprof.model import Analysis

TWO_RANKS = """
    process 100 rank=0 world=2
    process 101 rank=1 world=2
    N 0..99 "step/1" pid=100
    N 0..99 "step/1" pid=101
    N 35..45 "bucket/0/64" pid=100
    K dev0 s7   0..100 GEMM pid=100 launch=10..11
    K dev0 s7   0..50 SPIN pid=100 launch=12..13
    K dev0 s16 40..140 NCCL pid=100 launch=40..41
    K dev0 s7   0..100 GEMM pid=101 launch=10..11
    K dev0 s16 100..200 NCCL pid=101 launch=40..41
"""


@pytest.fixture
def two_ranks(report: Path) -> Analysis:
    """Rank 0 hides 60 of 100 us of communication (10 beside the spin kernel), rank 1 none; tails 40 and 100 us."""
    return job.analyze([load.read(build(report, TWO_RANKS))])


def results(analysis: Analysis, *texts: str) -> list[Result]:
    return check.check(analysis, [check.parse(text) for text in texts])


def verdicts(analysis: Analysis, text: str) -> list[str]:
    return [result.verdict for result in results(analysis, text)]


# -- spelling


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("overlap>0", ("overlap_ns", ">", 0, "ns")),
        ("tail<=0.0", ("tail_ns", "<=", 0, "ns")),
        ("overlap_ns > 0", ("overlap_ns", ">", 0, "ns")),
        (" tail_ms<=2.5 ", ("tail_ns", "<=", 2_500_000, "ms")),
        ("step_us!=10", ("step_ns", "!=", 10_000, "us")),
        ("exposed_comm_s<1", ("exposed_comm_ns", "<", 10**9, "s")),
        ("overlap_ratio>=0.6", ("overlap_ratio", ">=", Decimal("0.6"), "")),
        ("overlap_ratio<=1", ("overlap_ratio", "<=", 1, "")),
        ("buckets==12", ("buckets", "==", 12, "")),
        ("n_comm==-1", ("n_comm", "==", -1, "")),
        ("launched_early>=1", ("launched_early", ">=", 1, "")),
    ],
)
def test_parse(text: str, expected: tuple[str, str, Any, str]) -> None:
    name, sign, value, unit = expected
    assert check.parse(text) == Expectation(text.strip(), name, sign, Decimal(value), unit)


def test_a_time_needs_a_unit_unless_it_is_zero() -> None:
    with pytest.raises(UsageError) as caught:
        check.parse("exposed_comm<=1.5")
    assert str(caught.value) == (
        "--expect 'exposed_comm<=1.5': 1.5 of which unit?\nWrite exposed_comm_ms<=1.5, or exposed_comm_us, exposed_comm_ns."
    )


@pytest.mark.parametrize(
    ("text", "instead"), [("overlap_ratio>=60", "overlap_ratio>=0.6"), ("overlap_ratio<250", "overlap_ratio<0.6")]
)
def test_a_ratio_is_no_percentage(text: str, instead: str) -> None:
    with pytest.raises(UsageError, match=f"a ratio is from 0 to 1, where the tables show %\nExample: {instead}$"):
        check.parse(text)


@pytest.mark.parametrize(
    "text", ["", "overlap", "overlap=0", "overlap>", ">0", "overlap>a", "overlap>1e3", "0<overlap", "a>1 b>2", "a.b>1"]
)
def test_what_is_no_expectation(text: str) -> None:
    with pytest.raises(UsageError, match="not NAME OPERATOR NUMBER"):
        check.parse(text)


@pytest.mark.parametrize("text", ["foo>1", "overlap_min>1", "overlap_ratio_ms>1", "n_compute_ms>1", "_ms>1"])
def test_a_quantity_that_does_not_exist(text: str) -> None:
    with pytest.raises(UsageError, match=r"no quantity .*\nThere are: step_ns, .*buckets"):
        check.parse(text)


# -- judging


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("overlap>0", ["pass", "fail"]),
        ("overlap==0", ["fail", "pass"]),
        ("overlap_us==60", ["pass", "fail"]),
        ("overlap_us!=60", ["fail", "pass"]),
        ("overlap_ratio>=0.6", ["pass", "fail"]),
        ("overlap_ratio==0.6", ["pass", "fail"]),
        ("overlap_ratio>0.6", ["fail", "fail"]),
        ("tail_us<=40", ["pass", "fail"]),
        ("tail_us<40.001", ["pass", "fail"]),
        ("exposed_comm_ms<0.1", ["pass", "fail"]),
        ("n_compute==2", ["pass", "fail"]),
        ("buckets==1", ["pass", "pass"]),
        ("launched_early==0", ["pass", "pass"]),
    ],
)
def test_each_rank_is_judged(two_ranks: Analysis, text: str, expected: list[str]) -> None:
    assert verdicts(two_ranks, text) == expected


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("tail_ns>0", "tail_ns = 40,000"),
        ("tail>0", "tail_ns = 40,000"),
        ("tail_us>0", "tail_us = 40"),
        ("tail_ms>0", "tail_ms = 0.04"),
        ("tail_s>0", "tail_s = 0.00004"),
    ],
)
def test_the_answer_is_in_the_unit_of_the_question(two_ranks: Analysis, text: str, seen: str) -> None:
    assert results(two_ranks, text)[0].seen == seen


def test_results_are_by_rank_then_expectation_and_say_what_was_seen(two_ranks: Analysis) -> None:
    assert results(two_ranks, "overlap>0", "overlap_ratio>0.5") == [
        Result("overlap>0", "rank 0", "pass", "overlap_ns = 60,000"),
        Result("overlap_ratio>0.5", "rank 0", "pass", "overlap_ratio = 0.6000"),
        Result("overlap>0", "rank 1", "fail", "overlap_ns = 0"),
        Result("overlap_ratio>0.5", "rank 1", "fail", "overlap_ratio = 0.0000"),
    ]


@pytest.mark.parametrize(("overlap", "comm"), [(1, 3), (2, 3), (7, 10), (29, 100)])
def test_a_ratio_equals_what_it_is_shown_as_in_full(two_ranks: Analysis, overlap: int, comm: int) -> None:
    row = replace(two_ranks.ranks[0], overlap_ratio=overlap / comm)
    assert verdicts(replace(two_ranks, ranks=(row,), world_size=1), f"overlap_ratio=={overlap / comm!r}") == ["pass"]


def test_a_focus_is_what_the_question_is_about(report: Path) -> None:
    trace = load.read(build(report, TWO_RANKS))
    focused = job.analyze([trace], Options(compute="spin"))
    assert verdicts(focused, "overlap_us==10") == ["pass", "fail"]
    assert verdicts(focused, "overlap_ratio==0.1") == ["pass", "fail"]
    assert verdicts(focused, "n_compute==1") == ["pass", "fail"]
    assert verdicts(focused, "exposed_comm_us==40") == ["pass", "fail"]


def test_what_makes_a_row_unreliable_goes_with_what_was_found(two_ranks: Analysis) -> None:
    row = replace(two_ranks.ranks[0], unreliable=("capture-incomplete",))
    found = results(replace(two_ranks, ranks=(row, two_ranks.ranks[1])), "overlap>0", "overlap==0", "idle_ns==0")
    assert [(result.rank, result.verdict, result.unreliable) for result in found[:2]] == [
        ("rank 0", "pass", ("capture-incomplete",)),
        ("rank 0", "fail", ("capture-incomplete",)),
    ]
    assert {result.unreliable for result in found[3:]} == {()}


# -- what cannot be told


def test_without_communication_overlap_cannot_be_told(report: Path) -> None:
    silent = job.analyze([load.read(build(report, "K dev0 s7 0..100 GEMM launch=1..2"))])
    for text in ("overlap==0", "overlap_ratio>0", "tail==0", "exposed_comm==0"):
        (result,) = results(silent, text)
        assert (result.verdict, result.seen) == ("unknown", "no communication in the window")
    assert verdicts(silent, "buckets==0") == verdicts(silent, "n_comm==0") == ["pass"]


def test_without_compute_overlap_cannot_be_told(report: Path) -> None:
    blind = job.analyze([load.read(build(report, "K dev0 s16 0..100 NCCL launch=1..2"))])
    for text in ("overlap==0", "overlap_ratio>=0.6", "exposed_comm>0", "tail>0", "compute==0", "launched_early==0"):
        (result,) = results(blind, text)
        assert (result.verdict, result.seen) == ("unknown", "no compute in the window")
    assert verdicts(blind, "n_compute==0") == verdicts(blind, "comm_us==100") == ["pass"]


def test_what_is_not_defined_cannot_be_told(report: Path) -> None:
    no_launches = job.analyze([load.read(build(report, "K dev0 s7 0..100 GEMM\nK dev0 s16 0..100 NCCL"))])
    (result,) = results(no_launches, "launched_early>=1")
    assert (result.verdict, result.seen) == ("unknown", "launched_early is not defined here")


def test_opaque_graphs_cannot_be_judged(report: Path) -> None:
    opaque = job.analyze([load.read(build(report, "K dev0 s7 0..9 GEMM\nK dev0 s16 0..9 NCCL\nG dev0 s7 10..99 launch=1..2"))])
    (result,) = results(opaque, "overlap>0")
    assert (result.verdict, result.unreliable) == ("unknown", ())
    assert "--cuda-graph-trace=node" in result.seen


def test_buckets_that_were_not_listed_cannot_be_counted(two_ranks: Analysis) -> None:
    assert verdicts(replace(two_ranks, buckets=()), "buckets==1") == ["unknown", "unknown"]


def test_ranks_that_are_not_in_the_input_are_unknown(two_ranks: Analysis) -> None:
    found = results(replace(two_ranks, world_size=4), "overlap>=0")
    assert [(result.rank, result.verdict, result.seen) for result in found[2:]] == [
        ("rank 2", "unknown", "not in the input"),
        ("rank 3", "unknown", "not in the input"),
    ]


def test_an_empty_input_holds_nothing(two_ranks: Analysis) -> None:
    assert [result.verdict for result in results(replace(two_ranks, ranks=(), world_size=None), "overlap>0")] == ["unknown"]


# -- several rows of a process


def who(analysis: Analysis) -> Sequence[str]:
    return [result.rank for result in results(analysis, "overlap>=0")]


def test_unknown_ranks_are_named_by_process(report: Path) -> None:
    rows = "K dev0 s7 0..9 GEMM pid=100\nK dev0 s16 0..9 NCCL pid=100\nK dev0 s16 0..9 NCCL pid=101"
    assert who(job.analyze([load.read(build(report, rows))])) == ["process 100", "process 101"]


def test_a_stray_device_is_passed_over(report: Path) -> None:
    rows = """
        process 100 rank=0 world=1
        K dev0 s7 0..1 GEMM
        K dev1 s7 0..100 GEMM
        K dev1 s16 0..100 NCCL
    """
    analysis = job.analyze([load.read(build(report, rows))])
    assert len(analysis.ranks) == 2
    assert verdicts(analysis, "overlap_us==100") == ["pass"]


def test_the_median_of_buckets_is_over_steps(report: Path) -> None:
    rows = 'N 0..9 "step/1"\nN 10..19 "step/2"\nN 20..29 "step/3"\n' + "\n".join(
        f"K dev0 s16 {100 + 10 * at}..{105 + 10 * at} NCCL launch={time}..{time + 1}"
        for at, time in enumerate((1, 2, 11, 12, 21))
    )
    assert verdicts(job.analyze([load.read(build(report, rows))]), "buckets==2") == ["pass"]
