"""Bytes of deleted rows are counted and wiped, in gaps and in free pages; rows stay as they are."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from nsight import query

from ddpprof.analysis.sqlite_pages import leftover_bytes, wipe_leftovers

MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {rows})"


def database(path: Path, rows: int, page_size: int) -> Path:
    """Rows, an index over them, and as many rows more of 14 letters each that were deleted again."""
    many = MANY.format(rows=rows)
    with closing(sqlite3.connect(path)) as con:
        con.executescript(f"""
            PRAGMA page_size = {page_size};
            PRAGMA secure_delete = OFF;
            CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT);
            CREATE INDEX by_text ON t (text);
            {many} INSERT INTO t SELECT i, 'kept row ' || i FROM n;
            {many} INSERT INTO t SELECT {rows} + i, 'jane was here!' FROM n;
            DELETE FROM t WHERE id > {rows};
        """)
    return path


@pytest.mark.parametrize("page_size", [512, 4096, 65536])
@pytest.mark.parametrize("rows", [1, 3000])
def test_what_was_deleted_is_counted_and_wiped(rows: int, page_size: int, tmp_path: Path) -> None:
    path = database(tmp_path / "t.sqlite", rows, page_size)
    assert b"jane" in path.read_bytes()
    assert leftover_bytes(path) >= rows * len("jane was here!")
    wipe_leftovers(path)
    assert leftover_bytes(path) == 0
    assert b"jane" not in path.read_bytes()
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
    assert query(path, "SELECT count(*), min(text), max(id) FROM t") == [(rows, "kept row 1", rows)]


def test_a_file_that_never_lost_a_row_has_nothing_left(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as con:
        con.executescript("CREATE TABLE t (text TEXT); INSERT INTO t VALUES ('kept'), (zeroblob(20000) || 'long')")
    assert leftover_bytes(path) == 0
