"""A redacted copy holds no planted secret in any byte, gives the same analysis, and passes its own check."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from nsight import build, global_id, query, uuid
from nsight_schema import tables
from pyarrow import parquet

from ddpprof.analysis import job, load
from ddpprof.analysis.nsight_schema import SHARED
from ddpprof.analysis.part import Options
from ddpprof.analysis.redact import Leak, check, redact
from ddpprof.cli import main
from ddpprof.errors import InputError, UsageError
from ddpprof.reports.tables import to_json

SCHEMAS = ("2020.3", "2022.4", "2024.2", "2025.1.3", "2026.4")
DDP = """
    process 100 rank=0 world=2 gpus=a
    N    0..300  "step/0" domain=ddpprof
    N   10..290  "forward of Jane's secret model" domain=internal
    N60 20..30   "data loading of Jane" end_thread=1
    N  142..158  "ncclAllReduce" domain=NCCL thread=2
    K dev0 s7  110..180 GEMM launch=105..106 thread=2
    K dev0 s16 170..250.25 NCCL launch=150..151 thread=2
    M dev0 s7  190..200 HtoD launch=185..186
    R 900 201..202 cudaEventQuery_v3020
    N    203..211 "wait/item" domain=ddpprof
    R 901 204..210 cudaStreamSynchronize_v3020
    O 170..175
    D "Not all CUDA events might have been collected."
    process 101 rank=1 world=2 gpus=b
    N    0..300  "step/0" domain=ddpprof
    K dev0 s7  110..180 GEMM launch=105..106
    K dev0 s16 175..250.25 NCCL launch=150..151
"""
ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "0,3", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def numbers(path: Path) -> str:
    """All that `analyze --format json --buckets --show-kinds` says."""
    return to_json(job.analyze([load.read(path)], Options(buckets=True)))


def redacted(path: Path, *keep_ranges: str) -> Path:
    """A redacted copy of the same name, in a folder beside."""
    copy = path.parent / "redacted" / path.name
    redact(path, copy, keep_ranges)
    return copy


def columns(path: Path) -> dict[str, list[str]]:
    with closing(sqlite3.connect(path)) as con:
        names = [name for (name,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: [row[1] for row in con.execute(f'PRAGMA table_info("{name}")')] for name in names}


# -- secrets


class Secrets:
    """Words that stand in an export, each once; ``kinds`` are the (place, kind) that the check must call some of them."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.kinds: set[tuple[str, str]] = set()

    def new(self, place: str | None = None, kind: str | None = None) -> str:
        if place and kind:
            self.kinds.add((place, kind))
        self.words.append(f"s3cret{len(self.words):03d}")
        return self.words[-1]


PRIVATE = {"name": "process name", "uuid": "GPU identity", "jsonText": "range payload", "binaryData": "range payload"}
READ = {"StringIds.value", "NVTX_EVENTS.text", "DIAGNOSTIC_EVENT.text", "TARGET_INFO_GPU.name", "TARGET_INFO_GPU.busLocation"}
READ |= {f"{table}.{column}" for table in ("EXPORT_META_DATA", "META_DATA_EXPORT") for column in ("name", "value")}
READ |= {f"{table}.{column}" for table in ("META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV") for column in ("name", "value")}
SETTINGS = {
    "EXPORT_HOST": "host name",
    "EXPORT_USER": "user name",
    "PROCESS_0:COMMAND": "command line",
    "PROCESS_0:ENVIRONMENT_VARIABLE": "environment",
    "EXPORT_SOMETHING": "other text",
}


