"""What the formal experiment claims of each case, and how what was seen is counted against it.

What must come out is told by the case, by the model of the Reducer and by a single process; never by what the ranks recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ddpprof import __version__, reducer
from ddpprof.errors import DdpprofError, WorkloadError
from ddpprof.model import Acceptance, AcceptanceRow, BucketRecord, ClockRow, Comparison, TimingRow
from ddpprof.profiling import CaptureLost, Outcome, Settings
from ddpprof.workloads.cases import Case

FINE, COARSE = "fine1_cap4", "coarse4_cap4"
"""The same bytes in the same buckets, of 48 parameters and of 12."""

_EVENT_NS = 1_000
"""Resolution of a CUDA event, rounded up."""

_TOLD_OF = ("fallback-capture", "retried", "time-sliced")
"""Codes of warnings about a run that must not be lost where it is one of many."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Ran:
    """A case that ran to its end. ``reference`` is the hash of all parameters after each step as one process has it, or why
    that is not known. ``is_kept``: it ran before, and was found.
    """

    case: Case
    outcome: Outcome
    reference: Sequence[str] | DdpprofError = ()
    is_kept: bool = False


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Lost:
    """A case that did not run to its end."""

    case: Case
    error: DdpprofError


Judge = Callable[[Ran, Settings], Iterator[str | None]]
"""For each thing of a case that is counted, what is wrong with it, or None."""

NUMBER: Mapping[str, Callable[[Case, Settings], int]] = {
    "cases": lambda case, settings: 1,
    "ranks": lambda case, settings: settings.ranks,
    "iterations": lambda case, settings: settings.iterations + 1,
    "rank-steps": lambda case, settings: settings.ranks * (settings.iterations + 1),
    "iteration rows": lambda case, settings: settings.ranks * settings.iterations,
    "bucket rows": lambda case, settings: settings.ranks * settings.iterations * len(case.rebuilt_bytes or ()),
}
"""What is counted, and how many of them a case has. The step under the profiler is an iteration beside the timed ones."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that must be so, of every case that it ``concerns``; ``counted`` is one of NUMBER."""

    group: str
    what: str
    counted: str
    concerns: Callable[[Case], bool]
    judge: Judge


def evaluate(runs: Sequence[Ran | Lost], settings: Settings) -> Acceptance:
    """The Acceptance of these runs, all of ``settings``."""
    from ddpprof.analysis import timing

    ran = [run for run in runs if isinstance(run, Ran)]
    timings = [item for run in ran for item in timing.of_job(run.outcome.records) if item.phase != "backward host"]
    analyses = [run.outcome.analysis for run in ran if run.outcome.analysis is not None]
    first = next((record for run in ran for record in run.outcome.records.runs), None)
    not_run = [run for run in runs if isinstance(run, Lost) and not isinstance(run.error, WorkloadError | CaptureLost)]
    return Acceptance(
        ddpprof_version=__version__,
        torch_version=first.torch_version if first else None,
        device=first.device if first else settings.device,
        evidence=analyses[0].evidence if analyses else None,
        cases=tuple(run.case.name for run in runs),
        ranks=settings.ranks,
        iterations=settings.iterations,
        rows=tuple(_rows(runs, settings)),
        timings=tuple(timings),
        granularity=_granularity(timings),
        clocks=tuple(item for run in ran for item in clock_rows(run.case, run.outcome)),
        notes=tuple(_notes(ran)),
        not_run=tuple(f"{run.case.name}: {run.error.message}" for run in not_run),
    )


def row(group: str, what: str, counted: str, expected: int, seen: int, problems: Sequence[str]) -> AcceptanceRow:
    """The row of a claim, with its verdict."""
    return AcceptanceRow(
        group=group,
        what=what,
        counted=counted,
        expected=expected,
        seen=seen,
        verdict="PASS" if expected == seen and not problems else "FAIL",
        problems=tuple(problems),
    )


