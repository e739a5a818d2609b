"""One step of every rank on one clock: what a picture shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddpprof.analysis import buckets, intervals
from ddpprof.analysis.intervals import Intervals
from ddpprof.analysis.part import Options, Part, measure
from ddpprof.model import Kind, Lane, RankLanes, Timeline, Trace


def timeline(traces: Sequence[Trace], options: Options | None = None) -> Timeline:
    """The last complete step of every row (or its whole capture), zero at the earliest start.

    Compute is narrowed as in ``options``; reports of one host are aligned by their session start, and stand each at its own
    zero when they do not tell it.
    """
    options = options or Options()
    parts = [measure(trace, options) for trace in traces]
    starts = [part.trace.report.session_start_utc_ns for part in parts]
    clock = [0 if None in starts else (start or 0) - min(value for value in starts if value is not None) for start in starts]
    found = [lanes for part, shift in zip(parts, clock, strict=True) for lanes in _rank_lanes(part, shift, options)]
    zero = min((lanes.window[0] for lanes, _ in found), default=0)
    numbers = {number for _, number in found}
    ranks = sorted(
        (_shifted(lanes, zero) for lanes, _ in found), key=lambda lanes: (lanes.rank is None, lanes.rank, lanes.title)
    )
    return Timeline(evidence=traces[0].evidence, ranks=tuple(ranks), step=numbers.pop() if len(numbers) == 1 else None)


def _rank_lanes(part: Part, shift: int, options: Options) -> list[tuple[RankLanes, int | None]]:
    trace, windows = part.trace, part.windows
    measured = part.focused or part.measured
    overlap = intervals.intersection(measured.compute, measured.comm)
    numbered = {}
    for row in buckets.attribute(trace, part.kinds, windows, part.measured):
        if row["bucket"] is not None:
            numbered[row["process"], row["device"], row["start_ns"], row["end_ns"]] = str(row["bucket"])
    found = []
    lane_key = windows.process * 8192 + windows.device
    for key in np.unique(lane_key).tolist():
        mine = np.flatnonzero(lane_key == key).tolist()
        at = [window for window in mine if part.reasons[window] is None][-1:] or mine[-1:]
        process, device = int(windows.process[at[0]]), int(windows.device[at[0]])
        rows = np.flatnonzero(windows.of_operation == at[0])
        low, high = measured.offset[at[0]], measured.offset[at[0] + 1]
        inside = (overlap.start >= low) & (overlap.start < high)
        back = measured.base[at[0]] - low + shift
        columns = part.measured.columns
        owner = trace.processes[process]
        who = f"rank {owner.rank}" if owner.rank is not None else f"pid {owner.pid}"
        lanes = RankLanes(
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
        found.append((lanes, number if number >= 0 else None))
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


def _shifted(lanes: RankLanes, zero: int) -> RankLanes:
    from dataclasses import replace

    overlap = Intervals(lanes.overlap_start_ns - zero, lanes.overlap_end_ns - zero)
    moved = tuple(replace(lane, start_ns=lane.start_ns - zero, end_ns=lane.end_ns - zero) for lane in lanes.lanes)
    window = (lanes.window[0] - zero, lanes.window[1] - zero)
    return replace(lanes, lanes=moved, overlap_start_ns=overlap.start, overlap_end_ns=overlap.end, window=window)
