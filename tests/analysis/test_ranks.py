"""Collectives paired over ranks: waits, stragglers, clocks, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nsight import NCCL, SESSION_NS, G, K, N, P, Row, build

from ddpprof.analysis import load
from ddpprof.analysis.job import analyze
from ddpprof.analysis.part import Options
from ddpprof.analysis.ranks import FLOOR_NS
from ddpprof.analysis.timeline import timeline
from ddpprof.model import MISSING, Across, Analysis, Trace

GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)"
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)"
US = 1000

Collective = tuple[float, float] | tuple[float, float, str] | tuple[float, float, str, int]
"""Start and end in us from the start of the step; name of the kernel, stream."""


def rank(at: int, steps: Mapping[int, Sequence[Collective]], stream: int = 16, gpus: tuple[str, ...] = ()) -> list[Row]:
    """The rows of one rank: step n is launched in the first 0.9 ms from n ms on, one collective a microsecond."""
    rows: list[Row] = [P(100 + at, rank=at, gpus=gpus)]
    for step, collectives in steps.items():
        zero = 1000 * step
        rows.append(N(zero, zero + 900, f"step/{step}", 100 + at))
        for place, (start, end, *more) in enumerate(collectives):
            name, on = (*more, *(NCCL, stream)[len(more) :])
            launch = (zero + place, zero + place + 0.5)
            rows.append(K(0, on, zero + start, zero + end, str(name), 100 + at, launch=launch))
    return rows


def read(folder: Path, *reports: list[Row], sessions: Sequence[int | None] = (), shifts_us: Sequence[int] = ()) -> list[Trace]:
    """Each report's rows as its own export; ``shifts_us`` moves the times in it, not its session start."""
    return [
        load.read(
            build(
                folder / f"report{at}.sqlite",
                [_moved(row, shifts_us[at]) for row in rows] if shifts_us else rows,
                session_ns=sessions[at] if sessions else SESSION_NS,
            )
        )
        for at, rows in enumerate(reports)
    ]


def _moved(row: Any, by_us: int) -> Any:
    if isinstance(row, P):
        return row
    moved = {"launch": tuple(time + by_us for time in row.launch)} if isinstance(row, K) and row.launch else {}
    return replace(row, start=row.start + by_us, end=row.end + by_us, **moved)


def across(traces: Sequence[Trace], **options: Any) -> Across:
    found = analyze(traces, Options(**options)).across
    assert found is not None
    return found


