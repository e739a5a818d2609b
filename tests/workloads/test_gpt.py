from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from ddpprof.workloads import gpt
from ddpprof.workloads.cases import CASES, Transformer
from ddpprof.workloads.recorder import Marker

SHAPE = Transformer(layers=2, width=16, heads=2, vocabulary=32, tokens=8)


def test_a_forward_and_a_backward_are_a_section_for_each_block_its_embedding_and_its_head(listing):
    listing.is_on = True
    loss = gpt.Gpt(SHAPE, 0, listing)(gpt.sample(SHAPE, 0, number=0, row=0))
    assert listing.names == ["compute/0", "compute/1", "compute/2", "compute/3"]
    listing.names.clear()
    loss.backward()
    assert listing.names == ["compute/3", "compute/2", "compute/1", "compute/0"]


def test_every_parameter_has_a_gradient_and_no_section_is_left_open():
    model = gpt.Gpt(SHAPE, 0, Marker())
    model(gpt.sample(SHAPE, 0, number=0, row=0)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.sections.open is None


def test_a_token_is_told_from_those_before_it_only():
    model = gpt.Gpt(SHAPE, 0, Marker())
    block, x = model.blocks[0], torch.randn(8, 16)
    changed = x.clone()
    changed[5] = 0
    assert torch.equal(block(x)[:5], block(changed)[:5])
    assert not torch.equal(block(x)[5:], block(changed)[5:])


def test_it_starts_near_the_loss_of_a_guess_and_learns_a_sequence():
    model = gpt.Gpt(SHAPE, 0, Marker())
    optimizer, sequence = torch.optim.SGD(model.parameters(), lr=0.1), gpt.sample(SHAPE, 0, number=0, row=0)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model(sequence)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(SHAPE.vocabulary), rel=0.05)
    assert losses[-1] < losses[0] / 2


def test_the_seed_alone_tells_the_parameters_and_leaves_the_generator_of_others_alone():
    torch.manual_seed(7)
    state = torch.random.get_rng_state()
    first, again, other = (
        torch.nn.utils.parameters_to_vector(gpt.Gpt(SHAPE, seed, Marker()).parameters()) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_samples_differ_by_batch_and_rank():
    samples = [gpt.sample(SHAPE, 0, number, row) for number in (0, 1) for row in (0, 1)]
    assert {len(sample) for sample in samples} == {9}
    assert len({tuple(sample.tolist()) for sample in samples}) == 4


TWO_RANKS = """
from dataclasses import replace
from pathlib import Path
from ddpprof.rundir import RunDir
from ddpprof.workloads.cases import CASES, Transformer
from ddpprof.workloads.training import Job, train

shape = Transformer(layers=2, width=16, heads=2, vocabulary=32, tokens=8)
case = replace(CASES["gpt_small"], transformer=shape)
job = Job(rank=rank, world_size=2, device=torch.device("cpu"), folder=RunDir(Path()), iterations=2, capture="none")
train(case, job, recorder)
print([row.replica_hash for row in recorder.rows if hasattr(row, "replica_hash")])
print(len({row.loss for row in recorder.rows if hasattr(row, "loss")}))
"""


def test_replicas_stay_equal_though_each_rank_has_data_of_its_own(world):
    first, second = world(TWO_RANKS, 2)
    assert first == second
    assert first.endswith("\n2\n")


def test_the_case_has_the_bytes_of_its_model():
    case = CASES["gpt_small"]
    model = gpt.Gpt(case.transformer, 0, Marker())
    size = sum(parameter.nbytes for parameter in model.parameters())
    assert case.initial_bytes == (size,) == (sum(case.rebuilt_bytes),)
