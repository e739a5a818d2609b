"""The trend of a case on literal runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from ddpprof.model import KeptRank, KeptRun, Timing
from ddpprof.reports import history

MS = 1_000_000
TIMING = Timing(n=10, median_ns=100 * MS, p95_ns=109 * MS, min_ns=91 * MS, max_ns=109 * MS, mad_ns=2 * MS)
RANK = KeptRank(
    rank=0, step_ns=100 * MS, compute_ns=60 * MS, comm_ns=40 * MS, overlap_ns=30 * MS, exposed_comm_ns=10 * MS,
    compute_only_ns=30 * MS, memory_only_ns=0, idle_ns=30 * MS, compute_span_ns=70 * MS, comm_span_ns=80 * MS, tail_ns=5 * MS,
    overlap_ratio=0.75,
)  # fmt: skip
RUN = KeptRun(
    finished_utc="2026-03-01T10:00:00+00:00", case_name="delay_cap4", kind="profile", ddpprof_version="0.1.0",
    torch_version="2.9.1", nsys_version="2023.4.4.54", nccl_version=None, git_commit="aa08bdc", device="cpu",
    device_model="A CPU", evidence="host-ranges", clock="wall", world_size=2, bucket_cap_mb=4.0, timing=TIMING,
    ranks=(RANK, replace(RANK, rank=1, overlap_ns=10 * MS, exposed_comm_ns=30 * MS, overlap_ratio=0.25)),
)  # fmt: skip
SLOWER = replace(
    RUN, finished_utc="2026-03-02T10:00:00+00:00", git_commit="389a84d", timing=replace(TIMING, median_ns=120 * MS)
)
UNTIMED = replace(RUN, finished_utc="2026-03-03T10:00:00+00:00", git_commit=None, timing=None, ranks=(), bucket_cap_mb=None)
RUNS, CHANGES = (RUN, SLOWER, UNTIMED), (None, 20 * MS, None)


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("history.txt", history.render(RUNS, CHANGES))


def test_a_row_is_of_the_worst_rank_and_tells_its_change() -> None:
    found = history.rows(RUNS, CHANGES, "")
    cells = {column.heading: column.cells for column in found.columns}
    assert cells["change"] == ("", "slower by 20.0 %", "")
    assert cells["overlap"] == ("25.0", "25.0", "n/a")
    assert cells["exposed"] == ("30.000", "30.000", "n/a")
    assert cells["commit"] == ("aa08bdc", "389a84d", "n/a")
    assert "NCCL" not in cells


def test_a_run_that_is_faster_says_so() -> None:
    (column,) = (item for item in history.rows((RUN,), (-25 * MS,), "").columns if item.heading == "change")
    assert column.cells == ("faster by 20.0 %",)


def test_the_json_has_every_number_of_every_rank() -> None:
    found = json.loads(history.to_json(RUNS, CHANGES))
    assert found["format_version"] == 1
    assert [run["change_ns"] for run in found["runs"]] == [None, 20 * MS, None]
    assert found["runs"][0]["timing"]["mad_ns"] == 2 * MS
    assert [rank["exposed_comm_ns"] for rank in found["runs"][1]["ranks"]] == [10 * MS, 30 * MS]
