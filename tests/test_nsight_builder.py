"""The builder: what a timeline says is what sqlite3 finds, in the columns that each generation of exporter has."""

import sqlite3
from contextlib import closing
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest
from nsight import (
    GEMM,
    NCCL,
    PID,
    SESSION_NS,
    SPIN,
    D,
    G,
    K,
    M,
    N,
    O,
    P,
    R,
    S,
    build,
    global_id,
    ns,
    parse,
    query,
    short_name,
    synthesize,
    uuid,
)
from nsight_schema import RELEASES, tables, version
from oracle import Interval, oracle_metrics

CAPTURES = Path(__file__).parents[1].parent / "shared" / "captures"
KERNEL, RUNTIME, GRAPH = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "RUNTIME", "GRAPH_TRACE"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.sqlite"


def names(path: Path) -> set[str]:
    return {name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


# -- the notation


def test_both_notations_say_the_same() -> None:
    timeline = """
        process 100 rank=0 world=2 gpus=a,b
        K dev0 s7 0..100 GEMM launch=-20..-10 thread=2   # a comment
        K dev1 s16 50..150.25 NCCL corr=5 node=3

        process 200
        M dev0 s7 100..110 PtoP bytes=4096 src=0 dst=1
        S dev0 s7 111..112 bytes=4
        G dev0 s7 200..300 graph=2
        R 5 -20..-10 cudaGraphLaunch_v10000 thread=2
        N 0..200 "step 1" domain=ddpprof
        N60 0..open "a\\u0000b\\udce9" end_thread=1 pid=100
        O 45..46
        D severity=3 "No CUDA events collected. Does the process use CUDA?"
    """
    assert parse(timeline) == [
        P(100, rank=0, world=2, gpus=("a", "b")),
        K(0, 7, 0, 100, GEMM, launch=(-20, -10), thread=2),
        K(1, 16, 50, Decimal("150.25"), NCCL, corr=5, node=3),
        P(200),
        M(0, 7, 100, 110, "PtoP", 200, bytes=4096, src=0, dst=1),
        S(0, 7, 111, 112, 200, bytes=4),
        G(0, 7, 200, 300, 200, graph=2),
        R(5, -20, -10, "cudaGraphLaunch_v10000", 200, 2),
        N(0, 200, "step 1", 200, "ddpprof"),
        N(0, None, "a\0b\udce9", 100, end_thread=1, type=60),
        O(45, 46, pid=200),
        D("No CUDA events collected. Does the process use CUDA?", 3, 200),
    ]


@pytest.mark.parametrize(
    "line", ["X dev0", "K dev0 s7 GEMM", "K dev0 s7 0..1 colour=3", 'N 0..1 "\\x"', "K5 dev0 s7 0..1", "M dev0 s7 0.."]
)
def test_a_bad_line_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="cannot read") as caught:
        parse(f"K dev0 s7 0..1 GEMM\n  {line}")
    assert repr(line) in str(caught.value)


def test_times_are_exact() -> None:
    assert [ns(time) for time in (100.7, "0.001", -75.5, Decimal("5000000.123"))] == [100_700, 1, -75_500, 5_000_000_123]
    with pytest.raises(ValueError, match="not a whole number of nanoseconds"):
        ns(0.0001)


