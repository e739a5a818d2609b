"""A sweep around its runs: their order, what each is given, what a failure costs, and what is left behind.

The runs are played: a capture leaves what tests/captured.py builds, a timed run its records or step times; nsys is a script.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import captured
import pytest
from stubs import COPIES, fake_nsys

import ddpprof
from ddpprof import launch, machine, profiling, results, rundir, sweeping
from ddpprof.errors import InputError, ToolError, UsageError
from ddpprof.launch import Finished
from ddpprof.model import IterationRecord
from ddpprof.profiling import Settings
from ddpprof.reports import plots
from ddpprof.rundir import STEPS_FOLDER, RunDir, record_line
from ddpprof.sweeping import parse_caps, sweep_case, sweep_job

SETTINGS = Settings(ranks=2, iterations=5)
LAYOUT = {4.0: "delay_cap4", 8.0: "delay_cap4", 64.0: "delay_cap64"}
"""Cap to the case whose capture shows the buckets of that cap."""
STEP_NS = {4.0: 100_000, 8.0: 101_000, 64.0: 200_000}


@dataclass
class Played:
    """What was run, and what a run at a cap does otherwise than well."""

    runs: list[tuple[str, float]] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    fails: Callable[[str, float, int], bool] = lambda kind, cap, number: False
    layout: Callable[[float], str] = LAYOUT.__getitem__
    loss: Callable[[float], float] = lambda cap: 0.5
    times_itself: bool = True
    n_steps: int = 9


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Played:
    """Runs of two ranks on a machine without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "gpu_names", lambda: ())
    monkeypatch.setattr(machine, "driver_version", lambda: None)
    monkeypatch.setattr(profiling, "version", lambda name: {"torch": "2.9.1", "nvtx": "0.2.11"}[name])
    monkeypatch.setattr(plots, "draw_timeline", lambda timeline, path: path.write_bytes(b"\x89PNG"))
    monkeypatch.setenv("DDPPROF_NSYS", str(fake_nsys(tmp_path / "bin" / "nsys", export=COPIES)))
    now = Played()

    def run(command, *, env, log_dir, say, timeout_s=None):
        own = "--bucket-cap-mb" not in command
        cap = float(env[ddpprof.BUCKET_CAP] if own else command[command.index("--bucket-cap-mb") + 1])
        kind = "capture" if "profile" in command[:2] else "time"
        now.commands.append(list(command))
        now.runs.append((kind, cap))
        (log_dir / "stderr.log").write_text("")
        if now.fails(kind, cap, now.runs.count((kind, cap))):
            return Finished(1, "RuntimeError: told to fail")
        if kind == "capture":
            captured.report(RunDir(log_dir).nsys_report(), now.layout(cap))
        if own and now.times_itself:
            for rank in range(2):
                lines = [f"{step} {round(STEP_NS[cap]) + 10 * rank}\n" for step in range(now.n_steps)]
                RunDir(Path(env[STEPS_FOLDER])).steps(rank).write_text("".join(lines))
        elif not own:
            captured.records(RunDir(log_dir), now.layout(cap))
            if kind == "time":
                leave_iterations(RunDir(log_dir), STEP_NS[cap], now.loss(cap))
        return Finished(0, "")

    monkeypatch.setattr(launch, "run", run)
    return now


def leave_iterations(run: RunDir, step_ns: int, loss: float) -> None:
    """Five timed steps of two ranks, the second the slower."""
    for rank in range(2):
        rows = [
            IterationRecord(
                rank=rank, step=step, is_captured=False, step_ns=step_ns + 10 * rank, forward_ns=1, backward_host_ns=2,
                backward_ns=3, optimizer_host_ns=4, loss=loss, replica_hash=f"hash{step}",
            )
            for step in range(3, 8)
        ]  # fmt: skip
        run.records(rank).write_text("".join(map(record_line, rows)))


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# --------------------------------------------------------------------------------------------------------------- caps


def test_caps_are_sorted_and_each_is_tried_once() -> None:
    assert parse_caps("64, 1,4,0.5,4.0") == (0.5, 1.0, 4.0, 64.0)
    assert parse_caps("1,2,4,8,16,25,64") == sweeping.CAPS


