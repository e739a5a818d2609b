"""A sweep in words, on literal rows: what is said first, what is recommended and why, and when nothing is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from ddpprof.model import CapRow, Sweep, Timing
from ddpprof.reports import sweep as reports

MIB, MS = 2**20, 1_000_000
Golden = Callable[[str, str], None]


def row(cap: float, median_ms: int | None, mad_ms: int, launches: int, overlap: float, **other: Any) -> CapRow:
    """One cap: 48 MiB in equal buckets, 40 ms of communication of which ``overlap`` is hidden."""
    timing = None
    if median_ms is not None:
        values = {"median_ns": median_ms, "p95_ns": median_ms + 9, "min_ns": median_ms - 9, "max_ns": median_ms + 9}
        timing = Timing(n=30, mad_ns=mad_ms * MS, **{name: value * MS for name, value in values.items()})
    hidden = round(40 * MS * overlap)
    fixed = {
        "cap_mb": cap, "rounds": 3, "timing": timing, "launches": launches, "bucket_bytes": (48 * MIB // launches,) * launches,
        "worst_rank": 1, "overlap_ns": hidden, "overlap_ratio": overlap, "exposed_comm_ns": 40 * MS - hidden,
        "tail_ns": 3 * MS, "is_correct": True, "unsteady": None, "failure": None,
    }  # fmt: skip
    return CapRow(**(fixed | other))


SWEEP = Sweep(
    ddpprof_version="0.1.0", case="coarse4_cap4", world_size=4, device="cuda", device_model="NVIDIA H200", is_time_sliced=False,
    evidence="gpu-kernels", timed_by="iterations", clock="cuda-event", rounds=3,
    rows=(row(4, 120, 2, 12, 0.9), row(16, 100, 3, 3, 0.6), row(25, 102, 3, 2, 0.5), row(64, 110, 2, 1, 0.0)),
    recommended_mb=(16, 25), sameness=None,
)  # fmt: skip
NOTHING = CapRow(
    cap_mb=64, rounds=0, timing=None, launches=None, bucket_bytes=None, worst_rank=None, overlap_ns=None, overlap_ratio=None,
    exposed_comm_ns=None, tail_ns=None, is_correct=None, unsteady=None, failure="no capture",
)  # fmt: skip
BAD = replace(
    SWEEP,
    case=None,
    is_time_sliced=True,
    timed_by="captured-steps",
    clock=None,
    rows=(
        row(1, 90, 2, 12, 0.9, is_correct=False),
        row(2, 120, 30, 12, 0.9, unsteady="iterations spread by 25 % of their median, more than 10 %"),
        row(16, 100, 3, 3, 0.6, rounds=1, failure="rank 1 was killed by signal 9 (SIGKILL)"),
        NOTHING,
    ),
    recommended_mb=(2,),
)  # fmt: skip


def same(sizes: tuple[int, ...] | None, launches: int, why: str) -> Sweep:
    rows = tuple(replace(row(cap, None, 0, 1, 0.5), launches=launches, bucket_bytes=sizes) for cap in (4, 64))
    return replace(SWEEP, rows=rows, recommended_mb=(), sameness=why)  # type: ignore[arg-type]


def test_golden(golden: Golden) -> None:
    golden("sweep.txt", reports.render(SWEEP))
    golden("sweep.md", reports.render_markdown(SWEEP, chart="sweep.png"))
    golden("sweep.json", reports.to_json(SWEEP))
    golden("sweep_bad.txt", reports.render(BAD))


@pytest.mark.parametrize("width", [120, 80])
@pytest.mark.parametrize("sweep", [SWEEP, BAD, same(None, 12, "ignored")])
def test_output_is_plain_ascii_within_its_width_and_ends_with_the_conclusion(sweep: Sweep, width: int) -> None:
    shown = reports.render(sweep, width=width)
    assert shown.isascii()
    assert max(map(len, shown.splitlines())) <= width
    assert " ".join(shown.rpartition("\n\n")[2].split()) == reports.conclusion(sweep)


def test_every_caution_comes_before_the_conclusion() -> None:
    shown = " ".join(reports.render(BAD).split())
    for caution in reports.cautions(BAD):
        assert 0 < shown.index(caution) < shown.index(reports.conclusion(BAD))


def test_a_range_is_recommended_with_what_is_outside_it_and_not_by_overlap() -> None:
    assert reports.conclusion(SWEEP) == (
        "16 and 25 MiB: step medians within the spread of the fastest, 16 MiB at 100.000 ms (MAD 3.000 ms); "
        "the next, 64 MiB, is 10.000 ms slower, more than both their spreads together. "
        "4 MiB hides the largest share of communication (90.0 %) and is not the fastest: overlap is not time saved."
    )


def test_where_nothing_is_hidden_nothing_is_said_of_it() -> None:
    rows = (row(4, 120, 2, 12, 0.0), row(16, 100, 3, 3, 0.0))
    assert "overlap" not in reports.conclusion(replace(SWEEP, rows=rows, recommended_mb=(16,)))


@pytest.mark.parametrize(
    ("recommended", "start"),
    [
        ((4, 16, 25, 64), "Any of 4 to 64 MiB: their step medians lie within the spread of the fastest, 16 MiB at 100.000 ms"),
        ((4, 16, 25), "4 to 25 MiB: step medians within the spread"),
        ((4, 16, 64), "4, 16 and 64 MiB: step medians within the spread"),
        ((16,), "16 MiB: step median 100.000 ms (MAD 3.000 ms); the next, 25 MiB, is 2.000 ms slower"),
        ((), "No cap to recommend: none ran to its end with correct results."),
    ],
)
def test_how_a_recommendation_begins(recommended: tuple[float, ...], start: str) -> None:
    assert reports.conclusion(replace(SWEEP, recommended_mb=recommended)).startswith(start)


def test_the_only_cap_left_is_said_to_be_that_and_provisional_when_unsteady() -> None:
    assert reports.conclusion(BAD) == (
        "Provisional: steps were unsteady at 2 MiB. 2 MiB: the only cap that ran to its end with correct results, at "
        "120.000 ms (MAD 30.000 ms)."
    )


def test_caps_with_the_same_buckets_are_named() -> None:
    rows = (row(1, 100, 3, 12, 0.9), row(2, 101, 3, 12, 0.9), row(4, 102, 3, 12, 0.9), row(64, 110, 3, 1, 0.0))
    assert reports.cautions(replace(SWEEP, rows=rows)) == ["1 to 4 MiB give the same buckets: 12 x 4.00 MiB."]


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        (
            same((4 * MIB,) * 12, 12, "ignored"),
            "all give the same buckets (12 x 4.00 MiB): the job seems to ignore the cap. Build DDP with DDP(model, "
            "**ddpprof.ddp_kwargs()), or put {cap} where your command takes it.",
        ),
        (
            same(None, 7, "ignored"),
            "all give the same buckets (7 a step): the job seems to ignore the cap. Build DDP with DDP(model, "
            "**ddpprof.ddp_kwargs()), or put {cap} where your command takes it.",
        ),
        (same(None, 0, "ignored"), "no communication between ranks was seen at any of them."),
        (
            same((64 * MIB, 80 * MIB, MIB), 3, "parameters"),
            "all give the same buckets (64.00 MiB, 80.00 MiB, 1.00 MiB), since a parameter is never split and each is as "
            "large as the largest cap. Try larger ones.",
        ),
        (same((MIB,), 1, "fits"), "all give the same buckets (1.00 MiB), which fit below the smallest. Try smaller ones."),
    ],
)
def test_caps_that_change_nothing_are_told_apart(sweep: Sweep, expected: str) -> None:
    assert reports.conclusion(sweep) == f"No cap to recommend: {expected}"


def test_the_json_keeps_nanoseconds_and_the_conclusion() -> None:
    found = json.loads(reports.to_json(SWEEP))
    assert (found["format_version"], found["recommended_mb"], found["sameness"]) == (1, [16, 25], None)
    assert (found["rows"][0]["timing"]["median_ns"], found["rows"][0]["exposed_comm_ns"]) == (120 * MS, 4 * MS)
    assert found["conclusion"] == reports.conclusion(SWEEP)


@pytest.mark.parametrize("sweep", [SWEEP, BAD, same((4 * MIB,) * 12, 12, "ignored")])
def test_the_chart_is_drawn_whatever_is_missing(sweep: Sweep, tmp_path: Path) -> None:
    reports.write(tmp_path, sweep)
    assert {path.name for path in tmp_path.iterdir()} == {"summary.md", "summary.json", "sweep.png"}
    picture = imread(tmp_path / "sweep.png")
    assert picture.shape[:2] == (682, 935)
    assert picture[..., :3].min() < 0.2
    assert "![Step, exposed communication and tail at each cap](sweep.png)" in (tmp_path / "summary.md").read_text()
