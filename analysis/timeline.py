"""One step of every rank on one clock: what a picture shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ddpprof.analysis import buckets, intervals, ranks
from ddpprof.analysis.intervals import Intervals
from ddpprof.analysis.part import Options, Part, lanes, measure
from ddpprof.model import Kind, Lane, RankLanes, Timeline, Trace


def timeline(traces: Sequence[Trace], options: Options | None = None) -> Timeline:
    """The last complete step of every row (or its whole capture), zero at the earliest start.

    Compute is narrowed as in ``options``; reports are aligned as in ``ranks.clocks``, and stand each at its own zero when that
    finds no common clock.
    """
    options = options or Options()
    parts = [measure(trace, options) for trace in traces]
    found = [
        item
        for part, shift in zip(parts, ranks.clocks(parts).offsets_ns, strict=True)
        for item in _rank_lanes(part, shift, options)
    ]
    zero = min((rank.window[0] for rank, _ in found), default=0)
    numbers = {number for _, number in found}
    shown = sorted((_shifted(rank, zero) for rank, _ in found), key=lambda rank: (rank.rank is None, rank.rank, rank.title))
    return Timeline(evidence=traces[0].evidence, ranks=tuple(shown), step=numbers.pop() if len(numbers) == 1 else None)


def _rank_lanes(part: Part, shift: int, options: Options) -> list[tuple[RankLanes, int | None]]:
    trace, windows = part.trace, part.windows
    measured = part.focused or part.measured
    overlap = intervals.intersection(measured.compute, measured.comm)
    numbered = {}
    for row in buckets.attribute(trace, part.kinds, windows, part.measured):
        if row["bucket"] is not None:
            numbered[row["process"], row["device"], row["start_ns"], row["end_ns"]] = str(row["bucket"])
    found = []
    for process, device, mine in lanes(part):
        at = [window for window in mine if part.reasons[window] is None][-1:] or mine[-1:]
        rows = np.flatnonzero(windows.of_operation == at[0])
        low, high = measured.offset[at[0]], measured.offset[at[0] + 1]
        inside = (overlap.start >= low) & (overlap.start < high)
        back = measured.base[at[0]] - low + shift
        columns = part.measured.columns
        owner = trace.processes[process]
        who = f"rank {owner.rank}" if owner.rank is not None else f"pid {owner.pid}"
        drawn = RankLanes(
            rank=owner.rank,
            title=who if device < 0 else f"{who} · device {device}",
            lanes=tuple(_lanes(part, rows, shift, owner.rank, numbered, process, device)),
            overlap_start_ns=overlap.start[inside] + back,
            overlap_end_ns=overlap.end[inside] + back,
            window=(int(columns["start_ns"][at[0]]) + shift, int(columns["end_ns"][at[0]]) + shift),
            overlap_ns=int(measured.columns["overlap_ns"][at[0]]),
            compute_label=options.compute or "compute",
        )
        number = int(windows.step[at[0]])
        found.append((drawn, number if number >= 0 else None))
    return found


def _lanes(
    part: Part,
    rows: np.ndarray[tuple[int], np.dtype[np.int64]],
    shift: int,
    rank: int | None,
    numbered: dict[tuple[int, int, int, int], str],
    process: int,
    device: int,
) -> list[Lane]:
    operations = part.trace.operations
    found = []
    for stream in np.unique(operations.stream[rows]).tolist():
        here = rows[operations.stream[rows] == stream]
        start, end = operations.start_ns[here], operations.end_ns[here]
        kinds = part.kinds[here]
        keys = zip(start.tolist(), end.tolist(), (kinds == int(Kind.COMM)).tolist(), strict=True)
        labels = tuple(numbered.get((process, device, low, high), "") if is_comm else "" for low, high, is_comm in keys)
        host = "all-reduce" if stream else "compute"
        title = f"stream {stream}" if part.trace.evidence == "gpu-kernels" else host
        found.append(Lane(rank=rank, title=title, start_ns=start + shift, end_ns=end + shift, kind=kinds, label=labels))
    return found


def _shifted(rank: RankLanes, zero: int) -> RankLanes:
    overlap = Intervals(rank.overlap_start_ns - zero, rank.overlap_end_ns - zero)
    moved = tuple(replace(lane, start_ns=lane.start_ns - zero, end_ns=lane.end_ns - zero) for lane in rank.lanes)
    window = (rank.window[0] - zero, rank.window[1] - zero)
    return replace(rank, lanes=moved, overlap_start_ns=overlap.start, overlap_end_ns=overlap.end, window=window)
