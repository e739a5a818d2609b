from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from ddpprof.errors import UsageError
from ddpprof.workloads.cases import CASES, MIB, find

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
    assert len(CASES) == len(TABLE) + 1
    assert case.failure == "Expected to have finished reduction in the prior iteration"
    assert (case.find_unused_parameters, case.static_graph, case.rebuilt_bytes) == (False, False, None)


def test_every_case_trains_48_mib():
    assert {case.used * case.parameter_mb for case in CASES.values()} == {48}


def test_four_ranks_and_ten_steps_make_1960_bucket_rows():
    assert sum(len(case.rebuilt_bytes or ()) for case in CASES.values()) * 4 * 10 == 1960


def test_the_first_step_has_one_bucket_unless_ddp_looks_for_unused_parameters():
    initial = {name: case.initial_bytes for name, case in CASES.items()}
    assert initial.pop("unused_dynamic") == (4 * MIB, 16 * MIB, 16 * MIB, 16 * MIB)
    assert initial.pop("unused_static") == initial.pop("unused_undetected") == (54_525_952,)
    assert set(initial.values()) == {(50_331_648,)}


def test_focus_is_the_delay():
    case = CASES["delay_cap4"]
    assert (case.focus("gpu-kernels"), case.focus("host-ranges")) == ("spin_kernel", "delay")
    assert CASES["coarse4_cap4"].focus("gpu-kernels") is None


def test_a_variant_expects_no_layout():
    variant = replace(CASES["delay_cap4"], bucket_cap_mb=8)
    assert (variant.initial_bytes, variant.rebuilt_bytes, variant.is_rebuilt, variant.overlap) == (None,) * 4
    assert variant.focus("gpu-kernels") == "spin_kernel"


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(UsageError, match=r"no case 'delay_cap3'\nDid you mean delay_cap4 or "):
        find("delay_cap3")
    with pytest.raises(UsageError, match="The cases: fine1_cap4, "):
        find("?")


def test_the_table_needs_no_torch():
    code = "import sys, ddpprof.workloads.cases; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
