r"""Nsight Systems SQLite exports from a readable timeline, in any schema generation from 2020.3 to 2026.4.

::

    build(path, '''
        process 100 rank=0 world=2 gpus=a            # optional; the lines below belong to process 100
        K dev0 s7    0..100  GEMM  launch=-20..-10 thread=2
        K dev0 s16  50..150  NCCL  launch=40..45   thread=2
        M dev0 s7  100..110.5  HtoD bytes=4096       # copy: HtoD DtoH DtoD HtoH PtoP (src=0 dst=1)
        S dev0 s7  111..112  bytes=4                 # memset
        G dev0 s7  200..300  launch=190..191         # a whole CUDA graph (GRAPH_TRACE)
        K dev0 s7  300..310  GEMM  corr=9 node=1     # kernel of a graph traced by node, launched by the next line
        R 9 290..291 cudaGraphLaunch_v10000          # an API call without a kernel of its own
        R 5 300..311 cudaStreamSynchronize_v3020     # … such as one that waits for the device
        N   -30..200  "step/0"                       # NVTX push/pop range; domain=ddpprof thread=2
        N60   0..open "allreduce/0"                  # start/end range; "open" leaves its end NULL; N34 is a mark
        O 45..46                                     # the profiler's own work
        D "No CUDA events collected. Does the process use CUDA?" severity=2
    ''', schema="2024.2")

Times are microseconds, decimals are exact to the nanosecond. Rows say ``pid=``, or belong to the ``process`` line above them
(first: 100). Quoted text is a JSON string: ``\u0000`` is a NUL, ``\udce9`` the byte 0xE9 that is no UTF-8. A device row without
``launch=`` has a correlation id but no API call. Thread 0 is the main thread. ``gpus=a,b`` names the physical GPUs (in
hexadecimal) that are devices 0 and 1 of a process; ``rank=`` adds the ``rank/R/world/W`` mark around all that the process does.

The same in Python: ``build(path, [K(0, 7, 0, 100, GEMM), R(5, -20, -10), N(0, 200, "step/1", 100)])``.
What a generation's exporter could not write (DIAGNOSTIC_EVENT in 2022) is left out, and tables without rows are absent.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

import numpy as np
from nsight_schema import RELEASES, create, insert, release_of, tables, version, write
from numpy.typing import NDArray

GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>(T1::Params)"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)"
SPIN = "at::cuda::<unnamed>::spin_kernel(long)"
PID = 100
SESSION_NS = 1_700_000_000_000_000_000

Us = float | str | Decimal
"""A time in microseconds; a string or Decimal where a float would not be exact."""

# --------------------------------------------------------------------------------------------------------------
# Rows: one class a letter, spelled as shared/design/field-cases.md spells them


@dataclass(frozen=True, slots=True)
class _Work:
    dev: int
    stream: int
    start: Us
    end: Us
    launch: tuple[Us, Us] | None = field(default=None, kw_only=True)
    thread: int = field(default=0, kw_only=True)
    corr: int | None = field(default=None, kw_only=True)
    node: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class K(_Work):
    """A kernel; ``name`` with template arguments and parameters, as in demangledName."""

    name: str = GEMM
    pid: int = PID


@dataclass(frozen=True, slots=True)
class M(_Work):
    """A copy; ``src`` and ``dst`` are devices."""

    kind: str = "HtoD"
    pid: int = PID
    bytes: int = field(default=0, kw_only=True)
    src: int | None = field(default=None, kw_only=True)
    dst: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class S(_Work):
    """A memset."""

    pid: int = PID
    bytes: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class G(_Work):
    """A CUDA graph traced whole."""

    pid: int = PID
    graph: int = field(default=1, kw_only=True)


@dataclass(frozen=True, slots=True)
class R:
    """A CUDA API call."""

    corr: int
    start: Us
    end: Us
    name: str = "cudaLaunchKernel_v7000"
    pid: int = PID
    thread: int = 0


@dataclass(frozen=True, slots=True)
class N:
    """An NVTX event; ``end`` None is NULL. ``type``: 59 push/pop, 60 start/end, 34 mark, 39 thread name."""

    start: Us
    end: Us | None
    text: str
    pid: int = PID
    domain: str | None = None
    thread: int = 0
    end_thread: int | None = None
    type: int = 59


@dataclass(frozen=True, slots=True)
class O:  # noqa: E742
    """A PROFILER_OVERHEAD row."""

    start: Us
    end: Us
    name: str = "CUPTI Buffer flush"
    pid: int = PID


@dataclass(frozen=True, slots=True)
class D:
    """A DIAGNOSTIC_EVENT row; severity 1 info, 2 warning, 3 error."""

    text: str
    severity: int = 2
    pid: int = PID
    at: Us = 0


@dataclass(frozen=True, slots=True)
class P:
    """A process, its rank mark and its GPUs; needed only for these, or to list a process that does nothing."""

    pid: int
    rank: int | None = None
    world: int | None = None
    gpus: tuple[str, ...] = ()
    name: str = "python3"


Row = K | M | S | G | R | N | O | D | P

_ALIASES = {"GEMM": GEMM, "NCCL": NCCL, "SPIN": SPIN}
_KINDS: dict[str, type[Any]] = {"K": K, "M": M, "S": S, "G": G, "R": R, "N": N, "O": O, "D": D, "process": P}
_WORDS = {K: "name", R: "name", O: "name", M: "kind", N: "text", D: "text"}
_TOKEN = re.compile(r'#.*|(?:\w+=)?"(?:[^"\\]|\\.)*"|\S+')


def ns(time: Us) -> int:
    """Nanoseconds of a time in microseconds. Raises ValueError when it has more than three decimals."""
    exact = Decimal(str(time)) * 1000
    if exact != int(exact):
        raise ValueError(f"{time} us is not a whole number of nanoseconds")
    return int(exact)


def parse(timeline: str) -> list[Row]:
    """The rows that a timeline spells (see the module), in its order. Raises ValueError naming the line."""
    rows: list[Row] = []
    pid = PID
    for line in timeline.splitlines():
        head, *tokens = [token for token in _TOKEN.findall(line) if not token.startswith("#")] or [""]
        if not head:
            continue
        try:
            letter = re.fullmatch(r"(process|[A-Z])(\d*)", head)
            kind = _KINDS[letter[1]] if letter else None
            if kind is None or letter is None:
                raise ValueError(f"no kind of row {head!r}")
            fields: dict[str, Any] = {} if kind is P else {"pid": pid}
            if letter[2]:
                fields["type"] = int(letter[2])
            for token in tokens:
                fields |= _field(kind, token)
            rows.append(kind(**fields))
        except (ValueError, KeyError, TypeError, ArithmeticError) as error:
            raise ValueError(f"cannot read {line.strip()!r}: {error}") from error
        if kind is P:
            pid = fields["pid"]
    return rows


def _field(kind: type[Any], token: str) -> dict[str, Any]:
    if match := re.fullmatch(r"dev(\d+)", token):
        return {"dev": int(match[1])}
    if match := re.fullmatch(r"s(\d+)", token):
        return {"stream": int(match[1])}
    if match := re.fullmatch(r"(launch=)?(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?|open)", token):
        start, end = Decimal(match[2]), None if match[3] == "open" else Decimal(match[3])
        return {"launch": (start, end)} if match[1] else {"start": start, "end": end}
    if token.isdecimal():
        return {"pid" if kind is P else "corr": int(token)}
    if match := re.fullmatch(r"(\w+)=(.*)", token):
        key, value = match[1], _text(match[2])
        if key == "gpus":
            return {key: tuple(value.split(","))}
        return {key: int(value) if re.fullmatch(r"-?\d+", value) else value}
    return {_WORDS[kind]: _ALIASES.get(token, _text(token))}


def _text(token: str) -> str:
    return str(json.loads(token)) if token.startswith('"') else token


# --------------------------------------------------------------------------------------------------------------
# Building


def build(
    path: Path,
    rows: str | Iterable[Row],
    *,
    schema: str = "2024.2",
    nvtx: Literal["inline", "registered", "both"] = "inline",
    env: Mapping[str, str] | None = None,
    meta: Mapping[str, str] | None = None,
    hw_id: int = 0,
    session_ns: int | None = SESSION_NS,
    shift_ns: int = 0,
    duration: Us | None = None,
    shuffle: int | None = None,
    sql: str = "",
) -> Path:
    """``path``, now an export that holds these rows; an older file there is replaced.

    schema      exporter release: "2020.3", "2024.2", "2025.1.3", … (RELEASES)
    nvtx        whether range texts are in ``text``, in ``textId``, or in both
    env         environment of nsys itself, written wherever this generation keeps it
    meta        further rows of META_DATA_EXPORT (EXPORT_META_DATA)
    hw_id       128 and up makes global ids negative
    session_ns  UTC time of the zero; None leaves the table out
    shift_ns    added to every time; ``session_ns`` again is what ``nsys export --ts-normalize`` does
    duration    of the capture in us; 1,000 after the last end unless said
    shuffle     seed: rows of every table out of order
    sql         a script to run at the end: further tables, a renamed or missing column, whatever is no timeline
    """
    known = tables(schema)
    timeline = parse(rows) if isinstance(rows, str) else list(rows)
    processes = {row.pid: P(row.pid) for row in timeline} | {row.pid: row for row in timeline if isinstance(row, P)}
    timeline += chain.from_iterable(_rank_mark(process, timeline) for process in processes.values())
    last_ns = max(chain((0,), *(_times_ns(row) for row in timeline)))
    duration_ns = last_ns + 1_000_000 if duration is None else ns(duration)

    ids = _Ids(hw_id, timeline)
    records: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for table, record in chain(
        _session(release_of(schema), env or {}, meta or {}, session_ns, shift_ns, duration_ns, ids),
        _processes(processes.values(), ids),
        *(_row(row, nvtx, ids) for row in timeline),
        _lanes(timeline, ids, "CUDA_GRAPH_NODE_EVENTS" if "CUDA_GRAPH_NODE_EVENTS" in known else "CUDA_GRAPH_EVENTS"),
    ):
        shifted = {key: record[key] + shift_ns for key in ("start", "end", "timestamp") if record.get(key) is not None}
        records[table].append(record | shifted)
    records["StringIds"] = ids.records()
    for found in records.values():
        found.sort(key=lambda record: int(record.get("start", record.get("timestamp", 0))))
        if shuffle is not None:
            random.Random(shuffle).shuffle(found)

    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as con:
        write(con, known, records)
        con.commit()
        con.executescript(sql)
    return path


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """All rows of a query; bytes that are no UTF-8 come as lone surrogates."""
    with closing(sqlite3.connect(path)) as con:
        con.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        return con.execute(sql).fetchall()


def global_id(pid: int, thread: int | None = None, hw_id: int = 0) -> int:
    """The globalPid of a process, or the globalTid of a thread, as the signed integer that SQLite keeps."""
    value = hw_id << 56 | 1 << 48 | pid << 24 | (0 if thread is None else pid + thread)
    return value - (1 << 64) if value >> 63 else value


def short_name(name: str) -> str:
    """The base name of a kernel: no parameters, template arguments, namespaces or return type."""
    while (bare := re.sub(r"<[^<>]*>|\([^()]*\)", "", name)) != name:
        name = bare
    return name.split("::")[-1].split(" ")[-1]


class _Ids:
    """What the rows of one file share: strings, correlation ids, NVTX domains."""

    def __init__(self, hw_id: int, rows: Iterable[Row]) -> None:
        self.domains: defaultdict[int, dict[str, int]] = defaultdict(dict)
        self.events = count(1)
        self._strings: dict[str, int] = {}
        self._hw_id = hw_id
        taken = {row.pid: 0 for row in rows}
        for row in rows:
            if isinstance(row, _Work | R):
                taken[row.pid] = max(taken[row.pid], row.corr or 0)
        self._correlations = {pid: count(last + 1) for pid, last in taken.items()}

    def string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def records(self) -> list[dict[str, Any]]:
        return [{"id": key, "value": text} for text, key in self._strings.items()]

    def correlation(self, pid: int) -> int:
        return next(self._correlations[pid])

    def of(self, pid: int, thread: int | None = None) -> int:
        return global_id(pid, thread, self._hw_id)


_Records = Iterator[tuple[str, dict[str, Any]]]
_COPIES = {"HtoD": (1, 1, 2), "DtoH": (2, 2, 1), "DtoD": (8, 2, 2), "HtoH": (9, 1, 1), "PtoP": (10, 2, 2)}


def _row(row: Row, nvtx: str, ids: _Ids) -> _Records:
    match row:
        case K() | M() | S() | G():
            yield from _work(row, ids)
        case R():
            yield _call(row, ids)
        case N():
            yield from _range(row, nvtx, ids)
        case O():
            yield "PROFILER_OVERHEAD", _span(row) | {"globalTid": ids.of(row.pid, 0), "nameId": ids.string(row.name)}
        case D():
            said = {"timestamp": ns(row.at), "severity": row.severity, "text": row.text, "globalPid": ids.of(row.pid)}
            yield "DIAGNOSTIC_EVENT", said


def _work(row: K | M | S | G, ids: _Ids) -> _Records:
    corr = ids.correlation(row.pid) if row.corr is None else row.corr
    facts: dict[str, Any]
    match row:
        case K():
            name = ids.string(row.name)
            facts = {"demangledName": name, "shortName": ids.string(short_name(row.name)), "mangledName": name}
            table, caller = "KERNEL", "cudaLaunchKernel_v7000" if row.node is None else "cudaGraphLaunch_v10000"
        case M():
            kind, source, target = _COPIES[row.kind]
            facts = {"copyKind": kind, "srcKind": source, "dstKind": target, "bytes": row.bytes}
            facts |= {"srcDeviceId": row.src, "dstDeviceId": row.dst}
            table, caller = "MEMCPY", "cudaMemcpyAsync_v3020"
        case S():
            facts = {"bytes": row.bytes, "memKind": 2}
            table, caller = "MEMSET", "cudaMemsetAsync_v3020"
        case G():
            facts = {"graphId": row.graph, "graphExecId": row.graph + 1}
            table, caller = "GRAPH_TRACE", "cudaGraphLaunch_v10000"
    lane = {"deviceId": row.dev, "contextId": row.dev + 1, "streamId": row.stream}
    origin = {"correlationId": corr, "globalPid": ids.of(row.pid), "graphNodeId": row.node}
    yield f"CUPTI_ACTIVITY_KIND_{table}", _span(row) | lane | origin | facts
    if row.launch is not None:
        yield _call(R(corr, *row.launch, caller, row.pid, row.thread), ids)


def _call(row: R, ids: _Ids) -> tuple[str, dict[str, Any]]:
    is_driver = re.match("cu[A-Z]", row.name) is not None
    facts = {"correlationId": row.corr, "globalTid": ids.of(row.pid, row.thread), "nameId": ids.string(row.name)}
    return "CUPTI_ACTIVITY_KIND_RUNTIME", _span(row) | facts | {"eventClass": int(is_driver)}


def _range(row: N, nvtx: str, ids: _Ids) -> _Records:
    domains = ids.domains[row.pid]
    if row.domain is not None and row.domain not in domains:
        domains[row.domain] = len(domains) + 1
        created = {"start": -1_000_000, "eventType": 75, "text": row.domain, "domainId": domains[row.domain]}
        yield "NVTX_EVENTS", created | {"globalTid": ids.of(row.pid, 0), "eventId": next(ids.events)}
    number = next(ids.events)
    yield (
        "NVTX_EVENTS",
        _span(row)
        | {
            "eventType": row.type,
            "eventId": number,
            "rangeId": number if row.type == 60 else None,
            "domainId": 0 if row.domain is None else domains[row.domain],
            "globalTid": ids.of(row.pid, row.thread),
            "endGlobalTid": None if row.end_thread is None else ids.of(row.pid, row.end_thread),
            "text": None if nvtx == "registered" else row.text,
            "textId": None if nvtx == "inline" else ids.string(row.text),
        },
    )


def _session(
    release: str,
    env: Mapping[str, str],
    meta: Mapping[str, str],
    session_ns: int | None,
    shift_ns: int,
    duration_ns: int,
    ids: _Ids,
) -> _Records:
    schema = RELEASES[release]
    about = {"EXPORT_PRODUCT_VERSION": release, "EXPORT_SCHEMA_VERSION": schema}
    about |= zip(("EXPORT_SCHEMA_VERSION_MAJOR", "EXPORT_SCHEMA_VERSION_MINOR"), schema.split("."), strict=False)
    is_normalized = shift_ns == session_ns
    shifts = {
        "EXPORT_PARAM_TIME_NORMALIZE": str(is_normalized).lower(),
        "EXPORT_PARAM_TIME_SHIFT": str(0 if is_normalized else shift_ns),
        "EXPORT_CONFIG_TIME_SHIFT": str(shift_ns),
        "EXPORT_PARAM_TABLES_TO_EXPORT": "",
        "EXPORT_PARAM_TIMES_TO_EXPORT": "",
    }
    for name, value in (about | {**meta}).items():
        yield "EXPORT_META_DATA", {"name": name, "value": value}
    for name, value in (about | shifts | {**meta}).items():
        yield "META_DATA_EXPORT", {"name": name, "value": value}
    yield "META_DATA_CAPTURE", {"name": "CAPTURE_EVENT_TYPE", "value": "Cuda"}
    for name, value in env.items():
        yield "META_DATA_CAPTURE", {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": f'{name}="{value}"'}
    if env:
        pairs = [f"{name}={value}" for name, value in env.items()]
        ids.string("".join(f"{pair}\0" for pair in pairs))
        text = (";" if version(release) >= (2023, 3) else "\0").join(pairs)
        yield "TARGET_INFO_SYSTEM_ENV", {"devStateName": "Local (CLI)", "name": "DeviceEnvironment", "value": text}
    if session_ns is not None:
        yield "TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": session_ns}
    times = {"duration": duration_ns, "startTime": shift_ns, "stopTime": shift_ns + duration_ns}
    yield "ANALYSIS_DETAILS", times | {"globalVid": 1 << 48}


def _processes(processes: Iterable[P], ids: _Ids) -> _Records:
    gpus: dict[str, int] = {}
    for process in processes:
        yield "PROCESSES", {"globalPid": ids.of(process.pid), "pid": process.pid, "name": process.name}
        for ordinal, gpu in enumerate(process.gpus):
            number = gpus.setdefault(gpu, len(gpus))
            yield "TARGET_INFO_CUDA_DEVICE", {"gpuId": number, "cudaId": ordinal, "pid": process.pid, "uuid": uuid(gpu)}
    for gpu, number in gpus.items():
        place = {"uuid": uuid(gpu), "busLocation": f"0000:{int(gpu, 16):02X}:00.0", "cuDevice": number, "vmId": 1 << 48}
        yield "TARGET_INFO_GPU", place | {"id": number, "deviceId": number, "name": "NVIDIA H200", "smCount": 132}


def _lanes(rows: Iterable[Row], ids: _Ids, node_table: str) -> _Records:
    """Contexts, streams and graph nodes, each once."""
    work = [row for row in rows if isinstance(row, K | M | S | G)]
    for pid, dev in dict.fromkeys((row.pid, row.dev) for row in work):
        context = {"hwId": 0, "vmId": 1, "processId": pid, "deviceId": dev, "contextId": dev + 1}
        yield "TARGET_INFO_CUDA_NULL_STREAM", context | {"streamId": 7}
        yield "TARGET_INFO_CUDA_CONTEXT_INFO", context | {"nullStreamId": 7}
    for pid, dev, stream in dict.fromkeys((row.pid, row.dev, row.stream) for row in work):
        context = {"hwId": 0, "vmId": 1, "processId": pid, "contextId": dev + 1}
        yield "TARGET_INFO_CUDA_STREAM", context | {"streamId": stream, "flag": 2}
    for pid, node in dict.fromkeys((row.pid, row.node) for row in work if row.node is not None):
        created = {"globalTid": ids.of(pid, 0), "nameId": ids.string("Node Creation"), "graphNodeId": node}
        yield node_table, {"start": -1_000_000, "end": -1_000_000} | created
    if node_table == "CUDA_GRAPH_NODE_EVENTS":
        for pid, graph in dict.fromkeys((row.pid, row.graph) for row in work if isinstance(row, G)):
            created = {"globalTid": ids.of(pid, 0), "nameId": ids.string("GraphExec Creation")}
            created |= {"graphId": graph, "graphExecId": graph + 1}
            yield "CUDA_GRAPH_EVENTS", {"start": -1_000_000, "end": -1_000_000} | created


def uuid(gpu: str) -> str:
    """The uuid of the physical GPU with this hexadecimal name."""
    return f"00000000-0000-0000-0000-{gpu:0>12}"


def _rank_mark(process: P, rows: Iterable[Row]) -> list[N]:
    if process.rank is None:
        return []
    times = [time for row in rows if row.pid == process.pid for time in _times_ns(row)] or [0]
    text = f"rank/{process.rank}" if process.world is None else f"rank/{process.rank}/world/{process.world}"
    return [N(Decimal(min(times)) / 1000, Decimal(max(times)) / 1000, text, process.pid, "ddpprof")]


def _times_ns(row: Row) -> list[int]:
    times = [getattr(row, "start", None), getattr(row, "end", None), *(getattr(row, "launch", None) or ())]
    return [ns(time) for time in times if time is not None]


def _span(row: _Work | R | N | O) -> dict[str, Any]:
    return {"start": ns(row.start), "end": None if row.end is None else ns(row.end)}


# --------------------------------------------------------------------------------------------------------------
# A big report for benchmarks

STEP_KERNELS = 1_000
_LEAD_NS = 7_000_000
_COMM_STREAM = 16
_COMPUTE = (
    GEMM,
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN",
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>>(int, T2, T3)",
    "void at::native::elementwise_kernel<(int)128, (int)2, at::native::BinaryFunctor<float, MulFunctor>>(int, T3)",
    "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(T3)",
    "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)2>>(T1)",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64>>(flash::Flash_fwd_params)",
)
_COMM = (NCCL, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)")

_Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Synthetic:
    """The exact answers of a synthetic report, by metric name: of each rank's whole capture, and of each (rank, step)."""

    ranks: dict[int, dict[str, int]]
    steps: dict[tuple[int, int], dict[str, int]]


