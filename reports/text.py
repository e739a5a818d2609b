"""An Analysis as a person reads it first, in a terminal: plain ASCII, no colour, nothing wider than asked.

Tables are laid out here and not by a table library: a number is never folded over two lines. A table too wide for the
terminal goes on below with its key columns repeated.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from ddpprof.model import Analysis, Records
from ddpprof.reports import clocks, quantities, verdict, views

GAP = "  "
_UNIT = re.compile(r"(?<=\d) (?=%|[num]s\b)")


def render(
    analysis: Analysis,
    *,
    per_step: bool = False,
    buckets: bool = False,
    kinds: bool = False,
    records: Records | None = None,
    width: int = 120,
) -> str:
    """Evidence, scope, answer, the table of ranks, the tables asked for, findings, warnings: in that order."""
    blocks = [_head(analysis, width), _answer(analysis, width), wrapped(verdict.cause_line(analysis), width)]
    tables = views.chosen(analysis, per_step=per_step, buckets=buckets, kinds=kinds)
    if analysis.timings:
        tables.append(clocks.iterations(analysis.timings))
    blocks += ["\n".join(layout(table, width)) for table in tables]
    if records is not None:
        blocks.append(bullets("Failures", [verdict.failure_line(failure) for failure in records.failures], width))
    blocks.append(bullets("Findings", [verdict.finding_line(finding, analysis) for finding in analysis.findings], width))
    warnings = [f"{warning.code}: {verdict.warning_line(warning, analysis)}" for warning in analysis.warnings]
    blocks.append(bullets("Warnings", warnings, width))
    return "\n\n".join(filter(None, blocks)) + "\n"


def layout(table: views.Table, width: int) -> Iterator[str]:
    """The lines of one table: title, headings, units, rows, note; in parts, keys repeated, where ``width`` asks for it."""
    yield from textwrap.wrap(quantities.plain(table.title), width)
    if not table.rows:
        yield from _below(table.note or "(none)", width)
        return
    keys = [column for column in table.columns if column.is_key]
    rest = [column for column in table.columns if not column.is_key]
    height = max(len(_heading(column)) for column in table.columns)
    fixed = [_lines(column, height, width // 2) for column in keys]
    room = width - _width(fixed)
    part: list[list[str]] = []
    for lines in (_lines(column, height, room - len(GAP)) for column in rest):
        if part and _width([*part, lines]) > room:
            yield from _joined(fixed + part)
            yield ""
            part = []
        part.append(lines)
    yield from _joined(fixed + part)
    yield from _below(table.note, width)


def _below(note: str, width: int) -> Iterator[str]:
    return (GAP + line for line in wrapped(note, width - len(GAP)).splitlines())


def _heading(column: views.Column) -> list[str]:
    return [*column.heading.split(), column.unit]


def _lines(column: views.Column, height: int, limit: int) -> list[str]:
    """One column, heading over cells, every line of one width; text that does not fit in ``limit`` is cut."""
    heading = _heading(column)
    cells = [quantities.plain(cell) for cell in column.cells]
    if column.is_text:
        cells = [cell if len(cell) <= limit else f"{cell[: max(limit - 3, 8)]}..." for cell in cells]
    lines = [""] * (height - len(heading)) + heading + cells
    longest = max(map(len, lines))
    return [line.ljust(longest) if column.is_text else line.rjust(longest) for line in lines]


def _width(part: list[list[str]]) -> int:
    return sum(len(GAP) + len(lines[0]) for lines in part)


def _joined(part: list[list[str]]) -> Iterator[str]:
    for line in zip(*part, strict=True):
        text = "".join(GAP + cell for cell in line).rstrip()
        if text:
            yield text


def _head(analysis: Analysis, width: int) -> str:
    codes = ", ".join(dict.fromkeys(warning.code for warning in analysis.warnings))
    lines = [
        verdict.EVIDENCE[analysis.evidence],
        verdict.scope(analysis),
        f"warnings, explained below: {codes}" if codes else "",
    ]
    return "\n".join(wrapped(line, width) for line in lines if line)


def _answer(analysis: Analysis, width: int) -> str:
    cautions = [wrapped(f"- {line}", width, indent="  ") for line in verdict.cautions(analysis)]
    return "\n".join([wrapped(f"{verdict.QUESTION} {verdict.answer(analysis)}", width), *cautions])


def bullets(title: str, items: list[str], width: int) -> str:
    """A titled list, empty text for no items."""
    return "\n".join([title, *(wrapped(f"- {item}", width, indent="  ") for item in items)]) if items else ""


def wrapped(text: str, width: int, indent: str = "") -> str:
    """``text`` in ASCII, no line wider than ``width``, no number parted from its unit."""
    text = _UNIT.sub("\N{NO-BREAK SPACE}", quantities.plain(text))
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False).replace("\N{NO-BREAK SPACE}", " ")
