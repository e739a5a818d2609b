"""One job from its traces: which rank each row is, the medians over steps, and what limits what the numbers mean.

Several reports are one job. A row is a (report, process, device); no number ever crosses from one row into another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpprof import __version__
from ddpprof.analysis import breakdown, buckets, kernels, steps, timing
from ddpprof.analysis.breakdown import METRICS, Measured, Windows
from ddpprof.errors import InputError, UsageError
from ddpprof.model import (
    MISSING,
    Analysis,
    BucketRow,
    Focus,
    FocusRow,
    Kind,
    KindRow,
    RankRow,
    Records,
    Source,
    StepRow,
    Trace,
    Warning,
)

BUCKET_LIMIT = 10_000
"""More communication intervals than this are not listed one by one unless asked for."""

_COUNTS = ("n_compute", "n_comm", "n_memory", "n_before_last_compute", "compute_sum_ns", "comm_sum_ns")
_UNRELIABLE = ("graph-trace-opaque", "capture-incomplete", "profiler-overhead")


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


def analyze(
    traces: Sequence[Trace],
    options: Options | None = None,
    *,
    ranks: Mapping[int, int] | None = None,
    records: Records | None = None,
    case: str | None = None,
) -> Analysis:
    """The Analysis of one job. ``ranks`` gives the rank of a trace's process by trace index, over all other sources.

    Raises InputError when reports contradict each other, UsageError when the options leave nothing.
    """
    options = options or Options()
    if not traces:
        raise UsageError("nothing to analyze", "Give at least one report.")
    _same_evidence(traces)
    _different_captures(traces)
    traces, told = _identify(traces, ranks or {})
    parts = [measure(trace, options) for trace in traces]
    if options.streams is not None and not any(len(part.trace.operations) for part in parts):
        raise UsageError(f"no stream {', '.join(map(str, sorted(options.streams)))} in the input", "See the streams with nsys.")
    if options.steps is not None and not any(len(part.windows) for part in parts):
        raise UsageError(f"no step {options.steps[0]}:{options.steps[1]} in the input", "See the steps with --per-step.")
    warnings = [*told, *_trace_warnings(parts)]
    gpus = _gpu_numbers(traces)
    rank_rows = [row for at, part in enumerate(parts) for row in _rank_rows(part, at, gpus)]
    rank_rows = _mark_shared(sorted(rank_rows, key=_row_order))
    step_rows = sorted((row for at, part in enumerate(parts) for row in _step_rows(part, at)), key=_step_order)
    n_comm = sum(int((part.kinds == int(Kind.COMM)).sum()) for part in parts)
    wants_buckets = options.buckets if options.buckets is not None else n_comm <= BUCKET_LIMIT
    found = [row for at, part in enumerate(parts) for row in _bucket_rows(part, at, records)] if wants_buckets else []
    warnings += _job_warnings(parts, options, rank_rows, step_rows, records, found if wants_buckets else None)
    return Analysis(
        ddpprof_version=__version__,
        case=case,
        evidence=traces[0].evidence,
        reports=tuple(trace.report for trace in traces),
        window="step" if any(part.windows.is_step.any() for part in parts) else "capture",
        world_size=max((process.world_size or 0 for trace in traces for process in trace.processes), default=0) or None,
        ranks=tuple(rank_rows),
        breakdown=tuple(step_rows),
        buckets=tuple(sorted(found, key=_bucket_order)),
        focus=_focus(parts, options, rank_rows),
        kinds=_kind_rows(parts),
        warnings=tuple(warnings),
        timings=timing.of_ranks(records) if records is not None else (),
    )


# ------------------------------------------------------------------------------------------------------- identity


def _same_evidence(traces: Sequence[Trace]) -> None:
    """Refuses to mix device time with host time."""
    by_evidence = {trace.evidence: trace.report.path for trace in traces}
    if len(by_evidence) > 1:
        raise InputError(
            f"{by_evidence['gpu-kernels']} has GPU kernels and {by_evidence['host-ranges']} only host ranges",
            "Host time never stands in for device time: analyze them apart.",
        )


def _different_captures(traces: Sequence[Trace]) -> None:
    """Refuses what one process did twice: the same capture under two names or in two formats."""
    seen: dict[tuple[Any, ...], int] = {}
    for at, trace in enumerate(traces):
        operations = trace.operations
        for place in np.unique(operations.process).tolist():
            mine = np.flatnonzero(operations.process == place)
            work = (len(mine), int(operations.start_ns[mine].min()), int(operations.end_ns[mine].max()))
            other = seen.setdefault((trace.report.session_start_utc_ns, trace.processes[place].key, *work), at)
            if other != at:
                names = f"{traces[other].report.path} and {trace.report.path}"
                raise InputError(f"{names} are the same capture", "Give each capture once.")


def _identify(traces: Sequence[Trace], given: Mapping[int, int]) -> tuple[list[Trace], list[Warning]]:
    """The traces with given ranks put in and contradictions settled: a rank twice is refused, or unknown with a warning."""
    out = []
    for at, trace in enumerate(traces):
        if at in given:
            workers = np.unique(trace.operations.process).tolist()
            if len(workers) != 1:
                raise UsageError(
                    f"--rank {trace.report.path}={given[at]}: the report has {len(workers)} processes with work",
                    "A rank can be given only to a report of one process.",
                )
            named = replace(trace.processes[workers[0]], rank=given[at], rank_source="option")
            processes = tuple(named if place == workers[0] else item for place, item in enumerate(trace.processes))
            trace = replace(trace, processes=processes)
        out.append(trace)
    owners: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for at, trace in enumerate(out):
        for place in np.unique(trace.operations.process).tolist():
            if (rank := trace.processes[place].rank) is not None:
                owners[rank].append((at, place))
    told = []
    for rank, places in sorted(owners.items()):
        if len(places) < 2:
            continue
        sources = {out[at].processes[place].rank_source for at, place in places}
        names = [out[at].report.path for at, _ in places]
        if len({at for at, _ in places}) > 1 and sources != {"environment"}:
            raise InputError(
                f"{names[0]} and {names[1]} are both rank {rank}", "Give each rank once, or say who is who with --rank FILE=N."
            )
        told.append(
            Warning(code="duplicate-rank", message=f"rank {rank} is claimed by {len(places)} processes: their rank is unknown")
        )
        for at, place in places:
            unknown = replace(out[at].processes[place], rank=None, rank_source="unknown")
            kept = tuple(unknown if spot == place else item for spot, item in enumerate(out[at].processes))
            out[at] = replace(out[at], processes=kept)
    return out, told


def _gpu_numbers(traces: Sequence[Trace]) -> dict[str, int]:
    """A number for each physical GPU of the input, in order of appearance; identities themselves are not shown."""
    numbers: dict[str, int] = {}
    for trace in traces:
        for device in trace.devices:
            if device.gpu is not None:
                numbers.setdefault(device.gpu, len(numbers))
    return numbers


def _mark_shared(rows: Sequence[RankRow]) -> list[RankRow]:
    """Rows with ``is_time_sliced`` set where another process had kernels on the same physical GPU."""
    busy = {(row.gpu, row.report, row.pid) for row in rows if row.gpu is not None and row.n_compute + row.n_comm > 0}
    owners = Counter(gpu for gpu, _, _ in busy)
    return [replace(row, is_time_sliced=row.gpu is not None and owners[row.gpu] > 1) for row in rows]


# -------------------------------------------------------------------------------------------------------- measuring


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


# ------------------------------------------------------------------------------------------------------------- rows


def _rank_rows(part: Part, report: int, gpus: Mapping[str, int]) -> Iterable[RankRow]:
    trace, windows = part.trace, part.windows
    known = {(device.process, device.device_id): device for device in trace.devices}
    lane = windows.process * 8192 + windows.device
    for key in np.unique(lane).tolist():
        at = np.flatnonzero(lane == key).tolist()
        process, device_id = int(windows.process[at[0]]), int(windows.device[at[0]])
        rows = [breakdown.rows(part.measured, window) for window in at]
        good = [row for row, window in zip(rows, at, strict=True) if part.reasons[window] is None]
        chosen = good or rows
        values = breakdown.medians(chosen, (*METRICS, *_COUNTS))
        if part.focused is not None:
            ordered = [breakdown.rows(part.focused, window) for window in at]
            ordered = [row for row, window in zip(ordered, at, strict=True) if not good or part.reasons[window] is None]
            values |= breakdown.medians(ordered, ["n_before_last_compute"])
        owner, device = trace.processes[process], known.get((process, device_id))
        mine = (trace.operations.process == process) & (trace.operations.device == device_id)
        yield RankRow(
            rank=owner.rank,
            rank_source=owner.rank_source,
            report=report,
            pid=owner.pid,
            device_id=device_id if device_id >= 0 else None,
            device_name=device.name if device else None,
            gpu=gpus.get(device.gpu) if device and device.gpu else None,
            is_time_sliced=False,
            steps=len(good) if windows.is_step[at[0]] else 0,
            n_left_out=int((windows.of_operation[mine] < 0).sum()),
            spread=breakdown.spread(chosen, METRICS) if len(chosen) > 1 else {},
            unreliable=_unreliable(part, process, at, bool(good), chosen),
            **values,
        )


def _unreliable(part: Part, process: int, windows: Sequence[int], has_complete: bool, chosen: Sequence[Any]) -> tuple[str, ...]:
    trace = part.trace
    codes = []
    if process in trace.is_graph_opaque:
        codes.append("graph-trace-opaque")
    if not has_complete:
        codes.append("capture-incomplete")
    start, end = min(row["start_ns"] for row in chosen), max(row["end_ns"] for row in chosen)
    if any(owner == process and low < end and high > start for owner, low, high in trace.overheads):
        codes.append("profiler-overhead")
    return tuple(codes)


def _step_rows(part: Part, report: int) -> Iterable[StepRow]:
    windows = part.windows
    for at, reason in enumerate(part.reasons):
        process, device = part.trace.processes[int(windows.process[at])], int(windows.device[at])
        yield StepRow(
            rank=process.rank,
            report=report,
            pid=process.pid,
            device_id=device if device >= 0 else None,
            step=None if windows.step[at] == MISSING else int(windows.step[at]),
            complete=reason is None or reason.startswith("step 0"),
            reason=reason,
            **breakdown.rows(part.measured, at),
        )


def _bucket_rows(part: Part, report: int, records: Records | None) -> Iterable[BucketRow]:
    by_bucket = {(item.rank, item.step, item.bucket): item for item in records.buckets} if records else {}
    for row in buckets.attribute(part.trace, part.kinds, part.windows, part.measured, by_bucket):
        process, device = part.trace.processes[row.pop("process")], row.pop("device")
        yield BucketRow(rank=process.rank, report=report, pid=process.pid, device_id=device if device >= 0 else None, **row)


def _focus(parts: Sequence[Part], options: Options, rank_rows: Sequence[RankRow]) -> Focus | None:
    if options.compute is None:
        return None
    found = []
    for report, part in enumerate(parts):
        if part.focused is None:
            continue
        lane = part.windows.process * 8192 + part.windows.device
        for key in np.unique(lane).tolist():
            at = np.flatnonzero(lane == key).tolist()
            good = [window for window in at if part.reasons[window] is None] or at
            values = breakdown.medians(
                [breakdown.rows(part.focused, window) for window in good],
                ["n_compute", "compute_ns", "compute_span_ns", "overlap_ns"],
            )
            process, device = part.trace.processes[int(part.windows.process[at[0]])], int(part.windows.device[at[0]])
            found.append(
                FocusRow(rank=process.rank, report=report, pid=process.pid, device_id=device if device >= 0 else None, **values)
            )
    return Focus(pattern=options.compute, ranks=tuple(sorted(found, key=_row_order)))


def _kind_rows(parts: Sequence[Part]) -> tuple[KindRow, ...]:
    """Every operation name with what it was taken for, longest total first."""
    totals: dict[tuple[int, str], tuple[int, int]] = {}
    for part in parts:
        operations = part.trace.operations
        key = operations.name.astype(np.int64) * 8 + part.kinds
        count = np.bincount(key, minlength=1)
        total = np.zeros(len(count), np.int64)
        np.add.at(total, key, operations.end_ns - operations.start_ns)
        for code in np.flatnonzero(count).tolist():
            name = (code % 8, part.trace.names[code // 8])
            old = totals.get(name, (0, 0))
            totals[name] = (old[0] + int(count[code]), old[1] + int(total[code]))
    rows = (
        KindRow(
            kind=Kind(kind).name.lower(),
            name=name,
            operation=kernels.operation_of(name) if kind == Kind.COMM else None,
            count=count,
            total_ns=total,
        )
        for (kind, name), (count, total) in totals.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.name)))


def _row_order(row: RankRow | FocusRow) -> tuple[Any, ...]:
    return (row.rank is None, row.rank, row.report, row.pid, row.device_id if row.device_id is not None else -1)


def _step_order(row: StepRow) -> tuple[Any, ...]:
    return (row.rank is None, row.rank, row.report, row.pid, row.device_id or 0, row.start_ns)


def _bucket_order(row: BucketRow) -> tuple[Any, ...]:
    first = row.launch_ns if row.launch_ns is not None else row.start_ns
    return (row.rank is None, row.rank, row.report, row.pid, row.device_id or 0, first)


# --------------------------------------------------------------------------------------------------------- warnings


def _trace_warnings(parts: Sequence[Part]) -> Iterable[Warning]:
    """What each trace's reader warned of, and what its windows show."""
    for at, part in enumerate(parts):
        yield from (replace(warning, report=at) for warning in part.trace.warnings)
        for process, n_empty in enumerate(part.windows.empty_steps):
            total = n_empty + len(np.unique(part.windows.position[part.windows.process == process]))
            if n_empty:
                who = _who(part.trace, process)
                yield Warning(
                    code="capture-incomplete", message=f"{who}: {n_empty} of {total} steps hold no device work", report=at
                )
        cut = sum(reason is not None and not reason.startswith("step 0") for reason in part.reasons)
        if cut:
            yield Warning(
                code="capture-incomplete", message=f"{cut} steps are incomplete and left out of the medians", report=at
            )
        yield from _same_stream(part, at)
        yield from _overhead(part, at)
        yield from _stray_devices(part, at)


