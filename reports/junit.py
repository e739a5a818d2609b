"""Results of a check as JUnit XML, which every CI shows: one test case for each rank and expectation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol
from xml.etree import ElementTree

from ddpprof.errors import UsageError
from ddpprof.model import WARNING_CODES
from ddpprof.reports.quantities import clean
from ddpprof.rundir import whole_file


class Result(Protocol):
    """What a check found on one rank: ``verdict`` is pass, fail or unknown, ``unreliable`` the codes of what limits it."""

    @property
    def expectation(self) -> str: ...
    @property
    def rank(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def seen(self) -> str: ...
    @property
    def unreliable(self) -> tuple[str, ...]: ...


def render(results: Iterable[Result]) -> str:
    """The XML document; an expectation that cannot be told is an error, one that does not hold a failure.

    What makes the numbers unreliable is the test's output. Control characters, which no XML may hold, are spelt out.
    """
    results = list(results)
    counts = {verdict: str(sum(result.verdict == verdict for result in results)) for verdict in ("fail", "unknown")}
    numbers = {"tests": str(len(results)), "failures": counts["fail"], "errors": counts["unknown"]}
    suite = ElementTree.Element("testsuite", {"name": "ddpprof check"} | numbers)
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname=clean(result.rank), name=clean(result.expectation))
        if result.verdict != "pass":
            ElementTree.SubElement(case, "failure" if result.verdict == "fail" else "error", message=clean(result.seen))
        if result.unreliable:
            ElementTree.SubElement(case, "system-out").text = "\n".join(map(unreliable_line, result.unreliable))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def unreliable_line(code: str) -> str:
    """What a warning code says of the numbers that it makes unreliable."""
    return clean(f"numbers unreliable: {code}: {WARNING_CODES.get(code, code)}")


def check_replaceable(path: Path) -> None:
    """Returns when ``path`` is free, an empty file or an older JUnit document. Raises UsageError for anything else."""
    if not path.exists():
        return
    if not path.is_file():
        raise UsageError(f"{path}: is no file that JUnit XML can replace", "Choose another name with --junit.")
    with path.open("rb") as file:
        head = file.read(1024)
    if head and not _JUNIT.match(head):
        raise UsageError(f"{path}: exists and is not JUnit XML", "Choose another name with --junit; nothing was changed.")


_JUNIT = re.compile(rb"\s*(?:<\?xml.*?\?>\s*)?(?:<!--.*?-->\s*)*<testsuites?\b", re.DOTALL)


def write(path: Path, results: Iterable[Result]) -> None:
    """Writes the document, whole or not at all, over nothing but one of its kind. Raises as ``check_replaceable``."""
    check_replaceable(path)
    with whole_file(path) as partial:
        partial.write_text(render(results), encoding="utf-8")
