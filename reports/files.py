"""An Analysis as the files of a folder: the summary, one report for each rank, the picture."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from ddpprof.model import Analysis, RankRow, Records, Timeline
from ddpprof.reports import markdown, page, plots, tables, verdict
from ddpprof.reports.quantities import markdown as escape
from ddpprof.rundir import RunDir, whole_files


def write(folder: Path, analysis: Analysis, timeline: Timeline, records: Records | None = None) -> None:
    """Writes ``summary.{md,json,html}``, ``rankN.{md,json}`` for each row and ``timeline.png``: all of them or none."""
    with whole_files(folder) as partial:
        run = RunDir(partial)
        plots.draw_timeline(timeline, run.timeline)
        summary = run.summary
        _write(summary.with_suffix(".md"), markdown.render(analysis, records=records, timeline=run.timeline.name))
        _write(summary.with_suffix(".json"), tables.to_json(analysis))
        _write(summary.with_suffix(".html"), page.render(analysis, timeline))
        for row, name in zip(analysis.ranks, rank_names(analysis.ranks), strict=True):
            stem = run.rank_report(name)
            _write(stem.with_suffix(".md"), markdown.render_rank(analysis, row, records))
            _write(stem.with_suffix(".json"), tables.rank_json(analysis, row))


def rank_names(rows: tuple[RankRow, ...]) -> list[str]:
    """A name for each row's files: its rank, else its report and process; with its device where it has several."""
    owners = [str(row.rank) if row.rank is not None else f"-unknown-{row.report}-{row.pid}" for row in rows]
    count = Counter(owners)
    return [owner if count[owner] == 1 else f"{owner}-device{row.device_id}" for owner, row in zip(owners, rows, strict=True)]


def write_failures(folder: Path, case: str, records: Records, ranks: int) -> None:
    """Writes ``summary.{md,json}`` of a case that had to fail: who failed, and how."""
    expected = [failure for failure in records.failures if failure.is_expected]
    title = f"expected failure seen on {len({failure.rank for failure in expected})} of {ranks} ranks"
    lines = "".join(f"- {escape(verdict.failure_line(failure))}\n" for failure in records.failures)
    rows = [
        {"rank": row.rank, "step": row.step, "is_expected": row.is_expected, "message": row.message} for row in records.failures
    ]
    with whole_files(folder) as partial:
        summary = RunDir(partial).summary
        _write(summary.with_suffix(".md"), f"# DDP overlap: {escape(case)}\n\n{title}\n\n{lines}")
        _write(summary.with_suffix(".json"), json.dumps({"format_version": 1, "case": case, "failures": rows}, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
