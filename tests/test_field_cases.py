"""What reports in the wild look like, and the right answer: shared/design/field-cases.md, row by row.

``test_NN_…`` is row NN. docs/field-cases.md tells where each row is tested and what ddpprof does. Times are microseconds in
timelines, nanoseconds in answers; GEMM is any compute kernel, NCCL an all-reduce.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from nsight import GEMM, NCCL, PID, SESSION_NS, SPIN, D, G, K, M, N, O, P, R, S, build, query, synthesize

from ddpprof import nsys as nsight_tool
from ddpprof.analysis.nsys_tables import to_int64
from ddpprof.analysis.part import Options
from ddpprof.cli import CHECK_FAILED, main
from ddpprof.errors import InputError, UsageError
from ddpprof.inputs import read
from ddpprof.model import MISSING, Analysis, RankRow
from ddpprof.reports import markdown, tables, text

US = 1_000
MS = 1_000_000
FORMATS: tuple[Callable[[Analysis], str], ...] = (
    lambda found: text.render(found, per_step=True, buckets=True, kinds=True),
    lambda found: markdown.render(found, per_step=True, buckets=True, kinds=True),
    lambda found: tables.to_json(found),
    *(lambda found, table=table: tables.to_csv(found, table) for table in tables.CSV_TABLES),
)


@pytest.fixture
def analyze(tmp_path: Path) -> Callable[..., Analysis]:
    """Builds one report and analyses it: ``analyze(rows, **build options)``; ``ask`` are Options."""

    def run(rows: Any, ask: Options | None = None, **options: Any) -> Analysis:
        path = build(tmp_path / "report.sqlite", rows, **options)
        ask = ask or Options()
        return read([path], step_pattern=ask.step_pattern).analyze(ask)

    return run


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Analysis]:
    """Builds a report for each entry (its rows, or rows and build options) and analyses them as one job."""

    def run(*reports: Any, ask: Options | None = None, ranks: tuple[str, ...] = ()) -> Analysis:
        paths = []
        for at, report in enumerate(reports):
            rows, options = report if isinstance(report, tuple) else (report, {})
            paths.append(build(tmp_path / f"report{at}.sqlite", rows, **({"session_ns": SESSION_NS + at} | options)))
        return read(paths, ranks=ranks).analyze(ask or Options())

    return run


class Run(NamedTuple):
    """What a command line did."""

    status: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    """Runs ``ddpprof ARGUMENTS`` in this process."""

    def run(*arguments: object) -> Run:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Run(int(end.value.code or 0), said.out, said.err)

    return run


def only(found: Analysis) -> RankRow:
    """The one row of an analysis."""
    (row,) = found.ranks
    return row


def told(found: Analysis, code: str) -> str:
    """The messages of one warning code, joined; empty without any."""
    return "; ".join(warning.message for warning in found.warnings if warning.code == code)


def kineto(path: Path, events: list[dict[str, Any]], **head: Any) -> Path:
    """A torch.profiler trace of these events."""
    path.write_text(json.dumps({"schemaVersion": 1, **head, "traceEvents": events}))
    return path


def event(cat: str, name: str, ts: Any, dur: Any, **args: Any) -> dict[str, Any]:
    """One Kineto event; on the device where ``args`` name a stream."""
    where = {"pid": args.get("device", 0), "tid": args["stream"]} if "stream" in args else {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, **where, "args": args}


# ------------------------------------------------------------------------------- A. Which kernels are communication

NCCL_NAMES = (
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)",
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymkDevWorkArgs4K)",
)


@pytest.mark.parametrize("name", NCCL_NAMES)
def test_01_every_generation_of_nccl_name_gives_the_same_overlap(analyze, name):
    row = only(analyze([K(0, 7, 0, 100), K(0, 16, 50, 150, name)]))
    assert (row.n_compute, row.n_comm, row.overlap_ns) == (1, 1, 50 * US)


def test_01_no_nccl_kernel_is_in_the_compute_sums(analyze):
    rows = [
        row
        for at, name in enumerate(NCCL_NAMES)
        for row in (K(0, 7, 1000 * at, 1000 * at + 100), K(0, 16, 1000 * at + 50, 1000 * at + 150, name))
    ]
    found = analyze(rows)
    row = only(found)
    assert (row.n_compute, row.compute_ns, row.compute_sum_ns) == (4, 400 * US, 400 * US)
    assert (row.n_comm, row.comm_ns, row.overlap_ns) == (4, 400 * US, 200 * US)
    assert {kind.name for kind in found.kinds if kind.kind == "comm"} == set(NCCL_NAMES)


def test_02_case_is_ignored_and_host_ranges_are_no_device_time(analyze):
    row = only(
        analyze(
            """
            K dev0 s7     0..100  GEMM
            K dev0 s16   50..150  nccldevkernel_allreduce
            N 1000..9000 "nccl:all_reduce"
            """
        )
    )
    assert (row.comm_ns, row.overlap_ns, row.step_ns) == (100 * US, 50 * US, 150 * US)


def test_03_send_recv_kernels_of_an_all_reduce_are_communication(analyze):
    name = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
    rows: list[Any] = [K(0, 7, 0, 1000)]
    for at in range(8):
        rows += [
            K(0, 16, 100 * at, 100 * at + 50, name, launch=(100 * at - 9, 100 * at - 8)),
            N(100 * at - 10, 100 * at - 5, "ncclAllReduce", domain="NCCL"),
        ]
    found = analyze(rows)
    assert (only(found).n_comm, only(found).overlap_ns) == (8, 8 * 50 * US)
    assert {row.operation for row in found.buckets} == {"SendRecv"}  # the kernel's own name
    assert not told(found, "no-comm")
    assert not any("DDP" in warning.message for warning in found.warnings)


def test_04_the_protocol_in_a_name_is_not_read(analyze):
    names = ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)", "ncclDevKernel_AllGather")
    found = analyze([K(0, 16, 0, 100, names[0]), K(0, 16, 200, 300, names[1]), K(0, 7, 0, 400)])
    assert [row.operation for row in found.buckets] == ["AllGather", "AllGather"]
    shown = text.render(found, buckets=True)
    assert "AllGather" in shown
    assert not re.search(r"LL|RING|[Ss]imple", shown)


def test_05_generic_kernels_are_communication_of_unknown_operation(analyze):
    name = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096>)"
    found = analyze([K(0, 7, 0, 100), *(K(0, 16, 10 * at, 10 * at + 5, name) for at in range(17))])
    assert only(found).n_comm == 17
    assert {row.operation for row in found.buckets} == {"unknown"}


DISPATCH = "void dpsk::ep::internode::dispatch<(int)8>(int)"


def test_06_unknown_traffic_is_offered_by_name_and_counted_by_pattern(analyze):
    rows = [K(0, 27, 0, 500, DISPATCH), K(0, 27, 600, 610, "small"), K(0, 7, 0, 100), K(0, 7, 100, 700)]
    found = analyze(rows)
    assert only(found).n_comm == 0
    assert "no NCCL kernels" in told(found, "no-comm")
    assert DISPATCH in told(found, "unnamed-traffic")
    assert told(found, "unnamed-traffic").index(DISPATCH) < told(found, "unnamed-traffic").index("small")
    assert "Kernel2" not in told(found, "unnamed-traffic")
    named = analyze(rows, Options(comm=("dpsk::ep",)))
    assert (only(named).n_comm, only(named).comm_ns, only(named).overlap_ns) == (1, 500 * US, 500 * US)
    assert not told(named, "unnamed-traffic")
    (bucket,) = named.buckets
    assert bucket.operation == "Dispatch"


def test_06_the_main_stream_is_each_devices_own(analyze):
    """Stream 20 computes on device 0 and is a side stream of device 1."""
    found = analyze(
        [
            *(K(0, 20, 10 * at, 10 * at + 5, "main0") for at in range(9)),
            *(K(1, 7, 10 * at, 10 * at + 5, "main1") for at in range(3)),
            K(1, 20, 0, 500, DISPATCH),
        ]
    )
    assert DISPATCH in told(found, "unnamed-traffic")
    assert "main" not in told(found, "unnamed-traffic")


def test_07_every_kernel_is_either_compute_or_communication(analyze):
    names = ["multi_tensor_apply_kernel", "vectorized_elementwise", "my_op", "AllReduceLike", "reduce_kernel", GEMM, NCCL]
    found = analyze(
        [K(0, 7, 10 * at, 10 * at + 5, name) for at, name in enumerate(names)] + [M(0, 7, 100, 101), S(0, 7, 102, 103)]
    )
    row = only(found)
    assert (row.n_compute, row.n_comm, row.n_memory) == (6, 1, 2)
    assert row.n_compute + row.n_comm == len(names)


CALLS = [R(at, 10 * at, 10 * at + 1) for at in range(1, 6)]


def test_08_api_calls_are_never_gpu_time(tmp_path, cli):
    found = cli("analyze", build(tmp_path / "report.sqlite", CALLS))
    assert (found.status, found.out) == (1, "")
    assert "no GPU kernels in report" in found.err


# ------------------------------------------------------------------------------------------- B. Interval arithmetic


def test_09_union_and_sum_are_both_shown_and_busy_is_at_most_the_span(analyze):
    found = analyze("K dev0 s7 0..100 GEMM\nK dev0 s20 0..100 NCCL\nK dev0 s7 200..300 GEMM\nK dev0 s17 250..350 GEMM")
    row = only(found)
    assert (row.compute_ns, row.compute_sum_ns, row.compute_span_ns) == (250 * US, 300 * US, 350 * US)
    assert (row.step_ns, row.comm_ns, row.overlap_ns) == (350 * US, 100 * US, 100 * US)
    line = next(line for line in text.render(found).splitlines() if line.lstrip().startswith("?"))
    assert "250.000" in line
    assert "300.000" in line
    assert "compute sum" in re.sub(r"\s+", " ", markdown.render(found))


def test_09_the_sum_takes_no_room_where_it_is_the_union(analyze):
    assert "sum" not in text.render(analyze("K dev0 s7 0..100 GEMM\nK dev0 s20 50..150 NCCL")).split()


def test_10_a_lane_is_process_device_and_stream(analyze):
    rows = [K(0, 7, 0, 100)]
    for dev in (1, 2, 3):
        rows += [K(dev, 17, 0, 50), K(dev, 17, 64, 100)]
    found = analyze(rows)
    assert [(row.device_id, row.compute_ns, row.step_ns) for row in found.ranks] == [
        (0, 100 * US, 100 * US),
        *((dev, 86 * US, 100 * US) for dev in (1, 2, 3)),
    ]


def test_11_each_device_has_a_row_and_none_stands_for_another(analyze):
    found = analyze([K(0, 7, 0, 100), K(1, 7, 0, 100), K(1, 16, 40, 140, NCCL)])
    assert [(row.device_id, row.n_comm, row.comm_ns, row.overlap_ns) for row in found.ranks] == [
        (0, 0, 0, 0),
        (1, 1, 100 * US, 60 * US),
    ]
    assert [row.overlap_ratio for row in found.ranks] == [None, 0.6]
    assert "device 0" in text.render(found).split("Ranks")[0]  # which row the answer is about


def test_12_overlap_and_exposed_make_up_the_union_of_communication(analyze):
    row = only(analyze([K(0, 20, 0, 100, NCCL), K(0, 21, 50, 150, NCCL), K(0, 7, 120, 130)]))
    assert (row.comm_ns, row.overlap_ns, row.exposed_comm_ns, row.comm_sum_ns) == (150 * US, 10 * US, 140 * US, 200 * US)


def test_13_without_nccl_the_share_is_missing_and_not_zero(tmp_path, cli):
    path = build(tmp_path / "report.sqlite", "K dev0 s7 0..100 GEMM")
    shown = cli("analyze", path)
    assert shown.status == 0
    assert "no NCCL kernels" in shown.out
    assert re.search(r"n/a$", shown.out, re.MULTILINE)
    (row,) = json.loads(cli("analyze", path, "--format", "json").out)["ranks"]
    assert (row["n_comm"], row["comm_ns"], row["overlap_ratio"]) == (0, 0, None)


def test_14_kineto_times_are_whole_nanoseconds(tmp_path):
    """100.7 us for 0.2 us: in floating point 100.9 − 100.7 is not 0.2."""
    trace = kineto(
        tmp_path / "trace.json",
        [
            event("kernel", "gemm", 100.7, 0.2, device=0, stream=7),
            event("kernel", "ncclDevKernel_AllReduce", 100.8, 0.2, device=0, stream=16),
        ],
    )
    row = only(read([trace]).analyze(Options()))
    assert (row.compute_ns, row.comm_ns, row.overlap_ns, row.step_ns) == (200, 200, 100, 300)


def test_14_kernels_of_nanoseconds_in_a_long_capture(analyze):
    row = only(analyze([K(0, 7, "3600000000.700", "3600000000.900"), K(0, 16, "3600000000.800", "3600000001.000", NCCL)]))
    assert (row.compute_ns, row.comm_ns, row.overlap_ns, row.step_ns) == (200, 200, 100, 300)


def test_15_rows_that_cannot_be_true_are_dropped_and_counted(analyze):
    found = analyze([K(0, 7, 5_000_000, 5_000_100), K(0, 16, 5_000_050, 5_000_150, NCCL), K(0, 7, 0, 0), K(0, 7, 500, 400)])
    row = only(found)
    assert (row.step_ns, row.n_compute, row.overlap_ns) == (150 * US, 1, 50 * US)
    assert told(found, "dropped-rows").startswith("2 rows")


def test_15_in_kineto_too(tmp_path):
    trace = kineto(
        tmp_path / "trace.json",
        [
            event("kernel", "gemm", 5_000_000, 100, device=0, stream=7),
            event("kernel", "gemm", 500, -100, device=0, stream=7),
            event("kernel", "gemm", 0, 0, device=0, stream=7),
        ],
    )
    found = read([trace]).analyze(Options())
    assert only(found).step_ns == 100 * US
    assert told(found, "dropped-rows").startswith("2 events")


def test_16_early_kernels_and_lost_launches_are_counted_and_metrics_stand(analyze):
    found = analyze(
        """
        R 901 -90..-80
        R 902 -80..-70
        R 903 -70..-60
        K dev0 s7     0..100 GEMM launch=10..20
        K dev0 s16   50..150 NCCL launch=30..40
        """
    )
    assert only(found).overlap_ns == 50 * US
    assert "1 of 2 kernels start before their own launch call" in told(found, "launch-mismatch")
    assert "3 kernel launches have no kernel" in told(found, "launch-mismatch")


def test_17_negative_starts_are_times_like_any_other(analyze):
    row = only(analyze([K(0, 7, -75.5, 10), K(0, 7, 20, 30)]))
    assert (row.step_ns, row.compute_ns, row.n_compute) == (105_500, 95_500, 2)


def test_18_without_steps_the_numbers_are_of_the_whole_capture(analyze):
    found = analyze([K(0, 7, 0, 100), K(0, 16, 50, 150, NCCL), K(0, 7, 900, 1000)])
    assert (found.window, only(found).steps) == ("capture", 0)
    assert [row.step for row in found.breakdown] == [None]
    assert "whole capture" in told(found, "no-steps")
    shown = text.render(found, per_step=True)
    assert "whole capture" in shown
    assert "per step" not in shown
    assert "iteration" not in shown


# ------------------------------------------------------------------------------------- C. Tables, schema, versions

NO_CUDA = D("No CUDA events collected. Does the process use CUDA?")
NVTX_LOST = D("Not all NVTX events might have been collected.")
WITHOUT_KERNELS = {
    "launches": (CALLS, "5 launches, 0 kernels: GPU tracing failed"),
    "calls that launch nothing": ([R(1, 0, 5, "cudaMalloc_v3020")], "no GPU kernels in report (CUDA API calls only)"),
    "nothing": ([], "no GPU kernels in report"),
    "ranges only": ([N(0, 100, "step/0"), N(0, 50, "anything")], "no GPU kernels in report (host ranges only"),
}


@pytest.mark.parametrize("kind", WITHOUT_KERNELS)
def test_19_without_kernels_it_says_what_is_missing_and_why(kind, tmp_path, cli):
    rows, what = WITHOUT_KERNELS[kind]
    path = build(tmp_path / "report.sqlite", [*rows, NVTX_LOST, NO_CUDA], schema="2024.2")
    found = cli("analyze", path)
    assert (found.status, found.out) == (1, "")
    first, second = found.err.splitlines()
    assert first.startswith(f"ddpprof: {path}: ")
    assert what in first
    assert second == 'nsys says: "No CUDA events collected. Does the process use CUDA?"'


def test_20_without_ranges_the_kernel_numbers_are_all_there(analyze):
    rows = [K(0, 7, 0, 100, launch=(-9, -8)), K(0, 16, 50, 150, NCCL, launch=(-7, -6))]
    found = analyze(rows)
    row = only(found)
    assert (row.overlap_ns, row.exposed_comm_ns, row.steps) == (50 * US, 50 * US, 0)
    assert (found.window, told(found, "capture-incomplete")) == ("capture", "")


RENAMED = ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME")


@pytest.mark.parametrize("table", RENAMED)
@pytest.mark.parametrize("suffix", ["_V2", "_v3", "2"])
def test_20_tables_of_a_later_generation_are_read(table, suffix, analyze):
    rows = [K(0, 7, 0, 100, launch=(-9, -8)), K(0, 16, 50, 150, NCCL, launch=(-7, -6)), N(-20, 200, "step/3")]
    found = analyze(rows, sql=f"ALTER TABLE {table} RENAME TO {table}{suffix}")
    assert [(row.step, row.overlap_ns) for row in found.breakdown] == [(3, 50 * US)]


@pytest.mark.parametrize("table", RENAMED)
def test_20_a_table_that_lacks_what_is_needed_is_refused_by_name(table, tmp_path, cli):
    rows = [K(0, 7, 0, 100, launch=(-9, -8)), N(-20, 200, "step/3")]
    path = build(tmp_path / "report.sqlite", rows, sql=f"ALTER TABLE {table} RENAME COLUMN start TO begin")
    found = cli("analyze", path)
    assert found.status == 1
    assert f"{path}: table {table} has no column start" in found.err


def test_20_other_tables_that_begin_with_a_known_name_are_not_it(analyze):
    rows = [K(0, 7, 0, 100), K(0, 16, 50, 150, NCCL)]
    assert only(analyze(rows, sql="CREATE TABLE NVTX_EVENTS_PAYLOAD_SCHEMAS (a)")).overlap_ns == 50 * US


@pytest.mark.parametrize("nvtx", ["inline", "registered", "both"])
def test_21_range_texts_wherever_they_are(nvtx, analyze):
    rows = """
        process 100 rank=0 world=1
        K dev0 s7     0..100 GEMM launch=-9..-8
        K dev0 s16   50..150 NCCL launch=-7..-6
        N -20..200 "step/3"
        N -7.5..-5 "bucket/0/4096" domain=ddpprof
    """
    found = analyze(rows, nvtx=nvtx)
    assert [(row.rank, row.step, row.overlap_ns) for row in found.breakdown] == [(0, 3, 50 * US)]
    assert [(row.bucket, row.size_bytes, row.attribution) for row in found.buckets] == [(0, 4096, "range")]


@pytest.mark.parametrize("gone", ["textId", "text"])
def test_21_either_text_column_may_be_absent(gone, analyze):
    rows = [K(0, 7, 0, 100, launch=(-9, -8)), N(-20, 200, "step/3")]
    found = analyze(
        rows, nvtx="inline" if gone == "textId" else "registered", sql=f"ALTER TABLE NVTX_EVENTS DROP COLUMN {gone}"
    )
    assert [row.step for row in found.breakdown] == [3]


TWO_STEPS = [K(0, 7, 0, 100, launch=(1, 2)), N(0, 10, "step/1"), K(0, 7, 200, 500, launch=(21, 22)), K(0, 7, 600, 900)]


@pytest.mark.parametrize("end", [None, 1000], ids=["open", "cut at the end"])
@pytest.mark.parametrize("normalized", [False, True], ids=["", "ts-normalize"])
def test_22_a_range_that_the_capture_ended_is_no_complete_step(end, normalized, analyze):
    """``--ts-normalize`` shifts times and not ANALYSIS_DETAILS.duration."""
    rows = [*TWO_STEPS, N(20, end, "step/2")]
    found = analyze(rows, duration=1000, shift_ns=SESSION_NS if normalized else 0)
    assert [(row.step, row.complete, row.step_ns) for row in found.breakdown] == [(1, True, 100 * US), (2, False, 300 * US)]
    assert (only(found).steps, only(found).step_ns) == (1, 100 * US)
    assert "1 steps are incomplete" in told(found, "capture-incomplete")
    assert ("1 host ranges were still open" in told(found, "capture-incomplete")) == (end is None)


@pytest.mark.parametrize("shift_ns", [0, SESSION_NS, 5 * MS, -5 * MS])
def test_22_a_range_that_ended_by_itself_is_whole_under_any_time_shift(shift_ns, analyze):
    found = analyze([*TWO_STEPS, N(20, 999, "step/2")], duration=1000, shift_ns=shift_ns)
    assert [(row.step, row.complete, row.start_ns) for row in found.breakdown] == [(1, True, 0), (2, True, 200 * US)]
    assert found.reports[0].session_start_utc_ns == SESSION_NS


@pytest.mark.parametrize(("schema", "columns", "version"), [("2026.2", 40, "3.25.0"), ("2022.1", 27, "2.9.1")])
def test_23_columns_are_probed_and_the_version_is_read_where_it_is(schema, columns, version, analyze, tmp_path):
    rows = [K(0, 7, 0, 100, launch=(-9, -8)), K(0, 16, 50, 150, NCCL, launch=(-7, -6)), N(-20, 200, "step/3")]
    found = analyze(rows, schema=schema)
    (about,) = found.reports
    assert (only(found).overlap_ns, about.schema_version) == (50 * US, version)
    there = query(tmp_path / "report.sqlite", "SELECT count(*) FROM pragma_table_info('CUPTI_ACTIVITY_KIND_KERNEL')")
    assert there[0][0] >= columns - 3  # whatever else a generation adds
    assert about.exporter_version is not None
    assert about.exporter_version.startswith(schema)


@pytest.mark.parametrize("schema", ["2020.3", "2022.4", "2023.4", "2024.2", "2025.1.3", "2025.5.2", "2026.4"])
def test_23_every_generation_gives_the_same_numbers(schema, analyze):
    rows = """
        K dev0 s7     0..100 GEMM launch=-9..-8
        K dev0 s16   50..150 NCCL launch=-7..-6 thread=2
        M dev0 s7  100..120 HtoD launch=-5..-4
        S dev0 s7  160..170 launch=-3..-2
        N -20..200 "step/3"
        O 60..70
    """
    found = analyze(rows, schema=schema, session_ns=None if schema == "2020.3" else SESSION_NS)
    row = only(found)
    assert (row.step_ns, row.overlap_ns, row.memory_only_ns, row.idle_ns) == (170 * US, 50 * US, 10 * US, 10 * US)
    assert [step.step for step in found.breakdown] == [3]
    assert found.reports[0].schema_version == (None if schema == "2020.3" else found.reports[0].schema_version)
    assert row.unreliable == ("profiler-overhead",)


def test_23_without_any_version_record_it_is_unknown_and_not_an_error(tmp_path, cli):
    path = build(tmp_path / "report.sqlite", [K(0, 7, 0, 100)], schema="2020.3", session_ns=None)
    (about,) = json.loads(cli("analyze", path, "--format", "json").out)["reports"]
    assert (about["exporter_version"], about["schema_version"], about["session_start_utc_ns"]) == (None, None, None)


def fake_nsys(folder: Path, export: str, version: str = "2022.4.2.18-32044700v0") -> Path:
    """An ``nsys`` that answers ``--version`` and does ``export`` (a shell command; $OUTPUT and $REPORT are set)."""
    folder.mkdir(exist_ok=True)
    path = folder / "nsys"
    path.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version {version}"; exit; fi\n'
        'for last; do case "$last" in --output=*) OUTPUT="${last#--output=}";; esac; done\n'
        f'REPORT="$last"\n{export}\n'
    )
    path.chmod(0o755)
    return path


def test_24_an_older_nsys_is_named_with_the_version_that_wrote_the_report(tmp_path, cli, monkeypatch):
    words = "Report was created in Nsight Systems version (2025.3.2.367-253236389321v0), newer than your current version"
    fake_nsys(tmp_path / "bin", f'echo half >"$OUTPUT"; echo "{words} (2022.4.2.18)." >&2; exit 1')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("DDPPROF_NSYS", raising=False)
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(b"\x00report")
    for command in ("analyze", "export"):
        found = cli("-q", command, report)
        assert (found.status, found.out) == (1, "")
        assert "2025.3.2.367" in found.err
        assert "2022.4.2.18" in found.err
        assert words in found.err
        assert "where it was captured" in found.err
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "report.nsys-rep"]


@pytest.mark.parametrize("content", ["table", b"just text\n", b""], ids=["another table", "text", "empty"])
def test_25_what_is_no_export_is_told_in_one_line(content, tmp_path, cli):
    path = tmp_path / "report.sqlite"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with closing(sqlite3.connect(path)) as con:
            con.execute("CREATE TABLE test (col1, col2)")
            con.commit()
    found = cli("analyze", path)
    assert (found.status, found.out) == (1, "")
    assert "is empty" in found.err if content == b"" else "not an Nsight Systems export" in found.err
    assert len(found.err.splitlines()) == 2


def aged(path: Path, seconds: int) -> Path:
    """``path``, last written that long ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A report, its export (overlap 50 us), and an nsys whose export of it has overlap 75 us."""
    fresh = build(tmp_path / "fresh", [K(0, 7, 0, 100), K(0, 16, 25, 150, NCCL)])
    tool = fake_nsys(tmp_path / "bin", f'cp "{fresh}" "$OUTPUT"')
    report = tmp_path / "runs" / "report.nsys-rep"
    report.parent.mkdir()
    report.write_bytes(b"\x00report")
    return report, build(report.with_suffix(".sqlite"), [K(0, 7, 0, 100), K(0, 16, 50, 150, NCCL)]), tool


def overlap_of(run: Run) -> int:
    (row,) = json.loads(run.out)["ranks"]
    return int(row["overlap_ns"])


def test_26_a_stale_export_is_made_again(exported, cli):
    report, export, tool = exported
    aged(export, 100)
    found = cli("analyze", report, "--nsys", tool, "--format", "json")
    assert overlap_of(found) == 75 * US
    assert "exporting report.nsys-rep" in found.err
    assert overlap_of(cli("analyze", export, "--format", "json")) == 75 * US


def test_26_a_fresh_export_is_used_as_it_is(exported, cli):
    report, _, tool = exported
    aged(report, 100)
    found = cli("analyze", report, "--nsys", tool, "--format", "json")
    assert (overlap_of(found), found.err) == (50 * US, "")


def test_26_a_stale_export_given_itself_is_read_with_a_warning(exported, cli):
    report, export, _ = exported
    for path in (export, report.parent):
        aged(export, 100)
        found = cli("analyze", path, "--format", "json")
        assert overlap_of(found) == 50 * US
        (warning,) = (item for item in json.loads(found.out)["warnings"] if item["code"] == "stale-export")
        assert "report.sqlite is older than report.nsys-rep" in warning["message"]
    aged(report, 200)
    assert "stale-export" not in cli("analyze", export, "--format", "json").out


def test_27_many_rows_of_unique_text_are_swept_once(tmp_path):
    """60,000 kernels beside 120,000 ranges no two of which have one text; a million and two million take the same code."""
    expected = synthesize(tmp_path / "report.sqlite", 60_000, ranks=2, ops=120_000)
    found = read([tmp_path / "report.sqlite"]).analyze(Options(whole_capture=True))
    names = ("step_ns", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "idle_ns", "n_compute", "n_comm")
    assert [{name: getattr(row, name) for name in names} for row in found.ranks] == [
        {name: expected.ranks[rank][name] for name in names} for rank in (0, 1)
    ]


SECRETS = {
    "SECRET_TOKEN": "xyzzy-token",
    "HOSTNAME": "xyzzy-host",
    "USER": "xyzzy-user",
    "HOME": "/home/xyzzy",
    "RANK": "1",
}
SECRET_SQL = """
    UPDATE PROCESSES SET name = 'xyzzy-process';
    INSERT INTO TARGET_INFO_SYSTEM_ENV (globalVid, devStateName, name, nameEnum, value)
        VALUES (0, 'Local (CLI)', 'Hostname', 1, 'xyzzy-host');
