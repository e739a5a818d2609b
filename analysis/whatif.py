"""What other bucket caps would do to a step: the model, and the Prediction that is made with it.

Compute is kept as it was captured. Its gradients fill the buckets of another cap (``ddpprof.reducer``), each rank sends a
bucket when its Reducer would, and a transfer begins when the last rank has sent it and a lane is free. What one costs is fitted
to the transfers of the capture. The model is run for the cap of the capture too, and only the difference is used: it is added
to the step that was measured.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, mode

import numpy as np
from numpy.typing import NDArray

from ddpprof import __version__
from ddpprof.analysis import intervals
from ddpprof.analysis.moments import LANES, Backward, Hook, Moment, Run, Transfer, run_of
from ddpprof.analysis.sweep import slowest
from ddpprof.analysis.timing import job_steps, timing
from ddpprof.errors import InputError
from ddpprof.model import Bound, CapPrediction, Prediction, RankPrediction, Records, Timing, Trace, TransferCost
from ddpprof.reducer import Layout, capacity, initial, launches, rebuilt

MOSTLY = 0.8
"""A transfer counts as alone, or as beside compute, when it was so for this share of its time."""

FEWEST = 3
"""Fewer transfers than this, alone or beside compute, do not tell what compute costs a transfer."""

NEGLIGIBLE = 0.05
"""A tail below this share of the step is not worth another cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What one rank's backward does under a layout: when each bucket is sent, and when its compute ends.

    ``hooked_ns`` is when each hook runs, as in ``Backward``, and what it takes. ``held_ns`` is the longest that a complete
    bucket waited for one before it, ``holder`` the parameter that it waited for.
    """

    launch_ns: tuple[int, ...]
    compute_end_ns: int
    hooked_ns: tuple[tuple[int, int], ...]
    held_ns: int
    holder: int | None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Simulated:
    """A moment under a layout: by rank what was sent, by bucket the transfer, and the step of the slowest rank.

    ``free_ns`` is when a lane was free for the transfer, ``arrival_ns`` when the last rank had sent it.
    """

    ranks: tuple[Sent, ...]
    arrival_ns: tuple[int, ...]
    begin_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    free_ns: tuple[int, ...]
    step_ns: int


def predict(
    traces: Sequence[Trace], records: Records | None, caps_mb: Sequence[float | None], *, case: str | None = None
) -> Prediction:
    """The Prediction for each of ``caps_mb`` and the cap of the capture, from the captures of a run and its records.

    A cap of None is DDP's default. Raises InputError without them.
    """
    run = run_of(traces, records)
    assert records is not None
    measured, is_profiled = measured_steps(records)
    cost, lanes = fit(run), LANES.get(run.record.backend, 1)
    here = [simulate(moment, run.layout, cost, run.hook, lanes) for moment in run.moments]
    error_ns = abs(_middle([there.step_ns - moment.step_ns for there, moment in zip(here, run.moments, strict=True)]))
    margin = measured.mad_ns + error_ns
    caps = sorted({*caps_mb, run.record.bucket_cap_mb}, key=lambda cap: cap or 0.0)
    rows = tuple(_row(cap_mb, run, cost, lanes, here, measured.median_ns, margin) for cap_mb in caps)
    fastest = min(rows, key=lambda row: row.step_ns)
    return Prediction(
        ddpprof_version=__version__,
        case=case,
        world_size=run.record.world_size,
        device=run.record.device,
        evidence=traces[0].evidence,
        is_profiled=is_profiled,
        captured_cap_mb=run.record.bucket_cap_mb,
        mode=run.mode,
        measured=measured,
        model_ns=_middle([there.step_ns for there in here]),
        moments=len(run.moments),
        lanes=lanes,
        cost=cost,
        rows=rows,
        best_mb=tuple(row.cap_mb for row in rows if row.low_ns <= fastest.high_ns),
    )


def measured_steps(records: Records) -> tuple[Timing, bool]:
    """The timed iterations of the job and False; of a job that has none, its steps under the profiler and True."""
    found = timing(job_steps(records))
    if found is not None:
        return found, False
    found = timing(slowest((row.step, row.step_ns) for row in records.gradients if row.step_ns is not None))
    if found is None:
        raise InputError("the run timed no step", "Run it for more steps: the first four are warm-up.")
    return found, True


def layout_under(run: Run, cap_mb: float | None) -> Layout:
    """The buckets that last under a cap: the first ones with find_unused, else those rebuilt in rank 0's order."""
    limits = capacity(cap_mb, torch_version=run.record.torch_version, is_last_small=run.is_last_small)
    lasting = None
    if run.mode != "find_unused":
        lasting = rebuilt(run.parameters, limits, run.mode, run.rebuild_order)
    return lasting or initial(run.parameters, limits, run.mode)


