"""Reads what torch.profiler wrote (Kineto's trace, CUDA or ROCm, 2021 to today) into a Trace.

One file is one process. Device events name their device and stream in ``args`` and the launching runtime call by its
correlation. ``ts`` and ``dur`` are microseconds, whole or with nanosecond digits, whatever ``displayTimeUnit`` says, counted
from ``baseTimeNanoseconds``, in older files from 1970. Without device events the gloo calls and our marks are the execution.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddpprof import marks
from ddpprof.analysis import assemble, kernels, kineto_json
from ddpprof.analysis.kineto_json import Arguments, Event
from ddpprof.analysis.steps import STEP_PATTERNS
from ddpprof.errors import InputError, UsageError
from ddpprof.model import MISSING, Device, Operations, Process, Ranges, RankSource, ReportInfo, Source, Trace, Warning

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

DEVICE_CATEGORIES: Final = {
    "kernel": Source.KERNEL,
    "Kernel": Source.KERNEL,
    "gpu_memcpy": Source.MEMCPY,
    "Memcpy": Source.MEMCPY,
    "gpu_memset": Source.MEMSET,
    "Memset": Source.MEMSET,
}
HOST_CATEGORIES: Final = frozenset({"user_annotation", "cpu_op", "Operator"})
OVERHEADS: Final = frozenset({"Buffer Flush", "Activity Buffer Request", "Instrumentation", "Resource"})
COLLECTIVES: Final = ("nccl:", "gloo:", "c10d::", "record_param_comms")

_CALL_CATEGORY: Final = re.compile(r"(?:[a-z0-9]+_)?(?:runtime|driver)", re.IGNORECASE)
_LAUNCH: Final = re.compile(r"(?:cuda|cu|hip)\w*Launch(?!HostFunc)")
_GRAPH_LAUNCH: Final = re.compile(r"(?:cuda|cu|hip)GraphLaunch")
_COPY: Final = re.compile(r"([HDPA])(?:ost|evice|eer|rray)?to([HDPA])", re.IGNORECASE)
_LOST_RECORDS: Final = re.compile(r"Dropped [1-9]\d* activity records|CUPTI stopped early\? = [1-9]")
_FARTHEST_US: Final = 2**52
_EPOCH_NS: Final = 10**18
_MOST_DEVICES: Final = 4096


def read(path: Path, step_pattern: str | None = None) -> Trace:
    """The Trace of a torch.profiler JSON file, plain or gzip. ``step_pattern`` names further ranges to keep as steps.

    Raises InputError for a file that is no trace, that holds several processes, or that has nothing to measure.
    """
    events = _collect(path, _says_something(step_pattern))
    ranges, texts = _ranges(events), tuple(events.texts)
    calls = _calls(events)
    operations, is_launched, n_impossible = _device_operations(events, calls)
    names = tuple(events.names)
    n_nccl = sum(texts[text].startswith("nccl:") for text in ranges.text.tolist())
    is_host_run = not events.device and not n_nccl and not calls.is_launch.any()
    if is_host_run:
        operations, n_impossible = _host_operations(ranges, texts)
        names = texts
    n_dropped = events.n_dropped + n_impossible
    if not len(operations) and not n_nccl:
        raise _nothing_to_measure(path, events.is_broken_off, int(calls.is_launch.sum()), n_dropped)
    n_graphs = int((calls.is_graph & ~is_launched).sum())
    incomplete = tuple(_incomplete(events, operations, names, n_nccl))
    lost = calls.start[calls.is_launch & ~is_launched & ~calls.is_graph.any()]  # stream capture swallows launches
    return Trace(
        report=ReportInfo(
            path=path.name,
            kind="kineto",
            schema_version=str(events.head["schemaVersion"]) if "schemaVersion" in events.head else None,
            session_start_utc_ns=_session_start(events.head, operations, ranges),
        ),
        evidence="host-ranges" if is_host_run else "gpu-kernels",
        processes=(_process(path, events, ranges, texts),),
        devices=_devices(events.head, operations),
        operations=operations,
        names=names,
        ranges=ranges,
        texts=texts,
        overheads=tuple(events.overheads),
        extent=_extent(events, operations),
        is_graph_opaque=frozenset({0} if n_graphs else ()),
        has_launches=len(calls.start) > 0,
        lost_launches=tuple((0, start) for start in lost.tolist()),
        waits=tuple(sorted(events.waits)),
        is_incomplete=bool(incomplete),
        warnings=(
            *incomplete,
            *_file_health(ranges, n_dropped),
            *_gpu_health(operations, calls, n_graphs, len(lost)),
        ),
    )


# -------------------------------------------------------------------------------------------------------- events


@dataclass(slots=True)
class _Events:
    """What a pass over the file keeps. Rows lie one after the other in flat int64 arrays:

    ``device`` (device, stream, start, end, call id, name, source), ``calls`` (id, start, thread, is launch, is graph
    launch), ``host`` (thread, start, end, text). ``names`` and ``texts`` give each text its number.
    """

    device: array[int] = field(default_factory=lambda: array("q"))
    calls: array[int] = field(default_factory=lambda: array("q"))
    host: array[int] = field(default_factory=lambda: array("q"))
    names: dict[str, int] = field(default_factory=dict)
    texts: dict[str, int] = field(default_factory=lambda: {"": 0})
    overheads: list[tuple[int, int, int]] = field(default_factory=list)
    waits: list[tuple[int, int, int]] = field(default_factory=list)
    extent: tuple[int, int] | None = None
    head: dict[str, Any] = field(default_factory=dict)
    call_pids: set[int] = field(default_factory=set)
    host_pids: set[int] = field(default_factory=set)
    n_dropped: int = 0
    is_broken_off: bool = False


def _collect(path: Path, is_wanted: Callable[[str], bool]) -> _Events:
    """One pass over the file. ``is_wanted`` says which host ranges to keep by their text."""
    events = _Events()
    try:
        for part in kineto_json.parts(path):
            events.head.update(kineto_json.head(part))
            for event in part.traceEvents or ():
                if event is not None:
                    _add(events, event, is_wanted)
    except kineto_json.BrokenOff:
        events.is_broken_off = True
    return events


def _add(events: _Events, event: Event, is_wanted: Callable[[str], bool]) -> None:
    category = event.cat
    if event.ph == "M":
        if event.name == "process_labels" and kineto_json.arguments(event).labels == "CPU":
            _add_pid(events.host_pids, event)
    elif event.ph != "X" or not isinstance(category, str):
        return
    elif category in HOST_CATEGORIES:
        _add_pid(events.host_pids, event)
        if is_wanted(str(event.name)):
            _add_range(events, event)
    elif category in DEVICE_CATEGORIES:
        _add_operation(events, event, DEVICE_CATEGORIES[category])
    elif _CALL_CATEGORY.fullmatch(category):
        _add_call(events, event)
    elif category == "Trace" and (span := _span(event)):
        old = events.extent or span
        events.extent = min(old[0], span[0]), max(old[1], span[1])
    elif category == "overhead" and event.name in OVERHEADS and (span := _span(event)):
        events.overheads.append((0, *span))


def _add_operation(events: _Events, event: Event, source: Source) -> None:
    span, args = _span(event), kineto_json.arguments(event)
    device = next((n for n in map(_number, (args.device, args.inDevice, event.pid)) if n is not None), -1)
    if span is None or not 0 <= device < _MOST_DEVICES:
        events.n_dropped += 1
        return
    stream = next((n for n in map(_number, (args.stream, event.tid)) if n is not None), -1)
    name = events.names.setdefault(_operation_name(str(event.name), source), len(events.names))
    events.device.extend((device, stream, *span, _call_id(args), name, source))


def _add_call(events: _Events, event: Event) -> None:
    start, name = _ns(event.ts), str(event.name)
    if start is None:
        events.n_dropped += 1
        return
    _add_pid(events.call_pids, event)
    if kernels.WAIT_CALL.fullmatch(name) and (span := _span(event)) and span[0] < span[1]:
        events.waits.append((0, *span))
    thread = _number(event.tid)
    events.calls.extend((_call_id(kineto_json.arguments(event)), start, -1 if thread is None else thread, *_launch_kind(name)))


def _add_range(events: _Events, event: Event) -> None:
    start, span, thread = _ns(event.ts), _span(event), _number(event.tid)
    if start is None or (span is None and event.dur is not None):
        events.n_dropped += 1
        return
    text = events.texts.setdefault(str(event.name), len(events.texts))
    events.host.extend((-1 if thread is None else thread, start, MISSING if span is None else span[1], text))


def _add_pid(pids: set[int], event: Event) -> None:
    pid = _number(event.pid)
    if pid is not None:
        pids.add(pid)


def _span(event: Event) -> tuple[int, int] | None:
    """Start and end in ns; None where either is missing or the end is before the start."""
    start, length = _ns(event.ts), _ns(event.dur)
    return None if start is None or length is None or length < 0 else (start, start + length)


def _ns(us: Any) -> int | None:
    """Microseconds in whole nanoseconds, exactly; None for what is no time."""
    if not isinstance(us, (int, Decimal)) or not -_FARTHEST_US < us < _FARTHEST_US:
        return None
    return round(us * 1000)


def _number(value: Any) -> int | None:
    """An id: a number, or the digits that end a text such as "stream 7"."""
    if isinstance(value, int):
        return value if -(2**62) < value < 2**62 else None
    digits = re.search(r"(\d{1,18})\s*$", value) if isinstance(value, str) else None
    return int(digits[1]) if digits else None


def _call_id(args: Arguments) -> int:
    """What a device event and its launch have in common: the correlation, else (as a negative) the external id."""
    correlation = _number(args.correlation)
    if correlation is not None:
        return correlation
    external = _number(args.external if args.external is not None else args.external_before_2022)
    return MISSING if external is None else ~external


@lru_cache(maxsize=1024)
def _launch_kind(call: str) -> tuple[bool, bool]:
    return _LAUNCH.match(call) is not None, _GRAPH_LAUNCH.match(call) is not None


def _operation_name(name: str, source: Source) -> str:
    if source is Source.KERNEL:
        return name
    if source is Source.MEMSET:
        return "memset"
    kind = _COPY.search(name)
    return f"memcpy {kind[1].upper()}to{kind[2].upper()}" if kind else "memcpy other"


def _says_something(step_pattern: str | None) -> Callable[[str], bool]:
    """Whether a host range's text is a mark, a step or a collective call."""
    try:
        steps = [re.compile(text, re.IGNORECASE) for text in (*STEP_PATTERNS, *([step_pattern] if step_pattern else []))]
    except re.error as error:
        raise UsageError(f"--step-range: not a regular expression: {error}") from None

    @lru_cache(maxsize=4096)
    def is_wanted(text: str) -> bool:
        return text.startswith(COLLECTIVES) or marks.parse(text) is not None or any(pattern.search(text) for pattern in steps)

    return is_wanted


