"""What a rank writes: marks into the capture, rows into its records. Rows stay in memory until the loop is over.

No ``from __future__ import annotations`` here: DDP compares the annotations of a comm hook with real types.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import groupby
from statistics import median
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from ddpprof import marks
from ddpprof.model import (
    BucketRecord,
    FailureRecord,
    GradientRecord,
    IterationRecord,
    LayoutRecord,
    LoggerRecord,
    ModelRecord,
    RunRecord,
)
from ddpprof.rundir import RunDir, record_line
from ddpprof.workloads.layout import reduced

Capture = Literal["nsys", "torch", "none"]
Reduced = torch.futures.Future[list[torch.Tensor]]
Row = IterationRecord | BucketRecord | LoggerRecord | LayoutRecord | ModelRecord | FailureRecord

FEW = 256
"""Parameters up to which the gradients of every step are noted. Of more only those of warm-up and of captured steps are: a note
costs a microsecond or two, and timed steps are to be as they are without.
"""

PROBE_PARTS = (16, 1)
"""``watch`` times all-reduces of a sixteenth of all parameters and of all of them: what a small and a large bucket cost."""

PROBE_LARGEST = 64 * 2**20
"""Bytes of a probe at most."""

PROBE_TRIES = 5

OUTSIDE = -1
"""The step of what runs outside of all steps, of which nothing is noted."""

LOGGER_TEXTS = {
    "backend_name",
    "bucket_sizes",
    "comm_hook",
    "dtypes",
    "module_name",
    "prev_iteration_grad_ready_order_indices",
    "rebuilt_bucket_sizes",
    "rebuilt_per_bucket_param_indices",
}
"""Text fields of the DDP logger that are kept, beside all its numbers; others name hosts, ports and devices."""


_UNUSED = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)")


class Marker:
    """Writes ranges into the timeline of a capture while ``is_on``; this one, for a run without capture, writes none."""

    is_on = False

    def range(self, name: str) -> AbstractContextManager[Any]:
        """A context manager around which the range ``name`` lies."""
        return self._range(name) if self.is_on else nullcontext()

    def until_done(self, name: str, enqueue: Callable[[], Reduced]) -> Reduced:
        """The Future of ``enqueue()``, under a range ``name`` that ends when the Future does, on whatever thread."""
        return self._until_done(name, enqueue) if self.is_on else enqueue()

    def _range(self, name: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def _until_done(self, name: str, enqueue: Callable[[], Reduced]) -> Reduced:
        return enqueue()


class NvtxMarker(Marker):
    """Marks for nsys. The calls are those that every nvtx since 0.2.8 has; its event attributes are cached by name."""

    def __init__(self) -> None:
        import nvtx

        self._nvtx = nvtx

    def _range(self, name: str) -> AbstractContextManager[Any]:
        annotation: AbstractContextManager[Any] = self._nvtx.annotate(name, domain=marks.DOMAIN)
        return annotation

    def _until_done(self, name: str, enqueue: Callable[[], Reduced]) -> Reduced:
        started = self._nvtx.start_range(name, domain=marks.DOMAIN)
        future = enqueue()
        future.add_done_callback(lambda _: self._nvtx.end_range(started))
        return future


class TorchMarker(Marker):
    """The same names for torch.profiler."""

    def _range(self, name: str) -> AbstractContextManager[Any]:
        return torch.profiler.record_function(name)

    def _until_done(self, name: str, enqueue: Callable[[], Reduced]) -> Reduced:
        span = torch.profiler.record_function(name)
        span.__enter__()
        return span._call_end_callbacks_on_future(enqueue())


def marker_for(capture: Capture) -> Marker:
    """The marker that writes where ``capture`` looks; the silent one when nvtx is not installed."""
    if capture == "torch":
        return TorchMarker()
    if capture == "nsys":
        try:
            return NvtxMarker()
        except ImportError:
            return Marker()
    return Marker()


class Recorder:
    """The rows of one rank, and the state of its comm hook: which step runs, since when, and whether to keep its buckets."""

    def __init__(self, run: RunRecord, marker: Marker) -> None:
        self.run = run
        self.marker = marker
        self.rows: list[Row] = []
        self.step = 0
        self.started_ns = 0
        self.is_kept = False
        self.group: Any = None
        self._index_of: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._tensors: list[torch.nn.Parameter] = []
        self._handles: list[Any] = []
        self._gradients: list[tuple[int, int, int, int]] = []
        self._done: dict[tuple[int, int], int] = {}
        self._took: dict[int, int] = {}

    def watch(self, ddp: DistributedDataParallel) -> None:
        """Registers the recording hooks. All ranks call it at the same point.

        A gradient is noted in a hook that runs just before the Reducer's own.
        """
        tensors, parameters = reduced(ddp.module)
        self.group = ddp.process_group
        self._tensors = tensors
        self._index_of = {id(tensor): index for index, tensor in enumerate(tensors)}
        self._names = {index: parameter.name for index, parameter in enumerate(parameters)}
        ddp.register_forward_pre_hook(self._prepare)
        ddp.register_comm_hook(self, allreduce)
        total = min(sum(parameter.size_bytes for parameter in parameters), PROBE_LARGEST)
        probes = [total // parts for parts in PROBE_PARTS]
        row = ModelRecord(
            rank=self.run.rank,
            names=list(self._names.values()),
            size_bytes=[parameter.size_bytes for parameter in parameters],
            dtypes=[parameter.dtype for parameter in parameters],
            devices=[parameter.device for parameter in parameters],
            is_sparse=[parameter.is_sparse for parameter in parameters],
            find_unused_parameters=ddp.find_unused_parameters,
            static_graph=ddp.static_graph,
            is_last_small=os.environ.get("DDP_SET_LAST_BUCKET_CAP") == "1",
            probe_bytes=list(probes),
            probe_ns=[probe(size, ddp.process_group, tensors[0].device) for size in probes],
        )
        self.rows.append(row)

    def _prepare(self, *_: Any) -> None:
        """Has the gradients of the step that begins noted, or not."""
        if len(self._tensors) > FEW and self.is_kept and not self.marker.is_on:
            for handle in self._handles:
                handle.remove()
            self._handles = []
        elif not self._handles:
            notes = (partial(self._note, index) for index in range(len(self._tensors)))
            hooks = zip(self._tensors, notes, strict=True)
            self._handles = [tensor.register_post_accumulate_grad_hook(note) for tensor, note in hooks]

    def _note(self, index: int, _: torch.Tensor) -> None:
        if self.step != OUTSIDE:
            self._gradients.append((self.step, self.started_ns, index, time.perf_counter_ns()))

    def indices(self, bucket: GradBucket) -> list[int]:
        """DDP indices of the parameters of ``bucket``, in its order."""
        return [self._index_of[id(parameter)] for parameter in bucket.parameters()]

    def layout(self, ddp: DistributedDataParallel, stage: Literal["initial", "rebuilt"]) -> None:
        """Records the Reducer's buckets as they are now."""
        buckets = ddp.reducer._get_zeros_like_grad_buckets()
        row = LayoutRecord(
            rank=self.run.rank,
            stage=stage,
            is_rebuilt=ddp._has_rebuilt_buckets,
            size_bytes=[bytes_of(bucket.buffer()) for bucket in buckets],
            parameters=[self.indices(bucket) for bucket in buckets],
        )
        self.rows.append(row)

    def logger(self, ddp: DistributedDataParallel) -> None:
        """Records the DDP logger's fields after the current step."""
        data = ddp._get_ddp_logging_data()
        kept = {name: value for name, value in data.items() if name in LOGGER_TEXTS or not isinstance(value, str)}
        self.rows.append(LoggerRecord(rank=self.run.rank, step=self.step, fields=kept))

    def failure(self, error: BaseException, *, is_expected: bool) -> None:
        """Records that the current step raised ``error``, and which parameters DDP says were left without a gradient."""
        kind, message = type(error).__name__, first_line(error)
        if unused := _UNUSED.search(str(error)):
            message += f"; without a gradient: {', '.join(self._names.get(int(at), at) for at in unused[1].split())}"
        row = FailureRecord(rank=self.run.rank, step=self.step, error=kind, message=message, is_expected=is_expected)
        self.rows.append(row)

    def write(self, folder: RunDir) -> None:
        """Writes all rows as the records of this rank."""
        rows = (self.run, *map(self._finished, self.rows), *self._gradient_rows())
        folder.records(self.run.rank).write_text("".join(map(record_line, rows)), encoding="utf-8")

    def done(self, step: int, bucket: int, done_ns: int) -> None:
        """Notes that a bucket's Future was done, whenever that is."""
        self._done[step, bucket] = done_ns

    def took(self, step_ns: int) -> None:
        """Notes the length of the current step, where no iteration row will tell it."""
        self._took[self.step] = step_ns

    def _finished(self, row: Row) -> Row:
        return replace(row, done_ns=self._done.get((row.step, row.bucket))) if isinstance(row, BucketRecord) else row

    def _gradient_rows(self) -> Iterator[GradientRecord]:
        for (step, started_ns), notes in groupby(self._gradients, key=lambda note: note[:2]):
            times = [(index, ready_ns - started_ns) for _, _, index, ready_ns in notes]
            yield GradientRecord(
                rank=self.run.rank,
                step=step,
                started_ns=started_ns,
                parameters=[index for index, _ in times],
                ready_ns=[ready_ns for _, ready_ns in times],
                step_ns=self._took.get(step),
            )