def _rows(runs: Sequence[Ran | Lost], settings: Settings) -> Iterator[AcceptanceRow]:
    """A row for the runs themselves, and one for each claim that concerns any of them."""
    lost = [f"{run.case.name}: {run.error.message}" for run in runs if isinstance(run, Lost)]
    yield row("runs", "ran to their end", "cases", len(runs), len(runs) - len(lost), lost)
    for claim in CLAIMS:
        expected = seen = 0
        problems = []
        for run in runs:
            if claim.concerns(run.case):
                number = NUMBER[claim.counted](run.case, settings)
                good, problem = _counted(claim, run, settings, number)
                expected, seen = expected + number, seen + good
                problems += [f"{run.case.name}: {problem}"] if problem else []
        if expected:
            yield row(claim.group, claim.what, claim.counted, expected, seen, problems)


def _counted(claim: Claim, run: Ran | Lost, settings: Settings, number: int) -> tuple[int, str | None]:
    """How many things of one case are as claimed, and what is wrong, None when there are ``number`` and all are good."""
    if isinstance(run, Lost):
        return 0, run.error.message
    judged = list(claim.judge(run, settings))
    wrong = [problem for problem in judged if problem is not None]
    good = len(judged) - len(wrong)
    if wrong:
        return good, wrong[0] + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else "")
    return good, None if good == number else f"{good:,} of {number:,} {claim.counted}"


# ----------------------------------------------------------------------------------------------------------- judges


def _iteration_rows(run: Ran, settings: Settings) -> Iterator[None]:
    return (None for item in run.outcome.records.iterations if not item.is_captured)


def _bucket_rows(run: Ran, settings: Settings) -> Iterator[None]:
    timed = {(item.rank, item.step) for item in run.outcome.records.iterations if not item.is_captured}
    return (None for item in run.outcome.records.buckets if (item.rank, item.step) in timed)


def _replicas(run: Ran, settings: Settings) -> Iterator[str | None]:
    hashes: dict[int, dict[int, str | None]] = defaultdict(dict)
    for item in run.outcome.records.iterations:
        hashes[item.step][item.rank] = item.replica_hash
    for step, by_rank in sorted(hashes.items()):
        odd = [rank for rank, digest in sorted(by_rank.items()) if digest != by_rank.get(0)]
        missing = len(by_rank) < settings.ranks
        yield f"step {step}: not recorded on every rank" if missing else f"step {step}: rank {odd[0]} differs" if odd else None


def _single_process(run: Ran, settings: Settings) -> Iterator[str | None]:
    if isinstance(run.reference, DdpprofError):
        yield f"no reference: {run.reference.message}"
        return
    for item in run.outcome.records.iterations:
        expected = run.reference[item.step] if item.step < len(run.reference) else None
        yield None if item.replica_hash == expected else f"step {item.step}: rank {item.rank} differs"


def expected_layout(case: Case, stage: Literal["initial", "rebuilt"]) -> dict[str, list[Any]]:
    """``size_bytes`` of each bucket as the case says, its ``parameters`` as the model of the Reducer has them.

    The model is told what the case is: gradients come ready in the reverse of the forward's order.
    """
    parameters = [reducer.Parameter(size_bytes=size) for size in case.parameter_bytes]
    capacity = reducer.capacity(case.bucket_cap_mb)
    mode = reducer.mode_of(find_unused_parameters=case.find_unused_parameters, static_graph=case.static_graph)
    layout = reducer.initial(parameters, capacity, mode)
    if stage == "rebuilt":
        layout = reducer.rebuilt(parameters, capacity, mode, ready=case.order[::-1]) or layout
    sizes = case.initial_bytes if stage == "initial" else case.rebuilt_bytes
    return {"size_bytes": list(sizes or ()), "parameters": [list(bucket) for bucket in layout.parameters]}