"""


@pytest.mark.parametrize("schema", ["2022.4", "2024.2", "2026.2"])
def test_28_no_output_holds_environment_host_user_or_process_names(schema, tmp_path, cli):
    rows = [K(0, 7, 0, 100, launch=(-9, -8)), K(0, 16, 50, 150, NCCL, launch=(-7, -6)), N(-20, 200, "step/3")]
    rows.append(D("CUPTI could not write /home/xyzzy/buffer: xyzzy is no matter", 1))
    path = build(tmp_path / "report.sqlite", rows, schema=schema, env=SECRETS, sql=SECRET_SQL)
    extras = ("--per-step", "--buckets", "--show-kinds")
    said = [cli("analyze", path, "--format", form, *extras) for form in ("text", "json", "csv", "markdown", "html")]
    said.append(cli("-v", "analyze", path, "-o", tmp_path / "out"))
    said.append(cli("check", path, "--expect", "overlap>0", "--junit", tmp_path / "out" / "junit.xml"))
    assert [run.status for run in said] == [0] * 7
    files = [file for file in (tmp_path / "out").iterdir() if file.suffix != ".png"]
    assert len(files) >= 5
    for output in (*(run.out + run.err for run in said), *(file.read_text() for file in files)):
        assert "xyzzy" not in output
        assert "SECRET_TOKEN" not in output
    (row,) = json.loads(said[1].out)["ranks"]
    assert (row["rank"], row["rank_source"]) == (1, "environment")


# -------------------------------------------------------------------- D. Capture problems the reader must explain


@pytest.mark.parametrize("name", ["no.sqlite", "no.nsys-rep", "no.qdstrm", "no.json", "no.json.gz"])
def test_29_a_report_that_is_not_there_is_told_with_its_two_causes(name, tmp_path, cli, monkeypatch):
    monkeypatch.setenv("DDPPROF_NSYS", str(tmp_path / "none"))  # must not be asked for
    found = cli("analyze", tmp_path / name)
    assert (found.status, found.out) == (1, "")
    assert f"{tmp_path / name}: no such report" in found.err
    assert "capture range never opened" in found.err
    assert "under another name" in found.err


def test_29_no_command_of_ours_opens_an_nvtx_range(tmp_path):
    """Its strings would have to be registered, or NSYS_NVTX_PROFILER_REGISTER_ONLY=0 set with it."""
    for version in ("2022.4.2", "2024.2.3", "2026.4.1"):
        tool = nsight_tool.Nsys(Path("nsys"), version, "option")
        for has_cuda in (False, True):
            line = nsight_tool.profile_command(tool, tmp_path / "x.nsys-rep", ["true"], has_cuda=has_cuda)
            assert not any(word.startswith(("--capture-range=nvtx", "-c")) for word in line)
            assert ("--capture-range=cudaProfilerApi" in line) == has_cuda


def test_30_one_process_of_four_is_no_job_of_four(analyze):
    rows = [P(PID), P(101), P(102), P(103), K(0, 7, 0, 100), K(0, 16, 50, 150, NCCL)]
    found = analyze(rows, env={"WORLD_SIZE": "4", "RANK": "0"})
    assert only(found).overlap_ns == 50 * US
    assert told(found, "missing-ranks").startswith("WORLD_SIZE=4 but kernels of 1 process")
    assert "1 of 4 ranks" in text.render(found)


def test_30_marked_ranks_without_kernels_are_named(analyze):
    rows = [P(PID + rank, rank=rank, world=4) for rank in range(4)] + [K(0, 7, 0, 100, GEMM, PID + 2)]
    found = analyze(rows)
    assert [row.rank for row in found.ranks] == [2]
    assert told(found, "missing-ranks") == "WORLD_SIZE=4 but kernels of 1 process: ranks 0, 1, 3 missing"


@pytest.mark.parametrize("is_there", [True, False])
def test_31_an_unfinished_stream_is_no_report(is_there, tmp_path, cli):
    path = tmp_path / "report.qdstrm"
    if is_there:
        path.write_bytes(b"\x00Nsight Systems Stream\x00")
    found = cli("analyze", path)
    assert found.status == 1
    assert ("unfinished stream, not a report" in found.err) == is_there


def test_32_a_capture_without_kernels_says_which_interval_it_covers(tmp_path, cli):
    path = build(tmp_path / "report.sqlite", [S(0, 7, 0, 1), S(0, 7, 5, 6)], duration=2500)
    found = cli("analyze", path)
    assert (found.status, found.out) == (1, "")
    assert "no GPU kernels in report" in found.err
    assert "the capture covers 2.500 ms" in found.err


def test_32_copies_do_not_hide_that_gpu_tracing_failed(tmp_path, cli):
    found = cli("analyze", build(tmp_path / "report.sqlite", [*CALLS, M(0, 7, 0, 1)]))
    assert found.status == 1
    assert "5 launches, 0 kernels: GPU tracing failed" in found.err


GRAPHS = [
    *(K(0, 7, 5 * at, 5 * at + 2.6) for at in range(30)),
    *(G(0, 7, 1000 + 800_000 * at, 1000 + 800_000 * at + 781_100, launch=(900, 901)) for at in range(10)),
]


def test_33_whole_graphs_make_the_numbers_unreliable_and_are_told_apart(analyze):
    found = analyze(GRAPHS)
    row = only(found)
    assert (row.compute_ns, row.step_ns, row.idle_ns) == (78 * US, 147_600, 69_600)  # no graph in any of them
    assert row.unreliable == ("graph-trace-opaque",)
    message = told(found, "graph-trace-opaque")
    assert "10 CUDA graph launches" in message
    assert "7811.000 ms of GPU time" in message
    assert "--cuda-graph-trace=node" in message
    assert "Cannot be told" in text.render(found)
    longest = found.kinds[0]
    assert (longest.kind, longest.count, longest.total_ns) == ("graph", 10, 7_811 * MS)


def test_33_a_check_on_them_cannot_be_told(tmp_path, cli):
    path = build(tmp_path / "report.sqlite", [*GRAPHS, K(0, 16, 0, 100, NCCL)])
    found = cli("check", path, "--expect", "overlap>0")
    assert found.status == 1
    assert "CANNOT TELL" in found.out


def test_33_graphs_of_which_an_old_exporter_shows_nothing(analyze):
    rows = [
        K(0, 7, 0, 100, launch=(-9, -8)),
        R(9, 200, 201, "cudaGraphLaunch_v10000"),
        R(10, 300, 301, "cudaGraphLaunch_v10000"),
    ]
    found = analyze(rows, schema="2023.4")
    assert only(found).unreliable == ("graph-trace-opaque",)
    assert "2 CUDA graph launches" in told(found, "graph-trace-opaque")
    assert "newer nsys" in told(found, "graph-trace-opaque")


@pytest.mark.parametrize("schema", ["2022.4", "2024.2"])
def test_34_all_kernels_of_one_graph_launch_are_kept_and_placed_by_it(schema, analyze):
    """24 kernels, corr 5, launched once in step 1; they run when step 2 has begun."""
    rows = [
        N(0, 100, "step/1"),
        N(100, 900, "step/2"),
        R(5, 50, 51, "cudaGraphLaunch_v10000"),
        *(K(0, 7, 200 + 10 * at, 205 + 10 * at, corr=5, node=at + 1) for at in range(23)),
        K(0, 16, 300, 350, NCCL, corr=5, node=24),
    ]
    found = analyze(rows, schema=schema)
    assert [(row.step, row.n_compute, row.n_comm) for row in found.breakdown] == [(1, 23, 1)]
    assert only(found).unreliable == ()
    assert not told(found, "launch-mismatch")
    assert not told(found, "graph-trace-opaque")


def test_35_launches_without_any_kernel_are_counted(tmp_path, cli):
    rows = [R(at, at, at + 1) for at in range(1, 12_346)]
    found = cli("analyze", build(tmp_path / "report.sqlite", rows))
    assert found.status == 1
    assert "12345 launches, 0 kernels: GPU tracing failed" in found.err


def test_35_host_marks_of_a_gpu_run_do_not_stand_in_for_its_kernels(tmp_path, cli):
    """The marks of a run on GPUs are on the host too: time in them is not compute."""
    rows = """
        N 0..900 "rank/0/world/2/device/0" domain=ddpprof
        N 1..800 "step/4" domain=ddpprof
        N 10..20 "delay/0" domain=ddpprof
        N 21..30 "bucket/0/4096" domain=ddpprof
    """
    launch = "\nR 1 11..12 cudaLaunchKernel_v7000"
    for what, timeline in (("1 launches, 0 kernels", rows + launch), ("no GPU kernels in report", rows)):
        found = cli("analyze", build(tmp_path / "report.sqlite", timeline))
        assert (found.status, found.out) == (1, "")
        assert what in found.err


def test_35_nor_do_they_with_a_stray_memset(analyze):
    """A CPU run in a process that touched a GPU is still a CPU run."""
    rows = """
        process 100 rank=0 world=1
        S dev0 s7 0..1
        N   0..50 "delay/0" domain=ddpprof
        N60 40..90 "allreduce/0" domain=ddpprof
    """
    found = analyze(rows)
    assert (found.evidence, only(found).overlap_ns) == ("host-ranges", 10 * US)


def steps_with(kernels: int, steps: int = 29, launches: int | None = None) -> list[Any]:
    """``steps`` ranges of 100 us; ``kernels`` of them hold a GEMM 0..60 and an all-reduce 30..90; ``launches`` the calls."""
    rows: list[Any] = []
    for step in range(steps):
        at = 100 * step
        rows.append(N(at, at + 99, f"step/{step}"))
        rows.append(N(at + 3, at + 5, "ncclAllReduce", domain="NCCL"))
        if step < kernels:
            rows += [K(0, 7, at, at + 60, launch=(at + 1, at + 2)), K(0, 16, at + 30, at + 90, NCCL, launch=(at + 3.5, at + 4))]
        elif step < (launches or 0):
            rows += [R(9000 + 2 * step, at + 1, at + 2), R(9001 + 2 * step, at + 3.5, at + 4)]
    return rows


@pytest.mark.parametrize("launches", [None, 29], ids=["launches lost too", "launches there"])
def test_36_steps_without_kernels_are_counted_and_in_no_mean(launches, analyze):
    found = analyze(steps_with(23, launches=launches))
    row = only(found)
    assert (row.steps, row.step_ns, row.overlap_ns) == (22, 90 * US, 30 * US)  # step 0 is warm-up
    assert "6 of 29 steps hold no device work" in told(found, "capture-incomplete")
    assert "29 NCCL calls but 23 NCCL kernels" in told(found, "capture-incomplete")
    assert ("12 kernel launches have no kernel" in told(found, "launch-mismatch")) == (launches is not None)


def test_36_a_step_with_a_lost_kernel_is_not_complete(analyze):
    rows = steps_with(5, steps=5)
    lost = rows.index(K(0, 16, 330, 390, NCCL, launch=(303.5, 304)))
    rows[lost] = R(9999, 303.5, 304)
    found = analyze(rows)
    assert [(row.step, row.complete) for row in found.breakdown] == [(0, True), (1, True), (2, True), (3, False), (4, True)]
    assert (only(found).steps, only(found).comm_ns) == (3, 60 * US)
    assert found.breakdown[3].reason == "1 launches without a kernel"


def test_36_so_it_is_for_steps_of_another_name(analyze):
    rows = [
        replace(row, text=row.text.replace("step/", "epoch 1 batch ")) if isinstance(row, N) else row
        for row in steps_with(5, steps=5)
    ]
    rows[rows.index(K(0, 16, 330, 390, NCCL, launch=(303.5, 304)))] = R(9999, 303.5, 304)
    found = analyze(rows, Options(step_pattern=r"batch \d+"))
    assert [(row.step, row.complete) for row in found.breakdown] == [(0, True), (1, True), (2, True), (3, False), (4, True)]


def test_36_calls_fused_into_one_kernel_are_no_loss(analyze):
    """Two all-reduces in one group are one kernel: the group's own range shows it."""
    rows = [
        N(0, 1, "ncclGroupStart", domain="NCCL"),
        N(1, 2, "ncclAllReduce", domain="NCCL"),
        N(2, 3, "ncclAllReduce", domain="NCCL"),
        N(3, 6, "ncclGroupEnd", domain="NCCL"),
        K(0, 16, 50, 150, NCCL, launch=(4, 5)),
        K(0, 7, 0, 100),
    ]
    assert not told(analyze(rows), "capture-incomplete")


