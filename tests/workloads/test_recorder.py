from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from ddpprof.rundir import RunDir, read_records
from ddpprof.workloads.cases import CASES
from ddpprof.workloads.recorder import Marker, NvtxMarker, TorchMarker, marker_for, replica_hash


def test_nvtx_ranges_go_to_our_domain_and_end_with_the_future(monkeypatch):
    calls = []
    fake = SimpleNamespace(
        annotate=lambda name, domain: calls.append(("annotate", name, domain)),
        start_range=lambda name, domain: calls.append(("start", name, domain)) or 17,
        end_range=lambda token: calls.append(("end", token)),
    )
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    marker = NvtxMarker()
    future = torch.futures.Future()
    marker.is_on = True
    marker.range("forward")
    assert marker.until_done("allreduce/0", lambda: calls.append("enqueue") or future) is future
    assert calls == [("annotate", "forward", "ddpprof"), ("start", "allreduce/0", "ddpprof"), "enqueue"]
    future.set_result([])
    assert calls[-1] == ("end", 17)


@pytest.mark.parametrize("marker", [NvtxMarker, TorchMarker])
def test_a_marker_that_is_off_writes_nothing(marker, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace())
    monkeypatch.setattr(torch.profiler, "record_function", lambda name: pytest.fail(name))
    with marker().range("forward"):
        assert marker().until_done("allreduce/0", lambda: "future") == "future"


def test_without_nvtx_there_are_no_marks(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    assert type(marker_for("nsys")) is Marker
    assert type(marker_for("none")) is Marker
    assert type(marker_for("torch")) is TorchMarker


def test_replica_hash_sees_the_last_bit_of_any_parameter():
    zeros = [torch.zeros(3), torch.zeros(2)]
    nearly = [torch.zeros(3), torch.tensor([0.0, 1e-45])]
    assert replica_hash(zeros) == replica_hash([torch.zeros(3), torch.zeros(2)])
    assert replica_hash(zeros) != replica_hash(nearly)


def test_rows_come_back_as_they_were_written(recorder_of, tmp_path):
    recorder = recorder_of(CASES["coarse4_cap4"])
    recorder.step = 1
    recorder.failure(ValueError("first\nsecond"), is_expected=False)
    recorder.write(RunDir(tmp_path))
    records = read_records(RunDir(tmp_path))
    assert (records.runs, records.failures) == ((recorder.run,), tuple(recorder.rows))
    assert (records.failures[0].error, records.failures[0].message) == ("ValueError", "first")


HOOK = """
from torch.nn.parallel import DistributedDataParallel as DDP
from dataclasses import replace
from ddpprof.workloads.cases import CASES, Branch
from ddpprof.workloads.models import Branches
from ddpprof.workloads.training import distribute

case = replace(CASES["coarse4_cap4"], branches=12 * (Branch(1 / 64),), bucket_cap_mb=1 / 32)
with_hook, without = (distribute(Branches(case, 0, Marker()), case, torch.device("cpu")) for _ in range(2))
recorder.watch(with_hook)
recorder.is_kept = True
for step in range(3):
    x = torch.randn(4096, generator=torch.Generator().manual_seed(10 * step + rank))
    for ddp in (with_hook, without):
        ddp.zero_grad()
        ddp(x).backward()
    for ours, theirs in zip(with_hook.parameters(), without.parameters(), strict=True):
        assert torch.equal(ours.grad.view(torch.int32), theirs.grad.view(torch.int32))
print([row.parameters for row in recorder.rows if hasattr(row, "bucket")][-6:])
print(recorder.rows[-1].is_last, recorder.rows[-1].size_bytes, recorder.rows[-1].launch_ns >= recorder.rows[-1].ready_ns)
"""


def test_gradients_with_the_hook_are_bitwise_those_without(world):
    buckets = "[[11, 10], [9, 8], [7, 6], [5, 4], [3, 2], [1, 0]]"
    assert world(HOOK, 2) == [f"{buckets}\nTrue 32768 True\n"] * 2


def test_a_bucket_is_reduced_in_the_group_of_its_model(alone, recorder_of, monkeypatch):
    group = torch.distributed.new_group([0])
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), process_group=group)
    recorder = recorder_of(CASES["coarse4_cap4"])
    recorder.watch(ddp)
    used, all_reduce = [], torch.distributed.all_reduce
    monkeypatch.setattr(
        torch.distributed, "all_reduce", lambda *args, **options: used.append(options["group"]) or all_reduce(*args, **options)
    )
    ddp(torch.ones(1, 4)).sum().backward()
    assert used == [group]


