"""The numbers of every (process, device, step) of one trace, in one pass over sorted arrays.

Every window gets its own stretch of one long time axis, so that unions and intersections of all windows are taken together:
the cost is that of sorting, whatever the number of steps and however densely intervals overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpprof import marks
from ddpprof.analysis import intervals, steps
from ddpprof.analysis.intervals import Intervals
from ddpprof.errors import InputError
from ddpprof.model import MISSING, Kind, Metrics, Trace

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

LONGEST_SUM_NS = 2**62
"""146 years: the windows of a trace together, and its operations together, take less, so that their sums fit an int64."""

METRICS: tuple[str, ...] = tuple(item.name for item in fields(Metrics))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Windows:
    """The measured windows of a trace, numbered by process, device, step; columns of one length.

    ``step`` is MISSING for an unnumbered window or a whole capture; ``position`` is the step's place in its process.
    ``of_operation`` is the window of each operation, -1 for none; ``is_step`` tells processes that have step ranges.
    """

    process: Int64
    device: Int64
    step: Int64
    position: Int64
    is_whole: Bools
    is_step: Bools
    of_operation: Int64
    empty_steps: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.process)


def find_windows(trace: Trace, *, step_pattern: str | None = None, whole_capture: bool = False) -> Windows:
    """The windows of a trace: its steps, or one whole capture for each process that has none (or cannot place them).

    A window exists where a step launched work on a device. ``empty_steps`` counts, per process, steps without any.
    """
    operations = trace.operations
    by_process = {} if whole_capture or not _can_place(trace) else steps.find(trace, step_pattern)
    position = np.zeros(len(operations), np.int64)
    edges = np.searchsorted(operations.process, np.arange(len(trace.processes) + 1))
    empty = []
    for process, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        if process in by_process:
            position[low:high] = steps.step_of(by_process[process], operations.launch_ns[low:high].astype(np.int64))
            seen = np.unique(position[low:high])
            empty.append(len(by_process[process]) - int((seen >= 0).sum()))
        else:
            empty.append(0)
    width = int(position.max(initial=0)) + 2
    key = (operations.process.astype(np.int64) * 8192 + operations.device + 1) * width + position + 1
    key[position < 0] = -1
    found, inverse = _distinct(key)
    process, device, place = found // width // 8192, found // width % 8192 - 1, found % width - 1
    number, is_whole = np.full(len(found), MISSING, np.int64), np.ones(len(found), bool)
    for at, (owner, spot) in enumerate(zip(process.tolist(), place.tolist(), strict=True)):
        if owner in by_process:
            number[at], is_whole[at] = by_process[owner].number[spot], by_process[owner].is_whole[spot]
    return Windows(
        process=process,
        device=device,
        step=number,
        position=place,
        is_whole=is_whole,
        is_step=np.isin(process, list(by_process)),
        of_operation=inverse,
        empty_steps=tuple(empty),
    )


def _can_place(trace: Trace) -> bool:
    """Whether operations carry launch times, without which no step can be told."""
    return trace.evidence == "host-ranges" or trace.has_launches


def _distinct(key: Int64) -> tuple[Int64, Int64]:
    """Sorted distinct non-negative keys, and the index of each key among them (-1 for negative ones)."""
    present = key[np.flatnonzero(np.diff(key, prepend=-2))]
    found = np.unique(present[present >= 0])
    if not len(found):
        return found, np.full(len(key), -1, np.int64)
    inverse = np.searchsorted(found, key)
    return found, np.where(key >= 0, inverse, -1)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Measured:
    """Metrics by name (int64 columns over windows, MISSING where undefined) and the sets they were taken from.

    ``axis_start`` maps a window's operations onto the long axis: time − base + offset. ``compute`` and ``comm`` are sets on it.
    """

    columns: dict[str, Int64]
    offset: Int64
    base: Int64
    compute: Intervals
    comm: Intervals


def measure(trace: Trace, kinds: NDArray[np.int8], windows: Windows, focus: Bools | None = None) -> Measured:
    """Metrics, counts and sums of every window. ``kinds`` is the Kind of each operation.

    ``focus`` narrows compute to some operations. Graph launches are opaque: they are in no set and in no window's length.
    """
    operations, n = trace.operations, len(windows)
    used = np.flatnonzero((windows.of_operation >= 0) & (kinds != int(Kind.GRAPH)))
    group, kind = windows.of_operation[used], kinds[used]
    start, end = operations.start_ns[used], operations.end_ns[used]
    base, last = _extent(group, start, end, n)
    if max((last - base).sum(dtype=float), (operations.end_ns - operations.start_ns).sum(dtype=float)) > LONGEST_SUM_NS:
        raise InputError(f"{trace.report.path}: its times add up to more than a century: they cannot be true")
    offset = np.concatenate([np.zeros(1, np.int64), np.cumsum(last - base + 1)])
    shift = (offset[:-1] - base)[group]
    start, end = start + shift, end + shift
    order = np.argsort(start, kind="stable")
    used, group, kind, start, end = used[order], group[order], kind[order], start[order], end[order]

    is_compute = kind == int(Kind.COMPUTE) if focus is None else (kind == int(Kind.COMPUTE)) & focus[used]
    is_comm, is_memory = kind == int(Kind.COMM), kind == int(Kind.MEMORY)
    compute, comm = _select(start, end, is_compute), _select(start, end, is_comm)
    both = intervals.union(start[is_compute | is_comm], end[is_compute | is_comm])
    busy = intervals.union(start[is_compute | is_comm | is_memory], end[is_compute | is_comm | is_memory])

    compute_ns, comm_ns = _per_window(compute, offset), _per_window(comm, offset)
    overlap_ns = _sum_by(intervals.covered(compute, comm.start, comm.end), comm.start, offset)
    both_ns, busy_ns = _per_window(both, offset), _per_window(busy, offset)
    columns = {
        "step_ns": last - base,
        "compute_ns": compute_ns,
        "comm_ns": comm_ns,
        "overlap_ns": overlap_ns,
        "exposed_comm_ns": comm_ns - overlap_ns,
        "compute_only_ns": compute_ns - overlap_ns,
        "memory_only_ns": busy_ns - both_ns,
        "idle_ns": (last - base) - busy_ns,
        "compute_span_ns": _span(compute, offset),
        "comm_span_ns": _span(comm, offset),
        "n_compute": np.bincount(group[is_compute], minlength=n),
        "n_comm": np.bincount(group[is_comm], minlength=n),
        "n_memory": np.bincount(group[is_memory], minlength=n),
        "compute_sum_ns": _sum_by(end[is_compute] - start[is_compute], start[is_compute], offset),
        "comm_sum_ns": _sum_by(end[is_comm] - start[is_comm], start[is_comm], offset),
        "start_ns": base,
        "end_ns": last,
    }
    launch = operations.launch_ns[used]
    columns |= _tail_and_order(trace, windows, group, launch, end, is_compute, is_comm, focus is not None)
    return Measured(columns=columns, offset=offset, base=base, compute=compute, comm=comm)


def _tail_and_order(
    trace: Trace, windows: Windows, group: Int64, launch: Int64, end: Int64, is_compute: Bools, is_comm: Bools, is_focus: bool
) -> dict[str, Int64]:
    """``tail_ns``, and ``n_before_last_compute``: comm launched before the last (focus, else backward) compute's launch."""
    n = len(windows)
    known = launch != MISSING
    last_comm_launch, last_comm_end = np.full(n, MISSING, np.int64), np.full(n, MISSING, np.int64)
    np.maximum.at(last_comm_launch, group[is_comm], launch[is_comm])
    np.maximum.at(last_comm_end, group[is_comm], end[is_comm])
    in_backward = _in_backward(trace, windows, group, launch)
    has_backward = np.zeros(n, bool)
    has_backward[group[in_backward & is_compute]] = True
    backward = is_compute & known & np.where(has_backward[group], in_backward, launch < last_comm_launch[group])
    last_backward_end = np.full(n, MISSING, np.int64)
    np.maximum.at(last_backward_end, group[backward], end[backward])
    is_told = (last_backward_end != MISSING) & (last_comm_end != MISSING)
    tail = np.where(is_told, np.maximum(last_comm_end - np.where(is_told, last_backward_end, 0), 0), MISSING)

    ordering = is_compute & known if is_focus else is_compute & known & (in_backward | ~has_backward[group])
    last_compute_launch = np.full(n, MISSING, np.int64)
    np.maximum.at(last_compute_launch, group[ordering], launch[ordering])
    before = is_comm & known & (launch < last_compute_launch[group])
    count = np.bincount(group[before], minlength=n)
    all_known = np.bincount(group[is_comm & ~known], minlength=n) == 0
    return {"tail_ns": tail, "n_before_last_compute": np.where(all_known & (last_compute_launch != MISSING), count, MISSING)}


