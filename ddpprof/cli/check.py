"""``ddpprof check``: expectations per rank, for CI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddpprof.cli import CHECK_FAILED, PATH, Progress, examples
from ddpprof.errors import InputError, UsageError, nearest_path

if TYPE_CHECKING:
    from ddpprof.analysis.check import Result


@click.command(
    epilog=examples(
        "ddpprof check runs/delay_cap4",
        "ddpprof check report.sqlite --expect 'overlap>0' --expect 'tail_ms<=2'",
    )
)
@click.argument("inputs", nargs=-1, required=True, type=PATH, metavar="INPUT...")
@click.option("--case", "case_name", metavar="CASE", help="Take its expectations (a run folder brings its own case).")
@click.option("--expect", multiple=True, metavar="EXPR", help="overlap>0, overlap_ratio>=0.6, tail_ms<=2, buckets==12, ...")
@click.option("--compute", metavar="PATTERN", help="The compute that the expectations are about, e.g. spin_kernel.")
@click.option("--comm", multiple=True, metavar="PATTERN", help="Also communication: kernels (or copies, by PtoP) of this name.")
@click.option("--rank", "ranks", multiple=True, metavar="FILE=N", help="The rank of a report, whatever it tells itself.")
@click.option("--junit", type=PATH, metavar="FILE", help="Write the results as JUnit XML too.")
@click.pass_obj
def check(
    progress: Progress,
    inputs: tuple[Path, ...],
    case_name: str | None,
    expect: tuple[str, ...],
    compute: str | None,
    comm: tuple[str, ...],
    ranks: tuple[str, ...],
    junit: Path | None,
) -> None:
    """Assert overlap (or any number) on every rank.

    A time is asked with its unit (_ms, _us, _ns), a ratio runs from 0 to 1. Exit status 0: all hold; 3: one does not
    hold, on some rank; 1: it cannot be told. Numbers that the capture makes unreliable are named beside the verdict and
    do not change it.
    """
    from ddpprof.reports import junit as junit_report

    if junit is not None:
        junit_report.check_replaceable(junit)
    results = _results(inputs, case_name, expect, compute, comm, ranks, progress)
    if junit is not None:
        junit_report.write(junit, results)
    status = tell(results)
    unreliable = {result.rank: result.unreliable for result in results if result.unreliable}
    for rank, codes in unreliable.items():
        click.echo(f"CAUTION  {rank}: {'; '.join(map(junit_report.unreliable_line, codes))}")
    limits = f"; numbers unreliable on {len(unreliable)}" if unreliable else ""
    click.echo(f"{'not ok' if status else 'ok'}: {summary(results)}{limits}")
    if status:
        raise click.exceptions.Exit(status)


def summary(results: Sequence[Result]) -> str:
    """What holds on all ranks; else each expectation that does not, with on how many ranks it fails or cannot be told."""
    n_ranks = len({result.rank for result in results})
    names = list(dict.fromkeys(result.expectation for result in results))
    found = [
        f"{name} {word} on {n} of {n_ranks} ranks"
        for name in names
        for verdict, word in (("fail", "does not hold"), ("unknown", "cannot be told"))
        if (n := len({item.rank for item in results if (item.expectation, item.verdict) == (name, verdict)}))
    ]
    return ", ".join(found) or f"{', '.join(names)} on {n_ranks} of {n_ranks} ranks"


def tell(results: Sequence[Result]) -> int:
    """Prints one line for each rank on which something does not hold, or cannot be told; the exit status they make."""
    for rank in dict.fromkeys(result.rank for result in results):
        for verdict, word in (("fail", "FAIL"), ("unknown", "CANNOT TELL")):
            seen = [f"{item.expectation}: {item.seen}" for item in results if (item.rank, item.verdict) == (rank, verdict)]
            if seen:
                click.echo(f"{word}  {rank}: {'; '.join(seen)}")
    verdicts = {result.verdict for result in results}
    return CHECK_FAILED if "fail" in verdicts else int("unknown" in verdicts)


def _results(
    inputs: tuple[Path, ...],
    case_name: str | None,
    expect: tuple[str, ...],
    compute: str | None,
    comm: tuple[str, ...],
    ranks: tuple[str, ...],
    progress: Progress,
) -> Sequence[Result]:
    from ddpprof import inputs as sources
    from ddpprof import profiling
    from ddpprof.analysis.check import check as judge
    from ddpprof.analysis.check import parse
    from ddpprof.analysis.part import Options
    from ddpprof.rundir import RunDir, read_records
    from ddpprof.workloads import cases

    own = [parse(text) for text in expect]
    for path in inputs:
        if not path.exists():
            hint = nearest_path(path) or "Check the path, or make a run: ddpprof profile CASE"
            raise InputError(f"{path}: no such report or run folder", hint)
    run = RunDir(inputs[0]) if len(inputs) == 1 and RunDir(inputs[0]).is_run() else None
    manifest = run.read_manifest() if run else {}
    name = case_name or (manifest.get("case") if not expect else None)
    case = cases.find(name) if name else None
    if case is not None and case.name == manifest.get("case"):
        case = replace(case, bucket_cap_mb=manifest.get("bucket_cap_mb", case.bucket_cap_mb))
    if run is not None and case is not None and case.failure is not None:
        n_ranks = manifest.get("ranks")
        if not isinstance(n_ranks, int) or n_ranks < 1:
            raise InputError(f"{run.manifest}: does not tell how many ranks ran", f"Run it again: ddpprof profile {case.name}")
        return profiling.check_failure(case, read_records(run), n_ranks)
    of_case = [parse(text) for text in profiling.expectations_of(case)] if case else []
    if not own + of_case:
        raise UsageError("nothing is expected", "Give --expect 'overlap>0', or --case with one of `ddpprof cases`.")
    read = sources.read(inputs, ranks=ranks, skips_broken=False, say=progress.say, over=progress.over)
    plain = Options(compute=compute, comm=comm, buckets=True)  # own expectations are about the numbers that analyze shows
    results = judge(replace(read, case=None).analyze(plain), own) if own else []
    if case is not None and of_case:
        narrow = replace(plain, compute=compute or case.focus(read.traces[0].evidence))
        results += judge(read.analyze(narrow), of_case)
    return results