# ------------------------------------------------------------------------------------------------------ assembly


class _Calls(NamedTuple):
    """The runtime calls, ordered by id and start."""

    id: Int64
    start: Int64
    thread: Int64
    is_launch: Bools
    is_graph: Bools


def _rows(flat: array[int], width: int) -> Sequence[Int64]:
    return list(np.array(flat, np.int64).reshape(-1, width).T)


def _calls(events: _Events) -> _Calls:
    ids, start, thread, is_launch, is_graph = _rows(events.calls, 5)
    order = np.lexsort((start, ids))
    return _Calls(ids[order], start[order], thread[order], is_launch[order] == 1, is_graph[order] == 1)


def _ranges(events: _Events) -> Ranges:
    thread, start, end, text = _rows(events.host, 4)
    nothing = np.zeros(len(start), np.int64)
    columns = {"process": nothing, "thread": thread, "start_ns": start, "end_ns": end, "text": text}
    return assemble.ranges(columns | {"is_pushed": np.ones(len(start), bool)})


def _device_operations(events: _Events, calls: _Calls) -> tuple[Operations, Bools, int]:
    """The device events that can be true, which calls launched one, and how many events were left out."""
    device, stream, start, end, call, name, source = rows = _rows(events.device, 7)
    keep = _possible(start, end)
    if events.extent is not None and events.extent[0] > 0:
        keep &= start != 0  # a time that the profiler did not know
    device, stream, start, end, call, name, source = (column[keep] for column in rows)
    at = np.searchsorted(calls.id, call)
    is_found = (call != MISSING) & (at < len(calls.id))
    is_found[is_found] = calls.id[at[is_found]] == call[is_found]
    launch, thread = np.full(len(start), MISSING), np.full(len(start), MISSING)
    launch[is_found], thread[is_found] = calls.start[at[is_found]], calls.thread[at[is_found]]
    columns = {"device": device, "stream": stream, "start_ns": start, "end_ns": end, "name": name, "source": source}
    columns |= {"process": np.zeros(len(start), np.int64), "launch_ns": launch, "launch_thread": thread}
    return assemble.operations([columns]), np.isin(calls.id, call[is_found]), int(len(keep) - keep.sum())