@pytest.mark.parametrize("wrong", ["0", "-4", "four", "nan", "inf", "", "1e9", "4MiB"])
def test_what_is_no_cap_is_a_usage_error_that_names_it(wrong: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_caps(f"4,{wrong}")
    assert caught.value.message == f"--caps 4,{wrong}: {wrong!r} is not a number of MiB above 0"
    assert caught.value.hint == "Example: --caps 1,4,16,64"


def test_one_cap_is_nothing_to_compare() -> None:
    with pytest.raises(UsageError, match="a sweep compares two caps or more"):
        parse_caps("4,4")


def test_a_script_gets_the_cap_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ddpprof.BUCKET_CAP, raising=False)
    assert ddpprof.ddp_kwargs() == {}
    monkeypatch.setenv("DDPPROF_BUCKET_CAP_MB", "0.5")
    assert ddpprof.ddp_kwargs() == {"bucket_cap_mb": 0.5}


# --------------------------------------------------------------------------------------------------------------- a case


def test_each_cap_is_captured_then_timed_in_turns(played: Played) -> None:
    found, folder = sweep_case("delay_cap4", (4, 8, 64), 2, SETTINGS)
    assert played.runs == [
        *[("capture", 4), ("capture", 8), ("capture", 64)],
        *[("time", 4), ("time", 8), ("time", 64)] * 2,
    ]
    assert all("none" in command for command in played.commands[3:])
    assert [(row.cap_mb, row.rounds, row.launches) for row in found.rows] == [(4, 2, 12), (8, 2, 12), (64, 2, 1)]
    assert [(row.timing.n, row.timing.median_ns, row.timing.mad_ns) for row in found.rows if row.timing] == [
        (10, 100_010, 0),
        (10, 101_010, 0),
        (10, 200_010, 0),
    ]
    assert [row.is_correct for row in found.rows] == [True, True, True]
    assert (found.timed_by, found.case, found.world_size, found.evidence) == ("iterations", "delay_cap4", 2, "host-ranges")
    assert (found.recommended_mb, found.sameness) == ((4,), None)
    assert (
        found.rows[0].unsteady == "apart from 8 MiB, where the buckets are the same: the machine drifts more than this spread"
    )
    assert folder == Path("runs/sweep/delay_cap4")


def test_the_folder_has_every_capture_every_round_and_the_reports(played: Played) -> None:
    _, folder = sweep_case("delay_cap4", (4, 64), 1, SETTINGS)
    files = tree(folder)
    assert {"manifest.json", "summary.md", "summary.json", "sweep.png"} <= files
    for cap in ("cap4", "cap64"):
        assert {f"{cap}/report.sqlite", f"{cap}/summary.md", f"{cap}/round1/records.rank1.jsonl"} <= files
    assert not [name for name in files if name.endswith(".log")]
    assert json.loads((folder / "summary.json").read_text())["rows"][1]["cap_mb"] == 64
    sweep_case("delay_cap4", (4, 64), 2, SETTINGS)
    assert (folder / "cap4" / "round2").is_dir()


def test_a_cap_that_fails_in_the_middle_costs_only_itself(played: Played) -> None:
    played.fails = lambda kind, cap, number: (kind, cap, number) in {("capture", 8, 1), ("time", 64, 2)}
    found, _ = sweep_case("delay_cap4", (4, 8, 64), 3, SETTINGS)
    assert [(row.rounds, row.failure) for row in found.rows] == [
        (3, None),
        (0, "the job failed: RuntimeError: told to fail"),
        (1, "the job failed: RuntimeError: told to fail"),
    ]
    assert (found.rows[1].launches, found.rows[2].launches) == (None, 1)
    assert found.recommended_mb == (4,)
    assert played.runs.count(("time", 64)) == 2


