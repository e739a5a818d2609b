"""``ddpprof check``: what holds, what does not, what cannot be told, and how CI sees it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import captured
import pytest
from nsight import GEMM, NCCL, G, K, P, build


def ranks_of(*tails_ns: int) -> str:
    """A job with a rank for each tail: backward compute 0..3 ms, communication from 1 ms to as long after its end."""
    return "".join(
        f"""
        process {100 + rank} rank={rank} world={len(tails_ns)}
        K dev0 s7  0..3000    GEMM launch=0..1
        K dev0 s16 1000..{(3_000_000 + tail) / 1000} NCCL launch=2..3
        """
        for rank, tail in enumerate(tails_ns)
    )


@pytest.fixture
def one(report: Path) -> Path:
    """One rank: compute 3 ms, communication 4 ms, of it 2 ms beside compute; tail 2 ms."""
    return build(report, ranks_of(2_000_000))


# --------------------------------------------------------------------------------------------------------- expressions


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("overlap>0", True),
        ("overlap==0", False),
        ("overlap_ns == 2000000", True),
        ("overlap_ns!=2000000", False),
        ("overlap_us>2000", False),
        ("overlap_us>=2000", True),
        ("overlap_ms<2.000001", True),
        ("overlap_ms<2", False),
        ("overlap_s<=0.002", True),
        ("overlap_ratio>=0.5", True),
        ("overlap_ratio>0.5", False),
        ("tail_ms<=2", True),
        ("tail_ms<2", False),
        ("exposed_comm_ms==2", True),
        ("idle<=0", True),
        ("n_compute==1", True),
        ("n_comm!=1", False),
        ("buckets==1", True),
        ("launched_early==0", True),
        ("step_ms>-1", True),
    ],
)
def test_every_operator_and_unit_is_exact(cli, one, expression, holds):
    found = cli("check", one, "--expect", expression)
    assert (found.status, found.err) == (0 if holds else 3, "")
    assert (
        found.out.splitlines()[-1]
        == (f"ok: {expression} on" if holds else f"not ok: {expression} does not hold on") + " 1 of 1 ranks"
    )


@pytest.mark.parametrize(("tail_ns", "status"), [(2_000_000, 0), (2_000_001, 3)])
def test_a_nanosecond_decides(cli, report, tail_ns, status):
    found = cli("check", build(report, ranks_of(tail_ns)), "--expect", "tail_ms<=2")
    assert found.status == status
    assert found.out.startswith("ok: " if status == 0 else "FAIL  rank 0: tail_ms<=2: tail_ms = 2.000001\nnot ok: ")


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("speed>1", "no quantity 'speed'"),
        ("overlap_ratio_ms>1", "no quantity 'overlap_ratio_ms'"),
        ("tail<=1", "1 of which unit?"),
        ("overlap_ratio>=60", "a ratio is from 0 to 1"),
        ("overlap", "not NAME OPERATOR NUMBER"),
        ("overlap=>1", "not NAME OPERATOR NUMBER"),
        ("overlap>zero", "not NAME OPERATOR NUMBER"),
        ("overlap>1ms", "not NAME OPERATOR NUMBER"),
        ("", "not NAME OPERATOR NUMBER"),
    ],
)
def test_what_cannot_be_asked_is_status_2_before_anything_is_read(cli, expression, what):
    found = cli("check", "not-there.sqlite", "--expect", expression)
    assert (found.status, found.out, len(found.err.splitlines())) == (2, "", 2)
    assert what in found.err


def test_nothing_expected_is_status_2(cli, one):
    found = cli("check", one)
    assert (found.status, found.out) == (2, "")
    assert found.err == ("ddpprof: nothing is expected\nGive --expect 'overlap>0', or --case with one of `ddpprof cases`.\n")


def test_compute_is_what_the_expectations_are_about(cli, report):
    path = build(report, [K(0, 7, 0, 100, GEMM), K(0, 7, 200, 300, "spin_kernel"), K(0, 16, 50, 150, NCCL)])
    assert cli("check", path, "--expect", "overlap>0").status == 0
    assert cli("check", path, "--expect", "overlap==0", "--compute", "spin").status == 0
    assert cli("check", path, "--expect", "n_comm==2", "--comm", "spin").status == 0


# -------------------------------------------------------------------------------------------------------- what is told


def test_one_rank_that_fails_is_one_line_and_status_3(cli, report):
    path = build(report, ranks_of(2_000_000, 2_500_000))
    found = cli("check", path, "--expect", "tail_ms<=2", "--expect", "overlap>0", "--expect", "exposed_comm_ms<=2")
    assert (found.status, found.err) == (3, "")
    assert found.out.splitlines() == [
        "FAIL  rank 1: tail_ms<=2: tail_ms = 2.5; exposed_comm_ms<=2: exposed_comm_ms = 2.5",
        "not ok: tail_ms<=2 does not hold on 1 of 2 ranks, exposed_comm_ms<=2 does not hold on 1 of 2 ranks",
    ]


def test_two_ranks_that_fail_are_two_lines(cli, report):
    found = cli("check", build(report, ranks_of(2_500_000, 2_500_000)), "--expect", "tail_ms<=2")
    assert found.status == 3
    assert [line.split(":")[0] for line in found.out.splitlines()] == ["FAIL  rank 0", "FAIL  rank 1", "not ok"]


UNRELIABLE = """
    process 100 rank=0 world=2
    process 101 rank=1 world=2
    O 10..20 pid=100
    K dev0 s7  0..100  GEMM launch=0..1 pid=100
    K dev0 s16 50..150 NCCL launch=2..3 pid=100
    K dev0 s7  0..100  GEMM launch=0..1 pid=101
    K dev0 s16 50..150 NCCL launch=2..3 pid=101
