"""From what a person names to one job's traces: files, folders, run folders, Nsight's own format exported on the way."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpprof import __version__, marks, results
from ddpprof import nsys as nsight
from ddpprof.errors import DdpprofError, InputError, ToolError, UsageError, nearest_path
from ddpprof.model import Analysis, Records, Trace, Warning
from ddpprof.rundir import RunDir, is_our_json, read_records

if TYPE_CHECKING:
    from ddpprof.analysis.part import Options

Say = Callable[[str], None]
Over = Callable[[Sequence[Any], str], Iterable[Any]]

CLUSTER_TIMEOUT = 10
"""Seconds in which a scheduler must answer."""

MANY = 64
"""Of more reports than this, communication is listed one by one only when asked for: it would be most of what is kept."""

PICTURED = 8
"""Reports at most of which a picture is drawn when a cluster reads them: more lanes cannot be told apart."""


def _silently(line: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Input:
    """One job, read: its traces, the ranks that were given by hand (by trace index), and what its run recorded."""

    traces: tuple[Trace, ...]
    ranks: Mapping[int, int]
    records: Records | None = None
    case: str | None = None
    warnings: tuple[Warning, ...] = ()

    def analyze(self, options: Options) -> Analysis:
        """The Analysis of the job; without ``options.compute`` a case brings its own question."""
        from ddpprof.analysis import job

        if options.compute is None and self.case is not None:
            options = replace(options, compute=focus_of(self.case, self.traces[0].evidence))
        options = _for_many(options, len(self.traces))
        found = job.analyze(self.traces, options, ranks=self.ranks, records=self.records, case=self.case)
        return replace(found, warnings=(*self.warnings, *found.warnings))


def focus_of(case: str, evidence: Any) -> str | None:
    """The compute pattern that a case asks about; None for a case without one, or one that is not ours."""
    from ddpprof.workloads.cases import CASES

    return CASES[case].focus(evidence) if case in CASES else None


def analyze(*inputs: str | Path, **options: Any) -> Analysis:
    """The Analysis of one job's reports: nsys ``.sqlite``, ``.nsys-rep``, parquet folder, torch.profiler JSON, run folder.

    Keywords are those of ``ddpprof.analysis.part.Options`` (``compute="spin_kernel"``). One report is held at a time.
    Raises DdpprofError.
    """
    from ddpprof.analysis.part import Options

    return survey([Path(item) for item in inputs], Options(**options)).analysis


def read(
    paths: Sequence[Path],
    *,
    step_pattern: str | None = None,
    ranks: Sequence[str] = (),
    nsys: str | None = None,
    skips_broken: bool = True,
    say: Say = lambda line: None,
    over: Over = lambda items, title: items,
) -> Input:
    """The Input of one job, all its traces at once. ``ranks`` are ``FILE=N``; ``over`` wraps long loops (a progress bar).

    A folder's reports are all read; with ``skips_broken`` one of them that cannot be is left out with a warning. What was
    named itself must be readable, or InputError; ToolError when a report needs nsys and there is none.
    """
    work = _Reading(step_pattern=step_pattern, nsys=nsys, say=say)
    found = _found(paths, step_pattern)
    read = [_tried(work, path) for path in over(found, "reading")]
    kept, warnings = _kept(paths, found, read, skips_broken)
    traces, places = [trace for _, trace in kept], [path for path, _ in kept]
    run = _run_of(paths)
    given = _given_ranks(ranks, places)
    if run is None:
        return Input(traces=tuple(traces), ranks=given, warnings=tuple(warnings))
    manifest = run.read_manifest()
    records = read_records(run)
    return Input(
        traces=tuple(traces),
        ranks=given,
        records=records if records.runs else None,
        case=manifest.get("case"),
        warnings=(*warnings, *_from_manifest(manifest)),
    )


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Surveyed:
    """The Analysis of a job, what its run recorded, and the traces for a picture when one was wanted."""

    analysis: Analysis
    records: Records | None = None
    pictured: tuple[Trace, ...] = ()


def survey(
    paths: Sequence[Path],
    options: Options,
    *,
    ranks: Sequence[str] = (),
    nsys: str | None = None,
    cluster: str | None = None,
    wants_picture: bool = False,
    say: Say = lambda line: None,
    over: Over = lambda items, title: items,
) -> Surveyed:
    """The Analysis that ``read`` and its Input give. Without a picture one trace is held at a time, so memory is that of one.

    With ``cluster``, the address of a Dask scheduler, its workers read the reports, which they must see under the same paths;
    the picture is then of the first PICTURED. Raises as ``read``, and ToolError when the cluster cannot be had.
    """
    from ddpprof.analysis import job

    if _run_of(paths) is not None or (wants_picture and cluster is None):
        held = read(paths, step_pattern=options.step_pattern, ranks=ranks, nsys=nsys, say=say, over=over)
        return Surveyed(analysis=held.analyze(options), records=held.records, pictured=held.traces)
    found = _found(paths, options.step_pattern)
    options, given = _for_many(options, len(found)), _given_ranks(ranks, found)
    if cluster is None:
        work = _Digesting(step_pattern=options.step_pattern, nsys=nsys, say=say, options=options)
        tried = [_tried(work, path, given.get(at)) for at, path in enumerate(over(found, "reading"))]
    else:
        work = _Digesting(step_pattern=options.step_pattern, nsys=nsys, options=options)
        tried = _on_cluster(cluster, work, found, given, over)
    kept, warnings = _kept(paths, found, tried, skips_broken=True)
    analysis = job.combine([digest for _, digest in kept], options)
    first = [path for path, _ in kept[:PICTURED]]
    return Surveyed(
        analysis=replace(analysis, warnings=(*warnings, *analysis.warnings)),
        pictured=read(first, step_pattern=options.step_pattern, nsys=nsys, say=say).traces if wants_picture else (),
    )


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """How to get from a path to its trace; it pickles unless ``say`` does not."""

    step_pattern: str | None
    nsys: str | None
    say: Say = _silently

    def __call__(self, path: Path, rank: int | None) -> Any:
        from ddpprof.analysis import load

        ready, notes = _readable(path, lambda: self.exporter, self.say)
        return load.read(ready, self.step_pattern), notes

    @functools.cached_property
    def exporter(self) -> nsight.Nsys:
        return nsight.find(self.nsys, say=self.say)


@dataclass(frozen=True, kw_only=True)
class _Digesting(_Reading):
    """How to get from a path to the digest of its trace."""

    options: Options

    def __call__(self, path: Path, rank: int | None) -> Any:
        from ddpprof.analysis.digest import digest

        trace, notes = _Reading.__call__(self, path, rank)
        return digest(trace, self.options, rank=rank), notes


def _tried(work: _Reading, path: Path, rank: int | None = None) -> Any:
    """What ``work`` makes of a path with its warnings, or the InputError it raised."""
    try:
        return work(path, rank)
    except InputError as error:
        return error


def _on_cluster(address: str, work: _Digesting, found: Sequence[Path], ranks: Mapping[int, int], over: Over) -> list[Any]:
    """``_tried`` of every path by the workers of the Dask cluster at ``address``."""
    try:
        from distributed import Client, as_completed
        from distributed.comm.addressing import get_address_host_port
    except ImportError:
        raise ToolError("--cluster needs Dask, which is not installed", "Install it: pip install 'ddpprof[cluster]'") from None
    try:
        get_address_host_port(address)  # a Client that cannot take its address apart hangs when it is forgotten
        client = Client(address, timeout=CLUSTER_TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise ToolError(
            f"{address}: no Dask scheduler answers: {first}", "Start one: dask scheduler, then dask worker."
        ) from None
    with client:
        if not client.scheduler_info(n_workers=-1)["workers"]:
            raise ToolError(f"{address}: the cluster has no workers", f"Start some: dask worker {address}")
        futures = [client.submit(_tried, work, path.absolute(), ranks.get(at), pure=False) for at, path in enumerate(found)]
        place = {future.key: at for at, future in enumerate(futures)}
        done = as_completed(futures, loop=client.loop)
        del futures  # a result that is held here is held by its worker too
        tried: list[Any] = [None] * len(found)
        for _ in over(found, "reading on the cluster"):
            future = next(done)
            at = place[future.key]
            try:
                tried[at] = future.result()
            except DdpprofError:
                raise
            except Exception as error:
                words = str(error).strip().partition("\n")[0]
                raise ToolError(
                    f"{found[at]}: a worker of the cluster failed: {type(error).__name__}: {words}",
                    f"Workers need ddpprof {__version__} and memory for one report; what they log says more.",
                ) from error
            future.release()
        return tried


def _found(paths: Sequence[Path], step_pattern: str | None) -> list[Path]:
    """The reports that ``paths`` stand for, the request itself checked."""
    from ddpprof.analysis import kernels

    if not paths:
        raise UsageError("nothing to analyze", "Give a report, a run folder or a folder of reports.")
    if step_pattern is not None:
        kernels.patterns([step_pattern], "--step-range")
    return [report for path in paths for report in _reports(path)]


def _kept(
    paths: Sequence[Path], found: Sequence[Path], tried: Sequence[Any], skips_broken: bool
) -> tuple[list[tuple[Path, Any]], list[Warning]]:
    """What could be read, with its path, and the warnings; the first error of what was named itself is raised."""
    kept, warnings, named = [], [], set(paths)
    for path, outcome in zip(found, tried, strict=True):
        if not isinstance(outcome, InputError):
            kept.append((path, outcome[0]))
            warnings += outcome[1]
        elif path in named or len(found) == 1 or not skips_broken:
            raise outcome
        else:
            warnings.append(Warning(code="capture-incomplete", message=f"{path.name} left out: {reason(outcome)}"))
    if not kept:
        raise InputError(f"{paths[0]}: none of its {len(found)} reports can be read", "See why with: ddpprof analyze FILE")
    return kept, warnings


def _run_of(paths: Sequence[Path]) -> RunDir | None:
    """The run folder that was named, None when it is something else."""
    return RunDir(paths[0]) if len(paths) == 1 and RunDir(paths[0]).is_run() else None


def _for_many(options: Options, n_reports: int) -> Options:
    return replace(options, buckets=False) if options.buckets is None and n_reports > MANY else options


def reason(error: InputError) -> str:
    """What an error says, less the path it begins with."""
    return error.message.partition(": ")[2] or error.message


def _from_manifest(manifest: Mapping[str, Any]) -> Iterable[Warning]:
    """The warnings that the run itself left for its reports."""
    for item in manifest.get("warnings") or ():
        if isinstance(item, dict) and {"code", "message"} <= item.keys():
            yield Warning(code=str(item["code"]), message=str(item["message"]))


def _reports(path: Path) -> list[Path]:
    """The reports that a path stands for: itself, a run folder's captures, or all reports of a folder."""
    from ddpprof.analysis import load

    if not path.exists():
        never = "Either the capture range never opened (no cudaProfilerStart), or nsys wrote it under another name (-o)."
        if load.is_report(path) or path.suffix == nsight.STREAM_SUFFIX:
            raise InputError(f"{path}: no such report", nearest_path(path) or never)
        raise InputError(
            f"{path}: no such file or folder", nearest_path(path) or "Give a report, a run folder or a folder of reports."
        )
    if results.is_results(path):
        raise InputError(
            f"{path}: our results database, not a report", f"See it with: ddpprof history --results sqlite:///{path}"
        )
    if not path.is_dir() or any(path.glob("*.parquet")):
        return [path]
    if RunDir(path).is_run():
        found = RunDir(path).reports()
        if not found and "caps_mb" in RunDir(path).read_manifest():
            raise InputError(
                f"{path}: the folder of a sweep, not of one run", f"Its result is summary.md in it. {_runs_in(path)}"
            )
        if not found:
            raise InputError(f"{path}: the run left no capture", "It ended as its summary says; see summary.md in it.")
        return found
    found = sorted(item for item in path.iterdir() if load.is_report(item) and not _is_ours(item))
    exported = {item.with_suffix("") for item in found if item.suffix == ".sqlite"}
    found = [item for item in found if item.suffix not in load.REPORT_SUFFIXES or item.with_suffix("") not in exported]
    if not found:
        hint = _runs_in(path) or "Reports end in .sqlite, .nsys-rep, .json or .json.gz."
        raise InputError(f"{path}: no report in this folder", hint)
    return found