def plant(path: Path, schema: str) -> Secrets:
    """Writes secrets into every place where nsys writes text, and where it never would."""
    found = Secrets()
    with closing(sqlite3.connect(path)) as con:
        con.execute("PRAGMA secure_delete = OFF")
        for table, names in columns(path).items():
            texts = {column.name for column in tables(schema)[table] if column.type == "TEXT"}
            for name in [name for name in names if name in texts and f"{table}.{name}" not in READ]:
                secret = found.new(f"{table}.{name}", PRIVATE.get(name))
                con.execute(f'UPDATE {table} SET {name} = coalesce({name}, "") || ?', (secret,))
        con.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = ?", (found.new(),))
        plant_rows(con, found)
        plant_strings(con, found)
        plant_tables(con, found)
        con.commit()
    return found


def again(con: sqlite3.Connection, table: str, **values: object) -> None:
    """One row more, as the first of the table but for these values."""
    names = [row[1] for row in con.execute(f"PRAGMA table_info({table})")]
    if "eventId" in names:
        values["eventId"] = con.execute("SELECT max(eventId) + 1 FROM NVTX_EVENTS").fetchone()[0]
    cells = ", ".join("?" if name in values else f'"{name}"' for name in names)
    given = [values[name] for name in names if name in values]
    con.execute(f"INSERT INTO {table} SELECT {cells} FROM {table} LIMIT 1", given)


def string(con: sqlite3.Connection, text: str) -> int:
    return int(con.execute("INSERT INTO StringIds SELECT max(id) + 1, ? FROM StringIds RETURNING id", (text,)).fetchone()[0])


def plant_rows(con: sqlite3.Connection, found: Secrets) -> None:
    there = {name for (name,) in con.execute("SELECT name FROM sqlite_master")}
    for table in {"EXPORT_META_DATA", "META_DATA_EXPORT", "META_DATA_CAPTURE"} & there:
        for name, kind in SETTINGS.items():
            again(con, table, name=name, value=f"SECRET={found.new(f'{table}.value', kind)}" if "ENV" in name else found.new())
        again(con, table, name=found.new(f"{table}.name", "other text"), value=found.new())
        again(con, table, name="EXPORT_PARAM_TABLES_TO_EXPORT", value=found.new())
    for name, text in (
        ("Hostname", ""),
        ("DeviceEnvironment", "RANK=0;SECRET="),
        ("DeviceEnvironment", "CUDA_VISIBLE_DEVICES="),
    ):
        kind = "host name" if name == "Hostname" else "environment"
        again(con, "TARGET_INFO_SYSTEM_ENV", name=name, value=text + found.new("TARGET_INFO_SYSTEM_ENV.value", kind))
    if "DIAGNOSTIC_EVENT" in there:
        again(con, "DIAGNOSTIC_EVENT", severity=2, text=f"Cannot load CUPTI from /opt/{found.new()}/lib\0{found.new()}")
        again(con, "DIAGNOSTIC_EVENT", severity=1, text=f"CUDA of {found.new('DIAGNOSTIC_EVENT.text', 'profiler message')}")
    for kind in (59, 60, 70, 71, 33, 34, 39, 75):
        again(con, "NVTX_EVENTS", eventType=kind, textId=None, text=found.new("NVTX_EVENTS.text", "range text"))
        again(con, "NVTX_EVENTS", eventType=kind, textId=None, text=f"step/7\0{found.new()}")
        registered = string(con, found.new("StringIds.value", "range text"))
        again(con, "NVTX_EVENTS", eventType=kind, textId=registered, text=None)


def plant_strings(con: sqlite3.Connection, found: Secrets) -> None:
    for text, kind in (("", "other text"), ("A=1\0B=", "environment"), ("/home/", "path"), ("a\0", "text behind a NUL")):
        string(con, text + found.new("StringIds.value", kind))
    for like, text in (
        ("%cutlass%", f"void run<(lambda at /home/{found.new()}/model.cu:12:3)>(int)\0{found.new()}"),
        ("CUPTI Buffer flush", f"CUPTI Buffer flush\0{found.new()}"),
        ("cudaEventQuery%", f"cudaEventQuery /{found.new()}"),
    ):
        con.execute("UPDATE StringIds SET value = ? WHERE value LIKE ?", (text, like))
    again(con, "PROFILER_OVERHEAD", nameId=string(con, f"dlopen(/opt/{found.new()}/libcuda.so)"))


