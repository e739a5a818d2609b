"""The results database: the metrics of every run, in any database that SQLAlchemy reaches; an SQLite file by default.

Its tables are those of ``KeptRun`` and ``KeptRank`` in the model. Nothing in it names a host, a user, a path or a command.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpprof import machine
from ddpprof.errors import DdpprofError, InputError, UsageError
from ddpprof.model import Analysis, KeptRank, KeptRun, Metrics, Records, Timing, columns

if TYPE_CHECKING:
    import sqlalchemy as sa

    Columns = list[sa.Column[Any]]

VERSION = 2
WAIT_S = 5
"""How long to wait for a file or a server that somebody else holds."""

ADDED: Mapping[int, Mapping[str, tuple[str, ...]]] = {2: {"ddpprof_runs": ("evidence", "clock")}}
"""Schema version to the columns, by table, that it added to the one before."""

_LOCK = 0xDD9F
"""Number of PostgreSQL's advisory lock under which the tables are made."""

Say = Callable[[str], None]


def keep(url: str, runs: Sequence[KeptRun], say: Say) -> None:
    """Appends ``runs``; what keeps it from doing so is told and no more, since the reports of the run are there."""
    try:
        append(url, runs)
    except DdpprofError as error:
        say(f"results not kept: {error}")


def append(url: str, runs: Sequence[KeptRun]) -> None:
    """Appends ``runs``, all or none of them; makes the tables when there are none. Raises InputError."""
    with _connected(url, writes=True) as connection:
        tables = _metadata().tables
        for run in runs:
            added = connection.execute(tables["ddpprof_runs"].insert().values(_run_values(run)))
            key = added.inserted_primary_key
            assert key is not None
            ranks = [
                {"run_id": key[0]} | {column.name: getattr(row, column.name) for column in columns(KeptRank)}
                for row in run.ranks
            ]
            if ranks:
                connection.execute(tables["ddpprof_ranks"].insert(), ranks)


def history(url: str, case_name: str) -> tuple[KeptRun, ...]:
    """The runs of a case, newest last. Raises InputError when there is no such database, or none of the case in it."""
    import sqlalchemy as sa

    place = _existing(url)
    with _connected(url, writes=False) as connection:
        tables = _metadata().tables
        runs, ranks = tables["ddpprof_runs"], tables["ddpprof_ranks"]
        mine = runs.c.case_name == case_name
        asked = sa.select(*_present(connection, runs)).where(mine).order_by(runs.c.finished_utc, runs.c.id)
        found = connection.execute(asked).mappings().all()
        rows = connection.execute(sa.select(ranks).join(runs).where(mine).order_by(ranks.c.id))
        by_run: dict[int, list[KeptRank]] = defaultdict(list)
        for row in rows.mappings():
            by_run[row["run_id"]].append(KeptRank(**{column.name: row[column.name] for column in columns(KeptRank)}))
        known = connection.execute(sa.select(runs.c.case_name).distinct().order_by(runs.c.case_name)).scalars().all()
    if not found:
        raise InputError(f"{_name(place)}: no run of {case_name!r}", f"There are runs of: {', '.join(known) or 'nothing yet'}.")
    return tuple(_run(dict(run), by_run[run["id"]]) for run in found)


def cases(url: str) -> list[tuple[str, int, str]]:
    """Each case that has runs, by name: how many, and when the newest ended. Raises InputError without such a database."""
    import sqlalchemy as sa

    _existing(url)
    with _connected(url, writes=False) as connection:
        runs = _metadata().tables["ddpprof_runs"].c
        asked = sa.select(runs.case_name, sa.func.count(), sa.func.max(runs.finished_utc))
        return [tuple(row) for row in connection.execute(asked.group_by(runs.case_name).order_by(runs.case_name))]


def _existing(url: str) -> sa.URL:
    """``url`` taken apart. Raises InputError when it names a file that is not there."""
    place = check_url(url)
    if place.get_backend_name() == "sqlite" and not Path(place.database or "").is_file():
        raise InputError(f"{_name(place)}: no results kept yet", "Each `ddpprof profile` and `ddpprof sweep` keeps its own.")
    return place


