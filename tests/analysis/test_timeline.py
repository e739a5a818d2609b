"""One step of every rank on one clock."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from nsight import SESSION_NS, K, Row, build
from oracle import timelines

from ddpprof.analysis import intervals, job, load
from ddpprof.analysis.part import Options
from ddpprof.analysis.timeline import timeline
from ddpprof.model import Kind, RankLanes, Timeline

GPU = """
    process 100 rank=0 world=2
    N 0..99 "step/4"
    N 35..45 "bucket/3/64" thread=2
    K dev0 s7  100..200 GEMM launch=10..11
    K dev0 s16 150..260 NCCL launch=40..41 thread=2
    M dev0 s7  210..220 HtoD launch=50..51
    K dev0 s7  900..950 GEMM launch=200..201
"""


def draw(path: Path, rows: str | Iterable[Row], options: Options | None = None, **how: Any) -> Timeline:
    return timeline([load.read(build(path, rows, **how))], options)


def lanes(rank: RankLanes) -> list[tuple[Any, ...]]:
    """(title, [(start, end, kind, label) …]) of each lane, in us."""
    return [
        (
            lane.title,
            [
                (start // 1000, end // 1000, Kind(kind).name, label)
                for start, end, kind, label in zip(
                    lane.start_ns.tolist(), lane.end_ns.tolist(), lane.kind.tolist(), lane.label, strict=True
                )
            ],
        )
        for lane in rank.lanes
    ]


def test_the_step_from_its_first_start(report: Path) -> None:
    found = draw(report, GPU)
    (rank,) = found.ranks
    assert (found.evidence, found.step, rank.rank, rank.title) == ("gpu-kernels", 4, 0, "rank 0 · device 0")
    assert lanes(rank) == [
        ("stream 7", [(0, 100, "COMPUTE", ""), (110, 120, "MEMORY", "")]),
        ("stream 16", [(50, 160, "COMM", "3")]),
    ]
    assert (rank.window, rank.overlap_ns) == ((0, 160_000), 50_000)
    assert (rank.overlap_start_ns.tolist(), rank.overlap_end_ns.tolist()) == ([50_000], [100_000])


def test_the_last_complete_step_is_shown(report: Path) -> None:
    rows = """
        N 0..9 "step/1"
        N 10..19 "step/2"
        N 20..open "step/3"
        K dev0 s7 100..101 GEMM launch=5..6
        K dev0 s7 110..112 GEMM launch=15..16
        K dev0 s7 120..123 GEMM launch=25..26
    """
    found = draw(report, rows)
    assert (found.step, found.ranks[0].window) == (2, (0, 2_000))


def test_without_steps_the_whole_capture(report: Path) -> None:
    found = draw(report, "K dev0 s7 100..101 GEMM\nK dev0 s7 110..112 GEMM")
    assert (found.step, found.ranks[0].window, found.ranks[0].title) == (None, (0, 12_000), "pid 100 · device 0")


def test_a_host_run_names_its_lanes_by_what_they_are(report: Path) -> None:
    rows = """
        process 100 rank=1 world=2
        N 0..99 "step/4"
        N 10..60 "delay/0" thread=2
        N60 40..120 "allreduce/0" thread=2
    """
    (rank,) = draw(report, rows, Options(compute="delay")).ranks
    assert lanes(rank) == [("compute", [(0, 50, "COMPUTE", "")]), ("all-reduce", [(30, 110, "COMM", "0")])]
    assert (rank.title, rank.overlap_ns, rank.compute_label) == ("rank 1", 20_000, "delay")


def test_compute_is_narrowed_for_the_overlap_shown(report: Path) -> None:
    (rank,) = draw(report, GPU + "K dev0 s7 150..160 SPIN launch=12..13", Options(compute="spin")).ranks
    assert (rank.overlap_start_ns.tolist(), rank.overlap_end_ns.tolist(), rank.compute_label) == ([50_000], [60_000], "spin")


def two_reports(tmp_path: Path, *sessions: int | None) -> list[tuple[str, tuple[int, int]]]:
    traces = [
        load.read(
            build(
                tmp_path / f"{at}.sqlite",
                f"process {100 + at} rank={at} world=2\nK dev0 s7 {10 + at}..50 GEMM",
                session_ns=session,
            )
        )
        for at, session in enumerate(sessions)
    ]
    return [(rank.title, rank.window) for rank in timeline(traces).ranks]


def test_reports_are_aligned_by_their_session_start(tmp_path: Path) -> None:
    assert two_reports(tmp_path, SESSION_NS + 5_000, SESSION_NS) == [
        ("rank 0 · device 0", (4_000, 44_000)),
        ("rank 1 · device 0", (0, 39_000)),
    ]


@pytest.mark.parametrize("sessions", [(SESSION_NS + 5_000, None), (None, None)])
def test_reports_that_do_not_tell_stand_each_at_their_own_zero(tmp_path: Path, sessions: tuple[int | None, ...]) -> None:
    assert two_reports(tmp_path, *sessions) == [("rank 0 · device 0", (0, 40_000)), ("rank 1 · device 0", (1_000, 40_000))]


def test_ranks_in_order_unknown_ones_last(report: Path) -> None:
    rows = "process 102 rank=10\nprocess 100 rank=2\nprocess 101\n" + "\n".join(
        f"K dev0 s7 0..1 GEMM pid={pid}" for pid in (100, 101, 102)
    )
    assert [rank.rank for rank in draw(report, rows).ranks] == [2, 10, None]


def test_ranks_that_show_different_steps_have_no_step_together(report: Path) -> None:
    rows = [
        line.format(pid=pid, step=pid - 99)
        for pid in (100, 101)
        for line in ('N 0..9 "step/{step}" pid={pid}', "K dev0 s7 0..9 GEMM pid={pid} launch=1..2")
    ]
    assert draw(report, "\n".join(rows)).step is None


def test_nothing_in_the_steps_asked_for_draws_nothing(report: Path) -> None:
    assert draw(report, GPU, Options(steps=(9, 9))).ranks == ()


@settings(max_examples=25)
@given(timelines())
def test_what_is_drawn_is_what_was_measured(tmp_path: Path, rows: list[Row]) -> None:
    rows = [*rows, K(0, 7, 0, "0.003")]
    trace = load.read(build(tmp_path / "drawn.sqlite", rows))
    analysis = job.analyze([trace])
    found = timeline([trace])
    assert min(rank.window[0] for rank in found.ranks) == 0
    assert sum(len(lane.start_ns) for rank in found.ranks for lane in rank.lanes) == len(rows)
    drawn = {}
    for rank in found.ranks:
        compute, comm = (
            intervals.union(
                *(
                    np.concatenate([getattr(lane, edge)[lane.kind == int(kind)] for lane in rank.lanes])
                    for edge in ("start_ns", "end_ns")
                )
            )
            for kind in (Kind.COMPUTE, Kind.COMM)
        )
        both = intervals.intersection(compute, comm)
        assert (both.start.tolist(), both.end.tolist()) == (rank.overlap_start_ns.tolist(), rank.overlap_end_ns.tolist())
        drawn[rank.title] = (rank.window[1] - rank.window[0], intervals.measure(both), rank.overlap_ns)
    assert drawn == {
        f"pid {row.pid} · device {row.device_id}": (row.step_ns, row.overlap_ns, row.overlap_ns) for row in analysis.ranks
    }
