"""The oracle's two methods agree, and keep the identities of shared/design/definitions.md."""

from dataclasses import fields

import pytest
from hypothesis import given, settings
from nsight import GEMM, NCCL, K, M, Row, S, build, query
from oracle import Interval, by_points, by_sweep, interval_lists, large_interval_lists, of_rows, oracle_metrics, timelines

from ddpprof.model import Metrics

WINDOW = (-20, 60)


def test_example_by_eye() -> None:
    """::

    time     0    5    10   15   20   25   30
    compute  |---------|         |----|
    comm          |---------|              (from 5 to 15)
    memory   |-----------------|           (from 0 to 18)
    """
    found = oracle_metrics([(0, 10), (20, 25)], [(5, 15)], [(0, 18)], (0, 30), last_backward_end=10)
    assert found == {
        "step_ns": 30,
        "compute_ns": 15,
        "comm_ns": 10,
        "overlap_ns": 5,
        "exposed_comm_ns": 5,
        "compute_only_ns": 10,
        "memory_only_ns": 3,
        "idle_ns": 7,
        "compute_span_ns": 25,
        "comm_span_ns": 10,
        "tail_ns": 5,
        "overlap_ratio": 0.5,
    }


def test_names_are_those_of_the_model() -> None:
    assert list(oracle_metrics([], [], [], (0, 1))) == [item.name for item in fields(Metrics)]


def test_nothing_is_missing_not_zero() -> None:
    found = oracle_metrics([], [], [(5, 5), (9, 7)], (0, 10))
    assert found["idle_ns"] == 10
    assert {name for name, value in found.items() if value is None} == {
        "compute_span_ns",
        "comm_span_ns",
        "tail_ns",
        "overlap_ratio",
    }


def test_tail_is_never_negative() -> None:
    assert oracle_metrics([(0, 50)], [(5, 20)], [], (0, 50), last_backward_end=50)["tail_ns"] == 0


def test_outside_the_window_is_nothing() -> None:
    found = oracle_metrics([(-5, 3)], [(8, 20)], [], (0, 10))
    assert (found["compute_ns"], found["comm_ns"], found["comm_span_ns"]) == (3, 2, 2)


@settings(deadline=None)
@given(interval_lists(), interval_lists(), interval_lists())
def test_two_methods_agree(compute: list[Interval], comm: list[Interval], memory: list[Interval]) -> None:
    assert by_sweep(compute, comm, memory, WINDOW) == by_points(compute, comm, memory, WINDOW)


@settings(deadline=None)
@given(interval_lists(), interval_lists(), interval_lists())
def test_two_methods_agree_in_a_smaller_window(compute: list[Interval], comm: list[Interval], memory: list[Interval]) -> None:
    assert by_sweep(compute, comm, memory, (0, 30)) == by_points(compute, comm, memory, (0, 30))


@settings(deadline=None)
@given(large_interval_lists(), large_interval_lists(), large_interval_lists())
def test_identities(compute: list[Interval], comm: list[Interval], memory: list[Interval]) -> None:
    found = oracle_metrics(compute, comm, memory, (-(10**6), 3_602 * 10**9))
    parts = ("compute_only_ns", "overlap_ns", "exposed_comm_ns", "memory_only_ns", "idle_ns")
    assert sum(found[part] for part in parts) == found["step_ns"]
    assert found["overlap_ns"] + found["exposed_comm_ns"] == found["comm_ns"]
    assert found["overlap_ns"] + found["compute_only_ns"] == found["compute_ns"]
    assert found["compute_ns"] <= (found["compute_span_ns"] or 0)
    assert found["comm_ns"] <= (found["comm_span_ns"] or 0)


@settings(deadline=None)
@given(large_interval_lists())
def test_busy_is_the_span_less_the_gaps(compute: list[Interval]) -> None:
    found = oracle_metrics(compute, [], [], (-(10**6), 3_602 * 10**9))
    gaps, reached = 0, min(compute, default=(0, 0))[0]
    for start, end in sorted(compute):
        gaps, reached = gaps + max(0, start - reached), max(reached, end)
    assert found["compute_ns"] == (found["compute_span_ns"] or 0) - gaps


def test_of_rows_groups_by_process_and_device() -> None:
    rows: list[Row] = [
        K(0, 7, 0, 2, GEMM, 100),
        K(0, 16, 1, 3, NCCL, 100),
        K(0, 7, 1, 3, GEMM, 101),
        M(1, 7, 5, 6, "HtoD", 101),
        S(1, 7, 8, 9, 101),
        K(1, 7, 0, 0, GEMM, 101),
    ]
    found = of_rows(rows)
    assert list(found) == [(100, 0), (101, 0), (101, 1)]
    assert (found[100, 0]["overlap_ns"], found[101, 0]["overlap_ns"]) == (1000, 0)
    assert (found[101, 1]["memory_only_ns"], found[101, 1]["idle_ns"]) == (2000, 2000)


@settings(deadline=None)
@given(timelines())
def test_timelines_can_be_built(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> None:
    path = build(tmp_path_factory.getbasetemp() / "drawn.sqlite", rows)
    written = sum(
        query(path, f"SELECT count(*) FROM {table}")[0][0]
        for (table,) in query(path, "SELECT name FROM sqlite_master")
        if table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
    )
    assert written == len(rows) > 0
