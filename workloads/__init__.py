"""What is profiled: cases, their model, their training loop, the process torchrun starts. Only this room knows torch."""

from __future__ import annotations

import importlib.util

from ddpprof.errors import ToolError


def require_torch() -> None:
    """Raises ToolError when torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise ToolError("torch is not installed here", "Install what the workloads need: pip install 'ddpprof[run]'")
