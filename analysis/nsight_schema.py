"""Nsight's table and column names, and which of them a copy that is fit to share may hold.

``SHARED`` is an allow-list: integers that time and place the work, and the texts that ``ddpprof.analysis.redact`` cleans
one by one. A table or column that is not in it, whatever a future exporter calls it, never reaches a redacted copy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCHRONIZATION: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
NVTX: Final = "NVTX_EVENTS"
OVERHEAD: Final = "PROFILER_OVERHEAD"
DIAGNOSTIC: Final = "DIAGNOSTIC_EVENT"
ANALYSIS: Final = "ANALYSIS_DETAILS"
SESSION: Final = "TARGET_INFO_SESSION_START_TIME"
GPU: Final = "TARGET_INFO_GPU"
CUDA_DEVICE: Final = "TARGET_INFO_CUDA_DEVICE"
EXPORT: Final = "META_DATA_EXPORT"
EXPORT_BEFORE_2023: Final = "EXPORT_META_DATA"
CAPTURE: Final = "META_DATA_CAPTURE"
SYSTEM: Final = "TARGET_INFO_SYSTEM_ENV"
STRINGS: Final = "StringIds"

PROCESS_MASK: Final = ~0xFFFFFF
NVTX_PUSH_POP: Final = (59, 70)
NVTX_START_END: Final = (60, 71)
NVTX_DOMAIN: Final = 75
COPY_KINDS: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}

RANK_VARIABLES: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK")
WORLD_VARIABLES: Final = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE")
SETTING_VALUE: Final = re.compile(r"(?i:[0-9]{1,9}|true|false|yes|no|on|off|[tfyn])")
"""What the values of ``model.SETTINGS`` look like: a number or a switch, never a word that could name somebody."""
ENVIRONMENT_VARIABLE: Final = "ENVIRONMENT_VARIABLE"
"""What the names of META_DATA_CAPTURE's rows of the environment end with."""
ENVIRONMENT: Final = "DeviceEnvironment"
"""The row of TARGET_INFO_SYSTEM_ENV that holds a whole environment."""


