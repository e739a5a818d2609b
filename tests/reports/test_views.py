from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ddpprof.model import Across, Analysis, Warning
from ddpprof.reports import markdown, page, text, views

Make = Callable[[str], Analysis]


def headings(table: views.Table) -> list[str]:
    return [column.title for column in table.columns]


def test_headings_derive_from_the_model(make: Make) -> None:
    shown = headings(views.ranks(make("two_ranks")))
    assert shown[:4] == ["rank", "GPU", "n_compute", "n_comm"]
    assert shown[4:] == [
        *("step (ms)", "compute (ms)", "comm (ms)", "overlap (ms)", "exposed comm (ms)", "tail (ms)", "idle (ms)"),
        "overlap ratio (%)",
    ]


def test_the_spread_of_the_step_is_shown_for_several_steps(make: Make) -> None:
    table = views.ranks(make("many_steps"))
    assert headings(table)[4:7] == ["step (ms)", "step min (ms)", "step max (ms)"]
    assert table.rows[0][4:7] == ("10.000", "9.800", "10.400")


def test_medians_that_do_not_add_up_are_said_to_need_not(make: Make) -> None:
    found = make("many_steps")
    odd = replace(found.ranks[1], exposed_comm_ns=found.ranks[1].exposed_comm_ns + 1)
    assert (views.ranks(found).note, views.numbers(found.ranks[0]).note) == ("", "")
    assert views.ranks(replace(found, ranks=(found.ranks[0], odd))).note == views.numbers(odd).note == views.MEDIANS
    assert views.ranks(replace(found, ranks=(replace(odd, steps=1),))).note == ""
    idle = replace(found.ranks[0], idle_ns=0)
    assert views.ranks(replace(found, ranks=(idle,))).note == views.MEDIANS


def test_the_note_stands_below_the_table_in_every_format(make: Make) -> None:
    found = make("many_steps")
    found = replace(found, ranks=(replace(found.ranks[0], idle_ns=0),))
    shown = text.render(found, width=100).splitlines()
    at = shown.index("  Each number is a median over steps on its own, so those of a row need not add up, as those of one")
    assert (shown[at - 1].split()[0], shown[at + 1 :]) == ("0", ["  step do (overlap + exposed comm = comm)."])
    assert f"|\n\n{views.MEDIANS}\n" in markdown.render(found)
    assert f'</table></div><p class="scope">{views.MEDIANS}</p>' in page.render(found)


def test_a_whole_capture_is_not_called_a_step(make: Make) -> None:
    assert "capture (ms)" in headings(views.ranks(make("no_comm")))
    assert "step (ms)" not in headings(views.ranks(make("no_comm")))


def test_a_cpu_run_has_no_gpu_column(make: Make) -> None:
    assert "GPU" not in headings(views.ranks(make("four_hosts")))


def test_process_and_device_appear_where_the_rank_does_not_tell(make: Make) -> None:
    assert headings(views.ranks(make("unknown_ranks")))[:5] == ["rank", "report", "pid", "device id", "GPU"]
    twice = make("two_ranks")
    twice = replace(twice, ranks=tuple(replace(row, rank=0, pid=9) for row in twice.ranks))
    assert headings(views.ranks(twice))[:3] == ["rank", "pid", "device id"]


def test_unreliable_rows_say_why(make: Make) -> None:
    table = views.ranks(make("unknown_ranks"))
    assert [row[-1] for row in table.rows] == ["", "dropped-rows"]


def test_bucket_times_count_from_the_start_of_their_step(make: Make) -> None:
    """The window starts at 13 ms; without a window the first communication does."""
    found = make("two_ranks")
    launch, start = (column.cells for column in views.communication(found).columns if column.heading in ("launch", "start"))
    assert launch == ("2.000", "7.000", "n/a", "n/a")
    assert start == ("7.901", "70.400", "10.149", "72.654")
    bare = views.communication(replace(found, breakdown=()))
    assert next(column.cells for column in bare.columns if column.heading == "start")[0] == "0.000"


def test_a_column_that_nobody_knows_is_left_out_of_the_buckets(make: Make) -> None:
    found = make("two_ranks")
    rows = tuple(replace(row, size_bytes=None, parameters=None, busbw=None, step=None) for row in found.buckets)
    shown = headings(views.communication(replace(found, buckets=rows, breakdown=())))
    assert not {"size", "params", "busbw (GB/s)", "step"} & set(shown)


