"""``ddpprof facts``: what ddpprof takes to be true of DDP, held against the PyTorch that is installed."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from ddpprof.cli import CHECK_FAILED, Progress, examples


@click.command(epilog=examples("ddpprof facts", "ddpprof facts --format json"))
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: for programs.",
)
@click.pass_obj
def facts(progress: Progress, form: str) -> None:
    """Check each fact about the DDP Reducer on the installed PyTorch, on the CPU, in a few seconds.

    The layouts and launch orders that ddpprof predicts rest on them. Exit status 3 when one does not hold. A fact that this
    PyTorch does not have is skipped, and says so.
    """
    from importlib.metadata import version

    from ddpprof.workloads.facts import check_facts

    with progress.working("checking the facts about the DDP Reducer"):
        results = check_facts()
    torch_version = version("torch")
    if form == "json":
        click.echo(json.dumps({"torch_version": torch_version, "facts": [asdict(result) for result in results]}, indent=2))
    else:
        for result in results:
            click.echo(f"{result.status.upper()}  {result.number:>2}  {result.text}  [{result.source}]")
            if result.detail:
                click.echo(f"{'':10}{result.detail}")
        count = {status: sum(result.status == status for result in results) for status in ("pass", "fail", "skip")}
        click.echo(f"\ntorch {torch_version}: {count['pass']} facts hold, {count['fail']} do not, {count['skip']} not checked")
    if any(result.status == "fail" for result in results):
        raise click.exceptions.Exit(CHECK_FAILED)
