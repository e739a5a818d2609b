"""What each generation of ``nsys export`` writes: releases, tables, columns; and how rows get into them.

Facts of shared/design/nsight-systems.md §1; column order, types and NOT NULL as in real exports (the tests compare them).
ENUM_* tables are left out.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_RELEASES = """
2020.3 none    2022.1.3 2.9.1   2022.2.1 2.9.1   2022.4.2 3.0.0   2023.3.3 3.4.0   2023.4.4 3.7.2   2024.1.1 3.7.4
2024.2.3 3.11.1   2024.5.1 3.13.2   2024.6.2 3.16.1   2025.1.1 3.17.1   2025.1.3 3.17.2   2025.3.2 3.20.3
2025.5.1 3.23.3   2025.5.2 3.24.0   2025.6.1 3.24.7   2026.1.1 3.24.14   2026.2.1 3.25.0   2026.3.1 3.27.0   2026.4 3.28.1
"""
RELEASES: dict[str, str] = dict(re.findall(r"(\S+) (\S+)", _RELEASES))
"""Exporter release to EXPORT_SCHEMA_VERSION; 2020.3 has no version record."""

# name[!][*][:TYPE][@since][<until]   ! NOT NULL, * PRIMARY KEY, INTEGER unless said
_SCHEMA = """
StringIds id!*  value!:TEXT
EXPORT_META_DATA@2022.1<2023.3 name!:TEXT value:TEXT
META_DATA_EXPORT@2023.3 name!:TEXT value:TEXT
META_DATA_CAPTURE@2023.3 name!:TEXT value:TEXT
ANALYSIS_DETAILS globalVid! duration! startTime! stopTime!
PROCESSES@2022.1 globalPid pid name:TEXT
DIAGNOSTIC_EVENT@2024.2 timestamp! timestampType! source! severity! text!:TEXT globalPid
PROFILER_OVERHEAD start! end! globalTid nameId! returnValue!<2025.5.2 overheadType!@2025.5.2
TARGET_INFO_SESSION_START_TIME@2022.1
    utcEpochNs utcTime:TEXT localTime:TEXT systemClockNs@2025.6 sessionStartCntVctNs@2026.4
TARGET_INFO_SYSTEM_ENV globalVid!<2023.3 globalVid@2023.3 devStateName!:TEXT name!:TEXT nameEnum! value!:TEXT
TARGET_INFO_GPU
    vmId! deviceId!<2022.1 id!@2022.1 name:TEXT busLocation:TEXT isDiscrete l2CacheSize@2022.1 totalMemory@2022.1
    memoryBandwidth@2022.1 clockRate@2022.1 smCount@2022.1 pwGpuId@2022.1 uuid:TEXT@2022.1 luid@2022.1 chipName:TEXT@2022.1
    cuDevice@2022.1 ctxswDevPath:TEXT@2022.1 ctrlDevPath:TEXT@2022.1 revision@2022.1 nodeMask@2022.1 constantMemory@2022.1
    maxIPC@2022.1 maxRegistersPerBlock@2022.1 maxShmemPerBlock@2022.1 maxShmemPerBlockOptin@2022.1 maxShmemPerSm@2022.1
    maxRegistersPerSm@2022.1 threadsPerWarp@2022.1 asyncEngines@2022.1 maxWarpsPerSm@2022.1 maxBlocksPerSm@2022.1
    maxThreadsPerBlock@2022.1 maxBlockDimX@2022.1 maxBlockDimY@2022.1 maxBlockDimZ@2022.1 maxGridDimX@2022.1
    maxGridDimY@2022.1 maxGridDimZ@2022.1
    computeMajor@2022.1 computeMinor@2022.1 smMajor@2022.1 smMinor@2022.1 numaNodeId@2026.1
TARGET_INFO_CUDA_DEVICE@2025.1 gpuId cudaId! pid! uuid:TEXT@2026.1 numMultiprocessors@2026.1
TARGET_INFO_CUDA_NULL_STREAM<2023.3 streamId! hwId! vmId! processId! deviceId! contextId!
TARGET_INFO_CUDA_CONTEXT_INFO@2023.3 nullStreamId! hwId! vmId! processId! deviceId! contextId! parentContextId isGreenContext
TARGET_INFO_CUDA_STREAM streamId! hwId! vmId! processId! contextId! priority! flag!
CUPTI_ACTIVITY_KIND_RUNTIME start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId
CUPTI_ACTIVITY_KIND_KERNEL
    start! end! deviceId! contextId! greenContextId@2023.4 streamId! correlationId globalPid demangledName! shortName!
    mangledName@2022.1 launchType cacheConfig registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ!
    staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId
    sharedMemoryLimitConfig@2022.1 qmdBulkReleaseDone@2025.5.2 qmdPreexitDone@2025.5.2 qmdLastCtaDone@2025.5.2
    graphId@2025.5.2 clusterX@2025.5.2 clusterY@2025.5.2 clusterZ@2025.5.2 clusterSchedulingPolicy@2025.5.2
    maxPotentialClusterSize@2025.5.2 maxActiveClusters@2025.5.2 sharedMemoryRequestedPercentage@2026.1
    tensorSizeMinusOneElements!:TEXT@2026.2
