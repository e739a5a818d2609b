"""The process that tells what every replica must hold: ``python -m ddpprof.workloads.reference CASE --world N --steps K``.

It writes a JSON list: after each step, the hash of all parameters that one process has when it trains the whole batch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import torch

from ddpprof.errors import DdpprofError
from ddpprof.workloads.cases import find
from ddpprof.workloads.training import reference


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the hashes to stdout; exit status 0, or 2 (called wrongly)."""
    parser = argparse.ArgumentParser(prog="ddpprof.workloads.reference", description=__doc__)
    parser.add_argument("case", metavar="CASE")
    parser.add_argument("--world", type=int, required=True, metavar="N", help="ranks of the job: rows of its batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, required=True, metavar="K", help="steps from the start, warm-up counted")
    options = parser.parse_args(arguments)
    try:
        case = find(options.case)
    except DdpprofError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    torch.set_num_threads(1)
    hashes = [digest for _, digest in reference(case, options.world, options.seed, options.steps)]
    sys.stdout.write(json.dumps(hashes) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