def test_a_failure_names_the_folder_that_was_asked_for(played: Played, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = launch.run

    def without_report(command, **options):
        finished = real(command, **options)
        if played.runs[-1] == ("capture", 8):
            RunDir(options["log_dir"]).nsys_report().write_bytes(b"Nsight Systems Stream")
        return finished

    monkeypatch.setattr(launch, "run", without_report)
    found, _ = sweep_case("delay_cap4", (4, 8, 64), 1, replace(SETTINGS, folder=tmp_path / "here"))
    assert found.rows[1].failure == f"{tmp_path}/here/cap8/report.nsys-rep: unfinished stream, not a report"


def test_when_every_cap_fails_the_first_error_is_the_answer(played: Played, tmp_path: Path) -> None:
    played.fails = lambda kind, cap, number: True
    with pytest.raises(ToolError, match="told to fail"):
        sweep_case("delay_cap4", (4, 64), 1, SETTINGS)
    assert not list(tmp_path.glob("runs/sweep/*"))


def test_a_cap_that_trains_otherwise_is_wrong_and_not_recommended(played: Played) -> None:
    played.loss = lambda cap: 0.25 if cap == 4 else 0.5
    found, _ = sweep_case("delay_cap4", (8, 64), 1, SETTINGS)
    assert [row.is_correct for row in found.rows] == [True, True]
    found, _ = sweep_case("delay_cap4", (64, 4), 1, SETTINGS)
    assert [(row.cap_mb, row.is_correct) for row in found.rows] == [(64, True), (4, False)]
    assert found.recommended_mb == (64,)


def test_caps_that_give_the_same_buckets_are_not_timed(played: Played) -> None:
    found, _ = sweep_case("delay_cap4", (4, 8), 3, SETTINGS)
    assert {kind for kind, _ in played.runs} == {"capture"}
    assert (found.sameness, found.recommended_mb) == ("ignored", ())


@pytest.mark.parametrize(
    ("case", "change", "what"),
    [
        ("unused_undetected", {}, "unused_undetected: must fail, so there is nothing to sweep"),
        ("delay_cap5", {}, "no case 'delay_cap5'"),
        ("delay_cap4", {"ranks": 0}, "--ranks 0: a job has at least one rank"),
        ("delay_cap4", {"iterations": 0}, "--iterations 0: at least one timed step is needed"),
        ("delay_cap4", {"device": "cuda"}, "--device cuda: this machine has no GPU"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_runs(played: Played, tmp_path, case, change, what) -> None:
    with pytest.raises(UsageError, match=what):
        sweep_case(case, (4, 64), 1, replace(SETTINGS, **change))
    assert played.runs == []
    assert not list(tmp_path.glob("runs/sweep/*"))


def test_each_cap_is_kept_as_a_run_of_its_own(played: Played, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/results.sqlite"
    played.fails = lambda kind, cap, number: (kind, cap) == ("capture", 8)
    sweep_case("delay_cap4", (4, 8, 64), 1, replace(SETTINGS, results=url))
    kept = results.history(url, "delay_cap4")
    assert [(run.kind, run.bucket_cap_mb, run.world_size, len(run.ranks)) for run in kept] == [
        ("sweep", 4, 2, 2),
        ("sweep", 64, 2, 2),
    ]
    assert [run.timing and (run.timing.n, run.timing.median_ns) for run in kept] == [(5, 100_010), (5, 200_010)]


def test_a_database_that_is_not_to_be_had_costs_no_report(played: Played, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("chapter one, " * 100)
    said: list[str] = []
    _, folder = sweep_case(
        "delay_cap4", (4, 64), 1, replace(SETTINGS, results=f"sqlite:///{tmp_path}/thesis.txt"), say=said.append
    )
    assert said == [f"results not kept: {tmp_path}/thesis.txt: file is not a database"]
    assert (folder / "summary.md").is_file()


# ------------------------------------------------------------------------------------------------------ your own job


def test_your_own_job_gets_the_cap_in_its_command_and_environment(played: Played) -> None:
    found, folder = sweep_job(["train", "--cap={cap}", "{caps}"], (4, 64), 1, SETTINGS, uses_range=False)
    assert [command[-2:] for command in played.commands] == [["--cap=4", "{caps}"], ["--cap=64", "{caps}"]] * 2
    assert played.runs == [("capture", 4), ("capture", 64), ("time", 4), ("time", 64)]
    assert (found.timed_by, found.case, folder) == ("timed-steps", None, Path("runs/sweep/job"))
    assert [(row.launches, row.is_correct, row.timing and row.timing.median_ns) for row in found.rows] == [
        (12, None, 100_010),
        (1, None, 200_010),
    ]


def test_a_sweep_is_named_by_the_script_and_holds_nothing_but_its_own(played: Played) -> None:
    played.times_itself = False
    _, folder = sweep_job(["torchrun", "train.py", "{cap}"], (4, 64), 2, SETTINGS, uses_range=False)
    assert folder == Path("runs/sweep/train")
    assert rundir._foreign(folder) == []


def test_the_warm_up_of_your_own_job_is_not_timed(played: Played) -> None:
    found, _ = sweep_job(["train"], (4, 64), 2, SETTINGS, uses_range=False)
    assert [row.timing and row.timing.n for row in found.rows] == [2 * (9 - 4), 2 * (9 - 4)]


def test_a_job_that_does_not_time_itself_is_captured_every_round(played: Played) -> None:
    played.times_itself = False
    found, folder = sweep_job(["train"], (4, 64), 2, SETTINGS, uses_range=True)
    assert played.runs == [("capture", 4), ("capture", 64)] * 2
    assert found.timed_by == "captured-steps"
    assert [(row.rounds, row.timing and row.timing.n) for row in found.rows] == [(2, 2), (2, 2)]
    assert (folder / "cap4" / "round2" / "report.sqlite").is_file()


def test_a_job_that_ignores_the_cap_is_found_before_it_is_timed(played: Played) -> None:
    played.layout = lambda cap: "delay_cap4"
    found, _ = sweep_job(["train"], (4, 64), 3, SETTINGS, uses_range=False)
    assert played.runs == [("capture", 4), ("capture", 64)]
    assert (found.sameness, found.recommended_mb) == ("ignored", ())


def test_a_job_without_steps_is_told_how_to_mark_them(played: Played, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played.times_itself = False
    monkeypatch.setattr(captured, "STEP", 2)  # a step of the warm-up
    with pytest.raises(InputError) as caught:
        sweep_job(["train"], (4, 64), 1, SETTINGS, uses_range=False)
    assert caught.value.message == "the job has no numbered steps after its first four: there is nothing to time"
    assert "ddpprof.timed_step(number)" in (caught.value.hint or "")
    assert not list(tmp_path.glob("runs/sweep/*"))


def test_a_job_that_fails_at_one_cap_keeps_the_other(played: Played) -> None:
    played.fails = lambda kind, cap, number: cap == 64
    found, _ = sweep_job(["train"], (4, 64), 1, SETTINGS, uses_range=False)
    assert [row.failure for row in found.rows] == [None, "the job failed: RuntimeError: told to fail"]
    assert found.recommended_mb == (4,)


def test_a_job_that_fails_at_every_cap_tells_the_cause_and_no_file_that_is_gone(played: Played, tmp_path: Path) -> None:
    played.fails = lambda kind, cap, number: True
    with pytest.raises(ToolError) as caught:
        sweep_job(["train"], (4, 64), 1, SETTINGS, uses_range=False)
    assert caught.value.hint == "Run it once with `ddpprof profile`, which keeps what it leaves."
    assert not list(tmp_path.glob("runs/sweep/*"))


def test_your_own_sweep_is_kept_under_the_name_of_its_script(played: Played, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/results.sqlite"
    sweep_job(["train.py", "--token=hush"], (4, 64), 1, replace(SETTINGS, results=url), uses_range=False)
    kept = results.history(url, "train")
    assert [(run.kind, run.bucket_cap_mb, run.timing and run.timing.median_ns) for run in kept] == [
        ("sweep", 4, 100_010),
        ("sweep", 64, 200_010),
    ]
    for path in [tmp_path / "results.sqlite", *(tmp_path / "runs" / "sweep" / "train").glob("summary.*")]:
        assert b"hush" not in path.read_bytes()
