from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from ddpprof.workloads import models
from ddpprof.workloads.cases import CASES, Branch
from ddpprof.workloads.recorder import Marker

TINY = replace(CASES["delay_cap4"], branches=3 * (Branch(1 / 1024, delay_ms=10),))


def test_product_gradient_is_bitwise_that_of_autograd():
    generator = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(1000, generator=generator) for _ in range(2))
    ours, plain = (weight.clone().requires_grad_() for _ in range(2))
    (models.Product.apply(ours, x, 0, Branch(4), Marker()) * 0.3).backward()
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
    models.Branches(replace(TINY, branches=3 * (Branch(1 / 1024),)), 0, listing)(torch.ones(256)).backward()
    assert listing.names == ["compute/2", "compute/1", "compute/0"]


def test_an_unused_parameter_is_the_last_and_gets_no_gradient():
    branches = (*2 * (Branch(1 / 1024),), Branch(1 / 1024, is_used=False))
    model = models.Branches(replace(TINY, branches=branches), 0, Marker())
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
    batch = torch.stack([models.sample(TINY, 7, seed=0, number=1, row=row) for row in range(7)])
    assert not torch.equal(batch[0], batch[1])
    assert not torch.equal(batch[0], models.sample(TINY, 7, seed=0, number=2, row=0))
    reciprocal = torch.tensor(1.0) / 7
    assert set((batch * reciprocal).unique().tolist()) == {-1.0, 0.0, 1.0}


@pytest.fixture
def slept(monkeypatch):
    """How long each sleep was, instead of it."""
    found = []
    monkeypatch.setattr(models.time, "sleep", found.append)
    return found


def test_a_branch_waits_then_holds_then_has_its_gradient(listing, slept):
    case = replace(TINY, branches=(Branch(1 / 1024), Branch(1 / 1024, delay_ms=10, item_ms=120)))
    loss = models.Branches(case, 0, listing)(torch.ones(256))
    listing.is_on = True
    loss.backward()
    assert listing.names == ["wait/item", "delay/1", "compute/1", "compute/0"]
    assert slept == [0.120, 0.010]


def test_gradients_come_in_the_reverse_of_the_order_of_the_forward(listing, slept):
    loss = models.Branches(replace(TINY, forward_order=(2, 0, 1)), 0, listing)(torch.ones(256))
    listing.is_on = True
    loss.backward()
    assert [name for name in listing.names if name.startswith("compute")] == ["compute/1", "compute/0", "compute/2"]


@pytest.mark.parametrize(("rank", "delay_s"), [(0, 0.010), (1, 0.025)])
def test_a_slow_rank_holds_each_branch_for_longer(rank, delay_s, slept):
    models.Branches(replace(TINY, slow_ranks_ms={1: 15}), 0, Marker(), rank)(torch.ones(256)).backward()
    assert slept == [delay_s] * 3


def test_parameters_may_differ_in_size():
    case = replace(TINY, branches=(Branch(1 / 1024), Branch(3 / 1024)))
    model = models.Branches(case, 0, Marker())
    x = models.sample(case, 1, seed=0, number=0, row=0)
    model(x).backward()
    assert [parameter.numel() for parameter in model.parameters()] == [256, 768] == [256, len(x)]
    assert torch.equal(model.branches[0].grad, x[:256])


def test_each_pass_of_a_step_has_data_of_its_own():
    case = replace(TINY, passes=2)
    first, second = (models.batches(case, 2, 0, step, row=1) for step in (0, 1))
    numbers = [models.sample(case, 2, 0, number, row=1) for number in range(4)]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip([*first, *second], numbers, strict=True))


def test_a_gpu_is_held_for_a_million_cycles_a_millisecond(monkeypatch):
    cycles = []
    monkeypatch.setattr(torch.cuda, "_sleep", cycles.append, raising=False)
    models.hold(torch.device("cuda"), 10)
    assert cycles == [10_000_000]


def test_matrix_products_are_of_the_device_and_change_no_gradient(monkeypatch):
    operands = torch.eye(2), torch.eye(2)
    monkeypatch.setattr(models, "_matrices", lambda device: operands)
    multiplied = []
    monkeypatch.setattr(torch, "mm", lambda *given: multiplied.append(given))
    model = models.Branches(replace(TINY, branches=(Branch(1 / 1024, matmuls=2),)), 0, Marker())
    model(torch.ones(256)).backward()
    assert multiplied == [operands] * 2
    assert torch.equal(model.branches[0].grad, torch.ones(256))
