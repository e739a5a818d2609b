"""Our own captures, every nsys that could be had: the analysis against an oracle that reads the rows by itself."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from pathlib import Path

import pytest
from oracle import by_sweep, oracle_metrics

import ddpprof
from ddpprof.analysis import check, redact

DATA = Path(__file__).parent / "data"
CAPTURES = sorted(DATA.glob("cpu_gloo_2rank_*.sqlite"))
MARKS = 'SELECT globalTid & ~16777215, start, "end", s.value FROM NVTX_EVENTS e JOIN StringIds s ON s.id = e.textId'


def marked(path: Path) -> dict[int, dict[str, list[tuple[int, int]]]]:
    """Intervals by rank and first word of the mark (``delay``, ``compute``, ``allreduce``, …)."""
    by_process: dict[int, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    rank_of: dict[int, int] = {}
    with sqlite3.connect(path) as connection:
        for process, start, end, text in connection.execute(MARKS):
            words = text.split("/")
            by_process[process][words[0]].append((start, end))
            if words[0] == "rank":
                rank_of[process] = int(words[1])
    return {rank_of[process]: found for process, found in by_process.items() if process in rank_of}


def test_there_are_captures_of_three_generations() -> None:
    assert {path.stem.rpartition("_")[2] for path in CAPTURES} == {"nsys2022", "nsys2023", "nsys2024"}


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_every_number_is_that_of_the_oracle(path: Path) -> None:
    analysis = ddpprof.analyze(path, compute="delay")
    assert analysis.evidence == "host-ranges"
    assert [row.rank for row in analysis.ranks] == [0, 1]
    assert analysis.focus is not None
    for row, focus in zip(analysis.ranks, analysis.focus.ranks, strict=True):
        found = marked(path)[row.rank or 0]
        compute, comm = found["delay"] + found["compute"], found["allreduce"]
        work = compute + comm
        window = (min(start for start, _ in work), max(end for _, end in work))
        expected = oracle_metrics(compute, comm, [], window, regions_of=by_sweep)
        assert {name: getattr(row, name) for name in expected if name != "tail_ns"} == {
            name: value for name, value in expected.items() if name != "tail_ns"
        }
        narrowed = oracle_metrics(found["delay"], comm, [], window, regions_of=by_sweep)
        assert (focus.n_compute, focus.overlap_ns, focus.compute_ns) == (12, narrowed["overlap_ns"], narrowed["compute_ns"])


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_they_hold_what_their_case_must_show(path: Path) -> None:
    texts = (
        ["buckets==12", "launched_early==11", "overlap>0"]
        if "cap4_" in path.stem
        else ["buckets==1", "launched_early==0", "overlap==0"]
    )
    analysis = ddpprof.analyze(path, compute="delay", buckets=True)
    results = check.check(analysis, [check.parse(text) for text in texts])
    assert [(result.rank, result.verdict) for result in results] == [(f"rank {rank}", "pass") for rank in (0, 1) for _ in texts]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_they_are_fit_to_share(path: Path) -> None:
    assert redact.check(path) == ()
