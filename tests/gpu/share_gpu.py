"""Both delay cases at 2 and 4 ranks on one shared GPU under nsys, in two halves that may run on two machines.

    python tests/gpu/share_gpu.py capture OUT --nsys NSYS    on the GPU machine: torch, nvtx and nsys are all it needs
    python tests/gpu/share_gpu.py finish OUT --nsys NSYS     anywhere: import, export, analyse, check, redact

An nsys without its host part leaves ``.qdstrm`` streams; ``finish`` turns them into reports with the importer of an nsys of
the same version. ``--device cpu`` is the dry run of the same steps without a GPU. ``--data DIR`` keeps the redacted exports.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ddpprof import launch, nsys
from ddpprof.errors import DdpprofError
from ddpprof.rundir import RunDir

CASES = ("delay_cap4", "delay_cap64")
RANKS = (2, 4)


def folders(out: Path) -> Iterator[tuple[str, int, RunDir]]:
    """Case, ranks and run folder of every run."""
    for case in CASES:
        for ranks in RANKS:
            yield case, ranks, RunDir(out / f"{case}_{ranks}rank")


def capture(out: Path, device: str, tool: nsys.Nsys, timeout_s: float) -> int:
    """Runs every case under nsys; the status is the number of runs that failed."""
    failed = 0
    for case, ranks, run in folders(out):
        run.path.mkdir(parents=True)
        job = launch.Job(case=case, ranks=ranks, device="cuda" if device == "cuda" else "cpu", share_gpu=device == "cuda")
        finished = launch.run(
            launch.case_command(job, run, tool), env=launch.environment({}), log_dir=run.path, timeout_s=timeout_s
        )
        left = [path.name for path in sorted(run.path.glob("report.*"))]
        print(
            f"{case}, {ranks} ranks on {device}: status {finished.returncode}, left {', '.join(left) or 'nothing'}", flush=True
        )
        if finished.returncode != 0:
            failed += 1
            print(launch.explain_failure(finished, run, ranks), flush=True)
    return failed


def finish(out: Path, tool: nsys.Nsys, data: Path | None) -> int:
    """Checks every capture and prints a line for each rank; the status is the number of expectations that did not hold."""
    from ddpprof import inputs, profiling
    from ddpprof.analysis import check
    from ddpprof.analysis.part import Options
    from ddpprof.analysis.redact import redact
    from ddpprof.workloads.cases import find

    failed = 0
    for name, ranks, run in folders(out):
        report, stream = run.nsys_report(), run.nsys_report().with_suffix(nsys.STREAM_SUFFIX)
        if not report.exists():
            nsys.import_stream(tool, stream, report)
        exported = nsys.export(tool, report)
        found = inputs.read([exported])
        case = find(name)
        analysis = found.analyze(Options(compute=case.focus(found.traces[0].evidence), buckets=True))
        results = check.check(analysis, [check.parse(text) for text in profiling.expectations_of(case)])
        bad = [result for result in results if result.verdict != "pass"]
        failed += len(bad)
        assert analysis.focus is not None
        for row, focus in zip(analysis.ranks, analysis.focus.ranks, strict=True):
            print(
                f"{name} {ranks} ranks, rank {row.rank}: {analysis.evidence}, overlap {focus.overlap_ns} ns, {row.n_comm} comm"
            )
        for result in bad:
            print(f"{result.verdict}: {result.rank}: {result.expectation}: {result.seen}")
        if data is not None:
            data.mkdir(parents=True, exist_ok=True)
            redact(exported, data / f"{analysis.evidence}_{name}_{ranks}rank.sqlite")
    print(f"{failed} expectations did not hold")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("half", choices=("capture", "finish"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--nsys", help="path of nsys")
    parser.add_argument("--data", type=Path, help="where finish keeps the redacted exports")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one run")
    options = parser.parse_args()
    try:
        tool = nsys.find(options.nsys, may_fetch=False)
        if options.half == "capture":
            return min(capture(options.out, options.device, tool, options.timeout), 1)
        return min(finish(options.out, tool, options.data), 1)
    except DdpprofError as error:
        print(error, file=sys.stderr)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
