from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ddpprof.errors import DdpprofError, UsageError
from ddpprof.model import Analysis, FailureRecord, RankRow, Records, Timeline
from ddpprof.reports import files, markdown, page, plots, tables

Make = Callable[[str], Analysis]
SUMMARY = {"summary.md", "summary.json", "summary.html", "timeline.png"}


@pytest.fixture(autouse=True)
def quick_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture that takes no time; tests/reports/test_plots.py has the real one."""
    monkeypatch.setattr(plots, "draw_timeline", lambda timeline, path: path.write_bytes(b"\x89PNG"))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_each_rank_has_its_report_beside_the_summary(make: Make, records: Records, one_lane: Timeline, tmp_path: Path) -> None:
    analysis = make("two_ranks")
    files.write(tmp_path / "out", analysis, one_lane, records)
    assert names(tmp_path / "out") == SUMMARY | {"rank0.md", "rank0.json", "rank1.md", "rank1.json"}
    texts = {path.name: path.read_text() for path in (tmp_path / "out").iterdir() if path.suffix in (".md", ".json")}
    assert texts["summary.json"] == tables.to_json(analysis)
    assert texts["summary.md"] == markdown.render(analysis, records=records, timeline="timeline.png")
    assert texts["rank1.json"] == tables.rank_json(analysis, analysis.ranks[1])
    assert texts["rank1.md"] == markdown.render_rank(analysis, analysis.ranks[1], records)


def test_every_example_is_written(example: Analysis, one_lane: Timeline, tmp_path: Path) -> None:
    files.write(tmp_path, example, one_lane)
    assert len(names(tmp_path)) == len(SUMMARY) + 2 * len(example.ranks)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([{}, {"rank": 1}], ["0", "1"]),
        ([{}, {"device_id": 3}], ["0-device0", "0-device3"]),
        ([{"rank": None, "pid": 7}, {"rank": None, "pid": 8}], ["-unknown-0-7", "-unknown-0-8"]),
        ([{"rank": None, "pid": 7}, {"rank": None, "pid": 7, "report": 1}], ["-unknown-0-7", "-unknown-1-7"]),
        (
            [{"rank": None, "pid": 7}, {"rank": None, "pid": 7, "device_id": 1}, {"rank": 2}],
            ["-unknown-0-7-device0", "-unknown-0-7-device1", "2"],
        ),
    ],
)
def test_files_are_named_by_rank_or_by_what_tells_the_rows_apart(
    make: Make, changes: list[dict[str, int | None]], expected: list[str]
) -> None:
    (first, _) = make("two_ranks").ranks
    rows: tuple[RankRow, ...] = tuple(replace(first, **change) for change in changes)  # type: ignore[arg-type]
    assert files.rank_names(rows) == expected


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_all_files_or_none(
    make: Make, one_lane: Timeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    files.write(tmp_path / "old", make("two_ranks"), one_lane)
    (tmp_path / "old" / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}

    def fail(*arguments: object) -> str:
        raise error

    monkeypatch.setattr(page, "render", fail)
    for folder in ("old", "new"):
        with pytest.raises(DdpprofError if isinstance(error, OSError) else KeyboardInterrupt):
            files.write(tmp_path / folder, make("four_hosts"), one_lane)
    assert {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()} == before
    assert names(tmp_path) == {"old"}


def test_a_case_that_had_to_fail_leaves_who_failed_and_how(records: Records, tmp_path: Path) -> None:
    (expected,) = records.failures
    other = FailureRecord(rank=0, step=2, error="ValueError", message="another", is_expected=False)
    files.write_failures(tmp_path, "unused_undetected", replace(records, failures=(expected, other)), 4)
    assert names(tmp_path) == {"summary.md", "summary.json"}
    assert (tmp_path / "summary.md").read_text() == (
        "# DDP overlap: unused_undetected\n\nexpected failure seen on 1 of 4 ranks\n\n"
        "- rank 1 failed in step 5, as this case must: RuntimeError: Expected to have finished \\| reduction\n"
        "- rank 0 failed in step 2: ValueError: another\n"
    )
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "format_version": 1,
        "case": "unused_undetected",
        "failures": [
            {"rank": 1, "step": 5, "is_expected": True, "message": "Expected to have finished | reduction"},
            {"rank": 0, "step": 2, "is_expected": False, "message": "another"},
        ],
    }


def test_the_ranks_of_the_analysis_before_are_gone(make: Make, one_lane: Timeline, tmp_path: Path) -> None:
    four, two = make("four_hosts"), make("two_ranks")
    files.write(tmp_path, four, one_lane)
    mine = {"rank7.json": "[]", "rank7.md": "mine", "rank3.txt": "mine", "rank0-predict.json": '{\n  "format_version": 1}'}
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    assert "rank3.json" in names(tmp_path)
    files.write(tmp_path, two, one_lane)
    assert names(tmp_path) == SUMMARY | {"rank0.md", "rank0.json", "rank1.md", "rank1.json"} | mine.keys()
    assert (tmp_path / "rank1.json").read_text() == tables.rank_json(two, two.ranks[1])


@pytest.mark.parametrize("name", ["summary.md", "summary.json", "timeline.png", "rank1.md", "rank1.json"])
def test_what_somebody_wrote_is_named_and_nothing_changes(make: Make, one_lane: Timeline, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=f"{name}: exists and is not a report of ddpprof\n"):
        files.write(tmp_path, make("two_ranks"), one_lane)
    assert (names(tmp_path), (tmp_path / name).read_text()) == ({name}, "mine")


def test_a_run_folder_takes_only_its_own_reports(tmp_path: Path) -> None:
    for name in ("run", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    run, other = tmp_path / "run", tmp_path / "other"
    files.check_place(run, [tmp_path / "other" / ".." / "run"])
    files.check_place(tmp_path, [run])
    for inputs in ([other], [run / "report.sqlite"], [run, other]):
        with pytest.raises(UsageError, match="run: is the folder of another run\n"):
            files.check_place(run, inputs)
