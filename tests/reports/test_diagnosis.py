"""What ``diagnose`` prints, and the finding to act on as the first screen of ``analyze`` says it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ddpprof.model import CAUSES, Analysis, NotJudged
from ddpprof.reports import diagnosis, markdown, page, tables, text, verdict

Make = Callable[[str], Analysis]
Golden = Callable[[str, str], None]


def test_text_and_markdown_golden(make: Make, golden: Golden) -> None:
    golden("diagnosis.txt", diagnosis.render(make("two_ranks")))
    golden("diagnosis.md", diagnosis.render_markdown(make("two_ranks")))


def test_every_example_is_ascii_and_no_wider_than_asked(example: Analysis) -> None:
    for width in (60, 120):
        lines = diagnosis.render(example, width=width).splitlines()
        assert all(line.isascii() and len(line) <= width for line in lines)
    assert "nan" not in diagnosis.render_markdown(example)


def test_what_limits_the_answer_is_said_beside_it(make: Make) -> None:
    found = make("two_ranks")
    assert verdict.cautions(found)
    for line in verdict.cautions(found):
        assert f"- {line}" in diagnosis.render(found, width=400)
        assert f"- {line}" in diagnosis.render_markdown(found)


def test_the_first_screen_says_what_to_act_on(make: Make) -> None:
    found = make("two_ranks")
    said = "What holds the step back? compute-tail on rank 0, up to 18.723 ms of a step of 74.891 ms (25.0 %): the last bucket"
    assert said in " ".join(text.render(found).split())
    assert f"**{said.replace('? ', '?** ')}" in markdown.render(found)
    assert said in " ".join(re.sub("<.*?>", "", page.render(found)).split())


def test_notes_are_left_to_the_list_of_findings(make: Make) -> None:
    found = make("two_ranks")
    noted = replace(found, findings=tuple(replace(item, severity="note") for item in found.findings))
    for shown in (text.render(noted), markdown.render(noted), page.render(noted)):
        assert verdict.CAUSE_QUESTION not in shown
        assert "note: compute-tail" in shown
    assert "Nothing that could be judged costs enough to act on." in diagnosis.render(noted)


def test_nothing_found_and_nothing_to_be_told_are_not_the_same(make: Make) -> None:
    fine = make("many_steps")
    assert "What holds the step back? Nothing that could be judged does." in diagnosis.render(fine)
    assert f"Judged, and not found: {', '.join(CAUSES)}" in " ".join(diagnosis.render(fine).split())
    blind = replace(fine, not_judged=tuple(NotJudged(code=code, reason="dark") for code in CAUSES))
    shown = " ".join(diagnosis.render(blind).split())
    assert "What holds the step back? Cannot be told: dark." in shown
    assert f"- {', '.join(CAUSES)}: dark" in shown
    assert "not found" not in shown


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cost_ns": None}, "costs at most: cannot be told"),
        ({"cost_ns": 0}, "costs at most: no time of its own was measured"),
        ({"on_ranks": (0, 1, 2)}, "costs at most: 18.723 ms of a step of 74.891 ms (25.0 %) (rank 0)"),
    ],
)
def test_a_cost_is_never_made_up(make: Make, change: dict[str, Any], said: str) -> None:
    found = make("two_ranks")
    shown = diagnosis.render(replace(found, findings=(replace(found.findings[0], **change),)))
    assert said in shown


def test_json_has_findings_and_what_was_not_judged(make: Make) -> None:
    document = json.loads(tables.diagnosis_json(make("two_ranks")))
    (finding,) = document["findings"]
    assert list(finding)[:6] == ["code", "severity", "rank", "message", "evidence", "cost_ns"]
    assert finding["spans"] == [{"report": 0, "pid": 564, "start_ns": 66_202_000, "end_ns": 70_011_000}]
    assert [item["code"] for item in document["not_judged"]] == ["straggler-rank", "contention", "periodic-spikes"]
    whole = json.loads(tables.to_json(make("two_ranks")))
    assert (whole["findings"], whole["not_judged"]) == (document["findings"], document["not_judged"])