def synthesize(
    path: Path,
    kernels: int = 493_000,
    *,
    ranks: int = 8,
    dense: bool = False,
    seed: int = 0,
    ops: int = 0,
    schema: str = "2024.2",
) -> Synthetic:
    """The answers of the report it writes: ``kernels // ranks`` kernels a rank, 8 % of them NCCL, in steps of STEP_KERNELS.

    Rank r is process PID + r on its device r. Launches run 7 ms ahead, the second half of each step's on another thread, as
    autograd's do. ``dense``: every kernel overlaps its neighbours of the same kind. ``ops``: that many NVTX ranges more, no
    text twice. Rows are in order of start; memory stays that of one step.
    """
    rng, known, ids, event = np.random.default_rng(seed), tables(schema), _Ids(0, ()), count(1)
    names = (*_COMPUTE, *_COMM)
    full, short = np.array([ids.string(name) for name in names]), np.array([ids.string(short_name(name)) for name in names])
    call = ids.string("cudaLaunchKernel_v7000")
    processes = [P(PID + rank, gpus=tuple(f"{gpu:x}" for gpu in range(ranks))) for rank in range(ranks)]
    pids = np.array([ids.of(process.pid) for process in processes])
    tids = np.array([ids.of(process.pid, 0) for process in processes])
    steps: dict[tuple[int, int], dict[str, int]] = {}
    windows: dict[int, tuple[int, int]] = {}
    end_ns = 2 * _LEAD_NS

    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as con:
        con.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")

        def put(table: str, values: Mapping[str, _Array]) -> None:
            order = np.argsort(values["start"], kind="stable")
            insert(con, table, known[table], {c.name: values[c.name][order].tolist() for c in known[table] if c.name in values})

        def put_ranges(start: _Array, end: _Array, rank: _Array, text: Sequence[str]) -> None:
            number = np.array([next(event) for _ in text])
            kind = {"eventType": np.full(len(text), 59), "domainId": np.zeros(len(text), int), "eventId": number}
            put("NVTX_EVENTS", {"start": start, "end": end, "globalTid": tids[rank], "text": np.array(text, object)} | kind)

        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
            create(con, table, known[table])
        each = np.arange(ranks)
        for step, first in enumerate(range(0, kernels // ranks, STEP_KERNELS)):
            size = min(STEP_KERNELS, kernels // ranks - first)
            blocks = [_step(rng, end_ns + 100_000, size, dense) for _ in range(ranks)]
            for number, block in enumerate(blocks):
                steps[number, step] = _answers(*block)
                windows[number] = (windows.get(number, (int(block[0][0]), 0))[0], int(block[1].max()))
            start, end, stream = (np.concatenate(column) for column in zip(*blocks, strict=True))
            rank, index = np.repeat(each, size), np.tile(np.arange(size), ranks)
            name = np.where(stream < _COMM_STREAM, index % len(_COMPUTE), len(_COMPUTE) + index % len(_COMM))
            work = {"start": start, "end": end, "deviceId": rank, "contextId": rank + 1, "streamId": stream}
            work |= {"correlationId": first + index + 1, "globalPid": pids[rank], "mangledName": full[name]}
            put("CUPTI_ACTIVITY_KIND_KERNEL", work | {"demangledName": full[name], "shortName": short[name]})
            calls = {"start": start - _LEAD_NS, "end": start - _LEAD_NS + 3_000, "nameId": np.full(len(start), call)}
            calls |= {"correlationId": first + index + 1, "globalTid": tids[rank] + 2 * (2 * index >= size)}
            put("CUPTI_ACTIVITY_KIND_RUNTIME", calls)
            opened, closed = (np.array([block[0][edge] for block in blocks]) - _LEAD_NS for edge in (0, -1))
            put_ranges(opened - 2_000, closed + 5_000, each, [f"step/{step}"] * ranks)
            end_ns = int(end.max())
        put_ranges(0 * each, 0 * each + end_ns, each, [f"rank/{rank}/world/{ranks}/device/{rank}" for rank in range(ranks)])
        for first in range(0, ops, 100_000):
            op = np.arange(first, min(first + 100_000, ops))
            put_ranges(op * 1_000, op * 1_000 + 900, op % ranks, [f"aten::mm, op_id = {number}" for number in op])

        records: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        session = _session(release_of(schema), {}, {}, SESSION_NS, 0, end_ns + 1_000_000, ids)
        for table, record in chain(session, _processes(processes, ids)):
            records[table].append(record)
        records["StringIds"] = ids.records()
        write(con, known, records)
        con.commit()
    return Synthetic({number: _whole(steps, number, window) for number, window in windows.items()}, steps)


def _step(rng: np.random.Generator, start_ns: int, size: int, is_dense: bool) -> tuple[_Array, _Array, _Array]:
    """Start, end and stream of the kernels of one step of one rank, in order of start."""
    chains = []
    comm_size = size * 8 // 100
    for stream, number, shortest, longest in (
        (7, size - comm_size, 3_000, 60_000),
        (_COMM_STREAM, comm_size, 200_000, 500_000),
    ):
        pitch = rng.integers(shortest, longest, number)
        start = start_ns + 1_000 * stream + np.cumsum(pitch) - pitch
        length = 2 * pitch if is_dense else (pitch * rng.uniform(0.5, 0.99, number)).astype(np.int64)
        chains.append((start, start + length, stream + 4 * is_dense * (np.arange(number) % 2)))
    start, end, streams = (np.concatenate(column) for column in zip(*chains, strict=True))
    order = np.argsort(start, kind="stable")
    return start[order], end[order], streams[order]


def _answers(start: _Array, end: _Array, stream: _Array) -> dict[str, int]:
    """Metrics over [first start, last end), by counting what runs between every two neighbouring edges."""
    is_comm = stream >= _COMM_STREAM
    edges = np.concatenate([start, end])
    order = np.argsort(edges, kind="stable")
    width = np.diff(edges[order])
    compute, comm = (np.cumsum(np.concatenate([kind, -kind])[order])[:-1] > 0 for kind in (1 - is_comm, 1 * is_comm))
    parts = {
        "step_ns": compute | ~compute,
        "compute_ns": compute,
        "comm_ns": comm,
        "overlap_ns": compute & comm,
        "exposed_comm_ns": comm & ~compute,
        "compute_only_ns": compute & ~comm,
        "idle_ns": ~(compute | comm),
    }
    counts = {"n_compute": int(np.sum(~is_comm)), "n_comm": int(np.sum(is_comm))}
    return {name: int(width[part].sum()) for name, part in parts.items()} | counts


def _whole(steps: Mapping[tuple[int, int], Mapping[str, int]], rank: int, window: tuple[int, int]) -> dict[str, int]:
    """The answers of a rank's whole capture: steps do not touch, so they add up, and between them all is idle."""
    mine = [answers for (owner, _), answers in steps.items() if owner == rank]
    total = {name: sum(answers[name] for answers in mine) for name in mine[0]}
    step_ns = window[1] - window[0]
    return total | {"step_ns": step_ns, "idle_ns": total["idle_ns"] + step_ns - total["step_ns"]}
