"""The contract between the program measured and the one measuring: what one writes the other reads back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpprof import marks
from ddpprof.marks import Mark

ids = st.integers(0, 10**18 - 1)
ranks = st.integers(0, 10**6 - 1)


@given(ranks, ranks, st.none() | ranks)
def test_rank_reads_back(rank: int, world: int, device: int | None) -> None:
    assert marks.parse(marks.rank(rank, world, device)) == Mark("rank", rank, world_size=world, device_id=device)


@given(ids, ids)
def test_numbered_marks_read_back(number: int, size: int) -> None:
    assert marks.parse(marks.step(number)) == Mark("step", number)
    assert marks.parse(marks.delay(number)) == Mark("delay", number)
    assert marks.parse(marks.compute(number)) == Mark("compute", number)
    assert marks.parse(marks.allreduce(number)) == Mark("allreduce", number)
    assert marks.parse(marks.bucket(number, size)) == Mark("bucket", number, size_bytes=size)


@pytest.mark.parametrize("text", [marks.FORWARD, marks.BACKWARD, marks.OPTIMIZER])
def test_plain_marks_read_back(text: str) -> None:
    mark = marks.parse(text)
    assert mark == Mark(text)  # type: ignore[arg-type]


def test_further_fields_of_a_rank_may_come_and_stay_unread() -> None:
    assert marks.parse("rank/3") == Mark("rank", 3)
    assert marks.parse("rank/3/node/7/world/4") == Mark("rank", 3, world_size=4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rank",
        "rank/",
        "rank/-1",
        "rank/1/world",
        "rank/1/world/",
        "rank/1/World/2",
        "rank/1234567",
        "rank/1/world/1234567",
        "step/",
        "step/1 ",
        " step/1",
        "step/1\n",
        "STEP/1",
        "step/1/2",
        "step/" + "9" * 19,
        "step/\N{ARABIC-INDIC DIGIT THREE}",
        "bucket/1",
        "bucket/1/2/3",
        "bucket/" + "9" * 5000 + "/1",
        "forward/1",
        "forwards",
        "allreduce/x",
        "aten::mm",
    ],
)
def test_what_is_no_mark(text: str) -> None:
    assert marks.parse(text) is None


@given(st.from_regex(marks.PATTERN, fullmatch=True))
def test_whatever_the_grammar_allows_has_numbers_that_fit_an_int64(text: str) -> None:
    mark = marks.parse(text)
    if text.isascii():
        assert mark is not None
        assert all(
            value is None or 0 <= value < 2**63 for value in (mark.index, mark.size_bytes, mark.world_size, mark.device_id)
        )
    else:
        assert mark is None


@given(st.from_regex(marks.PATTERN, fullmatch=True) | st.text(max_size=12))
def test_arrow_finds_what_python_finds(text: str) -> None:
    """The reader searches millions of texts with Arrow's RE2, without the names of groups, and parses what that finds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pattern = "^" + re.sub(r"\?P<\w+>", "?:", marks.PATTERN) + "$"
    found = pc.match_substring_regex(pa.array([text.encode()]), pattern)[0].as_py()
    assert found or marks.parse(text) is None