@pytest.mark.parametrize(
    ("full", "short"),
    [
        (GEMM, "Kernel2"),
        (NCCL, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        (SPIN, "spin_kernel"),
        ("void at::native::reduce_kernel<(int)512, ReduceOp<float, (int)4>>(T3)", "reduce_kernel"),
        ("void dpsk::ep::internode::dispatch<...>", "dispatch"),
        ("my_op", "my_op"),
    ],
)
def test_short_name(full: str, short: str) -> None:
    assert short_name(full) == short


# -- rows


def test_kernels_join_their_launches(path: Path) -> None:
    build(
        path,
        """
        K dev0 s7   0..100  GEMM launch=-20..-10 thread=2
        K dev0 s16 50..150  NCCL
        R 7 200..201
        """,
    )
    found = query(
        path,
        f"""SELECT k.start, k."end", deviceId, streamId, d.value, s.value, globalPid, r.start, r."end", r.globalTid
            FROM {KERNEL} k JOIN StringIds d ON d.id = demangledName JOIN StringIds s ON s.id = shortName
            LEFT JOIN {RUNTIME} r USING (correlationId)""",
    )
    process = global_id(PID)
    assert found == [
        (0, 100_000, 0, 7, GEMM, "Kernel2", process, -20_000, -10_000, process + PID + 2),
        (50_000, 150_000, 0, 16, NCCL, short_name(NCCL), process, None, None, None),
    ]
    assert query(path, f"SELECT correlationId, start FROM {RUNTIME} ORDER BY 2") == [(8, -20_000), (7, 200_000)]


def test_correlation_ids_repeat_across_processes(path: Path) -> None:
    build(path, [K(0, 7, 0, 1, GEMM, 100), K(0, 7, 0, 1, GEMM, 101), K(0, 7, 2, 3, GEMM, 101)])
    found = query(path, f"SELECT (globalPid >> 24) & 0xFFFFFF, correlationId FROM {KERNEL} ORDER BY 1, 2")
    assert found == [(100, 1), (101, 1), (101, 2)]


def test_graph_kernels_share_one_launch(path: Path) -> None:
    build(path, [R(5, -9, -8, "cudaGraphLaunch_v10000"), *(K(0, 7, i, i + 1, corr=5, node=i) for i in range(24))])
    found = query(path, f"SELECT count(*), count(DISTINCT graphNodeId) FROM {KERNEL} JOIN {RUNTIME} USING (correlationId)")
    assert found == [(24, 24)]
    assert query(path, "SELECT count(*) FROM CUDA_GRAPH_NODE_EVENTS") == [(24,)]


def test_copies_sets_and_graphs(path: Path) -> None:
    build(
        path,
        """
        M dev0 s7 0..1 HtoD bytes=4096 launch=-1..0
        M dev0 s7 2..3 PtoP src=0 dst=3
        S dev0 s7 4..5 bytes=4
        G dev0 s7 0..7811000 launch=-2..-1
        """,
    )
    copies = query(path, "SELECT start, copyKind, bytes, srcDeviceId, dstDeviceId FROM CUPTI_ACTIVITY_KIND_MEMCPY")
    assert copies == [(0, 1, 4096, None, None), (2000, 10, 0, 0, 3)]
    assert query(path, 'SELECT start, "end", bytes FROM CUPTI_ACTIVITY_KIND_MEMSET') == [(4000, 5000, 4)]
    launched = (
        f'SELECT g.start, g."end", value FROM {GRAPH} g JOIN {RUNTIME} USING (correlationId) JOIN StringIds ON id = nameId'
    )
    assert query(path, launched) == [(0, 7_811_000_000, "cudaGraphLaunch_v10000")]


@pytest.mark.parametrize(
    ("nvtx", "inline", "registered"), [("inline", "x", None), ("registered", None, "x"), ("both", "x", "x")]
)
def test_range_texts(path: Path, nvtx: str, inline: str | None, registered: str | None) -> None:
    build(path, [N(0, 1, "x")], nvtx=nvtx)  # type: ignore[arg-type]
    assert query(path, "SELECT text, value FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId") == [(inline, registered)]


def test_domains_are_numbered_in_each_process(path: Path) -> None:
    build(
        path,
        """
        process 100
        N 0..1 "a" domain=NCCL
        N 0..2 "b" domain=ddpprof
        process 200
        N60 0..open "c" domain=ddpprof thread=1 end_thread=2
        N34 5..open "d"
        """,
    )
    found = query(
        path,
        """SELECT (e.globalTid >> 24) & 0xFFFFFF, d.text, e.text, e.eventType, e."end", e.endGlobalTid & 0xFFFFFF
           FROM NVTX_EVENTS e LEFT JOIN NVTX_EVENTS d
           ON d.eventType = 75 AND d.domainId = e.domainId AND d.globalTid >> 24 = e.globalTid >> 24
           WHERE e.eventType != 75 ORDER BY e.text""",
    )
    assert found == [
        (100, "NCCL", "a", 59, 1000, None),
        (100, "ddpprof", "b", 59, 2000, None),
        (200, "ddpprof", "c", 60, None, 202),
        (200, None, "d", 34, None, None),
    ]


def test_rank_marks_lie_around_all_that_a_process_does(path: Path) -> None:
    build(
        path,
        """
        process 100 rank=0 world=2
        K dev0 s7 0..100 GEMM launch=-20..-10
        process 200 rank=1 world=2
        N 5..7 "step/0"
        """,
    )
    found = query(path, "SELECT text, start, \"end\" FROM NVTX_EVENTS WHERE text LIKE 'rank/%' ORDER BY text")
    assert found == [("rank/0/world/2", -20_000, 100_000), ("rank/1/world/2", 5_000, 7_000)]


def test_two_processes_on_one_gpu(path: Path) -> None:
    build(path, [P(100, gpus=("a",)), P(101, gpus=("a", "b"))], schema="2026.1")
    found = query(
        path,
        """SELECT pid, cudaId, g.uuid, busLocation FROM TARGET_INFO_CUDA_DEVICE d JOIN TARGET_INFO_GPU g ON g.id = gpuId
           WHERE d.uuid = g.uuid ORDER BY 1, 2""",
    )
    a, b = (uuid("a"), "0000:0A:00.0"), (uuid("b"), "0000:0B:00.0")
    assert found == [(100, 0, *a), (101, 0, *a), (101, 1, *b)]
    assert query(path, "SELECT pid FROM PROCESSES ORDER BY 1") == [(100,), (101,)]


def test_contexts_and_streams_are_listed_once(path: Path) -> None:
    build(path, [K(0, 7, 0, 1), K(0, 7, 2, 3), K(3, 16, 0, 1)])
    assert query(path, "SELECT processId, deviceId, contextId FROM TARGET_INFO_CUDA_CONTEXT_INFO") == [(PID, 0, 1), (PID, 3, 4)]
    assert query(path, "SELECT streamId, contextId FROM TARGET_INFO_CUDA_STREAM") == [(7, 1), (16, 4)]


# -- knobs


def test_tables_without_rows_are_absent(path: Path) -> None:
    always = {"StringIds", "META_DATA_EXPORT", "META_DATA_CAPTURE", "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS"}
    assert names(build(path, [])) == always
    assert names(build(path, [N(0, 1, "x")])) == always | {"NVTX_EVENTS", "PROCESSES"}
    assert "TARGET_INFO_SESSION_START_TIME" not in names(build(path, [], session_ns=None))


def test_negative_ids(path: Path) -> None:
    build(path, [K(0, 7, 0, 1, launch=(-2, -1), thread=3)], hw_id=254)
    ((process, thread),) = query(path, f"SELECT globalPid, globalTid FROM {KERNEL}, {RUNTIME}")
    assert process < 0
    assert thread < 0
    assert thread & ~0xFFFFFF == process
    assert (process >> 24 & 0xFFFFFF, thread & 0xFFFFFF) == (PID, PID + 3)


@pytest.mark.parametrize("nvtx", ["inline", "registered"])
def test_text_that_is_no_utf8_or_holds_a_nul(path: Path, nvtx: str) -> None:
    build(path, r'N 0..1 "caf\udce9"' + "\n" + r'N 1..2 "a\u0000b"', nvtx=nvtx)  # type: ignore[arg-type]
    found = query(
        path, "SELECT COALESCE(text, value), typeof(COALESCE(text, value)) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
    )
    assert found == [("caf\udce9", "text"), ("a\0b", "text")]
    with closing(sqlite3.connect(path)) as con, pytest.raises(sqlite3.OperationalError, match="Could not decode to UTF-8"):
        con.execute("SELECT COALESCE(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId").fetchall()


@pytest.mark.parametrize(("schema", "text"), [("2022.4", "RANK=3\0WORLD_SIZE=4"), ("2023.3", "RANK=3;WORLD_SIZE=4")])
def test_environment(path: Path, schema: str, text: str) -> None:
    build(path, [], schema=schema, env={"RANK": "3", "WORLD_SIZE": "4"})
    assert query(path, "SELECT name, value FROM TARGET_INFO_SYSTEM_ENV") == [("DeviceEnvironment", text)]
    assert query(path, "SELECT value FROM StringIds") == [("RANK=3\0WORLD_SIZE=4\0",)]
    if "META_DATA_CAPTURE" in names(path):
        found = query(path, "SELECT value FROM META_DATA_CAPTURE WHERE name = 'PROCESS_0:ENVIRONMENT_VARIABLE'")
        assert found == [('RANK="3"',), ('WORLD_SIZE="4"',)]


def test_shuffled_rows_are_the_same_rows(path: Path) -> None:
    rows = [K(0, 7, start, start + 1) for start in range(20)]
    select = f"SELECT start FROM {KERNEL} ORDER BY rowid"
    straight = query(build(path, rows), select)
    shuffled = query(build(path, rows, shuffle=1), select)
    assert straight == sorted(shuffled) != shuffled
    assert query(build(path, rows, shuffle=1), select) == shuffled


def test_normalized_times(path: Path) -> None:
    """As nsys 2024.2.3 writes it: every time is UTC, the session start is not shifted, the duration stays one."""
    build(path, [K(0, 7, 0, 1), N(0, None, "x"), D("y", at=3)], shift_ns=SESSION_NS)
    assert query(path, f"SELECT start - {SESSION_NS} FROM {KERNEL}") == [(0,)]
    assert query(path, f'SELECT start - {SESSION_NS}, "end" FROM NVTX_EVENTS') == [(0, None)]
    assert query(path, f"SELECT timestamp - {SESSION_NS} FROM DIAGNOSTIC_EVENT") == [(3_000,)]
    assert query(path, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME") == [(SESSION_NS,)]
    assert query(path, f"SELECT duration, startTime - {SESSION_NS} FROM ANALYSIS_DETAILS") == [(1_001_000, 0)]
    found = dict(query(path, "SELECT name, value FROM META_DATA_EXPORT WHERE name LIKE '%TIME_%'"))
    assert found["EXPORT_PARAM_TIME_NORMALIZE"] == "true"
    assert found["EXPORT_CONFIG_TIME_SHIFT"] == str(SESSION_NS)


def test_duration_meta_and_sql(path: Path) -> None:
    script = "ALTER TABLE NVTX_EVENTS RENAME TO NVTX_EVENTS_V2; CREATE TABLE extra (a)"
    build(path, [N(0, 500, "cut")], duration=500, meta={"EXPORT_PARAM_TIMES_TO_EXPORT": "1s/2s"}, sql=script)
    assert query(path, "SELECT duration FROM ANALYSIS_DETAILS") == [(500_000,)]
    assert query(path, "SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_PARAM_TIMES_TO_EXPORT'") == [("1s/2s",)]
    assert names(path) >= {"NVTX_EVENTS_V2", "extra"}


# -- generations


FACTS = """
CUPTI_ACTIVITY_KIND_KERNEL          graphNodeId                      2020.3
CUPTI_ACTIVITY_KIND_KERNEL          mangledName                      2022.1
CUPTI_ACTIVITY_KIND_KERNEL          sharedMemoryLimitConfig          2022.1
CUPTI_ACTIVITY_KIND_KERNEL          greenContextId                   2023.4
CUPTI_ACTIVITY_KIND_KERNEL          graphId                          2025.5.2
CUPTI_ACTIVITY_KIND_KERNEL          clusterX                         2025.5.2
CUPTI_ACTIVITY_KIND_KERNEL          sharedMemoryRequestedPercentage  2026.1
CUPTI_ACTIVITY_KIND_KERNEL          tensorSizeMinusOneElements       2026.2
CUPTI_ACTIVITY_KIND_MEMCPY          virtualAddress                   2022.1
CUPTI_ACTIVITY_KIND_MEMCPY          name                             2022.2 2022.4
CUPTI_ACTIVITY_KIND_MEMCPY          copyCount                        2025.1.3
CUPTI_ACTIVITY_KIND_MEMSET          greenContextId                   2023.4
CUPTI_ACTIVITY_KIND_GRAPH_TRACE     graphExecId                      2024.2
CUDA_GRAPH_EVENTS                   graphNodeId                      2020.3 2024.2
CUDA_GRAPH_EVENTS                   graphExecId                      2024.2
CUDA_GRAPH_NODE_EVENTS              graphNodeId                      2024.2
NVTX_EVENTS                         jsonText                         2020.3
NVTX_EVENTS                         binaryData                       2024.6
NVTX_EVENTS                         eventId                          2026.4
EXPORT_META_DATA                    value                            2022.1 2023.3
META_DATA_EXPORT                    value                            2023.3
META_DATA_CAPTURE                   value                            2023.3
PROCESSES                           pid                              2022.1
DIAGNOSTIC_EVENT                    severity                         2024.2
PROFILER_OVERHEAD                   returnValue                      2020.3 2025.5.2
PROFILER_OVERHEAD                   overheadType                     2025.5.2
TARGET_INFO_SESSION_START_TIME      utcEpochNs                       2022.1
TARGET_INFO_SESSION_START_TIME      systemClockNs                    2025.6
TARGET_INFO_GPU                     deviceId                         2020.3 2022.1
TARGET_INFO_GPU                     uuid                             2022.1
TARGET_INFO_GPU                     numaNodeId                       2026.1
TARGET_INFO_CUDA_DEVICE             gpuId                            2025.1
TARGET_INFO_CUDA_DEVICE             uuid                             2026.1
TARGET_INFO_CUDA_NULL_STREAM        streamId                         2020.3 2023.3
TARGET_INFO_CUDA_CONTEXT_INFO       nullStreamId                     2023.3
"""

EVERYTHING = """
    process 100 rank=0 gpus=a
    K dev0 s7 0..1 GEMM launch=-2..-1
    K dev0 s7 1..2 NCCL corr=9 node=1
    M dev0 s7 2..3 HtoD
    S dev0 s7 3..4
    G dev0 s7 4..5
    N 0..5 "step/0"
    O 1..2
    D "Not all CUDA events might have been collected."
"""


@pytest.mark.parametrize("fact", FACTS.strip().splitlines())
def test_a_column_is_there_from_its_release_on(fact: str) -> None:
    table, column, since, *until = fact.split()
    for release in RELEASES:
        is_expected = version(since) <= version(release) < version(until[0] if until else "9999")
        assert (column in [found.name for found in tables(release).get(table, [])]) == is_expected, release


@pytest.mark.parametrize("release", RELEASES)
def test_every_generation_holds_what_it_can(path: Path, release: str) -> None:
    build(path, EVERYTHING, schema=release, env={"RANK": "0"})
    assert names(path) == set(tables(release))
    for table, columns in tables(release).items():
        found = query(path, f"SELECT name, type, \"notnull\", pk FROM pragma_table_info('{table}')")
        assert found == [(c.name, c.type, int(c.is_required), int(c.is_key)) for c in columns]
        assert query(path, f"SELECT count(*) FROM {table}") != [(0,)]
    ours, other = (
        ("META_DATA_EXPORT", "EXPORT_META_DATA") if version(release) >= (2023, 3) else ("EXPORT_META_DATA", "META_DATA_EXPORT")
    )
    assert other not in names(path)
    if ours in names(path):
        meta = dict(query(path, f"SELECT name, value FROM {ours}"))
        assert (meta["EXPORT_PRODUCT_VERSION"], meta["EXPORT_SCHEMA_VERSION"]) == (release, RELEASES[release])


def test_a_generation_is_named_by_its_first_release() -> None:
    assert tables("2024.2") == tables("2024.2.3")
    assert tables("2025.1") == tables("2025.1.1") != tables("2025.1.3")
    with pytest.raises(ValueError, match=r"no generation '2019.6'"):
        tables("2019.6")


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="shared/captures is not here")
@pytest.mark.parametrize(
    "name",
    [
        "h200_2rank_delay_cap4",
        "cpu_gloo_4rank_delay_cap4",
        "cuda_graph_trace",
        "nsys2025_graph_trace",
        "one_process_two_gpus",
        "2gpu_sendrecv_same_stream",
    ],
)
def test_columns_are_those_of_real_exports(name: str) -> None:
    with closing(sqlite3.connect(f"file:{CAPTURES / name}.sqlite?mode=ro&immutable=1", uri=True)) as con:
        ((real_version,),) = con.execute("SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_SCHEMA_VERSION'")
        (release,) = [release for release, schema in RELEASES.items() if schema == real_version]
        shared = 0
        for table, columns in tables(release).items():
            real = con.execute(f"SELECT name, type, \"notnull\", pk FROM pragma_table_info('{table}')").fetchall()
            if real:
                shared += 1
                assert real == [(c.name, c.type, int(c.is_required), int(c.is_key)) for c in columns], table
        assert shared >= 8


# -- the big report


@pytest.mark.parametrize("dense", [False, True])
def test_synthetic_answers_are_those_of_the_oracle(path: Path, dense: bool) -> None:
    expected = synthesize(path, 2_400, ranks=2, dense=dense, seed=3)
    found = query(
        path,
        f"""SELECT (k.globalPid >> 24 & 0xFFFFFF) - {PID}, CAST(substr(n.text, 6) AS INTEGER),
                   value LIKE 'nccl%', k.start, k."end"
            FROM {KERNEL} k JOIN StringIds ON id = demangledName
            JOIN {RUNTIME} r ON r.correlationId = k.correlationId AND r.globalTid & ~0xFFFFFF = k.globalPid
            JOIN NVTX_EVENTS n ON n.globalTid & ~0xFFFFFF = k.globalPid AND n.text LIKE 'step/%'
            AND r.start BETWEEN n.start AND n."end" """,
    )
    assert len(found) == 2_400
    assert set(expected.steps) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    for rank in (0, 1):
        check(expected.ranks[rank], [row[2:] for row in found if row[0] == rank])
        for step in (0, 1):
            check(expected.steps[rank, step], [row[2:] for row in found if row[:2] == (rank, step)])


def check(answers: dict[str, int], kernels: list[tuple[int, int, int]]) -> None:
    compute: list[Interval] = [(start, end) for is_comm, start, end in kernels if not is_comm]
    comm: list[Interval] = [(start, end) for is_comm, start, end in kernels if is_comm]
    window = (min(start for _, start, _ in kernels), max(end for _, _, end in kernels))
    right = oracle_metrics(compute, comm, [], window) | {"n_compute": len(compute), "n_comm": len(comm)}
    assert answers == {name: right[name] for name in answers}


def test_dense_kernels_overlap_their_neighbours_and_sparse_ones_do_not(path: Path) -> None:
    select = f"SELECT start, \"end\" FROM {KERNEL} JOIN StringIds ON id = demangledName WHERE value NOT LIKE 'nccl%' ORDER BY 1"
    for dense in (False, True):
        synthesize(path, 500, ranks=1, dense=dense)
        rows = query(path, select)
        assert all((following < end) == dense for (_, end), (following, _) in pairwise(rows))


def test_a_seed_is_a_report(path: Path, tmp_path: Path) -> None:
    select = f"SELECT * FROM {KERNEL}"
    first, again, other = (
        synthesize(tmp_path / name, 300, ranks=3, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again != other
    assert query(tmp_path / "a", select) == query(tmp_path / "b", select)


def test_synthetic_ranks_and_operators(path: Path) -> None:
    synthesize(path, 800, ranks=8, ops=1_000, schema="2026.4")
    assert query(path, "SELECT count(DISTINCT text) FROM NVTX_EVENTS WHERE text LIKE 'aten::mm, op_id = %'") == [(1_000,)]
    assert query(path, "SELECT count(*) FROM NVTX_EVENTS WHERE text LIKE 'rank/%/world/8/device/%'") == [(8,)]
    assert query(path, f"SELECT count(DISTINCT globalPid), count(DISTINCT deviceId) FROM {KERNEL}") == [(8, 8)]
    assert query(path, "SELECT count(*), count(DISTINCT uuid) FROM TARGET_INFO_GPU") == [(8, 8)]
