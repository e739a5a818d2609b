"""From what a person names to one job: files, folders, run folders, reports that nsys must export first."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import captured
import pytest
from nsight import NCCL, K, build
from stubs import COPIES, fake_nsys

import ddpprof
from ddpprof import inputs, nsys, results
from ddpprof.analysis.part import Options
from ddpprof.analysis.timeline import timeline
from ddpprof.errors import InputError, ToolError, UsageError
from ddpprof.reports import files
from ddpprof.rundir import RunDir

KINETO = {
    "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"device": 0, "stream": 7}}
    ]
}


def job(path: Path, at: int = 0) -> Path:
    """A report of one process, unlike any with another ``at``."""
    return build(path, [K(0, 7, 0, 100 + at), K(0, 16, 50, 150, NCCL)], session_ns=at)


def raw(path: Path, at: int = 0) -> Path:
    """A report in Nsight's own format, as far as an nsys with COPIES is concerned."""
    job(path.with_suffix(".tmp"), at).rename(path)
    return path


def names(found: inputs.Input) -> list[str]:
    return [trace.report.path for trace in found.traces]


def messages(found: inputs.Input) -> list[str]:
    return [warning.message for warning in found.warnings]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nsys for which a report is its own export; it writes a line to a log for each time that it is started."""
    path = fake_nsys(tmp_path / "bin" / "nsys", export=COPIES)
    head, rest = path.read_text().split("\nimport sys\n")
    log = f"print(sys.argv[1], file=open({str(path.parent / 'log')!r}, 'a'))"
    path.write_text(f"{head}\nimport sys\n{log}\n{rest}")
    monkeypatch.setenv("DDPPROF_NSYS", str(path))
    return path


@pytest.fixture
def no_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without nsys that may not fetch one."""
    monkeypatch.delenv("DDPPROF_NSYS", raising=False)
    monkeypatch.setenv("DDPPROF_FETCH_NSYS", "0")
    monkeypatch.setenv("DDPPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(nsys, "_INSTALLS", ())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test puts its reports."""
    path = tmp_path / "reports"
    path.mkdir()
    return path


# ------------------------------------------------------------------------------------------------------------ folders


def test_of_a_folder_every_report_is_read_by_name(folder):
    for at, name in enumerate(("c.sqlite", "a.sqlite")):
        job(folder / name, at)
    (folder / "b.json").write_text(json.dumps(KINETO))
    with gzip.open(folder / "d.json.gz", "wt") as file:
        json.dump(KINETO | {"baseTimeNanoseconds": 1}, file)
    (folder / "notes.txt").write_text("not asked for")
    assert names(inputs.read([folder])) == ["a.sqlite", "b.json", "c.sqlite", "d.json.gz"]


def test_of_a_report_and_its_export_only_the_export_is_read(folder, no_tool):
    job(folder / "a.sqlite")
    (folder / "a.nsys-rep").write_text("its report")
    os.utime(folder / "a.nsys-rep", (1, 1))
    assert names(inputs.read([folder])) == ["a.sqlite"]


def test_our_own_reports_beside_the_captures_are_no_captures(folder):
    job(folder / "a.sqlite")
    shown = inputs.analyze(folder)
    files.write(folder, shown, timeline(inputs.read([folder]).traces, Options()))
    assert (folder / "summary.json").exists()
    found = inputs.read([folder])
    assert (names(found), messages(found)) == (["a.sqlite"], [])


def test_a_report_of_a_folder_that_cannot_be_read_is_left_out_with_its_reason(folder):
    job(folder / "a.sqlite")
    (folder / "empty.sqlite").touch()
    (folder / "other.json").write_text("{}")
    found = inputs.read([folder])
    assert names(found) == ["a.sqlite"]
    assert messages(found) == [
        "empty.sqlite left out: is empty",
        "other.json left out: not a profiler trace (no traceEvents)",
    ]
    assert {warning.code for warning in found.warnings} == {"capture-incomplete"}
    with pytest.raises(InputError, match=r"empty\.sqlite: is empty"):
        inputs.read([folder], skips_broken=False)


def test_what_was_named_must_be_readable(folder):
    job(folder / "a.sqlite")
    (folder / "empty.sqlite").touch()
    with pytest.raises(InputError, match=r"empty\.sqlite: is empty"):
        inputs.read([folder / "a.sqlite", folder / "empty.sqlite"])


def test_of_a_folder_with_one_report_its_own_error_is_told(folder):
    (folder / "empty.sqlite").touch()
    with pytest.raises(InputError, match=r"empty\.sqlite: is empty"):
        inputs.read([folder])


def test_a_folder_without_any_readable_report_is_an_error(folder):
    with pytest.raises(InputError, match="no report in this folder\nReports end in"):
        inputs.read([folder])
    for name in ("a.sqlite", "b.sqlite"):
        (folder / name).touch()
    with pytest.raises(InputError, match="none of its 2 reports can be read\nSee why with: ddpprof analyze FILE"):
        inputs.read([folder])


def test_the_folder_of_a_sweep_names_its_runs(tmp_path):
    for name in ("cap4", "cap16", "."):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "manifest.json").write_text('{"case": "delay_cap4", "caps_mb": [4, 16]}')
    with pytest.raises(InputError) as caught:
        inputs.read([tmp_path])
    assert str(caught.value) == (
        f"{tmp_path}: the folder of a sweep, not of one run\n"
        f"Its result is summary.md in it. Runs in it: {tmp_path}/cap16, {tmp_path}/cap4"
    )


