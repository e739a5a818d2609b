"""``ddpprof doctor``: what this machine can do, and what to fix."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ddpprof.cli import Progress, examples

if TYPE_CHECKING:
    from ddpprof.checkup import Checkup


@click.command(epilog=examples("ddpprof doctor", "ddpprof doctor --no-test --format json"))
@click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="json: for programs."
)
@click.option("--nsys", metavar="PATH", help="The nsys to look at (also DDPPROF_NSYS).")
@click.option("--no-test", is_flag=True, help="Only look: do not import torch, take no test capture.")
@click.pass_obj
def doctor(progress: Progress, form: str, nsys: str | None, no_test: bool) -> None:
    """What this machine can do: GPUs, torch, nsys, and whether nsys really records our marks; and what to fix.

    Nothing is fetched or installed. Exit status 1 when `ddpprof profile` could not run here.
    """
    from ddpprof import checkup

    with progress.working("looking at this machine"):
        found = checkup.check(nsys, is_tested=not no_test)
    if form == "json":
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        for name, text in _rows(found):
            click.echo(f"{name:<8} {text}")
    if not found.can_profile:
        raise click.exceptions.Exit(1)


def _rows(found: Checkup) -> list[tuple[str, str]]:
    from ddpprof.reports.quantities import size

    torch = "not installed"
    if found.torch:
        torch = f"{found.torch.version}, {'CUDA' if found.torch.is_cuda_build else 'CPU'} build"
        torch += f", NCCL {found.torch.nccl_version}" if found.torch.nccl_version else ""
    nsys = "not found" + (", would be fetched from this machine's package archive" if found.would_fetch_nsys else "")
    if found.nsys_version:
        nsys = f"{found.nsys_version} ({found.nsys_source}: {found.nsys_path})"
    recorded = {True: "recorded by nsys, as a test capture shows", False: "not recorded by nsys", None: "not tested"}
    ranks = f" (up to {len(found.gpus)} ranks, more with --share-gpu)" if found.device == "cuda" else ""
    profile = f"runs on {found.device}{ranks}, captured by {found.capture}" if found.can_profile else "cannot run here"
    memory, free = size(found.memory_bytes), size(found.free_bytes)
    return [
        ("machine", f"{found.cpu_count} cores, {memory} memory, {free} free in this folder"),
        ("GPUs", ", ".join(found.gpus) or "none that a job here may use"),
        ("driver", found.driver_version or "none"),
        ("python", found.python_version),
        ("torch", torch),
        ("nvtx", found.nvtx_version or "not installed"),
        ("nsys", nsys),
        ("marks", recorded[found.records_marks]),
        ("profile", profile),
        *(("fix", text) for text in found.fixes),
    ]
