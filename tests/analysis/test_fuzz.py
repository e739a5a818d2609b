"""Exports damaged in every way we could think of end in exact identities or in one or two plain lines, nothing else.

A case is a seed: ``pytest tests/analysis/test_fuzz.py -k '[17]'`` runs one again, ``FUZZ_CASES=5000`` many more.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from nsight import build

from ddpprof.analysis import job, load
from ddpprof.analysis.part import Options
from ddpprof.analysis.timeline import timeline
from ddpprof.errors import DdpprofError
from ddpprof.model import Analysis, RankRow, StepRow
from ddpprof.reports import tables, text

CASES = int(os.environ.get("FUZZ_CASES", "250"))

GPU = "\n".join(
    f"""
    process {pid} rank={pid - 100} world=2 gpus=a,b
    N {at}..{at + 300} "step/{step}" domain=ddpprof
    N {at + 100}..{at + 200} "backward" domain=ddpprof
    N {at + 140}..{at + 160} "bucket/0/4096" domain=ddpprof thread=2
    N {at + 142}..{at + 158} "ncclAllReduce" domain=NCCL thread=2
    M dev0 s7  {at + 30}..{at + 60.5} HtoD launch={at + 10}..{at + 12} bytes=64
    K dev0 s7  {at + 110}..{at + 180} GEMM launch={at + 105}..{at + 106} thread=2
    K dev0 s16 {at + 170}..{at + 250.25} NCCL launch={at + 150}..{at + 151} thread=2
    K dev1 s7  {at + 190}..{at + 191} GEMM launch={at + 189}..{at + 190}
    S dev0 s7  {at + 240}..{at + 270} launch={at + 230}..{at + 231}
    R {900 + at} {at + 200}..{at + 201} cudaLaunchKernel_v7000
    O {at + 170}..{at + 175}
    D "CUPTI buffers: 49 of 50. Some CUPTI events might be missing"
    """.replace("process", "#" if at else "process")
    for pid in (100, 101)
    for step, at in enumerate((0, 300, 700))
)
GRAPHS = """
    R 9 1..2 cudaGraphLaunch_v10000
    K dev0 s7  10..30 GEMM corr=9 node=1
    K dev0 s16 20..50 NCCL corr=9 node=2
    G dev0 s7  60..90 launch=55..56
    N 0..100 "ProfilerStep#3"
