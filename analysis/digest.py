"""One trace reduced to what its job needs of it: rows and a few facts, small whatever the size of the trace.

A Digest can be made elsewhere (it pickles) and the trace then forgotten, so a job of a thousand reports holds one at a time.
Its rows are as if the trace were alone: rank and report are settled by ``job.combine``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ddpprof.analysis import breakdown, buckets, kernels, signs, steps
from ddpprof.analysis.breakdown import METRICS
from ddpprof.analysis.part import Options, Part, lanes, measure
from ddpprof.analysis.ranks import Comm, communication
from ddpprof.errors import UsageError
from ddpprof.model import (
    MISSING,
    BucketRow,
    Device,
    Evidence,
    FocusRow,
    Kind,
    Process,
    RankRow,
    Records,
    ReportInfo,
    Source,
    StepRow,
    Trace,
)

BUCKET_LIMIT = 10_000
"""More communication intervals than this are not listed one by one unless asked for."""

_COUNTS = ("n_compute", "n_comm", "n_memory", "n_before_last_compute", "compute_sum_ns", "comm_sum_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A warning of one trace; what it says of ``process`` (an index) begins with who that is."""

    code: str
    message: str
    process: int | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """How many operations a process (by index) has, and from when to when."""

    process: int
    n_operations: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Digest:
    """What a job needs of one trace. Each row comes with the index of its process; ``buckets`` is None when not listed.

    ``kinds`` is (Kind, name) to count and total ns, ``extent`` the first start and last end of the windows, ``unstepped``
    the processes whose window is the whole capture, ``calls`` the collective calls of the host by family, ``side_names``
    the longest kernels on side streams where nothing was called communication, ``comm`` is the
    communication of each row of ``ranks``, ``signs`` what each shows that a cause can be told from. ``others`` are the
    streams, else the steps, that there are where the options leave nothing.
    """

    report: ReportInfo
    evidence: Evidence
    processes: tuple[Process, ...]
    devices: tuple[Device, ...]
    works: tuple[Work, ...]
    n_operations: int
    n_windows: int
    n_comm: int
    extent: tuple[int, int] | None
    has_steps: bool
    has_focus: bool
    has_unplaced_steps: bool
    unstepped: tuple[int, ...]
    ranks: tuple[tuple[int, RankRow], ...]
    steps: tuple[tuple[int, StepRow], ...]
    buckets: tuple[tuple[int, BucketRow], ...] | None
    focus: tuple[tuple[int, FocusRow], ...]
    kinds: Mapping[tuple[int, str], tuple[int, int]]
    told: tuple[Told, ...]
    others: tuple[int, ...]
    calls: frozenset[str]
    side_names: tuple[str, ...]
    comm: tuple[Comm, ...]
    signs: tuple[signs.Signs, ...]


def digest(trace: Trace, options: Options, *, rank: int | None = None, records: Records | None = None) -> Digest:
    """The Digest of a trace. ``rank`` is given by hand, over all other sources: UsageError unless just one process worked."""
    overruled = [] if rank is None else [*_overruled(trace, rank)]
    trace = trace if rank is None else _named(trace, rank)
    works = tuple(_works(trace))
    part = measure(trace, options)
    windows, columns = part.windows, part.measured.columns
    n_comm = int((part.kinds == int(Kind.COMM)).sum())
    wants_buckets = options.buckets if options.buckets is not None else n_comm <= BUCKET_LIMIT
    return Digest(
        report=trace.report,
        evidence=trace.evidence,
        processes=trace.processes,
        devices=trace.devices,
        works=works,
        n_operations=len(part.trace.operations),
        n_windows=len(windows),
        n_comm=n_comm,
        extent=(int(columns["start_ns"].min()), int(columns["end_ns"].max())) if len(windows) else None,
        has_steps=bool(windows.is_step.any()),
        has_focus=part.focused is not None and bool(part.focused.columns["n_compute"].any()),
        has_unplaced_steps=not trace.has_launches and bool(steps.find(trace, options.step_pattern)),
        unstepped=tuple(np.unique(windows.process[~windows.is_step]).tolist()),
        ranks=tuple(_rank_rows(part)),
        steps=tuple(_step_rows(part)),
        buckets=tuple(_bucket_rows(part, records)) if wants_buckets else None,
        focus=tuple(_focus_rows(part)),
        kinds=_kinds(part),
        told=(*overruled, *_told(part)),
        others=_others(trace, options, part),
        calls=_calls(trace),
        side_names=() if n_comm else tuple(_side_names(part)),
        comm=tuple(communication(part, process, device) for process, device, _ in lanes(part)),
        signs=tuple(signs.look(part)),
    )


def _named(trace: Trace, rank: int) -> Trace:
    at = _worker(trace, rank)
    named = replace(trace.processes[at], rank=rank, rank_source="option")
    return replace(trace, processes=(*trace.processes[:at], named, *trace.processes[at + 1 :]))


