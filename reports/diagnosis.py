"""What holds the step back: the findings in order with cost, evidence and what to try, and what could not be judged."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent

from ddpprof.model import Analysis, Finding
from ddpprof.reports import markdown, quantities, text, verdict

NOT_JUDGED = "Could not be judged"
NOT_FOUND = "Judged, and not found"


def render(analysis: Analysis, *, width: int = 120) -> str:
    """Evidence, scope, answer and what limits it, the findings in order, what could not be judged, what was not found."""
    head = [verdict.EVIDENCE[analysis.evidence], verdict.scope(analysis)]
    answer = f"{verdict.CAUSE_QUESTION} {verdict.cause(analysis)}"
    cautions = (text.wrapped(f"- {line}", width, indent="  ") for line in verdict.cautions(analysis))
    blocks = ["\n".join(text.wrapped(line, width) for line in head), "\n".join([text.wrapped(answer, width), *cautions])]
    for number, finding in enumerate(analysis.findings, 1):
        lines = (text.wrapped(line, width - 3, indent="  ") for line in _lines(finding, analysis))
        blocks.append("\n".join([text.wrapped(f"{number}. {_title(finding)}", width), indent("\n".join(lines), "   ")]))
    blocks.append(text.bullets(NOT_JUDGED, verdict.not_judged(analysis), width))
    blocks.append(text.wrapped(f"{NOT_FOUND}: {verdict.not_found(analysis)}", width) if verdict.not_found(analysis) else "")
    return "\n\n".join(filter(None, blocks)) + "\n"


def render_markdown(analysis: Analysis) -> str:
    """The same as a document."""
    name = "What holds the step back" if analysis.case is None else f"What holds the step back: {analysis.case}"
    escape = quantities.markdown
    parts = [
        f"# {escape(name)}",
        escape(verdict.EVIDENCE[analysis.evidence]),
        escape(verdict.scope(analysis)),
        f"**{verdict.CAUSE_QUESTION}** {escape(verdict.cause(analysis))}",
        markdown.bullets(escape(line) for line in verdict.cautions(analysis)),
    ]
    for number, finding in enumerate(analysis.findings, 1):
        parts.append(f"## {number}. {escape(_title(finding))}")
        parts.append(markdown.bullets(escape(line) for line in _lines(finding, analysis)))
    if analysis.not_judged:
        parts.append(f"## {NOT_JUDGED}")
        parts.append(markdown.bullets(map(escape, verdict.not_judged(analysis))))
    if verdict.not_found(analysis):
        parts.append(f"{NOT_FOUND}: {escape(verdict.not_found(analysis))}")
    return markdown.document(parts)


def _title(finding: Finding) -> str:
    where = f", {verdict.spelled(finding.on_ranks)}" if finding.on_ranks else ""
    return f"{finding.code} ({finding.severity}, sure: {finding.sure}){where}"


def _lines(finding: Finding, analysis: Analysis) -> Iterator[str]:
    yield f"{finding.message}."
    worst = f" (rank {finding.rank})" if len(finding.on_ranks) > 1 else ""
    yield f"costs at most: {verdict.cost(finding, analysis)}{worst}"
    if finding.evidence:
        yield f"evidence: {verdict.proofs(finding)}"
    if finding.advice:
        yield f"try: {finding.advice}"
    for span in finding.spans[:1]:
        report = analysis.reports[span.report].path if span.report < len(analysis.reports) else "?"
        start = f"{quantities.MILLI.number(span.start_ns)} ms"
        yield f"look at: {quantities.ns(span.end_ns - span.start_ns)} from {start} of {report}, process {span.pid}"