def test_37_kineto_collectives_without_kernels(tmp_path, cli):
    for name, kernels in (("none", []), ("gemm", [event("kernel", "gemm", 0, 100, device=0, stream=7)])):
        trace = kineto(tmp_path / f"{name}.json", [event("user_annotation", "nccl:all_reduce", 10, 5), *kernels])
        shown = cli("analyze", trace)
        assert shown.status == 0
        assert "CPU-side collectives exist, GPU kernels missing" in shown.out
        ranks = json.loads(cli("analyze", trace, "--format", "json").out)["ranks"]
        assert [(row["n_comm"], row["overlap_ratio"]) for row in ranks] == [(0, None)] * len(kernels)


# ------------------------------------------------------------------------------------------ E. Ranks, devices, clocks

OVERLAP_50 = [K(0, 7, 0, 100), K(0, 16, 50, 150, NCCL)]


def on(pid: int, *rows: Any, gpus: tuple[str, ...] = (), rank: int | None = None, world: int | None = None) -> list[Any]:
    """Rows as those of another process."""
    return [P(pid, rank=rank, world=world, gpus=gpus), *(replace(row, pid=pid) for row in rows)]


def test_38_device_0_of_two_reports_is_two_devices(job):
    found = job(
        (on(201, *OVERLAP_50, gpus=("a",)), {"env": {"RANK": "1", "WORLD_SIZE": "2"}}),
        (on(202, *OVERLAP_50, K(0, 7, 200, 300), gpus=("b",)), {"env": {"RANK": "0", "WORLD_SIZE": "2"}}),
    )
    assert [(row.rank, row.rank_source, row.report, row.pid, row.device_id, row.gpu, row.n_compute) for row in found.ranks] == [
        (0, "environment", 1, 202, 0, 1, 2),
        (1, "environment", 0, 201, 0, 0, 1),
    ]
    assert not any(row.is_time_sliced for row in found.ranks)
    assert "2 GPUs" in text.render(found)


