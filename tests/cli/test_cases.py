"""``ddpprof cases``: what can be profiled here."""

from __future__ import annotations

import json

from ddpprof.model import CAUSES
from ddpprof.workloads.cases import CASES, STUDY

MIB = 2**20


def test_text_has_a_part_for_each_group_and_a_line_for_each_case(cli):
    found = cli("cases")
    assert (found.status, found.err) == (0, "")
    assert found.out.isascii()
    parts = [part.splitlines() for part in found.out.split("\n\n")]
    assert [part[0] for part in parts] == [
        "the published study (ddpprof verify):",
        "one cause each that holds a step back (ddpprof diagnose):",
        "a real model:",
    ]
    assert [line.split()[0] for part in parts for line in part[2:]] == list(CASES)
    for _, heading, *lines in parts:
        for line in lines:
            assert line[heading.index("shows") :] == CASES[line.split()[0]].shows


def test_text_tells_parameters_cap_buckets_and_overlap(cli):
    said = cli("cases").out
    assert "\ndelay_cap4         12 x 4 MiB  4 MiB   12 x 4 MiB         > 0        slow" in said
    assert "\ndelay_cap64        12 x 4 MiB  64 MiB  1 x 48 MiB         == 0       slow" in said
    assert "\nunused_static      13 x 4 MiB  16 MiB  3 x 16 MiB, 4 MiB  -          static_graph" in said
    assert "\nunused_undetected  13 x 4 MiB  16 MiB                     must fail  an unused" in said


def test_text_tells_the_cause(cli):
    said = cli("cases").out
    assert "\nhealthy               none                               6 x 0.25 MiB " in said
    assert "\ntiny_buckets          bucket-too-small                   2 x 4 MiB, 64 x 16 KiB  a bucket" in said
    assert "\naccumulation          settings (no_sync) " in said


def test_json_has_the_same_with_exact_sizes(cli):
    found = cli("cases", "--format", "json")
    rows = {row["case"]: row for row in json.loads(found.out)}
    assert list(rows) == list(CASES)
    assert rows["delay_cap4"] == {
        "case": "delay_cap4",
        "group": "study",
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
        "cause": None,
        "needs_gpu": False,
        "shows": CASES["delay_cap4"].shows,
    }
    assert (rows["unused_undetected"]["must_fail"], rows["unused_undetected"]["bucket_bytes"]) == (True, None)
    assert [name for name, row in rows.items() if row["group"] == "study"] == list(STUDY)
    assert {row["cause"] for row in rows.values()} == {None, *CAUSES}
    assert (rows["tiny_buckets"]["parameter_mb"], rows["gpt_small"]["bucket_cap_mb"]) == (None, None)


def test_another_format_is_a_mistake(cli):
    assert cli("cases", "--format", "yaml").status == 2
