"""What an operation's name says: communication or compute, and which collective.

Communication is a device kernel that moves data between ranks: NCCL or RCCL by name, or one of the known libraries below,
or what the caller's patterns say. A copy is communication only inside a collective call (NCCL's copy engine path).
The protocol and algorithm in an NCCL name are those of the kernel it fell back on, never a fact, and not read here.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Final

from ddpprof.errors import UsageError
from ddpprof.model import Kind, Source

LOCAL: Final = re.compile(r"oneRankReduce", re.IGNORECASE)
"""Kernels of a communication library that move nothing between ranks."""

COMM: Final = re.compile(
    r"nccl|rccl|msccl"
    r"|cross_device_reduce_[12]stage|(?:one|two)ShotAllReduce|allreduce_fusion_kernel"
    r"|multimem_(?:all_reduce|one_shot|all_gather|reduce_scatter)\w*"
    r"|(?:one|two)_shot_all_(?:reduce|to_all)\w*"
    r"|symmetric_memory::(?:barrier|put_signal|wait_signal)_kernel"
    r"|nvshmem|barrier_on_stream_kernel|deep_ep::|userbuffers_",
    re.IGNORECASE,
)
"""Names of kernels that move data between ranks, or wait for them. Words such as "reduce" or "gather" alone say nothing."""

HOST_COMM: Final = re.compile(r"allreduce/\d+|gloo:\w+|nccl:\w+")
"""Host ranges that are the execution of a collective on a run without device."""

_COLLECTIVES: Final = (
    ("AllReduce", r"all_?reduce|cross_device_reduce|one_?shot|two_?shot"),
    ("ReduceScatter", r"reduce_?scatter"),
    ("AllGather", r"all_?gather"),
    ("AllToAll", r"all_?to_?all"),
    ("Broadcast", r"broadcast"),
    ("SendRecv", r"send_?recv"),
    ("Reduce", r"reduce"),
    ("Gather", r"gather"),
    ("Scatter", r"scatter"),
    ("Dispatch", r"dispatch"),
    ("Combine", r"combine"),
)
_OPERATION: Final = re.compile("|".join(f"(?P<{name}>{words})" for name, words in _COLLECTIVES), re.IGNORECASE)

API_CALL: Final = re.compile(r"nccl(?!Comm)[A-Z]\w*")
"""NCCL's own ranges around its calls: what these launch is NCCL's. Those on communicators copy for themselves."""

COLLECTIVE_API_CALL: Final = re.compile(r"nccl(?:All|Reduce|Broadcast|Bcast|Gather|Scatter)\w*")

COLLECTIVE_CALL: Final = re.compile(r"nccl[A-Z]\w+|(?:nccl|gloo):\w+|c10d::\w+")
"""Host ranges around a collective call: NCCL's own domain, torch's annotations."""

WAIT_CALL: Final = re.compile(
    r"(?:(?:cuda|hip)(?:Device|Stream|Event)Synchronize|cu(?:Ctx|Stream|Event)Synchronize|(?:cuda|hip)Memcpy)(?:_\w+)?"
)
"""API calls, with whatever version behind their name, that return only when the device has done its work."""


def patterns(texts: Sequence[str], option: str) -> tuple[re.Pattern[str], ...]:
    """Compiled patterns, ignoring case. Raises UsageError for one that is not a regular expression."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a later Python may read otherwise, such as "[[a]"
            return tuple(re.compile(text, re.IGNORECASE) for text in texts)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"{option}: not a regular expression: {error}", "Escape brackets and dots with a backslash.") from None


def kind_of(name: str, source: Source, comm: Sequence[re.Pattern[str]] = (), not_comm: Sequence[re.Pattern[str]] = ()) -> Kind:
    """What an operation of this name and source is taken for; ``not_comm`` wins over ``comm`` over the known names."""
    if source is Source.GRAPH:
        return Kind.GRAPH
    is_copy = source in (Source.MEMCPY, Source.MEMSET)
    if any(pattern.search(name) for pattern in not_comm):
        is_comm = False
    elif any(pattern.search(name) for pattern in comm):
        is_comm = True
    elif source is Source.HOST:
        is_comm = HOST_COMM.fullmatch(name) is not None
    else:
        is_comm = not is_copy and COMM.search(name) is not None and LOCAL.search(name) is None
    if is_comm:
        return Kind.COMM
    return Kind.MEMORY if is_copy else Kind.COMPUTE


def operation_of(name: str) -> str:
    """The collective by kernel name ("AllReduce"), "unknown" when the name does not tell."""
    base = re.sub(r"^void\s+", "", name).split("(")[0].split("<")[0]
    match = _OPERATION.search(base) if "::" not in base else _OPERATION.search(base.rsplit("::", 1)[-1])
    return match.lastgroup if match and match.lastgroup else "unknown"
