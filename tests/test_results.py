"""The results database: what goes in comes out, older files are brought up to date, what goes wrong with one is a line."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import captured
import pytest
from nsight import K, build

from ddpprof import inputs, results
from ddpprof.analysis.part import Options
from ddpprof.errors import InputError, UsageError
from ddpprof.model import KeptRank, KeptRun, Records, RunRecord, Timing

SCHEMA_1 = Path(__file__).parent / "data" / "results_schema1.sqlite"
TIMING = Timing(n=5, median_ns=100, p95_ns=130, min_ns=90, max_ns=130, mad_ns=10)
RANK = KeptRank(
    rank=0, step_ns=2**40, compute_ns=60, comm_ns=40, overlap_ns=10, exposed_comm_ns=30, compute_only_ns=50, memory_only_ns=0,
    idle_ns=10, compute_span_ns=70, comm_span_ns=None, tail_ns=5, overlap_ratio=0.25,
)  # fmt: skip
RUN = KeptRun(
    finished_utc="2026-03-01T10:00:00+00:00", case_name="delay_cap4", kind="profile", ddpprof_version="0.1.0",
    torch_version="2.9.1", nsys_version="2023.4.4.54", nccl_version=None, git_commit="aa08bdc", device="cpu",
    device_model="A CPU", evidence="host-ranges", clock="wall", world_size=2, bucket_cap_mb=4.0, timing=TIMING,
    ranks=(RANK, replace(RANK, rank=None, overlap_ratio=None)),
)  # fmt: skip


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs/results.sqlite"


def older(path: Path) -> str:
    """The URL of a copy of a database of schema version 1."""
    shutil.copyfile(SCHEMA_1, path)
    return f"sqlite:///{path}"


def test_what_was_kept_comes_back_newest_last(url: str) -> None:
    later = replace(RUN, finished_utc="2026-03-02T10:00:00+00:00", timing=None, ranks=())
    results.append(url, [later, replace(RUN, case_name="delay_cap64")])
    results.append(url, [RUN])
    assert results.history(url, "delay_cap4") == (RUN, later)


def test_the_schema_is_what_it_was_said_to_be() -> None:
    """A column more needs a VERSION more, and its name in ADDED."""
    tables = {name: [column.name for column in table.columns] for name, table in results._metadata().tables.items()}
    assert results.VERSION == 2
    assert tables == {
        "ddpprof_schema_version": ["version"],
        "ddpprof_runs": [
            *("id", "finished_utc", "case_name", "kind", "ddpprof_version", "torch_version", "nsys_version", "nccl_version"),
            *("git_commit", "device", "device_model", "evidence", "clock", "world_size", "bucket_cap_mb"),
            *("step_n", "step_median_ns", "step_p95_ns", "step_min_ns", "step_max_ns", "step_mad_ns"),
        ],
        "ddpprof_ranks": [
            *("id", "run_id", "step_ns", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "compute_only_ns"),
            *("memory_only_ns", "idle_ns", "compute_span_ns", "comm_span_ns", "tail_ns", "overlap_ratio", "rank"),
        ],
    }


def test_an_older_file_is_brought_up_to_date_and_loses_nothing(tmp_path: Path) -> None:
    url = older(tmp_path / "old.sqlite")
    (found,) = results.history(url, "delay_cap4")
    assert (found.evidence, found.clock, found.world_size, found.nsys_version) == (None, None, 2, "2023.4.4.54")
    assert found.timing == Timing(
        n=5, median_ns=203_006_074, p95_ns=222_722_423, min_ns=190_763_220, max_ns=222_722_423, mad_ns=9_151_541
    )
    assert [(row.rank, row.overlap_ns, row.exposed_comm_ns) for row in found.ranks] == [
        (0, 105_395_304, 47_968_577),
        (1, 45_297_395, 46_040_231),
    ]
    results.append(url, [replace(RUN, finished_utc="2027-01-01T00:00:00+00:00")])
    assert [run.evidence for run in results.history(url, "delay_cap4")] == [None, "host-ranges"]
    with sqlite3.connect(tmp_path / "old.sqlite") as connection:
        assert connection.execute("SELECT version FROM ddpprof_schema_version").fetchall() == [(2,)]


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = older(tmp_path / "old.sqlite")
    before = (tmp_path / "old.sqlite").read_bytes()
    monkeypatch.setattr(results, "ADDED", {2: {"ddpprof_runs": ("evidence",), "no_such_table": ()}, 3: {}})
    monkeypatch.setattr(results, "VERSION", 4)
    with pytest.raises(KeyError):
        results.append(url, [RUN])
    assert (tmp_path / "old.sqlite").read_bytes() == before


def test_reading_writes_nothing(tmp_path: Path) -> None:
    url, path = older(tmp_path / "old.sqlite"), tmp_path / "old.sqlite"
    before = path.read_bytes()
    assert len(results.history(url, "delay_cap4")) == 1
    assert [case for case, *_ in results.cases(url)] == ["delay_cap4", "delay_cap64"]
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["old.sqlite"]


def test_a_database_of_somebody_else_is_neither_read_nor_written(tmp_path: Path) -> None:
    path, said = build(tmp_path / "report.sqlite", [K(0, 7, 0, 100)]), []
    before, url = path.read_bytes(), f"sqlite:///{path}"
    for read in (lambda: results.cases(url), lambda: results.history(url, "delay_cap4")):
        with pytest.raises(InputError, match=r"report\.sqlite: no results in it\n"):
            read()
    results.keep(url, [RUN], said.append)
    assert said == [f"results not kept: {path}: holds other tables than results\nKeep results elsewhere with --results URL."]
    assert path.read_bytes() == before


def test_an_empty_file_holds_no_results_and_takes_some(tmp_path: Path) -> None:
    (tmp_path / "empty.sqlite").touch()
    url = f"sqlite:///{tmp_path}/empty.sqlite"
    with pytest.raises(InputError, match="no results in it"):
        results.cases(url)
    assert not results.is_results(tmp_path / "empty.sqlite")
    results.append(url, [RUN])
    assert results.history(url, "delay_cap4") == (RUN,)
    assert results.is_results(tmp_path / "empty.sqlite")


def test_a_newer_schema_is_refused_and_not_touched(url: str, tmp_path: Path) -> None:
    results.append(url, [RUN])
    path = tmp_path / "runs" / "results.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE ddpprof_schema_version SET version = 9")
    before = path.read_bytes()
    for act in (lambda: results.append(url, [RUN]), lambda: results.history(url, "delay_cap4")):
        with pytest.raises(InputError) as caught:
            act()
        assert caught.value.message == f"{path}: results of schema version 9, newer than the 2 of this ddpprof"
        assert caught.value.hint == "Update ddpprof, or keep results elsewhere with --results URL."
    assert path.read_bytes() == before


def test_a_file_that_somebody_holds_is_waited_for_then_told(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "WAIT_S", 0.05)
    results.append(url, [RUN])
    path, said = tmp_path / "runs" / "results.sqlite", []
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    results.keep(url, [RUN], said.append)
    assert said == [f"results not kept: {path}: held by another process, and not free within 0.05 s"]
    holder.execute("ROLLBACK")
    holder.close()
    results.keep(url, [RUN], said.append)
    assert (len(said), len(results.history(url, "delay_cap4"))) == (1, 2)


def test_a_file_that_becomes_free_in_time_is_written(url: str, tmp_path: Path) -> None:
    results.append(url, [RUN])
    holder = sqlite3.connect(tmp_path / "runs" / "results.sqlite", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(0.3, lambda: holder.execute("ROLLBACK"))
    release.start()
    results.append(url, [RUN])
    release.join()
    holder.close()
    assert len(results.history(url, "delay_cap4")) == 2


def test_writers_at_once_lose_nothing(url: str) -> None:
    failed: list[str] = []
    writers = [threading.Thread(target=results.keep, args=(url, [RUN], failed.append)) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (failed, len(results.history(url, "delay_cap4"))) == ([], 8)


def test_what_is_no_database_is_told_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("chapter one, " * 100)
    with pytest.raises(InputError, match=r"thesis\.txt: file is not a database"):
        results.append(f"sqlite:///{tmp_path}/thesis.txt", [RUN])
    assert (tmp_path / "thesis.txt").read_text().startswith("chapter one")
    with pytest.raises(InputError, match="cannot be written: File exists"):
        results.append(f"sqlite:///{tmp_path}/thesis.txt/results.sqlite", [RUN])


@pytest.mark.parametrize("url", ["results.sqlite", "nosuchdb://host/name", "", "postgresql://host:port/name"])
def test_what_is_no_url_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        results.check_url(url)
    assert caught.value.message == "--results: not a database URL that SQLAlchemy knows"


def test_a_driver_that_is_not_installed_is_named() -> None:
    with pytest.raises(InputError, match="mysql database name: the driver MySQLdb is not installed here"):
        results.append("mysql://host/name", [RUN])


def test_a_server_that_is_not_there_is_told_without_host_or_password() -> None:
    pytest.importorskip("psycopg", reason="no psycopg to talk to PostgreSQL with")
    said: list[str] = []
    results.keep("postgresql+psycopg://me:hush@127.0.0.1:1/runs", [RUN], said.append)
    assert said == ["results not kept: postgresql database runs: Connection refused"]


def test_a_history_that_is_not_there_is_told_and_not_made(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no results kept yet"):
        results.history(url, "delay_cap4")
    assert list(tmp_path.iterdir()) == []
    results.append(url, [RUN])
    with pytest.raises(InputError) as caught:
        results.history(url, "delay_cap5")
    assert caught.value.message.endswith("results.sqlite: no run of 'delay_cap5'")
    assert caught.value.hint == "There are runs of: delay_cap4."


# ------------------------------------------------------------------------------------------------------- what is kept


def test_a_run_is_described_by_its_manifest_its_records_and_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "git_commit", lambda: "aa08bdc")
    monkeypatch.setattr(results.machine, "cpu_model", lambda: "A CPU")
    analysis = inputs.read([captured.report(tmp_path / "a.sqlite", "delay_cap4")]).analyze(Options())
    run = RunRecord(
        rank=0, world_size=2, case="delay_cap4", device="cuda", backend="nccl", bucket_cap_mb=4, iterations=5, seed=0,
        torch_version="2.9.1", nccl_version="2.28.9", clock="cuda-event",
    )  # fmt: skip
    manifest = {
        "finished_utc": "2026-03-01T10:00:00+00:00", "case": None, "ddpprof_version": "0.1.0", "torch_version": "2.9.1",
        "nsys_version": None, "device": "cpu", "bucket_cap_mb": 8, "command": "ddpprof profile --secret",
    }  # fmt: skip
    found = results.describe(manifest, analysis, Records(runs=(run,)), TIMING, kind="sweep")
    assert (found.case_name, found.kind, found.bucket_cap_mb, found.nsys_version) == ("job", "sweep", 8, None)
    assert (found.nccl_version, found.clock, found.device_model, found.git_commit) == (
        "2.28.9",
        "cuda-event",
        "A CPU",
        "aa08bdc",
    )
    assert (found.world_size, found.evidence, found.timing) == (2, "host-ranges", TIMING)
    assert [(row.rank, row.overlap_ns, row.comm_ns) for row in found.ranks] == [
        (0, 66_000_000, 108_000_000),
        (1, 66_000_000, 108_000_000),
    ]
    assert "secret" not in repr(found)


def git(folder: Path, *arguments: str) -> str:
    own = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    done = subprocess.run(["git", *arguments], cwd=folder, env=os.environ | own, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git on this machine")
def test_the_commit_is_the_short_hash_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert results.git_commit() is None
    git(tmp_path, "init", "-q")
    assert results.git_commit() is None
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    assert results.git_commit() == git(tmp_path, "rev-parse", "HEAD")[: len(results.git_commit() or "")]
    assert 7 <= len(results.git_commit() or "") < 20
    monkeypatch.setenv("PATH", str(tmp_path))
    assert results.git_commit() is None


# ---------------------------------------------------------------------------------------------------------- PostgreSQL


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a PostgreSQL: DDPPROF_TEST_POSTGRES_URL, else of one started for the tests, on a socket in a folder."""
    pytest.importorskip("psycopg", reason="no psycopg to talk to PostgreSQL with")
    if given := os.environ.get("DDPPROF_TEST_POSTGRES_URL"):
        yield given
        return
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    binaries = next((place for place in places if (place / "initdb").exists()), None)
    if binaries is None:
        pytest.skip("no PostgreSQL on this machine, and no DDPPROF_TEST_POSTGRES_URL")
    owner = {"user": "nobody"} if os.geteuid() == 0 else {}  # it refuses to run as root
    with tempfile.TemporaryDirectory(prefix="ddpprof-") as place:
        if owner:
            shutil.chown(place, "nobody")
        make = [
            str(binaries / "initdb"),
            "-D",
            f"{place}/data",
            "-U",
            "ddpprof",
            "-A",
            "trust",
            "-N",
            "--no-locale",
            "-E",
            "UTF8",
        ]
        subprocess.run(make, cwd=place, check=True, capture_output=True, timeout=120, **owner)
        serve = [str(binaries / "postgres"), "-D", f"{place}/data", "-k", place, "-F", "-c", "listen_addresses="]
        with (Path(place) / "log").open("wb") as log, subprocess.Popen(serve, cwd=place, stderr=log, **owner) as process:
            try:
                deadline = time.monotonic() + 60
                while not (Path(place) / ".s.PGSQL.5432").exists() and time.monotonic() < deadline:
                    time.sleep(0.05)
                yield f"postgresql+psycopg://ddpprof@/postgres?host={place}"
            finally:
                process.terminate()


