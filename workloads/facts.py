"""Holds the facts about the Reducer against the installed PyTorch, in a process of its own: knows no torch itself.

A check that takes its process down, or hangs, costs that fact alone; the rest go on in a new process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ddpprof
from ddpprof.errors import ToolError
from ddpprof.reducer import FACTS, FactResult
from ddpprof.workloads import require_torch

TIMEOUT_S = 60.0
"""How long one process of checks may take; all of them together take a few seconds."""

MODULE = "ddpprof.workloads.fact_checks"
_SETTINGS = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "KINETO_LOG_LEVEL": "99", "OMP_NUM_THREADS": "1"}
_CHANGES_WHAT_IS_CHECKED = {"DDP_SET_LAST_BUCKET_CAP", "TORCH_DISTRIBUTED_DEBUG"}


def check_facts(module: str = MODULE) -> list[FactResult]:
    """A result for each fact, in order of number. ``module`` is what is run, with the numbers of the facts as its arguments.

    Raises ToolError when torch is not there or does not import.
    """
    require_torch()
    outcomes: dict[int, dict[str, Any]] = {}
    while left := [fact.number for fact in FACTS if fact.number not in outcomes]:
        lines, ending = _run(module, left)
        outcomes |= {line["number"]: line for line in lines if "status" in line}
        begun = [line["number"] for line in lines if line["number"] not in outcomes]
        if begun:
            outcomes[begun[0]] = {"status": "fail", "detail": f"the process that checked it {ending}"}
        elif not lines:
            raise ToolError(f"the facts cannot be checked: the process {ending}", "See what is wrong with: ddpprof doctor")
    return [
        FactResult(**asdict(fact), status=outcomes[fact.number]["status"], detail=outcomes[fact.number]["detail"])
        for fact in FACTS
    ]


def _run(module: str, numbers: Sequence[int]) -> tuple[list[dict[str, Any]], str]:
    """The lines that the checks of ``numbers`` wrote, and how their process ended, in words."""
    environment = {name: value for name, value in os.environ.items() if name not in _CHANGES_WHAT_IS_CHECKED}
    root = str(Path(ddpprof.__file__).parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, numbers)],
        env=environment | _SETTINGS | {"PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
        ending = _ending(process.returncode, err)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        ending = f"was not done after {TIMEOUT_S:g} s"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")], ending


def _ending(status: int, err: str) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    last = next((line.strip() for line in reversed(err.splitlines()) if line.strip()), "without a word")
    return f"ended with status {status}: {last}"