def test_38_one_gpu_of_two_reports_is_shared(job):
    found = job(on(201, *OVERLAP_50, gpus=("a",)), on(202, *OVERLAP_50, gpus=("a",)))
    assert [(row.gpu, row.is_time_sliced) for row in found.ranks] == [(0, True), (0, True)]
    assert told(found, "time-sliced").startswith("2 ranks on 1 GPU")


HOSTS = """INSERT INTO TARGET_INFO_SYSTEM_ENV (globalVid, devStateName, name, nameEnum, value)
           VALUES (0, 'Local (CLI)', 'Hostname', 1, '{}')"""


@pytest.mark.parametrize(("hosts", "is_shared"), [(("n1", "n2"), False), (("n1", "n1"), True), ((None, None), False)])
def test_38_a_bus_id_without_uuid_is_one_hosts_own(hosts, is_shared, job):
    reports = []
    for at, host in enumerate(hosts):
        sql = "CREATE TABLE IF NOT EXISTS TARGET_INFO_SYSTEM_ENV (globalVid, devStateName, name, nameEnum, value);"
        sql += HOSTS.format(host) if host else ""
        rows = on(201 + at, *OVERLAP_50, gpus=("a",))
        reports.append((rows, {"schema": "2020.3", "session_ns": None, "sql": sql}))
    found = job(*reports)
    assert [row.is_time_sliced for row in found.ranks] == [is_shared] * 2


VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK")


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("schema", ["2022.4", "2024.2"])
def test_39_the_rank_is_read_from_the_captured_environment(name, schema, job):
    """Ranks 4, 3, … in the order of files; rank 5 of six is missing."""
    found = job(*((on(300 + rank, *OVERLAP_50), {"env": {name: str(rank)}, "schema": schema}) for rank in (4, 3, 6, 0, 2, 1)))
    assert [(row.rank, row.pid) for row in found.ranks] == [(rank, 300 + rank) for rank in (0, 1, 2, 3, 4, 6)]
    assert told(found, "missing-ranks") == "no report of rank 5"


def test_39_world_size_tells_that_the_last_rank_is_missing(job):
    found = job(*((on(300 + rank, *OVERLAP_50), {"env": {"RANK": str(rank), "WORLD_SIZE": "6"}}) for rank in range(5)))
    assert told(found, "missing-ranks") == "WORLD_SIZE=6 but kernels of 5 processes: rank 5 missing"


def test_39_file_order_is_never_a_rank(job):
    found = job(on(301, *OVERLAP_50), on(302, *OVERLAP_50))
    assert [(row.rank, row.rank_source) for row in found.ranks] == [(None, "unknown"), (None, "unknown")]
    assert "the rank of 2 processes is unknown" in told(found, "rank-unknown")


def test_39_the_environment_of_a_launcher_is_no_workers_rank(analyze):
    """nsys around torchrun sees SLURM_PROCID of the node, and several processes below it."""
    found = analyze(on(301, *OVERLAP_50) + on(302, *OVERLAP_50), env={"SLURM_PROCID": "0"})
    assert [row.rank for row in found.ranks] == [None, None]


def test_39_rank_by_hand(job):
    reports = (on(301, *OVERLAP_50), (on(302, *OVERLAP_50), {"env": {"RANK": "7"}}))
    found = job(*reports, ranks=("report0.sqlite=1", "report1.sqlite=0"))
    assert [(row.rank, row.rank_source, row.pid) for row in found.ranks] == [(0, "option", 302), (1, "option", 301)]


@pytest.mark.parametrize(
    ("rank", "what"),
    [
        ("report0.sqlite", "not FILE=N"),
        ("report0.sqlite=x", "not FILE=N"),
        ("report9.sqlite=1", "no input of that name"),
        ("report2.sqlite=1", "the report has 2 processes with work"),
    ],
)
def test_39_rank_by_hand_must_be_clear(rank, what, job):
    reports = (on(301, *OVERLAP_50), on(302, *OVERLAP_50), on(303, *OVERLAP_50) + on(304, *OVERLAP_50))
    with pytest.raises(UsageError, match=what):
        job(*reports, ranks=(rank,))


def test_39_two_reports_that_mark_the_same_rank_are_refused(job):
    reports = [on(pid, *OVERLAP_50, rank=0, world=2) for pid in (301, 302)]
    with pytest.raises(InputError, match=r"report0\.sqlite and report1\.sqlite are both rank 0\n.*--rank FILE=N"):
        job(*reports)
    found = job(*reports, ranks=("report1.sqlite=1",))
    assert [(row.rank, row.pid) for row in found.ranks] == [(0, 301), (1, 302)]


def test_39_an_environment_that_all_share_tells_nothing(job):
    """RANK exported once for a whole node: nobody is rank 0."""
    found = job(*((on(pid, *OVERLAP_50), {"env": {"RANK": "0"}}) for pid in (301, 302)))
    assert [(row.rank, row.rank_source) for row in found.ranks] == [(None, "unknown")] * 2
    assert told(found, "duplicate-rank") == "rank 0 is claimed by 2 processes: their rank is unknown"


