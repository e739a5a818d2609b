"""A run's steps as the what-if model needs them: when each gradient was ready on every rank, and what each transfer took.

A *moment* is one step on all ranks, its times on one clock. On a CPU run the host's clock is the truth, and every timed step is
a moment. On a GPU only captured steps are: a gradient is there when the kernels launched before its hook have ended.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpprof.analysis import buckets, steps
from ddpprof.analysis.intervals import Intervals, union
from ddpprof.analysis.part import Options, Part, measure
from ddpprof.analysis.ranks import clocks
from ddpprof.analysis.steps import Steps
from ddpprof.errors import InputError
from ddpprof.model import MISSING, BucketRecord, GradientRecord, Kind, ModelRecord, Records, RunRecord, Trace
from ddpprof.reducer import Bucket, Layout, Mode, Parameter, mode_of

Int64 = NDArray[np.int64]

LANES = {"nccl": 1, "gloo": 2}
"""Collectives of one process group that a backend runs at a time."""

ONE_HOST_NS = 60 * 10**9
"""Ranks whose clocks differ by more are on hosts of their own: their steps are taken to have begun together."""

LARGEST = 10**17
"""No time (ns) or size (bytes) of a run is above this: three years."""

MAKE_ONE = (
    "Give the run folder that `ddpprof profile` left, not a report in it; your own job needs ddpprof.watch(ddp) after DDP(...) "
    "and ddpprof.timed_step: see docs/predict.md"
)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Backward:
    """One rank's part of a moment: parameters in the ``order`` of their gradients, and when each was ready.

    ``ready_ns``, ``end_ns`` (of the last compute of the backward) and ``compute`` are as if the comm hook had taken no time;
    ``rest_ns`` is what followed the last of compute and transfers; ``compute`` is None in a step that was not captured.
    """

    rank: int
    start_ns: int
    order: tuple[int, ...]
    ready_ns: tuple[int, ...]
    end_ns: int
    rest_ns: int
    compute: Intervals | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One collective: its bytes and its share of the wire, while the backward ran on some rank and after."""

    size_bytes: int
    beside_ns: int
    alone_ns: int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Moment:
    """One step: a Backward for each rank, its transfers, and what it took the slowest rank."""

    step: int
    ranks: tuple[Backward, ...]
    transfers: tuple[Transfer, ...]
    step_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """What the comm hook costs the thread of the backward: it begins so much after the gradient, and takes so much a byte.

    Nothing on a GPU, where the step does not wait for that thread.
    """

    lag_ns: int = 0
    ns_per_byte: float = 0.0

    def took_ns(self, size_bytes: int) -> int:
        """Its time for a bucket."""
        return round(self.ns_per_byte * size_bytes)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Run:
    """All that a prediction rests on. ``rebuild_order`` is rank 0's order of gradients that the Reducer rebuilt by.

    ``probes`` are bytes and time of all-reduces that had the machine to themselves, on the rank that took least.
    ``shows_queue``: an interval of communication in the capture begins when it is asked for, not when it is carried out.
    """

    record: RunRecord
    parameters: tuple[Parameter, ...]
    mode: Mode
    is_last_small: bool
    rebuild_order: tuple[int, ...]
    layout: Layout
    probes: tuple[tuple[int, int], ...]
    hook: Hook
    shows_queue: bool
    moments: tuple[Moment, ...]


def run_of(traces: Sequence[Trace], records: Records | None) -> Run:
    """The Run that left ``traces`` and ``records``. Raises InputError when either does not tell what is needed."""
    if records is None or not records.runs:
        raise InputError("the input has no records of its run: when each gradient was ready is not known", MAKE_ONE)
    _check(records)
    told = {row.rank: row for row in records.models}
    first, record = told[0], next(row for row in records.runs if row.rank == 0)
    mode = mode_of(find_unused_parameters=first.find_unused_parameters, static_graph=first.static_graph)
    is_host = traces[0].evidence == "host-ranges"
    views = _views(traces, record.world_size)
    found = list(_host_moments(records, views) if is_host else _device_moments(records, views))
    if not found:
        raise InputError("no step was recorded and captured on every rank", MAKE_ONE)
    return Run(
        record=record,
        parameters=_parameters(first),
        mode=mode,
        is_last_small=first.is_last_small,
        rebuild_order=_rebuild_order(records, mode),
        layout=_layout(records),
        probes=tuple((size, min(row.probe_ns[at] for row in told.values())) for at, size in enumerate(first.probe_bytes)),
        hook=_hook(records) if is_host else Hook(),
        shows_queue=is_host and traces[0].report.kind != "kineto",
        moments=tuple(found),
    )


