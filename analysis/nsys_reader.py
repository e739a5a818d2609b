"""Reads an Nsight Systems export, any schema from 2020.3 on, into a Trace.

Nsight's names are known here and in ``nsight_schema`` only. A missing table means no rows, a missing column an older or a
newer exporter: both are probed. Ids are ``<hw:8><vm:8><pid:24><tid:24>``; a process is its id with the thread masked off.
Paths, and what stands behind a NUL, are taken out of names and sentences: they may name people and machines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddpprof import marks
from ddpprof.analysis import assemble, kernels
from ddpprof.analysis.nsight_schema import (
    ANALYSIS,
    CAPTURE,
    COPY_KINDS,
    CUDA_DEVICE,
    DIAGNOSTIC,
    ENVIRONMENT,
    ENVIRONMENT_VARIABLE,
    EXPORT,
    EXPORT_BEFORE_2023,
    GPU,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    NVTX,
    NVTX_DOMAIN,
    NVTX_PUSH_POP,
    NVTX_START_END,
    OVERHEAD,
    PROCESS_MASK,
    RANK_VARIABLES,
    RUNTIME,
    SESSION,
    SHARED,
    STRINGS,
    SYSTEM,
    WORLD_VARIABLES,
)
from ddpprof.analysis.nsys_tables import ParquetTables, SqliteTables, Tables, decode
from ddpprof.analysis.steps import STEP_PATTERNS
from ddpprof.errors import InputError, UsageError
from ddpprof.model import (
    MISSING,
    Device,
    Evidence,
    Operations,
    Process,
    Ranges,
    RankSource,
    ReportInfo,
    Source,
    Trace,
    Warning,
)

Int64 = NDArray[np.int64]

_LAUNCH: Final = re.compile(r"(?:cuda|cu|hip)Launch(?!HostFunc)")
_GRAPH_LAUNCH: Final = re.compile(r"(?:cuda|cu|hip)GraphLaunch")
_TELLING: Final = re.compile(r"CUDA|CUPTI|NVTX")
_SENTENCE_PATH: Final = re.compile(r"\S*[/\\]\S*")
_NAME_PATH: Final = re.compile(r"[^\s<>()\[\]{},;:=\"'`]*[/\\][^\s<>()\[\]{},;:=\"'`]*")
OVERHEAD_OF_CUDA: Final = re.compile(r"(?:CUDA profiling|CUPTI)[\w :]*")
"""How the names of the profiler's own work on CUDA data begin."""


def read(path: Path, step_pattern: str | None = None) -> Trace:
    """The Trace of an nsys SQLite export or parquet folder. ``step_pattern`` names further ranges to keep as steps.

    Raises InputError, saying what is missing and why, when there is nothing to measure.
    """
    tables = open_export(path)
    session = _read_session(tables)
    launches = _read_launches(tables, session)
    device = _read_device_work(tables, session, launches)
    host = _read_ranges(tables, session, step_pattern)
    if not device.n_kernels + device.n_graphs:
        if not host.is_execution() or (launches.is_launch | launches.is_graph_launch).any():
            raise _nothing_to_measure(path, tables, launches, device, session)
        device = replace(device, parts=(), n_rows=0)
    return _build(path, tables, session, launches, device, host)


def open_export(path: Path) -> Tables:
    """The tables of an nsys SQLite export or parquet folder. Raises InputError for what is neither."""
    tables: Tables = ParquetTables(path) if path.is_dir() else SqliteTables(path)
    if not tables.columns(STRINGS) or not any(
        name.startswith(("TARGET_INFO_", "ANALYSIS_", "NVTX_", "CUPTI_")) for name in tables.names()
    ):
        raise InputError(
            f"{path}: not an Nsight Systems export (no {STRINGS} or event table)", "Give an nsys .sqlite or .nsys-rep file."
        )
    return tables


# ---------------------------------------------------------------------------------------------- session and health


@dataclass(frozen=True, slots=True)
class _Session:
    exporter_version: str | None
    schema_version: str | None
    start_utc_ns: int | None
    shift_ns: int
    duration_ns: int | None
    environment: Mapping[str, str]
    diagnostics: tuple[tuple[str, int | None], ...]
    warnings: tuple[Warning, ...]