"""
HOST = "\n".join(
    f"""
    process {pid} rank={pid - 100} world=2
    N 0..300 "step/4" domain=ddpprof
    N 10..60 "delay/0" domain=ddpprof thread=2
    N 60..90 "compute/1" domain=ddpprof thread=2
    N60 40..120 "allreduce/0" domain=ddpprof thread=2 end_thread=3
    """
    for pid in (100, 101)
)
BASES: dict[str, dict[str, Any]] = {
    "gpu-2020": {"rows": GPU, "schema": "2020.3"},
    "gpu-2022": {"rows": GPU, "schema": "2022.4", "env": {"RANK": "0", "WORLD_SIZE": "2"}},
    "gpu-2024": {"rows": GPU, "schema": "2024.2", "nvtx": "registered"},
    "gpu-2026": {"rows": GPU, "schema": "2026.4", "nvtx": "both", "hw_id": 200, "shift_ns": 5_000_000},
    "graphs": {"rows": GRAPHS, "schema": "2025.1.3", "env": {"RANK": "1", "WORLD_SIZE": "4"}},
    "host": {"rows": HOST, "schema": "2024.2"},
}

DAMAGES = (
    'DROP TABLE "{table}"',
    'DELETE FROM "{table}" WHERE {rows}',
    'INSERT INTO "{table}" SELECT * FROM "{table}" WHERE {rows}',
    'ALTER TABLE "{table}" RENAME TO "{table}{suffix}"',
    'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}{suffix}"',
    'ALTER TABLE "{table}" DROP COLUMN "{column}"',
    'UPDATE "{table}" SET "{column}" = {number} WHERE {rows}',
    'UPDATE "{table}" SET "{column}" = {number} WHERE {rows}',
    'UPDATE "{table}" SET "{column}" = {odd} WHERE {rows}',
    'UPDATE "{table}" SET "{column}" = {text} WHERE {rows}',
    'UPDATE "{table}" SET "{column}" = CAST("{column}" AS {type}) WHERE {rows}',
    'UPDATE "{table}" SET "{column}" = "{column}" + {number} WHERE {rows}',
    'UPDATE "{table}" SET "{column}" = rowid % 3 * {number} WHERE {rows}',
    'UPDATE "{table}" SET "{column}" = "{other}" WHERE {rows}',
    'UPDATE "{table}" SET "{column}" = "{other}", "{other}" = "{column}" WHERE {rows}',
)
READ = (
    *("id", "value", "name", "text", "textId", "nameId", "demangledName", "start", "end", "deviceId", "streamId", "globalPid"),
    *("globalTid", "correlationId", "graphNodeId", "copyKind", "eventType", "domainId", "severity", "utcEpochNs", "duration"),
    *("gpuId", "cudaId", "pid", "uuid", "busLocation"),
)
"""Columns that the reader looks at."""
ROWS = ("rowid = 1", "rowid = 2", "rowid = 5", "rowid % 2 = 0", "rowid % 3 = 1", "rowid > 4", "1")
GLOBAL_PID = (1 << 48) + (100 << 24)
NUMBERS = (
    *(0, 1, -1, 59, 75, 4095, 4096, 32_767, 32_768, 65_536, 10**6, GLOBAL_PID, GLOBAL_PID + 100),
    *(sign * (2**power + near) for power in (31, 32, 40, 49, 50, 53, 61, 62) for near in (-1, 0, 1) for sign in (1, -1)),
    *(2**63 - 1, 1 - 2**63),
)
ODD = ("NULL", "1.5", "9e999", "-1e300", "x''", "x'fffe00'", "'text'", "CAST(x'72616e6b2fe9' AS TEXT)", "CAST(x'ff00' AS TEXT)")
NINES = "9" * 30
TEXTS = (
    *("", "\0", "a\0b", "0", "-1", "true", "1e9", NINES, "9" * 5000, "\x1b[31m\u202eevil", "a\nb"),
    *("step/0", f"step/{NINES}", "ProfilerStep#7", "iteration 3", "backward", "rank/0", "rank/1/world/2", f"rank/{NINES}"),
    *("rank/5/world/999999999", "rank/999999999", f"rank/1/world/{NINES}", "bucket/0/0", f"bucket/7/{NINES}", "bucket/2/9"),
    *("allreduce/1", f"allreduce/{NINES}", "delay/0", "compute/3", "ncclAllReduce", "nccl", "cudaGraphLaunch"),
    *("RANK=3", 'RANK="\u0663"', f"RANK={NINES}", "WORLD_SIZE=999999999", "RANK=1;WORLD_SIZE=0"),
)
OPTIONS = (
    *[Options()] * 4,
    Options(whole_capture=True),
    Options(compute="gemm|delay", comm=("memcpy",), buckets=True),
    Options(not_comm=("nccl",), step_pattern=r"step.\d"),
    Options(streams=frozenset({7}), steps=(1, 3)),
)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The sound exports, their columns free of types and constraints so that anything can be written into them."""
    folder = tmp_path_factory.mktemp("bases")
    found = {}
    for name, how in BASES.items():
        path = build(folder / name, **how)
        with closing(sqlite3.connect(path)) as con:
            for table in _tables(con):
                con.execute(f"CREATE TABLE loose ({', '.join(_columns(con, table))})")
                con.execute(f'INSERT INTO loose SELECT * FROM "{table}"')
                con.execute(f'DROP TABLE "{table}"')
                con.execute(f'ALTER TABLE loose RENAME TO "{table}"')
            con.commit()
        found[name] = path.read_bytes()
    return found


