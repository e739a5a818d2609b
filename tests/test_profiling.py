"""The main job around the capture: what is decided before, tried again, refused, and left behind. The capture itself is
played: what ``launch.run`` would have left in the run folder is built (tests/captured.py), and nsys is a script.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import socket
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import captured
import pytest
from nsight import N, build
from stubs import COPIES, fake_nsys

from ddpprof import launch, machine, profiling, results, rundir
from ddpprof import nsys as nsight
from ddpprof.errors import DdpprofError, InputError, ToolError, UsageError, WorkloadError
from ddpprof.launch import Finished
from ddpprof.profiling import CaptureLost, Settings, find_outcome, profile_case, profile_job
from ddpprof.reports import plots
from ddpprof.rundir import RunDir
from ddpprof.workloads.cases import CASES, STUDY

VERSIONS = {"torch": "2.9.1", "nvtx": "0.2.11"}
SETTINGS = Settings(ranks=2)
Capture = Callable[[RunDir], Any]


def shows(case: str, **options: Any) -> Capture:
    """A capture of ``case`` by one nsys above two ranks; keywords are those of captured.report."""

    def capture(run: RunDir) -> None:
        captured.report(run.nsys_report(), case, **options)
        captured.records(run, case)

    return capture


def shows_nothing(run: RunDir) -> None:
    """A report without a mark."""
    build(run.nsys_report(), [N(0, 10, "something else")])
    captured.records(run, "delay_cap4")


def leaves_nothing(run: RunDir) -> None:
    captured.records(run, "delay_cap4")


def fills_the_disk(run: RunDir) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def machine_is(monkeypatch, tmp_path):
    """A machine without GPU, with torch, nvtx 0.2.11 and nsys 2023.4.4, in whose working folder a test may run jobs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "gpu_names", lambda: ())
    monkeypatch.setattr(machine, "driver_version", lambda: None)
    monkeypatch.setattr(machine, "cpu_count", lambda: 4)
    monkeypatch.setenv("DDPPROF_NSYS", str(fake_nsys(tmp_path / "bin" / "nsys", export=COPIES)))
    monkeypatch.setattr(plots, "draw_timeline", lambda timeline, path: path.write_bytes(b"\x89PNG"))

    def change(versions=VERSIONS):
        def version(name):
            if name not in versions:
                raise PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(profiling, "version", version)

    change()
    return change


@pytest.fixture
def captures(machine_is, monkeypatch):
    """Plays these captures one after the other; gives the command lines that were run."""

    def play(*plan: Capture, status: int = 0, stderr: str = ""):
        commands: list[list[str]] = []

        def run(command, *, env, log_dir, say, timeout_s=None):
            commands.append(list(command))
            for name in ("stdout.log", "stderr.log"):
                (log_dir / name).write_text(stderr)
            plan[len(commands) - 1](RunDir(log_dir))
            return Finished(status, stderr)

        monkeypatch.setattr(launch, "run", run)
        return commands

    return play


