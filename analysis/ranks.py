"""The ranks of one job held against each other: which of their collectives are one, who waits, who comes last, on which clock.

A collective is told by its step, its lane (the stream, which stands for the communicator) and its place in that lane. Streams
have other numbers on every rank: lanes are matched by the collectives on them, else by order of first use. Lengths need no
common clock; arrivals do, and come with how far two ranks' clocks may be apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from ddpprof.analysis import kernels
from ddpprof.analysis.part import Part, lanes
from ddpprof.model import MISSING, Across, AcrossRank, BucketRow, Clock, CollectiveRow, Kind, RankRow

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

FLOOR_NS = 10_000
"""The clocks of two GPUs, and of two sessions on one host, are not taken to agree better than this. On eight GPUs of one host
the ends of one collective were up to 7 us apart (kineto_dlrm_8rank in the tests); sessions of one host, 5 us."""

ENOUGH_ENDS = 3
"""Fewer collectives than this align no clocks: any offset fits their ends, so nothing tells how good it is."""

LONGEST_NS = 2**61
"""Clocks that differ by more than 73 years are not compared."""

_TOGETHER = frozenset({"AllReduce", "AllGather", "ReduceScatter"})
"""Collectives that no rank can leave before every other has come."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Comm:
    """The communication intervals of one (process, device), and the windows that they lie in.

    ``number`` and ``is_complete`` are over its windows, the rest over intervals; ``operation`` indexes ``operations``.
    """

    number: Int64
    is_complete: Bools
    window: Int64
    stream: Int64
    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    operation: Int64
    operations: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.window)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """What to add to each report's times to have all on one clock, and how far two of them may then be apart.

    ``uncertainty_ns`` is None when nothing tells: without a common clock, or when no collective checks the session starts.
    """

    clock: Clock
    uncertainty_ns: int | None
    offsets_ns: tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Pairs:
    """The collectives of all rows, by step, lane and place. Times are (row, collective); adding the row's ``zero_ns`` gives
    them on its report's clock.

    ``steps`` are the numbers of the steps that all rows show, ``n_of_step`` how many intervals the rows have in each.
    ``is_even``: the lane has as many intervals in this step on every row. ``launch_ns`` orders a step: it is the first row's.
    """

    reports: Sequence[int]
    zero_ns: Sequence[int]
    steps: Int64
    n_of_step: Int64
    operations: Sequence[str]
    step: Int64
    lane: Int64
    operation: Int64
    launch_ns: Int64
    is_even: Bools
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.step)

    @property
    def length_ns(self) -> Int64:
        return self.end_ns - self.start_ns

    def per_step(self, values: Int64) -> Int64:
        """The sum over each step of a value for each collective, or of a row of them for each rank."""
        total = np.cumsum(values, axis=-1)
        edges = np.searchsorted(self.step, np.arange(len(self.steps) + 1))
        return np.diff(np.concatenate([np.zeros((*values.shape[:-1], 1), np.int64), total], axis=-1)[..., edges], axis=-1)

    def take(self, chosen: Bools) -> _Pairs:
        columns = {name: getattr(self, name)[chosen] for name in ("step", "lane", "operation", "launch_ns", "is_even")}
        return replace(self, start_ns=self.start_ns[:, chosen], end_ns=self.end_ns[:, chosen], **columns)

    def on(self, offsets_ns: Sequence[int]) -> _Pairs:
        """The same on one clock: each report's offset added, all counted from the first row's zero."""
        first = self.zero_ns[0]
        zero = [first - offsets_ns[report] for report in self.reports]
        shift = np.array([old - new for old, new in zip(self.zero_ns, zero, strict=True)], np.int64)[:, None]
        return replace(self, zero_ns=zero, start_ns=self.start_ns + shift, end_ns=self.end_ns + shift)

    def is_together(self) -> Bools:
        table = np.array([kernels.operation_of(name) in _TOGETHER for name in self.operations], bool)
        return np.asarray(table[self.operation], bool)