def plant_tables(con: sqlite3.Connection, found: Secrets) -> None:
    """What nsys writes and the builder does not, what others add, and what was deleted."""
    thread, output = (string(con, found.new("StringIds.value", kind)) for kind in ("thread name", "program output"))
    con.executescript(
        f"""
        CREATE TABLE ThreadNames AS SELECT {thread} AS nameId, 20 AS priority, 1 AS globalTid;
        CREATE TABLE ProcessStreams AS SELECT 1 AS globalPid, NULL AS filenameId, {output} AS contentId;
        CREATE TABLE ANALYSIS_FILE AS SELECT 1 AS id, '{found.new("ANALYSIS_FILE.filename", "path")}' AS filename,
                                             '{found.new("ANALYSIS_FILE.content", "program output")}' AS content;
        CREATE TABLE "made by hand" (note TEXT, raw BLOB DEFAULT '{found.new()}');
        INSERT INTO "made by hand" VALUES ('{found.new("made by hand.note", "other text")}', x'{found.new().encode().hex()}');
        INSERT INTO "made by hand" VALUES ('{found.new()}', NULL);
        CREATE TABLE ENUM_OF_US AS SELECT '/home/{found.new("ENUM_OF_US.name", "path")}' AS name;
        CREATE VIEW hidden AS SELECT '{found.new()}';
        CREATE TABLE dropped AS SELECT '{found.new()}' || hex(zeroblob(9000)) AS text;
        DROP TABLE dropped;
        DELETE FROM "made by hand" WHERE raw IS NULL;
        """
    )


@pytest.fixture(params=[(schema, nvtx) for schema in SCHEMAS for nvtx in ("inline", "registered")], ids="-".join)
def planted(request: pytest.FixtureRequest, report: Path) -> tuple[Path, Secrets]:
    schema, nvtx = request.param
    build(report, DDP, schema=schema, nvtx=nvtx, env=ENVIRONMENT)
    return report, plant(report, schema)


def test_no_secret_is_in_any_byte_of_the_copy(planted: tuple[Path, Secrets]) -> None:
    path, secrets = planted
    before, after = path.read_bytes(), redacted(path).read_bytes()
    assert [word for word in secrets.words if word.encode() not in before] == []
    assert [word for word in secrets.words if word.encode() in after] == []
    for private in (b"Jane", b"API_KEY", b"python3", b"/home", b"/opt", b"Hostname"):
        assert private not in after


def test_the_analysis_of_the_copy_is_that_of_the_report(planted: tuple[Path, Secrets]) -> None:
    path, _ = planted
    copy = redacted(path)
    assert numbers(copy) == numbers(path)
    before, after = load.read(path), load.read(copy)
    assert (after.processes, after.waits, after.texts) == (before.processes, before.waits, before.texts)
    assert before.processes[0].settings
    assert before.waits
    assert "wait/item" in before.texts


def test_the_check_finds_the_secrets_by_kind_and_tells_none(
    planted: tuple[Path, Secrets], capsys: pytest.CaptureFixture[str]
) -> None:
    path, secrets = planted
    found = {(leak.place, leak.kind) for leak in check(path)}
    assert secrets.kinds - found == set()
    assert ("unused space of the file", "bytes left of deleted or moved rows") in found
    assert command("--check", path) == 3
    said = capsys.readouterr()
    assert [word for word in secrets.words if word in said.out + said.err] == []


def test_the_copy_passes_the_check(planted: tuple[Path, Secrets], capsys: pytest.CaptureFixture[str]) -> None:
    copy = redacted(planted[0])
    assert command("--check", copy) == 0
    assert capsys.readouterr().out == f"{copy}: fit to share\n"