def files(folder: Path | str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


def rest(tmp_path: Path) -> set[str]:
    """What lies in the working folder beside the fake nsys."""
    return files(tmp_path) - {"bin"}


# ----------------------------------------------------------------------------------------------------- a good capture


def test_a_case_that_shows_what_it_must_leaves_a_whole_run_folder(captures, tmp_path):
    commands, said = captures(shows("delay_cap4")), []
    outcome = profile_case("delay_cap4", SETTINGS, say=said.append)
    assert outcome.folder == Path("runs/delay_cap4")
    assert [(row.rank, row.overlap_ns) for row in outcome.analysis.focus.ranks] == [(0, 66_000_000), (1, 66_000_000)]
    assert {result.verdict for result in outcome.results} == {"pass"}
    assert files("runs/delay_cap4") == {
        *("manifest.json", "report.nsys-rep", "report.sqlite", "records.rank0.jsonl", "records.rank1.jsonl"),
        *("summary.md", "summary.json", "summary.html", "timeline.png"),
        *("rank0.md", "rank0.json", "rank1.md", "rank1.json"),
    }
    assert (files("runs"), said, len(commands)) == ({"delay_cap4"}, [], 1)
    assert commands[0][1:3] == ["profile", "--trace=nvtx"]


def test_the_manifest_tells_what_was_run_and_on_what(captures, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "correct-horse")
    captures(shows("delay_cap64"))
    profile_case("delay_cap64", replace(SETTINGS, iterations=3, seed=7, folder=tmp_path / "elsewhere"))
    text = (tmp_path / "elsewhere" / "manifest.json").read_text()
    found = json.loads(text)
    assert found.pop("ddpprof_version")
    assert found.pop("python_version").startswith("3.")
    assert found.pop("finished_utc").endswith("+00:00")
    assert found == {
        "format_version": 1,
        "case": "delay_cap64",
        "bucket_cap_mb": 64,
        "ranks": 2,
        "device": "cpu",
        "gpus": [],
        "share_gpu": False,
        "capture": "nsys",
        "report_per_rank": False,
        "iterations": 3,
        "seed": 7,
        "attempts": 1,
        "command": "ddpprof profile delay_cap64 --ranks 2 --device cpu --iterations 3 --seed 7",
        "nsys_version": "2023.4.4.54",
        "warnings": [],
        "torch_version": "2.9.1",
        "nvtx_version": "0.2.11",
        "driver_version": None,
    }
    for private in ("correct-horse", str(tmp_path), socket.gethostname()):
        assert len(private) < 4 or private not in text


def test_the_work_of_a_run_is_announced_with_what_captures_it(captures):
    titles = []
    captures(shows("delay_cap4"))
    profile_case("delay_cap4", SETTINGS, working=lambda title: titles.append(title) or nullcontext())
    assert titles == ["delay_cap4: 2 ranks on cpu, captured by nsys 2023.4.4.54"]


def test_a_report_per_rank_is_exported_one_by_one(captures):
    def capture(run):
        for rank in range(2):
            captured.report(run.nsys_report(rank), "delay_cap4", [rank])
        captured.records(run, "delay_cap4")

    captures(capture)
    outcome = profile_case("delay_cap4", replace(SETTINGS, report_per_rank=True))
    assert [(row.rank, row.report) for row in outcome.analysis.ranks] == [(0, 0), (1, 1)]
    assert {"report.rank0.sqlite", "report.rank1.sqlite"} <= files(outcome.folder)
    manifest = RunDir(outcome.folder).read_manifest()
    assert manifest["report_per_rank"] is True
    assert "--report-per-rank" in manifest["command"]


@pytest.mark.parametrize(
    ("change", "has_cuda", "device"),
    [
        ({}, True, "cuda"),
        ({}, False, "cpu"),
        ({"ranks": 4}, True, "cpu"),
        ({"ranks": 4, "share_gpu": True}, True, "cuda"),
        ({"device": "cpu"}, True, "cpu"),
    ],
)
def test_gpus_are_used_when_there_are_enough_and_torch_can(captures, monkeypatch, change, has_cuda, device):
    def ends(run):
        raise WorkloadError("far enough")

    monkeypatch.setattr(machine, "gpu_names", lambda: ("NVIDIA H200", "NVIDIA H200"))
    monkeypatch.setattr(machine, "torch_has_cuda", lambda: has_cuda)
    commands = captures(ends)
    with pytest.raises(WorkloadError, match="far enough"):
        profile_case("delay_cap4", replace(SETTINGS, **change))
    assert commands[0][commands[0].index("--device") + 1] == device
    assert ("--share-gpu" in commands[0]) is ("share_gpu" in change)


# -------------------------------------------------------------------------------------------------------- trying again


def test_a_true_zero_is_captured_again_and_every_report_says_so(captures):
    def zero(run):
        shows("delay_cap4", is_beside=False)(run)
        (run.path / "left over").write_text("of the first capture")

    said, commands = [], captures(zero, shows("delay_cap4"))
    outcome = profile_case("delay_cap4", SETTINGS, say=said.append)
    assert "left over" not in files(outcome.folder)
    assert said == ["rank 0: overlap>0 not seen (overlap_ns = 0)", "capturing again, attempt 2 of 3"]
    assert len(commands) == 2
    assert {result.verdict for result in outcome.results} == {"pass"}
    told = "attempt 2: earlier captures did not show what this case must show"
    assert [warning.message for warning in outcome.analysis.warnings if warning.code == "retried"] == [told]
    for name in ("summary.md", "summary.json", "summary.html", "rank0.md", "rank1.json"):
        assert told in (outcome.folder / name).read_text()
    assert RunDir(outcome.folder).read_manifest()["attempts"] == 2


def test_three_zeros_are_the_result(captures):
    said, commands = [], captures(*[shows("delay_cap4", is_beside=False)] * 3)
    outcome = profile_case("delay_cap4", SETTINGS, say=said.append)
    assert len(commands) == 3
    assert [(result.rank, result.expectation) for result in outcome.results if result.verdict == "fail"] == [
        ("rank 0", "overlap>0"),
        ("rank 1", "overlap>0"),
    ]
    assert [line for line in said if "again" in line] == [f"capturing again, attempt {number} of 3" for number in (2, 3)]
    assert "summary.md" in files(outcome.folder)


def test_lost_marks_are_captured_again(captures):
    said, commands = [], captures(shows_nothing, shows("delay_cap4"))
    outcome = profile_case("delay_cap4", SETTINGS, say=said.append)
    assert {result.verdict for result in outcome.results} == {"pass"}
    assert len(commands) == 2
    assert said[0].startswith("the capture holds no mark of any rank (nvtx 0.2.11 with nsys 2023.4.4.54): ")
    assert said[1:] == ["capturing again, attempt 2 of 3"]
    assert "retried" in {warning.code for warning in outcome.analysis.warnings}


def test_marks_lost_three_times_name_the_pair_and_leave_nothing(captures, tmp_path):
    captures(*[shows_nothing] * 3)
    with pytest.raises(CaptureLost) as caught:
        profile_case("delay_cap4", SETTINGS)
    assert caught.value.message.startswith(
        "the capture holds no mark of any rank (nvtx 0.2.11 with nsys 2023.4.4.54): no GPU kernels in report"
    )
    assert (caught.value.hint, caught.value.exit_status) == ("See what is wrong with: ddpprof doctor", 1)
    assert files("runs") == set()


def test_a_rank_that_is_missing_from_the_capture_is_named_with_what_the_profiler_said(captures, monkeypatch):
    def capture(run):
        captured.report(run.nsys_report(), "delay_cap4", [1])
        captured.records(run, "delay_cap4")

    captures(*[capture] * 3)
    with pytest.raises(CaptureLost) as caught:
        profile_case("delay_cap4", SETTINGS)
    assert caught.value.message == "the capture lacks rank 0 of 2: it stopped early or lost its marks."
    assert "--report-per-rank" in caught.value.hint


def test_what_the_profiler_said_is_passed_on(captures):
    def capture(run):
        rank = captured._rank("delay_cap4", 1, 2, is_beside=True)
        build(run.nsys_report(), f'{rank}\nD "CUPTI had no memory left." severity=3', schema="2024.2")
        captured.records(run, "delay_cap4")

    captures(*[capture] * 3)
    with pytest.raises(CaptureLost, match="lacks rank 0 of 2") as caught:
        profile_case("delay_cap4", SETTINGS)
    assert re.search(r'The profiler said: ".*CUPTI had no memory left\."$', caught.value.message)


def test_buckets_that_the_hook_launched_and_the_timeline_lacks_are_a_lost_capture(captures):
    def capture(run):
        captured.report(run.nsys_report(), "delay_cap64")
        captured.records(run, "delay_cap4")

    captures(*[capture] * 3)
    with pytest.raises(CaptureLost) as caught:
        profile_case("delay_cap4", SETTINGS)
    assert caught.value.message == "rank 0 launched buckets 12 (0, 1, 2, 3…) but the capture shows 1 (0)."
    assert "capture again" in caught.value.hint


def test_a_bucket_that_the_hook_did_not_launch_is_one_too(captures):
    def capture(run):
        shows("delay_cap4")(run)
        path = run.records(1)
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if '"bucket":5,' not in line))

    captures(*[capture] * 3)
    with pytest.raises(CaptureLost, match=r"^rank 1 launched buckets 11 \(0, 1, 2, 3…\) but the capture shows 12 "):
        profile_case("delay_cap4", SETTINGS)


