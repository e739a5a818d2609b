"""ddpprof: is my communication hidden, on every rank, and if not, why?

The four rooms ``analysis``, ``reports``, ``workloads`` and ``benchmarks`` of a checkout are the subpackages
``ddpprof.analysis`` and so on: an installed wheel holds them inside the package, a checkout
finds them beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HERE = Path(__file__).resolve().parent
if not (_HERE / "analysis").is_dir() and (_HERE.parent / "analysis" / "__init__.py").is_file():
    __path__.append(str(_HERE.parent))

if TYPE_CHECKING:
    from ddpprof.inputs import analyze as analyze

__all__ = ["analyze"]


def __getattr__(name: str) -> Any:
    """Late access to the one entry point of the library, so that ``import ddpprof`` stays cheap."""
    if name == "analyze":
        from ddpprof.inputs import analyze

        return analyze
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
