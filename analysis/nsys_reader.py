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
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddpprof import marks
from ddpprof.analysis import assemble, kernels
from ddpprof.analysis.nsight_schema import (
    ANALYSIS,
    CAPTURE,
    CUDA_DEVICE,
    DIAGNOSTIC,
    ENVIRONMENT,
    ENVIRONMENT_VARIABLE,
    EXPORT,
    EXPORT_BEFORE_2023,
    GPU,
    NVTX,
    OVERHEAD,
    PROCESS_MASK,
    RANK_VARIABLES,
    SESSION,
    SETTING_VALUE,
    STRINGS,
    SYSTEM,
    WORLD_VARIABLES,
)
from ddpprof.analysis.nsys_events import (
    DeviceWork,
    HostRanges,
    Launches,
    optional_column,
    read_device_work,
    read_launches,
    read_ranges,
    without_paths,
)
from ddpprof.analysis.nsys_tables import ParquetTables, SqliteTables, Tables, decode
from ddpprof.errors import InputError
from ddpprof.model import (
    MISSING,
    SETTINGS,
    Device,
    Evidence,
    Operations,
    Process,
    Ranges,
    RankSource,
    ReportInfo,
    Trace,
    Warning,
)

Int64 = NDArray[np.int64]

_TELLING: Final = re.compile(r"CUDA|CUPTI|NVTX")
_SENTENCE_PATH: Final = re.compile(r"\S*[/\\]\S*")
OVERHEAD_OF_CUDA: Final = re.compile(r"(?:CUDA profiling|CUPTI)[\w :]*")
"""How the names of the profiler's own work on CUDA data begin."""


def read(path: Path, step_pattern: str | None = None) -> Trace:
    """The Trace of an nsys SQLite export or parquet folder. ``step_pattern`` names further ranges to keep as steps.

    Raises InputError, saying what is missing and why, when there is nothing to measure.
    """
    tables = open_export(path)
    session = _read_session(tables)
    launches = read_launches(tables, session.shift_ns)
    device = read_device_work(tables, session.shift_ns, launches)
    calls = _Calls.of(launches, device)
    del launches  # as large as all the rest
    host = read_ranges(tables, session.shift_ns, step_pattern)
    if not device.n_kernels + device.n_graphs:
        if not host.is_execution() or calls.n_launches + calls.n_graph_launches:
            raise _nothing_to_measure(path, tables, calls, device, session)
        device = replace(device, parts=[], processes=[], n_rows=0)
    return _build(path, tables, session, calls, device, host)


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
    """The variables of ranks and of SETTINGS that the capture recorded, and nothing else of the environment."""
    pairs = [variable(value) for name, value in name_values(tables, CAPTURE) if name.endswith(ENVIRONMENT_VARIABLE)]
    for name, value in name_values(tables, SYSTEM):
        if name == ENVIRONMENT:
            pairs += variables(value)
    wanted = {*RANK_VARIABLES, *WORLD_VARIABLES, *SETTINGS}
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
    process = optional_column(tables, DIAGNOSTIC, "globalPid", len(severity)) & PROCESS_MASK
    rows = zip(severity.tolist(), text_column(tables, DIAGNOSTIC, "text"), process.tolist(), strict=True)
    shown = ((shown_diagnostic(level, text), pid) for level, text, pid in rows)
    return tuple((text, pid) for text, pid in shown if text is not None)


def shown_diagnostic(severity: int, text: str) -> str | None:
    """A sentence of the profiler as it is shown, None when it warns of nothing that the numbers depend on."""
    text = _SENTENCE_PATH.sub("…", text.partition("\0")[0]).strip()
    return text if severity >= 2 and _TELLING.search(text) else None


@dataclass(frozen=True, slots=True)
class _Calls:
    """What the CUDA calls tell beside the launch of each operation. Processes are masked ids; ``lost`` are the (process,
    start) of kernel launches without a kernel, not of processes that capture graphs, which swallow launches; ``waits`` the
    (process, start, end) of calls that wait for the device.
    """

    n: int
    n_launches: int
    n_graph_launches: int
    graph_processes: frozenset[int]
    lost: tuple[tuple[int, int], ...]
    waits: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, launches: Launches, device: DeviceWork) -> _Calls:
        values, is_graph = launches.processes.values, launches.kind == 2
        graphs = np.unique(launches.process[is_graph])
        lost = np.flatnonzero((launches.kind == 1) & ~device.is_launched & ~np.isin(launches.process, graphs))
        first = launches.finder(launches.process[lost], launches.correlation[lost])
        lost = lost[~device.is_launched[first]]  # a call may be recorded twice, as the driver's and the runtime's
        rows = zip(launches.process[lost].tolist(), launches.start[lost].tolist(), strict=True)
        return cls(
            len(launches),
            int((launches.kind == 1).sum()),
            int(is_graph.sum()),
            frozenset(values[code] for code in graphs.tolist()),
            tuple((values[code], start) for code, start in rows),
            launches.waits,
        )


# ------------------------------------------------------------------------------------------------------- assembly