def _read_session(tables: Tables) -> _Session:
    meta = name_values(tables, EXPORT) or name_values(tables, EXPORT_BEFORE_2023)
    export = {name: value for name, value in meta if value}
    normalized = export.get("EXPORT_PARAM_TIME_NORMALIZE", "").lower() in ("true", "1")
    start = _first(tables, SESSION, "utcEpochNs")
    shift = _integer(export.get("EXPORT_CONFIG_TIME_SHIFT")) or _integer(export.get("EXPORT_PARAM_TIME_SHIFT")) or 0
    if normalized and not shift and start is not None:
        shift = start
    notes = []
    for key, what in (("EXPORT_PARAM_TIMES_TO_EXPORT", "times"), ("EXPORT_PARAM_TABLES_TO_EXPORT", "tables")):
        if export.get(key):
            notes.append(Warning(code="capture-incomplete", message=f"the export is a clip: it was limited to some {what}"))
    return _Session(
        export.get("EXPORT_PRODUCT_VERSION"),
        export.get("EXPORT_SCHEMA_VERSION"),
        start,
        shift,
        _first(tables, ANALYSIS, "duration"),
        _environment(tables),
        _diagnostics(tables),
        tuple(notes),
    )


def _environment(tables: Tables) -> dict[str, str]:
    """The rank and world size variables that the capture recorded, and nothing else of the environment."""
    pairs = [variable(value) for name, value in name_values(tables, CAPTURE) if name.endswith(ENVIRONMENT_VARIABLE)]
    for name, value in name_values(tables, SYSTEM):
        if name == ENVIRONMENT:
            pairs += variables(value)
    wanted = {*RANK_VARIABLES, *WORLD_VARIABLES}
    return {name: value for name, value in pairs if name in wanted}


def variable(text: str) -> tuple[str, str]:
    """Name and value of ``NAME="value"`` or ``NAME=value``."""
    name, _, value = text.strip().partition("=")
    return name, value.strip().strip('"')


def variables(environment: str) -> list[tuple[str, str]]:
    """The variables of a whole environment, which older exporters separate by NUL."""
    return [variable(text) for text in re.split(r"[;\0\n]", environment)]


def _diagnostics(tables: Tables) -> tuple[tuple[str, int | None], ...]:
    """What the profiler warned of (severity 2 and up) about CUDA, CUPTI or NVTX, with its process; paths taken out."""
    if not {"severity", "text"} <= tables.columns(DIAGNOSTIC):
        return ()
    severity = tables.integers(DIAGNOSTIC, ["severity"])["severity"]
    process = _column(tables, DIAGNOSTIC, "globalPid", len(severity)) & PROCESS_MASK
    rows = zip(severity.tolist(), text_column(tables, DIAGNOSTIC, "text"), process.tolist(), strict=True)
    shown = ((shown_diagnostic(level, text), pid) for level, text, pid in rows)
    return tuple((text, pid) for text, pid in shown if text is not None)


def shown_diagnostic(severity: int, text: str) -> str | None:
    """A sentence of the profiler as it is shown, None when it warns of nothing that the numbers depend on."""
    text = _SENTENCE_PATH.sub("…", text.partition("\0")[0]).strip()
    return text if severity >= 2 and _TELLING.search(text) else None


# ------------------------------------------------------------------------------------------------------- launches


class _Launches(NamedTuple):
    """The CUDA API calls: process id (masked), thread, start, correlation id, and which are launches of which kind."""

    process: Int64
    thread: Int64
    start: Int64
    correlation: Int64
    is_launch: NDArray[np.bool_]
    is_graph_launch: NDArray[np.bool_]


