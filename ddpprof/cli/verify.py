"""``ddpprof verify``: the formal experiment and its acceptance table."""

from __future__ import annotations

from typing import Any

import click

from ddpprof.cli import (
    CHECK_FAILED,
    PATH,
    Progress,
    device_option,
    examples,
    format_option,
    keeps_results,
    nsys_option,
    share_gpu_option,
    text_width,
)


@click.command(
    epilog=examples(
        "ddpprof verify",
        "ddpprof verify --cases delay_cap4,delay_cap64 --ranks 2",
        "ddpprof verify --facts --format markdown",
    )
)
@click.option("--cases", metavar="A,B", default="", help="Only these cases [all].")
@click.option("--ranks", default=4, show_default=True, help="Processes of each job.")
@click.option("--iterations", default=10, show_default=True, help="Timed steps of each case.")
@device_option
@share_gpu_option
@nsys_option
@click.option("--facts", "has_facts", is_flag=True, help="Check the facts about the DDP Reducer too (see ddpprof facts).")
@click.option("--fresh", "is_fresh", is_flag=True, help="Run every case again, also those that an earlier verify left whole.")
@format_option
@click.option("-o", "--output", "folder", type=PATH, help="Where the runs and the table go [runs/verify].")
@keeps_results
@click.pass_obj
def verify(progress: Progress, /, cases: str, has_facts: bool, is_fresh: bool, form: str, **options: Any) -> None:
    """Repeat the formal experiment: run every case of the study, and hold what came out against what must.

    Interrupted, it goes on where it was: cases that are whole are kept. Exit status 0: every claim holds; 3: one does not;
    1: a case could not be run at all.
    """
    from ddpprof import verification
    from ddpprof.profiling import Settings
    from ddpprof.reports import acceptance, tables

    names = [name.strip() for name in cases.split(",") if name.strip()]
    settings = Settings(**options)
    found = verification.verify(
        names, settings, is_fresh=is_fresh, has_facts=has_facts, say=progress.say, working=progress.working
    )
    if form == "text":
        width = text_width()
        click.echo(acceptance.render(found, width), nl=False)
    else:
        click.echo(acceptance.markdown(found) if form == "markdown" else tables.acceptance_json(found), nl=False)
    folder = settings.folder or verification.FOLDER
    acceptance.write(folder, found)
    progress.say(f"the runs and acceptance.md, acceptance.json are in {folder}")
    if found.not_run:
        raise click.exceptions.Exit(1)
    if not found.is_passed:
        raise click.exceptions.Exit(CHECK_FAILED)
