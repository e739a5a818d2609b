"""Columns of an nsys export, SQLite or parquet, as numpy arrays: probed, never assumed, and never row by row.

SQLite is opened read-only and immutable, tables are reflected by SQLAlchemy, queries are SQLAlchemy Core compiled to text,
and rows travel as Arrow through ADBC. Nothing here knows what a table means.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ddpprof.analysis.assemble import from_arrow
from ddpprof.errors import InputError
from ddpprof.model import MISSING

Int64 = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]

_STRINGS: Final = frozenset({"id", "value"})
SPLIT_ROWS: Final = 200_000
"""Tables larger than this are read by two threads, each on its half of the row ids."""

BATCH_ROWS: Final = 32_768
"""Rows that travel together: few enough for their memory to be used again and again, enough to make Python's part small."""

_LEAST_ROW_BYTES: Final = 6
"""What the smallest row takes in an SQLite file: a cell and the pointer to it."""


class Tables(Protocol):
    """What a reader needs of an export, whatever its container. ``path`` is the file or folder itself."""

    path: Path

    def columns(self, table: str) -> frozenset[str]:
        """Names of a table's columns, empty when there is no such table (which nsys means as: no rows)."""
        ...

    def names(self) -> tuple[str, ...]:
        """Names of all tables."""
        ...

    def collect(self, table: str, columns: Sequence[str], convert: Convert, kinds: Kinds) -> tuple[Columns, int]:
        """The columns that ``convert`` makes of each run of rows, joined in row order; and how many rows there were.

        ``kinds`` are the types of these columns: arrays of them are filled as rows come, so that nothing is there twice.
        ``convert`` may be called from two threads at once, and again from the start where a first pass met another type.
        """
        ...

    def integers(self, table: str, columns: Sequence[str]) -> Rows:
        """The whole columns as int64, MISSING where the value is null or not an integer."""
        ...

    def integers_where(self, table: str, columns: Sequence[str], key: str, values: Sequence[int]) -> Rows:
        """The same of those rows only whose column ``key`` is one of ``values``."""
        ...

    def texts(self, table: str, column: str) -> pa.Array:
        """One column as Arrow binary (text may be anything, NUL and non-UTF-8 included), null where it is null."""
        ...

    def strings(self, ids: Iterable[int]) -> Mapping[int, str]:
        """Texts of StringIds; ids without a text are left out."""
        ...

    def matching_strings(self, pattern: str) -> Mapping[int, str]:
        """Texts of StringIds that an RE2 pattern finds, by id."""
        ...


Rows = dict[str, Int64]
"""Some rows of a table: column name to int64 values, MISSING where the value is null or not an integer."""
Convert = Callable[[Rows], Mapping[str, NDArray[Any]]]
Kinds = Mapping[str, type[np.generic]]


class _NotIntegers(Exception):
    """A column was declared to hold integers and does not."""


def decode(raw: bytes) -> str:
    """Text of what nsys wrote: UTF-8 where it is, replacement characters where it is not."""
    return raw.decode("utf-8", "replace")


