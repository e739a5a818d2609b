"""What all commands share: statuses, errors in two lines, what goes to which stream, help."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ddpprof import __version__, inputs
from ddpprof.cli import COMMANDS, Progress
from ddpprof.cli import cli as group
from ddpprof.errors import DdpprofError, InputError, ToolError, UsageError, WorkloadError, nearest, nearest_path

HEAVY = {"numpy", "pandas", "pyarrow", "sqlalchemy", "torch", "matplotlib", "rich", "ddpprof.analysis", "ddpprof.reports"}
NAMES = sorted(COMMANDS)


@pytest.fixture
def reading(monkeypatch):
    """Makes whatever is read end in the given way."""

    def ends(with_error):
        def read(*arguments, **options):
            if isinstance(with_error, BaseException):
                raise with_error
            with_error()

        monkeypatch.setattr(inputs, "survey", read)

    return ends


# ---------------------------------------------------------------------------------------------------- status, errors


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (InputError("a.sqlite: is empty", "Export it again."), 1, "a.sqlite: is empty\nExport it again."),
        (ToolError("nsys was not found"), 1, "nsys was not found"),
        (WorkloadError("rank 1 of 4 failed"), 1, "rank 1 of 4 failed"),
        (UsageError("--step x: no number", "Example: --step 4"), 2, "--step x: no number\nExample: --step 4"),
        (PermissionError(13, "Permission denied", "a.sqlite"), 1, "a.sqlite: Permission denied"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (
            ZeroDivisionError("division\nby zero"),
            1,
            "internal error (ZeroDivisionError: division by zero)\n"
            "This is a bug in ddpprof: please report it with the output of -v.",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_one_or_two_lines_and_a_status(cli, reading, error, status, text):
    reading(error)
    assert cli("analyze", "a.sqlite") == (status, "", f"ddpprof: {text}\n")


@pytest.mark.parametrize("flags", [["-v"], ["--verbose"], ["-q", "-v"], ["-qv"]], ids=" ".join)
@pytest.mark.parametrize("error", [InputError("a: is empty"), KeyError("x")], ids=["ours", "a bug"])
def test_verbose_puts_the_traceback_before_it(cli, reading, flags, error):
    reading(error)
    for words in ([*flags, "analyze", "a"], ["analyze", *flags, "a"], ["analyze", "a", *flags]):
        said = cli(*words).err
        assert said.startswith("Traceback (most recent call last):\n")
        assert said.splitlines()[-1 if isinstance(error, DdpprofError) else -2].startswith("ddpprof: ")


@pytest.mark.parametrize("arguments", [["-q", "facts"], ["facts", "-q"], ["facts", "--quiet"]], ids=" ".join)
def test_quiet_may_stand_before_and_after_the_command(cli, monkeypatch, arguments):
    monkeypatch.setattr("ddpprof.workloads.facts.check_facts", tuple)
    assert (cli(*arguments).err, cli("facts").err) == ("", "checking the facts about the DDP Reducer\n")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_takes_quiet_and_verbose_once(cli, name):
    said = cli(name, "--help").out + cli(name, "--help").out
    assert (said.count("  -q, --quiet "), said.count("  -v, --verbose ")) == (2, 2)


@pytest.mark.parametrize(
    ("arguments", "text", "see"),
    [
        (["analize"], "no command 'analize'. Did you mean analyze?", "ddpprof"),
        (["xyzzy"], "no command 'xyzzy'.", "ddpprof"),
        (["--nonsense"], "No such option", "ddpprof"),
        (["analyze"], "Missing argument 'INPUT...'.", "ddpprof analyze"),
        (["analyze", "a", "--formt", "json"], "--format", "ddpprof analyze"),
        (["analyze", "a", "-f", "xml"], "'xml' is not one of", "ddpprof analyze"),
        (["profile", "delay_cap4", "--ranks", "four"], "'four' is not a valid integer.", "ddpprof profile"),
        (["profile", "delay_cap4", "delay_cap64"], "unexpected extra argument", "ddpprof profile"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_on_the_command_line_is_two_lines_and_status_2(cli, arguments, text, see):
    found = cli(*arguments)
    first, second = found.err.splitlines()
    assert (found.status, found.out) == (2, "")
    assert first.startswith("ddpprof: ")
    assert text in first
    assert second == f"See: {see} --help"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_is_status_130(cli, reading, number):
    def interrupt():
        os.kill(os.getpid(), number)
        signal.sigtimedwait([], 5)  # the handler runs here

    reading(interrupt)
    found = cli("analyze", "a.sqlite")
    assert (found.status, found.out, found.err.strip()) == (130, "", "ddpprof: interrupted")


def test_a_hangup_that_is_ignored_stays_ignored(cli):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    cli("cases")
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


# ----------------------------------------------------------------------------------------------------------- streams


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ddpprof", *arguments], stderr=subprocess.PIPE, text=True, **options)


def test_it_runs_as_a_module():
    done = run("--version", stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ddpprof {__version__}\n", "")


def test_a_reader_that_has_gone_ends_it_without_a_word():
    """Status 1, not 0: a check whose verdict nobody read has not passed."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = run("cases", stdout=write_end)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_under_stdout_is_an_error_of_one_line():
    with open("/dev/full", "w") as full:
        done = run("cases", stdout=full)
    assert (done.returncode, done.stderr) == (1, "ddpprof: No space left on device\n")


