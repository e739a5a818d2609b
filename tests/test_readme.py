"""README and docs say what is so: commands exist, examples run, tables are those of the model."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import generate_docs
import pytest
from nsight import build

from ddpprof.cli import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TWO_RANKS = """
    K dev0 s7    0..100 GEMM launch=-20..-10 pid=100
    K dev0 s16  50..150 NCCL launch=-9..-8   pid=100
    K dev0 s7    0..100 GEMM launch=-20..-10 pid=200
    K dev0 s16  90..110 NCCL launch=-9..-8   pid=200
"""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def command_lines() -> list[list[str]]:
    """Every ``ddpprof …`` line of the shell blocks of README and docs, less comments and continuation."""
    lines = [line for page in PAGES for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("ddpprof ")]


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_every_command_and_option_of_the_docs_exists(words: list[str]) -> None:
    assert words[1] in COMMANDS
    command = cli.get_command(click.Context(cli), words[1])
    assert command is not None
    known = {flag for parameter in command.params for flag in parameter.opts}
    own = words[2 : words.index("--")] if "--" in words else words[2:]
    assert {word for word in own if word.startswith("-")} <= known


def test_every_command_is_in_the_readme_and_its_help_has_an_example() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert re.search(rf"(ddpprof|make) {name}\b", readme), name
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.epilog is not None
        assert f"ddpprof {name}" in command.epilog


def test_make_targets_of_the_docs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {
        name for page in PAGES for name in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named
    assert named <= targets


def test_the_library_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    build(tmp_path / "report.sqlite", TWO_RANKS)
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(ROOT / "README.md", "python")
    exec(compile(example, "README.md", "exec"), {})
    assert "[(None, 50000, 50000), (None, 10000, 10000)]" in capsys.readouterr().out


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_generated_tables_are_those_of_the_model() -> None:
    """When this fails: python tests/generate_docs.py"""
    assert generate_docs.DEFINITIONS.read_text(encoding="utf-8") == generate_docs.definitions()
    assert generate_docs.SCHEMA.read_text(encoding="utf-8") == generate_docs.schema()
    assert generate_docs.DIAGNOSE.read_text(encoding="utf-8") == generate_docs.diagnose()
