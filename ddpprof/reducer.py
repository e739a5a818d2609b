"""The DDP Reducer as plain functions: which parameters share a bucket, and when each bucket is sent.

Read from top to bottom this is the Reducer: what it reduces (``reduced``), how large buckets may be (``capacity``), how
parameters fill them (``assign``), the layout of the first steps (``initial``), the one that lasts (``rebuilt``), and the
order in which a backward sends them (``launches``). ``FACTS`` says it in sentences, which ``ddpprof facts`` holds against the
installed PyTorch.

Sources: C is torch/csrc/distributed/c10d/reducer.cpp, P is torch/nn/parallel/distributed.py, H is reducer.hpp.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ddpprof.model import column

Mode = Literal["plain", "find_unused", "static"]
"""How DDP deals with unused parameters: not at all, ``find_unused_parameters=True``, or ``static_graph=True`` (which wins)."""

MIB = 2**20
DEFAULT_CAP_MB = 25
FIRST_BUCKET_BYTES = MIB
"""``dist._DEFAULT_FIRST_BUCKET_BYTES``: a small first bucket starts the communication early."""

FIRST_BUCKET_FOLLOWS_CAP = (2, 4)
"""Up to PyTorch 2.3 the first bucket was 1 MiB whatever the cap; since then a cap that is given holds for it too."""

REBUILT_IN_FORWARD: dict[Mode, int] = {"plain": 2, "static": 3}
"""The forward, counted from 1, that begins with the rebuild. P _pre_forward, C rebuild_buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a module; ``is_sparse`` is about its gradient, as of ``nn.Embedding(sparse=True)``."""

    name: str = ""
    size_bytes: int
    dtype: str = "float32"
    device: str = "cpu"
    is_sparse: bool = False
    requires_grad: bool = True


@dataclass(frozen=True, slots=True)
class Bucket:
    """One all-reduce: indices of its parameters in order, its bytes, and the limit it was filled under (0: sparse, none)."""

    parameters: tuple[int, ...]
    size_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Buckets in index order, which is the order in which they are sent.

    ``unspecified`` holds the positions of buckets whose order among themselves PyTorch leaves to a hash map (see ``assign``).
    """

    buckets: tuple[Bucket, ...]
    unspecified: frozenset[int] = frozenset()

    @property
    def size_bytes(self) -> tuple[int, ...]:
        """Bytes of each bucket."""
        return tuple(bucket.size_bytes for bucket in self.buckets)

    @property
    def parameters(self) -> tuple[tuple[int, ...], ...]:
        """Parameter indices of each bucket."""
        return tuple(bucket.parameters for bucket in self.buckets)

    def reversed(self) -> Layout:
        """The same buckets, last one first; the order inside a bucket stays."""
        last = len(self.buckets) - 1
        return Layout(self.buckets[::-1], frozenset(last - at for at in self.unspecified))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How large buckets may grow. ``list_bytes``, where given, replaces the two caps."""

    first_bytes: int
    cap_bytes: int
    list_bytes: tuple[int, ...] = ()
    is_last_small: bool = False

    def initial_limits(self, mode: Mode) -> tuple[int, ...]:
        """Limits of the first layout. P compute_bucket_size_limits.

        Without ``find_unused_parameters`` everything is one bucket: the true order is not known yet, and one all-reduce at
        the very end cannot be out of step with other ranks.
        """
        if self.list_bytes:
            return self.list_bytes
        return (self.first_bytes, self.cap_bytes) if mode == "find_unused" else (sys.maxsize,)

    def rebuilt_limits(self) -> tuple[int, ...]:
        """Limits of the rebuilt layout. C rebuild_buckets."""
        return self.list_bytes or (self.first_bytes, self.cap_bytes)


def capacity(
    bucket_cap_mb: float | None = None,
    bucket_cap_mb_list: Sequence[float] = (),
    *,
    torch_version: str | None = None,
    is_last_small: bool = False,
) -> Capacity:
    """The Capacity that these arguments of DDP mean (None: the newest PyTorch). P _BucketCapacityConfig.create.

    ``is_last_small`` is the environment variable DDP_SET_LAST_BUCKET_CAP=1. The list is newer than PyTorch 2.9.
    """
    if bucket_cap_mb_list:
        sizes = tuple(int(cap * MIB) for cap in bucket_cap_mb_list)
        return Capacity(first_bytes=max(sizes), cap_bytes=max(sizes), list_bytes=sizes, is_last_small=is_last_small)
    cap_bytes = int((DEFAULT_CAP_MB if bucket_cap_mb is None else bucket_cap_mb) * MIB)
    follows = torch_version is None or _release(torch_version) >= FIRST_BUCKET_FOLLOWS_CAP
    first_bytes = cap_bytes if bucket_cap_mb is not None and follows else FIRST_BUCKET_BYTES
    return Capacity(first_bytes=first_bytes, cap_bytes=cap_bytes, is_last_small=is_last_small)


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def mode_of(*, find_unused_parameters: bool = False, static_graph: bool = False) -> Mode:
    """The Mode that these arguments of DDP mean."""
    return "static" if static_graph else "find_unused" if find_unused_parameters else "plain"


def reduced(parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """Those that DDP reduces, in order of registration. Everywhere below, a parameter's index is its position here.

    A parameter that two modules share is listed once. P _build_params_for_reducer.
    """
    return tuple(parameter for parameter in parameters if parameter.requires_grad)


@dataclass(slots=True)
class _Filling:
    """The open bucket of one (dtype, device), its limit, and how many of its kind are closed."""

    members: list[int] = field(default_factory=list)
    size_bytes: int = 0
    limit_bytes: int = 0
    closed: int = 0

    def close(self) -> Bucket:
        bucket = Bucket(tuple(self.members), self.size_bytes, self.limit_bytes)
        self.members, self.size_bytes, self.closed = [], 0, self.closed + 1
        return bucket


def assign(parameters: Sequence[Parameter], limits_bytes: Sequence[int], order: Sequence[int] | None = None) -> Layout:
    """Buckets of ``parameters`` taken in ``order``, or as registered. C compute_bucket_assignment_by_size.

    Each (dtype, device) fills buckets of its own. A bucket closes when, *after* adding, it has reached its limit: tensors are
    never split, and it may be larger by less than its last one. Each closed bucket consumes one limit, for its own kind only;
    the last limit holds on. A sparse gradient is a bucket of its own.

    As registered, buckets are then sorted by their lowest index. In a given order they stay as they were closed, and the
    rest follow out of a ``std::unordered_map``: for one or two kinds the kind seen last comes first; for more, keys
    that collide come otherwise, so that order is marked as unspecified.
    """
    done: list[Bucket] = []
    kinds: dict[tuple[str, str], _Filling] = {}
    for index in range(len(parameters)) if order is None else order:
        parameter = parameters[index]
        if parameter.is_sparse:
            done.append(Bucket((index,), parameter.size_bytes, 0))
            continue
        open_ = kinds.setdefault((parameter.dtype, parameter.device), _Filling())
        open_.members.append(index)
        open_.size_bytes += parameter.size_bytes
        open_.limit_bytes = limits_bytes[min(open_.closed, len(limits_bytes) - 1)]
        if open_.size_bytes >= open_.limit_bytes:
            done.append(open_.close())
    rest = [open_.close() for open_ in reversed(kinds.values()) if open_.members]
    buckets = (*done, *rest)
    if order is None:
        return Layout(tuple(sorted(buckets, key=lambda bucket: bucket.parameters[0])))
    is_unspecified = len(kinds) > 2 and len(rest) > 1
    return Layout(buckets, frozenset(range(len(done), len(buckets))) if is_unspecified else frozenset())


def initial(parameters: Sequence[Parameter], capacity: Capacity, mode: Mode) -> Layout:
    """The layout until the rebuild; with find_unused the layout for good. P _ddp_init_helper.

    The list of buckets is reversed, since parameters registered last should be ready first; the order inside one is not.
    """
    return assign(parameters, capacity.initial_limits(mode)).reversed()


def rebuilt(parameters: Sequence[Parameter], capacity: Capacity, mode: Mode, ready: Sequence[int]) -> Layout | None:
    """The layout from the rebuild on, for rank 0's order of ``ready`` gradients; None when there is no rebuild.

    ``ready`` is the order in the first backward, in static mode in the second (the first is delayed and records nothing);
    parameters not in it got no gradient. find_unused never rebuilds; plain cannot without all of them: its second forward
    raises; static appends them in index order. It happens once. C rebuild_buckets, should_rebuild_buckets, sync_bucket_indices.

    ``is_last_small`` fills from the far end, so that the small bucket comes last; parameters in a bucket are then in reverse.
    """
    missing = sorted(set(range(len(parameters))) - set(ready))
    if mode == "find_unused" or (mode == "plain" and missing):
        return None
    order = [*ready, *missing]
    if capacity.is_last_small:
        return assign(parameters, capacity.rebuilt_limits(), order[::-1]).reversed()
    return assign(parameters, capacity.rebuilt_limits(), order)


@dataclass(frozen=True, slots=True)
class Launch:
    """One bucket sent: its index, and the positions in the ready order at which it was complete and at which it was sent."""

    bucket: int
    complete: int
    sent: int


def launches(
    layout: Layout, ready: Sequence[int], unused: Iterable[int] = (), *, is_first_static: bool = False
) -> tuple[Launch, ...]:
    """The launches of one backward, in order; a bucket that never completes, and all behind it, are missing.

    Buckets are sent by index: a complete one waits for all before it (head-of-line blocking), and the gradient that completes
    the one at the head sends every complete one behind it too. C mark_variable_ready, mark_bucket_ready.

    ``unused`` parameters (found by find_unused in this forward, by static in its first) count as ready within the first hook,
    before its own gradient: C autograd_hook. With ``is_first_static`` hooks are only counted, and everything is sent after
    the last one, at position ``len(ready)``: C delay_all_reduce. Nothing ready: nothing is sent, and nothing raises.
    """
    if is_first_static:
        return tuple(Launch(bucket, len(ready), len(ready)) for bucket in range(len(layout.buckets)))
    bucket_of = {index: at for at, bucket in enumerate(layout.buckets) for index in bucket.parameters}
    pending = [len(bucket.parameters) for bucket in layout.buckets]
    complete: dict[int, int] = {}
    sent: list[Launch] = []
    for position, index in enumerate(ready):
        for marked in (*unused, index) if position == 0 else (index,):
            bucket = bucket_of[marked]
            pending[bucket] -= 1
            if pending[bucket] == 0:
                complete[bucket] = position
            while len(sent) in complete:
                sent.append(Launch(len(sent), complete[len(sent)], position))
    return tuple(sent)


@dataclass(frozen=True, slots=True)
class Hold:
    """A gradient that others waited for.

    ``waiting_bytes`` came before it and could be sent only when it was there; ``waited`` weighs each of those bytes with the
    number of gradients from its own to this one, which stand in for time.
    """

    parameter: int
    waiting_bytes: int
    waited: int


def holds(
    parameters: Sequence[Parameter], layout: Layout, ready: Sequence[int], unused: Iterable[int] = ()
) -> tuple[Hold, ...]:
    """The gradients that held the queue in one backward, the one most waited for first; empty when none did."""
    position = {index: at for at, index in enumerate(ready)}
    found: dict[int, Hold] = {}
    for launch in launches(layout, ready, unused):
        hold = found.get(launch.sent, Hold(ready[launch.sent], 0, 0))
        for index in layout.buckets[launch.bucket].parameters:
            size_bytes, late = parameters[index].size_bytes, launch.sent - position.get(index, launch.sent)
            if late:
                hold = Hold(hold.parameter, hold.waiting_bytes + size_bytes, hold.waited + size_bytes * late)
        found[launch.sent] = hold
    return tuple(sorted((hold for hold in found.values() if hold.waited), key=lambda hold: -hold.waited))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that is true of the Reducer, and the function of PyTorch's source that makes it so."""

    number: int = column("id", "number of the fact")
    text: str = column("text", "what is true")
    source: str = column("text", "file and function that make it so")


