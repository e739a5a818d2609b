"""The whole formal experiment and a sweep, every rank on one shared GPU, and their redacted captures as test data.

    python tests/gpu/verify_and_sweep.py OUT --data tests/data

Needs a machine with a GPU where ``ddpprof doctor`` is content (nsys whole: it imports its own captures). ``--device cpu``
is the dry run of the same steps. What comes out is what it is: N ranks, 1 GPU, time-sliced.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def ddpprof(*words: str | Path, allowed: tuple[int, ...] = (0,)) -> None:
    """Runs one command and prints its time. Raises SystemExit with its status when that is not allowed."""
    started = time.monotonic()
    status = subprocess.run([sys.executable, "-m", "ddpprof", *map(str, words)], cwd=ROOT).returncode
    print(f"-- ddpprof {words[0]}: status {status}, {time.monotonic() - started:.0f} s", flush=True)
    if status not in allowed:
        raise SystemExit(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", default="4")
    parser.add_argument("--iterations", default="10")
    parser.add_argument("--cases", help="for verify; all by default")
    parser.add_argument("--caps", default="4,16,64")
    parser.add_argument("--rounds", default="2")
    parser.add_argument("--data", type=Path, help="where the redacted exports go")
    options = parser.parse_args()
    how = ["--device", options.device, "--ranks", options.ranks, "--iterations", options.iterations, "--no-results"]
    how += ["--share-gpu"] if options.device == "cuda" else []
    out = options.out.resolve()
    ddpprof("verify", *how, *(["--cases", options.cases] if options.cases else []), "-o", out / "verify")
    ddpprof("sweep", "delay_cap4", *how, "--caps", options.caps, "--rounds", options.rounds, "-o", out / "sweep")
    if options.data is not None:
        options.data.mkdir(parents=True, exist_ok=True)
        for report in sorted((out / "verify").glob("*/report.sqlite")):
            name = f"{options.device}_{options.ranks}rank_{report.parent.name}.sqlite"
            ddpprof("redact", report, options.data.resolve() / name)


if __name__ == "__main__":
    main()
