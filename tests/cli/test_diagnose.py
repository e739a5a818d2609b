"""``ddpprof diagnose`` on reports that show a cause, none, and too little to tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nsight import build

from ddpprof.model import CAUSES

HELD = """
    process 100 rank=0 world=1
    N   0..90 "step/1"
    N  10..80 "backward"
    N  20..30 "bucket/0/4194304" thread=2
    N  30..40 "bucket/1/4194304" thread=2
    K dev0 s7     0..1000 GEMM launch=12..13 thread=2
    K dev0 s16 1000..1500 NCCL launch=21..22 thread=2
    K dev0 s16 1500..2000 NCCL launch=31..32 thread=2
"""
"""Two buckets of 4 MiB that are sent together when all compute is over: half of 1 ms of a step of 2 ms."""


def test_the_cause_with_its_cost_evidence_and_what_to_try(cli, report: Path) -> None:
    done = cli("diagnose", build(report, HELD))
    assert done.status == 0
    words = " ".join(done.out.split())
    assert "What holds the step back? bucket-scheduling on rank 0, up to 500.0 us of a step of 2.000 ms (25.0 %)" in words
    assert "1. bucket-scheduling (warning, sure: medium), rank 0 1 of 2 buckets were ready but not sent" in words
    assert "evidence: parked 1, buckets 2, head bucket 0, exposed comm 1.000 ms, steps 1 try: " in words
    assert "look at: 1.979 ms from 0.021 ms of report.sqlite, process 100" in words
    assert "- straggler-rank: only one rank has communication in the input" in done.out


def test_json_is_that_of_analyze(cli, report: Path) -> None:
    build(report, HELD)
    document = json.loads(cli("diagnose", report, "--format", "json").out)
    whole = json.loads(cli("analyze", report, "--format", "json").out)
    assert [item["code"] for item in document["findings"]] == ["bucket-scheduling"]
    assert document.items() <= whole.items()


def test_markdown(cli, report: Path) -> None:
    out = cli("diagnose", build(report, HELD), "-f", "markdown").out
    assert "## 1. bucket-scheduling (warning, sure: medium), rank 0" in out


@pytest.mark.parametrize(
    "timeline",
    [
        "K dev0 s7 0..1 GEMM",
        "K dev0 s7 0..1 GEMM launch=-2..-1\nK dev0 s16 0..1 NCCL launch=-1..0",
        "K dev0 s7 0..1 GEMM pid=100\nK dev0 s16 2..3 NCCL pid=200",
        'N 0..9 "step/1"\nK dev0 s16 5..6 NCCL launch=1..2',
        'process 100 rank=0\nN 0..9 "step/1" domain=ddpprof\nN 1..5 "compute/0" domain=ddpprof',
        "K dev0 s7 0..1 GEMM\nG dev0 s7 2..900",
    ],
    ids=["one kernel", "no steps", "unequal", "no compute", "no device", "opaque"],
)
def test_poor_input_is_told_what_cannot_be_judged(cli, report: Path, timeline: str) -> None:
    done = cli("diagnose", build(report, timeline), "-f", "json")
    assert (done.status, done.err) == (0, "reading\n" if done.err else "")
    document = json.loads(done.out)
    named = {item["code"] for item in document["findings"]} | {item["code"] for item in document["not_judged"]}
    assert named <= set(CAUSES)
    assert "straggler-rank" in named


def test_a_report_that_is_not_there(cli, tmp_path: Path) -> None:
    done = cli("diagnose", tmp_path / "none.sqlite")
    assert (done.status, done.out) == (1, "")
    assert "no such report" in done.err


def test_the_order_of_reports_does_not_matter(cli, tmp_path: Path) -> None:
    """Rank 1 comes 400 us after rank 0 at each of four collectives."""
    for rank, late in enumerate((0, 400)):
        lines = [f"process {100 + rank} rank={rank} world=2", 'N 0..999 "step/1"']
        for at in (1000, 2000, 3000, 4000):
            lines.append(f"K dev0 s7  {at - 300}..{at + late - 10} GEMM launch={at / 100}..{at / 100 + 1}")
            lines.append(f"K dev0 s16 {at + late}..{at + 410} NCCL launch={at / 100 + 2}..{at / 100 + 3}")
        build(tmp_path / f"rank{rank}.sqlite", "\n".join(lines))
    reports = [tmp_path / "rank0.sqlite", tmp_path / "rank1.sqlite"]
    first, second = (json.loads(cli("diagnose", *order, "-f", "json").out)["findings"] for order in (reports, reports[::-1]))
    assert (first[0]["code"], first[0]["rank"]) == ("straggler-rank", 1)
    for item in (*first, *second):
        item.pop("spans")
    assert first == second


def test_two_reports_whose_clocks_are_a_minute_apart(cli, tmp_path: Path) -> None:
    for rank, start in enumerate((0, 60_000_000)):
        work = f"K dev0 s7 {start}..{start + 9} GEMM\nK dev0 s16 {start + 9}..{start + 12} NCCL"
        build(tmp_path / f"rank{rank}.sqlite", f"process {100 + rank} rank={rank} world=2\n{work}")
    done = cli("diagnose", tmp_path)
    assert done.status == 0
    assert "straggler-rank" in done.out
