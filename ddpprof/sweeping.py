"""The same job at several bucket caps: captured once at each, then timed in turns (A B C A B C) so that drift hits all."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof import __version__, launch, profiling, results
from ddpprof import nsys as nsight
from ddpprof.errors import DdpprofError, InputError, UsageError
from ddpprof.model import Analysis, CapRow, Records, Sameness, Sweep, TimedBy
from ddpprof.profiling import Outcome, Say, Settings, Working
from ddpprof.rundir import RunDir, holds, read_records, read_steps, whole_folder

if TYPE_CHECKING:
    from ddpprof.analysis.sweep import Trajectory

CAPS = (1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 64.0)
LARGEST_CAP = 2**20
PLACEHOLDER = "{cap}"
"""What stands for the cap in the command of somebody's own job."""


@dataclass(slots=True)
class _Cap:
    """What one cap has shown so far."""

    cap_mb: float
    folder: Path
    analysis: Analysis | None = None
    records: Records = field(default_factory=Records)
    rounds: list[list[int]] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)
    failure: DdpprofError | None = None

    def keep(self, outcome: Outcome) -> None:
        self.analysis, self.records = outcome.analysis, outcome.records


Measure = Callable[[_Cap, RunDir], list[int]]
"""Runs the job at a cap, its files in a folder of their own, and gives its steps (ns)."""


def parse_caps(text: str, fewest: int = 2) -> tuple[float, ...]:
    """The caps (MiB) of ``1,2,4``, in rising order. Raises UsageError for what is no cap, or too few."""
    caps = set()
    for item in text.split(","):
        try:
            cap = float(item)
        except ValueError:
            cap = math.nan
        if not 0 < cap <= LARGEST_CAP:
            raise UsageError(f"--caps {text}: {item.strip()!r} is not a number of MiB above 0", "Example: --caps 1,4,16,64")
        caps.add(cap)
    if len(caps) < fewest:
        raise UsageError(f"--caps {text}: a sweep compares two caps or more", "Example: --caps 1,4,16,64")
    return tuple(sorted(caps))


def sweep_case(
    name: str,
    caps: Sequence[float],
    rounds: int,
    settings: Settings,
    *,
    say: Say = lambda line: None,
    working: Working = lambda title: nullcontext(),
) -> tuple[Sweep, Path]:
    """A case at each of ``caps``, and the folder (``runs/sweep/CASE``) with its captures, records and reports.

    A cap that fails is a row that says so. Raises UsageError for what cannot be asked, the first cap's error when all fail.
    """
    from ddpprof.analysis.sweep import trajectory
    from ddpprof.analysis.timing import job_steps
    from ddpprof.workloads import cases

    if cases.find(name).failure is not None:
        raise UsageError(f"{name}: must fail, so there is nothing to sweep", "See the other cases with: ddpprof cases")

    def capture(cap: _Cap) -> None:
        own = replace(settings, bucket_cap_mb=cap.cap_mb, folder=cap.folder, results=None)
        cap.keep(profiling.profile_case(name, own, say=say, working=working))

    def measure(cap: _Cap, run: RunDir) -> list[int]:
        job = launch.Job(
            case=name,
            ranks=settings.ranks,
            device=profiling.device_of(settings),
            capture="none",
            share_gpu=settings.share_gpu,
            iterations=settings.iterations,
            bucket_cap_mb=cap.cap_mb,
        )
        _run(launch.case_command(job, run), {}, run, settings.ranks, say)
        records = read_records(run)
        cap.trajectories.append(trajectory(records))
        return job_steps(records)

    folder = settings.folder or Path("runs") / "sweep" / name
    with whole_folder(folder, holds({"case": name, "caps_mb": caps})) as work:
        found = [_Cap(cap, work / f"cap{cap:g}") for cap in caps]
        _each(found, folder, capture)
        if _sameness(found) is None:
            _rounds(found, folder, range(1, rounds + 1), measure, working)
        return _finish(found, name, name, "iterations", rounds, settings, work, say), folder


def sweep_job(
    command: Sequence[str],
    caps: Sequence[float],
    rounds: int,
    settings: Settings,
    *,
    uses_range: bool,
    say: Say = lambda line: None,
    working: Working = lambda title: nullcontext(),
) -> tuple[Sweep, Path]:
    """Somebody's own job at each of ``caps``, which it is given for ``{cap}`` in its command and by ``ddpprof.ddp_kwargs()``.

    Its steps are timed by its own ``ddpprof.timed_step`` without a profiler, else they are those of a capture each round.
    Raises InputError when it has neither, the first cap's error when all fail.
    """
    from ddpprof.analysis.sweep import captured_steps, slowest

    nsight.find(settings.nsys, say=say)

    def with_cap(cap: _Cap) -> list[str]:
        return [word.replace(PLACEHOLDER, f"{cap.cap_mb:g}") for word in command]

    def profile(cap: _Cap, folder: Path, working: Working) -> Outcome:
        own = replace(settings, bucket_cap_mb=cap.cap_mb, folder=folder, results=None)
        return profiling.profile_job(with_cap(cap), own, uses_range=uses_range, say=say, working=working)

    def capture(cap: _Cap) -> None:
        cap.keep(profile(cap, cap.folder, working))

    def measure(cap: _Cap, run: RunDir) -> list[int]:
        variables = profiling.own_variables(replace(settings, bucket_cap_mb=cap.cap_mb), run)
        _run(with_cap(cap), variables, run, None, say)
        return slowest(read_steps(run))

    def capture_again(cap: _Cap, run: RunDir) -> list[int]:
        analysis = profile(cap, run.path, lambda title: nullcontext()).analysis
        return captured_steps(analysis) if analysis else []

    folder = settings.folder or Path("runs") / "sweep" / launch.name_of(command)
    with whole_folder(folder, holds({"case": None, "caps_mb": caps})) as work:
        found = [_Cap(cap, work / f"cap{cap:g}") for cap in caps]
        _each(found, folder, capture)
        times_itself = any(read_steps(RunDir(cap.folder)) for cap in found)
        if not times_itself:
            for cap in found:
                cap.rounds += [captured_steps(cap.analysis)] if cap.analysis else []
            if not any(steps for cap in found for steps in cap.rounds):
                raise InputError(
                    "the job has no numbered steps after its first four: there is nothing to time",
                    "Run each step inside `with ddpprof.timed_step(number):`, or in an NVTX range `step N`.",
                )
        if _sameness(found) is None:
            later = range(1 if times_itself else 2, rounds + 1)
            _rounds(found, folder, later, measure if times_itself else capture_again, working)
        timed_by: TimedBy = "timed-steps" if times_itself else "captured-steps"
        return _finish(found, None, launch.name_of(command), timed_by, rounds, settings, work, say), folder