def _check(records: Records) -> None:
    world = max((row.world_size for row in records.runs), default=0)
    there = {row.rank for row in records.runs}
    missing = next((rank for rank in range(max(world, 1)) if rank not in there), None)
    if missing is not None:
        raise InputError(f"the run has no records of rank {missing}", "Run it again, to its end.")
    if records.failures:
        raise InputError(f"rank {records.failures[0].rank} failed: there is no step to predict", records.failures[0].message)
    known = [{row.rank for row in table} for table in (records.models, records.gradients, records.buckets)]
    if any(ranks != set(range(world)) for ranks in known):
        raise InputError("the records do not tell when each gradient was ready: an older ddpprof wrote them", "Run it again.")
    if not _is_whole(records):
        raise InputError("the records contradict themselves: a file was cut or changed", "Run it again.")
    seen = [(row.rank, row.step, row.bucket) for row in records.buckets]
    if len(set(seen)) < len(seen):
        raise InputError(
            "a step of this run has several backwards: only steps with one can be predicted", "See docs/predict.md"
        )


def _is_whole(records: Records) -> bool:
    """Whether lists that belong together are of one length, indices are those of parameters, and numbers can be true."""
    first = records.models[0]
    known = set(range(len(first.names)))
    times = [time for row in records.buckets for time in (row.ready_ns, row.launch_ns, row.done_ns or 0, row.size_bytes)]
    times += [time for row in records.gradients for time in (row.started_ns, row.step_ns or 0, *row.ready_ns)]
    times += [row.step_ns for row in records.iterations]
    return (
        all(
            len({len(each) for each in (row.names, row.size_bytes, row.dtypes, row.devices, row.is_sparse)}) == 1
            and (row.size_bytes, row.probe_bytes) == (first.size_bytes, first.probe_bytes)
            and len(row.probe_ns) == len(row.probe_bytes)
            for row in records.models
        )
        and all(len(row.parameters) == len(row.ready_ns) > 0 and known.issuperset(row.parameters) for row in records.gradients)
        and all(row.parameters and known.issuperset(row.parameters) for row in records.buckets)
        and all(0 <= number <= LARGEST for number in (*times, *first.size_bytes, *first.probe_bytes))
        and all(row.bucket_cap_mb is None or 0 <= row.bucket_cap_mb <= LARGEST for row in records.runs)
        and all(re.match(r"\d+\.\d+", row.torch_version) for row in records.runs)
    )


def _parameters(row: ModelRecord) -> tuple[Parameter, ...]:
    columns = zip(row.names, row.size_bytes, row.dtypes, row.devices, row.is_sparse, strict=True)
    return tuple(
        Parameter(name=name, size_bytes=size_bytes, dtype=dtype, device=device, is_sparse=is_sparse)
        for name, size_bytes, dtype, device, is_sparse in columns
    )


def _layout(records: Records) -> Layout:
    """The buckets of the last step, as rank 0 sent them."""
    last = max(row.step for row in records.buckets if row.rank == 0)
    rows = sorted((row for row in records.buckets if (row.rank, row.step) == (0, last)), key=lambda row: row.bucket)
    return Layout(tuple(Bucket(tuple(row.parameters), row.size_bytes, 0) for row in rows))


def _rebuild_order(records: Records, mode: Mode) -> tuple[int, ...]:
    """Of the first backward, or the second of a static graph: the first is delayed and tells nothing."""
    mine = sorted((row for row in records.gradients if row.rank == 0), key=lambda row: row.step)
    return tuple(index for index, _ in _ready(mine[min(1 if mode == "static" else 0, len(mine) - 1)]))


