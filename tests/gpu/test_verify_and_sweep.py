"""The script that verifies and sweeps on a shared GPU: its dry run on a CPU, small, and the run itself where there is a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddpprof import machine, nsys
from ddpprof.errors import ToolError

SCRIPT = Path(__file__).with_name("verify_and_sweep.py")
SMALL = ["--ranks", "2", "--iterations", "5", "--cases", "delay_cap4,delay_cap64", "--caps", "4,64", "--rounds", "1"]


def script(out: Path, *words: str) -> None:
    try:
        nsys.find()
    except ToolError as error:
        pytest.skip(f"no nsys to be had here: {error.message}")
    command = [sys.executable, str(SCRIPT), str(out), "--data", str(out / "data"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.e2e
def test_dry_run_on_the_cpu(tmp_path: Path) -> None:
    script(tmp_path / "out", "--device", "cpu", *SMALL)
    expected = {f"cpu_2rank_{case}.sqlite" for case in ("delay_cap4", "delay_cap64")}
    assert {path.name for path in (tmp_path / "out" / "data").iterdir()} == expected
    assert (tmp_path / "out" / "verify" / "acceptance.md").is_file()


@pytest.mark.gpu
@pytest.mark.e2e
@pytest.mark.skipif(not machine.gpu_names(), reason="no GPU on this machine")
def test_on_a_shared_gpu(tmp_path: Path) -> None:
    script(tmp_path / "out")
