"""The model of the Reducer: PyTorch's own vectors, the cases, and rules that a reader can follow by eye.

tests/workloads/test_probe.py holds the same functions against the real thing.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import generate_docs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpprof.reducer import (
    FACTS,
    MIB,
    Bucket,
    Capacity,
    Hold,
    Launch,
    Layout,
    Parameter,
    assign,
    capacity,
    holds,
    initial,
    launches,
    mode_of,
    rebuilt,
    reduced,
)
from ddpprof.workloads.cases import CASES


def f32(*counts: int) -> list[Parameter]:
    return [Parameter(size_bytes=4 * count) for count in counts]


def mib(*sizes: float) -> list[Parameter]:
    return [Parameter(size_bytes=int(size * MIB)) for size in sizes]


def of(*dtypes: str, size_bytes: int = 200) -> list[Parameter]:
    return [Parameter(size_bytes=size_bytes, dtype=dtype) for dtype in dtypes]


def buckets(*groups: list[int]) -> Layout:
    """Buckets of these parameters, whose sizes do not matter."""
    return Layout(tuple(Bucket(tuple(group), 0, 0) for group in groups))


MIXED = of(*["float32", "float64"] * 3)


@pytest.mark.parametrize(
    ("parameters", "limits", "expected", "under"),
    [
        (f32(100, 200, 100, 50), [400], [(0,), (1,), (2,), (3,)], [400, 400, 400, 400]),
        (MIXED, [400], [(0, 2), (1, 3), (4,), (5,)], [400, 400, 400, 400]),
        (f32(10, 10, 10, 10), [40, 80], [(0,), (1, 2), (3,)], [40, 80, 80]),
        (MIXED, [200, 400], [(0,), (1,), (2, 4), (3, 5)], [200, 200, 400, 400]),
    ],
)
def test_assignment_gives_what_pytorchs_own_tests_expect(parameters, limits, expected, under):
    """ComputeBucketAssignmentTest of test_c10d_common.py."""
    layout = assign(parameters, limits)
    assert [*layout.parameters] == expected
    assert [bucket.limit_bytes for bucket in layout.buckets] == under


@pytest.mark.parametrize(
    ("given_caps", "cap_mb", "first_mb", "list_mb"),
    [
        ({}, 25, 1, ()),
        ({"bucket_cap_mb": 100}, 100, 100, ()),
        ({"bucket_cap_mb_list": [10, 25, 50]}, 50, 50, (10, 25, 50)),
        ({"bucket_cap_mb": 100, "bucket_cap_mb_list": [10, 25, 50]}, 50, 50, (10, 25, 50)),
        ({"bucket_cap_mb_list": [50]}, 50, 50, (50,)),
        ({"bucket_cap_mb_list": [25, 25, 25]}, 25, 25, (25, 25, 25)),
        ({"bucket_cap_mb_list": []}, 25, 1, ()),
        ({"bucket_cap_mb": 1000}, 1000, 1000, ()),
        ({"bucket_cap_mb": 1}, 1, 1, ()),
        ({"bucket_cap_mb": 0.5}, 0.5, 0.5, ()),
    ],
)
def test_capacity_is_what_pytorchs_own_tests_expect(given_caps, cap_mb, first_mb, list_mb):
    """TestBucketCapacityConfig of distributed_test.py."""
    found = capacity(**given_caps)
    assert (found.cap_bytes, found.first_bytes) == (cap_mb * MIB, first_mb * MIB)
    assert found.list_bytes == tuple(cap * MIB for cap in list_mb)


def test_initial_limits_are_what_pytorchs_own_tests_expect():
    """TestBucketCapacityConfigComputeLimits; PyTorch shortens [cap, cap] to [cap], which fills alike."""
    assert capacity(bucket_cap_mb_list=[10, 25]).initial_limits("find_unused") == (10 * MIB, 25 * MIB)
    assert capacity(bucket_cap_mb_list=[10, 25]).initial_limits("plain") == (10 * MIB, 25 * MIB)
    assert capacity(25).initial_limits("static") == (sys.maxsize,)
    assert capacity(25).initial_limits("plain") == (sys.maxsize,)
    assert capacity().initial_limits("find_unused") == (1 * MIB, 25 * MIB)
    assert capacity(100).initial_limits("find_unused") == (100 * MIB, 100 * MIB)


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.branches], ids=lambda case: case.name)
def test_the_cases_have_the_layout_they_say(case):
    parameters = [Parameter(size_bytes=size) for size in case.parameter_bytes]
    mode = mode_of(find_unused_parameters=case.find_unused_parameters, static_graph=case.static_graph)
    first = initial(parameters, capacity(case.bucket_cap_mb), mode)
    later = rebuilt(parameters, capacity(case.bucket_cap_mb), mode, list(reversed(case.order)))
    assert first.size_bytes == case.initial_bytes
    assert (later is not None) == case.is_rebuilt
    if later is None and case.failure is None:
        assert first.size_bytes == case.rebuilt_bytes
    elif later is not None:
        assert later.size_bytes == case.rebuilt_bytes


def test_unused_parameters_of_a_static_graph_come_last():
    parameters = mib(*[4] * 13)
    layout = rebuilt(parameters, capacity(16), "static", list(range(11, -1, -1)))
    assert layout.parameters == ((11, 10, 9, 8), (7, 6, 5, 4), (3, 2, 1, 0), (12,))


@pytest.mark.parametrize(
    ("version", "cap", "sizes"),
    [
        ("2.3.1", 16, [4, 16, 16, 12]),
        ("2.3.1", 64, [4, 44]),
        ("2.3.1", None, [4, 28, 16]),
        ("2.4.0", 16, [16, 16, 16]),
        ("2.13.0+cpu", 64, [48]),
        ("2.10.0a0+git12", None, [4, 28, 16]),
        (None, 64, [48]),
    ],
)
def test_the_first_bucket_was_1_mib_whatever_the_cap_up_to_2_3(version, cap, sizes):
    parameters = mib(*[4] * 12)
    layout = rebuilt(parameters, capacity(cap, torch_version=version), "plain", list(range(11, -1, -1)))
    assert [size // MIB for size in layout.size_bytes] == sizes


def test_a_cap_list_holds_for_both_layouts():
    parameters, caps = mib(*[4] * 12), capacity(bucket_cap_mb_list=[4, 8, 16])
    assert [size // MIB for size in initial(parameters, caps, "plain").size_bytes] == [4, 16, 16, 8, 4]
    later = rebuilt(parameters, caps, "plain", list(range(11, -1, -1)))
    assert [size // MIB for size in later.size_bytes] == [4, 8, 16, 16, 4]


def test_the_small_bucket_can_be_last():
    layout = rebuilt(mib(*[4] * 12), capacity(is_last_small=True), "plain", list(range(11, -1, -1)))
    assert layout.parameters == ((8, 9, 10, 11), (1, 2, 3, 4, 5, 6, 7), (0,))


def test_reduced_are_those_that_require_a_gradient():
    frozen = Parameter(name="frozen", size_bytes=4, requires_grad=False)
    kept = [Parameter(name=name, size_bytes=4) for name in ("a", "b")]
    assert reduced([kept[0], frozen, kept[1]]) == tuple(kept)


def test_a_sparse_gradient_is_alone_and_leaves_the_open_bucket_open():
    parameters = [*f32(1), Parameter(size_bytes=40, is_sparse=True), *f32(1)]
    assert assign(parameters, [1000]).buckets == (Bucket((0, 2), 8, 1000), Bucket((1,), 40, 0))
    assert assign(parameters, [1000], [0, 1, 2]).parameters == ((1,), (0, 2))


def test_devices_fill_buckets_of_their_own():
    parameters = [Parameter(size_bytes=4, device=f"cuda:{index % 2}") for index in range(4)]
    assert assign(parameters, [8]).parameters == ((0, 2), (1, 3))


def test_two_kinds_left_open_come_in_reverse_and_three_in_no_known_order():
    two = assign(of("float32", "float64"), [1000], [0, 1])
    assert (two.parameters, two.unspecified) == (((1,), (0,)), frozenset())
    closed_first = of("float16", "float16", "float32", "float64")
    three = assign(closed_first, [400], [0, 2, 3, 1])
    assert (three.parameters[0], set(three.parameters[1:]), three.unspecified) == ((0, 1), {(2,), (3,)}, {1, 2})
    assert assign(closed_first, [400]).unspecified == frozenset()
    assert three.reversed().unspecified == {0, 1}


def test_find_unused_never_rebuilds_and_plain_only_when_all_are_there():
    assert rebuilt(f32(1, 1), capacity(), "find_unused", [1, 0]) is None
    assert rebuilt(f32(1, 1), capacity(), "plain", [1]) is None
    assert rebuilt(f32(1, 1), capacity(), "plain", [1, 0]).parameters == ((1, 0),)


def test_static_graph_wins_over_find_unused():
    assert mode_of(find_unused_parameters=True, static_graph=True) == "static"
    assert mode_of(find_unused_parameters=True) == "find_unused"
    assert mode_of() == "plain"


def test_a_late_head_blocks_the_buckets_behind_it():
    layout = buckets([0], [1, 2], [3])
    assert launches(layout, [3, 2, 1, 0]) == (Launch(0, 3, 3), Launch(1, 2, 3), Launch(2, 0, 3))
    assert launches(layout, [0, 1, 2, 3]) == (Launch(0, 0, 0), Launch(1, 2, 2), Launch(2, 3, 3))
    assert launches(layout, [1, 0, 2, 3]) == (Launch(0, 1, 1), Launch(1, 2, 2), Launch(2, 3, 3))


def test_unused_parameters_are_ready_with_the_first_hook():
    assert launches(buckets([2], [1], [0]), [1, 0], unused=[2]) == (Launch(0, 0, 0), Launch(1, 0, 0), Launch(2, 1, 1))


def test_a_bucket_that_never_completes_blocks_for_good():
    assert launches(buckets([0], [1], [2]), [0, 2]) == (Launch(0, 0, 0),)
    assert launches(buckets([0], [1]), []) == ()


def test_the_first_pass_of_a_static_graph_sends_all_after_the_last_hook():
    assert launches(buckets([1], [0]), [1, 0], is_first_static=True) == (Launch(0, 2, 2), Launch(1, 2, 2))


def test_who_holds_the_queue():
    parameters = f32(1, 10, 100)
    assert holds(parameters, buckets([2], [1], [0]), [2, 1, 0]) == ()
    one = Layout((Bucket((2, 1, 0), 444, 1000),))
    assert holds(parameters, one, [2, 1, 0]) == (Hold(0, 440, 400 * 2 + 40 * 1),)
    assert holds(parameters, buckets([0], [1], [2]), [2, 1, 0]) == (Hold(0, 440, 840),)
    pairs = Layout((Bucket((2, 0), 404, 0), Bucket((1,), 40, 0)))
    assert holds(parameters, pairs, [0, 2, 1]) == (Hold(2, 4, 4),)
    assert holds(parameters, one, [2, 1], unused=[0]) == (Hold(1, 400, 400),), "an unused one waits for nobody"


@st.composite
def queues(draw: st.DrawFn) -> tuple[Layout, list[int]]:
    """Buckets of up to nine parameters, and an order in which all of them become ready."""
    count = draw(st.integers(1, 9))
    shuffled = draw(st.permutations(range(count)))
    cuts = sorted({0, count, *draw(st.lists(st.integers(0, count), max_size=4))})
    groups = [list(shuffled[start:end]) for start, end in pairwise(cuts)]
    return buckets(*groups), draw(st.permutations(range(count)))


@given(queues())
def test_a_bucket_is_sent_at_the_latest_completion_up_to_it(queue):
    layout, ready = queue
    complete = [max(ready.index(index) for index in group) for group in layout.parameters]
    expected = [Launch(at, complete[at], max(complete[: at + 1])) for at in range(len(complete))]
    assert list(launches(layout, ready)) == expected


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12),
    st.lists(st.integers(0, 100), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
)
def test_an_assignment_keeps_every_parameter_and_exceeds_its_limit_by_less_than_one(counts, limits, random):
    parameters, order = f32(*counts), list(range(len(counts)))
    random.shuffle(order)
    layout = assign(parameters, limits, order)
    assert [index for bucket in layout.buckets for index in bucket.parameters] == order
    for at, bucket in enumerate(layout.buckets):
        assert bucket.limit_bytes == limits[min(at, len(limits) - 1)]
        assert bucket.size_bytes == sum(parameters[index].size_bytes for index in bucket.parameters)
        before_last = bucket.size_bytes - parameters[bucket.parameters[-1]].size_bytes
        assert len(bucket.parameters) == 1 or before_last < bucket.limit_bytes
        assert bucket.size_bytes >= bucket.limit_bytes or bucket is layout.buckets[-1]


def test_limits_without_a_list_are_the_first_and_the_cap():
    assert Capacity(first_bytes=1, cap_bytes=2).rebuilt_limits() == (1, 2)
    assert Capacity(first_bytes=1, cap_bytes=2, list_bytes=(3,)).rebuilt_limits() == (3,)


def test_the_facts_are_numbered_from_1_to_38_and_name_their_source():
    assert [fact.number for fact in FACTS] == list(range(1, 39))
    for fact in FACTS:
        assert fact.source.startswith(("reducer.cpp ", "reducer.hpp ", "distributed.py "))
        assert fact.text.endswith((".", '."'))


def test_the_page_of_the_reducer_has_the_facts_as_they_are():
    """When this fails: python tests/generate_docs.py"""
    assert generate_docs.REDUCER.read_text(encoding="utf-8") == generate_docs.reducer()
