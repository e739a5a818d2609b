"""Every rule just under and just over its threshold, on signs that are written down; and how findings are ordered."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpprof.analysis import diagnose
from ddpprof.analysis.diagnose import judge
from ddpprof.analysis.rules import RULES, Rank, latency
from ddpprof.analysis.signs import Bucket, Contention, Signs, Step
from ddpprof.inputs import analyze
from ddpprof.model import (
    CAUSES,
    Across,
    AcrossRank,
    Analysis,
    BucketRecord,
    CollectiveRow,
    Finding,
    GradientRecord,
    IterationRecord,
    LoggerRecord,
    ModelRecord,
    Process,
    RankRow,
    Records,
)

MIB = 1024 * 1024
MS = 1_000_000
STEP = 1000
"""The step of most tests, so that a threshold of 10 % is at 100 ns and a note begins at 50."""


def row(step_ns: int = STEP, *, rank: int | None = 0, **other: Any) -> RankRow:
    fixed: dict[str, Any] = {
        "rank": rank,
        "rank_source": "mark",
        "report": 0,
        "pid": 100 + (rank or 0),
        "device_id": 0,
        "device_name": None,
        "gpu": None,
        "is_time_sliced": False,
        "steps": 5,
        "n_compute": 10,
        "n_comm": 2,
        "n_memory": 0,
        "n_left_out": 0,
        "n_before_last_compute": 1,
        "compute_sum_ns": 0,
        "comm_sum_ns": 0,
        "spread": {},
        "unreliable": (),
        "step_ns": step_ns,
        "compute_ns": 0,
        "comm_ns": 0,
        "overlap_ns": 0,
        "exposed_comm_ns": 0,
        "compute_only_ns": 0,
        "memory_only_ns": 0,
        "idle_ns": 0,
        "compute_span_ns": 0,
        "comm_span_ns": 0,
        "tail_ns": 0,
        "overlap_ratio": None,
    }
    return RankRow(**(fixed | other))


def step(step_ns: int = STEP, **other: Any) -> Step:
    return Step(start_ns=0, end_ns=step_ns, **other)


def bucket(start: int, end: int, **other: Any) -> Bucket:
    """A bucket launched when it starts, and exposed all the time, unless said otherwise."""
    return Bucket(**({"place": 0, "launch_ns": start, "start_ns": start, "end_ns": end, "exposed_ns": end - start} | other))


def of(*steps: Step, shown: RankRow | None = None, **other: Any) -> Rank:
    signs = {name: other.pop(name) for name in list(other) if name in Signs.__dataclass_fields__}
    return Rank(row=shown or row(), signs=Signs(steps=steps, **signs), **other)


def found(*ranks: Rank, code: str | None = None) -> list[tuple[str, str, int | None]]:
    findings, _ = judge(ranks)
    return [(item.code, item.severity, item.cost_ns) for item in findings if code in (None, item.code)]


def one(*ranks: Rank, code: str) -> Finding:
    (finding,) = [item for item in judge(ranks)[0] if item.code == code]
    return finding


def reason(rank: Rank, code: str) -> str:
    (item,) = [item for item in judge([rank])[1] if item.code == code]
    return item.reason


def others(late_ns: int | None, n_last: int | None = 75, n: int = 100, wait_ns: int = 0) -> AcrossRank:
    return AcrossRank(
        rank=0,
        report=0,
        pid=100,
        device_id=0,
        offset_ns=0,
        n_collectives=n,
        n_last=n_last,
        wait_ns=wait_ns,
        late_ns=late_ns,
    )


def test_there_is_one_rule_for_each_cause() -> None:
    assert sorted(rule.code for rule in RULES) == sorted(CAUSES)


# -- straggler-rank


@pytest.mark.parametrize(
    ("late", "n_last", "expected"),
    [(100, 75, "warning"), (99, 75, "note"), (50, 75, "note"), (49, 75, None), (100, 74, None), (-1, 100, None)],
)
def test_a_straggler_is_last_at_three_of_four_collectives(late: int, n_last: int, expected: str | None) -> None:
    seen = found(of(step(), across=others(late, n_last)), code="straggler-rank")
    assert seen == ([("straggler-rank", expected, late)] if expected else [])


def test_a_straggler_cannot_be_told_alone_or_without_a_clock() -> None:
    assert reason(of(step()), "straggler-rank") == "only one rank is in the input"
    assert reason(of(step(), across=others(None, None)), "straggler-rank") == "the ranks have no common clock"
    assert "fewer than 4 collectives" in reason(of(step(), across=others(900, 3, 3)), "straggler-rank")
    assert found(of(step(), across=others(900, 4, 4)), code="straggler-rank")
    shared = of(step(), shown=row(is_time_sliced=True), across=others(900))
    assert "share a GPU" in reason(shared, "straggler-rank")


# -- communication-slow


def queued(end: int, **other: Any) -> Step:
    """Two buckets sent early; the backward ends at 500, a bucket alone takes 100: from 600 on it is a backlog."""
    first = bucket(100, 200, exposed_ns=0, ahead_ns=100)
    second = bucket(200, end, launch_ns=150, exposed_ns=max(end - 500, 0), ahead_ns=200)
    return step(**({"backward_ns": 400, "backward_end_ns": 500, "exposed_ns": end - 500, "buckets": (first, second)} | other))


@pytest.mark.parametrize(("end", "expected"), [(700, "warning"), (699, "note"), (650, "note"), (649, None), (600, None)])
def test_a_backlog_is_what_the_last_bucket_alone_would_not_take(end: int, expected: str | None) -> None:
    seen = found(of(queued(end)), code="communication-slow")
    assert seen == ([("communication-slow", expected, end - 600)] if expected else [])


def test_communication_is_not_slow_when_it_is_sent_late() -> None:
    assert found(of(queued(900, backward_ns=199)), code="communication-slow") == []
    assert found(of(queued(900, backward_ns=200)), code="communication-slow") == [("communication-slow", "warning", 300)]


def test_waiting_for_other_ranks_is_no_slow_communication() -> None:
    """The last bucket runs from 200 to 900, 620 of it waiting: from 820 it moves data for 80, as its own transfer does."""
    waits = queued(900)
    first, last = waits.buckets
    waits = replace(waits, buckets=(replace(first, wait_ns=0), replace(last, wait_ns=620)))
    assert found(of(waits, across=others(0)), code="communication-slow") == []
    sums = of(queued(900), across=others(0, wait_ns=251))
    assert found(sums, code="communication-slow") == []
    met = replace(waits, buckets=(first, replace(last, met_ns=850)))
    assert found(of(met, across=others(0)), code="communication-slow") == []


def test_a_backlog_of_buckets_that_were_held_is_no_slow_communication() -> None:
    early = bucket(0, 100, exposed_ns=0, ahead_ns=0, size_bytes=8)
    late = [
        bucket(at, at + 100, launch_ns=500, ahead_ns=500, n_between=at == 500, size_bytes=8, alone_before_ns=STEP)
        for at in (500, 600, 700)
    ]
    held = step(backward_ns=500, backward_end_ns=500, exposed_ns=300, buckets=(early, *late))
    assert found(of(held)) == [("bucket-scheduling", "warning", 200)]


def test_durations_on_a_shared_gpu_say_nothing() -> None:
    shared = of(queued(900), shown=row(is_time_sliced=True))
    assert "share a GPU" in reason(shared, "communication-slow")
    assert "share a GPU" in reason(shared, "bucket-too-small")


# -- bucket-scheduling


def parked(exposed: int, before: int = STEP) -> Step:
    """Two equal buckets sent together: half of what is exposed is the second one's own."""
    end = 500 + exposed // 2
    first = bucket(500, end, size_bytes=8, n_between=5, alone_before_ns=before, ahead_ns=500)
    second = bucket(end, 500 + exposed, size_bytes=8, n_between=0, launch_ns=501, bucket=1)
    return step(backward_ns=500, backward_end_ns=500, exposed_ns=exposed, buckets=(first, second))


