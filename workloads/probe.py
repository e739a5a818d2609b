"""The real Reducer in small: its assignment alone, a Reducer driven by hand, a DDP module whose ready order is chosen.

This is what ``ddpprof.reducer`` is held against. All of it works in a group of one process (``join_alone``).

No ``from __future__ import annotations`` here: DDP compares the annotations of a comm hook with real types.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    GradBucket,
    HashStore,
    Reducer,
    _compute_bucket_assignment_by_size,
    _register_comm_hook,
)
from torch.distributed.distributed_c10d import _get_default_group
from torch.nn.parallel import DistributedDataParallel

from ddpprof.reducer import Bucket, Capacity, Layout, Parameter


def join_alone() -> None:
    """Makes this process a gloo group of its own."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def tensor(parameter: Parameter) -> torch.Tensor:
    """A flat tensor as ``parameter`` says; on the device "meta" it takes no memory."""
    dtype = getattr(torch, parameter.dtype)
    return torch.zeros(parameter.size_bytes // dtype.itemsize, dtype=dtype, device=parameter.device)


def assignment(parameters: Sequence[Parameter], limits_bytes: Sequence[int], order: Sequence[int] | None = None) -> Layout:
    """What ``ddpprof.reducer.assign`` is a model of: PyTorch's own answer."""
    taken = range(len(parameters)) if order is None else order
    buckets, limits = _compute_bucket_assignment_by_size(
        [tensor(parameters[index]) for index in taken],
        list(limits_bytes),
        [parameter.is_sparse for parameter in parameters],
        [] if order is None else list(order),
    )
    sizes = [sum(parameters[index].size_bytes for index in bucket) for bucket in buckets]
    return Layout(tuple(Bucket(tuple(bucket), size, limit) for bucket, size, limit in zip(buckets, sizes, limits, strict=True)))


@dataclass(frozen=True, slots=True)
class Sent:
    """One bucket given to the comm hook: its index, its parameters, and the gradients that were ready before this one."""

    bucket: int
    parameters: tuple[int, ...]
    position: int


@dataclass(slots=True)
class Pass:
    """One backward: parameter indices in the order in which their gradients came, and buckets in the order of launch."""

    ready: list[int] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)


class Watch:
    """What one Reducer does, pass by pass; its ``hook`` is the comm hook, which reduces as the default one does."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.passes: list[Pass] = []
        self._index_of = {id(tensor): index for index, tensor in enumerate(tensors)}

    def note_ready(self, index: int) -> None:
        self.passes[-1].ready.append(index)

    def parameters(self, bucket: GradBucket) -> tuple[int, ...]:
        """Indices of the parameters of ``bucket``, in its order."""
        return tuple(self._index_of[id(parameter)] for parameter in bucket.parameters())

    def hook(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen = self.passes[-1]
        seen.sent.append(Sent(bucket.index(), self.parameters(bucket), len(seen.ready) - 1))
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        assert work is not None
        reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
        return reduced


class _Act(torch.autograd.Function):
    """Calls ``act`` in its backward: inside the engine, where a Reducer may queue its end."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, act: Any) -> torch.Tensor:
        ctx.act = act
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.act()
        return gradients[0], None


class Driven:
    """A Reducer built by hand, whose gradients become ready in whatever order ``backward`` is told."""

    def __init__(self, parameters: Sequence[Parameter], layout: Layout, capacity: Capacity) -> None:
        self._tensors = [tensor(parameter).requires_grad_() for parameter in parameters]
        self._watch = Watch(self._tensors)
        self.reducer = Reducer(  # type: ignore[call-arg]  # torch's own types misspell first_bucket_bytes_cap
            params=self._tensors,
            bucket_indices=[list(bucket) for bucket in layout.parameters],
            per_bucket_size_limits=[bucket.limit_bytes for bucket in layout.buckets],
            process_group=_get_default_group(),
            bucket_bytes_cap=capacity.cap_bytes,
            first_bucket_bytes_cap=capacity.first_bytes,
        )
        _register_comm_hook(self.reducer, None, lambda _, bucket: self._watch.hook(bucket))

    def backward(self, ready: Sequence[int]) -> Pass:
        """One pass in which the gradients of ``ready`` come, in that order."""

        def act() -> None:
            for index in ready:
                self._tensors[index].grad = torch.ones_like(self._tensors[index])
                self._watch.note_ready(index)
                self.reducer._autograd_hook(index)  # type: ignore[attr-defined]

        self._watch.passes.append(Pass())
        self.reducer.prepare_for_forward()
        self.reducer._rebuild_buckets()
        self.reducer.prepare_for_backward([])
        _Act.apply(torch.zeros(1, requires_grad=True), act).backward()  # type: ignore[no-untyped-call]
        return self._watch.passes[-1]


class Flat(torch.nn.Module):
    """One flat parameter, summed."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self) -> torch.Tensor:
        return self.weight.sum().float()


class Sparse(torch.nn.Embedding):
    """One parameter with a sparse gradient, by which DDP's only test is the module's class."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__(len(weight), 1, sparse=True, _weight=weight[:, None])

    def forward(self) -> torch.Tensor:  # type: ignore[override]
        return super().forward(torch.zeros(1, dtype=torch.int64)).sum().float()


class Branches(torch.nn.Module):
    """Parameters, each in a branch of its own; ``ready`` is the order in which their gradients come, unused ones left out.

    Autograd runs the branch made last first, so branches are made from the back of ``ready``.
    """

    def __init__(self, parameters: Sequence[Parameter], ready: Sequence[int] | None = None) -> None:
        super().__init__()
        made = [(Sparse if parameter.is_sparse else Flat)(tensor(parameter)) for parameter in parameters]
        self.branches = torch.nn.ModuleList(made)
        self.ready = list(range(len(made) - 1, -1, -1) if ready is None else ready)

    def forward(self) -> torch.Tensor:
        y = torch.zeros(())
        for index in reversed(self.ready):
            y = y + self.branches[index]()
        return y


class Watched:
    """``Branches`` under DDP, watched. ``ready`` may be set anew before each step."""

    def __init__(self, parameters: Sequence[Parameter], ready: Sequence[int] | None = None, **options: Any) -> None:
        self.module = Branches(parameters, ready)
        self.ddp = DistributedDataParallel(self.module, **options)
        self._watch = Watch(list(self.module.parameters()))
        for index, weight in enumerate(self.module.parameters()):
            weight.register_post_accumulate_grad_hook(lambda _, index=index: self._watch.note_ready(index))
        self.ddp.register_comm_hook(self._watch, Watch.hook)

    def step(self, ready: Sequence[int] | None = None) -> Pass:
        """One forward and backward from fresh gradients, in the order ``ready`` from now on."""
        if ready is not None:
            self.module.ready = list(ready)
        self._watch.passes.append(Pass())
        self.module.zero_grad(set_to_none=True)
        self.ddp().backward()
        return self._watch.passes[-1]

    def layout(self) -> tuple[tuple[int, ...], ...]:
        """Parameter indices of each bucket as they are now."""
        return tuple(self._watch.parameters(bucket) for bucket in self.ddp.reducer._get_zeros_like_grad_buckets())