def _columns(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTable:
    """The columns of one table that a redacted copy keeps, where the exporter wrote them.

    ``integers`` are copied as they are (what is no integer becomes null), ``strings`` are ids of StringIds, ``texts`` hold
    text themselves. Without the ``required`` ones nothing can be read from the table.
    """

    integers: tuple[str, ...] = ()
    strings: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()


_WORK: Final = "start end deviceId contextId greenContextId streamId correlationId globalPid graphNodeId "
_PLACED: Final = frozenset({"start", "end", "deviceId", "streamId"})

SHARED: Final[Mapping[str, SharedTable]] = {
    EXPORT: SharedTable(texts=_columns("name value")),
    EXPORT_BEFORE_2023: SharedTable(texts=_columns("name value")),
    CAPTURE: SharedTable(texts=_columns("name value")),
    SYSTEM: SharedTable(texts=_columns("name value")),
    SESSION: SharedTable(integers=_columns("utcEpochNs")),
    ANALYSIS: SharedTable(integers=_columns("globalVid duration startTime stopTime")),
    DIAGNOSTIC: SharedTable(integers=_columns("timestamp timestampType source severity globalPid"), texts=_columns("text")),
    GPU: SharedTable(
        integers=_columns(
            "vmId id deviceId isDiscrete cuDevice smCount totalMemory l2CacheSize memoryBandwidth clockRate"
            " computeMajor computeMinor numaNodeId"
        ),
        texts=_columns("name uuid busLocation"),
    ),
    CUDA_DEVICE: SharedTable(integers=_columns("gpuId cudaId pid numMultiprocessors"), texts=_columns("uuid")),
    "TARGET_INFO_CUDA_NULL_STREAM": SharedTable(integers=_columns("streamId hwId vmId processId deviceId contextId")),
    "TARGET_INFO_CUDA_CONTEXT_INFO": SharedTable(
        integers=_columns("nullStreamId hwId vmId processId deviceId contextId parentContextId isGreenContext")
    ),
    "TARGET_INFO_CUDA_STREAM": SharedTable(integers=_columns("streamId hwId vmId processId contextId priority flag")),
    KERNEL: SharedTable(
        integers=_columns(
            _WORK + "graphId launchType registersPerThread gridX gridY gridZ blockX blockY blockZ clusterX clusterY clusterZ"
            " staticSharedMemory dynamicSharedMemory"
        ),
        strings=_columns("demangledName shortName mangledName"),
        required=_PLACED,
    ),
    MEMCPY: SharedTable(
        integers=_columns(_WORK + "bytes copyKind srcKind dstKind srcDeviceId dstDeviceId copyCount"), required=_PLACED
    ),
    MEMSET: SharedTable(integers=_columns(_WORK + "bytes memKind"), required=_PLACED),
    GRAPH: SharedTable(integers=_columns(_WORK + "graphId graphExecId"), required=_PLACED),
    SYNCHRONIZATION: SharedTable(integers=_columns(_WORK + "syncType eventId eventSyncId")),
    RUNTIME: SharedTable(
        integers=_columns("start end eventClass globalTid correlationId returnValue"),
        strings=_columns("nameId"),
        required=frozenset({"start", "globalTid", "correlationId"}),
    ),
    OVERHEAD: SharedTable(integers=_columns("start end globalTid overheadType"), strings=_columns("nameId")),
    NVTX: SharedTable(
        integers=_columns("start end eventType rangeId category color globalTid endGlobalTid domainId eventId"),
        strings=_columns("textId"),
        texts=_columns("text"),
        required=frozenset({"start", "end", "eventType", "globalTid"}),
    ),
}
"""What a redacted copy may hold, StringIds apart: of that, the texts which kept columns refer to."""

_VERSION: Final = re.compile(r"\d[\d.]*(?:-\w+)?")
_NUMBER: Final = re.compile(r"(?i:true|false|-?\d+)")
_SAID_OR_NOT: Final = re.compile("")

EXPORT_SETTINGS: Final[Mapping[str, re.Pattern[str]]] = {
    "EXPORT_PRODUCT_VERSION": _VERSION,
    "EXPORT_SCHEMA_VERSION": _VERSION,
    "EXPORT_SCHEMA_VERSION_MAJOR": _VERSION,
    "EXPORT_SCHEMA_VERSION_MINOR": _VERSION,
    "EXPORT_SCHEMA_VERSION_MICRO": _VERSION,
    "EXPORT_PARAM_TIME_NORMALIZE": _NUMBER,
    "EXPORT_PARAM_TIME_SHIFT": _NUMBER,
    "EXPORT_CONFIG_TIME_SHIFT": _NUMBER,
    "EXPORT_PARAM_TIMES_TO_EXPORT": _SAID_OR_NOT,
    "EXPORT_PARAM_TABLES_TO_EXPORT": _SAID_OR_NOT,
}
"""Settings of an export that say how to read it, and what their values look like; of the last two only whether they are set."""

PRIVATE: Final[Mapping[str, str]] = {
    "ANALYSIS_FILE.content": "program output",
    "ANALYSIS_FILE.contentId": "program output",
    "ANALYSIS_FILE.filename": "path",
    "ProcessStreams.contentId": "program output",
    "ProcessStreams.filenameId": "path",
    "PROCESSES.name": "process name",
    "ThreadNames.nameId": "thread name",
    "NVTX_EVENTS.text": "range text",
    "NVTX_EVENTS.textId": "range text",
    "NVTX_EVENTS.jsonText": "range payload",
    "NVTX_EVENTS.jsonTextId": "range payload",
    "NVTX_EVENTS.binaryData": "range payload",
    "DIAGNOSTIC_EVENT.text": "profiler message",
    "TARGET_INFO_GPU.uuid": "GPU identity",
    "TARGET_INFO_CUDA_DEVICE.uuid": "GPU identity",
    "TARGET_INFO_SESSION_START_TIME.utcTime": "clock and time zone",
    "TARGET_INFO_SESSION_START_TIME.localTime": "clock and time zone",
}
"""What it is that the texts of a column (or the strings that it refers to) tell."""

PRIVATE_SETTINGS: Final[Mapping[str, re.Pattern[str]]] = {
    "environment": re.compile(rf"{ENVIRONMENT_VARIABLE}$|^{ENVIRONMENT}$"),
    "command line": re.compile(r"COMMAND|ARGUMENT|PACKAGE_NAME"),
    "host name": re.compile(r"HOST|DEVICE_DISPLAY_NAME|(?i:host_?name)"),
    "user name": re.compile(r"USER(?!_)|(?i:user_?name)"),
    "GPU identity": re.compile(r"GpuInfo"),
}
"""The same for the rows of a table of names and values, by their names."""