def communication(part: Part, process: int, device: int) -> Comm:
    """The Comm of a process on a device that has windows."""
    operations, windows = part.trace.operations, part.windows
    own = np.flatnonzero((windows.process == process) & (windows.device == device))
    mine = slice(*np.searchsorted(operations.process, [process, process + 1]).tolist())
    at = np.flatnonzero(part.kinds[mine] == int(Kind.COMM)) + mine.start
    at = at[np.isin(windows.of_operation[at], own)]
    used, operation = np.unique(operations.name[at], return_inverse=True)
    names = [part.trace.names[name] for name in used.tolist()]
    times = {name: getattr(operations, name)[at].astype(np.int64) for name in ("stream", "start_ns", "end_ns", "launch_ns")}
    return Comm(
        number=windows.step[own],
        is_complete=np.array([part.reasons[window] is None for window in own.tolist()], bool),
        window=np.searchsorted(own, windows.of_operation[at]),
        operation=operation.astype(np.int64),
        operations=tuple(names if part.trace.evidence == "host-ranges" else map(kernels.operation_of, names)),
        **times,
    )


def across(rows: Sequence[tuple[RankRow, Comm]], sessions: Sequence[int | None], listed: Sequence[BucketRow] | None) -> Across:
    """What the rows of a job, in their order, say together. ``sessions`` is the session start of each report.

    ``listed`` tells which bucket a collective carries; when it is None no collective is listed, the medians stand.
    """
    if any("graph-trace-opaque" in row.unreliable for row, _ in rows):
        return _refused("CUDA graphs were captured whole: the collectives in them cannot be seen")
    rows = [(row, comm) for row, comm in rows if len(comm)]
    if len(rows) < 2:
        return _refused("only one rank has communication in the input" if rows else "no communication between ranks was found")
    ranks = [row for row, _ in rows]
    pairs, problems = _pair([comm for _, comm in rows], [row.report for row in ranks])
    if pairs is None:
        return _refused("; ".join(problems))
    is_shared = any(row.is_time_sliced for row in ranks)
    found = _align(pairs, sessions, is_shared, 0 if ranks[0].device_id is None else FLOOR_NS)
    if found.uncertainty_ns is not None:
        pairs = pairs.on(found.offsets_ns)
    is_met = _meet(pairs, found.uncertainty_ns)
    if not is_met[pairs.is_even].all():
        problems.append("collectives of the same place do not meet in time: they are not of one communicator")
    pairs = pairs.take(is_met)
    if not len(pairs):
        return _refused("; ".join(problems) or "no communication in the steps that every rank shows")
    last = None if is_shared or found.uncertainty_ns is None else _last(pairs.start_ns, found.uncertainty_ns)
    steps = _whole_steps(pairs)
    return Across(
        clock="none" if found.uncertainty_ns is None else found.clock,
        uncertainty_ns=found.uncertainty_ns,
        refused="; ".join(problems) or None,
        transfer_ns=int(_median(pairs.per_step(pairs.length_ns.min(0))[steps], 0)),
        ranks=tuple(_rank_rows(ranks, pairs, steps, found, last)),
        collectives=() if listed is None else tuple(_collective_rows(ranks, pairs, found, last, listed)),
    )


def clocks(parts: Sequence[Part]) -> Clocks:
    """The clocks of a job's reports, a part each; aligned by session start alone where reports share a GPU in turns."""
    found = [(report, part, *place[:2]) for report, part in enumerate(parts) for place in lanes(part)]
    found.sort(key=lambda row: ((rank := row[1].trace.processes[row[2]].rank) is None, rank or 0))
    used = {
        (report, device.gpu)
        for report, part, *place in found
        for device in part.trace.devices
        if [device.process, device.device_id] == place and device.gpu is not None
    }
    is_shared = len(used) > len({gpu for _, gpu in used})
    seen = [(report, comm) for report, part, *place in found if len(comm := communication(part, *place))]
    pairs = _pair([comm for _, comm in seen], [report for report, _ in seen])[0] if len(seen) > 1 else None
    return _align(pairs, [part.trace.report.session_start_utc_ns for part in parts], is_shared, FLOOR_NS)


