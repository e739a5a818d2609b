"""The main job as a person runs it: real torchrun, real nsys, four gloo ranks on this machine's CPU."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from ddpprof import nsys
from ddpprof.errors import ToolError
from ddpprof.rundir import RunDir, read_records

pytestmark = pytest.mark.e2e
SECRET = "correct-horse-battery-staple"


def ddpprof(*arguments: str | Path, timeout: int = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, with a secret in its environment that no output may show."""
    return subprocess.run(
        [sys.executable, "-m", "ddpprof", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | {"MY_TOKEN": SECRET, "DDPPROF_RESULTS": "sqlite://"} | environment,
    )


@pytest.fixture(scope="session")
def tool() -> nsys.Nsys:
    """The nsys that would be used, fetched into the cache when the machine has none."""
    try:
        return nsys.find()
    except ToolError as error:
        pytest.skip(f"no nsys to be had here: {error.message}")


@pytest.fixture(scope="session")
def runs(tool: nsys.Nsys, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDir]:
    """The two delay cases, profiled once with four ranks."""
    folder = tmp_path_factory.mktemp("runs")
    for case in ("delay_cap4", "delay_cap64"):
        done = ddpprof("profile", case, "--nsys", tool.path, "-o", folder / case)
        assert done.returncode == 0, done.stderr
        assert f"As {case} must be, on 4 of 4 ranks" in done.stdout
    return {case: RunDir(folder / case) for case in ("delay_cap4", "delay_cap64")}


@pytest.mark.parametrize(("case", "buckets", "early"), [("delay_cap4", 12, 11), ("delay_cap64", 1, 0)])
def test_every_rank_shows_what_the_case_must_show(runs: dict[str, RunDir], case: str, buckets: int, early: int) -> None:
    summary = json.loads(runs[case].summary.with_suffix(".json").read_text())
    assert summary["evidence"] == "host-ranges"
    assert summary["case"] == case
    assert [(row["rank"], row["rank_source"]) for row in summary["ranks"]] == [(rank, "mark") for rank in range(4)]
    assert summary["focus"]["pattern"] == "delay"
    for row, focus in zip(summary["ranks"], summary["focus"]["ranks"], strict=True):
        assert (focus["n_compute"], row["n_comm"], row["n_before_last_compute"]) == (12, buckets, early)
        assert (focus["overlap_ns"] > 0) is (case == "delay_cap4")
        assert focus["compute_ns"] >= 12 * 10_000_000
        parts = ("compute_only_ns", "overlap_ns", "exposed_comm_ns", "memory_only_ns", "idle_ns")
        assert sum(row[name] for name in parts) == row["step_ns"]


def test_the_run_folder_is_whole(runs: dict[str, RunDir]) -> None:
    run = runs["delay_cap4"]
    ranks = [f"rank{rank}.{kind}" for rank in range(4) for kind in ("md", "json")]
    records = [f"records.rank{rank}.jsonl" for rank in range(4)]
    summary = ["summary.md", "summary.json", "summary.html", "timeline.png"]
    expected = {"manifest.json", "report.nsys-rep", "report.sqlite", *ranks, *records, *summary}
    assert {path.name for path in run.path.iterdir()} == expected
    assert run.timeline.read_bytes().startswith(b"\x89PNG")
    manifest = run.read_manifest()
    assert (manifest["case"], manifest["ranks"], manifest["device"], manifest["capture"]) == ("delay_cap4", 4, "cpu", "nsys")


def test_no_output_shows_environment_or_host(runs: dict[str, RunDir]) -> None:
    for path in runs["delay_cap4"].path.iterdir():
        if path.suffix in (".md", ".json", ".html", ".jsonl"):
            text = path.read_text()
            assert SECRET not in text
            assert str(path.parent) not in text
            assert len(socket.gethostname()) < 4 or socket.gethostname() not in text


@pytest.mark.parametrize("case", ["delay_cap4", "delay_cap64"])
def test_check_holds_and_its_contrary_does_not(runs: dict[str, RunDir], case: str, tmp_path: Path) -> None:
    held = ddpprof("check", runs[case].path, "--junit", tmp_path / "junit.xml")
    assert (held.returncode, held.stderr) == (0, "")
    assert 'failures="0" errors="0"' in (tmp_path / "junit.xml").read_text()
    contrary = "overlap==0" if case == "delay_cap4" else "overlap>0"
    failed = ddpprof("check", runs[case].path, "--expect", contrary)
    assert failed.returncode == 3
    assert [line.split(":")[0] for line in failed.stdout.splitlines()[:4]] == [f"FAIL  rank {rank}" for rank in range(4)]


@pytest.mark.parametrize("case", ["delay_cap4", "delay_cap64"])
def test_hook_timeline_and_logger_tell_one_story(runs: dict[str, RunDir], case: str) -> None:
    """Three witnesses: order and size of buckets agree; the logger's "overlap" is the span that it is."""
    records = read_records(runs[case])
    summary = json.loads(runs[case].summary.with_suffix(".json").read_text())
    seen: dict[int, list[tuple[int, int, list[int]]]] = defaultdict(list)
    for row in summary["buckets"]:
        seen[row["rank"]].append((row["bucket"], row["size_bytes"], row["parameters"]))
    for rank in range(4):
        captured = next(row.step for row in records.iterations if row.rank == rank and row.is_captured)
        hook = [row for row in records.buckets if row.rank == rank and row.step == captured]
        assert [(row.bucket, row.size_bytes, row.parameters) for row in hook] == seen[rank]
    assert len(records.loggers) == 4 * 11
    for row in records.loggers:
        span = row.fields["backward_compute_time_end"] - row.fields["backward_comm_time_start"]
        assert row.fields["backward_compute_comm_overlap_time"] == max(span, 0)
    assert len({(row.step, row.replica_hash) for row in records.iterations}) == 11


def test_a_report_per_rank_gives_the_same_structure(tool: nsys.Nsys, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = ddpprof("profile", "delay_cap4", "--ranks", "2", "--report-per-rank", "--nsys", tool.path, "-o", folder)
    assert done.returncode == 0, done.stderr
    summary = json.loads(RunDir(folder).summary.with_suffix(".json").read_text())
    assert [(row["rank"], row["report"], row["n_comm"]) for row in summary["ranks"]] == [(0, 0, 12), (1, 1, 12)]
    assert "clock-skew" not in {warning["code"] for warning in summary["warnings"]}


def test_without_nsys_torch_profiler_captures_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = ddpprof("profile", "delay_cap64", "--ranks", "2", "--capture", "torch", "-o", folder)
    assert done.returncode == 0, done.stderr
    summary = json.loads(RunDir(folder).summary.with_suffix(".json").read_text())
    assert {report["kind"] for report in summary["reports"]} == {"kineto"}
    assert "fallback-capture" in {warning["code"] for warning in summary["warnings"]}
    assert "torch.profiler" in done.stdout
    assert ddpprof("check", folder).returncode == 0


def test_the_case_that_must_fail_fails_on_every_rank(tmp_path: Path) -> None:
    done = ddpprof("profile", "unused_undetected", "-o", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "expected failure seen on 4 of 4 ranks" in done.stdout
    assert ddpprof("check", tmp_path / "run").returncode == 0


def test_a_rank_that_dies_is_named_and_leaves_nothing(tool: nsys.Nsys, tmp_path: Path) -> None:
    done = ddpprof(
        "profile", "delay_cap4", "--ranks", "2", "--nsys", tool.path, "-o", tmp_path / "run", DDPPROF_TEST_FAIL="1:4"
    )
    assert done.returncode == 1
    assert "rank 1 of 2 failed in step 4: RuntimeError: told to fail" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_ends_every_child_and_keeps_the_old_run(runs: dict[str, RunDir], tool: nsys.Nsys, tmp_path: Path) -> None:
    old = tmp_path / "run"
    old.mkdir()
    (old / "manifest.json").write_text('{"case": "delay_cap4"}')
    command = [sys.executable, "-m", "ddpprof", "profile", "delay_cap4", "--nsys", str(tool.path), "-o", str(old)]
    mark = f"interrupted-{os.getpid()}"
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"DDPPROF_TEST_MARK": mark})
    deadline = time.monotonic() + 60
    while len(_descendants(mark, "LOCAL_RANK=")) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2)  # the ranks are importing torch, or training
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    assert _descendants(mark) == []
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert [path.name for path in old.iterdir()] == ["manifest.json"]


