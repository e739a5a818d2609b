"""``ddpprof sweep``: which bucket cap for this job, here?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ddpprof.cli import (
    CHECK_FAILED,
    DEFAULT_CAPS,
    PATH,
    Progress,
    device_option,
    examples,
    format_option,
    keeps_results,
    nsys_option,
    range_option,
    share_gpu_option,
)
from ddpprof.cli.profile import CaseOrCommand
from ddpprof.errors import UsageError

if TYPE_CHECKING:
    from ddpprof.model import Sweep

OF_CASES = ("ranks", "share_gpu", "iterations")
"""Options that your own job has no use for."""


@click.command(
    cls=CaseOrCommand,
    epilog=examples(
        "ddpprof sweep delay_cap4",
        "ddpprof sweep coarse4_cap4 --caps 4,16,64 --rounds 5",
        "ddpprof sweep -- torchrun --standalone --nproc-per-node 4 train.py",
        "ddpprof sweep --caps 4,25 -- torchrun --nproc-per-node 4 train.py {cap}",
    ),
)
@click.argument("case", required=False, metavar="CASE | -- COMMAND...")
@click.option("--caps", metavar="A,B", default=DEFAULT_CAPS, show_default=True, help="bucket_cap_mb to try, in MiB.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Timed runs at each cap, in turns.")
@click.option("--ranks", default=4, show_default=True, help="Processes of the job.")
@device_option
@share_gpu_option
@click.option("--iterations", default=10, show_default=True, help="Timed steps of a run.")
@nsys_option
@range_option
@click.option("-o", "--output", "folder", type=PATH, help="The folder of the sweep [runs/sweep/CASE, or SCRIPT].")
@format_option
@keeps_results
@click.pass_context
def sweep(ctx: click.Context, /, case: str | None, caps: str, rounds: int, uses_range: bool, form: str, **options: Any) -> None:
    """Run a case, or your own job after --, at several bucket caps; recommend those that the spread does not set apart.

    Each cap is captured once, then timed without a profiler in turns. Your own job gets the cap for {cap} in its command
    and with DDP(model, **ddpprof.ddp_kwargs()); `with ddpprof.timed_step(number):` around a step lets it be timed without
    a profiler too. Exit status 3: a cap trained otherwise than the others; 1: a cap failed, or the job ignores the cap.
    """
    from ddpprof import profiling, sweeping
    from ddpprof.reports import sweep as reports

    progress: Progress = ctx.obj
    program: list[str] = ctx.meta.get("program", [])
    if (case is None) == (not program):
        raise UsageError("name one case, or your own job after --", "See the cases with: ddpprof cases")
    for name in OF_CASES if program else ("uses_range",):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = next(parameter.opts[0] for parameter in ctx.command.params if parameter.name == name)
            raise UsageError(f"{flag}: not for {'your own job' if program else 'a case'}", "See: ddpprof sweep --help")
    sizes = sweeping.parse_caps(caps)
    settings = profiling.Settings(**options)
    say, working = progress.say, progress.working
    if case is not None:
        found, folder = sweeping.sweep_case(case, sizes, rounds, settings, say=say, working=working)
    else:
        found, folder = sweeping.sweep_job(program, sizes, rounds, settings, uses_range=uses_range, say=say, working=working)
    forms: dict[str, Callable[[Sweep], str]] = {"markdown": reports.render_markdown, "json": reports.to_json}
    click.echo(forms.get(form, reports.render)(found), nl=False)
    progress.say(f"folder of the sweep: {folder}")
    if any(row.is_correct is False for row in found.rows):
        raise click.exceptions.Exit(CHECK_FAILED)
    if found.sameness == "ignored" or any(row.failure for row in found.rows):
        raise click.exceptions.Exit(1)