def _overruled(trace: Trace, rank: int) -> Iterator[Told]:
    """That the report itself tells another rank than the one given by hand."""
    own = trace.processes[_worker(trace, rank)].rank
    if own not in (None, rank):
        yield Told(code="rank-overruled", message=f"rank {rank} by --rank, though the report itself tells rank {own}")


def _worker(trace: Trace, rank: int) -> int:
    """Index of the one process with work, whose rank can be given. Raises UsageError when there is not just one."""
    workers = np.unique(trace.operations.process).tolist()
    if len(workers) != 1:
        raise UsageError(
            f"--rank {trace.report.path}={rank}: the report has {len(workers)} processes with work",
            "A rank can be given only to a report of one process.",
        )
    worker: int = workers[0]
    return worker


def _others(trace: Trace, options: Options, part: Part) -> tuple[int, ...]:
    if options.streams is not None and not len(part.trace.operations):
        return tuple(np.unique(trace.operations.stream).tolist())
    if options.steps is not None and not len(part.windows):
        windows = breakdown.find_windows(trace, step_pattern=options.step_pattern, whole_capture=options.whole_capture)
        return tuple(np.unique(windows.step[windows.step != MISSING]).tolist())
    return ()


def _works(trace: Trace) -> Iterator[Work]:
    operations = trace.operations
    for process in np.unique(operations.process).tolist():
        mine = slice(*np.searchsorted(operations.process, [process, process + 1]).tolist())
        start, end = operations.start_ns[mine], operations.end_ns[mine]
        yield Work(process, len(start), int(start.min()), int(end.max()))


# ------------------------------------------------------------------------------------------------------------- rows


def _rank_rows(part: Part) -> Iterator[tuple[int, RankRow]]:
    trace, windows = part.trace, part.windows
    names = {(device.process, device.device_id): device.name for device in trace.devices}
    for process, device_id, at in lanes(part):
        rows = [breakdown.rows(part.measured, window) for window in at]
        good = [row for row, window in zip(rows, at, strict=True) if part.reasons[window] is None]
        chosen = good or rows
        values = breakdown.medians(chosen, (*METRICS, *_COUNTS))
        if part.focused is not None:
            ordered = [breakdown.rows(part.focused, window) for window in at]
            ordered = [row for row, window in zip(ordered, at, strict=True) if not good or part.reasons[window] is None]
            values |= breakdown.medians(ordered, ["n_before_last_compute"])
        owner = trace.processes[process]
        mine = (trace.operations.process == process) & (trace.operations.device == device_id)
        row = RankRow(
            rank=owner.rank,
            rank_source=owner.rank_source,
            report=0,
            pid=owner.pid,
            device_id=device_id if device_id >= 0 else None,
            device_name=names.get((process, device_id)),
            gpu=None,
            is_time_sliced=False,
            steps=len(good) if windows.is_step[at[0]] else 0,
            n_left_out=int((windows.of_operation[mine] < 0).sum()),
            spread=breakdown.spread(chosen, METRICS) if len(chosen) > 1 else {},
            unreliable=_unreliable(part, process, bool(good), chosen),
            **values,
        )
        yield process, row


def _unreliable(part: Part, process: int, has_complete: bool, chosen: Sequence[Any]) -> tuple[str, ...]:
    trace = part.trace
    codes = []
    if process in trace.is_graph_opaque:
        codes.append("graph-trace-opaque")
    if trace.is_incomplete or not has_complete:
        codes.append("capture-incomplete")
    start, end = min(row["start_ns"] for row in chosen), max(row["end_ns"] for row in chosen)
    if any(owner == process and low < end and high > start for owner, low, high in trace.overheads):
        codes.append("profiler-overhead")
    return tuple(codes)


def _step_rows(part: Part) -> Iterator[tuple[int, StepRow]]:
    windows = part.windows
    for at, reason in enumerate(part.reasons):
        process, device = int(windows.process[at]), int(windows.device[at])
        owner = part.trace.processes[process]
        row = StepRow(
            rank=owner.rank,
            report=0,
            pid=owner.pid,
            device_id=device if device >= 0 else None,
            step=None if windows.step[at] == MISSING else int(windows.step[at]),
            complete=reason is None or reason.startswith("step 0"),
            reason=reason,
            **breakdown.rows(part.measured, at),
        )
        yield process, row


def _bucket_rows(part: Part, records: Records | None) -> Iterator[tuple[int, BucketRow]]:
    by_bucket = {(item.rank, item.step, item.bucket): item for item in records.buckets} if records else {}
    for row in buckets.attribute(part.trace, part.kinds, part.windows, part.measured, by_bucket):
        process, device = row.pop("process"), row.pop("device")
        owner = part.trace.processes[process]
        yield (
            process,
            BucketRow(rank=owner.rank, report=0, pid=owner.pid, device_id=device if device >= 0 else None, **row),
        )


def _focus_rows(part: Part) -> Iterator[tuple[int, FocusRow]]:
    if part.focused is None:
        return
    for process, device, at in lanes(part):
        good = [window for window in at if part.reasons[window] is None] or at
        values = breakdown.medians(
            [breakdown.rows(part.focused, window) for window in good],
            ["n_compute", "compute_ns", "compute_span_ns", "overlap_ns"],
        )
        owner = part.trace.processes[process]
        yield (
            process,
            FocusRow(rank=owner.rank, report=0, pid=owner.pid, device_id=device if device >= 0 else None, **values),
        )


