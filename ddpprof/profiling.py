"""The main job: capture a case on every rank, see that the capture holds what it must, analyse it, leave a whole run folder."""

from __future__ import annotations

import json
import os
import platform
import shlex
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ddpprof import BUCKET_CAP, __version__, inputs, launch, machine, results
from ddpprof import nsys as nsight
from ddpprof.errors import DdpprofError, InputError, ToolError, UsageError
from ddpprof.model import Analysis, Records
from ddpprof.rundir import RECORDS_FOLDER, STEPS_FOLDER, RunDir, holds, read_records, whole_folder

if TYPE_CHECKING:
    from ddpprof.analysis.check import Result
    from ddpprof.workloads.cases import Case

ATTEMPTS = 3
"""Captures at most: on a busy CPU a rank can truly overlap nothing once (it was not given a core in time)."""

MARKS_NEEDED = (
    "Without a GPU only marks tell: put `with ddpprof.timed_step(number):` around each step, call ddpprof.watch(ddp) after "
    "DDP(...) for the all-reduces, and mark compute as compute/I (docs/own-reports.md)."
)
"""What to do about somebody's own job on a CPU whose capture shows nothing."""

Device = Literal["auto", "cuda", "cpu"]
Capture = Literal["auto", "nsys", "torch"]
Say = Callable[[str], None]
Working = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to run a job. ``folder`` None: ``runs/CASE`` below the working directory; ``results`` None: kept in no database."""

    ranks: int = 4
    device: Device = "auto"
    share_gpu: bool = False
    capture: Capture = "auto"
    report_per_rank: bool = False
    iterations: int = 10
    seed: int = 0
    port: int | None = None
    bucket_cap_mb: float | None = None
    nsys: str | None = None
    folder: Path | None = None
    results: str | None = None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Outcome:
    """A run folder, what its analysis says (None for a case that must fail), and how its expectations came out."""

    folder: Path
    analysis: Analysis | None
    records: Records
    results: tuple[Result, ...]


class JobOutput(Exception):
    """The last lines of a job that failed: the cause of its error, which ``--verbose`` shows."""


class CaptureLost(ToolError):
    """A capture that was taken and lacks what the ranks did: worth taking again."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What was decided before anything ran."""

    job: launch.Job
    nsys: nsight.Nsys | None
    warnings: tuple[dict[str, str], ...]


def profile_case(
    name: str, settings: Settings, *, say: Say = lambda line: None, working: Working = lambda title: nullcontext()
) -> Outcome:
    """Runs a case under capture and leaves its run folder, replaced only when the new run is whole.

    Raises UsageError for what cannot be asked of this machine, WorkloadError when a rank died, ToolError when the capture
    does not hold what it must (with the known cause, where it is one).
    """
    case = _case(name, settings)
    plan = _plan(case, settings, say)
    folder = settings.folder or Path("runs") / case.name
    if settings.ranks == 1:
        say("one rank has nobody to communicate with: what it overlaps says nothing about a job of several")
    with whole_folder(folder, holds({"case": case.name})) as work:
        run = RunDir(work)
        for attempt in range(1, ATTEMPTS + 1):
            with working(f"{case.name}: {settings.ranks} ranks on {plan.job.device}, {_captured_by(plan)}"):
                _capture(plan, run, say)
            records = read_records(run)
            if case.failure is not None:
                outcome = _expected_failure(case, settings, plan, run, records)
                break
            try:
                found, outcome = _analyse(case, settings, plan, run, records, attempt)
            except CaptureLost as error:
                if attempt == ATTEMPTS:
                    raise
                say(error.message)
            else:
                missed = [result for result in outcome.results if result.verdict != "pass"]
                if not missed or attempt == ATTEMPTS:
                    _write_reports(found, outcome, run)
                    break
                say(f"{missed[0].rank}: {missed[0].expectation} not seen ({missed[0].seen})")
            say(f"capturing again, attempt {attempt + 1} of {ATTEMPTS}")
            _clear(work)
        _remove_logs(run)
    return _kept(replace(outcome, folder=folder), settings, say)


