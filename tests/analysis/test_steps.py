"""Which host ranges are steps, and which step a launch falls in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsight import K, N, P, Row, build

from ddpprof.analysis import load, steps
from ddpprof.analysis.steps import Steps
from ddpprof.errors import UsageError
from ddpprof.model import MISSING

LAST = np.iinfo(np.int64).max
WORK = [K(0, 7, 0, 10, launch=(0, 1), pid=100), K(0, 7, 0, 10, launch=(0, 1), pid=200)]


def found(path: Path, rows: Sequence[Row], step_pattern: str | None = None, **options: object) -> dict[int, Steps]:
    build(path, [*WORK, *rows], **options)  # type: ignore[arg-type]
    return steps.find(load.read(path, step_pattern), step_pattern)


def told(found: Steps) -> list[tuple[int | None, int, int | None]]:
    """(number, start, end) in microseconds of each step."""
    rows = zip(found.number.tolist(), found.start_ns.tolist(), found.end_ns.tolist(), strict=True)
    return [
        (None if number == MISSING else number, start // 1000, None if end == LAST else end // 1000)
        for number, start, end in rows
    ]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("step/4", 4),
        ("ProfilerStep#7", 7),
        ("step 3", 3),
        ("Step: 12", 12),
        ("training step_5", 5),
        ("train-step#6", 6),
        ("iteration 8", 8),
        ("iter=9", 9),
        ("ITER10", 10),
        ("step_" + "9" * 19, None),
    ],
)
def test_what_a_step_may_be_called(report: Path, text: str, number: int | None) -> None:
    assert told(found(report, [N(0, 50, text)])[0]) == [(number, 0, 50)]


@pytest.mark.parametrize(
    "text", ["forward", "step", "stepper 3", "optimizer.step 3", "Optimizer.step#Adam.step", "my step/4", "iter a", "warmup 3"]
)
def test_what_is_none(report: Path, text: str) -> None:
    assert found(report, [N(0, 50, text)]) == {}


def test_the_first_family_that_occurs_decides(report: Path) -> None:
    rows: list[Row] = [
        N(0, 90, "iteration 1"),
        N(1, 80, "step 2"),
        N(2, 70, "ProfilerStep#3"),
        N(3, 60, "step/4", domain="ddpprof"),
    ]
    for most, number in ((4, 4), (3, 3), (2, 2), (1, 1)):
        assert [number for number, _, _ in told(found(report, rows[:most])[0])] == [number]


def test_a_pattern_alone_decides(report: Path) -> None:
    rows: list[Row] = [N(0, 90, "step/4"), N(10, 20, "Epoch 2 batch 31"), N(30, 40, "epoch 2 BATCH 32")]
    assert told(found(report, rows, r"batch \d+")[0]) == [(31, 10, 20), (32, 30, 40)]
    assert found(report, rows, "nothing of the kind") == {}


def test_a_pattern_without_a_number(report: Path) -> None:
    assert told(found(report, [N(0, 9, "train"), N(10, 19, "train")], "^train$")[0]) == [(None, 0, 9), (None, 10, 19)]


def test_a_pattern_that_only_the_reader_understands(report: Path) -> None:
    with pytest.raises(UsageError, match="--step-range: not a regular expression"):
        found(report, [N(0, 9, "step/4")], r"\pLtep/4")


def test_every_process_has_its_own(report: Path) -> None:
    rows: list[Row] = [N(0, 50, "step/1", 100), N(10, 60, "step/1", 200), N(60, 90, "step/2", 200), N(0, 9, "step/9", 300)]
    both = found(report, rows)
    assert {process: told(its) for process, its in both.items()} == {0: [(1, 0, 50)], 1: [(1, 10, 60), (2, 60, 90)]}


def test_without_steps_the_rank_window_is_one_unnumbered_step(report: Path) -> None:
    rows: list[Row] = [P(100, rank=0), N(-5, 30, "forward", 100)]
    both = found(report, rows)
    assert {process: told(its) for process, its in both.items()} == {0: [(None, -5, 30)]}
    assert both[0].is_whole.tolist() == [True]
    assert found(report, rows, "^forwards$") == {}


def test_steps_cut_by_the_end_are_not_whole(report: Path) -> None:
    rows: list[Row] = [N(0, 50, "step/1"), N(50, 99.999, "step/2"), N(100, 200, "step/3"), N(200, None, "step/4")]
    its = found(report, rows, duration=200)[0]
    assert told(its) == [(1, 0, 50), (2, 50, 99), (3, 100, 200), (4, 200, None)]
    assert its.is_whole.tolist() == [True, True, False, False]


def test_a_report_without_its_length_has_only_open_steps_cut(report: Path) -> None:
    its = found(report, [N(0, 50, "step/1"), N(50, None, "step/2")], sql="DROP TABLE ANALYSIS_DETAILS")[0]
    assert its.is_whole.tolist() == [True, False]


def test_steps_come_in_order_of_start(report: Path) -> None:
    its = found(report, [N(60, 90, "step/2"), N(0, 50, "step/1")], shuffle=3)[0]
    assert told(its) == [(1, 0, 50), (2, 60, 90)]


def _steps(*edges: tuple[int, int]) -> Steps:
    start, end = (np.array([pair[edge] for pair in edges], np.int64) for edge in (0, 1))
    return Steps(number=start, start_ns=start, end_ns=end, is_whole=np.ones(len(edges), bool))


def test_a_step_holds_its_start_and_not_its_end() -> None:
    times = np.array([-1, 0, 9, 10, 14, 15, 19, 20, 99, 100, LAST - 1, MISSING], np.int64)
    assert steps.step_of(_steps((0, 10), (15, 20), (100, LAST)), times).tolist() == [-1, 0, 0, -1, -1, 1, 1, -1, -1, 2, 2, -1]


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=12, unique=True), st.lists(st.integers(-60, 60)))
def test_step_of_is_the_one_range_that_holds_the_time(edges: list[int], times: list[int]) -> None:
    edges = sorted(edges[: len(edges) // 2 * 2])
    ranges = list(zip(edges[0::2], edges[1::2], strict=True))
    expected = [next((at for at, (start, end) in enumerate(ranges) if start <= time < end), -1) for time in times]
    assert steps.step_of(_steps(*ranges), np.array(times, np.int64)).tolist() == expected