@pytest.mark.parametrize("env", [{}, {"RANK": "0"}])
def test_39_one_capture_given_twice_is_refused(env, job):
    report = (on(301, *OVERLAP_50), {"env": env, "session_ns": SESSION_NS})
    with pytest.raises(InputError, match=r"report0\.sqlite and report1\.sqlite are the same capture"):
        job(report, report)


def test_39_a_mark_wins_over_the_environment(analyze):
    found = analyze(on(301, *OVERLAP_50, rank=3, world=4), env={"RANK": "0", "WORLD_SIZE": "9"})
    assert (only(found).rank, only(found).rank_source, found.world_size) == (3, "mark", 4)


def test_40_two_devices_of_one_process_are_two_rows(analyze):
    found = analyze([*OVERLAP_50, K(3, 7, 0, 40)])
    assert [(row.pid, row.device_id, row.compute_ns, row.n_comm) for row in found.ranks] == [
        (PID, 0, 100 * US, 1),
        (PID, 3, 40 * US, 0),
    ]


def test_40_and_so_in_the_one_step_that_was_captured(analyze):
    rows = [replace(row, launch=(1 + at, 2 + at)) for at, row in enumerate([*OVERLAP_50, K(3, 7, 0, 40)])]
    found = analyze([N(0, 10, "step/0"), *rows])
    assert [(row.device_id, row.steps, row.unreliable) for row in found.ranks] == [(0, 1, ()), (3, 1, ())]


def test_41_kineto_without_a_rank_is_unknown(tmp_path):
    trace = kineto(tmp_path / "trace.json", [event("kernel", "gemm", 0, 100, device=0, stream=7)])
    found = read([trace]).analyze(Options())
    assert (only(found).rank, only(found).rank_source) == (None, "unknown")
    assert told(found, "rank-unknown")


def test_41_two_kineto_files_of_one_rank_are_refused(tmp_path, cli):
    paths = [
        kineto(
            tmp_path / name,
            [event("kernel", "gemm", at, 100, device=0, stream=7)],
            distributedInfo={"rank": 0, "world_size": 2},
        )
        for at, name in enumerate(("a.json", "b.json"))
    ]
    found = cli("analyze", *paths)
    assert (found.status, found.out) == (1, "")
    assert "a.json and b.json are both rank 0" in found.err


def test_41_an_execution_trace_is_told_for_what_it_is(tmp_path, cli):
    path = tmp_path / "et.json"
    path.write_text(
        json.dumps({"schema": "1.0.1", "pid": 1, "nodes": [{"id": 1, "name": "[pytorch|profiler|execution_trace]"}]})
    )
    found = cli("analyze", path)
    assert (found.status, found.out) == (1, "")
    assert f"{path}: an execution trace, not a profiler trace" in found.err


def test_42_clocks_a_minute_apart_leave_each_ranks_numbers_alone(job):
    rows = [[N(-20, 200, "step/3"), *(replace(row, launch=(-9 + at, -8 + at)) for at, row in enumerate(OVERLAP_50))]] * 2
    one, two = (
        (on(301 + at, *rows[at]), {"session_ns": SESSION_NS + 60_000 * MS * at, "env": {"RANK": str(at), "WORLD_SIZE": "2"}})
        for at in (0, 1)
    )
    found = job(one, two)
    assert [(row.rank, row.step, row.overlap_ns, row.exposed_comm_ns) for row in found.breakdown] == [
        (0, 3, 50 * US, 50 * US),
        (1, 3, 50 * US, 50 * US),
    ]
    assert "60.0 s apart: clocks differ" in told(found, "clock-skew")
    assert "cross-rank times do not" in told(found, "clock-skew")


def test_42_one_clock_needs_no_remark(job):
    assert not told(job(on(301, *OVERLAP_50), on(302, *OVERLAP_50)), "clock-skew")


def test_43_a_collective_is_as_long_as_each_rank_saw_it(analyze):
    """Rank 0 waited 90 of its 100 us for rank 1: both lengths stand, the shortest is the estimate of the transfer."""
    found = analyze(on(301, K(0, 16, 0, 100, NCCL), rank=0, world=2) + on(302, K(0, 16, 90, 100, NCCL), rank=1, world=2))
    assert [(row.rank, row.comm_ns) for row in found.ranks] == [(0, 100 * US), (1, 10 * US)]
    assert [(row.rank, row.end_ns - row.start_ns, row.busbw) for row in found.buckets] == [
        (0, 100 * US, None),
        (1, 10 * US, None),
    ]
    (pair,) = found.across.collectives
    assert (pair.transfer_ns, pair.wait_ns, found.across.ranks[pair.last].rank) == (10 * US, [90 * US, 0], 1)


def test_44_the_kernel_is_the_collective_and_not_the_range_around_its_launch(analyze):
    found = analyze([K(0, 16, 1000, 1800, NCCL, launch=(12, 14)), N(10, 15, "nccl:all_reduce"), K(0, 7, 0, 2000)])
    assert (only(found).comm_ns, only(found).overlap_ns) == (800 * US, 800 * US)
    (bucket,) = found.buckets
    assert (bucket.end_ns - bucket.start_ns, bucket.attribution) == (800 * US, "nccl-range")


def test_45_a_kernel_belongs_to_the_step_that_launched_it(analyze):
    found = analyze(
        [N(0, 100, "step/0"), N(100, 200, "step/1"), K(0, 7, 130, 140, launch=(95, 96)), K(0, 7, 150, 160, launch=(105, 106))]
    )
    assert [(row.step, row.start_ns, row.n_compute) for row in found.breakdown] == [(0, 130 * US, 1), (1, 150 * US, 1)]


def test_45_correlation_ids_are_matched_within_their_process(analyze):
    rows = [
        *(N(0, 100, "step/1", pid) for pid in (100, 101)),
        *(N(100, 200, "step/2", pid) for pid in (100, 101)),
        K(0, 7, 130, 140, GEMM, 100, corr=5, launch=(95, 96)),
        K(0, 7, 130, 140, GEMM, 101, corr=5, launch=(105, 106)),
    ]
    found = analyze(rows)
    assert [(row.pid, row.step) for row in found.breakdown] == [(100, 1), (101, 2)]


def test_45_the_autograd_threads_launches_are_of_the_step_too(analyze):
    rows = [
        N(0, 100, "step/1", thread=0),
        K(0, 7, 130, 140, launch=(40, 41), thread=3),
        K(0, 16, 135, 150, NCCL, launch=(50, 51), thread=4),
    ]
    (row,) = analyze(rows).breakdown
    assert (row.step, row.n_compute, row.n_comm, row.overlap_ns) == (1, 1, 1, 5 * US)


def one_step(number: int, at: int, tail: int) -> list[Any]:
    """Forward 0..10, backward 10..50, all-reduce from 30 till ``tail`` after it, then the optimizer's kernel; from ``at``."""
    end = at + 50 + tail
    return [
        N(at, at + 9, f"step/{number}"),
        N(at, at + 2, "forward", domain="ddpprof"),
        N(at + 2, at + 6, "backward", domain="ddpprof"),
        N(at + 6, at + 8, "optimizer", domain="ddpprof"),
        K(0, 7, at, at + 10, "forward", launch=(at, at + 1)),
        K(0, 7, at + 10, at + 50, "backward", launch=(at + 3, at + 4)),
        K(0, 16, at + 30, end, NCCL, launch=(at + 4, at + 5)),
        K(0, 7, end, end + 5, "optimizer", launch=(at + 6, at + 7)),
    ]


def test_46_the_tail_is_of_each_step_and_counts_from_the_backward(analyze):
    found = analyze(one_step(1, 0, 20) + one_step(2, 1000, 30))
    assert [(row.step, row.tail_ns) for row in found.breakdown] == [(1, 20 * US), (2, 30 * US)]
    assert only(found).tail_ns == 20 * US


def test_46_over_a_whole_capture_it_is_not_negative(analyze):
    """The optimizer runs after the last all-reduce: counted from the last compute the tail would be −5 us."""
    assert only(analyze(one_step(1, 0, 20) + one_step(2, 1000, 30), Options(whole_capture=True))).tail_ns == 30 * US


def test_46_without_a_backward_range_it_counts_from_what_was_launched_before(analyze):
    rows = [row for row in one_step(1, 0, 20) if not (isinstance(row, N) and row.text == "backward")]
    assert only(analyze(rows)).tail_ns == 20 * US


def test_47_communication_on_the_compute_stream_cannot_overlap(analyze):
    found = analyze([K(0, 7, 0, 100), K(0, 7, 100, 200, NCCL), K(0, 7, 200, 300)])
    assert (only(found).overlap_ns, only(found).overlap_ratio) == (0, 0.0)
    assert "1 of 1 communication kernels run on compute stream 7" in told(found, "same-stream")
    assert "No: no communication is hidden" in text.render(found)


def test_47_a_stray_kernel_on_the_communication_stream_does_not_make_it_one(analyze):
    rows = [*(K(0, 7, 20 * at, 20 * at + 20) for at in range(20)), K(0, 16, 0, 10, "cast"), K(0, 16, 10, 300, NCCL)]
    assert not told(analyze(rows), "same-stream")


@pytest.mark.parametrize("overlaps", [True, False])
def test_48_overlap_is_never_called_time_saved(overlaps, analyze):
    """The same kernel takes 100 us alone and 160 us under NCCL."""
    rows = [K(0, 7, 0, 100), *([K(0, 7, 200, 360), K(0, 16, 200, 360, NCCL)] if overlaps else [K(0, 7, 200, 300)])]
    found = analyze(rows)
    for render in FORMATS:
        shown = render(found).lower()
        assert ("saved" in shown) == ("not time saved" in shown)
    assert ("Overlap is not time saved: compare measured step times" in text.render(found)) == overlaps


