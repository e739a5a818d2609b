"""Every case one after another: what runs, what is kept, what one failure costs, and what the references and facts add."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpprof import launch, profiling, verification
from ddpprof.claims import Ran
from ddpprof.errors import DdpprofError, ToolError, UsageError, WorkloadError
from ddpprof.launch import Finished
from ddpprof.model import Records
from ddpprof.profiling import Outcome, Settings
from ddpprof.reducer import FactResult
from ddpprof.verification import verify
from ddpprof.workloads import facts
from ddpprof.workloads.cases import STUDY, find

NAMES = list(STUDY)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """Cases that run in no time and show nothing; ``errors`` by case, ``before`` what an earlier verify left."""
    monkeypatch.chdir(tmp_path)
    world = SimpleNamespace(errors={}, before=(), ran=[], asked=[], said=[])

    def outcome(name: str) -> Outcome:
        return Outcome(folder=Path("x"), analysis=None, records=Records(), results=())

    def profile_case(name: str, settings: Settings, *, say: Any, working: Any) -> Outcome:
        world.ran.append((name, settings))
        if name in world.errors:
            raise world.errors[name]
        return outcome(name)

    def find_outcome(name: str, settings: Settings) -> Outcome | None:
        return outcome(name) if name in world.before else None

    def reference(case: Any, *numbers: int) -> list[str]:
        world.asked.append((case.name, *numbers))
        return ["a"]

    monkeypatch.setattr(profiling, "profile_case", profile_case)
    monkeypatch.setattr(profiling, "find_outcome", find_outcome)
    monkeypatch.setattr(verification, "reference", reference)
    return world


def ran(world: SimpleNamespace) -> list[str]:
    return [name for name, _ in world.ran]


def test_all_nine_run_in_folders_of_their_own(played: SimpleNamespace) -> None:
    found = verify([], Settings(ranks=2, iterations=3))
    assert ran(played) == list(found.cases) == NAMES
    assert {settings for _, settings in played.ran} == {
        Settings(ranks=2, iterations=3, folder=Path("runs/verify") / name) for name in NAMES
    }


def test_those_that_are_named_run_once_each_where_they_are_told_to(played: SimpleNamespace, tmp_path: Path) -> None:
    verify(["delay_cap64", "delay_cap4", "delay_cap64"], Settings(folder=tmp_path / "there"))
    assert [(name, settings.folder) for name, settings in played.ran] == [
        ("delay_cap64", tmp_path / "there" / "delay_cap64"),
        ("delay_cap4", tmp_path / "there" / "delay_cap4"),
    ]


def test_a_name_that_no_case_has_is_told_before_anything_runs(played: SimpleNamespace) -> None:
    with pytest.raises(UsageError, match="no case 'delay_cap5'"):
        verify(["delay_cap4", "delay_cap5"], Settings())
    assert played.ran == []


def test_a_case_that_is_not_of_the_study_is_told_before_anything_runs(played: SimpleNamespace) -> None:
    with pytest.raises(UsageError, match="straggler: not a case of the study\nIts cases are fine1_cap4, "):
        verify(["delay_cap4", "straggler"], Settings())
    assert played.ran == []


def test_each_case_has_its_line(played: SimpleNamespace) -> None:
    played.before = ("delay_cap64",)
    played.errors = {"coarse4_cap4": WorkloadError("rank 1 of 4 was killed by signal 9 (SIGKILL)", "Use fewer --ranks.")}
    verify(["delay_cap4", "delay_cap64", "coarse4_cap4"], Settings(), say=played.said.append)
    assert played.said[0].startswith("[1/3] delay_cap4: as it must be, ")
    assert played.said[1:] == [
        "[2/3] delay_cap64: kept, it ran before with these settings and versions (--fresh runs it again)",
        "[3/3] coarse4_cap4: failed: rank 1 of 4 was killed by signal 9 (SIGKILL)\nUse fewer --ranks.",
    ]


def test_a_case_that_fails_in_the_middle_does_not_cost_the_others(played: SimpleNamespace) -> None:
    played.errors = {"coarse4_cap4": WorkloadError("rank 1 died")}
    found = verify(NAMES[:3], Settings())
    assert ran(played) == NAMES[:3]
    assert found.rows[0].problems == ("coarse4_cap4: rank 1 died",)
    assert [name for name, *_ in played.asked] == ["fine1_cap4", "coarse4_cap16"]


def test_what_cannot_be_asked_is_no_failure_of_a_case(played: SimpleNamespace) -> None:
    played.errors = {"fine1_cap4": UsageError("--ranks 0: a job has at least one rank")}
    with pytest.raises(UsageError, match="--ranks 0"):
        verify([], Settings(ranks=0))
    assert ran(played) == ["fine1_cap4"]


def test_what_is_whole_is_kept_and_said_to_be(played: SimpleNamespace) -> None:
    played.before = ("delay_cap4",)
    found = verify(["delay_cap4", "delay_cap64"], Settings())
    assert ran(played) == ["delay_cap64"]
    assert found.notes == ("found as an earlier verify left them, not run again: delay_cap4",)


def test_fresh_runs_it_again(played: SimpleNamespace) -> None:
    played.before = NAMES
    assert verify(["delay_cap4"], Settings(), is_fresh=True).notes == ()
    assert ran(played) == ["delay_cap4"]


@pytest.mark.parametrize("kind", ["run folder", "file"])
def test_another_kind_of_place_is_refused(played: SimpleNamespace, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    if kind == "file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "manifest.json").write_text('{"case": "delay_cap4"}')
    with pytest.raises(DdpprofError, match="place: not a folder for several runs\nChoose another place with -o"):
        verify([], Settings(folder=place))
    assert played.ran == []


# ------------------------------------------------------------------------------------------------------ references


def test_cases_of_one_model_share_a_reference_as_long_as_the_longest_needs(played: SimpleNamespace) -> None:
    """3 warm-up steps (4 of the static graph), 10 timed ones and the captured one; none for the case that must fail."""
    verify([], Settings(ranks=4, seed=7))
    assert played.asked == [("fine1_cap4", 4, 7, 14), ("coarse4_cap4", 4, 7, 14), ("unused_dynamic", 4, 7, 15)]


def test_each_run_is_given_its_own(played: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}

    def evaluate(runs: Any, settings: Settings) -> Any:
        given.update({run.case.name: run.reference for run in runs if isinstance(run, Ran)})

    monkeypatch.setattr(verification, "evaluate", evaluate)
    monkeypatch.setattr(verification, "reference", lambda case, *numbers: [case.name])
    verify(["delay_cap4", "fine1_cap4", "coarse4_cap64", "unused_undetected"], Settings())
    assert given == {
        "delay_cap4": ["delay_cap4"],
        "fine1_cap4": ["fine1_cap4"],
        "coarse4_cap64": ["delay_cap4"],
        "unused_undetected": (),
    }


def test_a_reference_that_cannot_be_had_is_said_where_it_is_missed(
    played: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> list[str]:
        raise ToolError("the job was killed by signal 9 (SIGKILL)")

    monkeypatch.setattr(verification, "reference", fail)
    (row,) = (row for row in verify(["delay_cap4"], Settings()).rows if row.what.startswith("gradients"))
    assert row.problems == ("delay_cap4: no reference: the job was killed by signal 9 (SIGKILL)",)


def test_a_reference_is_asked_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def run(command: list[str], *, env: Any, log_dir: Path) -> Finished:
        commands.append(command)
        (log_dir / "stdout.log").write_text(json.dumps(["a", "b"]))
        return Finished(len(commands) - 1, "MemoryError: out of memory\n")

    monkeypatch.setattr(launch, "run", run)
    assert verification.reference(find("delay_cap4"), 2, 7, 14) == ["a", "b"]
    assert " ".join(commands[0][1:]) == "-m ddpprof.workloads.reference delay_cap4 --world 2 --seed 7 --steps 14"
    with pytest.raises(ToolError, match="the job failed: MemoryError: out of memory"):
        verification.reference(find("delay_cap4"), 2, 7, 14)


# ----------------------------------------------------------------------------------------------------------- facts


def fact(number: int, status: Any = "pass", detail: str = "") -> FactResult:
    return FactResult(number=number, text="something", source="reducer.cpp", status=status, detail=detail)


@pytest.mark.parametrize(
    ("results", "expected", "seen", "problems"),
    [
        ([fact(number) for number in range(30)], 30, 30, ()),
        ([fact(number) for number in range(38)], 38, 38, ()),
        ([*map(fact, range(36)), fact(36, "fail", "expected 1, saw 2")], 37, 36, ("fact 36: expected 1, saw 2",)),
        ([*map(fact, range(32)), fact(33, "skip")], 32, 32, ()),
        ([*map(fact, range(29)), fact(30, "skip")], 30, 29, ()),
    ],
)
def test_facts_are_counted_and_thirty_must_be_checked(
    played: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, results: Any, expected: int, seen: int, problems: tuple[str, ...]
) -> None:
    monkeypatch.setattr(facts, "check_facts", lambda: results)
    found = verify(["delay_cap4"], Settings(), has_facts=True)
    row = found.rows[-1]
    assert (row.group, row.expected, row.seen, row.problems) == ("Reducer", expected, seen, problems)
    assert (row.verdict == "PASS") is (expected == seen)
    skipped = [str(item.number) for item in results if item.status == "skip"]
    assert [note for note in found.notes if "facts" in note] == [
        f"facts that this PyTorch lacks, or does not show: {number}" for number in skipped
    ]


def test_facts_that_cannot_be_checked_do_not_hold(played: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise ToolError("the facts cannot be checked: the process was not done after 60 s")

    monkeypatch.setattr(facts, "check_facts", fail)
    row = verify(["delay_cap4"], Settings(), has_facts=True).rows[-1]
    assert (row.expected, row.seen) == (30, 0)
    assert row.problems == ("the facts cannot be checked: the process was not done after 60 s",)


def test_facts_are_checked_only_when_asked(played: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "check_facts", None)
    assert "Reducer" not in {row.group for row in verify(["delay_cap4"], Settings()).rows}
