"""Is the diagnosis right? Each case that is made to have one cause, captured anew several times, against what is found first.

``make diagnose-matrix`` or ``python -m benchmarks.diagnose_matrix``. Exit status 0 when every time the right cause came first
and nothing was found in the healthy case, else 3. Captures that were diagnosed wrongly stay in ``runs/diagnose-matrix``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddpprof import inputs, profiling
from ddpprof.errors import DdpprofError
from ddpprof.model import CAUSES, Finding
from ddpprof.profiling import Settings
from ddpprof.workloads.cases import CASES, Case, find

FOLDER = Path("runs") / "diagnose-matrix"
NONE, LOST = "none", "no capture"


def label(cause: str | None, setting: str | None) -> str:
    """The column of a cause: its code, of settings with which one."""
    return f"{cause}: {setting}" if setting else cause or NONE


def expected(case: Case) -> str:
    """The column in which all captures of ``case`` must be."""
    return label(case.cause, case.setting)


def first(findings: Sequence[Finding], case: Case) -> str:
    """The column of what was found first; in a case that has no cause, of the first thing that is more than a note."""
    found = [item for item in findings if case.cause is not None or item.severity != "note"]
    return label(found[0].code, found[0].evidence.get("setting")) if found else NONE


def matrix(seen: Sequence[tuple[str, str]]) -> dict[str, Counter[str]]:
    """How often each case was in which column, from (case, column) of each capture; cases in the order of the table."""
    rows: dict[str, Counter[str]] = {name: Counter() for name in CASES if name in {case for case, _ in seen}}
    for case, column in seen:
        rows[case][column] += 1
    return rows


def wrong(rows: Mapping[str, Counter[str]]) -> list[str]:
    """The cases that were not in their column every time."""
    return [name for name, row in rows.items() if set(row) != {expected(CASES[name])}]


def render(rows: Mapping[str, Counter[str]]) -> str:
    """The columns by number, one for each cause and for whatever else was found; a line a case, what is right in brackets."""
    known = [expected(case) for cause in CAUSES for case in CASES.values() if case.cause == cause]
    columns = list(dict.fromkeys([*known, NONE, *(column for row in rows.values() for column in row)]))
    width = max(map(len, rows), default=0)
    lines = [f"{number:>3}  {column}" for number, column in enumerate(columns, 1)]
    lines += ["", " " * width + "".join(f"{number:>6}" for number in range(1, len(columns) + 1))]
    for name, row in rows.items():
        cells = [f"[{row[column]}]" if column == expected(CASES[name]) else str(row[column] or ".") for column in columns]
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>6}" for cell in cells))
    return "\n".join(lines)


def captures(case: Case, settings: Settings, repeats: int) -> list[tuple[str, str]]:
    """(case, column) of so many captures, each told on stderr as it comes."""
    seen = []
    for repeat in range(1, repeats + 1):
        folder = FOLDER / f"{case.name}-{repeat}"
        try:
            profiling.profile_case(case.name, replace(settings, folder=folder))
            found = first(inputs.analyze(folder).findings, case)
        except DdpprofError as error:
            say(f"{case.name}: {error}")
            found = LOST
        is_right = found == expected(case)
        say(f"{case.name} {repeat}/{repeats}: {found}{'' if is_right else f', not {expected(case)}: see {folder}'}")
        if is_right:
            shutil.rmtree(folder)
        seen.append((case.name, found))
    return seen


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def chosen(names: str | None, device: str) -> list[Case]:
    """The cases named, else all that are made to have a cause or none and can run on ``device``."""
    if names:
        return [find(name) for name in names.split(",")]
    of_causes = [case for case in CASES.values() if case.group == "cause"]
    for case in of_causes:
        if case.needs_gpu and device == "cpu":
            say(f"{case.name}: left out, it needs a GPU")
    return [case for case in of_causes if not case.needs_gpu or device != "cpu"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.diagnose_matrix", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="captures of each case (5)")
    parser.add_argument("--cases", metavar="A,B", help="only these")
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="processes of the job (4)")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--share-gpu", action="store_true", help="all ranks on one GPU, time-sliced")
    options = parser.parse_args()
    settings = Settings(ranks=options.ranks, device=options.device, share_gpu=options.share_gpu)
    try:
        seen = [
            one
            for case in chosen(options.cases, profiling.device_of(settings))
            for one in captures(case, settings, options.repeats)
        ]
    except DdpprofError as error:
        say(str(error))
        return error.exit_status
    rows = matrix(seen)
    print(render(rows))
    if names := wrong(rows):
        print(f"\nnot right every time: {', '.join(names)}")
        return 3
    print("\nright every time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