def test_a_copy_of_the_copy_is_the_copy(planted: tuple[Path, Secrets]) -> None:
    copy = redacted(planted[0])
    assert redacted(copy).read_bytes() == copy.read_bytes()


# -- what is kept


def test_the_copy_has_only_what_is_allowed_and_what_the_report_has(planted: tuple[Path, Secrets]) -> None:
    path, _ = planted
    before, after = columns(path), columns(redacted(path))
    for table, names in after.items():
        added = {"textId"} if table == "NVTX_EVENTS" else set()
        assert set(names) <= {*before[table], *added}
        if table != "StringIds":
            shared = SHARED[table]
            assert set(names) <= {*shared.integers, *shared.strings, *shared.texts}
    assert after.keys() == before.keys() & {*SHARED, "StringIds"}


def test_times_and_places_are_not_touched(report: Path) -> None:
    copy = redacted(build(report, DDP, hw_id=200, shift_ns=12_345))
    for table, names in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", "start, end, deviceId, streamId, correlationId, globalPid"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "start, end, globalTid, correlationId"),
        ("NVTX_EVENTS", "start, end, eventType, globalTid, domainId"),
        ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
    ):
        rows = query(copy, f"SELECT {names} FROM {table}")
        assert rows == query(report, f"SELECT {names} FROM {table}")
        assert rows


def test_of_the_environment_only_the_numbers_and_switches_of_the_job_stay(report: Path) -> None:
    env = {
        "USER": "jane",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "jane",
        "NCCL_DEBUG": "1",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "four",
        "CUDA_VISIBLE_DEVICES": "GPU-1234",
        "MASTER": "h",
    }
    copy = redacted(build(report, DDP, env=env))
    kept = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "", "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": ""}
    assert query(copy, "SELECT value FROM META_DATA_CAPTURE") == [(f'{name}="{value}"',) for name, value in kept.items()]
    assert query(copy, "SELECT value FROM TARGET_INFO_SYSTEM_ENV") == [(";".join(f"{k}={v}" for k, v in kept.items()),)]


def texts(path: Path) -> list[str]:
    joined = "NVTX_EVENTS JOIN StringIds ON id = textId"
    return [text for (text,) in query(path, f"SELECT value FROM {joined} WHERE eventType = 59 ORDER BY start")]


RANGES = """
    K dev0 s7 0..9 GEMM
    N 0..9 "step/0"
    N 1..2 "validate on /data/jane/set"
    N 2..3 "validate\\u0000jane"
    N 3..4 "load jane"
    N 4..5 "step 1\\u0000jane"
"""


@pytest.mark.parametrize("nvtx", ["inline", "registered", "both"])
def test_ranges_that_say_nothing_lose_their_text_unless_they_are_asked_for(nvtx: str, report: Path) -> None:
    build(report, RANGES, nvtx=nvtx)
    assert texts(redacted(report)) == ["step/0", "range", "range", "range", "range"]
    assert texts(redacted(report, "^validate")) == ["step/0", "validate on …", "validate", "range", "range"]
    assert texts(redacted(report, "step", "load")) == ["step/0", "range", "range", "load jane", "range"]
    assert query(redacted(report), "SELECT count(*) FROM StringIds WHERE value LIKE '%jane%'") == [(0,)]


def test_a_copy_with_ranges_that_were_asked_for_passes_only_the_check_that_allows_them(report: Path) -> None:
    copy = redacted(build(report, RANGES), "^load")
    assert check(copy, ["^load"]) == ()
    assert [leak.count for leak in check(copy)] == [1]


