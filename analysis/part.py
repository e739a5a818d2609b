"""One trace of a job, measured: the kind of every operation, the windows, and what was found in each.

A Part holds the trace itself; ``digest`` reduces it to the rows that the job needs of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpprof.analysis import breakdown, buckets, kernels, steps
from ddpprof.analysis.breakdown import Measured, Windows
from ddpprof.model import MISSING, Kind, Source, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to ask of the traces; patterns are regular expressions, searched, case ignored.

    ``steps`` keeps step numbers first..last (inclusive); ``streams`` keeps those stream ids; ``buckets`` lists every
    communication interval (None: when there are at most BUCKET_LIMIT).
    """

    compute: str | None = None
    comm: tuple[str, ...] = ()
    not_comm: tuple[str, ...] = ()
    streams: frozenset[int] | None = None
    steps: tuple[int, int] | None = None
    step_pattern: str | None = None
    whole_capture: bool = False
    buckets: bool | None = None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Part:
    """One trace on its way: its kinds, windows and what was measured in them."""

    trace: Trace
    kinds: NDArray[np.int8]
    windows: Windows
    measured: Measured
    focused: Measured | None
    reasons: tuple[str | None, ...]


def lanes(part: Part) -> Iterator[tuple[int, int, list[int]]]:
    """Each (process, device) with its windows."""
    lane = part.windows.process * 8192 + part.windows.device
    for key in np.unique(lane).tolist():
        at = np.flatnonzero(lane == key).tolist()
        yield int(part.windows.process[at[0]]), int(part.windows.device[at[0]]), at


def measure(trace: Trace, options: Options) -> Part:
    """One trace with its kinds and windows, and what was measured in them."""
    comm, not_comm = kernels.patterns(options.comm, "--comm"), kernels.patterns(options.not_comm, "--not-comm")
    if options.streams is not None:
        keep = np.isin(trace.operations.stream, list(options.streams))
        trace = replace(trace, operations=trace.operations.take(keep))
    kinds = classify(trace, comm, not_comm)
    windows = breakdown.find_windows(trace, step_pattern=options.step_pattern, whole_capture=options.whole_capture)
    if options.steps is not None:
        windows = _only_steps(windows, options.steps)
    measured = breakdown.measure(trace, kinds, windows)
    focused = None
    if options.compute is not None:
        (pattern,) = kernels.patterns([options.compute], "--compute")
        is_focus = np.array([pattern.search(name) is not None for name in trace.names], bool)
        focused = breakdown.measure(trace, kinds, windows, is_focus[trace.operations.name])
    reasons = _reasons(trace, windows, options.step_pattern)
    return Part(trace=trace, kinds=kinds, windows=windows, measured=measured, focused=focused, reasons=reasons)


def classify(trace: Trace, comm: Sequence[Any] = (), not_comm: Sequence[Any] = ()) -> NDArray[np.int8]:
    """The Kind of each operation: by name and source, and device copies launched inside a call of NCCL as communication."""
    operations = trace.operations
    table = np.array(
        [[int(kernels.kind_of(name, source, comm, not_comm)) for source in Source] for name in trace.names], np.int8
    ).reshape(len(trace.names), len(Source))
    kinds = table[operations.name, operations.source] if len(operations) else np.empty(0, np.int8)
    moves = [at for at, name in enumerate(trace.names) if name in ("memcpy DtoD", "memcpy PtoP")]
    copies = np.flatnonzero((operations.source == int(Source.MEMCPY)) & np.isin(operations.name, moves))
    if len(copies) and len(trace.ranges):
        is_call = np.array([kernels.API_CALL.fullmatch(text) is not None for text in trace.texts], bool)
        inside = buckets.ranges_around(trace, copies, is_call) >= 0
        kinds[copies[inside]] = int(Kind.COMM)
    return kinds


def _only_steps(windows: Windows, wanted: tuple[int, int]) -> Windows:
    keep = np.flatnonzero((windows.step != MISSING) & (windows.step >= wanted[0]) & (windows.step <= wanted[1]))
    place = np.full(len(windows) + 1, -1, np.int32)
    place[keep] = np.arange(len(keep))
    columns = {name: getattr(windows, name)[keep] for name in ("process", "device", "step", "position", "is_whole", "is_step")}
    return replace(windows, of_operation=place[windows.of_operation], empty_steps=(), **columns)


def _reasons(trace: Trace, windows: Windows, step_pattern: str | None) -> tuple[str | None, ...]:
    """Per window why it is left out of the medians: cut by the end of the capture, kernels lost, or step 0 of several."""
    lost: Counter[tuple[int, int]] = Counter()
    if trace.lost_launches and windows.is_step.any():
        found = steps.find(trace, step_pattern)
        for process in {process for process, _ in trace.lost_launches} & set(found):
            times = np.array([start for owner, start in trace.lost_launches if owner == process], np.int64)
            lost.update((process, int(at)) for at in steps.step_of(found[process], times) if at >= 0)
    reasons: list[str | None] = []
    for at in range(len(windows)):
        process = int(windows.process[at])
        n_lost = lost[process, int(windows.position[at])]
        is_first = windows.step[at] == 0 and len(np.unique(windows.position[windows.process == process])) > 1
        if windows.is_step[at] and not windows.is_whole[at]:
            reasons.append("cut by the end of the capture")
        elif windows.is_step[at] and n_lost:
            reasons.append(f"{n_lost} launches without a kernel")
        elif is_first:
            reasons.append("step 0: warm-up")
        else:
            reasons.append(None)
    return tuple(reasons)
