from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from ddpprof.workloads import reference as module
from ddpprof.workloads.cases import find
from ddpprof.workloads.training import reference


@pytest.fixture
def threads():
    """Puts back the number of threads that the program sets for its process."""
    number = torch.get_num_threads()
    yield
    torch.set_num_threads(number)


def test_it_writes_the_hash_after_each_step(capsys, threads):
    assert module.main(["fine1_cap4", "--world", "2", "--seed", "5", "--steps", "2"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == [digest for _, digest in reference(find("fine1_cap4"), 2, 5, 2)]
    assert len(set(said)) == 2


def test_ddp_settings_do_not_change_it_but_seed_and_world_do(capsys, threads):
    def first(case, *options):
        module.main([case, "--steps", "1", *options])
        return capsys.readouterr().out

    plain = first("coarse4_cap4", "--world", "2")
    assert first("delay_cap64", "--world", "2") == plain
    assert len({plain, first("coarse4_cap4", "--world", "3"), first("coarse4_cap4", "--world", "2", "--seed", "1")}) == 3


def test_a_case_that_is_none_is_told(capsys):
    assert module.main(["delay_cap5", "--world", "2", "--steps", "1"]) == 2
    assert "no case 'delay_cap5'" in capsys.readouterr().err