def _tables(con: sqlite3.Connection) -> list[str]:
    return [name for (name,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


def _columns(con: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in con.execute(f'PRAGMA table_info("{table}")')]


def damage_rows(path: Path, rng: random.Random) -> None:
    """Runs one to four damaging statements; those that SQLite itself refuses do nothing."""
    with closing(sqlite3.connect(path)) as con:
        con.execute("PRAGMA synchronous = OFF")
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
            names = _tables(con)
            central = [name for name in names if name.startswith(("CUPTI", "NVTX", "StringIds", "META"))]
            table = rng.choice(central if central and rng.random() < 0.75 else names)
            columns = _columns(con, table)
            read = [name for name in columns if name in READ]
            column, other = (rng.choice(read if read and rng.random() < 0.8 else columns) for _ in range(2))
            statement = rng.choice(DAMAGES).format(
                table=table,
                column=column,
                other=other,
                rows=rng.choice(ROWS),
                suffix=rng.choice(("_V2", "x", " é", "%s")),
                number=rng.choice(NUMBERS),
                odd=rng.choice(ODD),
                type=rng.choice(("TEXT", "REAL", "BLOB")),
                text=f"CAST(x'{rng.choice(TEXTS).encode().hex()}' AS TEXT)",
            )
            try:
                con.execute(statement)
            except sqlite3.Error:
                continue
        con.commit()


def damage_bytes(path: Path, rng: random.Random) -> None:
    """Cuts the file short, or flips some bits, in the first page or anywhere."""
    raw = bytearray(path.read_bytes())
    if rng.random() < 0.3:
        del raw[rng.randrange(len(raw)) :]
    for _ in range(rng.choice((0, 1, 3, 30))):
        if raw:
            raw[rng.randrange(min(len(raw), rng.choice((100, 4096, 10**9))))] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)


def hold(analysis: Analysis) -> None:
    """The identities of shared/design/definitions.md, exactly, on every window and every row of a single one."""
    single = [row for row in analysis.ranks if sum(_key(step) == _key(row) for step in analysis.breakdown) == 1]
    windows: tuple[StepRow | RankRow, ...] = (*analysis.breakdown, *single)
    for row in windows:
        parts = (row.compute_only_ns, row.overlap_ns, row.exposed_comm_ns, row.memory_only_ns, row.idle_ns)
        assert sum(parts) == row.step_ns
        assert min(*parts, row.tail_ns or 0) >= 0
        assert row.overlap_ns + row.exposed_comm_ns == row.comm_ns <= min(row.comm_span_ns or 0, row.comm_sum_ns)
        assert row.overlap_ns + row.compute_only_ns == row.compute_ns <= min(row.compute_span_ns or 0, row.compute_sum_ns)
        assert max(row.compute_span_ns or 0, row.comm_span_ns or 0) <= row.step_ns
        assert row.overlap_ratio == (row.overlap_ns / row.comm_ns if row.comm_ns else None)
    for step in analysis.breakdown:
        assert step.end_ns - step.start_ns == step.step_ns
    for bucket in analysis.buckets:
        assert bucket.overlap_ns + bucket.exposed_ns == bucket.end_ns - bucket.start_ns
        assert min(bucket.overlap_ns, bucket.exposed_ns) >= 0


def _key(row: Any) -> tuple[Any, ...]:
    return (row.report, row.pid, row.device_id)


def outcome(path: Path, options: Options) -> Analysis | DdpprofError:
    """What a person who analyzes the file gets to see, checked."""
    try:
        traces = [load.read(path, options.step_pattern)]
        analysis = job.analyze(traces, options)
        timeline(traces, options)
    except DdpprofError as error:
        lines = str(error).splitlines()
        assert 1 <= len(lines) <= 2
        assert all(line.strip() and len(line) < 400 for line in lines)
        return error
    hold(analysis)
    shown = text.render(analysis, per_step=True, buckets=True, kinds=True)
    assert shown.isascii()
    assert len(json.loads(tables.to_json(analysis))["ranks"]) == len(analysis.ranks)
    return analysis


@pytest.mark.parametrize("base", BASES)
def test_undamaged_all_are_analyzed(base: str, bases: dict[str, bytes], report: Path) -> None:
    report.write_bytes(bases[base])
    found = outcome(report, Options())
    assert isinstance(found, Analysis)
    expected = {"graphs": {(10_000, 20_000)}, "host": {(50_000, 30_000)}}.get(base, {(10_000, 70_250), (0, 0)})
    assert {(row.overlap_ns, row.exposed_comm_ns) for row in found.ranks} == expected


@pytest.mark.parametrize("seed", range(CASES))
def test_damaged(seed: int, bases: dict[str, bytes], report: Path) -> None:
    rng = random.Random(seed)
    report.write_bytes(bases[rng.choice(sorted(bases))])
    rng.choice((damage_rows, damage_rows, damage_rows, damage_bytes))(report, rng)
    outcome(report, rng.choice(OPTIONS))


@pytest.mark.parametrize("seed", range(CASES // 20))
@pytest.mark.parametrize("name", ["h200_2rank_delay_cap4", "2gpu_sendrecv_same_stream", "cpu_gloo_4rank_delay_cap4"])
def test_damaged_real_captures(name: str, seed: int, captures: Path, report: Path) -> None:
    rng = random.Random(seed)
    report.write_bytes((captures / f"{name}.sqlite").read_bytes())
    rng.choice((damage_rows, damage_bytes))(report, rng)
    outcome(report, rng.choice(OPTIONS))
