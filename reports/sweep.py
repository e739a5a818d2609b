"""A sweep in words, table and chart: what each cap showed, what limits it, and which caps to take and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from ddpprof.model import FORMAT_VERSION, CapRow, Sweep, Timing, columns
from ddpprof.reports import markdown, quantities, sweep_plot, text, verdict
from ddpprof.reports.quantities import markdown as escape
from ddpprof.reports.views import Table, Values, declared, number, table
from ddpprof.rundir import RunDir

TIMED_BY = {
    "iterations": "unprofiled iterations",
    "timed-steps": "unprofiled steps, as the job's own ddpprof.timed_step measured them",
    "captured-steps": "steps under the profiler, whose own cost is in them (ddpprof.timed_step does without)",
}
CAPTURED = "Launches to tail: one capture at each cap, on the rank with the most exposed communication."
CHART = "sweep.png"
_RESULTS = {True: "equal", False: "DIFFER", None: None}


def render(sweep: Sweep, *, width: int = 120) -> str:
    """Evidence, scope, table, what limits the conclusion, and the conclusion last."""
    blocks = [
        "\n".join(text.wrapped(line, width) for line in _head(sweep)),
        "\n".join(text.layout(rows(sweep), width)),
        "\n".join(text.wrapped(f"- {line}", width, indent="  ") for line in cautions(sweep)),
        text.wrapped(conclusion(sweep), width),
    ]
    return "\n\n".join(filter(None, blocks)) + "\n"


def render_markdown(sweep: Sweep, *, chart: str | None = None) -> str:
    """The same as Markdown; ``chart`` is the file of the picture to show."""
    shown = rows(sweep)
    parts = [
        f"# {escape(_title(sweep))}",
        *map(escape, _head(sweep)),
        f"**{escape(conclusion(sweep))}**",
        "\n".join(f"- {escape(line)}" for line in cautions(sweep)),
        markdown.table(shown),
        f"![Step, exposed communication and tail at each cap]({chart})" if chart else "",
        "\n".join(f"- {escape(column.heading)}: {escape(column.meaning)}" for column in shown.columns if column.meaning),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def to_json(sweep: Sweep) -> str:
    """The sweep for programs: its fields as declared, and the conclusion as text."""
    document = (
        {"format_version": FORMAT_VERSION} | asdict(sweep) | {"cautions": cautions(sweep), "conclusion": conclusion(sweep)}
    )
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def write(folder: Path, sweep: Sweep) -> None:
    """Writes ``summary.md``, ``summary.json`` and the chart."""
    summary = RunDir(folder).summary
    sweep_plot.draw(sweep, _title(sweep), folder / CHART)
    summary.with_suffix(".md").write_text(render_markdown(sweep, chart=CHART), encoding="utf-8")
    summary.with_suffix(".json").write_text(to_json(sweep), encoding="utf-8")


def rows(sweep: Sweep) -> Table:
    """One row for each cap; rank, correctness and failures only where there is something to say."""
    caps = sweep.rows
    timings = [row.timing for row in caps]

    def timed(heading: str, name: str) -> Values:
        meaning, unit = next((column.text, column.unit) for column in columns(Timing) if column.name == name)
        return Values(heading, unit, [timing and getattr(timing, name) for timing in timings], meaning)

    worst = Values("worst rank", "id", [number(row.worst_rank) for row in caps], "rank with the most exposed communication")
    results = Values(
        "results", "text", [_RESULTS[row.is_correct] for row in caps], "replicas, losses, parameters over all caps"
    )
    return table(
        "Caps",
        Values("cap MiB", "id", [f"{row.cap_mb:g}" for row in caps], "bucket_cap_mb given to DDP", is_key=True),
        timed("step median", "median_ns"),
        timed("MAD", "mad_ns"),
        timed("P95", "p95_ns"),
        timed("steps", "n"),
        *declared(CapRow, caps, "launches"),
        Values("buckets", "text", [_buckets(row.bucket_bytes) for row in caps], "bytes of the buckets in order of launch"),
        *declared(CapRow, caps, "overlap_ns", "overlap_ratio", "exposed_comm_ns", "tail_ns"),
        *(column for column in (worst, results) if column.is_known),
    )


def cautions(sweep: Sweep) -> list[str]:
    """What to know before the conclusion, a sentence each: failures, wrong results, unsteady iterations, caps that are one."""
    found = [f"{_mib(row)} failed: {row.failure}" for row in sweep.rows if row.failure]
    if sweep.is_time_sliced:
        found.append("Time-sliced: ranks share a GPU in turns, so a step says nothing about ranks with a GPU each.")
    wrong = [row.cap_mb for row in sweep.rows if row.is_correct is False]
    if wrong:
        found.append(f"Wrong at {_caps(wrong, sweep)}: replicas, losses or parameters are not those of the other runs.")
    if sweep.sameness is None:
        unsteady = [row for row in sweep.rows if row.unsteady and not row.failure]
        found += [f"Unsteady at {_mib(row)}: {row.unsteady}." for row in unsteady]
        for sizes, same in groupby(sweep.rows, key=lambda row: row.bucket_bytes):
            caps = [row.cap_mb for row in same]
            if sizes is not None and len(caps) > 1:
                found.append(f"{_caps(caps, sweep)} give the same buckets: {_buckets(sizes)}.")
    return found


def conclusion(sweep: Sweep) -> str:
    """Which caps to take and why, in a sentence or two; why there is no telling, where there is none."""
    if sweep.sameness is not None:
        return f"No cap to recommend: {_sameness(sweep)}"
    best = [row for row in sweep.rows if row.cap_mb in sweep.recommended_mb and row.timing]
    if not best:
        return "No cap to recommend: none ran to its end with correct results."
    shaky = [row.cap_mb for row in best if row.unsteady]
    doubt = f"Provisional: steps were unsteady at {_caps(shaky, sweep)}. " if shaky else ""
    return doubt + " ".join([_reason(sweep, best), *_not_overlap(sweep)])


def _sameness(sweep: Sweep) -> str:
    seen = next(row for row in sweep.rows if row.launches is not None)
    if not seen.launches:
        return "no communication between ranks was seen at any of them."
    what = f"all give the same buckets ({_buckets(seen.bucket_bytes) or f'{seen.launches} a step'})"
    if sweep.sameness == "fits":
        return f"{what}, which fit below the smallest. Try smaller ones."
    if sweep.sameness == "parameters":
        return f"{what}, since a parameter is never split and each is as large as the largest cap. Try larger ones."
    return (
        f"{what}: the job seems to ignore the cap. Build DDP with DDP(model, **ddpprof.ddp_kwargs()), "
        "or put {cap} where your command takes it."
    )


def _reason(sweep: Sweep, best: Sequence[CapRow]) -> str:
    """The range and its reason: what lies within the spread of the fastest, what does not."""
    fastest, took = min(((row, row.timing) for row in best if row.timing), key=lambda pair: pair[1].median_ns)
    shown = f"{quantities.ns(took.median_ns)} (MAD {quantities.ns(took.mad_ns)})"
    span = _caps([row.cap_mb for row in best], sweep)
    others = [(row, row.timing) for row in filter(_is_good, sweep.rows) if row not in best and row.timing]
    if not others:
        if len(best) == 1:
            return f"{_mib(fastest)}: the only cap that ran to its end with correct results, at {shown}."
        return f"Any of {span}: their step medians lie within the spread of the fastest, {_mib(fastest)} at {shown}."
    nearest, theirs = min(others, key=lambda pair: pair[1].median_ns)
    slower = quantities.ns(theirs.median_ns - took.median_ns)
    apart = f"{_mib(nearest)}, is {slower} slower, more than both their spreads together"
    if len(best) == 1:
        return f"{_mib(fastest)}: step median {shown}; the next, {apart}."
    return f"{span}: step medians within the spread of the fastest, {_mib(fastest)} at {shown}; the next, {apart}."


def _is_good(row: CapRow) -> bool:
    return row.failure is None and row.is_correct is not False


def _not_overlap(sweep: Sweep) -> Iterator[str]:
    """A sentence where the most overlap, if there is any, is not the fastest."""
    hidden = [(row.overlap_ratio, row) for row in filter(_is_good, sweep.rows) if row.overlap_ratio is not None]
    ratio, most = max(hidden, key=lambda pair: pair[0], default=(None, None))
    if most is not None and ratio and most.cap_mb not in sweep.recommended_mb:
        share = quantities.share(ratio)
        words = f"{_mib(most)} hides the largest share of communication ({share}) and is not the fastest"
        yield f"{words}: overlap is not time saved."


def _caps(caps: Sequence[float], sweep: Sweep) -> str:
    """``4 to 16 MiB`` where the sweep has no other cap between, else ``4, 16 and 64 MiB``."""
    tried = [row.cap_mb for row in sweep.rows]
    first = tried.index(caps[0])
    if len(caps) > 2 and tried[first : first + len(caps)] == list(caps):
        return f"{caps[0]:g} to {caps[-1]:g} MiB"
    texts = [f"{cap:g}" for cap in caps]
    return f"{' and '.join([', '.join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)} MiB"


def _mib(row: CapRow) -> str:
    return f"{row.cap_mb:g} MiB"


def _buckets(sizes: Sequence[int] | None) -> str:
    """``3 x 16.00 MiB, 4.00 MiB``; "" when the sizes are not known."""
    groups = [(size, len(list(same))) for size, same in groupby(sizes or ())]
    return ", ".join(f"{count} x {quantities.size(size)}" if count > 1 else quantities.size(size) for size, count in groups)


def _title(sweep: Sweep) -> str:
    return f"Bucket caps: {_what(sweep)}"


def _what(sweep: Sweep) -> str:
    return "your own job" if sweep.case is None else f"case {sweep.case}"


def _head(sweep: Sweep) -> list[str]:
    ranks = "ranks unknown" if sweep.world_size is None else verdict.counted(sweep.world_size, "rank")
    place = f"{sweep.device}{f' ({sweep.device_model})' if sweep.device_model else ''}"
    rounds = f"{verdict.counted(sweep.rounds, 'round')} over {verdict.counted(len(sweep.rows), 'cap')} in turns"
    clock = f", {sweep.clock} clock" if sweep.clock else ""
    return [
        verdict.EVIDENCE[sweep.evidence],
        f"{_what(sweep)}; {ranks} on {place}; {rounds}",
        f"Step: {TIMED_BY[sweep.timed_by]}, the slowest rank{clock}.",
        CAPTURED,
    ]
