"""``ddpprof cases``: what can be profiled here."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING

import click

from ddpprof.cli import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ddpprof.workloads.cases import Case, Group

MIB = 2**20


@click.command(epilog=examples("ddpprof cases", "ddpprof cases --format json"))
@click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="json: for programs."
)
def cases(form: str) -> None:
    """The workload cases, in groups: what each trains, and what a run of it must show."""
    from ddpprof.workloads.cases import CASES, GROUPS

    if form == "json":
        click.echo(json.dumps([_row(case) for case in CASES.values()], indent=2))
        return
    parts = [
        _table(title, COLUMNS[group], [case for case in CASES.values() if case.group == group])
        for group, title in GROUPS.items()
    ]
    click.echo("\n\n".join(parts))


def _row(case: Case) -> dict[str, object]:
    return {
        "case": case.name,
        "group": case.group,
        "parameters": case.parameters,
        "parameter_mb": case.parameter_mb,
        "unused_parameters": case.unused,
        "bucket_cap_mb": case.bucket_cap_mb,
        "is_delayed": case.is_delayed,
        "find_unused_parameters": case.find_unused_parameters,
        "static_graph": case.static_graph,
        "bucket_bytes": case.rebuilt_bytes,
        "overlap": case.overlap,
        "must_fail": case.failure is not None,
        "cause": case.cause,
        "needs_gpu": case.needs_gpu,
        "shows": case.shows,
    }


def _table(title: str, cells: Mapping[str, Callable[[Case], str]], cases: Sequence[Case]) -> str:
    lines = [list(cells), *([cell(case) for cell in cells.values()] for case in cases)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join([f"{title}:", *rows])


def _sizes(sizes: Sequence[int]) -> str:
    """Sizes in order, equal ones counted: ``3 x 16 MiB, 4 MiB``."""
    runs = [(size, len(list(same))) for size, same in groupby(sizes)]
    return ", ".join((f"{n} x " if n > 1 or len(runs) == 1 else "") + _size(size) for size, n in runs)


def _size(size: int) -> str:
    return f"{size / MIB:.3g} MiB" if size >= MIB // 8 else f"{size / 1024:.3g} KiB"


def _overlap(case: Case) -> str:
    return {"positive": "> 0", "zero": "== 0", None: "must fail" if case.failure else "-"}[case.overlap]


def _cause(case: Case) -> str:
    return (case.cause or "none") + (f" ({case.setting})" if case.setting else "")


COLUMNS: Mapping[Group, Mapping[str, Callable[[Case], str]]] = {
    "study": {
        "case": lambda case: case.name,
        "parameters": lambda case: _sizes(case.parameter_bytes),
        "cap": lambda case: f"{case.bucket_cap_mb:g} MiB",
        "buckets": lambda case: _sizes(case.rebuilt_bytes or ()),
        "overlap": _overlap,
        "shows": lambda case: case.shows,
    },
    "cause": {
        "case": lambda case: case.name,
        "cause": _cause,
        "buckets": lambda case: _sizes(case.rebuilt_bytes or ()),
        "shows": lambda case: case.shows,
    },
    "model": {
        "case": lambda case: case.name,
        "buckets": lambda case: _sizes(case.rebuilt_bytes or ()),
        "shows": lambda case: case.shows,
    },
}