def test_a_folder_of_runs_names_them(tmp_path):
    for at in range(10):
        (tmp_path / f"run{at}").mkdir()
        (tmp_path / f"run{at}" / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=r"no report in this folder\nRuns in it: .*/run0, .*/run7, \.\.\.$"):
        inputs.read([tmp_path])


def test_our_results_database_is_no_report(tmp_path):
    url = f"sqlite:///{tmp_path}/results.sqlite"
    results.append(url, [])
    (tmp_path / "delay_cap4").mkdir()
    (tmp_path / "delay_cap4" / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=r"no report in this folder\nRuns in it: .*/delay_cap4$"):
        inputs.read([tmp_path])
    with pytest.raises(InputError, match=r"our results database, not a report\nSee it with: .* --results " + url):
        inputs.read([tmp_path / "results.sqlite"])


def test_what_is_not_there_names_the_two_causes(tmp_path):
    with pytest.raises(InputError, match=r"no such report\nEither the capture range never opened .* or nsys wrote it"):
        inputs.read([tmp_path / "a.sqlite"])
    with pytest.raises(InputError, match=r"runz: no such file or folder\nGive a report, a run folder or a folder of reports"):
        inputs.read([tmp_path / "runz"])
    (tmp_path / "runs").mkdir()
    with pytest.raises(InputError, match=r"runz: no such file or folder\nDid you mean .*/runs\?"):
        inputs.read([tmp_path / "runz"])
    with pytest.raises(UsageError, match="nothing to analyze"):
        inputs.read([])


def test_long_loops_are_wrapped(folder):
    seen = []
    for at in range(3):
        job(folder / f"{at}.sqlite", at)
    inputs.read([folder], over=lambda items, title: seen.extend([title, *items]) or items)
    assert seen == ["reading", *(folder / f"{at}.sqlite" for at in range(3))]


# -------------------------------------------------------------------------------------------- Nsight's own format


def test_reports_are_exported_beside_themselves_by_one_nsys(folder, tool):
    said = []
    for at in range(2):
        raw(folder / f"{at}.nsys-rep", at)
    found = inputs.read([folder], say=said.append)
    assert names(found) == ["0.sqlite", "1.sqlite"]
    assert said == ["exporting 0.nsys-rep with nsys", "exporting 1.nsys-rep with nsys"]
    assert (tool.parent / "log").read_text().split() == ["--version", "export", "export"]
    assert names(inputs.read([folder], say=said.append)) == ["0.sqlite", "1.sqlite"]
    assert len(said) == 2


def test_a_stale_export_is_made_again(folder, tool):
    report = raw(folder / "a.nsys-rep", 7)
    os.utime(job(folder / "a.sqlite", 3), (1, 1))
    (trace,) = inputs.read([report]).traces
    assert trace.report.session_start_utc_ns == 7


