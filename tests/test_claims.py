"""The claims of the formal experiment, held against a run of one case at two ranks with one timed step, as it must be, and with
one thing of it changed at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import captured
import pytest

from ddpprof import inputs, reducer
from ddpprof.analysis.check import Result
from ddpprof.analysis.part import Options
from ddpprof.claims import Lost, Ran, clock_rows, evaluate, expected_layout
from ddpprof.errors import InputError, ToolError, WorkloadError
from ddpprof.model import (
    Acceptance,
    AcceptanceRow,
    Analysis,
    BucketRecord,
    IterationRecord,
    LayoutRecord,
    LoggerRecord,
    Records,
    RunRecord,
    Warning,
)
from ddpprof.profiling import CaptureLost, Outcome, Settings
from ddpprof.workloads.cases import CASES, MIB, STUDY

CASE = CASES["delay_cap64"]
SETTINGS = Settings(ranks=2, iterations=1)
TIMED, CAPTURED = captured.STEP - 1, captured.STEP
REFERENCE = "abcdefghijklmn"
"""A letter for the hash after each of steps 0 to 13."""

BACKWARD = list(range(12))[::-1]
HELD = tuple(Result("overlap==0", f"rank {rank}", "pass", "overlap_ns = 0") for rank in (0, 1))
Change = Callable[[Outcome], Outcome]


def iteration(rank: int, step: int) -> IterationRecord:
    return IterationRecord(
        rank=rank,
        step=step,
        is_captured=step == CAPTURED,
        step_ns=1_000 + rank,
        forward_ns=1,
        backward_host_ns=2,
        backward_ns=3,
        optimizer_host_ns=4,
        loss=0.5,
        replica_hash=REFERENCE[step],
    )


def bucket(rank: int, step: int) -> BucketRecord:
    return BucketRecord(
        rank=rank,
        step=step,
        bucket=0,
        size_bytes=48 * MIB,
        is_last=True,
        parameters=BACKWARD,
        ready_ns=100 + step,
        launch_ns=200 + step,
    )


def layout(rank: int, stage: str, parameters: list[int]) -> LayoutRecord:
    is_rebuilt = stage == "rebuilt"
    return LayoutRecord(rank=rank, stage=stage, is_rebuilt=is_rebuilt, size_bytes=[48 * MIB], parameters=[parameters])


def logger(rank: int, step: int, *, said: int = 30, start: int = 50, end: int = 80) -> LoggerRecord:
    times = {"backward_comm_time_start": start, "backward_compute_time_end": end, "backward_compute_comm_overlap_time": said}
    return LoggerRecord(rank=rank, step=step, fields={"backward_compute_time": 60, "backward_comm_time": 40} | times)


def run(rank: int, device: str = "cpu") -> RunRecord:
    return RunRecord(
        rank=rank,
        world_size=2,
        case=CASE.name,
        device=device,
        backend="gloo",
        bucket_cap_mb=64,
        iterations=1,
        seed=0,
        torch_version="2.9.1",
    )


RANK_STEPS = [(rank, step) for rank in (0, 1) for step in (TIMED, CAPTURED)]
RECORDS = Records(
    runs=(run(0), run(1)),
    iterations=tuple(iteration(*at) for at in RANK_STEPS),
    buckets=tuple(bucket(*at) for at in RANK_STEPS),
    loggers=tuple(logger(*at) for at in RANK_STEPS),
    layouts=tuple(
        row for rank in (0, 1) for row in (layout(rank, "initial", BACKWARD[::-1]), layout(rank, "rebuilt", BACKWARD))
    ),
)


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """The timeline of two ranks with one bucket each."""
    report = captured.report(tmp_path_factory.mktemp("report") / "a.sqlite", CASE.name)
    return inputs.read([report]).analyze(Options(buckets=True))


@pytest.fixture
def good(analysis: Analysis) -> Outcome:
    return Outcome(folder=Path("runs/verify/x"), analysis=analysis, records=RECORDS, results=HELD)


def ran(outcome: Outcome, **other: Any) -> Ran:
    return Ran(**{"case": CASE, "outcome": outcome, "reference": REFERENCE} | other)


def broken(found: Acceptance) -> list[AcceptanceRow]:
    return [row for row in found.rows if row.verdict == "FAIL"]


# --------------------------------------------------------------------------------------------------- as it must be


def test_a_run_as_it_must_be_meets_every_claim_about_it(good: Outcome) -> None:
    found = evaluate([ran(good)], SETTINGS)
    assert [(row.group, row.counted, row.expected, row.seen) for row in found.rows] == [
        ("runs", "cases", 1, 1),
        ("records", "iteration rows", 2, 2),
        ("records", "bucket rows", 2, 2),
        ("values", "iterations", 2, 2),
        ("values", "rank-steps", 4, 4),
        *[("layout", "cases", 1, 1)] * 5,
        ("layout", "rank-steps", 4, 4),
        ("timeline", "ranks", 2, 2),
        ("overlap", "ranks", 2, 2),
        ("DDP logger", "rank-steps", 4, 4),
    ]
    assert found.is_passed
    assert (found.torch_version, found.device, found.evidence, found.cases) == ("2.9.1", "cpu", "host-ranges", ("delay_cap64",))
    assert (found.notes, found.not_run, found.granularity) == ((), (), None)


def test_the_whole_experiment_counts_what_its_definition_says() -> None:
    """Nothing ran, so only what is expected is told: 320 and 1,960 rows, layouts 8, overlap 8, failure on 4 ranks."""
    lost = [Lost(case=CASES[name], error=ToolError("no nsys")) for name in STUDY]
    expected: dict[tuple[str, str], int] = {}
    for row in evaluate(lost, Settings()).rows:
        expected[row.group, row.counted] = row.expected
    assert expected == {
        ("runs", "cases"): 9,
        ("records", "iteration rows"): 320,
        ("records", "bucket rows"): 1_960,
        ("values", "iterations"): 88,
        ("values", "rank-steps"): 352,
        ("layout", "cases"): 8,
        ("layout", "rank-steps"): 352,
        ("timeline", "ranks"): 24,
        ("overlap", "ranks"): 8,
        ("DDP logger", "rank-steps"): 352,
        ("failure", "ranks"): 4,
    }


# ---------------------------------------------------------------------------------------- one thing changed at a time


def change(table: str, at: int | None = None, **values: Any) -> Change:
    """Changes one row of a table of the records; without ``values`` takes it out, without ``at`` changes all."""

    def apply(outcome: Outcome) -> Outcome:
        rows = list(getattr(outcome.records, table))
        if values:
            rows = [replace(row, **values) if at in (None, number) else row for number, row in enumerate(rows)]
        else:
            del rows[at or 0]
        return replace(outcome, records=replace(outcome.records, **{table: tuple(rows)}))

    return apply


def change_timeline(**values: Any) -> Change:
    """Changes the first bucket on the timeline."""

    def apply(outcome: Outcome) -> Outcome:
        assert outcome.analysis is not None
        first, *rest = outcome.analysis.buckets
        return replace(outcome, analysis=replace(outcome.analysis, buckets=(replace(first, **values), *rest)))

    return apply


def miss(outcome: Outcome) -> Outcome:
    return replace(outcome, results=(HELD[0], replace(HELD[1], verdict="fail", seen="overlap_ns = 7")))


OTHER_BUCKETS = "the marks on the timeline tell other buckets than the hook"


@pytest.mark.parametrize(
    ("change", "claims", "problem"),
    [
        (change("iterations", 3, replica_hash="x"), ["replicas", "gradients"], "step 13: rank 1 differs"),
        (change("iterations", replica_hash="x"), ["gradients"], "step 12: rank 0 differs (and 3 more)"),
        (change("layouts", 0, size_bytes=[1]), ["at first: bytes"], "rank 0: [1]"),
        (change("layouts", 2, parameters=[BACKWARD]), ["at first: parameters"], f"rank 1: [{BACKWARD}]"),
        (change("layouts", 3, size_bytes=[4, 4]), ["after warm-up: bytes"], "rank 1: [4, 4]"),
        (change("layouts", 1, parameters=[[0]]), ["after warm-up: parameters"], "rank 0: [[0]]"),
        (change("layouts", 3, is_rebuilt=False), ["rebuilt, but never"], "rank 1: rebuilt False"),
        (change("buckets", 1, size_bytes=4), ["every step sends", "order and bytes"], "step 13: rank 0 sent other buckets"),
        (change("buckets", 0, parameters=[0]), ["every step sends"], "step 12: rank 0 sent other buckets"),
        (change_timeline(bucket=3), ["order and bytes"], f"rank 0: {OTHER_BUCKETS}"),
        (change_timeline(size_bytes=7), ["order and bytes"], f"rank 0: {OTHER_BUCKETS}"),
        (change_timeline(attribution="order"), ["order and bytes"], f"rank 0: {OTHER_BUCKETS}"),
        (change_timeline(bucket=None), ["order and bytes"], f"rank 0: {OTHER_BUCKETS}"),
        (miss, ["12 compute"], "rank 1: overlap==0: overlap_ns = 7"),
        (change("loggers", 2, fields=logger(1, 12, said=31).fields), ["overlap time"], "step 12: rank 1 says 31 ns, not 30"),
        (change("loggers", 0, fields={}), ["overlap time"], "this PyTorch's logger has no such fields"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_as_it_must_be_fails_its_claim_and_is_named(
    good: Outcome, change: Change, claims: list[str], problem: str
) -> None:
    rows = broken(evaluate([ran(change(good))], SETTINGS))
    assert [row.what.startswith(claim) for row, claim in zip(rows, claims, strict=True)] == [True] * len(claims)
    assert f"delay_cap64: {problem}" in [text for row in rows for text in row.problems]
    assert all(row.seen < row.expected for row in rows)


@pytest.mark.parametrize(
    ("table", "claim", "problem"),
    [
        ("iterations", "timed iterations", "1 of 2 iteration rows"),
        ("iterations", "replicas", "step 12: not recorded on every rank"),
        ("iterations", "gradients", "3 of 4 rank-steps"),
        ("buckets", "buckets of timed iterations", "1 of 2 bucket rows"),
        ("layouts", "at first: bytes", "not recorded on every rank"),
        ("loggers", "overlap time", "3 of 4 rank-steps"),
    ],
)
def test_a_row_that_is_missing_is_counted(good: Outcome, table: str, claim: str, problem: str) -> None:
    rows = broken(evaluate([ran(change(table, 0)(good))], SETTINGS))
    assert [row.problems for row in rows if row.what.startswith(claim)] == [(f"delay_cap64: {problem}",)]


def test_a_layout_that_was_never_recorded_is_no_layout(good: Outcome) -> None:
    rows = broken(evaluate([ran(change("layouts", 1)(good))], SETTINGS))
    assert [row.what.partition(":")[2] for row in rows] == [" bytes of each bucket", " parameters of each bucket", ""]


def test_more_rows_than_there_may_be_are_no_pass(good: Outcome) -> None:
    twice = replace(good, records=replace(RECORDS, buckets=RECORDS.buckets * 2))
    (row,) = (row for row in broken(evaluate([ran(twice)], SETTINGS)) if row.group == "records")
    assert (row.expected, row.seen, row.problems) == (2, 4, ("delay_cap64: 4 of 2 bucket rows",))


def test_a_span_of_nothing_is_zero(good: Outcome) -> None:
    """The one bucket was sent 20 ns after the backward's compute had ended."""
    late = change("loggers", 0, fields=logger(0, 12, said=0, start=100).fields)
    assert evaluate([ran(late(good))], SETTINGS).is_passed