def test_progress_goes_to_stderr_and_quiet_leaves_it_out(capsys):
    for progress in (Progress(), Progress()):
        progress.quiet = progress.quiet or bool(capsys.readouterr().err)  # the second one
        progress.say("a remark")
        with progress.working("a job"):
            pass
        assert list(progress.over([1, 2, 3], "reading")) == [1, 2, 3]
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err == ("" if progress.quiet else "a remark\na job\n")


class Terminal(io.StringIO):
    """Takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


COLOURS = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])(?:;\d+)*m")


@pytest.mark.parametrize(("variable", "is_coloured"), [("COLORTERM", True), ("NO_COLOR", False)])
def test_a_terminal_gets_a_bar_without_colour_where_none_is_wanted(monkeypatch, variable, is_coloured):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv(variable, "truecolor")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress().working("a job"):
        pass
    assert list(Progress().over(range(5), "reading")) == [0, 1, 2, 3, 4]
    said = sys.stderr.getvalue()
    assert "a job" in said
    assert "reading" in said
    assert bool(COLOURS.search(said)) is is_coloured


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress().working("a job"):
        pass
    assert sys.stderr.getvalue() == "a job\n"


# -------------------------------------------------------------------------------------------------------------- help


def test_without_a_command_it_shows_its_help(cli):
    assert cli() == cli("--help") == cli("-h")
    assert cli().status == 0


def test_the_help_lists_every_command_with_its_line(cli):
    said = cli("--help").out
    assert re.findall(r"^  ([a-z]+)  ", said, re.MULTILINE) == list(COMMANDS)
    assert " ".join(said.split()).count(COMMANDS["profile"]) == 1


@pytest.mark.parametrize("name", [[], *([name] for name in NAMES)], ids=" ".join)
def test_every_help_fits_a_terminal_and_ends_in_examples_that_parse(cli, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    found = cli(*name, "--help")
    assert (found.status, found.err) == (0, "")
    assert max(map(len, found.out.splitlines())) <= 80
    body, _, shown = found.out.partition("\n  Examples:\n")
    examples = [shlex.split(line) for line in shown.splitlines()]
    assert len(examples) >= 2
    for tool, command, *rest in examples:
        assert (tool, command) == ("ddpprof", *(name or [command]))
        group.get_command(click.Context(group), command).make_context(command, rest, resilient_parsing="--help" in rest)
    options = re.findall(r"^  (?:-\w, )?--[\w-]+.*\n(?:   .*\n)*", body.partition("Options:\n")[2] + "\n", re.MULTILINE)
    assert options
    for option in options:
        assert re.search(r"  \w", option.strip()), f"no help: {option}"


def test_help_and_cases_load_nothing_heavy():
    script = (
        "import sys\nfrom ddpprof.cli import main\n"
        "for arguments in (['--help'], ['cases'], ['analyze', '--help'], ['profile', '--help']):\n"
        "    try:\n        main(arguments)\n    except SystemExit:\n        pass\n"
        "print('loaded:', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "ddpprof.cli.analyze" in loaded
    assert loaded & HEAVY == set()


def test_nearest_names_are_offered_only_where_there_are_any():
    assert nearest("exprot", COMMANDS).startswith("Did you mean export")
    assert nearest("zzz", COMMANDS) == ""


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("runs/delay_cap5", "Did you mean runs/delay_cap4?"),
        ("rums/delay_cap4", "Did you mean runs/delay_cap4?"),
        ("rums/nowhere/delay_cap4", ""),
        ("reprot.sqlite", "Did you mean report.sqlite?"),
        ("runs/zzz", ""),
    ],
)
def test_the_nearest_paths_are_offered_where_there_are_any(tmp_path, monkeypatch, name, offered):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "delay_cap4").mkdir(parents=True)
    (tmp_path / "report.sqlite").touch()
    assert nearest_path(Path(name)) == offered
    assert nearest_path(tmp_path / name) == offered.replace("mean ", f"mean {tmp_path}/")


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["analyze", "reprot.sqlite"], "reprot.sqlite: no such report"),
        (["analyze", "report.sqlit"], "report.sqlit: no such file or folder"),
        (["check", "reprot.sqlite", "--expect", "overlap>0"], "reprot.sqlite: no such report or run folder"),
    ],
)
def test_a_mistyped_path_is_told_with_the_nearest(cli, tmp_path, monkeypatch, command, what):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.sqlite").touch()
    assert cli(*command) == (
        1,
        "",
        f"ddpprof: {what}\nDid you mean report.sqlite?\n",
    )
