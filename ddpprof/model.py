"""Every table, column, unit and metric, declared once.

``Trace`` is what a report says; ``Analysis`` is what we conclude from it. JSON keys, report columns, the docs
and the direction of a threshold derive from the declarations here (see ``columns``).

All times are int64 nanoseconds on one report's clock, intervals are half-open ``[start, end)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.signedinteger[Any]]

FORMAT_VERSION = 1
FEW_STEPS = 5
"""Medians over fewer steps than this rest on little, and reports say so."""

MISSING = -(2**63)
"""Stands for "not in the report" in the int64 columns of a Trace; an Analysis has None instead."""

Evidence = Literal["gpu-kernels", "host-ranges"]
ReportKind = Literal["nsys-sqlite", "nsys-parquet", "kineto"]
RankSource = Literal["mark", "environment", "option", "distributedInfo", "unknown"]
Severity = Literal["note", "warning", "failure"]
Better = Literal["lower", "higher"]

WARNING_CODES: Mapping[str, str] = {
    "graph-trace-opaque": "CUDA graphs were captured whole: the kernels in them are not in the report",
    "capture-incomplete": "the capture was cut, clipped or lost events",
    "missing-ranks": "the job has more ranks than the input shows",
    "rank-unknown": "a process could not be given its rank",
    "rank-overruled": "a rank was given by --rank though the report itself tells another",
    "same-stream": "communication runs on the compute stream, so it cannot overlap",
    "no-comm": "no communication between ranks was found",
    "no-compute": "no compute was found",
    "dropped-rows": "rows that cannot be true were left out",
    "time-sliced": "several ranks share one GPU: intervals include time switched out",
    "clock-skew": "the reports' clocks differ: cross-rank times rest on the ends of collectives, or are not comparable",
    "collectives-differ": "ranks differ in number of collectives",
    "profiler-overhead": "the profiler itself worked inside a measured step",
    "diagnostic": "the profiler warned about this capture",
    "duplicate-rank": "two processes claim the same rank, or one capture was given twice",
    "no-steps": "no step marks: the window is the whole capture",
    "few-steps": "fewer than five complete steps: the medians have no spread to speak of",
    "launch-mismatch": "launches without kernels, or kernels before their launch",
    "records": "the run's records could not be joined",
    "fallback-capture": "captured by torch.profiler because nsys could not be had",
    "retried": "the capture was taken again because the first did not show what it must",
    "stale-export": "the export is older than the report it came from",
    "idle-device": "a process touched further devices with next to no work",
    "unnamed-traffic": "long kernels on side streams that no pattern calls communication",
}
"""The stable words of ``warnings[].code`` and what each means."""


def column(unit: str, text: str, *, better: Better | None = None, **default: Any) -> Any:
    """A dataclass field with its unit (``ns``, ``bytes``, ``ratio``, ``count``, ``id``, ``text``) and meaning."""
    return field(metadata={"unit": unit, "text": text, "better": better}, **default)


@dataclass(frozen=True, slots=True)
class Column:
    """One declared column: name, unit, meaning, and which direction is better (None when neither is)."""

    name: str
    unit: str
    text: str
    better: Better | None


def columns(table: type) -> Iterator[Column]:
    """The declared columns of a row class, in order."""
    for item in fields(table):
        meta = item.metadata
        if meta:
            yield Column(item.name, meta["unit"], meta["text"], meta["better"])


# --------------------------------------------------------------------------------------------------------------
# Trace: what a report says


class Source(IntEnum):
    """What kind of row an operation was. A fact; whether it is communication is judged by analysis.kernels."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    GRAPH = 3
    HOST = 4


class Kind(IntEnum):
    """What an operation is taken for. GRAPH is a whole CUDA graph: opaque, neither compute nor communication."""

    COMPUTE = 0
    COMM = 1
    MEMORY = 2
    GRAPH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInfo:
    """Where a trace came from."""

    path: str = column("text", "the file or folder as given, name only")
    kind: ReportKind = column("text", "which reader read it")
    exporter_version: str | None = column("text", "version of the program that wrote the file", default=None)
    schema_version: str | None = column("text", "EXPORT_SCHEMA_VERSION", default=None)
    session_start_utc_ns: int | None = column("ns", "UTC time of the report's zero", default=None)


