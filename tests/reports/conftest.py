"""Literal Analysis values that every format is tested on, and golden files.

``pytest tests/reports --regenerate-golden`` writes the golden files anew: read their diff before you keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpprof.model import (
    Across,
    AcrossRank,
    Analysis,
    BucketRecord,
    BucketRow,
    CollectiveRow,
    FailureRecord,
    Finding,
    Focus,
    FocusRow,
    KindRow,
    Lane,
    LoggerRecord,
    NotJudged,
    RankLanes,
    RankRow,
    Records,
    ReportInfo,
    RunRecord,
    Span,
    StepRow,
    Timeline,
    TimingRow,
    Warning,
)

GOLDEN = Path(__file__).parents[1] / "golden"


def metrics(step: int, compute: int, comm: int, overlap: int, memory: int = 0, **other: Any) -> dict[str, Any]:
    """The numbers of a window that hold together, from the four that say it all (ns)."""
    return {
        "step_ns": step,
        "compute_ns": compute,
        "comm_ns": comm,
        "overlap_ns": overlap,
        "exposed_comm_ns": comm - overlap,
        "compute_only_ns": compute - overlap,
        "memory_only_ns": memory,
        "idle_ns": step - compute - (comm - overlap) - memory,
        "compute_span_ns": compute or None,
        "comm_span_ns": comm or None,
        "tail_ns": comm - overlap if comm and compute else None,
        "overlap_ratio": overlap / comm if comm else None,
        "compute_sum_ns": compute,
        "comm_sum_ns": comm,
        "n_memory": 0,
        "n_before_last_compute": None,
    } | other


def rank_row(rank: int | None, *numbers: int, **other: Any) -> RankRow:
    fixed = {
        "rank": rank,
        "rank_source": "mark",
        "report": 0,
        "pid": 564 + (rank or 0),
        "device_id": 0,
        "device_name": "NVIDIA H200",
        "gpu": 0,
        "is_time_sliced": False,
        "steps": 1,
        "n_compute": 110,
        "n_comm": 12,
        "n_left_out": 0,
        "spread": {},
        "unreliable": (),
    }
    return RankRow(**(fixed | metrics(*numbers) | other))


def step_row(row: RankRow, step: int | None, *numbers: int, **other: Any) -> StepRow:
    fixed = {
        "rank": row.rank,
        "report": row.report,
        "pid": row.pid,
        "device_id": row.device_id,
        "step": step,
        "complete": True,
        "reason": None,
        "start_ns": 13_000_000,
        "end_ns": 13_000_000 + numbers[0],
        "n_compute": row.n_compute,
        "n_comm": row.n_comm,
    }
    return StepRow(**(fixed | metrics(*numbers) | other))


def bucket_row(row: RankRow, step: int | None, bucket: int, launch: int | None, start: int, end: int, hidden: int) -> BucketRow:
    """A bucket of 4 MiB over 2 ranks, ``hidden`` ns of it under compute."""
    rate = 4_194_304 / (end - start) * 1e9
    return BucketRow(
        rank=row.rank,
        report=row.report,
        pid=row.pid,
        device_id=row.device_id,
        step=step,
        bucket=bucket,
        operation="AllReduce",
        size_bytes=4_194_304,
        parameters=(11 - bucket,),
        launch_ns=launch,
        queue_ns=None if launch is None else start - launch,
        start_ns=start,
        end_ns=end,
        overlap_ns=hidden,
        exposed_ns=end - start - hidden,
        algbw=rate,
        busbw=rate,
        attribution="range",
    )


def timing_row(case: str, rank: int | None, phase: str, clock: str, *times_ns: int, caution: str | None = None) -> TimingRow:
    """``times_ns``: median, 95th percentile, least, greatest, deviation of three iterations."""
    names = ("median_ns", "p95_ns", "min_ns", "max_ns", "mad_ns")
    times = dict(zip(names, times_ns, strict=True))
    return TimingRow(case=case, rank=rank, phase=phase, clock=clock, n=3, caution=caution, **times)


REPORT = ReportInfo(path="report.sqlite", kind="nsys-sqlite", exporter_version="2024.2.3", schema_version="3.12.0")
SECOND = replace(REPORT, path="second.sqlite")
TIME_SLICED = Warning(code="time-sliced", message="ranks 0 and 1 share one GPU", report=0)
FEW_STEPS = Warning(code="few-steps", message="1 complete step")


def analysis(*ranks: RankRow, **other: Any) -> Analysis:
    fixed = {
        "ddpprof_version": "0.1.0",
        "case": None,
        "evidence": "gpu-kernels",
        "reports": (REPORT,),
        "window": "step",
        "world_size": len(ranks),
        "ranks": ranks,
        "breakdown": (),
        "buckets": (),
        "focus": None,
        "kinds": (),
    }
    return Analysis(**(fixed | other))


def across_row(row: RankRow, n: int, wait_ns: int, n_last: int | None = None, late_ns: int | None = None) -> AcrossRank:
    return AcrossRank(
        rank=row.rank,
        report=row.report,
        pid=row.pid,
        device_id=row.device_id,
        offset_ns=0,
        n_collectives=n,
        n_last=n_last,
        wait_ns=wait_ns,
        late_ns=late_ns,
    )


def two_ranks() -> Analysis:
    """The real capture of two ranks on one H200: 12 buckets, of which the first and the last are shown."""
    zero = rank_row(0, 74_890_977, 67_689_034, 49_068_882, 44_272_812, is_time_sliced=True, n_before_last_compute=11)
    one = rank_row(1, 75_395_516, 67_693_548, 43_304_680, 40_405_347, is_time_sliced=True, n_before_last_compute=11)
    return analysis(
        zero,
        one,
        case="delay_cap4",
        breakdown=(
            step_row(zero, 4, 74_890_977, 67_689_034, 49_068_882, 44_272_812),
            step_row(one, 4, 75_395_516, 67_693_548, 43_304_680, 40_405_347),
        ),
        buckets=(
            bucket_row(zero, 4, 0, 15_000_000, 20_901_092, 25_151_740, 4_250_648),
            bucket_row(zero, 4, 11, 20_000_000, 83_399_769, 88_195_180, 0),
            bucket_row(one, 4, 0, None, 23_148_655, 27_203_753, 4_053_722),
            bucket_row(one, 4, 11, None, 85_653_572, 88_552_073, 0),
        ),
        focus=Focus(
            pattern="spin_kernel",
            ranks=tuple(
                FocusRow(
                    rank=row.rank,
                    report=0,
                    pid=row.pid,
                    device_id=0,
                    n_compute=12,
                    compute_ns=65_000_000,
                    compute_span_ns=67_550_310,
                    overlap_ns=44_000_000,
                )
                for row in (zero, one)
            ),
        ),
        kinds=(
            KindRow(kind="compute", name="spin_kernel", operation=None, count=24, total_ns=130_000_000),
            KindRow(
                kind="comm",
                name="ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                operation="AllReduce",
                count=24,
                total_ns=92_373_562,
            ),
        ),
        findings=(
            Finding(
                code="compute-tail",
                severity="warning",
                message="the last bucket waits for compute",
                rank=0,
                evidence={"exposed_comm_ns": 4_796_070, "launch_ratio": 0.9, "n_buckets": 12},
                cost_ns=18_722_744,
                step_ns=74_890_977,
                on_ranks=(0,),
                sure="high",
                advice="Smaller buckets cannot help.",
                spans=(Span(report=0, pid=564, start_ns=66_202_000, end_ns=70_011_000),),
            ),
        ),
        across=Across(
            clock="one report",
            uncertainty_ns=10_000,
            refused=None,
            transfer_ns=43_304_680,
            ranks=(across_row(zero, 12, 5_764_202), across_row(one, 12, 0)),
            collectives=(
                CollectiveRow(
                    step=4,
                    place=0,
                    bucket=0,
                    operation="AllReduce",
                    size_bytes=4_194_304,
                    transfer_ns=4_055_098,
                    length_ns=[4_250_648, 4_055_098],
                    wait_ns=[195_550, 0],
                    arrival_ns=[0, 2_247_563],
                    last=None,
                ),
            ),
        ),
        not_judged=(
            NotJudged(code="straggler-rank", reason="ranks share a GPU"),
            NotJudged(code="contention", reason="ranks share a GPU"),
            NotJudged(code="periodic-spikes", reason="fewer than 8 steps follow each other"),
        ),
        warnings=(TIME_SLICED, FEW_STEPS),
        timings=tuple(
            row
            for rank in (0, 1)
            for row in (
                timing_row("delay_cap4", rank, "step", "cuda-event", 72_000_000, 73_000_000, 71_000_000, 73_000_000, 1_000_000),
                timing_row("delay_cap4", rank, "backward", "cuda-event", *[68_000_000] * 4, 0),
                timing_row("delay_cap4", rank, "backward host", "wall", *[7_566_000] * 4, 0),
                timing_row("delay_cap4", rank, "optimizer host", "wall", *[217_000] * 4, 0),
            )
        ),
    )


def four_hosts() -> Analysis:
    """Four gloo ranks on a CPU, one of them with nothing hidden."""
    overlaps = (46_505_689, 12_269_099, 0, 10_479_263)
    host = {"device_id": None, "device_name": None, "gpu": None, "n_compute": 12}
    ranks = [rank_row(rank, 300_000_000, 240_000_000, 50_000_000, overlaps[rank], **host) for rank in range(4)]
    late = (4_170_934, 5_690_852, -10_115_134, -4_170_934)
    across = Across(
        clock="collective ends",
        uncertainty_ns=812_000,
        refused="ranks differ in number of collectives: 12 and 11 (step 7)",
        transfer_ns=8_000_000,
        ranks=tuple(across_row(row, 48, 1_000_000 * row.rank, 7 * row.rank, late[row.rank]) for row in ranks),
        collectives=(),
    )
    return analysis(*ranks, evidence="host-ranges", across=across, warnings=(FEW_STEPS,))


def no_comm() -> Analysis:
    """One process without any communication and without step marks."""
    row = rank_row(0, 1_000_000, 900_000, 0, 0, n_comm=0)
    return analysis(
        row, window="capture", warnings=(Warning(code="no-comm", message="no NCCL kernels (gloo backend?)", report=0),)
    )


def opaque() -> Analysis:
    """CUDA graphs captured whole: 0.078 ms of kernels beside seconds that nobody can see into."""
    row = rank_row(0, 7_811_000_000, 78_000, 0, 0, n_compute=30, n_comm=0, unreliable=("graph-trace-opaque",))
    warning = Warning(code="graph-trace-opaque", message="10 graphs of 7,811 ms; use --cuda-graph-trace=node", report=0)
    return analysis(row, window="capture", world_size=None, warnings=(warning,))


def unknown_ranks() -> Analysis:
    """Two reports whose ranks cannot be told, with names that mean something to a terminal, Markdown and HTML."""
    row = rank_row(None, 1_000, 900, 500, 400, rank_source="unknown", pid=71, gpu=None, device_name="GPU | <b>*8*</b>")
    return analysis(
        row,
        replace(row, report=1, device_id=3, unreliable=("dropped-rows",)),
        reports=(REPORT, SECOND),
        window="capture",
        world_size=None,
        kinds=(
            KindRow(kind="compute", name="\x1b[31mvoid f<A, B>(α|β)\n</td>" + "x" * 200, operation=None, count=1, total_ns=1),
        ),
        findings=(Finding(code="odd", severity="note", message="a `code` & <tag>", evidence={"ratio": float("nan")}),),
        warnings=(Warning(code="rank-unknown", message="no RANK in the capture — use --rank FILE=N", report=1),),
    )


def many_steps() -> Analysis:
    """Two ranks on GPUs of their own, six steps, the first of them left out."""
    spread = {"step_ns": (9_800_000, 10_400_000), "overlap_ns": (3_900_000, 4_100_000)}
    ranks = [
        rank_row(rank, 10_000_000, 8_000_000, 5_000_000, 4_000_000 + rank, 300_000, gpu=rank, steps=5, spread=spread)
        for rank in (0, 1)
    ]
    rows = [
        step_row(
            row, step, 10_000_000 + step, 8_000_000, 5_000_000, 4_000_000, complete=step > 0, reason=None if step else "step 0"
        )
        for row in ranks
        for step in range(6)
    ]
    return analysis(*ranks, world_size=4, breakdown=tuple(rows))


def nothing() -> Analysis:
    """No rank, no report: the emptiest Analysis there is."""
    return analysis(reports=(), world_size=None)


EXAMPLES: dict[str, Callable[[], Analysis]] = {
    build.__name__: build for build in (two_ranks, four_hosts, no_comm, opaque, unknown_ranks, many_steps, nothing)
}


def run_records() -> Records:
    """What the run of ``two_ranks`` recorded beside its timings: the hook's and the DDP logger's last words."""

    def hook(rank: int, bucket: int) -> BucketRecord:
        return BucketRecord(
            rank=rank,
            step=4,
            bucket=bucket,
            size_bytes=4_194_304,
            is_last=bucket == 11,
            parameters=[11 - bucket],
            ready_ns=1_000_000 + bucket,
            launch_ns=1_100_000 + bucket,
        )

    return Records(
        runs=tuple(
            RunRecord(
                rank=rank,
                world_size=2,
                case="delay_cap4",
                device="cuda",
                backend="nccl",
                bucket_cap_mb=4.0,
                iterations=3,
                seed=0,
                torch_version="2.11",
                clock="cuda-event",
            )
            for rank in (0, 1)
        ),
        buckets=tuple(hook(rank, bucket) for rank in (0, 1) for bucket in (0, 11)),
        loggers=(
            LoggerRecord(
                rank=0,
                step=4,
                fields={"backward_compute_comm_overlap_time": 62_946_000, "backward_compute_time": 7_000, "iteration": 3},
            ),
        ),
        failures=(
            FailureRecord(
                rank=1, step=5, error="RuntimeError", message="Expected to have finished | reduction", is_expected=True
            ),
        ),
    )


@pytest.fixture(params=EXAMPLES)
def example(request: pytest.FixtureRequest) -> Analysis:
    """Each example in turn, the emptiest included."""
    return EXAMPLES[request.param]()


@pytest.fixture
def make() -> Callable[[str], Analysis]:
    """The example of that name."""
    return lambda name: EXAMPLES[name]()


@pytest.fixture
def records() -> Records:
    return run_records()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate-golden", action="store_true", help="write tests/golden anew (give tests/reports as well)")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares text with the golden file of that name, or writes it."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--regenerate-golden", default=False):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture
def one_lane() -> Timeline:
    """One rank with one kernel of 1 ms."""
    one = np.array([0], dtype=np.int64)
    lane = Lane(rank=0, title="stream 7", start_ns=one, end_ns=one + 1_000_000, kind=one, label=("",))
    none = np.array([], dtype=np.int64)
    ranks = RankLanes(
        rank=0,
        title="rank 0",
        lanes=(lane,),
        overlap_start_ns=none,
        overlap_end_ns=none,
        window=(0, 1_000_000),
        overlap_ns=0,
        compute_label="compute",
    )
    return Timeline(evidence="gpu-kernels", ranks=(ranks,), step=4)
