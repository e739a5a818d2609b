"""``ddpprof cases``: what can be profiled."""

from __future__ import annotations

import json

from ddpprof.workloads.cases import CASES

MIB = 2**20


def test_text_has_a_line_for_each_case_and_fits(cli):
    found = cli("cases")
    heading, *lines = found.out.splitlines()
    assert (found.status, found.err) == (0, "")
    assert heading.split() == ["case", "parameters", "cap", "MiB", "buckets", "MiB", "overlap", "shows"]
    assert [line.split()[0] for line in lines] == list(CASES)
    assert found.out.isascii()
    for line, case in zip(lines, CASES.values(), strict=True):
        assert line.index(case.shows) == heading.index("shows")


def test_text_tells_parameters_cap_buckets_and_overlap(cli):
    said = cli("cases").out
    assert "\ndelay_cap4         12 x 4 MiB         4  12 x 4         > 0       slow" in said
    assert "\ndelay_cap64        12 x 4 MiB        64  1 x 48         == 0      slow" in said
    assert "\nunused_static      13 x 4 MiB        16  16, 16, 16, 4  -         static_graph" in said
    assert "\nunused_undetected  13 x 4 MiB        16                 must fail an unused" in said


def test_json_has_the_same_with_exact_sizes(cli):
    found = cli("cases", "--format", "json")
    rows = {row["case"]: row for row in json.loads(found.out)}
    assert list(rows) == list(CASES)
    assert rows["delay_cap4"] == {
        "case": "delay_cap4",
        "parameters": 12,
        "parameter_mb": 4,
        "unused_parameters": 0,
        "bucket_cap_mb": 4,
        "is_delayed": True,
        "find_unused_parameters": False,
        "static_graph": False,
        "bucket_bytes": [4 * MIB] * 12,
        "overlap": "positive",
        "must_fail": False,
        "shows": CASES["delay_cap4"].shows,
    }
    assert (rows["unused_undetected"]["must_fail"], rows["unused_undetected"]["bucket_bytes"]) == (True, None)


def test_another_format_is_a_mistake(cli):
    assert cli("cases", "--format", "yaml").status == 2
