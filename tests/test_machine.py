from __future__ import annotations

import pytest
from stubs import program

from ddpprof import machine

LISTED = r"GPU 0: NVIDIA H200 (UUID: GPU-aaaa)\nGPU 1: NVIDIA H200 (UUID: GPU-bbbb)\nGPU 2: Tesla T4 (UUID: GPU-cccc)"


@pytest.fixture
def three_gpus(tmp_path, monkeypatch):
    body = f"print({{'-L': '{LISTED}', '--query-gpu=driver_version': '580.65.06'}}[sys.argv[1]])"
    program(tmp_path / "bin" / "nvidia-smi", body)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(machine, "_DRIVER", tmp_path / "proc")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def test_a_machine_without_a_driver_has_no_gpu(three_gpus):
    program(three_gpus / "bin" / "nvidia-smi", "sys.exit('cannot talk to the driver')")
    assert machine.gpu_names() == ()
    assert machine.driver_version() is None


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ("NVIDIA H200", "NVIDIA H200", "Tesla T4")),
        ("2,0", ("Tesla T4", "NVIDIA H200")),
        ("GPU-cccc", ("Tesla T4",)),
        ("", ()),
        ("-1", ()),
        ("0,7,1", ("NVIDIA H200",)),
    ],
)
def test_only_visible_gpus_count(three_gpus, monkeypatch, visible, names):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.gpu_names() == names


def test_the_driver_tells_its_version_with_and_without_its_file(three_gpus):
    assert machine.driver_version() == "580.65.06"
    (three_gpus / "proc").mkdir()
    (three_gpus / "proc" / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.104.05  Release Build\n"
    )
    assert machine.driver_version() == "535.104.05"


def test_gpus_are_counted_without_nvidia_smi(three_gpus):
    (three_gpus / "bin" / "nvidia-smi").unlink()
    for slot in ("0000:01:00.0", "0000:41:00.0"):
        path = three_gpus / "proc" / "gpus" / slot / "information"
        path.parent.mkdir(parents=True)
        path.write_text(f"Model: \t\t NVIDIA A100\nIRQ:   \t\t 16\nGPU UUID: \t GPU-{slot}\n")
    assert machine.gpu_names() == ("NVIDIA A100", "NVIDIA A100")
