"""One step, seen by nsys and by torch.profiler at once: their answers agree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ddpprof
from ddpprof import launch, nsys
from ddpprof.errors import ToolError
from ddpprof.rundir import RunDir

pytestmark = pytest.mark.e2e
pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("nvtx", reason="nvtx is not installed")

PROGRAM = """
import sys, threading, time
from pathlib import Path
import torch
from ddpprof import marks
from ddpprof.workloads.recorder import NvtxMarker, TorchMarker
from ddpprof.workloads.training import write_trace

nvtx, kineto = NvtxMarker(), TorchMarker()
nvtx.is_on = kineto.is_on = True

def both(name):
    class Both:
        def __enter__(self):
            self.ranges = [nvtx.range(name), kineto.range(name)]
            [item.__enter__() for item in self.ranges]
        def __exit__(self, *error):
            [item.__exit__(*error) for item in reversed(self.ranges)]
    return Both()

def reduce(index, seconds):
    future = torch.futures.Future()
    nvtx.until_done(marks.allreduce(index), lambda: kineto.until_done(marks.allreduce(index), lambda: future))
    threading.Timer(seconds, future.set_result, [[]]).start()
    return future

with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    with both(marks.rank(0, 1, None)), both(marks.step(0)):
        futures = []
        for index in range(6):
            with both(marks.delay(index)):
                time.sleep(0.02)
            futures.append(reduce(index, 0.05))
        [future.wait() for future in futures]
        time.sleep(0.01)
write_trace(profile, Path(sys.argv[1]))
"""


def test_both_give_the_same_answer(tmp_path: Path) -> None:
    try:
        tool = nsys.find()
    except ToolError as error:
        pytest.skip(f"no nsys to be had here: {error.message}")
    run, script = RunDir(tmp_path), tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), str(run.torch_trace(0))]
    done = subprocess.run(
        nsys.profile_command(tool, run.nsys_report(), command, has_cuda=False),
        env=launch.environment({}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    by_nsys = ddpprof.analyze(nsys.export(tool, run.nsys_report()), compute="delay")
    by_torch = ddpprof.analyze(run.torch_trace(0), compute="delay")
    (one,), (other,) = by_nsys.ranks, by_torch.ranks
    assert by_nsys.evidence == by_torch.evidence == "host-ranges"
    assert by_nsys.world_size == by_torch.world_size == 1
    for name in ("rank", "n_compute", "n_comm", "n_before_last_compute"):
        assert getattr(one, name) == getattr(other, name), name
    assert (one.n_compute, one.n_comm, one.n_before_last_compute) == (6, 6, 5)
    for name in ("compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "compute_span_ns"):
        seen = (getattr(one, name), getattr(other, name))
        assert abs(seen[0] - seen[1]) < 10_000_000, (name, seen)