def test_steps_left_out_say_why(make: Make) -> None:
    table = views.steps(make("many_steps"))
    assert [row[-1] for row in table.rows] == ["no: step 0", *["yes"] * 5] * 2


def test_every_metric_of_a_rank_has_its_meaning(make: Make) -> None:
    row = make("many_steps").ranks[0]
    table = views.numbers(row)
    by_name = {line[0]: line for line in table.rows}
    assert by_name["overlap_ns"] == (
        *("overlap_ns", "4.000 ms", "4,000,000 ns", "3.900 ms to 4.100 ms", "|C ∩ N|: time with both running", "higher"),
    )
    assert all(line[4] for line in table.rows)


def test_a_meaning_is_told_once(make: Make) -> None:
    tables = views.chosen(make("two_ranks"), per_step=True, buckets=True, kinds=True)
    meanings = views.definitions(tables)
    assert meanings["step"] == "|S|: length of the window"
    assert "rank" not in meanings


def test_tables_of_every_example_are_rectangles(example: Analysis) -> None:
    for table in views.chosen(example, per_step=True, buckets=True, kinds=True):
        assert {len(row) for row in table.rows} <= {len(table.columns)}


def test_who_waits_and_who_is_last_over_what_says_so(make: Make) -> None:
    table = views.across(make("four_hosts"))
    assert headings(table) == ["rank", "n_collectives", "wait (ms)", "arrives last", "late (ms)"]
    assert table.rows[2] == ("2", "48", "2.000", "14 of 48", "-10.115")
    assert table.note == (
        "Paired in part: ranks differ in number of collectives: 12 and 11 (step 7). "
        "The reports' clocks are aligned by the ends of collectives, two ranks to within 812.0 us. "
        "Transfer estimate 8.000 ms; what collectives take beyond it is waiting. "
        "Both are sums over collectives that queue and run side by side on a CPU: they can exceed the step."
    )
    assert "on a CPU" not in views.across(replace(make("four_hosts"), evidence="gpu-kernels")).note


def test_ranks_in_turns_on_one_gpu_have_no_straggler(make: Make) -> None:
    table = views.across(make("two_ranks"))
    assert table.rows[0] == ("0", "12", "5.764", "n/a", "n/a")
    assert "in turns" in table.note


def test_missing_ranks_make_the_transfer_estimate_a_bound(make: Make) -> None:
    found = make("four_hosts")
    missing = replace(found, warnings=(Warning(code="missing-ranks", message="no report of rank 4"),))
    assert "Transfer estimate 8.000 ms at most, as ranks are missing;" in views.across(missing).note


def test_one_clock_to_the_nanosecond_has_no_error_bar(make: Make) -> None:
    found = make("four_hosts")
    assert found.across is not None
    exact = replace(found, across=replace(found.across, clock="one report", uncertainty_ns=0, refused=None))
    assert views.across(exact).note.startswith("All ranks are on the clock of one report. Transfer")
    none = replace(found, across=replace(found.across, clock="none", uncertainty_ns=None, refused=None))
    assert views.across(none).note.startswith("No common clock: who arrives last cannot be told. Transfer")


def test_what_was_refused_is_said_instead_of_a_table(make: Make) -> None:
    why = "the ranks show no step in common"
    refused = Across(clock="none", uncertainty_ns=None, refused=why, ranks=(), collectives=())
    found = replace(make("four_hosts"), across=refused)
    title = "Across ranks, medians over complete steps"
    assert f"\n{title}\n  Not paired: {why}.\n" in text.render(found)
    assert f"\n## {title}\n\nNot paired: {why}.\n" in markdown.render(found)
    assert f"<h2>{title}</h2><p>Not paired: {why}.</p>" in page.render(found)


def test_nothing_is_said_across_ranks_where_one_communicates(make: Make) -> None:
    found = make("four_hosts")
    alone = replace(found, ranks=(found.ranks[0], replace(found.ranks[1], n_comm=0)))
    assert [table.title for table in views.chosen(found)][1] == "Across ranks, medians over complete steps"
    assert len(views.chosen(alone)) == 1