def _in_backward(trace: Trace, windows: Windows, group: Int64, launch: Int64) -> Bools:
    """Which operations were launched inside a ``backward`` range of their process."""
    is_backward = np.array([(m := marks.parse(text)) is not None and m.kind == "backward" for text in trace.texts], bool)
    inside = np.zeros(len(group), bool)
    if not is_backward.any():
        return inside
    process = windows.process[group]
    for owner in np.unique(windows.process).tolist():
        rows = np.flatnonzero(is_backward[trace.ranges.text] & (trace.ranges.process == owner))
        if not len(rows):
            continue
        ends = trace.ranges.end_ns[rows].astype(np.int64)
        cover = intervals.union(trace.ranges.start_ns[rows].astype(np.int64), np.where(ends == MISSING, 2**62, ends))
        mine = np.flatnonzero((process == owner) & (launch != MISSING))
        inside[mine] = intervals.covered(cover, launch[mine], launch[mine] + 1) > 0
    return inside


def rows(measured: Measured, at: int) -> dict[str, Any]:
    """The columns of one window as Python numbers, None where undefined, with the overlap ratio."""
    values: dict[str, Any] = {name: _number(column[at]) for name, column in measured.columns.items()}
    values["overlap_ratio"] = values["overlap_ns"] / values["comm_ns"] if values["comm_ns"] else None
    return values