def test_a_gpu_has_one_stand_in_in_all_copies_and_keeps_its_model(tmp_path: Path) -> None:
    found = []
    for name, gpus in (("one", "a,b"), ("two", "b")):
        path = build(tmp_path / f"{name}.sqlite", f"process 100 gpus={gpus}\nK dev0 s7 0..9 GEMM", schema="2026.4")
        copy = redacted(path)
        found.append(query(copy, "SELECT uuid, name FROM TARGET_INFO_GPU"))
        assert query(copy, "SELECT uuid FROM TARGET_INFO_CUDA_DEVICE") == [(gpu,) for gpu, _ in found[-1]]
        assert uuid("b").encode() not in copy.read_bytes()
    (a, b), (also_b,) = found
    assert a != b == also_b
    assert re.fullmatch("gpu-[0-9a-f]{16}", b[0])
    assert b[1] == "NVIDIA H200"


def test_strings_that_no_kept_column_refers_to_are_gone(report: Path) -> None:
    copy = redacted(build(report, "K dev0 s7 0..9 SPIN launch=-5..-4", env={"RANK": "0"}))
    assert query(copy, "SELECT value FROM StringIds") == [
        ("at::cuda::<unnamed>::spin_kernel(long)",),
        ("spin_kernel",),
        ("cudaLaunchKernel_v7000",),
    ]


def test_names_without_a_string_stay_nameless(report: Path) -> None:
    build(report, "K dev0 s7 0..9 GEMM launch=-5..-4", sql="DELETE FROM StringIds")
    assert numbers(redacted(report)) == numbers(report)


def test_a_parquet_export_becomes_an_sqlite_file(report: Path, tmp_path: Path) -> None:
    build(report, DDP)
    folder = tmp_path / "parquet"
    folder.mkdir()
    for table, names in columns(report).items():
        values = {name: [value for (value,) in query(report, f'SELECT "{name}" FROM {table}')] for name in names}
        parquet.write_table(pa.table(values), folder / f"{table}.parquet")
    redact(folder, tmp_path / "from_parquet.sqlite")
    assert (tmp_path / "from_parquet.sqlite").read_bytes() == redacted(report).read_bytes()
    with pytest.raises(InputError, match="cannot be checked"):
        check(folder)


def test_text_that_begins_late_is_read(report: Path) -> None:
    """ADBC takes the type of a column from its first 65,536 rows."""
    thread = global_id(100, 0)
    nulls = f"""
        WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 70000)
        INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid) SELECT -900000 + i, -800000 + i, 59, {thread} FROM n;
        INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, text) VALUES (0, 9000, 59, {thread}, 'step/5');
    """
    build(report, "K dev0 s7 1..9 GEMM launch=1..2\nN34 0..open mark", sql=f"DELETE FROM NVTX_EVENTS; {nulls}")
    assert json.loads(numbers(report))["breakdown"][0]["step"] == 5
    assert numbers(redacted(report)) == numbers(report)


# -- real reports


@pytest.mark.parametrize(
    "name",
    [
        *("2gpu_sendrecv_same_stream", "cpu_gloo_4rank_delay_cap4", "cpu_gloo_4rank_delay_cap64", "cuda_graph_trace"),
        *("h200_2rank_delay_cap4", "mpi_report1", "mpi_report2", "mpi_report6", "nsys2025_graph_trace", "one_process_two_gpus"),
    ],
)
def test_real_reports_give_the_same_numbers_and_pass(name: str, captures: Path, tmp_path: Path) -> None:
    copy = tmp_path / f"{name}.sqlite"
    redact(captures / copy.name, copy)
    assert numbers(copy) == numbers(captures / copy.name)
    assert check(copy) == ()
    assert query(copy, "PRAGMA integrity_check") == [("ok",)]
    assert [word for word in (b"/redacted", b"python", b"torchrun") if word in copy.read_bytes()] == []


# -- the check


def clean(report: Path) -> Path:
    return redacted(build(report, DDP))


