from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from ddpprof.errors import DdpprofError, UsageError
from ddpprof.reports import junit


class Result(NamedTuple):
    """What a check says of one expectation on one rank."""

    expectation: str
    rank: str
    verdict: str
    seen: str
    unreliable: tuple[str, ...] = ()


RESULTS = (
    Result("overlap>0", "rank 0", "pass", "overlap_ns = 5"),
    Result("overlap>0", "rank 1", "fail", "overlap_ns = 0"),
    Result("overlap>0", "rank 2", "unknown", "not in the input"),
)


def test_the_document() -> None:
    assert (
        junit.render(RESULTS)
        == """\
<?xml version="1.0" encoding="utf-8"?>
<testsuite name="ddpprof check" tests="3" failures="1" errors="1">
  <testcase classname="rank 0" name="overlap&gt;0" />
  <testcase classname="rank 1" name="overlap&gt;0">
    <failure message="overlap_ns = 0" />
  </testcase>
  <testcase classname="rank 2" name="overlap&gt;0">
    <error message="not in the input" />
  </testcase>
</testsuite>
"""
    )


def test_what_makes_numbers_unreliable_is_the_output_of_its_test() -> None:
    (case,) = ElementTree.fromstring(junit.render([RESULTS[0]._replace(unreliable=("time-sliced", "new\x00code"))]).encode())
    assert (case[0].tag, (case[0].text or "").splitlines()) == (
        "system-out",
        [
            "numbers unreliable: time-sliced: several ranks share one GPU: intervals include time switched out",
            r"numbers unreliable: new\x00code: new\x00code",
        ],
    )


def test_no_results_are_an_empty_suite() -> None:
    suite = ElementTree.fromstring(junit.render([]).encode())
    assert (suite.get("tests"), len(suite)) == ("0", 0)


def test_results_may_be_an_iterator() -> None:
    assert junit.render(iter(RESULTS)) == junit.render(RESULTS)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('<a & "b">', '<a & "b">'),
        ("two\nlines", "two lines"),
        ("\x1b[31mred\x00", r"\x1b[31mred\x00"),
        ("\udcff", r"\udcff"),
        ("größer", "größer"),
    ],
)
def test_any_text_makes_valid_xml(tmp_path: Path, text: str, shown: str) -> None:
    junit.write(tmp_path / "junit.xml", [Result(text, text, "fail", text)])
    (case,) = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (case.get("name"), case.get("classname"), case[0].get("message")) == (shown, shown, shown)


def test_the_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out" / "junit.xml"
    junit.write(path, RESULTS)
    before = path.read_text()
    assert before == junit.render(RESULTS)

    def broken():  # type: ignore[no-untyped-def]
        yield RESULTS[0]
        raise OSError(28, "No space left on device")

    with pytest.raises(DdpprofError, match=r"junit\.xml: cannot be written: No space left on device"):
        junit.write(path, broken())
    assert [item.name for item in path.parent.iterdir()] == ["junit.xml"]
    assert path.read_text() == before


@pytest.mark.parametrize("old", ["", junit.render([]), "<testsuites/>", "<!-- of last night -->\n<testsuite></testsuite>"])
def test_an_older_document_or_an_empty_file_is_replaced(tmp_path: Path, old: str) -> None:
    (tmp_path / "junit.xml").write_text(old)
    junit.write(tmp_path / "junit.xml", RESULTS)
    assert (tmp_path / "junit.xml").read_text() == junit.render(RESULTS)


@pytest.mark.parametrize("old", ["notes about <testsuite>", '<?xml version="1.0"?><project/>', "SQLite format 3\0"])
def test_anything_else_is_not(tmp_path: Path, old: str) -> None:
    (tmp_path / "mine").write_text(old)
    with pytest.raises(UsageError, match="mine: exists and is not JUnit XML"):
        junit.write(tmp_path / "mine", RESULTS)
    assert (tmp_path / "mine").read_text() == old
    with pytest.raises(UsageError, match="is no file that JUnit XML can replace"):
        junit.write(tmp_path, RESULTS)
