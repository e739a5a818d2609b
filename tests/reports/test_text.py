from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ddpprof.model import Analysis, Records
from ddpprof.reports import text

Make = Callable[[str], Analysis]
Golden = Callable[[str, str], None]


def everything(analysis: Analysis, records: Records | None = None, width: int = 120) -> str:
    return text.render(analysis, per_step=True, buckets=True, kinds=True, records=records, width=width)


def test_the_evidence_is_the_first_line(make: Make) -> None:
    assert text.render(make("two_ranks")).startswith("gpu-kernels: device intervals")
    first = text.render(make("four_hosts")).splitlines()[0]
    assert first == "host-ranges: a CPU/gloo run, the host ranges are the execution; says nothing about a GPU"


def test_golden(make: Make, records: Records, golden: Golden) -> None:
    golden("two_ranks.txt", everything(make("two_ranks"), records))
    golden("four_hosts.txt", everything(make("four_hosts")))
    golden("many_steps.txt", everything(make("many_steps")))
    golden("unknown_ranks.txt", everything(make("unknown_ranks")))
    golden("opaque.txt", text.render(make("opaque")))
    golden("nothing.txt", text.render(make("nothing")))


def test_tables_come_only_when_asked_for(make: Make) -> None:
    bare = text.render(make("two_ranks"))
    for title in ("Steps", "Communication, bucket by bucket", "What was taken for what"):
        assert title not in bare
        assert title in everything(make("two_ranks"), Records())


def test_timed_iterations_come_when_the_run_timed_any(make: Make) -> None:
    assert "Timed iterations" in text.render(make("two_ranks"))
    assert "Timed iterations" not in text.render(make("four_hosts"))


def test_the_step_table_is_left_out_without_steps(make: Make) -> None:
    assert "Steps" not in text.render(replace(make("two_ranks"), window="capture"), per_step=True)


@pytest.mark.parametrize("width", [120, 80, 60])
def test_output_is_plain_ascii_and_within_its_width(example: Analysis, records: Records, width: int) -> None:
    shown = everything(example, records, width)
    assert shown.isascii()
    assert "\x1b" not in shown
    assert shown.endswith("\n")
    assert max(map(len, shown.splitlines())) <= width


def test_a_narrow_table_goes_on_below_with_its_keys(make: Make) -> None:
    lines = text.render(make("two_ranks"), width=60).splitlines()
    first = lines.index("Ranks, medians over complete steps")
    parts = "\n".join(lines[first:]).split("\n\n")[:2]
    assert [part.splitlines()[-1].split()[:2] for part in parts] == [["1", "0"]] * 2
    assert "93.3" in "\n".join(parts)


def test_a_number_is_not_parted_from_its_unit(make: Make) -> None:
    for width in range(60, 121):
        for line in text.render(make("four_hosts"), width=width).splitlines():
            assert not line.startswith(("% ", "ms "))


def test_findings_show_their_evidence_and_failures_whether_they_had_to_be(make: Make, records: Records) -> None:
    shown = text.render(make("two_ranks"), records=records)
    assert "(exposed comm 4.796 ms, launch 90.0 %, buckets 12)" in " ".join(shown.split())
    assert "rank 1 failed in step 5, as this case must: RuntimeError" in shown
