from __future__ import annotations

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ddpprof.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reducer.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """In the root of the project, where the examples are."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])


def layout(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["layout", *arguments])
    return ended.value.code


def test_the_page_shows_what_the_command_says(capsys):
    (shown,) = re.findall(r"<!-- layout: .*? -->\n```\n\$ ddpprof layout (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert layout(*shown[0].split()) == 0
    assert re.sub(r"; torch \S+", "; torch 2.13.0", capsys.readouterr().out) == shown[1]


def test_without_inputs_the_order_is_said_to_be_taken(capsys):
    assert layout("examples.mlp:model", "--caps", "64") == 0
    out = capsys.readouterr().out
    assert "gradients are taken to come in the reverse order of registration\n" in out
    assert "  rebuilt, 1 bucket:\n      0   51.18 MiB  layers.3.bias ... head.weight (11 parameters)\n" in out
    assert "  holds the queue: head.weight; 47.27 MiB come before it and can be sent only when it is there\n" in out


def test_find_unused_is_never_rebuilt(capsys):
    assert layout("examples.mlp:make", "--caps", "4", "--find-unused") == 0
    out = capsys.readouterr().out
    assert "  never rebuilt, 6 buckets:\n      0    4.00 KiB  layers.3.bias\n" in out
    assert "before forward" not in out


def test_a_static_graph_is_rebuilt_a_forward_later(capsys):
    assert layout("examples.mlp:make", "--static-graph") == 0
    assert "  before forward 3, 1 bucket: 51.18 MiB\n" in capsys.readouterr().out


def test_nothing_holds_a_queue_of_single_gradients(capsys):
    assert layout("examples.mlp:model", "--caps", "0.001") == 0
    assert "  nothing holds the queue: each gradient can be sent when it comes\n" in capsys.readouterr().out


OWN = """
import torch

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(1, 1, bias=False, dtype=kind) for kind in KINDS)

    def forward(self, x):
        return [part.weight.sum() * x for part in list(self.parts)[:USED]]

def make():
    return Own(), torch.ones(1)
"""


def own(tmp_path, monkeypatch, name: str, kinds: str, used: int) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.py").write_text(OWN.replace("KINDS", kinds).replace("USED", str(used)), encoding="utf-8")
    return f"{name}:make"


def test_an_unused_parameter_is_named_and_ends_plain_ddp(tmp_path, monkeypatch, capsys):
    assert layout(own(tmp_path, monkeypatch, "own_unused", "[torch.float32] * 3", 2)) == 0
    out = capsys.readouterr().out
    assert "\nunused, without a gradient: parts.2.weight\n" in out
    assert "  then it raises: with neither find_unused_parameters nor static_graph every parameter needs a gradient\n" in out


def test_an_order_that_is_not_known_is_said(tmp_path, monkeypatch, capsys):
    kinds = "[torch.float32, torch.float64, torch.float16]"
    assert layout(own(tmp_path, monkeypatch, "own_kinds", kinds, 3)) == 0
    assert "the order of 0, 1, 2 among themselves is PyTorch's choice" in capsys.readouterr().out


def test_json_has_the_layouts_whole(capsys):
    assert layout("examples.mlp:make", "--caps", "default,4", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["factory"] == "examples.mlp:make"
    assert found["torch_version"].split("+")[0] == version("torch").split("+")[0]
    assert (found["mode"], found["order"], found["unused"]) == ("plain", "traced", [])
    assert found["ready"] == [1, 0, 10, 9, 8, 7, 6, 5, 4, 3, 2]
    assert found["parameters"][2]["name"] == "embedding.weight"
    assert [cap["cap_mb"] for cap in found["caps"]] == [None, 4]
    default = found["caps"][0]
    assert [bucket["parameters"] for bucket in default["rebuilt"]["buckets"]] == [[1, 0], [10, 9, 8, 7, 6, 5, 4, 3, 2]]
    assert [bucket["size_bytes"] for bucket in default["initial"]["buckets"]] == [
        4 * (1000 * 1024 + 1000 + 8000 * 1024 + 4 * (1024 * 1024 + 1024))
    ]
    assert default["rebuilt"]["unspecified"] == []
    assert default["holds"][0]["parameter"] == 2


@pytest.mark.parametrize("caps", ["0", "-4", "4,x", "", "4,,25", "nan", "inf"])
def test_a_cap_that_is_no_size_is_an_error_of_usage(caps, capsys):
    assert layout("examples.mlp:make", f"--caps={caps}") == 2
    assert "is no size in MiB" in capsys.readouterr().err


@pytest.mark.parametrize(("order", "what"), [("1,b", "neither reverse nor numbers"), ("0,99", "there is no parameter 99")])
def test_an_order_that_is_none_is_an_error_of_usage(order, what, capsys):
    assert layout("examples.mlp:make", "--order", order) == 2
    assert what in capsys.readouterr().err


def test_an_order_as_the_ddp_logger_writes_it_is_taken(capsys):
    assert layout("examples.mlp:model", "--order", "1, 0, 10, 9, 8, 7, 6, 5, 4, 3, 2", "--caps", "4") == 0
    out = capsys.readouterr().out
    assert "gradients come in the order given\n" in out
    assert "  rebuilt, 5 buckets:\n" in out


def test_a_module_that_is_not_there_is_an_error_in_two_lines(capsys):
    assert layout("examples.nothing:make") == 2
    assert capsys.readouterr().err.splitlines()[0] == "ddpprof: no module 'examples.nothing'"


def test_without_torch_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert layout("examples.mlp:make") == 1
    assert "torch is not installed here" in capsys.readouterr().err
