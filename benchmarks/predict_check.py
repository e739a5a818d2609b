"""Predicted against measured: captures a case at one cap, predicts the others, then runs them without a profiler.

    python -m benchmarks.predict_check delay_cap4
    python -m benchmarks.predict_check delay_cap4 --ranks 2 --device cuda --share-gpu

Each round does all of this, so that a machine that drifts drifts for the capture too; medians are over rounds. The buckets and
the order in which they are sent must be exactly those predicted, on every rank and in every step: exit status 3 when they are
not, when the median error of the steps of caps with other buckets is above GOAL, or when no cap has other buckets. It also
counts the steps that lie within the interval that was given for them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ddpprof import inputs, launch, profiling, sweeping  # noqa: E402
from ddpprof.analysis import whatif  # noqa: E402
from ddpprof.analysis.moments import Run, run_of  # noqa: E402
from ddpprof.analysis.timing import job_steps, timing  # noqa: E402
from ddpprof.errors import DdpprofError  # noqa: E402
from ddpprof.model import CapPrediction, Records  # noqa: E402
from ddpprof.reducer import launches  # noqa: E402
from ddpprof.rundir import RunDir, read_records  # noqa: E402

GOAL = 0.10
FAILED = 3


@dataclass(slots=True)
class Seen:
    """One cap over all rounds: what was predicted, the steps that were measured, and how those runs differ otherwise."""

    rows: list[CapPrediction] = field(default_factory=list)
    steps_ns: list[int] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def middle(self, name: str) -> float:
        """Median of a column of the predictions."""
        return statistics.median(getattr(row, name) for row in self.rows)

    @property
    def is_within(self) -> bool:
        """Whether the measured step lies in the interval that was predicted."""
        taken = timing(self.steps_ns)
        return taken is not None and self.middle("low_ns") <= taken.median_ns <= self.middle("high_ns")


def differences(row: CapPrediction, run: Run, records: Records) -> Iterator[str]:
    """Each step of each rank whose buckets, or whose places of launch among the gradients, are not those predicted."""
    layout = whatif.layout_under(run, row.cap_mb)
    notes = {(note.rank, note.step): note for note in records.gradients}
    by_step: dict[tuple[int, int], list[tuple[tuple[int, ...], int, int]]] = {}
    for bucket in records.buckets:
        sent = (tuple(bucket.parameters), bucket.size_bytes, bucket.ready_ns)
        by_step.setdefault((bucket.rank, bucket.step), []).append(sent)
    for (rank, step), sent in sorted(by_step.items()):
        where = f"cap {row.cap_mb:g}, rank {rank}, step {step}"
        if [item[:2] for item in sent] != list(zip(layout.parameters, layout.size_bytes, strict=True)):
            yield f"{where}: buckets {[item[0] for item in sent]}, predicted {list(layout.parameters)}"
            continue
        note = notes.get((rank, step))
        if note is None:  # a model with too many parameters to note them in a timed step
            continue
        unused = set(range(len(run.parameters))) - set(note.parameters)
        places = [bisect_right(note.ready_ns, ready) - 1 for *_, ready in sent]
        expected = [launch_.sent for launch_ in launches(layout, note.parameters, sorted(unused))]
        if places != expected:
            yield f"{where}: sent after gradients {places}, predicted {expected}"


def measure(case: str, row: CapPrediction, run: Run, options: argparse.Namespace, folder: Path) -> tuple[list[int], list[str]]:
    """The steps of one unprofiled run at a cap, and how it differs from what was predicted."""
    place = RunDir(folder)
    place.path.mkdir()
    job = launch.Job(
        case=case,
        ranks=options.ranks,
        device=run.record.device,  # type: ignore[arg-type]
        capture="none",
        share_gpu=options.share_gpu,
        iterations=options.iterations,
        bucket_cap_mb=row.cap_mb,
    )
    finished = launch.run(launch.case_command(job, place), env=launch.environment({}), log_dir=place.path)
    if finished.returncode != 0:
        raise launch.explain_failure(finished, place, options.ranks)
    records = read_records(place)
    return job_steps(records), list(differences(row, run, records))


def check(case: str, options: argparse.Namespace, folder: Path) -> bool:
    """Captures, predicts, measures and prints one case; whether all was as predicted."""
    seen: dict[float, Seen] = {}
    for number in range(options.rounds):
        capture = folder / f"{case}.{number}"
        settings = profiling.Settings(
            ranks=options.ranks,
            device=options.device,
            share_gpu=options.share_gpu,
            iterations=options.iterations,
            bucket_cap_mb=options.cap,
            nsys=options.nsys,
            folder=capture,
        )
        profiling.profile_case(case, settings, say=lambda line: print(line, file=sys.stderr))
        found = inputs.read([capture])
        run = run_of(found.traces, found.records)
        predicted = whatif.predict(found.traces, found.records, options.caps, case=case)
        for row in predicted.rows:
            if row.cap_mb is None:  # DDP's default, which no run is given
                continue
            steps, wrong = measure(case, row, run, options, folder / f"{case}.{number}.cap{row.cap_mb:g}")
            item = seen.setdefault(row.cap_mb, Seen())
            item.rows.append(row)
            item.steps_ns += steps
            item.differences += wrong
    print(f"\n{case}, {options.ranks} ranks on {predicted.device}, {options.rounds} rounds; step of the slowest rank in ms")
    print("  cap  buckets  layout, order  predicted      from        to  measured     MAD   error")
    errors = [error for item in seen.values() if (error := line(item)) is not None]
    problems = [problem for item in seen.values() for problem in item.differences]
    print("* the buckets of the capture", *problems[:8], sep="\n")
    print(f"measured steps within from and to: {sum(item.is_within for item in seen.values())} of {len(seen)}")
    if not errors:
        print("no cap has other buckets than the capture: nothing was predicted")
        return False
    middle = statistics.median(errors)
    print(f"median error of the {len(errors)} caps with other buckets: {100 * middle:.1f} % (goal {100 * GOAL:.0f} %)")
    return not problems and middle <= GOAL


def line(item: Seen) -> float | None:
    """Prints one cap; its error, None for the buckets of the capture."""
    taken = timing(item.steps_ns)
    assert taken is not None
    step, low, high = (item.middle(name) for name in ("step_ns", "low_ns", "high_ns"))
    error = step / taken.median_ns - 1
    agree, row = "DIFFER" if item.differences else "exact", item.rows[0]
    numbers = "".join(f"{value / 1e6:>10.1f}" for value in (step, low, high, taken.median_ns))
    star = "*" if row.is_captured else " "
    print(
        f"{row.cap_mb:>5g} {len(row.buckets):>7}{star} {agree:>14} {numbers} {taken.mad_ns / 1e6:>7.1f} {100 * error:>+6.1f}%",
        flush=True,
    )
    return None if row.is_captured else abs(error)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["delay_cap4"], metavar="CASE")
    parser.add_argument("--cap", type=float, help="cap of the capture, instead of the case's own")
    parser.add_argument("--caps", type=lambda words: [float(word) for word in words.split(",")], default=sweeping.CAPS)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--share-gpu", action="store_true")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="captures, and runs at each cap, in turns (3)")
    parser.add_argument("--nsys", metavar="PATH")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="ddpprof-predict-") as folder:
            results = [check(case, options, Path(folder)) for case in options.cases]
    except DdpprofError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0 if all(results) else FAILED


if __name__ == "__main__":
    sys.exit(main())
