from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from stubs import fake_nsys

from ddpprof.cli import main


@pytest.fixture
def report(tmp_path, monkeypatch):
    """A report in the working directory, and a fake nsys that exports it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DDPPROF_NSYS", str(fake_nsys(tmp_path / "bin" / "nsys")))
    path = tmp_path / "report.nsys-rep"
    path.write_text("first")
    os.utime(path, (1000, 1000))
    return path


def export(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["export", *arguments])
    return ended.value.code


def exported(path: Path) -> bytes:
    """What a database with the table of every export is, made at ``path``."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE StringIds (id, value)")
    return path.read_bytes()


def test_the_export_lies_beside_the_report_and_its_path_is_printed(report, capsys):
    assert export("report.nsys-rep") == 0
    assert report.with_suffix(".sqlite").read_text() == "export of first"
    assert capsys.readouterr().out == "report.sqlite\n"


def test_an_export_that_is_up_to_date_is_said_and_kept(report, capsys):
    before = exported(report.with_suffix(".sqlite"))
    assert export("report.nsys-rep") == 0
    assert report.with_suffix(".sqlite").read_bytes() == before
    said = capsys.readouterr()
    assert said.out == "report.sqlite\n"
    assert "up to date" in said.err
    assert export("report.nsys-rep", "--force") == 0
    assert report.with_suffix(".sqlite").read_text() == "export of first"


def test_a_stale_export_is_noticed_and_renewed(report, capsys):
    exported(report.with_suffix(".sqlite"))
    os.utime(report.with_suffix(".sqlite"), (999, 999))
    assert export("report.nsys-rep") == 0
    assert report.with_suffix(".sqlite").read_text() == "export of first"
    assert "report.sqlite is older than report.nsys-rep: exporting again" in capsys.readouterr().err


def test_another_place_can_be_given(report, capsys):
    assert export("report.nsys-rep", "-o", "there/out.sqlite") == 0
    assert capsys.readouterr().out == "there/out.sqlite\n"
    assert (report.parent / "there" / "out.sqlite").read_text() == "export of first"


def test_what_is_no_export_is_replaced_only_by_force(report, capsys):
    notes = report.parent / "notes.md"
    notes.write_text("mine")
    os.utime(notes, (999, 999))
    assert export("report.nsys-rep", "-o", "notes.md") == 2
    said = capsys.readouterr()
    assert (said.out, notes.read_text()) == ("", "mine")
    assert said.err == (
        "ddpprof: notes.md: exists and is not an export of nsys\nChoose another place, or --force to replace it.\n"
    )
    assert export("report.nsys-rep", "-o", "notes.md", "--force") == 0
    assert notes.read_text() == "export of first"


def test_a_newer_report_is_an_error_in_two_lines(report, monkeypatch, capsys):
    newer = "sys.exit('Exportation error: Version number is invalid: 2026@1@1@9-9v0')"
    monkeypatch.setenv("DDPPROF_NSYS", str(fake_nsys(report.parent / "nsys", export=newer)))
    assert export("report.nsys-rep") == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2].startswith("ddpprof: report.nsys-rep: written by nsys 2026.1.1.9, newer than this nsys 2023.4.4.54")
    assert lines[-1].startswith("Export it where it was captured")
    assert not report.with_suffix(".sqlite").exists()


def test_what_is_no_report_is_told_before_any_nsys_is_looked_for(report, monkeypatch, capsys):
    monkeypatch.setenv("DDPPROF_NSYS", "no-nsys-at-all")
    assert export("missing.nsys-rep") == 1
    assert capsys.readouterr().err == "ddpprof: missing.nsys-rep: no such report\n"
    assert export("reprot.nsys-rep") == 1
    assert capsys.readouterr().err == "ddpprof: reprot.nsys-rep: no such report\nDid you mean report.nsys-rep?\n"
    report.with_suffix(".qdstrm").touch()
    assert export("report.qdstrm") == 1
    assert "unfinished stream, not a report" in capsys.readouterr().err