def test_a_stale_export_named_itself_is_read_with_a_warning(folder, no_tool):
    (folder / "a.qdrep").write_text("newer")
    os.utime(job(folder / "a.sqlite"), (1, 1))
    (warning,) = inputs.read([folder / "a.sqlite"]).warnings
    assert (warning.code, warning.message) == (
        "stale-export",
        "a.sqlite is older than a.qdrep: export it again with ddpprof export a.qdrep",
    )


def test_without_any_nsys_it_says_so_and_leaves_nothing_out(folder, no_tool):
    job(folder / "a.sqlite")
    raw(folder / "b.nsys-rep")
    with pytest.raises(ToolError, match="nsys was not found"):
        inputs.read([folder])


def test_a_report_that_nsys_cannot_export_is_left_out_of_a_folder(folder, monkeypatch, tmp_path):
    tool = fake_nsys(tmp_path / "nsys", version="2022.4.2.1", export="sys.exit('Something went wrong')")
    job(folder / "a.sqlite")
    raw(folder / "b.nsys-rep", 1)
    found = inputs.read([folder], nsys=str(tool))
    assert names(found) == ["a.sqlite"]
    assert messages(found) == ["b.nsys-rep left out: nsys 2022.4.2.1 could not export it: Something went wrong"]
    assert sorted(path.name for path in folder.iterdir()) == ["a.sqlite", "b.nsys-rep"]
    with pytest.raises(InputError, match="could not export it"):
        inputs.read([folder / "b.nsys-rep"], nsys=str(tool))


def test_a_report_that_lies_where_nothing_can_be_written(folder, tool, monkeypatch):
    report = raw(folder / "a.nsys-rep")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(InputError) as caught:
        inputs.read([report])
    assert str(caught.value).splitlines() == [
        f"{report}: no permission to write its export beside it",
        f"Export it elsewhere and analyze that: ddpprof export {report} -o PLACE.sqlite",
    ]
    assert not (tool.parent / "log").exists()


@pytest.mark.parametrize("name", ["report.qdstrm", "report.nsys-rep"])
def test_an_unfinished_stream_is_told_whatever_its_name(folder, no_tool, name):
    (folder / name).write_bytes(b"\x00Nsight Systems Stream\x00")
    with pytest.raises(InputError, match="unfinished stream, not a report"):
        inputs.read([folder / name])


# ---------------------------------------------------------------------------------------------------------- run folders


def test_a_run_folder_brings_case_question_and_records(tmp_path):
    run = captured.run_folder(tmp_path / "run", "delay_cap4")
    read = inputs.read([run.path])
    assert (read.case, len(read.records.buckets), names(read)) == ("delay_cap4", 24, ["report.sqlite"])
    found = read.analyze(Options())
    assert (found.case, found.focus.pattern) == ("delay_cap4", "delay")
    assert [row.overlap_ns for row in found.focus.ranks] == [captured.OVERLAP_MS["delay_cap4"] * 1_000_000] * 2
    assert found.buckets[1].parameters == (1,)
    assert read.analyze(Options(compute="compute")).focus.pattern == "compute"


def test_what_the_run_warned_of_comes_first(tmp_path):
    warnings = [{"code": "retried", "message": "attempt 2"}, {"code": "no message"}, "no warning"]
    run = captured.run_folder(tmp_path / "run", "delay_cap64", warnings=warnings)
    first, *_ = inputs.analyze(run.path).warnings
    assert (first.code, first.message) == ("retried", "attempt 2")
    assert messages(inputs.read([run.path])) == ["attempt 2"]


def test_a_run_of_a_case_that_is_not_ours_asks_nothing(tmp_path):
    run = captured.run_folder(tmp_path / "run", "delay_cap4")
    run.manifest.write_text('{"case": "of_a_later_version"}')
    found = inputs.analyze(run.path)
    assert (found.case, found.focus) == ("of_a_later_version", None)


def test_a_run_without_records_is_analyzed(tmp_path):
    run = captured.run_folder(tmp_path / "run", "delay_cap4")
    for rank in range(2):
        run.records(rank).unlink()
    assert inputs.read([run.path]).records is None


def test_of_a_run_by_torch_profiler_its_traces_are_read(tmp_path):
    run = RunDir(tmp_path)
    run.manifest.write_text('{"case": null}')
    for rank in range(2):
        with gzip.open(run.torch_trace(rank), "wt") as file:
            json.dump(KINETO | {"baseTimeNanoseconds": rank, "distributedInfo": {"rank": rank, "world_size": 2}}, file)
    assert [row.rank for row in inputs.analyze(tmp_path).ranks] == [0, 1]


