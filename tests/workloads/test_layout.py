"""The layout of somebody's model: as DDP has it, without memory, and with every wrong factory told apart."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch.nn.parallel import DistributedDataParallel

from ddpprof.errors import InputError, UsageError
from ddpprof.reducer import MIB, Hold
from ddpprof.workloads.layout import build, layout, reduced

ROOT = Path(__file__).parents[2]
TINY = 64 / MIB


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module into the current folder, under a new name each time: its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    names = []

    def write(body: str) -> str:
        names.append(f"own_model_{len(names)}")
        (tmp_path / f"{names[-1]}.py").write_text(f"import torch\n{body}\n", encoding="utf-8")
        return names[-1]

    yield write
    for name in names:
        sys.modules.pop(name, None)


ODD = """
class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(4))
        self.first = torch.nn.Linear(4, 4)
        self.table = torch.nn.Embedding(3, 4, sparse=True)
        self.second = torch.nn.Linear(4, 4, dtype=torch.float64)
        self.twin = self.first
        self.same = torch.nn.Linear(4, 4, bias=False)
        self.same.weight = self.first.weight
        self.left_out = torch.nn.Linear(4, 4)
        self.first.bias.requires_grad_(False)
        self._ddp_params_and_buffers_to_ignore = ["left_out.weight", "left_out.bias"]

    def forward(self, tokens):
        return self.second((self.table(tokens) * self.scale @ self.first.weight).double())


def make():
    return Odd(), torch.zeros(2, dtype=torch.int64)
"""


def test_the_parameters_are_those_that_ddp_takes(module, alone):
    name = module(ODD)
    _, rows = reduced(build(f"{name}:make")[0])
    on_cpu = sys.modules[name].Odd()
    theirs, is_sparse = DistributedDataParallel(on_cpu)._build_params_for_reducer()
    assert [row.name for row in rows] == ["scale", "first.weight", "table.weight", "second.weight", "second.bias"]
    assert [id(tensor) for tensor in reduced(on_cpu)[0]] == [id(tensor) for tensor in theirs]
    assert [row.is_sparse for row in rows] == is_sparse == [False, False, True, False, False]
    assert [row.size_bytes for row in rows] == [16, 64, 48, 128, 32]
    assert [row.dtype for row in rows] == ["float32"] * 3 + ["float64"] * 2


@pytest.mark.parametrize("mode", ["plain", "static"])
def test_the_traced_layout_is_the_one_that_ddp_rebuilds(module, alone, mode):
    name = module(ODD)
    found = layout(f"{name}:make", [TINY], mode)
    model = sys.modules[name].Odd()
    ddp = DistributedDataParallel(model, bucket_cap_mb=TINY, static_graph=mode == "static")
    for _ in range(4):
        ddp(torch.zeros(2, dtype=torch.int64)).sum().backward()
    logged = ddp._get_ddp_logging_data()
    assert ", ".join(map(str, found.ready)) == logged["prev_iteration_grad_ready_order_indices"]
    assert found.order == "traced"
    (cap,) = found.caps
    buckets = [" ".join(map(str, bucket)) for bucket in cap.rebuilt.parameters]
    assert ", ".join(buckets) == logged["rebuilt_per_bucket_param_indices"]
    assert ", ".join(map(str, cap.rebuilt.size_bytes)) == logged["rebuilt_bucket_sizes"]
    assert ", ".join(map(str, cap.initial.size_bytes)) == logged["bucket_sizes"]


def test_a_model_larger_than_any_memory_has_a_layout(module):
    name = module("def make(): return torch.nn.Linear(2**20, 2**18)")
    found = layout(f"{name}:make", [1.0, 4.0])
    assert (found.order, found.ready) == ("reverse", (1, 0))
    assert [cap.rebuilt.size_bytes for cap in found.caps] == [(MIB, 2**40), (MIB + 2**40,)]


THREE = """
class Three(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Parameter(torch.ones(size)) for size in (1, 10, 100))

    def forward(self, x, y=0):
        {forward}


def make():
    return Three(){inputs}
