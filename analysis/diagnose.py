"""Which of the causes hold the step back: every rule of ``rules.RULES`` put to every rank of the job.

The rank that a cause costs most is shown. Findings are ordered by what they cost, warnings before notes: the first is the one
to act on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddpprof.analysis.rules import RULES, Judged, Rank, Rule, Seen
from ddpprof.analysis.signs import Bucket, Signs, Step
from ddpprof.model import (
    CAUSES,
    FEW_STEPS,
    Across,
    BucketRecord,
    CollectiveRow,
    Finding,
    NotJudged,
    Process,
    RankRow,
    Records,
    Severity,
    Span,
)


def ranks(
    rows: Sequence[RankRow],
    signs: Mapping[tuple[int, int, int | None], tuple[Process, Signs]],
    across: Across | None,
    records: Records | None,
) -> list[Rank]:
    """The job's rows as the rules see them; ``signs`` are by (report, process id, device)."""
    beside = {(item.report, item.pid, item.device_id): place for place, item in enumerate(across.ranks)} if across else {}
    collectives = {(item.step, item.place): item for item in across.collectives} if across is not None else {}
    records = records or Records()
    buckets = {(item.rank, item.step, item.bucket): item for item in records.buckets}
    sizes = {item.rank: item.size_bytes for item in records.models}
    ready = {(item.rank, item.step): dict(zip(item.parameters, item.ready_ns, strict=False)) for item in records.gradients}
    found = []
    for row in rows:
        key = (row.report, row.pid, row.device_id)
        owner, seen = signs[key]
        place = beside.get(key)

        def filled(item: Bucket, step: Step, rank: int | None = row.rank, place: int | None = place) -> Bucket:
            if rank is not None and (record := buckets.get((rank, step.step, item.bucket))) is not None:  # type: ignore[arg-type]
                item = _recorded(item, record, sizes.get(rank, ()), ready.get((rank, record.step), {}))
            collective = collectives.get((step.step, item.place))
            return item if place is None or collective is None else _waited(item, collective, place)

        steps = tuple(replace(step, buckets=tuple(filled(item, step) for item in step.buckets)) for step in seen.steps)
        found.append(
            Rank(
                row=row,
                signs=replace(seen, steps=steps),
                across=across.ranks[place] if across is not None and place is not None else None,
                uncertainty_ns=across.uncertainty_ns if across is not None else None,
                why_alone=(across.refused if across is not None else None) or "only one rank is in the input",
                iterations_ns=_iterations(records, row.rank),
                settings=owner.settings,
                is_unused_for_nothing=_is_unused_for_nothing(records, row.rank),
            )
        )
    return found


def _recorded(item: Bucket, record: BucketRecord, sizes: Sequence[int], ready: Mapping[int, int]) -> Bucket:
    """The bucket with what the run recorded; by parameter, ``sizes`` are bytes and ``ready`` is when its gradient came."""
    last = max(record.parameters, key=lambda parameter: ready.get(parameter, 0), default=None)
    known = [ready[parameter] for parameter in record.parameters if parameter in ready]
    return replace(
        item,
        size_bytes=item.size_bytes or record.size_bytes,
        parameters=tuple(record.parameters),
        last_bytes=sizes[last] if last is not None and last < len(sizes) else None,
        parked_ns=max(record.ready_ns - max(known), 0) if known else None,
        held_ns=max(record.ready_ns - min(known), 0) if known else None,
    )


def _waited(item: Bucket, collective: CollectiveRow, place: int) -> Bucket:
    """The bucket with its waiting for other ranks, as the rank at ``place`` saw it; as it is when it is another collective."""
    if collective.length_ns[place] != item.end_ns - item.start_ns:
        return item
    arrivals = collective.arrival_ns
    met_ns = item.start_ns + max(arrivals) - arrivals[place] if arrivals is not None else None
    return replace(item, wait_ns=collective.wait_ns[place], met_ns=met_ns)


def _iterations(records: Records, rank: int | None) -> tuple[int, ...]:
    """The steps that the run itself timed, without a profiler."""
    rows = [row for row in records.iterations if row.rank == rank and not row.is_captured]
    return tuple(row.step_ns for row in sorted(rows, key=lambda row: row.step))