def waits(found: Across) -> list[tuple[int | None, int]]:
    return [(row.rank, row.wait_ns // US) for row in found.ranks]


def last(found: Across) -> list[int | None]:
    return [row.last for row in found.collectives]


def regardless_of_clocks(found: Across) -> Any:
    """All that must be the same however the ranks are spread over reports."""
    ranks = [replace(row, report=0, offset_ns=0) for row in found.ranks]
    return found.transfer_ns, found.refused, ranks, found.collectives


TWO = [rank(0, {3: [(100, 150), (200, 270)]}), rank(1, {3: [(140, 150), (230, 270)]}, stream=20)]
"""Rank 1 comes 40 us late to the first collective, which takes 10 us from there, and 30 us to the second, which takes 40 us."""


# ---------------------------------------------------------------------------------------------------------- waiting


def test_what_is_longer_than_the_shortest_is_waiting(tmp_path: Path) -> None:
    found = across(read(tmp_path, [*TWO[0], *TWO[1]]))
    first, second = found.collectives
    assert (first.step, first.place, first.operation, first.bucket) == (3, 0, "AllReduce", None)
    assert (first.transfer_ns, first.length_ns, first.wait_ns) == (10 * US, [50 * US, 10 * US], [40 * US, 0])
    assert (second.place, second.transfer_ns, second.wait_ns) == (1, 40 * US, [30 * US, 0])
    assert (found.transfer_ns, waits(found)) == (50 * US, [(0, 70), (1, 0)])


def test_the_straggler_arrives_last(tmp_path: Path) -> None:
    found = across(read(tmp_path, [*TWO[0], *TWO[1]]))
    assert [row.arrival_ns for row in found.collectives] == [[0, 40 * US], [0, 30 * US]]
    assert last(found) == [1, 1]
    assert [(row.n_collectives, row.n_last, row.late_ns) for row in found.ranks] == [(2, 0, -30 * US), (2, 2, 30 * US)]


def test_nobody_is_last_within_the_uncertainty_of_the_clock(tmp_path: Path) -> None:
    close = [rank(0, {3: [(100, 150)]}), rank(1, {3: [(109, 150)]}), rank(2, {3: [(119, 150)]}), rank(3, {3: [(129.001, 150)]})]
    assert (FLOOR_NS, last(across(read(tmp_path, [*close[0], *close[1]])))) == (10 * US, [None])
    assert last(across(read(tmp_path, [*close[1], *close[2]]))) == [None]
    assert last(across(read(tmp_path, [*close[1], *close[2], *close[3]]))) == [2]


def test_late_is_after_the_median_of_the_others(tmp_path: Path) -> None:
    rows = [rank(at, {3: [(100 + start, 400)]}) for at, start in enumerate((0, 20, 50, 200))]
    found = across(read(tmp_path, [row for each in rows for row in each]))
    assert [row.late_ns for row in found.ranks] == [-50 * US, -30 * US, 30 * US, 180 * US]


def test_medians_are_over_complete_steps(tmp_path: Path) -> None:
    one = {step: [(100, 200)] for step in range(5)}
    two = {0: [(190, 200)], 1: [(110, 200)], 2: [(150, 200)], 3: [(180, 200)], 4: [(100, 200), (300, 310)]}
    rows = [*rank(0, one), *rank(1, two)]
    found = across(read(tmp_path, [row if not _is_step(row, 4) else replace(row, end=None, type=60) for row in rows]))
    assert [row.step for row in found.collectives] == [1, 2, 3]
    assert (waits(found), found.transfer_ns, found.refused) == ([(0, 50), (1, 0)], 50 * US, None)
    assert [row.late_ns for row in found.ranks] == [-50 * US, 50 * US]


def _is_step(row: Row, number: int) -> bool:
    return isinstance(row, N) and row.text == f"step/{number}"


def test_without_steps_the_whole_capture(tmp_path: Path) -> None:
    found = across(read(tmp_path, [row for row in [*TWO[0], *TWO[1]] if not isinstance(row, N)]), whole_capture=True)
    assert ([row.step for row in found.collectives], waits(found)) == ([None, None], [(0, 70), (1, 0)])


def test_marked_buckets_are_told(tmp_path: Path) -> None:
    rows = [[*row, N(3000 + 1, 3000 + 2, "bucket/1/4096", 100 + at)] for at, row in enumerate(TWO)]
    found = across(read(tmp_path, *rows))
    assert [(row.bucket, row.size_bytes) for row in found.collectives] == [(None, None), (1, 4096)]


def test_more_than_are_listed_still_have_medians(tmp_path: Path) -> None:
    found = across(read(tmp_path, *TWO), buckets=False)
    assert (found.collectives, waits(found)) == ((), [(0, 70), (1, 0)])


def test_ranks_in_turns_on_one_gpu_name_no_straggler(tmp_path: Path) -> None:
    found = across(read(tmp_path, *(rank(at, {3: [(100 + 40 * at, 150)]}, gpus=("a",)) for at in (0, 1))))
    assert [(row.n_last, row.late_ns, row.wait_ns) for row in found.ranks] == [(None, None, 40 * US), (None, None, 0)]
    assert [(row.last, row.arrival_ns) for row in found.collectives] == [(None, [0, 40 * US])]


def test_a_cpu_run_by_its_marked_buckets(tmp_path: Path) -> None:
    rows = """
        process {pid} rank={rank} world=2
        N 0..99 "step/4"
        N60 {first}..150 "allreduce/0" thread=2
        N60 90..{second} "allreduce/1" thread=2
    """
    text = rows.format(pid=100, rank=0, first=40, second=160) + rows.format(pid=101, rank=1, first=70, second=165)
    found = across([load.read(build(tmp_path / "cpu.sqlite", text))])
    assert (found.clock, found.uncertainty_ns, waits(found)) == ("one report", 0, [(0, 30), (1, 5)])
    assert [(row.bucket, row.operation, row.last) for row in found.collectives] == [(0, "AllReduce", 1), (1, "AllReduce", None)]


# ------------------------------------------------------------------------------------------------------------ lanes


def test_streams_are_matched_by_what_is_on_them(tmp_path: Path) -> None:
    """Rank 1 has other stream numbers, and its second communicator comes first."""
    one = rank(0, {3: [(100, 150, NCCL, 16), (110, 180, GATHER, 17), (200, 250, NCCL, 16)]})
    two = rank(1, {3: [(90, 180, GATHER, 16), (120, 150, NCCL, 23), (240, 250, NCCL, 23)]})
    found = across(read(tmp_path, [*one, *two]))
    assert [(row.operation, row.transfer_ns, row.wait_ns) for row in found.collectives] == [
        ("AllReduce", 30 * US, [20 * US, 0]),
        ("AllGather", 70 * US, [0, 20 * US]),
        ("AllReduce", 10 * US, [40 * US, 0]),
    ]


def test_streams_that_say_the_same_are_matched_by_first_use(tmp_path: Path) -> None:
    one = rank(0, {3: [(100, 150, NCCL, 16), (300, 350, NCCL, 17)]})
    two = rank(1, {3: [(120, 150, NCCL, 40), (340, 350, NCCL, 18)]})
    assert [row.wait_ns for row in across(read(tmp_path, [*one, *two])).collectives] == [[20 * US, 0], [40 * US, 0]]


# ---------------------------------------------------------------------------------------------------------- refused


def test_one_rank_has_nobody_to_wait_for(tmp_path: Path) -> None:
    assert across(read(tmp_path, TWO[0])) == refusal("only one rank has communication in the input")


def test_no_communication(tmp_path: Path) -> None:
    rows: list[Row] = [K(0, 7, 0, 10, pid=100), K(0, 7, 0, 10, pid=101)]
    assert across(read(tmp_path, rows)) == refusal("no communication between ranks was found")


def test_whole_graphs_hide_their_collectives(tmp_path: Path) -> None:
    assert "graphs" in (across(read(tmp_path, [*TWO[0], *TWO[1], G(0, 7, 3000, 3010, pid=101)])).refused or "")


def test_no_step_in_common(tmp_path: Path) -> None:
    found = across(read(tmp_path, rank(0, {3: [(100, 150)]}), rank(1, {4: [(100, 150)]})))
    assert found == refusal("the ranks show no step in common")


def test_communication_outside_the_steps_in_common(tmp_path: Path) -> None:
    both = [rank(at, {3 + at: [(100, 150)], 5: []}) for at in (0, 1)]
    rows = [[*each, K(0, 7, 5100, 5110, pid=100 + at, launch=(5001, 5002))] for at, each in enumerate(both)]
    refused = across(read(tmp_path, *rows)).refused
    assert refused == "2 steps are not in the capture of every rank"


def test_ranks_that_differ_in_number(tmp_path: Path) -> None:
    """What is missing is at the end: what comes before it meets, and is paired."""
    one = rank(0, {3: [(100, 150), (200, 250), (300, 350)]})
    two = rank(1, {3: [(120, 150), (220, 250)]})
    found = across(read(tmp_path, [*one, *two]))
    assert found.refused == "ranks differ in number of collectives: 3 and 2 (step 3)"
    assert [row.wait_ns for row in found.collectives] == [[20 * US, 0], [20 * US, 0]]
    assert [row.n_collectives for row in found.ranks] == [2, 2]


def test_what_is_missing_at_the_head_leaves_no_pair(tmp_path: Path) -> None:
    one = rank(0, {3: [(100, 150), (200, 250), (300, 350)]})
    two = rank(1, {3: [(220, 250), (320, 350)]})
    assert across(read(tmp_path, [*one, *two])) == refusal("ranks differ in number of collectives: 3 and 2 (step 3)")


def test_without_a_common_clock_an_uneven_step_is_not_believed(tmp_path: Path) -> None:
    reports = [rank(0, {3: [(100, 150), (200, 250)]}), rank(1, {3: [(120, 150)]})]
    found = across(read(tmp_path, *reports, sessions=(None, None)))
    assert found == refusal("ranks differ in number of collectives: 2 and 1 (step 3)")


def test_a_step_that_differs_does_not_spoil_the_others(tmp_path: Path) -> None:
    steps = {step: [(100, 150), (200, 250)] for step in range(3, 8)}
    late = {step: [(120, 150), (220, 250)] for step in range(3, 8)}
    found = across(read(tmp_path, [*rank(0, steps), *rank(1, late | {4: late[4][:1], 6: late[6][:1]})]))
    assert found.refused == "ranks differ in number of collectives: 2 and 1 (step 4 and 1 more)"
    assert (len(found.collectives), waits(found)) == (8, [(0, 40), (1, 0)])


def test_ranks_that_differ_in_what_they_do(tmp_path: Path) -> None:
    one = rank(0, {3: [(100, 150), (200, 250), (300, 350)]})
    two = rank(1, {3: [(120, 150), (220, 250, GATHER), (320, 350)]})
    found = across(read(tmp_path, [*one, *two]))
    assert found.refused == "ranks differ in collectives: AllGather and AllReduce at the same place (step 3)"
    assert [row.wait_ns for row in found.collectives] == [[20 * US, 0]]


def test_steps_that_not_all_ranks_show_are_counted(tmp_path: Path) -> None:
    found = across(read(tmp_path, rank(0, {3: [(100, 150)], 4: [(100, 150)]}), rank(1, {4: [(120, 150)], 5: [(100, 150)]})))
    assert (found.refused, [row.step for row in found.collectives]) == ("2 steps are not in the capture of every rank", [4])


def test_collectives_that_do_not_meet_are_not_one(tmp_path: Path) -> None:
    """Two pairs of ranks, each with a communicator of its own."""
    rows = [rank(at, {3: [(100 + 300 * (at // 2), 150 + 300 * (at // 2))]}) for at in range(4)]
    found = across(read(tmp_path, [row for each in rows for row in each]))
    assert found == refusal("collectives of the same place do not meet in time: they are not of one communicator")


def test_a_send_need_not_meet_its_receive(tmp_path: Path) -> None:
    found = across(read(tmp_path, [*rank(0, {3: [(100, 110, SENDRECV)]}), *rank(1, {3: [(130, 150, SENDRECV)]})]))
    assert (found.refused, waits(found)) == (None, [(0, 0), (1, 10)])


def refusal(why: str) -> Across:
    return Across(clock="none", uncertainty_ns=None, refused=why, ranks=(), collectives=())


# ----------------------------------------------------------------------------------------------------------- clocks

STEADY = [
    rank(0, {step: [(100, 150), (200, 250), (300, 350)] for step in range(3, 9)}),
    rank(1, {step: [(140, 150), (200, 250), (330, 350)] for step in range(3, 9)}),
    rank(2, {step: [(120, 150), (240, 250), (310, 350)] for step in range(3, 9)}),
]
"""Eighteen collectives whose ends are the same on all ranks."""


@pytest.mark.parametrize(
    ("shifts_us", "sessions", "clock"),
    [
        ((0, 0, 0), (0, 0, 0), "session start"),
        ((0, 500, -2000), (0, -500, 2000), "session start"),
        ((0, 500, -2000), (0, -508, 2000), "session start"),
        ((0, 500, -2000), (0, -511, 2000), "collective ends"),
        ((0, 500, -2000), (0, 60_000_000, 0), "collective ends"),
        ((0, 500, -2000), None, "collective ends"),
        ((0, 500, -2000), (0, None, 2000), "collective ends"),
    ],
)
def test_one_report_or_one_a_rank_say_the_same(
    tmp_path: Path, shifts_us: tuple[int, ...], sessions: tuple[int | None, ...] | None, clock: str
) -> None:
    """Session starts that are 10 us off are as good as clocks get; beyond that the ends of collectives know better."""
    started = [None if start is None else SESSION_NS + start * US for start in sessions or (None, None, None)]
    apart = across(read(tmp_path, *STEADY, sessions=started, shifts_us=shifts_us))
    together = across(read(tmp_path, [row for each in STEADY for row in each]))
    assert (together.clock, together.uncertainty_ns, together.refused) == ("one report", FLOOR_NS, None)
    assert (apart.clock, apart.uncertainty_ns) == (clock, FLOOR_NS)
    if sessions != (0, -508, 2000):
        assert regardless_of_clocks(apart) == regardless_of_clocks(together)
        assert [row.offset_ns for row in apart.ranks] == [0, -shifts_us[1] * US, -shifts_us[2] * US]
    assert waits(apart) == waits(together)


def test_clocks_a_minute_apart_are_aligned_and_warned_of(tmp_path: Path) -> None:
    traces = read(tmp_path, *STEADY, sessions=(SESSION_NS, SESSION_NS + 60_000_000_000, SESSION_NS))
    found = analyze(traces)
    told = [warning.message for warning in found.warnings if warning.code == "clock-skew"]
    assert len(told) == 1
    assert told[0].endswith("numbers of each rank stand, cross-rank times are aligned by the ends of collectives")
    assert found.across is not None
    assert [row.offset_ns for row in found.across.ranks] == [0, 0, 0]


def test_too_few_ends_align_nothing(tmp_path: Path) -> None:
    found = across(read(tmp_path, *TWO, sessions=(None, None)))
    assert (found.clock, found.uncertainty_ns, found.refused) == ("none", None, None)
    assert [(row.offset_ns, row.n_last, row.late_ns, row.wait_ns) for row in found.ranks] == [
        (None, None, None, 70 * US),
        (None, None, None, 0),
    ]
    assert [(row.arrival_ns, row.last) for row in found.collectives] == [(None, None)] * 2


def test_two_ends_do_not_overrule_session_starts(tmp_path: Path) -> None:
    found = across(read(tmp_path, *TWO, sessions=(SESSION_NS, SESSION_NS + 20 * US)))
    assert (found.clock, found.uncertainty_ns) == ("session start", 20 * US)
    assert [row.arrival_ns for row in found.collectives] == [[0, 60 * US], [0, 50 * US]]


def test_a_send_does_not_overrule_session_starts(tmp_path: Path) -> None:
    """A sender leaves earlier than its receiver, always by as much: that is no clock."""
    sends = {3: [(100 * at, 100 * at + 50, SENDRECV) for at in range(1, 8)]}
    receives = {3: [(100 * at + 10, 100 * at + 80, SENDRECV) for at in range(1, 8)]}
    found = across(read(tmp_path, rank(0, sends), rank(1, receives)))
    assert (found.clock, found.uncertainty_ns) == ("session start", 30 * US)


def test_the_uncertainty_is_what_the_aligned_ends_leave(tmp_path: Path) -> None:
    """A clock that drifts by 2 us a collective: 21 ends around their median, 20 of them to within 19 us."""
    one = {3: [(40 * at, 40 * at + 30) for at in range(1, 22)]}
    two = {3: [(42 * at, 42 * at + 30) for at in range(1, 22)]}
    found = across(read(tmp_path, rank(0, one), rank(1, two), sessions=(None, None)))
    assert (found.clock, found.uncertainty_ns) == ("collective ends", 20 * US)
    assert found.ranks[1].offset_ns == -22 * US


def test_a_report_that_tells_an_impossible_start_is_aligned_by_ends(tmp_path: Path) -> None:
    traces = read(tmp_path, *STEADY)
    traces[1] = replace(traces[1], report=replace(traces[1].report, session_start_utc_ns=-(2**62)))
    assert across(traces).clock == "collective ends"


def test_the_picture_is_on_the_same_clock(tmp_path: Path) -> None:
    apart = timeline(read(tmp_path, *STEADY, sessions=(None, None, None), shifts_us=(0, 500, -2000)))
    together = timeline(read(tmp_path, [row for each in STEADY for row in each]))
    assert [row.window for row in apart.ranks] == [row.window for row in together.ranks]


# ------------------------------------------------------------------------------------------------------ any timeline


@st.composite
def jobs(draw: st.DrawFn) -> list[list[Row]]:
    """Two to four ranks that do the same three to six collectives in each of one to three steps; all leave one together."""
    n_ranks, n_steps, n = draw(st.integers(2, 4)), draw(st.integers(1, 3)), draw(st.integers(3, 6))
    times = st.lists(st.integers(0, 60), min_size=n_ranks, max_size=n_ranks)
    steps: list[dict[int, list[Collective]]] = [{} for _ in range(n_ranks)]
    for step in range(1, n_steps + 1):
        for place in range(n):
            arrivals, transfer = draw(times), draw(st.integers(1, 30))
            end = 100 * place + max(arrivals) + transfer
            for own, arrival in zip(steps, arrivals, strict=True):
                own.setdefault(step, []).append((100 * place + arrival, end))
    return [rank(at, own) for at, own in enumerate(steps)]


@settings(max_examples=25)
@given(jobs(), st.lists(st.integers(-5000, 5000), min_size=4, max_size=4), st.permutations(range(4)))
def test_what_holds_of_any_job(tmp_path: Path, job: list[list[Row]], shifts: list[int], order: list[int]) -> None:
    (trace,) = read(tmp_path, [row for each in job for row in each])
    found = across([trace])
    assert (found.clock, found.refused) == ("one report", None)
    for row in found.collectives:
        assert min(row.wait_ns) == 0
        assert [length - wait for length, wait in zip(row.length_ns, row.wait_ns, strict=True)] == [row.transfer_ns] * len(job)
        assert row.last is None or (row.arrival_ns is not None and row.arrival_ns[row.last] == max(row.arrival_ns))
    for at, own in enumerate(found.ranks):
        assert own.n_last == last(found).count(at)
    apart = [silent(each) for each in split(trace, [shift * US for shift in shifts])]
    moved = across(apart)
    assert moved.clock == "collective ends"
    assert regardless_of_clocks(moved) == regardless_of_clocks(found)
    assert [row.offset_ns for row in moved.ranks] == [(shift - shifts[0]) * US for shift in shifts[: len(job)]]
    mixed = across([apart[at] for at in order if at < len(job)])
    assert regardless_of_clocks(mixed) == regardless_of_clocks(found)


# ----------------------------------------------------------------------------------------------------- real captures


def captured(captures: Path, *names: str) -> tuple[list[Trace], Analysis, Across]:
    traces = [load.read(captures / name) for name in names]
    found = analyze(traces)
    assert found.across is not None
    return traces, found, found.across


DLRM = [f"kineto_dlrm_8rank/rank{rank}.json.gz" for rank in range(8)]


def test_eight_gpus_of_one_host(captures: Path) -> None:
    """NCCL runs for 1.7 to 11.3 ms on the same eight collectives: nearly all of it is waiting, mostly for rank 7."""
    _, analysis, found = captured(captures, *DLRM)
    assert (found.clock, found.uncertainty_ns, found.refused) == ("session start", FLOOR_NS, None)
    assert found.transfer_ns == 217 * US
    comm = [row.comm_sum_ns for row in analysis.ranks]
    assert [row.wait_ns for row in found.ranks] == [total - 217 * US for total in comm]
    assert (min(comm), max(comm)) == (1746 * US, 11336 * US)
    assert [row.n_last for row in found.ranks] == [0, 0, 0, 0, 1, 2, 0, 4]
    assert last(found)[:4] == [7, 7, 7, 7]


def test_eight_gpus_whose_sessions_are_not_told(captures: Path) -> None:
    """The ends put the clocks within 10 us of where the sessions do, and the waits are the same."""
    traces, _, told = captured(captures, *DLRM)
    found = across([silent(trace) for trace in traces])
    assert (found.clock, found.uncertainty_ns) == ("collective ends", FLOOR_NS)
    assert all(abs(row.offset_ns or 0) <= FLOOR_NS for row in found.ranks)
    assert waits(found) == waits(told)


def test_eight_reports_as_one(captures: Path) -> None:
    traces, _, apart = captured(captures, *DLRM)
    together = across([merged(traces)])
    assert together.clock == "one report"
    assert regardless_of_clocks(together) == regardless_of_clocks(apart)


@pytest.mark.parametrize(
    "name",
    [
        "h200_2rank_delay_cap4.sqlite",
        "2gpu_sendrecv_same_stream.sqlite",
        "cpu_gloo_4rank_delay_cap4.sqlite",
        "cpu_gloo_4rank_delay_cap64.sqlite",
    ],
)
def test_one_report_as_several(captures: Path, name: str) -> None:
    """Only whom the clock lets be named can differ: in one report it needs no alignment."""
    (trace,), _, together = captured(captures, name)
    several = split(trace, [0, 10**9, 2 * 10**9, 3 * 10**9])
    apart = across(several)
    assert (together.clock, apart.clock) == ("one report", "session start")
    assert (apart.transfer_ns, waits(apart)) == (together.transfer_ns, waits(together))
    assert [row.arrival_ns for row in apart.collectives] == [row.arrival_ns for row in together.collectives]
    assert [row.late_ns for row in apart.ranks] == [row.late_ns for row in together.ranks]
    assert [row.window for row in timeline(several).ranks] == [row.window for row in timeline([trace]).ranks]


def test_two_ranks_in_turns_on_one_gpu(captures: Path) -> None:
    _, _, found = captured(captures, "h200_2rank_delay_cap4.sqlite")
    assert (found.transfer_ns, [row.wait_ns for row in found.ranks]) == (43_304_680, [5_764_202, 0])
    assert [(row.bucket, row.size_bytes) for row in found.collectives] == [(at, 4 * 2**20) for at in range(12)]
    assert ([row.n_last for row in found.ranks], last(found)) == ([None, None], [None] * 12)


def test_sends_on_the_compute_stream(captures: Path) -> None:
    _, _, found = captured(captures, "2gpu_sendrecv_same_stream.sqlite")
    assert (found.refused, len(found.collectives)) == (None, 33)
    assert {row.operation for row in found.collectives} == {"SendRecv"}
    assert [row.n_last for row in found.ranks] == [11, 21]


def test_four_gloo_ranks(captures: Path) -> None:
    _, _, one = captured(captures, "cpu_gloo_4rank_delay_cap64.sqlite")
    assert ([row.bucket for row in one.collectives], last(one)) == ([0], [2])
    assert [row.arrival_ns for row in one.collectives] == [[0, 1_343_065, 12_387_526, 5_839_925]]
    _, _, many = captured(captures, "cpu_gloo_4rank_delay_cap4.sqlite")
    assert ([row.bucket for row in many.collectives], many.uncertainty_ns) == ([*range(12)], 0)


def silent(trace: Trace) -> Trace:
    """A report that does not tell when its session started."""
    return replace(trace, report=replace(trace.report, session_start_utc_ns=None))


def split(trace: Trace, starts_ns: Sequence[int]) -> list[Trace]:
    """A report as one for each process that works, whose clock starts so much later."""
    found = []
    for at, process in enumerate(np.unique(trace.operations.process).tolist()):
        operations = trace.operations.take(trace.operations.process == process)
        mine = trace.ranges.process == process
        shift = starts_ns[at]
        columns = {
            name: getattr(trace.ranges, name)[mine] for name in ("process", "thread", "start_ns", "end_ns", "text", "is_pushed")
        }
        ranges = replace(trace.ranges, **columns)
        owner = trace.processes[process]
        window = owner.window and (owner.window[0] - shift, owner.window[1] - shift)
        found.append(
            replace(
                trace,
                report=replace(trace.report, session_start_utc_ns=(trace.report.session_start_utc_ns or 0) + shift),
                processes=(replace(owner, window=window),),
                devices=tuple(replace(device, process=0) for device in trace.devices if device.process == process),
                operations=replace(
                    operations,
                    process=np.zeros_like(operations.process),
                    start_ns=operations.start_ns - shift,
                    end_ns=operations.end_ns - shift,
                    launch_ns=_earlier(operations.launch_ns, shift),
                ),
                ranges=replace(
                    ranges,
                    process=np.zeros_like(ranges.process),
                    start_ns=ranges.start_ns - shift,
                    end_ns=_earlier(ranges.end_ns, shift),
                ),
                overheads=(),
                lost_launches=(),
                waits=(),
                extent=trace.extent and (trace.extent[0] - shift, trace.extent[1] - shift),
            )
        )
    return found


def _earlier(times: Any, shift: int) -> Any:
    return np.where(times == MISSING, MISSING, times - shift)


def merged(traces: Sequence[Trace]) -> Trace:
    """Reports of one clock as one report, process by process."""
    names, texts = (
        [*dict.fromkeys(sum((trace.names for trace in traces), ()))],
        [*dict.fromkeys(sum((t.texts for t in traces), ()))],
    )
    operations = [
        replace(
            trace.operations,
            process=trace.operations.process + at,
            name=np.array([names.index(name) for name in trace.names])[trace.operations.name],
        )
        for at, trace in enumerate(traces)
    ]
    ranges = [
        replace(
            trace.ranges,
            process=trace.ranges.process + at,
            text=np.array([texts.index(text) for text in trace.texts])[trace.ranges.text],
        )
        for at, trace in enumerate(traces)
    ]
    return replace(
        traces[0],
        processes=tuple(trace.processes[0] for trace in traces),
        devices=tuple(replace(device, process=at) for at, trace in enumerate(traces) for device in trace.devices),
        operations=_joined(operations),
        names=tuple(names),
        ranges=_by_start(_joined(ranges)),
        texts=tuple(texts),
        overheads=(),
        lost_launches=(),
        waits=(),
        extent=(min(t.extent[0] for t in traces if t.extent), max(t.extent[1] for t in traces if t.extent)),
    )


def _joined(parts: Sequence[Any]) -> Any:
    return replace(
        parts[0], **{name: np.concatenate([getattr(part, name) for part in parts]) for name in parts[0].__dataclass_fields__}
    )


def _by_start(ranges: Any) -> Any:
    order = np.argsort(ranges.start_ns, kind="stable")
    return replace(ranges, **{name: getattr(ranges, name)[order] for name in ranges.__dataclass_fields__})