"""


def three(module, forward: str, inputs: str = ", torch.ones(1)") -> str:
    return f"{module(THREE.format(forward=forward, inputs=inputs))}:make"


def test_a_traced_step_shows_order_and_unused(module):
    found = layout(three(module, "return (self.c.sum() + self.a.sum()) * x"), [TINY])
    assert (found.ready, found.unused) == ((0, 2), (1,))
    assert found.caps[0].rebuilt is None
    assert found.caps[0].holds == ()
    static = layout(three(module, "return (self.c.sum() + self.a.sum()) * x"), [TINY], "static")
    assert static.caps[0].rebuilt.parameters == ((0, 2), (1,))


@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        ("return x * self.a.sum()", ", torch.ones(1)"),
        ("return x * self.a.sum() + y", ", (torch.ones(1), torch.ones(1))"),
        ("return x * self.a.sum() + y", ", {'x': torch.ones(1), 'y': torch.ones(1)}"),
        ("return {'loss': [x * self.a.sum()], 'text': 'no tensor', 'x': x}", ", torch.ones(1)"),
    ],
)
def test_inputs_and_outputs_may_be_nested(module, forward, inputs):
    found = layout(three(module, forward, inputs), [TINY], "find_unused")
    assert (found.ready, found.unused) == ((0,), (1, 2))


def test_find_unused_keeps_the_order_of_registration_and_shows_who_is_waited_for(module):
    name = three(module, "return x * (self.b.sum() + (self.c.sum() + self.a.sum()))")
    found = layout(name, [4 / MIB], "find_unused")
    (cap,) = found.caps
    assert found.ready == (0, 2, 1), "autograd runs the branch made last first"
    assert cap.rebuilt is None
    assert cap.initial.parameters == ((2,), (1,), (0,))
    assert cap.holds == (Hold(1, 4, 8),), "the 4 bytes of a wait for b while two gradients come"


def test_an_order_may_be_given(module):
    name = three(module, "return x", "")
    found = layout(name, [4 / MIB], order=[2, 0, 1])
    assert (found.order, found.caps[0].rebuilt.parameters) == ("given", ((2,), (0,), (1,)))
    assert layout(three(module, "raise"), [TINY], order="reverse").ready == (2, 1, 0)


@pytest.mark.parametrize(("order", "what"), [([3, 1], "no parameter 3"), ([1, 1], "named twice")])
def test_an_order_that_cannot_be_is_told(module, order, what):
    with pytest.raises(UsageError, match=what) as caught:
        layout(three(module, "return x", ""), order=order)
    assert caught.value.hint == "Name each of 0 to 2 once, less those that get no gradient."


def test_the_small_bucket_is_last_when_the_environment_says_so(module, monkeypatch):
    name = module("def make(): return torch.nn.Linear(2**18, 1)")
    assert layout(f"{name}:make").caps[0].rebuilt.parameters == ((1, 0),)
    monkeypatch.setenv("DDP_SET_LAST_BUCKET_CAP", "1")
    assert layout(f"{name}:make").caps[0].rebuilt.parameters == ((1,), (0,))


def test_what_the_factory_prints_is_not_in_the_result(module, capsys):
    name = module("print('importing')\ndef make():\n    print('making')\n    return torch.nn.Linear(1, 1)")
    layout(f"{name}:make")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "importing\nmaking\n")


@pytest.mark.parametrize(
    ("body", "factory", "error", "what"),
    [
        ("", "{}", UsageError, "names no factory"),
        ("", "no_such_module:make", UsageError, "no module 'no_such_module'"),
        ("", "{}.inner:make", UsageError, "no module"),
        ("", "folder/{}.py:make", UsageError, "is a file, not a module"),
        ("def make(): pass", "{}:mak", UsageError, "does not exist"),
        ("make = 3", "{}:make", UsageError, "is not a function"),
        ("import no_such_dependency", "{}:make", InputError, "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("1 / 0", "{}:make", InputError, "cannot be imported: ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", "{}:make", InputError, "cannot be imported: SystemExit: 0"),
        ("def make(): raise ValueError('no\\nluck')", "{}:make", InputError, "make raised ValueError: no\n"),
        ("def make(width): pass", "{}:make", InputError, "make raised TypeError: make\\(\\) missing 1 required"),
        ("def make(): return torch.ones(3).sum().item()", "{}:make", InputError, "make raised"),
        ("def make(): return [torch.nn.Linear(1, 1)]", "{}:make", InputError, "returned list, not a torch.nn.Module"),
        ("def make(): return None", "{}:make", InputError, "returned NoneType, not a torch.nn.Module"),
        ("def make(): return torch.nn.ReLU()", "{}:make", InputError, "no parameter that requires a gradient"),
        ("def make(): return torch.nn.Linear(1, 1), 'word'", "{}:make", InputError, "a step of the model raised TypeError"),
        (
            "def make(): return torch.nn.Linear(2, 1), torch.ones(3)",
            "{}:make",
            InputError,
            "a step of the model raised RuntimeError",
        ),
        (
            "class No(torch.nn.Linear):\n    def forward(self, x): return x\ndef make(): return No(1, 1), torch.ones(1)",
            "{}:make",
            InputError,
            "no output of the model has a gradient",
        ),
    ],
)
def test_a_factory_that_is_none_is_told_in_two_lines(module, body, factory, error, what):
    with pytest.raises(error, match=what) as caught:
        layout(factory.format(module(body)))
    assert len(str(caught.value).splitlines()) <= 2


def test_the_nearest_function_is_offered(module):
    with pytest.raises(UsageError) as caught:
        layout(f"{module('def make_model(): pass')}:make_modl")
    assert caught.value.hint == "Did you mean make_model?"


def test_the_example_has_the_order_of_a_real_step(monkeypatch, alone):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = layout("examples.mlp:make", [4.0])
    from examples.mlp import Mlp

    ddp = DistributedDataParallel(Mlp(), bucket_cap_mb=4)
    for _ in range(3):
        ddp(torch.zeros(2, 16, dtype=torch.int64)).sum().backward()
    logged = ddp._get_ddp_logging_data()
    assert ", ".join(map(str, found.ready)) == logged["prev_iteration_grad_ready_order_indices"]
    assert ", ".join(map(str, found.caps[0].rebuilt.size_bytes)) == logged["rebuilt_bucket_sizes"]