# ------------------------------------------------------------------------------------------------------------ the model


def simulate(moment: Moment, layout: Layout, cost: TransferCost, hook: Hook, lanes: int) -> Simulated:
    """A moment as it would have been under ``layout``."""
    ranks = tuple(send(rank, layout, hook) for rank in moment.ranks)
    arrival = np.maximum.accumulate([max(times) for times in zip(*(sent.launch_ns for sent in ranks), strict=True)]).tolist()
    work = [cost.fixed_ns + cost.ns_per_byte * size for size in layout.size_bytes]
    begin, end = carry(arrival, work, lanes, max(sent.compute_end_ns for sent in ranks), cost.slowdown_ratio or 1.0)
    last = max(end, default=0)
    step = max(
        max(sent.compute_end_ns, last) + rank.rest_ns - rank.start_ns for sent, rank in zip(ranks, moment.ranks, strict=True)
    )
    free, largest = [], [0] * lanes
    for time in end:
        free.append(largest[0])
        heapq.heappushpop(largest, time)
    return Simulated(ranks=ranks, arrival_ns=tuple(arrival), begin_ns=begin, end_ns=end, free_ns=tuple(free), step_ns=step)


def send(rank: Backward, layout: Layout, hook: Hook) -> Sent:
    """The backward of one rank under ``layout``; each bucket's hook puts off all that comes after it."""
    unused = sorted({index for bucket in layout.buckets for index in bucket.parameters} - set(rank.order))
    launch: list[int] = []
    hooked: list[tuple[int, int]] = []
    late, held, holder = 0, 0, None
    for sent in launches(layout, rank.order, unused):
        ready, took = rank.ready_ns[sent.sent], hook.took_ns(layout.buckets[sent.bucket].size_bytes)
        late += took
        launch.append(ready + hook.lag_ns + late)
        hooked.append((ready, took))
        if ready - rank.ready_ns[sent.complete] > held:
            held, holder = ready - rank.ready_ns[sent.complete], rank.order[sent.sent]
    compute_end = rank.end_ns + sum(took for ready, took in hooked if ready < rank.ready_ns[-1])
    return Sent(
        launch_ns=tuple(launch),
        compute_end_ns=compute_end,
        hooked_ns=tuple(hooked),
        held_ns=held,
        holder=holder,
    )


