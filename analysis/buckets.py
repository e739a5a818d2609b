"""Which DDP bucket each communication interval carries: kernel → launch call → innermost bucket range on that thread.

Without bucket marks the row says so: numbered by the NCCL range around the launch, or by order of launch alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ddpprof import marks
from ddpprof.analysis import intervals, kernels
from ddpprof.analysis.breakdown import Measured, Windows
from ddpprof.model import MISSING, BucketRecord, Kind, Process, Trace

Int64 = NDArray[np.int64]


def attribute(
    trace: Trace,
    kinds: NDArray[np.int8],
    windows: Windows,
    measured: Measured,
    records: Mapping[tuple[int, int, int], BucketRecord] | None = None,
) -> list[dict[str, Any]]:
    """The columns of BucketRow (less rank and report) of every communication interval in a window, by window and launch.

    ``records`` are the bucket records by (rank, step, bucket).
    """
    operations = trace.operations
    used = np.flatnonzero((windows.of_operation >= 0) & (kinds == int(Kind.COMM)))
    if not len(used):
        return []
    group = windows.of_operation[used]
    launch = operations.launch_ns[used].astype(np.int64)
    start, end = operations.start_ns[used].astype(np.int64), operations.end_ns[used].astype(np.int64)
    order = np.lexsort((start, np.where(launch == MISSING, start, launch), group))
    used, group, launch, start, end = used[order], group[order], launch[order], start[order], end[order]
    shift = (measured.offset[:-1] - measured.base)[group]
    overlap = intervals.covered(measured.compute, start + shift, end + shift)
    bucket_range = ranges_around(trace, used, _texts_of(trace, "bucket"))
    call_range = ranges_around(
        trace, used, np.array([kernels.COLLECTIVE_CALL.fullmatch(t) is not None for t in trace.texts], bool)
    )
    has_marks = np.zeros(len(windows), bool)
    has_marks[group[bucket_range >= 0]] = True
    counted = np.zeros(len(windows), np.int64)
    names = [trace.names[at] for at in operations.name[used].tolist()]
    found = []
    for at, window in enumerate(group.tolist()):
        mark = _mark(trace, int(bucket_range[at])) or _host_mark(names[at])
        call = trace.texts[trace.ranges.text[call_range[at]]] if call_range[at] >= 0 else None
        bucket, attribution = _number(mark, bool(has_marks[window]), int(counted[window]), call)
        counted[window] += 1
        process = trace.processes[int(windows.process[window])]
        step = None if windows.step[window] == MISSING else int(windows.step[window])
        record = None
        if records and process.rank is not None and step is not None and bucket is not None:
            record = records.get((process.rank, step, bucket))
        size = mark.size_bytes if mark is not None and mark.size_bytes is not None else record.size_bytes if record else None
        found.append(
            {
                "process": int(windows.process[window]),
                "device": int(windows.device[window]),
                "step": step,
                "bucket": bucket,
                "operation": _operation(names[at], call),
                "size_bytes": size,
                "parameters": tuple(record.parameters) if record else None,
                "launch_ns": None if launch[at] == MISSING else int(launch[at]),
                "queue_ns": None if launch[at] == MISSING else int(start[at] - launch[at]),
                "start_ns": int(start[at]),
                "end_ns": int(end[at]),
                "overlap_ns": int(overlap[at]),
                "exposed_ns": int(end[at] - start[at] - overlap[at]),
                "attribution": attribution,
                **_bandwidth(size, int(end[at] - start[at]), process),
            }
        )
    return found


def ranges_around(trace: Trace, used: Int64, is_wanted: NDArray[np.bool_]) -> Int64:
    """For each operation the row of the innermost wanted range, on its launching thread, that holds its launch; else -1.

    ``is_wanted`` is by text. Innermost is the one that started last.
    """
    found = np.full(len(used), -1, np.int64)
    rows = np.flatnonzero(is_wanted[trace.ranges.text]) if len(trace.ranges) else np.empty(0, np.int64)
    if not len(rows):
        return found
    launch, thread = trace.operations.launch_ns[used].astype(np.int64), trace.operations.launch_thread[used]
    for owner in np.unique(trace.ranges.thread[rows]).tolist():
        mine = np.flatnonzero((thread == owner) & (launch != MISSING))
        here = rows[trace.ranges.thread[rows] == owner]
        start, end = trace.ranges.start_ns[here].astype(np.int64), trace.ranges.end_ns[here].astype(np.int64)
        end[end == MISSING] = np.iinfo(np.int64).max
        outer = _outlasting(end)
        time = launch[mine]
        at = np.searchsorted(start, time, side="right") - 1
        while (over := (at >= 0) & (time >= end[at])).any():
            at[over] = outer[at[over]]
        found[mine[at >= 0]] = here[at[at >= 0]]
    return found


def _outlasting(end: Int64) -> Int64:
    """For each range (in order of start) the nearest earlier one that ends after it, -1 for none.

    All ranges between the two end no later: what outlives one of them must be looked for there.
    """
    found = np.full(len(end), -1, np.int64)
    lasting: list[tuple[int, int]] = []
    for at, time in enumerate(end.tolist()):
        while lasting and lasting[-1][0] <= time:
            lasting.pop()
        if lasting:
            found[at] = lasting[-1][1]
        lasting.append((time, at))
    return found


def _texts_of(trace: Trace, kind: str) -> NDArray[np.bool_]:
    return np.array([(mark := marks.parse(text)) is not None and mark.kind == kind for text in trace.texts], bool)


def _mark(trace: Trace, row: int) -> marks.Mark | None:
    return marks.parse(trace.texts[trace.ranges.text[row]]) if row >= 0 else None


def _host_mark(name: str) -> marks.Mark | None:
    mark = marks.parse(name)
    return mark if mark is not None and mark.kind == "allreduce" else None


def _number(
    mark: marks.Mark | None, has_marks: bool, count: int, call: str | None
) -> tuple[int | None, Literal["range", "nccl-range", "order"]]:
    """Bucket number and how it was found; None for an extra collective beside marked buckets (the used-parameter map)."""
    if mark is not None:
        return mark.index, "range"
    if has_marks:
        return None, "order"
    return count, "nccl-range" if call is not None else "order"


def _operation(name: str, call: str | None) -> str:
    by_kernel = kernels.operation_of(name)
    return kernels.operation_of(call) if by_kernel == "unknown" and call is not None else by_kernel


def _bandwidth(size_bytes: int | None, duration_ns: int, process: Process) -> dict[str, float | None]:
    """Algorithm and bus bandwidth in bytes/s, as nccl-tests define them for an all-reduce."""
    if not size_bytes or not duration_ns:
        return {"algbw": None, "busbw": None}
    algbw, world = size_bytes * 1e9 / duration_ns, process.world_size
    return {"algbw": algbw, "busbw": algbw * 2 * (world - 1) / world if world else None}
