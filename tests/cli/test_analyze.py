"""``ddpprof analyze``: every format, every option, on a GPU job and a CPU job whose numbers can be read off."""

from __future__ import annotations

import csv
import errno
import io
import json
from pathlib import Path

import pytest
from nsight import K, P, build

from ddpprof.reports import page

FORMATS = ("text", "json", "csv", "markdown", "html")
MILLISECOND = 1_000_000
SECRET = "correct-horse-battery-staple"

# Steps of both ranks, in ms from their start: GEMM 0..100, spin 100..120, NCCL 50..150 of rank 0, 110..150 of rank 1.
# Rank 0 overlaps 70 of 100, with spin alone 20; rank 1 10 of 40.
GPU = "".join(
    f"""
    process {pid} rank={rank} world=2 gpus={rank + 1}
    N {base}..{base + 150000} "step/{step}"
    K dev0 s7   {base}..{base + 100000} GEMM launch={base}..{base + 1}
    K dev0 s7   {base + 100000}..{base + 120000} SPIN launch={base + 2}..{base + 3}
    K dev0 s16  {base + start}..{base + 150000} NCCL launch={base + 4}..{base + 5}
    M dev0 s20  {base}..{base + 10} HtoD launch={base}..{base + 1}
    """
    for rank, (pid, start) in enumerate(((100, 50_000), (200, 110_000)))
    for step, base in ((3, 0), (4, 200_000), (5, 400_000))
)
# A CPU rank: delay 0..10, all-reduce 5..15 ms.
HOST = """
    process 100 rank=0 world=1
    N   0..16000 "step/7" domain=ddpprof
    N   0..10000 "delay/0" domain=ddpprof thread=1
    N   5000..5001 "bucket/0/4194304" domain=ddpprof thread=1
    N60 5000..15000 "allreduce/0" domain=ddpprof thread=1
"""


@pytest.fixture
def gpu(tmp_path: Path) -> Path:
    return build(tmp_path / "gpu.sqlite", GPU, env={"MY_TOKEN": SECRET, "HOSTNAME": "xyzzy-host"})


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return build(tmp_path / "host.sqlite", HOST, env={"MY_TOKEN": SECRET, "HOSTNAME": "xyzzy-host"})


def ranks(run) -> list[dict]:
    """The rank rows of a run with ``-f json``."""
    assert (run.status, run.err) == (0, "")
    return json.loads(run.out)["ranks"]


def overlaps(run) -> list[int]:
    """``overlap_ns`` of each rank in whole milliseconds."""
    return [row["overlap_ns"] // MILLISECOND for row in ranks(run)]


# ----------------------------------------------------------------------------------------------------------- formats


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("which", "evidence", "number"), [("gpu", "gpu-kernels", {"70.0", "70000000"}), ("host", "host-ranges", {"5.0", "5000000"})]
)
def test_every_format_says_evidence_and_overlap_and_no_environment(cli, request, which, evidence, number, form):
    found = cli("analyze", request.getfixturevalue(which), "--format", form, "--per-step", "--buckets", "--show-kinds")
    assert (found.status, found.err) == (0, "")
    assert evidence in found.out or form == "csv"
    assert any(text in found.out.replace(",", "") for text in number)
    assert SECRET not in found.out
    assert "xyzzy" not in found.out


def test_json_is_exact(cli, gpu):
    first, second = ranks(cli("analyze", gpu, "-f", "json"))
    names = ("rank", "steps", "step_ns", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "overlap_ratio")
    unit = MILLISECOND
    assert [first[name] for name in names] == [0, 3, 150 * unit, 120 * unit, 100 * unit, 70 * unit, 30 * unit, 0.7]
    assert [second[name] for name in names] == [1, 3, 150 * unit, 120 * unit, 40 * unit, 10 * unit, 30 * unit, 0.25]