def _descendants(mark: str, also: str = "") -> list[int]:
    """Living processes that inherited the mark, and have ``also`` in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes()
            if f"DDPPROF_TEST_MARK={mark}".encode() in environment and also.encode() in environment:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_verify_holds_the_experiment_to_account_and_goes_on_where_it_was(tool: nsys.Nsys, tmp_path: Path) -> None:
    command = ("verify", "--cases", "delay_cap4,unused_undetected", "--ranks", "2", "--iterations", "5", "--format", "json")
    places = ("--nsys", tool.path, "-o", tmp_path / "verify", "--no-results")
    first = ddpprof(*command, *places)
    assert first.returncode == 0, first.stdout + first.stderr
    table = json.loads(first.stdout)
    seen = {row["what"]: row["seen"] for row in table["rows"]}
    assert (seen["timed iterations"], seen["buckets of timed iterations"], seen["in the second forward, with its message"]) == (
        2 * 5,
        2 * 5 * 12,
        2,
    )
    assert table["is_passed"] is True
    again = ddpprof(*command, *places)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count(": kept, ") == 2
    assert json.loads(again.stdout)["rows"] == table["rows"]
    assert {path.name for path in (tmp_path / "verify").iterdir()} == {
        *("delay_cap4", "unused_undetected", "acceptance.md", "acceptance.json"),
    }


def test_a_case_made_to_have_a_cause_is_captured_over_several_steps_and_diagnosed(tool: nsys.Nsys, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    done = ddpprof("profile", "straggler", "--iterations", "2", "--nsys", tool.path, "-o", run.path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(run.summary.with_suffix(".json").read_text())
    assert [(row["rank"], row["steps"], row["n_comm"]) for row in summary["ranks"]] == [(rank, 8, 6) for rank in range(4)]
    captured = [(row.rank, row.step) for row in read_records(run).iterations if row.is_captured]
    assert captured == [(rank, step) for rank in range(4) for step in range(5, 13)]
    found = json.loads(ddpprof("diagnose", run.path, "--format", "json").stdout)
    assert (found["findings"][0]["code"], found["findings"][0]["rank"]) == ("straggler-rank", 1)


def test_a_port_in_use_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = ddpprof("profile", "delay_cap4", "--port", str(taken.getsockname()[1]), "-o", tmp_path / "run")
    assert done.returncode == 2
    assert "in use" in done.stderr
    assert list(tmp_path.iterdir()) == []
