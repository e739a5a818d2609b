"""``ddpprof predict``: a run folder in, a table out, and what it says when the input does not do."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from nsight import K, build
from recorded import MS, recorded, timeline, write

from ddpprof.model import FailureRecord

ORDER = (2, 1, 0)


@pytest.fixture
def run(tmp_path):
    """A run of three parameters of 1 MiB at a cap of 1 MiB, as ``ddpprof profile`` would leave it."""
    records = recorded(cap_mb=1, order=ORDER)
    folder = write(tmp_path / "run", records, case="delay_cap4")
    build(folder / "report.sqlite", timeline(2, ORDER, records))
    return folder


def test_a_row_a_cap_and_a_conclusion(cli, run):
    found = cli("predict", run, "--caps", "1,64")
    assert (found.status, found.err) == (0, "")
    assert found.out.startswith("host-ranges: ")
    assert "case delay_cap4; 2 ranks on cpu; captured at 1 MiB" in found.out
    rows = [line.split() for line in found.out.splitlines() if " last bucket  " in line]
    assert [row[0] for row in rows] == ["1", "64"]
    assert "Not modelled: " in found.out
    assert " ".join(found.out.split()).endswith("Measure it with: ddpprof sweep delay_cap4 --caps 1,64")


def test_json_and_markdown(cli, run):
    found = json.loads(cli("predict", run, "--caps", "1,64", "--format", "json").out)
    assert (found["format_version"], found["case"], found["best_mb"]) == (1, "delay_cap4", [1])
    assert [(row["cap_mb"], row["buckets"]) for row in found["rows"]] == [(1, [[2], [1], [0]]), (64, [[2, 1, 0]])]
    assert found["rows"][0]["step_ns"] == 39 * MS
    assert cli("predict", run, "--format", "markdown").out.startswith("# Predicted: case delay_cap4")


def test_one_cap_will_do_and_none_will_not(cli, run):
    assert cli("predict", run, "--caps", "0.5").status == 0
    for words in ("0", "x", "-1", ""):
        assert cli("predict", run, "--caps", words).status == 2


def test_the_default_of_ddp_is_a_cap_too(cli, run):
    """Its first bucket is 1 MiB, the next 25: of three parameters of 1 MiB the last two are in one."""
    found = json.loads(cli("predict", run, "--caps", "default,1", "--format", "json").out)
    assert [(row["cap_mb"], row["is_captured"], row["buckets"]) for row in found["rows"]] == [
        (None, False, [[2], [1, 0]]),
        (1, True, [[2], [1], [0]]),
    ]
    assert [
        line.split()[0] for line in cli("predict", run, "--caps", " default").out.splitlines() if " last bucket  " in line
    ] == [
        "default",
        "1",
    ]


def test_a_run_whose_job_did_not_watch_its_model(cli, run):
    for path in run.glob("records.*"):
        path.unlink()
    refused(cli, run, "no records of its run", "ddpprof.watch(ddp)")


def refused(cli, folder, *says: str) -> None:
    found = cli("predict", folder)
    assert (found.status, found.out) == (1, "")
    assert all(what in found.err for what in says), found.err
    assert len(found.err.splitlines()) == 2


def test_a_report_alone_does_not_tell_when_gradients_came(cli, tmp_path):
    path = build(tmp_path / "report.sqlite", [K(0, 7, 0, 10)])
    refused(cli, path, "no records of its run", "Give the run folder", "ddpprof.watch(ddp)")


def test_records_of_an_older_version(cli, run):
    records = recorded(cap_mb=1)
    write(run, replace(records, gradients=(), models=()))
    refused(cli, run, "an older ddpprof wrote them", "again")


def test_records_that_were_cut_or_changed(cli, run):
    """Each of these would be a traceback otherwise: lists of unlike length, no parameter of that number, no such time."""
    records = recorded(cap_mb=1)
    model, gradient, bucket = records.models[1], records.gradients[-1], records.buckets[-1]
    for name, row, changes in [
        ("models", model, {"dtypes": ["float32"]}),
        ("models", model, {"probe_ns": [1]}),
        ("models", model, {"size_bytes": [-MS] * 3}),
        ("gradients", gradient, {"parameters": [0]}),
        ("gradients", gradient, {"parameters": [], "ready_ns": []}),
        ("gradients", gradient, {"parameters": [0, 1, 7]}),
        ("gradients", gradient, {"ready_ns": [0, 1, 2**70]}),
        ("gradients", gradient, {"started_ns": -1}),
        ("buckets", bucket, {"parameters": [-1]}),
        ("buckets", bucket, {"done_ns": 2**70}),
        ("runs", records.runs[1], {"bucket_cap_mb": float("inf")}),
        ("runs", records.runs[1], {"torch_version": ""}),
    ]:
        changed = tuple(replace(row, **changes) if old is row else old for old in getattr(records, name))
        write(run, replace(records, **{name: changed}))
        refused(cli, run, "the records contradict themselves", "again")


def test_a_world_that_cannot_be(cli, run):
    records = recorded(cap_mb=1)
    write(run, replace(records, runs=(replace(records.runs[0], world_size=10**18), records.runs[1])))
    refused(cli, run, "no records of rank 2")


def test_a_run_that_failed(cli, run):
    failure = FailureRecord(rank=1, step=1, error="RuntimeError", message="unused parameters", is_expected=True)
    write(run, replace(recorded(cap_mb=1), failures=(failure,)))
    refused(cli, run, "rank 1 failed", "unused parameters")


def test_a_rank_without_records(cli, run):
    (run / "records.rank1.jsonl").unlink()
    refused(cli, run, "no records of rank 1")


def test_a_capture_without_marks(cli, run):
    build(run / "report.sqlite", 'process 100 rank=0 world=2\nN 0..10 "compute/0" domain=ddpprof')
    refused(cli, run, "does not show rank 1", "Capture again")