"""


@pytest.mark.parametrize(("expression", "status"), [("overlap>0", 0), ("overlap==0", 3)])
def test_what_makes_the_numbers_unreliable_is_told_beside_the_verdict(cli, report, tmp_path, expression, status):
    """The profiler's own work lies in the window of rank 0."""
    found = cli("check", build(report, UNRELIABLE), "--expect", expression, "--junit", tmp_path / "junit.xml")
    assert (found.status, found.err) == (status, "")
    line = "numbers unreliable: profiler-overhead: the profiler itself worked inside a measured step"
    word = "ok: overlap>0 on 2" if status == 0 else "not ok: overlap==0 does not hold on 2"
    assert found.out.splitlines()[-2:] == [f"CAUTION  rank 0: {line}", f"{word} of 2 ranks; numbers unreliable on 1"]
    first, second = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (first.findtext("system-out"), second.find("system-out")) == (line, None)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([K(0, 7, 0, 100)], "no communication in the window"),
        ([K(0, 16, 50, 150, NCCL)], "no compute in the window"),
        ([K(0, 7, 0, 100), K(0, 16, 50, 150, NCCL), G(0, 7, 200, 300)], "CUDA graphs hide kernels"),
    ],
    ids=["no communication", "no compute", "opaque graphs"],
)
def test_what_cannot_be_told_is_status_1(cli, report, rows, why):
    found = cli("check", build(report, rows), "--expect", "overlap>0")
    assert (found.status, found.err) == (1, "")
    assert found.out.startswith("CANNOT TELL  process 100: overlap>0: ")
    assert why in found.out


def test_a_missing_rank_is_status_1_and_a_failing_one_beside_it_3(cli, report):
    path = build(report, [P(101, rank=1, world=3), K(0, 7, 0, 100, GEMM, 101), K(0, 16, 50, 150, NCCL, 101)])
    held = cli("check", path, "--expect", "overlap>0")
    assert held.status == 1
    assert held.out.splitlines() == [
        "CANNOT TELL  rank 0: overlap>0: not in the input",
        "CANNOT TELL  rank 2: overlap>0: not in the input",
        "not ok: overlap>0 cannot be told on 2 of 3 ranks",
    ]
    failed = cli("check", path, "--expect", "overlap==0")
    assert failed.status == 3
    assert "FAIL  rank 1: overlap==0: overlap_ns = 50,000" in failed.out


def test_a_folder_with_a_broken_report_cannot_be_told(cli, one):
    (one.parent / "broken.sqlite").write_text("no database")
    found = cli("check", one.parent, "--expect", "overlap>0")
    assert (found.status, found.out) == (1, "")
    assert "broken.sqlite: not an SQLite file" in found.err


# --------------------------------------------------------------------------------------------------------------- cases


@pytest.mark.parametrize("case", ["delay_cap4", "delay_cap64"])
def test_a_run_folder_brings_its_case(cli, tmp_path, case):
    run = captured.run_folder(tmp_path / "run", case)
    n, early, sign = (12, 11, ">") if case == "delay_cap4" else (1, 0, "==")
    expected = f"buckets=={n}, n_compute==12, n_comm=={n}, launched_early=={early}, overlap{sign}0"
    assert cli("check", run.path) == (0, f"ok: {expected} on 2 of 2 ranks\n", "")


def test_a_case_can_be_named_for_any_report(cli, tmp_path):
    path = captured.report(tmp_path / "a.sqlite", "delay_cap4")
    assert cli("check", path, "--case", "delay_cap4").status == 0
    found = cli("check", path, "--case", "delay_cap64")
    assert found.status == 3
    assert "FAIL  rank 0: buckets==1: buckets = 12; n_comm==1: n_comm = 12; launched_early==0: launched_early = 11" in found.out


def test_the_named_case_wins_over_that_of_the_folder(cli, tmp_path):
    run = captured.run_folder(tmp_path / "run", "delay_cap4")
    assert cli("check", run.path, "--case", "delay_cap64").status == 3