def _ready(row: GradientRecord) -> list[tuple[int, int]]:
    """Each parameter and when it was ready: at its last hook. A static graph counts them; before no_sync ends none counts."""
    return sorted(dict(zip(row.parameters, row.ready_ns, strict=True)).items(), key=lambda item: item[1])


# ------------------------------------------------------------------------------------------------------------ a CPU run


@dataclass(frozen=True, eq=False, slots=True)
class _View:
    """Where one rank is in the traces: its part and process, what to add to its times, and its steps."""

    part: Part
    process: int
    shift_ns: int
    steps: Steps | None

    def step_start(self, step: int) -> int | None:
        """Start of the mark of a step, None when it was not captured whole."""
        if self.steps is None:
            return None
        at = np.flatnonzero((self.steps.number == step) & self.steps.is_whole)
        return int(self.steps.start_ns[at[0]]) if len(at) else None

    def window(self, step: int) -> int:
        """The step's window on the device with the most communication, -1 without one."""
        windows, columns = self.part.windows, self.part.measured.columns
        at = np.flatnonzero((windows.process == self.process) & (windows.step == step))
        return int(at[np.argmax(columns["comm_ns"][at])]) if len(at) else -1

    def operations(self, window: int, *kinds: Kind) -> Int64:
        """Rows of the operations of these kinds in a window."""
        return np.flatnonzero((self.part.windows.of_operation == window) & np.isin(self.part.kinds, [int(k) for k in kinds]))


def _views(traces: Sequence[Trace], world_size: int) -> dict[int, _View]:
    """Each rank's place in the traces, on one clock as in ``ranks.clocks``."""
    parts = [measure(trace, Options()) for trace in traces]
    found = {}
    for trace, part, shift_ns in zip(traces, parts, clocks(parts).offsets_ns, strict=True):
        marked = steps.find(trace)
        for place, process in enumerate(trace.processes):
            if process.rank is not None:
                found[process.rank] = _View(part, place, shift_ns, marked.get(place))
    missing = sorted(set(range(world_size)) - set(found))
    if missing:
        raise InputError(
            f"the capture does not show rank {', '.join(map(str, missing))}", "Capture again with: ddpprof profile"
        )
    return {rank: found[rank] for rank in range(world_size)}


@dataclass(frozen=True, slots=True)
class _Step:
    """The records of one step, by rank: its length, its gradients, and its buckets in order."""

    number: int
    took_ns: dict[int, int]
    gradients: dict[int, GradientRecord]
    sent: dict[int, list[BucketRecord]]


def _recorded(records: Records) -> Iterator[_Step]:
    """Each step that all ranks recorded under the last layout."""
    ranks, layout = {row.rank for row in records.runs}, _layout(records).parameters
    found: dict[int, _Step] = {}

    def of(step: int) -> _Step:
        return found.setdefault(step, _Step(step, {}, {}, {}))

    for gradient in records.gradients:
        of(gradient.step).gradients[gradient.rank] = gradient
        if gradient.step_ns is not None:
            of(gradient.step).took_ns[gradient.rank] = gradient.step_ns
    for row in records.iterations:
        of(row.step).took_ns[row.rank] = row.step_ns
    for bucket in sorted(records.buckets, key=lambda row: row.bucket):
        of(bucket.step).sent.setdefault(bucket.rank, []).append(bucket)
    for number in sorted(found):
        step = found[number]
        is_known = set(step.took_ns) == set(step.gradients) == set(step.sent) == ranks
        if is_known and all(tuple(tuple(row.parameters) for row in rows) == layout for rows in step.sent.values()):
            yield step


