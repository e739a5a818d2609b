"""Which bucket a communication interval carries, by mark, by NCCL's call, or by order alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsight import NCCL, K, N, build

from ddpprof.analysis import buckets, job, load
from ddpprof.analysis.buckets import ranges_around
from ddpprof.analysis.part import Options, measure
from ddpprof.model import BucketRecord, BucketRow, IterationRecord, Records

GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096>)"


def rows(report: Path, timeline: str, records: Records | None = None, **options: Any) -> tuple[BucketRow, ...]:
    return job.analyze([load.read(build(report, timeline))], Options(**options), records=records).buckets


def test_a_bucket_mark_around_the_launch(report: Path) -> None:
    """The kernel runs long after the range has ended; what counts is where it was launched."""
    found = rows(
        report,
        """
        process 100 rank=1 world=4
        N 0..99 "step/3"
        N 10..20 "bucket/0/4096" domain=ddpprof thread=2
        N 20..30 "bucket/1/1024" domain=ddpprof thread=2
        K dev0 s16 200..300 NCCL launch=15..16 thread=2
        K dev0 s16 300..310 NCCL launch=20..21 thread=2
        K dev0 s7  260..305 GEMM launch=12..13
        """,
    )
    assert [(row.bucket, row.size_bytes, row.attribution, row.step, row.rank) for row in found] == [
        (0, 4096, "range", 3, 1),
        (1, 1024, "range", 3, 1),
    ]
    assert [(row.launch_ns, row.queue_ns, row.start_ns, row.end_ns) for row in found] == [
        (15_000, 185_000, 200_000, 300_000),
        (20_000, 280_000, 300_000, 310_000),
    ]
    assert [(row.overlap_ns, row.exposed_ns) for row in found] == [(40_000, 60_000), (5_000, 5_000)]
    assert [row.operation for row in found] == ["AllReduce", "AllReduce"]


def test_algbw_and_busbw_are_those_of_nccl_tests(report: Path) -> None:
    """4,000 bytes in 100 us are 40 MB/s; an all-reduce of 4 ranks moves 2·3/4 of that."""
    timeline = """
    process 100 rank=1 world=4
    N 0..99 "bucket/0/4000"
    K dev0 s16 200..300 NCCL launch=15..16
    """
    (row,) = rows(report, timeline)
    assert (row.algbw, row.busbw) == (4e7, 6e7)
    (row,) = rows(report, timeline.replace(" world=4", ""))
    assert (row.algbw, row.busbw) == (4e7, None)
    (row,) = rows(report, timeline.replace("/4000", "/0"))
    assert (row.algbw, row.busbw) == (None, None)


def test_a_mark_on_another_thread_is_not_this_launchs(report: Path) -> None:
    (row,) = rows(report, 'N 10..20 "bucket/5/4096" thread=2\nK dev0 s16 200..300 NCCL launch=15..16 thread=3')
    assert (row.bucket, row.size_bytes, row.attribution) == (0, None, "order")


def test_a_collective_beside_marked_buckets_has_no_bucket(report: Path) -> None:
    """find_unused_parameters reduces its map of used parameters after the last bucket."""
    found = rows(
        report,
        """
        N 10..20 "bucket/0/4096"
        K dev0 s16 200..300 NCCL launch=15..16
        K dev0 s16 300..301 NCCL launch=25..26
        """,
    )
    assert [(row.bucket, row.size_bytes, row.attribution) for row in found] == [(0, 4096, "range"), (None, None, "order")]


def test_without_marks_nccls_own_call_counts_in_order(report: Path) -> None:
    found = rows(
        report,
        f"""
        N 0..99 "step/1"
        N 100..199 "step/2"
        N 10..40 "nccl:all_reduce" thread=2
        N 11..14 "ncclAllReduce" domain=NCCL thread=2
        N 14..30 "ncclGroupEnd" domain=NCCL thread=2
        K dev0 s16 200..300 "{GENERIC}" launch=15..16 thread=2
        K dev0 s16 300..400 "{GENERIC}" launch=35..36 thread=2
        K dev0 s16 400..500 "{GENERIC}" launch=50..51 thread=2
        K dev0 s16 600..700 NCCL launch=110..111 thread=2
        """,
    )
    assert [(row.step, row.bucket, row.attribution, row.operation) for row in found] == [
        (1, 0, "nccl-range", "unknown"),
        (1, 1, "nccl-range", "AllReduce"),
        (1, 2, "order", "unknown"),
        (2, 0, "order", "AllReduce"),
    ]


def test_rows_are_in_order_of_launch_not_of_start(report: Path) -> None:
    found = rows(
        report, "K dev0 s16 300..400 NCCL launch=15..16\nK dev0 s17 200..250 NCCL launch=20..21\nK dev0 s16 18..19 NCCL"
    )
    assert [(row.bucket, row.start_ns, row.launch_ns) for row in found] == [
        (0, 300_000, 15_000),
        (1, 18_000, None),
        (2, 200_000, 20_000),
    ]


def test_on_a_host_run_the_range_names_its_bucket(report: Path) -> None:
    found = rows(
        report,
        """
        process 100 rank=0 world=2
        N 0..99 "delay/0" domain=ddpprof
        N60 30..130 "allreduce/2" domain=ddpprof thread=2
        N60 10..90 "allreduce/1" domain=ddpprof thread=2
        """,
    )
    assert [(row.bucket, row.attribution, row.operation, row.overlap_ns, row.exposed_ns) for row in found] == [
        (1, "range", "AllReduce", 80_000, 0),
        (2, "range", "AllReduce", 69_000, 31_000),
    ]


# -- the run's records


def records(**more: Any) -> Records:
    times = dict.fromkeys(("step_ns", "forward_ns", "backward_host_ns", "backward_ns", "optimizer_host_ns"), 1)
    iteration = IterationRecord(rank=0, step=4, is_captured=True, loss=0.5, replica_hash="x", **times)
    facts: dict[str, Any] = {"rank": 0, "step": 4, "is_last": False, "ready_ns": 1, "launch_ns": 2}
    kept = BucketRecord(bucket=0, size_bytes=800, parameters=[3, 2], **facts)
    other = BucketRecord(bucket=0, size_bytes=1, parameters=[9], **(facts | {"step": 3}))
    return Records(iterations=(iteration,), buckets=(other, kept, *more.get("buckets", ())))


RECORDED = """
process 100 rank=0 world=2
N 0..99 "step/4"
K dev0 s16 200..300 NCCL launch=15..16
"""


def test_records_of_the_captured_step_tell_size_and_parameters(report: Path) -> None:
    (row,) = rows(report, RECORDED, records())
    assert (row.bucket, row.size_bytes, row.parameters, row.algbw) == (0, 800, (3, 2), 8e6)


def test_a_marks_size_is_believed_before_the_records(report: Path) -> None:
    (row,) = rows(report, RECORDED + 'N 10..20 "bucket/0/4096"', records())
    assert (row.size_bytes, row.parameters) == (4096, (3, 2))


def test_records_of_another_rank_are_not_joined(report: Path) -> None:
    (row,) = rows(report, RECORDED.replace("rank=0", "rank=1"), records())
    assert (row.size_bytes, row.parameters) == (None, None)


def test_records_that_do_not_fit_are_told(report: Path) -> None:
    one_more = BucketRecord(rank=0, step=4, bucket=1, size_bytes=8, is_last=True, parameters=[1], ready_ns=1, launch_ns=2)
    trace = load.read(build(report, RECORDED))
    told = {warning.code: warning.message for warning in job.analyze([trace], records=records(buckets=[one_more])).warnings}
    assert told["records"] == "rank 0 recorded 2 buckets, the timeline shows 1"
    assert "records" not in {warning.code for warning in job.analyze([trace], records=records()).warnings}


def test_many_communication_intervals_are_listed_only_when_asked_for(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "BUCKET_LIMIT", 1)
    timeline = "K dev0 s16 0..1 NCCL\nK dev0 s16 1..2 NCCL"
    assert rows(report, timeline) == ()
    assert len(rows(report, timeline, buckets=True)) == 2


# -- innermost ranges


def around(report: Path, ranges: Sequence[tuple[int, int | None]], launches: list[int]) -> list[int]:
    """For each launch the start of the innermost range, -1 for none."""
    work = [K(0, 16, 1000 + at, 1001 + at, NCCL, launch=(time, time + 1)) for at, time in enumerate(launches)]
    trace = load.read(build(report, [*work, *(N(start, end, "ncclAllReduce", thread=0) for start, end in ranges)]))
    found = ranges_around(trace, np.arange(len(launches)), np.ones(len(trace.texts), bool))
    return [-1 if row < 0 else int(trace.ranges.start_ns[row]) // 1000 for row in found.tolist()]


def test_innermost_however_many_ranges_came_and_went_before(report: Path) -> None:
    siblings = [(start, start + 1) for start in range(10, 40)]
    assert around(report, [(0, 100), (5, 60), *siblings], [12, 45, 70, 100]) == [12, 5, 0, -1]


def test_an_open_range_holds_all_that_comes_after_it(report: Path) -> None:
    assert around(report, [(10, None), (20, 30)], [5, 15, 25, 35]) == [-1, 10, 20, 10]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12),
    st.lists(st.integers(0, 30), min_size=1, max_size=8),
)
def test_the_last_started_range_that_still_runs(tmp_path: Path, ranges: list[tuple[int, int]], launches: list[int]) -> None:
    """Also when ranges do not nest, as start/end ranges need not."""
    found = around(tmp_path / "drawn.sqlite", ranges, launches)
    assert found == [max((start for start, end in ranges if start <= time < end), default=-1) for time in launches]


def test_nothing_to_attribute(report: Path) -> None:
    part = measure(load.read(build(report, "K dev0 s7 0..1 GEMM")), Options())
    assert buckets.attribute(part.trace, part.kinds, part.windows, part.measured) == []