def test_an_expectation_of_ones_own_is_about_the_numbers_that_analyze_shows_first(cli, tmp_path):
    """All 24 compute intervals; the 12 delays that the case is about are asked for by name."""
    run = captured.run_folder(tmp_path / "run", "delay_cap4")
    assert cli("check", run.path, "--expect", "n_compute==24").out == "ok: n_compute==24 on 2 of 2 ranks\n"
    assert cli("check", run.path, "--expect", "n_compute==12", "--compute", "delay").status == 0


def test_ones_own_and_the_cases_expectations_are_each_about_their_own_compute(cli, tmp_path):
    run = captured.run_folder(tmp_path / "run", "delay_cap4")
    assert cli("check", run.path, "--case", "delay_cap4", "--expect", "n_compute==24").status == 0


def test_a_missing_folder_is_told_as_missing(cli, tmp_path):
    found = cli("check", tmp_path / "nope")
    assert (found.status, found.out) == (1, "")
    assert "nope: no such report or run folder" in found.err


def test_a_compute_that_is_nowhere_cannot_be_told(cli, tmp_path):
    run = captured.run_folder(tmp_path / "run", "delay_cap4")
    found = cli("check", run.path, "--expect", "overlap==0", "--compute", "nothing_like_it")
    assert found.status == 1
    assert "CANNOT TELL  rank 0: overlap==0: --compute names no compute in the input" in found.out


def test_an_unknown_case_offers_the_nearest(cli, one):
    found = cli("check", one, "--case", "delay_cap5")
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith("ddpprof: no case 'delay_cap5'\nDid you mean delay_cap4 or delay_cap64")


def test_of_a_run_with_another_cap_nothing_is_known(cli, tmp_path):
    run = captured.run_folder(tmp_path / "run", "delay_cap4", bucket_cap_mb=8)
    found = cli("check", run.path)
    assert (found.status, found.out) == (2, "")
    assert "nothing is expected" in found.err
    assert cli("check", run.path, "--expect", "buckets==12").status == 0


def test_the_run_that_must_fail_is_checked_by_its_records(cli, tmp_path):
    run = captured.run_folder(tmp_path / "run", "unused_undetected")
    assert cli("check", run.path) == (0, "ok: expected failure on 2 of 2 ranks\n", "")
    run.records(1).unlink()
    assert cli("check", run.path) == (
        3,
        "FAIL  rank 1: expected failure: no failure recorded\nnot ok: expected failure does not hold on 1 of 2 ranks\n",
        "",
    )


@pytest.mark.parametrize("ranks", [0, None, "2"])
def test_a_run_that_must_fail_and_tells_no_ranks_has_not_passed(cli, tmp_path, ranks):
    run = captured.run_folder(tmp_path / "run", "unused_undetected", ranks=ranks)
    found = cli("check", run.path)
    assert (found.status, found.out) == (1, "")
    assert "manifest.json: does not tell how many ranks ran" in found.err


def test_a_damaged_manifest_is_an_error(cli, tmp_path):
    run = captured.run_folder(tmp_path / "run", "delay_cap4")
    run.manifest.write_text('{"case": "delay')
    found = cli("check", run.path)
    assert (found.status, found.out) == (1, "")
    assert f"{run.manifest}: cannot be read" in found.err


# --------------------------------------------------------------------------------------------------------------- junit


def test_junit_has_a_case_for_each_rank_and_expectation(cli, report, tmp_path):
    path = build(report, ranks_of(2_000_000, 2_500_000))
    found = cli("check", path, "--expect", "tail_ms<=2", "--expect", "overlap>0", "--junit", tmp_path / "out" / "junit.xml")
    assert found.status == 3
    suite = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot()
    assert (suite.tag, suite.attrib) == (
        "testsuite",
        {"name": "ddpprof check", "tests": "4", "failures": "1", "errors": "0"},
    )
    assert [(case.get("classname"), case.get("name"), [child.tag for child in case]) for case in suite] == [
        ("rank 0", "tail_ms<=2", []),
        ("rank 0", "overlap>0", []),
        ("rank 1", "tail_ms<=2", ["failure"]),
        ("rank 1", "overlap>0", []),
    ]
    assert suite[2][0].get("message") == "tail_ms = 2.5"


def test_junit_calls_what_cannot_be_told_an_error(cli, report, tmp_path):
    build(report, [K(0, 7, 0, 100)])
    assert cli("check", report, "--expect", "overlap>0", "--junit", tmp_path / "junit.xml").status == 1
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("failures"), suite.get("errors"), suite[0][0].tag) == ("0", "1", "error")


def test_junit_that_cannot_be_written_is_an_error(cli, one):
    found = cli("check", one, "--expect", "overlap>0", "--junit", one / "junit.xml")
    assert (found.status, found.out) == (1, "")
    assert "junit.xml: cannot be written" in found.err


def test_junit_never_overwrites_the_input(cli, one):
    before = one.read_bytes()
    found = cli("check", one, "--expect", "overlap>0", "--junit", one)
    assert (found.status, found.out) == (2, "")
    assert f"{one}: exists and is not JUnit XML" in found.err
    assert one.read_bytes() == before
