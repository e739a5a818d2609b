"""From what a person names to one job's traces: files, folders, run folders, Nsight's own format exported on the way."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpprof import marks
from ddpprof import nsys as nsight
from ddpprof.errors import InputError, ToolError, UsageError
from ddpprof.model import Analysis, Records, Trace, Warning
from ddpprof.rundir import RunDir, read_records

if TYPE_CHECKING:
    from ddpprof.analysis.part import Options

Say = Callable[[str], None]
Over = Callable[[Sequence[Path], str], Iterable[Path]]


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
        found = job.analyze(self.traces, options, ranks=self.ranks, records=self.records, case=self.case)
        return replace(found, warnings=(*self.warnings, *found.warnings))


def focus_of(case: str, evidence: Any) -> str | None:
    """The compute pattern that a case asks about; None for a case without one, or one that is not ours."""
    from ddpprof.workloads.cases import CASES

    return CASES[case].focus(evidence) if case in CASES else None


def analyze(*inputs: str | Path, **options: Any) -> Analysis:
    """The Analysis of one job's reports: nsys ``.sqlite``, ``.nsys-rep``, parquet folder, torch.profiler JSON, run folder.

    Keywords are those of ``ddpprof.analysis.job.Options`` (``compute="spin_kernel"``). Raises DdpprofError.
    """
    from ddpprof.analysis.part import Options

    chosen = Options(**options)
    return read([Path(item) for item in inputs], step_pattern=chosen.step_pattern).analyze(chosen)


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
    """The Input of one job. ``ranks`` are ``FILE=N``; ``over`` wraps long loops (a progress bar).

    A folder's reports are all read; with ``skips_broken`` one of them that cannot be is left out with a warning. What was
    named itself must be readable, or InputError; ToolError when a report needs nsys and there is none.
    """
    from ddpprof.analysis import kernels, load

    if not paths:
        raise UsageError("nothing to analyze", "Give a report, a run folder or a folder of reports.")
    if step_pattern is not None:
        kernels.patterns([step_pattern], "--step-range")
    run = RunDir(paths[0]) if len(paths) == 1 and RunDir(paths[0]).is_run() else None
    named, found = set(paths), [report for path in paths for report in _reports(path)]
    traces, warnings, places = [], [], []
    exporter = functools.cache(lambda: nsight.find(nsys, say=say))
    for path in over(found, "reading"):
        try:
            ready, notes = _readable(path, exporter, say)
            traces.append(load.read(ready, step_pattern))
        except InputError as error:
            if path in named or len(found) == 1 or not skips_broken:
                raise
            notes = [Warning(code="capture-incomplete", message=f"{path.name} left out: {reason(error)}")]
        else:
            places.append(path)
        warnings += notes
    if not traces:
        raise InputError(f"{paths[0]}: none of its {len(found)} reports can be read", "See why with: ddpprof analyze FILE")
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
        raise InputError(
            f"{path}: no such report",
            "Either the capture range never opened (no cudaProfilerStart), or nsys wrote it under another name (-o, %q{RANK}).",
        )
    if not path.is_dir() or any(path.glob("*.parquet")):
        return [path]
    if RunDir(path).is_run():
        found = RunDir(path).reports()
        if not found:
            raise InputError(f"{path}: the run left no capture", "It ended as its summary says; see summary.md in it.")
        return found
    found = sorted(item for item in path.iterdir() if load.is_report(item) and not _is_ours(item))
    exported = {item.with_suffix("") for item in found if item.suffix == ".sqlite"}
    found = [item for item in found if item.suffix not in load.REPORT_SUFFIXES or item.with_suffix("") not in exported]
    if not found:
        raise InputError(f"{path}: no report in this folder", "Reports end in .sqlite, .nsys-rep, .json or .json.gz.")
    return found


def _is_ours(path: Path) -> bool:
    """Whether a file is one of our own JSON reports, which may well lie beside the captures."""
    try:
        with path.open("rb") as file:
            return file.read(32).startswith(b'{\n  "format_version"')
    except OSError:  # a folder, or what may not be read: the reader will say so
        return False


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