@pytest.mark.parametrize(("said", "is_passed"), [(0, True), (59, True), (1_060, True), (1_061, False), (-1, False)])
def test_on_a_gpu_the_span_is_held_within_the_backward(good: Outcome, said: int, is_passed: bool) -> None:
    """Its ends are host times there and tell nothing of it; a CUDA event is exact to a microsecond at best."""
    on_gpu = replace(good, records=replace(RECORDS, runs=(run(0, "cuda"), run(1, "cuda"))))
    found = evaluate([ran(change("loggers", 0, fields=logger(0, 12, said=said, end=0).fields)(on_gpu))], SETTINGS)
    assert (found.device, [row.group for row in broken(found)]) == ("cuda", [] if is_passed else ["DDP logger"])


def test_without_a_reference_nothing_is_equal_to_it(good: Outcome) -> None:
    (row,) = broken(evaluate([ran(good, reference=ToolError("the job was killed"))], SETTINGS))
    assert (row.seen, row.problems) == (0, ("delay_cap64: no reference: the job was killed",))
    (row,) = broken(evaluate([ran(good, reference="abc")], SETTINGS))
    assert (row.seen, row.problems) == (0, ("delay_cap64: step 12: rank 0 differs (and 3 more)",))


def test_the_case_that_must_fail_is_judged_by_its_failures() -> None:
    seen = (Result("expected failure", "rank 0", "pass", "step 1"), Result("expected failure", "rank 1", "fail", "none"))
    outcome = Outcome(folder=Path("x"), analysis=None, records=Records(), results=seen)
    found = evaluate([ran(outcome, case=CASES["unused_undetected"], reference=())], SETTINGS)
    assert [(row.group, row.expected, row.seen) for row in found.rows] == [("runs", 1, 1), ("failure", 2, 1)]
    assert found.rows[1].problems == ("unused_undetected: rank 1: expected failure: none",)
    assert (found.torch_version, found.evidence, found.timings, found.clocks) == (None, None, (), ())