@pytest.fixture
def postgres(server: str) -> Iterator[str]:
    """A PostgreSQL without our tables."""
    drop = "DROP TABLE IF EXISTS ddpprof_ranks, ddpprof_runs, ddpprof_schema_version"
    for _ in range(20):  # the socket is there a moment before the server answers
        try:
            execute(server, drop)
            break
        except Exception:
            time.sleep(0.25)
    yield server
    execute(server, drop)


def execute(url: str, *statements: str) -> None:
    import sqlalchemy as sa

    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))
    engine.dispose()


def test_postgres_keeps_and_gives_back(postgres: str) -> None:
    later = replace(RUN, finished_utc="2026-03-02T10:00:00+00:00", timing=None, ranks=())
    results.append(postgres, [later])
    results.append(postgres, [RUN])
    assert results.history(postgres, "delay_cap4") == (RUN, later)


def test_postgres_is_migrated_and_a_newer_schema_refused(postgres: str) -> None:
    results.append(postgres, [RUN])
    execute(
        postgres,
        "ALTER TABLE ddpprof_runs DROP COLUMN evidence, DROP COLUMN clock",
        "UPDATE ddpprof_schema_version SET version = 1",
    )
    assert results.history(postgres, "delay_cap4") == (replace(RUN, evidence=None, clock=None),)
    results.append(postgres, [RUN])
    execute(postgres, "UPDATE ddpprof_schema_version SET version = 9")
    with pytest.raises(InputError, match="postgresql database postgres: results of schema version 9, newer than the 2"):
        results.append(postgres, [RUN])


def test_postgres_makes_its_tables_once_however_many_come_at_once(postgres: str) -> None:
    failed: list[str] = []
    writers = [threading.Thread(target=results.keep, args=(postgres, [RUN], failed.append)) for _ in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (failed, len(results.history(postgres, "delay_cap4"))) == ([], 6)


def test_postgres_that_somebody_holds_is_waited_for_then_told(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlalchemy as sa

    results.append(postgres, [RUN])
    monkeypatch.setattr(results, "WAIT_S", 1)
    said: list[str] = []
    engine = sa.create_engine(postgres)
    with engine.begin() as holder:
        holder.execute(sa.text("LOCK TABLE ddpprof_runs IN ACCESS EXCLUSIVE MODE"))
        results.keep(postgres, [RUN], said.append)
    engine.dispose()
    assert said == ["results not kept: postgresql database postgres: held by another process, and not free within 1 s"]


def test_postgres_without_the_database_is_told(postgres: str) -> None:
    said: list[str] = []
    results.keep(postgres.replace("/postgres?", "/nowhere?"), [RUN], said.append)
    assert said == ['results not kept: postgresql database nowhere: FATAL:  database "nowhere" does not exist']
