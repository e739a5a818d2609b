"""``ddpprof verify``: from the command line to what is run, and from the table to its formats, files and status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpprof import verification
from ddpprof.errors import ToolError
from ddpprof.model import Acceptance, AcceptanceRow
from ddpprof.profiling import Settings


def table(verdict: str = "PASS", not_run: tuple[str, ...] = ()) -> Acceptance:
    problems = () if verdict == "PASS" else ("delay_cap4: 3 of 4 rank-steps",)
    row = AcceptanceRow(
        group="values",
        what="replicas",
        counted="rank-steps",
        expected=4,
        seen=4 - len(problems),
        verdict=verdict,
        problems=problems,
    )
    return Acceptance(
        ddpprof_version="0.1.0",
        torch_version="2.9.1",
        device="cpu",
        evidence="host-ranges",
        cases=("delay_cap4",),
        ranks=2,
        iterations=5,
        rows=(row,),
        timings=(),
        granularity=None,
        clocks=(),
        notes=(),
        not_run=not_run,
    )


@pytest.fixture
def played(monkeypatch, tmp_path):
    """Plays a verify that ends in this table; gives what it was called with."""
    monkeypatch.chdir(tmp_path)

    def play(found):
        calls = []

        def verify(names, settings, *, is_fresh, has_facts, say, working):
            calls.append((names, settings, is_fresh, has_facts))
            say("[1/1] delay_cap4: as it must be, 9 s")
            return found

        monkeypatch.setattr(verification, "verify", verify)
        return calls

    return play


def test_alone_it_takes_every_default(cli, played):
    calls = played(table())
    assert cli("verify", "--no-results").status == 0
    assert calls == [([], Settings(), False, False)]


def test_every_option_reaches_its_place(cli, played):
    calls = played(table())
    flags = "--cases a,b --ranks 2 --iterations 5 --device cpu --share-gpu --nsys /opt/nsys --facts --fresh -o there"
    assert cli("verify", "--results", "sqlite:///r.sqlite", *flags.split()).status == 0
    settings = Settings(
        ranks=2,
        iterations=5,
        device="cpu",
        share_gpu=True,
        nsys="/opt/nsys",
        folder=Path("there"),
        results="sqlite:///r.sqlite",
    )
    assert calls == [(["a", "b"], settings, True, True)]


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (table(), 0),
        (table("FAIL"), 3),
        (table("FAIL", ("delay_cap4: nsys was not found",)), 1),
    ],
)
def test_the_status_is_that_of_the_table(cli, played, found, status):
    played(found)
    assert cli("verify", "--no-results").status == status


def test_the_table_is_on_stdout_and_the_progress_is_not(cli, played):
    played(table("FAIL"))
    found = cli("verify", "--no-results")
    assert found.out.startswith("FAIL: 1 of 1 claim not met\nhost-ranges: ")
    assert found.out.endswith("What is not as it must be\n- delay_cap4: 3 of 4 rank-steps (values: replicas)\n")
    assert found.err == (
        "[1/1] delay_cap4: as it must be, 9 s\nthe runs and acceptance.md, acceptance.json are in runs/verify\n"
    )
    assert cli("-q", "verify", "--no-results") == (3, found.out, "")


def test_the_files_are_written_whatever_the_format(cli, played, tmp_path):
    played(table())
    as_json = cli("verify", "--no-results", "-f", "json", "-o", "there")
    as_markdown = cli("verify", "--no-results", "-f", "markdown", "-o", "there")
    assert json.loads(as_json.out)["is_passed"] is True
    assert (tmp_path / "there" / "acceptance.json").read_text() == as_json.out
    assert (tmp_path / "there" / "acceptance.md").read_text() == as_markdown.out


def test_a_table_that_cannot_be_written_is_shown_all_the_same(cli, played, tmp_path):
    played(table())
    (tmp_path / "there").write_text("mine")
    found = cli("verify", "--no-results", "-o", "there")
    assert (found.status, found.out.splitlines()[0]) == (1, "PASS: 1 claim met")
    assert "there" in found.err.splitlines()[1]


def test_an_error_of_the_whole_is_two_lines(cli, monkeypatch):
    def fail(*arguments, **options):
        raise ToolError("torch is not installed here", "Install what the workloads need: pip install 'ddpprof[run]'")

    monkeypatch.setattr(verification, "verify", fail)
    found = cli("verify", "--no-results")
    assert (found.status, found.out, len(found.err.splitlines())) == (1, "", 2)


def test_a_case_that_is_none_is_status_2(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = cli("verify", "--no-results", "--cases", "delay_cap4,delay_cap5")
    assert (found.status, list(tmp_path.iterdir())) == (2, [])
    assert "no case 'delay_cap5'" in found.err
