"""The loop of a run: warm-up past the rebuild, timed steps, then the steps under the profiler, exactly one of a study's case.

Times are taken around the step only; what a step leaves to do (hash, loss, logger) is done after it, and the ranks meet
before the next, on a gloo group, so that no kernel of ours is in a capture beside those of the step. Several captured steps
follow each other as in a real job that looks at its loss: their data is made before, what they leave is done after, and all
that lies between two is to wait for the end of the first, which on a CPU is there.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpprof import marks
from ddpprof.errors import WorkloadError
from ddpprof.model import IterationRecord
from ddpprof.rundir import RunDir, whole_file
from ddpprof.workloads.cases import FAILING_STEP, Case
from ddpprof.workloads.models import GRID, batches, model_of, parameters
from ddpprof.workloads.recorder import Capture, Marker, Recorder, replica_hash

TIMEOUT = timedelta(seconds=120)
"""How long a rank waits for another before it fails."""

TEST_FAIL = "DDPPROF_TEST_FAIL"
"""``RANK:STEP`` makes that rank fail before the forward of that step: for tests of what a dying rank leads to."""

Point = torch.cuda.Event | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """This process's part of a run."""

    rank: int
    world_size: int
    device: torch.device
    folder: RunDir
    iterations: int = 10
    seed: int = 0
    capture: Capture = "nsys"
    is_report_per_rank: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward and backward as it ran: points on the device's clock, times on the host's, the loss still on the device."""

    forward_ns: int
    backward: tuple[Point, Point]
    backward_host_ns: int
    loss: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One step as it ran, in the same terms."""

    number: int
    step: tuple[Point, Point]
    passes: tuple[Pass, ...]
    optimizer_host_ns: int


def train(case: Case, job: Job, recorder: Recorder) -> None:
    """Trains ``case`` in the default process group and leaves its rows in ``recorder``. Raises what training raises.

    A case that must fail raises here too, WorkloadError when it did not.
    """
    meeting = dist.group.WORLD if job.device.type == "cpu" else dist.new_group(backend="gloo", timeout=TIMEOUT)
    model = model_of(case, job.seed, recorder.marker, job.rank).to(job.device)
    check_same_parameters(model, meeting)
    ddp = distribute(model, case, job.device)
    recorder.watch(ddp)
    ddp._set_ddp_runtime_logging_sample_rate(1)
    recorder.layout(ddp, "initial")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=GRID)

    first_captured = case.warmup + job.iterations
    for step in range(first_captured):
        if step == case.warmup:
            recorder.layout(ddp, "rebuilt")
        recorder.step, recorder.is_kept = step, step >= case.warmup
        _fail_if_told(job.rank, step)
        batch = _batch(case, job, step)
        dist.barrier(meeting)
        measured = run_step(case, ddp, optimizer, batch, recorder)
        if case.failure is not None and step == FAILING_STEP:
            raise WorkloadError(f"{case.name}: must fail in the second forward, and did not", "DDP of this torch differs.")
        if recorder.is_kept:
            recorder.rows.append(iteration(measured, ddp, recorder, is_captured=False))
            recorder.logger(ddp)
    if job.capture != "none":
        captured = range(first_captured, first_captured + case.captured_steps)
        _fail_if_told(job.rank, first_captured)
        data = [_batch(case, job, step) for step in captured]
        with bracket(job, recorder, meeting):
            steps: list[Measured] = []
            for recorder.step, batch in zip(captured, data, strict=True):
                if steps:
                    reach(steps[-1].step[1])
                steps.append(run_step(case, ddp, optimizer, batch, recorder))
        for measured in steps:
            recorder.rows.append(iteration(measured, ddp, recorder, is_captured=True))
        recorder.logger(ddp)
        recorder.run = replace(recorder.run, captured_step=first_captured)


def _batch(case: Case, job: Job, step: int) -> list[torch.Tensor]:
    return [x.to(job.device) for x in batches(case, job.world_size, job.seed, step, job.rank)]


def distribute(model: torch.nn.Module, case: Case, device: torch.device) -> DistributedDataParallel:
    """``model`` under DDP as ``case`` sets it."""
    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=case.bucket_cap_mb,
        gradient_as_bucket_view=True,
        find_unused_parameters=case.find_unused_parameters,
        static_graph=case.static_graph,
    )