def test_a_run_that_left_no_capture_says_how_it_ended(tmp_path):
    run = captured.run_folder(tmp_path / "run", "unused_undetected")
    with pytest.raises(InputError, match=r"the run left no capture\nIt ended as its summary says; see summary\.md in it\."):
        inputs.read([run.path])


def test_two_run_folders_are_one_job_of_reports(tmp_path):
    first = captured.run_folder(tmp_path / "a", "delay_cap4")
    shutil.copytree(first.path, tmp_path / "b")
    with pytest.raises(InputError, match="are the same capture"):
        inputs.analyze(tmp_path / "a", tmp_path / "b")


# ---------------------------------------------------------------------------------------------------- ranks by hand


@pytest.mark.parametrize("name", ["a.sqlite", "{folder}/a.sqlite", "{folder}/./a.sqlite", "{folder}//a.sqlite"])
def test_a_rank_is_given_by_name_or_path(folder, name):
    found = inputs.read([job(folder / "a.sqlite")], ranks=[f"{name.format(folder=folder)}=3"])
    assert found.ranks == {0: 3}


def test_a_rank_goes_to_the_report_that_it_names_though_others_are_left_out(folder):
    (folder / "a.sqlite").touch()
    job(folder / "b.sqlite")
    found = inputs.read([folder], ranks=["b.sqlite=3"])
    assert [(row.rank, row.rank_source) for row in found.analyze(Options()).ranks] == [(3, "option")]


@pytest.mark.parametrize(
    ("ranks", "what"),
    [
        (["a.sqlite"], "not FILE=N"),
        (["=3"], "not FILE=N"),
        (["a.sqlite=1.5"], "not FILE=N"),
        (["b.sqlite=3"], "no input of that name"),
        (["a.sqlite=3", "a.sqlite=4"], "it has rank 3 already"),
    ],
)
def test_a_rank_that_makes_no_sense_is_refused(folder, ranks, what):
    with pytest.raises(UsageError, match=what):
        inputs.read([job(folder / "a.sqlite")], ranks=ranks)


def test_a_name_that_two_inputs_have_is_refused(tmp_path):
    paths = []
    for at, place in enumerate(("x", "y")):
        (tmp_path / place).mkdir()
        paths.append(job(tmp_path / place / "a.sqlite", at))
    with pytest.raises(UsageError, match=r"2 inputs of that name\nInputs are: .*x/a\.sqlite, .*y/a\.sqlite"):
        inputs.read(paths, ranks=["a.sqlite=3"])
    assert inputs.read(paths, ranks=[f"{paths[1]}=3"]).ranks == {1: 3}


# ---------------------------------------------------------------------------------------------------------- library


def test_the_one_entry_point_takes_texts_paths_and_options(folder):
    path = job(folder / "a.sqlite")
    assert ddpprof.analyze(str(path)).ranks == ddpprof.analyze(path).ranks
    assert ddpprof.analyze(path, compute="cutlass").focus.ranks[0].overlap_ns == 50_000
    with pytest.raises(TypeError):
        ddpprof.analyze(path, nonsense=1)
    with pytest.raises(AttributeError):
        ddpprof.nonsense  # noqa: B018


def test_the_reason_of_an_error_is_what_it_says_of_the_path():
    assert inputs.reason(InputError("/tmp/a.sqlite: damaged: page 3")) == "damaged: page 3"
    assert inputs.reason(InputError("no path here")) == "no path here"


def test_communication_of_many_reports_is_listed_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in (100, 200, 300):
        build(tmp_path / f"{pid}.sqlite", f"K dev0 s16 0..{pid} NCCL launch=1..2 pid={pid}")
    assert len(inputs.survey([tmp_path], Options()).analysis.buckets) == 3
    monkeypatch.setattr(inputs, "MANY", 2)
    for found in (inputs.survey([tmp_path], Options()).analysis, inputs.read([tmp_path]).analyze(Options())):
        assert (len(found.ranks), found.buckets) == (3, ())
    assert len(inputs.survey([tmp_path], Options(buckets=True)).analysis.buckets) == 3
