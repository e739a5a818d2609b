"""A prediction in words, on literal rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from ddpprof.model import CapPrediction, Prediction, RankPrediction, Timing, TransferCost
from ddpprof.reports import prediction as reports

MIB, MS = 2**20, 1_000_000
Golden = Callable[[str, str], None]


def row(cap: float, step_ms: int, buckets: int, overlap_ms: int | None, bound: str, **other: object) -> CapPrediction:
    """One cap: 48 MiB in equal buckets, 40 ms of communication, an interval of 10 ms each way."""
    exposed = None if overlap_ms is None else (40 - overlap_ms) * MS
    overlap = None if overlap_ms is None else overlap_ms * MS
    tail = None if overlap_ms is None else 4 * MS
    ratio = None if overlap_ms is None else overlap_ms / 40
    rank = RankPrediction(rank=1, overlap_ns=overlap, overlap_ratio=ratio, exposed_comm_ns=exposed, tail_ns=tail)
    fixed = {
        "cap_mb": cap, "is_captured": cap <= 4, "bucket_bytes": (48 * MIB // buckets,) * buckets,
        "buckets": tuple((index,) for index in range(buckets)), "step_ns": step_ms * MS, "low_ns": (step_ms - 10) * MS,
        "high_ns": (step_ms + 10) * MS, "worst_rank": 1 if overlap else None, "overlap_ns": overlap, "overlap_ratio": ratio,
        "exposed_comm_ns": exposed, "tail_ns": tail, "bound": bound, "held_ns": 0, "holder": None, "ranks": (rank,),
    }  # fmt: skip
    return CapPrediction(**(fixed | other))  # type: ignore[arg-type]


FOUND = Prediction(
    ddpprof_version="0.1.0", case="delay_cap4", world_size=4, device="cpu", evidence="host-ranges", is_profiled=False,
    captured_cap_mb=4, mode="plain",
    measured=Timing(n=10, median_ns=100 * MS, p95_ns=110 * MS, min_ns=95 * MS, max_ns=110 * MS, mad_ns=2 * MS),
    model_ns=98 * MS, moments=11, lanes=2,
    cost=TransferCost(fixed_ns=0.5 * MS, ns_per_byte=3.0, slowdown_ratio=1.5, low_ratio=0.9, high_ratio=1.2, n=132, sizes=1),
    rows=(
        row(2, 100, 12, 30, "last bucket"), row(4, 100, 12, 30, "last bucket"), row(16, 115, 3, 20, "bandwidth"),
        row(64, 140, 1, 0, "last bucket"),
    ),
    best_mb=(2, 4, 16),
)  # fmt: skip
HELD = replace(
    FOUND,
    case=None,
    evidence="gpu-kernels",
    device="cuda",
    is_profiled=True,
    captured_cap_mb=None,
    mode="find_unused",
    moments=1,
    lanes=1,
    cost=replace(FOUND.cost, slowdown_ratio=None, sizes=2, probes=2),
    rows=(
        row(4, 100, 12, None, "held bucket", held_ns=60 * MS, holder="gate.weight"),
        row(64, 101, 1, None, "compute", bucket_bytes=(MIB, 2 * MIB, 3 * MIB, 4 * MIB)),
    ),
    best_mb=(4, 64),
)


def test_golden(golden: Golden) -> None:
    golden("prediction.txt", reports.render(FOUND))
    golden("prediction.md", reports.render_markdown(FOUND))
    golden("prediction.json", reports.to_json(FOUND))
    golden("prediction_held.txt", reports.render(HELD))


@pytest.mark.parametrize("width", [120, 80])
@pytest.mark.parametrize("found", [FOUND, HELD])
def test_output_is_plain_ascii_within_its_width_and_ends_with_the_conclusion(found: Prediction, width: int) -> None:
    shown = reports.render(found, width=width)
    assert shown.isascii()
    assert max(map(len, shown.splitlines())) <= width
    assert " ".join(shown.rpartition("\n\n")[2].split()) == reports.conclusion(found)


def test_caps_with_the_buckets_of_the_best_are_named_with_it() -> None:
    words = reports.conclusion(FOUND)
    assert words.startswith(
        "Best by the model: 2 and 4 MiB, 100.000 ms (90.000 ms to 110.000 ms), with the buckets of the capture"
    )
    assert "Not to be told from it: 16 MiB." in words


@pytest.mark.parametrize(
    ("best_mb", "step_ms", "words"),
    [((64,), 60, "against the 100.000"), ((64,), 95, "not to be told"), ((4, 64), 60, "not to be told")],
)
def test_a_gain_is_one_only_outside_of_the_uncertainty(best_mb: tuple[float, ...], step_ms: int, words: str) -> None:
    """Measured 100 ms, each interval 10 ms each way."""
    rows = (row(4, 100, 12, 30, "last bucket"), row(64, step_ms, 1, 0, "compute"))
    assert words in reports.conclusion(replace(FOUND, rows=rows, best_mb=best_mb)).partition("Not")[0]


def test_the_command_that_measures_it() -> None:
    other = replace(FOUND, rows=FOUND.rows[2:])
    assert reports.conclusion(FOUND).endswith(": ddpprof sweep delay_cap4 --caps 4,16")
    assert reports.conclusion(other).endswith(": ddpprof sweep delay_cap4 --caps 4,16")
    assert reports.conclusion(replace(other, case=None)).endswith(": ddpprof sweep --caps 4,16 -- COMMAND")
    alone = replace(FOUND, captured_cap_mb=0.25, rows=(row(0.25, 100, 12, 30, "last bucket"),), best_mb=(0.25,))
    assert reports.conclusion(alone).endswith(": ddpprof sweep delay_cap4 --caps 0.25,1,25")


def test_the_default_of_ddp_stands_before_the_sizes() -> None:
    default = row(4, 101, 9, 30, "bandwidth", cap_mb=None)
    found = replace(FOUND, rows=(default, *FOUND.rows), best_mb=(None, 2, 4, 16))
    assert "Not to be told from it: DDP's default and 16 MiB." in reports.conclusion(found)
    assert "Not to be told from it: DDP's default. " in reports.conclusion(replace(found, best_mb=(None, 2, 4)))


def test_the_default_of_ddp_is_named_and_swept_as_25() -> None:
    rows = (row(2, 90, 12, 30, "last bucket", cap_mb=None), row(16, 95, 3, 20, "bandwidth"))
    found = replace(FOUND, captured_cap_mb=None, rows=rows, best_mb=(None, 16))
    words = reports.conclusion(found)
    assert words.startswith("Best by the model: DDP's default, 90.000 ms")
    assert words.endswith("Not to be told from it: 16 MiB. Measure it with: ddpprof sweep delay_cap4 --caps 16,25")
    assert any(line.startswith("A sweep gives every run a cap: 25 stands") for line in reports.cautions(found))
    assert [line.split()[:2] for line in reports.render(found).splitlines() if "last bucket  " in line] == [["default", "*"]]


def test_what_is_not_known_is_said() -> None:
    said = " ".join(reports.cautions(HELD))
    assert "One step was captured" in said
    assert "for gate.weight" in said
    assert "taken to cost the same" in said
    assert reports.cautions(FOUND) == [f"Not modelled: {'; '.join(reports.NOT_MODELLED)}."]


def test_json_is_the_rows_as_declared() -> None:
    found = json.loads(reports.to_json(HELD))
    assert found["rows"][0]["overlap_ns"] is None
    assert (found["rows"][1]["step_ns"], found["conclusion"]) == (101 * MS, reports.conclusion(HELD))
