"""``ddpprof history``: the runs kept, newest last, with what changed."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

import pytest
from nsight import K, build

from ddpprof import results
from ddpprof.model import KeptRun, Timing

RUN = KeptRun(
    finished_utc="", case_name="delay_cap4", kind="profile", ddpprof_version="0.1.0", torch_version="2.9.1", nsys_version=None,
    nccl_version=None, git_commit=None, device="cpu", device_model="A CPU", evidence="host-ranges", clock="wall", world_size=2,
    bucket_cap_mb=4.0, timing=None, ranks=(),
)  # fmt: skip


def run(day: int, median: int, **other: object) -> KeptRun:
    timing = Timing(n=10, median_ns=median, p95_ns=median, min_ns=median, max_ns=median, mad_ns=1)
    return replace(RUN, finished_utc=f"2026-03-0{day}T10:00:00+00:00", timing=timing, **other)  # type: ignore[arg-type]


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Four runs of one case in the database of the working folder, the third of another cap, the fourth slower."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DDPPROF_RESULTS", raising=False)
    runs = [run(1, 100), run(2, 101), run(3, 500, bucket_cap_mb=64.0), run(4, 110)]
    results.append("sqlite:///runs/results.sqlite", runs)
    return tmp_path / "runs" / "results.sqlite"


def test_the_runs_come_newest_last_with_their_change(cli, kept):
    found = cli("history", "delay_cap4")
    assert (found.status, found.err) == (0, "")
    lines = [line for line in found.out.splitlines() if line.startswith("  2026")]
    assert [line.split()[0] for line in lines[:4]] == ["2026-03-01", "2026-03-02", "2026-03-03", "2026-03-04"]
    assert [("slower by 10.0 %" in line) for line in lines[:4]] == [False, False, False, True]


def test_the_limit_keeps_the_newest_and_their_change(cli, kept):
    found = json.loads(cli("history", "delay_cap4", "--limit", 2, "--format", "json").out)
    assert [(row["bucket_cap_mb"], row["change_ns"]) for row in found["runs"]] == [(64.0, None), (4.0, 10)]


def test_without_a_case_it_lists_those_that_have_runs(cli, kept):
    results.append("sqlite:///runs/results.sqlite", [run(5, 7, case_name="job")])
    title, _, heading, *rows = cli("history").out.splitlines()
    assert (title, heading.split(), rows) == (
        "Runs kept",
        ["case", "runs", "(UTC)"],
        ["  delay_cap4     4  2026-03-04 10:00:00", "  job            1  2026-03-05 10:00:00"],
    )
    assert json.loads(cli("history", "--format", "json").out)["cases"] == [
        {"case": "delay_cap4", "runs": 4, "newest_utc": "2026-03-04T10:00:00+00:00"},
        {"case": "job", "runs": 1, "newest_utc": "2026-03-05T10:00:00+00:00"},
    ]
    assert cli("history", "--results", "sqlite:///no.sqlite").status == 1


def test_a_database_of_no_runs_lists_none(cli, kept):
    results.append("sqlite:///empty.sqlite", [])
    assert cli("history", "--results", "sqlite:///empty.sqlite").out.startswith("Runs kept\n  (none)")


def test_a_database_elsewhere(cli, kept, monkeypatch, tmp_path):
    kept.rename(tmp_path / "other.sqlite")
    assert cli("history", "delay_cap4", "--results", "sqlite:///other.sqlite").status == 0
    monkeypatch.setenv("DDPPROF_RESULTS", "sqlite:///other.sqlite")
    assert cli("history", "delay_cap4").status == 0


@pytest.mark.parametrize(
    ("arguments", "status", "what"),
    [
        (["delay_cap5"], 1, "no run of 'delay_cap5'\nThere are runs of: delay_cap4."),
        (["delay_cap4", "--results", "sqlite:///no.sqlite"], 1, "no.sqlite: no results kept yet\nEach `ddpprof profile`"),
        (["delay_cap4", "--results", "here"], 2, "--results: not a database URL that SQLAlchemy knows"),
        (["delay_cap4", "--limit", "0"], 2, "Invalid value for '--limit'"),
        (["delay_cap4", "--format", "csv"], 2, "'csv' is not one of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_not_there_is_told(cli, kept, arguments, status, what):
    found = cli("history", *arguments)
    assert (found.status, found.out, len(found.err.splitlines())) == (status, "", 2)
    assert what in found.err


def test_a_newer_schema_is_refused(cli, kept):
    with sqlite3.connect(kept) as connection:
        connection.execute("UPDATE ddpprof_schema_version SET version = 3")
    found = cli("history", "delay_cap4")
    assert (found.status, found.out) == (1, "")
    assert "results of schema version 3, newer than the 2 of this ddpprof\nUpdate ddpprof" in found.err


def test_a_report_is_not_taken_for_a_database_of_runs(cli, kept, report):
    before = build(report, [K(0, 7, 0, 100)]).read_bytes()
    found = cli("history", "--results", f"sqlite:///{report}")
    assert (found.status, found.out) == (1, "")
    assert f"{report}: no results in it" in found.err
    assert report.read_bytes() == before