Status = Literal["pass", "fail", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactResult(Fact):
    """A fact held against the installed PyTorch."""

    status: Status = column("text", "pass, fail, or skip: this PyTorch lacks it, or it cannot be seen")
    detail: str = column("text", "why it failed or was skipped, empty when it passed", default="")


_FACTS = """
 1 | C compute_bucket_assignment_by_size | Tensors are taken in the order given; bytes add up per (dtype, device), and a
     bucket closes when, after adding, they have reached its limit.
 2 | C compute_bucket_assignment_by_size | A tensor is never split: a bucket may exceed its limit by less than its last tensor.
 3 | C compute_bucket_assignment_by_size | Each closed bucket consumes one limit, for its own (dtype, device) only; the last
     limit holds on.
 4 | C compute_bucket_assignment_by_size | A parameter with a sparse gradient is a bucket of its own, with limit 0.
 5 | C compute_bucket_assignment_by_size | As registered, buckets are sorted by their lowest index; in a given order they stay
     as they were closed.
 6 | C compute_bucket_assignment_by_size | In a given order the buckets left open come last, out of a hash map: of two kinds the
     one seen last comes first; of three or more the order is unspecified.
 7 | C compute_bucket_assignment_by_size | The limit that each bucket was filled under is returned with it.
 8 | C compute_bucket_assignment_by_size | No tensors, a sparse tensor, or too few sparse flags raise; under limit 0 each tensor
     is a bucket; tensors without elements join as any other.
 9 | P _BucketCapacityConfig.create | bucket_cap_mb=None is 25 MiB with a first bucket of 1 MiB; a cap that is given, in
     fractions too, holds for the first bucket as well.
10 | P compute_bucket_size_limits, C rebuild_buckets | bucket_cap_mb_list replaces the cap, in the first layout and in the
     rebuilt one.
11 | P compute_bucket_size_limits | The first layout is one bucket, except with find_unused_parameters and no static_graph: then
     the caps hold.
12 | P _ddp_init_helper | The first layout's list of buckets is reversed, the order inside a bucket is not.
13 | P _build_params_for_reducer | Reduced are the parameters that require a gradient, each once, without
     _ddp_params_and_buffers_to_ignore; an index counts only those.
14 | C Reducer::Reducer | The Reducer's hook runs after the user's register_post_accumulate_grad_hook.
15 | C Reducer::Reducer | The map from gradient accumulator to parameter is kept only for find_unused_parameters.
16 | C autograd_hook | The ready order is recorded only in a pass that reduces.
17 | C autograd_hook | Unused parameters count as ready within the first hook of a pass, before its own parameter.
18 | H should_rebuild_buckets | Buckets are rebuilt once, and never with find_unused_parameters and no static_graph.
19 | P _pre_forward | The rebuild is at the start of the next forward with gradients enabled, before the module runs.
20 | C rebuild_buckets | The rebuilt layout takes ready order under the limits (first, cap), and reverses nothing.
21 | C rebuild_buckets | DDP_SET_LAST_BUCKET_CAP=1 fills from the far end, so that the small bucket is the last.
22 | C sync_bucket_indices | Rank 0's layout wins: the rebuild broadcasts its indices, then its bucket sizes.
23 | C mark_variable_ready | A gradient that becomes ready twice in a pass raises "Expected to mark a variable ready only once."
24 | C mark_bucket_ready | Buckets are sent by index: a complete one waits for all before it, then all complete ones go at once.
25 | C mark_variable_ready | With find_unused_parameters and no static_graph each pass has one all-reduce more: the map of used
     parameters.
26 | C mark_variable_ready_dense | Without a comm hook gradients are divided by the world size and then summed; a hook is given
     them undivided.
27 | C set_divide_factor | The divisor is the size of the group, unless uneven inputs are joined.
28 | C finalize_backward, finalize_bucket_dense | A backward ends when every bucket's Future is done, and with
     gradient_as_bucket_view=True raises if a gradient is no longer the view of its bucket.
29 | C copy_bucket_to_grad | A parameter unused on all ranks keeps its .grad; one that some rank used gets the mean everywhere.
30 | C delay_all_reduce, P _DDPSink | A static graph's first pass only counts hooks: all buckets are sent after the last one.
31 | C autograd_hook, mark_variable_ready | Later a static graph's parameter is ready when its hook has run as often as in the
     first pass; unused ones are appended to the rebuilt order by index.
32 | C set_static_graph | A static graph can be set only before the first pass.
33 | P _post_forward | Under no_sync nothing is sent, recorded or rebuilt; gradients add up and are reduced once, by the next
     pass outside.
34 | C ensure_prior_reduction_finished | A gradient that did not come is noticed one forward late: by the next one with
     gradients enabled.
35 | P _check_comm_hook | A comm hook is registered once; its parameter must be named bucket, and annotated with GradBucket or
     not at all.
36 | C register_builtin_comm_hook | The built-in hooks ALLREDUCE and FP16_COMPRESS work on CPU tensors too.
37 | C mark_bucket_ready | With skip_all_reduce_unused_params a bucket of unused parameters only is not sent.
38 | H kDDPRuntimeLoggingSampleRate | The DDP logger takes its times in the first 10 passes, then in every 100th.
"""


def _facts() -> Iterator[Fact]:
    files = {"C": "reducer.cpp", "H": "reducer.hpp", "P": "distributed.py"}
    for row in re.split(r"\n(?= ?\d+ \|)", _FACTS.strip()):
        number, source, text = " ".join(row.split()).split(" | ")
        yield Fact(number=int(number), text=text, source=re.sub(r"\b[CHP]\b", lambda letter: files[letter[0]], source))


FACTS = tuple(_facts())
"""What the model rests on and what surrounds it, in order of number; ``ddpprof facts`` checks it on the installed PyTorch."""