def _host_moments(records: Records, views: Mapping[int, _View]) -> Iterator[Moment]:
    lanes = LANES["gloo"]
    for step in _recorded(records):
        sent, gradients = step.sent, step.gradients
        if any(row.done_ns is None for rows in sent.values() for row in rows):
            continue
        began = {rank: row.started_ns for rank, row in gradients.items()}
        zero = min(began.values())
        is_one_host = max(began.values()) - zero < ONE_HOST_NS
        start = {rank: began_ns - zero if is_one_host else 0 for rank, began_ns in began.items()}
        ready = {rank: _ready(row) for rank, row in gradients.items()}
        end = {rank: start[rank] + times[-1][1] for rank, times in ready.items()}
        places = range(len(sent[0]))
        arrival = [max(start[rank] + sent[rank][at].launch_ns for rank in sent) for at in places]
        done = [min(start[rank] + (sent[rank][at].done_ns or 0) for rank in sent) for at in places]
        sizes = [row.size_bytes for row in sent[0]]
        yield Moment(
            step=step.number,
            step_ns=max(step.took_ns.values()),
            transfers=shares(sizes, arrival, done, lanes, max(end.values())),
            ranks=tuple(
                _host_backward(
                    rank,
                    start[rank],
                    ready[rank],
                    sent[rank],
                    start[rank] + step.took_ns[rank] - max(done),
                    _host_compute(views[rank], step.number),
                )
                for rank in sorted(sent)
            ),
        )


def _host_backward(
    rank: int, start: int, ready: Sequence[tuple[int, int]], sent: Sequence[BucketRecord], rest: int, compute: Any
) -> Backward:
    """Takes the time of the hooks, which depends on the buckets, out of what came after them."""
    until = np.array([row.launch_ns for row in sent], np.int64)
    hooked = np.concatenate([[0], np.cumsum([row.launch_ns - row.ready_ns for row in sent])]).astype(np.int64)

    def bare(times: Int64) -> Int64:
        return np.asarray(start + times - hooked[np.searchsorted(until, times, side="right")])

    times = bare(np.array([time for _, time in ready], np.int64))
    shown = None
    if compute is not None:
        begins = bare(compute[0])
        shown = _some(union(begins, begins + compute[1] - compute[0]))
    return Backward(
        rank=rank,
        start_ns=start,
        order=tuple(index for index, _ in ready),
        ready_ns=tuple(times.tolist()),
        end_ns=int(times[-1]),
        rest_ns=rest,
        compute=shown,
    )


def _host_compute(view: _View, step: int) -> tuple[Int64, Int64] | None:
    """Starts and ends of the captured compute of a step from its start; None when there is none."""
    began, window = view.step_start(step), view.window(step)
    rows = view.operations(window, Kind.COMPUTE) if window >= 0 else np.empty(0, np.int64)
    if began is None or not len(rows):
        return None
    operations = view.part.trace.operations
    return operations.start_ns[rows].astype(np.int64) - began, operations.end_ns[rows].astype(np.int64) - began


def _hook(records: Records) -> Hook:
    """From every recorded bucket: medians, so that a rank that lost its core does not count."""
    notes = {(row.rank, row.step): sorted(row.ready_ns) for row in records.gradients}
    lags, rates = [], []
    for row in records.buckets:
        times = notes.get((row.rank, row.step), [])
        if before := bisect_right(times, row.ready_ns):
            lags.append(row.ready_ns - times[before - 1])
            rates.append((row.launch_ns - row.ready_ns) / max(row.size_bytes, 1))
    return Hook(lag_ns=int(np.median(lags)), ns_per_byte=float(np.median(rates))) if lags else Hook()


# ------------------------------------------------------------------------------------------------------------ a GPU run


def _device_moments(records: Records, views: Mapping[int, _View]) -> Iterator[Moment]:
    parts = {view.part for view in views.values()}
    rows_of = {part: buckets.attribute(part.trace, part.kinds, part.windows, part.measured) for part in parts}
    for step in _recorded(records):
        sent, gradients = step.sent, step.gradients
        windows = {rank: view.window(step.number) for rank, view in views.items()}
        starts = {rank: view.step_start(step.number) for rank, view in views.items()}
        if any(window < 0 for window in windows.values()) or None in starts.values():
            continue
        seen = {rank: _carried(view, windows[rank], rows_of[view.part]) for rank, view in views.items()}
        if any(len(rows) != len(sent[rank]) for rank, rows in seen.items()):
            continue
        places = range(len(sent[0]))
        arrival = [max(rows[at][0] for rows in seen.values()) for at in places]
        length = [min(rows[at][1] - rows[at][0] for rows in seen.values()) for at in places]
        ranks = tuple(
            _device_backward(view, rank, windows[rank], starts[rank] or 0, _ready(gradients[rank]), seen[rank][-1][1])
            for rank, view in sorted(views.items())
        )
        done = [begin + shortest for begin, shortest in zip(arrival, length, strict=True)]
        transfers = shares([row.size_bytes for row in sent[0]], arrival, done, LANES["nccl"], max(r.end_ns for r in ranks))
        yield Moment(step=step.number, step_ns=max(step.took_ns.values()), transfers=transfers, ranks=ranks)


