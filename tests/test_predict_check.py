"""The script that holds predictions against runs: what it calls a difference, and its table, without running a job."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from nsight import build
from recorded import recorded, timeline, write

from ddpprof.analysis import nsys_reader, whatif
from ddpprof.rundir import RunDir, read_records

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "predict_check.py"
spec = importlib.util.spec_from_file_location("predict_check", SCRIPT)
assert spec is not None
assert spec.loader is not None
predict_check = sys.modules["predict_check"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(predict_check)

ORDER = (2, 1, 0)


@pytest.fixture
def captured(tmp_path):
    """A run of three parameters of 1 MiB at a cap of 1, and its prediction for 1 and 64."""
    records = recorded(cap_mb=1, order=ORDER)
    traces = [nsys_reader.read(build(tmp_path / "report.sqlite", timeline(2, ORDER, records)))]
    return whatif.run_of(traces, records), whatif.predict(traces, records, (1, 64)).rows


def test_what_runs_as_predicted_does_not_differ(captured):
    run, rows = captured
    for row in rows:
        assert list(predict_check.differences(row, run, recorded(cap_mb=row.cap_mb, order=ORDER))) == []


def test_other_buckets_and_another_moment_of_launch_differ(captured):
    run, (one, all_) = captured
    other = recorded(cap_mb=1, order=ORDER)
    assert "predicted [(2, 1, 0)]" in next(predict_check.differences(all_, run, other))
    late = [replace(row, ready_ns=row.ready_ns + 10**7) if row.bucket == 0 else row for row in other.buckets]
    first = next(predict_check.differences(one, run, replace(other, buckets=tuple(late))))
    assert first == "cap 1, rank 0, step 3: sent after gradients [1, 1, 2], predicted [0, 1, 2]"


@pytest.mark.parametrize(("slower", "status"), [(1.0, 0), (1.5, 3)])
def test_the_table_and_the_status(monkeypatch, capsys, slower, status):
    """Jobs are played: a capture at 1 MiB, then runs whose steps take ``slower`` times what the timeline says."""

    def profile(case, settings, **_):
        records = recorded(cap_mb=1, order=ORDER)
        write(settings.folder, records, case=case)
        build(settings.folder / "report.sqlite", timeline(2, ORDER, records))

    def measure(case, row, run, options, folder):
        records = recorded(cap_mb=row.cap_mb, order=ORDER)
        steps = [round(step * slower) for step in predict_check.job_steps(records)]
        return steps, list(predict_check.differences(row, run, records))

    monkeypatch.setattr(predict_check, "profiling", SimpleNamespace(profile_case=profile, Settings=SimpleNamespace))
    monkeypatch.setattr(predict_check, "measure", measure)
    assert predict_check.main(["delay_cap4", "--ranks", "2", "--caps", "1,64", "--rounds", "2"]) == status
    printed = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in printed if "exact" in line]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("1", "3*", f"{100 / slower - 100:+.1f}%"),
        ("64", "1", f"{100 / slower - 100:+.1f}%"),
    ]
    assert printed[-2] == f"measured steps within from and to: {2 if slower == 1 else 0} of 2"
    assert printed[-1].startswith(f"median error of the 1 caps with other buckets: {abs(100 / slower - 100):.1f} %")


def test_records_of_a_job_are_those_of_the_folder(tmp_path):
    assert read_records(RunDir(write(tmp_path / "run", recorded()))).gradients == recorded().gradients