def describe(
    manifest: Mapping[str, Any],
    analysis: Analysis,
    records: Records,
    timing: Timing | None,
    *,
    kind: str = "profile",
    job: str = "job",
) -> KeptRun:
    """What is kept of a run folder's run: its manifest's facts and each rank's metrics; ``job`` names what is no case."""
    models = [row.device_name for row in analysis.ranks if row.device_name]
    names = [column.name for column in columns(Metrics)]
    return KeptRun(
        finished_utc=manifest["finished_utc"],
        case_name=manifest["case"] or job,
        kind=kind,
        ddpprof_version=manifest["ddpprof_version"],
        torch_version=manifest["torch_version"],
        nsys_version=manifest["nsys_version"],
        nccl_version=next((run.nccl_version for run in records.runs), None),
        git_commit=git_commit(),
        device=manifest["device"],
        device_model=models[0] if models else machine.cpu_model(),
        evidence=analysis.evidence,
        clock=next((run.clock for run in records.runs), None),
        world_size=analysis.world_size,
        bucket_cap_mb=manifest.get("bucket_cap_mb"),
        timing=timing,
        ranks=tuple(KeptRank(rank=row.rank, **{name: getattr(row, name) for name in names}) for row in analysis.ranks),
    )


def git_commit() -> str | None:
    """Short hash of the working directory's commit; None without git, or outside of a repository."""
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def check_url(url: str) -> sa.URL:
    """``url`` taken apart. Raises UsageError when it is no database URL, or of a kind that SQLAlchemy does not know."""
    from sqlalchemy import exc, make_url

    try:
        place = make_url(url)
        place.get_dialect()
    except (exc.ArgumentError, exc.NoSuchModuleError, ValueError):
        raise UsageError(
            "--results: not a database URL that SQLAlchemy knows",
            "Examples: sqlite:///runs/results.sqlite  postgresql+psycopg://user@host/name",
        ) from None
    return place


# ------------------------------------------------------------------------------------------------------------ schema


@cache
def _metadata() -> sa.MetaData:
    """The tables of this version, as the model declares their columns."""
    import sqlalchemy as sa

    types = {"ns": sa.BigInteger, "count": sa.Integer, "id": sa.Integer, "ratio": sa.Float, "MiB": sa.Float, "text": sa.Text}
    metadata = sa.MetaData()
    own: Columns = [sa.Column(item.name, types[item.unit]) for item in columns(KeptRun) if item.name not in ("timing", "ranks")]
    timing: Columns = [sa.Column(f"step_{item.name}", types[item.unit]) for item in columns(Timing)]
    ranks: Columns = [sa.Column(item.name, types[item.unit]) for item in columns(KeptRank)]
    sa.Table("ddpprof_schema_version", metadata, sa.Column("version", sa.Integer, nullable=False))
    sa.Table("ddpprof_runs", metadata, sa.Column("id", sa.Integer, primary_key=True), *own, *timing)
    run = sa.Column("run_id", sa.Integer, sa.ForeignKey("ddpprof_runs.id"), nullable=False, index=True)
    sa.Table("ddpprof_ranks", metadata, sa.Column("id", sa.Integer, primary_key=True), run, *ranks)
    return metadata


