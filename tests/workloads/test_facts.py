"""The facts hold on the installed PyTorch; the checks can fail; what happens to their process is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist

from ddpprof.errors import ToolError
from ddpprof.reducer import FACTS
from ddpprof.workloads import fact_checks, facts
from ddpprof.workloads.facts import check_facts

NEWER = {10: "bucket_cap_mb_list", 37: "skip_all_reduce_unused_params"}
"""Facts about options that not every supported PyTorch has."""


def test_the_facts_hold_on_the_installed_pytorch():
    results = check_facts()
    assert [(result.number, result.text) for result in results] == [(fact.number, fact.text) for fact in FACTS]
    assert [(result.number, result.detail) for result in results if result.status == "fail"] == []
    skipped = {result.number: result.detail for result in results if result.status == "skip"}
    assert skipped.pop(15) == "nothing outside the Reducer shows it"
    assert all(NEWER[number] in detail for number, detail in skipped.items())
    assert sum(result.status == "pass" for result in results) >= 35


def test_every_fact_has_a_check():
    assert sorted(fact_checks.CHECKS) == [fact.number for fact in FACTS]


def test_a_pytorch_that_does_otherwise_fails_the_fact(alone, monkeypatch):
    assert fact_checks.outcome(fact_checks.CHECKS[9]) == ("pass", "")
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 1)
    assert fact_checks.outcome(fact_checks.CHECKS[9]) == ("fail", "expected ((2, 3, 4), (0, 1)), saw ((1, 2, 3, 4), (0,))")
    monkeypatch.setenv("DDP_SET_LAST_BUCKET_CAP", "1")
    assert fact_checks.outcome(fact_checks.CHECKS[20]) == ("fail", "expected [1, 7, 4], saw [4, 7, 1]")


def test_an_error_fails_a_fact_and_what_is_not_there_skips_it():
    assert fact_checks.outcome(lambda: {}["key"]) == ("fail", "KeyError: 'key'")
    status, detail = fact_checks.outcome(lambda: fact_checks.needs("no_such_option"))
    assert (status, detail) == ("skip", f"DDP of torch {torch.__version__} has no no_such_option")
    assert fact_checks.outcome(lambda: fact_checks.expect_error("wrong", lambda: None))[0] == "fail"
    assert fact_checks.outcome(lambda: fact_checks.expect_error("wrong", lambda: {}["key"]))[0] == "fail"


STAND_IN = """
import json, os, signal, subprocess, sys, time
for number in map(int, sys.argv[1:]):
    print(json.dumps({{"number": number}}), flush=True)
    if number == 2:
        {second}
    print(json.dumps({{"number": number, "status": "pass", "detail": ""}}), flush=True)
"""


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Runs stand-ins for the checks, of which the second one does what is given: (status, detail) by number."""

    def run(second: str) -> dict[int, tuple[str, str]]:
        (tmp_path / "stand_in.py").write_text(STAND_IN.format(second=second), encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return {result.number: (result.status, result.detail) for result in check_facts("stand_in")}

    return run


def test_a_crash_costs_its_own_fact_alone(results):
    found = results("os.kill(os.getpid(), signal.SIGSEGV)")
    assert found.pop(2) == ("fail", "the process that checked it was ended by SIGSEGV")
    assert set(found.values()) == {("pass", "")}
    assert len(found) == len(FACTS) - 1


def test_an_exit_is_told_with_its_last_words(results):
    assert results("sys.exit('out of luck')")[2] == ("fail", "the process that checked it ended with status 1: out of luck")


def test_a_check_that_hangs_is_ended_with_all_that_it_started(results, monkeypatch, tmp_path):
    monkeypatch.setattr(facts, "TIMEOUT_S", 2.0)
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    found = results(f"open({str(tmp_path / 'pid')!r}, 'w').write(str({child}.pid)); time.sleep(600)")
    assert found[2] == ("fail", "the process that checked it was not done after 2 s")
    assert found[3] == ("pass", "")
    stat = Path("/proc") / (tmp_path / "pid").read_text() / "stat"
    assert not stat.exists() or stat.read_text().split()[2] in "ZX"


def test_settings_that_change_the_reducer_are_kept_from_the_checks(results, monkeypatch):
    monkeypatch.setenv("DDP_SET_LAST_BUCKET_CAP", "1")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    found = results("sys.exit(' '.join(sorted(n for n in os.environ if n.startswith(('DDP_', 'TORCH_DIST')))) or 'none')")
    assert found[2][1].endswith("status 1: none")


def test_a_process_that_cannot_begin_is_an_error_in_two_lines(tmp_path, monkeypatch):
    (tmp_path / "stand_in.py").write_text("raise ImportError('libc is not there')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ToolError, match="cannot be checked: the process ended with status 1: ImportError: libc is not there"):
        check_facts("stand_in")


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolError, match="torch is not installed here") as caught:
        check_facts()
    assert caught.value.hint == "Install what the workloads need: pip install 'ddpprof[run]'"


def test_the_checks_leave_the_environment_alone(alone):
    before = dict(os.environ)
    assert fact_checks.outcome(fact_checks.CHECKS[21]) == ("pass", "")
    assert dict(os.environ) == before
