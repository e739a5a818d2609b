from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from ddpprof.errors import WorkloadError
from ddpprof.model import BucketRecord, IterationRecord, LayoutRecord, LoggerRecord
from ddpprof.workloads import training
from ddpprof.workloads.cases import CASES, Branch
from ddpprof.workloads.models import batches
from ddpprof.workloads.training import bracket, reference, train

TRAINABLE = [case for case in CASES.values() if case.branches and case.failure is None and not case.needs_gpu]


def rows(recorder, table):
    return [row for row in recorder.rows if isinstance(row, table)]


@pytest.mark.parametrize("case", TRAINABLE, ids=lambda case: case.name)
def test_real_ddp_has_the_expected_layout_and_the_gradients_of_the_reference(case, job, recorder_of, alone):
    recorder = recorder_of(case)
    train(case, job, recorder)
    initial, rebuilt = rows(recorder, LayoutRecord)
    assert (initial.stage, tuple(initial.size_bytes), initial.is_rebuilt) == ("initial", case.initial_bytes, False)
    assert (rebuilt.stage, tuple(rebuilt.size_bytes), rebuilt.is_rebuilt) == ("rebuilt", case.rebuilt_bytes, case.is_rebuilt)
    assert [row.parameters for row in rows(recorder, BucketRecord)] == rebuilt.parameters * case.passes
    *_, (_, expected) = reference(case, 1, 0, case.warmup + 1)
    assert [row.replica_hash for row in rows(recorder, IterationRecord)] == [expected]


@pytest.fixture
def tiny():
    return replace(CASES["delay_cap4"], branches=2 * (Branch(1 / 1024, delay_ms=10),), bucket_cap_mb=1 / 1024)


def test_marks_are_written_once_and_in_the_captured_step_only(tiny, job, recorder_of, alone, listing):
    recorder = recorder_of(tiny, listing)
    train(tiny, replace(job, capture="nsys", iterations=2), recorder)
    assert listing.names == [
        "rank/0/world/1",
        "step/5",
        "forward",
        "backward",
        *("delay/1", "compute/1", "bucket/0/1024", "allreduce/0"),
        *("delay/0", "compute/0", "bucket/1/1024", "allreduce/1"),
        "optimizer",
    ]
    assert recorder.run.captured_step == 5


def test_rows_cover_the_timed_steps_and_the_captured_one(tiny, job, recorder_of, alone):
    recorder = recorder_of(tiny)
    train(tiny, replace(job, capture="nsys", iterations=2), recorder)
    iterations = rows(recorder, IterationRecord)
    assert [(row.step, row.is_captured) for row in iterations] == [(3, False), (4, False), (5, True)]
    assert [row.step for row in rows(recorder, BucketRecord)] == [3, 3, 4, 4, 5, 5]
    for row in iterations:
        assert row.step_ns >= row.backward_ns + row.optimizer_host_ns > 0
        assert row.step_ns > row.forward_ns > 0


def test_captured_steps_follow_each_other_in_one_window(tiny, job, recorder_of, alone, listing):
    recorder = recorder_of(tiny, listing)
    train(replace(tiny, captured_steps=3), replace(job, capture="nsys"), recorder)
    branches = [name for index in (1, 0) for name in (f"delay/{index}", f"compute/{index}", f"bucket/{1 - index}/1024")]
    step = ["forward", "backward", *branches, "optimizer"]
    seen = [name for name in listing.names if not name.startswith("allreduce")]
    assert seen == ["rank/0/world/1", "step/4", *step, "step/5", *step, "step/6", *step]
    assert recorder.run.captured_step == 4


def test_only_the_last_captured_step_has_a_hash_and_a_logger_row(tiny, job, recorder_of, alone):
    recorder = recorder_of(tiny)
    train(replace(tiny, captured_steps=3), replace(job, capture="nsys"), recorder)
    hashes = [digest for _, digest in reference(tiny, 1, 0, 7)]
    assert [(row.step, row.is_captured, row.replica_hash) for row in rows(recorder, IterationRecord)] == [
        (3, False, hashes[3]),
        (4, True, None),
        (5, True, None),
        (6, True, hashes[6]),
    ]
    assert [row.step for row in rows(recorder, LoggerRecord)] == [3, 6]
    assert [row.step for row in rows(recorder, BucketRecord)] == [3, 3, 4, 4, 5, 5, 6, 6]


def test_every_pass_of_a_step_reduces(tiny, job, recorder_of, alone, listing):
    recorder = recorder_of(tiny, listing)
    train(replace(tiny, passes=2), replace(job, capture="nsys"), recorder)
    outer = [name for name in listing.names if name[0] in "sfo" or name.startswith(("backward", "bucket"))]
    one_pass = ["forward", "backward", "bucket/0/1024", "bucket/1/1024"]
    assert outer == ["step/4", *one_pass, *one_pass, "optimizer"]


