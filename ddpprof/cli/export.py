"""``ddpprof export``: a report in Nsight's own format to SQLite."""

from __future__ import annotations

from pathlib import Path

import click

from ddpprof.cli import PATH, Progress, examples
from ddpprof.errors import UsageError


@click.command(epilog=examples("ddpprof export report.nsys-rep", "ddpprof export report.nsys-rep -o elsewhere.sqlite"))
@click.argument("report", type=PATH)
@click.option("-o", "--output", type=PATH, help="The export [REPORT with .sqlite].")
@click.option("--force", is_flag=True, help="Export again though the export is newer, or over any file.")
@click.option("--nsys", metavar="PATH", help="The nsys to use (also DDPPROF_NSYS).")
@click.pass_obj
def export(progress: Progress, report: Path, output: Path | None, force: bool, nsys: str | None) -> None:
    """Export an nsys report to SQLite beside it, and print its path.

    An export that is newer than its report is kept; a stale one is renewed; any other file stays. The file appears whole
    or not at all.
    """
    from ddpprof import nsys as nsight

    nsight.check_is_report(report)
    output = output or report.with_suffix(".sqlite")
    if output.exists() and not output.samefile(report):
        if not force and not nsight.is_export(output):
            raise UsageError(
                f"{output}: exists and is not an export of nsys", "Choose another place, or --force to replace it."
            )
        if not force and not nsight.is_stale(report, output):
            progress.say(f"{output} is up to date (--force exports again)")
            click.echo(output)
            return
        if nsight.is_stale(report, output):
            progress.say(f"{output} is older than {report.name}: exporting again")
    tool = nsight.find(nsys, say=progress.say)
    with progress.working(f"exporting {report.name} with nsys {tool.version}"):
        nsight.export(tool, report, output)
    click.echo(output)
