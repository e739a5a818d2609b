from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ddpprof.model import Analysis, Warning
from ddpprof.reports import verdict

Make = Callable[[str], Analysis]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "two_ranks",
            "Mostly: 90.2 % of the communication is hidden on rank 0 (worst), 93.3 % on rank 1 (best); "
            "rank 0: 4.796 ms of 49.069 ms exposed per step.",
        ),
        (
            "four_hosts",
            "Not on every rank (on a CPU run): 0 % of the communication is hidden on rank 2 (worst), 93.0 % on rank 0 (best); "
            "rank 2: 50.000 ms of 50.000 ms exposed per step.",
        ),
        ("no_comm", "Nothing to hide: no communication was found on rank 0."),
        ("opaque", "Cannot be told: CUDA graphs were captured whole: the kernels in them are not in the report."),
        (
            "many_steps",
            "Mostly: 80.0 % of the communication is hidden on ranks 0, 1; rank 0: 1.000 ms of 5.000 ms exposed per step.",
        ),
        ("nothing", "Cannot be told: the input shows no rank that did any work."),
    ],
)
def test_the_answer(make: Make, name: str, text: str) -> None:
    assert verdict.answer(make(name)) == text


def with_overlap(found: Analysis, *overlaps: int, **other: Any) -> Analysis:
    """The two ranks with 10 ms of communication each, so much of it (ms) hidden."""
    rows = [
        replace(
            row,
            comm_ns=10_000_000,
            overlap_ns=overlap * 1_000_000,
            exposed_comm_ns=(10 - overlap) * 1_000_000,
            overlap_ratio=overlap / 10,
        )
        for row, overlap in zip(found.ranks, overlaps, strict=True)
    ]
    return replace(found, ranks=tuple(rows), **other)


@pytest.mark.parametrize(
    ("overlaps", "start"),
    [
        ((10, 10), "Yes: all communication is hidden on ranks 0, 1."),
        ((7, 10), "Mostly: 70.0 % of"),
        ((20 / 3, 10), "Mostly: 66.7 % of"),
        ((6.6, 10), "Partly: 66.0 % of"),
        ((4, 10), "Partly: 40.0 % of"),
        ((0.5, 10), "Partly: 5.0 % of"),
        ((0.4, 0.4), "Hardly: 4.0 % of"),
        ((0, 0.4), "Hardly: 0 % of"),
        ((0.4, 10), "Not on every rank: 4.0 % of"),
        ((0, 10), "Not on every rank: 0 % of"),
        ((0, 0), "No: no communication is hidden on ranks 0, 1; rank 0: 10.000 ms of 10.000 ms exposed per step."),
    ],
)
def test_the_worst_rank_decides(make: Make, overlaps: tuple[int, int], start: str) -> None:
    assert verdict.answer(with_overlap(make("two_ranks"), *overlaps)).startswith(start)


def test_the_rank_with_most_exposed_time_is_named_when_it_is_another(make: Make) -> None:
    found = make("two_ranks")
    small = replace(found.ranks[0], comm_ns=1_000, overlap_ns=0, exposed_comm_ns=1_000, overlap_ratio=0.0)
    text = verdict.answer(replace(found, ranks=(small, found.ranks[1])))
    assert text.endswith("rank 0: 1.0 us of 1.0 us exposed per step; rank 1: 2.899 ms of 43.305 ms exposed per step (most).")


def test_the_compute_stream_is_named_as_the_reason(make: Make) -> None:
    same = (Warning(code="same-stream", message="", report=0),)
    text = verdict.answer(with_overlap(make("two_ranks"), 0, 0, warnings=same, window="capture"))
    assert text.endswith("exposed over the whole capture. It runs on the compute stream.")


def test_a_rank_nobody_can_see_into_is_not_counted(make: Make) -> None:
    found = make("two_ranks")
    hidden = replace(found.ranks[0], unreliable=("graph-trace-opaque",))
    mixed = replace(found, ranks=(hidden, found.ranks[1]))
    assert verdict.answer(mixed).startswith("Mostly: 93.3 % of the communication is hidden on rank 1; rank 1:")
    assert verdict.cautions(mixed)[0].startswith("Unreliable on rank 0: CUDA graphs")


def test_cautions_say_what_limits_the_answer(make: Make) -> None:
    starts = {
        name: [line.split(":")[0] for line in verdict.cautions(make(name))] for name in ("two_ranks", "many_steps", "nothing")
    }
    assert starts == {
        "two_ranks": [
            "Time-sliced, ranks 0, 1",
            "Fewer than 5 complete steps",
            "Overlap is not time saved",
        ],
        "many_steps": ["Overlap is not time saved"],
        "nothing": [],
    }


def test_a_rank_without_communication_is_named(make: Make) -> None:
    found = make("two_ranks")
    silent = replace(found.ranks[1], n_comm=0, comm_ns=0, overlap_ns=0, exposed_comm_ns=0, overlap_ratio=None)
    assert "No communication was found on rank 1." in verdict.cautions(replace(found, ranks=(found.ranks[0], silent)))


def test_without_compute_nothing_is_said_of_what_is_hidden(make: Make) -> None:
    found = make("two_ranks")
    first, second = (replace(row, n_compute=0) for row in with_overlap(found, 0, 0).ranks)
    blind = replace(found, ranks=(first, second))
    assert verdict.answer(blind) == "Cannot be told: no compute was found on ranks 0, 1 for communication to hide behind."
    mixed = replace(found, ranks=(first, found.ranks[1]))
    assert verdict.answer(mixed).startswith("Mostly: 93.3 % of the communication is hidden on rank 1;")
    assert "No compute was found on rank 0: what is hidden there cannot be told." in verdict.cautions(mixed)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("two_ranks", "case delay_cap4; 2 of 2 ranks; 1 GPU (NVIDIA H200), time-sliced; 1 complete step (step 4)"),
        ("four_hosts", "4 of 4 ranks; 1 complete step"),
        ("no_comm", "1 of 1 rank; 1 GPU (NVIDIA H200), not time-sliced; whole capture, no step marks used"),
        (
            "many_steps",
            "2 of 4 ranks (ranks 2, 3 not in the input); 2 GPUs (NVIDIA H200), not time-sliced; 5 complete steps, 1 left out",
        ),
        ("nothing", "no rank with any work; 0 complete steps"),
    ],
)
def test_the_scope(make: Make, name: str, text: str) -> None:
    assert verdict.scope(make(name)) == text


def test_a_row_is_called_by_more_than_its_rank_where_that_does_not_tell(make: Make) -> None:
    found = make("unknown_ranks")
    assert verdict.row_name(found.ranks[1], found) == "unknown rank (report 1, pid 71, device 3)"
    twice = replace(found, ranks=tuple(replace(row, rank=2) for row in found.ranks))
    assert verdict.row_name(twice.ranks[0], twice) == "rank 2 (report 0, pid 71, device 0)"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [({3}, "rank 3"), ({1, 0}, "ranks 0, 1"), ({0, 1, 2, 3, 7}, "ranks 0 to 3, 7"), (set(range(999)), "ranks 0 to 998")],
)
def test_ranks_are_spelled_in_runs(ranks: set[int], text: str) -> None:
    assert verdict.spelled(ranks) == text


def test_every_sentence_is_ascii_and_one_line(example: Analysis) -> None:
    for line in (verdict.scope(example), verdict.answer(example), *verdict.cautions(example)):
        assert line.isascii()
        assert "\n" not in line
