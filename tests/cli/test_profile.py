"""``ddpprof profile``: from the command line to the settings of a job, and from its outcome to words and a status."""

from __future__ import annotations

from pathlib import Path

import captured
import pytest

from ddpprof import inputs, machine, profiling
from ddpprof.analysis.check import Result
from ddpprof.analysis.part import Options
from ddpprof.errors import ToolError
from ddpprof.model import Records
from ddpprof.profiling import Outcome, Settings

KEPT = "sqlite:///runs/results.sqlite"
HELD = (Result("overlap>0", "rank 0", "pass", "overlap_ns = 5"), Result("overlap>0", "rank 1", "pass", "overlap_ns = 5"))


@pytest.fixture
def analysis(tmp_path):
    path = captured.report(tmp_path / "a.sqlite", "delay_cap4")
    return inputs.Input(traces=inputs.read([path]).traces, ranks={}, case="delay_cap4").analyze(Options())


@pytest.fixture
def played(monkeypatch, analysis):
    """Plays the two jobs with this outcome; gives what each was called with."""

    def play(results=(), analysis=analysis):
        calls = []
        outcome = Outcome(folder=Path("runs/x"), analysis=analysis, records=Records(), results=results)

        def case(name, settings, *, say, working):
            calls.append((name, settings))
            say("a remark")
            return outcome

        def own(command, settings, *, uses_range, say, working):
            calls.append((command, settings, uses_range))
            return outcome

        monkeypatch.setattr(profiling, "profile_case", case)
        monkeypatch.setattr(profiling, "profile_job", own)
        return calls

    return play


def test_a_case_alone_takes_every_default(cli, played):
    calls = played(HELD)
    assert cli("profile", "delay_cap4").status == 0
    assert calls == [("delay_cap4", Settings(results=KEPT))]


def test_every_option_of_a_case_reaches_its_settings(cli, played):
    calls = played(HELD)
    flags = "--ranks 2 --device cpu --share-gpu --capture torch --report-per-rank --iterations 3 --seed 7 --port 29500"
    assert (
        cli(
            "profile",
            *flags.split(),
            "--nsys",
            "/opt/nsys",
            "-o",
            "there",
            "--results",
            "sqlite:///there.sqlite",
            "delay_cap64",
        ).status
        == 0
    )
    settings = Settings(
        ranks=2,
        device="cpu",
        share_gpu=True,
        capture="torch",
        report_per_rank=True,
        iterations=3,
        seed=7,
        port=29500,
        nsys="/opt/nsys",
        folder=Path("there"),
        results="sqlite:///there.sqlite",
    )
    assert calls == [("delay_cap64", settings)]


def test_what_stands_behind_the_dashes_is_your_own_job(cli, played):
    calls = played()
    assert cli("profile", "--range", "--device", "cuda", "--", "torchrun", "--ranks", "9", "--", "train.py").status == 0
    assert calls == [(["torchrun", "--ranks", "9", "--", "train.py"], Settings(device="cuda", results=KEPT), True)]


