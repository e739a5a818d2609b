"""Which host ranges are training steps, and which step launched an operation.

A device operation belongs to step s of its process when its launch call, on any thread of that process, starts inside the
host range of step s: the backward runs on autograd's own thread, so a projection by thread would lose most of a step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddpprof import marks
from ddpprof.analysis import kernels
from ddpprof.model import MISSING, Trace

Int64 = NDArray[np.int64]

STEP_PATTERNS: Final = (
    r"^ProfilerStep#\d+$",
    r"^(?:train(?:ing)?[ _:/-]?)?step[ _:#=/-]*\d+$",
    r"^(?:train(?:ing)?[ _:/-]?)?iter(?:ation)?[ _:#=/-]*\d+$",
)
"""Step ranges of other people's programs, tried in this order after our own ``step/N``; the case is ignored."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Steps:
    """The host ranges of one process's steps, ordered by start; number is MISSING where the text has none.

    ``is_whole`` is false for a range that was open or cut at the end of the capture.
    """

    number: Int64
    start_ns: Int64
    end_ns: Int64
    is_whole: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start_ns)


def find(trace: Trace, step_pattern: str | None = None) -> dict[int, Steps]:
    """The steps of each process (by index) that has any.

    ``step_pattern`` alone decides when given; else the first family that occurs: our marks, STEP_PATTERNS in order,
    then the captured window of a rank mark as one unnumbered step.
    """
    chosen = _first_family(trace, step_pattern)
    found: dict[int, Steps] = {}
    ranges = trace.ranges
    for process in range(len(trace.processes)):
        rows = np.flatnonzero(chosen[ranges.text] & (ranges.process == process)) if len(ranges) else np.empty(0, np.int64)
        if len(rows):
            end = ranges.end_ns[rows].astype(np.int64)
            last = trace.extent[1] if trace.extent else np.iinfo(np.int64).max
            is_whole = (end != MISSING) & (end < last)
            number = np.array([_number(trace.texts[text]) for text in ranges.text[rows]], np.int64)
            found[process] = Steps(
                number=number,
                start_ns=ranges.start_ns[rows].astype(np.int64),
                end_ns=np.where(end == MISSING, np.iinfo(np.int64).max, end),
                is_whole=is_whole,
            )
        elif step_pattern is None and (window := trace.processes[process].window) is not None:
            found[process] = Steps(
                number=np.array([MISSING]),
                start_ns=np.array([window[0]], np.int64),
                end_ns=np.array([window[1]], np.int64),
                is_whole=np.array([True]),
            )
    return found


def step_of(steps: Steps, time: Int64) -> NDArray[np.int64]:
    """Position in ``steps`` of the step whose host range holds each time, -1 for none (and for MISSING times)."""
    at = np.searchsorted(steps.start_ns, time, side="right") - 1
    inside = (at >= 0) & (time < steps.end_ns[np.maximum(at, 0)]) & (time != MISSING)
    return np.where(inside, at, -1)


def _first_family(trace: Trace, step_pattern: str | None) -> NDArray[np.bool_]:
    """Which of ``trace.texts`` are steps."""
    if step_pattern is not None:
        (wanted,) = kernels.patterns([step_pattern], "--step-range")
        return np.array([wanted.search(text) is not None for text in trace.texts], bool)
    own = np.array([(mark := marks.parse(text)) is not None and mark.kind == "step" for text in trace.texts], bool)
    families = [own]
    for pattern in STEP_PATTERNS:
        matcher = re.compile(pattern, re.IGNORECASE)
        families.append(np.array([matcher.search(text) is not None for text in trace.texts], bool))
    used = np.zeros(len(trace.texts), bool)
    used[trace.ranges.text[trace.ranges.process >= 0]] = True
    return next((family for family in families if (family & used).any()), np.zeros(len(trace.texts), bool))


def _number(text: str) -> int:
    digits = re.findall(r"\d+", text)
    return int(digits[-1]) if digits and len(digits[-1]) < 19 else MISSING