def carry(
    arrival_ns: Sequence[int], work_ns: Sequence[float], lanes: int, compute_end_ns: int, slowdown: float
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """When each transfer begins and ends: in order, at most ``lanes`` at once, which share the wire in equal parts.

    ``work_ns`` is what each takes alone on the wire; until ``compute_end_ns`` all take ``slowdown`` times as long.
    """
    begin, end = [0] * len(arrival_ns), [0] * len(arrival_ns)
    left: dict[int, float] = {}
    now, coming = 0.0, 0
    while coming < len(arrival_ns) or left:
        while coming < len(arrival_ns) and len(left) < lanes and (arrival_ns[coming] <= now or not left):
            now = max(now, arrival_ns[coming])
            left[coming], begin[coming] = work_ns[coming], round(now)
            coming += 1
        share = len(left) * (slowdown if now < compute_end_ns else 1.0)
        first = min(left, key=left.__getitem__)
        events = [now + left[first] * share]
        if now < compute_end_ns:
            events.append(compute_end_ns)
        if coming < len(arrival_ns) and len(left) < lanes:
            events.append(arrival_ns[coming])
        until = min(events)
        for at in left:
            left[at] -= (until - now) / share
        if until == events[0]:
            end[first] = round(until)
            del left[first]
        now = until
    return tuple(begin), tuple(end)


# ----------------------------------------------------------------------------------------------------------------- fit


def fit(run: Run) -> TransferCost:
    """α and β of the transfers of a run, and how much slower they are beside compute, where it has enough of both.

    Buckets are of few sizes. Sizes that are none of theirs were timed alone before the first step, and are points too.
    """
    found = [transfer for moment in run.moments for transfer in moment.transfers if transfer.beside_ns + transfer.alone_ns > 0]
    if not found:
        raise InputError("no transfer of this run can be timed", "Capture it again.")
    alone = [item for item in found if item.alone_ns >= MOSTLY * (item.alone_ns + item.beside_ns)]
    beside = [item for item in found if item.beside_ns >= MOSTLY * (item.alone_ns + item.beside_ns)]
    has_both = len(alone) >= FEWEST and len(beside) >= FEWEST
    base = alone if has_both else found
    own = _by_size(base)
    probes = [point for point in run.probes if not any(point[0] <= 2 * size and size <= 2 * point[0] for size, _ in own)]
    fixed, rate = line([*own, *probes])

    def ratio(item: Transfer, slowdown: float) -> float:
        return (item.alone_ns + item.beside_ns / slowdown) / max(fixed + rate * item.size_bytes, 1.0)

    slowdown = median(max(ratio(item, 1.0), 1.0) for item in beside) if has_both else None
    low, high = np.quantile([ratio(item, slowdown or 1.0) for item in found], [0.25, 0.75]).tolist()
    return TransferCost(
        fixed_ns=fixed,
        ns_per_byte=rate,
        slowdown_ratio=slowdown,
        low_ratio=low,
        high_ratio=high,
        n=len(found),
        sizes=len({item.size_bytes for item in found}),
        probes=len(probes),
    )


def _by_size(found: Sequence[Transfer]) -> list[tuple[int, float]]:
    """The median of each size."""
    sizes = sorted({item.size_bytes for item in found})
    return [(size, median(item.alone_ns + item.beside_ns for item in found if item.size_bytes == size)) for size in sizes]


def line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """α and β, neither below 0, of the line nearest to points (bytes, ns) by relative error; of one point all is β."""
    sizes, times = np.array(points, float).T
    weights = 1 / np.maximum(times, 1.0)
    columns = np.stack([weights, sizes * weights], axis=1)
    found, *_ = np.linalg.lstsq(columns, np.ones(len(points)), rcond=None)
    fixed, rate = (float(value) for value in found)
    if fixed < 0 or (len(points) == 1 and sizes[0] > 0):
        fixed, rate = 0.0, _only(columns[:, 1])
    elif rate < 0:
        fixed, rate = _only(columns[:, 0]), 0.0
    return fixed, rate


def _only(column: NDArray[np.float64]) -> float:
    return float(column.sum() / (column @ column))


# ------------------------------------------------------------------------------------------------------------ the result


def _row(
    cap_mb: float | None, run: Run, cost: TransferCost, lanes: int, here: Sequence[Simulated], measured_ns: int, margin_ns: int
) -> CapPrediction:
    layout = layout_under(run, cap_mb)
    there = [simulate(moment, layout, cost, run.hook, lanes) for moment in run.moments]
    step, low, high = between(run, layout, cost, lanes, here, there)
    ranks = tuple(
        _rank(at, run, [(found, moment.ranks[at]) for found, moment in zip(there, run.moments, strict=True)])
        for at in range(len(run.moments[0].ranks))
    )
    worst = max(ranks, key=lambda rank: -1 if rank.exposed_comm_ns is None else rank.exposed_comm_ns)
    holding = sorted((max(found.ranks, key=_held) for found in there), key=_held)[(len(there) - 1) // 2]
    return CapPrediction(
        cap_mb=cap_mb,
        is_captured=layout.parameters == run.layout.parameters,
        bucket_bytes=layout.size_bytes,
        buckets=layout.parameters,
        step_ns=max(measured_ns + step, 0),
        low_ns=max(measured_ns + low - margin_ns, 0),
        high_ns=measured_ns + high + margin_ns,
        worst_rank=None if worst.exposed_comm_ns is None else worst.rank,
        overlap_ns=worst.overlap_ns,
        overlap_ratio=worst.overlap_ratio,
        exposed_comm_ns=worst.exposed_comm_ns,
        tail_ns=worst.tail_ns,
        bound=mode(bound(found, layout, cost) for found in there),
        held_ns=holding.held_ns,
        holder=None if holding.holder is None else run.parameters[holding.holder].name,
        ranks=ranks,
    )


def _held(sent: Sent) -> int:
    return sent.held_ns


def between(
    run: Run, layout: Layout, cost: TransferCost, lanes: int, here: Sequence[Simulated], there: Sequence[Simulated]
) -> tuple[int, int, int]:
    """How much longer the step is than in the capture, and the ends of that: by the spread over moments, and were transfers
    as cheap or as dear as the quartiles of those that were measured.
    """
    gains = [after.step_ns - before.step_ns for after, before in zip(there, here, strict=True)]
    middle = _middle(gains)
    spread = _middle([abs(gain - middle) for gain in gains])
    ends = []
    for ratio in (min(cost.low_ratio, 1.0), max(cost.high_ratio, 1.0)):
        scaled = replace(cost, fixed_ns=cost.fixed_ns * ratio, ns_per_byte=cost.ns_per_byte * ratio)
        found = [
            simulate(moment, layout, scaled, run.hook, lanes).step_ns - before.step_ns
            for moment, before in zip(run.moments, here, strict=True)
        ]
        ends.append(_middle(found))
    return middle, min(ends[0], middle) - spread, max(ends[1], middle) + spread


def _rank(at: int, run: Run, found: Sequence[tuple[Simulated, Backward]]) -> RankPrediction:
    """Medians over the captured moments of one rank."""
    shown = [_overlap(there.ranks[at], there, rank, run) for there, rank in found if rank.compute is not None]
    rank = found[0][1].rank
    if not shown:
        return RankPrediction(rank=rank, overlap_ns=None, overlap_ratio=None, exposed_comm_ns=None, tail_ns=None)
    overlap, comm, tail = (_middle(values) for values in zip(*shown, strict=True))
    return RankPrediction(
        rank=rank,
        overlap_ns=overlap,
        overlap_ratio=overlap / comm if comm else None,
        exposed_comm_ns=comm - overlap,
        tail_ns=tail,
    )


def _overlap(sent: Sent, there: Simulated, rank: Backward, run: Run) -> tuple[int, int, int]:
    """Overlap, communication and tail of one rank."""
    assert rank.compute is not None
    start = rank.compute.start + _put_off(sent, rank.compute.start)
    compute = intervals.union(start, start + rank.compute.lengths)
    launch = np.array(sent.launch_ns, np.int64)
    begin = launch if run.shows_queue else np.maximum(launch, np.array(there.free_ns, np.int64))
    comm = intervals.union(begin, np.array(there.end_ns, np.int64))
    both = intervals.measure(intervals.intersection(compute, comm))
    tail = max(0, max(there.end_ns) - int(compute.end[-1]))
    return both, intervals.measure(comm), tail


def _put_off(sent: Sent, times: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each time how long the hooks before it take."""
    at = np.array([time for time, _ in sent.hooked_ns], np.int64)
    total = np.concatenate([[0], np.cumsum([took for _, took in sent.hooked_ns])]).astype(np.int64)
    return np.asarray(total[np.searchsorted(at, times, side="right")])


def bound(found: Simulated, layout: Layout, cost: TransferCost) -> Bound:
    """What ends the step."""
    at = len(layout.buckets) - 1
    last, arrival = found.end_ns[at], found.arrival_ns[at]
    if max(found.end_ns) - max(sent.compute_end_ns for sent in found.ranks) < NEGLIGIBLE * found.step_ns:
        return "compute"
    queued = max(found.end_ns[:at], default=arrival) - arrival
    if queued <= (last - arrival) / 2:
        return "last bucket"
    if max(sent.held_ns for sent in found.ranks) > queued:
        return "held bucket"
    of_bytes = cost.ns_per_byte * sum(layout.size_bytes)
    return "latency" if cost.fixed_ns * len(layout.buckets) > of_bytes else "bandwidth"


def _middle(values: Sequence[int]) -> int:
    """The median, the lower middle one of an even number."""
    return sorted(values)[(len(values) - 1) // 2]