@pytest.mark.parametrize(
    ("flags", "key", "n_rows"),
    [
        ([], "rank_source", 2),
        (["--show-kinds"], "operation", 4),
        (["--per-step"], "complete", 6),
        (["--buckets"], "attribution", 6),
        (["--show-kinds", "--per-step"], "complete", 6),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_csv_is_the_one_table_asked_for(cli, gpu, flags, key, n_rows):
    rows = list(csv.DictReader(io.StringIO(cli("analyze", gpu, "-f", "csv", *flags).out)))
    assert key in rows[0]
    assert len(rows) == n_rows


@pytest.mark.parametrize(
    ("flag", "heading"),
    [("--per-step", "\nSteps"), ("--buckets", "\nCommunication, bucket"), ("--show-kinds", "\nWhat was taken")],
)
def test_text_has_a_table_only_when_asked(cli, gpu, flag, heading):
    assert heading not in cli("analyze", gpu).out
    assert heading in cli("analyze", gpu, flag).out


# ----------------------------------------------------------------------------------------------------------- options


def test_compute_narrows_one_question_and_leaves_the_other(cli, gpu):
    found = json.loads(cli("analyze", gpu, "-f", "json", "--compute", "spin_kernel").out)
    assert [row["overlap_ns"] for row in found["ranks"]] == [70 * MILLISECOND, 10 * MILLISECOND]
    assert found["focus"]["pattern"] == "spin_kernel"
    assert [(row["n_compute"], row["overlap_ns"]) for row in found["focus"]["ranks"]] == [
        (1, 20 * MILLISECOND),
        (1, 10 * MILLISECOND),
    ]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], [70, 10]),
        (["--comm", "SPIN_kernel"], [50, 0]),
        (["--not-comm", "nccl"], [0, 0]),
        (["--streams", "7,16"], [70, 10]),
        (["--streams", " 16"], [0, 0]),
        (["--step", "4"], [70, 10]),
        (["--step", "4:9"], [70, 10]),
        (["--whole-capture"], [210, 30]),
    ],
    ids=lambda value: " ".join(value) if value and isinstance(value[0], str) else "",
)
def test_options_choose_what_is_counted(cli, gpu, flags, expected):
    assert overlaps(cli("analyze", gpu, "-f", "json", *flags)) == expected


@pytest.mark.parametrize(("value", "numbers"), [("4", [4]), ("3:4", [3, 4]), ("5:99", [5])])
def test_step_keeps_both_ends(cli, gpu, value, numbers):
    found = json.loads(cli("analyze", gpu, "-f", "json", "--step", value).out)
    assert [row["step"] for row in found["breakdown"] if row["rank"] == 0] == numbers
    assert {row["steps"] for row in found["ranks"]} == {len(numbers)}


def test_step_range_finds_steps_of_another_name(cli, tmp_path):
    path = build(
        tmp_path / "a.sqlite",
        """
        N   0..100 "epoch one"
        N 100..200 "epoch two"
        K dev0 s7    0..10  GEMM launch=0..1
        K dev0 s7  100..110 GEMM launch=100..101
        """,
    )
    assert [row["steps"] for row in ranks(cli("analyze", path, "-f", "json"))] == [0]
    assert [row["steps"] for row in ranks(cli("analyze", path, "-f", "json", "--step-range", "^epoch"))] == [2]


def test_a_rank_that_the_report_tells_itself_is_overruled_with_a_warning(cli, tmp_path):
    path = build(tmp_path / "node.sqlite", [P(100, rank=2, world=4), K(0, 7, 0, 10)])
    found = json.loads(cli("analyze", path, "-f", "json", "--rank", "node.sqlite=1").out)
    warnings = {warning["code"]: warning["message"] for warning in found["warnings"]}
    assert found["ranks"][0]["rank"] == 1
    assert warnings["rank-overruled"] == "rank 1 by --rank, though the report itself tells rank 2"
    agreed = json.loads(cli("analyze", path, "-f", "json", "--rank", "node.sqlite=2").out)
    assert "rank-overruled" not in {warning["code"] for warning in agreed["warnings"]}


def test_a_rank_can_be_told_by_path_or_name(cli, tmp_path):
    paths = [build(tmp_path / f"node{at}.sqlite", [K(0, 7, 0, 10 + at)], session_ns=at) for at in (1, 2)]
    flags = ("--rank", f"{paths[0]}=5", "--rank", "node2.sqlite=3")
    rows = ranks(cli("analyze", *paths, "-f", "json", *flags))
    assert [(row["rank"], row["rank_source"], row["report"]) for row in rows] == [(3, "option", 1), (5, "option", 0)]


