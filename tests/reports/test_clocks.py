from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ddpprof.model import Analysis, ClockRow, LoggerRecord, Records
from ddpprof.reports import clocks

Make = Callable[[str], Analysis]


def test_a_rank_is_a_row_with_its_phases_side_by_side(make: Make) -> None:
    table = clocks.iterations(make("two_ranks").timings)
    assert [column.heading for column in table.columns] == [
        *("rank", "iterations", "step median", "step P95"),
        *("backward median", "backward host median", "optimizer host median", "clock"),
    ]
    assert table.rows[0] == ("0", "3", "72.000", "73.000", "68.000", "7.566", "0.217", "cuda-event")
    assert [row[0] for row in table.rows] == ["0", "1"]


def test_of_jobs_a_phase_is_a_row_with_its_own_clock(make: Make) -> None:
    step, _, _, optimizer, *_ = make("two_ranks").timings
    table = clocks.of_jobs((replace(step, caution="only 3 iterations"), optimizer))
    assert table.rows == [
        ("delay_cap4", "step", "cuda-event", "3", "72.000", "73.000", "71.000", "73.000", "1.000", "no"),
        ("delay_cap4", "optimizer host", "wall", "3", "0.217", "0.217", "0.217", "0.217", "0.000", "yes"),
    ]


def test_no_iterations_are_no_rows() -> None:
    assert clocks.iterations(()).rows == []
    assert clocks.of_jobs(()).rows == []


def test_three_clocks_have_columns_of_their_own() -> None:
    row = ClockRow(
        case="delay_cap4",
        rank=2,
        hook_ready_ns=1_000_000,
        hook_launch_ns=70_000_000,
        logger_compute_ns=79_000_000,
        logger_comm_ns=None,
        logger_overlap_ns=62_946_000,
        timeline_compute_ns=78_000_000,
        timeline_comm_ns=30_000_000,
        timeline_overlap_ns=1_228_953,
    )
    table = clocks.apart((row,))
    assert [column.title for column in table.columns][:6] == [
        *("case", "rank", "hook ready (ms)", "hook launch (ms)", "logger compute (ms)", "logger comm (ms)"),
    ]
    assert table.rows == [("delay_cap4", "2", "1.000", "70.000", "79.000", "n/a", "62.946", "78.000", "30.000", "1.229")]


def test_hook_and_timeline_each_count_from_their_own_zero(make: Make, records: Records) -> None:
    """The step's window starts at 13 ms of the report's clock."""
    table = clocks.hook_and_timeline(make("two_ranks"), records)
    assert table is not None
    assert table.rows[0] == ("0", "4", "0", "4.00 MiB", "1.000", "1.100", "2.000", "7.901", "12.152")
    assert table.rows[2] == ("1", "4", "0", "4.00 MiB", "1.000", "1.100", "n/a", "10.149", "14.204")


def test_a_bucket_the_hook_did_not_see_is_missing_there(make: Make, records: Records) -> None:
    table = clocks.hook_and_timeline(make("two_ranks"), replace(records, buckets=records.buckets[:1]))
    assert table is not None
    assert [row[4] for row in table.rows] == ["1.000", "n/a", "n/a", "n/a"]


def test_no_common_step_is_no_table(make: Make, records: Records) -> None:
    other = tuple(replace(hook, step=9) for hook in records.buckets)
    assert clocks.hook_and_timeline(make("two_ranks"), replace(records, buckets=other)) is None
    assert clocks.hook_and_timeline(make("nothing"), records) is None


def test_of_the_logger_only_times_are_shown_in_its_last_reading() -> None:
    """What else it holds, hosts and environment among it, is nobody's business."""
    early = LoggerRecord(rank=0, step=3, fields={"forward_compute_time": 1})
    late = LoggerRecord(rank=0, step=4, fields={"forward_compute_time": 2_000, "master_addr": "example", "iteration": 4})
    table = clocks.logger(Records(loggers=(early, late)))
    assert table is not None
    assert table.title == "DDP logger, read after step 4"
    assert table.rows == [("forward_compute_time", "2.0 us", "2,000 ns")]
    assert clocks.logger(Records()) is None