SETTINGS = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_ENABLE_TIMING",
)
"""The variables of a captured environment, beside those that tell a rank, that are kept: each can cost overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a report. Names, arguments and environment are never kept, but for those of SETTINGS.

    ``key`` is what the report identifies it by (masked globalPid, or the pid), ``window`` the captured window of
    its rank mark on this report's clock, None without one; ``settings`` are the SETTINGS that were set, name and value.
    """

    key: int
    pid: int
    rank: int | None = None
    rank_source: RankSource = "unknown"
    world_size: int | None = None
    window: tuple[int, int] | None = None
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device as one process sees it; ``gpu`` is the physical GPU's identity (uuid, else bus), None when unknown."""

    process: int
    device_id: int
    name: str | None = None
    gpu: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Operations:
    """Device operations (or, on a run without device, the host ranges that are the execution).

    Numpy columns of one length, ordered by process, device, start. ``process`` indexes ``Trace.processes``,
    ``device`` is the process-local ordinal (-1: none), ``name`` indexes ``Trace.names``, ``launch_ns`` and
    ``launch_thread`` are MISSING when the launch is not in the capture. Copies are named "memcpy HtoD" and the like.
    """

    process: Ints
    device: Ints
    stream: Ints
    start_ns: Ints
    end_ns: Ints
    launch_ns: Ints
    launch_thread: Ints
    name: Ints
    source: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, index: Any) -> Operations:
        """The rows at ``index`` (a mask, slice or positions)."""
        return Operations(**{item.name: getattr(self, item.name)[index] for item in fields(self)})


@dataclass(frozen=True, eq=False, kw_only=True)
class Ranges:
    """Host ranges that say something (marks, step ranges, collective calls), ordered by start.

    ``text`` indexes ``Trace.texts``; ``end_ns`` is MISSING for a range still open at the end;
    ``is_pushed`` is true for push/pop ranges, which lie on one thread by definition. Start/end ranges may end on
    another thread.
    """

    process: Ints
    thread: Ints
    start_ns: Ints
    end_ns: Ints
    text: Ints
    is_pushed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Warning:
    """Something about the input that limits what the numbers mean. ``code`` is one of WARNING_CODES."""

    code: str
    message: str
    report: int | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """One report, read. ``evidence`` says whether ``operations`` are device work or host ranges.

    ``overheads`` are (process, start, end) of the profiler's own work. ``extent`` is the captured window (start,
    end), None when the report does not tell. ``is_graph_opaque`` holds the indices of processes with graph work
    that the report does not show kernel by kernel. ``has_launches`` says whether the report has launch calls at all;
    ``lost_launches`` are (process, start) of kernel launches whose kernel is not in the report. ``waits`` are (process,
    start, end) of host calls that return only when the device has done its work (cudaDeviceSynchronize and the like).
    ``is_incomplete`` says that operations are missing, and not where: cut off, a clip, records lost.
    """

    report: ReportInfo
    evidence: Evidence
    processes: tuple[Process, ...]
    devices: tuple[Device, ...]
    operations: Operations
    names: tuple[str, ...]
    ranges: Ranges
    texts: tuple[str, ...]
    overheads: tuple[tuple[int, int, int], ...] = ()
    extent: tuple[int, int] | None = None
    is_graph_opaque: frozenset[int] = frozenset()
    has_launches: bool = False
    lost_launches: tuple[tuple[int, int], ...] = ()
    waits: tuple[tuple[int, int, int], ...] = ()
    is_incomplete: bool = False
    warnings: tuple[Warning, ...] = ()