def _kinds(part: Part) -> dict[tuple[int, str], tuple[int, int]]:
    operations = part.trace.operations
    key = operations.name.astype(np.int64) * 8 + part.kinds
    count = np.bincount(key, minlength=1)
    total = np.zeros(len(count), np.int64)
    np.add.at(total, key, operations.end_ns - operations.start_ns)
    totals: dict[tuple[int, str], tuple[int, int]] = {}
    for code in np.flatnonzero(count).tolist():
        name = (code % 8, part.trace.names[code // 8])
        old = totals.get(name, (0, 0))
        totals[name] = (old[0] + int(count[code]), old[1] + int(total[code]))
    return totals


# ------------------------------------------------------------------------------------------------------------ facts


def _told(part: Part) -> Iterable[Told]:
    """What the reader warned of, and what the windows show."""
    yield from (Told(code=warning.code, message=warning.message) for warning in part.trace.warnings)
    for process, n_empty in enumerate(part.windows.empty_steps):
        total = n_empty + len(np.unique(part.windows.position[part.windows.process == process]))
        if n_empty:
            yield Told(code="capture-incomplete", message=f"{n_empty} of {total} steps hold no device work", process=process)
    cut = sum(reason is not None and not reason.startswith("step 0") for reason in part.reasons)
    if cut:
        yield Told(code="capture-incomplete", message=f"{cut} steps are incomplete and left out of the medians")
    yield from _same_stream(part)
    yield from _overhead(part)
    yield from _stray_devices(part)


def _same_stream(part: Part) -> Iterable[Told]:
    """Communication on a stream with a tenth of the compute or more: program order keeps the two from overlapping."""
    operations = part.trace.operations
    if part.trace.evidence == "host-ranges":
        return
    lane = operations.process.astype(np.int64) * 8192 + operations.device
    for key in np.unique(lane[part.kinds == int(Kind.COMM)]).tolist():
        mine = lane == key
        comm_streams = operations.stream[mine & (part.kinds == int(Kind.COMM))]
        streams, count = np.unique(operations.stream[mine & (part.kinds == int(Kind.COMPUTE))], return_counts=True)
        shared = np.isin(comm_streams, streams[count * 10 >= count.sum()])
        if shared.sum() * 2 > len(comm_streams):
            stream, n = int(comm_streams[shared][0]), int(shared.sum())
            message = f"{n} of {len(comm_streams)} communication kernels run on compute stream {stream}"
            yield Told(code="same-stream", message=message, process=key // 8192)


def _overhead(part: Part) -> Iterable[Told]:
    start, end = part.measured.columns["start_ns"], part.measured.columns["end_ns"]
    hit = sum(
        bool(((part.windows.process == process) & (start < high) & (end > low)).any())
        for process, low, high in part.trace.overheads
    )
    if hit:
        yield Told(code="profiler-overhead", message=f"the profiler itself worked {hit} times inside a measured window")


def _stray_devices(part: Part) -> Iterable[Told]:
    """Devices that a process touched with under a hundredth of its work and no communication."""
    busy: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    comm: Counter[tuple[int, int]] = Counter()
    for at in range(len(part.windows)):
        process, device = int(part.windows.process[at]), int(part.windows.device[at])
        busy[process][device] += int(part.measured.columns["compute_ns"][at])
        comm[process, device] += int(part.measured.columns["n_comm"][at])
    for process, devices in busy.items():
        most = max(devices.values())
        for device, total in sorted(devices.items()):
            if len(devices) > 1 and total * 100 < most and not comm[process, device]:
                yield Told(code="idle-device", message=f"next to no work on device {device}", process=process)


def _calls(trace: Trace) -> frozenset[str]:
    """Which families of collective calls the host made: ``gloo``, ``collective``."""
    found = set()
    if any(text.startswith("gloo:") for text in trace.texts):
        found.add("gloo")
    if any(kernels.COLLECTIVE_CALL.fullmatch(text) for text in trace.texts):
        found.add("collective")
    return frozenset(found)


def _side_names(part: Part) -> list[str]:
    """Names of the longest kernels on other streams than the busiest."""
    operations = part.trace.operations
    is_kernel = operations.source == int(Source.KERNEL)
    lane = operations.process.astype(np.int64) * 8192 + operations.device
    side = np.zeros(len(operations), bool)
    for key in np.unique(lane[is_kernel]).tolist():
        mine = is_kernel & (lane == key)
        found, count = np.unique(operations.stream[mine], return_counts=True)
        side |= mine & (operations.stream != found[np.argmax(count)])
    total: Counter[str] = Counter()
    lengths = (operations.end_ns - operations.start_ns)[side].tolist()
    for name, length in zip(operations.name[side].tolist(), lengths, strict=True):
        total[part.trace.names[name]] += length
    return [name[:60] for name, _ in total.most_common(3)]
