from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ddpprof.errors import UsageError
from ddpprof.model import FORMAT_VERSION, Analysis
from ddpprof.reports import tables

METRICS = [
    *("step_ns", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "compute_only_ns", "memory_only_ns", "idle_ns"),
    *("compute_span_ns", "comm_span_ns", "tail_ns", "overlap_ratio"),
]
CONTRACT = {
    "reports": ["path", "kind", "exporter_version", "schema_version", "session_start_utc_ns"],
    "ranks": [
        *("rank", "rank_source", "report", "pid", "device_id", "device_name", "steps", "n_compute", "n_comm", "n_memory"),
        *METRICS,
    ],
    "breakdown": ["rank", "report", "pid", "device_id", "step", "complete", "n_compute", "n_comm", *METRICS],
    "buckets": [
        *("rank", "step", "bucket", "size_bytes", "launch_ns", "start_ns", "end_ns", "overlap_ns", "exposed_ns"),
        "attribution",
    ],
    "findings": ["code", "severity", "rank", "message", "evidence"],
    "warnings": ["code", "message", "report"],
}
Make = Callable[[str], Analysis]
Golden = Callable[[str, str], None]


def strict(text: str) -> Any:
    """JSON without the NaN and Infinity that Python would let pass."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_document_leads_with_the_keys_of_the_contract(make: Make) -> None:
    document = strict(tables.to_json(make("two_ranks")))
    leading = ["format_version", "ddpprof_version", "case", "evidence", "reports", "window", "ranks", "breakdown", "buckets"]
    assert list(document)[:12] == [*leading, "focus", "findings", "warnings"]
    assert document["format_version"] == FORMAT_VERSION
    for table, keys in CONTRACT.items():
        assert document[table], table
        for row in document[table]:
            assert list(row)[: len(keys)] == keys
    assert document["focus"]["pattern"] == "spin_kernel"
    assert list(document["focus"]["ranks"][0])[:5] == ["rank", "n_compute", "compute_ns", "compute_span_ns", "overlap_ns"]


def test_numbers_are_exact_and_what_is_undefined_is_null(make: Make) -> None:
    ranks = strict(tables.to_json(make("two_ranks")))["ranks"]
    assert [row["overlap_ns"] for row in ranks] == [44_272_812, 40_405_347]
    assert ranks[0]["overlap_ratio"] == 44_272_812 / 49_068_882
    assert strict(tables.to_json(make("no_comm")))["ranks"][0]["overlap_ratio"] is None


def test_nan_and_infinity_become_null(make: Make) -> None:
    found = make("unknown_ranks")
    finding = replace(found.findings[0], evidence={"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": -float("inf")}})
    evidence = strict(tables.to_json(replace(found, findings=(finding,))))["findings"][0]["evidence"]
    assert evidence == {"a": None, "b": [None, 1.5], "c": {"d": None}}


def test_every_example_is_json(example: Analysis) -> None:
    document = strict(tables.to_json(example))
    assert [row["rank"] for row in document["ranks"]] == [row.rank for row in example.ranks]
    assert (document["focus"] is None) == (example.focus is None)


def test_json_golden(make: Make, golden: Golden) -> None:
    golden("two_ranks.json", tables.to_json(make("two_ranks")))
    golden("nothing.json", tables.to_json(make("nothing")))


def test_one_rank_alone(make: Make) -> None:
    found = make("two_ranks")
    document = strict(tables.rank_json(found, found.ranks[1]))
    for table in ("ranks", "breakdown", "buckets"):
        assert {row["pid"] for row in document[table]} == {565}, table
    assert [row["rank"] for row in document["focus"]["ranks"]] == [1]
    assert document["findings"] == []
    assert [warning["code"] for warning in document["warnings"]] == ["time-sliced", "few-steps"]


def test_one_rank_keeps_apart_what_shares_a_process_id(make: Make) -> None:
    found = make("unknown_ranks")
    document = strict(tables.rank_json(found, found.ranks[0]))
    assert [row["report"] for row in document["ranks"]] == [0]
    assert document["warnings"] == []
    assert len(document["reports"]) == 2


def test_every_rank_of_every_example_alone(example: Analysis) -> None:
    for row in example.ranks:
        assert [found["pid"] for found in strict(tables.rank_json(example, row))["ranks"]] == [row.pid]


@pytest.mark.parametrize("table", ["ranks", "breakdown", "buckets", "kinds"])
def test_csv_has_the_rows_of_every_example(example: Analysis, table: str) -> None:
    header, *rows = csv.reader(tables.to_csv(example, table).splitlines(keepends=True))
    assert len(rows) == len(getattr(example, table))
    assert all(len(row) == len(header) for row in rows)
    assert "nan" not in {cell.lower() for row in rows for cell in row}


def test_csv_keeps_integers_and_leaves_the_missing_empty(make: Make) -> None:
    (row,) = csv.DictReader(tables.to_csv(make("no_comm"), "ranks").splitlines())
    assert row["compute_ns"] == "900000"
    assert row["overlap_ratio"] == ""
    assert row["is_time_sliced"] == "false"
    assert row["unreliable"] == "[]"


def test_csv_of_no_known_table(make: Make) -> None:
    with pytest.raises(UsageError, match="no table 'lanes'"):
        tables.to_csv(make("nothing"), "lanes")


def test_one_rank_keeps_its_own_row_across_ranks(make: Make) -> None:
    found = make("two_ranks")
    whole, alone = strict(tables.to_json(found))["across"], strict(tables.rank_json(found, found.ranks[1]))["across"]
    assert list(whole) == ["clock", "uncertainty_ns", "refused", "transfer_ns", "ranks", "collectives"]
    assert (alone["ranks"], alone["collectives"]) == (whole["ranks"][1:], [])
    assert (alone["clock"], alone["transfer_ns"]) == (whole["clock"], whole["transfer_ns"])