def _refused(why: str) -> Across:
    return Across(clock="none", uncertainty_ns=None, refused=why, ranks=(), collectives=())


# ---------------------------------------------------------------------------------------------------------- pairing


def _pair(comms: Sequence[Comm], reports: Sequence[int]) -> tuple[_Pairs | None, list[str]]:
    """The collectives of all rows, those of a lane in a step up to the first that differs, and what was in the way."""
    own, problems = _common_steps(comms)
    n_rows, n_steps = own.shape
    if not n_steps:
        return None, ["the ranks show no step in common"]
    starts = [(report, int(comm.start_ns.min())) for report, comm in zip(reports, comms, strict=True)]
    zero_ns = [min(start for other, start in starts if other == report) for report in reports]
    names = sorted({name for comm in comms for name in comm.operations})
    found = [_in_steps(comm, windows, names, zero) for comm, windows, zero in zip(comms, own, zero_ns, strict=True)]
    said = [_lanes(step, stream, start, operation) for step, stream, start, _, _, operation in found]
    lane = np.concatenate([_matched(mine, said[0][0])[index] for mine, index in said])
    n_lanes = int(lane.max(initial=0)) + 1
    row = np.repeat(np.arange(n_rows), [len(columns[0]) for columns in found])
    step, _, start, end, launch, operation = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((start, lane, step, row))

    cell = ((row * n_steps + step) * n_lanes + lane)[order]
    counts = np.bincount(cell, minlength=n_rows * n_steps * n_lanes).reshape(n_rows, n_steps, n_lanes)
    is_even, numbers = (counts == counts[0]).all(0), comms[0].number[own[0]]
    place = np.arange(len(cell)) - np.searchsorted(cell, cell)
    kept = order[place < counts.min(0).ravel()[cell % (n_steps * n_lanes)]]
    kept = kept.reshape(n_rows, len(kept) // n_rows)
    step, lane, operation = step[kept[0]], lane[kept[0]], operation[kept]
    is_same = (operation == operation[0]).all(0)
    if not is_even.all():
        problems.append(_uneven(counts, is_even, numbers))
    if not is_same.all():
        first = int(np.argmin(is_same))
        differing = " and ".join(names[at] for at in np.unique(operation[:, first]).tolist())
        problems.append(f"ranks differ in collectives: {differing} at the same place{_where(numbers[step[first]])}")
    pairs = _Pairs(
        reports=tuple(reports),
        zero_ns=zero_ns,
        steps=numbers,
        n_of_step=counts.sum((0, 2)),
        operations=names,
        step=step,
        lane=lane,
        operation=operation[0],
        launch_ns=launch[kept[0]],
        is_even=is_even[step, lane],
        start_ns=start[kept],
        end_ns=end[kept],
    )
    return pairs.take(_before_first(~is_same, step * n_lanes + lane)), problems


def _common_steps(comms: Sequence[Comm]) -> tuple[Int64, list[str]]:
    """The windows of each row (row, step) that are the same steps on all; only complete ones where there are any.

    A number that occurs more than once in a row stands for as many steps, in order, when it does so on every row.
    """
    counts = [Counter(comm.number.tolist()) for comm in comms]
    common = [number for number, n in counts[0].items() if all(other[number] == n for other in counts)]
    chosen = [np.flatnonzero(np.isin(comm.number, common)) for comm in comms]
    own = np.stack([at[np.argsort(comm.number[at], kind="stable")] for comm, at in zip(comms, chosen, strict=True)])
    is_complete = np.stack([comm.is_complete[at] for comm, at in zip(comms, own, strict=True)]).all(0)
    n_apart = len({number for comm in comms for number in comm.number[comm.is_complete].tolist()} - {*common})
    problems = [f"{n_apart} steps are not in the capture of every rank"] if n_apart else []
    return own[:, is_complete] if is_complete.any() else own, problems


def _in_steps(comm: Comm, own: Int64, names: Sequence[str], zero_ns: int) -> tuple[Int64, ...]:
    """Step, stream, start, end, launch and operation of what lies in a row's windows ``own``; times from ``zero_ns``."""
    place = np.full(len(comm.number), -1, np.int64)
    place[own] = np.arange(len(own))
    step = place[comm.window]
    at = np.flatnonzero(step >= 0)
    start, end, launch = comm.start_ns[at], comm.end_ns[at], comm.launch_ns[at]
    operation = np.array([names.index(name) for name in comm.operations], np.int64)[comm.operation[at]]
    launch = np.where(launch == MISSING, start, launch)
    return step[at], comm.stream[at], start - zero_ns, end - zero_ns, launch - zero_ns, operation


def _lanes(step: Int64, stream: Int64, start: Int64, operation: Int64) -> tuple[list[bytes], Int64]:
    """What each stream of a row says, its collectives by step in order, streams by first use; and the lane of each interval."""
    streams, index = np.unique(stream, return_inverse=True)
    first = np.full(len(streams), 2**63 - 1, np.int64)
    np.minimum.at(first, index, start)
    lane = np.argsort(np.argsort(first, kind="stable"), kind="stable")[index]
    order = np.lexsort((start, step, lane))
    text = np.stack([step, operation], 1)[order]
    edges = np.searchsorted(lane[order], np.arange(1, len(streams)))
    return [part.tobytes() for part in np.split(text, edges)], lane


def _matched(mine: Sequence[bytes], reference: Sequence[bytes]) -> Int64:
    """The lane of the reference for each of mine: the first free one that says the same, else the first free one."""
    found: dict[int, int] = {}
    for at, said in enumerate(mine):
        same = [lane for lane, other in enumerate(reference) if other == said and lane not in found.values()]
        if same:
            found[at] = same[0]
    free = (lane for lane in count() if lane not in found.values())
    return np.array([found[at] if at in found else next(free) for at in range(len(mine))], np.int64)


def _before_first(is_bad: Bools, lane: Int64) -> Bools:
    """Which collectives come before the first bad one of their lane; ``lane`` rises."""
    n_bad = np.cumsum(is_bad)
    first = np.searchsorted(lane, lane)
    return np.asarray(n_bad - (n_bad - is_bad)[first] == 0)


def _uneven(counts: Int64, is_even: Bools, numbers: Int64) -> str:
    """What is said of the first step in which a lane has not as many collectives on every row."""
    uneven = np.flatnonzero(~is_even.all(1))
    first = int(uneven[0])
    totals = counts[:, first].sum(1)
    if totals.min() == totals.max():
        return f"ranks differ in which streams their collectives use{_where(numbers[first], len(uneven))}"
    return f"ranks differ in number of collectives: {totals.max()} and {totals.min()}{_where(numbers[first], len(uneven))}"


def _where(number: np.int64, n_steps: int = 1) -> str:
    more = f" and {n_steps - 1} more" if n_steps > 1 else ""
    return "" if number == MISSING else f" (step {number}{more})"


# ----------------------------------------------------------------------------------------------------------- clocks


def _align(pairs: _Pairs | None, sessions: Sequence[int | None], is_shared: bool, floor_ns: int) -> Clocks:
    """One clock of all reports: theirs, by session start, or by the ends of collectives.

    All ranks leave a collective at nearly the same time, so a report's offset is the median difference of its ends. How far
    two clocks may be apart is how far the aligned ends are: the 95th percentile over collectives, so that one late end says
    nothing and a drift does. Session starts hold unless the ends contradict them by more than they differ among themselves; on
    a shared GPU the ends contradict nothing, as each rank leaves when it is its turn.
    """
    reports = [*dict.fromkeys(pairs.reports)] if pairs is not None else []
    told, unmoved = _by_session(sessions, pairs), (0,) * len(sessions)
    if len(sessions) == 1 or len(reports) == 1:
        return Clocks(clock="one report", uncertainty_ns=floor_ns, offsets_ns=told or unmoved)
    if pairs is None or not pairs.is_even.any():
        return Clocks(clock="none" if told is None else "session start", uncertainty_ns=None, offsets_ns=told or unmoved)
    pairs = pairs.take(pairs.is_even)
    together = pairs.is_together()
    is_sure = int(together.sum()) >= ENOUGH_ENDS
    if is_sure:
        pairs = pairs.take(together)
    ends = _ends(pairs, reports)
    lag = _median(ends - ends[0], 1)
    measured = _apart(ends - lag[:, None])
    if told is not None:
        placed = pairs.on(told)
        bias = int(np.ptp(_median(_ends(placed, reports) - _ends(placed, reports)[0], 1)))
        is_met = bool((placed.start_ns.max(0) <= placed.end_ns.min(0)).any())
        if is_met and (is_shared or not is_sure or bias <= max(measured, FLOOR_NS)):
            apart = _apart(_ends(placed, reports))
            return Clocks(clock="session start", uncertainty_ns=max(apart, FLOOR_NS), offsets_ns=told)
    offsets = [0] * len(sessions)
    for report, late in zip(reports, lag.tolist(), strict=True):
        offsets[report] = pairs.zero_ns[0] - pairs.zero_ns[pairs.reports.index(report)] - late
    if len(pairs) < ENOUGH_ENDS or max(map(abs, offsets)) > LONGEST_NS:
        return Clocks(clock="none", uncertainty_ns=None, offsets_ns=unmoved)
    return Clocks(clock="collective ends", uncertainty_ns=max(measured, FLOOR_NS), offsets_ns=tuple(offsets))


def _by_session(sessions: Sequence[int | None], pairs: _Pairs | None) -> tuple[int, ...] | None:
    """The offsets that session starts give, None when one is not told or cannot be true."""
    known = [start for start in sessions if start is not None]
    if len(known) < len(sessions):
        return None
    offsets = [start - known[pairs.reports[0] if pairs is not None else 0] for start in known]
    moved = [offsets[at] + zero for at, zero in zip(pairs.reports, pairs.zero_ns, strict=True)] if pairs is not None else [0]
    is_near = max(offsets) - min(offsets) <= LONGEST_NS and max(moved) - min(moved) <= LONGEST_NS
    return tuple(offsets) if is_near else None


def _ends(pairs: _Pairs, reports: Sequence[int]) -> Int64:
    """When each report (in order) left each collective: its last row."""
    owner = np.array([reports.index(report) for report in pairs.reports])
    return np.stack([pairs.end_ns[owner == at].max(0) for at in range(len(reports))])


def _apart(ends: Int64) -> int:
    """How far ends of one collective are apart: the 95th percentile over collectives, by nearest rank."""
    apart = np.sort(np.ptp(ends, axis=0))
    return int(apart[-(-len(apart) * 95 // 100) - 1])


def _median(values: Int64, axis: int) -> Int64:
    """The median along an axis, the lower middle one of an even number."""
    return np.asarray(np.take(np.sort(values, axis=axis), (values.shape[axis] - 1) // 2, axis=axis))


def _meet(pairs: _Pairs, uncertainty_ns: int | None) -> Bools:
    """Which collectives can be one: no rank left before another came.

    A lane of a step in which some cannot is none for all ranks; an uneven one is believed up to there, and not at all without
    a common clock: nothing tells which of its collectives is missing where. A send need not wait for its receive.
    """
    if uncertainty_ns is None:
        return pairs.is_even
    is_apart = pairs.start_ns.max(0) > pairs.end_ns.min(0) + uncertainty_ns
    is_apart &= pairs.is_together() | ~pairs.is_even
    lane = pairs.step * (int(pairs.lane.max(initial=0)) + 1) + pairs.lane
    return np.where(pairs.is_even, np.bincount(lane, is_apart)[lane] == 0, _before_first(is_apart, lane))


# ------------------------------------------------------------------------------------------------------------- rows


def _last(arrival: Int64, uncertainty_ns: int) -> Int64:
    """The row that arrived last at each collective, -1 where the last two are no further apart than the clocks."""
    ordered = np.sort(arrival, axis=0)
    return np.asarray(np.where(ordered[-1] - ordered[-2] > uncertainty_ns, arrival.argmax(0), -1))


def _late(arrival: Int64) -> Int64:
    """How long after the median of the other rows each arrived; negative when before it."""
    ordered, middle = np.sort(arrival, axis=0), (len(arrival) - 2) // 2
    others = np.where(arrival <= ordered[middle], ordered[middle + 1], ordered[middle])
    return np.asarray(arrival - others)


def _whole_steps(pairs: _Pairs) -> Bools:
    """The steps that medians are over: those paired whole, else all in which something was paired."""
    n_paired = np.bincount(pairs.step, minlength=len(pairs.steps))
    is_whole = n_paired * len(pairs.reports) == pairs.n_of_step
    return np.asarray(is_whole if (is_whole & (n_paired > 0)).any() else n_paired > 0)


def _rank_rows(
    ranks: Sequence[RankRow], pairs: _Pairs, steps: Bools, found: Clocks, last: Int64 | None
) -> Iterator[AcrossRank]:
    """A row for each rank, medians over the chosen ``steps``."""
    waits = _median(pairs.per_step(pairs.length_ns - pairs.length_ns.min(0))[:, steps], 1)
    lates = None
    if last is not None:
        order = np.lexsort((pairs.launch_ns, pairs.step))
        final = order[np.flatnonzero(np.diff(pairs.step, append=-1))]
        lates = _median(_late(pairs.start_ns[:, final[steps[pairs.step[final]]]]), 1)
    for at, row in enumerate(ranks):
        yield AcrossRank(
            rank=row.rank,
            report=row.report,
            pid=row.pid,
            device_id=row.device_id,
            offset_ns=None if found.uncertainty_ns is None else found.offsets_ns[row.report],
            n_collectives=len(pairs),
            n_last=None if last is None else int((last == at).sum()),
            wait_ns=int(waits[at]),
            late_ns=None if lates is None else int(lates[at]),
        )


def _collective_rows(
    ranks: Sequence[RankRow], pairs: _Pairs, found: Clocks, last: Int64 | None, listed: Sequence[BucketRow]
) -> Iterator[CollectiveRow]:
    """A row for each collective by step and launch; ``listed`` tells the bucket where a mark does."""
    marked = {(row.report, row.pid, row.device_id, row.start_ns): row for row in listed if row.attribution == "range"}
    length = pairs.length_ns
    arrival = pairs.start_ns - pairs.start_ns.min(0)
    order = np.lexsort((pairs.launch_ns, pairs.step))
    first = np.searchsorted(pairs.step, pairs.step)
    for place, at in enumerate(order.tolist()):
        keys = (
            (row.report, row.pid, row.device_id, int(start) + zero)
            for row, start, zero in zip(ranks, pairs.start_ns[:, at], pairs.zero_ns, strict=True)
        )
        mark = next((marked[key] for key in keys if key in marked), None)
        transfer = int(length[:, at].min())
        number = pairs.steps[pairs.step[at]]
        yield CollectiveRow(
            step=None if number == MISSING else int(number),
            place=place - int(first[at]),
            bucket=mark.bucket if mark is not None else None,
            operation=kernels.operation_of(pairs.operations[pairs.operation[at]]),
            size_bytes=mark.size_bytes if mark is not None else None,
            transfer_ns=transfer,
            length_ns=length[:, at].tolist(),
            wait_ns=(length[:, at] - transfer).tolist(),
            arrival_ns=None if found.uncertainty_ns is None else arrival[:, at].tolist(),
            last=None if last is None or last[at] < 0 else int(last[at]),
        )
