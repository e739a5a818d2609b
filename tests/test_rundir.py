"""A file or folder appears whole or not at all, and records read back as they were written."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpprof.errors import DdpprofError, InputError, ToolError
from ddpprof.model import (
    BucketRecord,
    FailureRecord,
    IterationRecord,
    LayoutRecord,
    LoggerRecord,
    Records,
    RunRecord,
)
from ddpprof.rundir import MANIFEST, RunDir, read_records, record_line, whole_file, whole_files, whole_folder

FULL = OSError(errno.ENOSPC, "No space left on device")


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    return fail


def tree(folder: Path) -> dict[str, str]:
    """Every file below ``folder`` with its text, hidden ones included; folders end in a slash."""
    return {
        str(path.relative_to(folder)) + "/" * path.is_dir(): "" if path.is_dir() else path.read_text()
        for path in sorted(folder.rglob("*"))
    }


# -- whole_file


def write(path: Path, text: str = "new", error: BaseException | None = None) -> None:
    with whole_file(path) as partial:
        partial.write_text(text)
        if error is not None:
            raise error


def test_a_file_appears_with_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "report.json")
    assert tree(tmp_path) == {"a/": "", "a/b/": "", "a/b/report.json": "new"}


def test_a_file_is_not_there_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    with whole_file(path) as partial:
        partial.write_text("half")
        assert (path.read_text(), partial.parent, partial.suffix) == ("old", tmp_path, ".json")
    assert tree(tmp_path) == {"report.json": "half"}


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), ToolError("x")])
def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    with pytest.raises(type(error)) as caught:
        write(path, error=error)
    assert caught.value is error
    assert tree(tmp_path) == {"report.json": "old"}


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_file_has_the_permissions_that_any_file_gets(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write(tmp_path / "report.json")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "report.json").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("where", ["block", "replace", "mkstemp", "mkdir"])
def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    if where == "mkstemp":
        monkeypatch.setattr(tempfile, where, raising(FULL))
    elif where != "block":
        monkeypatch.setattr(Path, where, raising(FULL))
    with pytest.raises(DdpprofError) as caught:
        write(path, error=FULL if where == "block" else None)
    assert str(caught.value) == (
        f"{path}: cannot be written: No space left on device\nFree some space or choose another place."
    )
    assert tree(tmp_path) == {"report.json": "old"}


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *arguments: False)
    with pytest.raises(DdpprofError, match=rf"^{tmp_path}: no permission to write there\nChoose another place\.$"):
        write(tmp_path / "report.json")
    with pytest.raises(DdpprofError, match="no permission to write there"), whole_folder(tmp_path / "run", A_RUN):
        raise AssertionError("not reached")
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("name", ["file/report.json", "folder", "n" * 300])
def test_a_place_where_no_file_can_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("a file")
    (tmp_path / "folder").mkdir()
    before = tree(tmp_path)
    with pytest.raises(DdpprofError, match="cannot be written: "):
        write(tmp_path / name)
    assert tree(tmp_path) == before


# -- whole_folder

OURS, A_RUN = '{"case": null}', "a run of your own job"
RUN = {"run/": "", f"run/{MANIFEST}": OURS}


def make(path: Path, text: str = "new", error: BaseException | None = None) -> None:
    with whole_folder(path, A_RUN) as partial:
        (partial / MANIFEST).write_text(OURS)
        (partial / "report.sqlite").write_text(text)
        if error is not None:
            raise error


def test_a_folder_appears(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "run")
    assert tree(tmp_path / "runs") == RUN | {"run/report.sqlite": "new"}


def test_a_run_folder_is_replaced_when_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make(path, "old")
    with whole_folder(path, A_RUN) as partial:
        (partial / MANIFEST).write_text(OURS)
        assert (path / "report.sqlite").read_text() == "old"
    assert tree(tmp_path) == RUN


def fill(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("__", "/")).parent.mkdir(parents=True, exist_ok=True)
        (folder / name.replace("__", "/")).write_text(text)


FOREIGN = {"notes": "mine", "report_of_mine": "mine", "plots__a": "mine", "plots__deep__b": "mine", "cap4__notes": "mine"}


def test_what_is_not_a_runs_own_goes_over_into_the_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make(path, "old")
    fill(path, **FOREIGN, cap4__round1__notes="mine")
    (path / "cap4" / "report.sqlite").write_text("old")
    (path / "train.log").write_text("mine")
    (path / "dangling").symlink_to("nowhere")
    make(path)
    assert (path / "dangling").is_symlink()
    (path / "dangling").unlink()
    mine = ("notes", "train.log", "report_of_mine", "plots/a", "plots/deep/b", "cap4/notes", "cap4/round1/notes")
    assert {name: text for name, text in tree(path).items() if text} == dict.fromkeys(mine, "mine") | {
        MANIFEST: OURS,
        "report.sqlite": "new",
    }
    assert [item.name for item in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("failing", range(1, 6))
def test_what_is_not_a_runs_own_survives_a_move_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """The moves: the old folder aside, three things over, the new folder in."""
    make(tmp_path / "run", "old")
    fill(tmp_path / "run", notes="mine", plots__a="mine", cap4__notes="mine")
    before = tree(tmp_path)
    rename, calls = Path.rename, []

    def counted(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == failing:
            raise FULL
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", counted)
    with pytest.raises(DdpprofError, match="No space left on device"):
        make(tmp_path / "run")
    assert tree(tmp_path) == before


def test_what_cannot_even_be_put_back_is_left_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "run", "old")
    rename, calls = Path.rename, []

    def once(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) > 1:
            raise FULL
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", once)
    with pytest.raises(DdpprofError, match="No space left on device"):
        make(tmp_path / "run")
    assert [path.read_text() for path in tmp_path.glob(".run.old.*/old/report.sqlite")] == ["old"]


@pytest.mark.parametrize(
    ("manifest", "there"),
    [
        ('{"case": "delay_cap4"}', "a run of delay_cap4"),
        ('{"case": null, "caps_mb": [1, 2]}', "a sweep of your own job"),
        ('{"case": "delay_cap4", "caps_mb": []}', "a sweep of delay_cap4"),
    ],
)
def test_a_run_of_something_else_is_not_replaced(tmp_path: Path, manifest: str, there: str) -> None:
    fill(tmp_path / "run", **{MANIFEST: manifest})
    before = tree(tmp_path)
    with pytest.raises(DdpprofError) as caught:
        make(tmp_path / "run")
    assert str(caught.value) == (
        f"{tmp_path}/run: holds {there}, not {A_RUN}\nChoose another place with -o, or remove it; nothing was changed."
    )
    assert tree(tmp_path) == before


def test_files_have_the_permissions_that_any_file_gets_whoever_made_them(tmp_path: Path) -> None:
    """nsys starts the job without a umask."""
    with whole_folder(tmp_path / "run", A_RUN) as partial:
        before = os.umask(0)
        try:
            fill(partial, records="x", cap4__records="x")
            (partial / "tool").touch(0o777)
        finally:
            os.umask(before)
    mode = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert mode == {name: (0o666 if name == "records" else 0o777) & ~before for name in ("run", "records", "cap4", "tool")}


def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    make(tmp_path / "run")
    assert tree(tmp_path) == RUN | {"run/report.sqlite": "new"}


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), ToolError("x")])
@pytest.mark.parametrize("is_there", [True, False])
def test_an_exception_leaves_the_old_folder_and_nothing_else(tmp_path: Path, error: BaseException, is_there: bool) -> None:
    if is_there:
        make(tmp_path / "run", "old")
    before = tree(tmp_path)
    with pytest.raises(type(error)) as caught:
        make(tmp_path / "run", error=error)
    assert str(caught.value) == str(error)
    assert tree(tmp_path) == before


def test_an_error_names_the_folder_and_not_the_temporary_one(tmp_path: Path) -> None:
    with pytest.raises(ToolError) as caught, whole_folder(tmp_path / "run", A_RUN) as partial:
        raise ToolError(f"{partial}/report.sqlite: no", f"see {partial}/rank0.log")
    assert str(caught.value) == f"{tmp_path}/run/report.sqlite: no\nsee {tmp_path}/run/rank0.log"


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()])
@pytest.mark.parametrize("failing", [1, 2])
def test_the_old_folder_survives_a_move_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, failing: int
) -> None:
    """Moving the old one aside is the first rename, moving the new one in the second; the third puts the old one back."""
    make(tmp_path / "run", "old")
    before = tree(tmp_path)
    rename, calls = Path.rename, []

    def counted(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == failing:
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", counted)
    with pytest.raises(DdpprofError if error is FULL else KeyboardInterrupt):
        make(tmp_path / "run")
    assert tree(tmp_path) == before
    assert len(calls) == (1 if failing == 1 else 3)


@pytest.mark.parametrize("where", ["block", "mkdtemp"])
def test_a_full_disk_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    make(tmp_path / "run", "old")
    before = tree(tmp_path)
    if where == "mkdtemp":
        monkeypatch.setattr(tempfile, where, raising(FULL))
    with pytest.raises(DdpprofError, match="run: cannot be written: No space left on device"):
        make(tmp_path / "run", error=FULL if where == "block" else None)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("content", [{"thesis.tex": "my work"}, {"sub/": ""}, {MANIFEST: '{"name": "web app"}', "app.js": ""}])
def test_somebodys_work_is_never_replaced(tmp_path: Path, content: dict[str, str]) -> None:
    path = tmp_path / "run"
    path.mkdir()
    for name, text in content.items():
        (path / name).mkdir() if name.endswith("/") else (path / name).write_text(text)
    before = tree(tmp_path)
    with pytest.raises(DdpprofError, match="exists and is not a run folder\nChoose another place with -o; nothing was changed"):
        make(path)
    assert tree(tmp_path) == before


def test_a_file_where_a_folder_must_be_is_told_as_one(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(DdpprofError, match=rf"^{path}: is a file, not a folder\nChoose another place with -o"):
        make(path)
    for folder in (path, path / "run"):
        said = rf"^{folder}: cannot be written: {path} is a file, not a folder\nChoose another place\.$"
        with pytest.raises(DdpprofError, match=said), whole_files(folder):
            raise AssertionError("not reached")
    with pytest.raises(DdpprofError, match=rf"cannot be written: {path} is a file, not a folder"):
        make(path / "run")
    assert tree(tmp_path) == {"notes": "mine"}


def test_a_link_to_a_run_is_replaced_and_the_run_it_pointed_to_is_kept(tmp_path: Path) -> None:
    make(tmp_path / "elsewhere", "old")
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    make(tmp_path / "run")
    assert not (tmp_path / "run").is_symlink()
    assert [(tmp_path / name / "report.sqlite").read_text() for name in ("elsewhere", "run")] == ["old", "new"]


def test_the_working_folder_itself_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "run", "old")
    before = tree(tmp_path)
    monkeypatch.chdir(tmp_path / "run")
    with pytest.raises(DdpprofError):
        make(Path())
    assert tree(tmp_path) == before


# -- whole_files


def test_files_appear_together_beside_those_of_other_names(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "summary.md").write_text("old")
    with whole_files(tmp_path) as partial:
        (partial / "summary.md").write_text("new")
        (partial / "timeline.png").write_text("picture")
        assert (tmp_path / "summary.md").read_text() == "old"
    assert tree(tmp_path) == {"mine.txt": "mine", "summary.md": "new", "timeline.png": "picture"}


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), FULL])
@pytest.mark.parametrize("is_there", [True, False])
def test_an_exception_leaves_no_file_and_no_new_folder(tmp_path: Path, error: BaseException, is_there: bool) -> None:
    if is_there:
        (tmp_path / "out").mkdir()
    before = tree(tmp_path)

    def fail() -> None:
        with whole_files(tmp_path / "out") as partial:
            (partial / "summary.md").write_text("half")
            raise error

    with pytest.raises(DdpprofError if error is FULL else type(error)):
        fail()
    assert tree(tmp_path) == before


# -- RunDir


def test_captures_are_the_exports_else_the_torch_traces(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.reports() == []
    run.torch_trace(0).write_text("")
    run.torch_trace(1).write_text("")
    assert run.reports() == [run.torch_trace(0), run.torch_trace(1)]
    run.sqlite(1).write_text("")
    run.sqlite().write_text("")
    run.nsys_report().write_text("")
    (tmp_path / "report_of_mine.sqlite").write_text("")
    assert run.reports() == [run.sqlite(1), run.sqlite()]


def test_the_manifest(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with pytest.raises(InputError, match=r"not a run folder \(no manifest.json\)\nMake one with: ddpprof profile CASE"):
        run.read_manifest()
    assert not run.is_run()
    run.manifest.write_text('{"case": "delay_cap4"}')
    assert (run.is_run(), run.read_manifest()) == (True, {"case": "delay_cap4"})


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff", b"null", b'{"case": ["x"]}', b'{"warnings": 3}'])
def test_a_damaged_manifest(tmp_path: Path, raw: bytes) -> None:
    RunDir(tmp_path).manifest.write_bytes(raw)
    with pytest.raises(InputError, match=rf"^{tmp_path}/manifest.json: (not a manifest|cannot be read: .*)$"):
        RunDir(tmp_path).read_manifest()


# -- records

RECORDS: dict[str, Any] = {
    "runs": RunRecord,
    "iterations": IterationRecord,
    "buckets": BucketRecord,
    "loggers": LoggerRecord,
    "layouts": LayoutRecord,
    "failures": FailureRecord,
}
number = st.floats(allow_nan=False)
value = st.integers() | number | st.text(max_size=5) | st.none() | st.lists(st.integers(), max_size=3)
row = st.one_of(
    st.builds(RunRecord, bucket_cap_mb=number),
    st.builds(IterationRecord, loss=number),
    st.builds(BucketRecord),
    st.builds(LoggerRecord, fields=st.dictionaries(st.text(max_size=5), value, max_size=3)),
    st.builds(LayoutRecord),
    st.builds(FailureRecord),
)


@given(st.lists(st.lists(row, max_size=6), min_size=1, max_size=3))
def test_records_read_back_as_written(tmp_path: Path, ranks: list[list[Any]]) -> None:
    for old in tmp_path.glob("*.jsonl"):
        old.unlink()
    for rank, rows in enumerate(ranks):
        RunDir(tmp_path).records(rank).write_text("".join(map(record_line, rows)), encoding="utf-8")
    everything = [row for rows in ranks for row in rows]
    found = read_records(RunDir(tmp_path))
    assert {name: getattr(found, name) for name in RECORDS} == {
        name: tuple(row for row in everything if type(row) is kind) for name, kind in RECORDS.items()
    }


def test_a_run_without_records(tmp_path: Path) -> None:
    assert read_records(RunDir(tmp_path)) == Records()


BUCKET = BucketRecord(rank=0, step=4, bucket=1, size_bytes=8, is_last=True, parameters=[1], ready_ns=1, launch_ns=2)


def changed(**fields: Any) -> str:
    return json.dumps(json.loads(record_line(BUCKET)) | fields)


def test_what_a_later_version_adds_is_passed_over(tmp_path: Path) -> None:
    RunDir(tmp_path).records(0).write_text(f'{changed(colour="red")}\n{{"table": "energy", "joule": 3}}\n')
    assert read_records(RunDir(tmp_path)).buckets == (BUCKET,)


def test_a_loss_that_is_no_number_is_a_loss(tmp_path: Path) -> None:
    times = dict.fromkeys(("step_ns", "forward_ns", "backward_host_ns", "backward_ns", "optimizer_host_ns"), 1)
    diverged = IterationRecord(rank=0, step=1, is_captured=False, loss=float("nan"), replica_hash="x", **times)
    RunDir(tmp_path).records(0).write_text(record_line(diverged))
    assert math.isnan(read_records(RunDir(tmp_path)).iterations[0].loss)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[1]",
        "7",
        '"text"',
        "{}",
        '{"table": "bucket"}',
        '{"table": ["bucket"]}',
        "[" * 100_000,
        record_line(BUCKET)[:-20],
        changed(rank="0"),
        changed(parameters=["a"]),
        changed(parameters=None),
        changed(size_bytes=1.5),
        changed(is_last=1),
        '{"table": "bucket\udcff"}',
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = RunDir(tmp_path).records(0)
    path.write_text(f"{record_line(BUCKET)}{line}\n{record_line(BUCKET)}", encoding="utf-8", errors="surrogateescape")
    with pytest.raises(InputError) as caught:
        read_records(RunDir(tmp_path))
    assert str(caught.value) == f"{path}:2: not a record line\nRun the case again to write fresh records."


def test_records_that_cannot_be_opened(tmp_path: Path) -> None:
    RunDir(tmp_path).records(0).mkdir()
    with pytest.raises(InputError, match=r"records\.rank0\.jsonl: cannot be read: Is a directory"):
        read_records(RunDir(tmp_path))
