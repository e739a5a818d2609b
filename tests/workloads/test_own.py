"""What a script of somebody's own marks and leaves, on a CPU."""

from __future__ import annotations

import pytest

import ddpprof
from ddpprof.errors import InputError
from ddpprof.rundir import STEPS_FOLDER, RunDir, read_steps
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
