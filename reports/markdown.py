"""An Analysis as Markdown: the summary of all ranks, and the report of one rank with its clocks apart."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.model import Analysis, RankRow, Records
from ddpprof.reports import clocks, verdict, views
from ddpprof.reports.quantities import markdown as escape
from ddpprof.reports.tables import one_rank


def render(
    analysis: Analysis,
    *,
    per_step: bool = False,
    buckets: bool = False,
    kinds: bool = False,
    records: Records | None = None,
    timeline: str | None = None,
) -> str:
    """The summary of all ranks, tables chosen as in ``text.render``; ``timeline`` is the file of a picture to show."""
    title = "DDP overlap" if analysis.case is None else f"DDP overlap: {analysis.case}"
    tables = views.chosen(analysis, per_step=per_step, buckets=buckets, kinds=kinds)
    parts = [
        *_head(title, verdict.scope(analysis), analysis),
        *map(section, tables),
        f"![Timeline of all ranks]({timeline})" if timeline else "",
        *_run(analysis, records),
        *_notices(analysis),
        _definitions(tables),
    ]
    return document(parts)


def render_rank(analysis: Analysis, row: RankRow, records: Records | None = None) -> str:
    """The report of one row of ``analysis.ranks``: every number defined, steps, buckets, and the clocks apart."""
    mine = one_rank(analysis, row)
    ours = Records() if records is None else _of_rank(records, row.rank)
    tables = views.chosen(mine, per_step=True, buckets=True)[1:]
    parts = [
        *_head(verdict.row_name(row, analysis).capitalize(), verdict.whereabouts(row, analysis), mine),
        section(views.numbers(row)),
        *map(section, tables),
        *_run(mine, ours),
        *_clocks(mine, ours),
        *_notices(mine),
        _definitions(tables),
    ]
    return document(parts)


def table(shown: views.Table) -> str:
    """A table in GitHub's Markdown, numbers to the right."""
    if not shown.rows:
        return "(none)"
    head = [escape(column.title) for column in shown.columns]
    rule = ["---" if column.is_text else "---:" for column in shown.columns]
    body = [[escape(cell) for cell in row] for row in shown.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body))


def document(parts: Iterable[str]) -> str:
    """The parts that are not empty, as paragraphs of one document."""
    return "\n\n".join(filter(None, parts)) + "\n"


def _head(title: str, scope: str, analysis: Analysis) -> list[str]:
    return [
        f"# {escape(title)}",
        escape(verdict.EVIDENCE[analysis.evidence]),
        escape(scope),
        f"**{verdict.QUESTION}** {escape(verdict.answer(analysis))}",
        bullets(escape(line) for line in verdict.cautions(analysis)),
        _cause(analysis),
    ]


def _cause(analysis: Analysis) -> str:
    line = verdict.cause_line(analysis)
    return f"**{verdict.CAUSE_QUESTION}** {escape(verdict.cause(analysis))}" if line else ""


def section(shown: views.Table) -> str:
    """A table under its title, over its note."""
    return "\n\n".join(
        [f"## {escape(shown.title)}", *([table(shown)] if shown.rows or not shown.note else []), escape(shown.note)]
    ).strip()


def bullets(items: Iterable[str]) -> str:
    """A list of Markdown items."""
    return "\n".join(f"- {item}" for item in items)


def _notices(analysis: Analysis) -> Iterable[str]:
    if analysis.findings:
        yield "## Findings"
        yield bullets(escape(verdict.finding_line(finding, analysis)) for finding in analysis.findings)
    if analysis.warnings:
        yield "## Warnings"
        yield bullets(f"`{warning.code}`: {escape(verdict.warning_line(warning, analysis))}" for warning in analysis.warnings)


def _definitions(tables: Iterable[views.Table]) -> str:
    lines = bullets(f"{escape(heading)}: {escape(meaning)}" for heading, meaning in views.definitions(tables).items())
    return f"## What the columns mean\n\n{escape(views.SETS)} The JSON has every time in whole nanoseconds.\n\n{lines}"


def _run(analysis: Analysis, records: Records | None) -> Iterable[str]:
    """The run's own timing and failures, as far as it recorded any."""
    if analysis.timings:
        yield section(clocks.iterations(analysis.timings))
    if records is not None and records.failures:
        yield "## Failures"
        yield bullets(escape(verdict.failure_line(failure)) for failure in records.failures)


def _clocks(analysis: Analysis, records: Records) -> Iterable[str]:
    hooks = clocks.hook_and_timeline(analysis, records)
    fields = clocks.logger(records)
    if hooks is not None:
        yield section(hooks)
        yield bullets((clocks.HOOK, clocks.TIMELINE, clocks.APART))
    if fields is not None:
        yield section(fields)
        yield clocks.LOGGER


def _of_rank(records: Records, rank: int | None) -> Records:
    """The rows of one rank; none for an unknown one."""
    return Records(
        runs=tuple(row for row in records.runs if row.rank == rank),
        iterations=tuple(row for row in records.iterations if row.rank == rank),
        buckets=tuple(row for row in records.buckets if row.rank == rank),
        loggers=tuple(row for row in records.loggers if row.rank == rank),
        layouts=tuple(row for row in records.layouts if row.rank == rank),
        failures=tuple(row for row in records.failures if row.rank == rank),
    )
