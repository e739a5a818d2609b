"""Who may import whom, as shared/design/architecture.md draws it: cli → pipeline → reports → the three rooms → the spine."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("analysis", "reports", "workloads")
"""The folders of the checkout that are subpackages. ``benchmarks`` is a program beside the package, with the tests' builder."""
MODULES = {
    "spine": {"errors", "marks", "model", "reducer", "rundir"},
    "capture": {"nsys", "nsys_fetch", "launch", "machine"},
    "results": {"results"},
    "pipeline": {"inputs", "profiling", "checkup", "sweeping", "claims", "verification"},
}
"""What the modules beside the rooms are."""
MAY_IMPORT = {
    "spine": set(),
    "capture": {"spine"},
    "analysis": {"spine"},
    "workloads": {"spine"},
    "reports": {"spine"},
    "results": {"spine", "capture"},
    "pipeline": {"spine", "capture", "results", "analysis", "workloads", "reports"},
    "cli": {"spine", "capture", "results", "analysis", "workloads", "reports", "pipeline"},
    "package": {"cli", "pipeline"},
}
"""Layer to the layers below it; within a layer anything goes."""
OWNERS = {
    "torch": {"workloads"},
    "nvtx": {"workloads"},
    "sqlalchemy": {"analysis", "results"},
    "adbc_driver_manager": {"analysis"},
    "adbc_driver_sqlite": {"analysis"},
    "pyarrow": {"analysis"},
    "ijson": {"analysis"},
    "msgspec": {"analysis", "spine"},
    "numpy": {"analysis", "reports", "spine"},
    "pandas": {"spine"},
    "matplotlib": {"reports"},
    "rich": {"cli", "reports"},
    "click": {"cli"},
    "distributed": {"pipeline"},
}
"""Third party to the layers that may import it."""


@dataclass(frozen=True)
class Import:
    """One import statement's target; ``is_late`` when it waits in a function, ``is_typing`` when it is for type checkers."""

    target: str
    line: int
    is_late: bool
    is_typing: bool


@cache
def modules() -> dict[str, Path]:
    """Every module of the distribution by its import name."""
    found = {}
    for folder, prefix in [("ddpprof", "ddpprof"), *((room, f"ddpprof.{room}") for room in ROOMS)]:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = [part for part in path.relative_to(ROOT / folder).with_suffix("").parts if part != "__init__"]
            found[".".join([prefix, *parts])] = path
    return found


def layer_of(module: str) -> str:
    _, _, rest = module.partition(".")
    first = rest.split(".")[0]
    if first in (*ROOMS, "cli"):
        return first
    return next((layer for layer, names in MODULES.items() if first in names), "package")


@cache
def imports(module: str) -> tuple[Import, ...]:
    """What a module imports; ``from ddpprof.analysis import job`` is ddpprof.analysis.job where that is a module."""
    return tuple(_imports(ast.parse(modules()[module].read_text(encoding="utf-8")), is_late=False, is_typing=False))