def _read_launches(tables: Tables, session: _Session) -> _Launches:
    none = np.empty(0, np.int64)
    table = find_table(tables, RUNTIME)
    if table is None:
        return _Launches(none, none, none, none, none.astype(bool), none.astype(bool))
    has_names = "nameId" in tables.columns(table)
    rows = dict(tables.integers(table, ["start", "globalTid", "correlationId", *(["nameId"] if has_names else [])]))
    rows["start"] = assemble.times(rows["start"], session.shift_ns)
    keep = (rows["start"] != MISSING) & (rows["globalTid"] != MISSING) & (rows["correlationId"] != MISSING)
    rows = rows if keep.all() else {name: column[keep] for name, column in rows.items()}
    is_launch = is_graph = np.zeros(len(rows["start"]), bool)
    if has_names:
        codes, ids = assemble.factorize(rows["nameId"])
        names = tables.strings(ids.tolist())
        is_launch, is_graph = (
            np.array([pattern.match(names.get(key, "")) is not None for key in ids.tolist()], bool)[codes]
            for pattern in (_LAUNCH, _GRAPH_LAUNCH)
        )
    thread = rows["globalTid"]
    return _Launches(thread & PROCESS_MASK, thread, rows["start"], rows["correlationId"], is_launch, is_graph)


def _join_launches(process: Int64, correlation: Int64, launches: _Launches) -> Int64:
    """For each operation the position of its launch call in ``launches``, -1 for none. Ids repeat across processes."""
    n = len(launches.start)
    if n == 0 or len(process) == 0:
        return np.full(len(process), -1, np.int64)
    code, ids = assemble.factorize(np.concatenate([launches.process, process]))
    low, high = int(launches.correlation.min()), int(launches.correlation.max())
    width = high - low + 1
    inside = (correlation >= low) & (correlation <= high)
    if width * len(ids) <= 8 * n + 1_000_000:
        table = np.full(width * len(ids), -1, np.int32)
        key = code[:n].astype(np.int64) * width + (launches.correlation - low)
        table[key[::-1]] = np.arange(n - 1, -1, -1, dtype=np.int32)
        found = table[code[n:].astype(np.int64) * width + np.where(inside, correlation - low, 0)].astype(np.int64)
    else:
        order = np.lexsort((launches.correlation, code[:n]))
        mine = np.rec.fromarrays([code[:n][order], launches.correlation[order]], names="p,c")
        asked = np.rec.fromarrays([code[n:], correlation], names="p,c")
        at = np.minimum(np.searchsorted(mine, asked), n - 1)
        found = np.where(mine[at] == asked, order[at], -1)
    return np.where(inside, found, -1)


# ---------------------------------------------------------------------------------------------------- device work


@dataclass(frozen=True, slots=True)
class _DeviceWork:
    """Device rows of the four tables; names already text. ``parts`` are columns for assemble, process still masked ids."""

    parts: tuple[Mapping[str, NDArray[np.generic]], ...]
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


def _read_device_work(tables: Tables, session: _Session, launches: _Launches) -> _DeviceWork:
    parts: list[Mapping[str, NDArray[np.generic]]] = []
    names: dict[str, int] = {}
    launched = np.zeros(len(launches.start), bool)
    dropped = without = before = n_kernels = graph_ns = n_graphs = 0
    graph_processes: frozenset[int] = frozenset()
    node_processes: frozenset[int] = frozenset()
    for table, source in ((KERNEL, Source.KERNEL), (MEMCPY, Source.MEMCPY), (MEMSET, Source.MEMSET), (GRAPH, Source.GRAPH)):
        name = find_table(tables, table)
        if name is None:
            continue
        rows, text_of = _read_operations(tables, name, source)
        rows |= {edge: assemble.times(rows[edge], session.shift_ns) for edge in ("start", "end")}
        keep = assemble.possible(rows["start"], rows["end"])
        keep &= (rows["globalPid"] != MISSING) & (rows["deviceId"] >= 0) & (rows["deviceId"] < 4096)
        dropped += int(len(keep) - keep.sum())
        if not keep.all():
            rows = {key: column[keep] for key, column in rows.items()}
        process = rows["globalPid"] & PROCESS_MASK
        at = _join_launches(process, rows["correlationId"], launches)
        launched[at[at >= 0]] = True
        start = rows["start"]
        launch = np.where(at >= 0, launches.start[at], MISSING) if len(launches.start) else np.full(len(at), MISSING)
        thread = np.where(at >= 0, launches.thread[at], MISSING) if len(launches.start) else np.full(len(at), MISSING)
        codes, ids = assemble.factorize(rows["name"])
        texts = text_of(ids.tolist())
        lookup = np.array([names.setdefault(text, len(names)) for text in texts], np.int32)
        parts.append(
            {
                "process": process,
                "device": rows["deviceId"],
                "stream": rows["streamId"],
                "start_ns": start,
                "end_ns": rows["end"],
                "launch_ns": launch,
                "launch_thread": thread,
                "name": lookup[codes] if len(codes) else np.empty(0, np.int32),
                "source": np.full(len(start), int(source), np.int8),
            }
        )
        if source is Source.GRAPH:
            graph_processes = frozenset(np.unique(process).tolist())
            graph_ns, n_graphs = int((rows["end"] - rows["start"]).sum()), len(start)
        elif source is Source.KERNEL:
            n_kernels = len(start)
            without = int((at < 0).sum())
            before = int(((at >= 0) & (start < launch)).sum())
            node_processes = frozenset(np.unique(process[rows["graphNodeId"] > 0]).tolist())
    n_rows = sum(len(part["start_ns"]) for part in parts)
    return _DeviceWork(
        tuple(parts), tuple(names), n_kernels, n_rows, dropped, without, before, launched,
        graph_processes, graph_ns, n_graphs, node_processes,
    )  # fmt: skip


