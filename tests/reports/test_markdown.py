from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from ddpprof.model import Analysis, Metrics, Records, columns
from ddpprof.reports import markdown

Make = Callable[[str], Analysis]
Golden = Callable[[str, str], None]


def cells(line: str) -> int:
    """How many cells GitHub reads in a table line."""
    return len(re.findall(r"(?<!\\)\|", line)) - 1


def assert_tables_hold(text: str) -> None:
    """Every line of a table has the cells of its heading."""
    lines = text.splitlines()
    for above, line in pairwise(lines):
        if line.startswith("| ") and above.startswith("| "):
            assert cells(line) == cells(above), line


def test_golden(make: Make, records: Records, golden: Golden) -> None:
    found = make("two_ranks")
    golden("two_ranks.md", markdown.render(found, per_step=True, kinds=True, records=records, timeline="timeline.png"))
    golden("two_ranks.rank0.md", markdown.render_rank(found, found.ranks[0], records))
    golden("unknown_ranks.md", markdown.render(make("unknown_ranks"), kinds=True))
    golden("nothing.md", markdown.render(make("nothing")))
    many = make("many_steps")
    golden("many_steps.rank1.md", markdown.render_rank(many, many.ranks[1]))


def test_the_summary_of_every_example(example: Analysis, records: Records) -> None:
    for given in (None, Records(), records):
        text = markdown.render(example, per_step=True, buckets=True, kinds=True, records=given)
        assert text.startswith("# DDP overlap")
        assert "**Is my communication hidden?**" in text
        assert_tables_hold(text)


def test_the_report_of_every_rank_of_every_example(example: Analysis, records: Records) -> None:
    for row in example.ranks:
        for given in (None, Records(), records):
            text = markdown.render_rank(example, row, given)
            assert "unk" in text if row.rank is None else f"# Rank {row.rank}" in text
            assert all(f"| {column.name} |" in text for column in columns(Metrics))
            assert_tables_hold(text)


def test_foreign_markup_stays_text(make: Make) -> None:
    text = markdown.render(make("unknown_ranks"), kinds=True)
    assert "<b>" not in re.sub(r"\\<", "", text)
    assert "GPU \\| \\<b\\>\\*8\\*\\</b\\>" in text
    assert "\x1b" not in text


def test_the_clocks_stand_in_columns_of_their_own(make: Make, records: Records) -> None:
    found = make("two_ranks")
    text = markdown.render_rank(found, found.ranks[0], records)
    assert "| hook ready (ms) | hook launch (ms) | timeline launch (ms) | timeline start (ms) | timeline end (ms) |" in text
    assert "| backward_compute_comm_overlap_time | 62.946 ms | 62,946,000 ns |" in text
    assert "an upper bound" in text
    other = markdown.render_rank(found, found.ranks[1], records)
    assert "DDP logger" not in other
    assert "failed in step 5" in other
