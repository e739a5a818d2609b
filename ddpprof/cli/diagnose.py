"""``ddpprof diagnose``: what holds the step back, and what to try."""

from __future__ import annotations

from pathlib import Path

import click

from ddpprof.cli import PATH, Progress, examples, format_option, text_width


@click.command(
    epilog=examples(
        "ddpprof diagnose runs/delay_cap64",
        "ddpprof diagnose report.sqlite --format markdown",
        "ddpprof diagnose rank*.nsys-rep --format json",
    )
)
@click.argument("inputs", nargs=-1, required=True, type=PATH, metavar="INPUT...")
@format_option
@click.option("--rank", "ranks", multiple=True, metavar="FILE=N", help="The rank of a report, whatever it tells itself.")
@click.option("--step-range", metavar="PATTERN", help="Host ranges that are steps, when their names are unusual.")
@click.option("--nsys", metavar="PATH", help="The nsys to export .nsys-rep files with (also DDPPROF_NSYS).")
@click.pass_obj
def diagnose(
    progress: Progress, inputs: tuple[Path, ...], form: str, ranks: tuple[str, ...], step_range: str | None, nsys: str | None
) -> None:
    """What holds the step back: the causes found, in the order to act on them, each with cost, evidence and what to try.

    INPUT as of `ddpprof analyze`. What the input does not let be judged is listed with the reason.
    """
    from ddpprof import inputs as sources
    from ddpprof.analysis.part import Options
    from ddpprof.reports import diagnosis, tables

    options = Options(step_pattern=step_range)
    found = sources.survey(inputs, options, ranks=ranks, nsys=nsys, say=progress.say, over=progress.over).analysis
    if form == "json":
        click.echo(tables.diagnosis_json(found), nl=False)
    elif form == "markdown":
        click.echo(diagnosis.render_markdown(found), nl=False)
    else:
        click.echo(diagnosis.render(found, width=text_width()), nl=False)
