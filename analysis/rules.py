"""The ten causes that hold a step back: one table of rules, each a function of the signs of one rank.

A rule says what its cause costs on a rank, at most, and with which evidence; or why the input does not let it say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np

from ddpprof.analysis import intervals
from ddpprof.analysis.signs import Bucket, Signs, Step
from ddpprof.model import AcrossRank, RankRow, Severity

MIB: Final = 1024 * 1024
DEFAULT_CAP_BYTES: Final = 25 * MIB
"""DDP's own bucket cap: so many bytes in one collective make latency small beside transfer."""

LAST_PERCENT: Final = 75
LEAST_COLLECTIVES: Final = 4
"""A rank that is last at so many of the collectives, and of so many at least, is the one that is waited for."""

HIDDEN_PERCENT: Final = 10
"""Communication is as good as hidden when no more than this share of the step is exposed communication."""

LEAST_SPLIT_BYTES: Final = MIB
"""A bucket under this is not worth splitting: DDP itself never starts with less."""

MANY_KERNELS: Final = 200
KERNELS_A_BUCKET: Final = 4
SHORT_KERNEL_NS: Final = {"gpu-kernels": 100_000, "host-ranges": 500_000}
"""A median compute interval up to this is short: a launch takes about a tenth of it, and autograd more."""

TINY_BYTES: Final = 64 * 1024
MANY_TINY: Final = 16
"""Of one size only, so many buckets of no more than TINY_BYTES tell that latency is all that they cost."""

SLOWER_PERCENT: Final = 115
"""Kernels beside communication that take no more than this of their time alone do not suffer from it."""

LEAST_STEPS: Final = 8
SPIKE_RATIO: Final = 1.5
STEADY_RATIO: Final = 1.25
"""A spike is longer than SPIKE_RATIO medians; then no other step may be longer than STEADY_RATIO."""

