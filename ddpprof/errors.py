"""The one error family: what went wrong, where, what to do; only ``ddpprof.cli`` turns it into text and a status."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path


class DdpprofError(Exception):
    """An error a person can act on. ``message`` says what and where; ``hint`` says what to do."""

    exit_status = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\n{hint}")
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type[DdpprofError], tuple[str, str | None]]:
        return type(self), (self.message, self.hint)


class InputError(DdpprofError):
    """A report, folder or record that cannot be read as what it claims to be."""


class ToolError(DdpprofError):
    """A program we run (nsys, torchrun) is missing, failed, or left nothing."""


class WorkloadError(DdpprofError):
    """The profiled job failed; the message names the rank and its last words."""


class UsageError(DdpprofError):
    """The command line asks for what does not exist or cannot be."""

    exit_status = 2


def nearest(word: str, known: Iterable[str], cutoff: float = 0.4, shown: Callable[[str], str] = str) -> str:
    """A sentence that offers the nearest known names, each as ``shown``; "" when none is near."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=3, cutoff=cutoff)
    return f"Did you mean {' or '.join(map(shown, close))}?" if close else ""


def nearest_path(path: Path) -> str:
    """The same for a path that is not there: paths that differ from it in the first part that is missing."""
    missing = path
    while not missing.parent.exists():
        missing = missing.parent
    rest = path.relative_to(missing)
    try:
        known = [item.name for item in missing.parent.iterdir() if (item / rest).exists() and not item.name.startswith(".")]
    except OSError:
        return ""
    return nearest(missing.name, known, 0.6, lambda name: str(missing.parent / name / rest))
