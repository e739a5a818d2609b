"""The matrix of what was diagnosed against what it was: pure functions; the captures are played."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpprof.errors import WorkloadError
from ddpprof.model import Finding
from ddpprof.profiling import Settings
from ddpprof.workloads.cases import CASES

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "diagnose_matrix.py"


@pytest.fixture(scope="module")
def program() -> Any:
    """The program, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("diagnose_matrix", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def finding(code: str, severity: Any = "warning", **evidence: Any) -> Finding:
    return Finding(code=code, severity=severity, message="", evidence=evidence)


SLOW, STRAGGLER = finding("communication-slow"), finding("straggler-rank", "note")


@pytest.mark.parametrize(
    ("case", "findings", "column"),
    [
        ("slow_comm", [SLOW, STRAGGLER], "communication-slow"),
        ("slow_comm", [STRAGGLER, SLOW], "straggler-rank"),
        ("slow_comm", [], "none"),
        ("accumulation", [finding("settings", setting="no_sync")], "settings: no_sync"),
        ("healthy", [], "none"),
        ("healthy", [STRAGGLER], "none"),
        ("healthy", [STRAGGLER, SLOW], "communication-slow"),
    ],
)
def test_the_column_is_what_comes_first_and_a_note_is_nothing_where_there_is_no_cause(program, case, findings, column):
    assert program.first(findings, CASES[case]) == column


def test_every_capture_is_counted_and_a_case_is_wrong_when_one_of_its_captures_is(program):
    seen = [
        ("straggler", "straggler-rank"),
        ("healthy", "none"),
        ("straggler", "communication-slow"),
        ("healthy", "none"),
        ("accumulation", "settings: find_unused_parameters"),
    ]
    rows = program.matrix(seen)
    assert rows == {
        "healthy": {"none": 2},
        "straggler": {"straggler-rank": 1, "communication-slow": 1},
        "accumulation": {"settings: find_unused_parameters": 1},
    }
    assert list(rows) == ["healthy", "straggler", "accumulation"]
    assert program.wrong(rows) == ["straggler", "accumulation"]
    assert program.wrong(program.matrix([("healthy", "none")])) == []


def test_the_right_column_is_in_brackets_and_what_else_was_found_has_one_too(program):
    seen = [("healthy", "none"), ("straggler", "straggler-rank"), ("straggler", "no capture")]
    assert program.render(program.matrix(seen)).splitlines() == [
        "  1  communication-slow",
        "  2  bucket-scheduling",
        "  3  compute-tail",
        "  4  synchronisation-wait",
        "  5  parameter-granularity",
        "  6  straggler-rank",
        "  7  contention",
        "  8  bucket-too-small",
        "  9  periodic-spikes",
        " 10  settings: no_sync",
        " 11  settings: find_unused_parameters",
        " 12  none",
        " 13  no capture",
        "",
        "              1     2     3     4     5     6     7     8     9    10    11    12    13",
        "healthy       .     .     .     .     .     .     .     .     .     .     .   [1]     .",
        "straggler     .     .     .     .     .   [1]     .     .     .     .     .     .     1",
    ]


@pytest.fixture
def play(program, monkeypatch, tmp_path):
    """Makes captures that are diagnosed as told, one after another, a DdpprofError for one that is lost."""
    monkeypatch.chdir(tmp_path)

    def given(*diagnoses: Any) -> None:
        left = iter(diagnoses)

        def profile_case(name: str, settings: Settings) -> None:
            settings.folder.mkdir(parents=True)

        def analyze(folder: Path) -> Any:
            found = next(left)
            if isinstance(found, Exception):
                raise found
            return SimpleNamespace(findings=found)

        monkeypatch.setattr(program.profiling, "profile_case", profile_case)
        monkeypatch.setattr(program.inputs, "analyze", analyze)

    return given


@pytest.mark.parametrize(("second", "status"), [([SLOW], 0), ([STRAGGLER], 3), (WorkloadError("rank 0 died"), 3)])
def test_status_is_3_unless_right_every_time_and_only_wrong_captures_stay(
    program, play, monkeypatch, tmp_path, capsys, second, status
):
    play([SLOW], second)
    monkeypatch.setattr(sys, "argv", ["diagnose_matrix", "--cases", "slow_comm", "--repeats", "2", "--device", "cpu"])
    assert program.main() == status
    assert [path.name for path in (tmp_path / "runs/diagnose-matrix").iterdir()] == (["slow_comm-2"] if status else [])
    said = capsys.readouterr()
    assert ("not right every time: slow_comm" in said.out) == bool(status)
    assert said.err.splitlines()[0] == "slow_comm 1/2: communication-slow"


def test_on_a_cpu_every_case_of_a_cause_is_taken_but_those_that_need_a_gpu(program):
    of_causes = [case.name for case in CASES.values() if case.group == "cause"]
    assert [case.name for case in program.chosen(None, "cuda")] == of_causes
    assert [case.name for case in program.chosen(None, "cpu")] == [name for name in of_causes if name != "contention"]
