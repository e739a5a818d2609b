"""ddpprof: is my communication hidden, on every rank, and if not, why?

The four rooms ``analysis``, ``reports``, ``workloads`` and ``benchmarks`` of a checkout are the subpackages
``ddpprof.analysis`` and so on: an installed wheel holds them inside the package, a checkout
finds them beside it.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

BUCKET_CAP = "DDPPROF_BUCKET_CAP_MB"
"""Environment variable in which `ddpprof sweep` hands the cap to somebody's own job."""

_HERE = Path(__file__).resolve().parent
if not (_HERE / "analysis").is_dir() and (_HERE.parent / "analysis" / "__init__.py").is_file():
    __path__.append(str(_HERE.parent))

if TYPE_CHECKING:
    from ddpprof.inputs import analyze as analyze
    from ddpprof.workloads.own import timed_step as timed_step
    from ddpprof.workloads.own import watch as watch

__all__ = ["analyze", "ddp_kwargs", "timed_step", "watch"]

_LATE = {"analyze": "ddpprof.inputs", "timed_step": "ddpprof.workloads.own", "watch": "ddpprof.workloads.own"}


def ddp_kwargs() -> dict[str, Any]:
    """The keywords that let `ddpprof sweep` set the cap: ``DDP(model, **ddpprof.ddp_kwargs())``; none without a sweep."""
    cap = os.environ.get(BUCKET_CAP)
    return {"bucket_cap_mb": float(cap)} if cap else {}


def __getattr__(name: str) -> Any:
    """Late access to what needs more than this file, so that ``import ddpprof`` stays cheap."""
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
