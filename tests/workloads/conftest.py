"""Worlds to train in: a group of this process alone, and groups of real processes. All on loopback or files, all bounded."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from ddpprof.model import RunRecord
from ddpprof.rundir import RunDir

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
TIMEOUT_S = 300

PREAMBLE = """
import sys
from datetime import timedelta
import torch, torch.distributed as dist
from ddpprof.model import RunRecord
from ddpprof.workloads.recorder import Marker, Recorder
torch.set_num_threads(1)
store, rank, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world_size, timeout=timedelta(seconds=120))
options = dict(device="cpu", backend="gloo", bucket_cap_mb=4, iterations=2, seed=5, torch_version="2")
recorder = Recorder(RunRecord(rank=rank, world_size=world_size, case="", **options), Marker())
"""

EPILOGUE = """
sys.stdout.flush()
__import__("os")._exit(0)  # gloo's threads can abort the orderly end of a process on a busy machine
"""


@pytest.fixture
def listing():
    """A marker that keeps the names of its ranges in the order in which they open."""
    from ddpprof.workloads.recorder import Marker

    class Listing(Marker):
        def __init__(self):
            self.names = []

        def _range(self, name):
            self.names.append(name)
            return nullcontext()

        def _until_done(self, name, enqueue):
            self.names.append(name)
            return enqueue()

    return Listing()


@pytest.fixture
def alone():
    """A gloo group of one rank in this process, on one thread as the ranks of a CPU run are."""
    import torch
    import torch.distributed as dist

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.set_num_threads(threads)


@pytest.fixture
def recorder_of():
    """Makes the recorder of rank 0 of one for a case."""
    from ddpprof.workloads.recorder import Marker, Recorder

    def make(case, marker=None):
        options = {"device": "cpu", "backend": "gloo", "bucket_cap_mb": case.bucket_cap_mb, "iterations": 1, "seed": 0}
        run = RunRecord(rank=0, world_size=1, case=case.name, torch_version="2", **options)
        return Recorder(run, marker or Marker())

    return make


@pytest.fixture
def job(tmp_path):
    """One timed step on rank 0 of one, without capture."""
    import torch

    from ddpprof.workloads.training import Job

    return Job(rank=0, world_size=1, device=torch.device("cpu"), folder=RunDir(tmp_path), iterations=1, capture="none")


@pytest.fixture
def world(tmp_path):
    """Runs code on several ranks of a gloo group, with ``rank``, ``recorder``, ``torch`` and ``dist``: their stdouts."""

    def run(code, world_size):
        store = str(tmp_path / "store")
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", PREAMBLE + code + EPILOGUE, store, str(rank), str(world_size)],
                env=ENVIRONMENT,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(world_size)
        ]
        try:
            outputs = [rank.communicate(timeout=TIMEOUT_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0] * world_size, [error for _, error in outputs]
        return [out for out, _ in outputs]

    return run


@pytest.fixture
def torchrun():
    """Runs the entry on two CPU ranks, as ``ddpprof profile`` does."""

    def run(*arguments, **environment):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return subprocess.run(
            [*command, "-m", "ddpprof.workloads.run", *arguments],
            env=ENVIRONMENT | environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    return run
