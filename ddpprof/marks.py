"""The NVTX names that the measured program writes and the analysis reads; both import this, so they cannot drift.

Grammar, in domain ``ddpprof`` (the default domain is read too)::

    rank/R/world/W/device/D   captured window of rank R; the fields after R are optional
    step/N                    one iteration: forward, backward, optimizer
    forward  backward  optimizer
    delay/I                   backward of branch I holds the compute stream (GPU) or sleeps (CPU)
    compute/I                 gradient arithmetic of branch I, or section I of a model (what a CPU run shows as compute)
    bucket/I/BYTES            in the comm hook, around the all-reduce call
    wait/WHAT                 the host waits inside the step: for the device (``wait/item``), or for the disk
    allreduce/I               start/end range, enqueue to Future; only on a run without device kernels
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

DOMAIN = "ddpprof"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"

MarkKind = Literal["rank", "step", "forward", "backward", "optimizer", "delay", "compute", "wait", "bucket", "allreduce"]


@dataclass(frozen=True, slots=True)
class Mark:
    """One parsed mark. ``index`` is R, N or I (None for forward, backward, optimizer, wait)."""

    kind: MarkKind
    index: int | None = None
    size_bytes: int | None = None
    world_size: int | None = None
    device_id: int | None = None


def rank(rank: int, world_size: int, device_id: int | None) -> str:
    """Name of the captured window of a rank; a CPU rank has no device field."""
    device = "" if device_id is None else f"/device/{device_id}"
    return f"rank/{rank}/world/{world_size}{device}"


def step(number: int) -> str:
    return f"step/{number}"


def delay(index: int) -> str:
    return f"delay/{index}"


def compute(index: int) -> str:
    return f"compute/{index}"


def bucket(index: int, size_bytes: int) -> str:
    return f"bucket/{index}/{size_bytes}"


def wait(what: str) -> str:
    """Name of a wait of the host; ``what`` is lower-case letters."""
    return f"wait/{what}"


def allreduce(index: int) -> str:
    return f"allreduce/{index}"


RANK: Final = re.compile(r"\d{1,6}", re.ASCII)
"""How a rank or a world size is spelled, in a mark and elsewhere: no job has a million ranks."""

PATTERN = (
    r"(?:(?P<window>rank)/(?P<rank>\d{1,6})(?P<fields>(?:/[a-z_]+/\d{1,6})*)"
    r"|(?P<indexed>step|delay|compute|allreduce)/(?P<index>\d{1,18})"
    r"|(?P<bucket>bucket)/(?P<number>\d{1,18})/(?P<bytes>\d{1,18})"
    r"|(?P<wait>wait)/[a-z]{1,32}"
    r"|(?P<plain>forward|backward|optimizer))"
)
"""Regular expression of every mark, anchored by the user of it (``fullmatch``); every number in it fits an int64."""

_MARK = re.compile(PATTERN, re.ASCII)


def parse(text: str) -> Mark | None:
    """The mark that ``text`` spells, or None when it is some other program's range."""
    match = _MARK.fullmatch(text)
    if match is None:
        return None
    if match["window"]:
        parts = match["fields"].split("/")[1:]
        fields = dict(zip(parts[0::2], (int(value) for value in parts[1::2]), strict=True))
        return Mark("rank", int(match["rank"]), world_size=fields.get("world"), device_id=fields.get("device"))
    if match["bucket"]:
        return Mark("bucket", int(match["number"]), size_bytes=int(match["bytes"]))
    if match["indexed"]:
        return Mark(match["indexed"], int(match["index"]))  # type: ignore[arg-type]
    return Mark(match["wait"] or match["plain"])  # type: ignore[arg-type]