@pytest.mark.parametrize(("exposed", "expected"), [(200, "warning"), (198, "note"), (100, "note"), (98, None)])
def test_buckets_sent_together_were_held_by_the_first(exposed: int, expected: str | None) -> None:
    seen = found(of(parked(exposed)), code="bucket-scheduling")
    assert seen == ([("bucket-scheduling", expected, exposed // 2)] if expected else [])


def test_it_costs_no_more_than_the_compute_that_could_have_hidden_it() -> None:
    assert found(of(parked(400, before=120)), code="bucket-scheduling") == [("bucket-scheduling", "warning", 120)]
    assert found(of(single(400, ahead=110)), code="bucket-scheduling") == [("bucket-scheduling", "warning", 110)]
    assert found(of(single(400, ahead=251)), code="bucket-scheduling") == [("bucket-scheduling", "warning", 200)]
    assert one(of(parked(400)), code="bucket-scheduling").evidence["n_parked"] == 1


def single(exposed: int, *, ahead: int = 300, size: int | None = MIB, **other: Any) -> Step:
    only = bucket(500, 500 + exposed, ahead_ns=ahead, size_bytes=size, alone_before_ns=500, **other)
    return step(backward_ns=500, backward_end_ns=500, exposed_ns=exposed, buckets=(only,))


@pytest.mark.parametrize(("exposed", "expected"), [(200, "warning"), (198, "note"), (100, "note"), (98, None)])
def test_one_bucket_for_all_costs_half_of_what_is_exposed(exposed: int, expected: str | None) -> None:
    seen = found(of(single(exposed)), code="bucket-scheduling")
    assert seen == ([("bucket-scheduling", expected, exposed // 2)] if expected else [])


def test_what_is_known_of_its_parameters_says_more_than_a_half() -> None:
    twelve = single(240, parameters=tuple(range(12)))
    assert found(of(twelve), code="bucket-scheduling") == [("bucket-scheduling", "warning", 220)]
    large = single(240, parameters=tuple(range(12)), last_bytes=MIB // 2)
    assert found(of(large), code="bucket-scheduling") == [("bucket-scheduling", "warning", 120)]
    whole = single(400, parameters=(0,))
    assert found(of(whole), code="bucket-scheduling") == []


def test_a_bucket_under_a_mebibyte_is_not_worth_splitting() -> None:
    assert found(of(single(400, size=MIB - 1)), code="bucket-scheduling") == []
    assert found(of(single(400, size=None)), code="bucket-scheduling") == [("bucket-scheduling", "warning", 200)]


def test_on_a_shared_gpu_the_order_still_tells() -> None:
    finding = one(of(parked(400), shown=row(is_time_sliced=True)), code="bucket-scheduling")
    assert finding.sure == "medium"


# -- compute-tail


def tailed(beyond: int, *, exposed: int = 100, ahead: int = 30) -> Step:
    """Three buckets with 30 of compute before each, and before the last one as much more as is said."""
    first = bucket(300, 400, exposed_ns=0, ahead_ns=ahead)
    second = bucket(430, 500, exposed_ns=0, gap_compute_ns=30)
    last = bucket(800, 900, exposed_ns=exposed, gap_compute_ns=30 + beyond)
    return step(backward_ns=500, backward_end_ns=800, exposed_ns=exposed, buckets=(first, second, last))


@pytest.mark.parametrize(
    ("given_step", "expected"),
    [
        (tailed(200), "warning"),
        (tailed(199), "note"),
        (tailed(100), "note"),
        (tailed(99), None),
        (tailed(400, exposed=101), None),
        (tailed(400, ahead=250), "warning"),
        (tailed(400, ahead=251), None),
    ],
)
def test_a_compute_tail_leaves_communication_hidden(given_step: Step, expected: str | None) -> None:
    seen = found(of(given_step), code="compute-tail")
    assert [severity for _, severity, _ in seen] == ([expected] if expected else [])


# -- synchronisation-wait


@pytest.mark.parametrize(("waited", "expected"), [(100, "warning"), (99, "note"), (50, "note"), (49, None), (0, None)])
def test_waiting_counts_when_nothing_runs(waited: int, expected: str | None) -> None:
    seen = found(of(step(waited_ns=waited, n_waits=1, idle_ns=waited)), code="synchronisation-wait")
    assert seen == ([("synchronisation-wait", expected, waited)] if expected else [])


def test_waits_that_cannot_be_seen_are_not_judged() -> None:
    assert "no waits are marked" in reason(of(step(), shows_waits=False), "synchronisation-wait")


# -- parameter-granularity


def fine(gaps: int = 200, **other: Any) -> Step:
    return step(**({"n_compute": 200, "compute_median_ns": 100_000, "gaps_ns": gaps, "n_gaps": 199, "idle_ns": gaps} | other))


@pytest.mark.parametrize(
    ("given_step", "expected"),
    [
        (fine(), "warning"),
        (fine(199), "note"),
        (fine(99), None),
        (fine(n_compute=199), None),
        (fine(compute_median_ns=100_001), None),
        (fine(buckets=tuple(bucket(at, at + 1, exposed_ns=0) for at in range(51))), None),
        (fine(buckets=tuple(bucket(at, at + 1, exposed_ns=0) for at in range(50))), "warning"),
    ],
)
def test_many_short_kernels_with_holes_between(given_step: Step, expected: str | None) -> None:
    seen = found(of(given_step), code="parameter-granularity")
    assert [severity for _, severity, _ in seen] == ([expected] if expected else [])


def test_an_interval_of_the_host_may_be_longer() -> None:
    assert found(of(fine(compute_median_ns=500_000), evidence="host-ranges"), code="parameter-granularity")
    assert not found(of(fine(compute_median_ns=500_001), evidence="host-ranges"), code="parameter-granularity")


# -- contention


def slowed(slower: int, beside: int = 115) -> Contention:
    return Contention(n_kernels=5, beside_ns=beside, alone_ns=100, slower_ns=slower, slowest="gemm")


@pytest.mark.parametrize(
    ("seen_kernels", "expected"),
    [(slowed(50), "warning"), (slowed(49), "note"), (slowed(25), "note"), (slowed(24), None), (slowed(50, beside=114), None)],
)
def test_contention_is_the_same_kernels_slower(seen_kernels: Contention, expected: str | None) -> None:
    seen = found(of(step(), contention=seen_kernels), code="contention")
    assert [severity for _, severity, _ in seen] == ([expected] if expected else [])


def test_contention_needs_a_gpu_of_its_own_and_kernels_of_both_kinds() -> None:
    assert "takes a GPU" in reason(of(step(), evidence="host-ranges"), "contention")
    assert "share a GPU" in reason(of(step(), shown=row(is_time_sliced=True)), "contention")
    assert "both alone and beside" in reason(of(step()), "contention")


# -- bucket-too-small


def train(*sizes_and_lengths: tuple[int, int], exposed: int | None = None, step_ns: int = STEP) -> Step:
    """Buckets one after another from 0, all exposed."""
    at, items = 0, []
    for size, length in sizes_and_lengths:
        items.append(bucket(at, at + length, size_bytes=size))
        at += length
    return step(step_ns, exposed_ns=at if exposed is None else exposed, buckets=tuple(items))


def test_latency_is_what_a_bucket_of_no_bytes_would_take() -> None:
    """10 for nothing and 1 for each 1000 bytes."""
    assert latency([train((1000, 11), (2000, 12), (10_000, 20))]) == (10, True)
    assert latency([train((MIB, 11), (MIB, 11))]) == "all buckets are of one size: latency and bandwidth cannot be told apart"
    assert latency([train(*[(64 * 1024, 11)] * 16)]) == (11, False)
    assert isinstance(latency([train(*[(64 * 1024 + 1, 11)] * 16)]), str)
    assert isinstance(latency([train(*[(64 * 1024, 11)] * 15)]), str)
    assert latency([]) == "no bucket has a size and a time of its own"


def test_on_a_cpu_run_a_bucket_counts_from_when_those_before_it_had_ended() -> None:
    both = step(buckets=(bucket(0, 11, size_bytes=1000), bucket(1, 23, size_bytes=2000)), exposed_ns=23)
    assert latency([both]) == (10, True)


@pytest.mark.parametrize(("n", "expected"), [(11, "warning"), (10, "note"), (6, "note"), (5, None)])
def test_small_buckets_cost_their_latency_over_what_one_would_need(n: int, expected: str | None) -> None:
    """Ten for each bucket, where one would do."""
    sizes = [(1000, 11), *[(2000, 12)] * (n - 1)]
    seen = found(of(train(*sizes)), code="bucket-too-small")
    assert seen == ([("bucket-too-small", expected, (n - 1) * 10)] if expected else [])


def test_small_buckets_that_are_hidden_cost_nothing() -> None:
    sizes = [(1000, 11), *[(2000, 12)] * 20]
    hidden = train(*sizes, exposed=40)
    assert found(of(hidden), code="bucket-too-small") == []
    large = train((MIB, 11), *[(2 * MIB, 12)] * 20)
    assert found(of(large), code="bucket-too-small") == []


def test_sizes_that_are_not_known_are_not_judged() -> None:
    unknown = step(buckets=(bucket(0, 1), bucket(1, 2)), exposed_ns=2)
    assert reason(of(unknown), "bucket-too-small") == "the sizes of the buckets are not in the input"
    assert reason(of(step()), "bucket-too-small") == "no all-reduce was found"


# -- periodic-spikes


def every(n: int, length: int, of_steps: int = 12, first: int = 0) -> tuple[int, ...]:
    return tuple(length if (at - first) % n == 0 else 1000 for at in range(of_steps))


@pytest.mark.parametrize(
    ("periods", "expected"),
    [
        (every(4, 1501), "warning"),
        (every(4, 1500), None),
        (every(4, 3000), "warning"),
        (every(4, 3000, of_steps=8), "warning"),
        (every(12, 3000), None),
        ((1000, 3000, 1000, 3000, 1000, 1000, 1000, 1000, 1000), None),
        ((3000, 1000, 1000, 3000, 1000, 1000, 1000, 3000, 1000), None),
        ((*every(4, 3000)[:9], 1251, 1000, 1000), None),
    ],
)
def test_spikes_come_at_one_distance(periods: tuple[int, ...], expected: str | None) -> None:
    seen = found(of(step(), periods_ns=periods), code="periodic-spikes")
    assert [severity for _, severity, _ in seen] == ([expected] if expected else [])


def test_a_spike_costs_what_it_adds_to_each_step() -> None:
    """Three of twelve steps are 2000 longer: 500 a step of 1500."""
    finding = one(of(step(), periods_ns=every(4, 3000)), code="periodic-spikes")
    assert (finding.cost_ns, finding.step_ns, finding.sure) == (500, 1500, "high")
    assert finding.message == "one step in 4 is long"
    assert one(of(step(), periods_ns=every(4, 3000, of_steps=8)), code="periodic-spikes").sure == "low"


def test_steps_that_the_run_timed_itself_come_before_those_captured() -> None:
    timed = of(step(), periods_ns=every(4, 3000), iterations_ns=(1000,) * 8)
    assert found(timed, code="periodic-spikes") == []
    assert reason(of(step(), periods_ns=(1000,) * 7), "periodic-spikes") == "fewer than 8 steps follow each other"


# -- settings


def setting(rank: Rank) -> list[tuple[str, str, int | None]]:
    return [(item.evidence["setting"], item.severity, item.cost_ns) for item in judge([rank])[0] if item.code == "settings"]


def test_accumulation_without_no_sync_sends_all_but_once_for_nothing() -> None:
    accumulated = of(step(n_backwards=4), shown=row(exposed_comm_ns=400))
    assert setting(accumulated) == [("no_sync", "warning", 300)]
    numbered = tuple(bucket(at, at + 1, bucket=at % 2) for at in range(4))
    assert setting(of(step(buckets=numbered), shown=row(exposed_comm_ns=400))) == [("no_sync", "warning", 200)]
    assert setting(of(step(n_backwards=1), shown=row(exposed_comm_ns=400))) == []


def test_unused_parameters_looked_for_and_not_found() -> None:
    extra = step(extras=(1, 7))
    assert setting(of(extra, is_unused_for_nothing=True)) == [("find_unused_parameters", "warning", 7)]
    assert setting(of(extra)) == [("find_unused_parameters", "note", 7)]
    assert setting(of(extra, is_unused_for_nothing=False)) == []


def test_one_stream_for_all_is_a_setting_and_nothing_else() -> None:
    shared = of(parked(400), shown=row(exposed_comm_ns=400, compute_only_ns=500), is_same_stream=True)
    assert found(shared) == [("settings", "warning", 400)]
    assert "compute stream" in reason(shared, "communication-slow")
    assert "async_op=True" in one(shared, code="settings").advice


def test_sends_and_receives_on_the_compute_stream_want_a_stream_of_their_own() -> None:
    shared = of(step(), shown=row(exposed_comm_ns=400, compute_only_ns=500), is_same_stream=True, is_point_to_point=True)
    assert one(shared, code="settings").advice.startswith("Send and receive on a stream of their own")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("CUDA_DEVICE_MAX_CONNECTIONS", "1", [("CUDA_DEVICE_MAX_CONNECTIONS", "warning", 100)]),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "8", []),
        ("CUDA_LAUNCH_BLOCKING", "1", [("CUDA_LAUNCH_BLOCKING", "warning", 130)]),
        ("CUDA_LAUNCH_BLOCKING", "0", []),
        ("NCCL_P2P_DISABLE", "1", [("NCCL_P2P_DISABLE", "warning", 100)]),
        ("NCCL_SHM_DISABLE", "1", [("NCCL_SHM_DISABLE", "warning", 100)]),
        ("TORCH_NCCL_BLOCKING_WAIT", "1", [("TORCH_NCCL_BLOCKING_WAIT", "note", 0)]),
        ("TORCH_NCCL_ENABLE_TIMING", "1", []),
    ],
)
def test_variables_of_the_environment(name: str, value: str, expected: list[Any]) -> None:
    shown = row(exposed_comm_ns=100, compute_only_ns=900, idle_ns=30)
    assert setting(of(step(), shown=shown, settings=((name, value),))) == expected


def test_one_queue_for_all_streams_is_a_note_when_all_is_hidden() -> None:
    shown = row(exposed_comm_ns=99, compute_only_ns=900)
    assert setting(of(step(), shown=shown, settings=(("CUDA_DEVICE_MAX_CONNECTIONS", "1"),)))[0][1] == "note"


def test_a_shared_gpu_is_noted() -> None:
    assert setting(of(step(), shown=row(is_time_sliced=True))) == [("time-sliced", "note", 0)]


# -- judging


def test_a_healthy_job_says_nothing() -> None:
    early = bucket(300, 400, exposed_ns=0, ahead_ns=100, size_bytes=MIB)
    last = bucket(800, 840, exposed_ns=40, ahead_ns=500, size_bytes=MIB, parameters=(0,), gap_compute_ns=90)
    healthy = step(backward_ns=500, backward_end_ns=800, exposed_ns=40, idle_ns=20, n_compute=20, buckets=(early, last))
    assert judge([of(healthy, healthy, healthy)])[0] == ()


def test_the_first_finding_is_the_warning_that_costs_most() -> None:
    held = replace(parked(300), waited_ns=170, n_waits=1, gaps_ns=190, n_compute=300, compute_median_ns=5)
    assert found(of(held)) == [
        ("synchronisation-wait", "warning", 170),
        ("bucket-scheduling", "warning", 150),
        ("parameter-granularity", "note", 190),
    ]


def test_the_rank_that_it_costs_most_is_shown_and_all_are_named() -> None:
    ranks = [of(step(waited_ns=cost, n_waits=1), shown=row(rank=at)) for at, cost in enumerate((120, 300, 40))]
    finding = one(*ranks, code="synchronisation-wait")
    assert (finding.rank, finding.cost_ns, finding.on_ranks) == (1, 300, (0, 1))


def test_the_median_step_decides() -> None:
    """Of two steps the lower, of three the middle one."""
    long, short = step(waited_ns=300, n_waits=1), step()
    assert found(of(long, short)) == []
    assert found(of(long, short, long)) == [("synchronisation-wait", "warning", 300)]


def test_what_cannot_be_seen_is_not_judged() -> None:
    opaque = of(step(waited_ns=300, n_waits=1), shown=row(unreliable=("graph-trace-opaque",)))
    findings, refused = judge([opaque])
    assert findings == ()
    assert [item.code for item in refused] == [rule.code for rule in RULES]
    assert {item.reason for item in refused} == {
        "CUDA graphs were captured whole, what runs in them cannot be seen: capture with --cuda-graph-trace=node"
    }
    assert len(judge([])[1]) == len(RULES)
    cut = of(step(), shown=row(steps=0, unreliable=("capture-incomplete",)))
    assert {item.reason for item in judge([cut])[1]} == {"no step is complete"}


def test_complete_steps_of_a_report_that_was_cut_off_are_judged() -> None:
    rank = of(step(waited_ns=300, n_waits=1), shown=row(unreliable=("capture-incomplete",)))
    assert found(rank) == [("synchronisation-wait", "warning", 300)]


def test_where_no_compute_is_seen_only_what_does_not_rest_on_it_is_judged() -> None:
    blind = of(step(waited_ns=300, n_waits=1), across=others(900), shown=row(n_compute=0, is_time_sliced=False))
    assert found(blind) == [("straggler-rank", "warning", 900)]
    unsaid = {item.code for item in judge([blind])[1] if item.reason.startswith("no compute was found")}
    assert unsaid == set(CAUSES) - {"straggler-rank", "periodic-spikes", "settings"}


@pytest.mark.parametrize(
    ("steps", "sure", "told"), [(5, "high", None), (4, "medium", 4), (1, "medium", 1), (0, "medium", None)]
)
def test_nothing_is_sure_that_rests_on_few_steps(steps: int, sure: str, told: int | None) -> None:
    rank = of(step(is_step=steps > 0), across=others(900), shown=row(steps=steps))
    finding = one(rank, code="straggler-rank")
    assert (finding.sure, finding.evidence.get("n_steps")) == (sure, told)


def test_a_whole_capture_is_no_step() -> None:
    capture = of(replace(parked(400), is_step=False))
    for code in ("communication-slow", "bucket-scheduling", "compute-tail", "bucket-too-small"):
        assert "no step marks" in reason(capture, code)


lengths = st.integers(0, 400)
drawn_buckets = st.builds(
    lambda start, length, exposed, ahead, between, before, gap, wait, size: bucket(
        start,
        start + length,
        exposed_ns=min(exposed, length),
        ahead_ns=ahead,
        n_between=between,
        alone_before_ns=before,
        gap_compute_ns=gap,
        wait_ns=wait if wait is None else min(wait, length),
        size_bytes=size,
    ),
    *[lengths] * 4,
    st.integers(0, 2),
    *[lengths] * 2,
    st.none() | lengths,
    st.none() | st.integers(1, 2 * MIB),
)
drawn_steps = st.builds(
    lambda found, waited, gaps, n, backward: step(
        buckets=tuple(sorted(found, key=lambda item: item.launch_ns)),
        exposed_ns=min(sum(item.exposed_ns for item in found), STEP),
        waited_ns=waited,
        n_waits=1,
        gaps_ns=gaps,
        n_compute=n,
        backward_ns=backward,
        backward_end_ns=backward or None,
    ),
    st.lists(drawn_buckets, max_size=20),
    lengths,
    lengths,
    st.integers(0, 300),
    lengths,
)
drawn_ranks = st.builds(
    lambda steps, periods, late, exposed, alone, host, at: of(
        *steps,
        shown=row(rank=at, exposed_comm_ns=exposed, compute_only_ns=alone, idle_ns=STEP - exposed - alone),
        periods_ns=tuple(periods),
        across=None if late is None else others(late),
        evidence="host-ranges" if host else "gpu-kernels",
    ),
    st.lists(drawn_steps, max_size=3),
    st.lists(st.sampled_from([1000, 1100, 4000]), max_size=12),
    st.none() | st.integers(-100, STEP),
    lengths,
    lengths,
    st.booleans(),
    st.integers(0, 3),
)


@given(st.lists(drawn_ranks, max_size=3, unique_by=lambda rank: rank.row.rank))
def test_costs_are_shares_of_a_step_and_the_order_of_ranks_does_not_matter(ranks: list[Rank]) -> None:
    findings, refused = judge(ranks)
    for item in findings:
        assert item.cost_ns is not None
        assert item.step_ns is not None
        assert 0 <= item.cost_ns <= item.step_ns
        assert item.code in CAUSES
        assert "{" not in item.message
        assert all(not isinstance(value, float) or math.isfinite(value) for value in item.evidence.values())
    assert {item.code for item in refused}.isdisjoint(item.code for item in findings)
    again, _ = judge(ranks[::-1])
    assert again == findings


# -- from rows, records and other ranks to what the rules see


def test_records_and_other_ranks_fill_in_what_a_trace_does_not_tell() -> None:
    seen = Signs(steps=(step(step=3, buckets=(bucket(10, 60, bucket=0, place=2),)),))
    over = Across(
        clock="one report",
        uncertainty_ns=5,
        refused=None,
        transfer_ns=20,
        ranks=(others(7),),
        collectives=(
            CollectiveRow(
                step=3,
                place=2,
                bucket=0,
                operation="AllReduce",
                size_bytes=None,
                transfer_ns=20,
                length_ns=[50],
                wait_ns=[30],
                arrival_ns=[0],
                last=None,
            ),
        ),
    )
    records = Records(
        buckets=(
            BucketRecord(rank=0, step=3, bucket=0, size_bytes=64, is_last=True, parameters=[1, 0], ready_ns=90, launch_ns=95),
        ),
        gradients=(GradientRecord(rank=0, step=3, started_ns=0, parameters=[1, 0], ready_ns=[40, 80]),),
        models=(
            ModelRecord(
                rank=0,
                names=["a", "b"],
                size_bytes=[16, 48],
                dtypes=["float32"] * 2,
                devices=["cpu"] * 2,
                is_sparse=[False] * 2,
                find_unused_parameters=False,
                static_graph=False,
                probe_bytes=[],
                probe_ns=[],
            ),
        ),
        loggers=(LoggerRecord(rank=0, step=3, fields={"find_unused_parameters": 1, "unused_parameter_size": 0}),),
        iterations=tuple(iteration(at, is_captured=at == 3) for at in (3, 1, 2)),
    )
    process = Process(key=1, pid=100, settings=(("CUDA_LAUNCH_BLOCKING", "1"),))
    (rank,) = diagnose.ranks([row()], {(0, 100, 0): (process, seen)}, over, records)
    (item,) = rank.signs.steps[0].buckets
    assert (item.size_bytes, item.parameters, item.last_bytes) == (64, (1, 0), 16)
    assert (item.parked_ns, item.held_ns) == (10, 50)
    assert (item.wait_ns, item.met_ns, item.own_ns, item.own_exposed_ns) == (30, 10, 20, 20)
    assert (rank.across, rank.uncertainty_ns) == (others(7), 5)
    assert (rank.iterations_ns, rank.is_unused_for_nothing) == ((1, 2), True)
    assert rank.settings == process.settings


def iteration(at: int, *, is_captured: bool) -> IterationRecord:
    times = ("step_ns", "forward_ns", "backward_host_ns", "backward_ns", "optimizer_host_ns")
    return IterationRecord(rank=0, step=at, is_captured=is_captured, loss=0.0, replica_hash="", **dict.fromkeys(times, at))


def test_another_collective_of_that_place_tells_nothing() -> None:
    seen = Signs(steps=(step(buckets=(bucket(10, 60),)),))
    over = Across(clock="none", uncertainty_ns=None, refused="why", transfer_ns=0, ranks=(), collectives=())
    (rank,) = diagnose.ranks([row()], {(0, 100, 0): (Process(key=1, pid=100), seen)}, over, None)
    assert rank.signs == seen
    assert (rank.across, rank.why_alone) == (None, "why")


# -- real captures


def first(found_in: Analysis) -> tuple[str, str, int | None] | None:
    warnings = [item for item in found_in.findings if item.severity == "warning"]
    return (warnings[0].code, warnings[0].evidence.get("setting", ""), warnings[0].rank) if warnings else None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpu_gloo_4rank_delay_cap64.sqlite", ("bucket-scheduling", "", 2)),
        ("cpu_gloo_4rank_delay_cap4.sqlite", None),
        ("h200_2rank_delay_cap4.sqlite", None),
        ("2gpu_sendrecv_same_stream.sqlite", ("settings", "same-stream", None)),
        ("kineto_ddp_rank0_of_2.json.gz", ("parameter-granularity", "", 0)),
        ("kineto_dlrm_8rank", ("parameter-granularity", "", 7)),
        ("mpi_report1.sqlite", None),
        ("cuda_graph_trace.sqlite", None),
    ],
)
def test_real_captures(captures: Path, name: str, expected: tuple[str, str, int | None] | None) -> None:
    assert first(analyze(captures / name)) == expected
