"""Generates reports, times whole processes on them, prints ratios. ``--quick`` leaves the 10 million kernels out.

Each figure is the median of several runs in turn (A B A B …), so that a machine that drifts drifts for all. A peer is
timed when it is installed beside ``--peer-python``, and named as missing when it is not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from nsight import Synthetic, build, synthesize  # noqa: E402

from benchmarks import kineto_copy  # noqa: E402

FLOOR = 'SELECT sum("end" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL'
ONE_STEP = """
    N -100..1000 "step/1" pid=100
    K dev0 s7    0..100 GEMM launch=-20..-10 pid=100
    K dev0 s16  50..150 NCCL launch=-9..-8   pid=100
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """Medians of one command over its runs."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def measure(commands: dict[str, Sequence[str]], runs: int) -> dict[str, Figure]:
    """The figures of each command, run in turn after one warm-up."""
    seen: dict[str, list[Figure]] = {name: [] for name in commands}
    for turn in range(runs + 1):
        for name, command in commands.items():
            figure, _ = once(command)
            if turn:
                seen[name].append(figure)
    return {
        name: Figure(*(statistics.median(getattr(item, field) for item in found) for field in ("wall_s", "cpu_s", "peak_mib")))
        for name, found in seen.items()
    }


def once(command: Sequence[str]) -> tuple[Figure, str]:
    """One run of a command, and its output."""
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, cwd=ROOT)
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        output.seek(0)
        text = output.read()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: status {process.returncode}: {said.decode(errors='replace')[-300:]}")
    return Figure(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024), text


def analyze(path: Path) -> list[str]:
    return [sys.executable, "-m", "ddpprof", "-q", "analyze", str(path), "--format", "json"]


def floor(path: Path) -> list[str]:
    code = f"import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute({FLOOR!r}).fetchone())"
    return [sys.executable, "-c", code, str(path)]


def right(path: Path, expected: Synthetic) -> str:
    """Whether the answer is that of the generator, to the nanosecond, on every rank."""
    done = subprocess.run(analyze(path), capture_output=True, text=True, cwd=ROOT, check=True)
    totals: Counter[int] = Counter()
    for row in json.loads(done.stdout)["breakdown"]:
        totals[row["rank"]] += row["overlap_ns"]
    return "exact" if totals == {rank: values["overlap_ns"] for rank, values in expected.ranks.items()} else "WRONG"


def report(title: str, ratio: float, goal: str, detail: str) -> None:
    print(f"{title:<58} {ratio:>8.2f} x   goal {goal:<8} {detail}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without the report of 10 million kernels")
    parser.add_argument("--runs", type=int, default=3, help="timed runs of each command (3)")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="Python of the environment that holds the peers (this one)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddpprof-bench-") as folder:
        bench(Path(folder), options.runs, options.peer_python, is_quick=options.quick)


def bench(folder: Path, runs: int, peer_python: str, *, is_quick: bool) -> None:
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}; medians of {runs} runs")
    paths = {name: folder / f"{name}.sqlite" for name in ("sparse", "dense", "million", "ten_million", "one_step")}
    build(paths["one_step"], ONE_STEP)
    sparse = synthesize(paths["sparse"], 493_000, ranks=8)
    dense = synthesize(paths["dense"], 493_000, ranks=8, dense=True)
    print(f"493,000 kernels on 8 ranks: sparse {right(paths['sparse'], sparse)}, dense {right(paths['dense'], dense)}")
    plain = [sys.executable, str(ROOT / "benchmarks" / "plain_sweep.py"), str(paths["sparse"])]
    found = measure(
        {
            "ddpprof": analyze(paths["sparse"]),
            "dense": analyze(paths["dense"]),
            "plain": plain,
            "floor": floor(paths["sparse"]),
            "one step": analyze(paths["one_step"]),
            "help": [sys.executable, "-m", "ddpprof", "--help"],
            "python": [sys.executable, "-c", "pass"],
        },
        runs,
    )
    ours = found["ddpprof"]
    both = f"{ours.wall_s:.2f} s; by CPU time {found['plain'].cpu_s / ours.cpu_s:.2f}"
    report("plain sweep / analyze, 493k (whole process)", found["plain"].wall_s / ours.wall_s, "> 1", both)
    report("dense / sparse chains", found["dense"].wall_s / ours.wall_s, "1", "")
    report("analyze / SQLite floor, 493k", ours.wall_s / found["floor"].wall_s, "", "imports dominate")
    report("peak memory of 493k, of 250 MB", ours.peak_mib * 1.048576 / 250, "< 1", f"{ours.peak_mib:.0f} MiB")
    report("a one-step report, of 1 s", found["one step"].wall_s, "< 1", f"{found['one step'].peak_mib:.0f} MiB")
    report(
        "--help, of 0.15 s",
        found["help"].wall_s / 0.15,
        "< 1",
        f"{found['help'].wall_s / found['python'].wall_s:.1f} x python -c pass",
    )
    peers(folder, paths["sparse"], sparse, ours, peer_python)
    if is_quick:
        return
    for name, kernels in (("million", 1_000_000), ("ten_million", 10_000_000)):
        synthesize(paths[name], kernels, ranks=8)
    big = measure(
        {
            "million": analyze(paths["million"]),
            "ten million": analyze(paths["ten_million"]),
            "floor": floor(paths["ten_million"]),
        },
        max(1, runs // 2),
    )
    ten, one, least = big["ten million"], big["million"], big["floor"]
    by_cpu = f"{ten.wall_s:.1f} s; by CPU time {ten.cpu_s / one.cpu_s:.1f}"
    report("10 M / 1 M kernels", ten.wall_s / one.wall_s, "<= 11", by_cpu)
    by_cpu = f"{least.wall_s:.2f} s floor; by CPU time {ten.cpu_s / least.cpu_s:.1f}"
    report("analyze / SQLite floor, 10 M", ten.wall_s / least.wall_s, "<= 8", by_cpu)
    report("peak memory of 10 M, of 1.5 GB", ten.peak_mib * 1.048576 / 1500, "< 1", f"{ten.peak_mib:.0f} MiB")


def peers(folder: Path, path: Path, expected: Synthetic, ours: Figure, python: str) -> None:
    """The CPU time of one run of each peer that is installed, as a ratio to ours: one looks for a network first.

    nsys-ai takes one device at a time; HTA reads a folder of torch.profiler traces, whose making is not counted.
    """
    nsys_ai = shutil.which("nsys-ai", path=os.pathsep.join((str(Path(python).parent), os.environ.get("PATH", ""))))
    has_hta = subprocess.run([python, "-c", "import hta"], capture_output=True, check=False).returncode == 0
    commands: dict[str, list[str]] = {}
    if nsys_ai:
        commands["nsys-ai overlap, one device of 8"] = [nsys_ai, "overlap", str(path), "--gpu", "0", "--trim", "0", "1000"]
    if has_hta:
        traces = folder / "traces"
        traces.mkdir()
        kineto_copy.write(path, traces)
        commands["HTA, all 8"] = [python, str(ROOT / "benchmarks" / "hta_overlap.py"), str(traces)]
    for name, is_there in (("nsys-ai", nsys_ai), ("HTA", has_hta)):
        if not is_there:
            print(f"peer {name}: not installed")
    answer = expected.ranks[0]["overlap_ns"] / expected.ranks[0]["comm_ns"]
    for name, command in commands.items():
        figure, text = once(command)
        told = re.search(r"(\d+\.\d+)% of NCCL|^0 (\d+\.\d+)", text, re.MULTILINE)
        detail = f"{figure.peak_mib:.0f} MiB; {told[1] or told[2] if told else '?'} % where {answer:.4%} is right"
        report(f"{name} / analyze, 493k (CPU time)", figure.cpu_s / ours.cpu_s, "", detail)


if __name__ == "__main__":
    main()
