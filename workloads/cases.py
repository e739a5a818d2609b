"""The workload cases: what each trains, how DDP is set, and what must then be seen. Knows no torch.

A case is branches, one parameter each, registered in the order of the table; or a transformer. The backward takes the branches
from the last of ``forward_order`` to the first, so that is the order in which gradients come ready.

A variant of a case is ``dataclasses.replace(case, bucket_cap_mb=…)``; what it must show is not known, so the properties
that tell it are None.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ddpprof.errors import UsageError
from ddpprof.model import Evidence

Group = Literal["study", "cause", "model"]
Overlap = Literal["positive", "zero"]

MIB = 2**20
FAILING_STEP = 1
"""A forgotten parameter shows one forward late: in step 1, when the Reducer finds step 0 unfinished."""

GROUPS: Mapping[Group, str] = {
    "study": "the published study (ddpprof verify)",
    "cause": "one cause each that holds a step back (ddpprof diagnose)",
    "model": "a real model",
}


@dataclass(frozen=True, slots=True)
class Branch:
    """A parameter of ``mb`` MiB of float32, and what its backward does before the gradient is ready, in this order:
    read a value back from the device and think about it for ``item_ms``, compute for ``delay_ms``, multiply matrices.
    """

    mb: float
    delay_ms: float = 0
    item_ms: float = 0
    matmuls: int = 0
    is_used: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A small GPT: its shape, and the tokens of the one sequence that a rank trains on in a step."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a run of a case must show with the cap it was made for; ``overlap`` and ``launched_early`` None: any is fine."""

    bucket_cap_mb: float | None
    initial_bytes: tuple[int, ...]
    rebuilt_bytes: tuple[int, ...] | None
    is_rebuilt: bool = True
    overlap: Overlap | None = None
    launched_early: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload. Whatever is not said is as a healthy job has it.

    ``cause`` is the one of ``model.CAUSES`` that it is made to have, ``setting`` which setting that is. ``slow_ranks_ms``
    adds so much to each delay of a rank. Every ``data_every``-th step begins with ``data_ms`` of waiting for data. Each step
    runs ``passes`` forwards and backwards, every one of which reduces. ``captured_steps`` follow each other under the profiler.
    """

    name: str
    group: Group
    shows: str
    branches: tuple[Branch, ...] = ()
    transformer: Transformer | None = None
    bucket_cap_mb: float | None
    expected: Expectation
    forward_order: tuple[int, ...] | None = None
    slow_ranks_ms: Mapping[int, float] = field(default_factory=dict)
    data_ms: float = 0
    data_every: int = 1
    passes: int = 1
    find_unused_parameters: bool = False
    static_graph: bool = False
    failure: str | None = None
    cause: str | None = None
    setting: str | None = None
    captured_steps: int = 1

    @property
    def parameters(self) -> int:
        """Number of branches; 0 for a transformer."""
        return len(self.branches)

    @property
    def parameter_mb(self) -> float | None:
        """MiB of each parameter; None when they differ."""
        sizes = {branch.mb for branch in self.branches}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def parameter_bytes(self) -> tuple[int, ...]:
        """Bytes of each parameter of the branches, all float32."""
        return tuple(int(branch.mb * MIB) // 4 * 4 for branch in self.branches)

    @property
    def used(self) -> int:
        """Number of parameters that the forward uses; they have the indices below it."""
        return sum(branch.is_used for branch in self.branches)

    @property
    def unused(self) -> int:
        return self.parameters - self.used

    @property
    def order(self) -> Sequence[int]:
        """Indices of the used parameters as the forward takes them; their gradients come ready the other way round."""
        return self.forward_order or range(self.used)

    @property
    def is_delayed(self) -> bool:
        return any(branch.delay_ms for branch in self.branches)

    @property
    def needs_gpu(self) -> bool:
        return any(branch.matmuls for branch in self.branches)

    @property
    def warmup(self) -> int:
        """Steps before the first timed one: to the rebuild (2nd forward, 3rd of a static graph) and one beyond."""
        return 4 if self.static_graph else 3

    @property
    def is_variant(self) -> bool:
        return self.bucket_cap_mb != self.expected.bucket_cap_mb

    @property
    def initial_bytes(self) -> tuple[int, ...] | None:
        """Expected size of each bucket in the first step; None when not known."""
        return None if self.is_variant else self.expected.initial_bytes

    @property
    def rebuilt_bytes(self) -> tuple[int, ...] | None:
        """Expected size of each bucket in a captured step; None when not known or never reached."""
        return None if self.is_variant else self.expected.rebuilt_bytes

    @property
    def is_rebuilt(self) -> bool | None:
        """Whether the Reducer must have rebuilt its buckets by the first captured step; None when not known."""
        return None if self.is_variant else self.expected.is_rebuilt

    @property
    def overlap(self) -> Overlap | None:
        """Expected overlap of ``focus`` with communication on every rank; None when not known or not claimed."""
        return None if self.is_variant else self.expected.overlap

    @property
    def launched_early(self) -> int | None:
        """Expected number of all-reduces in a step that start before its last compute does; None when not known."""
        return None if self.is_variant else self.expected.launched_early

    def focus(self, evidence: Evidence) -> str | None:
        """Pattern of the compute that the study asks about: the kernel or mark of the delay; None where it asks about all."""
        if self.group != "study" or not self.is_delayed:
            return None
        return "spin_kernel" if evidence == "gpu-kernels" else "delay"


def _expect(
    cap_mb: float, *buckets_mb: float, launched_early: int | None = None, overlap: Overlap | None = None
) -> Expectation:
    """One bucket of everything at first, and these from the rebuild on."""
    return Expectation(
        bucket_cap_mb=cap_mb,
        initial_bytes=(int(sum(buckets_mb) * MIB),),
        rebuilt_bytes=tuple(int(size * MIB) for size in buckets_mb),
        launched_early=launched_early,
        overlap=overlap,
    )


def _expect_never_rebuilt(cap_mb: float, *buckets_mb: float, launched_early: int | None = None) -> Expectation:
    """These buckets for ever, as ``find_unused_parameters`` leaves them."""
    sizes = tuple(int(size * MIB) for size in buckets_mb)
    return Expectation(
        bucket_cap_mb=cap_mb, initial_bytes=sizes, rebuilt_bytes=sizes, is_rebuilt=False, launched_early=launched_early
    )


_WITH_UNUSED = (*12 * (Branch(4),), Branch(4, is_used=False))

_STUDY = (
    Case(
        name="fine1_cap4",
        group="study",
        shows="many small parameters in the buckets of coarse4_cap4: layout is not the whole cost",
        branches=48 * (Branch(1),),
        bucket_cap_mb=4,
        expected=_expect(4, *12 * (4,)),
    ),
    Case(
        name="coarse4_cap4",
        group="study",
        shows="one parameter a bucket: the most launches, the earliest start",
        branches=12 * (Branch(4),),
        bucket_cap_mb=4,
        expected=_expect(4, *12 * (4,)),
    ),
    Case(
        name="coarse4_cap16",
        group="study",
        shows="four parameters a bucket",
        branches=12 * (Branch(4),),
        bucket_cap_mb=16,
        expected=_expect(16, 16, 16, 16),
    ),
    Case(
        name="coarse4_cap64",
        group="study",
        shows="everything in one bucket, launched when the backward is over",
        branches=12 * (Branch(4),),
        bucket_cap_mb=64,
        expected=_expect(64, 48),
    ),
    Case(
        name="delay_cap4",
        group="study",
        shows="slow branches and small buckets: communication must run beside compute",
        branches=12 * (Branch(4, delay_ms=10),),
        bucket_cap_mb=4,
        expected=_expect(4, *12 * (4,), overlap="positive", launched_early=11),
    ),
    Case(
        name="delay_cap64",
        group="study",
        shows="slow branches and one bucket: communication cannot run beside compute",
        branches=12 * (Branch(4, delay_ms=10),),
        bucket_cap_mb=64,
        expected=_expect(64, 48, overlap="zero", launched_early=0),
    ),
    Case(
        name="unused_dynamic",
        group="study",
        shows="find_unused_parameters: trains, but the buckets are never rebuilt",
        branches=_WITH_UNUSED,
        bucket_cap_mb=16,
        find_unused_parameters=True,
        expected=_expect_never_rebuilt(16, 4, 16, 16, 16),
    ),
    Case(
        name="unused_static",
        group="study",
        shows="static_graph: the unused parameter goes to the last bucket, rebuilt in the third forward",
        branches=_WITH_UNUSED,
        bucket_cap_mb=16,
        static_graph=True,
        expected=_expect(16, 16, 16, 16, 4),
    ),
    Case(
        name="unused_undetected",
        group="study",
        shows="an unused parameter that DDP was not told of: must fail on every rank in the second forward",
        branches=_WITH_UNUSED,
        bucket_cap_mb=16,
        failure="Expected to have finished reduction in the prior iteration",
        expected=Expectation(bucket_cap_mb=16, initial_bytes=(52 * MIB,), rebuilt_bytes=None, is_rebuilt=False),
    ),
)

_HEALTHY = 6 * (Branch(1 / 4, delay_ms=40),)
"""Enough compute to hide the communication of all buckets but the last, which is short."""

_CAUSES = (
    Case(
        name="healthy",
        group="cause",
        shows="communication well hidden: nothing to do",
        branches=_HEALTHY,
        bucket_cap_mb=1 / 4,
        captured_steps=8,
        expected=_expect(1 / 4, *6 * (1 / 4,), launched_early=5),
    ),
    Case(
        name="slow_comm",
        group="cause",
        cause="communication-slow",
        shows="much to send, sent early, and little compute to hide it",
        branches=16 * (Branch(4, delay_ms=0.1),),
        bucket_cap_mb=4,
        captured_steps=8,
        expected=_expect(4, *16 * (4,), launched_early=15),
    ),
    Case(
        name="late_parameter",
        group="cause",
        cause="bucket-scheduling",
        shows="registered last, used first: the first bucket waits for it, and all others for that bucket",
        branches=13 * (Branch(2, delay_ms=10),),
        forward_order=(12, *range(12)),
        bucket_cap_mb=8,
        find_unused_parameters=True,
        captured_steps=8,
        expected=_expect_never_rebuilt(8, 2, 8, 8, 8, launched_early=0),
    ),
    Case(
        name="compute_tail",
        group="cause",
        cause="compute-tail",
        shows="all is sent and done long before the last branch's backward is",
        branches=(Branch(1 / 4, delay_ms=150), *11 * (Branch(1 / 4, delay_ms=10),)),
        bucket_cap_mb=1 / 4,
        captured_steps=8,
        expected=_expect(1 / 4, *12 * (1 / 4,), launched_early=11),
    ),
    Case(
        name="item_in_step",
        group="cause",
        cause="synchronisation-wait",
        shows="the host reads a value back amid the backward, and the device waits until it goes on",
        branches=(
            *5 * (Branch(1 / 4, delay_ms=10),),
            Branch(1 / 4, delay_ms=10, item_ms=120),
            *6 * (Branch(1 / 4, delay_ms=10),),
        ),
        bucket_cap_mb=1 / 4,
        captured_steps=8,
        expected=_expect(1 / 4, *12 * (1 / 4,), launched_early=11),
    ),
    Case(
        name="fine_parameters",
        group="cause",
        cause="parameter-granularity",
        shows="1,536 small parameters, each of which costs the host more than the device",
        branches=1536 * (Branch(1 / 2048),),
        bucket_cap_mb=1 / 4,
        captured_steps=8,
        expected=_expect(1 / 4, *3 * (1 / 4,), launched_early=2),
    ),
    Case(
        name="straggler",
        group="cause",
        cause="straggler-rank",
        shows="rank 1 takes longer for each branch, the others wait for it",
        branches=_HEALTHY,
        slow_ranks_ms={1: 30},
        bucket_cap_mb=1 / 4,
        captured_steps=8,
        expected=_expect(1 / 4, *6 * (1 / 4,), launched_early=5),
    ),
    Case(
        name="contention",
        group="cause",
        cause="contention",
        shows="matrix products that share the GPU with the communication beside them",
        branches=12 * (Branch(32, matmuls=8),),
        bucket_cap_mb=32,
        captured_steps=8,
        expected=_expect(32, *12 * (32,)),
    ),
    Case(
        name="tiny_buckets",
        group="cause",
        cause="bucket-too-small",
        shows="a bucket for each small parameter: bound by latency, beside two that are not",
        branches=(*64 * (Branch(1 / 64),), *2 * (Branch(4),)),
        bucket_cap_mb=1 / 64,
        captured_steps=8,
        expected=_expect(1 / 64, 4, 4, *64 * (1 / 64,), launched_early=65),
    ),
    Case(
        name="periodic_spike",
        group="cause",
        cause="periodic-spikes",
        shows="every fourth step begins with a wait for data",
        branches=_HEALTHY,
        data_ms=300,
        data_every=4,
        bucket_cap_mb=1 / 4,
        captured_steps=12,
        expected=_expect(1 / 4, *6 * (1 / 4,), launched_early=5),
    ),
    Case(
        name="accumulation",
        group="cause",
        cause="settings",
        setting="no_sync",
        shows="gradients accumulate over four backwards, and each of them reduces",
        branches=12 * (Branch(1 / 2, delay_ms=3),),
        passes=4,
        bucket_cap_mb=1 / 2,
        captured_steps=8,
        expected=_expect(1 / 2, *12 * (1 / 2,), launched_early=47),
    ),
    Case(
        name="needless_find_unused",
        group="cause",
        cause="settings",
        setting="find_unused_parameters",
        shows="healthy, but DDP looks for unused parameters where there are none",
        branches=_HEALTHY,
        find_unused_parameters=True,
        bucket_cap_mb=1 / 4,
        captured_steps=8,
        expected=_expect_never_rebuilt(1 / 4, *6 * (1 / 4,), launched_early=5),
    ),
)

_MODELS = (
    Case(
        name="gpt_small",
        group="model",
        shows="a small GPT in DDP's default buckets, in mixed precision where there is a GPU",
        transformer=Transformer(layers=6, width=384, heads=6, vocabulary=4096, tokens=64),
        bucket_cap_mb=None,
        captured_steps=8,
        expected=Expectation(
            bucket_cap_mb=None, initial_bytes=(48_979_968,), rebuilt_bytes=(2_363_904, 28_391_424, 18_224_640)
        ),
    ),
)

CASES: Mapping[str, Case] = {case.name: case for case in (*_STUDY, *_CAUSES, *_MODELS)}
STUDY = tuple(case.name for case in _STUDY)


def find(name: str) -> Case:
    """The case called ``name``. Raises UsageError that offers the nearest names."""
    try:
        return CASES[name]
    except KeyError:
        near = difflib.get_close_matches(name, CASES, n=3, cutoff=0.4)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"The cases: {', '.join(CASES)}."
        raise UsageError(f"no case {name!r}", hint) from None