@pytest.mark.parametrize(
    ("flags", "what", "hint"),
    [
        (["--streams", "7;20"], "--streams 7;20: not a list of stream ids", "--streams 7,20"),
        (["--streams", ""], "not a list of stream ids", "--streams 7,20"),
        (["--streams", "999"], "no stream 999 in the input", "There are: 7, 16, 20."),
        (["--step", "four"], "--step four: not a step number", "--step 3:12"),
        (["--step", "4:"], "not a step number or A:B", "--step 3:12"),
        (["--step", "-1"], "not a step number or A:B", "--step 3:12"),
        (["--step", "5:3"], "--step 5:3: ends before it begins", "--step 3:5"),
        (["--step", "99"], "no step 99 in the input", "There are: 3, 4, 5."),
        (["--step", "9" * 30], "in the input", "There are: "),
        (["--compute", "["], "--compute: not a regular expression", "backslash"),
        (["--comm", "("], "--comm: not a regular expression", "backslash"),
        (["--not-comm", "*"], "--not-comm: not a regular expression", "backslash"),
        (["--step-range", "("], "--step-range: not a regular expression", "backslash"),
        (["--step-range", "(?=a)"], "--step-range: not a pattern that can be searched for", "(?=...)"),
        (["--rank", "3"], "--rank 3: not FILE=N", "node1.sqlite=4"),
        (["--rank", "gpu.sqlite=x"], "not FILE=N", "node1.sqlite=4"),
        (["--rank", "gpu.sqlite=-1"], "not FILE=N", "node1.sqlite=4"),
        (["--rank", "other.sqlite=1"], "no input of that name", "Inputs are: "),
        (["--rank", "gpu.sqlite=1"], "has 2 processes", "one process"),
        (["--format", "xml"], "'xml' is not one of", "--help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_value_is_status_2_with_what_to_write_instead(cli, gpu, flags, what, hint):
    found = cli("analyze", gpu, *flags)
    assert (found.status, found.out) == (2, "")
    first, second = found.err.splitlines()
    assert what in first
    assert hint in second


# ------------------------------------------------------------------------------------------------------ the folder


FILES = {"summary.md", "summary.json", "summary.html", "timeline.png", "rank0.md", "rank0.json", "rank1.md", "rank1.json"}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_folder_holds_summary_ranks_and_picture(cli, gpu, tmp_path):
    found = cli("analyze", gpu, "-o", tmp_path / "a" / "out", "-f", "json", "--show-kinds")
    folder = tmp_path / "a" / "out"
    assert (found.status, found.err) == (0, f"reports are in {folder}\n")
    assert names(folder) == FILES
    assert (folder / "summary.json").read_text() == found.out
    assert (folder / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert not any(SECRET in path.read_text() for path in folder.iterdir() if path.suffix != ".png")


def test_quiet_leaves_only_the_result(cli, gpu, tmp_path):
    assert cli("-q", "analyze", gpu, "-o", tmp_path / "out") == (0, cli("analyze", gpu).out, "")


def test_an_existing_folder_keeps_what_is_not_ours(cli, gpu, tmp_path):
    (tmp_path / "notes.txt").write_text("old")
    assert cli("analyze", gpu, "-o", tmp_path).status == 0
    (tmp_path / "summary.md").write_text("old")
    assert cli("analyze", gpu, "-o", tmp_path).status == 0
    assert names(tmp_path) == FILES | {"notes.txt", "gpu.sqlite"}
    assert (tmp_path / "notes.txt").read_text() == "old"
    assert (tmp_path / "summary.md").read_text() != "old"


def test_neither_a_summary_of_ones_own_nor_another_run_is_written_over(cli, gpu, tmp_path):
    (tmp_path / "summary.md").write_text("mine")
    found = cli("analyze", gpu, "-o", tmp_path)
    assert (found.status, found.out) == (2, "")
    assert f"{tmp_path}/summary.md: exists and is not a report of ddpprof" in found.err
    assert names(tmp_path) == {"gpu.sqlite", "summary.md"}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    found = cli("analyze", gpu, "-o", tmp_path / "run")
    assert (found.status, found.out) == (2, "")
    assert f"{tmp_path}/run: is the folder of another run" in found.err
    assert names(tmp_path / "run") == {"manifest.json"}


@pytest.mark.parametrize("is_there", [True, False])
def test_what_cannot_be_written_whole_is_not_written(cli, gpu, tmp_path, monkeypatch, is_there):
    folder = tmp_path / "out"
    if is_there:
        cli("analyze", gpu, "-o", folder)
        (folder / "summary.md").write_text("old")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(page, "render", full)  # picture, Markdown and JSON are written by then
    found = cli("analyze", gpu, "-o", folder)
    assert (found.status, found.out) == (1, "")
    assert found.err.splitlines() == [
        f"ddpprof: {folder}: cannot be written: No space left on device",
        "Free some space or choose another place.",
    ]
    assert names(folder) == FILES if is_there else not folder.exists()
    assert not is_there or (folder / "summary.md").read_text() == "old"


def test_a_place_without_permission_or_of_another_kind_is_told(cli, gpu, tmp_path, monkeypatch):
    found = cli("analyze", gpu, "-o", gpu)
    assert (found.status, found.out) == (1, "")
    assert f"{gpu}: cannot be written: {gpu} is a file, not a folder" in found.err
    monkeypatch.setattr("os.access", lambda path, mode: False)
    found = cli("analyze", gpu, "-o", tmp_path / "out")
    assert (found.status, found.out) == (1, "")
    assert found.err == f"ddpprof: {tmp_path / 'out'}: no permission to write there\nChoose another place.\n"


# ------------------------------------------------------------------------------------------------------------ inputs


def test_several_inputs_are_one_job(cli, tmp_path):
    paths = [
        build(
            tmp_path / f"{name}.sqlite",
            f"process 100 rank={rank} world=2\nK dev0 s7 0..100 GEMM\nK dev0 s16 {50 + rank}..150 NCCL",
            session_ns=rank,
        )
        for name, rank in (("b", 0), ("a", 1))
    ]
    together = cli("analyze", *paths, "-f", "json")
    assert [(row["rank"], row["report"]) for row in ranks(together)] == [(0, 0), (1, 1)]
    assert overlaps(together) == [0, 0]
    assert [row["overlap_ns"] for row in ranks(together)] == [50_000, 49_000]
    folder = ranks(cli("analyze", tmp_path, "-f", "json"))
    assert [(row["rank"], row["report"]) for row in folder] == [(0, 1), (1, 0)]


def test_a_broken_report_of_a_folder_is_left_out_and_named(cli, gpu, tmp_path):
    (tmp_path / "broken.sqlite").write_text("no database")
    found = json.loads(cli("analyze", tmp_path, "-f", "json").out)
    assert [row["rank"] for row in found["ranks"]] == [0, 1]
    (warning,) = (item for item in found["warnings"] if item["code"] == "capture-incomplete")
    assert warning["message"] == "broken.sqlite left out: not an SQLite file, so not an Nsight Systems export"
    named = cli("analyze", gpu, tmp_path / "broken.sqlite")
    assert (named.status, named.out) == (1, "")
    assert "broken.sqlite: not an SQLite file" in named.err


def test_a_file_name_that_is_no_text_is_shown_as_escapes(cli, gpu, tmp_path):
    odd = gpu.rename(tmp_path / "odd\udcff.sqlite")  # the byte 0xFF
    for form in FORMATS:
        assert cli("analyze", odd, "-f", form).status == 0
    assert "odd\\udcff.sqlite" in cli("analyze", odd, "-f", "json").out


def test_what_may_not_be_read_is_an_error_and_no_misuse(cli, gpu, monkeypatch):
    """Root may read anything, so permissions are played here."""

    def locked(path, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.access", lambda path, mode: False)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", locked)
        found = cli("analyze", gpu)
    assert found == (1, "", f"ddpprof: {gpu}: cannot be read: Permission denied\nCheck its permissions.\n")
    monkeypatch.setattr(Path, "exists", locked)
    assert cli("analyze", gpu) == (1, "", f"ddpprof: {gpu}: Permission denied\n")


def test_an_error_while_reading_leaves_no_folder(cli, tmp_path):
    (tmp_path / "a.sqlite").touch()
    found = cli("analyze", tmp_path / "a.sqlite", "-o", tmp_path / "out")
    assert (found.status, names(tmp_path)) == (1, {"a.sqlite"})