class SqliteTables:
    """An SQLite export. Raises InputError at once for what is no database, and for a damaged one when it shows."""

    def __init__(self, path: Path) -> None:
        from sqlalchemy import NullPool, create_engine, inspect
        from sqlalchemy.exc import SQLAlchemyError

        self.path = path
        check_sqlite(path)
        self._most_rows = path.stat().st_size // _LEAST_ROW_BYTES
        self._uri = f"file:{quote(bytes(path.absolute()))}?mode=ro&immutable=1"
        self._engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(self._uri, uri=True), poolclass=NullPool)
        self._reflected: dict[str, Any] = {}
        try:
            self._names = tuple(inspect(self._engine).get_table_names())
        except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
            raise self._damaged(error) from None

    def names(self) -> tuple[str, ...]:
        return self._names

    def columns(self, table: str) -> frozenset[str]:
        return frozenset(self._table(table).columns.keys()) if table in self._names else frozenset()

    def collect(self, table: str, columns: Sequence[str], convert: Convert, kinds: Kinds) -> tuple[Columns, int]:
        return self._collect(table, columns, convert, kinds)

    def integers(self, table: str, columns: Sequence[str]) -> Rows:
        return self._collect(table, columns, dict, dict.fromkeys(columns, np.int64))[0]

    def integers_where(self, table: str, columns: Sequence[str], key: str, values: Sequence[int]) -> Rows:
        wanted = self._table(table).c[key].in_(values)
        return self._collect(table, columns, dict, dict.fromkeys(columns, np.int64), wanted)[0]

    def texts(self, table: str, column: str) -> pa.Array:
        from sqlalchemy import LargeBinary, cast, literal_column, select, union_all

        text = cast(self._table(table).c[column], LargeBinary).label("text")
        typed: Any = select(literal_column("x''").label("text"))  # else a column that begins with many nulls is int64 to ADBC
        return _as_binary(self._read(union_all(typed, select(text))).column(0)).slice(1)

    def strings(self, ids: Iterable[int]) -> Mapping[int, str]:
        from sqlalchemy import LargeBinary, cast, select

        if not self.columns("StringIds") >= _STRINGS:
            return {}
        key, value = (self._table("StringIds").c[name] for name in ("id", "value"))
        wanted = sorted(set(ids))
        found: dict[int, str] = {}
        for at in range(0, len(wanted), 1000):
            rows = self._read(select(key, cast(value, LargeBinary).label("value")).where(key.in_(wanted[at : at + 1000])))
            pairs = zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True)
            found |= {number: decode(raw) for number, raw in pairs if isinstance(raw, bytes) and isinstance(number, int)}
        return found

    def matching_strings(self, pattern: str) -> Mapping[int, str]:
        return _matching_strings(self, pattern)

    def text_counts(self, table: str, column: str, beside: str) -> list[tuple[bytes, bytes, int]]:
        """Each text (or blob) of any column, what stands in column ``beside`` of its rows, and in how many rows."""
        from sqlalchemy import LargeBinary, cast, func, select

        cell, other = (cast(self._table(table).c[name], LargeBinary) for name in (column, beside))
        is_text = func.typeof(self._table(table).c[column]).in_(("text", "blob"))
        groups = select(cell, func.coalesce(other, func.zeroblob(0)), func.count()).where(is_text).group_by(cell, other)
        return list(zip(*(part.to_pylist() for part in self._read(groups).columns), strict=True))

    def _table(self, name: str) -> Any:
        """The table with the columns that are in the file; their declared types mean nothing to SQLite, nor to us."""
        from sqlalchemy import column, inspect, table
        from sqlalchemy.exc import SQLAlchemyError

        if name not in self._reflected:
            try:
                found = inspect(self._engine).get_columns(name)
            except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
                raise self._damaged(error) from None
            self._reflected[name] = table(name, *(column(item["name"]) for item in found))
        return self._reflected[name]

    def _collect(self, table: str, columns: Sequence[str], convert: Convert, kinds: Kinds, *where: Any) -> tuple[Columns, int]:
        """``collect`` of the rows that are ``where``."""
        from sqlalchemy import case, func, select

        cells = [self._table(table).c[name] for name in columns]
        try:
            return self._fill(select(*cells).where(*where), table, columns, convert, kinds)
        except (_NotIntegers, InputError):  # the driver takes a type from the first rows, and refuses another further down
            careful = [case((func.typeof(cell) == "integer", cell)).label(cell.name) for cell in cells]
            return self._fill(select(*careful).where(*where), table, columns, convert, kinds)

    def _fill(self, query: Any, table: str, columns: Sequence[str], convert: Convert, kinds: Kinds) -> tuple[Columns, int]:
        """``collect`` of a query on a table, by two threads on their halves of the row ids when there are many rows.

        Each has a place for as many rows as there are row ids in its half. Memory that is never written to costs nothing.
        """
        from sqlalchemy import literal_column

        first, last = self._row_ids(table)
        middle = (first + last) // 2 if last - first >= SPLIT_ROWS else last
        halves = [(first, middle), (middle + 1, last)] if middle < last else [(first, last)]
        sizes = [min(high - low + 1, self._most_rows) for low, high in halves]
        found = {name: np.empty(sum(sizes), kind) for name, kind in kinds.items()}
        rowid: Any = literal_column("_rowid_")

        def fill(half: tuple[int, int], begin: int, size: int) -> tuple[int, int]:
            n_kept = n_read = 0
            for rows in self._stream(query.where(rowid.between(*half)), columns):
                n_read += len(rows[columns[0]])
                made = convert(rows)
                n_new = len(next(iter(made.values())))
                if n_kept + n_new > size:
                    raise self._damaged(ValueError("more rows than row ids"))
                for name, values in made.items():
                    found[name][begin + n_kept : begin + n_kept + n_new] = values
                n_kept += n_new
            return n_kept, n_read

        if len(halves) == 1:
            n_kept, n_read = fill(halves[0], 0, sizes[0])
            return {name: column[:n_kept] for name, column in found.items()}, n_read
        with ThreadPoolExecutor(2) as pool:
            (n_first, n_read), (n_second, n_more) = pool.map(fill, halves, (0, sizes[0]), sizes)
        if n_first < sizes[0]:
            for column in found.values():
                column[n_first : n_first + n_second] = column[sizes[0] : sizes[0] + n_second]
        return {name: column[: n_first + n_second] for name, column in found.items()}, n_read + n_more

    def _row_ids(self, table: str) -> tuple[int, int]:
        """The least and the greatest row id of a table, (0, -1) of an empty one."""
        from sqlalchemy import func, literal_column, select

        rowid: Any = literal_column("_rowid_")
        edges = (select(edge(rowid)).select_from(self._table(table)).scalar_subquery() for edge in (func.min, func.max))
        first, last = (column[0].as_py() for column in self._read(select(*edges)).columns)
        return (first, last) if isinstance(first, int) and isinstance(last, int) else (0, -1)

    def _stream(self, query: Any, columns: Sequence[str]) -> Iterator[Rows]:
        """The rows of a query, run by run. Raises _NotIntegers for a column that holds something else."""
        with self._batches(query) as batches:
            if not all(pa.types.is_integer(item.type) for item in batches.schema):
                raise _NotIntegers
            for batch in batches:
                if batch.num_rows:
                    yield {name: to_int64(batch.column(at)) for at, name in enumerate(columns)}

    def _read(self, query: Any) -> pa.Table:
        with self._batches(query) as batches:
            return batches.read_all()

    @contextmanager
    def _batches(self, query: Any) -> Iterator[pa.RecordBatchReader]:
        """The result of ``query``, batch by batch; what the driver raises meanwhile is InputError.

        The driver is used without its DB-API layer, whose import takes longer than most reports.
        """
        import adbc_driver_manager
        import adbc_driver_sqlite
        from sqlalchemy.dialects import sqlite

        text = str(query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))
        try:
            with (
                adbc_driver_sqlite.connect(self._uri) as database,
                adbc_driver_manager.AdbcConnection(database) as connection,
                adbc_driver_manager.AdbcStatement(connection) as statement,
            ):
                statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
                statement.set_sql_query(text)
                stream, _ = statement.execute_query()
                yield pa.RecordBatchReader._import_from_c(stream.address)
        except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
            raise self._damaged(error) from None

    def _damaged(self, error: BaseException) -> InputError:
        reason = _first_line(getattr(error, "orig", None) or error)
        return InputError(
            f"{self.path}: damaged SQLite file: {reason}", "Export the report again: ddpprof export --force REPORT"
        )


