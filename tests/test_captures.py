"""Real reports of other people and of this project, against the numbers of shared/captures/README.md.

Where it gives nanoseconds, or the file itself does, the numbers are exact; else to the microsecond that it gives.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from oracle import Interval, oracle_metrics

from ddpprof.analysis.part import Options
from ddpprof.inputs import read
from ddpprof.model import Analysis
from ddpprof.reports import text

CAPTURES = Path(__file__).parents[1].parent / "shared" / "captures"
SQLITE = (
    "h200_2rank_delay_cap4",
    "cpu_gloo_4rank_delay_cap4",
    "cpu_gloo_4rank_delay_cap64",
    "2gpu_sendrecv_same_stream",
    "cuda_graph_trace",
    "nsys2025_graph_trace",
    "mpi_report1",
    "mpi_report2",
    "mpi_report6",
    "one_process_two_gpus",
)

pytestmark = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the folder of shared captures is not here")


def analyze(*names: str, **options: Any) -> Analysis:
    asked = Options(**options)
    return read([CAPTURES / name for name in names], step_pattern=asked.step_pattern).analyze(asked)


def told(found: Analysis, code: str) -> str:
    return "; ".join(warning.message for warning in found.warnings if warning.code == code)


def thousandths(*times_ns: int) -> tuple[Decimal, ...]:
    """Milliseconds as the README gives them."""
    return tuple(Decimal(time).scaleb(-6).quantize(Decimal("0.001")) for time in times_ns)


def ms(*times: str) -> tuple[Decimal, ...]:
    return tuple(map(Decimal, times))


# ---------------------------------------------------------------------------------------------- this project's own


def test_two_ranks_on_one_h200():
    found = analyze("h200_2rank_delay_cap4.sqlite", compute="spin_kernel")
    assert (found.evidence, found.window) == ("gpu-kernels", "step")
    assert [(row.rank, row.rank_source, row.pid, row.device_id, row.steps) for row in found.ranks] == [
        (0, "mark", 564, 0, 1),
        (1, "mark", 565, 0, 1),
    ]
    assert [(row.n_compute, row.n_comm, row.n_left_out) for row in found.ranks] == [(110, 12, 0)] * 2
    assert [thousandths(row.compute_ns, row.comm_ns, row.overlap_ns) for row in found.ranks] == [
        ms("67.689", "49.069", "44.273"),
        ms("67.694", "43.305", "40.405"),
    ]
    assert found.focus is not None
    assert [(row.n_compute, row.overlap_ns, row.compute_span_ns) for row in found.focus.ranks] == [
        (12, 44_273_471, 67_550_310),
        (12, 40_404_803, 67_556_069),
    ]
    assert [(row.rank, row.step, row.bucket, row.size_bytes, row.attribution) for row in found.buckets] == [
        (rank, 4, bucket, 4 * 2**20, "range") for rank in (0, 1) for bucket in range(12)
    ]
    assert [(row.gpu, row.is_time_sliced) for row in found.ranks] == [(0, True)] * 2
    assert told(found, "time-sliced").startswith("2 ranks on 1 GPU")


def test_the_whole_capture_of_the_h200_is_its_one_step():
    one, whole = (analyze("h200_2rank_delay_cap4.sqlite", whole_capture=asked) for asked in (False, True))
    assert whole.window == "capture"
    assert [(row.overlap_ns, row.tail_ns) for row in whole.ranks] == [(row.overlap_ns, row.tail_ns) for row in one.ranks]


@pytest.mark.parametrize(("name", "n_comm", "overlaps"), [("delay_cap4", 12, True), ("delay_cap64", 1, False)])
def test_four_gloo_ranks_on_a_cpu(name, n_comm, overlaps):
    found = analyze(f"cpu_gloo_4rank_{name}.sqlite", compute="delay")
    assert (found.evidence, found.window) == ("host-ranges", "step")
    assert [(row.rank, row.device_id, row.n_compute, row.n_comm) for row in found.ranks] == [
        (rank, None, 12, n_comm) for rank in range(4)
    ]
    assert [row.overlap_ns > 0 for row in found.ranks] == [overlaps] * 4
    assert [row.bucket for row in found.buckets if row.rank == 0] == list(range(n_comm))
    assert "host-ranges" in text.render(found).splitlines()[0]


# -------------------------------------------------------------------------------------------------- other people's


def test_two_processes_with_nccl_on_the_compute_stream():
    found = analyze("2gpu_sendrecv_same_stream.sqlite")
    assert [(row.pid, row.device_id, row.n_comm, row.overlap_ns) for row in found.ranks] == [(144, 0, 33, 0), (145, 1, 33, 0)]
    assert [thousandths(row.compute_ns, row.comm_ns) for row in found.ranks] == [
        ms("253.691", "17.173"),
        ms("256.096", "8.229"),
    ]
    assert told(found, "same-stream").count("33 of 33 communication kernels") == 2
    assert found.reports[0].schema_version == "3.25.0"


@pytest.mark.parametrize(
    ("name", "n_kernels", "compute", "graphs"),
    [
        ("cuda_graph_trace", 30, "0.078", "10 CUDA graph launches"),
        ("nsys2025_graph_trace", 3, "0.004", "2 CUDA graph launches"),
    ],
)
def test_graphs_traced_whole(name, n_kernels, compute, graphs):
    found = analyze(f"{name}.sqlite")
    (row,) = found.ranks
    assert (row.n_compute, row.n_comm, row.overlap_ratio) == (n_kernels, 0, None)
    assert thousandths(row.compute_ns) == ms(compute)
    assert row.unreliable == ("graph-trace-opaque",)
    assert graphs in told(found, "graph-trace-opaque")
    assert "Cannot be told" in text.render(found)


def test_graph_time_stands_apart():
    assert "7811.142 ms of GPU time" in told(analyze("cuda_graph_trace.sqlite"), "graph-trace-opaque")


def test_a_report_a_rank_in_any_order_of_files():
    """Ranks 3, 7 and 6 by the environment of each."""
    found = analyze("mpi_report1.sqlite", "mpi_report2.sqlite", "mpi_report6.sqlite")
    assert [(row.rank, row.rank_source, row.report, row.device_id) for row in found.ranks] == [
        (3, "environment", 0, 3),
        (6, "environment", 2, 6),
        (7, "environment", 1, 7),
    ]
    assert [thousandths(row.compute_ns) for row in found.ranks] == [ms("3867.970"), ms("3868.632"), ms("3864.336")]
    assert {(row.n_comm, row.overlap_ratio) for row in found.ranks} == {(0, None)}
    assert told(found, "missing-ranks") == "no report of ranks 0, 1, 2, 4, 5"
    assert told(found, "clock-skew") == ""


def test_one_process_on_two_gpus():
    found = analyze("one_process_two_gpus.sqlite")
    assert [(row.device_id, thousandths(row.compute_ns), row.n_comm) for row in found.ranks] == [
        (0, ms("6973.999"), 0),
        (3, ms("2320.086"), 0),
    ]
    assert not any(row.is_time_sliced for row in found.ranks)


DLRM = {
    0: ("1.034", "5.798", "0.261"),
    1: ("1.246", "11.336", "0.280"),
    2: ("1.068", "3.492", "0.275"),
    3: ("1.240", "9.774", "0.324"),
    4: ("1.126", "6.587", "0.037"),
    5: ("1.041", "6.251", "0.040"),
    6: ("1.051", "3.558", "0.269"),
    7: ("1.059", "1.746", "0.166"),
}


def test_eight_ranks_by_torch_profiler():
    found = analyze("kineto_dlrm_8rank", whole_capture=True)
    assert [(row.rank, row.rank_source, row.n_comm) for row in found.ranks] == [(rank, "distributedInfo", 8) for rank in DLRM]
    assert {row.rank: thousandths(row.compute_ns, row.comm_ns, row.overlap_ns) for row in found.ranks} == {
        rank: ms(*times) for rank, times in DLRM.items()
    }
    assert (found.world_size, told(found, "missing-ranks")) == (8, "")
    assert [row.kind for row in found.reports] == ["kineto"] * 8


def test_nanosecond_times_of_torch_profiler_are_exact():
    """In floating point, as the README has them, 115.655843, 46.876492 and 7.317026 ms: here every digit of the file."""
    found = analyze("kineto_ddp_rank0_of_2.json.gz", whole_capture=True)
    (row,) = found.ranks
    assert (row.n_compute, row.n_comm) == (2679, 21)
    compute, comm, memory = kernels_of(CAPTURES / "kineto_ddp_rank0_of_2.json.gz")
    everything = [*compute, *comm, *memory]
    window = min(start for start, _ in everything), max(end for _, end in everything)
    expected = oracle_metrics(compute, comm, memory, window)
    assert {name: getattr(row, name) for name in expected if name != "tail_ns"} == {
        name: value for name, value in expected.items() if name != "tail_ns"
    }
    for time, approximate in ((row.compute_ns, 115_655_843), (row.comm_ns, 46_876_492), (row.overlap_ns, 7_317_026)):
        assert abs(time - approximate) < 10
    assert told(found, "missing-ranks") == "WORLD_SIZE=2 but kernels of 1 process: rank 1 missing"


def kernels_of(path: Path) -> tuple[list[Interval], list[Interval], list[Interval]]:
    """Compute, communication and memory of a Kineto file, read anew."""
    kinds: dict[str, list[Interval]] = {"compute": [], "comm": [], "memory": []}
    for event in json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]:
        category = event.get("cat")
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            start, length = (int(Decimal(event[key]) * 1000) for key in ("ts", "dur"))
            kind = "memory" if category != "kernel" else "comm" if "nccl" in event["name"] else "compute"
            kinds[kind].append((start, start + length))
    return kinds["compute"], kinds["comm"], kinds["memory"]


def test_a_trace_without_rank_information():
    found = analyze("kineto_no_distributed_info.json.gz")
    assert (found.ranks, found.world_size) == ((), None)
    assert "CPU-side collectives exist, GPU kernels missing" in told(found, "capture-incomplete")
    assert "Cannot be told" in text.render(found)


# ---------------------------------------------------------------------------------------- every way of reading them


def to_parquet(path: Path, folder: Path) -> Path:
    """The tables of an SQLite export as ``nsys export --type parquetdir`` types them: global ids are unsigned."""
    folder.mkdir()
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as con:
        con.text_factory = bytes
        tables = [name.decode() for (name,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = {}
            for _, name, kind, *_ in con.execute(f"PRAGMA table_info({table})").fetchall():
                values = [value for (value,) in con.execute(f'SELECT "{name.decode()}" FROM {table}')]
                columns[name.decode()] = to_arrow(values, kind.decode(), is_global=name.startswith(b"global"))
            pq.write_table(pa.table(columns), folder / f"{table}.parquet")
    return folder


def to_arrow(values: list[Any], kind: str, *, is_global: bool) -> pa.Array:
    if is_global:
        return pa.array([None if value is None else value % 2**64 for value in values], pa.uint64())
    if kind == "INTEGER":
        return pa.array(values, pa.int64())
    if kind == "REAL":
        return pa.array(values, pa.float64())
    return pa.array(
        [value if value is None or isinstance(value, bytes) else str(value).encode() for value in values], pa.binary()
    )


@pytest.mark.parametrize("name", SQLITE)
def test_the_parquet_form_gives_the_same_analysis(name, tmp_path):
    path = CAPTURES / f"{name}.sqlite"
    folder = to_parquet(path, tmp_path / name)
    expected = analyze(f"{name}.sqlite")
    found = read([folder]).analyze(Options())
    assert found.reports == (replace(expected.reports[0], kind="nsys-parquet", path=name),)
    assert replace(found, reports=()) == replace(expected, reports=())


@pytest.mark.parametrize("name", SQLITE)
def test_a_folder_that_cannot_be_written_is_read_and_left_alone(name, tmp_path):
    folder = tmp_path / "reports"
    folder.mkdir()
    path = Path(shutil.copy(CAPTURES / f"{name}.sqlite", folder))
    path.chmod(0o444)
    before = path.stat().st_mtime_ns
    folder.chmod(0o555)
    try:
        assert read([path]).analyze(Options()) == analyze(f"{name}.sqlite")
        assert list(folder.iterdir()) == [path]
        assert path.stat().st_mtime_ns == before
    finally:
        folder.chmod(0o755)