def test_a_case_that_was_lost_fails_its_claims_with_the_reason_and_costs_the_others_nothing(good: Outcome) -> None:
    lost = Lost(case=CASES["coarse4_cap64"], error=WorkloadError("rank 1 of 2 was killed", "Use fewer --ranks."))
    found = evaluate([ran(good), lost], SETTINGS)
    assert found.cases == ("delay_cap64", "coarse4_cap64")
    seen = {row.what.partition(":")[0]: (row.expected, row.seen, row.verdict) for row in found.rows}
    assert seen["ran to their end"] == (2, 1, "FAIL")
    assert seen["timed iterations"] == (4, 2, "FAIL")
    assert seen["12 compute, 12 comm, overlap > 0; or 12, 1, overlap == 0"] == (2, 2, "PASS")
    assert {problem for row in broken(found) for problem in row.problems} == {"coarse4_cap64: rank 1 of 2 was killed"}


@pytest.mark.parametrize(
    ("error", "not_run"),
    [
        (WorkloadError("rank 0 died"), ()),
        (CaptureLost("no rank 0"), ()),
        (ToolError("no nsys"), ("delay_cap64: no nsys",)),
        (InputError("cannot be read"), ("delay_cap64: cannot be read",)),
    ],
)
def test_a_case_that_could_not_be_run_is_told_from_one_that_failed(error: Any, not_run: tuple[str, ...]) -> None:
    found = evaluate([Lost(case=CASE, error=error)], SETTINGS)
    assert (found.not_run, found.is_passed) == (not_run, False)


