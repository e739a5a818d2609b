"""The command line: turns arguments into library calls, values into output, errors into a line and a status.

stdout carries the result, stderr the progress and the errors: one or two lines each, what and where, and what to do.
Commands load on first use, so that ``ddpprof --help`` needs neither numpy nor torch.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from ddpprof import __version__
from ddpprof.errors import DdpprofError, nearest

CHECK_FAILED = 3
INTERRUPTED = 130

COMMANDS = {
    "profile": "run a case, or your own job, under capture and report what overlapped",
    "analyze": "the numbers of any nsys or torch.profiler report",
    "diagnose": "which of ten causes holds the step back, and what to try",
    "check": "assert overlap per rank: for CI",
    "verify": "the formal experiment: every case of the study, and the table of what must come out",
    "sweep": "a case, or your own job, at several bucket caps: which to take",
    "predict": "from one capture: what other bucket caps would do",
    "history": "the trend of a case over the runs kept",
    "cases": "the workload cases: what each trains, and what a run of it must show",
    "layout": "the DDP buckets of your own model, for one cap or several",
    "facts": "check what is taken to be true of DDP on the installed PyTorch",
    "export": "an nsys report to SQLite",
    "redact": "a copy of a report that is fit to share",
    "doctor": "what this machine can do, and what to fix",
}
"""Command name to its line in ``--help``; the command is ``ddpprof.cli.NAME:NAME``."""

DEFAULT_CAPS = "1,2,4,8,16,25,64"
"""Bucket caps (MiB) that are tried unless others are named: the text of ``sweeping.CAPS``, which is not loaded for a help."""

PATH = click.Path(path_type=Path, readable=False)
"""A path of any kind: whether it can be read is told by who reads it, as an error of the input and not of the usage."""


def examples(*lines: str) -> str:
    """The epilog of a command's help: command lines to copy, one a line."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def _database(ctx: click.Context, parameter: click.Parameter, url: str) -> str:
    from ddpprof import results

    results.check_url(url)
    return url


device_option = click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "cpu"]),
    default="auto",
    show_default=True,
    help="auto: GPUs when there are enough.",
)
share_gpu_option = click.option("--share-gpu", is_flag=True, help="Several ranks on one GPU, time-sliced.")
nsys_option = click.option("--nsys", metavar="PATH", help="The nsys to use (also DDPPROF_NSYS).")
range_option = click.option(
    "--range", "uses_range", is_flag=True, help="Your own job: record only between its cudaProfilerStart and Stop."
)
format_option = click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    show_default=True,
    help="json: for programs.",
)
results_option = click.option(
    "--results",
    metavar="URL",
    envvar="DDPPROF_RESULTS",
    default="sqlite:///runs/results.sqlite",
    show_default=True,
    callback=_database,
    help="The results database, any SQLAlchemy URL (also DDPPROF_RESULTS).",
)


def keeps_results(command: Callable[..., None]) -> Callable[..., None]:
    """A command with ``--results`` and ``--no-results``; it is called with ``results``, None to keep none."""

    @results_option
    @click.option("--no-results", is_flag=True, help="Keep no results.")
    @functools.wraps(command)
    def keeping(*arguments: Any, results: str, no_results: bool, **options: Any) -> None:
        command(*arguments, results=None if no_results else results, **options)

    return keeping


def _tell_progress(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Sets what a flag asks of the Progress; a flag that is absent here may have been given before the command."""
    if value and isinstance(ctx.obj, Progress):
        setattr(ctx.obj, str(parameter.name), True)


def _shared_options() -> list[click.Option]:
    """``--quiet`` and ``--verbose``, which may stand before and after the command."""
    told: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _tell_progress}
    quiet = click.Option(["-q", "--quiet"], help="No progress on stderr.", **told)
    return [quiet, click.Option(["-v", "--verbose"], help="With the traceback of an error.", **told)]


class LateGroup(click.Group):
    """A group that imports a command only when it is used; its help lines are in COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"ddpprof.cli.{name}"), name)
        known = {parameter.name for parameter in command.params}
        command.params += [option for option in _shared_options() if option.name not in known]
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}. {nearest(args[0], COMMANDS)}".rstrip())
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LateGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=examples("ddpprof profile delay_cap4", "ddpprof analyze report.sqlite", "ddpprof diagnose --help"),
)
@click.version_option(__version__, message="ddpprof %(version)s")
def cli() -> None:
    """Is my DDP communication hidden, on every rank? And if not, why?

    Captures every rank with Nsight Systems, measures to the nanosecond how much of the communication ran beside
    compute, and names what holds the step back. Reads your own reports too: .sqlite, .nsys-rep, torch.profiler JSON.
    """


cli.params += _shared_options()


class Progress:
    """Progress and remarks on stderr: a bar on a terminal, plain lines elsewhere, nothing under ``--quiet``."""

    quiet = False
    verbose = False

    def say(self, line: str) -> None:
        if not self.quiet:
            click.echo(line, err=True)

    @contextmanager
    def working(self, title: str) -> Iterator[None]:
        """Shows ``title`` while the block runs: a spinner with the time on a terminal, one line elsewhere."""
        if self.quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            self.say(title)
            yield
            return
        from rich.console import Console
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        look = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Bar(*look, console=Console(stderr=True), transient=True) as bar:
            bar.add_task(title, total=None)
            yield

    def over(self, items: Sequence[Any], title: str) -> Iterator[Any]:
        """Iterates ``items`` with a bar when there are several and stderr is a terminal."""
        if self.quiet or len(items) < 3 or not sys.stderr.isatty():
            yield from items
            return
        from rich.console import Console
        from rich.progress import track

        yield from track(items, description=title, console=Console(stderr=True), transient=True)


def text_width() -> int:
    """Columns for text: those of the terminal, 120 where stdout is none."""
    import shutil

    return shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 120


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point: runs the command line and exits with its status (0, 1, 2, 3 or 130)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    progress = Progress()
    for number in (signal.SIGTERM, signal.SIGHUP):  # a job has a session of its own, where the terminal's end is not felt
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        # A reader that closes the pipe ends it here too, silently, with status 1.
        result = cli.main(arguments, prog_name="ddpprof", standalone_mode=False, obj=progress)
        status = result if isinstance(result, int) else 0  # the code of an Exit that a command raised
    except (KeyboardInterrupt, click.Abort):
        click.echo("ddpprof: interrupted", err=True)
        status = INTERRUPTED
    except Exception as error:
        if progress.verbose:
            traceback.print_exc()
        status, text = _told(error)
        click.echo(f"ddpprof: {text}", err=True)
    sys.exit(status)


def _told(error: Exception) -> tuple[int, str]:
    """The exit status of an error and its one or two lines."""
    if isinstance(error, DdpprofError):
        return error.exit_status, str(error)
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        command = context.command_path if context else "ddpprof"
        return error.exit_code, f"{' '.join(error.format_message().split())}\nSee: {command} --help"
    if isinstance(error, OSError):  # of the disk or the permissions, where no command foresaw it
        place = f"{error.filename}: " if error.filename else ""
        return 1, f"{place}{error.strerror or error}"
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return 1, f"internal error ({words})\nThis is a bug in ddpprof: please report it with the output of -v."


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
