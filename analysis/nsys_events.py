"""The rows of an nsys export that there are many of: CUDA calls, device work, host ranges; read and joined in runs of rows.

What is kept of a run is small and typed, so memory is that of the operations kept and not of the tables read.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddpprof import marks
from ddpprof.analysis import assemble, kernels
from ddpprof.analysis.nsight_schema import (
    COPY_KINDS,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    NVTX,
    NVTX_DOMAIN,
    NVTX_PUSH_POP,
    NVTX_START_END,
    PROCESS_MASK,
    RUNTIME,
    SHARED,
)
from ddpprof.analysis.nsys_tables import Columns, Kinds, Rows, Tables, decode, places
from ddpprof.analysis.steps import STEP_PATTERNS
from ddpprof.errors import InputError, UsageError
from ddpprof.model import MISSING, Source

Int64 = NDArray[np.int64]

_LAUNCH: Final = re.compile(r"(?:cuda|cu|hip)Launch(?!HostFunc)")
_GRAPH_LAUNCH: Final = re.compile(r"(?:cuda|cu|hip)GraphLaunch")
_RUN: Final = 2**20
_NAME_PATH: Final = re.compile(r"[^\s<>()\[\]{},;:=\"'`]*[/\\][^\s<>()\[\]{},;:=\"'`]*")


class Codes:
    """Small codes for the distinct values of a column that comes in runs, by first appearance; threads may share it."""

    def __init__(self) -> None:
        self._code_of: dict[int, int] = {}
        self._lock = threading.Lock()

    def of(self, values: Int64) -> NDArray[np.int32]:
        """The code of each value, new ones made."""
        codes, distinct = assemble.factorize(values)
        with self._lock:
            new = [self._code_of.setdefault(value, len(self._code_of)) for value in distinct.tolist()]
        return np.array(new, np.int32)[codes]

    @property
    def values(self) -> list[int]:
        """The distinct values, by code."""
        return list(self._code_of)


# ------------------------------------------------------------------------------------------------------- launches


@dataclass(frozen=True, eq=False, slots=True)
class Launches:
    """The CUDA API calls: process (its code among ``processes``, masked ids), thread (likewise), start, correlation id.

    ``kind`` is 1 for a kernel launch, 2 for a graph launch, 0 for any other call. ``waits`` are (masked process id, start,
    end) of those that wait for the device.
    """

    processes: Codes
    threads: Codes
    process: NDArray[np.int32]
    thread: NDArray[np.int32]
    start: Int64
    correlation: Int64
    kind: NDArray[np.int8]
    waits: tuple[tuple[int, int, int], ...]
    finder: Callable[[NDArray[np.int32], Int64], Int64] = field(repr=False)

    def __len__(self) -> int:
        return len(self.start)

    def of(self, process: Int64, correlation: Int64) -> Int64:
        """The position of the call that launched each operation, -1 for none. Correlation ids repeat across processes."""
        return self.finder(self.processes.of(process), correlation)


def read_launches(tables: Tables, shift_ns: int) -> Launches:
    """All CUDA API calls; none when the export has no such table."""
    table = find_table(tables, RUNTIME)
    processes, threads, names = Codes(), Codes(), Codes()
    kinds: Kinds = {"process": np.int32, "thread": np.int32, "start": np.int64, "correlation": np.int64, "name": np.int32}
    found: Columns = {name: np.empty(0, kind) for name, kind in kinds.items()}
    if table is not None:
        columns = ["start", "globalTid", "correlationId", *(["nameId"] if "nameId" in tables.columns(table) else [])]

        def convert(rows: Rows) -> Columns:
            start = assemble.times(rows["start"], shift_ns)
            keep = (start != MISSING) & (rows["globalTid"] != MISSING) & (rows["correlationId"] != MISSING)
            if not keep.all():
                start, rows = start[keep], {name: column[keep] for name, column in rows.items()}
            return {
                "process": processes.of(rows["globalTid"] & PROCESS_MASK),
                "thread": threads.of(rows["globalTid"]),
                "start": start,
                "correlation": rows["correlationId"],
                "name": names.of(rows["nameId"]) if "nameId" in rows else np.zeros(len(start), np.int32),
            }

        found, _ = tables.collect(table, columns, convert, kinds)
    texts = tables.strings(names.values)
    called = [texts.get(key, "") for key in names.values]
    waiting = [key for key, text in zip(names.values, called, strict=True) if kernels.WAIT_CALL.fullmatch(text)]
    kind = np.array([1 if _LAUNCH.match(text) else 2 if _GRAPH_LAUNCH.match(text) else 0 for text in called] or [0], np.int8)
    return Launches(
        processes=processes,
        threads=threads,
        process=found["process"],
        thread=found["thread"],
        start=found["start"],
        correlation=found["correlation"],
        kind=kind[found.pop("name")],
        waits=_read_waits(tables, table, waiting, shift_ns) if table is not None and waiting else (),
        finder=_finder(found["process"], found["correlation"]),
    )


def _read_waits(tables: Tables, table: str, names: Sequence[int], shift_ns: int) -> tuple[tuple[int, int, int], ...]:
    """(masked process id, start, end) of the calls of these names, in that order; none of an export without ends."""
    if "end" not in tables.columns(table):
        return ()
    rows = tables.integers_where(table, ["start", "end", "globalTid"], "nameId", names)
    start, end = (assemble.times(rows[edge], shift_ns) for edge in ("start", "end"))
    keep = assemble.possible(start, end) & (rows["globalTid"] != MISSING)
    process = rows["globalTid"][keep] & PROCESS_MASK
    return tuple(sorted(zip(process.tolist(), start[keep].tolist(), end[keep].tolist(), strict=True)))


def _finder(process: NDArray[np.int32], correlation: Int64) -> Callable[[NDArray[np.int32], Int64], Int64]:
    """What finds the position of (process, correlation), the first one where it is there twice, -1 where it is not.

    By a table over all ids when they are dense, as nsys gives them out; else by bisection of the sorted pairs.
    """
    n = len(process)
    if n == 0:
        return lambda asked, ids: np.full(len(ids), -1, np.int64)
    low, n_codes = int(correlation.min()), int(process.max()) + 1
    width = int(correlation.max()) - low + 1
    if width * n_codes <= 8 * n + 1_000_000:
        table = np.full(width * n_codes, -1, np.int32)
        for end in range(n, 0, -_RUN):  # from the last to the first, which stays
            rows = slice(max(end - _RUN, 0), end)
            place = process[rows].astype(np.int64) * width + (correlation[rows] - low)
            table[place[::-1]] = np.arange(rows.stop - 1, rows.start - 1, -1, dtype=np.int32)

        def look_up(asked: NDArray[np.int32], ids: Int64) -> Int64:
            inside = (ids >= low) & (ids < low + width) & (asked < n_codes)
            return np.where(inside, table[np.where(inside, asked.astype(np.int64) * width + (ids - low), 0)], -1)

        return look_up
    order = np.lexsort((correlation, process))
    pair = np.dtype([("process", np.int32), ("correlation", np.int64)])
    pairs = np.rec.fromarrays([process[order], correlation[order]], dtype=pair)

    def bisect(asked: NDArray[np.int32], ids: Int64) -> Int64:
        wanted = np.rec.fromarrays([asked, ids], dtype=pair)
        at = np.minimum(np.searchsorted(pairs, wanted), n - 1)
        return np.where(pairs[at] == wanted, order[at], -1)

    return bisect


# ---------------------------------------------------------------------------------------------------- device work


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class DeviceWork:
    """Device rows of the four tables. ``parts`` are columns for assemble, their process a code among ``processes``.

    ``is_launched`` tells the calls that launched one of them. Processes are masked ids.
    """

    parts: list[Columns]
    processes: list[int]
    names: tuple[str, ...]
    n_kernels: int
    n_rows: int
    n_dropped: int
    n_without_launch: int
    n_before_launch: int
    is_launched: NDArray[np.bool_]
    graph_processes: frozenset[int]
    graph_ns: int
    n_graphs: int
    node_processes: frozenset[int]


def read_device_work(tables: Tables, shift_ns: int, launches: Launches) -> DeviceWork:
    """All kernels, copies, sets and whole graphs, with their launches joined."""
    processes = Codes()
    names: dict[str, int] = {}
    nodes: set[int] = set()
    is_launched = np.zeros(len(launches), bool)
    parts: dict[Source, Columns] = {}
    n_rows = 0
    for table, source in ((KERNEL, Source.KERNEL), (MEMCPY, Source.MEMCPY), (MEMSET, Source.MEMSET), (GRAPH, Source.GRAPH)):
        name = find_table(tables, table)
        if name is not None:
            parts[source], n_read = _read_table(tables, name, source, shift_ns, launches, processes, names, is_launched, nodes)
            n_rows += n_read
    none: Columns = {name: np.empty(0, kind) for name, kind in assemble.OPERATION_TYPES.items()}
    of_kernels, of_graphs = parts.get(Source.KERNEL, none), parts.get(Source.GRAPH, none)
    n_kept = sum(len(part["name"]) for part in parts.values())
    values = processes.values
    return DeviceWork(
        parts=list(parts.values()),
        processes=values,
        names=tuple(names),
        n_kernels=len(of_kernels["name"]),
        n_rows=n_kept,
        n_dropped=n_rows - n_kept,
        n_without_launch=int((of_kernels["launch_ns"] == MISSING).sum()),
        n_before_launch=int((of_kernels["launch_ns"] > of_kernels["start_ns"]).sum()),
        is_launched=is_launched,
        graph_processes=frozenset(values[code] for code in np.unique(of_graphs["process"]).tolist()),
        graph_ns=int((of_graphs["end_ns"] - of_graphs["start_ns"]).sum()),
        n_graphs=len(of_graphs["name"]),
        node_processes=frozenset(nodes),
    )


def _read_table(
    tables: Tables,
    table: str,
    source: Source,
    shift_ns: int,
    launches: Launches,
    processes: Codes,
    names: dict[str, int],
    is_launched: NDArray[np.bool_],
    nodes: set[int],
) -> tuple[Columns, int]:
    """The rows of one device table, and how many it has.

    Names are added to ``names``, processes with kernels of graphs to ``nodes``, and ``is_launched`` is set for the launches.
    """
    there = tables.columns(table)
    name = {
        Source.KERNEL: next((key for key in ("demangledName", "shortName", "mangledName") if key in there), None),
        Source.MEMCPY: "copyKind",
    }.get(source)
    wanted = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid", name]
    if source is Source.KERNEL and (launches.kind == 2).any():
        wanted.append("graphNodeId")
    ids = Codes()
    threads = np.array(launches.threads.values or [MISSING], np.int64)

    def convert(rows: Rows) -> Columns:
        n = len(rows["start"])
        start, end = assemble.times(rows["start"], shift_ns), assemble.times(rows["end"], shift_ns)
        pid = rows.get("globalPid", np.zeros(n, np.int64))
        keep = assemble.possible(start, end) & (pid != MISSING) & (rows["deviceId"] >= 0) & (rows["deviceId"] < 4096)
        if not keep.all():
            start, end, pid = start[keep], end[keep], pid[keep]
            rows = {key: column[keep] for key, column in rows.items()}
        process = pid & PROCESS_MASK
        at = launches.of(process, rows["correlationId"]) if "correlationId" in rows else np.full(len(start), -1, np.int64)
        found = at >= 0
        is_launched[at[found]] = True
        launch, thread = np.full(len(start), MISSING, np.int64), np.full(len(start), MISSING, np.int64)
        launch[found], thread[found] = launches.start[at[found]], threads[launches.thread[at[found]]]
        if "graphNodeId" in rows:
            nodes.update(np.unique(process[rows["graphNodeId"] > 0]).tolist())
        return {
            "process": processes.of(process),
            "device": rows["deviceId"],
            "stream": rows["streamId"],
            "start_ns": start,
            "end_ns": end,
            "launch_ns": launch,
            "launch_thread": thread,
            "name": ids.of(rows[name]) if name in rows else ids.of(np.zeros(len(start), np.int64)),
            "source": np.full(len(start), int(source), np.int8),
        }

    columns = [key for key in wanted if key is not None and key in there]
    found, n_read = tables.collect(table, columns, convert, assemble.OPERATION_TYPES)
    texts = _operation_names(tables, source, ids.values)
    code_of = np.array([names.setdefault(text, len(names)) for text in texts] or [0], np.int32)
    found["name"] = code_of[found["name"]]
    return found, n_read


def _operation_names(tables: Tables, source: Source, ids: Sequence[int]) -> list[str]:
    """Names of operations by what their table has for a name."""
    if source is Source.KERNEL:
        return kernel_names(tables, ids)
    if source is Source.MEMCPY:
        return [f"memcpy {COPY_KINDS.get(key, 'other')}" for key in ids]
    return ["memset" if source is Source.MEMSET else "CUDA graph" for _ in ids]


def kernel_names(tables: Tables, ids: Sequence[int]) -> list[str]:
    """The names of kernels by their string ids."""
    known = tables.strings(ids)
    return [without_paths(known.get(key, f"unnamed kernel {key}")) for key in ids]


def find_table(tables: Tables, table: str) -> str | None:
    """The table of this name, or of a later generation's (``…_V2``) that has the columns needed; None when absent.

    Raises InputError when it is there without them.
    """
    columns = SHARED[table].required
    names = [name for name in tables.names() if re.fullmatch(rf"{table}(?:_?v?\d+)?", name, re.IGNORECASE)]
    for name in sorted(names, key=len):
        if columns <= tables.columns(name):
            return name
    if names:
        lacking = ", ".join(sorted(columns - tables.columns(names[0])))
        raise InputError(
            f"{tables.path}: table {names[0]} has no column {lacking}",
            "This export is damaged or of a schema that ddpprof does not know.",
        )
    return None


# ---------------------------------------------------------------------------------------------------- host ranges


@dataclass(frozen=True, slots=True)
class HostRanges:
    """The ranges kept; ``text`` is a code into ``texts``, process still a masked id."""

    columns: Mapping[str, NDArray[np.generic]]
    texts: tuple[str, ...]
    n_open: int

    def is_execution(self) -> bool:
        """Whether there are ranges that are the work itself: marks of work, of ranks that name no device."""
        found = [mark for mark in map(marks.parse, self.texts) if mark is not None]
        has_device = any(mark.device_id is not None for mark in found)
        return not has_device and any(mark.kind in ("delay", "compute", "allreduce") for mark in found)


def wanted_pattern(step_pattern: str | None) -> str:
    """RE2 pattern of every range text that says something: marks, steps, collective calls."""
    mark = re.sub(r"\?P<\w+>", "?:", marks.PATTERN)
    steps = [*STEP_PATTERNS, *([step_pattern] if step_pattern else [])]
    return "|".join([rf"^{mark}$", *(f"(?i:{text})" for text in steps), rf"^(?:{kernels.COLLECTIVE_CALL.pattern})$"])


def read_ranges(tables: Tables, shift_ns: int, step_pattern: str | None) -> HostRanges:
    table = find_table(tables, NVTX)
    if table is None:
        return HostRanges(_range_columns(0), (), 0)
    there = tables.columns(table)
    rows = dict(tables.integers(table, ["start", "end", "eventType", "globalTid"]))
    rows |= {edge: assemble.times(rows[edge], shift_ns) for edge in ("start", "end")}
    n = len(rows["start"])
    text_id, domain_id = optional_column(tables, table, "textId", n), optional_column(tables, table, "domainId", n)
    pushed, started = np.isin(rows["eventType"], NVTX_PUSH_POP), np.isin(rows["eventType"], NVTX_START_END)
    is_range = (pushed | started) & (rows["start"] != MISSING) & (rows["globalTid"] != MISSING)
    domains = _domains(tables, table, rows, domain_id) if "text" in there else {}
    codes, texts = match_texts(tables, table, text_id, is_range, wanted_pattern(step_pattern))
    keep = np.flatnonzero(is_range & (codes >= 0))
    keep = keep[~_foreign_marks(rows["globalTid"][keep] & PROCESS_MASK, domain_id[keep], domains, codes[keep], texts)]
    thread, end = rows["globalTid"][keep], rows["end"][keep]
    columns = _range_columns(len(keep)) | {
        "process": thread & PROCESS_MASK,
        "thread": thread,
        "start_ns": rows["start"][keep],
        "end_ns": end,
        "text": codes[keep],
        "is_pushed": pushed[keep],
    }
    return HostRanges(columns, texts, int((end == MISSING).sum()))


def _foreign_marks(
    process: Int64, domain_id: Int64, domains: Mapping[tuple[int, int], str], codes: NDArray[np.int32], texts: Sequence[str]
) -> NDArray[np.bool_]:
    """Which ranges spell one of our marks (a step is anybody's) in a domain that is neither ours nor the default one."""
    is_mark = np.array([(mark := marks.parse(text)) is not None and mark.kind != "step" for text in texts] or [False], bool)
    keys = zip(process.tolist(), domain_id.tolist(), strict=True)
    is_foreign = np.array([domains.get(key, "") not in ("", marks.DOMAIN) for key in keys], bool)
    return np.asarray(is_foreign & is_mark[codes])


def match_texts(
    tables: Tables, table: str, text_id: Int64, is_range: NDArray[np.bool_], pattern: str
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Per row the code of its text in the texts returned, -1 where the pattern does not find it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts: dict[str, int] = {}
    codes = np.full(len(text_id), -1, np.int32)
    is_registered = is_range & (text_id != MISSING)
    try:
        if "text" in tables.columns(table):
            inline = tables.texts(table, "text")
            hit = places(pc.match_substring_regex(inline, pattern))
            for row in hit[is_range[hit]].tolist():
                codes[row] = texts.setdefault(decode(inline[row].as_py()), len(texts))
            is_registered[places(inline.is_valid())] = False
        registered = tables.matching_strings(pattern) if is_registered.any() else {}
        ids = np.intersect1d(np.fromiter(registered, np.int64), text_id[is_registered])
        if len(ids):
            code_of = np.array([texts.setdefault(registered[key], len(texts)) for key in ids.tolist()], np.int32)
            at = np.minimum(np.searchsorted(ids, text_id), len(ids) - 1)
            codes = np.where(is_registered & (ids[at] == text_id), code_of[at], codes)
    except pa.ArrowInvalid:
        raise UsageError(
            "--step-range: not a pattern that can be searched for", "Use none of (?=...), (?<=...) and back-references."
        ) from None
    return codes, tuple(texts)


def _domains(tables: Tables, table: str, rows: Mapping[str, Int64], domain_id: Int64) -> dict[tuple[int, int], str]:
    """Domain names by (process, domain id): the ids are given out anew in each process."""
    is_domain = np.flatnonzero((rows["eventType"] == NVTX_DOMAIN) & (rows["globalTid"] != MISSING))
    if not len(is_domain):
        return {}
    texts = tables.texts(table, "text")
    named = ((int(rows["globalTid"][at]) & PROCESS_MASK, int(domain_id[at]), texts[at].as_py()) for at in is_domain.tolist())
    return {(process, domain): decode(raw) for process, domain, raw in named if raw is not None}


def _range_columns(n: int) -> dict[str, NDArray[np.generic]]:
    names = ("process", "thread", "start_ns", "end_ns", "text", "is_pushed")
    return {name: np.zeros(n, np.int64) for name in names}


def without_paths(text: str) -> str:
    """A name up to its first NUL, what is a path in it taken out."""
    return _NAME_PATH.sub("…", text.partition("\0")[0])


def optional_column(tables: Tables, table: str, column: str, n: int) -> Int64:
    """A column that an older exporter may not have: MISSING throughout then."""
    if column not in tables.columns(table):
        return np.full(n, MISSING, np.int64)
    return tables.integers(table, [column])[column]