# ------------------------------------------------------------------------------------------------- expected layouts


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.branches], ids=lambda case: case.name)
def test_the_model_of_the_reducer_has_the_sizes_of_the_experiment(case: Any) -> None:
    for stage in ("initial", "rebuilt"):
        if stage == "rebuilt" and case.rebuilt_bytes is None:
            continue
        found = expected_layout(case, stage)
        assert [sum(case.parameter_bytes[index] for index in bucket) for bucket in found["parameters"]] == found["size_bytes"]


@pytest.mark.parametrize(
    ("name", "stage", "parameters"),
    [
        ("coarse4_cap16", "initial", [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]),
        ("coarse4_cap16", "rebuilt", [[11, 10, 9, 8], [7, 6, 5, 4], [3, 2, 1, 0]]),
        ("delay_cap4", "rebuilt", [[11], [10], [9], [8], [7], [6], [5], [4], [3], [2], [1], [0]]),
        ("unused_dynamic", "rebuilt", [[12], [8, 9, 10, 11], [4, 5, 6, 7], [0, 1, 2, 3]]),
        ("late_parameter", "rebuilt", [[12], [8, 9, 10, 11], [4, 5, 6, 7], [0, 1, 2, 3]]),
        ("unused_static", "initial", [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]]),
        ("unused_static", "rebuilt", [[11, 10, 9, 8], [7, 6, 5, 4], [3, 2, 1, 0], [12]]),
    ],
)
def test_expected_parameters_are_in_ready_order_after_the_rebuild(name: str, stage: Any, parameters: list[list[int]]) -> None:
    assert expected_layout(CASES[name], stage)["parameters"] == parameters