def _host_operations(ranges: Ranges, texts: Sequence[str]) -> tuple[Operations, int]:
    """The execution of a run without device, and how many of its ranges never ended: marks of compute, and the
    gloo calls on gloo's own threads (without any, our all-reduce marks). A stream is a thread.
    """
    found = [marks.parse(text) for text in texts]
    is_gloo = np.array([text.startswith("gloo:") for text in texts], bool)[ranges.text]
    comm = is_gloo if is_gloo.any() else _is_mark(found, "allreduce")[ranges.text]
    rows = np.flatnonzero(comm | _is_mark(found, "delay", "compute")[ranges.text])
    start, end = ranges.start_ns[rows], ranges.end_ns[rows]
    keep = _possible(start, end)
    rows, start, end = rows[keep], start[keep], end[keep]
    called = _host_calls(ranges, texts)
    columns = {
        "process": np.zeros(len(rows), np.int64),
        "device": np.full(len(rows), -1),
        "stream": np.unique(ranges.thread[rows], return_inverse=True)[1],
        "start_ns": start,
        "end_ns": end,
        "launch_ns": ranges.start_ns[called[rows]],
        "launch_thread": ranges.thread[called[rows]],
        "name": ranges.text[rows],
        "source": np.full(len(rows), int(Source.HOST)),
    }
    return assemble.operations([columns]), int(len(keep) - keep.sum())


