"""torch.profiler traces, each a few events that can be checked by eye; the real ones; and two made here by gloo DDP.

Times in the events are microseconds as the file spells them, times in the answers are ns.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from oracle import by_sweep

from ddpprof import marks
from ddpprof.analysis import job, kineto_json
from ddpprof.analysis.kineto_reader import read
from ddpprof.errors import InputError, UsageError
from ddpprof.model import MISSING, Device, Process, Source, Trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
CAPTURES = Path(__file__).parents[2].parent / "shared" / "captures"
needs_captures = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the shared captures are not here")


def event(cat: str, name: str, ts: object, dur: object, pid: object, tid: object, **args: Any) -> str:
    """One complete event; ``ts`` and ``dur`` go into the file as they are written here, None leaves them out."""
    times = "".join(f'"{key}": {value}, ' for key, value in (("ts", ts), ("dur", dur)) if value is not None)
    fields = f'"cat": "{cat}", "name": {json.dumps(name)}, "pid": {json.dumps(pid)}, "tid": {json.dumps(tid)}'
    return f'{{"ph": "X", {times}{fields}, "args": {json.dumps(args)}}}'


def K(ts: object, dur: object, name: str = "gemm", corr: int | None = None, *, device: int = 0, stream: int = 7) -> str:
    """A kernel."""
    linked = {} if corr is None else {"correlation": corr}
    return event("kernel", name, ts, dur, device, stream, device=device, stream=stream, **linked)


def R(corr: int, ts: object, name: str = "cudaLaunchKernel", *, thread: int = 11, pid: int = 10) -> str:
    """The runtime call that launched what has the same correlation."""
    return event("cuda_runtime", name, ts, 1, pid, thread, correlation=corr)


def U(ts: object, dur: object, name: str, *, thread: int = 11, cat: str = "user_annotation", pid: int = 10) -> str:
    """A host range."""
    return event(cat, name, ts, dur, pid, thread)


def write(path: Path, *events: str, **head: Any) -> Path:
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    lines.append('"traceEvents": [\n' + ",\n".join(events) + "\n]")
    path.write_text("{" + ",\n".join(lines) + "}", encoding="utf-8")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def spans(trace: Trace) -> list[tuple[int, int]]:
    return list(zip(trace.operations.start_ns.tolist(), trace.operations.end_ns.tolist(), strict=True))


def operations(trace: Trace) -> list[tuple[str, int, int]]:
    """(name, start, end) in the order of the trace."""
    return [(trace.names[name], *span) for name, span in zip(trace.operations.name.tolist(), spans(trace), strict=True)]


def launches(trace: Trace) -> list[tuple[int, int]]:
    return list(zip(trace.operations.launch_ns.tolist(), trace.operations.launch_thread.tolist(), strict=True))


def ranges(trace: Trace) -> list[tuple[str, int, int, int]]:
    """(text, thread, start, end) in the order of the trace."""
    columns = (getattr(trace.ranges, name).tolist() for name in ("text", "thread", "start_ns", "end_ns"))
    return [(trace.texts[text], *rest) for text, *rest in zip(*columns, strict=True)]


def warnings(trace: Trace) -> list[tuple[str, str]]:
    return [(warning.code, warning.message) for warning in trace.warnings]


# ------------------------------------------------------------------------------------------------- times and events


@pytest.mark.parametrize(
    ("ts", "dur", "span"),
    [
        ("100.7", "0.2", (100_700, 100_900)),
        ("100", "2", (100_000, 102_000)),
        ("1700000000123456.789", "0.211", (1_700_000_000_123_456_789, 1_700_000_000_123_457_000)),
        ("1700000000123456", "1", (1_700_000_000_123_456_000, 1_700_000_000_123_457_000)),
        ("4458676522690.655", "156.777", (4_458_676_522_690_655, 4_458_676_522_847_432)),
        ("1.5e3", "1E-1", (1_500_000, 1_500_100)),
        ("100.69999999999999", "0.30000000000000004", (100_700, 101_000)),
        ("-75.5", "10", (-75_500, -65_500)),
        ("5", "0", (5_000, 5_000)),
    ],
)
def test_microseconds_become_nanoseconds_exactly(path: Path, ts: str, dur: str, span: tuple[int, int]) -> None:
    assert spans(read(write(path, K(ts, dur)))) == [span]


@pytest.mark.parametrize("unit", ["ms", "ns"])
def test_display_unit_and_base_time_leave_times_alone(path: Path, unit: str) -> None:
    trace = read(write(path, K("1.5", "2"), displayTimeUnit=unit, baseTimeNanoseconds=1_711_964_646_000_000_000))
    assert spans(trace) == [(1_500, 3_500)]
    assert trace.report.session_start_utc_ns == 1_711_964_646_000_000_000


def test_without_base_time_zero_is_1970_or_unknown(path: Path) -> None:
    assert read(write(path, K("1694128201435418", "1"))).report.session_start_utc_ns == 0
    assert read(write(path, K("5", "1"))).report.session_start_utc_ns is None


def test_keys_behind_the_events_count_as_well(path: Path) -> None:
    path.write_text('{"traceEvents": [' + K(1, 1) + '], "distributedInfo": {"rank": 3, "world_size": 4}}')
    assert read(path).processes[0].rank == 3


@pytest.mark.parametrize(
    ("cat", "name", "source", "found"),
    [
        ("kernel", "gemm<float>(int)", Source.KERNEL, "gemm<float>(int)"),
        ("Kernel", "gemm", Source.KERNEL, "gemm"),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", Source.MEMCPY, "memcpy HtoD"),
        ("Memcpy", "Memcpy DtoD (Device -> Device)", Source.MEMCPY, "memcpy DtoD"),
        ("gpu_memcpy", "CopyDeviceToHost", Source.MEMCPY, "memcpy DtoH"),
        ("gpu_memcpy", "Memcpy unknown", Source.MEMCPY, "memcpy other"),
        ("gpu_memset", "Memset (Device)", Source.MEMSET, "memset"),
        ("Memset", "Memset (Unknown)", Source.MEMSET, "memset"),
    ],
)
def test_device_categories_old_and_new(path: Path, cat: str, name: str, source: Source, found: str) -> None:
    trace = read(write(path, event(cat, name, 1, 2, 0, 7, device=0, stream=7)))
    assert operations(trace) == [(found, 1_000, 3_000)]
    assert trace.operations.source.tolist() == [source]
    assert trace.evidence == "gpu-kernels"


def test_what_is_no_device_work_is_left_out(path: Path) -> None:
    noise = (
        event("gpu_user_annotation", "step 1", 0, 9, 0, 7),
        event("cuda_sync", "Stream Sync", 0, 9, 0, 7, device=0, stream=7, correlation=5),
        event("python_function", "train.py(1): step", 0, 9, 10, 11),
        '{"ph": "i", "cat": "kernel", "name": "gemm", "ts": 1}',
        '{"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 5, "ts": 1, "pid": 0, "tid": 7}',
        "null",
        "{}",
        '{"ph": "X", "cat": ["kernel"], "name": null, "ts": 1, "dur": 1}',
    )
    trace = read(write(path, *noise, K(1, 2)))
    assert operations(trace) == [("gemm", 1_000, 3_000)]
    assert ranges(trace) == []
    assert warnings(trace) == []


def test_device_and_stream_come_from_args_else_from_pid_and_tid(path: Path) -> None:
    rows = (
        event("kernel", "in args", 1, 1, 5, 5, device=1, stream=20),
        event("kernel", "in pid and tid", 2, 1, 2, 21),
        event("Kernel", "in words", 3, 1, "GPU 3", "stream 22 "),
        event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 4, 1, 9, 23, fromDevice=0, inDevice=4, toDevice=1, stream=23),
    )
    trace = read(write(path, *rows))
    assert trace.operations.device.tolist() == [1, 2, 3, 4]
    assert trace.operations.stream.tolist() == [20, 21, 22, 23]


def test_operations_are_ordered_by_device_then_start(path: Path) -> None:
    trace = read(write(path, K(3, 1, "c", device=1), K(9, 1, "b"), K(2, 1, "d", device=1), K(5, 1, "a")))
    assert [name for name, *_ in operations(trace)] == ["a", "b", "d", "c"]
    assert trace.operations.process.tolist() == [0, 0, 0, 0]
    assert trace.names == ("c", "b", "d", "a")


# --------------------------------------------------------------------------------------------------------- launches


@pytest.mark.parametrize(
    ("cat", "call"),
    [
        ("cuda_runtime", "cudaLaunchKernel"),
        ("cuda_driver", "cuLaunchKernelEx"),
        ("Runtime", "cudaLaunchKernel"),
        ("cuda_runtime", "hipExtModuleLaunchKernel"),
        ("hip_runtime", "hipLaunchKernel"),
    ],
)
def test_a_kernel_is_launched_by_the_call_of_its_correlation(path: Path, cat: str, call: str) -> None:
    calls = [event(cat, call, f"{ts}.5", 1, 10, thread, correlation=corr) for corr, ts, thread in ((5, 1, 11), (6, 2, 12))]
    trace = read(write(path, K(4, 1, "first", 5), K(6, 1, "second", 6), *calls))
    assert launches(trace) == [(1_500, 11), (2_500, 12)]
    assert trace.has_launches
    assert trace.processes == (Process(key=10, pid=10),)
    assert warnings(trace) == []


def test_external_ids_join_only_where_there_is_no_correlation(path: Path) -> None:
    rows = (
        event("Runtime", "cudaLaunchKernel", 1, 1, 10, 11, **{"external id": 7}),
        event("Runtime", "cudaLaunchKernel", 2, 1, 10, 12, **{"correlation": 7, "External id": 8}),
        event("Kernel", "by external id", 5, 1, 0, 7, **{"External id": 7}),
        event("Kernel", "by correlation", 6, 1, 0, 7, **{"correlation": 7, "External id": 9}),
    )
    assert launches(read(write(path, *rows))) == [(1_000, 11), (2_000, 12)]


def test_without_a_call_in_the_trace_the_launch_is_missing(path: Path) -> None:
    trace = read(write(path, R(5, 1), K(4, 1, "a", 5), K(6, 1, "b", 6), K(8, 1, "c")))
    assert launches(trace) == [(1_000, 11), (MISSING, MISSING), (MISSING, MISSING)]
    assert warnings(trace) == [("launch-mismatch", "2 of 3 kernels were launched outside the capture")]


def test_a_driver_call_inside_a_runtime_call_has_its_correlation(path: Path) -> None:
    driver = event("cuda_driver", "cuLaunchKernel", 2, 1, 10, 11, correlation=5)
    trace = read(write(path, driver, R(5, 1), K(4, 1, "a", 5)))
    assert launches(trace) == [(1_000, 11)]
    assert trace.lost_launches == ()


def test_a_trace_without_any_call_is_no_mismatch(path: Path) -> None:
    trace = read(write(path, K(4, 1, "a", 5)))
    assert not trace.has_launches
    assert warnings(trace) == []


def test_launches_without_kernels_and_kernels_before_their_launch(path: Path) -> None:
    calls = (R(1, 0), R(2, 10), R(3, "11.5"), R(4, 12), R(5, 13, "cudaEventQuery"), R(6, 14, "cudaLaunchHostFunc"))
    trace = read(write(path, *calls, K(5, 1, "a", 1), K(9, 1, "early", 2)))
    assert trace.lost_launches == ((0, 11_500), (0, 12_000))
    assert warnings(trace) == [
        ("launch-mismatch", "1 of 2 kernels start before their own launch call"),
        ("launch-mismatch", "2 kernel launches have no kernel in the trace"),
    ]


def test_many_kernels_of_one_graph_launch(path: Path) -> None:
    trace = read(write(path, R(5, 1, "cudaGraphLaunch"), R(6, 0), K(3, 1, "a", 5), K(4, 1, "b", 5), K(5, 1, "c", 5)))
    assert launches(trace) == [(1_000, 11)] * 3
    assert trace.is_graph_opaque == frozenset()
    assert trace.lost_launches == ()  # the other launch was swallowed by the capture of the graph
    assert warnings(trace) == []


def test_graph_launches_without_kernels_are_opaque(path: Path) -> None:
    graphs = (R(5, 1, "cudaGraphLaunch"), R(6, 2, "cudaGraphLaunch"))
    trace = read(write(path, *graphs, R(7, 3), K(4, 1, "a", 7)))
    assert trace.is_graph_opaque == frozenset({0})
    message = "2 CUDA graph launches without kernels: what ran in them cannot be seen"
    assert warnings(trace) == [("graph-trace-opaque", message)]


# ------------------------------------------------------------------------------------------------------ host ranges


def test_ranges_that_say_something_are_kept_in_order_of_start(path: Path) -> None:
    kept = [
        (1, "rank/0/world/2/device/0", "user_annotation"),
        (2, "step/4", "user_annotation"),
        (3, "bucket/0/4194304", "user_annotation"),
        (4, "ProfilerStep#4", "user_annotation"),
        (5, "step 4", "user_annotation"),
        (6, "iteration 12", "user_annotation"),
        (7, "nccl:all_reduce", "user_annotation"),
        (8, "nccl:send 0->1", "user_annotation"),
        (9, "gloo:all_reduce", "user_annotation"),
        (10, "c10d::allreduce_", "cpu_op"),
        (11, "record_param_comms", "cpu_op"),
        (12, "backward", "Operator"),
        (13, "wait/item", "user_annotation"),
    ]
    left = [("aten::mm", "cpu_op"), ("Optimizer.step#SGD.step", "user_annotation"), ("step 4", "gpu_user_annotation")]
    rows = [U(ts, "0.5", name, cat=cat, thread=ts) for ts, name, cat in reversed(kept)]
    rows += [U(50, 1, name, cat=cat) for name, cat in left]
    trace = read(write(path, *rows, K(20, 1, NCCL)))
    assert ranges(trace) == [(name, ts, ts * 1000, ts * 1000 + 500) for ts, name, _ in kept]
    assert trace.ranges.is_pushed.all()


def test_a_step_pattern_keeps_further_ranges(path: Path) -> None:
    rows = (U(1, 1, "## forward ##"), U(2, 1, "Batch no. 7"), K(5, 1))
    assert ranges(read(write(path, *rows))) == []
    assert ranges(read(path, "^batch no")) == [("Batch no. 7", 11, 2_000, 3_000)]
    with pytest.raises(UsageError, match="--step-range"):
        read(path, "batch(")


def test_a_range_without_duration_is_open(path: Path) -> None:
    trace = read(write(path, U(1, None, "step 4"), K(5, 1)))
    assert ranges(trace) == [("step 4", 11, 1_000, MISSING)]
    assert warnings(trace) == [("capture-incomplete", "1 host ranges were still open when the capture ended")]


# ---------------------------------------------------------------------------------------------- processes and devices


RANK_MARK = U(2, 90, marks.rank(1, 4, 0))


@pytest.mark.parametrize(
    ("job", "rows", "expected"),
    [
        ({"rank": 3, "world_size": 8}, (), (3, "distributedInfo", 8, None)),
        ({"rank": 3, "world_size": 8}, (RANK_MARK,), (3, "distributedInfo", 8, (2_000, 92_000))),
        ({"backend": "nccl"}, (RANK_MARK,), (1, "mark", 4, (2_000, 92_000))),
        ({"rank": -1, "world_size": 8}, (), (None, "unknown", 8, None)),
        (None, (RANK_MARK,), (1, "mark", 4, (2_000, 92_000))),
        (None, (U(2, None, marks.rank(1, 4, None)),), (1, "mark", 4, None)),
        (None, (), (None, "unknown", None, None)),
        (["rank"], (), (None, "unknown", None, None)),
    ],
)
def test_rank_and_window(path: Path, job: object, rows: tuple[str, ...], expected: tuple[Any, ...]) -> None:
    (process,) = read(write(path, K(5, 1), *rows, distributedInfo=job)).processes
    assert (process.rank, process.rank_source, process.world_size, process.window) == expected


def test_the_host_process_without_runtime_calls(path: Path) -> None:
    label = '{"ph": "M", "name": "process_labels", "pid": %d, "tid": 0, "ts": 0, "args": {"labels": "%s"}}'
    assert read(write(path, U(1, 1, "aten::mm", cat="cpu_op", pid=77), K(5, 1))).processes[0].pid == 77
    assert read(write(path, label % (0, "GPU 0"), label % (78, "CPU"), K(5, 1))).processes[0].pid == 78
    assert read(write(path, K(5, 1))).processes[0].pid == -1


def test_merged_traces_of_several_processes_are_refused(path: Path) -> None:
    write(path, R(5, 1, pid=10), R(5, 1, pid=20), K(4, 1, "a", 5), K(4, 1, "a", 5, device=1))
    with pytest.raises(InputError, match="holds 2 processes merged into one trace"):
        read(path)


def test_devices_are_those_with_work(path: Path) -> None:
    known = [{"id": 0, "name": "A100"}, {"id": 1, "name": "H200", "uuid": "GPU-1"}, {"id": 2, "name": "H200"}, "odd"]
    assert read(write(path, K(1, 1, device=1), K(1, 1), deviceProperties=known)).devices == (
        Device(process=0, device_id=0, name="A100"),
        Device(process=0, device_id=1, name="H200", gpu="GPU-1"),
    )
    assert read(write(path, K(1, 1))).devices == (Device(process=0, device_id=0),)


def test_extent_and_overheads(path: Path) -> None:
    rows = (
        event("Trace", "PyTorch Profiler (0)", "0.5", "99.5", "Spans", "PyTorch Profiler"),
        event("overhead", "Buffer Flush", 20, 5, -1, 0),
        event("overhead", "Lazy Function Loading", 30, 5, -1, 0),
    )
    trace = read(write(path, *rows, K(1, 1)))
    assert trace.extent == (500, 100_000)
    assert trace.overheads == ((0, 20_000, 25_000),)
    assert read(write(path, K(1, 1))).extent is None


def test_waits_are_the_calls_that_return_when_the_device_is_done(path: Path) -> None:
    calls = [
        ("cuda_runtime", "cudaStreamSynchronize", 9, "1.5"),
        ("cuda_driver", "cuCtxSynchronize", 3, 2),
        ("cuda_runtime", "cudaMemcpy", 7, 1),
        ("cuda_runtime", "cudaMemcpyAsync", 11, 1),
        ("cuda_runtime", "cudaDeviceSynchronize", 12, 0),
        ("cpu_op", "cudaDeviceSynchronize", 13, 1),
    ]
    trace = read(write(path, K(1, 1), *(event(cat, name, ts, dur, 10, 11) for cat, name, ts, dur in calls)))
    assert trace.waits == ((0, 3_000, 5_000), (0, 7_000, 8_000), (0, 9_000, 10_500))


def test_nothing_of_host_paths_or_versions_is_kept(path: Path) -> None:
    head = {"host_name": "secret-host", "traceName": "/secret/path.json", "INFO": ["secret log"], "schemaVersion": 1}
    label = '{"ph": "M", "name": "process_name", "pid": 10, "tid": 0, "ts": 0, "args": {"name": "secret-python"}}'
    trace = read(write(path, label, K(1, 1), **head))
    assert "secret" not in repr(trace)
    assert (trace.report.path, trace.report.kind, trace.report.schema_version) == ("trace.json", "kineto", "1")


# ----------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    "row",
    [
        K(None, 1),
        K(5, None),
        K(5, -1),
        K("NaN", 1),
        K("nan", 1),
        K(5, "Infinity"),
        K(5, "-inf"),
        K("1e300", 1),
        K("1e30", "1e30"),
        K('"5"', 1),
        K(5, 1, device=-1),
        K(5, 1, device=99_999),
        K(0, 0),
        K(10**13, 1),
        event("kernel", "nowhere", 5, 1, "GPU", 7),
        event("user_annotation", "step 4", None, 1, 10, 11),
        event("user_annotation", "step 4", 5, -1, 10, 11),
        event("cuda_runtime", "cudaLaunchKernel", "NaN", 1, 10, 11, correlation=9),
    ],
)
def test_events_that_cannot_be_true_are_left_out_and_counted(path: Path, row: str) -> None:
    trace = read(write(path, K(5_000_000, 1, "a"), row, K(5_000_010, 1, "b")))
    assert operations(trace) == [("a", 5_000_000_000, 5_000_001_000), ("b", 5_000_010_000, 5_000_011_000)]
    assert ranges(trace) == []
    message = "1 events left out: no time or device, or times that cannot be true"
    assert warnings(trace) == [("dropped-rows", message)]


def test_a_kernel_at_zero_is_dropped_where_the_capture_starts_later(path: Path) -> None:
    window = event("Trace", "PyTorch Profiler (0)", 5_000_000, 100, "Spans", "PyTorch Profiler")
    assert spans(read(write(path, window, K(0, 7), K(5_000_001, 1)))) == [(5_000_001_000, 5_000_002_000)]
    assert spans(read(write(path, K(0, 7), K(9, 1)))) == [(0, 7_000), (9_000, 10_000)]


MISSING_KERNELS = (
    "capture-incomplete",
    "CPU-side collectives exist, GPU kernels missing: 2 nccl: calls and no kernel of theirs; "
    "profile with ProfilerActivity.CUDA",
)


def test_nccl_calls_without_any_kernel(path: Path) -> None:
    trace = read(write(path, U(1, 1, "nccl:all_reduce"), U(3, 1, "nccl:all_reduce"), U(5, 9, marks.delay(0))))
    assert trace.evidence == "gpu-kernels"  # the marks of a GPU run are launches, not the execution
    assert operations(trace) == []
    assert len(trace.ranges) == 3
    assert warnings(trace) == [MISSING_KERNELS]


def test_nccl_calls_with_kernels_of_compute_only(path: Path) -> None:
    calls = (U(1, 1, "nccl:all_reduce"), U(3, 1, "nccl:all_reduce"))
    assert warnings(read(write(path, *calls, K(2, 1)))) == [MISSING_KERNELS]
    assert warnings(read(write(path, *calls, K(2, 1), K(4, 1, NCCL, stream=20)))) == []


def test_the_profiler_says_that_it_lost_records(path: Path) -> None:
    logs = {"INFO": ["Record counts: CUPTI stopped early? = 1"], "WARNING": ["INFO:x:1] Dropped 12 activity records"]}
    assert warnings(read(write(path, K(1, 1), **logs))) == [
        ("capture-incomplete", "the profiler lost GPU records (CUPTI stopped early? = 1): numbers are too small"),
        ("capture-incomplete", "the profiler lost GPU records (Dropped 12 activity records): numbers are too small"),
    ]
    assert warnings(read(write(path, K(1, 1), INFO=["CUPTI stopped early? = 0", "Dropped 0 activity records"]))) == []


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_file_that_breaks_off_is_read_up_to_there(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"trace{suffix}", *(K(2 * at, 1) for at in range(2_000)))
    text = path.read_bytes() if suffix == ".json" else gzip.compress(path.read_bytes())
    path.write_bytes(text[: len(text) // 2])
    trace = read(path)
    n = len(trace.operations)
    assert 100 < n < 2_000
    assert spans(trace) == [(2_000 * at, 2_000 * at + 1_000) for at in range(n)]
    message = "the file is cut off or damaged: what follows its last whole event is missing"
    assert warnings(trace)[0] == ("capture-incomplete", message)
    assert trace.is_incomplete
    assert not read(write(tmp_path / "whole.json", K(0, 1))).is_incomplete


def test_of_a_file_that_breaks_off_the_last_step_is_not_complete(path: Path) -> None:
    """A file of host ranges tells them in order of time: step 2 has its own range, and half of what was in it."""
    step = (U(100 * at, 90, f"step/{at}") for at in (0, 1, 2))
    rows = [
        row
        for at, own in enumerate(step)
        for row in (own, U(100 * at + 5, 40, marks.delay(0)), U(100 * at + 30, 50, "gloo:all_reduce", thread=21))
    ]
    text = write(path, *rows).read_text()
    path.write_text(text[: text.rindex('"gloo:all_reduce"')])
    (row,) = (found := job.analyze([read(path)])).ranks
    assert [(item.step, item.complete) for item in found.breakdown] == [(0, True), (1, True), (2, False)]
    assert (row.steps, row.unreliable) == (1, ("capture-incomplete",))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), "no GPU kernels and no gloo calls or marks"),
        ((U(1, 1, "aten::mm", cat="cpu_op"),), "no GPU kernels and no gloo calls or marks"),
        ((R(5, 1), R(6, 2)), "2 launches, 0 kernels: GPU tracing failed"),
        ((K(5, -1),), "no GPU kernels and no gloo calls or marks (1 impossible events left out)"),
    ],
)
def test_nothing_to_measure(path: Path, rows: tuple[str, ...], message: str) -> None:
    write(path, *rows)
    with pytest.raises(InputError) as error:
        read(path)
    assert error.value.message == f"{path}: {message}"
    assert error.value.hint


def test_nothing_to_measure_before_the_cut(path: Path) -> None:
    path.write_text(write(path, U(1, 1, "aten::mm", cat="cpu_op"), K(5, 1)).read_text()[:-20])
    with pytest.raises(
        InputError, match="no GPU kernels and no gloo calls or marks before the place where the file is cut off"
    ):
        read(path)


def test_errors_of_the_file_come_through(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none.json")


# ------------------------------------------------------------------------------------------------ a run without device

GLOO = (
    U(10, 20, marks.delay(1)),
    U(31, 1, "c10d::allreduce_", cat="cpu_op"),
    U(35, 15, "gloo:all_reduce", thread=21),
    U(40, 20, marks.delay(0)),
    U(61, 1, "c10d::allreduce_", cat="cpu_op"),
    U(63, 1, "c10d::allreduce_", cat="cpu_op"),
    U(64, 2, "gloo:all_reduce", thread=21),
    U(65, 9, "gloo:all_reduce", thread=22),
)


def test_gloo_calls_and_delays_are_the_execution(path: Path) -> None:
    """::

    time          10   20   30   40   50   60   70
    main thread   |=delay/1=|c   |=delay/0=|cc          c: c10d::allreduce_ at 31, 61, 63
    gloo thread 21             |-------|    |           35 to 50, 64 to 66
    gloo thread 22                           |---|      65 to 74
    """
    trace = read(write(path, *GLOO))
    assert trace.evidence == "host-ranges"
    assert operations(trace) == [
        ("delay/1", 10_000, 30_000),
        ("gloo:all_reduce", 35_000, 50_000),
        ("delay/0", 40_000, 60_000),
        ("gloo:all_reduce", 64_000, 66_000),
        ("gloo:all_reduce", 65_000, 74_000),
    ]
    assert launches(trace) == [(10_000, 11), (31_000, 11), (40_000, 11), (61_000, 11), (63_000, 11)]
    assert trace.operations.stream.tolist() == [0, 1, 0, 1, 2]
    assert set(trace.operations.source.tolist()) == {Source.HOST}
    assert set(trace.operations.device.tolist()) == {-1}
    assert trace.devices == ()
    assert len(trace.ranges) == len(GLOO)
    assert warnings(trace) == []


def test_gloo_without_host_calls_is_its_own_launch(path: Path) -> None:
    rows = [row for row in GLOO if "c10d" not in row]
    assert launches(read(write(path, *rows))) == [(10_000, 11), (35_000, 21), (40_000, 11), (64_000, 21), (65_000, 22)]


def test_calls_and_executions_are_paired_by_collective_and_never_backward(path: Path) -> None:
    rows = (
        U(1, 1, "gloo:all_reduce", thread=21),  # called for before the capture
        U(2, 1, "c10d::broadcast_", cat="cpu_op"),
        U(3, 1, "c10d::allreduce_", cat="cpu_op"),
        U(5, 1, "gloo:all_reduce", thread=21),
        U(6, 1, "gloo:broadcast", thread=21),
    )
    assert launches(read(write(path, *rows))) == [(1_000, 21), (3_000, 11), (2_000, 11)]


def test_allreduce_marks_count_only_where_gloo_says_nothing(path: Path) -> None:
    marked = (
        U(32, 20, marks.allreduce(0)),
        U(61, 6, marks.allreduce(1)),
        U(50, 5, marks.compute(0)),
        U(52, 3, marks.wait("disk")),
    )
    names = [name for name, *_ in operations(read(write(path, *GLOO, *marked)))]
    assert names.count("gloo:all_reduce") == 3
    assert set(names) == {"gloo:all_reduce", "delay/0", "delay/1", "compute/0"}
    trace = read(write(path, *marked))
    assert operations(trace) == [
        ("allreduce/0", 32_000, 52_000),
        ("compute/0", 50_000, 55_000),
        ("allreduce/1", 61_000, 67_000),
    ]
    assert launches(trace) == [(32_000, 11), (50_000, 11), (61_000, 11)]


def test_gloo_beside_kernels_is_no_execution(path: Path) -> None:
    trace = read(write(path, *GLOO, K(5, 1)))
    assert trace.evidence == "gpu-kernels"
    assert operations(trace) == [("gemm", 5_000, 6_000)]
    assert len(trace.ranges) == len(GLOO)


def test_an_open_execution_is_left_out_and_counted(path: Path) -> None:
    trace = read(write(path, *GLOO, U(80, None, "gloo:all_reduce", thread=21)))
    assert len(trace.operations) == 5
    assert [code for code, _ in warnings(trace)] == ["dropped-rows", "capture-incomplete"]


# ------------------------------------------------------------------------------------------------------- real traces


def by_eye(path: Path) -> tuple[int, int, int, int, int]:
    """Kernels of compute and comm, their unions and overlap, from the JSON itself by decimal arithmetic."""
    found: dict[str, list[tuple[int, int]]] = {"compute": [], "comm": []}
    devices = set()
    for item in json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]:
        if item.get("cat") == "kernel":
            span = int(item["ts"] * 1000), int((item["ts"] + item["dur"]) * 1000)
            found["comm" if "nccl" in item["name"].lower() else "compute"].append(span)
            devices.add(item["args"]["device"])
    assert len(devices) == 1
    return counted(found["compute"], found["comm"])


def by_reader(path: Path) -> tuple[int, int, int, int, int]:
    trace = read(path)
    kernels = [row for row, source in zip(operations(trace), trace.operations.source.tolist(), strict=True) if source == 0]
    assert len(trace.devices) == 1
    return counted(
        [span for name, *span in kernels if "nccl" not in name.lower()],  # type: ignore[misc]
        [span for name, *span in kernels if "nccl" in name.lower()],  # type: ignore[misc]
    )


def counted(compute: list[tuple[int, int]], comm: list[tuple[int, int]]) -> tuple[int, int, int, int, int]:
    window = min(start for start, _ in compute + comm), max(end for _, end in compute + comm)
    regions = by_sweep(compute, comm, [], window)
    return len(compute), len(comm), regions["C"] + regions["CN"], regions["N"] + regions["CN"], regions["CN"]


@needs_captures
@pytest.mark.parametrize(
    ("rank", "compute", "comm", "overlap"),
    [
        (0, 1_034_000, 5_798_000, 261_000),
        (1, 1_246_000, 11_336_000, 280_000),
        (2, 1_068_000, 3_492_000, 275_000),
        (3, 1_240_000, 9_774_000, 324_000),
        (4, 1_126_000, 6_587_000, 37_000),
        (5, 1_041_000, 6_251_000, 40_000),
        (6, 1_051_000, 3_558_000, 269_000),
        (7, 1_059_000, 1_746_000, 166_000),
    ],
)
def test_eight_ranks_on_v100(rank: int, compute: int, comm: int, overlap: int) -> None:
    path = CAPTURES / "kineto_dlrm_8rank" / f"rank{rank}.json.gz"
    assert by_reader(path) == by_eye(path)
    assert by_reader(path)[1:] == (8, compute, comm, overlap)
    trace = read(path)
    assert (trace.processes[0].rank, trace.processes[0].world_size) == (rank, 8)
    assert trace.devices == (Device(process=0, device_id=rank, name="Tesla V100-SXM2-32GB"),)
    assert trace.has_launches


@needs_captures
def test_ddp_on_a100_with_nanosecond_digits() -> None:
    path = CAPTURES / "kineto_ddp_rank0_of_2.json.gz"
    assert by_reader(path) == by_eye(path) == (2679, 21, 115_655_847, 46_876_493, 7_317_025)
    trace = read(path)
    assert trace.processes == (Process(key=2910249, pid=2910249, rank=0, rank_source="distributedInfo", world_size=2),)
    assert (trace.operations.launch_ns != MISSING).all()
    assert (trace.operations.launch_ns <= trace.operations.start_ns).all()
    assert [text for text, *_ in ranges(trace) if text.startswith("Prof")] == [f"ProfilerStep#{step}" for step in (4, 5, 6)]
    assert warnings(trace) == []


@needs_captures
def test_a_trace_without_rank_and_without_gpu_events() -> None:
    trace = read(CAPTURES / "kineto_no_distributed_info.json.gz")
    assert (trace.processes[0].rank, trace.processes[0].rank_source) == (None, "unknown")
    assert len(trace.operations) == 0
    assert [code for code, _ in warnings(trace)] == ["capture-incomplete"]
    assert "CPU-side collectives exist, GPU kernels missing: 6 nccl: calls" in warnings(trace)[0][1]


PROGRAM = """
import sys, time, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