def check_same_parameters(model: torch.nn.Module, group: dist.ProcessGroup | None) -> None:
    """Raises WorkloadError on every rank when ranks differ in number or shape of parameters, before DDP can hang on it."""
    shapes: list[list[tuple[int, ...]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(shapes, [tuple(parameter.shape) for parameter in model.parameters()], group)
    first = shapes[0]
    for rank, theirs in enumerate(shapes):
        if len(theirs) != len(first):
            what = f"rank 0 has {len(first)} parameters, rank {rank} has {len(theirs)}"
        elif theirs != first:
            index = next(index for index, shape in enumerate(theirs) if shape != first[index])
            what = f"parameter {index} has shape {first[index]} on rank 0 and {theirs[index]} on rank {rank}"
        else:
            continue
        raise WorkloadError(f"ranks differ in their model: {what}", "Start every rank with the same case and options.")


def run_step(
    case: Case,
    ddp: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[torch.Tensor],
    recorder: Recorder,
) -> Measured:
    """Runs a forward and backward on each part of ``batch``, and the optimizer; adds no waiting but the case's own."""
    marker, device = recorder.marker, batch[0].device
    step_start = point(device)
    recorder.started_ns = time.perf_counter_ns()
    with marker.range(marks.step(recorder.step)):
        if case.data_ms and recorder.step % case.data_every == 0:
            with marker.range(marks.wait("data")):
                time.sleep(case.data_ms / 1000)
        optimizer.zero_grad(set_to_none=True)
        passes = tuple(run_pass(ddp, x, marker) for x in batch)
        started_ns = time.perf_counter_ns()
        with marker.range(marks.OPTIMIZER):
            optimizer.step()
        optimizer_ns = time.perf_counter_ns() - started_ns
    return Measured(number=recorder.step, step=(step_start, point(device)), passes=passes, optimizer_host_ns=optimizer_ns)


def run_pass(ddp: DistributedDataParallel, x: torch.Tensor, marker: Marker) -> Pass:
    """Runs one forward and backward, which adds to the gradients that are there."""
    started_ns = time.perf_counter_ns()
    with marker.range(marks.FORWARD):
        loss = ddp(x)
    forward_ns = time.perf_counter_ns()
    start = point(x.device)
    with marker.range(marks.BACKWARD):
        loss.backward()
    end = point(x.device)
    return Pass(
        forward_ns=forward_ns - started_ns,
        backward=(start, end),
        backward_host_ns=time.perf_counter_ns() - forward_ns,
        loss=loss.detach(),
    )


def point(device: torch.device) -> Point:
    """Now, on the current stream of ``device``; on a CPU the host's clock."""
    if device.type == "cpu":
        return time.perf_counter_ns()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def reach(end: Point) -> None:
    """Returns when the device has come to ``end``."""
    if not isinstance(end, int):
        end.synchronize()


def elapsed_ns(start: Any, end: Any) -> int:
    """Time from one Point to another; waits for ``end`` and nothing else."""
    reach(end)
    if isinstance(end, int):
        return int(end - start)
    elapsed_ms: float = start.elapsed_time(end)
    return round(elapsed_ms * 1_000_000)


def iteration(measured: Measured, ddp: DistributedDataParallel, recorder: Recorder, *, is_captured: bool) -> IterationRecord:
    """The row of a step that has run. Only of the last one that has can the parameters, and so their hash, still be had."""
    passes = measured.passes
    return IterationRecord(
        rank=recorder.run.rank,
        step=measured.number,
        is_captured=is_captured,
        step_ns=elapsed_ns(*measured.step),
        forward_ns=sum(each.forward_ns for each in passes),
        backward_host_ns=sum(each.backward_host_ns for each in passes),
        backward_ns=elapsed_ns(passes[0].backward[0], passes[-1].backward[1]),
        optimizer_host_ns=measured.optimizer_host_ns,
        loss=passes[-1].loss.item(),
        replica_hash=replica_hash(ddp.parameters()) if measured.number == recorder.step else None,
    )


@contextmanager
def bracket(job: Job, recorder: Recorder, meeting: dist.ProcessGroup | None) -> Iterator[None]:
    """Captures what runs inside, on every rank whole: idle devices at both ends, marks on, the rank's window around it.

    nsys begins and ends a report with the first rank that says so, so the ranks meet before and after both.
    """

    def synchronize() -> None:
        if job.device.type == "cuda":
            torch.cuda.synchronize(job.device)

    synchronize()
    dist.barrier(meeting)
    with profiler(job):
        dist.barrier(meeting)
        recorder.marker.is_on = True
        with recorder.marker.range(marks.rank(job.rank, job.world_size, job.device.index)):
            yield
            synchronize()
        recorder.marker.is_on = False
        dist.barrier(meeting)


@contextmanager
def profiler(job: Job) -> Iterator[None]:
    """The profiler of ``job``, running inside. nsys has no switch on a CPU run: it sees all, and the marks tell."""
    is_cuda = job.device.type == "cuda"
    if job.capture == "torch":
        activities = [torch.profiler.ProfilerActivity.CPU]
        if is_cuda:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as profile:
            yield
        write_trace(profile, job.folder.torch_trace(job.rank))
    elif is_cuda and (job.rank == 0 or job.is_report_per_rank):
        torch.cuda.profiler.start()
        yield
        torch.cuda.profiler.stop()
    else:
        yield


def write_trace(profile: torch.profiler.profile, path: Path) -> None:
    """Writes what ``profile`` saw, gzipped, without the names of host and temporary file that torch puts in."""
    import gzip

    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(plain))
        trace = json.loads(plain.read_bytes())
    for name in ("host_name", "traceName"):
        trace.pop(name, None)
    with whole_file(path) as partial, gzip.open(partial, "wt", encoding="utf-8") as out:
        json.dump(trace, out)


def reference(case: Case, world_size: int, seed: int, steps: int) -> Iterator[tuple[list[torch.Tensor], str]]:
    """For each step, the gradients of the used parameters and the hash of all parameters after it.

    One process, plain autograd, the whole batch: what ``world_size`` ranks must agree on, bit for bit.
    """
    values = parameters(case, seed)
    used = [value.requires_grad_() for value in values[: case.used]]
    for step in range(steps):
        rows = [batches(case, world_size, seed, step, row) for row in range(world_size)]
        parts = [torch.stack(part) for part in zip(*rows, strict=True)]
        loss = torch.stack([(weight * part[:, : len(weight)]).sum() for part in parts for weight in used]).sum()
        gradients = [gradient / world_size for gradient in torch.autograd.grad(loss, used)]
        with torch.no_grad():
            for weight, gradient in zip(used, gradients, strict=True):
                weight -= GRID * gradient
        yield gradients, replica_hash(values)


def _fail_if_told(rank: int, step: int) -> None:
    if os.environ.get(TEST_FAIL) == f"{rank}:{step}":
        raise RuntimeError(f"told to fail by {TEST_FAIL}")