def test_results_are_kept_unless_told_not_to(cli, played):
    calls = played(HELD)
    assert cli("profile", "delay_cap4", "--no-results").status == 0
    assert calls == [("delay_cap4", Settings())]
    assert cli("profile", "delay_cap4", "--results", "here").status == 2


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "name one case, or your own job after --\nSee the cases with: ddpprof cases"),
        (["--"], "name one case, or your own job after --"),
        (["delay_cap4", "--", "true"], "name one case, or your own job after --"),
        (["delay_cap4", "--range"], "--range: not for a case"),
        (["--ranks", "2", "--", "true"], "--ranks: not for your own job"),
        (["--share-gpu", "--", "true"], "--share-gpu: not for your own job"),
        (["--capture", "torch", "--", "true"], "--capture: not for your own job"),
        (["--report-per-rank", "--", "true"], "--report-per-rank: not for your own job"),
        (["--iterations", "2", "--", "true"], "--iterations: not for your own job"),
        (["--seed", "2", "--", "true"], "--seed: not for your own job"),
        (["--port", "2", "--", "true"], "--port: not for your own job"),
        (["delay_cap4", "--capture", "perf"], "'perf' is not one of"),
        (["train.py"], "train.py: your own job goes after --\nAs in: ddpprof profile -- torchrun --nproc-per-node 4 train.py"),
        (["-o", "x.py", "torchrun", "--nproc-per-node", "2", "mine.py"], "torchrun: your own job goes after --"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_go_together_is_status_2(cli, played, arguments, what):
    calls = played()
    found = cli("profile", *arguments)
    assert (found.status, found.out, calls, len(found.err.splitlines())) == (2, "", [], 2)
    assert what in found.err


@pytest.mark.parametrize(
    ("arguments", "what", "hint"),
    [
        (["delay_cap5"], "no case 'delay_cap5'", "Did you mean delay_cap4 or delay_cap64"),
        (["delay_cap4", "--ranks", "0"], "--ranks 0: a job has at least one rank", "Give --ranks 1 or more."),
        (["delay_cap4", "--ranks", "33"], "--ranks 33: more than 16 ranks a core (2 cores)", "Use --ranks 32 at most"),
        (["delay_cap4", "--port", "0"], "--port 0: not a port number (1 to 65535)", "Leave --port out"),
        (["delay_cap4", "--device", "cuda"], "--device cuda: this machine has no GPU", "Use --device cpu."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_this_machine_cannot_do_is_status_2(cli, monkeypatch, tmp_path, arguments, what, hint):
    monkeypatch.setattr(machine, "gpu_names", lambda: ())
    monkeypatch.setattr(machine, "cpu_count", lambda: 2)
    monkeypatch.chdir(tmp_path)
    found = cli("profile", *arguments)
    first, second = found.err.splitlines()
    assert (found.status, found.out, list(tmp_path.iterdir())) == (2, "", [])
    assert what in first
    assert hint in second


# -------------------------------------------------------------------------------------------------------- the outcome


def test_what_held_is_said_below_the_report(cli, played):
    played(HELD)
    found = cli("profile", "delay_cap4")
    assert found.out.startswith("host-ranges: ")
    assert found.out.endswith("\n\nAs delay_cap4 must be, on 2 of 2 ranks: overlap>0\n")
    assert found.err == "a remark\nrun folder: runs/x\n"
    assert cli("-q", "profile", "delay_cap4") == (0, found.out, "")


@pytest.mark.parametrize(
    ("verdicts", "status", "lines"),
    [
        (("pass", "fail"), 3, ["FAIL  rank 1: overlap>0: seen"]),
        (("fail", "unknown"), 3, ["FAIL  rank 0: overlap>0: seen", "CANNOT TELL  rank 1: overlap>0: seen"]),
        (("pass", "unknown"), 1, ["CANNOT TELL  rank 1: overlap>0: seen"]),
    ],
)
def test_what_did_not_hold_is_a_line_for_each_rank_and_the_status_of_a_check(cli, played, verdicts, status, lines):
    played(tuple(Result("overlap>0", f"rank {rank}", verdict, "seen") for rank, verdict in enumerate(verdicts)))
    found = cli("profile", "delay_cap4")
    assert found.status == status
    assert found.out.splitlines()[-len(lines) - 1 :] == ["", *lines]
    assert "run folder: runs/x" in found.err


@pytest.mark.parametrize(("verdict", "status", "n"), [("pass", 0, 2), ("fail", 3, 1)])
def test_a_case_that_must_fail_says_on_how_many_ranks_it_did(cli, played, verdict, status, n):
    results = (Result("expected failure", "rank 0", "pass", "step 1"), Result("expected failure", "rank 1", verdict, "none"))
    played(results, analysis=None)
    found = cli("profile", "unused_undetected")
    assert found.status == status
    assert found.out.splitlines()[-1] == f"expected failure seen on {n} of 2 ranks"
    assert ("FAIL  rank 1: expected failure: none" in found.out) is bool(status)


def test_your_own_job_ends_with_its_report(cli, played, analysis):
    played()
    found = cli("profile", "--", "true")
    assert (found.status, found.err) == (0, "run folder: runs/x\n")
    assert "must be" not in found.out
    assert not found.out.endswith("\n\n")


def test_an_error_of_the_job_is_its_lines_and_status(cli, monkeypatch):
    def lost(*arguments, **options):
        raise ToolError("the capture lacks rank 1 of 2", "Try --report-per-rank.")

    monkeypatch.setattr(profiling, "profile_case", lost)
    assert cli("profile", "delay_cap4") == (1, "", "ddpprof: the capture lacks rank 1 of 2\nTry --report-per-rank.\n")
