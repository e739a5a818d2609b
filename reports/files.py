"""An Analysis as the files of a folder: the summary, one report for each rank, the picture."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ddpprof.errors import UsageError
from ddpprof.model import Analysis, RankRow, Records, Timeline
from ddpprof.reports import markdown, page, plots, tables, verdict
from ddpprof.reports.quantities import markdown as escape
from ddpprof.rundir import RunDir, is_our_json, whole_files


def write(folder: Path, analysis: Analysis, timeline: Timeline, records: Records | None = None) -> None:
    """Writes ``summary.{md,json,html}``, ``rankN.{md,json}`` for each row and ``timeline.png``: all of them or none.

    They replace those of an analysis before, all ranks of it. Raises UsageError when a file to write is there and not ours.
    """
    names = rank_names(analysis.ranks)
    stems = ["summary", *(RunDir(folder).rank_report(name).name for name in names)]
    written = {f"{stem}.{suffix}" for stem in stems for suffix in ("md", "json")} | {"summary.html", "timeline.png"}
    ours = _ours(folder)
    if foreign := sorted(name for name in written - ours if os.path.lexists(folder / name)):
        raise UsageError(
            f"{folder / foreign[0]}: exists and is not a report of ddpprof",
            "Choose another folder with -o; nothing was changed.",
        )
    with whole_files(folder) as partial:
        run = RunDir(partial)
        plots.draw_timeline(timeline, run.timeline)
        summary = run.summary
        _write(summary.with_suffix(".md"), markdown.render(analysis, records=records, timeline=run.timeline.name))
        _write(summary.with_suffix(".json"), tables.to_json(analysis))
        _write(summary.with_suffix(".html"), page.render(analysis, timeline))
        for row, name in zip(analysis.ranks, names, strict=True):
            stem = run.rank_report(name)
            _write(stem.with_suffix(".md"), markdown.render_rank(analysis, row, records))
            _write(stem.with_suffix(".json"), tables.rank_json(analysis, row))
    for name in ours - written:
        (folder / name).unlink(missing_ok=True)


def check_place(folder: Path, inputs: Sequence[Path]) -> None:
    """Returns unless ``folder`` is a run folder and not itself the one input: its reports are then about another run."""
    if RunDir(folder).is_run() and not (len(inputs) == 1 and inputs[0].exists() and inputs[0].samefile(folder)):
        raise UsageError(
            f"{folder}: is the folder of another run", "Choose another folder with -o; a run folder takes only its own reports."
        )


def _ours(folder: Path) -> set[str]:
    """The names of the reports that an analysis left in a folder: known by its JSON, beside which the others lie."""
    jsons = [path for path in folder.glob("*.json") if _REPORT.fullmatch(path.stem) and is_our_json(path)]
    found = {f"{path.stem}.{suffix}" for path in jsons for suffix in ("json", "md")}
    return found | ({"summary.html", "timeline.png"} if "summary.json" in found else set())


_REPORT = re.compile(r"summary|rank(\d+|-unknown-\d+-\d+)(-device\w+)?")


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
