from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from ddpprof.errors import UsageError
from ddpprof.model import CAUSES
from ddpprof.workloads.cases import CASES, GROUPS, MIB, STUDY, find

#   name            parameters  MiB cap  after the rebuild  rebuilt overlap
TABLE = [
    ("fine1_cap4", 48, 1, 4, [4] * 12, True, None),
    ("coarse4_cap4", 12, 4, 4, [4] * 12, True, None),
    ("coarse4_cap16", 12, 4, 16, [16, 16, 16], True, None),
    ("coarse4_cap64", 12, 4, 64, [48], True, None),
    ("delay_cap4", 12, 4, 4, [4] * 12, True, "positive"),
    ("delay_cap64", 12, 4, 64, [48], True, "zero"),
    ("unused_dynamic", 13, 4, 16, [4, 16, 16, 16], False, None),
    ("unused_static", 13, 4, 16, [16, 16, 16, 4], True, None),
]


@pytest.mark.parametrize(("name", "parameters", "size", "cap", "buckets", "is_rebuilt", "overlap"), TABLE)
def test_cases_are_those_of_the_experiment(name, parameters, size, cap, buckets, is_rebuilt, overlap):
    case = find(name)
    assert (case.parameters, case.parameter_mb, case.bucket_cap_mb) == (parameters, size, cap)
    assert case.rebuilt_bytes == tuple(mib * MIB for mib in buckets)
    assert (case.is_rebuilt, case.overlap, case.failure) == (is_rebuilt, overlap, None)


def test_the_ninth_must_fail():
    case = CASES["unused_undetected"]
    assert list(STUDY) == [*(row[0] for row in TABLE), "unused_undetected"]
    assert case.failure == "Expected to have finished reduction in the prior iteration"
    assert (case.find_unused_parameters, case.static_graph, case.rebuilt_bytes) == (False, False, None)


def test_every_case_of_the_study_trains_48_mib_and_captures_one_step_of_one_pass():
    study = [CASES[name] for name in STUDY]
    assert {case.used * case.parameter_mb for case in study} == {48}
    assert {(case.captured_steps, case.passes, case.cause, case.data_ms) for case in study} == {(1, 1, None, 0)}
    assert all(tuple(case.order) == tuple(range(12 if case.unused else case.parameters)) for case in study)


def test_the_delay_of_the_study_is_that_of_each_branch():
    assert {branch.delay_ms for branch in CASES["delay_cap4"].branches} == {10}
    assert {name for name in STUDY if CASES[name].is_delayed} == {"delay_cap4", "delay_cap64"}


def test_four_ranks_and_ten_steps_make_1960_bucket_rows():
    assert sum(len(CASES[name].rebuilt_bytes or ()) for name in STUDY) * 4 * 10 == 1960


def test_the_first_step_has_one_bucket_unless_ddp_looks_for_unused_parameters():
    initial = {name: CASES[name].initial_bytes for name in STUDY}
    assert initial.pop("unused_dynamic") == (4 * MIB, 16 * MIB, 16 * MIB, 16 * MIB)
    assert initial.pop("unused_static") == initial.pop("unused_undetected") == (54_525_952,)
    assert set(initial.values()) == {(50_331_648,)}


def test_focus_is_the_delay():
    case = CASES["delay_cap4"]
    assert (case.focus("gpu-kernels"), case.focus("host-ranges")) == ("spin_kernel", "delay")
    assert CASES["coarse4_cap4"].focus("gpu-kernels") is None


def test_there_is_a_case_for_every_cause_and_one_that_has_none():
    causes = [case for case in CASES.values() if case.group == "cause"]
    assert {case.cause for case in causes} == {None, *CAUSES}
    assert [case.name for case in causes if case.cause is None] == ["healthy"]
    assert {(case.setting is None) == (case.cause != "settings") for case in causes} == {True}
    assert min(case.captured_steps for case in causes) >= 8  # what is periodic, and what a median is, needs several
    assert {case.focus("host-ranges") for case in causes} == {None}  # a diagnosis is of all compute


def test_every_case_is_in_a_group_and_only_contention_needs_a_gpu():
    assert list(dict.fromkeys(case.group for case in CASES.values())) == list(GROUPS)
    assert [case.name for case in CASES.values() if case.needs_gpu] == ["contention"]


def test_a_spike_comes_several_times_in_the_captured_steps():
    case = CASES["periodic_spike"]
    assert case.captured_steps // case.data_every == 3


def test_launched_early_is_every_all_reduce_of_the_step_but_the_last():
    early = {case.name: case.launched_early for case in CASES.values() if case.launched_early is not None}
    assert early.pop("delay_cap64") == early.pop("late_parameter") == 0
    assert early == {name: len(CASES[name].rebuilt_bytes) * CASES[name].passes - 1 for name in early}


def test_a_variant_expects_no_layout():
    variant = replace(CASES["delay_cap4"], bucket_cap_mb=8)
    known = (variant.initial_bytes, variant.rebuilt_bytes, variant.is_rebuilt, variant.overlap, variant.launched_early)
    assert known == (None,) * 5
    assert variant.focus("gpu-kernels") == "spin_kernel"


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(UsageError, match=r"no case 'delay_cap3'\nDid you mean delay_cap4 or "):
        find("delay_cap3")
    with pytest.raises(UsageError, match="The cases: fine1_cap4, "):
        find("?")


def test_the_table_needs_no_torch():
    code = "import sys, ddpprof.workloads.cases; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
