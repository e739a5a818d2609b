"""Which columns each table of an Analysis shows a person, whatever the format; every cell is text already.

A column is taken from its declaration in ``ddpprof.model``: heading, unit and meaning derive from it. All times of one
table share one unit, stated under the heading, so that they can be compared by eye.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddpprof.model import Across, AcrossRank, Analysis, BucketRow, Clock, FocusRow, KindRow, Metrics, RankRow, StepRow, columns
from ddpprof.reports import quantities

Row = RankRow | StepRow | BucketRow | FocusRow | AcrossRank

SETS = "C, N, M: the unions of compute, communication, memory intervals; S: the window; |X|: the length of X."
MEDIANS = (
    "Each number is a median over steps on its own, so those of a row need not add up, as those of one step do "
    "(overlap + exposed comm = comm)."
)
_METRICS = ("step_ns", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "tail_ns", "idle_ns", "overlap_ratio")


@dataclass(frozen=True, slots=True)
class Values:
    """One column before formatting, with its declared unit (``id`` for what is written already). Keys identify a row."""

    heading: str
    unit: str
    values: Sequence[Any]
    meaning: str = ""
    is_key: bool = False

    @property
    def is_known(self) -> bool:
        return any(value not in (None, "?") for value in self.values)


@dataclass(frozen=True, slots=True)
class Column:
    """One column as shown; text stands left, numbers right."""

    heading: str
    unit: str
    cells: tuple[str, ...]
    meaning: str
    is_text: bool
    is_key: bool

    @property
    def title(self) -> str:
        """Heading and unit in one: ``overlap (ms)``."""
        return f"{self.heading} ({self.unit})" if self.unit else self.heading


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table of text; all columns have the same number of cells. ``note`` stands below it."""

    title: str
    columns: tuple[Column, ...]
    note: str = ""

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return list(zip(*(column.cells for column in self.columns), strict=True))


def table(title: str, *data: Values, note: str = "") -> Table:
    """The columns formatted, times in one unit for the whole table."""
    scale = quantities.scale(value for column in data if column.unit == "ns" for value in column.values)

    def shown(column: Values) -> Column:
        unit = {"ns": scale.unit, "ratio": "%", "bytes/s": "GB/s"}.get(column.unit, "")
        written = {"ns": scale.number, "ratio": quantities.percent, "bytes/s": quantities.gigabytes}.get(column.unit)
        cells = tuple(written(value) if written else quantities.quantity(value, column.unit) for value in column.values)
        return Column(column.heading, unit, cells, column.meaning, column.unit == "text", column.is_key)

    return Table(title, tuple(map(shown, data)), note)


def declared(kind: type, rows: Sequence[Any], *names: str) -> list[Values]:
    """Columns of ``rows`` under their declared names without the unit: ``exposed_comm_ns`` is headed "exposed comm"."""
    known = {column.name: column for column in columns(kind)}
    return [
        Values(
            name if name.startswith("n_") else name.removesuffix("_ns").removesuffix("_bytes").replace("_", " "),
            known[name].unit,
            [getattr(row, name) for row in rows],
            known[name].text,
        )
        for name in names
    ]


def identity(rows: Sequence[Row], analysis: Analysis) -> list[Values]:
    """The columns that tell rows apart: rank, and report, process, device only where the rank does not do."""
    shown = [Values("rank", "id", [number(row.rank) for row in rows], "rank of the job, ? when unknown", is_key=True)]
    ranks = [row.rank for row in analysis.ranks]
    if None in ranks or len(set(ranks)) < len(ranks):
        names = ("report", "pid", "device_id") if len(analysis.reports) > 1 else ("pid", "device_id")
        shown += [replace(column, is_key=True) for column in declared(BucketRow, rows, *names) if column.is_known]
    return shown


def number(value: int | None) -> str:
    """An id as text, ``?`` when it could not be told."""
    return "?" if value is None else str(value)


def chosen(analysis: Analysis, *, per_step: bool = False, buckets: bool = False, kinds: bool = False) -> list[Table]:
    """The ranks, what they say together where several communicate, the focus where there is one, the tables asked for."""
    has_steps = analysis.window == "step"
    asked = [
        (analysis.across is not None and sum(row.n_comm > 0 for row in analysis.ranks) > 1, across),
        (analysis.focus is not None, focus),
        (per_step and has_steps, steps),
        (buckets, communication),
        (kinds, classified),
    ]
    return [ranks(analysis), *(build(analysis) for is_asked, build in asked if is_asked)]