def _build(path: Path, tables: Tables, session: _Session, calls: _Calls, device: DeviceWork, host: HostRanges) -> Trace:
    evidence: Evidence = "gpu-kernels" if device.n_rows else "host-ranges"
    keys = _process_keys(device, host)
    place = {key: at for at, key in enumerate(keys.tolist())}
    ranges = assemble.ranges({**host.columns, "process": _places(host.columns["process"], keys)})
    opaque = frozenset(place[key] for key in device.graph_processes) | _hidden_graphs(calls, device, place)
    lost = tuple((place[key], start) for key, start in calls.lost if key in place)
    health = tuple(_health(session, calls, device, host, opaque, len(lost), place))
    if device.n_rows:
        place_of = np.array([place[key] for key in device.processes], np.int32)
        for part in device.parts:
            part["process"] = place_of[part["process"]]
        operations, names = assemble.operations(device.parts), device.names
        n_dropped = device.n_dropped
    else:
        operations, n_dropped = assemble.host_operations(ranges, host.texts)
        names = host.texts
    extent = (0, session.duration_ns) if session.duration_ns is not None else None
    processes = _with_ranks(keys, ranges, host.texts, operations, session, extent)
    if n_dropped:
        what = f"{n_dropped} rows left out: no process or device, or an end that is not after the start"
        health = (Warning(code="dropped-rows", message=what), *health)
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
        has_launches=calls.n > 0,
        lost_launches=lost,
        waits=tuple((place[key], start, end) for key, start, end in calls.waits if key in place),
        is_incomplete=bool(session.warnings),
        warnings=(*session.warnings, *health),
    )


def _process_keys(device: DeviceWork, host: HostRanges) -> NDArray[np.int64]:
    """Masked ids of the processes that did device work or carry a rank mark, rising."""
    keys = set(device.processes)
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
    at = np.minimum(np.searchsorted(keys, process), len(keys) - 1)
    return np.where(keys[at] == process, at, -1).astype(np.int32)


def _with_ranks(
    keys: Int64, ranges: Ranges, texts: Sequence[str], operations: Operations, session: _Session, extent: tuple[int, int] | None
) -> tuple[Process, ...]:
    """The processes with their ranks: from their own mark, else from the environment when just one process did the work.

    The settings are those of the environment, which the processes of a report have in common.
    """
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
    workers = sorted({process for process, _ in _lanes(operations)})
    rank, world = (_first_variable(session.environment, names) for names in (RANK_VARIABLES, WORLD_VARIABLES))
    if len(workers) == 1 and rank is not None and found[workers[0]].rank is None:
        source: RankSource = "environment"
        found[workers[0]] = replace(found[workers[0]], rank=rank, rank_source=source)
    switches = ((name, session.environment.get(name, "")) for name in SETTINGS)
    settings = tuple((name, value) for name, value in switches if SETTING_VALUE.fullmatch(value))
    return tuple(replace(item, world_size=item.world_size or world, settings=settings) for item in found)


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
    found = []
    for process, device in _lanes(operations):
        if device < 0:
            continue
        gpu = mapped.get((processes[process].pid, device), only)
        name, identity = gpus.get(gpu, (None, None)) if gpu is not None else (None, None)
        found.append(Device(process=process, device_id=device, name=name or model, gpu=identity))
    return tuple(found)


def _lanes(operations: Operations) -> list[tuple[int, int]]:
    """(process, device) of all operations, in their order."""
    process, device = operations.process, operations.device
    edges = np.flatnonzero((process[1:] != process[:-1]) | (device[1:] != device[:-1])) + 1
    first = [0, *edges.tolist()] if len(operations) else []
    return list(zip(process[first].tolist(), device[first].tolist(), strict=True))


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


def _hidden_graphs(calls: _Calls, device: DeviceWork, place: Mapping[int, int]) -> frozenset[int]:
    """Processes that launched CUDA graphs of which the export shows nothing: exporters before 2024.2 hide them."""
    return frozenset(
        place[key] for key in calls.graph_processes - device.node_processes - device.graph_processes if key in place
    )


def _health(
    session: _Session,
    calls: _Calls,
    device: DeviceWork,
    host: HostRanges,
    opaque: frozenset[int],
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
        yield Warning(
            code="graph-trace-opaque",
            message=f"{calls.n_graph_launches} CUDA graph launches, but none of their work is in the export: exporters before "
            "2024.2 hide it; export the .nsys-rep with a newer nsys, or capture with --cuda-graph-trace=node",
        )
    if calls.n and device.n_without_launch:
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


def _lost_collectives(device: DeviceWork, host: HostRanges) -> Iterable[Warning]:
    """Fewer NCCL kernels than calls, where each call makes a kernel of its own: as many groups as calls, or no group."""
    is_nccl = np.array([kernels.COMM.search(name) is not None for name in device.names], bool)
    made: Counter[int] = Counter()
    for part in device.parts:
        codes, counts = np.unique(part["process"][is_nccl[part["name"]]], return_counts=True)
        made.update({device.processes[code]: count for code, count in zip(codes.tolist(), counts.tolist(), strict=True)})
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


def _nothing_to_measure(path: Path, tables: Tables, calls: _Calls, device: DeviceWork, session: _Session) -> InputError:
    """Why there is no number: what is missing, what the profiler said of it, what to do."""
    texts = [text for text, _ in session.diagnostics]
    said = next((text for text in texts if "CUDA" in text), texts[0] if texts else None)
    what = "no GPU kernels in report"
    if calls.n_launches:
        what += f" ({calls.n_launches} launches, 0 kernels: GPU tracing failed)"
    elif calls.n_graph_launches:
        what += f" ({calls.n_graph_launches} CUDA graph launches, whose work exporters before 2024.2 hide)"
    elif calls.n:
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