def _runs_in(folder: Path) -> str:
    """A sentence that names the first runs inside a folder, "" when there are none."""
    runs = [str(item) for item in sorted(folder.iterdir()) if RunDir(item).is_run()]
    return f"Runs in it: {', '.join([*runs[:8], *['...'] * (len(runs) > 8)])}" if runs else ""


def _is_ours(path: Path) -> bool:
    """Whether a file is a JSON report or the results database of ours, which may well lie beside the captures."""
    return is_our_json(path) or results.is_results(path)


def _readable(path: Path, exporter: Callable[[], nsight.Nsys], say: Say) -> tuple[Path, list[Warning]]:
    """A file that a reader reads: the export of one in Nsight's own format, made when it is missing or stale."""
    from ddpprof.analysis import load

    if path.suffix in load.REPORT_SUFFIXES:
        nsight.check_is_report(path)
        exported = path.with_suffix(".sqlite")
        if exported.exists() and not nsight.is_stale(path, exported):
            return exported, []
        if not os.access(path.parent, os.W_OK):
            raise InputError(
                f"{path}: no permission to write its export beside it",
                f"Export it elsewhere and analyze that: ddpprof export {path} -o PLACE.sqlite",
            )
        tool = exporter()
        say(f"exporting {path.name} with nsys")
        try:
            return nsight.export(tool, path), []
        except ToolError as error:
            raise InputError(error.message, error.hint) from None
    if path.suffix == ".sqlite":
        for suffix in load.REPORT_SUFFIXES:
            report = path.with_suffix(suffix)
            if report.exists() and nsight.is_stale(report, path):
                note = f"{path.name} is older than {report.name}: export it again with ddpprof export {report.name}"
                return path, [Warning(code="stale-export", message=note)]
    return path, []


def _given_ranks(texts: Sequence[str], places: Sequence[Path]) -> dict[int, int]:
    """``FILE=N`` by trace index; FILE is a path as given, or its name alone when that is clear, and given once."""
    given: dict[int, int] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not name or not marks.RANK.fullmatch(number):
            raise UsageError(f"--rank {text}: not FILE=N", "Example: --rank node1.sqlite=4")
        matches = [at for at, path in enumerate(places) if str(Path(name)) in (str(path), path.name)]
        if len(matches) != 1:
            what = "no input" if not matches else f"{len(matches)} inputs"
            raise UsageError(
                f"--rank {text}: {what} of that name", f"Inputs are: {', '.join(str(path) for path in places[:8])}"
            )
        if given.setdefault(matches[0], int(number)) != int(number):
            raise UsageError(f"--rank {text}: it has rank {given[matches[0]]} already", "Give each report one rank.")
    return given
