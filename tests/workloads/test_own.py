"""What a script of somebody's own marks and leaves, on a CPU."""

from __future__ import annotations

import pytest

import ddpprof
from ddpprof.errors import InputError, WorkloadError
from ddpprof.rundir import RECORDS_FOLDER, STEPS_FOLDER, RunDir, read_records, read_steps
from ddpprof.workloads import own


@pytest.fixture
def marked(monkeypatch, listing):
    """The names of the ranges that are opened."""
    monkeypatch.setattr(own, "_marker", lambda: listing)
    listing.is_on = True
    return listing.names


def test_a_step_is_marked_with_its_rank_and_number(marked, monkeypatch):
    monkeypatch.delenv(STEPS_FOLDER, raising=False)
    with ddpprof.timed_step(7):
        pass
    assert marked == ["rank/0/world/1", "step/7"]


def test_in_a_process_group_the_rank_is_that_of_the_group(marked, alone, monkeypatch):
    monkeypatch.setattr(own.dist, "get_rank", lambda: 3)
    monkeypatch.setattr(own.dist, "get_world_size", lambda: 4)
    with ddpprof.timed_step(0):
        pass
    assert marked == ["rank/3/world/4", "step/0"]


def test_only_a_sweep_is_left_what_a_step_took(marked, monkeypatch, tmp_path):
    clock = iter([100, 130, 200, 207, 900])
    monkeypatch.setattr(own, "point", lambda device: next(clock))
    monkeypatch.setenv(STEPS_FOLDER, str(tmp_path))
    for number in (4, 5):
        with ddpprof.timed_step(number):
            pass
    assert (tmp_path / "steps.rank0.txt").read_text() == "4 30\n5 7\n"
    assert read_steps(RunDir(tmp_path)) == [(4, 30), (5, 7)]
    monkeypatch.delenv(STEPS_FOLDER)
    with ddpprof.timed_step(6):
        pass
    assert len(read_steps(RunDir(tmp_path))) == 2


def test_a_step_that_fails_leaves_no_time(marked, monkeypatch, tmp_path):
    monkeypatch.setenv(STEPS_FOLDER, str(tmp_path))
    with pytest.raises(ZeroDivisionError), ddpprof.timed_step(1):
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_no_step_wrote_is_named(tmp_path):
    (tmp_path / "steps.rank1.txt").write_text("4 30\nfive 7\n")
    with pytest.raises(InputError, match=r"steps\.rank1\.txt: not a line of ddpprof\.timed_step: 'five 7'"):
        read_steps(RunDir(tmp_path))


def test_a_watched_model_records_the_gradients_of_timed_steps(marked, alone, monkeypatch, tmp_path):
    """Its buckets are marked too. The records are written when the process ends."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv(STEPS_FOLDER, str(tmp_path))
    monkeypatch.setenv(RECORDS_FOLDER, str(tmp_path))
    monkeypatch.setattr(own, "_watched", {})
    at_end = []
    monkeypatch.setattr(own.atexit, "register", lambda *call: at_end.append(call))
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), bucket_cap_mb=2)
    ddpprof.watch(ddp)
    backward = lambda: ddp(torch.ones(1, 4)).sum().backward()  # noqa: E731
    backward()  # outside of a step: not recorded
    for number in range(2):
        with ddpprof.timed_step(number):
            backward()
        backward()
    ((write, folder),) = (call for call in at_end if isinstance(call[-1], RunDir))
    write(folder)
    assert [name for name in marked if not name.startswith("rank")] == [*SENT, "step/0", *SENT, *SENT, "step/1", *SENT, *SENT]
    found = read_records(RunDir(tmp_path))
    assert (found.runs[0].bucket_cap_mb, found.runs[0].backend, found.models[0].names) == (2, "gloo", ["weight", "bias"])
    assert [(row.step, sorted(row.parameters)) for row in found.gradients] == [(0, [0, 1]), (1, [0, 1])]
    assert [(row.step, row.step_ns) for row in found.gradients] == read_steps(RunDir(tmp_path))
    assert [(row.step, row.size_bytes) for row in found.buckets] == [(0, 80), (1, 80)]


def test_the_default_of_ddp_is_no_cap(alone):
    """Its first bucket is smaller, so it is not 25 MiB."""
    torch = pytest.importorskip("torch")
    for given, seen in (({}, None), ({"bucket_cap_mb": 25}, 25), ({"bucket_cap_mb": 0.5}, 0.5)):
        assert own._cap_mb(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1), **given)) == seen


SENT = ["bucket/0/80", "allreduce/0"]


def test_one_model_is_watched_and_all_ranks_share_it(alone, monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv(RECORDS_FOLDER, str(tmp_path))
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    monkeypatch.setattr(own, "_watched", {"recorder": None})
    with pytest.raises(WorkloadError, match="watched already"):
        ddpprof.watch(ddp)
    monkeypatch.setattr(own, "_watched", {})
    monkeypatch.setattr(own.dist, "get_world_size", lambda group=None: 2 if group is None else 1)
    with pytest.raises(WorkloadError, match="1 of the job's 2 ranks"):
        ddpprof.watch(ddp)


def test_where_nothing_captures_a_model_is_left_alone(alone, monkeypatch, tmp_path):
    """Also in the timed runs of a sweep, which are to be those of the job alone."""
    monkeypatch.delenv(RECORDS_FOLDER, raising=False)
    monkeypatch.setenv(STEPS_FOLDER, str(tmp_path))
    monkeypatch.setattr(own, "_watched", {})
    ddpprof.watch(None)
    assert own._watched == {}