def _layout(stage: Literal["initial", "rebuilt"], column: Literal["size_bytes", "parameters"]) -> Judge:
    def judge(run: Ran, settings: Settings) -> Iterator[str | None]:
        expected = expected_layout(run.case, stage)[column]
        found = {item.rank: getattr(item, column) for item in run.outcome.records.layouts if item.stage == stage}
        wrong = [f"rank {rank}: {value}" for rank, value in found.items() if value != expected]
        yield "not recorded on every rank" if len(found) < settings.ranks else wrong[0] if wrong else None

    return judge


def _rebuilt(run: Ran, settings: Settings) -> Iterator[str | None]:
    found = [item for item in run.outcome.records.layouts if item.stage == "rebuilt"]
    wrong = [f"rank {item.rank}: rebuilt {item.is_rebuilt}" for item in found if item.is_rebuilt != run.case.is_rebuilt]
    yield "not recorded on every rank" if len(found) < settings.ranks else wrong[0] if wrong else None


def _sent(run: Ran, settings: Settings) -> Iterator[str | None]:
    layout = expected_layout(run.case, "rebuilt")
    expected = list(zip(range(len(layout["size_bytes"])), layout["size_bytes"], layout["parameters"], strict=True))
    sent = _by_step(run.outcome)
    for item in run.outcome.records.iterations:
        found = [(bucket.bucket, bucket.size_bytes, bucket.parameters) for bucket in sent[item.rank, item.step]]
        yield None if found == expected else f"step {item.step}: rank {item.rank} sent other buckets"


def _by_step(outcome: Outcome) -> dict[tuple[int, int], list[BucketRecord]]:
    """The buckets of each (rank, step) in the order in which they were sent."""
    found: dict[tuple[int, int], list[BucketRecord]] = defaultdict(list)
    for item in outcome.records.buckets:
        found[item.rank, item.step].append(item)
    return found


def _same_order(run: Ran, settings: Settings) -> Iterator[str | None]:
    sent, rows = _by_step(run.outcome), run.outcome.analysis.buckets if run.outcome.analysis else ()
    for item in run.outcome.records.iterations:
        if item.is_captured:
            hook = [(bucket.bucket, bucket.size_bytes, "range") for bucket in sent[item.rank, item.step]]
            mine = sorted(
                (row for row in rows if row.rank == item.rank and row.bucket is not None), key=lambda row: row.start_ns
            )
            is_same = hook == [(row.bucket, row.size_bytes, row.attribution) for row in mine]
            yield None if is_same else f"rank {item.rank}: the marks on the timeline tell other buckets than the hook"


def _expectations(run: Ran, settings: Settings) -> Iterator[str | None]:
    """What ``check`` expects of the case, a verdict for each rank."""
    wrong: dict[str, list[str]] = {result.rank: [] for result in run.outcome.results}
    for result in run.outcome.results:
        if result.verdict != "pass":
            wrong[result.rank].append(f"{result.rank}: {result.expectation}: {result.seen}")
    return (problems[0] if problems else None for problems in wrong.values())


def _logger_span(run: Ran, settings: Settings) -> Iterator[str | None]:
    """On a GPU the logger gives times of CUDA events but host times of their ends, so only bounds of the span can be held."""
    is_cuda = any(item.device == "cuda" for item in run.outcome.records.runs)
    for item in run.outcome.records.loggers:
        said = item.fields.get("backward_compute_comm_overlap_time")
        start, end = item.fields.get("backward_comm_time_start"), item.fields.get("backward_compute_time_end")
        compute = item.fields.get("backward_compute_time")
        if said is None or start is None or end is None or compute is None:
            yield "this PyTorch's logger has no such fields"
        elif is_cuda:
            yield (
                None
                if 0 <= said <= compute + _EVENT_NS
                else f"step {item.step}: rank {item.rank} says {said:,} ns of {compute:,}"
            )
        else:
            span = max(end - start, 0)
            yield None if said == span else f"step {item.step}: rank {item.rank} says {said:,} ns, not {span:,}"


def _trains(case: Case) -> bool:
    return case.failure is None


