"""What somebody's own training script may use of ours: a step that is marked for nsys and timed for a sweep, and a model
whose buckets are marked and whose gradients are recorded for a prediction.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpprof import marks
from ddpprof.errors import WorkloadError
from ddpprof.model import RunRecord
from ddpprof.rundir import RECORDS_FOLDER, STEPS_FOLDER, RunDir
from ddpprof.workloads.recorder import OUTSIDE, Marker, Recorder, marker_for
from ddpprof.workloads.training import elapsed_ns, point


@contextmanager
def timed_step(number: int) -> Iterator[None]:
    """Marks the block as step ``number`` of this rank; under `ddpprof sweep` it also leaves what the step took.

    That is from CUDA events once CUDA is in use, from the wall clock before; waiting for the last event is all it adds.
    """
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else torch.device("cpu")
    watched = _watched.get("recorder")
    start = point(device)
    if watched is not None:  # as near to the mark as can be: on a GPU its clock is told by the mark
        watched.step, watched.is_kept, watched.started_ns = number, True, time.perf_counter_ns()
    with _marker().range(marks.rank(rank, world_size, device.index)), _marker().range(marks.step(number)):
        yield
    if folder := os.environ.get(STEPS_FOLDER):
        took_ns = elapsed_ns(start, point(device))
        with RunDir(Path(folder)).steps(rank).open("a", encoding="utf-8") as file:
            file.write(f"{number} {took_ns}\n")
        if watched is not None:
            watched.took(took_ns)
            watched.step, watched.is_kept = OUTSIDE, False


def watch(ddp: DistributedDataParallel) -> None:
    """Marks the buckets of ``ddp`` and records its gradients in each ``timed_step``, for `ddpprof predict`.

    Every rank calls it once, right after ``DDP(...)``. It registers a comm hook that does as DDP does without one, and does
    nothing but under the capture of `ddpprof profile` and `sweep`. Raises WorkloadError for a second model, and for one that
    only some ranks have.
    """
    folder = os.environ.get(RECORDS_FOLDER)
    if not folder:
        return
    if _watched:
        raise WorkloadError("ddpprof.watch: a model is watched already", "Watch the one whose buckets are in question.")
    ranks, world_size = dist.get_world_size(ddp.process_group), dist.get_world_size()
    if ranks != world_size:
        raise WorkloadError(
            f"ddpprof.watch: {ranks} of the job's {world_size} ranks share this model", "A prediction needs all of them."
        )
    is_cuda = next(ddp.parameters()).is_cuda
    run = RunRecord(
        rank=dist.get_rank(),
        world_size=world_size,
        case="",
        device="cuda" if is_cuda else "cpu",
        backend=dist.get_backend(ddp.process_group),
        bucket_cap_mb=_cap_mb(ddp),
        iterations=0,
        seed=0,
        torch_version=torch.__version__,
        clock="cuda-event" if is_cuda else "wall",
    )
    recorder = _watched["recorder"] = Recorder(run, _marker())
    recorder.step = OUTSIDE
    recorder.watch(ddp)
    atexit.register(recorder.write, RunDir(Path(folder)))


def _cap_mb(ddp: DistributedDataParallel) -> float | None:
    """The cap that ``ddp`` was given, None when it was left at DDP's default, whose first bucket is smaller."""
    return None if ddp.bucket_bytes_cap_default else ddp.bucket_bytes_cap / 2**20


_watched: dict[str, Recorder] = {}


@cache
def _marker() -> Marker:
    marker = marker_for("nsys")
    marker.is_on = True
    return marker
