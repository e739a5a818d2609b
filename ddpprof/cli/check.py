"""``ddpprof check``: expectations per rank, for CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddpprof.cli import CHECK_FAILED, Progress
from ddpprof.errors import UsageError

if TYPE_CHECKING:
    from ddpprof.analysis.check import Result


@click.command(
    epilog="Examples:  ddpprof check runs/delay_cap4    "
    "ddpprof check report.sqlite --expect 'overlap_ratio>=0.6' --expect 'tail_ms<=2'"
)
@click.argument("inputs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="INPUT...")
@click.option("--case", "case_name", help="Take the expectations of this case (a run folder brings its own).")
@click.option("--expect", multiple=True, metavar="EXPR", help="overlap>0, overlap_ratio>=0.6, tail_ms<=2, buckets==12, ...")
@click.option("--compute", metavar="PATTERN", help="The compute that the expectations are about, e.g. spin_kernel.")
@click.option("--comm", multiple=True, metavar="PATTERN", help="Also communication.")
@click.option("--rank", "ranks", multiple=True, metavar="FILE=N", help="The rank of a report that does not tell it.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write the results as JUnit XML too.")
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

    Exit status 0: all hold; 3: one does not hold, on some rank; 1: it cannot be told.
    """
    from ddpprof.reports import junit as junit_report

    results = _results(inputs, case_name, expect, compute, comm, ranks, progress)
    if junit is not None:
        junit_report.write(junit, results)
    bad = [result for result in results if result.verdict != "pass"]
    for result in bad:
        word = "FAIL" if result.verdict == "fail" else "CANNOT TELL"
        click.echo(f"{word}  {result.rank}: {result.expectation}: {result.seen}")
    names = list(dict.fromkeys(result.expectation for result in results))
    n_ranks = len({result.rank for result in results})
    n_good = n_ranks - len({result.rank for result in bad})
    click.echo(f"{'ok' if not bad else 'not ok'}: {', '.join(names)} on {n_good} of {n_ranks} ranks")
    if any(result.verdict == "fail" for result in bad):
        raise click.exceptions.Exit(CHECK_FAILED)
    if bad:
        raise click.exceptions.Exit(1)


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
    from ddpprof.analysis.job import Options
    from ddpprof.rundir import RunDir, read_records
    from ddpprof.workloads import cases

    run = RunDir(inputs[0]) if len(inputs) == 1 and RunDir(inputs[0]).is_run() else None
    manifest = run.read_manifest() if run else {}
    name = case_name or (manifest.get("case") if not expect else None)
    case = cases.find(name) if name else None
    if run is not None and case is not None and case.failure is not None:
        return profiling.check_failure(case, read_records(run), int(manifest.get("ranks", 0)))
    texts = [*expect, *(profiling.expectations_of(case) if case else ())]
    if not texts:
        raise UsageError("nothing is expected", "Give --expect 'overlap>0', or --case with one of `ddpprof cases`.")
    expectations = [parse(text) for text in texts]
    read = sources.read(inputs, ranks=ranks, say=progress.say, over=progress.over)
    if compute is None and case is not None:
        compute = case.focus(read.traces[0].evidence)
    return judge(read.analyze(Options(compute=compute, comm=comm, buckets=True)), expectations)