def _read_operations(tables: Tables, table: str, source: Source):  # type: ignore[no-untyped-def]
    """The columns of one device table under their Nsight names, plus ``name``, and what turns name ids into texts."""
    there = tables.columns(table)
    name = {
        Source.KERNEL: next((key for key in ("demangledName", "shortName", "mangledName") if key in there), None),
        Source.MEMCPY: "copyKind" if "copyKind" in there else None,
    }.get(source)
    wanted = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid", name]
    if source is Source.KERNEL:
        wanted.append("graphNodeId")
    found = [key for key in wanted if key is not None and key in there]
    rows = dict(tables.integers(table, found))
    n = len(rows["start"])
    rows["name"] = rows.pop(name) if name in rows else np.zeros(n, np.int64)
    for key, default in (("correlationId", MISSING), ("globalPid", 0), ("graphNodeId", 0)):
        if key not in rows:
            rows[key] = np.full(n, default, np.int64)

    def texts(ids: Sequence[int]) -> list[str]:
        if source is Source.MEMCPY:
            return [f"memcpy {COPY_KINDS.get(key, 'other')}" for key in ids]
        if source is Source.KERNEL:
            return kernel_names(tables, ids)
        return ["memset" if source is Source.MEMSET else "CUDA graph" for _ in ids]

    return rows, texts


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
class _HostRanges:
    """The ranges kept; ``text`` and ``domain`` are codes into ``texts``, process still masked ids."""

    columns: Mapping[str, NDArray[np.generic]]
    texts: tuple[str, ...]
    n_open: int
    n_ranges: int

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


