"""One job from its digests: which rank each row is, what limits what the numbers mean, and the Analysis of it all.

Several reports are one job. A row is a (report, process, device); no number ever crosses from one row into another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddpprof import __version__
from ddpprof.analysis import diagnose, kernels, timing
from ddpprof.analysis.digest import BUCKET_LIMIT, Digest, digest
from ddpprof.analysis.part import Options
from ddpprof.analysis.ranks import across
from ddpprof.analysis.signs import Signs
from ddpprof.errors import InputError, UsageError
from ddpprof.model import (
    FEW_STEPS,
    Analysis,
    BucketRow,
    Clock,
    Focus,
    FocusRow,
    Kind,
    KindRow,
    Process,
    RankRow,
    Records,
    StepRow,
    Trace,
    Warning,
)

Names = Mapping[tuple[int, int], Process]
"""(report, process) to the process, its rank settled."""


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
    options, given = options or Options(), ranks or {}
    digests = [digest(trace, options, rank=given.get(at), records=records) for at, trace in enumerate(traces)]
    return combine(digests, options, records=records, case=case)


def combine(
    digests: Sequence[Digest], options: Options, *, records: Records | None = None, case: str | None = None
) -> Analysis:
    """The Analysis of the job whose traces these were, digested under the same options. Raises as ``analyze``."""
    if not digests:
        raise UsageError("nothing to analyze", "Give at least one report.")
    _same_evidence(digests)
    _different_captures(digests)
    names, told = _identify(digests)
    if options.streams is not None and not any(part.n_operations for part in digests):
        raise UsageError(f"no stream {', '.join(map(str, sorted(options.streams)))} in the input", _there_are(digests))
    if options.steps is not None and not any(part.n_windows for part in digests):
        first, last = options.steps
        raise UsageError(f"no step {first if first == last else f'{first}:{last}'} in the input", _there_are(digests))
    warnings = [*told, *_trace_warnings(digests, names)]
    comms = (comm for part in digests for comm in part.comm)
    rows = sorted(zip(_rank_rows(digests, names), comms, strict=True), key=lambda pair: _row_order(pair[0]))
    rank_rows = _mark_shared([row for row, _ in rows])
    step_rows = sorted(
        (_of(row, at, names[at, place]) for at, part in enumerate(digests) for place, row in part.steps), key=_step_order
    )
    found = _bucket_rows(digests, options, names)
    sessions = [part.report.session_start_utc_ns for part in digests]
    over = across([(row, comm) for row, (_, comm) in zip(rank_rows, rows, strict=True)], sessions, found)
    warnings += _job_warnings(digests, options, names, rank_rows, step_rows, records, found, over.clock)
    findings, not_judged = diagnose.judge(diagnose.ranks(rank_rows, _signs(digests, names), over, records))
    return Analysis(
        ddpprof_version=__version__,
        case=case,
        evidence=digests[0].evidence,
        reports=tuple(part.report for part in digests),
        window="step" if any(part.has_steps for part in digests) else "capture",
        world_size=max((process.world_size or 0 for part in digests for process in part.processes), default=0) or None,
        ranks=tuple(rank_rows),
        breakdown=tuple(step_rows),
        buckets=tuple(found or ()),
        focus=_focus(digests, options, names),
        kinds=_kind_rows(digests),
        findings=findings,
        not_judged=not_judged,
        across=over,
        warnings=tuple(warnings),
        timings=timing.of_ranks(records) if records is not None else (),
    )


def _there_are(digests: Sequence[Digest]) -> str:
    """What there is of what the options left nothing of."""
    numbers = sorted({number for part in digests for number in part.others})
    shown = ", ".join(map(str, numbers[:8])) or "none with a number"
    return f"There are: {shown}{f', ... ({len(numbers)} in all)' if len(numbers) > 8 else ''}."


# ------------------------------------------------------------------------------------------------------- identity


def _same_evidence(digests: Sequence[Digest]) -> None:
    """Refuses to mix device time with host time."""
    by_evidence = {part.evidence: part.report.path for part in digests}
    if len(by_evidence) > 1:
        raise InputError(
            f"{by_evidence['gpu-kernels']} has GPU kernels and {by_evidence['host-ranges']} only host ranges",
            "Host time never stands in for device time: analyze them apart.",
        )


def _different_captures(digests: Sequence[Digest]) -> None:
    """Refuses what one process did twice: the same capture under two names or in two formats."""
    seen: dict[tuple[Any, ...], int] = {}
    for at, part in enumerate(digests):
        for work in part.works:
            shape = (work.n_operations, work.start_ns, work.end_ns)
            other = seen.setdefault((part.report.session_start_utc_ns, part.processes[work.process].key, *shape), at)
            if other != at:
                names = f"{digests[other].report.path} and {part.report.path}"
                raise InputError(f"{names} are the same capture", "Give each capture once.")


def _identify(digests: Sequence[Digest]) -> tuple[dict[tuple[int, int], Process], list[Warning]]:
    """Every process with contradictions settled: a rank claimed twice is refused, or unknown with a warning."""
    names = {(at, place): process for at, part in enumerate(digests) for place, process in enumerate(part.processes)}
    owners: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for at, part in enumerate(digests):
        for work in part.works:
            if (rank := part.processes[work.process].rank) is not None:
                owners[rank].append((at, work.process))
    told = []
    for rank, places in sorted(owners.items()):
        if len(places) < 2:
            continue
        sources = {names[place].rank_source for place in places}
        paths = [digests[at].report.path for at, _ in places]
        if len({at for at, _ in places}) > 1 and sources != {"environment"}:
            raise InputError(
                f"{paths[0]} and {paths[1]} are both rank {rank}", "Give each rank once, or say who is who with --rank FILE=N."
            )
        told.append(
            Warning(code="duplicate-rank", message=f"rank {rank} is claimed by {len(places)} processes: their rank is unknown")
        )
        for place in places:
            names[place] = replace(names[place], rank=None, rank_source="unknown")
    return names, told


def _of(row: Any, report: int, owner: Process) -> Any:
    """A row of a digest as the job's: its report, and its rank as settled."""
    return row if not report and row.rank == owner.rank else replace(row, report=report, rank=owner.rank)