# ----------------------------------------------------------------------------------------------- F. DDP behaviour


def test_49_bucket_sizes_are_those_of_the_run_and_not_total_over_cap(analyze):
    """46,758,048 bytes at a cap of 35 MB: the marks say three buckets of unlike size."""
    sizes = (2_052_000, 38_297_600, 6_408_448)
    rows: list[Any] = [P(PID, rank=0, world=2), N(0, 100, "step/1"), K(0, 7, 0, 500, launch=(1, 2))]
    for at, size in enumerate(sizes):
        rows += [
            N(10 * at + 10, 10 * at + 15, f"bucket/{at}/{size}", domain="ddpprof"),
            K(0, 16, 100 * at + 100, 100 * at + 150, NCCL, launch=(10 * at + 11, 10 * at + 12)),
        ]
    found = analyze(rows)
    assert [(row.bucket, row.size_bytes, row.attribution) for row in found.buckets] == [
        (at, size, "range") for at, size in enumerate(sizes)
    ]
    assert [row.busbw for row in found.buckets] == [size * 1e9 / (50 * US) for size in sizes]  # 2 (n−1)/n = 1 for two ranks


def ddp_step(number: int, at: int, buckets: int, overlaps: bool = True) -> list[Any]:
    """Backward 0..100 us from ``at`` and ``buckets`` all-reduces of 10 us, beside it or after it."""
    first = at + (20 if overlaps else 100)
    return [
        N(at, at + 50, f"step/{number}"),
        K(0, 7, at, at + 100, launch=(at + 1, at + 2)),
        *(K(0, 16, first + 20 * n, first + 20 * n + 10, NCCL, launch=(at + 3 + n, at + 4 + n)) for n in range(buckets)),
    ]


def test_50_step_0_stands_apart(analyze):
    rows = [row for step in range(10) for row in ddp_step(step, 1000 * step, 4 if step else 1, overlaps=step > 0)]
    found = analyze(rows)
    row = only(found)
    assert (row.steps, row.n_comm, row.overlap_ns, row.overlap_ratio) == (9, 4, 40 * US, 1.0)
    assert (found.breakdown[0].reason, found.breakdown[0].n_comm, found.breakdown[0].overlap_ns) == ("step 0: warm-up", 1, 0)
    assert "no: step 0: warm-up" in text.render(found, per_step=True)


def test_50_a_count_that_differs_in_step_0_only_is_no_warning(analyze):
    rows = []
    for pid, first in ((301, 3), (302, 4)):
        steps = [row for step in range(6) for row in ddp_step(step, 1000 * step, 4 if step else first)]
        rows += on(pid, *steps)
    assert not told(analyze(rows), "collectives-differ")


def test_50_a_count_that_differs_later_is_one(analyze):
    rows = []
    for pid, second in ((301, 3), (302, 4)):
        steps = [row for step in range(6) for row in ddp_step(step, 1000 * step, second if step == 2 else 4)]
        rows += on(pid, *steps)
    assert told(analyze(rows), "collectives-differ") == "ranks differ in number of collectives: 4 and 3 in 1 step(s)"


def test_50_a_single_step_0_is_measured(analyze):
    found = analyze(ddp_step(0, 0, 4))
    assert (only(found).steps, only(found).overlap_ns, only(found).unreliable) == (1, 40 * US, ())


