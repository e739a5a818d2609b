"""What a step of a rank shows that a cause can be told from: plain numbers, so that a rule is a function of them.

Steps are looked at up to MOST_STEPS a trace, evenly over its complete ones: a cause holds back every step, and the median of a
few tells it. All times are on the report's clock. Nothing here judges; ``diagnose`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddpprof import marks
from ddpprof.analysis import intervals, kernels
from ddpprof.analysis.intervals import Intervals
from ddpprof.analysis.part import Part, lanes
from ddpprof.model import MISSING, Evidence, Kind

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_STEPS: Final = 40
"""So many steps of a trace are looked at, of each (process, device) between LEAST_OF_EACH and MOST_OF_EACH."""
LEAST_OF_EACH, MOST_OF_EACH = 3, 12

SHORT_GAP_NS: Final = {"gpu-kernels": 1_000_000, "host-ranges": 40_000_000}
"""A longer hole in the compute is no gap between launches: something else held the host. A CPU is shared in long slices."""

CLOCKS_NS: Final = 2_000
"""Host and device times of one report may differ by so much: a wait seems to end before what it waited for."""

LEAST_OF_A_KERNEL: Final = 5
"""So often a kernel must have run alone, and so often beside communication, before the two are compared."""

SAME_WORK_RATIO: Final = 3
"""A kernel longer than so many times the median is taken for one of another size; so is one of under the inverse of it."""

_DDP: Final = ("AllReduce", "unknown")
"""What the collectives of DDP are called by their kernels; all others are somebody else's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One bucket of a step. ``place`` counts all collectives of the step in order of launch.

    ``ahead_ns`` is the backward's compute launched before it (sum of lengths), ``n_between`` the compute intervals launched
    since the bucket before, those of a comm hook not counted. ``alone_before_ns`` is the compute with no communication beside
    it before the bucket starts, ``gap_compute_ns`` the compute since all buckets before it ended.

    From the other ranks: ``wait_ns`` is its waiting for them, ``met_ns`` when the last of them came. From the run's records:
    ``parameters``, ``last_bytes`` of the one whose gradient came last, ``parked_ns`` and ``held_ns`` how long before it was
    sent its last and its first gradient were ready. None when it cannot be told.
    """

    place: int
    bucket: int | None = None
    size_bytes: int | None = None
    parameters: tuple[int, ...] | None = None
    last_bytes: int | None = None
    launch_ns: int
    start_ns: int
    end_ns: int
    exposed_ns: int
    ahead_ns: int = 0
    n_between: int = 1
    alone_before_ns: int = 0
    gap_compute_ns: int = 0
    wait_ns: int | None = None
    met_ns: int | None = None
    parked_ns: int | None = None
    held_ns: int | None = None

    @property
    def own_ns(self) -> int:
        """Its length less its waiting for other ranks."""
        return self.end_ns - self.start_ns - (self.wait_ns or 0)

    @property
    def own_exposed_ns(self) -> int:
        """What is exposed of it, less its waiting for other ranks."""
        return max(self.exposed_ns - (self.wait_ns or 0), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one rank. ``buckets`` are in order of launch; ``is_step`` is false when it is a whole capture.

    ``backward_ns`` is the sum of the backward's compute, ``n_backwards`` the ``backward`` ranges that launched a bucket.
    ``extras`` are (count, ns) of collectives beside marked buckets. ``waited_ns`` is the time in which nothing ran because the
    host waited, ``waits`` where, the longest first, ``n_waits`` how often. ``gaps_ns`` is the time with no compute in the
    ``n_gaps`` short holes between compute in which the host did not wait.
    """

    step: int | None = None
    is_step: bool = True
    start_ns: int
    end_ns: int
    exposed_ns: int = 0
    idle_ns: int = 0
    n_compute: int = 0
    compute_median_ns: int = 0
    backward_ns: int = 0
    backward_end_ns: int | None = None
    n_backwards: int = 0
    buckets: tuple[Bucket, ...] = ()
    extras: tuple[int, int] = (0, 0)
    waited_ns: int = 0
    n_waits: int = 0
    waits: tuple[tuple[int, int], ...] = ()
    gaps_ns: int = 0
    n_gaps: int = 0

    @property
    def step_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """The kernels that ran both alone and beside communication, a step: how often beside it, for how long, and how long they
    would have taken at their median alone. ``slowest`` is the name of the one that lost most.
    """

    n_kernels: int
    beside_ns: int
    alone_ns: int
    slower_ns: int
    slowest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What one (process, device) of a trace shows. ``periods_ns`` are from step to step, of steps that follow each other;
    ``contention`` is None when no kernel ran both alone and beside communication often enough. ``is_same_stream`` tells that
    most communication runs on a compute stream, ``is_point_to_point`` that all of it is sends and receives, ``shows_waits``
    whether a wait of the host would be seen.
    """

    evidence: Evidence = "gpu-kernels"
    steps: tuple[Step, ...]
    periods_ns: tuple[int, ...] = ()
    contention: Contention | None = None
    is_same_stream: bool = False
    is_point_to_point: bool = False
    shows_waits: bool = True


def look(part: Part) -> Iterator[Signs]:
    """The signs of every (process, device) of a trace, in the order of ``part.lanes``."""
    of_lane = list(lanes(part))
    most = min(max(MOST_STEPS // max(len(of_lane), 1), LEAST_OF_EACH), MOST_OF_EACH)
    hosts = _hosts(part, dict.fromkeys(process for process, _, _ in of_lane))
    for process, _, mine in of_lane:
        host = hosts[process]
        whole = [at for at in mine if part.reasons[at] is None]
        seen = [_look(part, at) for at in _evenly(whole or mine, most)]
        yield Signs(
            evidence=part.trace.evidence,
            steps=tuple(_step(part, view, host) for view in seen),
            periods_ns=_periods(part, whole),
            contention=_contention(part, seen) if part.trace.evidence == "gpu-kernels" else None,
            is_same_stream=sum(int(view.is_on_compute.sum()) for view in seen) * 2 > sum(len(view.comm) for view in seen),
            is_point_to_point=_is_point_to_point(part, seen),
            shows_waits=part.trace.has_launches or bool(len(host.waits.start)),
        )


def _evenly(items: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of the items: the last, and evenly back from it."""
    n = min(len(items), most)
    return [items[len(items) - 1 - at * len(items) // n] for at in reversed(range(n))]


def _periods(part: Part, windows: Sequence[int]) -> tuple[int, ...]:
    """From start to start of the steps that follow each other; the longest run of those."""
    place, start = part.windows.position[windows], part.measured.columns["start_ns"][windows]
    if not part.windows.is_step[windows].all() or len(place) < 2:
        return ()
    breaks = np.flatnonzero(np.diff(place) != 1) + 1
    longest: Int64 = max(np.split(start, breaks), key=len)
    return tuple(np.diff(longest).tolist())


# ---------------------------------------------------------------------------------------------------- one (rank, step)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Host:
    """What the host of one process did: ranges of buckets and backwards one by one; comm hooks, backwards, waits as sets."""

    buckets: Intervals
    bucket_marks: Sequence[marks.Mark | None]
    bucket_threads: Int64
    backwards: Intervals
    hooks: Intervals
    backward: Intervals
    waits: Intervals


def _hosts(part: Part, processes: Iterable[int]) -> dict[int, _Host]:
    ranges = part.trace.ranges
    parsed = [marks.parse(text) for text in part.trace.texts]
    rows = {}
    for kind in ("bucket", "backward", "wait"):
        is_kind = np.array([mark is not None and mark.kind == kind for mark in parsed], bool)
        rows[kind] = np.flatnonzero(is_kind[ranges.text]) if is_kind.any() else np.empty(0, np.int64)
    calls = np.array(part.trace.waits, np.int64).reshape(-1, 3)

    def host(process: int) -> _Host:
        mine = {kind: found[ranges.process[found] == process] for kind, found in rows.items()}
        cover = {kind: _spans(part, found) for kind, found in mine.items()}
        called = calls[calls[:, 0] == process]
        waits = (np.concatenate([cover["wait"][side], called[:, 1 + side]]) for side in (0, 1))
        return _Host(
            buckets=cover["bucket"],
            bucket_marks=[parsed[text] for text in ranges.text[mine["bucket"]].tolist()],
            bucket_threads=ranges.thread[mine["bucket"]],
            backwards=cover["backward"],
            hooks=intervals.union(*cover["bucket"]),
            backward=intervals.union(*cover["backward"]),
            waits=intervals.union(*waits),
        )

    return {process: host(process) for process in processes}


def _spans(part: Part, rows: Int64) -> Intervals:
    """The host ranges at ``rows``, one by one; one that is open lasts for ever."""
    start, end = part.trace.ranges.start_ns[rows].astype(np.int64), part.trace.ranges.end_ns[rows].astype(np.int64)
    return Intervals(start, np.where(end == MISSING, np.iinfo(np.int64).max, end))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _View:
    """One window: its operations in order of start, as rows of the trace and their columns, and its part of the measured sets.

    ``order_ns`` is the launch, the start where that is not known; ``comm`` the places of communication in order of it,
    ``is_on_compute`` which operations are communication on a compute stream. A time
    is on the axis of the sets with ``shift`` added, where the window begins at ``begin``.
    """

    window: int
    rows: Int64
    start_ns: Int64
    end_ns: Int64
    order_ns: Int64
    is_compute: Bools
    comm: Int64
    is_on_compute: Bools
    shift: int
    begin: int
    compute_set: Intervals
    comm_set: Intervals
    busy_set: Intervals


def _look(part: Part, window: int) -> _View:
    operations, measured = part.trace.operations, part.measured
    base, last = int(measured.columns["start_ns"][window]), int(measured.columns["end_ns"][window])
    low, high = _bounds(part, window)
    begin, finish = (low + np.searchsorted(operations.start_ns[low:high], [base, max(last, base)])).tolist()
    here = slice(begin, finish)
    rows = begin + np.flatnonzero((part.windows.of_operation[here] == window) & (part.kinds[here] != int(Kind.GRAPH)))
    start, launch = operations.start_ns[rows].astype(np.int64), operations.launch_ns[rows].astype(np.int64)
    order = np.where(launch == MISSING, start, launch)
    is_compute, comm = part.kinds[rows] == int(Kind.COMPUTE), np.flatnonzero(part.kinds[rows] == int(Kind.COMM))
    shift = int(measured.offset[window]) - base

    def mine(cover: Intervals) -> Intervals:
        first, after = np.searchsorted(cover.start, [base + shift, last + shift]).tolist()
        return Intervals(cover.start[first:after], cover.end[first:after])

    return _View(
        window=window,
        rows=rows,
        start_ns=start,
        end_ns=operations.end_ns[rows].astype(np.int64),
        order_ns=order,
        is_compute=is_compute,
        comm=comm[np.argsort(order[comm], kind="stable")],
        is_on_compute=_on_compute_stream(part, rows, is_compute, comm),
        shift=shift,
        begin=base + shift,
        compute_set=mine(measured.compute),
        comm_set=mine(measured.comm),
        busy_set=mine(measured.busy),
    )


def _bounds(part: Part, window: int) -> tuple[int, int]:
    """First and last row of the (process, device) of a window."""
    operations, process = part.trace.operations, part.windows.process[window]
    low, high = np.searchsorted(operations.process, [process, process + 1]).tolist()
    device = part.windows.device[window]
    first, last = np.searchsorted(operations.device[low:high], [device, device + 1]).tolist()
    return low + first, low + last


def _on_compute_stream(part: Part, rows: Int64, is_compute: Bools, comm: Int64) -> Bools:
    """Which operations are communication on a stream that has a tenth of the compute: program order keeps the two apart."""
    found = np.zeros(len(rows), bool)
    if part.trace.evidence == "gpu-kernels":
        streams, count = np.unique(part.trace.operations.stream[rows[is_compute]], return_counts=True)
        found[comm] = np.isin(part.trace.operations.stream[rows[comm]], streams[count * 10 >= count.sum()])
    return found


def _is_point_to_point(part: Part, seen: Sequence[_View]) -> bool:
    """Whether all communication is sends and receives; false when there is none."""
    codes = np.unique(part.trace.operations.name[_joined(view.rows[view.comm] for view in seen)]).tolist()
    return bool(codes) and all(kernels.operation_of(part.trace.names[code]) == "SendRecv" for code in codes)


def _step(part: Part, view: _View, host: _Host) -> Step:
    """The signs of one window."""
    window, columns = view.window, part.measured.columns
    carriers = _carriers(part, view, host)
    is_backward = _backward(part, view, host, [place for place, _ in carriers])
    lengths = view.end_ns - view.start_ns
    compute_ns = lengths[view.is_compute]
    middle = (len(compute_ns) - 1) // 2
    places = {place for place, mark in carriers if mark is not None}
    extras = [at for place, at in enumerate(view.comm.tolist()) if places and place not in places]
    waited = _waited(part, view, host)
    gaps = _gaps(part, view, host, waited)
    return Step(
        step=None if part.windows.step[window] == MISSING else int(part.windows.step[window]),
        is_step=bool(part.windows.is_step[window]),
        start_ns=int(columns["start_ns"][window]),
        end_ns=int(columns["end_ns"][window]),
        exposed_ns=int(columns["exposed_comm_ns"][window]),
        idle_ns=int(columns["idle_ns"][window]),
        n_compute=len(compute_ns),
        compute_median_ns=int(np.partition(compute_ns, middle)[middle]) if len(compute_ns) else 0,
        backward_ns=int(lengths[is_backward].sum()),
        backward_end_ns=int(view.end_ns[is_backward].max()) if is_backward.any() else None,
        n_backwards=_n_backwards(view, host, [place for place, _ in carriers]),
        buckets=tuple(_buckets(view, host, carriers, is_backward)),
        extras=(len(extras), int(lengths[extras].sum())),
        waited_ns=sum(high - low for low, high in waited),
        n_waits=len(waited),
        waits=tuple(sorted(waited, key=lambda span: (span[0] - span[1], span))[:3]),
        gaps_ns=int(gaps.sum()),
        n_gaps=len(gaps),
    )


def _carriers(part: Part, view: _View, host: _Host) -> list[tuple[int, marks.Mark | None]]:
    """The collectives that carry a bucket, by place, with their mark: those marked, where any are; else every all-reduce.

    A mark is that of the bucket range (they do not nest) around the launch, on its thread; on a CPU run also the name.
    """
    operations, rows = part.trace.operations, view.rows[view.comm]
    codes = operations.name[rows].tolist()
    by_name = {code: part.trace.names[code] for code in set(codes)}
    told = [_host_mark(by_name[code]) for code in codes]
    if len(host.buckets.start):
        launch = view.order_ns[view.comm]
        at = np.searchsorted(host.buckets.start, launch, side="right") - 1
        is_inside = (at >= 0) & (launch < host.buckets.end[at]) & (operations.launch_thread[rows] == host.bucket_threads[at])
        for place in np.flatnonzero(is_inside).tolist():
            told[place] = host.bucket_marks[at[place]]
    if any(mark is not None for mark in told):
        return [(place, mark) for place, mark in enumerate(told) if mark is not None]
    of_ddp = {code for code, name in by_name.items() if kernels.operation_of(name) in _DDP}
    return [(place, None) for place, code in enumerate(codes) if code in of_ddp]


def _host_mark(name: str) -> marks.Mark | None:
    mark = marks.parse(name)
    return mark if mark is not None and mark.kind == "allreduce" else None


def _backward(part: Part, view: _View, host: _Host, places: Sequence[int]) -> Bools:
    """The compute of the backward: launched inside its range; without one, before the last bucket and on the thread that
    launched that, which on a GPU is autograd's own. Compute of a comm hook is none of it.
    """
    own = view.is_compute & ~_inside(host.hooks, view.order_ns)
    if len(host.backward.start):
        inside = own & _inside(host.backward, view.order_ns)
        if inside.any():
            return inside
    if not places:
        return np.zeros(len(own), bool)
    thread = part.trace.operations.launch_thread[view.rows]
    last = view.comm[places[-1]]
    return np.asarray(own & (view.order_ns < view.order_ns[last]) & (thread == thread[last]))


def _inside(cover: Intervals, time: Int64) -> Bools:
    """Which times lie in a set."""
    if not len(cover.start):
        return np.zeros(len(time), bool)
    at = np.searchsorted(cover.start, time, side="right") - 1
    return np.asarray((at >= 0) & (time < cover.end[np.maximum(at, 0)]))


def _n_backwards(view: _View, host: _Host, places: Sequence[int]) -> int:
    """In how many backward ranges buckets were launched."""
    if not places or not len(host.backwards.start):
        return 0
    launch = view.order_ns[view.comm[list(places)]]
    at = np.searchsorted(host.backwards.start, launch, side="right") - 1
    return len(np.unique(at[(at >= 0) & (launch < host.backwards.end[np.maximum(at, 0)])]))


def _buckets(
    view: _View, host: _Host, carriers: Sequence[tuple[int, marks.Mark | None]], is_backward: Bools
) -> Iterator[Bucket]:
    """The buckets, with what compute was beside, before and between them."""
    if not carriers:
        return
    at = view.comm[[place for place, _ in carriers]]
    launch, start, end = view.order_ns[at], view.start_ns[at] + view.shift, view.end_ns[at] + view.shift

    by_launch = np.flatnonzero(is_backward)[np.argsort(view.order_ns[is_backward], kind="stable")]
    ahead = np.concatenate([np.zeros(1, np.int64), np.cumsum((view.end_ns - view.start_ns)[by_launch])])
    ahead = ahead[np.searchsorted(view.order_ns[by_launch], launch)]
    others = np.sort(view.order_ns[view.is_compute & ~_inside(host.hooks, view.order_ns)])
    between = np.diff(np.searchsorted(others, launch), prepend=0)

    compute, both = view.compute_set, intervals.intersection(view.compute_set, view.comm_set)
    begin = np.full(len(start), view.begin, np.int64)
    alone = intervals.covered(compute, begin, start) - intervals.covered(both, begin, start)
    free = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
    in_gap = intervals.covered(compute, free, np.maximum(start, free))
    exposed = end - start - intervals.covered(compute, start, end)
    columns = (launch, start - view.shift, end - view.shift, exposed, ahead, between, alone, in_gap)
    for (place, mark), *values in zip(carriers, *(column.tolist() for column in columns), strict=True):
        yield Bucket(
            place=place,
            bucket=mark.index if mark is not None else None,
            size_bytes=mark.size_bytes if mark is not None else None,
            launch_ns=values[0],
            start_ns=values[1],
            end_ns=values[2],
            exposed_ns=values[3],
            ahead_ns=values[4],
            n_between=values[5],
            alone_before_ns=values[6],
            gap_compute_ns=values[7],
        )


def _holes(cover: Intervals, view: _View) -> Intervals:
    """The holes in a set of a window, on the report's clock."""
    return Intervals(cover.end[:-1] - view.shift, cover.start[1:] - view.shift)


def _waited(part: Part, view: _View, host: _Host) -> list[tuple[int, int]]:
    """The stretches in which nothing ran because the host waited.

    A wait that began while the device was busy holds the host until the device is done: the hole after it is its doing. One
    that began in the hole, or is on a run without device, accounts for itself alone.
    """
    waits = host.waits
    if not len(waits.start):
        return []
    low, high = _holes(view.busy_set, view)
    first = np.searchsorted(waits.end, low - CLOCKS_NS)
    is_known, first = first < len(waits.end), np.minimum(first, len(waits.end) - 1)
    is_held = is_known & (waits.start[first] < low) & (part.trace.evidence == "gpu-kernels")
    found = list(zip(low[is_held].tolist(), high[is_held].tolist(), strict=True))
    inside = intervals.intersection(_among(waits, low, high), Intervals(low[~is_held], high[~is_held]))
    return found + list(zip(inside.start.tolist(), inside.end.tolist(), strict=True))


def _gaps(part: Part, view: _View, host: _Host, waited: Sequence[tuple[int, int]]) -> Int64:
    """The lengths of the short holes between compute that no wait of the host explains, nor the end of the last collective.

    What the compute stream itself sends and receives is no hole in it.
    """
    own = view.is_on_compute
    start = np.concatenate([view.compute_set.start, view.start_ns[own] + view.shift])
    end = np.concatenate([view.compute_set.end, view.end_ns[own] + view.shift])
    low, high = _holes(intervals.union(start, end), view)
    length = high - low
    last_ns = int(view.end_ns[view.comm].max(initial=MISSING))
    spans = np.array(waited, np.int64).reshape(-1, 2)
    waits = _among(host.waits, low, high)
    waits = intervals.union(np.concatenate([waits.start, spans[:, 0]]), np.concatenate([waits.end, spans[:, 1]]))
    is_short = (length < SHORT_GAP_NS[part.trace.evidence]) & ((last_ns < low) | (last_ns > high))
    return np.asarray(length[is_short & (intervals.covered(waits, low, high) == 0)])


def _among(cover: Intervals, low: Int64, high: Int64) -> Intervals:
    """The intervals of a set that can touch one of these (in rising order)."""
    if not len(low):
        return intervals.EMPTY
    first, after = int(np.searchsorted(cover.end, low[0])), int(np.searchsorted(cover.start, high[-1], side="right"))
    return Intervals(cover.start[first:after], cover.end[first:after])


# ------------------------------------------------------------------------------------------------------ several steps


def _contention(part: Part, seen: Sequence[_View]) -> Contention | None:
    """The kernels of these steps beside communication, held against the same kernels alone.

    A name whose runs alone differ by more than a tenth from their median (MAD) is of several sizes, and tells nothing.
    """
    compute = [(view, view.is_compute) for view in seen]
    start = _joined(view.start_ns[mine] for view, mine in compute)
    length = _joined(view.end_ns[mine] for view, mine in compute) - start
    name = part.trace.operations.name[_joined(view.rows[mine] for view, mine in compute)]
    hidden = _joined(
        intervals.covered(view.comm_set, view.start_ns[mine] + view.shift, view.end_ns[mine] + view.shift)
        for view, mine in compute
    )
    is_beside, is_alone = hidden * 2 > length, hidden == 0
    lost: list[tuple[int, int, int, int, str]] = []
    order = np.argsort(name, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(name[order])) + 1) if len(order) else ():
        alone, beside = length[mine[is_alone[mine]]], length[mine[is_beside[mine]]]
        if min(len(alone), len(beside)) < LEAST_OF_A_KERNEL:
            continue
        usual = int(np.median(alone))
        if not usual or np.median(np.abs(alone - usual)) > usual / 10:
            continue
        beside = beside[(beside < usual * SAME_WORK_RATIO) & (beside * SAME_WORK_RATIO > usual)]
        slower = int(np.maximum(beside - usual, 0).sum())
        lost.append((slower, len(beside), int(beside.sum()), usual * len(beside), part.trace.names[name[mine[0]]]))
    if not lost:
        return None
    slower, n, beside_ns, alone_ns = np.array([item[:4] for item in lost], np.int64).sum(0).tolist()
    return Contention(
        n_kernels=n // len(seen),
        beside_ns=beside_ns // len(seen),
        alone_ns=alone_ns // len(seen),
        slower_ns=slower // len(seen),
        slowest=max(lost)[4],
    )


def _joined(parts: Iterable[Int64]) -> Int64:
    return np.concatenate([np.empty(0, np.int64), *parts])