def find_outcome(name: str, settings: Settings) -> Outcome | None:
    """The Outcome that ``profile_case`` left before, of these settings and the versions that are installed; else None.

    None too when its run folder is not whole, or did not show what the case must show.
    """
    case = _case(name, settings)
    run = RunDir(settings.folder or Path("runs") / case.name)
    if not run.is_run():
        return None
    plan = _plan(case, settings, say=lambda line: None)
    asked = _manifest(case, settings, plan, 1, []) | _versions()
    try:
        manifest, records = run.read_manifest(), read_records(run)
        if any(manifest.get(key) != asked[key] for key in asked.keys() - {"attempts", "warnings"}):
            return None
        if case.failure is None:
            _, outcome = _judge(case, plan, run, records)
        else:
            failures = check_failure(case, records, plan.job.ranks)
            outcome = Outcome(folder=run.path, analysis=None, records=records, results=failures)
    except (InputError, CaptureLost):
        return None
    return outcome if all(result.verdict == "pass" for result in outcome.results) else None


def profile_job(
    command: Sequence[str],
    settings: Settings,
    *,
    uses_range: bool,
    working: Working = lambda title: nullcontext(),
    say: Say = lambda line: None,
) -> Outcome:
    """Runs the user's own job under nsys and leaves a run folder (``runs/train`` for ``train.py``, unless told otherwise).

    With ``uses_range`` only what lies between the job's own cudaProfilerStart and Stop is recorded. The cap of ``settings``
    reaches the job as ``ddpprof.ddp_kwargs()``.
    """
    tool = nsight.find(settings.nsys, say=say)
    has_cuda = settings.device == "cuda" or (settings.device == "auto" and bool(machine.gpu_names()))
    if uses_range and not has_cuda:
        say("--range: not used without CUDA, where nothing can open it: the whole job is recorded")
    folder = settings.folder or Path("runs") / launch.name_of(command)
    with whole_folder(folder, holds({"case": None})) as work:
        run = RunDir(work)
        line = nsight.profile_command(tool, run.nsys_report(), command, has_cuda=has_cuda, uses_range=uses_range)
        with working(f"{Path(command[0]).name} under nsys {tool.version}"):
            variables = own_variables(settings, run) | {RECORDS_FOLDER: str(work.resolve())}
            finished = launch.run(line, env=launch.environment(variables), log_dir=work, say=say)
        if finished.returncode != 0:
            error = launch.explain_failure(finished, run)
            kept = _keep_output(run, folder)
            raise type(error)(error.message, _sentences(error.hint, f"Its output is kept in {kept}.")) from _output(
                finished, error
            )
        _export(run, tool, [None])
        facts = {"case": None, "bucket_cap_mb": settings.bucket_cap_mb, "device": "cuda" if has_cuda else "cpu"}
        _write_manifest(run, facts | {"nsys_version": tool.version, "warnings": []})
        from ddpprof.analysis.part import Options

        nothing = None
        try:
            found = inputs.read([work])
            analysis = found.analyze(Options())
            outcome = Outcome(folder=folder, analysis=analysis, records=Records(), results=())
            _write_reports(found, outcome, run)
            if not has_cuda and any(item.code == "no-compute" for item in analysis.warnings):
                say("no compute is marked: without a GPU mark it as compute/I to see what overlaps (docs/own-reports.md)")
        except InputError as error:
            nothing = f"the job ran, but its capture shows nothing to measure: {inputs.reason(error)}"
            hint = (error.hint or "See: ddpprof doctor") if has_cuda else MARKS_NEEDED
            if RunDir(folder).is_run():
                raise ToolError(nothing, f"The run of before stays in {folder}.") from None
        _remove_logs(run)
    if nothing is not None:
        raise ToolError(nothing, _sentences(hint, f"The capture is kept in {folder}."))
    _failed_log(folder).unlink(missing_ok=True)
    return _kept(outcome, settings, say, launch.name_of(command))


# --------------------------------------------------------------------------------------------------- before the run


def device_of(settings: Settings) -> Literal["cuda", "cpu"]:
    """Where a case runs: as asked, else on GPUs when there are enough and torch can use them."""
    if settings.device != "auto":
        return settings.device
    n_gpus = len(machine.gpu_names())
    enough = n_gpus >= settings.ranks or (settings.share_gpu and n_gpus > 0)
    return "cuda" if enough and machine.torch_has_cuda() else "cpu"


def own_variables(settings: Settings, run: RunDir) -> dict[str, str]:
    """What somebody's own job finds in its environment: the cap, if there is one to set, and where to leave its step times."""
    cap = {} if settings.bucket_cap_mb is None else {BUCKET_CAP: f"{settings.bucket_cap_mb:g}"}
    return cap | {STEPS_FOLDER: str(run.path.resolve())}


