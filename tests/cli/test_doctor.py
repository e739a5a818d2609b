from __future__ import annotations

import json

import pytest
from stubs import fake_nsys

from ddpprof import checkup, machine, nsys
from ddpprof.checkup import Torch
from ddpprof.cli import main
from ddpprof.errors import ToolError

VERSIONS = {"torch": "2.9.1", "nvtx": "0.2.11"}
TORCH = Torch(version="2.9.1", is_cuda_build=True, nccl_version="2.27.5", sees_gpus=2, error=None)


@pytest.fixture
def machine_with(tmp_path, monkeypatch):
    """A machine with two GPUs, torch for CUDA, nvtx 0.2.11, nsys 2023.4.4, in which a test may change things."""
    monkeypatch.setenv("DDPPROF_NSYS", str(fake_nsys(tmp_path / "nsys")))
    monkeypatch.setattr(machine, "gpu_names", lambda: ("NVIDIA H200", "NVIDIA H200"))
    monkeypatch.setattr(machine, "driver_version", lambda: "580.65.06")

    def change(versions=VERSIONS, torch=TORCH, records_marks=True):
        monkeypatch.setattr(checkup, "_version", versions.get)
        monkeypatch.setattr(checkup, "_torch", lambda is_tested: torch)
        monkeypatch.setattr(checkup, "_records_marks", lambda tool: records_marks)

    change()
    return change


def doctor(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    return ended.value.code


def facts(capsys, *arguments: str) -> tuple[int, dict]:
    code = doctor("--format", "json", *arguments)
    return code, json.loads(capsys.readouterr().out)


def test_a_machine_that_can_do_all_has_nothing_to_fix(machine_with, capsys, monkeypatch):
    assert doctor() == 0
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()] == [
        *("machine", "GPUs", "driver", "python", "torch", "nvtx", "nsys", "marks", "profile"),
    ]
    assert "GPUs     NVIDIA H200, NVIDIA H200\ndriver   580.65.06\n" in said
    assert "torch    2.9.1, CUDA build, NCCL 2.27.5\nnvtx     0.2.11\nnsys     2023.4.4.54 (DDPPROF_NSYS: " in said
    assert said.endswith("profile  runs on cuda (up to 2 ranks, more with --share-gpu), captured by nsys\n")


def test_json_holds_the_same_facts(machine_with, capsys):
    code, found = facts(capsys)
    assert code == 0
    assert found["torch"] == {
        "version": "2.9.1",
        "is_cuda_build": True,
        "nccl_version": "2.27.5",
        "sees_gpus": 2,
        "error": None,
    }
    assert (found["nsys_version"], found["nsys_source"], found["would_fetch_nsys"]) == ("2023.4.4.54", "DDPPROF_NSYS", False)
    assert (found["records_marks"], found["device"], found["capture"], found["fixes"]) == (True, "cuda", "nsys", [])


def test_without_a_test_capture_it_says_so(machine_with, capsys):
    assert facts(capsys, "--no-test")[1]["records_marks"] is None


@pytest.mark.parametrize(
    ("change", "fix"),
    [
        ({"torch": None}, "torch is not installed"),
        (
            {"torch": Torch(version="2.9.1", is_cuda_build=True, nccl_version=None, sees_gpus=0, error=None)},
            "sees none of the GPUs",
        ),
        (
            {
                "torch": Torch(
                    version="2.9.1", is_cuda_build=True, nccl_version=None, sees_gpus=None, error="ImportError: no libc"
                )
            },
            "torch does not import (ImportError: no libc)",
        ),
        ({"versions": {"torch": "2.9.1"}}, "nvtx is not installed"),
        ({"versions": {"torch": "2.9.1", "nvtx": "0.2.13"}, "records_marks": False}, "install 'nvtx<0.2.12'"),
        ({"records_marks": False}, "shows no mark: try another nsys"),
    ],
)
def test_what_would_end_profile_in_an_error_ends_doctor_with_1(machine_with, capsys, change, fix):
    machine_with(**change)
    code, found = facts(capsys)
    assert (code, found["can_profile"]) == (1, False)
    assert len(found["fixes"]) == 1
    assert fix in found["fixes"][0]


def test_a_cpu_torch_beside_gpus_is_advice_not_an_error(machine_with, capsys):
    machine_with(torch=Torch(version="2.9.1+cpu", is_cuda_build=False, nccl_version=None, sees_gpus=0, error=None))
    code, found = facts(capsys)
    assert (code, found["device"], len(found["fixes"])) == (0, "cpu", 1)


def test_an_nsys_that_is_not_there_is_fetched_later_or_done_without(machine_with, capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("DDPPROF_NSYS")
    monkeypatch.setattr(nsys, "_INSTALLS", ())
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("DDPPROF_CACHE", str(tmp_path / "cache"))
    code, found = facts(capsys)
    assert (code, found["nsys_version"], found["would_fetch_nsys"], found["capture"]) == (0, None, False, "torch")
    assert found["fixes"] == ["nsys was not found on this machine; until it is there, torch.profiler captures"]
    monkeypatch.setattr(checkup.nsys_fetch, "can_fetch", lambda: True)
    code, found = facts(capsys)
    assert (code, found["would_fetch_nsys"], found["capture"], found["fixes"]) == (0, True, "nsys", [])
    assert not (tmp_path / "cache").exists()
    monkeypatch.setenv("DDPPROF_FETCH_NSYS", "0")
    assert facts(capsys)[1]["would_fetch_nsys"] is False


def test_an_nsys_given_by_hand_must_work(machine_with, capsys):
    assert doctor("--nsys", "no-such-nsys") == 1
    assert "no-such-nsys: not a working nsys" in capsys.readouterr().err


def test_the_home_folder_is_not_spelt_out(machine_with, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert facts(capsys)[1]["nsys_path"] == "~/nsys"


def test_torch_is_described_by_trying_it():
    pytest.importorskip("torch")
    found = checkup._torch(is_tested=True)
    assert found.error is None
    assert found.sees_gpus is not None


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_test_capture_tells_whether_marks_come_through(monkeypatch, tmp_path, is_lost):
    pytest.importorskip("nvtx")
    try:
        real = nsys.find(may_fetch=False)
    except ToolError as error:
        pytest.skip(f"no real nsys: {error.message}")
    if is_lost:  # an nvtx that marks nothing, as one does that nsys cannot follow
        (tmp_path / "nvtx.py").write_text("import contextlib\nannotate = lambda *a, **k: contextlib.nullcontext()\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert checkup._records_marks(real) is not is_lost
