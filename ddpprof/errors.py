"""The one error family: what went wrong, where, what to do; only ``ddpprof.cli`` turns it into text and a status."""

from __future__ import annotations


class DdpprofError(Exception):
    """An error a person can act on. ``message`` says what and where; ``hint`` says what to do."""

    exit_status = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\n{hint}")
        self.message = message
        self.hint = hint


class InputError(DdpprofError):
    """A report, folder or record that cannot be read as what it claims to be."""


class ToolError(DdpprofError):
    """A program we run (nsys, torchrun) is missing, failed, or left nothing."""


class WorkloadError(DdpprofError):
    """The profiled job failed; the message names the rank and its last words."""


class UsageError(DdpprofError):
    """The command line asks for what does not exist or cannot be."""

    exit_status = 2