def _case(name: str, settings: Settings) -> Case:
    from ddpprof.workloads import cases

    case = cases.find(name)
    return case if settings.bucket_cap_mb is None else replace(case, bucket_cap_mb=settings.bucket_cap_mb)


def _plan(case: Case, settings: Settings, say: Say) -> _Plan:
    device = device_of(settings)
    if case.needs_gpu and device == "cpu":
        raise UsageError(f"{case.name}: needs a GPU: {case.shows}", "See what this machine has with: ddpprof doctor")
    launch.check_capacity(settings.ranks, device, settings.share_gpu, len(machine.gpu_names()))
    if settings.iterations < 1:
        raise UsageError(
            f"--iterations {settings.iterations}: at least one timed step is needed", "Give --iterations 1 or more."
        )
    if settings.port is not None and (problem := launch.port_problem(settings.port)):
        raise UsageError(f"--{problem}", "Leave --port out to get a free one.")
    _need("torch")
    nsys, warnings = _choose_capture(case, settings, say)
    job = launch.Job(
        case=case.name,
        ranks=settings.ranks,
        device=device,
        capture="none" if case.failure is not None else "torch" if nsys is None else "nsys",
        share_gpu=settings.share_gpu and device == "cuda",
        report_per_rank=settings.report_per_rank and nsys is not None,
        port=settings.port,
        iterations=settings.iterations,
        seed=settings.seed,
        bucket_cap_mb=settings.bucket_cap_mb,
    )
    return _Plan(job, nsys, warnings)


def _choose_capture(case: Case, settings: Settings, say: Say) -> tuple[nsight.Nsys | None, tuple[dict[str, str], ...]]:
    """The nsys to capture with, or None for torch.profiler with the warning that every report then carries."""
    if case.failure is not None:
        return None, ()
    if settings.capture == "torch":
        return None, ({"code": "fallback-capture", "message": "captured by torch.profiler, as asked: not by nsys"},)
    try:
        nsys = nsight.find(settings.nsys, say=say)
    except ToolError as error:
        if settings.capture == "nsys" or settings.nsys is not None or os.environ.get("DDPPROF_NSYS"):
            raise
        say(f"capturing with torch.profiler instead of nsys: {error.message}")
        return None, (
            {"code": "fallback-capture", "message": "captured by torch.profiler: nsys could not be had on this machine"},
        )
    _need("nvtx")
    if problem := nsight.nvtx_problem(nsys.version_info, version("nvtx")):
        raise ToolError(problem, "Install the pair that works: pip install 'nvtx<=0.2.11'")
    return nsys, ()


def _need(package: str) -> None:
    try:
        version(package)
    except PackageNotFoundError:
        raise ToolError(
            f"{package} is not installed here", "Install what the workloads need: pip install 'ddpprof[run]'"
        ) from None


def _captured_by(plan: _Plan) -> str:
    if plan.job.capture == "none":
        return "no capture: this case must fail"
    return f"captured by nsys {plan.nsys.version}" if plan.nsys else "captured by torch.profiler"


# ---------------------------------------------------------------------------------------------------------- the run


def _capture(plan: _Plan, run: RunDir, say: Say) -> None:
    command = launch.case_command(plan.job, run, plan.nsys)
    finished = launch.run(command, env=launch.environment(plan.job.environment), log_dir=run.path, say=say)
    if finished.returncode != 0:
        error = launch.explain_failure(finished, run, plan.job.ranks)
        raise error from _output(finished, error)
    if plan.nsys is not None:
        _export(run, plan.nsys, range(plan.job.ranks) if plan.job.report_per_rank else [None])


def _export(run: RunDir, tool: nsight.Nsys, which: Sequence[int | None] | range) -> None:
    for rank in which:
        report = run.nsys_report(rank)
        stream = report.with_suffix(nsight.STREAM_SUFFIX)
        if not report.exists() and stream.exists():
            nsight.import_stream(tool, stream, report)
        if not report.exists():
            raise ToolError(
                "nsys ended well but left no report: the capture range never opened",
                "Nothing called cudaProfilerStart while nsys looked on; see `ddpprof doctor`.",
            )
        nsight.export(tool, report)