CLAIMS = (
    Claim("records", "timed iterations", "iteration rows", _trains, _iteration_rows),
    Claim("records", "buckets of timed iterations", "bucket rows", _trains, _bucket_rows),
    Claim("values", "replicas bitwise equal after every iteration", "iterations", _trains, _replicas),
    Claim("values", "gradients and parameters bitwise as one process has them", "rank-steps", _trains, _single_process),
    Claim("layout", "at first: bytes of each bucket", "cases", _trains, _layout("initial", "size_bytes")),
    Claim("layout", "at first: parameters of each bucket", "cases", _trains, _layout("initial", "parameters")),
    Claim("layout", "after warm-up: bytes of each bucket", "cases", _trains, _layout("rebuilt", "size_bytes")),
    Claim("layout", "after warm-up: parameters of each bucket", "cases", _trains, _layout("rebuilt", "parameters")),
    Claim("layout", "rebuilt, but never with find_unused_parameters", "cases", _trains, _rebuilt),
    Claim("layout", "every step sends those buckets, in their order", "rank-steps", _trains, _sent),
    Claim("timeline", "order and bytes of buckets as the hook saw them", "ranks", _trains, _same_order),
    Claim("timeline", "every bucket is there", "ranks", lambda case: _trains(case) and not case.overlap, _expectations),
    Claim(
        "overlap", "12 compute, 12 comm, overlap > 0; or 12, 1, overlap == 0", "ranks", lambda c: bool(c.overlap), _expectations
    ),
    Claim("DDP logger", "overlap time == compute end - first comm start, or 0", "rank-steps", _trains, _logger_span),
    Claim("failure", "in the second forward, with its message", "ranks", lambda case: not _trains(case), _expectations),
)


# ------------------------------------------------------------------------------------------------- beside the claims


def _granularity(timings: Sequence[TimingRow]) -> Comparison | None:
    """The step of fine parameters against that of coarse ones; None when not both were timed."""
    from ddpprof.analysis import timing

    steps = {item.case: item for item in timings if item.phase == "step"}
    return timing.compare(steps[FINE], steps[COARSE]) if FINE in steps and COARSE in steps else None


def clock_rows(case: Case, outcome: Outcome) -> Iterator[ClockRow]:
    """The three clocks of each rank: hook and timeline of the captured step, the logger's last words (on the step before)."""
    sent = _by_step(outcome)
    captured = {item.rank: item.step for item in outcome.records.iterations if item.is_captured}
    logger = {item.rank: item.fields for item in outcome.records.loggers}
    for item in outcome.analysis.ranks if outcome.analysis is not None else ():
        if item.rank is not None and item.n_comm:
            hooks = sent[item.rank, captured.get(item.rank, -1)]
            said = logger.get(item.rank, {})
            yield ClockRow(
                case=case.name,
                rank=item.rank,
                hook_ready_ns=min((hook.ready_ns for hook in hooks), default=None),
                hook_launch_ns=max((hook.launch_ns for hook in hooks), default=None),
                logger_compute_ns=said.get("backward_compute_time"),
                logger_comm_ns=said.get("backward_comm_time"),
                logger_overlap_ns=said.get("backward_compute_comm_overlap_time"),
                timeline_compute_ns=item.compute_ns,
                timeline_comm_ns=item.comm_ns,
                timeline_overlap_ns=item.overlap_ns,
            )


def _notes(ran: Sequence[Ran]) -> Iterator[str]:
    """What limits the table: runs from before, and what was said of a capture."""
    if kept := [run.case.name for run in ran if run.is_kept]:
        yield f"found as an earlier verify left them, not run again: {', '.join(kept)}"
    said: dict[str, list[str]] = defaultdict(list)
    for run in ran:
        for warning in run.outcome.analysis.warnings if run.outcome.analysis is not None else ():
            if warning.code in _TOLD_OF:
                said[warning.message].append(run.case.name)
    for message, cases in said.items():
        yield f"{', '.join(cases)}: {message}"