def definitions(tables: Iterable[Table]) -> dict[str, str]:
    """Heading to meaning of the columns shown, each once; the columns that identify a row speak for themselves."""
    found: dict[str, str] = {}
    for column in (column for shown in tables for column in shown.columns):
        if column.meaning and not column.is_key:
            found.setdefault(column.heading, column.meaning)
    return found


def ranks(analysis: Analysis) -> Table:
    """One row for each (report, process, device); the spread of the step where there are several steps."""
    rows = analysis.ranks
    title = "Ranks, medians over complete steps"
    shown = declared(RankRow, rows, "n_compute", "n_comm", *_METRICS)
    if analysis.window == "capture":
        title = "Ranks, whole capture"
        shown[2] = replace(shown[2], heading="capture")
    if any(row.steps > 1 for row in rows):
        spread = [row.spread.get("step_ns", (None, None)) for row in rows]
        least = Values("step min", "ns", [ends[0] for ends in spread], "shortest complete step")
        most = Values("step max", "ns", [ends[1] for ends in spread], "longest complete step")
        shown[3:3] = [least, most]
    for sum_name, union_name in (("compute_sum_ns", "compute_ns"), ("comm_sum_ns", "comm_ns")):
        if any(getattr(row, sum_name) != getattr(row, union_name) for row in rows):
            at = next(index for index, column in enumerate(shown) if column.heading == union_name.removesuffix("_ns"))
            shown[at + 1 : at + 1] = declared(RankRow, rows, sum_name)
    if analysis.evidence == "gpu-kernels":
        gpus = [number(row.gpu) for row in rows]
        shown.insert(0, Values("GPU", "id", gpus, "number of the physical GPU in this input, ? when unknown", is_key=True))
    if any(row.unreliable for row in rows):
        notes = [", ".join(row.unreliable) for row in rows]
        shown.append(Values("unreliable", "text", notes, "warning codes that make a row's numbers unreliable"))
    return table(title, *identity(rows, analysis), *shown, note=_of_medians(rows))


def _of_medians(rows: Sequence[RankRow]) -> str:
    """MEDIANS where several steps make the numbers of a row not add up, else ""."""
    are_whole = all(
        row.overlap_ns + row.exposed_comm_ns == row.comm_ns
        and row.compute_ns + row.exposed_comm_ns + row.memory_only_ns + row.idle_ns == row.step_ns
        for row in rows
        if row.steps > 1
    )
    return "" if are_whole else MEDIANS


CLOCKS: dict[Clock, str] = {
    "one report": "All ranks are on the clock of one report",
    "session start": "The reports' clocks are aligned by session start",
    "collective ends": "The reports' clocks are aligned by the ends of collectives",
    "none": "No common clock: who arrives last cannot be told",
}
"""What each clock says of times across ranks."""


def across(analysis: Analysis) -> Table:
    """Who waits and who comes last, over the clock that says so; no rows where no collective could be paired."""
    found = analysis.across
    if found is None:
        return table("Across ranks")
    rows = found.ranks
    last = ["n/a" if row.n_last is None else f"{row.n_last} of {row.n_collectives}" for row in rows]
    columns_ = [
        *declared(AcrossRank, rows, "n_collectives", "wait_ns"),
        Values("arrives last", "id", last, "collectives at which it arrived last, beyond the clocks' uncertainty"),
        *declared(AcrossRank, rows, "late_ns"),
    ]
    each = "whole capture" if analysis.window == "capture" else "medians over complete steps"
    return table(f"Across ranks, {each}", *identity(rows, analysis), *columns_, note=" ".join(_over(found, analysis)))


def _over(found: Across, analysis: Analysis) -> Iterator[str]:
    """What the numbers across ranks rest on, a sentence each."""
    if found.refused is not None:
        yield f"{'Paired in part' if found.ranks else 'Not paired'}: {found.refused}."
    if not found.ranks:
        return
    known = found.uncertainty_ns
    yield CLOCKS[found.clock] + ("." if not known else f", two ranks to within {quantities.ns(known)}.")
    if any(row.is_time_sliced for row in analysis.ranks):
        yield "A GPU is shared in turns: a rank comes when it is its turn, so none is named as last."
    bound = " at most, as ranks are missing" if any(warning.code == "missing-ranks" for warning in analysis.warnings) else ""
    yield f"Transfer estimate {quantities.ns(found.transfer_ns)}{bound}; what collectives take beyond it is waiting."
    if analysis.evidence == "host-ranges":
        yield "Both are sums over collectives that queue and run side by side on a CPU: they can exceed the step."