def _rank_rows(digests: Sequence[Digest], names: Names) -> Iterable[RankRow]:
    """The rows of all digests with a number for each physical GPU, in order of appearance; identities are not shown."""
    numbers: dict[str, int] = {}
    for part in digests:
        for device in part.devices:
            if device.gpu is not None:
                numbers.setdefault(device.gpu, len(numbers))
    for at, part in enumerate(digests):
        gpus = {(device.process, device.device_id): device.gpu for device in part.devices}
        for place, row in part.ranks:
            owner, gpu = names[at, place], gpus.get((place, -1 if row.device_id is None else row.device_id))
            number = numbers[gpu] if gpu is not None else None
            yield replace(row, report=at, rank=owner.rank, rank_source=owner.rank_source, gpu=number)


def _signs(digests: Sequence[Digest], names: Names) -> dict[tuple[int, int, int | None], tuple[Process, Signs]]:
    """The process of each row, its rank settled, and what it shows, by (report, process id, device)."""
    return {
        (at, row.pid, row.device_id): (names[at, place], seen)
        for at, part in enumerate(digests)
        for (place, row), seen in zip(part.ranks, part.signs, strict=True)
    }


def _mark_shared(rows: Sequence[RankRow]) -> list[RankRow]:
    """Rows with ``is_time_sliced`` set where another process had kernels on the same physical GPU."""
    busy = {(row.gpu, row.report, row.pid) for row in rows if row.gpu is not None and row.n_compute + row.n_comm > 0}
    owners = Counter(gpu for gpu, _, _ in busy)
    return [replace(row, is_time_sliced=row.gpu is not None and owners[row.gpu] > 1) for row in rows]


def _bucket_rows(digests: Sequence[Digest], options: Options, names: Names) -> list[BucketRow] | None:
    """All communication intervals in order; None when there are too many to list unasked."""
    if options.buckets is False or (options.buckets is None and sum(part.n_comm for part in digests) > BUCKET_LIMIT):
        return None
    found = (_of(row, at, names[at, place]) for at, part in enumerate(digests) for place, row in part.buckets or ())
    return sorted(found, key=_bucket_order)


def _focus(digests: Sequence[Digest], options: Options, names: Names) -> Focus | None:
    if options.compute is None:
        return None
    found = (_of(row, at, names[at, place]) for at, part in enumerate(digests) for place, row in part.focus)
    return Focus(pattern=options.compute, ranks=tuple(sorted(found, key=_row_order)))


def _kind_rows(digests: Sequence[Digest]) -> tuple[KindRow, ...]:
    """Every operation name with what it was taken for, longest total first."""
    totals: dict[tuple[int, str], tuple[int, int]] = {}
    for part in digests:
        for name, (count, total) in part.kinds.items():
            old = totals.get(name, (0, 0))
            totals[name] = (old[0] + count, old[1] + total)
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


def _trace_warnings(digests: Sequence[Digest], names: Names) -> Iterable[Warning]:
    """What each digest tells, by name."""
    for at, part in enumerate(digests):
        for told in part.told:
            who = "" if told.process is None else f"{_who(names[at, told.process])}: "
            yield Warning(code=told.code, message=who + told.message, report=at)


