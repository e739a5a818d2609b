"""The script for a machine with a GPU: its dry run on this one's CPU, and the run itself where there is a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddpprof import machine, nsys
from ddpprof.errors import ToolError

SCRIPT = Path(__file__).with_name("share_gpu.py")


def both_halves(out: Path, device: str) -> str:
    try:
        tool = nsys.find()
    except ToolError as error:
        pytest.skip(f"no nsys to be had here: {error.message}")
    printed = ""
    for half in ("capture", "finish"):
        command = [sys.executable, str(SCRIPT), half, str(out), "--device", device, "--nsys", str(tool.path)]
        done = subprocess.run([*command, "--data", str(out / "data")], capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        printed += done.stdout
    assert len(list((out / "data").glob("*.sqlite"))) == 4
    return printed


@pytest.mark.e2e
def test_dry_run_on_the_cpu(tmp_path: Path) -> None:
    printed = both_halves(tmp_path / "out", "cpu")
    assert printed.count("host-ranges, overlap") == 2 * (2 + 4)


@pytest.mark.gpu
@pytest.mark.e2e
@pytest.mark.skipif(not machine.gpu_names(), reason="no GPU on this machine")
def test_on_a_shared_gpu(tmp_path: Path) -> None:
    printed = both_halves(tmp_path / "out", "cuda")
    assert printed.count("gpu-kernels, overlap") == 2 * (2 + 4)