def test_a_range_that_never_opened_is_said_at_once(captures):
    commands = captures(leaves_nothing)
    with pytest.raises(ToolError, match="nsys ended well but left no report: the capture range never opened") as caught:
        profile_case("delay_cap4", SETTINGS)
    assert "cudaProfilerStart" in caught.value.hint
    assert (len(commands), files("runs")) == (1, set())


# ---------------------------------------------------------------------------------------------------- what ran before


def test_a_run_of_the_same_settings_and_versions_is_found(captures, machine_is):
    commands = captures(shows("delay_cap4"))
    assert find_outcome("delay_cap4", SETTINGS) is None
    ran = profile_case("delay_cap4", SETTINGS)
    found = find_outcome("delay_cap4", SETTINGS)
    assert (found.folder, found.results, found.records) == (ran.folder, ran.results, ran.records)
    assert found.analysis.focus == ran.analysis.focus
    assert len(commands) == 1


@pytest.mark.parametrize(
    "change",
    [{"ranks": 3}, {"iterations": 3}, {"seed": 1}, {"bucket_cap_mb": 8}, {"capture": "torch"}, {"report_per_rank": True}],
)
def test_a_run_of_other_settings_is_not(captures, change):
    captures(shows("delay_cap4"))
    profile_case("delay_cap4", SETTINGS)
    assert find_outcome("delay_cap4", replace(SETTINGS, **change)) is None
    assert find_outcome("delay_cap64", SETTINGS) is None