def test_fine_parameters_fill_buckets_by_four() -> None:
    rebuilt = expected_layout(CASES["fine1_cap4"], "rebuilt")["parameters"]
    assert (rebuilt[0], rebuilt[-1], len(rebuilt)) == ([47, 46, 45, 44], [3, 2, 1, 0], 12)
    assert reducer.MIB == MIB


# ------------------------------------------------------------------------------------------------ beside the claims


def test_the_clocks_of_a_rank_stand_beside_each_other(good: Outcome) -> None:
    """Hook of the captured step 13; 12 delays of 10 ms and gradients of 1 ms, then 9 ms of communication beside none."""
    (first, _) = clock_rows(CASE, good)
    assert (first.case, first.rank) == ("delay_cap64", 0)
    assert (first.hook_ready_ns, first.hook_launch_ns) == (113, 213)
    assert (first.logger_compute_ns, first.logger_comm_ns, first.logger_overlap_ns) == (60, 40, 30)
    assert (first.timeline_compute_ns, first.timeline_comm_ns, first.timeline_overlap_ns) == (132_000_000, 9_000_000, 0)


def test_what_a_clock_did_not_tell_is_missing(good: Outcome) -> None:
    silent = replace(good, records=replace(RECORDS, buckets=(), loggers=()))
    (first, _) = clock_rows(CASE, silent)
    assert (first.hook_ready_ns, first.logger_overlap_ns, first.timeline_comm_ns) == (None, None, 9_000_000)


def test_fine_and_coarse_are_compared_when_both_were_timed(good: Outcome) -> None:
    def timed(name: str, step_ns: int) -> Ran:
        runs = tuple(replace(row, case=name) for row in RECORDS.runs)
        rows = tuple(replace(row, step_ns=step_ns) for row in RECORDS.iterations)
        return ran(replace(good, records=replace(RECORDS, runs=runs, iterations=rows)), case=CASES[name])

    found = evaluate([timed("fine1_cap4", 300), timed("coarse4_cap4", 200)], SETTINGS)
    assert found.granularity is not None
    assert (found.granularity.case, found.granularity.median_ratio) == ("fine1_cap4", 1.5)
    assert [(row.case, row.phase) for row in found.timings] == [
        (case, phase) for case in ("fine1_cap4", "coarse4_cap4") for phase in ("step", "backward", "optimizer host")
    ]
    assert evaluate([timed("fine1_cap4", 300)], SETTINGS).granularity is None


def test_notes_name_the_runs_of_before_and_what_was_said_of_a_capture(good: Outcome) -> None:
    assert good.analysis is not None
    said = (
        Warning(code="retried", message="attempt 2: earlier captures did not show it"),
        Warning(code="few-steps", message="1 step"),
    )
    again = replace(good, analysis=replace(good.analysis, warnings=said))
    assert evaluate([ran(again), ran(good, is_kept=True)], SETTINGS).notes == (
        "found as an earlier verify left them, not run again: delay_cap64",
        "delay_cap64: attempt 2: earlier captures did not show it",
    )