def test_a_step_without_its_data_begins_with_a_wait(tiny, job, recorder_of, alone, listing, monkeypatch):
    slept = []
    monkeypatch.setattr(training.time, "sleep", slept.append)
    case = replace(tiny, data_ms=300, data_every=4, captured_steps=4)
    train(case, replace(job, capture="nsys", iterations=2), recorder_of(case, listing))
    at = listing.names.index("wait/data")
    assert listing.names[at - 1 : at + 2] == ["step/8", "wait/data", "forward"]
    assert listing.names.count("wait/data") == 1
    assert slept.count(0.3) == 3  # steps 0, 4 and 8


def test_without_capture_there_is_no_captured_step(tiny, job, recorder_of, alone):
    recorder = recorder_of(tiny)
    train(tiny, job, recorder)
    assert recorder.run.captured_step is None
    assert [row.step for row in rows(recorder, IterationRecord)] == [3]


def test_logger_rows_keep_the_numbers_and_name_no_host(tiny, job, recorder_of, alone):
    recorder = recorder_of(tiny)
    train(tiny, replace(job, iterations=12), recorder)
    last = rows(recorder, LoggerRecord)[-1]
    assert last.fields["rebuilt_bucket_sizes"] == "1024, 1024"
    assert (last.step, last.fields["iteration"]) == (14, 14)
    assert "backward_compute_comm_overlap_time" in last.fields
    assert not {"master_addr", "master_port", "gloo_socket_ifname", "cuda_visible_devices"} & set(last.fields)


def test_a_case_that_should_fail_and_does_not_is_an_error(tiny, job, recorder_of, alone):
    with pytest.raises(WorkloadError, match="must fail in the second forward, and did not"):
        train(replace(tiny, failure="no such thing"), job, recorder_of(tiny))


@pytest.mark.parametrize(
    ("rank", "is_report_per_rank", "starts"), [(0, False, True), (1, False, False), (0, True, True), (1, True, True)]
)
def test_bracket_on_gpus(rank, is_report_per_rank, starts, job, recorder_of, listing, monkeypatch, tiny):
    happened = listing.names
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: happened.append("synchronize"))
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: happened.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: happened.append("stop"))
    monkeypatch.setattr(training.dist, "barrier", lambda group: happened.append("meet"))
    job = replace(
        job,
        rank=rank,
        world_size=2,
        device=torch.device("cuda", rank),
        capture="nsys",
        is_report_per_rank=is_report_per_rank,
    )
    with bracket(job, recorder_of(tiny, listing), None):
        happened.append("step")
    inside = ["meet", f"rank/{rank}/world/2/device/{rank}", "step", "synchronize", "meet"]
    assert happened == ["synchronize", "meet", *(["start", *inside, "stop"] if starts else inside)]
    assert not listing.is_on


THREE_RANKS = """
from dataclasses import replace
from pathlib import Path
from ddpprof.errors import WorkloadError
from ddpprof.rundir import RunDir
from ddpprof.workloads.cases import CASES, Branch
from ddpprof.workloads.models import Branches
from ddpprof.workloads.training import Job, check_same_parameters, train

case = replace(CASES["coarse4_cap16"], branches=12 * (Branch(1 / 64),))
job = Job(rank=rank, world_size=3, device=torch.device("cpu"), folder=RunDir(Path()), iterations=2, seed=5, capture="none")
train(case, job, recorder)
print([row.replica_hash for row in recorder.rows if hasattr(row, "replica_hash")])
for other in (replace(case, branches=5 * (Branch(1 / 64),)), replace(case, branches=12 * (Branch(1 / 32),))):
    model = Branches(other if rank == 2 else case, 0, Marker())
    try:
        check_same_parameters(model, dist.group.WORLD)
    except WorkloadError as error:
        print(error.message)
"""


def test_three_ranks_agree_with_one_process_and_notice_a_different_model(world):
    case = replace(CASES["coarse4_cap16"], branches=12 * (Branch(1 / 64),))
    hashes = [digest for _, digest in reference(case, 3, 5, case.warmup + 2)]
    differences = [
        "ranks differ in their model: rank 0 has 12 parameters, rank 2 has 5",
        "ranks differ in their model: parameter 0 has shape (4096,) on rank 0 and (8192,) on rank 2",
    ]
    assert world(THREE_RANKS, 3) == ["\n".join([str(hashes[-2:]), *differences]) + "\n"] * 3


def test_reference_gradient_is_the_mean_over_the_rows(tiny):
    (gradients, _), (later, _) = reference(tiny, 2, 0, 2)
    rows = [batches(tiny, 2, 0, step=0, row=row)[0] for row in range(2)]
    assert len(gradients) == 2
    assert torch.equal(gradients[1], (rows[0] + rows[1]) / 2)
    assert not torch.equal(gradients[0], later[0])
