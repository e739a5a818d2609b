"""Columns of an export as arrays: whatever is in the cells, whichever the container, and each damage with its own line."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nsight import build

from ddpprof.analysis import load, nsys_tables
from ddpprof.analysis.nsys_tables import ParquetTables, SqliteTables, Tables, check_sqlite, to_int64
from ddpprof.errors import InputError
from ddpprof.model import MISSING

BATCH = 10
"""Rows that the driver reads at once, and by the first of which it types a column: many more outside these tests."""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_tables, "BATCH_ROWS", BATCH)


def sqlite(path: Path, rows: Iterable[Sequence[Any]], columns: str = "a, b", table: str = "T", more: str = "") -> SqliteTables:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as con:
        con.execute("PRAGMA synchronous = OFF")
        con.execute(f'CREATE TABLE "{table}" ({columns})')
        con.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(columns.split(",")))})', rows)
        con.commit()
        con.executescript(more)
    return SqliteTables(path)


def parquet(folder: Path, table: str = "T", **columns: Any) -> ParquetTables:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{table}.parquet")
    return ParquetTables(folder)


def integers(tables: Tables, column: str = "b", table: str = "T") -> list[int | None]:
    """One column, None for MISSING."""
    return [None if value == MISSING else value for value in tables.integers(table, [column])[column].tolist()]


# -- integers


def test_what_is_no_integer_is_missing(report: Path) -> None:
    tables = sqlite(
        report, [(1, 7), (2, None), (3, "8"), (4, "x"), (5, b"9"), (6, 1.5), (7, 2.0), (8, -(2**63) + 1), (9, 2**63 - 1)]
    )
    assert integers(tables) == [7, None, None, None, None, None, None, 1 - 2**63, 2**63 - 1]
    assert integers(tables, "a") == list(range(1, 10))


@pytest.mark.parametrize("odd", ["x", 1.5, b"\xff"])
@pytest.mark.parametrize("at", [0, BATCH + 5])
def test_what_is_no_integer_far_down_or_all_the_way(report: Path, odd: Any, at: int) -> None:
    values: list[Any] = list(range(BATCH + 10))
    values[at] = odd
    expected = [None if value is odd else value for value in values]
    assert integers(sqlite(report, [(0, value) for value in values])) == expected


def test_integers_after_a_whole_batch_of_nulls(report: Path) -> None:
    assert integers(sqlite(report, [(0, None)] * BATCH + [(0, 5)]))[-2:] == [None, 5]


@pytest.mark.parametrize("odd", [None, "x"])
def test_rows_by_the_value_of_a_column(report: Path, tmp_path: Path, odd: Any) -> None:
    rows = [(at, at % 3) for at in range(BATCH)] + [(odd, 2), (7, odd)]
    wanted = [1, 2, 4, 5, 7, 8, None]
    tables: list[Tables] = [sqlite(report, rows)]
    if odd is None:
        tables.append(parquet(tmp_path / "p", a=[a for a, _ in rows], b=[b for _, b in rows]))
    for each in tables:
        found = each.integers_where("T", ["a"], "b", [1, 2])
        assert [None if value == MISSING else value for value in found.pop("a").tolist()] == wanted
        assert found == {}
        assert each.integers_where("T", ["a"], "b", [9])["a"].tolist() == []


def test_no_rows(report: Path) -> None:
    tables = sqlite(report, [])
    assert [(len(column), str(column.dtype)) for column in tables.integers("T", ["a", "b"]).values()] == [(0, "int64")] * 2
    assert tables.texts("T", "a").to_pylist() == []


def test_declared_types_and_odd_names_mean_nothing(report: Path) -> None:
    tables = sqlite(report, [(1, 2)], '"we ird" REAL, "é%s" FOO(1)', "T %s")
    assert tables.columns("T %s") == {"we ird", "é%s"}
    assert integers(tables, "é%s", "T %s") == [2]
    assert integers(tables, "we ird", "T %s") == [None]


def test_a_missing_table_has_no_columns(report: Path) -> None:
    tables = sqlite(report, [])
    assert (tables.names(), tables.columns("U"), tables.strings([1]), tables.matching_strings("a")) == (
        ("T",),
        frozenset(),
        {},
        {},
    )


# -- reading by two threads


@pytest.mark.parametrize("values", [range(50), [None, *range(1, 50)], [*range(40), "x", *range(41, 50)]])
def test_two_threads_keep_the_order_of_rows(report: Path, values: Sequence[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tables = sqlite(report, [(0, value) for value in values])
    alone = integers(tables)
    monkeypatch.setattr(nsys_tables, "SPLIT_ROWS", 10)
    pools: list[int] = []

    def pool(size: int) -> ThreadPoolExecutor:
        pools.append(size)
        return ThreadPoolExecutor(size)

    monkeypatch.setattr(nsys_tables, "ThreadPoolExecutor", pool)
    assert integers(tables) == alone == [value if isinstance(value, int) else None for value in values]
    assert set(pools) == {2}


def test_two_threads_with_holes_in_the_row_ids(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_tables, "SPLIT_ROWS", 10)
    tables = sqlite(report, [(at, at) for at in range(30)], more="DELETE FROM T WHERE rowid BETWEEN 3 AND 25")
    assert integers(tables) == [0, 1, 25, 26, 27, 28, 29]


@pytest.mark.parametrize("holes", ["rowid = 0", "rowid BETWEEN 3 AND 20", "rowid > 4"])
@pytest.mark.parametrize("split", [10, 1000])
def test_what_is_made_of_each_run_is_joined_in_row_order(
    report: Path, split: int, holes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each run the even numbers as they are, and halved."""
    monkeypatch.setattr(nsys_tables, "SPLIT_ROWS", split)
    tables = sqlite(report, [(at, 100 + at) for at in range(50)], more=f"DELETE FROM T WHERE {holes}")
    left = integers(tables, "a")

    def convert(rows: nsys_tables.Rows) -> nsys_tables.Columns:
        even = rows["a"][rows["a"] % 2 == 0]
        return {"even": even, "half": even // 2}

    found, n_read = tables.collect("T", ["a"], convert, {"even": np.int64, "half": np.int8})
    expected = [at for at in left if at is not None and at % 2 == 0]
    assert (found["even"].tolist(), found["half"].tolist(), n_read) == (expected, [at // 2 for at in expected], len(left))
    assert found["half"].dtype == np.int8


def test_more_rows_than_row_ids_are_damage(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = sqlite(report, [(0, 0)] * 9)
    monkeypatch.setattr(tables, "_most_rows", 8)
    assert refusal(lambda: integers(tables)) == [
        f"{report}: damaged SQLite file: more rows than row ids",
        "Export the report again: ddpprof export --force REPORT",
    ]


def test_a_column_of_the_name_rowid_does_no_harm(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_tables, "SPLIT_ROWS", 3)
    assert integers(sqlite(report, [(at, at) for at in range(9)], "rowid, b")) == list(range(9))


# -- texts

RAW = [b"plain", b"", None, b"a\0b", b"\xff\xfe", "é…".encode(), b"7"]


def test_texts_are_bytes_as_they_are(report: Path) -> None:
    with closing(sqlite3.connect(report)) as con:
        con.execute("CREATE TABLE T (a, b TEXT)")
        con.executemany("INSERT INTO T VALUES (0, CAST(? AS TEXT))", [(raw,) for raw in RAW])
        con.commit()
    assert SqliteTables(report).texts("T", "b").to_pylist() == RAW


def test_texts_of_other_values(report: Path) -> None:
    tables = sqlite(report, [(0, 7), (0, 1.5), (0, None), (0, b"\xff")])
    assert tables.texts("T", "b").to_pylist() == [b"7", b"1.5", None, b"\xff"]


def test_texts_after_a_whole_batch_of_nulls(report: Path) -> None:
    """Registered range texts stand elsewhere: the column can be empty for long before the first text."""
    assert sqlite(report, [(0, None)] * (BATCH + 3) + [(0, "late")]).texts("T", "b").to_pylist()[-2:] == [None, b"late"]


STRINGS = [(0, "step/1"), (1, "other"), (2, None), (3, "step/2\0tail"), (3, "step/3"), (2**62, "step/4")]


@pytest.mark.parametrize("container", ["sqlite", "parquet"])
def test_strings(tmp_path: Path, container: str) -> None:
    if container == "sqlite":
        tables: Tables = sqlite(tmp_path / "a", STRINGS, "id, value", "StringIds")
    else:
        tables = parquet(tmp_path / "a", "StringIds", id=[key for key, _ in STRINGS], value=[text for _, text in STRINGS])
    assert tables.strings([0, 1, 2, 9, MISSING, 2**62, 0]) == {0: "step/1", 1: "other", 2**62: "step/4"}
    assert tables.strings(range(-2000, 2000)).keys() == {0, 1, 3}
    assert tables.strings([]) == {}
    assert tables.matching_strings(r"^step/\d") == {0: "step/1", 3: "step/3", 2**62: "step/4"}


def test_bytes_that_are_no_utf8_become_replacement_characters(report: Path) -> None:
    tables = sqlite(report, [(1, b"caf\xe9")], "id, value", "StringIds")
    assert tables.strings([1]) == {1: "caf\N{REPLACEMENT CHARACTER}"}


# -- parquet


def test_parquet_columns(tmp_path: Path) -> None:
    tables = parquet(
        tmp_path,
        plain=pa.array([1, None, 3], pa.int32()),
        unsigned=pa.array([1, 2**64 - 1, 2**63], pa.uint64()),
        coded=pa.array([5, 5, None]).dictionary_encode(),
        real=[1.5, 2.0, 3.0],
        text=["a", None, "b\0c"],
        coded_text=pa.array(["x", "y", "x"]).dictionary_encode(),
        large=pa.array(["l", "m", None], pa.large_string()),
        binary=pa.array([b"\xff", b"", None], pa.binary()),
    )
    assert tables.names() == ("T",)
    assert {name: integers(tables, name) for name in ("plain", "unsigned", "coded", "real", "text")} == {
        "plain": [1, None, 3],
        "unsigned": [1, -1, None],
        "coded": [5, 5, None],
        "real": [None, None, None],
        "text": [None, None, None],
    }
    assert {name: tables.texts("T", name).to_pylist() for name in ("text", "coded_text", "large", "binary", "plain")} == {
        "text": [b"a", None, b"b\0c"],
        "coded_text": [b"x", b"y", b"x"],
        "large": [b"l", b"m", None],
        "binary": [b"\xff", b"", None],
        "plain": [None, None, None],
    }


def test_columns_in_several_row_groups_keep_their_order(tmp_path: Path) -> None:
    pq.write_table(pa.table({"b": list(range(10)), "t": list("abcdefghij")}), tmp_path / "T.parquet", row_group_size=3)
    tables = ParquetTables(tmp_path)
    assert integers(tables) == list(range(10))
    assert tables.texts("T", "t").to_pylist() == [letter.encode() for letter in "abcdefghij"]


def test_to_int64_of_many_chunks() -> None:
    column = pa.chunked_array([pa.array([1, None]), pa.array([], pa.int64()), pa.array([3])])
    assert to_int64(column).tolist() == [1, MISSING, 3]


def as_parquet(source: Path, folder: Path) -> Path:
    """The tables of a SQLite export as ``nsys export --type parquetdir`` writes them."""
    folder.mkdir()
    with closing(sqlite3.connect(source)) as con:
        for (table,) in con.execute("SELECT name FROM sqlite_master").fetchall():
            rows = con.execute(f"SELECT * FROM {table}")
            names = [item[0] for item in rows.description]
            pq.write_table(
                pa.table(dict(zip(names, map(list, zip(*rows.fetchall(), strict=True)), strict=True))),
                folder / f"{table}.parquet",
            )
    return folder


TIMELINE = """
    process 100 rank=0 world=2 gpus=a
    N 0..99 "step/1" domain=ddpprof
    K dev0 s7 0..100 GEMM launch=1..2
    K dev0 s16 50..150 NCCL launch=3..4
"""


def test_a_parquet_folder_reads_as_the_sqlite_export_does(tmp_path: Path) -> None:
    exported = build(tmp_path / "report.sqlite", TIMELINE)
    traces = [load.read(exported), load.read(as_parquet(exported, tmp_path / "report"))]
    left, right = ((trace.processes, trace.devices, trace.names, trace.texts, trace.extent, trace.warnings) for trace in traces)
    assert left == right
    assert [trace.report.kind for trace in traces] == ["nsys-sqlite", "nsys-parquet"]
    for name in ("start_ns", "end_ns", "launch_ns", "name", "source", "stream", "process", "device"):
        assert getattr(traces[0].operations, name).tolist() == getattr(traces[1].operations, name).tolist()


# -- damage


def refusal(read: Callable[[], object]) -> list[str]:
    """The lines of the InputError, one or two."""
    with pytest.raises(InputError) as caught:
        read()
    lines = str(caught.value).splitlines()
    assert 1 <= len(lines) <= 2
    return lines


def test_a_missing_file(report: Path) -> None:
    lines = refusal(lambda: load.read(report))
    assert lines[0] == f"{report}: no such report"
    assert "cudaProfilerStart" in lines[1]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert refusal(lambda: check_sqlite(tmp_path)) == [f"{tmp_path}: is a folder, not a report"]


def test_an_empty_folder_is_no_export(tmp_path: Path) -> None:
    assert "not an Nsight Systems export" in refusal(lambda: load.read(tmp_path))[0]


def test_an_empty_file(report: Path) -> None:
    report.write_bytes(b"")
    assert refusal(lambda: load.read(report))[0] == f"{report}: is empty"


@pytest.mark.parametrize("raw", [b"some text", b"SQLite format 2\0", b"\0" * 200, b"S"])
def test_what_is_not_sqlite(report: Path, raw: bytes) -> None:
    report.write_bytes(raw)
    assert refusal(lambda: load.read(report)) == [
        f"{report}: not an SQLite file, so not an Nsight Systems export",
        "Give an nsys .sqlite or .nsys-rep, or torch.profiler JSON.",
    ]


def test_another_programs_database(report: Path) -> None:
    sqlite(report, [(1, 2)])
    assert refusal(lambda: load.read(report))[0].startswith(f"{report}: not an Nsight Systems export")


@pytest.mark.parametrize("kept", [100, 4096, -1])
def test_a_file_cut_short(report: Path, kept: int) -> None:
    raw = build(report, TIMELINE).read_bytes()
    report.write_bytes(raw[:kept])
    assert refusal(lambda: load.read(report)) == [
        f"{report}: is cut short: the copy or the export did not finish",
        "Copy it again, or export the report again.",
    ]


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_file_still_being_written(report: Path, suffix: str) -> None:
    build(report, TIMELINE)
    log = report.with_name(report.name + suffix)
    log.write_bytes(b"pages")
    assert refusal(lambda: load.read(report)) == [
        f"{report}: is still being written (there is a {log.name})",
        "Wait until the export has finished.",
    ]
    log.write_bytes(b"")
    assert len(load.read(report).operations) == 2


def test_a_file_without_permission(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for chmod, which does not keep root out."""
    build(report, TIMELINE)

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert refusal(lambda: load.read(report)) == [f"{report}: cannot be read: Permission denied", "Check its permissions."]


def test_a_file_with_a_damaged_page(report: Path) -> None:
    raw = bytearray(build(report, TIMELINE).read_bytes())
    raw[100:4096] = bytes(len(raw[100:4096]))
    report.write_bytes(raw)
    assert refusal(lambda: load.read(report))[0].startswith(f"{report}: damaged SQLite file: ")


def test_columns_whose_names_are_no_text(report: Path) -> None:
    raw = build(report, TIMELINE).read_bytes()
    report.write_bytes(raw.replace(b"demangledName", b"demangledNam\xff"))
    assert refusal(lambda: load.read(report))[0].startswith(f"{report}: damaged SQLite file: ")


def test_sqlites_own_words_are_cut_short(report: Path) -> None:
    """It repeats all of a table's definition from where it does not understand it."""
    raw = build(report, TIMELINE).read_bytes()
    report.write_bytes(raw.replace(b'"end" INTEGER', b'"end  INTEGER'))
    assert len(refusal(lambda: load.read(report))[0]) < len(str(report)) + 200


def test_an_odd_name_of_the_file_itself(tmp_path: Path) -> None:
    path = build(tmp_path / "50% of ?mode=rwc#é.sqlite", TIMELINE)
    assert len(load.read(path).operations) == 2
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_a_parquet_file_that_is_none(tmp_path: Path) -> None:
    folder = as_parquet(build(tmp_path / "report.sqlite", TIMELINE), tmp_path / "report")
    broken = folder / "NVTX_EVENTS.parquet"
    broken.write_bytes(b"PAR1 no longer PAR1")
    assert refusal(lambda: load.read(folder))[0].startswith(f"{broken}: not a readable parquet file: ")


def test_parquet_files_with_flipped_bits_are_read_or_refused(tmp_path: Path) -> None:
    """A change may also pass unseen: parquet has no checksums here."""
    folder = as_parquet(build(tmp_path / "report.sqlite", TIMELINE), tmp_path / "report")
    passed = 0
    for seed in range(150):
        rng = random.Random(seed)
        victim = folder / rng.choice(["CUPTI_ACTIVITY_KIND_KERNEL.parquet", "NVTX_EVENTS.parquet", "StringIds.parquet"])
        sound = victim.read_bytes()
        raw = bytearray(sound)
        for _ in range(rng.choice((1, 3, 20))):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        victim.write_bytes(raw[: rng.randrange(len(raw))] if rng.random() < 0.2 else raw)
        with suppress(InputError):
            load.read(folder)
            passed += 1
        victim.write_bytes(sound)
    assert 5 < passed < 100
