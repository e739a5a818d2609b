"""The pages of docs/ that name tests: every test named exists, and nothing is left out."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
FIELD_CASES = (TESTS.parent / "docs" / "field-cases.md").read_text(encoding="utf-8")


def functions_of(path: Path) -> set[str]:
    return set(re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_field_case_has_a_row_with_tests() -> None:
    rows = re.findall(r"^\| (\d+) \| .+ \| .+ \| (?=.*`[\w/.:]*test_\w+`)", FIELD_CASES, re.MULTILINE)
    assert [int(number) for number in rows] == list(range(1, 58))


def test_every_test_named_in_the_field_cases_exists() -> None:
    named = re.findall(r"`(?:([\w/]+\.py)::)?(test_\w+)`", FIELD_CASES)
    assert len(named) > 57
    missing = [(file, name) for file, name in named if name not in functions_of(TESTS / (file or "test_field_cases.py"))]
    assert missing == []


def test_every_test_of_a_field_case_is_named_in_its_row() -> None:
    for line in FIELD_CASES.splitlines():
        for name in re.findall(r"`test_(\d\d)_\w+`", line):
            assert line.startswith(f"| {int(name)} |")
    named = set(re.findall(r"`(test_\w+)`", FIELD_CASES))
    assert functions_of(TESTS / "test_field_cases.py") <= named
