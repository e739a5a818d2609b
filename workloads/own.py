"""What somebody's own training script may use of ours: a step that is marked for nsys and timed for a sweep."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

from ddpprof import marks
from ddpprof.rundir import STEPS_FOLDER, RunDir
from ddpprof.workloads.recorder import Marker, marker_for
from ddpprof.workloads.training import elapsed_ns, point


@contextmanager
def timed_step(number: int) -> Iterator[None]:
    """Marks the block as step ``number`` of this rank; under `ddpprof sweep` it also leaves what the step took.

    That is from CUDA events once CUDA is in use, from the wall clock before; waiting for the last event is all it adds.
    """
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else torch.device("cpu")
    start = point(device)
    with _marker().range(marks.rank(rank, world_size, device.index)), _marker().range(marks.step(number)):
        yield
    if folder := os.environ.get(STEPS_FOLDER):
        took_ns = elapsed_ns(start, point(device))
        with RunDir(Path(folder)).steps(rank).open("a", encoding="utf-8") as file:
            file.write(f"{number} {took_ns}\n")


@cache
def _marker() -> Marker:
    marker = marker_for("nsys")
    marker.is_on = True
    return marker
