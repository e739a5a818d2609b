"""A prediction in words and table: what each cap would make of the step, how sure that is, and which cap to try."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby

from ddpprof.model import FORMAT_VERSION, CapPrediction, Prediction
from ddpprof.reducer import DEFAULT_CAP_MB
from ddpprof.reports import markdown, quantities, text, verdict
from ddpprof.reports.quantities import markdown as escape
from ddpprof.reports.views import Table, Values, declared, number, table

BOUNDS = {
    "compute": "the compute of the last rank: next to nothing comes after it",
    "last bucket": "the last bucket, which is sent when the last gradient is there",
    "held bucket": "buckets that could be sent only when a late one before them was complete",
    "latency": "transfers that queue up, by their number",
    "bandwidth": "transfers that queue up, by their bytes",
}
NOT_MODELLED = (
    "compute slowed by communication beside it",
    "traffic that is not a bucket: buffers, the map of used parameters, other jobs on the same wire",
    "ranks that would be late otherwise than in the capture",
    "the memory that buckets take",
)
FEW_OTHERS = (1, DEFAULT_CAP_MB)
"""Caps to measure a single one beside."""


def render(found: Prediction, *, width: int = 120) -> str:
    """Evidence, what it rests on, the table, what is not in it, and the conclusion last."""
    blocks = [
        "\n".join(text.wrapped(line, width) for line in head(found)),
        "\n".join(text.layout(rows(found), width)),
        "\n".join(text.wrapped(f"- {line}", width, indent="  ") for line in cautions(found)),
        text.wrapped(conclusion(found), width),
    ]
    return "\n\n".join(filter(None, blocks)) + "\n"


def render_markdown(found: Prediction) -> str:
    """The same as Markdown."""
    shown = rows(found)
    parts = [
        f"# Predicted: {escape(_what(found))}",
        *map(escape, head(found)),
        f"**{escape(conclusion(found))}**",
        markdown.table(shown),
        "\n".join(f"- {escape(line)}" for line in cautions(found)),
        "\n".join(f"- {escape(column.heading)}: {escape(column.meaning)}" for column in shown.columns if column.meaning),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def to_json(found: Prediction) -> str:
    """The prediction for programs: its fields as declared, what is not modelled, and the conclusion as text."""
    words = {"cautions": cautions(found), "not_modelled": list(NOT_MODELLED), "conclusion": conclusion(found)}
    return json.dumps({"format_version": FORMAT_VERSION} | asdict(found) | words, indent=2, allow_nan=False) + "\n"


def rows(found: Prediction) -> Table:
    """One row for each cap."""
    caps = found.rows
    step, low, high = declared(CapPrediction, caps, "step_ns", "low_ns", "high_ns")
    worst = [None if row.worst_rank is None else number(row.worst_rank) for row in caps]
    held = [row.held_ns for row in caps] if any(row.held_ns for row in caps) else [None for _ in caps]
    shown = [
        Values(
            "cap MiB", "id", [_cap(row) for row in caps], "bucket_cap_mb given to DDP; default: none was given", is_key=True
        ),
        replace(step, heading="step"),
        replace(low, heading="from"),
        replace(high, heading="to"),
        Values("ends with", "text", [row.bound for row in caps], "what ends the step"),
        Values("held", "ns", held, "the longest that a complete bucket waits for one before it"),
        Values("buckets", "text", [_buckets(row.bucket_bytes) for row in caps], "bytes of the buckets in order of launch"),
        *declared(CapPrediction, caps, "overlap_ns", "overlap_ratio", "exposed_comm_ns", "tail_ns"),
        Values("worst rank", "id", worst, "rank with the most exposed communication, which overlap to tail are of"),
    ]
    optional = {"overlap", "overlap ratio", "exposed comm", "tail", "worst rank", "held"}
    note = "* the buckets of the capture" if any(row.is_captured for row in caps) else ""
    return table("Caps", *(column for column in shown if column.heading not in optional or column.is_known), note=note)


def head(found: Prediction) -> list[str]:
    """What the prediction rests on."""
    cost, cap = found.cost, "DDP's default" if found.captured_cap_mb is None else f"{found.captured_cap_mb:g} MiB"
    clock = "steps under the profiler" if found.is_profiled else "unprofiled iterations"
    beside = "" if cost.slowdown_ratio is None else f", x {cost.slowdown_ratio:.2f} beside compute"
    basis = f"{verdict.counted(cost.n, 'transfer')} of {verdict.counted(cost.sizes, 'size')}"
    probes = f", and {verdict.counted(cost.probes, 'size')} timed alone before the first" if cost.probes else ""
    lanes = "one at a time" if found.lanes == 1 else f"{found.lanes} at a time, sharing the wire"
    return [
        verdict.EVIDENCE[found.evidence],
        f"{_what(found)}; {verdict.counted(found.world_size, 'rank')} on {found.device}; captured at {cap}",
        f"Measured there: {quantities.ns(found.measured.median_ns)} (MAD {quantities.ns(found.measured.mad_ns)}, {clock}); "
        f"the model gives {quantities.ns(found.model_ns)}. What follows is the measured step and what the model adds to it.",
        f"A transfer: {quantities.ns(round(cost.fixed_ns))} + {cost.ns_per_byte * 2**20 / 1e6:.3f} ms/MiB{beside}; {lanes} "
        f"({basis} in {verdict.counted(found.moments, 'step')}{probes}).",
    ]


def cautions(found: Prediction) -> list[str]:
    """What to know before the conclusion, a sentence each."""
    lines = [f"Not modelled: {'; '.join(NOT_MODELLED)}."]
    if found.moments == 1:
        lines.append("One step was captured: how much a step differs from the next is not in the interval.")
    if found.cost.slowdown_ratio is None:
        lines.append("The capture does not show transfers both beside compute and alone: they are taken to cost the same.")
    if found.mode == "find_unused":
        lines.append("find_unused_parameters=True: the buckets follow the order of registration for good.")
    if found.captured_cap_mb is None:
        lines.append("A sweep gives every run a cap: 25 stands for DDP's default there, without its first bucket of 1 MiB.")
    held = max(found.rows, key=lambda row: row.held_ns)
    if held.holder is not None:
        lines.append(
            f"Held: at {_caps([held.cap_mb])} complete buckets wait up to {quantities.ns(held.held_ns)} for {held.holder}, "
            "which is in a bucket before them."
        )
    return lines


def conclusion(found: Prediction) -> str:
    """Which cap to try, and those that cannot be told from it."""
    best = min(found.rows, key=lambda row: row.step_ns)
    same = [row.cap_mb for row in found.rows if row.buckets == best.buckets]
    others = [cap for cap in found.best_mb if cap not in same]
    words = f"Best by the model: {_caps(same)}, {_interval(best)}, {_against(best, found)}"
    words += f"; the step ends with {BOUNDS[best.bound]}."
    if others:
        words += f" Not to be told from it: {_caps(others)}."
    return f"{words} Measure it with: {_sweep(best, found)}"


def _against(best: CapPrediction, found: Prediction) -> str:
    """What the best is beside the capture: a gain, or none that can be told."""
    if best.is_captured:
        return "with the buckets of the capture"
    measured_ns, captured = found.measured.median_ns, [row.cap_mb for row in found.rows if row.is_captured]
    is_gain = best.high_ns < measured_ns and not set(captured) & set(found.best_mb)
    words = "against" if is_gain else "not to be told from"
    return f"{words} the {quantities.ns(measured_ns)} measured with the buckets of the capture"


def _sweep(best: CapPrediction, found: Prediction) -> str:
    """The command that measures the best beside the capture; beside the fastest with other buckets when it is the capture."""
    others = [row for row in found.rows if row.buckets != best.buckets]
    other = min(others, key=lambda row: row.step_ns).cap_mb if best.is_captured and others else found.captured_cap_mb
    mine = found.captured_cap_mb if best.is_captured else best.cap_mb
    caps = sorted({DEFAULT_CAP_MB if cap is None else cap for cap in (mine, other)})
    if len(caps) == 1:
        caps = sorted({*caps, *FEW_OTHERS})
    chosen = f" --caps {','.join(f'{cap:g}' for cap in caps)}"
    return f"ddpprof sweep{chosen} -- COMMAND" if found.case is None else f"ddpprof sweep {found.case}{chosen}"


def _caps(caps: Sequence[float | None]) -> str:
    """``4, 16 and 64 MiB``; DDP's default comes first."""
    texts = ["DDP's default"] * (None in caps) + [f"{cap:g}" for cap in caps if cap is not None]
    unit = "" if caps == [None] else " MiB"
    return f"{' and '.join([', '.join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)}{unit}"


def _interval(row: CapPrediction) -> str:
    return f"{quantities.ns(row.step_ns)} ({quantities.ns(row.low_ns)} to {quantities.ns(row.high_ns)})"


def _cap(row: CapPrediction) -> str:
    cap = "default" if row.cap_mb is None else f"{row.cap_mb:g}"
    return f"{cap}{' *' if row.is_captured else ''}"


def _buckets(sizes: Sequence[int]) -> str:
    """``3 x 16.00 MiB, 4.00 MiB``; of more than two groups their number and the largest."""
    groups = [(size, len(list(same))) for size, same in groupby(sizes)]
    if len(groups) > 2:
        return f"{len(sizes)}, up to {quantities.size(max(sizes))}"
    return ", ".join(f"{count} x {quantities.size(size)}" if count > 1 else quantities.size(size) for size, count in groups)


def _what(found: Prediction) -> str:
    return "your own job" if found.case is None else f"case {found.case}"
