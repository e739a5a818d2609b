from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ddpprof.model import Acceptance, AcceptanceRow, ClockRow, Comparison, TimingRow
from ddpprof.reports import acceptance, tables

Golden = Callable[[str, str], None]


def row(group: str, what: str, counted: str, expected: int, seen: int | None = None, *problems: str) -> AcceptanceRow:
    return AcceptanceRow(
        group=group,
        what=what,
        counted=counted,
        expected=expected,
        seen=expected if seen is None else seen,
        verdict="FAIL" if problems else "PASS",
        problems=problems,
    )


def timing(case: str, phase: str, clock: str, median_ms: int, caution: str | None = None) -> TimingRow:
    """Ten iterations of which the least took 1 ms less, the greatest 2 ms more."""
    median = median_ms * 1_000_000
    times = {"median_ns": median, "p95_ns": median + 2_000_000, "min_ns": median - 1_000_000, "max_ns": median + 2_000_000}
    return TimingRow(case=case, rank=None, phase=phase, clock=clock, caution=caution, n=10, mad_ns=500_000, **times)


CLOCKS = ClockRow(
    case="delay_cap64",
    rank=0,
    hook_ready_ns=79_000_000,
    hook_launch_ns=79_200_000,
    logger_compute_ns=80_161_000,
    logger_comm_ns=None,
    logger_overlap_ns=188_000,
    timeline_compute_ns=78_500_000,
    timeline_comm_ns=9_000_000,
    timeline_overlap_ns=0,
)
GRANULARITY = Comparison(
    case="fine1_cap4", against="coarse4_cap4", median_ratio=1.587, least_ratio=1.31, most_ratio=1.92, caution=None
)
PASSED = Acceptance(
    ddpprof_version="0.1.0",
    torch_version="2.9.1",
    device="cuda",
    evidence="gpu-kernels",
    cases=("fine1_cap4", "coarse4_cap4", "delay_cap64"),
    ranks=4,
    iterations=10,
    rows=(
        row("runs", "ran to their end", "cases", 3),
        row("records", "buckets of timed iterations", "bucket rows", 1_000),
        row("overlap", "12 compute, 12 comm, overlap > 0; or 12, 1, overlap == 0", "ranks", 4),
    ),
    timings=(
        timing("fine1_cap4", "step", "cuda-event", 9),
        timing("fine1_cap4", "optimizer host", "wall", 2),
        timing("coarse4_cap4", "step", "cuda-event", 6),
    ),
    granularity=GRANULARITY,
    clocks=(CLOCKS,),
    notes=("delay_cap64: several ranks share one GPU",),
    not_run=(),
)
LOST = "coarse4_cap4: rank 1 of 4 was killed by signal 9 (SIGKILL)"
UNSTEADY = "iterations spread by 15 % of their median, more than 10 %"
FAILED = replace(
    PASSED,
    rows=(
        row("runs", "ran to their end", "cases", 3, 2, LOST),
        row("records", "timed iterations", "iteration rows", 120, 80, LOST),
        row("records", "buckets of timed iterations", "bucket rows", 1_000, 520, LOST),
        row("layout", "at first: bytes of each bucket", "cases", 3, 2, LOST),
        row("DDP logger", "overlap time", "rank-steps", 132, 87, LOST, "fine1_cap4: step 5: rank 0 says 31 ns, not 30"),
        row("overlap", "12 compute, 12 comm, overlap > 0; or 12, 1, overlap == 0", "ranks", 4),
    ),
    timings=(timing("fine1_cap4", "step", "wall", 9, UNSTEADY), timing("fine1_cap4", "optimizer host", "wall", 2, UNSTEADY)),
    granularity=None,
)
NOTHING = replace(
    PASSED,
    torch_version=None,
    device="auto",
    evidence=None,
    rows=(row("runs", "ran to their end", "cases", 3, 0, "fine1_cap4: no nsys"),),
    timings=(),
    granularity=None,
    clocks=(),
    notes=(),
    not_run=("fine1_cap4: no nsys",),
)
EXAMPLES = {"passed": PASSED, "failed": FAILED, "nothing": NOTHING}


def test_golden(golden: Golden) -> None:
    golden("acceptance.txt", acceptance.render(PASSED))
    golden("acceptance.failed.txt", acceptance.render(FAILED))
    golden("acceptance.failed.md", acceptance.markdown(FAILED))
    golden("acceptance.json", tables.acceptance_json(PASSED))


def test_the_verdict_is_the_first_line() -> None:
    heads = {name: acceptance.render(found).splitlines()[0] for name, found in EXAMPLES.items()}
    assert heads == {
        "passed": "PASS: 3 claims met",
        "failed": "FAIL: 5 of 6 claims not met",
        "nothing": "FAIL: 1 of 1 claim not met",
    }