def _same_stream(part: Part, report: int) -> Iterable[Warning]:
    """Communication on a stream with a tenth of the compute or more: program order keeps the two from overlapping."""
    operations = part.trace.operations
    if part.trace.evidence == "host-ranges":
        return
    lane = operations.process.astype(np.int64) * 8192 + operations.device
    for key in np.unique(lane[part.kinds == int(Kind.COMM)]).tolist():
        mine = lane == key
        comm_streams = operations.stream[mine & (part.kinds == int(Kind.COMM))]
        streams, count = np.unique(operations.stream[mine & (part.kinds == int(Kind.COMPUTE))], return_counts=True)
        shared = np.isin(comm_streams, streams[count * 10 >= count.sum()])
        if shared.sum() * 2 > len(comm_streams):
            stream = int(comm_streams[shared][0])
            who, n = _who(part.trace, key // 8192), int(shared.sum())
            message = f"{who}: {n} of {len(comm_streams)} communication kernels run on compute stream {stream}"
            yield Warning(code="same-stream", message=message, report=report)


def _overhead(part: Part, report: int) -> Iterable[Warning]:
    start, end = part.measured.columns["start_ns"], part.measured.columns["end_ns"]
    hit = sum(
        bool(((part.windows.process == process) & (start < high) & (end > low)).any())
        for process, low, high in part.trace.overheads
    )
    if hit:
        yield Warning(
            code="profiler-overhead", message=f"the profiler itself worked {hit} times inside a measured window", report=report
        )


def _stray_devices(part: Part, report: int) -> Iterable[Warning]:
    """Devices that a process touched with under a hundredth of its work and no communication."""
    busy: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    comm: Counter[tuple[int, int]] = Counter()
    for at in range(len(part.windows)):
        process, device = int(part.windows.process[at]), int(part.windows.device[at])
        busy[process][device] += int(part.measured.columns["compute_ns"][at])
        comm[process, device] += int(part.measured.columns["n_comm"][at])
    for process, devices in busy.items():
        most = max(devices.values())
        for device, total in sorted(devices.items()):
            if len(devices) > 1 and total * 100 < most and not comm[process, device]:
                who = _who(part.trace, process)
                yield Warning(code="idle-device", message=f"{who}: next to no work on device {device}", report=report)


def _job_warnings(
    parts: Sequence[Part],
    options: Options,
    ranks: Sequence[RankRow],
    steps: Sequence[StepRow],
    records: Records | None,
    found: Sequence[BucketRow] | None,
) -> Iterable[Warning]:
    traces = [part.trace for part in parts]
    if options.compute is not None and not any(part.focused.columns["n_compute"].any() for part in parts if part.focused):
        yield Warning(code="no-compute", message=f"no compute is named {options.compute!r}: its overlap cannot be told")
    if any(row.rank is None for row in ranks):
        n = len({(row.report, row.pid) for row in ranks if row.rank is None})
        who = f"{n} process{'es' * (n > 1)}"
        yield Warning(code="rank-unknown", message=f"the rank of {who} is unknown; give it with --rank FILE=N")
    yield from _missing_ranks(traces, ranks)
    shared = [row for row in ranks if row.is_time_sliced]
    if shared:
        n_gpus = len({row.gpu for row in shared})
        yield Warning(
            code="time-sliced",
            message=f"{len(shared)} ranks on {n_gpus} GPU{'s' * (n_gpus > 1)}: intervals include time switched out, "
            "so durations say nothing about bandwidth",
        )
    if not any(row.n_comm for row in ranks):
        yield Warning(code="no-comm", message=_no_comm(parts))
        yield from _unnamed_traffic(parts)
    if not any(row.n_compute for row in ranks):
        yield Warning(code="no-compute", message="no compute in the measured windows: overlap cannot be told")
    yield from _no_steps(parts, options)
    if any(1 < row.steps < 5 for row in ranks):
        yield Warning(code="few-steps", message="fewer than 5 complete steps: the medians rest on little")
    yield from _unequal_collectives(steps)
    yield from _skew(parts)
    if records is not None and found is not None:
        yield from _unjoined(records, found)


def _no_steps(parts: Sequence[Part], options: Options) -> Iterable[Warning]:
    """Windows that are a whole capture, and why."""
    whole = [(part, process) for part in parts for process in np.unique(part.windows.process[~part.windows.is_step]).tolist()]
    if options.whole_capture:
        why = "step marks were not to be used"
    elif any(not part.trace.has_launches and steps.find(part.trace, options.step_pattern) for part in parts):
        why = "no launch calls in the report, so no kernel can be placed in its step"
    else:
        why = "no step ranges"
    if whole and not any(part.windows.is_step.any() for part in parts):
        yield Warning(code="no-steps", message=f"{why}: every number is for the whole capture, warm-up included")
    elif whole:
        who = ", ".join(_who(part.trace, process) for part, process in whole[:8])
        yield Warning(code="no-steps", message=f"{why} of {who}: those numbers are for the whole capture, the others for steps")


def _missing_ranks(traces: Sequence[Trace], ranks: Sequence[RankRow]) -> Iterable[Warning]:
    world = max((process.world_size or 0 for trace in traces for process in trace.processes), default=0)
    seen = {row.rank for row in ranks if row.rank is not None}
    n_processes = len({(row.report, row.pid) for row in ranks})
    missing = sorted(set(range(world)) - seen)
    if world > n_processes:
        which = f": {_listed(missing)} missing" if seen else ""
        what = "kernels" if traces[0].evidence == "gpu-kernels" else "work"
        message = f"WORLD_SIZE={world} but {what} of {n_processes} process{'es' * (n_processes > 1)}{which}"
        yield Warning(code="missing-ranks", message=message)
    elif not world and seen and set(range(max(seen) + 1)) != seen:
        gaps = sorted(set(range(max(seen) + 1)) - seen)
        yield Warning(code="missing-ranks", message=f"no report of {_listed(gaps)}")


def _listed(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{'…' * (len(ranks) > 8)}"


def _no_comm(parts: Sequence[Part]) -> str:
    texts = {text for part in parts for text in part.trace.texts}
    message = "no NCCL kernels: overlap is undefined, not zero"
    if any(text.startswith("gloo:") for text in texts):
        return message + " (gloo backend? its collectives run on the CPU)"
    if any(kernels.COLLECTIVE_CALL.fullmatch(text) for text in texts):
        return message + "; host-side collective calls exist, their GPU kernels are missing"
    return message


def _unnamed_traffic(parts: Sequence[Part]) -> Iterable[Warning]:
    """The longest kernels on side streams, when nothing was called communication: perhaps a pattern is needed."""
    for report, part in enumerate(parts):
        operations = part.trace.operations
        is_kernel = operations.source == int(Source.KERNEL)
        lane = operations.process.astype(np.int64) * 8192 + operations.device
        side = np.zeros(len(operations), bool)
        for key in np.unique(lane[is_kernel]).tolist():
            mine = is_kernel & (lane == key)
            found, count = np.unique(operations.stream[mine], return_counts=True)
            side |= mine & (operations.stream != found[np.argmax(count)])
        if not side.any():
            continue
        total: Counter[str] = Counter()
        lengths = (operations.end_ns - operations.start_ns)[side].tolist()
        for name, length in zip(operations.name[side].tolist(), lengths, strict=True):
            total[part.trace.names[name]] += length
        names = ", ".join(name[:60] for name, _ in total.most_common(3))
        yield Warning(
            code="unnamed-traffic",
            message=f"longest kernels on other streams: {names}; if one is communication: --comm PATTERN",
            report=report,
        )


def _unequal_collectives(steps: Sequence[StepRow]) -> Iterable[Warning]:
    """Ranks that did different numbers of collectives in the same step."""
    by_step: dict[int | None, dict[Any, int]] = defaultdict(dict)
    for row in steps:
        if row.complete:
            who = (row.report, row.pid)
            by_step[row.step][who] = by_step[row.step].get(who, 0) + row.n_comm
    differing = [counts for step, counts in by_step.items() if step != 0 and len(set(counts.values())) > 1]
    if differing:
        counts = sorted(set(differing[0].values()))
        yield Warning(
            code="collectives-differ",
            message=f"ranks differ in number of collectives: {counts[-1]} and {counts[0]} in {len(differing)} step(s)",
        )


def _skew(parts: Sequence[Part]) -> Iterable[Warning]:
    """Reports of one job whose windows do not meet in wall-clock time."""
    spans = []
    for part in parts:
        zero = part.trace.report.session_start_utc_ns
        if zero is not None and len(part.windows):
            columns = part.measured.columns
            spans.append((zero + int(columns["start_ns"].min()), zero + int(columns["end_ns"].max())))
    if len(spans) > 1:
        gap = max(start for start, _ in spans) - min(end for _, end in spans)
        if gap > 0:
            yield Warning(
                code="clock-skew",
                message=f"the reports' windows lie {gap / 1e9:.1f} s apart: clocks differ, or they are not of one run; "
                "numbers of each rank stand, cross-rank times do not",
            )


def _unjoined(records: Records, found: Sequence[BucketRow]) -> Iterable[Warning]:
    """Ranks whose marked buckets are not those that the run recorded for the captured step."""
    captured = {(item.rank, item.step) for item in records.iterations if item.is_captured}
    recorded = Counter(item.rank for item in records.buckets if (item.rank, item.step) in captured)
    seen = Counter(row.rank for row in found if row.bucket is not None)
    differing = sorted(rank for rank in recorded if recorded[rank] != seen[rank])
    if differing:
        rank = differing[0]
        yield Warning(code="records", message=f"rank {rank} recorded {recorded[rank]} buckets, the timeline shows {seen[rank]}")


def _who(trace: Trace, process: int) -> str:
    owner = trace.processes[process]
    return f"rank {owner.rank}" if owner.rank is not None else f"process {owner.pid}"
