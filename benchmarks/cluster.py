"""Many one-rank reports on a Dask cluster of this machine: time by number of workers, and the memory of the largest worker.

``python -m benchmarks.cluster`` makes 1,024 reports (seeded), analyses them without a cluster, then with 1, 2, ... workers.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil
from distributed import Client, LocalCluster

from ddpprof import inputs
from ddpprof.analysis.part import Options
from ddpprof.model import Analysis

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from nsight import synthesize  # noqa: E402


def peak_mib() -> float:
    """Peak resident memory of this program so far (ru_maxrss would begin with that of the process that started it)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def on_cluster(folder: Path, ranks: list[str], workers: int) -> tuple[Analysis, float, float]:
    """The Analysis by so many worker processes, its seconds without their start, and the peak MiB of the largest."""
    local = LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=":0", silence_logs=50
    )
    with local as cluster, Client(cluster, set_as_default=False) as client:
        client.run(lambda: __import__("ddpprof.analysis.nsys_reader"))
        started = time.perf_counter()
        found = inputs.survey([folder], Options(), ranks=ranks, cluster=cluster.scheduler_address).analysis
        took_s = time.perf_counter() - started
        peak = max(client.run(peak_mib).values())
    return found, took_s, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=1024)
    parser.add_argument("--kernels", type=int, default=20_000, help="kernels of each report (20000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddpprof-bench-") as name:
        folder = Path(name)
        for number in range(options.reports):
            synthesize(folder / f"{number:04}.sqlite", options.kernels, ranks=1, seed=number)
        ranks = [f"{number:04}.sqlite={number}" for number in range(options.reports)]
        print(
            f"{psutil.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {options.reports} reports of {options.kernels} kernels"
        )
        started = time.perf_counter()
        alone = inputs.survey([folder], Options(), ranks=ranks).analysis
        print(f"no cluster: {time.perf_counter() - started:.1f} s, peak {peak_mib():.0f} MiB")
        single, _, one_report = on_cluster(folder / "0000.sqlite", [], 1)
        assert single.ranks
        first_s = None
        for workers in range(1, (os.cpu_count() or 1) + 1):
            found, took_s, peak = on_cluster(folder, ranks, workers)
            first_s = first_s or took_s
            same = "same answer" if found == alone else "OTHER ANSWER"
            print(
                f"{workers} workers: {first_s / took_s:.2f} x the speed of one ({took_s:.1f} s), largest worker "
                f"{peak / one_report:.2f} x the memory for one report ({peak:.0f} MiB), {same}",
                flush=True,
            )


if __name__ == "__main__":
    main()