def _read_ranges(tables: Tables, session: _Session, step_pattern: str | None) -> _HostRanges:
    table = find_table(tables, NVTX)
    if table is None:
        return _HostRanges(_range_columns(0), (), 0, 0)
    there = tables.columns(table)
    rows = dict(tables.integers(table, ["start", "end", "eventType", "globalTid"]))
    rows |= {edge: assemble.times(rows[edge], session.shift_ns) for edge in ("start", "end")}
    n = len(rows["start"])
    text_id, domain_id = _column(tables, table, "textId", n), _column(tables, table, "domainId", n)
    pushed, started = np.isin(rows["eventType"], NVTX_PUSH_POP), np.isin(rows["eventType"], NVTX_START_END)
    is_range = (pushed | started) & (rows["start"] != MISSING) & (rows["globalTid"] != MISSING)
    domains = _domains(tables, table, rows, domain_id) if "text" in there else {}
    codes, texts = match_texts(tables, table, text_id, is_range, wanted_pattern(step_pattern))
    keep = np.flatnonzero(is_range & (codes >= 0))
    thread = rows["globalTid"][keep]
    process = thread & PROCESS_MASK
    where = [domains.get(key, "") for key in zip(process.tolist(), domain_id[keep].tolist(), strict=True)]
    all_texts = list(texts)
    places = {text: at for at, text in enumerate(all_texts)}
    for text in dict.fromkeys(where):
        if text not in places:
            places[text] = len(all_texts)
            all_texts.append(text)
    end = rows["end"][keep]
    columns = _range_columns(len(keep)) | {
        "process": process,
        "thread": thread,
        "start_ns": rows["start"][keep],
        "end_ns": end,
        "text": codes[keep],
        "domain": np.array([places[text] for text in where], np.int32),
        "is_pushed": pushed[keep],
    }
    return _HostRanges(columns, tuple(all_texts), int((end == MISSING).sum()), int(is_range.sum()))


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
            hit = pc.match_substring_regex(inline, pattern).fill_null(False).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(hit & is_range).tolist():
                codes[row] = texts.setdefault(decode(inline[row].as_py()), len(texts))
            is_registered &= inline.is_null().to_numpy(zero_copy_only=False)
        registered = tables.matching_strings(pattern) if is_registered.any() else {}
        ids = np.intersect1d(np.fromiter(registered, np.int64), text_id[is_registered])
        if len(ids):
            code_of = np.array([texts.setdefault(registered[key], len(texts)) for key in ids.tolist()], np.int32)
            at = np.minimum(np.searchsorted(ids, text_id), len(ids) - 1)
            codes = np.where(is_registered & (ids[at] == text_id), code_of[at], codes)
    except pa.ArrowInvalid as error:
        raise UsageError(f"--step-range: not a pattern that can be searched for: {error}") from None
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
    names = ("process", "thread", "start_ns", "end_ns", "text", "domain", "is_pushed")
    return {name: np.zeros(n, np.int64) for name in names}


# ------------------------------------------------------------------------------------------------------- assembly


def _build(path: Path, tables: Tables, session: _Session, launches: _Launches, device: _DeviceWork, host: _HostRanges) -> Trace:
    evidence: Evidence = "gpu-kernels" if device.n_rows else "host-ranges"
    keys = _process_keys(device, host)
    place = {key: at for at, key in enumerate(keys)}
    ranges = assemble.ranges(host.columns | {"process": _places(host.columns["process"], keys)})
    if device.n_rows:
        parts = [dict(part) | {"process": _places(part["process"], keys)} for part in device.parts]
        operations, names = assemble.operations(parts), device.names
        n_dropped = device.n_dropped
    else:
        operations, n_dropped = assemble.host_operations(ranges, host.texts)
        names = host.texts
    extent = (0, session.duration_ns) if session.duration_ns is not None else None
    processes = _with_ranks(keys, ranges, host.texts, operations, session, extent)
    opaque = frozenset(place[key] for key in device.graph_processes) | _hidden_graphs(launches, device, place)
    captures_graphs = np.isin(launches.process, launches.process[launches.is_graph_launch])  # stream capture swallows launches
    lost = np.flatnonzero(launches.is_launch & ~device.is_launched & ~captures_graphs & np.isin(launches.process, keys))
    first = _join_launches(launches.process[lost], launches.correlation[lost], launches)
    lost = lost[~device.is_launched[first]]  # a call may be recorded twice, as the driver's and the runtime's
    lost_rows = zip(launches.process[lost].tolist(), launches.start[lost].tolist(), strict=True)
    return Trace(
        report=ReportInfo(
            path=path.name,
            kind="nsys-parquet" if path.is_dir() else "nsys-sqlite",
            exporter_version=session.exporter_version,
            schema_version=session.schema_version,
            session_start_utc_ns=session.start_utc_ns,
        ),
        evidence=evidence,
        processes=processes,
        devices=_devices(tables, processes, operations),
        operations=operations,
        names=names,
        ranges=ranges,
        texts=host.texts,
        overheads=_overheads(tables, session, place),
        extent=extent,
        is_graph_opaque=opaque,
        has_launches=len(launches.start) > 0,
        lost_launches=tuple((place[key], start) for key, start in lost_rows),
        warnings=(*session.warnings, *_health(session, launches, device, host, opaque, n_dropped, len(lost), place)),
    )