@pytest.mark.parametrize("found", EXAMPLES.values(), ids=EXAMPLES)
@pytest.mark.parametrize("width", [120, 80, 60])
def test_text_is_plain_ascii_and_within_its_width(found: Acceptance, width: int) -> None:
    shown = acceptance.render(found, width)
    assert shown.isascii()
    assert shown.endswith("\n")
    assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize("found", EXAMPLES.values(), ids=EXAMPLES)
def test_every_row_has_its_counts_and_verdict_in_markdown(found: Acceptance) -> None:
    text = acceptance.markdown(found)
    for above, line in pairwise(text.splitlines()):
        assert not above.startswith("|") or line.count("|") in (0, above.count("|")), line
    assert text.count("| PASS |") == sum(row.verdict == "PASS" for row in found.rows)
    assert text.count("| FAIL |") == sum(row.verdict == "FAIL" for row in found.rows)


def test_a_problem_is_told_once_with_the_claims_it_breaks() -> None:
    shown = acceptance.render(FAILED, 1_000)
    assert f"- {LOST} (5 claims)" in shown
    assert "- fine1_cap4: step 5: rank 0 says 31 ns, not 30 (DDP logger: overlap time)" in shown


def test_three_clocks_come_with_a_line_each_and_why_the_loggers_is_no_overlap() -> None:
    shown = acceptance.render(PASSED, 1_000)
    for line in (
        "- Hook: host time",
        "- DDP logger: sampled by DDP on its own clock",
        "- Timeline: the intervals",
        "- Each counts",
    ):
        assert line in shown
    assert "an upper bound, whether or not anything was in flight, and not overlap." in shown


@pytest.mark.parametrize(
    ("change", "begins", "ends"),
    [
        (
            {},
            "- The step of fine1_cap4 takes 158.7 % of the time of coarse4_cap4, from 131.0 % to 192.0 % by their",
            "parameters",
        ),
        ({"least_ratio": 0.9}, "- No conclusion: the step of", "which does not tell them apart"),
        ({"most_ratio": None}, "- The step of fine1_cap4 takes 158.7 %", "parameters"),
        ({"least_ratio": 1.0, "most_ratio": None}, "- No conclusion: the step of", "which does not tell them apart"),
        ({"least_ratio": 0.5, "median_ratio": 0.6, "most_ratio": 0.7}, "- The step of fine1_cap4 takes 60.0 %", "parameters"),
        ({"caution": f"fine1_cap4: {UNSTEADY}"}, "- No conclusion: the step of", f"but fine1_cap4: {UNSTEADY}"),
    ],
)
def test_granularity_is_concluded_only_where_the_spread_lets_it(change: dict[str, object], begins: str, ends: str) -> None:
    found = replace(PASSED, granularity=replace(GRANULARITY, **change))
    (line,) = (line for line in acceptance.render(found, 1_000).splitlines() if "takes" in line)
    assert line.startswith(begins)
    assert line.endswith(ends)


def test_cautions_stand_before_the_conclusion_and_are_about_steps() -> None:
    shown = acceptance.render(replace(FAILED, granularity=GRANULARITY), 1_000)
    caution, conclusion = f"- fine1_cap4, step: {UNSTEADY}", "- The step of fine1_cap4"
    assert shown.index("Before any conclusion") < shown.index(caution) < shown.index(conclusion)
    assert "optimizer host: iterations" not in shown


def test_nothing_that_ran_leaves_no_empty_part() -> None:
    shown = acceptance.render(NOTHING)
    for title in ("Timed iterations", "Granularity", "Three clocks", "Notes"):
        assert title not in shown
    assert "3 cases, 4 ranks on auto, 10 timed iterations; torch n/a, ddpprof 0.1.0" in shown


def test_json_is_whole_and_exact() -> None:
    document = json.loads(tables.acceptance_json(FAILED))
    assert (document["format_version"], document["is_passed"], document["granularity"]) == (1, False, None)
    assert document["rows"][0] == {
        "group": "runs",
        "what": "ran to their end",
        "counted": "cases",
        "expected": 3,
        "seen": 2,
        "verdict": "FAIL",
        "problems": [LOST],
    }
    assert document["clocks"][0]["logger_comm_ns"] is None
    assert list(document["timings"][0])[:4] == ["case", "rank", "phase", "clock"]


def test_both_files_are_written(tmp_path: Path) -> None:
    acceptance.write(tmp_path / "verify", PASSED)
    assert {path.name: path.read_text() for path in (tmp_path / "verify").iterdir()} == {
        "acceptance.md": acceptance.markdown(PASSED),
        "acceptance.json": tables.acceptance_json(PASSED),
    }
