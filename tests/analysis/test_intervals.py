"""Interval algebra against the plainest definition: an interval set *is* a set of integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Interval, interval_lists, large_interval_lists, points

from ddpprof.analysis import intervals
from ddpprof.analysis.intervals import EMPTY, Intervals

anything = st.lists(st.tuples(st.integers(-9, 30), st.integers(-9, 30)), max_size=10)
"""Also empty and backward intervals, in any order."""


def union(pairs: list[Interval]) -> Intervals:
    start, end = (np.array([pair[edge] for pair in pairs], np.int64) for edge in (0, 1))
    return intervals.union(start, end)


def pairs(cover: Intervals) -> list[Interval]:
    return list(zip(cover.start.tolist(), cover.end.tolist(), strict=True))


@pytest.mark.parametrize(
    ("given", "covered"),
    [
        ([], []),
        ([(3, 3), (5, 2)], []),
        ([(0, 10)], [(0, 10)]),
        ([(0, 5), (5, 9)], [(0, 9)]),
        ([(0, 5), (6, 9)], [(0, 5), (6, 9)]),
        ([(0, 10), (2, 3), (4, 6)], [(0, 10)]),
        ([(8, 9), (0, 5), (3, 8)], [(0, 9)]),
        ([(0, 100), (1, 2), (50, 60), (99, 101)], [(0, 101)]),
        ([(4, 6), (4, 6), (4, 9)], [(4, 9)]),
    ],
)
def test_union_by_eye(given: list[Interval], covered: list[Interval]) -> None:
    assert pairs(union(given)) == covered


@given(anything)
def test_union_covers_the_same_points(given: list[Interval]) -> None:
    assert points(pairs(union(given))) == points(given)


@given(anything)
def test_a_set_is_disjoint_rising_and_does_not_touch(given: list[Interval]) -> None:
    found = pairs(union(given))
    edges = [edge for pair in found for edge in pair]
    assert edges == sorted(set(edges))


@given(anything)
def test_union_leaves_its_input_alone(given: list[Interval]) -> None:
    start, end = (np.array([pair[edge] for pair in given], np.int64) for edge in (0, 1))
    before = start.copy(), end.copy()
    intervals.union(start, end)
    assert (start.tolist(), end.tolist()) == (before[0].tolist(), before[1].tolist())


@given(anything)
def test_measure_counts_points(given: list[Interval]) -> None:
    assert intervals.measure(union(given)) == len(points(given))


@given(anything, anything)
def test_covered_counts_the_points_of_each_interval(cover: list[Interval], asked: list[Interval]) -> None:
    start, end = (np.array([pair[edge] for pair in asked], np.int64) for edge in (0, 1))
    found = intervals.covered(union(cover), start, end).tolist()
    assert found == [len(points(cover) & points([pair])) for pair in asked]


@given(anything, anything)
def test_intersection_is_the_points_of_both(left: list[Interval], right: list[Interval]) -> None:
    found = pairs(intervals.intersection(union(left), union(right)))
    assert points(found) == points(left) & points(right)
    assert found == pairs(union(found))


@given(interval_lists(), interval_lists(), st.sampled_from([-(2**61), -(2**40), 2**40, 2**61]))
def test_huge_times_change_nothing(left: list[Interval], right: list[Interval], far: int) -> None:
    moved = [[(start + far, end + far) for start, end in side] for side in (left, right)]
    near_both, far_both = (intervals.intersection(union(a), union(b)) for a, b in ((left, right), moved))
    assert pairs(far_both) == [(start + far, end + far) for start, end in pairs(near_both)]
    lengths = [intervals.covered(union(a), union(b).start, union(b).end).tolist() for a, b in ((left, right), moved)]
    assert lengths[0] == lengths[1]


@given(large_interval_lists(), large_interval_lists())
def test_both_and_either_add_up(left: list[Interval], right: list[Interval]) -> None:
    both = intervals.measure(intervals.intersection(union(left), union(right)))
    either = intervals.measure(union(left + right))
    assert both + either == intervals.measure(union(left)) + intervals.measure(union(right))
    assert both == int(intervals.covered(union(left), union(right).start, union(right).end).sum())


def test_nothing_is_exactly_nothing() -> None:
    some = union([(0, 5)])
    assert intervals.measure(EMPTY) == 0
    assert intervals.covered(EMPTY, some.start, some.end).tolist() == [0]
    assert pairs(intervals.intersection(some, EMPTY)) == pairs(intervals.intersection(EMPTY, some)) == []
    assert {array.dtype for array in (*EMPTY, *some, some.lengths)} == {np.dtype(np.int64)}
