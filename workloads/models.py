"""The branches that most cases train, and which model and data a case has.

All arithmetic on gradients and parameters of branches is exact in float32, in whatever order they are reduced and on whatever
device (see ``parameters`` and ``sample``): one process can tell, bit for bit, what every replica must hold after every step.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from ddpprof import marks
from ddpprof.workloads import gpt
from ddpprof.workloads.cases import Branch, Case
from ddpprof.workloads.recorder import Marker

CYCLES_A_MS = 1_000_000
GRID = 2.0**-10
"""Parameters are whole multiples of it, and so is every update: it is the learning rate, and gradients are whole numbers."""


class Product(torch.autograd.Function):
    """``(weight * x).sum()``, with what ``branch`` does in its backward before the gradient, under marks.

    Autograd runs the product made last first: gradients are ready in the reverse of the forward's order.
    """

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, x: torch.Tensor, index: int, branch: Branch, marker: Marker) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.index, ctx.branch, ctx.marker = index, branch, marker
        return (weight * x).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        (x,) = ctx.saved_tensors
        branch = ctx.branch
        if branch.item_ms:
            with ctx.marker.range(marks.wait("item")):
                read_back(gradients[0], branch.item_ms)
        if branch.delay_ms:
            with ctx.marker.range(marks.delay(ctx.index)):
                hold(x.device, branch.delay_ms)
        for _ in range(branch.matmuls):
            torch.mm(*_matrices(x.device))
        with ctx.marker.range(marks.compute(ctx.index)):
            return gradients[0] * x, None, None, None, None


def hold(device: torch.device, length_ms: float) -> None:
    """Keeps the current stream busy for CYCLES_A_MS a millisecond; on a CPU sleeps, which frees the GIL."""
    if device.type == "cuda":
        torch.cuda._sleep(round(length_ms * CYCLES_A_MS))
    else:
        time.sleep(length_ms / 1000)


def read_back(value: torch.Tensor, length_ms: float) -> None:
    """What a program does that decides by a value of the device: waits until it is there, and then takes its time.

    Meanwhile the device has nothing to do. On a CPU, where a value is there at once, the time alone.
    """
    value.item()
    time.sleep(length_ms / 1000)


@cache
def _matrices(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Two operands that take a GPU's tensor cores a good part of a millisecond to multiply."""
    half = torch.full((4096, 4096), 2.0**-12, dtype=torch.bfloat16, device=device)
    return half, half


class Branches(torch.nn.Module):
    """The sum of one product a used parameter, in the case's order; unused parameters are registered and nothing more."""

    def __init__(self, case: Case, seed: int, marker: Marker, rank: int = 0) -> None:
        super().__init__()
        values = parameters(case, seed)
        self.branches = torch.nn.ParameterList(values[: case.used])
        self.unused = torch.nn.ParameterList(values[case.used :])
        self.case, self.marker = case, marker
        self.plans = [slowed(branch, case.slow_ranks_ms.get(rank, 0)) for branch in case.branches]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_zeros(())
        for index in self.case.order:
            weight = self.branches[index]
            y = y + Product.apply(weight, x[: len(weight)], index, self.plans[index], self.marker)  # type: ignore[no-untyped-call]
        return y


def slowed(branch: Branch, by_ms: float) -> Branch:
    """``branch`` on a rank that takes ``by_ms`` longer for it."""
    return replace(branch, delay_ms=branch.delay_ms + by_ms)


def model_of(case: Case, seed: int, marker: Marker, rank: int) -> torch.nn.Module:
    """What rank ``rank`` trains, on the CPU: a module from ``sample`` to the loss."""
    if case.transformer is not None:
        return gpt.Gpt(case.transformer, seed, marker)
    return Branches(case, seed, marker, rank)


def parameters(case: Case, seed: int) -> list[torch.Tensor]:
    """The first values of all parameters of branches, flat float32 on the CPU: multiples of GRID in [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-1024, 1025, (size // 4,), generator=generator) * GRID for size in case.parameter_bytes]


def batches(case: Case, world_size: int, seed: int, step: int, row: int) -> list[torch.Tensor]:
    """What each forward of ``step`` takes on rank ``row``, on the CPU."""
    numbers = range(step * case.passes, (step + 1) * case.passes)
    if case.transformer is not None:
        return [gpt.sample(case.transformer, seed, number, row) for number in numbers]
    return [sample(case, world_size, seed, number, row) for number in numbers]


def sample(case: Case, world_size: int, seed: int, number: int, row: int) -> torch.Tensor:
    """Row ``row`` of the global batch ``number``, which is what rank ``row`` trains on; flat float32 on the CPU.

    Each value is -1, 0 or 1 times ``world_size``: divided by it, a rank gives whole numbers to the sum. Exact for up to 40
    ranks even on a GPU, which divides by multiplying with the rounded reciprocal; with several passes for powers of two.
    """
    generator = torch.Generator().manual_seed(seed + 1_000_003 * (number + 1) + 1_009 * row)
    size = max(case.parameter_bytes) // 4
    return (torch.randint(-1, 2, (size,), generator=generator) * world_size).float()
