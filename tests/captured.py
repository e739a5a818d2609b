"""What a capture of a delay case on the CPU leaves, without running one: the report's timeline and the ranks' records.

Times are milliseconds from the start of the captured step. Branch k of 12 takes 14: its delay is 14k..14k+10, its gradient is
computed until 14k+11. A bucket is reduced from there: until 14k+20, so 6 beside the next delay, or until 14k+13, beside none.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from nsight import build

from ddpprof import marks
from ddpprof.model import BucketRecord, FailureRecord, IterationRecord, RunRecord
from ddpprof.rundir import RunDir, record_line
from ddpprof.workloads.cases import CASES

STEP = 13
SIZE = 4 * 2**20
BRANCHES = 12
OVERLAP_MS = {"delay_cap4": 6 * (BRANCHES - 1), "delay_cap64": 0}


def report(path: Path, case: str, ranks: Collection[int] = range(2), *, world: int = 2, is_beside: bool = True) -> Path:
    """The export of a capture of ``case`` that shows these ranks; process 100 + R is rank R."""
    return build(path, "".join(_rank(case, rank, world, is_beside) for rank in ranks), duration=1_000_000)


def records(run: RunDir, case: str, ranks: Collection[int] = range(2), *, world: int = 2) -> None:
    """The records of a run of ``case``: one timed step, the captured one and its buckets; the failure that must be, instead."""
    for rank in ranks:
        rows: list[object] = [_run(case, rank, world)]
        if CASES[case].failure is not None:
            message = f"{CASES[case].failure} before starting a new one."
            rows.append(FailureRecord(rank=rank, step=1, error="RuntimeError", message=message, is_expected=True))
        else:
            rows += [_iteration(rank, step) for step in (STEP - 1, STEP)]
            rows += [_bucket(rank, *bucket) for bucket in enumerate(_buckets(case))]
        run.records(rank).write_text("".join(map(record_line, rows)))


def run_folder(path: Path, case: str, *, world: int = 2, is_beside: bool = True, **manifest: object) -> RunDir:
    """A finished run folder of ``case``; keywords change its manifest."""
    path.mkdir()
    run = RunDir(path)
    if CASES[case].failure is None:
        report(run.sqlite(), case, range(world), world=world, is_beside=is_beside)
    records(run, case, range(world), world=world)
    facts = {"case": case, "ranks": world, "bucket_cap_mb": CASES[case].bucket_cap_mb, "warnings": []}
    run.manifest.write_text(json.dumps(facts | manifest))
    return run


def _buckets(case: str) -> list[list[int]]:
    """The branches of each bucket, in order of launch."""
    branches = list(range(BRANCHES))
    return [branches] if case.endswith("cap64") else [[branch] for branch in branches]


def _rank(case: str, rank: int, world: int, is_beside: bool) -> str:
    lines = [f"process {100 + rank} rank={rank} world={world}", _range(0, 14 * BRANCHES, marks.step(STEP), 0)]
    for branch in range(BRANCHES):
        start = 14 * branch
        lines += [_range(start, start + 10, marks.delay(branch)), _range(start + 10, start + 11, marks.compute(branch))]
    for number, branches in enumerate(_buckets(case)):
        start = 14 * branches[-1] + 11
        lines.append(_range(start, start + 1, marks.bucket(number, SIZE * len(branches))))
        lines.append(_range(start, start + (9 if is_beside else 2), marks.allreduce(number)).replace("N ", "N60 ", 1))
    return "\n".join([*lines, ""])


def _range(start: int, end: int, text: str, thread: int = 1) -> str:
    return f'N {start * 1000}..{end * 1000} "{text}" domain=ddpprof thread={thread}'


def _run(case: str, rank: int, world: int) -> RunRecord:
    cap = CASES[case].bucket_cap_mb
    return RunRecord(
        rank=rank, world_size=world, case=case, device="cpu", backend="gloo", bucket_cap_mb=cap, iterations=1, seed=0,
        torch_version="2.9.1", captured_step=STEP,
    )  # fmt: skip


def _iteration(rank: int, step: int) -> IterationRecord:
    return IterationRecord(
        rank=rank, step=step, is_captured=step == STEP, step_ns=168_000_000, forward_ns=1, backward_host_ns=2,
        backward_ns=3, optimizer_host_ns=4, loss=0.5, replica_hash="ab",
    )  # fmt: skip


def _bucket(rank: int, number: int, branches: list[int]) -> BucketRecord:
    return BucketRecord(
        rank=rank, step=STEP, bucket=number, size_bytes=SIZE * len(branches), is_last=branches[-1] == BRANCHES - 1,
        parameters=branches, ready_ns=1000 * number, launch_ns=1000 * number + 500,
    )  # fmt: skip
