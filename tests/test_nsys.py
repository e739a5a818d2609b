from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from stubs import fake_nsys, program

from ddpprof import machine, marks, nsys
from ddpprof.errors import InputError, ToolError, UsageError
from ddpprof.nsys import Nsys

OLD = Nsys(Path("/opt/nsys"), "2022.4.2.1", "PATH")
NEW = Nsys(Path("/opt/nsys"), "2025.3.2.474", "PATH")


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with no nsys anywhere, no NVIDIA driver, an empty cache, and no leave to fetch."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("DDPPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DDPPROF_FETCH_NSYS", "0")
    monkeypatch.delenv("DDPPROF_NSYS", raising=False)
    monkeypatch.setattr(nsys, "_INSTALLS", (f"{str(tmp_path)[1:]}/opt/*/bin/nsys",))
    monkeypatch.setattr(machine, "driver_version", lambda: None)
    return tmp_path


@pytest.fixture(scope="session")
def real():
    """The nsys of this machine."""
    try:
        return nsys.find(may_fetch=False)
    except ToolError as error:
        pytest.skip(f"no real nsys: {error.message}")


# ---------------------------------------------------------------------------------------------------------- finding


def test_a_given_nsys_is_taken_and_tells_its_version(bare):
    found = nsys.find(fake_nsys(bare / "mine" / "nsys", version="2022.4.2.1"))
    assert (found.version, found.version_info, found.source) == ("2022.4.2.1", (2022, 4, 2, 1), "option")


def test_a_given_nsys_that_does_not_work_is_an_error_though_another_would_do(bare, monkeypatch):
    fake_nsys(bare / "bin" / "nsys")
    with pytest.raises(ToolError, match="no-such-nsys: not a working nsys"):
        nsys.find("no-such-nsys")
    monkeypatch.setenv("DDPPROF_NSYS", str(program(bare / "other", "print('another program 2023.1')")))
    with pytest.raises(ToolError, match="DDPPROF_NSYS"):
        nsys.find()


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("bin/nsys", "PATH"),
        ("opt/2024.2.3/bin/nsys", "NVIDIA install folder"),
        ("cache/nsys-2023.4.4.54-trimmed/target-linux-x64/nsys", "cache"),
    ],
)
def test_places_are_searched(bare, place, source):
    path = fake_nsys(bare / place)
    assert nsys.find() == Nsys(path, "2023.4.4.54", source)


def test_the_environment_wins_over_path_and_path_over_the_cache(bare, monkeypatch):
    fake_nsys(bare / "cache/nsys-2025.1-whole/target-linux-x64/nsys", version="2025.1")
    fake_nsys(bare / "bin" / "nsys", version="2023.4")
    assert nsys.find().source == "PATH"
    monkeypatch.setenv("DDPPROF_NSYS", str(fake_nsys(bare / "mine", version="2022.4")))
    assert nsys.find().version == "2022.4"


def test_of_several_installs_the_newest_that_works_is_taken(bare):
    fake_nsys(bare / "opt/a/bin/nsys", version="2024.10.1")
    fake_nsys(bare / "opt/b/bin/nsys", version="2024.9.1")
    program(bare / "opt/c/bin/nsys", "sys.exit('the toolkit holds no Nsight Systems')")
    assert nsys.find().version == "2024.10.1"


def test_a_cached_tree_without_cupti_is_passed_over_where_there_is_a_driver(bare, monkeypatch):
    fake_nsys(bare / "cache/nsys-2023.4.4.54-trimmed/target-linux-x64/nsys")
    monkeypatch.setattr(machine, "driver_version", lambda: "580.65.06")
    with pytest.raises(ToolError, match="not found"):
        nsys.find()
    fake_nsys(bare / "cache/nsys-2022.4-whole/target-linux-x64/nsys", version="2022.4")
    assert nsys.find().version == "2022.4"


