"""``ddpprof history``: how a case did over time."""

from __future__ import annotations

import click

from ddpprof.cli import examples, results_option


@click.command(
    epilog=examples("ddpprof history", "ddpprof history delay_cap4", "ddpprof history delay_cap4 --limit 20 --format json")
)
@click.argument("case", required=False)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The newest N runs alone.")
@click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="json: for programs."
)
@results_option
def history(case: str | None, limit: int | None, form: str, results: str) -> None:
    """The runs of a case that were kept, newest last; of your own job by its script's name. Without CASE: which have runs.

    A change is marked where the spread sets a run's step apart from the median of the runs before it.
    """
    from ddpprof import results as database
    from ddpprof.analysis.timing import changes
    from ddpprof.reports import history as reports

    if case is None:
        click.echo(reports.render_cases(database.cases(results), form), nl=False)
        return
    runs = database.history(results, case)
    marked = changes(runs)
    newest = slice(-limit if limit else None, None)
    render = reports.to_json if form == "json" else reports.render
    click.echo(render(runs[newest], marked[newest]), nl=False)