def allreduce(state: Recorder, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The default reduction (divide, async all-reduce, its Future) with its marks and its row."""
    ready_ns = time.perf_counter_ns()
    index, gradients = bucket.index(), bucket.buffer()
    size_bytes = bytes_of(gradients)

    def enqueue() -> Reduced:
        work = dist.all_reduce(gradients, group=state.group, async_op=True)
        assert work is not None
        future: Reduced = work.get_future()
        return future

    gradients.div_(state.run.world_size)
    with state.marker.range(marks.bucket(index, size_bytes)):
        if gradients.is_cuda:
            future = enqueue()
        else:
            future = state.marker.until_done(marks.allreduce(index), enqueue)
    launch_ns = time.perf_counter_ns()
    if state.is_kept:
        row = BucketRecord(
            rank=state.run.rank,
            step=state.step,
            bucket=index,
            size_bytes=size_bytes,
            is_last=bucket.is_last(),
            parameters=state.indices(bucket),
            ready_ns=ready_ns - state.started_ns,
            launch_ns=launch_ns - state.started_ns,
        )
        state.rows.append(row)
    step, started_ns = (state.step, state.started_ns) if state.is_kept and not gradients.is_cuda else (None, 0)

    def value(future: Reduced) -> torch.Tensor:
        if step is not None:
            state.done(step, index, time.perf_counter_ns() - started_ns)
        return future.value()[0]

    return future.then(value)


def bytes_of(gradients: torch.Tensor) -> int:
    """Bytes of a bucket's buffer; of a sparse gradient those of the dense one, by which DDP counts it."""
    return gradients.numel() * gradients.element_size()


def probe(size_bytes: int, group: Any, device: torch.device) -> int:
    """Median time of an all-reduce of so many bytes with nothing beside it, on the host's clock; the first is left out."""
    values = torch.zeros(max(size_bytes // 4, 1), device=device)
    found = []
    for _ in range(1 + PROBE_TRIES):
        dist.barrier(group)
        started_ns = time.perf_counter_ns()
        dist.all_reduce(values, group=group)
        values[0].item()
        found.append(time.perf_counter_ns() - started_ns)
    return int(median(found[1:]))


def replica_hash(parameters: Iterable[torch.Tensor]) -> str:
    """Hash of the bytes of all parameters in order, on whatever device; costs a copy of them to the host."""
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(parameter.detach().cpu().numpy().data)
    return digest.hexdigest()[:32]


def first_line(error: BaseException) -> str:
    """First line of what ``error`` says, "" when it says nothing."""
    return str(error).partition("\n")[0].strip()
