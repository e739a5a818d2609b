"""``ddpprof cases``: what can be profiled here."""

from __future__ import annotations

import json

import click

from ddpprof.cli import examples


@click.command(epilog=examples("ddpprof cases", "ddpprof cases --format json"))
@click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="json: for programs."
)
def cases(form: str) -> None:
    """The workload cases: parameters, cap, and what a run of each must show."""
    from ddpprof.workloads.cases import CASES, MIB

    if form == "json":
        rows = [
            {
                "case": case.name,
                "parameters": case.parameters,
                "parameter_mb": case.parameter_mb,
                "unused_parameters": case.unused,
                "bucket_cap_mb": case.bucket_cap_mb,
                "is_delayed": case.is_delayed,
                "find_unused_parameters": case.find_unused_parameters,
                "static_graph": case.static_graph,
                "bucket_bytes": case.rebuilt_bytes,
                "overlap": case.overlap,
                "must_fail": case.failure is not None,
                "shows": case.shows,
            }
            for case in CASES.values()
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo(f"{'case':<19}{'parameters':<13}{'cap MiB':>7}  {'buckets MiB':<15}{'overlap':<10}shows")
    for case in CASES.values():
        sizes = [f"{size / MIB:g}" for size in case.rebuilt_bytes or ()]
        buckets = f"{len(sizes)} x {sizes[0]}" if sizes and len(set(sizes)) == 1 else ", ".join(sizes)
        overlap = {"positive": "> 0", "zero": "== 0", None: "must fail" if case.failure else "-"}[case.overlap]
        parameters = f"{case.parameters} x {case.parameter_mb:g} MiB"
        click.echo(f"{case.name:<19}{parameters:<13}{case.bucket_cap_mb:>7g}  {buckets:<15}{overlap:<10}{case.shows}")
