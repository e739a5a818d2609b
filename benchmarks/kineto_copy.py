"""The kernels and launches of an nsys export as torch.profiler traces, a file for each rank: what HTA reads."""

from __future__ import annotations

import json
from pathlib import Path

from ddpprof.analysis import load


def write(report: Path, folder: Path) -> None:
    """Writes ``folder``/rankN.json for each rank of ``report``. Times keep their nanoseconds."""
    trace = load.read(report)
    operations = trace.operations
    for at, process in enumerate(trace.processes):
        mine = operations.take(operations.process == at)
        columns = (mine.start_ns, mine.end_ns, mine.launch_ns, mine.launch_thread, mine.device, mine.stream, mine.name)
        with (folder / f"rank{process.rank}.json").open("w", encoding="utf-8") as file:
            job = {"rank": process.rank, "world_size": process.world_size, "backend": "nccl"}
            file.write(f'{{"schemaVersion": 1, "distributedInfo": {json.dumps(job)}, "traceEvents": [\n')
            rows = zip(*(column.tolist() for column in columns), strict=True)
            file.write(
                ",\n".join(
                    _event("kernel", trace.names[name], device, stream, start, end, call, device=device, stream=stream)
                    + ",\n"
                    + _event("cuda_runtime", "cudaLaunchKernel", process.pid, thread % 2**24, launch, launch + 3_000, call)
                    for call, (start, end, launch, thread, device, stream, name) in enumerate(rows, 1)
                )
            )
            file.write("\n]}")


def _event(category: str, name: str, pid: int, tid: int, start_ns: int, end_ns: int, call: int, **more: int) -> str:
    args = json.dumps({"correlation": call, "External id": call, **more})
    times = f'"ts": {_us(start_ns)}, "dur": {_us(end_ns - start_ns)}'
    return (
        f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": {pid}, "tid": {tid}, {times}, "args": {args}}}'
    )


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03}"
