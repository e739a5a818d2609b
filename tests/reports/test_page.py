from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

from ddpprof.model import Analysis, Timeline
from ddpprof.reports import page

Make = Callable[[str], Analysis]


class Balanced(HTMLParser):
    """Checks that every element that opens is closed, and collects the tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(document: str) -> Balanced:
    parser = Balanced()
    parser.feed(document)
    parser.close()
    assert parser.open == []
    return parser


def test_every_example_is_one_whole_page(example: Analysis) -> None:
    document = page.render(example)
    assert document.startswith("<!doctype html>")
    assert "Is my communication hidden?" in document
    assert "script" not in parsed(document).seen


def test_nothing_is_fetched_from_elsewhere(make: Make, one_lane: Timeline) -> None:
    document = page.render(make("two_ranks"), one_lane)
    namespaces = re.sub(r'xmlns(:xlink)?="[^"]*"', "", document)
    assert "http://" not in namespaces
    assert "https://" not in namespaces
    assert not re.search(r"url\((?!#)", document)
    assert "default-src 'none'" in document


def test_the_picture_is_inside_and_takes_the_colour_of_the_page(make: Make, one_lane: Timeline) -> None:
    document = page.render(make("two_ranks"), one_lane)
    assert "svg" in parsed(document).seen
    assert "currentColor" in document
    assert document == page.render(make("two_ranks"), one_lane)


def test_an_empty_timeline_says_so(make: Make) -> None:
    document = page.render(make("nothing"), Timeline(evidence="gpu-kernels", ranks=(), step=None))
    assert "Nothing to draw" in document


def test_foreign_text_is_escaped(make: Make) -> None:
    document = page.render(make("unknown_ranks"))
    assert "GPU | &lt;b&gt;*8*&lt;/b&gt;" in document
    assert document.count("<b>") == 1
    parsed(document)
    assert "\x1b" not in document


def test_steps_and_buckets_are_there_to_open(make: Make) -> None:
    document = page.render(make("two_ranks"))
    assert "<summary>Steps</summary>" in document
    assert "<summary>Communication, bucket by bucket</summary>" in document
    assert "<summary>Steps</summary>" not in page.render(make("no_comm"))


def test_numbers_of_a_page_are_those_of_the_text(make: Make) -> None:
    document = page.render(make("two_ranks"))
    assert all(f"<td>{number}</td>" in document for number in ("44.273", "4.796", "90.2"))