def _host_calls(ranges: Ranges, texts: Sequence[str]) -> Int64:
    """For each range the range that called for it: for a gloo execution the ``c10d::`` call of the same collective,
    k-th for k-th by start, where one is left that came before; for every other range itself.
    """
    called = np.arange(len(ranges))
    waiting: dict[str, deque[int]] = {}
    for row, text in enumerate(texts[text] for text in ranges.text.tolist()):
        library, _, collective = text.partition(":")
        collective = re.sub(r"[^a-z]", "", collective)
        if library == "c10d":
            waiting.setdefault(collective, deque()).append(row)
        elif library == "gloo" and waiting.get(collective):
            called[row] = waiting[collective].popleft()
    return called


def _is_mark(found: Sequence[marks.Mark | None], *kinds: str) -> Bools:
    return np.array([mark is not None and mark.kind in kinds for mark in found], bool)


def _possible(start: Int64, end: Int64) -> Bools:
    """Which intervals can be true. Of no length is possible: older files round to microseconds."""
    return assemble.possible(start, np.where((end == start) & (start != 0), end + 1, end))


def _process(path: Path, events: _Events, ranges: Ranges, texts: Sequence[str]) -> Process:
    """The one process of the file, its rank by distributedInfo, else by its own mark."""
    pids = events.call_pids or events.host_pids
    if len(pids) > 1:
        raise InputError(
            f"{path}: holds {len(pids)} processes merged into one trace",
            "Give the files of the ranks as torch.profiler wrote them.",
        )
    found = [(at, mark) for at, mark in enumerate(map(marks.parse, texts)) if mark is not None and mark.kind == "rank"]
    rows = np.isin(ranges.text, [at for at, _ in found]) & (ranges.end_ns != MISSING)
    window = (int(ranges.start_ns[rows].min()), int(ranges.end_ns[rows].max())) if rows.any() else None
    mark = found[0][1] if found else None
    job = events.head.get("distributedInfo")
    rank, world = (_count(job.get(key)) for key in ("rank", "world_size")) if isinstance(job, dict) else (None, None)
    source: RankSource = "distributedInfo" if rank is not None else "mark" if mark is not None else "unknown"
    pid = next(iter(pids), -1)
    return Process(
        key=pid,
        pid=pid,
        rank=rank if rank is not None else mark.index if mark else None,
        rank_source=source,
        world_size=world if world is not None else mark.world_size if mark else None,
        window=window,
    )


def _count(value: Any) -> int | None:
    number = _number(value)
    return number if marks.RANK.fullmatch(str(number)) else None


