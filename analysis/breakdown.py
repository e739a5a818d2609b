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
    of_operation: NDArray[np.int32]
    empty_steps: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.process)


def find_windows(trace: Trace, *, step_pattern: str | None = None, whole_capture: bool = False) -> Windows:
    """The windows of a trace: its steps, or one whole capture for each process that has none (or cannot place them).

    A window exists where a step launched work on a device. ``empty_steps`` counts, per process, steps without any.
    """
    operations = trace.operations
    by_process = {} if whole_capture or not _can_place(trace) else steps.find(trace, step_pattern)
    of_operation = np.full(len(operations), -1, np.int32)
    edges = np.searchsorted(operations.process, np.arange(len(trace.processes) + 1))
    columns: list[tuple[int, int, int]] = []
    empty = []
    for process, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        found = by_process.get(process)
        position = np.zeros(high - low, np.int64) if found is None else steps.step_of(found, operations.launch_ns[low:high])
        width = int(position.max(initial=0)) + 1
        key = np.where(position < 0, -1, (operations.device[low:high].astype(np.int64) + 1) * width + position)
        keys, inverse = _distinct(key)
        of_operation[low:high] = np.where(inverse < 0, -1, inverse + len(columns))
        columns += [(process, key // width - 1, key % width) for key in keys.tolist()]
        empty.append(0 if found is None else len(found) - len({key % width for key in keys.tolist()}))
    owners, devices, places = np.array(columns, np.int64).reshape(-1, 3).T
    number, is_whole = np.full(len(columns), MISSING, np.int64), np.ones(len(columns), bool)
    for at, (owner, _, spot) in enumerate(columns):
        if owner in by_process:
            number[at], is_whole[at] = by_process[owner].number[spot], by_process[owner].is_whole[spot]
    return Windows(
        process=owners,
        device=devices,
        step=number,
        position=places,
        is_whole=is_whole,
        is_step=np.isin(owners, list(by_process)),
        of_operation=of_operation,
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

    A time of a window lies on the long axis at time − base + offset; ``compute``, ``comm`` and ``busy`` (these two and
    memory) are sets on it.
    """

    columns: dict[str, Int64]
    offset: Int64
    base: Int64
    compute: Intervals
    comm: Intervals
    busy: Intervals


def measure(trace: Trace, kinds: NDArray[np.int8], windows: Windows, focus: Bools | None = None) -> Measured:
    """Metrics, counts and sums of every window. ``kinds`` is the Kind of each operation.

    ``focus`` narrows compute to some operations. Graph launches are opaque: they are in no set and in no window's length.
    Processes are taken one by one, each from where the axis of the one before ends, so that memory is that of one.
    """
    operations = trace.operations
    if (operations.end_ns - operations.start_ns).sum(dtype=float) > LONGEST_SUM_NS:
        raise InputError(f"{trace.report.path}: its times add up to more than a century: they cannot be true")
    parts = []
    origin = 0
    for process in np.unique(windows.process).tolist() or [-1]:
        rows = slice(*np.searchsorted(operations.process, [process, process + 1]).tolist())
        mine = slice(*np.searchsorted(windows.process, [process, process + 1]).tolist())
        parts.append(_measure_process(trace, kinds, windows, focus, process, rows, mine, origin))
        origin = int(parts[-1].offset[-1])
        if origin > LONGEST_SUM_NS:
            raise InputError(f"{trace.report.path}: its windows add up to more than a century: they cannot be true")
    return Measured(
        columns={name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        offset=np.concatenate([part.offset[:-1] for part in parts] + [parts[-1].offset[-1:]]),
        base=np.concatenate([part.base for part in parts]),
        compute=_chain([part.compute for part in parts]),
        comm=_chain([part.comm for part in parts]),
        busy=_chain([part.busy for part in parts]),
    )


def _measure_process(
    trace: Trace,
    kinds: NDArray[np.int8],
    windows: Windows,
    focus: Bools | None,
    process: int,
    rows: slice,
    mine: slice,
    origin: int,
) -> Measured:
    """``measure`` of the operations ``rows`` and windows ``mine`` of one process, its axis starting at ``origin``."""
    operations, n = trace.operations, mine.stop - mine.start
    kind, group = kinds[rows], windows.of_operation[rows] - mine.start
    used = np.flatnonzero((group >= 0) & (kind != int(Kind.GRAPH)))
    group, kind = group[used], kind[used]
    start, end = operations.start_ns[rows][used], operations.end_ns[rows][used]
    launch = operations.launch_ns[rows][used]
    base, last = _extent(group, start, end, n)
    offset = origin + np.concatenate([np.zeros(1, np.int64), np.cumsum(last - base + 1)])
    shift = (offset[:-1] - base)[group]
    start, end = start + shift, end + shift
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        used, group, kind = used[order], group[order], kind[order]
        start, end, launch = start[order], end[order], launch[order]

    is_compute = kind == int(Kind.COMPUTE) if focus is None else (kind == int(Kind.COMPUTE)) & focus[rows][used]
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
    in_backward = _in_backward(trace, process, launch)
    columns |= _tail_and_order(n, group, launch, end, is_compute, is_comm, in_backward, focus is not None)
    return Measured(columns=columns, offset=offset, base=base, compute=compute, comm=comm, busy=busy)


def _chain(sets: Sequence[Intervals]) -> Intervals:
    """One set of several that follow each other on the axis."""
    return Intervals(np.concatenate([item.start for item in sets]), np.concatenate([item.end for item in sets]))


def _tail_and_order(
    n: int, group: Int64, launch: Int64, end: Int64, is_compute: Bools, is_comm: Bools, in_backward: Bools, is_focus: bool
) -> dict[str, Int64]:
    """``tail_ns``, and ``n_before_last_compute``: comm launched before the last (focus, else backward) compute's launch."""
    known = launch != MISSING
    last_comm_launch, last_comm_end = _latest(group, launch, is_comm, n), _latest(group, end, is_comm, n)
    has_backward = np.zeros(n, bool)
    has_backward[group[in_backward & is_compute]] = True
    backward = is_compute & known & np.where(has_backward[group], in_backward, launch < last_comm_launch[group])
    last_backward_end = _latest(group, end, backward, n)
    is_told = (last_backward_end != MISSING) & (last_comm_end != MISSING)
    tail = np.where(is_told, np.maximum(last_comm_end - np.where(is_told, last_backward_end, 0), 0), MISSING)

    ordering = is_compute & known if is_focus else is_compute & known & (in_backward | ~has_backward[group])
    last_compute_launch = _latest(group, launch, ordering, n)
    before = is_comm & known & (launch < last_compute_launch[group])
    count = np.bincount(group[before], minlength=n)
    all_known = np.bincount(group[is_comm & ~known], minlength=n) == 0
    return {"tail_ns": tail, "n_before_last_compute": np.where(all_known & (last_compute_launch != MISSING), count, MISSING)}


def _latest(group: Int64, time: Int64, mask: Bools, n: int) -> Int64:
    """The greatest time of the masked rows of each window, MISSING where it has none."""
    latest = np.full(n, MISSING, np.int64)
    np.maximum.at(latest, group[mask], time[mask])
    return latest


def _in_backward(trace: Trace, process: int, launch: Int64) -> Bools:
    """Which launches of a process lie inside one of its ``backward`` ranges."""
    is_backward = np.array([(m := marks.parse(text)) is not None and m.kind == "backward" for text in trace.texts], bool)
    if not is_backward.any():
        return np.zeros(len(launch), bool)
    rows = np.flatnonzero(is_backward[trace.ranges.text] & (trace.ranges.process == process))
    ends = trace.ranges.end_ns[rows].astype(np.int64)
    cover = intervals.union(trace.ranges.start_ns[rows].astype(np.int64), np.where(ends == MISSING, 2**62, ends))
    known = np.where(launch == MISSING, 0, launch)
    return np.asarray((launch != MISSING) & (intervals.covered(cover, known, known + 1) > 0))


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
