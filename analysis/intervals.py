"""Interval algebra on sorted arrays: exact, linear after a sort, numpy only.

A *set* is an ``Intervals`` of disjoint, non-touching, non-empty half-open intervals in rising order, int64. ``union`` makes
one of anything; every other function takes sets and gives exact integers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


class Intervals(NamedTuple):
    """A set of intervals: ``start`` and ``end`` of one length."""

    start: Int64
    end: Int64

    @property
    def lengths(self) -> Int64:
        return self.end - self.start


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Int64, end: Int64) -> Intervals:
    """The set that the given intervals cover, in any order and overlapping; those with end ≤ start cover nothing."""
    proper = end > start
    if not proper.all():
        start, end = start[proper], end[proper]
    if len(start) == 0:
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.empty(len(start), bool)
    first[0] = True
    np.greater(start[1:], reach[:-1], out=first[1:])
    heads = np.flatnonzero(first)
    tails = np.append(heads[1:] - 1, len(start) - 1)
    return Intervals(start[heads], reach[tails])


def measure(cover: Intervals) -> int:
    """Total length of a set."""
    return int(cover.lengths.sum())


def covered(cover: Intervals, start: Int64, end: Int64) -> Int64:
    """For each interval given (any order, may overlap), the length of it that lies in the set ``cover``."""
    if len(cover.start) == 0:
        return np.zeros(len(start), np.int64)
    return np.asarray(np.maximum(_measure_before(cover, end) - _measure_before(cover, start), 0))


def intersection(left: Intervals, right: Intervals) -> Intervals:
    """The set covered by both."""
    if len(left.start) == 0 or len(right.start) == 0:
        return EMPTY
    edges = np.concatenate([left.start, left.end, right.start, right.end])
    n_left, n_right = len(left.start), len(right.start)
    change = np.concatenate([np.full(n, v, np.int8) for n, v in ((n_left, 1), (n_left, -1), (n_right, 1), (n_right, -1))])
    order = np.lexsort((change, edges))
    depth = np.cumsum(change[order])
    both = np.flatnonzero(depth[:-1] == 2)
    return union(edges[order][both], edges[order][both + 1])


def _measure_before(cover: Intervals, time: Int64) -> Int64:
    """Length of ``cover`` before each time."""
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(cover.lengths)])
    index = np.searchsorted(cover.start, time, side="right")
    last = np.maximum(index - 1, 0)
    beyond = np.where(index > 0, np.maximum(cover.end[last] - time, 0), 0)
    return np.asarray(total[index] - beyond)