def _job_warnings(
    digests: Sequence[Digest],
    options: Options,
    names: Names,
    ranks: Sequence[RankRow],
    steps: Sequence[StepRow],
    records: Records | None,
    found: Sequence[BucketRow] | None,
    clock: Clock,
) -> Iterable[Warning]:
    if options.compute is not None and not any(part.has_focus for part in digests):
        yield Warning(code="no-compute", message=f"no compute is named {options.compute!r}: its overlap cannot be told")
    if any(row.rank is None for row in ranks):
        n = len({(row.report, row.pid) for row in ranks if row.rank is None})
        who = f"{n} process{'es' * (n > 1)}"
        yield Warning(code="rank-unknown", message=f"the rank of {who} is unknown; give it with --rank FILE=N")
    yield from _missing_ranks(digests, ranks)
    shared = [row for row in ranks if row.is_time_sliced]
    if shared:
        n_gpus = len({row.gpu for row in shared})
        yield Warning(
            code="time-sliced",
            message=f"{len(shared)} ranks on {n_gpus} GPU{'s' * (n_gpus > 1)}: intervals include time switched out, "
            "so durations say nothing about bandwidth",
        )
    if not any(row.n_comm for row in ranks):
        yield Warning(code="no-comm", message=_no_comm(digests))
        yield from _unnamed_traffic(digests)
    if not any(row.n_compute for row in ranks):
        yield Warning(code="no-compute", message="no compute in the measured windows: overlap cannot be told")
    yield from _no_steps(digests, options, names)
    if any(1 < row.steps < FEW_STEPS for row in ranks):
        yield Warning(code="few-steps", message=f"fewer than {FEW_STEPS} complete steps: the medians rest on little")
    yield from _unequal_collectives(steps)
    yield from _skew(digests, clock)
    if records is not None and found is not None:
        yield from _unjoined(records, found)


def _no_steps(digests: Sequence[Digest], options: Options, names: Names) -> Iterable[Warning]:
    """Windows that are a whole capture, and why."""
    whole = [names[at, place] for at, part in enumerate(digests) for place in part.unstepped]
    if options.whole_capture:
        why = "step marks were not to be used"
    elif any(part.has_unplaced_steps for part in digests):
        why = "no launch calls in the report, so no kernel can be placed in its step"
    else:
        why = "no step ranges"
    if whole and not any(part.has_steps for part in digests):
        yield Warning(code="no-steps", message=f"{why}: every number is for the whole capture, warm-up included")
    elif whole:
        who = ", ".join(_who(owner) for owner in whole[:8])
        yield Warning(code="no-steps", message=f"{why} of {who}: those numbers are for the whole capture, the others for steps")


def _missing_ranks(digests: Sequence[Digest], ranks: Sequence[RankRow]) -> Iterable[Warning]:
    world = max((process.world_size or 0 for part in digests for process in part.processes), default=0)
    seen = {row.rank for row in ranks if row.rank is not None}
    n_processes = len({(row.report, row.pid) for row in ranks})
    missing = sorted(set(range(world)) - seen)
    if world > n_processes:
        which = f": {_listed(missing)} missing" if seen else ""
        what = "kernels" if digests[0].evidence == "gpu-kernels" else "work"
        who = f"{what} of {n_processes} process{'es' * (n_processes > 1)}" if n_processes else f"no {what} of any process"
        message = f"WORLD_SIZE={world} but {who}{which}"
        yield Warning(code="missing-ranks", message=message)
    elif not world and seen and set(range(max(seen) + 1)) != seen:
        gaps = sorted(set(range(max(seen) + 1)) - seen)
        yield Warning(code="missing-ranks", message=f"no report of {_listed(gaps)}")


def _listed(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{'…' * (len(ranks) > 8)}"


def _no_comm(digests: Sequence[Digest]) -> str:
    calls = {family for part in digests for family in part.calls}
    message = "no NCCL kernels: overlap is undefined, not zero"
    if "gloo" in calls:
        return message + " (gloo backend? its collectives run on the CPU)"
    if "collective" in calls:
        return message + "; host-side collective calls exist, their GPU kernels are missing"
    return message


def _unnamed_traffic(digests: Sequence[Digest]) -> Iterable[Warning]:
    """The longest kernels on side streams, when nothing was called communication: perhaps a pattern is needed."""
    for report, part in enumerate(digests):
        if part.side_names:
            yield Warning(
                code="unnamed-traffic",
                message=f"longest kernels on other streams: {', '.join(part.side_names)}; "
                "if one is communication: --comm PATTERN",
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


def _skew(digests: Sequence[Digest], clock: Clock) -> Iterable[Warning]:
    """Reports of one job whose windows do not meet in wall-clock time."""
    spans = []
    for part in digests:
        zero = part.report.session_start_utc_ns
        if zero is not None and part.extent is not None:
            spans.append((zero + part.extent[0], zero + part.extent[1]))
    if len(spans) > 1:
        gap = max(start for start, _ in spans) - min(end for _, end in spans)
        if gap > 0:
            times = "are aligned by the ends of collectives" if clock == "collective ends" else "do not"
            yield Warning(
                code="clock-skew",
                message=f"the reports' windows lie {gap / 1e9:.1f} s apart: clocks differ, or they are not of one run; "
                f"numbers of each rank stand, cross-rank times {times}",
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


def _who(owner: Process) -> str:
    return f"rank {owner.rank}" if owner.rank is not None else f"process {owner.pid}"
