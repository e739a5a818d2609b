"""A slow, obviously right answer to compare with: an interval set *is* a set of integers; and a second way for large times.

Works on plain ``(start, end)`` pairs in ns, half-open. Empty and backward intervals are nothing; what lies outside the window
is cut off. Shares no code with ddpprof.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from decimal import Decimal
from itertools import chain, pairwise
from typing import Any

from hypothesis import strategies as st
from nsight import GEMM, NCCL, K, M, Row, S, ns

Interval = tuple[int, int]
Regions = Counter[str]
"""How long each combination runs: "C" compute alone, "CN" compute and comm, "CNM" all three, "" nothing."""


def points(intervals: Iterable[Interval]) -> set[int]:
    """The union of intervals."""
    return {time for start, end in intervals for time in range(start, end)}


def by_points(compute: Iterable[Interval], comm: Iterable[Interval], memory: Iterable[Interval], window: Interval) -> Regions:
    """The regions of a window, one nanosecond at a time."""
    kinds = {"C": points(compute), "N": points(comm), "M": points(memory)}
    return Counter("".join(kind for kind in kinds if time in kinds[kind]) for time in range(*window))


def by_sweep(compute: Iterable[Interval], comm: Iterable[Interval], memory: Iterable[Interval], window: Interval) -> Regions:
    """The same, edge by edge."""
    edges = [(window[0], "", 0), (window[1], "", 0)]
    for kind, intervals in {"C": compute, "N": comm, "M": memory}.items():
        for start, end in _cut(intervals, window):
            edges += [(start, kind, 1), (end, kind, -1)]
    edges.sort()
    regions: Regions = Counter()
    running = {"C": 0, "N": 0, "M": 0, "": 0}
    for (time, kind, change), (until, _, _) in pairwise(edges):
        running[kind] += change
        regions["".join(kind for kind in "CNM" if running[kind])] += until - time
    return +regions


def oracle_metrics(
    compute: Iterable[Interval],
    comm: Iterable[Interval],
    memory: Iterable[Interval],
    window: Interval,
    *,
    last_backward_end: int | None = None,
    regions_of: Callable[..., Regions] = by_sweep,
) -> dict[str, Any]:
    """The fields of model.Metrics. Intervals alone do not tell the last backward compute: no ``tail_ns`` without its end."""
    compute, comm = list(compute), list(comm)
    regions = regions_of(compute, comm, memory, window)

    def length(inside: str, outside: str = "") -> int:
        return sum(time for kinds, time in regions.items() if set(inside) <= set(kinds) and not set(outside) & set(kinds))

    last_comm_end = max((end for _, end in _cut(comm, window)), default=None)
    return {
        "step_ns": window[1] - window[0],
        "compute_ns": length("C"),
        "comm_ns": length("N"),
        "overlap_ns": length("CN"),
        "exposed_comm_ns": length("N", "C"),
        "compute_only_ns": length("C", "N"),
        "memory_only_ns": length("M", "CN"),
        "idle_ns": length("", "CNM"),
        "compute_span_ns": _span(compute, window),
        "comm_span_ns": _span(comm, window),
        "tail_ns": None if last_comm_end is None or last_backward_end is None else max(0, last_comm_end - last_backward_end),
        "overlap_ratio": length("CN") / length("N") if length("N") else None,
    }


def of_rows(rows: Iterable[Row]) -> dict[tuple[int, int], dict[str, Any]]:
    """The metrics of each (pid, device) over all that it runs: kernels with "nccl" in their name are comm, M and S memory."""
    lanes: defaultdict[tuple[int, int], dict[str, list[Interval]]] = defaultdict(lambda: {"C": [], "N": [], "M": []})
    for row in rows:
        if isinstance(row, K | M | S) and ns(row.start) < ns(row.end):
            kind = "M" if not isinstance(row, K) else "N" if "nccl" in row.name.lower() else "C"
            lanes[row.pid, row.dev][kind].append((ns(row.start), ns(row.end)))
    return {
        lane: oracle_metrics(kinds["C"], kinds["N"], kinds["M"], _hull(chain(*kinds.values()))) for lane, kinds in lanes.items()
    }


def _cut(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    cut = [(max(start, window[0]), min(end, window[1])) for start, end in intervals if start < end]
    return [(start, end) for start, end in cut if start < end]


def _hull(intervals: Iterable[Interval]) -> Interval:
    starts, ends = zip(*intervals, strict=True)
    return min(starts), max(ends)


def _span(intervals: Iterable[Interval], window: Interval) -> int | None:
    cut = _cut(intervals, window)
    return _hull(cut)[1] - _hull(cut)[0] if cut else None


# --------------------------------------------------------------------------------------------------------------
# Hypothesis strategies


def interval_lists(least: int = -20, most: int = 60, max_size: int = 8) -> st.SearchStrategy[list[Interval]]:
    """Lists of non-empty intervals between two times; touching, nested and equal ones are likely when the times are few."""
    ordered = st.tuples(st.integers(least, most), st.integers(least, most)).filter(lambda pair: pair[0] != pair[1])
    return st.lists(ordered.map(lambda pair: (min(pair), max(pair))), max_size=max_size)


def large_interval_lists(max_size: int = 30) -> st.SearchStrategy[list[Interval]]:
    """The same on the scale of a real capture: starts within an hour, lengths up to a second."""
    pairs = st.tuples(st.integers(-(10**6), 3_600 * 10**9), st.integers(1, 10**9))
    return st.lists(pairs.map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=max_size)


@st.composite
def timelines(draw: st.DrawFn, max_size: int = 12) -> list[Row]:
    """Rows for ``nsight.build``: kernels, copies and memsets of up to two processes on up to two devices, some ns long."""
    lane = st.tuples(st.sampled_from([0, 1]), st.sampled_from([7, 16]), st.sampled_from([100, 101]))
    rows: list[Row] = []
    for start, end in draw(interval_lists(max_size=max_size).filter(bool)):
        dev, stream, pid = draw(lane)
        where = (dev, stream, Decimal(start) / 1000, Decimal(end) / 1000)
        kinds: list[Row] = [K(*where, GEMM, pid), K(*where, NCCL, pid), M(*where, "HtoD", pid), S(*where, pid)]
        rows.append(draw(st.sampled_from(kinds)))
    return rows