def _carried(view: _View, window: int, rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Start and end of each bucket's kernel in a window, in order of its number."""
    mine = [row for row in rows if row["process"] == view.process and row["bucket"] is not None]
    windows = view.part.windows
    step, device = int(windows.step[window]), int(windows.device[window])
    mine = sorted((row for row in mine if (row["step"], row["device"]) == (step, device)), key=lambda row: row["bucket"])
    return [(row["start_ns"] + view.shift_ns, row["end_ns"] + view.shift_ns) for row in mine]


def _device_backward(
    view: _View, rank: int, window: int, began: int, ready: Sequence[tuple[int, int]], last_end: int
) -> Backward:
    """A gradient is there when all the work launched before its hook is done, and not before the hook."""
    operations, shift = view.part.trace.operations, view.shift_ns
    rows = view.operations(window, Kind.COMPUTE, Kind.MEMORY)
    rows = rows[operations.launch_ns[rows] != MISSING]
    rows = rows[np.argsort(operations.launch_ns[rows], kind="stable")]
    launch, end = operations.launch_ns[rows].astype(np.int64), operations.end_ns[rows].astype(np.int64)
    reach = np.concatenate([[0], np.maximum.accumulate(end)]).astype(np.int64)
    hooks = np.array([began + time for _, time in ready], np.int64)
    times = np.maximum.accumulate(np.maximum(hooks, reach[np.searchsorted(launch, hooks, side="right")]))
    shown = view.operations(window, Kind.COMPUTE)
    shown = shown[operations.launch_ns[shown] <= hooks[-1]]
    compute = union(operations.start_ns[shown].astype(np.int64) + shift, operations.end_ns[shown].astype(np.int64) + shift)
    end_ns = int(times[-1]) + shift
    finish = int(view.part.measured.columns["end_ns"][window]) + shift
    return Backward(
        rank=rank,
        start_ns=began + shift,
        order=tuple(index for index, _ in ready),
        ready_ns=tuple((times + shift).tolist()),
        end_ns=end_ns,
        rest_ns=finish - max(end_ns, last_end),
        compute=_some(compute),
    )


def _some(found: Intervals) -> Intervals | None:
    """The same, None when it is empty."""
    return found if len(found.start) else None


# ------------------------------------------------------------------------------------------------------------ transfers


def shares(
    size_bytes: Sequence[int], arrival_ns: Sequence[int], done_ns: Sequence[int], lanes: int, compute_end_ns: int
) -> tuple[Transfer, ...]:
    """What each transfer took of the wire, from when all ranks had sent it and a lane was free until it was done.

    Those that run at once share the wire: with two running, a transfer is given half of the time. ``compute_end_ns`` parts the
    time beside compute from that alone.
    """
    free = [0] * lanes
    begin = []
    for arrival, done in zip(arrival_ns, done_ns, strict=True):
        begin.append(min(max(arrival, heapq.heappop(free)), done))
        heapq.heappush(free, done)
    starts, ends = np.array(begin, np.int64), np.array(done_ns, np.int64)
    edges = np.unique(np.concatenate([starts, ends, [compute_end_ns]]))
    running = np.searchsorted(np.sort(starts), edges, "right") - np.searchsorted(np.sort(ends), edges, "right")
    given = np.concatenate([[0.0], np.cumsum(np.diff(edges) / np.maximum(running[:-1], 1))])
    at_start, at_end = given[np.searchsorted(edges, starts)], given[np.searchsorted(edges, ends)]
    at_compute_end = given[np.searchsorted(edges, compute_end_ns)]
    beside = np.clip(at_compute_end, at_start, at_end) - at_start
    return tuple(
        Transfer(size_bytes=size, beside_ns=round(float(one)), alone_ns=round(float(whole - one)))
        for size, one, whole in zip(size_bytes, beside, at_end - at_start, strict=True)
    )
