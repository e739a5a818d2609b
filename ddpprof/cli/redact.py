"""``ddpprof redact``: a copy of a report that is fit to share."""

from __future__ import annotations

from pathlib import Path

import click

from ddpprof.cli import CHECK_FAILED, PATH, Progress, examples
from ddpprof.errors import UsageError


@click.command(epilog=examples("ddpprof redact report.sqlite shared.sqlite", "ddpprof redact --check shared.sqlite"))
@click.argument("source", type=PATH, metavar="IN")
@click.argument("target", type=PATH, metavar="[OUT]", required=False)
@click.option("--check", "is_check", is_flag=True, help="Only say what IN still tells; exit status 3 when it does.")
@click.option("--force", "is_forced", is_flag=True, help="Replace OUT when it exists.")
@click.option("--keep-ranges", multiple=True, metavar="PATTERN", help="Also keep the texts of these NVTX ranges.")
@click.pass_obj
def redact(
    progress: Progress, source: Path, target: Path | None, is_check: bool, is_forced: bool, keep_ranges: tuple[str, ...]
) -> None:
    """Copy an nsys SQLite export without environment, command lines, host, user and process names, paths and output.

    The copy holds what the analysis needs and nothing else, so `analyze` gives the same numbers; times are not touched.
    """
    from ddpprof.analysis import redact as redaction

    if is_check:
        if target is not None:
            raise UsageError("--check reads one file and writes none", "Example: ddpprof redact --check report.sqlite")
        leaks = redaction.check(source, keep_ranges)
        width = max((len(leak.place) for leak in leaks), default=0)
        for leak in leaks:
            click.echo(f"{leak.place:{width}}  {leak.count:>8,}  {leak.kind}")
        click.echo(f"{source}: {'not ' if leaks else ''}fit to share")
        if leaks:
            raise click.exceptions.Exit(CHECK_FAILED)
        return
    if target is None:
        raise UsageError("no OUT: where to write the copy?", "Example: ddpprof redact report.sqlite shared.sqlite")
    if target.exists() and not is_forced:
        raise UsageError(f"{target}: exists already", "Give the copy another name, or --force to replace it.")
    with progress.working(f"redacting {source.name}"):
        redaction.redact(source, target, keep_ranges)
    click.echo(target)