def medians(found: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """The median of each name over rows: the lower middle value of an even number; None where no row has one."""
    values = {name: sorted(row[name] for row in found if row[name] is not None) for name in names}
    return {name: column[(len(column) - 1) // 2] if column else None for name, column in values.items()}


def spread(found: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Least and greatest of each name over rows; names without a value are left out."""
    values = {name: [row[name] for row in found if row[name] is not None] for name in names}
    return {name: (min(column), max(column)) for name, column in values.items() if column}


def _number(value: np.int64) -> int | None:
    return None if value == MISSING else int(value)


def _extent(group: Int64, start: Int64, end: Int64, n: int) -> tuple[Int64, Int64]:
    """First start and last end of each window (0, 0 for one with nothing in it)."""
    first, last = np.full(n, 2**62, np.int64), np.full(n, -(2**62), np.int64)
    np.minimum.at(first, group, start)
    np.maximum.at(last, group, end)
    empty = first == 2**62
    return np.where(empty, 0, first), np.where(empty, 0, last)


def _select(start: Int64, end: Int64, mask: Bools) -> Intervals:
    return intervals.union(start[mask], end[mask])


def _per_window(cover: Intervals, offset: Int64) -> Int64:
    return _sum_by(cover.lengths, cover.start, offset)


def _sum_by(values: Int64, start: Int64, offset: Int64) -> Int64:
    """Sums of ``values`` over the windows that ``start`` (rising) falls in."""
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    return np.asarray(np.diff(total[np.searchsorted(start, offset)]))


def _span(cover: Intervals, offset: Int64) -> Int64:
    """Last end − first start of the set in each window, MISSING where it is empty there."""
    if not len(cover.start):
        return np.full(len(offset) - 1, MISSING, np.int64)
    edge = np.searchsorted(cover.start, offset)
    low, high = np.minimum(edge[:-1], len(cover.start) - 1), np.maximum(edge[1:] - 1, 0)
    return np.where(edge[1:] > edge[:-1], cover.end[high] - cover.start[low], MISSING)
