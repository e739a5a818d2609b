"""Columns as readers find them, put into the order and types that a Trace promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ddpprof import marks
from ddpprof.model import MISSING, Operations, Ranges, Source

Int64 = NDArray[np.int64]

LONGEST_NS: Final = 2**50
"""Thirteen days: an operation longer than this, or further from the others, cannot be true."""

LATEST_NS: Final = 2**61
"""73 years: no clock shows more, UTC since 1970 included, and sums and differences of less stay far from the int64 limit."""

OPERATION_TYPES: Final[Mapping[str, type[np.generic]]] = {
    "process": np.int32,
    "device": np.int16,
    "stream": np.int64,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "launch_ns": np.int64,
    "launch_thread": np.int64,
    "name": np.int32,
    "source": np.int8,
}
_RANGE_TYPES: Final = {
    "process": np.int32,
    "thread": np.int64,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "text": np.int32,
    "is_pushed": np.bool_,
}


def operations(parts: Sequence[dict[str, NDArray[Any]]]) -> Operations:
    """The Operations of all parts (each a column for every field), ordered by process, device, start.

    Takes the parts apart as it goes and uses their memory again, so that no more than one column is there twice.
    """
    columns = {name: _join(parts, name, kind) for name, kind in OPERATION_TYPES.items()}
    lanes, distinct = factorize(columns["process"].astype(np.int64) * 8192 + columns["device"])
    lane = np.argsort(np.argsort(distinct)).astype(np.min_scalar_type(len(distinct)))[lanes]  # small integers sort faster
    del lanes
    order = None
    if (columns["start_ns"][1:] < columns["start_ns"][:-1]).any():
        order = np.argsort(columns["start_ns"], kind="stable")
        lane = lane[order]
    if len(distinct) > 1:
        by_lane = np.argsort(lane, kind="stable")
        order = by_lane if order is None else order[by_lane]
        del by_lane
    if order is not None:
        free: dict[np.dtype[Any], NDArray[Any]] = {}  # the memory of a column that is done takes the next one
        for name, column in columns.items():
            columns[name] = np.take(column, order, out=free.get(column.dtype), mode="clip")
            free[column.dtype] = column
    return Operations(**columns)


def ranges(columns: Mapping[str, NDArray[np.generic]]) -> Ranges:
    """The Ranges of a column for every field, ordered by start."""
    typed: dict[str, NDArray[Any]] = {name: columns[name].astype(kind, copy=False) for name, kind in _RANGE_TYPES.items()}
    order = np.argsort(typed["start_ns"], kind="stable")
    return Ranges(**{name: column[order] for name, column in typed.items()})


def host_operations(ranges: Ranges, texts: Sequence[str]) -> tuple[Operations, int]:
    """The marked host ranges that are the execution, as operations (``name`` indexes ``texts``), and how many
    were left out because they never ended.

    Stream 0 is the marks of compute, stream 1 the all-reduces. A range is its own launch.
    """
    found = [marks.parse(text) for text in texts]
    is_work = np.array([mark is not None and mark.kind in ("delay", "compute", "allreduce") for mark in found], bool)
    is_comm = np.array([mark is not None and mark.kind == "allreduce" for mark in found], bool)
    rows = np.flatnonzero(is_work[ranges.text])
    closed = possible(ranges.start_ns[rows], ranges.end_ns[rows])
    n_dropped = len(rows) - int(closed.sum())
    rows = rows[closed]
    columns = {
        "process": ranges.process[rows],
        "device": np.full(len(rows), -1, np.int16),
        "stream": is_comm[ranges.text[rows]].astype(np.int64),
        "start_ns": ranges.start_ns[rows],
        "end_ns": ranges.end_ns[rows],
        "launch_ns": ranges.start_ns[rows],
        "launch_thread": ranges.thread[rows],
        "name": ranges.text[rows],
        "source": np.full(len(rows), int(Source.HOST), np.int8),
    }
    return operations([columns]), n_dropped


def times(raw: Int64, shift_ns: int) -> Int64:
    """``raw`` less ``shift_ns``; MISSING where it is missing, or more than a clock can show."""
    is_time = (raw > -LATEST_NS) & (raw < LATEST_NS)
    return raw - shift_ns if is_time.all() else np.where(is_time, raw - shift_ns, MISSING)


def possible(start: Int64, end: Int64) -> NDArray[np.bool_]:
    """Which intervals can be true: they end after they start, and lie within thirteen days of the others."""
    known = np.asarray((start != MISSING) & (end != MISSING) & (end > start))
    if not known.any() or (known.all() and int(end.max()) - int(start.min()) < LONGEST_NS):
        return known
    middle = int(np.partition(start[known], known.sum() // 2)[known.sum() // 2])
    near = (np.abs(start - middle) < LONGEST_NS) & (np.abs(end - middle) < LONGEST_NS)
    return np.asarray(known & near)


def factorize(values: Int64) -> tuple[NDArray[np.int32], Int64]:
    """Codes and the distinct values they index, in order of first appearance."""
    column = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
    encoded = column.dictionary_encode()
    return from_arrow(encoded.indices), from_arrow(encoded.dictionary)


def from_arrow(column: pa.Array) -> NDArray[Any]:
    """An Arrow array of integers without nulls, its memory shared. pyarrow's own ``to_numpy`` imports pandas first."""
    kind = np.dtype(str(column.type))
    if not len(column):
        return np.empty(0, kind)
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * kind.itemsize)


def _join(parts: Sequence[dict[str, NDArray[Any]]], name: str, kind: type[np.generic]) -> NDArray[Any]:
    """One column of all parts, taken out of them."""
    columns: list[NDArray[Any]] = [part.pop(name).astype(kind, copy=False) for part in parts]
    return columns[0] if len(columns) == 1 else np.concatenate(columns or [np.empty(0, kind)])