# --------------------------------------------------------------------------------------------------------------
# Records: what a run wrote about itself, one JSON line a row, ``table`` names the class


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """First line of a rank's records."""

    rank: int = column("id", "RANK")
    world_size: int = column("count", "WORLD_SIZE")
    case: str = column("text", "name of the case")
    device: str = column("text", "cuda or cpu")
    backend: str = column("text", "nccl or gloo")
    bucket_cap_mb: float | None = column("MiB", "the cap given to DDP; missing when it was left at DDP's default")
    iterations: int = column("count", "timed iterations")
    seed: int = column("id", "seed of parameters and data")
    torch_version: str = column("text", "torch.__version__")
    nccl_version: str | None = column("text", "NCCL version, None on a CPU run", default=None)
    clock: str = column("text", "what device times are measured with: cuda-event or wall", default="wall")
    captured_step: int | None = column("id", "number of the first captured step, None when it was not reached", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRecord:
    """One timed iteration of one rank. Device times are CUDA events on a GPU, wall clock on a CPU (``clock``)."""

    rank: int = column("id", "RANK")
    step: int = column("id", "step number, warm-up counted")
    is_captured: bool = column("text", "true for a step under the profiler, false for the timed ones")
    step_ns: int = column("ns", "the whole step", better="lower")
    forward_ns: int = column("ns", "forward, host time", better="lower")
    backward_host_ns: int = column("ns", "host time of backward(): stream-ordered on a GPU, not finished work")
    backward_ns: int = column("ns", "backward on the clock of the run; of several, from the first to the last", better="lower")
    optimizer_host_ns: int = column("ns", "host time of the optimizer", better="lower")
    loss: float = column("text", "loss of this rank's part of the batch, the last part when there are several")
    replica_hash: str | None = column(
        "text", "hash of all parameters after the step, equal on all ranks; missing where the next step followed at once"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRecord:
    """One bucket of one iteration, from the comm hook, host clock (``time.perf_counter_ns``) relative to step start."""

    rank: int = column("id", "RANK")
    step: int = column("id", "step number")
    bucket: int = column("id", "bucket index in launch order")
    size_bytes: int = column("bytes", "bytes of the bucket's buffer")
    is_last: bool = column("text", "GradBucket.is_last()")
    parameters: list[int] = column("text", "parameter indices in the order of the bucket")
    ready_ns: int = column("ns", "host time at which the hook was entered, from the start of the step")
    launch_ns: int = column("ns", "host time at which the all-reduce call returned, from the start of the step")
    done_ns: int | None = column(
        "ns", "host time at which its Future was done, from the start of the step; missing on a GPU", default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """What DDP reduces, and how it was told to: once a rank. Lists are by parameter index."""

    rank: int = column("id", "RANK")
    names: list[str] = column("text", "names of the parameters")
    size_bytes: list[int] = column("bytes", "bytes of each")
    dtypes: list[str] = column("text", "dtype of each")
    devices: list[str] = column("text", "device of each")
    is_sparse: list[bool] = column("text", "whether the gradient of each is sparse")
    find_unused_parameters: bool = column("text", "as given to DDP")
    static_graph: bool = column("text", "as given to DDP")
    is_last_small: bool = column("text", "whether DDP_SET_LAST_BUCKET_CAP=1 was set", default=False)
    probe_bytes: list[int] = column("bytes", "sizes of all-reduces that were timed alone before the first step")
    probe_ns: list[int] = column("ns", "median time of one of each size, on the host's clock")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientRecord:
    """The gradients of one step in the order in which they came, just before the Reducer was told; warm-up too."""

    rank: int = column("id", "RANK")
    step: int = column("id", "step number")
    started_ns: int = column("ns", "start of the step on the host's monotonic clock, which all ranks of a host share")
    parameters: list[int] = column("text", "parameter indices in the order of their gradients")
    ready_ns: list[int] = column("ns", "host time of each, from the start of the step")
    step_ns: int | None = column("ns", "the whole step of somebody's own job; of a case its iteration tells it", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerRecord:
    """The DDP logger's runtime fields after an iteration, under their own names (they lag one iteration)."""

    rank: int = column("id", "RANK")
    step: int = column("id", "step number after which it was read")
    fields: dict[str, Any] = column("text", "name to value, as DDP gives them")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRecord:
    """Buckets of the Reducer at one moment: ``initial`` before the rebuild, ``rebuilt`` as captured."""

    rank: int = column("id", "RANK")
    stage: str = column("text", "initial or rebuilt")
    is_rebuilt: bool = column("text", "whether the Reducer rebuilt its buckets")
    size_bytes: list[int] = column("bytes", "bytes of each bucket in index order")
    parameters: list[list[int]] = column("text", "parameter indices of each bucket, empty where not known")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """Last line of a rank that failed: the first line of the error, and the parameters that DDP found unused."""

    rank: int = column("id", "RANK")
    step: int = column("id", "step in which it failed")
    error: str = column("text", "class of the exception")
    message: str = column("text", "its first line, and the names of parameters that DDP found unused")
    is_expected: bool = column("text", "true when the case must fail in just this way")


RECORD_TABLES: Mapping[str, type] = {
    "run": RunRecord,
    "iteration": IterationRecord,
    "bucket": BucketRecord,
    "logger": LoggerRecord,
    "layout": LayoutRecord,
    "model": ModelRecord,
    "gradient": GradientRecord,
    "failure": FailureRecord,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """All record rows of a run, every rank, in file order."""

    runs: tuple[RunRecord, ...] = ()
    iterations: tuple[IterationRecord, ...] = ()
    buckets: tuple[BucketRecord, ...] = ()
    loggers: tuple[LoggerRecord, ...] = ()
    layouts: tuple[LayoutRecord, ...] = ()
    models: tuple[ModelRecord, ...] = ()
    gradients: tuple[GradientRecord, ...] = ()
    failures: tuple[FailureRecord, ...] = ()


# --------------------------------------------------------------------------------------------------------------
# Analysis: what we conclude


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The numbers of one window. C, N, M are the unions of compute, comm, memory; S is the window."""

    step_ns: int = column("ns", "|S|: length of the window", better="lower")
    compute_ns: int = column("ns", "|C|: time with compute running")
    comm_ns: int = column("ns", "|N|: time with communication running")
    overlap_ns: int = column("ns", "|C ∩ N|: time with both running", better="higher")
    exposed_comm_ns: int = column("ns", "|N \\ C|: communication with no compute beside it", better="lower")
    compute_only_ns: int = column("ns", "|C \\ N|: compute with no communication beside it")
    memory_only_ns: int = column("ns", "|M \\ (C ∪ N)|: copies and sets with nothing beside them", better="lower")
    idle_ns: int = column("ns", "|S \\ (C ∪ N ∪ M)|: nothing running", better="lower")
    compute_span_ns: int | None = column("ns", "last compute end − first compute start; missing without compute")
    comm_span_ns: int | None = column("ns", "last comm end − first comm start; missing without comm")
    tail_ns: int | None = column(
        "ns", "max(0, last comm end − end of the last backward compute); missing without either", better="lower"
    )
    overlap_ratio: float | None = column("ratio", "overlap / comm; missing without comm", better="higher")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow(Metrics):
    """One (report, process, device): medians over its complete steps (the lower middle one of an even number)."""

    rank: int | None = column("id", "rank of the job, missing when it could not be told")
    rank_source: RankSource = column("text", "where the rank came from")
    report: int = column("id", "index into reports")
    pid: int = column("id", "process id in the report")
    device_id: int | None = column("id", "process-local CUDA ordinal, missing on a host run")
    device_name: str | None = column("text", "model of the GPU")
    gpu: int | None = column("id", "number of the physical GPU in this input, missing when it cannot be told")
    is_time_sliced: bool = column("text", "whether other ranks ran on the same physical GPU")
    steps: int = column("count", "complete steps that the medians are over")
    n_compute: int = column("count", "compute intervals")
    n_comm: int = column("count", "communication intervals")
    n_memory: int = column("count", "copies and sets")
    n_left_out: int = column("count", "operations that belong to no step")
    n_before_last_compute: int | None = column(
        "count", "comm intervals launched before the last (focus, else all) compute interval; missing without launches"
    )
    compute_sum_ns: int = column("ns", "sum of compute intervals, overlaps counted twice")
    comm_sum_ns: int = column("ns", "sum of comm intervals, overlaps counted twice")
    spread: dict[str, tuple[int, int]] = column("ns", "metric name to (least, greatest) over complete steps")
    unreliable: tuple[str, ...] = column("text", "warning codes that make this row's numbers unreliable")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow(Metrics):
    """One step of one (report, process, device)."""

    rank: int | None = column("id", "rank of the job")
    report: int = column("id", "index into reports")
    pid: int = column("id", "process id in the report")
    device_id: int | None = column("id", "process-local CUDA ordinal")
    step: int | None = column("id", "number of the step, missing for a whole capture or an unnumbered window")
    complete: bool = column("text", "whether all of the step is in the capture; others are left out of medians")
    reason: str | None = column("text", "why a step is not in the medians")
    start_ns: int = column("ns", "start of the window on the report's clock")
    end_ns: int = column("ns", "end of the window")
    n_compute: int = column("count", "compute intervals")
    n_comm: int = column("count", "communication intervals")
    n_memory: int = column("count", "copies and sets")
    n_before_last_compute: int | None = column("count", "comm intervals launched before the last compute interval")
    compute_sum_ns: int = column("ns", "sum of compute intervals")
    comm_sum_ns: int = column("ns", "sum of comm intervals")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRow:
    """One communication interval of one step, with the DDP bucket it carries where that can be told."""

    rank: int | None = column("id", "rank of the job")
    report: int = column("id", "index into reports")
    pid: int = column("id", "process id in the report")
    device_id: int | None = column("id", "process-local CUDA ordinal")
    step: int | None = column("id", "number of the step")
    bucket: int | None = column("id", "bucket index, from its mark or by order of launch")
    operation: str = column("text", "collective by kernel name, 'unknown' when the name does not tell")
    size_bytes: int | None = column("bytes", "bytes of the bucket, from its mark or the run's records")
    parameters: tuple[int, ...] | None = column("text", "parameter indices, from the run's records")
    launch_ns: int | None = column("ns", "host time of the launch call")
    queue_ns: int | None = column("ns", "start − launch: time queued", better="lower")
    start_ns: int = column("ns", "start on the report's clock")
    end_ns: int = column("ns", "end on the report's clock")
    overlap_ns: int = column("ns", "part with compute beside it", better="higher")
    exposed_ns: int = column("ns", "part with no compute beside it", better="lower")
    algbw: float | None = column("bytes/s", "size / duration", better="higher")
    busbw: float | None = column("bytes/s", "algbw × 2(n−1)/n for an all-reduce over n ranks", better="higher")
    attribution: Literal["range", "nccl-range", "order"] = column("text", "how the bucket was found")


@dataclass(frozen=True, slots=True, kw_only=True)
class FocusRow:
    """The same question for one pattern of compute; medians as in RankRow."""

    rank: int | None = column("id", "rank of the job")
    report: int = column("id", "index into reports")
    pid: int = column("id", "process id in the report")
    device_id: int | None = column("id", "process-local CUDA ordinal")
    n_compute: int = column("count", "intervals whose name has the pattern")
    compute_ns: int = column("ns", "time with one of them running")
    compute_span_ns: int | None = column("ns", "last end − first start; missing without any")
    overlap_ns: int = column("ns", "time with one of them and communication running", better="higher")


@dataclass(frozen=True, slots=True, kw_only=True)
class Focus:
    """``--compute PATTERN``: the compute that one question is about."""

    pattern: str
    ranks: tuple[FocusRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """``--show-kinds``: what an operation name was taken for."""

    kind: str = column("text", "compute, comm, memory or graph")
    name: str = column("text", "name of the operation")
    operation: str | None = column("text", "collective by kernel name")
    count: int = column("count", "how many")
    total_ns: int = column("ns", "sum of durations")


Clock = Literal["one report", "session start", "collective ends", "none"]
"""What makes the ranks' times comparable: one report has one clock; reports of one host tell their session's start; else the
ends of matched collectives, which all ranks see at nearly the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """One collective of one step as all ranks saw it. Lists are in the order of ``Across.ranks``."""

    step: int | None = column("id", "number of the step")
    place: int = column("id", "place among the collectives of the step, in order of launch")
    bucket: int | None = column("id", "bucket index, where a mark tells it")
    operation: str = column("text", "collective by kernel name, 'unknown' when the name does not tell")
    size_bytes: int | None = column("bytes", "bytes of the bucket, where it could be told")
    transfer_ns: int = column("ns", "transfer estimate: the shortest length over ranks", better="lower")
    length_ns: list[int] = column("ns", "length on each rank, its waiting for the others included")
    wait_ns: list[int] = column("ns", "length less the transfer estimate, on each rank")
    arrival_ns: list[int] | None = column("ns", "start after the first rank's; missing without a common clock")
    last: int | None = column("id", "place in Across.ranks of the rank that arrived last, beyond the clock's uncertainty")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossRank:
    """One row of ``Analysis.ranks`` among the others; medians over complete steps (the lower middle one of an even number)."""

    rank: int | None = column("id", "rank of the job")
    report: int = column("id", "index into reports")
    pid: int = column("id", "process id in the report")
    device_id: int | None = column("id", "process-local CUDA ordinal")
    offset_ns: int | None = column("ns", "what was added to its report's clock; missing without a common clock")
    n_collectives: int = column("count", "collectives that were paired, over all steps")
    n_last: int | None = column(
        "count", "of them, those at which it arrived last, beyond the clock's uncertainty; missing as late_ns"
    )
    wait_ns: int = column(
        "ns", "waiting for other ranks, summed over the collectives of a step (several may wait side by side)", better="lower"
    )
    late_ns: int | None = column(
        "ns",
        "arrival at the last collective of a step, after the median of the other ranks; missing without a common clock, "
        "or where GPUs are shared in turns",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Across:
    """What can be said over ranks, of those with communication.

    ``uncertainty_ns`` is how far two ranks' clocks may be apart, None without a common clock. ``refused`` is why collectives
    were not (all) paired, None when they were; without any there are no ``ranks``. ``transfer_ns`` is the transfer estimates of
    a step together, median over steps. ``collectives`` are listed where ``Analysis.buckets`` are.
    """

    clock: Clock
    uncertainty_ns: int | None
    refused: str | None
    transfer_ns: int | None = None
    ranks: tuple[AcrossRank, ...]
    collectives: tuple[CollectiveRow, ...]


CAUSES: Mapping[str, str] = {
    "communication-slow": "the transfer itself takes longer than there is compute to hide it",
    "bucket-scheduling": "gradients are ready long before their bucket is sent",
    "compute-tail": "communication is hidden, and the backward of the last layers decides the step",
    "synchronisation-wait": "the host waits for the device inside the step, and the device then for the host",
    "parameter-granularity": "many small kernels with gaps between them: bound by launches",
    "straggler-rank": "one rank arrives last, the others wait for it",
    "contention": "kernels run slower while communication is beside them",
    "bucket-too-small": "many short collectives, bound by latency",
    "periodic-spikes": "every n-th step is long",
    "settings": "a setting costs overlap, or buys nothing",
}
"""The causes that hold a step back: ``findings[].code`` and what each means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of one report's clock that a finding points at."""

    report: int = column("id", "index into reports")
    pid: int = column("id", "process id in the report")
    start_ns: int = column("ns", "from, on the report's clock")
    end_ns: int = column("ns", "to")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause (one of CAUSES) that holds the step back, as it is on the rank that it costs most."""

    code: str = column("text", "the cause")
    severity: Severity = column("text", "warning, or note from half of what makes a warning")
    rank: int | None = column("id", "rank that it costs most; missing when its rank could not be told", default=None)
    message: str = column("text", "what was seen")
    evidence: dict[str, Any] = column("text", "metric name to value", default_factory=dict)
    cost_ns: int | None = column("ns", "how much shorter a step would be, at most, without it", default=None)
    step_ns: int | None = column("ns", "the step that the cost is part of", default=None)
    on_ranks: tuple[int, ...] = column("id", "all ranks on which it was seen", default=())
    sure: Literal["high", "medium", "low"] = column("text", "how far the evidence goes: high, medium or low", default="medium")
    advice: str = column("text", "what to try", default="")
    spans: tuple[Span, ...] = column("text", "stretches of the timeline to look at, the longest first", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class NotJudged:
    """A cause that the input does not let be judged."""

    code: str = column("text", "the cause")
    reason: str = column("text", "what is missing, or in the way")


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The one value that every report is a rendering of. Rows are ordered by rank, report, process, device, step."""

    ddpprof_version: str
    case: str | None
    evidence: Evidence
    reports: tuple[ReportInfo, ...]
    window: Literal["step", "capture"]
    world_size: int | None
    ranks: tuple[RankRow, ...]
    breakdown: tuple[StepRow, ...]
    buckets: tuple[BucketRow, ...]
    focus: Focus | None
    kinds: tuple[KindRow, ...]
    findings: tuple[Finding, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    across: Across | None = None
    warnings: tuple[Warning, ...] = ()
    timings: tuple[TimingRow, ...] = ()

    def frame(self, table: str) -> Any:
        """A pandas DataFrame of ``ranks``, ``breakdown``, ``buckets``, ``kinds``, ``across``, ``collectives``, ``findings``,
        ``timings`` or ``warnings``; ``across`` is a row a rank. Raises UsageError for any other.
        """
        import pandas

        from ddpprof.errors import UsageError

        names = {"ranks": RankRow, "breakdown": StepRow, "buckets": BucketRow, "kinds": KindRow}
        names |= {"across": AcrossRank, "collectives": CollectiveRow}
        names |= {"findings": Finding, "warnings": Warning, "timings": TimingRow}
        if table not in names:
            raise UsageError(f"no table {table!r}", f"Tables are {', '.join(names)}.")
        if table in ("across", "collectives"):
            found = () if self.across is None else self.across.ranks if table == "across" else self.across.collectives
        else:
            found = getattr(self, table)
        rows = [{item.name: getattr(row, item.name) for item in fields(row)} for row in found]
        return pandas.DataFrame(rows, columns=[item.name for item in fields(names[table])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Order statistics of unprofiled iterations; each is one of the measured values."""

    n: int = column("count", "iterations")
    median_ns: int = column("ns", "median (the lower middle one of an even number)", better="lower")
    p95_ns: int = column("ns", "95th percentile, by nearest rank", better="lower")
    min_ns: int = column("ns", "least", better="lower")
    max_ns: int = column("ns", "greatest", better="lower")
    mad_ns: int = column("ns", "median absolute deviation from the median", better="lower")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingRow(Timing):
    """One phase of the unprofiled iterations, of one rank or of the job."""

    case: str | None = column("text", "name of the case")
    rank: int | None = column("id", "rank of the job; missing for the job itself: in each step its slowest rank")
    phase: str = column("text", "step, backward, backward host or optimizer host")
    clock: str | None = column("text", "what it is timed with: cuda-event, or wall for the host's clock")
    caution: str | None = column("text", "why no conclusion should rest on it; missing when it is steady")


# --------------------------------------------------------------------------------------------------------------
# Acceptance: the formal experiment, held against what must come out


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRow:
    """One claim of the experiment, counted over all cases that it is about."""

    group: str = column("text", "what the claim is about")
    what: str = column("text", "the claim")
    counted: str = column("text", "what is counted: rows, cases, ranks")
    expected: int = column("count", "how many there must be")
    seen: int = column("count", "how many there were that are as they must be")
    verdict: Literal["PASS", "FAIL"] = column("text", "PASS when all that must be is there, and nothing else")
    problems: tuple[str, ...] = column("text", "what is not as it must be, by case; none on PASS")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRow:
    """The three clocks of one rank side by side, each with its own zero: never added, never subtracted."""

    case: str = column("text", "name of the case")
    rank: int = column("id", "rank of the job")
    hook_ready_ns: int | None = column("ns", "first bucket ready, host time from the start of the captured step")
    hook_launch_ns: int | None = column("ns", "last all-reduce call returned, host time from the start of the captured step")
    logger_compute_ns: int | None = column("ns", "backward_compute_time of the DDP logger")
    logger_comm_ns: int | None = column("ns", "backward_comm_time of the DDP logger")
    logger_overlap_ns: int | None = column("ns", "backward_compute_comm_overlap_time of the DDP logger: a span, not overlap")
    timeline_compute_ns: int = column("ns", "time with compute running, from the report")
    timeline_comm_ns: int = column("ns", "time with communication running, from the report")
    timeline_overlap_ns: int = column("ns", "time with both running, from the report")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The step of one case against that of another, by their medians; the ends are those of one deviation (MAD) each way."""

    case: str = column("text", "name of the case")
    against: str = column("text", "name of the case that it is compared with")
    median_ratio: float = column("ratio", "median step of the one / median step of the other")
    least_ratio: float = column("ratio", "(median − MAD) / (median + MAD)")
    most_ratio: float | None = column("ratio", "(median + MAD) / (median − MAD); missing when that is no number above 0")
    caution: str | None = column("text", "why no conclusion should rest on it; missing when both are steady")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What ``verify`` concludes. ``not_run`` are the cases that could not be run, each with the reason; ``timings`` are
    those of the jobs; ``granularity`` is fine against coarse parameters, None when not both were timed.
    """

    ddpprof_version: str
    torch_version: str | None
    device: str
    evidence: Evidence | None
    cases: tuple[str, ...]
    ranks: int
    iterations: int
    rows: tuple[AcceptanceRow, ...]
    timings: tuple[TimingRow, ...]
    granularity: Comparison | None
    clocks: tuple[ClockRow, ...]
    notes: tuple[str, ...]
    not_run: tuple[str, ...]

    @property
    def is_passed(self) -> bool:
        """Whether every claim holds."""
        return all(row.verdict == "PASS" for row in self.rows)


# --------------------------------------------------------------------------------------------------------------
# Sweep and history: runs beside each other


TimedBy = Literal["iterations", "timed-steps", "captured-steps"]
"""What step times of a sweep are: a case's unprofiled iterations, a script's ``ddpprof.timed_step``, steps under nsys."""

Sameness = Literal["ignored", "fits", "parameters"]
"""Why all caps of a sweep give the same buckets: the job ignores the cap, all fits below the smallest cap, or each bucket
is as large as the largest cap already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRow:
    """One cap of a sweep. Overlap, exposed and tail are of one rank: the one with the most exposed communication."""

    cap_mb: float = column("MiB", "bucket_cap_mb given to DDP")
    rounds: int = column("count", "rounds that ended well")
    timing: Timing | None = column("text", "step of the slowest rank over all rounds; missing when none was timed")
    launches: int | None = column("count", "communication intervals a step; missing without a capture", better="lower")
    bucket_bytes: tuple[int, ...] | None = column("bytes", "each bucket in order of launch; missing when not marked")
    worst_rank: int | None = column("id", "rank with the most exposed communication")
    overlap_ns: int | None = column("ns", "overlap on the worst rank", better="higher")
    overlap_ratio: float | None = column("ratio", "overlap / comm on the worst rank", better="higher")
    exposed_comm_ns: int | None = column("ns", "exposed communication on the worst rank", better="lower")
    tail_ns: int | None = column("ns", "tail on the worst rank", better="lower")
    is_correct: bool | None = column("text", "replicas equal, losses as at the other caps; missing when not recorded")
    unsteady: str | None = column("text", "why no conclusion should rest on its iterations")
    failure: str | None = column("text", "first line of what went wrong at this cap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The same job at several bucket caps, rows in order of cap.

    ``recommended_mb`` are the caps whose spread does not set them apart from the fastest; none when there is no telling.
    """

    ddpprof_version: str
    case: str | None
    world_size: int | None
    device: str
    device_model: str | None
    is_time_sliced: bool
    evidence: Evidence
    timed_by: TimedBy
    clock: str | None
    rounds: int
    rows: tuple[CapRow, ...]
    recommended_mb: tuple[float, ...]
    sameness: Sameness | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRank(Metrics):
    """The metrics of one rank of a kept run."""

    rank: int | None = column("id", "rank of the job, missing when it could not be told")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """One run in the results database. ``timing`` is of unprofiled iterations, of captured steps where there are no others."""

    finished_utc: str = column("text", "when it ended: ISO 8601, UTC")
    case_name: str = column("text", "name of the case, job for somebody's own")
    kind: str = column("text", "profile, or sweep for one cap of a sweep")
    ddpprof_version: str = column("text", "version of ddpprof")
    torch_version: str | None = column("text", "version of torch")
    nsys_version: str | None = column("text", "version of nsys, missing when torch.profiler captured")
    nccl_version: str | None = column("text", "version of NCCL, missing on a CPU run")
    git_commit: str | None = column("text", "short hash of the working directory's commit")
    device: str = column("text", "cuda or cpu")
    device_model: str | None = column("text", "model of GPU or CPU")
    evidence: str | None = column("text", "gpu-kernels or host-ranges; missing in runs kept before schema version 2")
    clock: str | None = column("text", "what timing is measured with; missing when it was not recorded")
    world_size: int | None = column("count", "ranks of the job")
    bucket_cap_mb: float | None = column("MiB", "cap given to DDP")
    timing: Timing | None = column("text", "step of the slowest rank; missing when none was timed")
    ranks: tuple[KeptRank, ...] = column("text", "the metrics of each rank")


# --------------------------------------------------------------------------------------------------------------
# Prediction: other caps, from one capture


Bound = Literal["compute", "last bucket", "held bucket", "latency", "bandwidth"]
"""What ends a step: compute, with next to nothing after it; the last bucket, which nothing can hide; or transfers that have
queued up until then: held by a bucket before them, by their number (latency) or by their bytes (bandwidth)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferCost:
    """What a collective takes once the last rank has sent it: fixed_ns + ns_per_byte · bytes, × slowdown beside compute."""

    fixed_ns: float = column("ns", "α: cost of a collective without its bytes", better="lower")
    ns_per_byte: float = column("ns/byte", "β: cost of a byte", better="lower")
    slowdown_ratio: float | None = column(
        "ratio", "cost beside compute / cost alone; missing when the capture does not show both"
    )
    low_ratio: float = column("ratio", "lower quartile of measured / fitted cost")
    high_ratio: float = column("ratio", "upper quartile of measured / fitted cost")
    n: int = column("count", "transfers that it is fitted to")
    sizes: int = column("count", "different sizes among them")
    probes: int = column("count", "other sizes that were timed alone, before the first step", default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPrediction:
    """One rank at one cap; medians over the captured steps. Missing where the capture shows no compute."""

    rank: int = column("id", "rank of the job")
    overlap_ns: int | None = column("ns", "overlap", better="higher")
    overlap_ratio: float | None = column("ratio", "overlap / comm", better="higher")
    exposed_comm_ns: int | None = column("ns", "exposed communication", better="lower")
    tail_ns: int | None = column("ns", "tail", better="lower")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapPrediction:
    """One cap. ``buckets`` are the parameter indices of each bucket, in the order in which they are sent."""

    cap_mb: float | None = column("MiB", "bucket_cap_mb given to DDP; missing for DDP's default")
    is_captured: bool = column("text", "whether its buckets are those of the capture")
    bucket_bytes: tuple[int, ...] = column("bytes", "each bucket in order of launch")
    buckets: tuple[tuple[int, ...], ...] = column("text", "parameter indices of each bucket")
    step_ns: int = column("ns", "step of the slowest rank", better="lower")
    low_ns: int = column("ns", "lower end of the interval of uncertainty")
    high_ns: int = column("ns", "upper end of the interval of uncertainty")
    worst_rank: int | None = column("id", "rank with the most exposed communication, which overlap to tail are of")
    overlap_ns: int | None = column("ns", "overlap on the worst rank", better="higher")
    overlap_ratio: float | None = column("ratio", "overlap / comm on the worst rank", better="higher")
    exposed_comm_ns: int | None = column("ns", "exposed communication on the worst rank", better="lower")
    tail_ns: int | None = column("ns", "tail on the worst rank", better="lower")
    bound: Bound = column("text", "what ends the step")
    held_ns: int = column("ns", "the longest that a complete bucket waits for one before it", better="lower")
    holder: str | None = column("text", "the parameter that it waits for; missing when none waits")
    ranks: tuple[RankPrediction, ...] = column("text", "every rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The same step at other caps. ``measured`` are the steps at the cap of the capture, ``model_ns`` the step that the model
    gives for it; ``best_mb`` are the caps whose interval overlaps that of the fastest.
    The cap of the capture is among the rows.
    """

    ddpprof_version: str
    case: str | None
    world_size: int
    device: str
    evidence: Evidence
    is_profiled: bool
    captured_cap_mb: float | None
    mode: str
    measured: Timing
    model_ns: int
    moments: int
    lanes: int
    cost: TransferCost
    rows: tuple[CapPrediction, ...]
    best_mb: tuple[float | None, ...]


# --------------------------------------------------------------------------------------------------------------
# Timeline: what a picture shows


@dataclass(frozen=True, eq=False, kw_only=True)
class Lane:
    """One row of a timeline: the operations of one (rank, stream), times relative to the timeline's zero.

    ``kind`` holds Kind values, ``label`` a text for each operation ("" for none): bucket numbers on comm.
    ``overlap_start_ns``/``overlap_end_ns`` are where this rank has compute and comm at once.
    """

    rank: int | None
    title: str
    start_ns: Ints
    end_ns: Ints
    kind: Ints
    label: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class RankLanes:
    """The lanes of one (report, process, device) with its overlap intervals and its measured window."""

    rank: int | None
    title: str
    lanes: tuple[Lane, ...]
    overlap_start_ns: Ints
    overlap_end_ns: Ints
    window: tuple[int, int]
    overlap_ns: int
    compute_label: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Timeline:
    """One step of every rank on one clock, zero at the earliest start."""

    evidence: Evidence
    ranks: tuple[RankLanes, ...]
    step: int | None
