"""An Analysis as one HTML page that needs nothing else: style and picture inside, no script, light and dark.

All text is escaped, and the page's own policy forbids whatever is not its inline style.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ddpprof.model import Analysis, Timeline
from ddpprof.reports import quantities, verdict, views

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1b; --faint: #61666d; --page: #fff; --line: #d9dce1; --soft: #f4f5f7 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e9eb; --faint: #a2a8b0; --page: #17181a; --line: #3a3d42; --soft: #222428 }
}
body { margin: 2rem auto; max-width: 84rem; padding: 0 1.5rem; color: var(--ink); background: var(--page) }
body { font: 15px/1.5 system-ui, "Segoe UI", sans-serif }
h1 { font-size: 1.4rem; margin: 0 0 .3rem }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
.scope { color: var(--faint); margin: .1rem 0 }
.answer { margin: 1.2rem 0; padding: .8rem 1.1rem; font-size: 1.1rem; background: var(--soft); border-left: 5px solid #2a8fcb }
.wide { overflow-x: auto }
figure { margin: 1rem 0 }
svg { max-width: 100%; height: auto; color: var(--ink) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th { font-weight: 600; vertical-align: bottom; background: var(--soft) }
th small { color: var(--faint); font-weight: 400 }
.text { text-align: left }
td.text { min-width: 6rem; max-width: 48rem; white-space: normal; overflow-wrap: anywhere }
summary { cursor: pointer; font-weight: 600; margin: 1rem 0 .5rem }
dt { font-weight: 600 }
dd { margin: 0 0 .3rem 1rem }
ul { padding-left: 1.2rem }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render(analysis: Analysis, timeline: Timeline | None = None) -> str:
    """The page: answer, ranks, picture, findings, warnings; steps, buckets, kinds and definitions to open."""
    name = "DDP overlap" if analysis.case is None else f"DDP overlap: {analysis.case}"
    first = views.chosen(analysis)
    more = views.chosen(analysis, per_step=True, buckets=True, kinds=True)[len(first) :]
    parts = [
        f"<h1>{_text(name)}</h1>",
        f'<p class="scope">{_text(verdict.EVIDENCE[analysis.evidence])}</p>',
        f'<p class="scope">{_text(verdict.scope(analysis))}</p>',
        f'<p class="answer"><b>{_text(verdict.QUESTION)}</b> {_text(verdict.answer(analysis))}</p>',
        _list(_text(line) for line in verdict.cautions(analysis)),
        f'<p class="answer"><b>{_text(verdict.CAUSE_QUESTION)}</b> {_text(verdict.cause(analysis))}</p>'
        if verdict.cause_line(analysis)
        else "",
        *(f"<section><h2>{_text(shown.title)}</h2>{_table(shown)}</section>" for shown in first),
        "" if timeline is None else _figure(timeline),
        _notices("Findings", (_text(verdict.finding_line(finding, analysis)) for finding in analysis.findings)),
        _notices(
            "Warnings", (f"<code>{_text(w.code)}</code>: {_text(verdict.warning_line(w, analysis))}" for w in analysis.warnings)
        ),
        *(f"<details><summary>{_text(shown.title)}</summary>{_table(shown)}</details>" for shown in more if shown.rows),
        _definitions([*first, *more]),
    ]
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(name)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
    )
    return head + "\n".join(filter(None, parts)) + "\n</body>\n</html>\n"


def _text(text: str) -> str:
    return escape(quantities.clean(text))


def _table(shown: views.Table) -> str:
    if not shown.rows:
        return f"<p>{_text(shown.note or '(none)')}</p>"
    looks = [' class="text"' if column.is_text else "" for column in shown.columns]
    head = "".join(
        f'<th{look} title="{_text(column.meaning)}">{_text(column.heading)}<br><small>{_text(column.unit)}</small></th>'
        for look, column in zip(looks, shown.columns, strict=True)
    )
    body = "\n".join(
        "<tr>" + "".join(f"<td{look}>{_text(cell)}</td>" for look, cell in zip(looks, row, strict=True)) + "</tr>"
        for row in shown.rows
    )
    note = f'<p class="scope">{_text(shown.note)}</p>' if shown.note else ""
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>{note}'


def _figure(timeline: Timeline) -> str:
    from ddpprof.reports.plots import inline_svg

    return f'<section><h2>Timeline</h2><figure class="wide">{inline_svg(timeline)}</figure></section>'


def _list(items: Iterable[str]) -> str:
    found = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul>{found}</ul>" if found else ""


def _notices(title: str, items: Iterable[str]) -> str:
    found = _list(items)
    return f"<section><h2>{title}</h2>{found}</section>" if found else ""


def _definitions(tables: Iterable[views.Table]) -> str:
    lines = "".join(f"<dt>{_text(name)}</dt><dd>{_text(text)}</dd>" for name, text in views.definitions(tables).items())
    return f"<details><summary>What the columns mean</summary><p>{_text(views.SETS)}</p><dl>{lines}</dl></details>"
