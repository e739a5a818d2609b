"""``ddpprof analyze``: any report, to numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddpprof.cli import PATH, Progress, examples, text_width
from ddpprof.errors import UsageError

if TYPE_CHECKING:
    from ddpprof.model import Timeline


@click.command(
    epilog=examples(
        "ddpprof analyze report.sqlite",
        "ddpprof analyze runs/delay_cap4 --buckets",
        "ddpprof analyze rank*.nsys-rep --format json",
        "ddpprof analyze report.sqlite --compute spin_kernel",
        "ddpprof analyze reports/ --cluster tcp://scheduler:8786",
    )
)
@click.argument("inputs", nargs=-1, required=True, type=PATH, metavar="INPUT...")
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(["text", "json", "csv", "markdown", "html"]),
    default="text",
    show_default=True,
    help="csv: the ranks, or what is asked for of buckets, steps, kinds.",
)
@click.option("-o", "--output", "folder", type=PATH, help="Write summary, rank reports and picture here too.")
@click.option("--compute", metavar="PATTERN", help="Ask the same of this compute alone, e.g. spin_kernel.")
@click.option("--comm", multiple=True, metavar="PATTERN", help="Also communication: kernels (or copies, by PtoP) of this name.")
@click.option("--not-comm", multiple=True, metavar="PATTERN", help="Not communication, whatever it is called.")
@click.option("--streams", metavar="7,20", help="Only these streams.")
@click.option("--rank", "ranks", multiple=True, metavar="FILE=N", help="The rank of a report, whatever it tells itself.")
@click.option("--step", "step", metavar="N|A:B", help="Only these steps (both ends included).")
@click.option("--step-range", metavar="PATTERN", help="Host ranges that are steps, when their names are unusual.")
@click.option("--whole-capture", is_flag=True, help="Ignore step marks: one window, the whole capture.")
@click.option("--per-step", is_flag=True, help="Show every step.")
@click.option("--buckets", is_flag=True, help="Show every communication interval with its bucket.")
@click.option("--show-kinds", is_flag=True, help="Show which name was taken for compute, comm or memory.")
@click.option("--nsys", metavar="PATH", help="The nsys to export .nsys-rep files with (also DDPPROF_NSYS).")
@click.option("--cluster", metavar="ADDRESS", help="Many reports: have them read by this Dask cluster, e.g. tcp://host:8786.")
@click.pass_obj
def analyze(progress: Progress, /, inputs: tuple[Path, ...], form: str, folder: Path | None, **flags: Any) -> None:
    """How much communication ran beside compute, for every rank, exact to the nanosecond.

    INPUT: nsys .sqlite or .nsys-rep, a parquet export folder, torch.profiler .json[.gz], a run folder, a folder of
    reports. Several inputs are one job.
    """
    from ddpprof import inputs as sources
    from ddpprof.analysis.part import Options
    from ddpprof.reports import markdown, tables, text

    options = Options(
        compute=flags["compute"],
        comm=flags["comm"],
        not_comm=flags["not_comm"],
        streams=_streams(flags["streams"]),
        steps=_steps(flags["step"]),
        step_pattern=flags["step_range"],
        whole_capture=flags["whole_capture"],
        buckets=True if flags["buckets"] else None,
    )
    if folder is not None:
        from ddpprof.reports import files

        files.check_place(folder, inputs)
    surveyed = sources.survey(
        inputs,
        options,
        ranks=flags["ranks"],
        nsys=flags["nsys"],
        cluster=flags["cluster"],
        wants_picture=folder is not None or form == "html",
        say=progress.say,
        over=progress.over,
    )
    found, records = surveyed.analysis, surveyed.records
    shown = found if flags["show_kinds"] else replace(found, kinds=())
    extra = {"per_step": flags["per_step"], "buckets": flags["buckets"], "kinds": flags["show_kinds"]}

    def picture() -> Timeline:
        from ddpprof.analysis.timeline import timeline

        return timeline(surveyed.pictured, replace(options, compute=found.focus.pattern if found.focus else None))

    if folder is not None:
        files.write(folder, shown, picture(), records)
        progress.say(f"reports are in {folder}")
    if form == "text":
        width = text_width()
        click.echo(text.render(shown, records=records, width=width, **extra), nl=False)
    elif form == "markdown":
        click.echo(markdown.render(shown, records=records, **extra), nl=False)
    elif form == "json":
        click.echo(tables.to_json(shown), nl=False)
    elif form == "html":
        from ddpprof.reports import page

        click.echo(page.render(shown, picture()), nl=False)
    else:
        which = (
            "buckets" if flags["buckets"] else "breakdown" if flags["per_step"] else "kinds" if flags["show_kinds"] else "ranks"
        )
        click.echo(tables.to_csv(shown, which), nl=False)


def _streams(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--streams {text}: not a list of stream ids", "Example: --streams 7,20") from None


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text, re.ASCII)
    if match is None:
        raise UsageError(f"--step {text}: not a step number or A:B", "Examples: --step 4   --step 3:12")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise UsageError(f"--step {text}: ends before it begins", f"Give --step {last}:{first}.")
    return first, last