def edit(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as con:
        con.executescript(f"PRAGMA secure_delete = OFF; {sql}")


EDITS: dict[str, tuple[str, Leak]] = {
    "a table more": ("CREATE TABLE t (c TEXT); INSERT INTO t VALUES ('x'), (''), (NULL)", Leak("t.c", "other text", 1)),
    "a blob": ("CREATE TABLE t (c); INSERT INTO t VALUES (x'00ff')", Leak("t.c", "text behind a NUL", 1)),
    "text among numbers": (
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = '~/x' WHERE rowid < 3",
        Leak("CUPTI_ACTIVITY_KIND_KERNEL.gridX", "path", 2),
    ),
    "a string too many": ("INSERT INTO StringIds VALUES (999, 'USER=x')", Leak("StringIds.value", "environment", 1)),
}


@pytest.mark.parametrize(("sql", "leak"), EDITS.values(), ids=EDITS)
def test_one_text_more_is_one_leak(sql: str, leak: Leak, report: Path) -> None:
    copy = clean(report)
    edit(copy, sql)
    assert leak in check(copy)
    assert {found.place for found in check(copy)} <= {leak.place, "unused space of the file"}


@pytest.mark.parametrize("rows", [1, 2000], ids=["in a page that is still used", "in freed pages"])
def test_deleted_rows_are_found(rows: int, report: Path) -> None:
    copy = clean(report)
    many = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {rows})"
    edit(copy, f"{many} INSERT INTO StringIds SELECT 1000 + i, 'jane was here' FROM n")
    edit(copy, "DELETE FROM StringIds WHERE id > 1000")
    assert b"jane was here" in copy.read_bytes()
    (leak,) = check(copy)
    assert leak.place == "unused space of the file"
    assert leak.count >= rows * len("jane was here") * 0.9


# -- refusals


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["-q", "redact", *map(str, arguments)])
    return int(ended.value.code or 0)


def nsys_report(path: Path) -> Path:
    path.write_bytes(b"QDSTRM")
    return path


def torch_trace(path: Path) -> Path:
    path.write_text('{"traceEvents": []}')
    return path


def database(path: Path) -> Path:
    edit(path, "CREATE TABLE t (c TEXT)")
    return path


@pytest.mark.parametrize(
    ("name", "make", "says"),
    [
        ("r.nsys-rep", nsys_report, "Export it, then redact the export"),
        ("r.json", torch_trace, "only nsys exports can be redacted"),
        ("r.sqlite", database, "not an Nsight Systems export"),
        ("gone.sqlite", lambda path: path, "no such report"),
    ],
)
@pytest.mark.parametrize("is_check", [False, True], ids=["copy", "check"])
def test_what_is_no_export_is_refused(
    name: str, make: Callable[[Path], Path], says: str, is_check: bool, tmp_path: Path
) -> None:
    path = make(tmp_path / name)
    with pytest.raises(InputError, match=re.escape(says)):
        check(path) if is_check else redact(path, tmp_path / "out.sqlite")
    assert not (tmp_path / "out.sqlite").exists()


def test_the_report_is_only_read_and_never_replaced(report: Path, tmp_path: Path) -> None:
    build(report, DDP)
    before = report.read_bytes()
    (tmp_path / "link.sqlite").symlink_to(report)
    with pytest.raises(UsageError, match="the report itself"):
        redact(report, tmp_path / "link.sqlite")
    redact(report, tmp_path / "out" / "copy.sqlite")
    assert report.read_bytes() == before
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["copy.sqlite"]


def test_a_damaged_report_leaves_nothing(report: Path, tmp_path: Path) -> None:
    build(report, DDP, sql="ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN start TO begin")
    with pytest.raises(InputError, match="has no column start"):
        redact(report, tmp_path / "out" / "copy.sqlite")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_bad_pattern_is_named(report: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape("--keep-ranges a(")):
        redact(build(report, DDP), tmp_path / "copy.sqlite", ["a("])


def test_the_command_prints_the_copy(report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(report, DDP)
    copy = tmp_path / "copy.sqlite"
    assert command(report, copy) == 0
    assert capsys.readouterr().out == f"{copy}\n"
    assert command(report) == 2
    assert "no OUT" in capsys.readouterr().err
    assert command("--check", report, copy) == 2