def _process_keys(device: _DeviceWork, host: _HostRanges) -> NDArray[np.int64]:
    """Masked ids of the processes that did device work or carry a rank mark, rising."""
    keys = {int(key) for part in device.parts for key in assemble.factorize(np.asarray(part["process"], np.int64))[1]}
    is_rank = np.array(
        [mark is not None and (mark.kind == "rank" or not device.n_rows) for mark in map(marks.parse, host.texts)], bool
    )
    if len(is_rank):
        keys |= set(host.columns["process"][is_rank[host.columns["text"]]].tolist())
    return np.array(sorted(keys), np.int64)


def _places(process: NDArray[np.generic], keys: Int64) -> NDArray[np.int32]:
    """Index of each process id among ``keys``, -1 where it is not one of them."""
    if not len(keys):
        return np.full(len(process), -1, np.int32)
    at = np.minimum(np.searchsorted(keys, process), len(keys) - 1)  # type: ignore[call-overload]
    return np.where(keys[at] == process, at, -1).astype(np.int32)


def _with_ranks(
    keys: Int64, ranges: Ranges, texts: Sequence[str], operations: Operations, session: _Session, extent: tuple[int, int] | None
) -> tuple[Process, ...]:
    """The processes with their ranks: from their own mark, else from the environment when just one process did the work."""
    found = [Process(key=key, pid=(key >> 24) & 0xFFFFFF) for key in keys.tolist()]
    for text, process, start, end in zip(
        *(getattr(ranges, name).tolist() for name in ("text", "process", "start_ns", "end_ns")), strict=True
    ):
        mark = marks.parse(texts[text])
        if mark is None or mark.kind != "rank" or process < 0:
            continue
        end = end if end != MISSING else extent[1] if extent else start
        old = found[process].window or (start, end)
        window = (min(old[0], start), max(old[1], end))
        found[process] = replace(found[process], rank=mark.index, rank_source="mark", world_size=mark.world_size, window=window)
    workers = np.unique(operations.process).tolist()
    rank, world = (_first_variable(session.environment, names) for names in (RANK_VARIABLES, WORLD_VARIABLES))
    if len(workers) == 1 and rank is not None and found[workers[0]].rank is None:
        source: RankSource = "environment"
        found[workers[0]] = replace(found[workers[0]], rank=rank, rank_source=source)
    return tuple(replace(item, world_size=item.world_size or world) for item in found)


