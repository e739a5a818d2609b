"""The model of every case: independent parameter branches whose backward can hold the compute stream.

All arithmetic on gradients and parameters is exact in float32, in whatever order they are reduced and on whatever device
(see ``parameters`` and ``sample``): one process can tell, bit for bit, what every replica must hold after every step.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from ddpprof import marks
from ddpprof.workloads.cases import MIB, Case
from ddpprof.workloads.recorder import Marker

DELAY_CYCLES = 10_000_000
DELAY_S = 0.010
GRID = 2.0**-10
"""Parameters are whole multiples of it, and so is every update: it is the learning rate, and gradients are whole numbers."""


class Branch(torch.autograd.Function):
    """``(weight * x).sum()`` with marks in its backward, and a delay before it where asked.

    Autograd runs the branch made last first: gradients are ready from the highest index to 0.
    """

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, x: torch.Tensor, index: int, is_delayed: bool, marker: Marker) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.index, ctx.is_delayed, ctx.marker = index, is_delayed, marker
        return (weight * x).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        (x,) = ctx.saved_tensors
        if ctx.is_delayed:
            with ctx.marker.range(marks.delay(ctx.index)):
                hold(x.device)
        with ctx.marker.range(marks.compute(ctx.index)):
            return gradients[0] * x, None, None, None, None


def hold(device: torch.device) -> None:
    """Keeps the current stream busy for DELAY_CYCLES; on a CPU sleeps DELAY_S, which frees the GIL."""
    if device.type == "cuda":
        torch.cuda._sleep(DELAY_CYCLES)
    else:
        time.sleep(DELAY_S)


class Branches(torch.nn.Module):
    """The sum of one branch a used parameter, made in index order; unused parameters are registered and nothing more."""

    def __init__(self, case: Case, seed: int, marker: Marker) -> None:
        super().__init__()
        values = parameters(case, seed)
        self.branches = torch.nn.ParameterList(values[: case.used])
        self.unused = torch.nn.ParameterList(values[case.used :])
        self.is_delayed = case.is_delayed
        self.marker = marker

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_zeros(())
        for index, weight in enumerate(self.branches):
            y = y + Branch.apply(weight, x, index, self.is_delayed, self.marker)  # type: ignore[no-untyped-call]
        return y


def parameters(case: Case, seed: int) -> list[torch.Tensor]:
    """The first values of all parameters, flat float32 on the CPU: multiples of GRID in [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    size = int(case.parameter_mb * MIB) // 4
    return [torch.randint(-1024, 1025, (size,), generator=generator) * GRID for _ in range(case.parameters)]


def sample(case: Case, world_size: int, seed: int, step: int, row: int) -> torch.Tensor:
    """Row ``row`` of the global batch of ``step``, which is what rank ``row`` trains on; flat float32 on the CPU.

    Each value is -1, 0 or 1 times ``world_size``: divided by it, a rank gives whole numbers to the sum. Exact for up to 40
    ranks even on a GPU, which divides by multiplying with the rounded reciprocal.
    """
    generator = torch.Generator().manual_seed(seed + 1_000_003 * (step + 1) + 1_009 * row)
    size = int(case.parameter_mb * MIB) // 4
    return (torch.randint(-1, 2, (size,), generator=generator) * world_size).float()
