"""``ddpprof redact``: what it says, and what it never replaces unasked."""

from __future__ import annotations

from nsight import build

ROWS = "K dev0 s7 0..100 GEMM\nK dev0 s16 50..150 NCCL"


def test_the_copy_is_told_and_its_folder_is_made(cli, report, tmp_path):
    target = tmp_path / "new" / "shared.sqlite"
    found = cli("redact", build(report, ROWS), target)
    assert (found.status, found.out) == (0, f"{target}\n")
    assert target.is_file()


def test_a_file_that_exists_is_replaced_only_by_force(cli, report, tmp_path):
    build(report, ROWS)
    target = tmp_path / "thesis.txt"
    target.write_text("my work")
    found = cli("redact", report, target)
    assert (found.status, found.out) == (2, "")
    assert found.err == f"ddpprof: {target}: exists already\nGive the copy another name, or --force to replace it.\n"
    assert target.read_text() == "my work"
    assert cli("redact", report, target, "--force").status == 0
    assert target.read_bytes().startswith(b"SQLite")


def test_the_report_itself_is_not_replaced_by_force_either(cli, report):
    before = build(report, ROWS).read_bytes()
    found = cli("redact", report, report, "--force")
    assert (found.status, report.read_bytes()) == (2, before)
    assert "is the report itself" in found.err


def test_an_error_of_the_disk_names_no_option_that_is_not_there(cli, report, tmp_path):
    (tmp_path / "file").touch()
    found = cli("redact", build(report, ROWS), tmp_path / "file" / "shared.sqlite")
    assert (found.status, found.out) == (1, "")
    assert found.err.endswith(" is a file, not a folder\nChoose another place.\n")