def _devices(tables: Tables, processes: Sequence[Process], operations: Operations) -> tuple[Device, ...]:
    """Every (process, device) with work; the physical GPU by uuid where the tables map it, or when there is only one."""
    gpus = _gpus(tables)
    mapped: dict[tuple[int, int], int] = {}
    if {"gpuId", "cudaId", "pid"} <= tables.columns(CUDA_DEVICE):
        rows = tables.integers(CUDA_DEVICE, ["gpuId", "cudaId", "pid"])
        mapped = {
            (pid, cuda): gpu for gpu, cuda, pid in zip(*(rows[key].tolist() for key in ("gpuId", "cudaId", "pid")), strict=True)
        }
    only = next(iter(gpus)) if len(gpus) == 1 else None
    models = {name for name, _ in gpus.values()}
    model = models.pop() if len(models) == 1 else None
    pairs = np.unique(operations.process.astype(np.int64) * 8192 + operations.device)
    found = []
    for process, device in sorted({((pair + 1) // 8192, (pair + 1) % 8192 - 1) for pair in pairs.tolist()}):
        if device < 0:
            continue
        gpu = mapped.get((processes[process].pid, device), only)
        name, identity = gpus.get(gpu, (None, None)) if gpu is not None else (None, None)
        found.append(Device(process=process, device_id=device, name=name or model, gpu=identity))
    return tuple(found)


def _gpus(tables: Tables) -> dict[int, tuple[str | None, str | None]]:
    """Model and identity (uuid, else host and bus) of each GPU by its id in TARGET_INFO_GPU."""
    there = tables.columns(GPU)
    host = dict(name_values(tables, SYSTEM)).get("Hostname") or tables.path  # a bus id is one host's own
    key = "id" if "id" in there else "deviceId" if "deviceId" in there else None
    if key is None:
        return {}
    ids = tables.integers(GPU, [key])[key].tolist()
    names, uuids, buses = (
        text_column(tables, GPU, column) if column in there else [""] * len(ids) for column in ("name", "uuid", "busLocation")
    )
    rows = zip(ids, names, uuids, buses, strict=True)
    return {gpu: (gpu_model(name), uuid or (f"{host} {bus}" if bus else None)) for gpu, name, uuid, bus in rows}


def gpu_model(name: str) -> str | None:
    """The model of a GPU as it is shown, None where the report does not tell it."""
    return without_paths(name) or None


def _overheads(tables: Tables, session: _Session, place: Mapping[int, int]) -> tuple[tuple[int, int, int], ...]:
    """(process, start, end) of the profiler's own work on CUDA data."""
    if not {"start", "end", "globalTid", "nameId"} <= tables.columns(OVERHEAD):
        return ()
    rows = dict(tables.integers(OVERHEAD, ["start", "end", "globalTid", "nameId"]))
    rows |= {edge: assemble.times(rows[edge], session.shift_ns) for edge in ("start", "end")}
    names = tables.strings(np.unique(rows["nameId"]).tolist())
    keep = assemble.possible(rows["start"], rows["end"])
    found = []
    for at in np.flatnonzero(keep).tolist():
        process = place.get(int(rows["globalTid"][at]) & PROCESS_MASK)
        if process is not None and OVERHEAD_OF_CUDA.match(names.get(int(rows["nameId"][at]), "")):
            found.append((process, int(rows["start"][at]), int(rows["end"][at])))
    return tuple(found)


def _hidden_graphs(launches: _Launches, device: _DeviceWork, place: Mapping[int, int]) -> frozenset[int]:
    """Processes that launched CUDA graphs of which the export shows nothing: exporters before 2024.2 hide them."""
    launched = set(np.unique(launches.process[launches.is_graph_launch]).tolist())
    return frozenset(place[key] for key in launched - device.node_processes - device.graph_processes if key in place)


def _health(
    session: _Session,
    launches: _Launches,
    device: _DeviceWork,
    host: _HostRanges,
    opaque: frozenset[int],
    n_dropped: int,
    n_lost: int,
    place: Mapping[int, int],
) -> Iterable[Warning]:
    """What is wrong with the capture, as far as the rows themselves tell."""
    if device.n_graphs:
        yield Warning(
            code="graph-trace-opaque",
            message=f"{device.n_graphs} CUDA graph launches were captured whole ({_ms(device.graph_ns)} of GPU time): the "
            "kernels in them, and so overlap, cannot be seen; capture again with --cuda-graph-trace=node",
        )
    elif opaque:
        n = int(launches.is_graph_launch.sum())
        yield Warning(
            code="graph-trace-opaque",
            message=f"{n} CUDA graph launches, but none of their work is in the export: exporters before 2024.2 hide it; "
            "export the .nsys-rep with a newer nsys, or capture with --cuda-graph-trace=node",
        )
    if n_dropped:
        yield Warning(
            code="dropped-rows",
            message=f"{n_dropped} rows left out: no process or device, or an end that is not after the start",
        )
    if len(launches.start) and device.n_without_launch:
        yield Warning(
            code="launch-mismatch",
            message=f"{device.n_without_launch} of {device.n_kernels} kernels were launched outside the capture",
        )
    if device.n_before_launch:
        yield Warning(
            code="launch-mismatch",
            message=f"{device.n_before_launch} of {device.n_kernels} kernels start before their own launch call",
        )
    if n_lost:
        yield Warning(code="launch-mismatch", message=f"{n_lost} kernel launches have no kernel in the report")
    yield from _lost_collectives(device, host)
    if host.n_open:
        yield Warning(code="capture-incomplete", message=f"{host.n_open} host ranges were still open when the capture ended")
    counts: dict[str, int] = {}
    for text, process in session.diagnostics:
        if process in place or not place:
            counts[text] = counts.get(text, 0) + 1
    for text, count in counts.items():
        times = f" (in {count} processes)" if count > 1 else ""
        yield Warning(code="diagnostic", message=f"nsys: {text}{times}")


def _lost_collectives(device: _DeviceWork, host: _HostRanges) -> Iterable[Warning]:
    """Fewer NCCL kernels than calls, where each call makes a kernel of its own: as many groups as calls, or no group."""
    is_nccl = np.array([kernels.COMM.search(name) is not None for name in device.names], bool)
    made = Counter(key for part in device.parts for key in part["process"][is_nccl[part["name"]]].tolist())
    calls: dict[int, Counter[str]] = {key: Counter() for key in made}
    for key, text in zip(host.columns["process"].tolist(), host.columns["text"].tolist(), strict=True):
        if key in calls and kernels.API_CALL.fullmatch(host.texts[text]):
            calls[key][host.texts[text]] += 1
    for key, names in calls.items():
        n_calls = sum(count for name, count in names.items() if kernels.COLLECTIVE_API_CALL.fullmatch(name))
        is_one_each = names["ncclGroupEnd"] in (0, n_calls) and not names["ncclSend"] + names["ncclRecv"]
        if made[key] < n_calls and is_one_each and key not in device.graph_processes:
            message = f"{n_calls} NCCL calls but {made[key]} NCCL kernels in process {key >> 24 & 0xFFFFFF}"
            yield Warning(code="capture-incomplete", message=message)


def _nothing_to_measure(path: Path, tables: Tables, launches: _Launches, device: _DeviceWork, session: _Session) -> InputError:
    """Why there is no number: what is missing, what the profiler said of it, what to do."""
    n, n_graphs = int(launches.is_launch.sum()), int(launches.is_graph_launch.sum())
    texts = [text for text, _ in session.diagnostics]
    said = next((text for text in texts if "CUDA" in text), texts[0] if texts else None)
    what = "no GPU kernels in report"
    if n:
        what += f" ({n} launches, 0 kernels: GPU tracing failed)"
    elif n_graphs:
        what += f" ({n_graphs} CUDA graph launches, whose work exporters before 2024.2 hide)"
    elif len(launches.start):
        what += " (CUDA API calls only)"
    elif device.n_rows:
        what += f" ({device.n_rows} copies and sets only)"
    elif tables.columns(NVTX):
        what += " (host ranges only, and none of ddpprof's marks of a CPU run)"
    if device.n_dropped:
        what += f", {device.n_dropped} impossible rows left out"
    if session.duration_ns is not None:
        what += f"; the capture covers {_ms(session.duration_ns)}"
    hint = f'nsys says: "{said}"' if said else "Capture with: nsys profile -t cuda,nvtx"
    return InputError(f"{path}: {what}", hint)


# ---------------------------------------------------------------------------------------------------- small probes


def name_values(tables: Tables, table: str) -> list[tuple[str, str]]:
    """The rows of a table of names and values."""
    if not {"name", "value"} <= tables.columns(table):
        return []
    return list(zip(text_column(tables, table, "name"), text_column(tables, table, "value"), strict=True))


def text_column(tables: Tables, table: str, column: str) -> list[str]:
    """One column as text, "" where it is null."""
    return [decode(raw) if raw is not None else "" for raw in tables.texts(table, column).to_pylist()]


def without_paths(text: str) -> str:
    """A name up to its first NUL, what is a path in it taken out."""
    return _NAME_PATH.sub("…", text.partition("\0")[0])


def _column(tables: Tables, table: str, column: str, n: int) -> Int64:
    """A column that an older exporter may not have: MISSING throughout then."""
    if column not in tables.columns(table):
        return np.full(n, MISSING, np.int64)
    return tables.integers(table, [column])[column]


def _first(tables: Tables, table: str, column: str) -> int | None:
    if column not in tables.columns(table):
        return None
    values = tables.integers(table, [column])[column]
    return int(values[0]) if len(values) and abs(int(values[0])) < assemble.LATEST_NS else None


def _first_variable(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    return next((int(environment[name]) for name in names if marks.RANK.fullmatch(environment.get(name, ""))), None)


def _integer(text: str | None) -> int | None:
    """A time in an option's text, None for what is no time."""
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if abs(number) < assemble.LATEST_NS else None


def _ms(duration_ns: int) -> str:
    return f"{duration_ns / 1e6:.3f} ms"
