from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from ddpprof.workloads import models
from ddpprof.workloads.cases import CASES
from ddpprof.workloads.recorder import Marker

TINY = replace(CASES["delay_cap4"], parameters=3, parameter_mb=1 / 1024)


def test_branch_gradient_is_bitwise_that_of_autograd():
    generator = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(1000, generator=generator) for _ in range(2))
    ours, plain = (weight.clone().requires_grad_() for _ in range(2))
    (models.Branch.apply(ours, x, 0, False, Marker()) * 0.3).backward()
    ((plain * x).sum() * 0.3).backward()
    assert torch.equal(ours.grad.view(torch.int32), plain.grad.view(torch.int32))


def test_backward_runs_the_last_branch_first_and_the_delay_before_its_gradient(listing, monkeypatch):
    slept = []
    monkeypatch.setattr(models.time, "sleep", slept.append)
    model = models.Branches(TINY, 0, listing)
    loss = model(torch.ones(256))
    listing.is_on = True
    loss.backward()
    assert listing.names == ["delay/2", "compute/2", "delay/1", "compute/1", "delay/0", "compute/0"]
    assert slept == [0.010] * 3


def test_branches_without_delay_do_not_sleep(listing, monkeypatch):
    monkeypatch.setattr(models.time, "sleep", lambda _: pytest.fail("slept"))
    listing.is_on = True
    models.Branches(replace(TINY, is_delayed=False), 0, listing)(torch.ones(256)).backward()
    assert listing.names == ["compute/2", "compute/1", "compute/0"]


def test_an_unused_parameter_is_the_last_and_gets_no_gradient():
    model = models.Branches(replace(TINY, unused=1, is_delayed=False), 0, Marker())
    model(torch.ones(256)).backward()
    assert [name for name, _ in model.named_parameters()] == ["branches.0", "branches.1", "unused.0"]
    assert [parameter.grad is None for parameter in model.parameters()] == [False, False, True]


def test_parameters_depend_on_the_seed_only_and_lie_on_the_grid():
    first, again, other = (torch.cat(models.parameters(TINY, seed)) for seed in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal((first * 1024).round(), first * 1024)
    assert first.abs().max() <= 1


def test_rows_of_the_batch_differ_and_are_whole_when_divided_as_a_gpu_divides():
    batch = torch.stack([models.sample(TINY, 7, seed=0, step=1, row=row) for row in range(7)])
    assert not torch.equal(batch[0], batch[1])
    assert not torch.equal(batch[0], models.sample(TINY, 7, seed=0, step=2, row=0))
    reciprocal = torch.tensor(1.0) / 7
    assert set((batch * reciprocal).unique().tolist()) == {-1.0, 0.0, 1.0}
