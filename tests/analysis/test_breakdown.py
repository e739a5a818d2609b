"""Drawn timelines, built and read and measured, give the oracle's numbers for every (process, device, step)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nsight import GEMM, NCCL, SPIN, G, K, M, N, Row, S, build, ns
from oracle import Interval, of_rows, oracle_metrics, timelines

from ddpprof.analysis import assemble, breakdown, job, load
from ddpprof.analysis.breakdown import METRICS
from ddpprof.analysis.part import Options, measure
from ddpprof.errors import InputError
from ddpprof.model import MISSING, Operations, Trace

Key = tuple[int, int, int | None]

through_a_file = settings(max_examples=25)
drawn = timelines().map(lambda rows: [*rows, K(0, 7, 0, "0.003")])
"""A report of copies alone is refused: there is a kernel in each."""


def measured(path: Path, **options: Any) -> dict[Key, dict[str, Any]]:
    """All columns of each (pid, device, step number) of a report."""
    part = measure(load.read(path), Options(**options))
    return columns(part.trace, part.measured, part.windows)


def columns(trace: Trace, found: breakdown.Measured, windows: breakdown.Windows) -> dict[Key, dict[str, Any]]:
    return {
        (trace.processes[process].pid, device, None if step == MISSING else step): breakdown.rows(found, at)
        for at, (process, device, step) in enumerate(
            zip(windows.process.tolist(), windows.device.tolist(), windows.step.tolist(), strict=True)
        )
    }


def metrics(row: dict[str, Any], but: str = "") -> dict[str, Any]:
    return {name: row[name] for name in METRICS if name != but}


# -- whole captures


@through_a_file
@given(drawn)
def test_whole_capture_equals_the_oracle(tmp_path: Path, rows: list[Row]) -> None:
    found = measured(build(tmp_path / "drawn.sqlite", rows))
    expected = {(pid, dev, None): row for (pid, dev), row in of_rows(rows).items()}
    assert {key: metrics(row, "tail_ns") for key, row in found.items()} == {
        key: metrics(row, "tail_ns") for key, row in expected.items()
    }
    for key, row in found.items():
        assert row["n_compute"] + row["n_comm"] == sum((r.pid, r.dev) == key[:2] for r in rows if isinstance(r, K))
        assert row["n_memory"] == sum((r.pid, r.dev) == key[:2] for r in rows if isinstance(r, M | S))


@through_a_file
@given(drawn, st.integers(0, 99))
def test_the_order_of_rows_says_nothing(tmp_path: Path, rows: list[Row], seed: int) -> None:
    in_order = measured(build(tmp_path / "drawn.sqlite", rows))
    assert measured(build(tmp_path / "drawn.sqlite", rows, shuffle=seed)) == in_order


# -- steps


class Stepped(NamedTuple):
    """Work launched in, before, between and after steps; ``steps`` are the host ranges (us) of each process by number."""

    rows: list[Row]
    steps: dict[int, dict[int, Interval]]
    backward: dict[int, list[Interval]]


@st.composite
def stepped(draw: st.DrawFn) -> Stepped:
    steps: dict[int, dict[int, Interval]] = {}
    backward: dict[int, list[Interval]] = {}
    rows: list[Row] = []
    for pid in draw(st.sampled_from([(100,), (100, 101)])):
        edges = draw(st.lists(st.integers(0, 40), min_size=2, max_size=6, unique=True).map(sorted))
        steps[pid] = dict(enumerate(zip(edges[0::2], edges[1::2], strict=False), 1))
        rows += [N(start, end, f"step/{number}", pid, "ddpprof") for number, (start, end) in steps[pid].items()]
        backward[pid] = [
            (middle, end) for start, end in steps[pid].values() if draw(st.booleans()) and (middle := (start + end) // 2) < end
        ]
        rows += [N(start, end, "backward", pid, "ddpprof") for start, end in backward[pid]]
        for _ in range(draw(st.integers(1, 10))):
            launch = draw(st.none() | st.integers(-3, 45))
            start = draw(st.integers(-10, 60))
            where = (draw(st.sampled_from([0, 1])), draw(st.sampled_from([7, 16])), start, start + draw(st.integers(1, 20)))
            call = {
                "launch": None if launch is None else (launch, Decimal(launch) + Decimal("0.5")),
                "thread": draw(st.sampled_from([0, 2])),
            }
            kinds: list[Row] = [K(*where, GEMM, pid, **call), K(*where, NCCL, pid, **call), M(*where, "DtoH", pid, **call)]  # type: ignore[arg-type]
            rows.append(draw(st.sampled_from(kinds)))
    rows.append(K(0, 7, 0, 1, GEMM, 100, launch=(-9, -8)))
    return Stepped(rows, steps, backward)


def launch_of(row: Any) -> int:
    return int(row.launch[0])


def spans(work: Iterable[Any]) -> list[Interval]:
    return [(ns(row.start), ns(row.end)) for row in work]


def by_step(drawn: Stepped) -> dict[Key, list[Any]]:
    """The work of each (pid, device, step), attributed as the definitions say."""
    found: defaultdict[Key, list[Any]] = defaultdict(list)
    for row in drawn.rows:
        if isinstance(row, K | M) and row.launch is not None:
            for number, (start, end) in drawn.steps[row.pid].items():
                if start <= launch_of(row) < end:
                    found[row.pid, row.dev, number].append(row)
    return found


def expected_metrics(work: Sequence[Any], backward: Iterable[Interval]) -> dict[str, Any]:
    compute = [row for row in work if isinstance(row, K) and row.name == GEMM]
    comm = [row for row in work if isinstance(row, K) and row.name == NCCL]
    last = [row for row in compute if any(start <= launch_of(row) < end for start, end in backward)]
    if not last and comm:
        last = [row for row in compute if launch_of(row) < max(map(launch_of, comm))]
    window = (min(ns(row.start) for row in work), max(ns(row.end) for row in work))
    copies = [row for row in work if isinstance(row, M)]
    last_end = max((end for _, end in spans(last)), default=None)
    return oracle_metrics(spans(compute), spans(comm), spans(copies), window, last_backward_end=last_end)


@settings(max_examples=60)
@given(stepped())
def test_every_step_equals_the_oracle(tmp_path: Path, drawn: Stepped) -> None:
    part = measure(load.read(build(tmp_path / "drawn.sqlite", drawn.rows)), Options())
    found = columns(part.trace, part.measured, part.windows)
    expected = {key: expected_metrics(work, drawn.backward[key[0]]) for key, work in by_step(drawn).items()}
    assert {key: metrics(row) for key, row in found.items()} == expected
    n_placed = sum(len(work) for work in by_step(drawn).values())
    assert int((part.windows.of_operation >= 0).sum()) == n_placed
    for process, n_empty in enumerate(part.windows.empty_steps):
        pid = part.trace.processes[process].pid
        busy = {step for owner, _, step in expected if owner == pid}
        assert n_empty == len(drawn.steps[pid]) - len(busy)


@through_a_file
@given(stepped())
def test_identities(tmp_path: Path, drawn: Stepped) -> None:
    for options in ({}, {"whole_capture": True}):
        for row in measured(build(tmp_path / "drawn.sqlite", drawn.rows), **options).values():
            parts = ("compute_only_ns", "overlap_ns", "exposed_comm_ns", "memory_only_ns", "idle_ns")
            assert sum(row[part] for part in parts) == row["step_ns"] == row["end_ns"] - row["start_ns"]
            assert row["overlap_ns"] + row["exposed_comm_ns"] == row["comm_ns"]
            assert row["compute_ns"] <= (row["compute_span_ns"] or 0)
            assert row["comm_ns"] <= min(row["comm_span_ns"] or 0, row["comm_sum_ns"])


def test_a_launch_on_any_thread_of_the_process_counts_and_of_no_other(report: Path) -> None:
    build(
        report,
        """
        process 100
        N 0..100 "step/1"
        K dev0 s7  150..160 GEMM launch=10..11 thread=2
        K dev0 s16 150..170 NCCL launch=99.999..101 thread=3
        K dev0 s7  500..510 GEMM launch=100..101
        process 200
        K dev0 s7  20..30 GEMM launch=15..16
        """,
    )
    found = measured(report)
    assert {key: (row["step_ns"], row["overlap_ns"]) for key, row in found.items()} == {
        (100, 0, 1): (20_000, 10_000),
        (200, 0, None): (10_000, 0),
    }


def test_a_step_in_the_middle_without_work_is_counted(report: Path) -> None:
    build(
        report,
        """
        N 0..10 "step/1"
        N 10..20 "step/2"
        N 20..30 "step/3"
        K dev0 s7 0..5 GEMM launch=1..2
        K dev0 s7 25..26 GEMM launch=21..22
        """,
    )
    windows = breakdown.find_windows(load.read(report))
    assert (windows.step.tolist(), windows.empty_steps) == ([1, 3], (1,))


# -- tail


@pytest.mark.parametrize(
    ("backward", "tail_us"),
    [('N 0..25 "backward"', 30), ("", 10), ('N 90..99 "backward"', 10), ('N 0..open "backward"', 0)],
)
def test_tail(report: Path, backward: str, tail_us: int) -> None:
    """::

    launch   10    20    30    40              the optimizer's launch comes after the last comm's
    compute  |=20-50=|  |50..70=|   |opt 100..120|
    comm              |---60..80---|
    """
    build(
        report,
        f"""
        N 0..99 "step/1"
        {backward}
        K dev0 s7  20..50 GEMM launch=10..11
        K dev0 s7  50..70 GEMM launch=26..27
        K dev0 s16 60..80 NCCL launch=30..31 thread=2
        K dev0 s7  100..120 GEMM launch=40..41
        """,
    )
    assert measured(report)[100, 0, 1]["tail_ns"] == tail_us * 1000


def test_no_tail_without_comm_or_without_backward_compute(report: Path) -> None:
    build(report, 'N 0..99 "step/1"\nK dev0 s7 20..50 GEMM launch=10..11')
    assert measured(report)[100, 0, 1]["tail_ns"] is None
    build(report, 'N 0..99 "step/1"\nK dev0 s7 20..50 GEMM launch=10..11\nK dev0 s16 20..50 NCCL launch=9..10')
    assert measured(report)[100, 0, 1]["tail_ns"] is None


def test_launched_at_the_same_time_is_not_before(report: Path) -> None:
    """Nor does compute count as backward that another thread launched just as the last communication was."""
    build(
        report,
        """
        K dev0 s7  20..50 GEMM launch=10..11
        K dev0 s7  50..90 GEMM launch=30..31
        K dev0 s16 60..80 NCCL launch=30..31 thread=2
        """,
    )
    row = measured(report)[100, 0, None]
    assert (row["tail_ns"], row["n_before_last_compute"]) == (30_000, 0)


# -- focus


@through_a_file
@given(drawn, st.data())
def test_focus_narrows_compute_and_nothing_else(tmp_path: Path, rows: list[Row], data: st.DataObject) -> None:
    spun = [
        replace(row, name=SPIN) if isinstance(row, K) and row.name == GEMM and data.draw(st.booleans()) else row for row in rows
    ]
    part = measure(load.read(build(tmp_path / "drawn.sqlite", spun)), Options(compute="spin_KERNEL"))
    assert part.focused is not None
    all_compute, focus = (columns(part.trace, found, part.windows) for found in (part.measured, part.focused))
    for (pid, dev, _), row in focus.items():
        mine = [r for r in spun if isinstance(r, K) and (r.pid, r.dev) == (pid, dev)]
        spin, comm = ([(ns(r.start), ns(r.end)) for r in mine if r.name == name] for name in (SPIN, NCCL))
        whole = all_compute[pid, dev, None]
        expected = oracle_metrics(spin, comm, [], (whole["start_ns"], whole["end_ns"]))
        for name in ("compute_ns", "compute_span_ns", "overlap_ns", "comm_ns", "step_ns", "exposed_comm_ns"):
            assert row[name] == expected[name]
        assert row["n_compute"] == len(spin)


def test_comm_launched_before_the_last_compute(report: Path) -> None:
    build(
        report,
        """
        N 0..99 "step/1"
        N 0..50 "backward"
        K dev0 s16 60..70 NCCL launch=10..11
        K dev0 s7  60..70 GEMM launch=20..21
        K dev0 s16 70..80 NCCL launch=30..31
        K dev0 s7  80..81 SPIN launch=40..41
        K dev0 s16 80..90 NCCL launch=45..46
        K dev0 s7  90..99 GEMM launch=60..61
        """,
    )
    part = measure(load.read(report), Options(compute="gemm"))
    assert part.focused is not None
    assert breakdown.rows(part.measured, 0)["n_before_last_compute"] == 2
    assert breakdown.rows(part.focused, 0)["n_before_last_compute"] == 3


def test_order_is_not_told_when_a_launch_is_not_known(report: Path) -> None:
    build(report, "K dev0 s16 60..70 NCCL\nK dev0 s7 60..70 GEMM launch=20..21")
    assert measured(report)[100, 0, None]["n_before_last_compute"] is None


# -- what is in no set


def test_graphs_are_in_no_set_and_in_no_window(report: Path) -> None:
    build(report, [K(0, 7, 10, 20), G(0, 7, 50, 900, launch=(1, 2))])
    row = measured(report)[100, 0, None]
    assert (row["step_ns"], row["idle_ns"], row["n_compute"]) == (10_000, 0, 1)


def test_a_device_with_graphs_alone_has_an_empty_window(report: Path) -> None:
    build(report, [G(0, 7, 50, 900, launch=(1, 2))])
    row = measured(report)[100, 0, None]
    assert {name: row[name] for name in METRICS if row[name]} == {}


def test_sums_that_no_int64_holds_are_refused(report: Path) -> None:
    """Each of the rows could be true, 8,192 of them side by side could not."""
    trace = load.read(build(report, [K(0, 7, 0, 10)]))
    n = 8192
    times = {"start_ns": np.zeros(n, np.int64), "end_ns": np.full(n, assemble.LONGEST_NS - 1)}
    rest = {
        name: np.zeros(n, np.int64) for name in ("process", "device", "stream", "launch_ns", "launch_thread", "name", "source")
    }
    long = replace(trace, operations=Operations(**times, **rest))
    with pytest.raises(InputError, match=r"report\.sqlite: its times add up to more than a century"):
        job.analyze([long])


def test_medians_are_the_lower_middle_and_none_where_nothing_is() -> None:
    rows = [{"a": value, "b": None} for value in (4, 1, None, 3, 2)]
    assert breakdown.medians(rows, ["a", "b"]) == {"a": 2, "b": None}
    assert breakdown.spread(rows, ["a", "b"]) == {"a": (1, 4)}
