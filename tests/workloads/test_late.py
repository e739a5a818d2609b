"""The example of a gradient that is expected first and comes last."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("nvtx")

from ddpprof.reducer import MIB
from ddpprof.workloads.layout import layout


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])


def test_without_a_rebuild_one_gradient_holds_all_others():
    found = layout("examples.late:make", [4], "find_unused")
    (cap,) = found.caps
    names = [[found.parameters[index].name for index in bucket] for bucket in cap.initial.parameters]
    assert (names[0], found.parameters[found.ready[-1]].name) == (["gate.weight"], "gate.weight")
    assert (cap.rebuilt, [found.parameters[hold.parameter].name for hold in cap.holds]) == (None, ["gate.weight"])
    assert cap.holds[0].waiting_bytes == 24 * MIB


def test_the_rebuild_puts_it_last_and_nothing_is_held():
    found = layout("examples.late:make", [4], "plain")
    (cap,) = found.caps
    assert cap.rebuilt is not None
    assert [found.parameters[index].name for index in cap.rebuilt.parameters[-1]] == ["gate.weight"]
    assert cap.holds == ()