def _analyse(
    case: Case, settings: Settings, plan: _Plan, run: RunDir, records: Records, attempt: int
) -> tuple[inputs.Input, Outcome]:
    """The analysis of a capture that holds every rank's marks and every collective, and how its expectations came out."""
    warnings = list(plan.warnings)
    if attempt > 1:
        warnings.append(
            {"code": "retried", "message": f"attempt {attempt}: earlier captures did not show what this case must show"}
        )
    _write_manifest(run, _manifest(case, settings, plan, attempt, warnings))
    return _judge(case, plan, run, records)


def _judge(case: Case, plan: _Plan, run: RunDir, records: Records) -> tuple[inputs.Input, Outcome]:
    """What a run folder with its manifest shows, and whether it is what the case must show."""
    from ddpprof.analysis import check
    from ddpprof.analysis.part import Options

    try:
        found = inputs.read([run.path])
    except InputError as error:
        raise _lost_marks(plan, error) from None
    analysis = found.analyze(Options(buckets=True, compute=case.focus(found.traces[0].evidence)))
    _verify(analysis, records, plan)
    expectations = [check.parse(text) for text in expectations_of(case)]
    results = tuple(check.check(analysis, expectations))
    return found, Outcome(folder=run.path, analysis=analysis, records=records, results=results)


def _verify(analysis: Analysis, records: Records, plan: _Plan) -> None:
    """Raises ToolError when a rank, or a collective that its own hook launched, is missing from the capture."""
    marked = {row.rank for row in analysis.ranks if row.rank_source in ("mark", "distributedInfo")}
    missing = sorted(set(range(plan.job.ranks)) - marked)
    told = next((f' The profiler said: "{item.message}"' for item in analysis.warnings if item.code == "diagnostic"), "")
    if missing:
        names = ", ".join(map(str, missing))
        raise CaptureLost(
            f"the capture lacks rank {names} of {plan.job.ranks}: it stopped early or lost its marks.{told}",
            "Try --report-per-rank, which gives each rank a profiler of its own.",
        )
    captured = {(item.rank, item.step) for item in records.iterations if item.is_captured}
    for rank in range(plan.job.ranks):
        launched = [item.bucket for item in records.buckets if item.rank == rank and (rank, item.step) in captured]
        seen = [row.bucket for row in analysis.buckets if row.rank == rank and row.bucket is not None]
        if launched != seen:
            raise CaptureLost(
                f"rank {rank} launched buckets {_short(launched)} but the capture shows {_short(seen)}.{told}",
                "The capture was cut or lost events: capture again, or try --report-per-rank.",
            )


def _lost_marks(plan: _Plan, error: InputError) -> CaptureLost:
    """What a report with nothing in it means, given what made it."""
    made_by = f"nvtx {version('nvtx')} with nsys {plan.nsys.version}" if plan.nsys else "torch.profiler"
    return CaptureLost(
        f"the capture holds no mark of any rank ({made_by}): {inputs.reason(error)}", "See what is wrong with: ddpprof doctor"
    )


def _short(numbers: Sequence[int | None]) -> str:
    return f"{len(numbers)} ({', '.join(map(str, numbers[:4]))}{'…' if len(numbers) > 4 else ''})" if numbers else "none"


def expectations_of(case: Case) -> list[str]:
    """What ``check`` asserts of a case on every rank, the structural statements first; none where nothing is known."""
    if case.rebuilt_bytes is None:
        return []
    n = len(case.rebuilt_bytes) * case.passes
    found = [f"buckets=={n}"]
    if case.overlap is not None:
        found += [f"n_compute=={case.used}", f"n_comm=={n}"]
    if case.launched_early is not None:
        found.append(f"launched_early=={case.launched_early}")
    if case.overlap is not None:
        found.append("overlap>0" if case.overlap == "positive" else "overlap==0")
    return found


def check_failure(case: Case, records: Records, ranks: int) -> tuple[Result, ...]:
    """Whether every rank failed just as the case must."""
    from ddpprof.analysis.check import Result

    failed = {row.rank: row for row in records.failures}
    results = []
    for rank in range(ranks):
        row = failed.get(rank)
        seen = f"step {row.step}: {row.message}" if row else "no failure recorded"
        results.append(Result("expected failure", f"rank {rank}", "pass" if row and row.is_expected else "fail", seen))
    return tuple(results)


