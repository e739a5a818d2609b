"""``ddpprof layout``: the DDP buckets of the user's own model."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

import click

from ddpprof.cli import examples
from ddpprof.errors import UsageError
from ddpprof.reducer import REBUILT_IN_FORWARD, mode_of
from ddpprof.reports.quantities import clean, count, size
from ddpprof.workloads import require_torch

if TYPE_CHECKING:
    from ddpprof.reducer import Layout, Parameter
    from ddpprof.workloads.layout import CapLayout, ModelLayout

_SHOWN = 3
"""Parameters of a bucket that are named; of more only the first and the last."""


@click.command(
    epilog=examples(
        "ddpprof layout examples.mlp:make",
        "ddpprof layout mymodel:build --caps default,4,25,64 --find-unused",
        "ddpprof layout mymodel:build --order reverse --format json",
    )
)
@click.argument("factory", metavar="MODULE:FUNCTION")
@click.option(
    "--caps", metavar="A,B", default="default", show_default=True, help="bucket_cap_mb in MiB, or default for DDP's own."
)
@click.option("--find-unused", is_flag=True, help="As with find_unused_parameters=True.")
@click.option("--static-graph", is_flag=True, help="As with static_graph=True.")
@click.option("--order", metavar="reverse|N,N,...", help="The order in which gradients come, by parameter number.")
@click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="json: for programs."
)
def layout(factory: str, caps: str, find_unused: bool, static_graph: bool, order: str | None, form: str) -> None:
    """The DDP buckets of your own model under each cap, with no GPU, no memory and no process group.

    FUNCTION is called without arguments in the current folder and returns the model, or the model and example inputs. With
    inputs one step is run on torch's meta device, so the order in which gradients come is the true one; without, it is taken to
    be the reverse of registration, which DDP assumes too until it has seen a step.
    """
    caps_mb = [_cap(word) for word in caps.split(",")]
    mode = mode_of(find_unused_parameters=find_unused, static_graph=static_graph)
    require_torch()
    from ddpprof.workloads import layout as layouts

    found = layouts.layout(factory, caps_mb, mode, _order(order))
    if form == "json":
        click.echo(json.dumps(asdict(found), indent=2, default=sorted))
    else:
        click.echo("\n".join(_text(found)))


def _cap(word: str) -> float | None:
    if word.strip() == "default":
        return None
    try:
        cap = float(word)
    except ValueError:
        cap = math.nan
    if not 0 < cap < math.inf:
        raise UsageError(f"--caps: {word.strip()!r} is no size in MiB", "Sizes are numbers above 0, as in --caps default,4,0.5")
    return cap


def _order(text: str | None) -> list[int] | Literal["reverse"] | None:
    if text is None or text == "reverse":
        return None if text is None else "reverse"
    words = re.split(r"[,\s]+", text.strip())
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"--order: {text!r} is neither reverse nor numbers", "Example: --order 3,1,0,2")
    return [int(word) for word in words]


def _text(found: ModelLayout) -> Iterator[str]:
    total = size(sum(parameter.size_bytes for parameter in found.parameters))
    yield f"{clean(found.factory)}: {count(len(found.parameters))} parameters to reduce, {total}; torch {found.torch_version}"
    yield {
        "traced": "gradients come in the order of one traced step",
        "given": "gradients come in the order given",
        "reverse": "gradients are taken to come in the reverse order of registration\n"
        "(a factory that also returns example inputs shows the true order)",
    }[found.order]
    if found.unused:
        yield f"unused, without a gradient: {_names(found.unused, found.parameters)}"
    for cap in found.caps:
        yield ""
        yield from _cap_text(cap, found)


def _cap_text(cap: CapLayout, found: ModelLayout) -> Iterator[str]:
    yield "bucket_cap_mb not given: 25 MiB, the first bucket 1" if cap.cap_mb is None else f"bucket_cap_mb {cap.cap_mb:g}"
    if found.mode == "find_unused":
        lasting = cap.initial
        yield f"  never rebuilt, {_n_buckets(lasting)}:"
    else:
        sizes = ", ".join(size(size_bytes) for size_bytes in cap.initial.size_bytes)
        yield f"  before forward {REBUILT_IN_FORWARD[found.mode]}, {_n_buckets(cap.initial)}: {sizes}"
        if cap.rebuilt is None:
            yield "  then it raises: with neither find_unused_parameters nor static_graph every parameter needs a gradient"
            return
        lasting = cap.rebuilt
        yield f"  rebuilt, {_n_buckets(lasting)}:"
    for index, bucket in enumerate(lasting.buckets):
        yield f"    {index:>3}  {size(bucket.size_bytes):>10}  {_names(bucket.parameters, found.parameters)}"
    if lasting.unspecified:
        which = ", ".join(map(str, sorted(lasting.unspecified)))
        yield f"         the order of {which} among themselves is PyTorch's choice: there are three or more (dtype, device)"
    if cap.holds:
        hold = cap.holds[0]
        name, waiting = clean(found.parameters[hold.parameter].name), size(hold.waiting_bytes)
        yield f"  holds the queue: {name}; {waiting} come before it and can be sent only when it is there"
    else:
        yield "  nothing holds the queue: each gradient can be sent when it comes"


def _n_buckets(layout: Layout) -> str:
    return f"{len(layout.buckets)} bucket{'s' if len(layout.buckets) != 1 else ''}"


def _names(indices: Sequence[int], parameters: Sequence[Parameter]) -> str:
    names = [clean(parameters[index].name) for index in indices]
    return ", ".join(names) if len(names) <= _SHOWN else f"{names[0]} ... {names[-1]} ({len(names)} parameters)"