@pytest.mark.parametrize("package", ["torch", "nvtx"])
def test_a_run_of_other_versions_is_not(captures, machine_is, monkeypatch, package):
    captures(shows("delay_cap4"))
    profile_case("delay_cap4", SETTINGS)
    machine_is(VERSIONS | {package: "0.2.9"})
    assert find_outcome("delay_cap4", SETTINGS) is None
    machine_is(VERSIONS)
    assert find_outcome("delay_cap4", SETTINGS) is not None
    monkeypatch.setattr(profiling, "__version__", "99.0")
    assert find_outcome("delay_cap4", SETTINGS) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda run: run.records(1).unlink(),
        lambda run: run.records(0).write_text("{"),
        lambda run: run.sqlite().write_bytes(b"SQLite format 3"),
        lambda run: run.sqlite().unlink(),
        lambda run: run.manifest.write_text("[]"),
        lambda run: run.manifest.unlink(),
    ],
)
def test_a_run_that_is_not_whole_is_not(captures, spoil):
    captures(shows("delay_cap4"))
    spoil(RunDir(profile_case("delay_cap4", SETTINGS).folder))
    assert find_outcome("delay_cap4", SETTINGS) is None


def test_a_run_that_did_not_show_what_it_must_is_not(captures):
    captures(*[shows("delay_cap4", is_beside=False)] * 3)
    assert "fail" in {result.verdict for result in profile_case("delay_cap4", SETTINGS).results}
    assert find_outcome("delay_cap4", SETTINGS) is None


def test_the_case_that_must_fail_is_found_when_it_did_on_every_rank(captures):
    def capture(run):
        captured.records(run, "unused_undetected")

    captures(capture)
    ran = profile_case("unused_undetected", SETTINGS)
    found = find_outcome("unused_undetected", SETTINGS)
    assert (found.analysis, found.results) == (None, ran.results)
    RunDir(ran.folder).records(1).unlink()
    assert find_outcome("unused_undetected", SETTINGS) is None


# ------------------------------------------------------------------------------------------------ without nsys, or nvtx