def _expected_failure(case: Case, settings: Settings, plan: _Plan, run: RunDir, records: Records) -> Outcome:
    from ddpprof.reports import files

    _write_manifest(run, _manifest(case, settings, plan, 1, []))
    files.write_failures(run.path, case.name, records, plan.job.ranks)
    results = check_failure(case, records, plan.job.ranks)
    return Outcome(folder=run.path, analysis=None, records=records, results=results)


# ---------------------------------------------------------------------------------------------------- what is left


def _write_reports(found: inputs.Input, outcome: Outcome, run: RunDir) -> None:
    from ddpprof.analysis.part import Options
    from ddpprof.analysis.timeline import timeline
    from ddpprof.reports import files

    assert outcome.analysis is not None
    focus = outcome.analysis.focus
    picture = timeline(found.traces, Options(compute=focus.pattern if focus else None))
    files.write(run.path, outcome.analysis, picture, outcome.records if outcome.records.runs else None)


def _kept(outcome: Outcome, settings: Settings, say: Say, job: str = "job") -> Outcome:
    """The same outcome, its metrics in the results database; a run of no case is kept there as ``job``."""
    from ddpprof.analysis.timing import job_steps, timing

    if settings.results is not None and outcome.analysis is not None:
        manifest = RunDir(outcome.folder).read_manifest()
        run = results.describe(manifest, outcome.analysis, outcome.records, timing(job_steps(outcome.records)), job=job)
        results.keep(settings.results, [run], say)
    return outcome


def _manifest(case: Case, settings: Settings, plan: _Plan, attempt: int, warnings: Sequence[dict[str, str]]) -> dict[str, Any]:
    return {
        "case": case.name,
        "bucket_cap_mb": case.bucket_cap_mb,
        "ranks": plan.job.ranks,
        "device": plan.job.device,
        "gpus": list(machine.gpu_names()) if plan.job.device == "cuda" else [],
        "share_gpu": plan.job.share_gpu,
        "capture": plan.job.capture,
        "report_per_rank": plan.job.report_per_rank,
        "iterations": plan.job.iterations,
        "seed": plan.job.seed,
        "attempts": attempt,
        "command": None if case.is_variant else _command_line(case, settings, plan),
        "nsys_version": plan.nsys.version if plan.nsys else None,
        "warnings": list(warnings),
    }


def _command_line(case: Case, settings: Settings, plan: _Plan) -> str:
    """The command that makes this run again; no paths."""
    parts = ["ddpprof", "profile", case.name, "--ranks", str(settings.ranks), "--device", plan.job.device]
    parts += ["--share-gpu"] * plan.job.share_gpu + ["--report-per-rank"] * plan.job.report_per_rank
    parts += ["--capture", "torch"] * (plan.job.capture == "torch")
    parts += ["--iterations", str(settings.iterations), "--seed", str(settings.seed)]
    return shlex.join(parts)


def _write_manifest(run: RunDir, facts: dict[str, Any]) -> None:
    finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
    facts = {**facts, **_versions(), "driver_version": machine.driver_version(), "finished_utc": finished}
    run.manifest.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _versions() -> dict[str, Any]:
    return {
        "format_version": 1,
        "ddpprof_version": __version__,
        "python_version": platform.python_version(),
        "torch_version": _version_of("torch"),
        "nvtx_version": _version_of("nvtx"),
    }


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _keep_output(run: RunDir, folder: Path) -> Path:
    """Where all that a failed job wrote is kept, beside its run folder and for its owner's eyes only."""
    place = _failed_log(folder)
    handle, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    with os.fdopen(handle, "wb") as kept:
        for log in sorted(run.path.glob("*.log"), reverse=True):
            kept.write(log.read_bytes())
    return Path(name).replace(place)


def _failed_log(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.failed.log")


def _output(finished: launch.Finished, error: DdpprofError) -> JobOutput | None:
    lines = launch.last_lines(finished.stderr_tail, error.message)
    return JobOutput(f"the job's last lines:\n{lines}") if lines else None


def _sentences(*texts: str | None) -> str:
    """One after the other, each with its full stop."""
    return " ".join(text if text.endswith((".", "?", "!")) else f"{text}." for text in texts if text)


def _remove_logs(run: RunDir) -> None:
    for path in run.path.glob("*.log"):
        path.unlink()