# ------------------------------------------------------------------------------------------------------ one after another


def _each(caps: Sequence[_Cap], folder: Path, act: Callable[[_Cap], None]) -> None:
    """Does ``act`` at every cap that has not failed; a failure is that cap's own. Raises the first when nothing came of any."""
    for cap in caps:
        if cap.failure is not None:
            continue
        try:
            act(cap)
        except UsageError:
            raise
        except DdpprofError as error:
            work, hint = str(cap.folder.parent), error.hint
            if hint and work in hint:  # the folder of a sweep that fails does not stay
                others = [text for text in re.split(r"(?<=\.) ", hint) if work not in text]
                hint = " ".join([*others, "Run it once with `ddpprof profile`, which keeps what it leaves."])
            cap.failure = type(error)(error.message.replace(work, str(folder)), hint)
    if caps[0].failure is not None and not any(cap.analysis for cap in caps):
        raise caps[0].failure


def _rounds(caps: Sequence[_Cap], folder: Path, numbers: range, measure: Measure, working: Working) -> None:
    """Each round goes over all caps; what ``measure`` gives is added to each, its files lie in ``capX/roundN``."""
    for number in numbers:

        def run(cap: _Cap, number: int = number) -> None:
            place = RunDir(cap.folder / f"round{number}")
            place.path.mkdir()
            with working(f"round {number} of {numbers.stop - 1}: cap {cap.cap_mb:g} MiB"):
                cap.rounds.append(measure(cap, place))

        _each(caps, folder, run)


def _run(command: Sequence[str], variables: dict[str, str], run: RunDir, ranks: int | None, say: Say) -> None:
    """Runs a job without a profiler to its end. Raises WorkloadError when it fails."""
    try:
        finished = launch.run(command, env=launch.environment(variables), log_dir=run.path, say=say)
        if finished.returncode != 0:
            raise launch.explain_failure(finished, run, ranks)
    finally:
        for path in run.path.glob("*.log"):
            path.unlink()


# ------------------------------------------------------------------------------------------------------------ the result


def _sameness(caps: Sequence[_Cap]) -> Sameness | None:
    """Why a look at the captures tells that timing these caps would tell nothing; None when it may."""
    from ddpprof.analysis import sweep as judge

    return judge.sameness([judge.cap_row(cap.cap_mb, cap.analysis, []) for cap in caps])


def _finish(
    caps: Sequence[_Cap],
    case: str | None,
    job: str,
    timed_by: TimedBy,
    rounds: int,
    settings: Settings,
    work: Path,
    say: Say,
) -> Sweep:
    """The Sweep, its reports in ``work`` and its rows in the results database."""
    from ddpprof.reports import sweep as reports

    sweep = _judged(caps, case, timed_by, rounds)
    manifest = {"format_version": 1, "case": case, "caps_mb": [cap.cap_mb for cap in caps], "rounds": rounds, "warnings": []}
    RunDir(work).manifest.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    reports.write(work, sweep)
    if settings.results is not None:
        kept = [
            results.describe(RunDir(cap.folder).read_manifest(), cap.analysis, cap.records, row.timing, kind="sweep", job=job)
            for cap, row in zip(caps, sweep.rows, strict=True)
            if cap.analysis is not None
        ]
        results.keep(settings.results, kept, say)
    return sweep


def _judged(caps: Sequence[_Cap], case: str | None, timed_by: TimedBy, rounds: int) -> Sweep:
    from ddpprof.analysis import sweep as judge

    reference = next((seen for cap in caps for seen in cap.trajectories if judge.has_equal_replicas(seen)), None)

    def row(cap: _Cap) -> CapRow:
        is_correct = all(seen == reference for seen in cap.trajectories) if cap.trajectories else None
        failure = None if cap.failure is None else cap.failure.message
        return judge.cap_row(cap.cap_mb, cap.analysis, cap.rounds, is_correct=is_correct, failure=failure)

    rows = judge.drifting([row(cap) for cap in caps])
    first = next(cap for cap in caps if cap.analysis)
    assert first.analysis is not None
    ranks = first.analysis.ranks
    same = judge.sameness(rows)
    return Sweep(
        ddpprof_version=__version__,
        case=case,
        world_size=first.analysis.world_size,
        device=RunDir(first.folder).read_manifest()["device"],
        device_model=next((row.device_name for row in ranks if row.device_name), None),
        is_time_sliced=any(row.is_time_sliced for row in ranks),
        evidence=first.analysis.evidence,
        timed_by=timed_by,
        clock=next((run.clock for run in first.records.runs), None),
        rounds=rounds,
        rows=rows,
        recommended_mb=() if same else judge.recommended(rows),
        sameness=same,
    )
