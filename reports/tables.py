"""An Analysis for programs: JSON and CSV. Integers stay integers, what is undefined is null (an empty cell), never NaN.

The leading keys of each row are the JSON contract of ``format_version`` 1, in its order; all further declared columns follow.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from io import StringIO
from typing import Any

from ddpprof.errors import UsageError
from ddpprof.model import (
    FORMAT_VERSION,
    Acceptance,
    AcceptanceRow,
    Across,
    AcrossRank,
    Analysis,
    BucketRow,
    ClockRow,
    CollectiveRow,
    Comparison,
    Finding,
    FocusRow,
    KindRow,
    Metrics,
    NotJudged,
    RankRow,
    ReportInfo,
    Span,
    StepRow,
    TimingRow,
    Warning,
    columns,
)

_METRICS = tuple(column.name for column in columns(Metrics))
_LEADING: dict[type, tuple[str, ...]] = {
    RankRow: (
        *("rank", "rank_source", "report", "pid", "device_id", "device_name", "steps", "n_compute", "n_comm", "n_memory"),
        *_METRICS,
    ),
    StepRow: ("rank", "report", "pid", "device_id", "step", "complete", "n_compute", "n_comm", *_METRICS),
    BucketRow: (
        *("rank", "step", "bucket", "size_bytes", "launch_ns", "start_ns", "end_ns", "overlap_ns", "exposed_ns"),
        "attribution",
    ),
    FocusRow: ("rank", "n_compute", "compute_ns", "compute_span_ns", "overlap_ns"),
    TimingRow: ("case", "rank", "phase", "clock"),
}


def _keys(table: type) -> tuple[str, ...]:
    """The keys of one row: those of the contract, then the rest as declared."""
    leading = _LEADING.get(table, ())
    return (*leading, *(column.name for column in columns(table) if column.name not in leading))


KEYS: dict[type, tuple[str, ...]] = {
    **{table: _keys(table) for table in (ReportInfo, RankRow, StepRow, BucketRow, FocusRow, KindRow, TimingRow)},
    **{table: _keys(table) for table in (AcrossRank, CollectiveRow, AcceptanceRow, ClockRow, Comparison)},
    **{table: _keys(table) for table in (Finding, NotJudged, Span)},
    Warning: ("code", "message", "report"),
}
"""Row class to the keys of its JSON objects, in order."""

CSV_TABLES: dict[str, type] = {"ranks": RankRow, "breakdown": StepRow, "buckets": BucketRow, "kinds": KindRow}


def to_json(analysis: Analysis) -> str:
    """The JSON document of ``analyze``, a line for each row; rows as the Analysis orders them."""
    focus = analysis.focus
    document = {
        **_head(analysis),
        "ranks": _rows(analysis.ranks),
        "breakdown": _rows(analysis.breakdown),
        "buckets": _rows(analysis.buckets),
        "focus": None if focus is None else {"pattern": focus.pattern, "ranks": _rows(focus.ranks)},
        "findings": _rows(analysis.findings),
        "warnings": _rows(analysis.warnings),
        "world_size": analysis.world_size,
        "kinds": _rows(analysis.kinds),
        "timings": _rows(analysis.timings),
        "across": None if analysis.across is None else _across(analysis.across),
        "not_judged": _rows(analysis.not_judged),
    }
    return _document(document)


def diagnosis_json(analysis: Analysis) -> str:
    """The JSON document of ``diagnose``: what ``analyze`` has of it."""
    document = {
        **_head(analysis),
        "world_size": analysis.world_size,
        "findings": _rows(analysis.findings),
        "not_judged": _rows(analysis.not_judged),
    }
    return _document(document)


def _head(analysis: Analysis) -> dict[str, Any]:
    """What every document of an Analysis begins with."""
    return {
        "format_version": FORMAT_VERSION,
        "ddpprof_version": analysis.ddpprof_version,
        "case": analysis.case,
        "evidence": analysis.evidence,
        "reports": _rows(analysis.reports),
        "window": analysis.window,
    }


def _across(found: Across) -> dict[str, Any]:
    return {
        "clock": found.clock,
        "uncertainty_ns": found.uncertainty_ns,
        "refused": found.refused,
        "transfer_ns": found.transfer_ns,
        "ranks": _rows(found.ranks),
        "collectives": _rows(found.collectives),
    }


def acceptance_json(found: Acceptance) -> str:
    """The JSON document of ``verify``, a line for each row."""
    granularity = found.granularity
    document = {
        "format_version": FORMAT_VERSION,
        "ddpprof_version": found.ddpprof_version,
        "torch_version": found.torch_version,
        "device": found.device,
        "evidence": found.evidence,
        "cases": list(found.cases),
        "world_size": found.ranks,
        "iterations": found.iterations,
        "is_passed": found.is_passed,
        "rows": _rows(found.rows),
        "timings": _rows(found.timings),
        "granularity": None if granularity is None else _rows((granularity,))[0],
        "clocks": _rows(found.clocks),
        "notes": list(found.notes),
        "not_run": list(found.not_run),
    }
    return _document(document)


def rank_json(analysis: Analysis, row: RankRow) -> str:
    """The same document for one row of ``analysis.ranks`` alone."""
    return to_json(one_rank(analysis, row))


def one_rank(analysis: Analysis, row: RankRow) -> Analysis:
    """The Analysis with only what concerns ``row``, and what concerns no rank in particular; report indices still hold.

    Collectives concern all ranks: they are left to the job's own document.
    """

    def mine(other: StepRow | BucketRow | FocusRow | AcrossRank) -> bool:
        return (other.report, other.pid, other.device_id) == (row.report, row.pid, row.device_id)

    focus, across = analysis.focus, analysis.across
    return replace(
        analysis,
        ranks=(row,),
        across=across and replace(across, ranks=tuple(filter(mine, across.ranks)), collectives=()),
        breakdown=tuple(filter(mine, analysis.breakdown)),
        buckets=tuple(filter(mine, analysis.buckets)),
        focus=focus and replace(focus, ranks=tuple(filter(mine, focus.ranks))),
        findings=tuple(
            finding for finding in analysis.findings if finding.rank is None or row.rank in (finding.rank, *finding.on_ranks)
        ),
        warnings=tuple(warning for warning in analysis.warnings if warning.report in (None, row.report)),
        timings=tuple(timing for timing in analysis.timings if timing.rank == row.rank),
    )


def to_csv(analysis: Analysis, table: str) -> str:
    """One of CSV_TABLES with a header line; lists and mappings stand in their cell as JSON."""
    if table not in CSV_TABLES:
        raise UsageError(f"no table {table!r}", f"Tables are {', '.join(CSV_TABLES)}.")
    keys = KEYS[CSV_TABLES[table]]
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(keys)
    writer.writerows([_cell(getattr(row, key)) for key in keys] for row in getattr(analysis, table))
    return out.getvalue()


def _rows(rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [{key: _finite(getattr(row, key)) for key in KEYS[type(row)]} for row in rows]


def _finite(value: Any) -> Any:
    """``value`` with every NaN and infinity in it as None, tuples as lists, rows as objects."""
    if type(value) in KEYS:
        return _rows((value,))[0]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, tuple | list) else value


def _document(values: dict[str, Any]) -> str:
    return "{\n" + ",\n".join(f'  "{key}": {_lines(value)}' for key, value in values.items()) + "\n}\n"


def _lines(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"    {json.dumps(row, allow_nan=False)}" for row in value) + "\n  ]"
    return json.dumps(value, allow_nan=False)


def _cell(value: Any) -> Any:
    value = _finite(value)
    return json.dumps(value, allow_nan=False) if isinstance(value, list | dict | bool) else value