def is_results(path: Path) -> bool:
    """Whether a file is an SQLite database of ours."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ddpprof_schema_version'").fetchall())
    except sqlite3.Error:
        return False


def _present(connection: sa.Connection, table: sa.Table) -> list[sa.ColumnElement[Any]]:
    """The columns of ``table``; NULL for those that an older schema has not."""
    import sqlalchemy as sa

    there = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    return [column if column.name in there else sa.null().label(column.name) for column in table.columns]


def _check_readable(connection: sa.Connection, name: str) -> None:
    """Returns when our tables are there, of this schema or an older one. Raises InputError; writes nothing."""
    import sqlalchemy as sa

    versions = _metadata().tables["ddpprof_schema_version"]
    if not sa.inspect(connection).has_table(versions.name):
        raise InputError(f"{name}: no results in it", "Results are what `ddpprof profile` and `ddpprof sweep` keep.")
    version = connection.execute(sa.select(versions.c.version)).scalar()
    if version is not None and version > VERSION:
        raise _newer(name, version)


def _newer(name: str, version: int) -> InputError:
    return InputError(
        f"{name}: results of schema version {version}, newer than the {VERSION} of this ddpprof",
        "Update ddpprof, or keep results elsewhere with --results URL.",
    )


def _migrate(connection: sa.Connection, name: str) -> None:
    """Makes the tables, or brings older ones to VERSION, within the transaction.

    Raises InputError for newer ones, and for an SQLite file of somebody else's.
    """
    import sqlalchemy as sa
    from sqlalchemy.schema import CreateColumn

    versions = _metadata().tables["ddpprof_schema_version"]
    inspected = sa.inspect(connection)
    if not inspected.has_table(versions.name):
        if connection.dialect.name == "sqlite" and inspected.get_table_names():
            raise InputError(f"{name}: holds other tables than results", "Keep results elsewhere with --results URL.")
        if connection.dialect.name == "postgresql":  # which does not serialise the making of tables by itself
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        _metadata().create_all(connection)
    version = connection.execute(sa.select(versions.c.version)).scalar()
    if version is None:
        connection.execute(versions.insert().values(version=VERSION))
        return
    if version > VERSION:
        raise _newer(name, version)
    if version == VERSION:
        return
    version = connection.execute(sa.select(versions.c.version).with_for_update()).scalar_one()
    for later in range(version + 1, VERSION + 1):
        for table, added in ADDED[later].items():
            for column in added:
                text = CreateColumn(_metadata().tables[table].c[column]).compile(dialect=connection.dialect)
                connection.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN {text}"))
    connection.execute(versions.update().values(version=VERSION))


# -------------------------------------------------------------------------------------------------------------- rows


def _run_values(run: KeptRun) -> dict[str, Any]:
    own = {item.name: getattr(run, item.name) for item in columns(KeptRun) if item.name not in ("timing", "ranks")}
    return own | {f"step_{item.name}": run.timing and getattr(run.timing, item.name) for item in columns(Timing)}


def _run(row: Mapping[str, Any], ranks: Sequence[KeptRank]) -> KeptRun:
    own = {item.name: row[item.name] for item in columns(KeptRun) if item.name not in ("timing", "ranks")}
    timing = {item.name: row[f"step_{item.name}"] for item in columns(Timing)}
    return KeptRun(**own, timing=None if timing["n"] is None else Timing(**timing), ranks=tuple(ranks))


# -------------------------------------------------------------------------------------------------------- connection


@contextmanager
def _connected(url: str, *, writes: bool) -> Iterator[sa.Connection]:
    """A transaction in a database of this schema, or of an older one that is only read.

    Raises InputError for all that a database can do wrong.
    """
    from sqlalchemy import create_engine, event, exc

    place = check_url(url)
    backend, name = place.get_backend_name(), _name(place)
    waits = {"sqlite": {"timeout": WAIT_S}, "postgresql": {"connect_timeout": WAIT_S, "options": f"-c lock_timeout={WAIT_S}s"}}
    try:
        if backend == "sqlite" and writes and place.database:
            Path(place.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(place, connect_args=waits.get(backend, {}))
    except ModuleNotFoundError as error:
        raise InputError(
            f"{name}: the driver {error.name} is not installed here",
            "Install it, or name another in the URL: postgresql+psycopg://...",
        ) from None
    except OSError as error:
        raise InputError(f"{name}: cannot be written: {error.strerror or error}") from None
    if backend == "sqlite":  # Python's own would begin no transaction before a table is made
        begin = "BEGIN IMMEDIATE" if writes else "BEGIN"
        event.listen(engine, "connect", lambda raw, record: setattr(raw, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
        if not writes:
            event.listen(engine, "connect", lambda raw, record: raw.execute("PRAGMA query_only = ON"))
    try:
        with engine.begin() as connection:
            (_migrate if writes else _check_readable)(connection, name)
            yield connection
    except exc.DBAPIError as error:
        raise InputError(f"{name}: {_own_words(error)}") from None
    except exc.SQLAlchemyError as error:
        raise InputError(f"{name}: {' '.join(str(error).split())[:200]}") from None
    finally:
        engine.dispose()


def _name(place: sa.URL) -> str:
    """What to call a database in a message: its file, or its kind and name; never a password or a host."""
    database = place.database or "(in memory)"
    return database if place.get_backend_name() == "sqlite" else f"{place.get_backend_name()} database {database}"


def _own_words(error: sa.exc.DBAPIError) -> str:
    words = (str(error.orig).strip().splitlines() or [type(error.orig).__name__])[0]
    if re.search("locked|lock timeout", words):
        return f"held by another process, and not free within {WAIT_S} s"
    return words.rpartition("failed: ")[2]