CUPTI_ACTIVITY_KIND_MEMCPY
    start! end! deviceId! contextId! greenContextId@2023.4 streamId! correlationId globalPid bytes! copyKind! deprecatedSrcId
    srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause@2022.1 graphNodeId virtualAddress@2022.1
    name:TEXT@2022.2<2022.4 copyCount@2025.1.3
CUPTI_ACTIVITY_KIND_MEMSET
    start! end! deviceId! contextId! greenContextId@2023.4 streamId! correlationId globalPid value! bytes! graphNodeId memKind
CUPTI_ACTIVITY_KIND_GRAPH_TRACE@2024.2
    start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid graphId! graphExecId!
CUDA_GRAPH_EVENTS
    start! end! eventClass! globalTid nameId! graphNodeId!<2024.2 originalGraphNodeId<2024.2
    graphId@2024.2 originalGraphId@2024.2 graphExecId@2024.2
CUDA_GRAPH_NODE_EVENTS@2024.2 start! end! eventClass! globalTid nameId! graphNodeId! originalGraphNodeId
NVTX_EVENTS
    start! end eventType! rangeId category color text:TEXT globalTid endGlobalTid textId domainId uint64Value int64Value
    doubleValue:REAL uint32Value int32Value floatValue:REAL jsonTextId jsonText:TEXT binaryData:TEXT@2024.6 eventId!*@2026.4
"""
_PLAUSIBLE = {"registersPerThread": 32, "gridX": 4096, "gridY": 1, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of one generation; ``default`` is what a row that does not say gets."""

    name: str
    type: str
    is_required: bool
    is_key: bool

    @property
    def default(self) -> Any:
        empty: Any = {"INTEGER": 0, "REAL": 0.0, "TEXT": ""}[self.type]
        return _PLAUSIBLE.get(self.name, empty) if self.is_required else None


def tables(schema: str) -> dict[str, list[Column]]:
    """The tables that an exporter of this generation can write, by name, with their columns in order."""
    release = version(release_of(schema))
    found: dict[str, list[Column]] = {}
    table = None
    for line in _SCHEMA.strip().splitlines():
        for position, item in enumerate(_DECLARATION.finditer(line)):
            is_known = version(item["since"] or "0") <= release < version(item["until"] or "9999")
            if position == 0 and not line.startswith(" "):
                table = found.setdefault(item["name"], []) if is_known else None
            elif is_known and table is not None:
                table.append(Column(item["name"], item["type"] or "INTEGER", bool(item["required"]), bool(item["key"])))
    return found


_DECLARATION = re.compile(
    r"(?P<name>\w+)(?P<required>!)?(?P<key>\*)?(?::(?P<type>\w+))?(?:@(?P<since>[\d.]+))?(?:<(?P<until>[\d.]+))?"
)


def release_of(schema: str) -> str:
    """The release that a generation names: "2024.2" is 2024.2.3. Raises ValueError when none does."""
    for release in RELEASES:
        if f"{release}.".startswith(f"{schema}."):
            return str(release)
    raise ValueError(f"no generation {schema!r}; there are {', '.join(RELEASES)}")


def version(text: str) -> tuple[int, ...]:
    """The numbers of a release, to compare."""
    return tuple(map(int, text.split(".")))


def write(con: sqlite3.Connection, known: Mapping[str, list[Column]], records: Mapping[str, list[dict[str, Any]]]) -> None:
    """Makes and fills the tables of ``records`` that this generation knows; cells of columns it does not know are dropped."""
    for table, columns in known.items():
        if table in records:
            said = {name for record in records[table] for name in record}
            given = {
                c.name: [_value(record.get(c.name, c.default)) for record in records[table]] for c in columns if c.name in said
            }
            create(con, table, columns)
            insert(con, table, columns, given)


def _value(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def create(con: sqlite3.Connection, table: str, columns: Iterable[Column]) -> None:
    """Makes an empty table."""
    texts = (f'"{c.name}" {c.type}{" NOT NULL" * c.is_required}{" PRIMARY KEY" * c.is_key}' for c in columns)
    con.execute(f"CREATE TABLE {table} ({', '.join(texts)})")


def insert(con: sqlite3.Connection, table: str, columns: Iterable[Column], given: Mapping[str, Iterable[Any]]) -> None:
    """Adds rows, given by column; the other columns take their defaults. A CAST keeps bytes that are no UTF-8."""
    values = []
    for column in columns:
        if column.name in given:
            values.append("CAST(? AS TEXT)" if column.type == "TEXT" else "?")
        else:
            values.append({None: "NULL", "": "''"}.get(column.default, str(column.default)))
    bound = [given[column.name] for column in columns if column.name in given]
    con.executemany(f"INSERT INTO {table} VALUES ({', '.join(values)})", zip(*bound, strict=True))
