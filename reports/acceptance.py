"""An Acceptance as text, Markdown and JSON: the table of claims first, then timing and the three clocks, each on its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ddpprof.model import Acceptance, AcceptanceRow, Comparison
from ddpprof.reports import clocks, quantities, tables, text, verdict
from ddpprof.reports import markdown as md
from ddpprof.reports.views import Table, declared, table
from ddpprof.rundir import whole_files

NAME = "acceptance"
CLOCKS = "What each clock is"
_BESIDE = (clocks.HOOK, clocks.LOGGER, clocks.TIMELINE, clocks.APART)


def render(found: Acceptance, width: int = 120) -> str:
    """The verdict, the table of claims, what does not hold, timing, clocks, notes; plain ASCII within ``width``."""
    blocks = ["\n".join(text.wrapped(line, width) for line in _head(found))]
    for title, content in _blocks(found):
        if isinstance(content, Table):
            blocks.append("\n".join(text.layout(content, width)))
        else:
            blocks.append(text.bullets(title, content, width))
    return "\n\n".join(filter(None, blocks)) + "\n"


def markdown(found: Acceptance) -> str:
    """The same in Markdown."""
    verdict_line, *head = map(quantities.markdown, _head(found))
    parts = ["# The formal experiment", f"**{verdict_line}**", *head]
    for title, content in _blocks(found):
        if isinstance(content, Table):
            parts.append(md.section(content))
        elif content:
            parts += [f"## {title}", md.bullets(content if title == CLOCKS else map(quantities.markdown, content))]
    return md.document(parts)


def write(folder: Path, found: Acceptance) -> None:
    """Writes ``acceptance.md`` and ``acceptance.json`` into ``folder``, both or neither."""
    with whole_files(folder) as partial:
        (partial / f"{NAME}.md").write_text(markdown(found), encoding="utf-8")
        (partial / f"{NAME}.json").write_text(tables.acceptance_json(found), encoding="utf-8")


def _head(found: Acceptance) -> Iterator[str]:
    failed = sum(row.verdict == "FAIL" for row in found.rows)
    of = verdict.counted(len(found.rows), "claim")
    yield f"FAIL: {failed} of {of} not met" if failed else f"PASS: {of} met"
    if found.evidence is not None:
        yield verdict.EVIDENCE[found.evidence]
    numbers = ((len(found.cases), "case"), (found.ranks, "rank"), (found.iterations, "timed iteration"))
    cases, ranks, iterations = (verdict.counted(number, noun) for number, noun in numbers)
    torch = found.torch_version or quantities.MISSING_TEXT
    yield f"{cases}, {ranks} on {found.device}, {iterations}; torch {torch}, ddpprof {found.ddpprof_version}"


def _blocks(found: Acceptance) -> Iterator[tuple[str, Table | list[str]]]:
    """Title and content of each part, in order; lists may be empty."""
    yield "", _claims(found.rows)
    yield "What is not as it must be", _problems(found.rows)
    if found.timings:
        yield "", clocks.of_jobs(found.timings)
        unsteady = [f"{row.case}, {row.phase}: {row.caution}" for row in found.timings if row.caution and row.phase == "step"]
        yield "Before any conclusion from these times", unsteady
        yield "Granularity", [] if found.granularity is None else [_granularity(found.granularity)]
    if found.clocks:
        yield "", clocks.apart(found.clocks)
        yield CLOCKS, list(_BESIDE)
    yield "Notes", list(found.notes)


def _claims(rows: tuple[AcceptanceRow, ...]) -> Table:
    keys = (replace(column, is_key=True) for column in declared(AcceptanceRow, rows, "group", "what"))
    return table("Claims", *keys, *declared(AcceptanceRow, rows, "counted", "expected", "seen", "verdict"))


def _problems(rows: tuple[AcceptanceRow, ...]) -> list[str]:
    """Each problem once, with the claims that it breaks."""
    claims: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for problem in row.problems:
            claims[problem].append(f"{row.group}: {row.what}")
    return [
        f"{problem} ({'; '.join(broken) if len(broken) < 4 else verdict.counted(len(broken), 'claim')})"
        for problem, broken in claims.items()
    ]


def _granularity(found: Comparison) -> str:
    """What finer parameters cost at the same buckets, as far as the spread lets one say it."""
    ratio, least, most = map(quantities.share, (found.median_ratio, found.least_ratio, found.most_ratio))
    measured = f"the step of {found.case} takes {ratio} of the time of {found.against}, from {least} to {most} by their spread"
    if found.caution is not None:
        return f"No conclusion: {measured}, but {found.caution}"
    if found.least_ratio <= 1 and (found.most_ratio is None or found.most_ratio >= 1):
        return f"No conclusion: {measured}, which does not tell them apart"
    return f"{measured[0].upper()}{measured[1:]}: the same bytes in the same buckets, so it is the size of the parameters"
