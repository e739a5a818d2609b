"""``ddpprof predict``: what would another bucket cap do?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddpprof.cli import DEFAULT_CAPS, PATH, Progress, examples, format_option

if TYPE_CHECKING:
    from ddpprof.model import Prediction


@click.command(
    epilog=examples(
        "ddpprof predict runs/delay_cap4",
        "ddpprof predict runs/delay_cap4 --caps default,0.5,4,32 --format json",
    )
)
@click.argument("folder", type=PATH, metavar="INPUT")
@click.option(
    "--caps",
    metavar="A,B",
    default=DEFAULT_CAPS,
    show_default=True,
    help="bucket_cap_mb to predict, in MiB, or default for DDP's own.",
)
@click.option("--nsys", metavar="PATH", help="The nsys to export .nsys-rep files with (also DDPPROF_NSYS).")
@format_option
@click.pass_obj
def predict(progress: Progress, /, folder: Path, caps: str, nsys: str | None, form: str) -> None:
    """Step, overlap, exposed communication and tail at other bucket caps, from one capture.

    INPUT: a run folder that `ddpprof profile` made, of your own job with ddpprof.watch(ddp) in it; its records tell when
    each gradient was ready. Nothing is run. Each step comes with an interval of uncertainty: measure what it recommends
    with `ddpprof sweep`.
    """
    from ddpprof import inputs
    from ddpprof.analysis import whatif
    from ddpprof.reports import prediction

    sizes = _caps(caps)
    read = inputs.read([folder], nsys=nsys, say=progress.say, over=progress.over)
    found = whatif.predict(read.traces, read.records, sizes, case=read.case)
    forms: dict[str, Callable[[Prediction], str]] = {"markdown": prediction.render_markdown, "json": prediction.to_json}
    click.echo(forms.get(form, prediction.render)(found), nl=False)


def _caps(text: str) -> list[float | None]:
    """The caps of ``default,4,25``, None for DDP's default."""
    from ddpprof import sweeping

    words = text.split(",")
    sizes = [word for word in words if word.strip() != "default"]
    default = [None] if len(sizes) < len(words) else []
    return [*default, *(sweeping.parse_caps(",".join(sizes), fewest=1) if sizes else ())]
