"""A copy of an nsys export that is fit to share, and what a file tells that such a copy would not.

The copy is a new database of what ``nsight_schema.SHARED`` allows; nothing else of the report can reach it. Of a text it holds
what the reader would show of it, so the analysis of the copy is the analysis of the report. Times are not touched.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ddpprof import marks
from ddpprof.analysis import assemble, load, nsys_events, nsys_reader
from ddpprof.analysis import nsight_schema as schema
from ddpprof.analysis.nsys_tables import SqliteTables, Tables, decode
from ddpprof.analysis.sqlite_pages import leftover_bytes, wipe_leftovers
from ddpprof.errors import InputError, UsageError
from ddpprof.model import MISSING, SETTINGS
from ddpprof.rundir import whole_file

Int64 = NDArray[np.int64]

RANGE: Final = "range"
"""What the text of a host range becomes when it says nothing that the analysis needs."""

_JOB_VARIABLES: Final = frozenset({*schema.RANK_VARIABLES, *schema.WORLD_VARIABLES, "LOCAL_RANK"})
_DOMAINS: Final = (marks.DOMAIN, "NCCL")
_BUS: Final = re.compile(r"[0-9A-Fa-f:.]+")
_STAND_IN: Final = re.compile(r"gpu-[0-9a-f]{16}")
_ASSIGNMENT: Final = re.compile(r"(?:^|[\0;\n])[A-Z_][A-Z0-9_]*=")
_PATH: Final = re.compile(r"(?:^|[\s\"'(=:;])(?:~|\.{1,2}|[A-Za-z]:)?[/\\][\w.~-]|\w[/\\][\w.-]*\.[A-Za-z]")
_OTHER: Final = "other text"


@dataclass(frozen=True, slots=True)
class Leak:
    """How many texts of one kind stand in ``place`` (``TABLE.column``) that a redacted copy would not hold."""

    place: str
    kind: str
    count: int


def redact(source: Path, target: Path, keep_ranges: Sequence[str] = ()) -> None:
    """Writes ``target``, whole or not at all: the nsys export ``source`` without what is private.

    ``keep_ranges`` are RE2 patterns of host ranges whose texts stay. Raises InputError for what is no nsys export.
    """
    tables = _open(source)
    if target.exists() and target.samefile(source):
        raise UsageError(f"{target}: is the report itself", "Give the copy another name.")
    with whole_file(target) as partial:
        _write(partial, _shared_tables(tables, _pattern(keep_ranges)))
        wipe_leftovers(partial)


def check(path: Path, keep_ranges: Sequence[str] = ()) -> tuple[Leak, ...]:
    """What an SQLite export holds that its redacted copy would not, by place; empty when it is fit to share."""
    tables = _open(path)
    if not isinstance(tables, SqliteTables):
        raise InputError(f"{path}: a parquet export cannot be checked", "Redact it to SQLite: ddpprof redact FOLDER OUT.sqlite")
    kept = set(_texts_of(_shared_tables(tables, _pattern(keep_ranges))))
    strings = _string_kinds(tables)
    found: Counter[tuple[str, str]] = Counter()
    for table in tables.names():
        there = tables.columns(table)
        beside = "id" if table == schema.STRINGS else "name"
        for column in sorted(there):
            for raw, neighbour, count in tables.text_counts(table, column, beside if beside in there else column):
                text = decode(raw)
                if text and text not in kept:
                    found[f"{table}.{column}", _kind_of(table, column, text, decode(neighbour), strings)] += count
    leaks = [Leak(*key, count) for key, count in found.items() if not (key[0].startswith("ENUM_") and key[1] == _OTHER)]
    n_left = leftover_bytes(path)
    return (*leaks, *([Leak("unused space of the file", "bytes left of deleted or moved rows", n_left)] if n_left else []))


def _open(path: Path) -> Tables:
    if path.suffix in load.REPORT_SUFFIXES:
        raise InputError(
            f"{path}: Nsight's own format cannot be rewritten", "Export it, then redact the export: ddpprof export REPORT"
        )
    if path.is_file() and load.is_kineto(path):
        raise InputError(
            f"{path}: only nsys exports can be redacted, not a torch.profiler trace",
            "Share the numbers instead: ddpprof analyze FILE --format json",
        )
    return nsys_reader.open_export(path)


def _pattern(keep_ranges: Sequence[str]) -> str | None:
    """One RE2 pattern for all, None for none. Raises UsageError for one that is no pattern."""
    import pyarrow.compute as pc

    for text in keep_ranges:
        try:
            pc.match_substring_regex(pa.array([""]), text)
        except pa.ArrowInvalid as error:
            raise UsageError(f"--keep-ranges {text}: not a pattern that can be searched for: {error}") from None
    return "|".join(f"(?:{text})" for text in keep_ranges) or None


# ------------------------------------------------------------------------------------------------------- the copy


def _shared_tables(tables: Tables, keep_ranges: str | None) -> Iterator[tuple[str, pa.Table]]:
    """Name and rows of each table of the copy, StringIds last; ids of strings are given out anew."""
    ids: dict[str, int] = {}
    for table, shared in schema.SHARED.items():
        name = nsys_events.find_table(tables, table) if shared.required else table
        if name is not None and (there := tables.columns(name)):
            integers = [column for column in shared.integers if column in there]
            rows: dict[str, Any] = dict(tables.integers(name, integers)) if integers else {}
            rows = _with_texts(tables, table, name, rows, ids, keep_ranges)
            if rows:
                yield table, pa.table({column: _arrow(values) for column, values in rows.items()})
    yield schema.STRINGS, pa.table({"id": pa.array(ids.values(), pa.int64()), "value": pa.array(ids, pa.string())})


def _with_texts(
    tables: Tables, table: str, name: str, rows: dict[str, Any], ids: dict[str, int], keep_ranges: str | None
) -> dict[str, Any]:
    """The columns of one table: its integers in ``rows``, and its texts, each as far as it may be kept."""
    there = tables.columns(name)
    match table:
        case schema.EXPORT | schema.EXPORT_BEFORE_2023:
            return _named(_settings(nsys_reader.name_values(tables, name)))
        case schema.CAPTURE | schema.SYSTEM:
            return _named(_environments(nsys_reader.name_values(tables, name)))
        case schema.KERNEL | schema.RUNTIME | schema.OVERHEAD:
            names_of = {schema.KERNEL: nsys_events.kernel_names, schema.RUNTIME: _call_names, schema.OVERHEAD: _overhead_names}
            columns = [column for column in schema.SHARED[table].strings if column in there]
            old = tables.integers(name, columns) if columns else {}
            return rows | {column: _renumbered(tables, values, names_of[table], ids) for column, values in old.items()}
        case schema.NVTX:
            return rows | _range_texts(tables, name, rows, ids, keep_ranges)
        case schema.DIAGNOSTIC:
            return _diagnostics(tables, name, rows)
        case schema.GPU | schema.CUDA_DEVICE:
            cleaners: dict[str, Callable[[str], str | None]]
            cleaners = {"name": nsys_reader.gpu_model, "uuid": stand_in, "busLocation": _bus}
            texts = {column: nsys_reader.text_column(tables, name, column) for column in cleaners if column in there}
            return rows | {column: [cleaners[column](text) for text in values] for column, values in texts.items()}
    return rows


def _settings(rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """What says how to read the export. A value that does not look like one is "some"."""
    for name, value in rows:
        if name in schema.EXPORT_SETTINGS:
            is_plain = schema.EXPORT_SETTINGS[name].fullmatch(value)
            yield name, value if is_plain or not value else "some"


def _environments(rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The variables of a job's ranks and its settings, and nothing else of an environment."""
    for name, value in rows:
        if name.endswith(schema.ENVIRONMENT_VARIABLE):
            yield from (
                (schema.ENVIRONMENT_VARIABLE, f'{key}="{kept}"') for key, kept in _kept_variables([nsys_reader.variable(value)])
            )
        elif name == schema.ENVIRONMENT:
            yield name, ";".join(f"{key}={kept}" for key, kept in _kept_variables(nsys_reader.variables(value)))


