"""An export of any generation as a Trace: the same timeline reads the same, and ids that repeat are never mixed up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nsight import GEMM, NCCL, SESSION_NS, D, K, N, O, P, R, Row, build, global_id
from nsight_schema import RELEASES

from ddpprof.analysis import load
from ddpprof.analysis.nsight_schema import PROCESS_MASK
from ddpprof.errors import InputError
from ddpprof.model import MISSING, Source, Trace

TIMELINE = """
    process 100 rank=0 world=2 gpus=a
    process 101 rank=1 world=2 gpus=a
    N  2..200 "step/1" pid=100 domain=ddpprof
    N60 3..190 "ProfilerStep#1" pid=101 end_thread=2
    N  5..15 "something else" pid=101
    N34 5..open "step/3" pid=100
    K dev0 s7  20..80.25 GEMM pid=100 launch=10..11 thread=2
    K dev0 s16 60..130 NCCL pid=100 launch=40..41 thread=2
    K dev0 s7  30..80 GEMM pid=101 launch=20..21
    K dev0 s7  -5..1 "my_op" pid=101
    M dev0 s7  90..99 PtoP pid=100 launch=50..51 bytes=64
    S dev0 s7  99..100 pid=100 launch=52..53
    O 70..75 pid=101
"""


def read(path: Path, rows: str | Iterable[Row], **options: Any) -> Trace:
    return load.read(build(path, rows, **options))


def operations(trace: Trace) -> list[tuple[Any, ...]]:
    """(pid, device, stream, start, end, launch, thread number, name, source) in ns; None for MISSING."""
    its = trace.operations
    names = ("process", "device", "stream", "start_ns", "end_ns", "launch_ns", "launch_thread", "name", "source")
    rows = zip(*(getattr(its, name).tolist() for name in names), strict=True)
    return [
        (
            trace.processes[process].pid,
            *where,
            None if launch == MISSING else launch,
            None if thread == MISSING else (thread & 0xFFFFFF) - trace.processes[process].pid,
            trace.names[name],
            Source(source).name,
        )
        for process, *where, launch, thread, name, source in rows
    ]


def ranges(trace: Trace) -> list[tuple[Any, ...]]:
    """(pid, thread number, start, end, text, pushed) in us; an open end is None."""
    its = trace.ranges
    names = ("process", "thread", "start_ns", "end_ns", "text", "is_pushed")
    return [
        (
            trace.processes[process].pid,
            (thread & 0xFFFFFF) - trace.processes[process].pid,
            start // 1000,
            None if end == MISSING else end // 1000,
            trace.texts[text],
            is_pushed,
        )
        for process, thread, start, end, text, is_pushed in zip(*(getattr(its, name).tolist() for name in names), strict=True)
        if process >= 0
    ]


def told(trace: Trace) -> list[str]:
    return [f"{warning.code}: {warning.message}" for warning in trace.warnings]


# -- one timeline, every generation

EXPECTED = [
    (100, 0, 7, 20_000, 80_250, 10_000, 2, GEMM, "KERNEL"),
    (100, 0, 16, 60_000, 130_000, 40_000, 2, NCCL, "KERNEL"),
    (100, 0, 7, 90_000, 99_000, 50_000, 0, "memcpy PtoP", "MEMCPY"),
    (100, 0, 7, 99_000, 100_000, 52_000, 0, "memset", "MEMSET"),
    (101, 0, 7, -5_000, 1_000, None, None, "my_op", "KERNEL"),
    (101, 0, 7, 30_000, 80_000, 20_000, 0, GEMM, "KERNEL"),
]


@pytest.mark.parametrize("nvtx", ["inline", "registered", "both"])
@pytest.mark.parametrize("schema", RELEASES)
def test_every_generation_reads_the_same(report: Path, schema: str, nvtx: Any) -> None:
    trace = read(report, TIMELINE, schema=schema, nvtx=nvtx)
    assert operations(trace) == EXPECTED
    assert sorted(ranges(trace)) == [
        (100, 0, 2, 200, "rank/0/world/2", True),
        (100, 0, 2, 200, "step/1", True),
        (101, 0, -5, 190, "rank/1/world/2", True),
        (101, 0, 3, 190, "ProfilerStep#1", False),
    ]
    assert [(item.pid, item.rank, item.rank_source, item.world_size, item.window) for item in trace.processes] == [
        (100, 0, "mark", 2, (2_000, 200_000)),
        (101, 1, "mark", 2, (-5_000, 190_000)),
    ]
    assert [(item.process, item.device_id, item.name) for item in trace.devices] == [
        (0, 0, "NVIDIA H200"),
        (1, 0, "NVIDIA H200"),
    ]
    assert len({item.gpu for item in trace.devices} - {None}) == 1
    assert trace.overheads == ((1, 70_000, 75_000),)
    assert (trace.evidence, trace.extent, trace.has_launches) == ("gpu-kernels", (0, 1_200_000), True)
    assert told(trace) == ["launch-mismatch: 1 of 4 kernels were launched outside the capture"]
    about = trace.report
    has_version, has_session = schema != "2020.3", schema != "2020.3"
    assert (about.exporter_version, about.schema_version) == ((schema, RELEASES[schema]) if has_version else (None, None))
    assert about.session_start_utc_ns == (SESSION_NS if has_session else None)


@pytest.mark.parametrize(
    "options",
    [
        {"hw_id": 200},
        {"shuffle": 5},
        {"shift_ns": SESSION_NS},
        {"shift_ns": 12_345},
        {"schema": "2023.4", "shift_ns": -SESSION_NS},
        {"meta": {"EXPORT_PARAM_TIME_SHIFT": "not a number"}},
        {"meta": {"EXPORT_CONFIG_TIME_SHIFT": "9" * 40}},
        {"sql": "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO CUPTI_ACTIVITY_KIND_KERNEL_V2"},
        {"sql": "ALTER TABLE NVTX_EVENTS RENAME TO NVTX_EVENTS_V2"},
    ],
    ids=str,
)
def test_times_and_ids_of_other_kinds_read_the_same(report: Path, options: dict[str, Any]) -> None:
    trace = read(report, TIMELINE, **options)
    assert operations(trace) == EXPECTED
    assert [item.pid for item in trace.processes] == [100, 101]
    assert trace.overheads == ((1, 70_000, 75_000),)


@pytest.mark.parametrize("column", ["shortName", "contextId", "gridX", "graphNodeId"])
def test_a_column_that_is_not_needed(report: Path, column: str) -> None:
    assert operations(read(report, TIMELINE, sql=f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN {column}")) == EXPECTED


@pytest.mark.parametrize("column", ["start", "end", "deviceId", "streamId"])
def test_a_column_that_is_needed(report: Path, column: str) -> None:
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    with pytest.raises(InputError, match=rf"^{report}: table {table} has no column {column}\n"):
        read(report, TIMELINE, sql=f"ALTER TABLE {table} DROP COLUMN {column}")


def test_without_demangled_names_the_short_ones_do(report: Path) -> None:
    trace = read(report, TIMELINE, sql="ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN demangledName")
    assert {name for name in trace.names if not name.startswith("mem")} == {
        "Kernel2",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "my_op",
    }


def test_a_name_that_is_not_there_is_numbered(report: Path) -> None:
    trace = read(report, "K dev0 s7 0..1 GEMM", sql="UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 99")
    assert trace.names == ("unnamed kernel 99",)


def test_equal_names_under_two_ids_are_one(report: Path) -> None:
    more = (
        f"INSERT INTO StringIds VALUES (77, '{GEMM}'); UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 77 WHERE start = 0"
    )
    trace = read(report, "K dev0 s7 0..1 GEMM\nK dev0 s7 1..2 GEMM", sql=more)
    assert (trace.names, trace.operations.name.tolist()) == ((GEMM,), [0, 0])


# -- launches


def launches(trace: Trace) -> list[int | None]:
    """The launch of each operation in us, in order of process and start."""
    return [None if time == MISSING else time // 1000 for time in trace.operations.launch_ns.tolist()]


def test_correlation_ids_repeat_across_processes(report: Path) -> None:
    rows = [K(0, 7, 100, 101, corr=5, launch=(1, 2), pid=100), K(0, 7, 100, 101, corr=5, launch=(3, 4), pid=200)]
    assert launches(read(report, [*rows, K(0, 7, 100, 101, corr=5, pid=300)])) == [1, 3, None]


@pytest.mark.parametrize("far", [0, 10**9, 2**62, -(2**62)])
def test_correlation_ids_may_be_huge_and_sparse(report: Path, far: int) -> None:
    rows = [K(0, 7, 100 + at, 101 + at, corr=at * far + at, launch=(at, at + 1)) for at in (-1, 0, 1)]
    assert launches(read(report, [*rows, K(0, 7, 200, 201, corr=7), K(0, 7, 201, 202, corr=2**63 - 1)])) == [
        -1,
        0,
        1,
        None,
        None,
    ]


@pytest.mark.parametrize("far", [0, 2**40])
def test_a_call_that_is_recorded_twice_counts_once(report: Path, far: int) -> None:
    rows: list[Row] = [
        R(far + 9, 1, 4),
        R(far + 9, 2, 3, "cuLaunchKernel"),
        R(0, 0, 1, "cudaFree"),
        K(0, 7, 5, 6, corr=far + 9),
    ]
    trace = read(report, rows)
    assert (launches(trace), trace.lost_launches, told(trace)) == ([1], (), [])


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from([100, 101]), st.integers(0, 6)), max_size=12),
    st.lists(st.tuples(st.sampled_from([100, 101, 102]), st.integers(0, 8)), min_size=1, max_size=12),
    st.sampled_from([1, 2**50]),
)
def test_launches_join_as_a_dictionary_would(
    tmp_path: Path, calls: list[tuple[int, int]], work: list[tuple[int, int]], far: int
) -> None:
    made = [R(corr * far, at, at + 1, pid=pid) for at, (pid, corr) in enumerate(calls)]
    done = [K(0, 7, 100 + at, 101 + at, corr=corr * far, pid=pid) for at, (pid, corr) in enumerate(work)]
    first: dict[tuple[int, int], int] = {}
    for at, call in enumerate(calls):
        first.setdefault(call, at)
    trace = read(tmp_path / "drawn.sqlite", [*made, *done])
    assert launches(trace) == [first.get(key) for key in sorted(work, key=lambda key: key[0])]
    workers = sorted({pid for pid, _ in work})
    lost = [
        (workers.index(pid), at * 1000) for at, (pid, corr) in enumerate(calls) if pid in workers and (pid, corr) not in work
    ]
    assert sorted(trace.lost_launches) == sorted(lost)


def test_only_launches_of_kernels_can_be_lost(report: Path) -> None:
    rows: list[Row] = [
        K(0, 7, 5, 6, launch=(1, 2), corr=1),
        R(2, 2, 3, "cudaLaunchKernelExC_v11060"),
        R(3, 3, 4, "cuLaunchKernelEx"),
        R(4, 4, 5, "cudaLaunchHostFunc_v10000"),
        R(5, 5, 6, "cudaMemcpyAsync_v3020"),
        R(6, 6, 7, "cudaLaunchKernel_v7000", pid=999),
    ]
    trace = read(report, rows)
    assert trace.lost_launches == ((0, 2_000), (0, 3_000))
    assert told(trace) == ["launch-mismatch: 2 kernel launches have no kernel in the report"]


def test_kernels_of_a_graph_share_its_launch(report: Path) -> None:
    trace = read(
        report, "R 9 1..2 cudaGraphLaunch_v10000\nK dev0 s7 5..6 GEMM corr=9 node=1\nK dev0 s7 6..7 GEMM corr=9 node=2"
    )
    assert (launches(trace), trace.lost_launches, trace.is_graph_opaque) == ([1, 1], (), frozenset())


@pytest.mark.parametrize("schema", ["2022.4", "2024.2"])
def test_graphs_traced_whole_are_opaque_also_where_the_export_hides_them(report: Path, schema: str) -> None:
    trace = read(report, "G dev0 s7 50..90 launch=1..2\nK dev0 s7 5..6 GEMM", schema=schema)
    assert trace.is_graph_opaque == {0}
    assert told(trace)[0].startswith("graph-trace-opaque: 1 CUDA graph launches")


# -- impossible rows

FAR = 2**61


@pytest.mark.parametrize(
    "damage",
    [
        '"end" = start',
        '"end" = start - 1',
        'start = 0, "end" = 0',
        f"start = {-FAR}",
        f'"end" = {FAR}',
        f'start = {2**63 - 2}, "end" = {2**63 - 1}',
        "\"end\" = 'x'",
        "start = NULL",
        "globalPid = NULL",
        "deviceId = -1",
        "deviceId = 4096",
        "deviceId = 1.5",
    ],
)
def test_impossible_rows_are_left_out_and_counted(report: Path, damage: str) -> None:
    """The copy of the table is free of types and of NOT NULL."""
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    sql = f"""CREATE TABLE loose AS SELECT * FROM {table}; DROP TABLE {table}; ALTER TABLE loose RENAME TO {table};
        UPDATE {table} SET {damage} WHERE start = 1000"""
    trace = read(report, [K(0, 7, at, at + 1) for at in range(5)], sql=sql)
    assert trace.operations.start_ns.tolist() == [0, 2_000, 3_000, 4_000]
    assert told(trace) == ["dropped-rows: 1 rows left out: no process or device, or an end that is not after the start"]


@pytest.mark.parametrize("time", [FAR, -FAR, 2**63 - 1, "'x'"])
def test_a_launch_at_no_time_is_no_launch(report: Path, time: Any) -> None:
    trace = read(report, "K dev0 s7 5..6 GEMM launch=1..2", sql=f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = {time}")
    assert (launches(trace), trace.has_launches) == ([None], False)


@pytest.mark.parametrize(("end", "told_us"), [("NULL", None), (2**63 - 1, None), (-FAR, None), ("'x'", None), ("50000", 50)])
def test_a_range_that_ends_at_no_time_is_open(report: Path, end: Any, told_us: int | None) -> None:
    trace = read(report, 'N 1..9 "step/1"\nK dev0 s7 5..6 GEMM', sql=f'UPDATE NVTX_EVENTS SET "end" = {end}')
    assert [row[3] for row in ranges(trace)] == [told_us]


def test_copies_alone_are_nothing_to_measure(report: Path) -> None:
    with pytest.raises(InputError, match=r"no GPU kernels in report \(2 copies and sets only\)"):
        read(report, "M dev0 s7 0..1 HtoD\nS dev0 s7 1..2")


# -- ranks


@pytest.mark.parametrize("schema", ["2022.4", "2023.3", "2024.2"])
@pytest.mark.parametrize(
    ("env", "rank", "world"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, 3, 8),
        ({"OMPI_COMM_WORLD_RANK": "5"}, 5, None),
        ({"SLURM_PROCID": "6", "RANK": "2"}, 2, None),
        ({"PMI_RANK": "1", "SLURM_PROCID": "4", "PMI_SIZE": "6"}, 4, 6),
        ({"RANK": "-1"}, None, None),
        ({"RANK": "", "WORLD_SIZE": "a"}, None, None),
        ({"RANK": "12345678", "WORLD_SIZE": "99999999999"}, None, None),
        ({"RANK": "\N{ARABIC-INDIC DIGIT THREE}"}, None, None),
        ({"LOCAL_RANK": "3", "MY_RANK": "4", "RANKS": "5"}, None, None),
    ],
)
def test_rank_from_the_environment(report: Path, schema: str, env: dict[str, str], rank: int | None, world: int | None) -> None:
    (process,) = read(report, "K dev0 s7 0..1 GEMM", schema=schema, env=env).processes
    assert (process.rank, process.world_size) == (rank, world)
    assert process.rank_source == ("unknown" if rank is None else "environment")


def test_the_environment_is_that_of_nsys_so_it_names_no_one_of_several(report: Path) -> None:
    trace = read(report, [K(0, 7, 0, 1, pid=100), K(0, 7, 0, 1, pid=101)], env={"RANK": "3", "WORLD_SIZE": "2"})
    assert [(item.rank, item.rank_source, item.world_size) for item in trace.processes] == [(None, "unknown", 2)] * 2


def test_a_mark_is_believed_before_the_environment(report: Path) -> None:
    (process,) = read(report, [P(100, rank=1, world=2), K(0, 7, 0, 1)], env={"RANK": "3", "WORLD_SIZE": "8"}).processes
    assert (process.rank, process.rank_source, process.world_size) == (1, "mark", 2)


def test_a_process_that_only_carries_a_mark_is_kept(report: Path) -> None:
    trace = read(report, [P(101, rank=1, world=2), K(0, 7, 0, 1), N(0, 9, "step/1", pid=102)])
    assert [(item.pid, item.rank) for item in trace.processes] == [(100, None), (101, 1)]


def test_several_marks_of_a_rank_make_one_window(report: Path) -> None:
    (process,) = read(
        report, [K(0, 7, 0, 1), N(10, 20, "rank/0"), N(30, None, "rank/0"), N(5, 6, "rank/0")], duration=90
    ).processes
    assert process.window == (5_000, 90_000)


def test_nothing_of_the_environment_is_kept(report: Path) -> None:
    env = {"RANK": "0", "SECRET_TOKEN": "hunter2", "HOME": "/home/alice"}
    rows: list[Row] = [K(0, 7, 0, 1), P(101, name="alices_job"), D("CUDA: cannot open /home/alice/x.so", 3)]
    trace = read(report, rows, env=env)
    kept = repr((trace.report, trace.processes, trace.devices, trace.names, trace.texts, trace.warnings))
    assert not [word for word in ("hunter2", "alice", "SECRET", "HOME") if word in kept]


@pytest.mark.parametrize("schema", ["2022.4", "2023.3", "2024.2"])
def test_the_settings_are_those_of_all_processes_and_only_numbers_or_switches(report: Path, schema: str) -> None:
    env = {"TORCH_NCCL_BLOCKING_WAIT": "True", "CUDA_LAUNCH_BLOCKING": "1", "NCCL_P2P_DISABLE": "alice", "NCCL_DEBUG": "1"}
    trace = read(report, [K(0, 7, 0, 1, pid=100), K(0, 7, 0, 1, pid=101)], schema=schema, env=env | {"NCCL_SHM_DISABLE": ""})
    expected = (("CUDA_LAUNCH_BLOCKING", "1"), ("TORCH_NCCL_BLOCKING_WAIT", "True"))
    assert [process.settings for process in trace.processes] == [expected, expected]


# -- devices


def gpus(trace: Trace) -> list[tuple[int, int, str | None]]:
    """(pid, device, last character of the GPU's identity)."""
    return [(trace.processes[item.process].pid, item.device_id, item.gpu and item.gpu[-1]) for item in trace.devices]


SHARED_GPU: list[Row] = [
    P(100, gpus=("a", "b")),
    P(200, gpus=("b",)),
    *(K(dev, 7, 0, 1, pid=pid) for pid, dev in ((100, 0), (100, 1), (200, 0))),
]


def test_physical_gpus_by_process_and_ordinal(report: Path) -> None:
    assert gpus(read(report, SHARED_GPU, schema="2025.1")) == [(100, 0, "a"), (100, 1, "b"), (200, 0, "b")]


def test_without_the_map_several_gpus_cannot_be_told_apart(report: Path) -> None:
    trace = read(report, SHARED_GPU, schema="2024.2")
    assert gpus(trace) == [(100, 0, None), (100, 1, None), (200, 0, None)]
    assert {item.name for item in trace.devices} == {"NVIDIA H200"}


def test_the_only_gpu_is_everyones(report: Path) -> None:
    rows: list[Row] = [P(100, gpus=("a",)), P(200, gpus=("a",)), K(0, 7, 0, 1, pid=100), K(0, 7, 0, 1, pid=200)]
    assert gpus(read(report, rows, schema="2024.2")) == [(100, 0, "a"), (200, 0, "a")]
    assert [identity and identity[-1] for _, _, identity in gpus(read(report, rows, schema="2020.3"))] == ["0", "0"]


def test_devices_without_work_are_not_listed(report: Path) -> None:
    assert gpus(read(report, [P(100, gpus=("a", "b")), K(1, 7, 0, 1)], schema="2025.1")) == [(100, 1, "b")]


# -- host ranges


def test_domain_ids_belong_to_their_process(report: Path) -> None:
    """Domain 1 is NCCL's in one process and ours in the other; our marks count in ours and the default one only."""
    rows: list[Row] = [
        K(0, 7, 0, 1, pid=100),
        K(0, 7, 0, 1, pid=200),
        N(1, 9, "ncclAllReduce", 100, "NCCL"),
        N(2, 9, "backward", 100, "NCCL"),
        N(3, 9, "backward", 200, "ddpprof"),
        N(4, 9, "ncclAllReduce", 200, "NCCL"),
        N(5, 9, "forward", 200),
        N(6, 9, "step/7", 200, "NCCL"),
    ]
    assert [(pid, text) for pid, _, _, _, text, _ in ranges(read(report, rows))] == [
        (100, "ncclAllReduce"),
        (200, "backward"),
        (200, "ncclAllReduce"),
        (200, "forward"),
        (200, "step/7"),
    ]


def test_ranges_of_further_programs_are_left_out_unless_asked_for(report: Path) -> None:
    build(report, [K(0, 7, 0, 1), N(0, 9, "aten::mm, op_id = 3"), N(1, 9, "my epoch 3")])
    assert ranges(load.read(report)) == []
    assert [row[4] for row in ranges(load.read(report, "EPOCH"))] == ["my epoch 3"]


HOST = """
    process 100 rank=0 world=2
    N 0..99 "step/4" domain=ddpprof
    N 10..60 "delay/0" domain=ddpprof thread=2
    N60 40..120 "allreduce/0" domain=ddpprof thread=2 end_thread=3
    N60 50..open "allreduce/1" domain=ddpprof thread=2
"""


@pytest.mark.parametrize("schema", ["2020.3", "2022.4", "2024.2", "2026.4"])
def test_a_run_without_a_device(report: Path, schema: str) -> None:
    trace = read(report, HOST, schema=schema, nvtx="registered")
    assert trace.evidence == "host-ranges"
    assert operations(trace) == [
        (100, -1, 0, 10_000, 60_000, 10_000, 2, "delay/0", "HOST"),
        (100, -1, 1, 40_000, 120_000, 40_000, 2, "allreduce/0", "HOST"),
    ]
    assert trace.devices == ()
    assert {warning.code for warning in trace.warnings} == {"capture-incomplete", "dropped-rows"}


# -- waits


def test_waits_are_the_calls_that_return_when_the_device_is_done(report: Path) -> None:
    rows = """
        process 101
        K dev0 s7 0..1 GEMM
        R 1 30..35    cuEventSynchronize
        process 100
        K dev0 s7 0..1 GEMM launch=-2..-1
        R 1 50..60.5  cudaStreamSynchronize_ptsz_v7000
        R 2 20..21    cudaDeviceSynchronize_v3020 thread=2
        R 3 40..41    cudaMemcpy_v3020
        R 4 42..43    cudaMemcpyAsync_v3020
        R 5 44..45    cudaStreamWaitEvent_v3020
        R 6 46..46    cudaEventSynchronize_v3020
        process 999
        R 1 20..30    cudaDeviceSynchronize_v3020
    """
    expected = ((0, 20_000, 21_000), (0, 40_000, 41_000), (0, 50_000, 60_500), (1, 30_000, 35_000))
    assert read(report, rows).waits == expected
    assert read(report, rows, shuffle=1, shift_ns=1_000).waits == expected
    assert read(report, rows, sql='ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME RENAME COLUMN "end" TO till').waits == ()


@pytest.mark.parametrize("domain", [None, "ddpprof"])
def test_a_mark_of_waiting_is_a_range_and_no_work(report: Path, domain: str | None) -> None:
    rows = [N(0, 9, "rank/0"), N(1, 5, "delay/0", domain=domain), N(5, 8, "wait/item", domain=domain)]
    trace = read(report, rows)
    assert [row[2:5] for row in ranges(trace)][1:] == [(1, 5, "delay/0"), (5, 8, "wait/item")]
    assert [trace.names[name] for name in trace.operations.name] == ["delay/0"]


# -- the profiler's own word


def test_overheads_are_those_of_cuda_in_processes_that_work(report: Path) -> None:
    rows: list[Row] = [
        K(0, 7, 0, 1),
        O(1, 2, "CUDA profiling data flush on process exit"),
        O(2, 3, "CUPTI: Buffer flush"),
        O(3, 4, "dlopen(libfoo.so)"),
        O(4, 5, "CUPTI Buffer flush", pid=999),
        O(6, 6, "CUPTI Buffer flush"),
    ]
    assert read(report, rows).overheads == ((0, 1_000, 2_000), (0, 2_000, 3_000))


def test_diagnostics_that_matter_are_shown_without_paths(report: Path) -> None:
    rows: list[Row] = [
        K(0, 7, 0, 1),
        D("CUDA events might be missing in /tmp/x y", 2),
        D("CUDA events might be missing in /tmp/x y", 2),
        D("CUPTI is fine", 1),
        D("Some sampling trouble", 3),
        D("NVTX of another process", 3, pid=999),
    ]
    assert told(read(report, rows)) == ["diagnostic: nsys: CUDA events might be missing in … y (in 2 processes)"]


@pytest.mark.parametrize(("key", "what"), [("TIMES", "times"), ("TABLES", "tables")])
def test_a_clip_says_so(report: Path, key: str, what: str) -> None:
    trace = read(report, "K dev0 s7 0..1 GEMM", meta={f"EXPORT_PARAM_{key}_TO_EXPORT": "1s/2s"})
    assert told(trace) == [f"capture-incomplete: the export is a clip: it was limited to some {what}"]


def test_ids_with_the_highest_bit_are_negative_and_still_tell_the_process() -> None:
    negative = global_id(100, 3, hw_id=200)
    assert negative < 0
    assert negative & PROCESS_MASK == global_id(100, hw_id=200)
    assert np.int64(negative) >> 24 & 0xFFFFFF == 100