rank, folder = int(sys.argv[1]), sys.argv[2]

class Delay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, index):
        ctx.index = index
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, gradient):
        with record_function(f"delay/{ctx.index}"):
            time.sleep(0.01)
        return gradient, None

class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(65536)) for _ in range(5))

    def forward(self, x):
        return sum((Delay.apply(self.weights[index], index) * x).sum() for index in range(4))  # the fifth is not used

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(Branches(), bucket_cap_mb=0.25, find_unused_parameters=True)
x = torch.ones(65536)
model(x).backward()
dist.barrier()
with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function(f"rank/{rank}/world/2"):
    with record_function("step/1"):
        model(x).backward()
profiler.export_chrome_trace(f"{folder}/rank{rank}.json.gz")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def gloo_traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Traces of two ranks of DDP on gloo, made here: five buckets (one of the unused parameter) and the used map."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    folder = tmp_path_factory.mktemp("gloo")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(folder)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=120)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return [folder / f"rank{rank}.json.gz" for rank in range(2)]


@pytest.mark.parametrize("rank", [0, 1])
def test_ddp_on_gloo(gloo_traces: list[Path], rank: int) -> None:
    trace = read(gloo_traces[rank])
    (process,) = trace.processes
    assert trace.evidence == "host-ranges"
    assert (process.rank, process.rank_source, process.world_size) == (rank, "distributedInfo", 2)
    assert warnings(trace) == []
    assert trace.report.session_start_utc_ns is not None
    assert trace.extent is not None
    assert process.window is not None
    assert trace.extent[0] <= process.window[0] < process.window[1] <= trace.extent[1]

    rows = list(zip(operations(trace), launches(trace), trace.operations.stream.tolist(), strict=True))
    delays = [row for row in rows if row[0][0].startswith("delay/")]
    reduces = [row for row in rows if row[0][0] == "gloo:all_reduce"]
    assert [name for (name, *_), _, _ in delays] == ["delay/3", "delay/2", "delay/1", "delay/0"]
    assert len(reduces) == 6
    assert len(rows) == 10
    assert all(process.window[0] <= start <= end <= process.window[1] for (_, start, end), _, _ in delays)
    assert all(end - start >= 10_000_000 for (_, start, end), _, _ in delays)
    (backward_thread,) = {thread for _, (_, thread), _ in delays}
    assert {thread for _, (_, thread), _ in reduces} == {backward_thread}
    assert all(launch <= start for (_, start, _), (launch, _), _ in reduces)
    last_delay = delays[-1][0][1]
    assert sum(launch < last_delay for _, (launch, _), _ in reduces) == 4  # the unused parameter's bucket and three more
    assert {stream for _, _, stream in delays}.isdisjoint(stream for _, _, stream in reduces)
    assert len({stream for _, _, stream in reduces}) <= 2
    assert {text for text, *_ in ranges(trace)} >= {f"rank/{rank}/world/2", "step/1", "c10d::allreduce_", "gloo:all_reduce"}


def test_parts_of_any_size_give_the_same_trace(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (*GLOO, R(5, 1), K(4, 1, "a", 5), RANK_MARK)
    write(path, *rows, deviceProperties=[{"id": 0, "name": "A100"}], distributedInfo={"rank": 0, "world_size": 2})
    whole = read(path)
    for part_bytes in (1, 50, 333, 1000):
        monkeypatch.setattr(kineto_json, "PART_BYTES", part_bytes)
        trace = read(path)
        assert (operations(trace), launches(trace), ranges(trace)) == (operations(whole), launches(whole), ranges(whole))
        assert (trace.processes, trace.devices) == (whole.processes, whole.devices)