def _kept_variables(variables: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Those of ranks and settings, empty where no number or switch: a later one overrides an earlier one all the same."""
    for name, value in variables:
        if name in _JOB_VARIABLES:
            yield name, value if value.isdecimal() else ""
        elif name in SETTINGS:
            yield name, value if schema.SETTING_VALUE.fullmatch(value) else ""
        elif name == "CUDA_VISIBLE_DEVICES" and re.fullmatch(r"[\d,]+", value):
            yield name, value


def _renumbered(tables: Tables, old: Int64, names_of: Callable[[Tables, list[int]], list[str]], ids: dict[str, int]) -> Int64:
    """String ids of the copy for those of the report; a null stays null."""
    codes, keys = assemble.factorize(old)
    names = names_of(tables, keys.tolist())
    pairs = zip(keys.tolist(), names, strict=True)
    return np.array([MISSING if key == MISSING else ids.setdefault(name, len(ids)) for key, name in pairs], np.int64)[codes]


def _call_names(tables: Tables, keys: list[int]) -> list[str]:
    """Names of API calls, as far as they are one word."""
    known = tables.strings(keys)
    return [re.split(r"\W", known.get(key, ""), maxsplit=1)[0] or "call" for key in keys]


def _overhead_names(tables: Tables, keys: list[int]) -> list[str]:
    """What the profiler did: in words when it concerns CUDA data, for the rest (a library's path, say) only that it did."""
    known = tables.strings(keys)
    found = [nsys_reader.OVERHEAD_OF_CUDA.match(known.get(key, "")) for key in keys]
    return [match[0] if match else "profiler" for match in found]


def _range_texts(
    tables: Tables, name: str, rows: Mapping[str, Int64], ids: dict[str, int], keep_ranges: str | None
) -> dict[str, Any]:
    """``textId`` of every host range, all others have no text; ``text`` of the domains that are known."""
    there, kind = tables.columns(name), rows["eventType"]
    n = len(kind)
    is_range = np.isin(kind, (*schema.NVTX_PUSH_POP, *schema.NVTX_START_END))
    text_id = tables.integers(name, ["textId"])["textId"] if "textId" in there else np.full(n, MISSING)
    pattern = nsys_events.wanted_pattern(keep_ranges)
    codes, texts = nsys_events.match_texts(tables, name, text_id, is_range, pattern)
    new_id = np.full(len(texts) + 1, MISSING)
    for code in np.unique(codes[is_range]).tolist():
        text = _kept_text(texts[code]) if code >= 0 else RANGE
        new_id[code] = ids.setdefault(text, len(ids))
    domains = np.full(n, None, object)
    if "text" in there:
        written = tables.texts(name, "text")
        for at in np.flatnonzero(kind == schema.NVTX_DOMAIN).tolist():
            domain = written[at].as_py()
            domains[at] = None if domain is None else decode(domain) if decode(domain) in _DOMAINS else "domain"
    return {"textId": np.where(is_range, new_id[codes], MISSING), "text": domains}


_TELLING: Final = re.compile(nsys_events.wanted_pattern(None))


def _kept_text(text: str) -> str:
    """A text that is needed as it is (the "/" in a mark is no path); one that was asked for without paths."""
    if _TELLING.search(text):
        return text
    short = nsys_events.without_paths(text)
    return RANGE if _TELLING.search(short) else short


def _diagnostics(tables: Tables, name: str, rows: Mapping[str, Int64]) -> dict[str, Any]:
    """The rows with those of their sentences that an analysis shows."""
    if "severity" not in rows or "text" not in tables.columns(name):
        return dict(rows)
    pairs = zip(rows["severity"].tolist(), nsys_reader.text_column(tables, name, "text"), strict=True)
    return {**rows, "text": [nsys_reader.shown_diagnostic(severity, text) for severity, text in pairs]}


def stand_in(identity: str) -> str | None:
    """The same short word for the same GPU in every copy, from which its uuid cannot be told; None for ""."""
    if not identity or _STAND_IN.fullmatch(identity):
        return identity or None
    return f"gpu-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def _bus(text: str) -> str | None:
    return text if _BUS.fullmatch(text) else stand_in(text)


def _named(rows: Iterable[tuple[str, str]]) -> dict[str, Any]:
    pairs = list(rows)
    return {"name": [name for name, _ in pairs], "value": [value for _, value in pairs]}


def _arrow(values: Any) -> pa.Array:
    if isinstance(values, np.ndarray) and values.dtype == np.int64:
        return pa.array(values, mask=values == MISSING)
    return pa.array(values, pa.string())


def _write(path: Path, tables: Iterable[tuple[str, pa.Table]]) -> None:
    """Makes an SQLite file of these tables. Raises OSError when it cannot be written."""
    from adbc_driver_manager import Error
    from adbc_driver_sqlite import dbapi

    uri = f"file:{quote(str(path.absolute()))}"
    try:
        with dbapi.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {schema.STRINGS} (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
            for name, rows in tables:
                cursor.adbc_ingest(name, rows, mode="append" if name == schema.STRINGS else "create")
            cursor.execute("VACUUM")
    except Error as error:
        raise OSError(str(error)) from None


# -------------------------------------------------------------------------------------------------------- the check


def _texts_of(tables: Iterable[tuple[str, pa.Table]]) -> Iterator[str]:
    for _, rows in tables:
        for column in rows.columns:
            if pa.types.is_string(column.type):
                yield from filter(None, column.unique().to_pylist())


def _string_kinds(tables: Tables) -> dict[str, str]:
    """What the strings are that columns of a known meaning refer to, by their id as text."""
    kinds: dict[str, str] = {}
    for place, kind in schema.PRIVATE.items():
        table, column = place.split(".")
        if column.endswith("Id") and column in tables.columns(table):
            kinds |= {str(key): kind for key in np.unique(tables.integers(table, [column])[column]).tolist()}
    return kinds


def _kind_of(table: str, column: str, text: str, beside: str, strings: Mapping[str, str]) -> str:
    """What a text is: by its place, by the name or id beside it, else by its looks."""
    kind = strings.get(beside) if table == schema.STRINGS else schema.PRIVATE.get(f"{table}.{column}")
    if kind is None and column == "value":
        kind = next((what for what, pattern in schema.PRIVATE_SETTINGS.items() if pattern.search(beside)), None)
    if kind is None:
        looks = {"environment": _ASSIGNMENT.search(text), "path": _PATH.search(text), "text behind a NUL": "\0" in text}
        kind = next((what for what, is_so in looks.items() if is_so), _OTHER)
    return kind