def _is_unused_for_nothing(records: Records, rank: int | None) -> bool | None:
    """Whether DDP looked for unused parameters in every recorded step and found none; None when nothing is recorded."""
    told = [row.fields for row in records.loggers if row.rank == rank]
    told = [fields for fields in told if "find_unused_parameters" in fields and "unused_parameter_size" in fields]
    if not told:
        return None
    return all(fields["find_unused_parameters"] and not fields["unused_parameter_size"] for fields in told)


def judge(found: Sequence[Rank]) -> tuple[tuple[Finding, ...], tuple[NotJudged, ...]]:
    """What holds the step back, the first to act on first; and what the input does not let be judged."""
    findings: list[Finding] = []
    refused: list[NotJudged] = []
    able = [rank for rank in found if not _unable(rank)]
    nobody = next((why for rank in found if (why := _unable(rank))), "the input shows no rank that did any work")
    for rule in RULES:
        judged = [(rank, _judged(rule, rank)) for rank in able]
        whys = [answer for _, answer in judged if isinstance(answer, str)]
        if len(whys) == len(judged):
            why = Counter(whys).most_common(1)[0][0] if whys else nobody
            refused.append(NotJudged(code=rule.code, reason=why))
        groups: dict[Any, list[tuple[Rank, Seen]]] = {}
        for rank, answer in judged:
            for seen in () if isinstance(answer, str) else answer:
                groups.setdefault(seen.evidence.get("setting"), []).append((rank, seen))
        findings += [item for group in groups.values() if (item := _finding(rule, group)) is not None]
    order = list(CAUSES)
    return (
        tuple(sorted(findings, key=lambda item: (item.severity == "note", -(item.cost_ns or 0), order.index(item.code)))),
        tuple(refused),
    )


def _unable(rank: Rank) -> str:
    """Why nothing can be said of a rank, "" when something can."""
    if "graph-trace-opaque" in rank.row.unreliable:
        return "CUDA graphs were captured whole, what runs in them cannot be seen: capture with --cuda-graph-trace=node"
    is_cut = not rank.row.steps and any(step.is_step for step in rank.signs.steps)
    return "no step is complete" if is_cut else ""


def _judged(rule: Rule, rank: Rank) -> Judged:
    if rule.rests_on_compute and not rank.row.n_compute:
        return "no compute was found: what it would hide, or wait for, cannot be told"
    return rule.judge(rank)


def _finding(rule: Rule, group: Sequence[tuple[Rank, Seen]]) -> Finding | None:
    """The rank on which it costs the greatest share of the step, when that is half the threshold or more."""
    weighed = [(rank, seen, severity) for rank, seen in group if (severity := _severity(rule, seen)) is not None]
    if not weighed:
        return None
    rank, seen, severity = max(
        weighed, key=lambda item: (item[2] == "warning", item[1].cost_ns / max(item[1].step_ns, 1), -(item[0].row.rank or 0))
    )
    row = rank.row
    n_steps = seen.evidence.get("n_steps", row.steps)
    few = {"n_steps": n_steps} if 0 < n_steps < FEW_STEPS else {}
    return Finding(
        code=rule.code,
        severity=severity,
        rank=row.rank,
        message=(seen.message or rule.message).format(**seen.evidence),
        evidence={**seen.evidence, **few, **({} if row.rank is not None else {"pid": row.pid})},
        cost_ns=min(seen.cost_ns, seen.step_ns),
        step_ns=seen.step_ns,
        on_ranks=tuple(sorted({item.row.rank for item, _, _ in weighed if item.row.rank is not None})),
        sure="medium" if n_steps < FEW_STEPS and seen.sure == "high" else seen.sure,
        advice=(seen.advice or rule.advice).format(**seen.evidence),
        spans=tuple(Span(report=row.report, pid=row.pid, start_ns=start, end_ns=end) for start, end in seen.spans),
    )


def _severity(rule: Rule, seen: Seen) -> Severity | None:
    if seen.severity is not None:
        return seen.severity
    if seen.cost_ns <= 0 or seen.cost_ns * 200 < rule.percent * seen.step_ns:
        return None
    return "warning" if seen.cost_ns * 100 >= rule.percent * seen.step_ns else "note"