class ParquetTables:
    """A folder of ``TABLE.parquet`` files (``nsys export --type parquetdir``)."""

    def __init__(self, folder: Path) -> None:
        import pyarrow.parquet as pq

        self.path = folder
        self._columns: dict[str, frozenset[str]] = {}
        self._n_rows: dict[str, int] = {}
        for path in sorted(folder.glob("*.parquet")):
            try:
                about = pq.read_metadata(path)
                self._columns[path.stem], self._n_rows[path.stem] = frozenset(about.schema.names), about.num_rows
            except (pa.ArrowException, OSError, ValueError) as error:
                raise InputError(f"{path}: not a readable parquet file: {_first_line(error)}") from None

    def names(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def columns(self, table: str) -> frozenset[str]:
        return self._columns.get(table, frozenset())

    def collect(self, table: str, columns: Sequence[str], convert: Convert, kinds: Kinds) -> tuple[Columns, int]:
        n_kept, n_read = 0, self._n_rows[table]
        found = {name: np.empty(n_read, kind) for name, kind in kinds.items()}
        for batch in self._read(table, columns).to_batches(BATCH_ROWS):
            if batch.num_rows:
                rows = convert({name: to_int64(batch.column(at)) for at, name in enumerate(columns)})
                for name, values in rows.items():
                    found[name][n_kept : n_kept + len(values)] = values
                n_kept += len(values)
        return {name: column[:n_kept] for name, column in found.items()}, n_read

    def integers(self, table: str, columns: Sequence[str]) -> Rows:
        return self.collect(table, columns, dict, dict.fromkeys(columns, np.int64))[0]

    def integers_where(self, table: str, columns: Sequence[str], key: str, values: Sequence[int]) -> Rows:
        rows = self.integers(table, sorted({*columns, key}))
        found = np.isin(rows[key], values)
        return {name: rows[name][found] for name in columns}

    def texts(self, table: str, column: str) -> pa.Array:
        return _as_binary(self._read(table, [column]).column(0))

    def strings(self, ids: Iterable[int]) -> Mapping[int, str]:
        if not self.columns("StringIds") >= _STRINGS:
            return {}
        all_ids = self.integers("StringIds", ["id"])["id"]
        wanted = np.flatnonzero(np.isin(all_ids, np.fromiter(set(ids), np.int64)))
        values = self.texts("StringIds", "value").take(pa.array(wanted))
        return {int(all_ids[at]): decode(raw.as_py()) for at, raw in zip(wanted, values, strict=True) if raw.is_valid}

    def matching_strings(self, pattern: str) -> Mapping[int, str]:
        return _matching_strings(self, pattern)

    def _read(self, table: str, columns: Sequence[str]) -> pa.Table:
        import pyarrow.parquet as pq

        path = self.path / f"{table}.parquet"
        try:
            found = pq.read_table(path, columns=list(columns)).select(list(columns))
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise InputError(f"{path}: cannot be read: {_first_line(error)}") from None
        if len(found) != self._n_rows[table]:
            raise InputError(f"{path}: damaged: {len(found)} rows where it says {self._n_rows[table]}")
        return found


def check_sqlite(path: Path) -> None:
    """Raises InputError, with the likely cause, for what is not a whole SQLite file that can be read."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
        size = path.stat().st_size
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such report",
            "Either the capture range never opened (no cudaProfilerStart), or nsys wrote it under another name (-o, %q{RANK}).",
        ) from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, not a report") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}", "Check its permissions.") from None
    if size == 0:
        raise InputError(f"{path}: is empty", "The export was interrupted or the disk was full; export the report again.")
    if not head.startswith(b"SQLite format 3\0"):
        raise InputError(
            f"{path}: not an SQLite file, so not an Nsight Systems export",
            "Give an nsys .sqlite or .nsys-rep, or torch.profiler JSON.",
        )
    page = int.from_bytes(head[16:18], "big") or 0
    page = 65536 if page == 1 else page
    if size < page * int.from_bytes(head[28:32], "big"):
        raise InputError(
            f"{path}: is cut short: the copy or the export did not finish", "Copy it again, or export the report again."
        )
    for suffix in ("-wal", "-journal"):
        log = path.with_name(path.name + suffix)
        if log.exists() and log.stat().st_size > 0:
            raise InputError(f"{path}: is still being written (there is a {log.name})", "Wait until the export has finished.")


def to_int64(column: pa.Array) -> Int64:
    """An Arrow column as int64, MISSING where it is null or not an integer; unsigned values wrap as SQLite's do."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not pa.types.is_integer(column.type):
        return np.full(len(column), MISSING, np.int64)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    values = from_arrow(column).astype(np.int64, copy=False)
    if column.null_count:
        values = values.copy()
        values[places(column.is_null())] = MISSING
    return values


def places(mask: pa.Array) -> Int64:
    """Where an Arrow mask is true."""
    import pyarrow.compute as pc

    return from_arrow(pc.indices_nonzero(mask)).astype(np.int64)


def _first_line(error: BaseException) -> str:
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return line if len(line) <= 160 else f"{line[:160]}…"  # SQLite repeats the statement that it does not understand


def _as_binary(column: pa.ChunkedArray) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return pa.nulls(len(column), pa.large_binary())
    joined = column.cast(pa.large_binary()).combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _matching_strings(tables: Tables, pattern: str) -> dict[int, str]:
    import pyarrow.compute as pc

    if not tables.columns("StringIds") >= _STRINGS:
        return {}
    ids, texts = tables.integers("StringIds", ["id"])["id"], tables.texts("StringIds", "value")
    hit = places(pc.match_substring_regex(texts, pattern))
    return {int(ids[at]): decode(texts[at].as_py()) for at in hit.tolist()}