def _devices(head: dict[str, Any], operations: Operations) -> tuple[Device, ...]:
    """The devices with work, with model and uuid where deviceProperties tells them."""
    properties = head.get("deviceProperties")
    listed = [item for item in properties if isinstance(item, dict)] if isinstance(properties, list) else []
    known = {_number(item.get("id")): item for item in listed}
    found = []
    for device in np.unique(operations.device[operations.device >= 0]).tolist():
        name, gpu = (known.get(device, {}).get(key) for key in ("name", "uuid"))
        found.append(Device(process=0, device_id=device, name=str(name) if name else None, gpu=str(gpu) if gpu else None))
    return tuple(found)


def _session_start(head: dict[str, Any], operations: Operations, ranges: Ranges) -> int | None:
    """UTC of the trace's zero: the stated base; 1970 for times that are themselves UTC; else unknown."""
    base = _number(head.get("baseTimeNanoseconds"))
    if base is not None:
        return base
    first = next((int(rows.start_ns.min()) for rows in (operations, ranges) if len(rows)), 0)
    return 0 if first > _EPOCH_NS else None


def _extent(events: _Events, operations: Operations) -> tuple[int, int] | None:
    """The captured window; of a file that is cut off no later than its last operation, so that a step after it is cut."""
    if not events.is_broken_off or not len(operations):
        return events.extent
    first, last = int(operations.start_ns.min()), int(operations.end_ns.max())
    return (first, last) if events.extent is None else (events.extent[0], min(events.extent[1], last))


# -------------------------------------------------------------------------------------------------------- health


def _incomplete(events: _Events, operations: Operations, names: Sequence[str], n_nccl: int) -> Iterable[Warning]:
    """What tells that operations are missing, and not which."""
    if events.is_broken_off:
        yield Warning(
            code="capture-incomplete",
            message="the file is cut off or damaged: what follows its last whole event is missing",
        )
    for key in ("INFO", "WARNING", "ERROR"):
        if lost := _LOST_RECORDS.search(str(events.head.get(key, ""))):
            yield Warning(
                code="capture-incomplete", message=f"the profiler lost GPU records ({lost[0]}): numbers are too small"
            )
    called = np.unique(operations.name[operations.source == int(Source.KERNEL)]).tolist()
    if n_nccl and not any(kernels.COMM.search(names[name]) for name in called):
        yield Warning(
            code="capture-incomplete",
            message=f"CPU-side collectives exist, GPU kernels missing: {n_nccl} nccl: calls and no kernel of theirs; "
            "profile with ProfilerActivity.CUDA",
        )


def _file_health(ranges: Ranges, n_dropped: int) -> Iterable[Warning]:
    """What the file has and cannot be used."""
    if n_dropped:
        yield Warning(
            code="dropped-rows", message=f"{n_dropped} events left out: no time or device, or times that cannot be true"
        )
    n_open = int((ranges.end_ns == MISSING).sum())
    if n_open:
        yield Warning(code="capture-incomplete", message=f"{n_open} host ranges were still open when the capture ended")


def _gpu_health(operations: Operations, calls: _Calls, n_graphs: int, n_lost: int) -> Iterable[Warning]:
    """What the GPU trace lacks beside the host calls."""
    is_kernel = operations.source == int(Source.KERNEL)
    if n_graphs:
        yield Warning(
            code="graph-trace-opaque",
            message=f"{n_graphs} CUDA graph launches without kernels: what ran in them cannot be seen",
        )
    n_kernels, launch = int(is_kernel.sum()), operations.launch_ns
    n_outside = int((is_kernel & (launch == MISSING)).sum())
    n_early = int((is_kernel & (operations.start_ns < launch)).sum())
    if n_outside and len(calls.start):
        yield Warning(code="launch-mismatch", message=f"{n_outside} of {n_kernels} kernels were launched outside the capture")
    if n_early:
        yield Warning(code="launch-mismatch", message=f"{n_early} of {n_kernels} kernels start before their own launch call")
    if n_lost:
        yield Warning(code="launch-mismatch", message=f"{n_lost} kernel launches have no kernel in the trace")


def _nothing_to_measure(path: Path, is_broken_off: bool, n_launches: int, n_dropped: int) -> InputError:
    what = (
        f"{n_launches} launches, 0 kernels: GPU tracing failed" if n_launches else "no GPU kernels and no gloo calls or marks"
    )
    what += f" ({n_dropped} impossible events left out)" if n_dropped else ""
    if is_broken_off:
        return InputError(
            f"{path}: {what} before the place where the file is cut off", "Copy the file again, or profile again."
        )
    return InputError(f"{path}: {what}", "Profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].")
