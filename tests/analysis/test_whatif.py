"""The model of a step on timelines that can be followed by hand, and what must hold of any."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsight import build
from recorded import MS, recorded, timeline

from ddpprof.analysis import nsys_reader, whatif
from ddpprof.analysis.moments import Backward, Hook, Moment
from ddpprof.analysis.whatif import bound, carry, line, predict, send, simulate
from ddpprof.errors import InputError
from ddpprof.model import Records, TransferCost
from ddpprof.reducer import MIB, Parameter, capacity, initial, launches, rebuilt

COST = TransferCost(fixed_ns=0, ns_per_byte=4 * MS / MIB, slowdown_ratio=None, low_ratio=1, high_ratio=1, n=1, sizes=1)


def parameters(count: int, mb: float = 1) -> list[Parameter]:
    return [Parameter(size_bytes=int(mb * MIB)) for _ in range(count)]


def backward(*ready_ms: int, rank: int = 0, rest_ms: int = 5, order: tuple[int, ...] | None = None) -> Backward:
    """Gradients from the last parameter to the first at these times; the step starts at 0."""
    ready = tuple(time * MS for time in ready_ms)
    order = order or tuple(reversed(range(len(ready))))
    return Backward(rank=rank, start_ns=0, order=order, ready_ns=ready, end_ns=ready[-1], rest_ns=rest_ms * MS)


def moment(*ranks: Backward) -> Moment:
    return Moment(step=0, ranks=ranks, transfers=(), step_ns=0)


def under(cap_mb: float, count: int, order: tuple[int, ...] | None = None):
    order = order or tuple(reversed(range(count)))
    found = rebuilt(parameters(count), capacity(cap_mb), "plain", order)
    assert found is not None
    return found


# ------------------------------------------------------------------------------------------------------------ transfers


def ms(*values: float) -> list[int]:
    return [round(value * MS) for value in values]


def test_one_lane_is_a_queue():
    """4 ms each, sent at 0, 1 and 20: the second waits for the first, the third for nobody."""
    begin, end = carry(ms(0, 1, 20), ms(4, 4, 4), 1, 0, 1.0)
    assert (list(begin), list(end)) == (ms(0, 4, 20), ms(4, 8, 24))


def test_two_lanes_share_the_wire():
    """From 2 on both have half of it: the first has 2 ms left, which takes 4; then the second has 2 left, alone."""
    begin, end = carry(ms(0, 2), ms(4, 4), 2, 0, 1.0)
    assert (list(begin), list(end)) == (ms(0, 2), ms(6, 8))


def test_beside_compute_all_is_slower():
    """Twice as slow until 6: 3 ms of the 4 are done by then."""
    _, end = carry(ms(0), ms(4), 1, 6 * MS, 2.0)
    assert list(end) == ms(7)


times = st.lists(st.integers(0, 50), min_size=1, max_size=12)


@given(times, st.integers(1, 3), st.integers(0, 60), st.floats(1, 3), st.data())
def test_transfers_go_in_order_take_no_less_than_alone_and_leave_no_gap(arrivals, lanes, until, slowdown, data):
    arrival = sorted(arrivals)
    work = data.draw(st.lists(st.integers(1, 20), min_size=len(arrival), max_size=len(arrival)))
    begin, end = carry(arrival, work, lanes, until, slowdown)
    assert all(start >= came for start, came in zip(begin, arrival, strict=True))
    assert all(one <= other for one, other in pairwise(begin))
    assert all(stop - start >= took - 1 for start, stop, took in zip(begin, end, work, strict=True))
    assert max(end) <= arrival[-1] + slowdown * sum(work) + len(work)
    for at, start in enumerate(begin):  # one that waited, waited for a lane
        assert start == arrival[at] or sum(stop >= start for stop in end[:at]) >= 1


@given(times, st.integers(1, 2), st.integers(1, 5))
def test_a_dearer_byte_never_ends_a_transfer_sooner(arrivals, lanes, factor):
    arrival = sorted(arrivals)
    _, cheap = carry(arrival, [10.0] * len(arrival), lanes, 0, 1.0)
    _, dear = carry(arrival, [10.0 * factor] * len(arrival), lanes, 0, 1.0)
    assert all(one <= other for one, other in zip(cheap, dear, strict=True))


# ------------------------------------------------------------------------------------------------------------- one step


def test_small_buckets_hide_all_but_the_last():
    """Gradients at 10, 20, 30, 4 ms each: sent as they come, the last is done at 34, and 5 ms follow."""
    found = simulate(moment(backward(10, 20, 30)), under(1, 3), COST, Hook(), 1)
    assert (found.ranks[0].launch_ns, found.end_ns) == (tuple(ms(10, 20, 30)), tuple(ms(14, 24, 34)))
    assert found.step_ns == 39 * MS
    assert bound(found, under(1, 3), COST) == "last bucket"


def test_one_bucket_hides_nothing():
    found = simulate(moment(backward(10, 20, 30)), under(64, 3), COST, Hook(), 1)
    assert (found.end_ns, found.step_ns) == ((42 * MS,), 47 * MS)


def test_a_transfer_begins_when_the_last_rank_has_sent_it():
    found = simulate(moment(backward(10, 20), backward(10, 50, rank=1)), under(1, 2), COST, Hook(), 1)
    assert (found.arrival_ns, found.end_ns) == (tuple(ms(10, 50)), tuple(ms(14, 54)))


def test_a_late_gradient_in_the_first_bucket_holds_all_others():
    """As registered, reversed: parameter 2 is expected first and comes last, at 30."""
    layout = initial(parameters(3), capacity(1), "find_unused")
    sent = send(backward(10, 20, 30, order=(1, 0, 2)), layout, Hook())
    assert sent.launch_ns == tuple(ms(30, 30, 30))
    assert (sent.held_ns, sent.holder) == (20 * MS, 2)
    found = simulate(moment(backward(10, 20, 30, order=(1, 0, 2))), layout, COST, Hook(), 1)
    assert (found.end_ns[-1], bound(found, layout, COST)) == (42 * MS, "held bucket")


def test_what_the_hook_takes_puts_off_what_comes_after_it():
    """2 ms a MiB, and 1 ms until it begins: the second gradient comes 2 ms later than it would."""
    sent = send(backward(10, 20), under(1, 2), Hook(lag_ns=MS, ns_per_byte=2 * MS / MIB))
    assert sent.launch_ns == (13 * MS, 25 * MS)
    assert sent.compute_end_ns == 22 * MS


@pytest.mark.parametrize(
    ("ready", "fixed_ms", "per_mib_ms", "expected"),
    [
        ((10, 11, 12, 13), 10, 1, "latency"),
        ((10, 11, 12, 13), 1, 10, "bandwidth"),
        ((10, 1000, 2000, 3000), 1, 10, "compute"),
        ((10, 20, 30, 40), 1, 8, "last bucket"),
    ],
)
def test_what_a_step_ends_with(ready, fixed_ms, per_mib_ms, expected):
    cost = replace(COST, fixed_ns=fixed_ms * MS, ns_per_byte=per_mib_ms * MS / MIB)
    layout = under(1, 4)
    assert bound(simulate(moment(backward(*ready)), layout, cost, Hook(), 1), layout, cost) == expected


# ------------------------------------------------------------------------------------------------------------------ fit


def test_a_line_through_two_points_and_never_below_zero():
    assert line([(0, 10.0), (100, 60.0)]) == pytest.approx((10, 0.5))
    assert line([(100, 10.0), (200, 40.0)])[0] == 0
    assert line([(100, 40.0), (200, 10.0)])[1] == 0
    assert line([(100, 40.0)]) == (0, pytest.approx(0.4))
    assert line([(0, 40.0)]) == pytest.approx((40, 0))


def test_probes_tell_sizes_that_no_bucket_has(tmp_path):
    """Buckets of 1 MiB take 4 ms. A probe of 1.5 MiB is not heard, one of 4 MiB took 10 ms: 2 ms, and 2 for each MiB."""
    records = recorded(cap_mb=1)
    probes = {"probe_bytes": [3 * MIB // 2, 4 * MIB], "probe_ns": [999 * MS, 10 * MS]}
    records = replace(records, models=tuple(replace(row, **probes) for row in records.models))
    cost = predict(run(tmp_path, records, ORDER), records, (1,)).cost
    assert (cost.fixed_ns, cost.ns_per_byte * MIB) == pytest.approx((2 * MS, 2 * MS))


# ----------------------------------------------------------------------------------------------------------- whole runs


def run(tmp_path: Path, records: Records, order: tuple[int, ...], ranks: int = 2):
    return [nsys_reader.read(build(tmp_path / "report.sqlite", timeline(ranks, order, records)))]


ORDER = (2, 1, 0)


def test_from_three_buckets_to_one(tmp_path):
    """Measured 30 + 4 + 5; as one bucket of 3 MiB it is 30 + 12 + 5, and nothing overlaps."""
    records = recorded(cap_mb=1)
    found = predict(run(tmp_path, records, ORDER), records, (64, 1))
    one, all_ = found.rows
    assert (found.measured.median_ns, found.model_ns, found.moments) == (39 * MS, 39 * MS, 6)
    assert found.cost.ns_per_byte * MIB == pytest.approx(4 * MS, rel=1e-3)
    assert (one.cap_mb, one.is_captured, one.buckets, one.step_ns) == (1, True, ((2,), (1,), (0,)), 39 * MS)
    assert (one.overlap_ns, one.exposed_comm_ns, one.tail_ns) == pytest.approx((4 * MS, 8 * MS, 4 * MS), rel=1e-3)
    assert (all_.is_captured, all_.buckets, all_.bucket_bytes) == (False, (ORDER,), (3 * MIB,))
    assert all_.step_ns == pytest.approx(47 * MS, rel=1e-3)
    assert (all_.overlap_ns, all_.tail_ns) == pytest.approx((0, 12 * MS), rel=1e-3)
    assert found.best_mb == (1,)


def test_from_one_bucket_to_three(tmp_path):
    """When the gradients came is known though all were sent at once."""
    records = recorded(cap_mb=64)
    one, _ = predict(run(tmp_path, records, ORDER), records, (1, 64)).rows
    assert one.step_ns == pytest.approx(39 * MS, rel=1e-3)
    assert one.overlap_ns == pytest.approx(4 * MS, rel=1e-3)


def test_the_cap_of_the_capture_is_always_among_the_rows(tmp_path):
    records = recorded(cap_mb=1)
    found = predict(run(tmp_path, records, ORDER), records, (64,))
    assert [(row.cap_mb, row.is_captured) for row in found.rows] == [(1, True), (64, False)]


def test_the_default_of_the_capture_is_a_row_and_is_not_25(tmp_path):
    records = recorded(cap_mb=None)
    found = predict(run(tmp_path, records, ORDER), records, (25,))
    assert [(row.cap_mb, row.is_captured) for row in found.rows] == [(None, True), (25, False)]


def test_what_a_step_ends_with_is_what_most_steps_end_with(tmp_path, monkeypatch):
    words = iter(["compute", "latency", "latency", "latency", "latency", "bandwidth"])
    monkeypatch.setattr(whatif, "bound", lambda *_: next(words))
    records = recorded(cap_mb=1)
    assert predict(run(tmp_path, records, ORDER), records, (1,)).rows[0].bound == "latency"


def test_a_slow_rank_is_waited_for(tmp_path):
    """Rank 1 is 7 ms late throughout, so on rank 0 every transfer is 7 ms longer; the step is that of the last."""
    records = recorded(cap_mb=1, slow_ms={1: 7})
    found = predict(run(tmp_path, records, ORDER), records, (1,)).rows[0]
    assert found.step_ns == 46 * MS
    assert [rank.tail_ns for rank in found.ranks] == pytest.approx([11 * MS, 4 * MS], rel=1e-3)
    assert found.worst_rank == 0


def test_buckets_follow_the_order_of_registration_with_find_unused(tmp_path):
    order = (1, 0, 2)
    records = recorded(cap_mb=1, order=order, find_unused_parameters=True)
    found = predict(run(tmp_path, records, order), records, (1, 3))
    assert [row.buckets for row in found.rows] == [((2,), (1,), (0,)), ((0, 1, 2),)]
    assert (found.rows[0].holder, found.rows[0].held_ns) == ("layer2.weight", 20 * MS)
    assert found.rows[0].bound == "held bucket"


def test_an_unused_parameter_of_a_static_graph_is_in_the_last_bucket(tmp_path):
    records = recorded(cap_mb=2, order=(2, 1), count=4, static_graph=True)
    (row,) = predict(run(tmp_path, records, (2, 1)), records, (2,)).rows
    assert (row.is_captured, row.buckets) == (True, ((2, 1), (0, 3)))


@given(st.permutations(range(6)), st.sampled_from([1, 2, 3, 4, 64]), st.booleans(), st.integers(1, 30))
def test_the_cap_of_the_capture_gives_its_own_buckets_launches_and_step(tmp_path, order, cap, is_dynamic, rate):
    (tmp_path / "report.sqlite").unlink(missing_ok=True)
    records = recorded(order=tuple(order), cap_mb=cap, find_unused_parameters=is_dynamic, ms_per_mib=rate, steps=(3,))
    traces = run(tmp_path, records, tuple(order))
    (row,) = predict(traces, records, (cap,)).rows
    assert row.is_captured
    assert row.step_ns == records.iterations[0].step_ns
    assert row.low_ns <= row.step_ns <= row.high_ns
    own = [bucket for bucket in records.buckets if (bucket.rank, bucket.step) == (0, 8)]
    assert (row.buckets, row.bucket_bytes) == (
        tuple(tuple(bucket.parameters) for bucket in own),
        tuple(bucket.size_bytes for bucket in own),
    )
    found = whatif.run_of(traces, records)
    sent = send(found.moments[-1].ranks[0], found.layout, found.hook)
    assert list(sent.launch_ns) == [bucket.launch_ns for bucket in own]
    assert [item.bucket for item in launches(found.layout, order)] == [bucket.bucket for bucket in own]


@given(st.lists(st.integers(1, 40), min_size=2, max_size=8), st.sampled_from([1, 2, 4, 64]), st.floats(0.1, 5))
def test_no_step_is_shorter_than_its_compute_or_its_transfers(gaps, cap, rate):
    ready = [sum(gaps[: at + 1]) for at in range(len(gaps))]
    layout = under(cap, len(gaps))
    cost = replace(COST, ns_per_byte=rate * MS / MIB)
    found = simulate(moment(backward(*ready)), layout, cost, Hook(), 2)
    work = cost.ns_per_byte * sum(layout.size_bytes)
    assert found.step_ns >= max(ready[-1] * MS, work) + 5 * MS - 1
    dearer = simulate(moment(backward(*ready)), layout, replace(cost, ns_per_byte=cost.ns_per_byte * 2), Hook(), 2)
    assert dearer.step_ns >= found.step_ns


def test_what_a_run_must_have(tmp_path):
    records = recorded()
    traces = run(tmp_path, records, ORDER)
    twice = replace(records, buckets=(*records.buckets, records.buckets[0]))
    for broken, what in [
        (None, "no records of its run"),
        (replace(records, gradients=()), "do not tell when each gradient was ready"),
        (replace(records, runs=records.runs[1:]), "no records of rank 0"),
        (replace(records, iterations=()), "no step was recorded"),
        (twice, "several backwards"),
    ]:
        with pytest.raises(InputError, match=what):
            predict(traces, broken, (1,))
    alone = [nsys_reader.read(build(tmp_path / "alone.sqlite", timeline(1, ORDER, records)))]
    with pytest.raises(InputError, match="does not show rank 1"):
        predict(alone, records, (1,))