def focus(analysis: Analysis) -> Table:
    """The answer for ``--compute PATTERN`` alone; no rows without a pattern."""
    pattern, rows = ("", ()) if analysis.focus is None else (analysis.focus.pattern, analysis.focus.ranks)
    shown = declared(FocusRow, rows, "n_compute", "compute_ns", "compute_span_ns", "overlap_ns")
    return table(f'The same for compute named "{pattern}" alone', *identity(rows, analysis), *shown)


def steps(analysis: Analysis) -> Table:
    """One row for each step; those left out of the medians say why."""
    rows = analysis.breakdown
    length, *metrics = declared(StepRow, rows, *_METRICS)
    used = ["yes" if row.reason is None else f"no: {row.reason}" for row in rows]
    return table(
        "Steps",
        *identity(rows, analysis),
        Values("step", "id", [number(row.step) for row in rows], "number of the step", is_key=True),
        *declared(StepRow, rows, "n_compute", "n_comm"),
        replace(length, heading="length"),
        *metrics,
        Values("in medians", "text", used, "whether the step is complete, else why it is left out"),
    )


def communication(analysis: Analysis) -> Table:
    """One row for each communication interval: launch, queue, start, end, times from the start of its step."""
    rows = analysis.buckets
    launch, start, end = from_step_start(analysis, "launch_ns", "start_ns", "end_ns")
    sizes = [None if row.parameters is None else len(row.parameters) for row in rows]
    shown = [
        Values("step", "id", [number(row.step) for row in rows], "number of the step", is_key=True),
        Values("bucket", "id", [number(row.bucket) for row in rows], "bucket index", is_key=True),
        *declared(BucketRow, rows, "operation", "size_bytes"),
        Values("params", "count", sizes, "number of parameters in the bucket"),
        launch,
        *declared(BucketRow, rows, "queue_ns"),
        start,
        end,
        *declared(BucketRow, rows, "overlap_ns", "exposed_ns", "busbw"),
        *(replace(column, heading="found by") for column in declared(BucketRow, rows, "attribution")),
    ]
    known = (column for column in shown if column.is_known)
    return table("Communication, bucket by bucket", *identity(rows, analysis), *known)


def from_step_start(analysis: Analysis, *names: str) -> list[Values]:
    """Time columns of the buckets, counted from the start of their step's window (else of its communication)."""

    def step_of(row: StepRow | BucketRow) -> tuple[int | None, ...]:
        return row.report, row.pid, row.device_id, row.step

    zero = {step_of(row): row.start_ns for row in sorted(analysis.buckets, key=lambda row: row.start_ns, reverse=True)}
    zero |= {step_of(row): row.start_ns for row in analysis.breakdown}
    found = declared(BucketRow, analysis.buckets, *names)
    for index, column in enumerate(found):
        pairs = zip(analysis.buckets, column.values, strict=True)
        times = [None if value is None else value - zero[step_of(row)] for row, value in pairs]
        meaning = column.meaning.removesuffix(" on the report's clock") + ", from the start of the step"
        found[index] = replace(column, values=times, meaning=meaning)
    return found


def classified(analysis: Analysis) -> Table:
    """What each operation name was taken for."""
    rows = analysis.kinds
    keys = (replace(column, is_key=True) for column in declared(KindRow, rows, "kind", "name"))
    shown = declared(KindRow, rows, "operation", "count", "total_ns")
    return table("What was taken for what", *keys, *(column for column in shown if column.is_known))


def numbers(row: RankRow) -> Table:
    """Every number of one rank: as text, exactly, its spread over steps, and its definition."""
    known = [*columns(Metrics)]
    known += [column for column in columns(RankRow) if column.name.startswith("n_") or column.name.endswith("_sum_ns")]
    values = [(getattr(row, column.name), column.unit) for column in known]
    spreads = [row.spread.get(column.name) for column in known] if row.steps > 1 else []
    texts = ["" if ends is None else " to ".join(map(quantities.ns, ends)) for ends in spreads]
    return table(
        "Numbers",
        Values("number", "text", [column.name for column in known], is_key=True),
        Values("value", "id", [quantities.quantity(value, unit) for value, unit in values]),
        Values("exact", "id", [_exact(value, unit) for value, unit in values]),
        *([Values("least to greatest", "id", texts)] if texts else []),
        Values("meaning", "text", [column.text for column in known]),
        Values("better", "text", [column.better or "" for column in known]),
        note=_of_medians([row]),
    )


def _exact(value: Any, unit: str) -> str:
    if value is None or unit == "ratio":
        return quantities.MISSING_TEXT if value is None else repr(value)
    return f"{quantities.count(value)} ns" if unit == "ns" else quantities.count(value)