def test_a_sparse_gradient_is_reduced_and_counted_as_a_dense_one(alone, recorder_of):
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(8, 4, sparse=True))
    recorder = recorder_of(CASES["coarse4_cap4"])
    recorder.watch(ddp)
    recorder.is_kept = True
    ddp(torch.tensor([1, 1])).sum().backward()
    assert ddp.module.weight.grad.to_dense().sum() == 8
    assert recorder.rows[-1].size_bytes == 8 * 4 * 4


WRITTEN = """
from pathlib import Path
from dataclasses import replace
from ddpprof.rundir import RunDir, read_records
from ddpprof.workloads.cases import CASES
from ddpprof.workloads.training import distribute

class Gated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = torch.nn.Linear(4, 4, bias=False).requires_grad_(False)
        self.body = torch.nn.Linear(4, 4, bias=False)
        self.gate = torch.nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return self.body(self.gate(self.frozen(x))).sum()

ddp = torch.nn.parallel.DistributedDataParallel(Gated(), find_unused_parameters=True, bucket_cap_mb=1e-4)
recorder.watch(ddp)
for recorder.step in range(2):
    recorder.is_kept, recorder.started_ns = recorder.step == 1, __import__("time").perf_counter_ns()
    ddp(torch.ones(1, 4)).backward()
recorder.took(5)
folder = Path(store).parent
recorder.write(RunDir(folder))
dist.barrier()
found = read_records(RunDir(folder))
(told,) = (row for row in found.models if row.rank == rank)
print(told.names, told.size_bytes, told.dtypes[0], told.find_unused_parameters, told.static_graph)
print(told.probe_bytes, min(told.probe_ns) > 0)
mine = [row for row in found.gradients if row.rank == rank]
print([(row.step, row.parameters, row.step_ns) for row in mine])
sent = [row for row in found.buckets if row.rank == rank]
print([(row.step, row.bucket, row.parameters) for row in sent])
ready = mine[1].ready_ns
print(0 < ready[0] < ready[1] < sent[0].ready_ns, all(row.done_ns > row.ready_ns for row in sent))
"""


def test_parameters_gradients_and_the_ends_of_buckets_are_recorded(world):
    """The gate, registered last, is expected first and comes last: both buckets are sent after it."""
    lines = [
        "['body.weight', 'gate.weight'] [64, 64] float32 True False",
        "[8, 128] True",
        "[(0, [0, 1], None), (1, [0, 1], 5)]",
        "[(1, 0, [0, 1])]",
        "True True",
    ]
    assert world(WRITTEN, 2) == ["\n".join(lines) + "\n"] * 2


@pytest.mark.parametrize(("few", "noted"), [(2, [0, 1, 2]), (1, [0, 2])])
def test_timed_steps_of_many_parameters_are_left_alone(alone, recorder_of, tmp_path, monkeypatch, few, noted):
    """Step 0 is warm-up, step 1 timed, step 2 captured."""
    monkeypatch.setattr("ddpprof.workloads.recorder.FEW", few)
    recorder = recorder_of(CASES["coarse4_cap4"])
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    recorder.watch(ddp)
    for recorder.step in range(3):
        recorder.is_kept, recorder.marker.is_on = recorder.step > 0, recorder.step == 2
        ddp(torch.ones(1, 4)).sum().backward()
    recorder.write(RunDir(tmp_path))
    rows = read_records(RunDir(tmp_path)).gradients
    assert [(row.step, sorted(row.parameters)) for row in rows] == [(step, [0, 1]) for step in noted]
