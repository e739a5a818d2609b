"""``ddpprof sweep``: from the command line to a sweep, and from what it found to words and a status."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddpprof import machine, sweeping
from ddpprof.errors import ToolError
from ddpprof.model import CapRow, Sweep, Timing
from ddpprof.profiling import Settings
from ddpprof.reports import sweep as reports

ROW = CapRow(
    cap_mb=4, rounds=1, timing=Timing(n=5, median_ns=100, p95_ns=120, min_ns=90, max_ns=120, mad_ns=1), launches=12,
    bucket_bytes=None, worst_rank=0, overlap_ns=1, overlap_ratio=0.5, exposed_comm_ns=1, tail_ns=1, is_correct=True,
    unsteady=None, failure=None,
)  # fmt: skip
SWEEP = Sweep(
    ddpprof_version="0.1.0", case="delay_cap4", world_size=2, device="cpu", device_model=None, is_time_sliced=False,
    evidence="host-ranges", timed_by="iterations", clock="wall", rounds=1,
    rows=(ROW, replace(ROW, cap_mb=64, launches=1)), recommended_mb=(4, 64), sameness=None,
)  # fmt: skip
KEPT = "sqlite:///runs/results.sqlite"
CAPS = (1, 2, 4, 8, 16, 25, 64)


@pytest.fixture(autouse=True)
def anywhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DDPPROF_RESULTS", raising=False)


@pytest.fixture
def played(monkeypatch):
    """Plays the two kinds of sweep with this outcome; gives what each was called with."""

    def play(sweep=SWEEP):
        calls = []

        def case(name, caps, rounds, settings, *, say, working):
            calls.append((name, caps, rounds, settings))
            say("a remark")
            return sweep, Path("runs/x")

        def own(command, caps, rounds, settings, *, uses_range, say, working):
            calls.append((command, caps, rounds, settings, uses_range))
            return sweep, Path("runs/x")

        monkeypatch.setattr(sweeping, "sweep_case", case)
        monkeypatch.setattr(sweeping, "sweep_job", own)
        return calls

    return play


def test_a_case_alone_takes_every_default(cli, played):
    calls = played()
    found = cli("sweep", "delay_cap4")
    assert calls == [("delay_cap4", CAPS, 3, Settings(results=KEPT))]
    assert found == (0, reports.render(SWEEP), "a remark\nfolder of the sweep: runs/x\n")
    assert cli("-q", "sweep", "delay_cap4") == (0, found.out, "")


def test_every_option_of_a_case_reaches_its_settings(cli, played):
    calls = played()
    flags = "--caps 4,0.5 --rounds 2 --ranks 2 --device cpu --share-gpu --iterations 5 --nsys /opt/nsys -o there --no-results"
    assert cli("sweep", *flags.split(), "delay_cap64").status == 0
    settings = Settings(ranks=2, device="cpu", share_gpu=True, iterations=5, nsys="/opt/nsys", folder=Path("there"))
    assert calls == [("delay_cap64", (0.5, 4), 2, settings)]


def test_what_stands_behind_the_dashes_is_your_own_job(cli, played):
    calls = played()
    assert cli("sweep", "--caps", "4,64", "--range", "--", "torchrun", "--ranks", "9", "{cap}").status == 0
    assert calls == [(["torchrun", "--ranks", "9", "{cap}"], (4, 64), 3, Settings(results=KEPT), True)]


def test_the_database_is_the_option_else_the_environment_else_a_file(cli, played, monkeypatch):
    calls = played()
    monkeypatch.setenv("DDPPROF_RESULTS", "sqlite:///of-the-environment.sqlite")
    cli("sweep", "delay_cap4")
    cli("sweep", "delay_cap4", "--results", "sqlite:///given.sqlite")
    assert [call[3].results for call in calls] == ["sqlite:///of-the-environment.sqlite", "sqlite:///given.sqlite"]


def test_the_other_formats(cli, played):
    played()
    assert cli("sweep", "delay_cap4", "--format", "markdown").out == reports.render_markdown(SWEEP)
    assert json.loads(cli("sweep", "delay_cap4", "--format", "json").out)["recommended_mb"] == [4, 64]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "name one case, or your own job after --\nSee the cases with: ddpprof cases"),
        (["--"], "name one case, or your own job after --"),
        (["delay_cap4", "--", "true"], "name one case, or your own job after --"),
        (["delay_cap4", "--range"], "--range: not for a case\nSee: ddpprof sweep --help"),
        (["--ranks", "2", "--", "true"], "--ranks: not for your own job"),
        (["--share-gpu", "--", "true"], "--share-gpu: not for your own job"),
        (["--iterations", "2", "--", "true"], "--iterations: not for your own job"),
        (["delay_cap4", "--caps", "0,4"], "--caps 0,4: '0' is not a number of MiB above 0\nExample: --caps 1,4,16,64"),
        (["delay_cap4", "--caps=-4,4"], "--caps -4,4: '-4' is not a number of MiB above 0"),
        (["delay_cap4", "--caps", "four"], "--caps four: 'four' is not a number of MiB above 0"),
        (["--caps", "4,x", "--", "true"], "--caps 4,x: 'x' is not a number of MiB above 0"),
        (["delay_cap4", "--caps", "4"], "--caps 4: a sweep compares two caps or more"),
        (["delay_cap4", "--rounds", "0"], "Invalid value for '--rounds'"),
        (["delay_cap4", "--format", "csv"], "'csv' is not one of"),
        (["delay_cap4", "--results", "here"], "--results: not a database URL that SQLAlchemy knows\nExamples: sqlite:///runs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_go_together_is_status_2(cli, played, arguments, what):
    calls = played()
    found = cli("sweep", *arguments)
    assert (found.status, found.out, calls, len(found.err.splitlines())) == (2, "", [], 2)
    assert what in found.err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["unused_undetected"], "unused_undetected: must fail, so there is nothing to sweep"),
        (["delay_cap5"], "no case 'delay_cap5'"),
        (["delay_cap4", "--device", "cuda"], "--device cuda: this machine has no GPU"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_swept_is_status_2_and_leaves_nothing(cli, monkeypatch, tmp_path, arguments, what):
    monkeypatch.setattr(machine, "gpu_names", lambda: ())
    found = cli("sweep", *arguments)
    assert (found.status, found.out, len(found.err.splitlines())) == (2, "", 2)
    assert what in found.err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"rows": (ROW, replace(ROW, cap_mb=64, is_correct=False))}, 3),
        ({"rows": (replace(ROW, failure="died"), replace(ROW, cap_mb=64, is_correct=False))}, 3),
        ({"rows": (ROW, replace(ROW, cap_mb=64, failure="died"))}, 1),
        ({"sameness": "ignored", "recommended_mb": ()}, 1),
        ({"sameness": "fits", "recommended_mb": ()}, 0),
    ],
)
def test_the_status_tells_what_was_wrong_and_the_table_is_there_all_the_same(cli, played, change, status):
    sweep = replace(SWEEP, **change)
    played(sweep)
    found = cli("sweep", "delay_cap4")
    assert (found.status, found.out) == (status, reports.render(sweep))


def test_an_error_of_the_job_is_its_lines_and_status(cli, monkeypatch):
    def lost(*arguments, **options):
        raise ToolError("torchrun: cannot be started: No such file or directory", "Is it installed, and on PATH?")

    monkeypatch.setattr(sweeping, "sweep_job", lost)
    assert cli("sweep", "--", "torchrun") == (
        1, "", "ddpprof: torchrun: cannot be started: No such file or directory\nIs it installed, and on PATH?\n",
    )  # fmt: skip