@pytest.fixture
def no_nsys(machine_is, monkeypatch, tmp_path):
    """No nsys anywhere, and no leave to fetch one."""
    monkeypatch.delenv("DDPPROF_NSYS")
    monkeypatch.setenv("DDPPROF_FETCH_NSYS", "0")
    monkeypatch.setenv("DDPPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(nsight, "_INSTALLS", ())


def by_torch(run: RunDir) -> None:
    """Traces of torch.profiler of a run of two ranks without a delay: one bucket beside nothing."""
    for rank in range(2):
        events = [
            *(event("ProfilerStep#13", 0, 300, 1), event("delay/0", 0, 100, 1), event("backward", 0, 200, 1)),
            event("allreduce/0", 120, 150, 2),
        ]
        with gzip.open(run.torch_trace(rank), "wt") as file:
            info = {"rank": rank, "world_size": 2, "backend": "gloo"}
            json.dump({"baseTimeNanoseconds": rank, "distributedInfo": info, "traceEvents": events}, file)
    captured.records(run, "delay_cap64")


def event(name: str, ts: int, dur: int, tid: int) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": {}}


def test_without_nsys_torch_profiler_captures_and_every_report_says_so(captures, no_nsys):
    said, commands = [], captures(*[by_torch] * 3)
    outcome = profile_case("delay_cap64", SETTINGS, say=said.append)
    assert said[0] == (
        "capturing with torch.profiler instead of nsys: "
        "nsys was not found on this machine, and DDPPROF_FETCH_NSYS=0 forbids fetching it"
    )
    assert "nsys" not in " ".join(commands[0])
    assert commands[0][commands[0].index("--capture") + 1] == "torch"
    told = "captured by torch.profiler: nsys could not be had on this machine"
    assert told in [warning.message for warning in outcome.analysis.warnings if warning.code == "fallback-capture"]
    assert told in (outcome.folder / "summary.md").read_text()
    manifest = RunDir(outcome.folder).read_manifest()
    assert (manifest["capture"], manifest["nsys_version"]) == ("torch", None)
    assert "--capture torch" in manifest["command"]


def test_torch_profiler_can_be_asked_for(captures):
    said = []
    captures(*[by_torch] * 3)
    outcome = profile_case("delay_cap64", replace(SETTINGS, capture="torch"), say=said.append)
    assert "instead of nsys" not in " ".join(said)
    told = [warning.message for warning in outcome.analysis.warnings if warning.code == "fallback-capture"]
    assert told == ["captured by torch.profiler, as asked: not by nsys"]


def test_traces_with_nothing_in_them_are_a_lost_capture_too(captures):
    def capture(run):
        for rank in range(2):
            run.torch_trace(rank).write_bytes(gzip.compress(b'{"traceEvents": []}'))
        captured.records(run, "delay_cap64")

    captures(*[capture] * 3)
    with pytest.raises(CaptureLost) as caught:
        profile_case("delay_cap64", replace(SETTINGS, capture="torch"))
    assert caught.value.message == ("the capture holds no mark of any rank (torch.profiler): none of its 2 reports can be read")


@pytest.mark.parametrize("settings", [replace(SETTINGS, capture="nsys"), replace(SETTINGS, nsys="no-such-nsys")])
def test_an_nsys_that_must_be_is_not_done_without(captures, no_nsys, settings):
    captures()
    with pytest.raises(ToolError, match=r"not found|not a working nsys"):
        profile_case("delay_cap4", settings)


def test_a_given_nsys_that_does_not_work_is_an_error(captures, monkeypatch):
    captures()
    monkeypatch.setenv("DDPPROF_NSYS", "/no/such/nsys")
    with pytest.raises(ToolError, match=r"/no/such/nsys: not a working nsys \(from DDPPROF_NSYS\)"):
        profile_case("delay_cap4", SETTINGS)


def test_a_pair_that_loses_every_mark_is_refused_with_the_line_that_mends_it(captures, machine_is):
    captures()
    machine_is(VERSIONS | {"nvtx": "0.2.13"})
    with pytest.raises(ToolError) as caught:
        profile_case("delay_cap4", SETTINGS)
    assert caught.value.message.startswith("nsys 2023.4.4 silently loses every range of nvtx 0.2.13")
    assert "pip install 'nvtx<=0.2.11'" in caught.value.hint


@pytest.mark.parametrize("missing", ["torch", "nvtx"])
def test_what_the_workloads_need_must_be_installed(captures, machine_is, missing):
    captures()
    machine_is({name: number for name, number in VERSIONS.items() if name != missing})
    with pytest.raises(ToolError, match=rf"{missing} is not installed here\n.*pip install 'ddpprof\[run\]'"):
        profile_case("delay_cap4", SETTINGS)


# ------------------------------------------------------------------------------------------------ what is refused at once


@pytest.mark.parametrize(
    ("case", "change", "what"),
    [
        ("delay_cap5", {}, "no case 'delay_cap5'\nDid you mean delay_cap4 or delay_cap64"),
        ("delay_cap4", {"ranks": 0}, "--ranks 0: a job has at least one rank"),
        ("delay_cap4", {"ranks": -1}, "--ranks -1: a job has at least one rank"),
        ("delay_cap4", {"ranks": 65}, r"--ranks 65: more than 16 ranks a core \(4 cores\)"),
        ("delay_cap4", {"device": "cuda"}, "--device cuda: this machine has no GPU"),
        ("contention", {}, "contention: needs a GPU: matrix products"),
        ("delay_cap4", {"iterations": 0}, "--iterations 0: at least one timed step"),
        ("delay_cap4", {"port": 0}, "--port 0: not a port number"),
        ("delay_cap4", {"port": 70000}, r"--port 70000: not a port number \(1 to 65535\)"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(captures, tmp_path, case, change, what):
    captures()
    with pytest.raises(UsageError, match=what):
        profile_case(case, replace(SETTINGS, **change))
    assert rest(tmp_path) == set()


def test_a_port_in_use_is_refused(captures):
    captures()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"^--port {port}: address already in use\nLeave --port out to get a free one"):
            profile_case("delay_cap4", replace(SETTINGS, port=port))


def test_somebodys_folder_is_not_replaced(captures, tmp_path):
    captures()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("my work")
    with pytest.raises(DdpprofError, match=r"thesis: exists and is not a run folder\nChoose another place with -o"):
        profile_case("delay_cap4", replace(SETTINGS, folder=tmp_path / "thesis"))
    with pytest.raises(DdpprofError, match="exists and is not a run folder"):
        profile_job(["true"], replace(SETTINGS, folder=tmp_path / "thesis"), uses_range=False)
    assert files(tmp_path / "thesis") == {"thesis.tex"}


def test_a_run_of_something_else_is_not_replaced(captures):
    captures(shows("delay_cap4"))
    folder = profile_case("delay_cap4", SETTINGS).folder
    commands = captures()
    here = replace(SETTINGS, folder=folder)
    with pytest.raises(DdpprofError, match=r"runs/delay_cap4: holds a run of delay_cap4, not a run of delay_cap64\nChoose"):
        profile_case("delay_cap64", here)
    with pytest.raises(DdpprofError, match="holds a run of delay_cap4, not a run of your own job"):
        profile_job(["true"], here, uses_range=False)
    assert commands == []


def test_somebodys_notes_stay_in_the_run_folder(captures):
    captures(shows("delay_cap4"), shows("delay_cap4"))
    folder = profile_case("delay_cap4", SETTINGS).folder
    own = files(folder)
    (folder / "notes.txt").write_text("as it was before the change")
    profile_case("delay_cap4", SETTINGS)
    assert files(folder) == own | {"notes.txt"}
    assert rundir._foreign(folder) == [Path("notes.txt")]


def test_one_rank_is_said_to_have_nobody_to_communicate_with(captures):
    said = []
    captures(
        lambda run: (
            captured.report(run.nsys_report(), "delay_cap4", [0], world=1),
            captured.records(run, "delay_cap4", [0], world=1),
        )
    )
    profile_case("delay_cap4", replace(SETTINGS, ranks=1), say=said.append)
    assert said[0].startswith("one rank has nobody to communicate with")


def test_a_place_without_permission_is_told(captures, tmp_path, monkeypatch):
    captures()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(DdpprofError, match=r"/locked: no permission to write there\nChoose another place\."):
        profile_case("delay_cap4", replace(SETTINGS, folder=tmp_path / "locked" / "run"))


# ------------------------------------------------------------------------------------- what goes wrong on the way


@pytest.fixture
def old(captures):
    """The run folder of an earlier run of delay_cap4."""
    captures(shows("delay_cap4"))
    return profile_case("delay_cap4", SETTINGS).folder


def picture_fills_the_disk(monkeypatch: pytest.MonkeyPatch) -> Capture:
    monkeypatch.setattr(plots, "draw_timeline", lambda timeline, path: fills_the_disk(RunDir(path)))
    return shows("delay_cap4")


@pytest.mark.parametrize("where", ["capture", "reports", "interrupt"])
def test_a_run_that_does_not_end_well_keeps_the_old_one(captures, old, monkeypatch, where):
    before = {path.name: path.read_bytes() for path in old.iterdir()}

    def interrupts(run):
        raise KeyboardInterrupt

    capture = {"capture": fills_the_disk, "interrupt": interrupts}.get(where) or picture_fills_the_disk(monkeypatch)
    captures(capture)
    with pytest.raises(KeyboardInterrupt if where == "interrupt" else DdpprofError) as caught:
        profile_case("delay_cap4", SETTINGS)
    if where != "interrupt":
        assert str(caught.value) == (
            f"{old}: cannot be written: No space left on device\nFree some space or choose another place."
        )
    assert files("runs") == {"delay_cap4"}
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before


def test_a_job_that_fails_is_explained_and_leaves_nothing(captures):
    summary = "  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 9)\n"
    captures(lambda run: None, status=1, stderr=f"[rank1]: ValueError: shapes differ\n{summary}")
    with pytest.raises(WorkloadError, match=r"^rank 1 of 2 failed: ValueError: shapes differ$"):
        profile_case("delay_cap4", SETTINGS)
    assert files("runs") == set()


def test_an_export_that_fails_names_the_folder_that_was_asked_for(captures, monkeypatch, tmp_path):
    monkeypatch.setenv("DDPPROF_NSYS", str(fake_nsys(tmp_path / "bin" / "nsys", export="sys.exit('out of luck')")))
    captures(shows("delay_cap4"))
    with pytest.raises(ToolError, match=r"^runs/delay_cap4/report\.nsys-rep: nsys 2023\.4\.4\.54 could not export it: out of"):
        profile_case("delay_cap4", SETTINGS)


# ------------------------------------------------------------------------------------------------------ expectations


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("fine1_cap4", ["buckets==12"]),
        ("coarse4_cap4", ["buckets==12"]),
        ("coarse4_cap16", ["buckets==3"]),
        ("coarse4_cap64", ["buckets==1"]),
        ("delay_cap4", ["buckets==12", "n_compute==12", "n_comm==12", "launched_early==11", "overlap>0"]),
        ("delay_cap64", ["buckets==1", "n_compute==12", "n_comm==1", "launched_early==0", "overlap==0"]),
        ("unused_dynamic", ["buckets==4"]),
        ("unused_static", ["buckets==4"]),
        ("unused_undetected", []),
        ("healthy", ["buckets==6", "launched_early==5"]),
        ("late_parameter", ["buckets==4", "launched_early==0"]),
        ("accumulation", ["buckets==48", "launched_early==47"]),
        ("contention", ["buckets==12"]),
        ("gpt_small", ["buckets==3"]),
    ],
)
def test_what_each_case_must_show(case, expected):
    assert profiling.expectations_of(CASES[case]) == expected


def test_there_are_nine_cases():
    assert len(STUDY) == 9


def test_of_a_variant_nothing_is_known(captures):
    assert profiling.expectations_of(replace(CASES["delay_cap4"], bucket_cap_mb=8)) == []
    commands = captures(shows("delay_cap4"))
    outcome = profile_case("delay_cap4", replace(SETTINGS, bucket_cap_mb=8))
    assert outcome.results == ()
    assert commands[0][commands[0].index("--bucket-cap-mb") + 1] == "8"
    manifest = RunDir(outcome.folder).read_manifest()
    assert (manifest["bucket_cap_mb"], manifest["command"]) == (8, None)


def test_the_case_that_must_fail_is_run_without_capture_and_judged_by_its_records(captures, no_nsys):
    commands = captures(lambda run: captured.records(run, "unused_undetected"))
    outcome = profile_case("unused_undetected", SETTINGS)
    assert commands[0][commands[0].index("--capture") + 1] == "none"
    assert outcome.analysis is None
    assert [(result.rank, result.verdict) for result in outcome.results] == [("rank 0", "pass"), ("rank 1", "pass")]
    assert files(outcome.folder) == {
        *("manifest.json", "summary.md", "summary.json", "records.rank0.jsonl", "records.rank1.jsonl"),
    }
    assert "expected failure seen on 2 of 2 ranks" in (outcome.folder / "summary.md").read_text()
    assert RunDir(outcome.folder).read_manifest()["capture"] == "none"


def test_a_rank_that_did_not_fail_as_it_must_has_failed(captures):
    captures(lambda run: captured.records(run, "unused_undetected", [0]))
    outcome = profile_case("unused_undetected", SETTINGS)
    assert [(result.rank, result.verdict, result.seen) for result in outcome.results][1] == (
        "rank 1",
        "fail",
        "no failure recorded",
    )


# ------------------------------------------------------------------------------------------------------- your own job


def own(run: RunDir) -> None:
    """What nsys leaves of a job of two GPU processes."""
    build(
        run.nsys_report(),
        """
        process 7 rank=0 world=2
        K dev0 s7    0..100 GEMM
        K dev0 s16  50..150 NCCL
        process 8 rank=1 world=2
        K dev1 s7    0..100 GEMM
        K dev1 s16  90..150 NCCL
        """,
    )


def test_your_own_job_leaves_a_run_folder(captures, tmp_path):
    commands = captures(own)
    outcome = profile_job(["torchrun", "train.py"], SETTINGS, uses_range=False)
    assert commands[0][-2:] == ["torchrun", "train.py"]
    assert not any("capture-range" in word for word in commands[0])
    assert [(row.rank, row.overlap_ns) for row in outcome.analysis.ranks] == [(0, 50_000), (1, 10_000)]
    assert (outcome.folder, outcome.results) == (Path("runs/train"), ())
    assert files("runs/train") == {
        *("manifest.json", "report.nsys-rep", "report.sqlite", "summary.md", "summary.json", "summary.html"),
        *("timeline.png", "rank0.md", "rank0.json", "rank1.md", "rank1.json"),
    }
    text = (outcome.folder / "manifest.json").read_text()
    manifest = json.loads(text)
    assert (manifest["case"], manifest["device"], manifest["nsys_version"]) == (None, "cpu", "2023.4.4.54")
    assert "train.py" not in text
    assert str(tmp_path) not in text


def test_your_own_job_is_told_where_to_leave_its_records(captures, monkeypatch):
    told = []
    monkeypatch.setattr(launch, "environment", lambda variables: told.append(variables) or {})
    captures(own)
    profile_job(["train"], replace(SETTINGS, bucket_cap_mb=4.5), uses_range=False)
    (variables,) = told
    assert variables["DDPPROF_BUCKET_CAP_MB"] == "4.5"
    assert variables["DDPPROF_RECORDS_FOLDER"] == variables["DDPPROF_STEPS_FOLDER"]
    assert Path(variables["DDPPROF_STEPS_FOLDER"]).is_absolute()


def test_your_own_job_on_gpus_is_traced_whole_or_in_its_range(captures, monkeypatch):
    monkeypatch.setattr(machine, "gpu_names", lambda: ("NVIDIA H200",))
    for uses_range in (False, True):
        commands = captures(own)
        profile_job(["train"], SETTINGS, uses_range=uses_range)
        assert "--trace=cuda,nvtx" in commands[0]
        assert ("--capture-range=cudaProfilerApi" in commands[0]) is uses_range


def test_a_job_that_shows_nothing_is_an_error_and_keeps_its_capture(captures):
    captures(shows_nothing)
    with pytest.raises(ToolError) as caught:
        profile_job(["train"], SETTINGS, uses_range=False)
    assert caught.value.message.startswith("the job ran, but its capture shows nothing to measure: no GPU kernels in report")
    assert not isinstance(caught.value, InputError)
    assert caught.value.hint is not None
    assert "with ddpprof.timed_step(number):" in caught.value.hint
    assert "ddpprof.watch(ddp)" in caught.value.hint
    assert caught.value.hint.endswith("(docs/own-reports.md). The capture is kept in runs/job.")
    assert {"manifest.json", "report.nsys-rep", "report.sqlite"} <= files("runs/job")


def test_a_job_that_shows_nothing_does_not_replace_a_run_that_does(captures):
    captures(own)
    profile_job(["train"], SETTINGS, uses_range=False)
    before = files("runs/job")
    captures(shows_nothing)
    with pytest.raises(ToolError, match=r"The run of before stays in runs/job\.$"):
        profile_job(["train"], SETTINGS, uses_range=False)
    assert files("runs/job") == before


def test_a_job_of_yours_that_fails_is_explained_without_a_number_of_ranks(captures):
    summary = "  rank      : 5 (local_rank: 5)\n  exitcode  : 1 (pid: 9)\n"
    captures(lambda run: None, status=1, stderr=f"[rank5]: ValueError: shapes differ\n{summary}")
    with pytest.raises(
        WorkloadError, match=r"^rank 5 failed: ValueError: shapes differ\nIts output is kept in runs/job\.failed\.log\.$"
    ):
        profile_job(["train"], SETTINGS, uses_range=False)


def test_what_a_failed_job_wrote_is_kept_for_its_owner_and_told_to_who_asks(captures):
    """The error's cause is what ``--verbose`` shows; the file goes once the job ends well."""
    summary = "E1130 02:00:00.000000 7 torch/distributed/elastic/multiprocessing/api.py:1] failed (exitcode: 1)\n"
    captures(lambda run: None, status=1, stderr=f"Traceback\n  line 7\nValueError: shapes differ\n{summary}")
    with pytest.raises(ToolError) as caught:
        profile_job(["train.py"], SETTINGS, uses_range=False)
    kept = Path("runs/train.failed.log")
    assert (files("runs"), kept.stat().st_mode & 0o777) == ({kept.name}, 0o600)
    assert kept.read_text().count("ValueError: shapes differ") == 2  # stdout and stderr, which are the same here
    seen = "".join(traceback.format_exception(caught.value))
    assert "the job's last lines:\nTraceback\n  line 7\nValueError: shapes differ\n" in seen
    assert "elastic" not in seen
    captures(own)
    profile_job(["train.py"], SETTINGS, uses_range=False)
    assert files("runs") == {"train"}


def test_marks_without_compute_are_said_to_need_it(captures):
    def silent(run: RunDir) -> None:
        names = ("rank/0/world/1", "step/0", "allreduce/0")
        build(run.nsys_report(), [N(0, 100 - at, name, domain="ddpprof") for at, name in enumerate(names)])

    said: list[str] = []
    captures(silent)
    profile_job(["train"], SETTINGS, uses_range=False, say=said.append)
    assert said == ["no compute is marked: without a GPU mark it as compute/I to see what overlaps (docs/own-reports.md)"]


def test_a_range_that_nothing_can_open_is_said_not_to_be_used(captures):
    said: list[str] = []
    captures(own, own)
    profile_job(["train"], SETTINGS, uses_range=True, say=said.append)
    assert said == ["--range: not used without CUDA, where nothing can open it: the whole job is recorded"]
    profile_job(["train"], SETTINGS, uses_range=False, say=said.append)
    assert len(said) == 1


def test_own_jobs_are_kept_under_the_names_of_their_scripts(captures):
    url = "sqlite:///runs/results.sqlite"
    captures(own, own)
    for script in ("mine.py", "other.py"):
        profile_job(["torchrun", script], replace(SETTINGS, results=url), uses_range=False)
    assert [name for name, *_ in results.cases(url)] == ["mine", "other"]


def test_a_job_without_nsys_is_an_error(captures, no_nsys):
    captures()
    with pytest.raises(ToolError, match="nsys was not found"):
        profile_job(["train"], SETTINGS, uses_range=False)
