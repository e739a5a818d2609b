"""Records of a run that can be worked out by hand: parameters of 1 MiB, a gradient every 10 ms, hooks that take no time.

    records = recorded(ranks=2, order=(2, 1, 0), cap_mb=1)

Every step is alike on every rank: it starts at 0, gradient ``n`` of ``order`` comes at 10·(n+1) ms, a bucket is sent when its
Reducer would, transfers take ``ms_per_mib`` a MiB one at a time on an idle wire, and the optimizer takes 5 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddpprof.model import (
    BucketRecord,
    GradientRecord,
    IterationRecord,
    LayoutRecord,
    ModelRecord,
    Records,
    RunRecord,
)
from ddpprof.reducer import MIB, Layout, Parameter, capacity, initial, launches, mode_of, rebuilt
from ddpprof.rundir import RunDir, record_line

MS = 1_000_000


def recorded(
    *,
    ranks: int = 2,
    order: Sequence[int] = (2, 1, 0),
    count: int | None = None,
    cap_mb: float | None = 1,
    steps: Sequence[int] = (3, 4, 5, 6, 7),
    captured: int = 8,
    ms_per_mib: int = 4,
    slow_ms: Mapping[int, int] = {},
    device: str = "cpu",
    **options: Any,
) -> Records:
    """Records of ``steps`` and the ``captured`` one; ``slow_ms`` puts off every gradient of a rank; options are of DDP."""
    count = len(order) if count is None else count
    parameters = [Parameter(name=f"layer{index}.weight", size_bytes=MIB) for index in range(count)]
    mode, limits = mode_of(**options), capacity(cap_mb, torch_version="2.13.0")
    layout = initial(parameters, limits, mode)
    if mode != "find_unused":
        layout = rebuilt(parameters, limits, mode, order) or layout
    ready = {rank: [10 * (place + 1) + slow_ms.get(rank, 0) for place in range(len(order))] for rank in range(ranks)}
    unused = sorted(set(range(count)) - set(order))
    sent = {rank: [ready[rank][launch.sent] for launch in launches(layout, order, unused)] for rank in range(ranks)}
    arrival = [max(times) for times in zip(*sent.values(), strict=True)]
    done: list[int] = []
    for size, time in zip(layout.size_bytes, arrival, strict=True):
        done.append(max([time, *done]) + ms_per_mib * size // MIB)
    rows: dict[str, list[Any]] = {"iterations": [], "buckets": [], "gradients": []}
    for rank in range(ranks):
        for step in (0, 1, *steps, captured):
            times = [time * MS for time in ready[rank]]
            rows["gradients"].append(
                GradientRecord(rank=rank, step=step, started_ns=step * 10**9, parameters=list(order), ready_ns=times)
            )
        for step in (*steps, captured):
            rows["iterations"].append(_iteration(rank, step, (done[-1] + 5) * MS, is_captured=step == captured))
            rows["buckets"] += [_bucket(rank, step, at, layout, sent[rank], done, device) for at in range(len(done))]
    return Records(
        runs=tuple(_run(rank, ranks, cap_mb, captured, device) for rank in range(ranks)),
        models=tuple(_parameters(rank, parameters, options) for rank in range(ranks)),
        layouts=tuple(_layout(rank, layout, mode) for rank in range(ranks)),
        **{name: tuple(found) for name, found in rows.items()},
    )


def write(folder: Path, records: Records, **manifest: Any) -> Path:
    """A run folder with these records; its capture is for the caller to add."""
    import json

    folder.mkdir(parents=True, exist_ok=True)
    RunDir(folder).manifest.write_text(json.dumps({"case": None, "warnings": []} | manifest))
    tables = (records.runs, records.models, records.layouts, records.iterations, records.buckets, records.gradients)
    rows = [row for table in (*tables, records.failures) for row in table]
    for rank in {row.rank for row in rows}:
        RunDir(folder).records(rank).write_text("".join(record_line(row) for row in rows if row.rank == rank))
    return folder


def timeline(ranks: int, order: Sequence[int], records: Records, *, start_us: int = 1000, step: int = 8) -> str:
    """The capture of a CPU run of ``records`` in the spelling of ``nsight``: a mark a gradient's compute, its last 8 ms."""
    lines = []
    for rank in range(ranks):
        pid = 100 + rank
        took = next(row.step_ns for row in records.iterations if (row.rank, row.step) == (rank, step)) // 1000
        ready = next(row.ready_ns for row in records.gradients if (row.rank, row.step) == (rank, step))
        lines += [f"process {pid} rank={rank} world={ranks}", f'N {start_us}..{start_us + took} "step/{step}" domain=ddpprof']
        for index, time in zip(order, ready, strict=True):
            end = start_us + time // 1000
            lines.append(f'N {end - 8000}..{end} "compute/{index}" domain=ddpprof')
        for row in records.buckets:
            if (row.rank, row.step) == (rank, step) and row.done_ns is not None:
                begin, end = start_us + row.launch_ns // 1000, start_us + row.done_ns // 1000
                lines.append(f'N60 {begin}..{end} "allreduce/{row.bucket}" domain=ddpprof')
    return "\n".join(lines)


def _run(rank: int, ranks: int, cap_mb: float | None, captured: int, device: str) -> RunRecord:
    return RunRecord(
        rank=rank, world_size=ranks, case="", device=device, backend="gloo" if device == "cpu" else "nccl",
        bucket_cap_mb=cap_mb, iterations=5, seed=0, torch_version="2.13.0", captured_step=captured,
    )  # fmt: skip


def _parameters(rank: int, parameters: Sequence[Parameter], options: Mapping[str, bool]) -> ModelRecord:
    flags = {"find_unused_parameters": False, "static_graph": False} | options
    return ModelRecord(
        rank=rank,
        names=[parameter.name for parameter in parameters],
        size_bytes=[parameter.size_bytes for parameter in parameters],
        dtypes=[parameter.dtype for parameter in parameters],
        devices=[parameter.device for parameter in parameters],
        is_sparse=[False for _ in parameters],
        probe_bytes=[],
        probe_ns=[],
        **flags,
    )


def _layout(rank: int, layout: Layout, mode: str) -> LayoutRecord:
    buckets = [list(bucket) for bucket in layout.parameters]
    is_rebuilt = mode != "find_unused"
    return LayoutRecord(
        rank=rank, stage="rebuilt", is_rebuilt=is_rebuilt, size_bytes=list(layout.size_bytes), parameters=buckets
    )


def _iteration(rank: int, step: int, step_ns: int, *, is_captured: bool) -> IterationRecord:
    return IterationRecord(
        rank=rank, step=step, is_captured=is_captured, step_ns=step_ns, forward_ns=0, backward_host_ns=0, backward_ns=0,
        optimizer_host_ns=0, loss=0.0, replica_hash="",
    )  # fmt: skip


def _bucket(
    rank: int, step: int, at: int, layout: Layout, sent: Sequence[int], done: Sequence[int], device: str
) -> BucketRecord:
    return BucketRecord(
        rank=rank,
        step=step,
        bucket=at,
        size_bytes=layout.size_bytes[at],
        is_last=at == len(layout.buckets) - 1,
        parameters=list(layout.parameters[at]),
        ready_ns=sent[at] * MS,
        launch_ns=sent[at] * MS,
        done_ns=done[at] * MS if device == "cpu" else None,
    )
