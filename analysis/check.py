"""Expectations on an Analysis, rank by rank: held, did not hold, or cannot be told."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal

from ddpprof.errors import UsageError
from ddpprof.model import Analysis, FocusRow, Metrics, RankRow, columns

Verdict = Literal["pass", "fail", "unknown"]

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_EXPRESSION: Final = re.compile(r"\s*([a-z_]+)\s*(==|!=|>=|<=|>|<)\s*(-?\d+(?:\.\d+)?)\s*")
_SCALE: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_NEEDS_COMM: Final = ("overlap_ns", "overlap_ratio", "exposed_comm_ns", "tail_ns", "comm_span_ns")
_NEEDS_COMPUTE: Final = (
    "compute_ns",
    "compute_span_ns",
    "compute_only_ns",
    "overlap_ns",
    "overlap_ratio",
    "exposed_comm_ns",
    "tail_ns",
    "launched_early",
)
_FOCUSED: Final = ("overlap_ns", "overlap_ratio", "compute_ns", "compute_span_ns")
"""What cannot be told when the compute asked about is nowhere; that its count is 0 can."""
COUNTS: Final = {
    "buckets": "communication intervals that carry a DDP bucket",
    "n_compute": "compute intervals (of --compute, when given)",
    "n_comm": "communication intervals",
    "launched_early": "communication launched before the last compute interval was",
}
"""Countable things an expectation can name, beside the metrics."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """``name operator value``, times in ns; ``unit`` is that in which a time was asked and is answered, "" for others."""

    text: str
    name: str
    operator: str
    value: Decimal
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """One expectation on one rank; ``seen`` says what was found, or why it cannot be told.

    ``unreliable`` are the warning codes that make what was found unreliable; none where it cannot be told anyway.
    """

    expectation: str
    rank: str
    verdict: Verdict
    seen: str
    unreliable: tuple[str, ...] = ()


def parse(text: str) -> Expectation:
    """The expectation that ``text`` spells, such as ``overlap>0``, ``tail_ms<=2``. Raises UsageError with what can be said."""
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--expect {text!r}: not NAME OPERATOR NUMBER", "Examples: overlap>0  overlap_ratio>=0.6  tail_ms<=2  buckets==12"
        )
    name, sign, number = match.groups()
    value = Decimal(number)
    known = [item.name for item in columns(Metrics)] + list(COUNTS)
    base, _, unit = name.rpartition("_")
    if f"{name}_ns" in known:
        if value:
            raise UsageError(
                f"--expect {text!r}: {number} of which unit?", f"Write {name}_ms{sign}{number}, or {name}_us, {name}_ns."
            )
        base, unit = name, "ns"
    if unit in _SCALE and f"{base}_ns" in known:
        return Expectation(text.strip(), f"{base}_ns", sign, value * _SCALE[unit], unit)
    if name not in known:
        raise UsageError(f"--expect {text!r}: no quantity {name!r}", f"There are: {', '.join(known)}; times also as _ms, _us.")
    if name == "overlap_ratio" and value > 1:
        percent = f"{value / 100:f}" if value <= 100 else "0.6"
        raise UsageError(
            f"--expect {text!r}: a ratio is from 0 to 1, where the tables show %", f"Example: {name}{sign}{percent}"
        )
    return Expectation(text.strip(), name, sign, value)


def check(analysis: Analysis, expectations: Sequence[Expectation]) -> list[Result]:
    """Every expectation on every rank, by rank then expectation; ranks of the job that are not in the input are unknown.

    Without any rank there is nothing that could hold: one unknown result for each expectation.
    """
    results = []
    focus = {(row.report, row.pid, row.device_id): row for row in (analysis.focus.ranks if analysis.focus else ())}
    is_unmatched = bool(focus) and not any(row.n_compute for row in focus.values())
    n_buckets = Counter((row.report, row.pid, row.device_id, row.step) for row in analysis.buckets if row.bucket is not None)
    for row in _working(analysis.ranks):
        who = (
            f"rank {row.rank}"
            if row.rank is not None
            else f"process {row.pid}" + (f" device {row.device_id}" if row.device_id else "")
        )
        here = {key[3]: count for key, count in n_buckets.items() if key[:3] == (row.report, row.pid, row.device_id)}
        values = _values(row, focus.get((row.report, row.pid, row.device_id)), here)
        results += [
            Result(expectation.text, who, "unknown", "--compute names no compute in the input")
            if is_unmatched and expectation.name in _FOCUSED
            else _judge(expectation, who, row, values)
            for expectation in expectations
        ]
    seen = {row.rank for row in analysis.ranks}
    absent = [f"rank {rank}" for rank in sorted(set(range(analysis.world_size or 0)) - seen)]
    if None in seen:
        n_absent = (analysis.world_size or 0) - len({(row.report, row.pid) for row in analysis.ranks})
        absent = [f"{n_absent} further ranks"] * (n_absent > 0)
    for who in absent or ["no rank"] * (not results):
        results += [Result(expectation.text, who, "unknown", "not in the input") for expectation in expectations]
    return results


def _working(ranks: Iterable[RankRow]) -> list[RankRow]:
    """The rows to judge: those of stray devices, with neither communication nor the bulk of a rank's work, are passed over."""
    by_process: dict[tuple[int, int], list[RankRow]] = {}
    for row in ranks:
        by_process.setdefault((row.report, row.pid), []).append(row)
    return [row for rows in by_process.values() for row in rows if row.n_comm or not any(other.n_comm for other in rows)]


def _values(row: RankRow, focus: FocusRow | None, buckets: Mapping[int | None, int]) -> dict[str, Any]:
    values: dict[str, Any] = {item.name: getattr(row, item.name) for item in columns(Metrics)}
    counts = sorted(buckets.values())
    values |= {
        "n_compute": row.n_compute,
        "n_comm": row.n_comm,
        "launched_early": row.n_before_last_compute,
        "buckets": counts[(len(counts) - 1) // 2] if counts else (row.n_comm if not row.n_comm else None),
    }
    if focus is not None:
        values |= {name: getattr(focus, name) for name in ("n_compute", "compute_ns", "compute_span_ns", "overlap_ns")}
        values["overlap_ratio"] = focus.overlap_ns / row.comm_ns if row.comm_ns else None
    return values


def _judge(expectation: Expectation, who: str, row: RankRow, values: Mapping[str, Any]) -> Result:
    value = values[expectation.name]
    if "graph-trace-opaque" in row.unreliable:
        return Result(expectation.text, who, "unknown", "CUDA graphs hide kernels; capture with --cuda-graph-trace=node")
    if expectation.name in _NEEDS_COMM and not row.n_comm:
        return Result(expectation.text, who, "unknown", "no communication in the window")
    if expectation.name in _NEEDS_COMPUTE and not row.n_compute:
        return Result(expectation.text, who, "unknown", "no compute in the window")
    if value is None:
        return Result(expectation.text, who, "unknown", f"{expectation.name} is not defined here")
    held = _OPERATORS[expectation.operator](Decimal(str(value)), expectation.value)
    return Result(expectation.text, who, "pass" if held else "fail", _seen(expectation, value), row.unreliable)


def _seen(expectation: Expectation, value: int | float) -> str:
    """What was found, a time exactly and in the unit in which it was asked."""
    if expectation.unit:
        name = f"{expectation.name.removesuffix('ns')}{expectation.unit}"
        return f"{name} = {Decimal(value) / _SCALE[expectation.unit]:,f}"
    return f"{expectation.name} = {value:,}" if isinstance(value, int) else f"{expectation.name} = {value:.4f}"