def test_nothing_found_says_what_else_can_be_done(bare):
    with pytest.raises(ToolError, match="DDPPROF_FETCH_NSYS=0 forbids") as caught:
        nsys.find()
    assert "--capture torch" in caught.value.hint
    with pytest.raises(ToolError, match="not found on this machine\n"):
        nsys.find(may_fetch=False)


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.delenv("DDPPROF_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert nsys.cache_dir() == Path("/var/cache/me/ddpprof")
    monkeypatch.setenv("DDPPROF_CACHE", "/big/disk")
    assert nsys.cache_dir() == Path("/big/disk")


# ------------------------------------------------------------------------------------------------ the command line


def test_a_cpu_run_is_recorded_whole(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/scratch")
    assert nsys.profile_command(OLD, Path("run/report.nsys-rep"), ["python", "train.py"], has_cuda=False) == [
        "/opt/nsys",
        "profile",
        "--trace=nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--kill=none",
        "--force-overwrite=true",
        "--output=run/report",
        "--env-var=TMPDIR=/scratch",
        "python",
        "train.py",
    ]


def test_a_cuda_run_is_recorded_in_its_range_with_graphs_node_by_node():
    command = nsys.profile_command(OLD, Path("report.nsys-rep"), ["train"], has_cuda=True)
    assert command[2] == "--trace=cuda,nvtx"
    assert command[-4:] == ["--cuda-graph-trace=node", "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "train"]
    whole = nsys.profile_command(OLD, Path("report.nsys-rep"), ["train"], has_cuda=True, uses_range=False)
    assert not any("capture-range" in option for option in whole)


def test_event_tracing_is_switched_off_only_where_the_switch_exists():
    assert "--cuda-event-trace=false" in nsys.profile_command(NEW, Path("r"), ["train"], has_cuda=True)
    assert "--cuda-event-trace=false" not in nsys.profile_command(OLD, Path("r"), ["train"], has_cuda=True)
    assert "--cuda-event-trace=false" not in nsys.profile_command(NEW, Path("r"), ["train"], has_cuda=False)


def test_each_rank_can_have_its_own_report():
    command = nsys.profile_command(OLD, Path("a/report.nsys-rep"), ["train"], has_cuda=False, report_rank_pattern=True)
    assert "--output=a/report.rank%q{RANK}" in command


def test_a_command_with_nsys_is_known():
    assert nsys.has_nsys(["torchrun", *nsys.profile_command(OLD, Path("r"), ["train"], has_cuda=False)])
    assert not nsys.has_nsys(["torchrun", "train.py"])


def test_a_temporary_folder_that_nsys_cannot_be_told_of_is_shared_with_it(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/scratch,1")
    assert not nsys.has_nsys(nsys.profile_command(OLD, Path("r"), ["train"], has_cuda=False))


def test_a_percent_sign_in_a_path_is_no_pattern():
    assert "--output=50%%/report" in nsys.profile_command(OLD, Path("50%/report.nsys-rep"), ["train"], has_cuda=False)


@pytest.mark.parametrize(
    ("nsys_version", "nvtx_version", "is_lost"),
    [
        ((2023, 4, 4, 54), "0.2.11", False),
        ((2023, 4, 4, 54), "0.2.12", True),
        ((2024, 2, 3, 38), "0.2.13", True),
        ((2024, 5, 1), "0.2.13", False),
        ((2022, 4, 2, 1), "0.2.8", False),
    ],
)
def test_a_pair_that_loses_every_range_is_known(nsys_version, nvtx_version, is_lost):
    assert (nsys.nvtx_problem(nsys_version, nvtx_version) is not None) == is_lost


# ---------------------------------------------------------------------------------------------------------- exports


def report_of(folder: Path, text: str = "a report") -> Path:
    path = folder / "report.nsys-rep"
    path.write_text(text)
    return path


def exporter(folder: Path, body: str) -> Nsys:
    return nsys.find(fake_nsys(folder / "nsys", export=body))


def test_an_export_lies_beside_its_report(tmp_path):
    found = nsys.export(nsys.find(fake_nsys(tmp_path / "nsys")), report_of(tmp_path))
    assert found == tmp_path / "report.sqlite"
    assert found.read_text() == "export of a report"


@pytest.mark.parametrize(
    "said",
    [
        "Exportation error: Version number is invalid: 2025@3@2@474-2025v0",
        "Exportation error: Report was created in Nsight Systems version (2025.3.2.474-2025v0), newer than your current "
        "version (2023.4.4.54-1v0).\\nPlease update your Nsight Systems to the latest version to view this report.",
    ],
)
def test_a_report_newer_than_nsys_names_both_versions_and_leaves_no_half_file(tmp_path, said):
    tool = exporter(tmp_path, f"import os\nopen(sys.argv[-2].removeprefix('--output='), 'w').write('half')\nsys.exit('{said}')")
    with pytest.raises(InputError, match=r"written by nsys 2025\.3\.2\.474, newer than this nsys 2023\.4\.4\.54") as caught:
        nsys.export(tool, report_of(tmp_path))
    assert said.split("\\n")[0] in caught.value.message
    assert "\n" not in caught.value.message
    assert "where it was captured" in caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nsys", "report.nsys-rep"]


def test_a_failed_export_keeps_the_one_before(tmp_path):
    (tmp_path / "report.sqlite").write_text("the one before")
    with pytest.raises(ToolError, match="could not export it: no space left"):
        nsys.export(exporter(tmp_path, "sys.exit('no space left')"), report_of(tmp_path))
    assert (tmp_path / "report.sqlite").read_text() == "the one before"


def test_an_nsys_that_leaves_nothing_is_an_error_whatever_its_status(tmp_path):
    with pytest.raises(ToolError, match=r"it said nothing and left nothing \(status 0\)"):
        nsys.export(exporter(tmp_path, "pass"), report_of(tmp_path))


def test_what_is_no_report_is_refused(tmp_path):
    tool = exporter(tmp_path, "sys.exit('Exportation error: Cannot read from stream.')")
    with pytest.raises(InputError, match="not an Nsight Systems report"):
        nsys.export(tool, report_of(tmp_path, ""))
    with pytest.raises(InputError, match="no such report"):
        nsys.export(tool, tmp_path / "missing.nsys-rep")
    with pytest.raises(InputError, match="cannot be read"):
        nsys.export(tool, tmp_path)


@pytest.mark.parametrize(
    ("name", "text"), [("run.qdstrm", "anything"), ("run.nsys-rep", "U3w[END]NVIDIA Nsight Systems Stream")]
)
def test_an_unfinished_stream_says_how_to_finish_it(tmp_path, name, text):
    stream = tmp_path / name
    stream.write_text(text)
    with pytest.raises(InputError, match="unfinished stream, not a report") as caught:
        nsys.export(OLD, stream)
    assert f"QdstrmImporter -i {stream} -o {tmp_path}/run.nsys-rep" in caught.value.hint


def test_an_export_never_replaces_its_report(tmp_path):
    report = report_of(tmp_path)
    with pytest.raises(UsageError, match="would overwrite the report"):
        nsys.export(OLD, report, report)
    assert report.read_text() == "a report"


def test_an_export_older_than_its_report_is_stale(tmp_path):
    report, exported = report_of(tmp_path), tmp_path / "report.sqlite"
    exported.touch()
    os.utime(report, (1000, 1000))
    os.utime(exported, (1001, 1001))
    assert not nsys.is_stale(report, exported)
    os.utime(report, (1002, 1002))
    assert nsys.is_stale(report, exported)


def test_a_stream_is_finished_by_the_importer_beside_nsys(tmp_path):
    tool = nsys.find(fake_nsys(tmp_path / "target-linux-x64" / "nsys"))
    stream, report = tmp_path / "report.qdstrm", tmp_path / "report.nsys-rep"
    stream.write_text("events")
    with pytest.raises(ToolError, match="no QdstrmImporter"):
        nsys.import_stream(tool, stream, report)
    importer = tmp_path / "host-linux-x64" / "QdstrmImporter"
    program(importer, "open(sys.argv[-1], 'w').write('report of ' + open(sys.argv[-3]).read())")
    assert nsys.import_stream(tool, stream, report).read_text() == "report of events"
    program(importer, "sys.exit('the versions must match')")
    with pytest.raises(ToolError, match="the versions must match"):
        nsys.import_stream(tool, stream, tmp_path / "other.nsys-rep")
    assert not (tmp_path / "other.nsys-rep").exists()


# --------------------------------------------------------------------------------------------- against the real one


def test_a_mark_made_under_the_real_nsys_is_in_its_export(real, tmp_path):
    pytest.importorskip("nvtx")
    program = f"import nvtx\nwith nvtx.annotate({marks.step(7)!r}, domain={marks.DOMAIN!r}): pass"
    report = tmp_path / "100%" / "report.nsys-rep"
    report.parent.mkdir()
    command = nsys.profile_command(real, report, [sys.executable, "-c", program], has_cuda=False)
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    exported = nsys.export(real, report)
    assert sorted(path.name for path in report.parent.iterdir()) == ["report.nsys-rep", "report.sqlite"]
    with sqlite3.connect(exported) as connection:
        (count,) = connection.execute(
            "SELECT count(*) FROM NVTX_EVENTS JOIN StringIds ON id = textId WHERE value = ? AND end >= start", (marks.step(7),)
        ).fetchone()
    connection.close()
    assert count == 1


@pytest.mark.parametrize("uses_range", [False, True])
def test_the_real_nsys_takes_every_option_of_a_cuda_run(real, tmp_path, uses_range):
    report = tmp_path / "report.nsys-rep"
    command = nsys.profile_command(real, report, [sys.executable, "-S", "-c", ""], has_cuda=True, uses_range=uses_range)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert report.exists() == (not uses_range)  # a range that never opens leaves nothing, and nsys does not mind