def test_51_step_medians_and_their_spread_are_beside_the_share(analyze):
    """Steps of 100, 110, … 140 us: the median is 120."""
    rows = [row for step in range(5) for row in ddp_step(step + 1, 1000 * step, 4)]
    rows = [
        replace(row, end=row.end + 10 * int(row.start // 1000)) if isinstance(row, K) and row.stream == 7 else row
        for row in rows
    ]
    found = analyze(rows)
    assert (only(found).step_ns, only(found).spread["step_ns"]) == (120 * US, (100 * US, 140 * US))
    line = next(line for line in text.render(found).splitlines() if line.lstrip().startswith("?"))
    assert re.findall(r"1[0-4]0\.000", line)[:3] == ["120.000", "100.000", "140.000"]


@pytest.mark.parametrize("finds_unused", [False, True])
def test_54_the_map_of_unused_parameters_is_one_collective_more_and_no_bucket(finds_unused, analyze):
    rows: list[Any] = [P(PID, rank=0, world=2), N(0, 100, "step/1"), K(0, 7, 0, 500, launch=(1, 2))]
    for at in range(4):
        rows += [
            N(10 * at + 10, 10 * at + 15, f"bucket/{at}/4194304", domain="ddpprof"),
            K(0, 16, 100 * at + 100, 100 * at + 150, NCCL, launch=(10 * at + 11, 10 * at + 12)),
        ]
    if finds_unused:
        rows.append(K(0, 16, 500, 501, NCCL.replace("f32", "u32"), launch=(60, 61)))
    found = analyze(rows)
    assert only(found).n_comm == 4 + finds_unused
    assert [row.bucket for row in found.buckets] == [0, 1, 2, 3] + [None] * finds_unused
    assert not any("saved traffic" in render(found) for render in FORMATS)


def test_54_the_bucket_count_of_a_check_leaves_it_out(tmp_path, cli):
    rows = [
        P(PID, rank=0, world=1),
        N(0, 100, "step/1"),
        K(0, 7, 0, 500, launch=(1, 2)),
        N(10, 15, "bucket/0/4194304", domain="ddpprof"),
        K(0, 16, 100, 150, NCCL, launch=(11, 12)),
        K(0, 16, 200, 201, NCCL, launch=(60, 61)),
    ]
    path = build(tmp_path / "report.sqlite", rows)
    assert cli("check", path, "--expect", "buckets==1", "--expect", "n_comm==2").status == 0
    assert cli("check", path, "--expect", "buckets==2").status == CHECK_FAILED


def test_56_half_the_bytes_are_told_by_the_marks_and_not_by_a_name(analyze):
    """A hook that compresses to fp16: the kernel may say f16, the size is the mark's own."""
    name = NCCL.replace("f32", "f16")
    rows = [
        P(PID, rank=0, world=2),
        N(0, 100, "step/1"),
        K(0, 7, 0, 500, launch=(1, 2)),
        N(10, 15, "bucket/0/2097152", domain="ddpprof"),
        K(0, 16, 100, 150, name, launch=(11, 12)),
        K(0, 16, 200, 250, name, launch=(60, 61)),
    ]
    found = analyze(rows)
    assert [(row.operation, row.size_bytes) for row in found.buckets] == [("AllReduce", 2_097_152), ("AllReduce", None)]


def test_57_a_gloo_run_on_a_gpu_has_no_device_communication(tmp_path, cli):
    rows = [K(0, 7, 0, 100), M(0, 7, 100, 110, "DtoH"), M(0, 7, 150, 160), N(105, 155, "gloo:all_reduce")]
    path = build(tmp_path / "report.sqlite", rows)
    shown = cli("analyze", path)
    assert shown.status == 0
    assert "no NCCL kernels" in shown.out
    assert "(gloo backend?" in shown.out
    (row,) = json.loads(cli("analyze", path, "--format", "json").out)["ranks"]
    assert (row["n_comm"], row["overlap_ratio"], row["memory_only_ns"]) == (0, None, 20 * US)


# ---------------------------------------------------------------------------------------- Further kinds of input


@pytest.mark.parametrize("name", ["void oneRankReduce<FuncPreMulSum<float>>(void*, void*, unsigned long)", "oneRankReduce"])
def test_kind_a_reduction_of_one_rank_moves_nothing(name, analyze):
    row = only(analyze([K(0, 7, 0, 100), K(0, 16, 50, 150, name)]))
    assert (row.n_compute, row.n_comm) == (2, 0)


COPY_ENGINE = """
    N 0..100 "step/1"
    K dev0 s7      0..1000 GEMM launch=1..2
    N 10..20 "ncclAllGather" domain=NCCL thread=2
    M dev0 s16 100..200 {} launch=12..13 thread=2
    M dev0 s16 300..400 {} launch=12..13 thread=1
"""


@pytest.mark.parametrize(("kind", "n_comm"), [("PtoP", 1), ("DtoD", 1), ("HtoD", 0), ("DtoH", 0)])
def test_kind_copies_that_nccl_launches_are_communication(kind, n_comm, analyze):
    """Those of the copy engine: on the thread of the call, between devices. What NCCL sets up with is not."""
    row = only(analyze(COPY_ENGINE.format(kind, kind)))
    assert (row.n_comm, row.n_memory, row.overlap_ns) == (n_comm, 2 - n_comm, n_comm * 100 * US)


def test_kind_torchs_own_range_does_not_make_a_copy_communication(analyze):
    row = only(analyze(COPY_ENGINE.replace("ncclAllGather", "nccl:all_gather").format("DtoD", "DtoD")))
    assert (row.n_comm, row.n_memory) == (0, 2)


def test_kind_copies_by_pattern(analyze):
    rows = [K(0, 7, 0, 100), M(0, 16, 50, 150, "PtoP", src=0, dst=1), M(0, 16, 150, 160)]
    assert only(analyze(rows)).n_comm == 0
    row = only(analyze(rows, Options(comm=("PtoP",))))
    assert (row.n_comm, row.n_memory, row.overlap_ns) == (1, 1, 50 * US)


def test_kind_not_comm_wins(analyze):
    row = only(analyze(OVERLAP_50, Options(comm=("nccl",), not_comm=("AllReduce",))))
    assert (row.n_compute, row.n_comm) == (2, 0)


def test_kind_only_the_streams_asked_for(analyze):
    rows = [*OVERLAP_50, K(0, 20, 0, 150)]
    assert only(analyze(rows)).overlap_ns == 100 * US
    assert only(analyze(rows, Options(streams=frozenset({7, 16})))).overlap_ns == 50 * US
    with pytest.raises(UsageError, match=r"no stream 9 in the input\nThere are: 7, 16, 20\.$"):
        analyze(rows, Options(streams=frozenset({9})))


def test_kind_steps_by_pattern_are_searched_in_the_texts_of_ranges(analyze):
    rows = [row for step in range(3) for row in ddp_step(step, 1000 * step, 4)]
    rows = [replace(row, text=row.text.replace("step/", "epoch 7, batch ")) if isinstance(row, N) else row for row in rows]
    assert analyze(rows).window == "capture"
    found = analyze(rows, Options(step_pattern=r"batch \d+$"))
    assert (found.window, [row.step for row in found.breakdown]) == ("step", [0, 1, 2])
    found = analyze(rows, Options(step_pattern=r"batch", steps=(1, 1)))
    assert [row.step for row in found.breakdown] == [1]
    with pytest.raises(UsageError, match=r"no step 7:9 in the input\nThere are: 0, 1, 2\.$"):
        analyze(rows, Options(step_pattern=r"batch", steps=(7, 9)))


def test_kind_steps_may_be_start_end_ranges_that_end_on_another_thread(analyze):
    rows = [row for step in (1, 2) for row in ddp_step(step, 1000 * step, 4)]
    rows = [replace(row, type=60, end_thread=5) if isinstance(row, N) else row for row in rows]
    found = analyze(rows)
    assert [(row.step, row.overlap_ns) for row in found.breakdown] == [(1, 40 * US), (2, 40 * US)]


@pytest.mark.parametrize("text", ["ProfilerStep#{}", "step {}", "Step_{}", "iteration {}", "train_step:{}", "iter{}"])
def test_kind_usual_names_of_steps(text, analyze):
    rows = [row for step in (4, 5) for row in ddp_step(step, 1000 * step, 4)]
    rows = [replace(row, text=text.format(row.text[-1])) if isinstance(row, N) else row for row in rows]
    assert [row.step for row in analyze(rows).breakdown] == [4, 5]


def test_kind_steps_without_any_launch_call_cannot_be_placed(analyze):
    found = analyze([N(0, 100, "step/1"), *OVERLAP_50])
    assert found.window == "capture"
    assert "no launch calls in the report" in told(found, "no-steps")


def test_kind_a_process_without_steps_beside_one_with_them(analyze):
    found = analyze(on(301, *ddp_step(1, 0, 4)) + on(302, *OVERLAP_50))
    assert [(row.pid, row.step) for row in found.breakdown] == [(301, 1), (302, None)]
    assert told(found, "no-steps").startswith("no step ranges of process 302")


@pytest.mark.parametrize(
    "name",
    [
        "void c10d::symmetric_memory::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "void multimem_one_shot_all_reduce_kernel<float, 16, 8>(float*)",
        "one_shot_all_reduce_kernel",
        "two_shot_all_reduce_inplace_kernel",
        "multimem_all_gather_kernel",
        "void vllm::cross_device_reduce_1stage<__half, 8>(RankData*)",
        "nvshmemi_transfer_put",
        "void deep_ep::internode::dispatch<true, 8>(int4*)",
        "mscclKernel_Sum_float_Simple",
    ],
)
def test_kind_kernels_of_other_libraries_that_move_data(name, analyze):
    row = only(analyze([K(0, 7, 0, 100), K(0, 16, 50, 150, name)]))
    assert (row.n_compute, row.n_comm, row.overlap_ns) == (1, 1, 50 * US)


@pytest.mark.parametrize("name", ["reduce_kernel", "vectorized_gather_kernel", "AllReduceLoss", "all_reduce_penalty_kernel"])
def test_kind_kernels_that_only_sound_like_it(name, analyze):
    assert only(analyze([K(0, 7, 0, 100), K(0, 16, 50, 150, name)])).n_comm == 0


@pytest.mark.parametrize("nvtx", ["inline", "registered"])
def test_kind_names_with_nul_and_bytes_that_are_no_utf8(nvtx, tmp_path, cli):
    rows = r"""
        N -20..200 "step/3"
        N -20..200 "caf\udce9 \u0000 step"
        N -20..200 "step/4\u0000junk" thread=3
        K dev0 s7     0..100 "gemm_\udce9\u0000tail" launch=-9..-8
        K dev0 s16   50..150 NCCL launch=-7..-6
        D "CUDA caf\udce9 \u0000 hidden" severity=2
    """
    path = build(tmp_path / "report.sqlite", rows, nvtx=nvtx)
    for form in ("text", "json", "csv", "markdown", "html"):
        found = cli("analyze", path, "--format", form, "--show-kinds")
        assert found.status == 0
        assert "\0" not in found.out
    (row,) = json.loads(cli("analyze", path, "--format", "json").out)["breakdown"]
    assert (row["step"], row["overlap_ns"]) == (3, 50 * US)


def test_kind_negative_global_ids(analyze):
    """A hardware id from 128 on sets the sign: pid and join must not care."""
    rows = on(0xFEDCBA, *ddp_step(1, 0, 4), rank=1, world=2)
    found = analyze(rows, hw_id=200)
    (row,) = found.breakdown
    assert (row.pid, row.rank, row.step, row.overlap_ns) == (0xFEDCBA, 1, 1, 40 * US)
    assert only(found).n_left_out == 0


@pytest.mark.parametrize("seed", range(3))
def test_kind_rows_in_any_order_give_the_same_analysis(seed, analyze):
    rows = [
        row
        for pid in (301, 302)
        for row in on(pid, *one_step(1, 0, 20), *one_step(2, 1000, 30), M(0, 7, 5, 25), rank=pid - 301)
    ]
    rows += [O(5, 6, pid=301), D("CUDA is no matter", pid=301), D("CUPTI is no matter", pid=302)]
    assert replace(analyze(rows, shuffle=seed), warnings=()) == replace(analyze(rows), warnings=())
    assert set(analyze(rows, shuffle=seed).warnings) == set(analyze(rows).warnings)


def test_kind_missing_keys_are_dropped_and_counted(analyze):
    sql = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = NULL WHERE streamId = 20"
    found = analyze([*OVERLAP_50, K(0, 20, 0, 999)], sql=sql)
    assert (only(found).overlap_ns, only(found).n_compute) == (50 * US, 1)
    assert told(found, "dropped-rows").startswith("1 rows")


def test_kind_a_kernel_without_correlation_has_no_launch_and_is_left_out_of_steps(analyze):
    sql = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = NULL WHERE streamId = 20"
    found = analyze([*ddp_step(1, 0, 4), K(0, 20, 0, 999, launch=(5, 6))], sql=sql)
    assert (only(found).n_compute, only(found).n_left_out) == (1, 1)
    assert "1 of 6 kernels were launched outside the capture" in told(found, "launch-mismatch")


def test_kind_a_clip_says_so(analyze):
    found = analyze(OVERLAP_50, meta={"EXPORT_PARAM_TIMES_TO_EXPORT": "1s/2s"})
    assert "the export is a clip" in told(found, "capture-incomplete")
    assert only(found).unreliable == ("capture-incomplete",)


def test_kind_ranks_that_did_unequal_numbers_of_collectives(analyze):
    found = analyze(
        on(301, *(K(0, 16, 10 * at, 10 * at + 5, NCCL) for at in range(40)))
        + on(302, *(K(0, 16, 10 * at, 10 * at + 5, NCCL) for at in range(36)))
    )
    assert "ranks differ in number of collectives: 40 and 36" in told(found, "collectives-differ")


def test_kind_the_focus_is_asked_beside_the_whole(analyze):
    found = analyze([K(0, 7, 0, 100), K(0, 7, 100, 200, SPIN), K(0, 16, 50, 150, NCCL)], Options(compute="spin_kernel"))
    assert found.focus is not None
    assert [(row.n_compute, row.compute_ns, row.overlap_ns) for row in found.focus.ranks] == [(1, 100 * US, 50 * US)]
    assert (only(found).compute_ns, only(found).overlap_ns) == (200 * US, 100 * US)


def test_kind_a_rank_twice_in_one_report_is_nobodys(analyze):
    """An elastic restart: two processes carry the mark of rank 0."""
    found = analyze(on(301, *OVERLAP_50, rank=0, world=1) + on(302, *OVERLAP_50, rank=0, world=1))
    assert [(row.rank, row.rank_source) for row in found.ranks] == [(None, "unknown")] * 2
    assert told(found, "duplicate-rank") == "rank 0 is claimed by 2 processes: their rank is unknown"


def test_kind_a_check_of_nothing_cannot_be_told(tmp_path, cli):
    trace = kineto(tmp_path / "trace.json", [event("user_annotation", "nccl:all_reduce", 10, 5)])
    found = cli("check", trace, "--expect", "overlap>0")
    assert found.status == 1
    assert "CANNOT TELL  no rank: overlap>0: not in the input" in found.out


@pytest.mark.parametrize(("env", "who"), [({"RANK": "0"}, "rank 1"), ({}, "1 further ranks")])
def test_kind_a_check_of_half_the_ranks_cannot_be_told(env, who, tmp_path, cli):
    path = build(tmp_path / "report.sqlite", OVERLAP_50, env={"WORLD_SIZE": "2", **env})
    found = cli("check", path, "--expect", "overlap>0")
    assert found.status == 1
    assert f"CANNOT TELL  {who}: overlap>0: not in the input" in found.out


def test_kind_missing_ids_of_a_parquet_export_are_missing():
    """Its global ids are unsigned, and wrap as SQLite's do."""
    column = pa.chunked_array([pa.array([1, None, 2**64 - 1], pa.uint64())])
    assert to_int64(column).tolist() == [1, MISSING, -1]