Sure = Literal["high", "medium", "low"]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Rank:
    """One row of the job as the rules see it. ``across`` is None without other ranks to hold it against, for ``why_alone``;
    ``iterations_ns`` are its steps as the run itself timed them; ``is_unused_for_nothing`` tells that DDP was to look for
    unused parameters and there were none, None when that is not recorded.
    """

    row: RankRow
    signs: Signs
    across: AcrossRank | None = None
    uncertainty_ns: int | None = None
    why_alone: str = "only one rank is in the input"
    iterations_ns: tuple[int, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    is_unused_for_nothing: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a rule saw on a rank. ``severity`` is set where it does not depend on the cost; ``message`` and ``advice`` where
    they are not those of the rule.
    """

    cost_ns: int
    step_ns: int
    evidence: Mapping[str, Any] = field(default_factory=dict)
    spans: tuple[tuple[int, int], ...] = ()
    sure: Sure = "medium"
    severity: Severity | None = None
    message: str | None = None
    advice: str | None = None


Judged = Sequence[Seen] | str
"""What was seen, nothing when all is well; or why it cannot be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One cause. ``percent`` of the step is its threshold, a note begins at half of it; the evidence fills in ``message``.
    ``rests_on_compute`` is whether nothing can be said where no compute is seen.
    """

    code: str
    needs: str
    measures: str
    percent: int
    message: str
    advice: str
    judge: Callable[[Rank], Judged]
    rests_on_compute: bool = True


# --------------------------------------------------------------------------------------------------------- the rules


def straggler(rank: Rank) -> Judged:
    """How late the rank is at the last collective, when it is the last at most."""
    if rank.row.is_time_sliced:
        return "ranks share a GPU: who comes last is decided by the turns they get"
    if rank.across is None:
        return rank.why_alone
    late, n_last, n = rank.across.late_ns, rank.across.n_last, rank.across.n_collectives
    if late is None or n_last is None:
        return "the ranks have no common clock"
    if n < LEAST_COLLECTIVES:
        return f"fewer than {LEAST_COLLECTIVES} collectives could be paired"
    if late <= 0 or n_last * 100 < n * LAST_PERCENT:
        return ()
    evidence = {"n_last": n_last, "n_collectives": n, "late_ns": late, "uncertainty_ns": rank.uncertainty_ns}
    sure: Sure = "high" if n >= 8 and late > 10 * (rank.uncertainty_ns or 0) else "medium"
    return [Seen(cost_ns=late, step_ns=rank.row.step_ns, evidence=evidence, sure=sure)]


def slow(rank: Rank) -> Judged:
    """The backlog of communication when the backward is over: what is not the last bucket's own transfer, nor waiting."""
    return _no_buckets(rank) or _no_durations(rank) or _over_steps(rank, lambda step: _slow(rank, step))


def _slow(rank: Rank, step: Step) -> Seen | None:
    found = step.buckets
    if len(found) < 2 or not _is_early(step) or step.backward_end_ns is None:
        return None
    last = found[-1]
    over_ns = max(step.backward_end_ns, last.launch_ns, last.met_ns or 0)
    end_ns = max(item.end_ns for item in found)
    moving_ns = _moving(found, over_ns)
    backlog_ns = moving_ns - _alone(last, found) - _unplaced_wait(rank, found)
    for other in (_too_small(rank, step), _parked(rank, step)):  # what has a cause of its own is not said twice
        backlog_ns -= other.cost_ns if isinstance(other, Seen) else 0
    if backlog_ns <= 0:
        return None
    sizes = [item.size_bytes for item in found if item.size_bytes]
    evidence = {
        "backlog_ns": backlog_ns,
        "exposed_comm_ns": step.exposed_ns,
        "n_buckets": len(found),
        "sent_bytes": sum(sizes) if len(sizes) == len(found) else None,
        "launch_ratio": found[0].ahead_ns / step.backward_ns,
    }
    sure: Sure = "medium" if rank.across is not None else "low"
    return Seen(cost_ns=backlog_ns, step_ns=step.step_ns, evidence=_known(evidence), spans=((over_ns, end_ns),), sure=sure)


def scheduling(rank: Rank) -> Judged:
    """What is exposed of buckets that were sent later than their gradients were ready."""
    return _no_buckets(rank) or _over_steps(rank, lambda step: _scheduling(rank, step))


def _scheduling(rank: Rank, step: Step) -> Seen | None:
    return _parked(rank, step) or _too_large(rank, step)


def _parked(rank: Rank, step: Step) -> Seen | None:
    """Buckets sent one after another with no compute between: all but the first were ready, held by the head of the queue."""
    bunches: list[list[Bucket]] = []
    for item in step.buckets:
        if bunches and item.n_between == 0:
            bunches[-1].append(item)
        else:
            bunches.append([item])
    bunches = [bunch for bunch in bunches if len(bunch) > 1]
    hideable_ns = sum(min(_exposed(step, bunch, _last_ratio(bunch)), _could_hide(bunch[0])) for bunch in bunches)
    cost_ns = min(hideable_ns, step.exposed_ns) - _unplaced_wait(rank, step.buckets)
    if cost_ns <= 0:
        return None
    head = max(bunches, key=len)
    parked = [item.parked_ns for bunch in bunches for item in bunch[1:] if item.parked_ns is not None]
    evidence = {
        "n_parked": sum(len(bunch) - 1 for bunch in bunches),
        "n_buckets": len(step.buckets),
        "head_bucket": head[0].bucket,
        "exposed_comm_ns": step.exposed_ns,
        "longest_parked_ns": max(parked, default=None),
    }
    return Seen(
        cost_ns=cost_ns,
        step_ns=step.step_ns,
        evidence=_known(evidence),
        spans=((head[0].launch_ns, max(item.end_ns for item in head)),),
        sure="medium" if rank.row.is_time_sliced else "high",
        message="{n_parked} of {n_buckets} buckets were ready but not sent: buckets go in order, and one ahead was not ready",
        advice="Have the gradients of the bucket ahead ready earlier: let DDP rebuild its buckets (it never does so with "
        "find_unused_parameters=True), or give the parameter that is late a DDP of its own.",
    )


def _too_large(rank: Rank, step: Step) -> Seen | None:
    """What is exposed of the last bucket (of two: of both, when they are sent after half of the backward), less what belongs to
    the gradient that came last.
    """
    late = step.buckets if len(step.buckets) <= 2 and not _is_early(step) else step.buckets[-1:]
    sizes = [item.size_bytes for item in late if item.size_bytes]
    if not late or not step.backward_ns or (len(sizes) == len(late) and sum(sizes) < LEAST_SPLIT_BYTES):
        return None
    hideable_ns = min(_exposed(step, late, _last_gradient_ratio(late)), _could_hide(late[0]))
    cost_ns = hideable_ns - _unplaced_wait(rank, step.buckets)
    if cost_ns <= 0:
        return None
    evidence = {
        "n_buckets": len(step.buckets),
        "launch_ratio": late[0].ahead_ns / step.backward_ns,
        "exposed_comm_ns": step.exposed_ns,
        "bucket_bytes": max(sizes, default=None),
        "longest_held_ns": max((item.held_ns for item in late if item.held_ns is not None), default=None),
    }
    return Seen(
        cost_ns=cost_ns,
        step_ns=step.step_ns,
        evidence=_known(evidence),
        spans=((late[0].launch_ns, max(item.end_ns for item in late)),),
        sure="high" if len(step.buckets) <= 2 and not rank.row.is_time_sliced else "medium",
    )


def tail(rank: Rank) -> Judged:
    """The compute between the last bucket and the one before, beyond that before others, when communication is hidden."""
    return _no_buckets(rank) or _over_steps(rank, _tail)


def _tail(step: Step) -> Seen | None:
    found = step.buckets
    if len(found) < 2 or not _is_early(step) or step.exposed_ns * 100 > step.step_ns * HIDDEN_PERCENT:
        return None
    last = found[-1]
    usual_ns = _middle([found[0].ahead_ns, *(item.gap_compute_ns for item in found[1:-1])])
    before = max(item.end_ns for item in found[:-1])
    evidence = {
        "compute_before_last_ns": last.gap_compute_ns,
        "usually_before_ns": usual_ns,
        "exposed_comm_ns": step.exposed_ns,
        "n_buckets": len(found),
    }
    span = ((before, last.start_ns),) if last.start_ns > before else ()
    cost_ns = max(last.gap_compute_ns - usual_ns, 0)
    return Seen(cost_ns=cost_ns, step_ns=step.step_ns, evidence=evidence, spans=span, sure="high")


def waiting(rank: Rank) -> Judged:
    """The time in which nothing ran because the host waited."""
    if not rank.signs.shows_waits:
        return "no host calls are in the report, and no waits are marked (wait/WHAT)"
    return _over_steps(rank, _waiting)


def _waiting(step: Step) -> Seen | None:
    if not step.waited_ns:
        return None
    evidence = {"waited_idle_ns": step.waited_ns, "n_waits": step.n_waits, "idle_ns": step.idle_ns}
    return Seen(cost_ns=step.waited_ns, step_ns=step.step_ns, evidence=evidence, spans=step.waits, sure="high")


def granularity(rank: Rank) -> Judged:
    """The short holes between many short compute intervals."""
    return _over_steps(rank, lambda step: _granularity(rank, step))


def _granularity(rank: Rank, step: Step) -> Seen | None:
    is_short = step.compute_median_ns <= SHORT_KERNEL_NS[rank.signs.evidence]
    if step.n_compute < max(MANY_KERNELS, KERNELS_A_BUCKET * len(step.buckets)) or not is_short or not step.gaps_ns:
        return None
    evidence = {
        "n_compute": step.n_compute,
        "compute_median_ns": step.compute_median_ns,
        "n_gaps": step.n_gaps,
        "in_gaps_ns": step.gaps_ns,
        "idle_ns": step.idle_ns,
    }
    return Seen(cost_ns=step.gaps_ns, step_ns=step.step_ns, evidence=evidence)


def contention(rank: Rank) -> Judged:
    """What kernels lose beside communication against the same kernels alone."""
    if rank.signs.evidence == "host-ranges":
        return "host ranges do not tell how fast a kernel runs: it takes a GPU"
    if rank.row.is_time_sliced:
        return "ranks share a GPU: kernels are slowed by each other's turns"
    seen = rank.signs.contention
    if seen is None:
        return "no kernel ran often enough both alone and beside communication"
    if not seen.alone_ns or seen.beside_ns * 100 < seen.alone_ns * SLOWER_PERCENT:
        return ()
    evidence = {
        "slower_ratio": seen.beside_ns / seen.alone_ns,
        "n_kernels": seen.n_kernels,
        "beside_ns": seen.beside_ns,
        "alone_ns": seen.alone_ns,
        "slowest": seen.slowest[:60],
    }
    return [Seen(cost_ns=seen.slower_ns, step_ns=rank.row.step_ns, evidence=evidence)]


def too_small(rank: Rank) -> Judged:
    """The latency of collectives over what buckets of DDP's default cap would need."""
    no = _no_buckets(rank) or _no_durations(rank)
    if no:
        return no
    found = [_too_small(rank, step) for step in rank.signs.steps]
    whys = [item for item in found if isinstance(item, str)]
    return whys[0] if whys else _median(rank, [item for item in found if not isinstance(item, str)])


def _too_small(rank: Rank, step: Step) -> Seen | str | None:
    found = step.buckets
    n = len(found)
    if n < 2:
        return None
    sizes = [item.size_bytes for item in found if item.size_bytes]
    if len(sizes) < n:
        return "the sizes of the buckets are not in the input"
    n_needed = -(-sum(sizes) // DEFAULT_CAP_BYTES)
    if min(sizes) >= LEAST_SPLIT_BYTES or n <= n_needed:
        return None
    fit = latency(rank.signs.steps)
    if isinstance(fit, str):
        return fit
    latency_ns, is_fitted = fit
    busy_ns = sum(_service(step))
    exposed_ns = min(sum(item.own_exposed_ns for item in found), step.exposed_ns) - _unplaced_wait(rank, found)
    if latency_ns * n * 2 < busy_ns or exposed_ns <= 0:
        return None
    cost_ns = min((n - n_needed) * latency_ns, exposed_ns)
    evidence = {
        "n_buckets": n,
        "n_needed": n_needed,
        "median_bytes": sorted(sizes)[(n - 1) // 2],
        "latency_ns": latency_ns,
        "latency_ratio": min(latency_ns * n / busy_ns, 1.0) if busy_ns else None,
        "exposed_comm_ns": step.exposed_ns,
    }
    sure: Sure = "medium" if is_fitted and rank.across is not None else "low"
    return Seen(cost_ns=cost_ns, step_ns=step.step_ns, evidence=_known(evidence), sure=sure)


def latency(steps: Sequence[Step]) -> tuple[int, bool] | str:
    """α of T = α + β·bytes over the buckets of these steps, and whether it is fitted: over two sizes or more, the largest twice
    the smallest. Of one size that is tiny it is the time itself; of another it cannot be told, and the answer says so.
    """
    times: dict[int, list[int]] = {}
    for step in steps:
        for item, service_ns in zip(step.buckets, _service(step), strict=True):
            if item.size_bytes:
                times.setdefault(item.size_bytes, []).append(service_ns)
    sizes = np.array(sorted(times), float)
    mean = np.array([sum(times[int(size)]) / len(times[int(size)]) for size in sizes])
    if not len(sizes) or mean.min() <= 0:
        return "no bucket has a size and a time of its own"
    if sizes[-1] >= 2 * sizes[0]:
        slope, offset = np.polyfit(sizes, mean, 1, w=1 / mean)
        return max(round(min(float(offset) if slope > 0 else mean.min(), mean.min())), 0), True
    if sizes[-1] <= TINY_BYTES and max(len(step.buckets) for step in steps) >= MANY_TINY:
        return round(mean.min()), False
    return "all buckets are of one size: latency and bandwidth cannot be told apart"


def _service(step: Step) -> list[int]:
    """What each bucket adds to the time of all: its length less its waiting, from when the buckets before it had ended (on a
    CPU run several are under way at once, and a length has that in it).
    """
    found, until_ns = [], step.start_ns
    for item in step.buckets:
        found.append(max(item.end_ns - max(item.start_ns + (item.wait_ns or 0), until_ns), 0))
        until_ns = max(until_ns, item.end_ns)
    return found


def spikes(rank: Rank) -> Judged:
    """What the steps that are long at a regular distance add to each step."""
    steps_ns = rank.iterations_ns if len(rank.iterations_ns) >= LEAST_STEPS else rank.signs.periods_ns
    if len(steps_ns) < LEAST_STEPS:
        return f"fewer than {LEAST_STEPS} steps follow each other"
    usual = sorted(steps_ns)[(len(steps_ns) - 1) // 2]
    long = [at for at, value in enumerate(steps_ns) if value > SPIKE_RATIO * usual]
    distances = {after - before for before, after in pairwise(long)}
    if len(distances) != 1:
        return ()
    (every,) = distances
    is_whole = long[0] - every < 0 and long[-1] + every >= len(steps_ns)
    is_steady = all(value <= STEADY_RATIO * usual for at, value in enumerate(steps_ns) if at not in long)
    if every < 2 or not is_whole or not is_steady:
        return ()
    excess_ns = sum(steps_ns[at] - usual for at in long)
    evidence = {
        "every": every,
        "n_spikes": len(long),
        "n_steps": len(steps_ns),
        "spike_ns": sorted(steps_ns[at] for at in long)[(len(long) - 1) // 2],
        "usual_step_ns": usual,
    }
    return [
        Seen(
            cost_ns=excess_ns // len(steps_ns),
            step_ns=sum(steps_ns) // len(steps_ns),
            evidence=evidence,
            sure="high" if len(long) > 2 else "low",
        )
    ]


def settings(rank: Rank) -> Judged:
    """Settings that cost overlap or buy nothing."""
    return list(_settings(rank))


def _settings(rank: Rank) -> Iterator[Seen]:
    row, steps, values = rank.row, rank.signs.steps, dict(rank.settings)
    exposed_ns = min(row.exposed_comm_ns, row.compute_only_ns)

    def seen(
        setting: str, cost_ns: int, severity: Severity, message: str, advice: str, sure: Sure = "high", **more: Any
    ) -> Seen:
        evidence = {"setting": setting, **more}
        return Seen(
            cost_ns=max(cost_ns, 0),
            step_ns=row.step_ns,
            evidence=evidence,
            sure=sure,
            severity=severity,
            message=message,
            advice=advice,
        )

    n_backwards = _middle([_n_backwards(step) for step in steps])
    if n_backwards > 1:
        yield seen(
            "no_sync",
            row.exposed_comm_ns * (n_backwards - 1) // n_backwards,
            "warning",
            f"every step sends its gradients {n_backwards} times: accumulation without no_sync",
            "Run all but the last backward of a step under model.no_sync(), the forward of each included.",
            n_backwards=n_backwards,
            exposed_comm_ns=row.exposed_comm_ns,
        )
    if rank.signs.is_same_stream:
        yield seen(
            "same-stream",
            exposed_ns,
            "warning",
            "communication runs on the compute stream, so nothing can run beside it",
            "Send and receive on a stream of their own, and wait for it only where the data is needed."
            if rank.signs.is_point_to_point
            else "Issue collectives asynchronously (async_op=True) so that they run on the communicator's own stream.",
            exposed_comm_ns=row.exposed_comm_ns,
        )
    n_extra, extra_ns = _middle([step.extras[0] for step in steps]), _middle([step.extras[1] for step in steps])
    if rank.is_unused_for_nothing:
        yield seen(
            "find_unused_parameters",
            extra_ns,
            "warning",
            "find_unused_parameters=True, and no parameter is unused: the graph is searched, a map reduced, and buckets are "
            "never rebuilt in the order of the gradients, for nothing",
            "Leave find_unused_parameters out; where the set of unused parameters never changes, static_graph=True.",
            extra_comm_ns=extra_ns,
        )
    elif n_extra and rank.is_unused_for_nothing is None:
        yield seen(
            "find_unused_parameters",
            extra_ns,
            "note",
            f"{n_extra} collective{'s' * (n_extra > 1)} beside the buckets in each step: perhaps the map of used parameters",
            "If every parameter gets a gradient in every step, leave find_unused_parameters out.",
            "low",
            extra_comm_ns=extra_ns,
        )
    if values.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        yield seen(
            "CUDA_LAUNCH_BLOCKING",
            row.idle_ns + exposed_ns,
            "warning",
            "CUDA_LAUNCH_BLOCKING is set: the host waits for every kernel, and nothing overlaps",
            "Unset CUDA_LAUNCH_BLOCKING outside of debugging.",
            idle_ns=row.idle_ns,
        )
    if values.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        hurts = exposed_ns * 100 >= row.step_ns * HIDDEN_PERCENT
        yield seen(
            "CUDA_DEVICE_MAX_CONNECTIONS",
            exposed_ns,
            "warning" if hurts else "note",
            "CUDA_DEVICE_MAX_CONNECTIONS=1: all streams share one hardware queue, so a collective waits behind queued compute",
            "Unset it: it is for tensor parallelism, and keeps DDP's all-reduces behind the kernels launched before them.",
            "low",
            exposed_comm_ns=row.exposed_comm_ns,
        )
    for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"):
        if values.get(name, "0") not in ("", "0"):
            yield seen(
                name,
                row.exposed_comm_ns,
                "warning",
                f"{name} is set: GPUs of one machine talk over a slower way than they could",
                f"Unset {name} unless the topology needs it, and compare the step.",
                "low",
                exposed_comm_ns=row.exposed_comm_ns,
            )
    if values.get("TORCH_NCCL_BLOCKING_WAIT", "0") not in ("", "0"):
        yield seen(
            "TORCH_NCCL_BLOCKING_WAIT",
            0,
            "note",
            "TORCH_NCCL_BLOCKING_WAIT is set: wait() on a collective blocks the host",
            "Leave it unset: asynchronous error handling finds a rank that died without it.",
            "low",
        )
    if row.is_time_sliced:
        yield seen(
            "time-sliced",
            0,
            "note",
            "ranks share a GPU in turns: neither speed nor bandwidth of this run is that of a GPU for each",
            "Give each rank a GPU of its own before drawing conclusions about time.",
        )


RULES: Final = (
    Rule(
        code="straggler-rank",
        needs="two ranks or more with a common clock, none time-sliced",
        measures="a rank that arrives last at 75 % of the collectives or more (of 4 at least): how late it is at the last one "
        "of a step, after the median of the others",
        percent=10,
        message="arrives last at {n_last} of {n_collectives} collectives, and the others wait for it",
        advice="Look at what this rank does before its late collectives: more data or work than the others, a slower or "
        "throttled GPU, its data loader, or other jobs on its host.",
        judge=straggler,
        rests_on_compute=False,
    ),
    Rule(
        code="communication-slow",
        needs="buckets of a step, sent over a stream of their own; not time-sliced",
        measures="first bucket sent in the first half of the backward: communication left after the backward, the last launch "
        "and the last rank's arrival, less the last bucket's own transfer, waiting for other ranks, and what latency and held "
        "buckets account for",
        percent=10,
        message="{n_buckets} buckets are sent early and still queue up: there is more to send than the backward can hide",
        advice="Send less (bf16_compress_hook, no_sync over more steps) or faster (check NVLink, InfiniBand and NCCL's choice "
        "of them with NCCL_DEBUG=INFO), or compute more for each byte (a larger batch a rank). "
        "More buckets do not send fewer bytes.",
        judge=slow,
    ),
    Rule(
        code="bucket-scheduling",
        needs="buckets of a step, sent over a stream of their own",
        measures="buckets sent one after another with no compute between (all but the first were held); else the last bucket, "
        "or both of two that are sent after half of the backward, of 1 MiB or more: their exposed communication less the last "
        "one's own, or the last gradient's, and no more than the backward's compute that had none beside it before",
        percent=10,
        message="large buckets ({n_buckets} for all gradients): what is sent last is exposed, and most of it was ready before",
        advice="Lower bucket_cap_mb: ddpprof sweep, or ddpprof predict on this capture, shows to what.",
        judge=scheduling,
    ),
    Rule(
        code="compute-tail",
        needs="two buckets or more of a step, sent over a stream of their own",
        measures="first bucket sent in the first half of the backward and no more than 10 % of the step exposed: the compute "
        "between the end of all other buckets and the start of the last, beyond what is usual before a bucket",
        percent=20,
        message="communication is hidden; the backward of the last layers is long, and the last bucket waits for it",
        advice="Smaller buckets cannot help. Make the compute of the first layers (the last of the backward) shorter: "
        "checkpointing less there, a faster kernel, or fewer of their outputs kept.",
        judge=tail,
    ),
    Rule(
        code="synchronisation-wait",
        needs="the host's API calls, or wait/WHAT marks on a CPU run",
        measures="nothing running while the host waits, and the hole on the device after a wait that began while it was busy",
        percent=10,
        message="{n_waits} wait(s) of the host inside the step, and nothing runs until it goes on",
        advice="Take .item(), .cpu(), print(loss) and torch.cuda.synchronize() out of the step, or do them every n-th; copy "
        "with non_blocking=True from pinned memory; load data in workers ahead of the step.",
        judge=waiting,
    ),
    Rule(
        code="parameter-granularity",
        needs="steps",
        measures="200 compute intervals or more (and 4 a bucket), their median 100 us or less (500 us on a CPU run): the holes "
        "between them that are shorter than 1 ms (40 ms on a CPU run), not under a wait, not that in which the last collective "
        "ends, and less what the compute stream itself sends or receives",
        percent=20,
        message="{n_compute} short compute intervals, {n_gaps} holes between them: bound by launches",
        advice="Fewer, larger kernels: torch.compile or CUDA graphs, foreach or fused optimizers, parameters merged, a larger "
        "batch.",
        judge=granularity,
    ),
    Rule(
        code="contention",
        needs="device kernels, not time-sliced, 5 runs of a kernel alone and 5 beside communication",
        measures="kernels that take 15 % longer or more beside communication than the same kernels alone (median): the "
        "difference",
        percent=5,
        message="kernels run slower while communication is beside them ({n_kernels} of them)",
        advice="Give NCCL fewer SMs (NCCL_MAX_CTAS, NCCL_MAX_NCHANNELS) and compare the step; fewer bytes help too "
        "(bf16_compress_hook).",
        judge=contention,
    ),
    Rule(
        code="bucket-too-small",
        needs="sizes of the buckets (marks or records), two sizes or tiny ones; not time-sliced",
        measures="buckets, some under 1 MiB, whose time is latency for half or more (T = latency + bytes/bandwidth, fitted): "
        "the latency of those over what 25 MiB buckets would need, and no more than what is exposed",
        percent=10,
        message="{n_buckets} buckets a step where {n_needed} would do: most of their time is latency",
        advice="Raise bucket_cap_mb: ddpprof sweep, or ddpprof predict on this capture, shows to what.",
        judge=too_small,
    ),
    Rule(
        code="periodic-spikes",
        needs="8 steps that follow each other, in the report or timed by the run",
        measures="steps over 1.5 medians at one regular distance, no other over 1.25: what they have over the median, spread "
        "over all steps",
        percent=10,
        message="one step in {every} is long",
        advice="Look at what happens in just these steps: the data loader, a checkpoint, logging, evaluation, garbage "
        "collection.",
        judge=spikes,
        rests_on_compute=False,
    ),
    Rule(
        code="settings",
        needs="steps; the environment, marks or records for some",
        measures="a setting that costs overlap, or buys nothing: no_sync missing, find_unused_parameters for nothing, "
        "communication on the compute stream, CUDA_LAUNCH_BLOCKING, CUDA_DEVICE_MAX_CONNECTIONS=1, NCCL_P2P_DISABLE, "
        "NCCL_SHM_DISABLE, ranks that share a GPU",
        percent=0,
        message="",
        advice="",
        judge=settings,
        rests_on_compute=False,
    ),
)
"""The ten causes, each with what it needs, what it measures and from what share of the step it counts."""


# ------------------------------------------------------------------------------------------------------ shared measures


def _over_steps(rank: Rank, of_step: Callable[[Step], Seen | None]) -> Judged:
    """The step of the (lower) median cost, those without the sign costing nothing."""
    return _median(rank, [of_step(step) for step in rank.signs.steps])


def _median(rank: Rank, found: Sequence[Seen | None]) -> Judged:
    if not found:
        return "no step is complete"
    ordered = sorted(found, key=lambda seen: seen.cost_ns if seen is not None else 0)
    middle = ordered[(len(ordered) - 1) // 2]
    return [] if middle is None else [middle]


def _no_buckets(rank: Rank) -> str | None:
    """Why the buckets of a step cannot be judged, None when they can."""
    if not any(step.buckets for step in rank.signs.steps):
        return "no all-reduce was found"
    if not all(step.is_step for step in rank.signs.steps):
        return "no step marks: which bucket is a step's first and last cannot be told"
    if rank.signs.is_same_stream:
        return "communication runs on the compute stream: see settings"
    return None


def _no_durations(rank: Rank) -> str | None:
    return "ranks share a GPU: durations say nothing about bandwidth" if rank.row.is_time_sliced else None


def _is_early(step: Step) -> bool:
    """Whether the first bucket was launched in the first half of the backward's compute."""
    return bool(step.buckets) and step.backward_ns > 0 and step.buckets[0].ahead_ns * 2 <= step.backward_ns


def _moving(found: Sequence[Bucket], from_ns: int) -> int:
    """The time, from then on, in which at least one of these buckets is under way and not waiting for other ranks."""
    start = np.array([item.start_ns + (item.wait_ns or 0) for item in found], np.int64)
    end = np.array([item.end_ns for item in found], np.int64)
    return intervals.measure(intervals.union(np.maximum(start, from_ns), end))


def _unplaced_wait(rank: Rank, found: Sequence[Bucket]) -> int:
    """Waiting for other ranks in a step that is known only as a sum."""
    is_placed = any(item.wait_ns is not None for item in found)
    return rank.across.wait_ns if rank.across is not None and not is_placed else 0


def _alone(item: Bucket, found: Sequence[Bucket]) -> int:
    """What a bucket's transfer takes with nothing in its way: by the fastest of all, in proportion to bytes where known."""
    per_byte = [other.own_ns / other.size_bytes for other in found if other.size_bytes]
    if item.size_bytes and per_byte:
        return min(round(item.size_bytes * min(per_byte)), item.own_ns)
    return min(min(other.own_ns for other in found), item.own_ns)


def _could_hide(first: Bucket) -> int:
    """The backward's compute before a bucket that had no communication beside it."""
    return min(first.alone_before_ns, first.ahead_ns)


def _exposed(step: Step, found: Sequence[Bucket], unavoidable_ratio: float) -> int:
    """What is exposed of these buckets, waiting for other ranks left out, less the share that nothing can hide."""
    return int(min(sum(item.own_exposed_ns for item in found), step.exposed_ns) * (1 - unavoidable_ratio))


def _last_ratio(bunch: Sequence[Bucket]) -> float:
    """The share of the last of these buckets: by bytes, where those of all are known."""
    sizes = [item.size_bytes for item in bunch if item.size_bytes]
    return sizes[-1] / sum(sizes) if len(sizes) == len(bunch) else 1 / len(bunch)


def _last_gradient_ratio(late: Sequence[Bucket]) -> float:
    """The share of the gradient that came last in these buckets: by bytes where recorded, else by number, else a half."""
    sizes = [item.size_bytes for item in late if item.size_bytes]
    parameters = [item.parameters for item in late if item.parameters]
    if len(parameters) < len(late):
        return 0.5
    if late[-1].last_bytes and len(sizes) == len(late):
        return min(late[-1].last_bytes / sum(sizes), 1.0)
    return 1 / sum(map(len, parameters))


def _known(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence that is there."""
    return {name: value for name, value in evidence.items() if value is not None}


def _n_backwards(step: Step) -> int:
    """How often the gradients of a step were sent: by backward ranges, or by how often a bucket number comes again."""
    numbers = Counter(item.bucket for item in step.buckets if item.bucket is not None)
    return max(step.n_backwards, max(numbers.values(), default=0))


def _middle(values: Sequence[int]) -> int:
    return sorted(values)[(len(values) - 1) // 2] if values else 0
