"""Every column is declared once, with a unit that its name agrees with; every word that is promised is kept."""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpprof import model
from ddpprof.errors import UsageError
from ddpprof.model import (
    RECORD_TABLES,
    WARNING_CODES,
    Analysis,
    Column,
    Metrics,
    Operations,
    RankRow,
    Records,
    ReportInfo,
    StepRow,
    columns,
)

ROOT = Path(__file__).parents[1]
TABLES: list[type] = [
    item
    for item in vars(model).values()
    if isinstance(item, type) and item.__module__ == model.__name__ and hasattr(item, "__dataclass_fields__")
]
"""Every dataclass of the model."""
ROWS = [table for table in TABLES if list(columns(table))]
UNITS = {"ns/byte", "ns", "bytes", "ratio", "count", "id", "text", "MiB", "bytes/s"}
SUFFIXES = {"_ns": "ns", "_bytes": "bytes", "_ratio": "ratio", "_id": "id", "_mb": "MiB", "_sum_ns": "ns"}


def declared() -> Iterator[tuple[type, Column]]:
    for table in ROWS:
        for column in columns(table):
            yield table, column


@pytest.mark.parametrize("table", ROWS, ids=lambda table: table.__name__)
def test_a_row_class_declares_all_its_fields(table: type) -> None:
    assert [column.name for column in columns(table)] == [item.name for item in fields(table)]
    assert all(column.unit in UNITS and column.text for column in columns(table))


def test_a_name_tells_its_unit_and_a_unit_shows_in_the_name() -> None:
    for table, column in declared():
        for suffix, unit in SUFFIXES.items():
            assert not column.name.endswith(suffix) or column.unit == unit, (table, column)
        if column.unit in ("bytes", "ratio", "ns"):
            assert column.name.endswith(f"_{column.unit}") or column.name == "spread", (table, column)


def test_columns_of_one_name_have_one_unit() -> None:
    units = defaultdict(set)
    for _, column in declared():
        units[column.name].add(column.unit)
    assert {name: found for name, found in units.items() if len(found) > 1} == {}


@pytest.mark.parametrize("table", [RankRow, StepRow])
def test_metrics_are_declared_once_and_lead(table: type) -> None:
    names = [item.name for item in fields(Metrics)]
    assert [item.name for item in fields(table)][: len(names)] == names
    assert not set(names) & set(inspect.get_annotations(table))


def test_which_way_is_better() -> None:
    """As in the table of shared/design/definitions.md."""
    assert {column.name: column.better for column in columns(Metrics) if column.better} == {
        "step_ns": "lower",
        "overlap_ns": "higher",
        "exposed_comm_ns": "lower",
        "memory_only_ns": "lower",
        "idle_ns": "lower",
        "tail_ns": "lower",
        "overlap_ratio": "higher",
    }


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_values_cannot_be_changed(table: type) -> None:
    empty: Any = object.__new__(table)
    with pytest.raises((FrozenInstanceError, TypeError)):
        setattr(empty, fields(table)[0].name, 1)


def test_every_record_table_has_its_place() -> None:
    assert [f"{name}s" for name in RECORD_TABLES] == [item.name for item in fields(Records)]
    assert all("rank" in {item.name for item in fields(table)} for table in RECORD_TABLES.values())


# -- codes of warnings


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for room in ("ddpprof", "analysis", "reports", "workloads"):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def warning_codes_used() -> dict[str, Path]:
    """Codes of ``Warning(code="…")``, ``Told(code="…")`` and ``{"code": "…"}`` of a manifest, and a file that has it."""
    found: dict[str, Path] = {}
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("Warning", "Told"):
                codes = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
                assert codes, f"{path}:{node.lineno}: a warning without code="
            elif isinstance(node, ast.Dict):
                codes = [
                    value for key, value in zip(node.keys, node.values, strict=True) if getattr(key, "value", None) == "code"
                ]
            else:
                continue
            found |= {str(code.value): path for code in codes if isinstance(code, ast.Constant)}
    return found


def test_every_code_that_is_used_is_declared() -> None:
    used = warning_codes_used()
    assert len(used) > 15
    assert {code: path for code, path in used.items() if code not in WARNING_CODES} == {}


def test_every_code_that_is_declared_is_used() -> None:
    assert WARNING_CODES.keys() - warning_codes_used().keys() == set()


# -- values with behaviour


def test_operations_can_be_picked() -> None:
    numbers = {item.name: np.arange(4) + at for at, item in enumerate(fields(Operations))}
    operations = Operations(**numbers)
    assert len(operations) == 4
    for index in (np.array([True, False, True, False]), np.array([0, 2]), slice(0, 3, 2)):
        picked = operations.take(index)
        assert {item.name: getattr(picked, item.name).tolist() for item in fields(Operations)} == {
            name: [column[0], column[2]] for name, column in numbers.items()
        }
    assert len(operations) == 4


def analysis(**rows: Any) -> Analysis:
    nothing: dict[str, Any] = {
        "ranks": (),
        "breakdown": (),
        "buckets": (),
        "kinds": (),
        "case": None,
        "focus": None,
        "world_size": None,
    }
    report = ReportInfo(path="a.sqlite", kind="nsys-sqlite")
    fixed: dict[str, Any] = {"ddpprof_version": "0", "evidence": "gpu-kernels", "reports": (report,), "window": "step"}
    return Analysis(**(nothing | fixed | rows))


FRAMES = {
    "ranks": RankRow,
    "breakdown": StepRow,
    "buckets": model.BucketRow,
    "kinds": model.KindRow,
    "across": model.AcrossRank,
    "collectives": model.CollectiveRow,
    "findings": model.Finding,
    "warnings": model.Warning,
}


@pytest.mark.parametrize("table", FRAMES)
def test_a_frame_has_its_columns_also_without_rows(table: str) -> None:
    frame = analysis().frame(table)
    assert (len(frame), list(frame)) == (0, [item.name for item in fields(FRAMES[table])])


def test_a_frame_of_rows() -> None:
    told = (model.Warning(code="no-comm", message="none"), model.Warning(code="no-steps", message="none", report=1))
    assert analysis(warnings=told).frame("warnings")["code"].tolist() == ["no-comm", "no-steps"]


def test_a_frame_of_the_ranks_across() -> None:
    row = model.AcrossRank(rank=3, report=0, pid=1, device_id=0, offset_ns=0, n_collectives=2, n_last=1, wait_ns=5, late_ns=7)
    over = model.Across(clock="one report", uncertainty_ns=0, refused=None, ranks=(row,), collectives=())
    frame = analysis(across=over).frame("across")
    assert (frame["rank"].tolist(), frame["late_ns"].tolist()) == ([3], [7])


def test_a_frame_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match="no table 'rank'\nTables are ranks, breakdown"):
        analysis().frame("rank")
