"""``ddpprof profile``: the main job."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from ddpprof.cli import PATH, Progress, device_option, examples, keeps_results, nsys_option, range_option, share_gpu_option
from ddpprof.cli.check import tell
from ddpprof.errors import UsageError

OF_CASES = ("ranks", "share_gpu", "capture", "report_per_rank", "iterations", "seed", "port")
"""Options that your own job has no use for."""


LAUNCHERS = {"torchrun", "python", "python3", "accelerate", "mpirun", "srun"}
"""Words that begin a program and name no case."""


class CaseOrCommand(click.Command):
    """A command whose own words end at ``--``; what follows is somebody's program, kept in ``ctx.meta["program"]``.

    Raises UsageError for a program without ``--`` before it.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["program"] = args[:at], args[at + 1 :]
        for before, word in zip(["", *args], args, strict=False):
            if (word in LAUNCHERS or word.endswith((".py", ".sh"))) and before not in ("-o", "--output", "--nsys"):
                script = next((other for other in args if other.endswith((".py", ".sh"))), "train.py")
                example = f"{ctx.command_path} -- torchrun --nproc-per-node 4 {script}"
                raise UsageError(f"{word}: your own job goes after --", f"As in: {example}")
        return super().parse_args(ctx, args)


@click.command(
    cls=CaseOrCommand,
    epilog=examples(
        "ddpprof profile delay_cap4",
        "ddpprof profile delay_cap64 --ranks 2 --share-gpu",
        "ddpprof profile -- torchrun --nproc-per-node 4 train.py",
    ),
)
@click.argument("case", required=False, metavar="CASE | -- COMMAND...")
@click.option("--ranks", default=4, show_default=True, help="Processes of the job.")
@device_option
@share_gpu_option
@click.option(
    "--capture",
    type=click.Choice(["auto", "nsys", "torch"]),
    default="auto",
    show_default=True,
    help="auto: nsys, else torch.profiler.",
)
@click.option("--report-per-rank", is_flag=True, help="Each rank under an nsys of its own.")
@click.option("--iterations", default=10, show_default=True, help="Timed steps before the captured ones.")
@click.option("--seed", default=0, show_default=True, help="Seed of parameters and data.")
@click.option("--port", type=int, help="Port for the ranks to meet at; a free one by default.")
@nsys_option
@range_option
@click.option("-o", "--output", "folder", type=PATH, help="The run folder [runs/CASE, or runs/SCRIPT].")
@keeps_results
@click.pass_context
def profile(ctx: click.Context, /, case: str | None, uses_range: bool, **options: Any) -> None:
    """Run a case (see `ddpprof cases`), or your own job after --, under capture; report per rank what overlapped.

    The run folder holds the report, its SQLite export, the ranks' records, a summary, one report for each rank and a
    picture. Without enough GPUs the case runs on the CPU with gloo, captured by the same nsys, and says so.
    """
    from ddpprof import profiling
    from ddpprof.reports import text

    progress: Progress = ctx.obj
    program: list[str] = ctx.meta.get("program", [])
    if (case is None) == (not program):
        raise UsageError("name one case, or your own job after --", "See the cases with: ddpprof cases")
    for name in OF_CASES if program else ("uses_range",):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = next(parameter.opts[0] for parameter in ctx.command.params if parameter.name == name)
            raise UsageError(f"{flag}: not for {'your own job' if program else 'a case'}", "See: ddpprof profile --help")
    settings = profiling.Settings(**options)
    if case is not None:
        outcome = profiling.profile_case(case, settings, say=progress.say, working=progress.working)
    else:
        outcome = profiling.profile_job(program, settings, uses_range=uses_range, say=progress.say, working=progress.working)
    if outcome.analysis is not None:
        click.echo(text.render(outcome.analysis, records=outcome.records), nl=bool(outcome.results))
    status = tell(outcome.results)
    n_ranks = len({result.rank for result in outcome.results})
    if outcome.analysis is None:
        n_good = sum(result.verdict == "pass" for result in outcome.results)
        click.echo(f"expected failure seen on {n_good} of {n_ranks} ranks")
    elif outcome.results and not status:
        names = ", ".join(dict.fromkeys(result.expectation for result in outcome.results))
        click.echo(f"As {outcome.analysis.case} must be, on {n_ranks} of {n_ranks} ranks: {names}")
    progress.say(f"run folder: {outcome.folder}")
    if status:
        raise click.exceptions.Exit(status)
