"""The workload cases: what each trains, how DDP is set, and what must then be seen. Knows no torch.

A variant of a case is ``dataclasses.replace(case, bucket_cap_mb=…)``; what it must show is not known, so the properties
that tell it are None.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ddpprof.errors import UsageError
from ddpprof.model import Evidence

Overlap = Literal["positive", "zero"]

MIB = 2**20
FAILING_STEP = 1
"""A forgotten parameter shows one forward late: in step 1, when the Reducer finds step 0 unfinished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a run of a case must show with the cap it was made for; ``overlap`` None: either is fine."""

    bucket_cap_mb: float
    initial_bytes: tuple[int, ...]
    rebuilt_bytes: tuple[int, ...] | None
    is_rebuilt: bool = True
    overlap: Overlap | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload: ``parameters`` independent float32 parameters of ``parameter_mb`` MiB, the last ``unused`` never used."""

    name: str
    shows: str
    parameters: int
    parameter_mb: float
    bucket_cap_mb: float
    expected: Expectation
    unused: int = 0
    is_delayed: bool = False
    find_unused_parameters: bool = False
    static_graph: bool = False
    failure: str | None = None

    @property
    def used(self) -> int:
        """Number of parameters that the forward uses; they have the indices below it."""
        return self.parameters - self.unused

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
        """Expected size of each bucket in the captured step; None when not known or never reached."""
        return None if self.is_variant else self.expected.rebuilt_bytes

    @property
    def is_rebuilt(self) -> bool | None:
        """Whether the Reducer must have rebuilt its buckets by the captured step; None when not known."""
        return None if self.is_variant else self.expected.is_rebuilt

    @property
    def overlap(self) -> Overlap | None:
        """Expected overlap of ``focus`` with communication on every rank; None when not known or not claimed."""
        return None if self.is_variant else self.expected.overlap

    def focus(self, evidence: Evidence) -> str | None:
        """Pattern of the compute that the overlap is asked about: the kernel or mark of the delay; None without a delay."""
        if not self.is_delayed:
            return None
        return "spin_kernel" if evidence == "gpu-kernels" else "delay"


_ONE_BUCKET = (48 * MIB,)
_ONE_BUCKET_WITH_UNUSED = (52 * MIB,)

_TABLE = (
    Case(
        name="fine1_cap4",
        shows="many small parameters in the buckets of coarse4_cap4: layout is not the whole cost",
        parameters=48,
        parameter_mb=1,
        bucket_cap_mb=4,
        expected=Expectation(bucket_cap_mb=4, initial_bytes=_ONE_BUCKET, rebuilt_bytes=12 * (4 * MIB,)),
    ),
    Case(
        name="coarse4_cap4",
        shows="one parameter a bucket: the most launches, the earliest start",
        parameters=12,
        parameter_mb=4,
        bucket_cap_mb=4,
        expected=Expectation(bucket_cap_mb=4, initial_bytes=_ONE_BUCKET, rebuilt_bytes=12 * (4 * MIB,)),
    ),
    Case(
        name="coarse4_cap16",
        shows="four parameters a bucket",
        parameters=12,
        parameter_mb=4,
        bucket_cap_mb=16,
        expected=Expectation(bucket_cap_mb=16, initial_bytes=_ONE_BUCKET, rebuilt_bytes=3 * (16 * MIB,)),
    ),
    Case(
        name="coarse4_cap64",
        shows="everything in one bucket, launched when the backward is over",
        parameters=12,
        parameter_mb=4,
        bucket_cap_mb=64,
        expected=Expectation(bucket_cap_mb=64, initial_bytes=_ONE_BUCKET, rebuilt_bytes=_ONE_BUCKET),
    ),
    Case(
        name="delay_cap4",
        shows="slow branches and small buckets: communication must run beside compute",
        parameters=12,
        parameter_mb=4,
        bucket_cap_mb=4,
        is_delayed=True,
        expected=Expectation(bucket_cap_mb=4, initial_bytes=_ONE_BUCKET, rebuilt_bytes=12 * (4 * MIB,), overlap="positive"),
    ),
    Case(
        name="delay_cap64",
        shows="slow branches and one bucket: communication cannot run beside compute",
        parameters=12,
        parameter_mb=4,
        bucket_cap_mb=64,
        is_delayed=True,
        expected=Expectation(bucket_cap_mb=64, initial_bytes=_ONE_BUCKET, rebuilt_bytes=_ONE_BUCKET, overlap="zero"),
    ),
    Case(
        name="unused_dynamic",
        shows="find_unused_parameters: trains, but the buckets are never rebuilt",
        parameters=13,
        parameter_mb=4,
        unused=1,
        bucket_cap_mb=16,
        find_unused_parameters=True,
        expected=Expectation(
            bucket_cap_mb=16,
            initial_bytes=(4 * MIB, 16 * MIB, 16 * MIB, 16 * MIB),
            rebuilt_bytes=(4 * MIB, 16 * MIB, 16 * MIB, 16 * MIB),
            is_rebuilt=False,
        ),
    ),
    Case(
        name="unused_static",
        shows="static_graph: the unused parameter goes to the last bucket, rebuilt in the third forward",
        parameters=13,
        parameter_mb=4,
        unused=1,
        bucket_cap_mb=16,
        static_graph=True,
        expected=Expectation(
            bucket_cap_mb=16,
            initial_bytes=_ONE_BUCKET_WITH_UNUSED,
            rebuilt_bytes=(16 * MIB, 16 * MIB, 16 * MIB, 4 * MIB),
        ),
    ),
    Case(
        name="unused_undetected",
        shows="an unused parameter that DDP was not told of: must fail on every rank in the second forward",
        parameters=13,
        parameter_mb=4,
        unused=1,
        bucket_cap_mb=16,
        failure="Expected to have finished reduction in the prior iteration",
        expected=Expectation(bucket_cap_mb=16, initial_bytes=_ONE_BUCKET_WITH_UNUSED, rebuilt_bytes=None, is_rebuilt=False),
    ),
)

CASES: Mapping[str, Case] = {case.name: case for case in _TABLE}


def find(name: str) -> Case:
    """The case called ``name``. Raises UsageError that offers the nearest names."""
    try:
        return CASES[name]
    except KeyError:
        near = difflib.get_close_matches(name, CASES, n=3, cutoff=0.4)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"The cases: {', '.join(CASES)}."
        raise UsageError(f"no case {name!r}", hint) from None
