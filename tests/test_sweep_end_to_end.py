"""A sweep as a person runs it: real torchrun, real nsys, gloo ranks on this machine's CPU; a case, and one's own script."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ddpprof import nsys
from ddpprof.errors import ToolError

pytestmark = pytest.mark.e2e
TRAIN = Path(__file__).parents[1] / "examples" / "train.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2")
MIB = 2**20


def ddpprof(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command, again (twice at most) when gloo aborted a rank that had done its work, as it can on a busy machine."""
    try:
        tool = nsys.find()
    except ToolError as error:
        pytest.skip(f"no nsys to be had here: {error.message}")
    own = {"DDPPROF_NSYS": str(tool.path), "MY_TOKEN": "correct-horse", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    own |= {"PYTHONPATH": str(TRAIN.parents[1])}
    command = [sys.executable, "-m", "ddpprof", *map(str, arguments)]
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, env=os.environ | own)
        if "SIGABRT" not in done.stdout + done.stderr:
            break
    return done


def test_a_case_is_swept_and_its_runs_are_in_the_history(tmp_path: Path) -> None:
    options = ["--caps", "4,64", "--rounds", "1", "--ranks", "2", "--iterations", "5", "--device", "cpu"]
    done = ddpprof("sweep", "delay_cap4", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "runs" / "sweep" / "delay_cap4" / "summary.json").read_text())
    assert (found["evidence"], found["world_size"], found["timed_by"], found["clock"]) == (
        "host-ranges",
        2,
        "iterations",
        "wall",
    )
    small, large = found["rows"]
    assert (small["bucket_bytes"], large["bucket_bytes"]) == ([4 * MIB] * 12, [48 * MIB])
    assert (small["launches"], large["launches"], large["overlap_ns"]) == (12, 1, 0)
    assert [(row["timing"]["n"], row["is_correct"], row["failure"]) for row in found["rows"]] == [(5, True, None)] * 2
    assert found["recommended_mb"]
    assert " ".join(done.stdout.split()).endswith(found["conclusion"])
    for path in (tmp_path / "runs").rglob("*.*"):
        if path.suffix in (".md", ".json", ".jsonl", ".log"):
            text = path.read_text()
            assert path.suffix != ".log"
            assert "correct-horse" not in text
            assert str(tmp_path) not in text
            assert len(socket.gethostname()) < 4 or socket.gethostname() not in text
    history = json.loads(ddpprof("history", "delay_cap4", "--format", "json", folder=tmp_path).stdout)
    assert [(run["kind"], run["bucket_cap_mb"], run["timing"]["n"]) for run in history["runs"]] == [
        ("sweep", 4.0, 5),
        ("sweep", 64.0, 5),
    ]


def test_a_script_of_ones_own_is_swept_by_the_times_that_it_takes_itself(tmp_path: Path) -> None:
    script = (TRAIN, "--steps", "10", "--width", "256")
    done = ddpprof("sweep", "--caps", "0.25,25", "--rounds", "1", "--device", "cpu", "--", *TORCHRUN, *script, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "runs" / "sweep" / "train" / "summary.json").read_text())
    assert (found["timed_by"], found["world_size"], found["sameness"]) == ("timed-steps", 2, None)
    layer = 4 * (256 * 256 + 256)
    assert [row["bucket_bytes"] for row in found["rows"]] == [[layer] * 8, [8 * layer]]
    assert [row["timing"]["n"] for row in found["rows"]] == [10 - 4] * 2
    assert all(row["exposed_comm_ns"] > 0 for row in found["rows"])


def test_a_script_that_ignores_the_cap_is_found_and_told(tmp_path: Path) -> None:
    source = TRAIN.read_text()
    assert source.count("**ddpprof.ddp_kwargs()") == 1
    (tmp_path / "deaf.py").write_text(source.replace("**ddpprof.ddp_kwargs()", "bucket_cap_mb=1"))
    script = (tmp_path / "deaf.py", "--steps", "6", "--width", "512")
    done = ddpprof("sweep", "--caps", "1,25", "--rounds", "1", "--device", "cpu", "--", *TORCHRUN, *script, folder=tmp_path)
    assert done.returncode == 1
    assert "the job seems to ignore the cap" in " ".join(done.stdout.split())
