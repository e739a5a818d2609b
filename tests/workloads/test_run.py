from __future__ import annotations

import gzip
import json
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from ddpprof import marks
from ddpprof.rundir import RunDir, read_records
from ddpprof.workloads.cases import CASES, MIB
from ddpprof.workloads.run import environment, main
from ddpprof.workloads.training import reference


def test_two_ranks_under_torch_profiler(torchrun, tmp_path):
    """Records of both ranks, and a trace each that holds the marks of the captured step, each once."""
    asked = ("--device", "cpu", "--capture", "torch", "--iterations", "2", "--bucket-cap-mb", "16", "--seed", "3")
    done = torchrun("delay_cap4", "--run-dir", str(tmp_path / "run"), *asked)
    assert done.returncode == 0, done.stderr
    run = RunDir(tmp_path / "run")
    records = read_records(run)
    assert [(row.rank, row.case, row.bucket_cap_mb, row.captured_step) for row in records.runs] == [
        (0, "delay_cap4", 16.0, 5),
        (1, "delay_cap4", 16.0, 5),
    ]
    rebuilt = [row.size_bytes for row in records.layouts if row.stage == "rebuilt"]
    assert rebuilt == [[16 * MIB] * 3] * 2
    hashes = [digest for _, digest in reference(CASES["delay_cap4"], 2, 3, 6)]
    assert [(row.rank, row.step, row.replica_hash) for row in records.iterations] == [
        (rank, step, hashes[step]) for rank in (0, 1) for step in (3, 4, 5)
    ]
    for rank in (0, 1):
        trace = json.loads(gzip.decompress(run.torch_trace(rank).read_bytes()))
        assert "host_name" not in trace
        spans = [event for event in trace["traceEvents"] if event["ph"] == "X" and marks.parse(event["name"])]
        expected = [f"rank/{rank}/world/2", "step/5", "forward", "backward", "optimizer"]
        expected += [f"{kind}/{index}" for kind in ("delay", "compute") for index in range(12)]
        expected += [name for index in range(3) for name in (f"bucket/{index}/{16 * MIB}", f"allreduce/{index}")]
        assert Counter(event["name"] for event in spans) == Counter(expected)
        starts_and_ends = {event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in spans}
        for index in range(3):
            enqueued, done = starts_and_ends[f"allreduce/{index}"]
            assert starts_and_ends[f"bucket/{index}/{16 * MIB}"][0] <= enqueued
            assert done <= starts_and_ends["backward"][1]


def test_the_case_that_must_fail_does_so_on_every_rank(torchrun, tmp_path):
    done = torchrun("unused_undetected", "--run-dir", str(tmp_path), "--device", "cpu")
    assert done.returncode == 0, done.stderr
    failures = read_records(RunDir(tmp_path)).failures
    assert [(row.rank, row.step, row.error, row.is_expected) for row in failures] == [
        (0, 1, "RuntimeError", True),
        (1, 1, "RuntimeError", True),
    ]
    assert all(row.message.startswith("Expected to have finished reduction in the prior iteration") for row in failures)
    assert all(row.message.endswith("; without a gradient: unused.0") for row in failures)


def test_a_dying_rank_ends_the_job_and_leaves_what_it_had(torchrun, tmp_path):
    asked = ("--device", "cpu", "--iterations", "1")
    done = torchrun("coarse4_cap64", "--run-dir", str(tmp_path), *asked, DDPPROF_TEST_FAIL="1:3")
    assert done.returncode == 1
    assert "rank 1: RuntimeError: told to fail by DDPPROF_TEST_FAIL\n" in done.stderr
    records = read_records(RunDir(tmp_path))
    (failure,) = (row for row in records.failures if row.rank == 1)
    assert (failure.step, failure.is_expected) == (3, False)
    assert [row.stage for row in records.layouts if row.rank == 1] == ["initial", "rebuilt"]


@pytest.fixture
def started_by_torchrun(monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)


def test_an_unknown_case_is_a_usage_error(started_by_torchrun, tmp_path, capsys):
    assert main(["delay_cap5", "--run-dir", str(tmp_path), "--device", "cpu"]) == 2
    assert capsys.readouterr().err.startswith("no case 'delay_cap5'\nDid you mean delay_cap")


def test_without_torchrun_it_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert main(["delay_cap4", "--run-dir", str(tmp_path), "--device", "cpu"]) == 2
    assert capsys.readouterr().err.startswith("RANK is not set\n")


def test_a_run_folder_that_cannot_be_made_is_one_line(started_by_torchrun, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["delay_cap4", "--run-dir", str(tmp_path / "file" / "run"), "--device", "cpu"]) == 1
    assert "cannot be made" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--iterations=0", "--bucket-cap-mb=0", "--bucket-cap-mb=-4"])
def test_numbers_must_be_positive(option, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["delay_cap4", "--run-dir", str(tmp_path), "--device", "cpu", option])
    assert "must be more than 0" in capsys.readouterr().err


def test_each_rank_of_a_shared_gpu_has_its_own_host_id():
    ours = [environment("cuda", rank, is_shared=True) for rank in (0, 1)]
    assert [each.pop("NCCL_HOSTID") for each in ours] == ["rank0", "rank1"]
    assert ours[0] == ours[1]
    assert ours[0]["NCCL_NET"] == "Socket"
    assert not any(name.startswith("NCCL") for name in environment("cuda", 0, is_shared=False))
    assert environment("cpu", 0, is_shared=False)["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_two_ranks_on_one_gpu(torchrun, tmp_path):
    asked = ("--device", "cuda", "--share-gpu", "--capture", "torch", "--iterations", "1")
    done = torchrun("delay_cap4", "--run-dir", str(tmp_path), *asked)
    assert done.returncode == 0, done.stderr
    hashes = [digest for _, digest in reference(CASES["delay_cap4"], 2, 0, 5)]
    iterations = read_records(RunDir(tmp_path)).iterations
    assert [(row.rank, row.step, row.replica_hash) for row in iterations] == [
        (rank, step, hashes[step]) for rank in (0, 1) for step in (3, 4)
    ]
    for rank in (0, 1):
        trace = json.loads(gzip.decompress(RunDir(tmp_path).torch_trace(rank).read_bytes()))
        kernels = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "kernel"]
        assert sum("spin_kernel" in name for name in kernels) == sum("nccl" in name for name in kernels) == 12