def _imports(node: ast.AST, is_late: bool, is_typing: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        late = is_late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        typing = is_typing or (isinstance(child, ast.If) and getattr(child.test, "id", None) == "TYPE_CHECKING")
        if isinstance(child, ast.Import):
            for name in child.names:
                yield Import(name.name, child.lineno, late, typing)
        elif isinstance(child, ast.ImportFrom):
            base = "." * child.level + (child.module or "")
            for name in child.names:
                whole = f"{base}.{name.name}"
                yield Import(whole if whole in modules() else base, child.lineno, late, typing)
        yield from _imports(child, late, typing)


def violations(is_wrong: object) -> list[str]:
    assert callable(is_wrong)
    return [
        f"{modules()[module].relative_to(ROOT)}:{item.line} imports {item.target}"
        for module in modules()
        for item in imports(module)
        if is_wrong(module, item)
    ]


def test_every_module_has_a_place() -> None:
    """A new module beside the rooms must say in MODULES what it is."""
    assert [name for name in modules() if layer_of(name) == "package"] == ["ddpprof", "ddpprof.__main__"]
    assert len(modules()) > 30


def test_layers_import_only_downwards() -> None:
    def is_wrong(module: str, item: Import) -> bool:
        if not item.target.startswith("ddpprof.") or item.is_typing:
            return False
        above, below = layer_of(module), layer_of(item.target)
        return above != below and below not in MAY_IMPORT[above]

    assert violations(is_wrong) == []


def test_imports_are_absolute_and_by_the_one_name() -> None:
    """``import analysis`` would load a second copy of the room, from whichever folder is first on the path."""
    assert (
        violations(lambda module, item: item.target.startswith(".") or item.target.split(".")[0] in (*ROOMS, "benchmarks"))
        == []
    )


def test_every_third_party_stays_with_its_owner() -> None:
    known = sys.stdlib_module_names | {"ddpprof"}

    def is_wrong(module: str, item: Import) -> bool:
        top = item.target.split(".")[0]
        return top not in known and layer_of(module) not in OWNERS.get(top, set())

    assert violations(is_wrong) == []


@pytest.mark.parametrize(
    ("start", "allowed"),
    [
        ("ddpprof", set()),
        ("ddpprof.cli", {"click"}),
        ("ddpprof.cli.profile", {"click"}),
        ("ddpprof.inputs", set()),
        ("ddpprof.profiling", set()),
        ("ddpprof.rundir", set()),
        ("ddpprof.workloads.cases", set()),
        ("ddpprof.analysis.intervals", {"numpy"}),
        ("ddpprof.analysis.load", set()),
        ("ddpprof.reports.text", set()),
    ],
)
def test_what_loads_at_once_is_light(start: str, allowed: set[str]) -> None:
    """The help, the library's front door and the text report load nothing heavy: those imports wait in functions."""
    seen, todo, third_party = {start}, [start], set()
    while todo:
        for item in imports(todo.pop()):
            if item.is_late or item.is_typing:
                continue
            if item.target in modules() and item.target not in seen:
                seen.add(item.target)
                todo.append(item.target)
            elif item.target.split(".")[0] in OWNERS:
                third_party.add(item.target.split(".")[0])
    assert third_party <= allowed


def test_cases_need_no_torch_and_interval_algebra_nothing_of_ours() -> None:
    assert {item.target for item in imports("ddpprof.analysis.intervals")} <= {"__future__", "typing", "numpy", "numpy.typing"}
    assert not {item.target for item in imports("ddpprof.workloads.cases")} & {"torch", "nvtx"}


def test_only_the_reader_and_its_schema_know_nsights_tables() -> None:
    knowing = {
        module
        for module, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and str(node.value).startswith(("CUPTI_ACTIVITY_", "NVTX_EVENTS", "TARGET_INFO_"))
    }
    assert "ddpprof.analysis.nsight_schema" in knowing
    assert knowing - {"ddpprof.analysis.nsight_schema", "ddpprof.analysis.nsys_reader"} == set()


def test_nothing_is_printed_below_the_command_line() -> None:
    """Results go to stdout by way of the command line alone. A module that is started as a program of its own may speak."""
    found = []
    for module, path in modules().items():
        source = path.read_text(encoding="utf-8")
        if layer_of(module) == "cli" or 'if __name__ == "__main__":' in source:
            continue
        for node in ast.walk(ast.parse(source)):
            is_print = isinstance(node, ast.Call) and getattr(node.func, "id", None) == "print"
            if is_print or (isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.stdout"):
                found.append(f"{module}:{node.lineno}")  # type: ignore[attr-defined]
    assert found == []


def test_no_module_takes_a_name_of_the_standard_library() -> None:
    """A program started in a room's folder would import ours for theirs. Commands are named as they are typed (``profile``)."""
    names = {name.rpartition(".")[2] for name in modules() if layer_of(name) != "cli"}
    names |= {path.stem for path in (ROOT / "tests").rglob("*.py")}
    assert names & (sys.stdlib_module_names | {"ddpprof"}) <= {"ddpprof"}


def test_the_table_of_owners_has_teeth() -> None:
    """The walk sees late and nested imports too: torch in the workloads, sqlalchemy in a method of the analysis."""
    assert {item.target.split(".")[0] for item in imports("ddpprof.workloads.training")} >= {"torch"}
    assert any(item.target == "sqlalchemy" and item.is_late for item in imports("ddpprof.analysis.nsys_tables"))
