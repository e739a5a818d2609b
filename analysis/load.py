"""Which reader reads a file: told by what is in it, not by its name."""

from __future__ import annotations

from pathlib import Path

from ddpprof.errors import InputError
from ddpprof.model import Trace

REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
"""Reports in Nsight's own format: only nsys reads them, so they are exported first."""


def read(path: Path, step_pattern: str | None = None) -> Trace:
    """The Trace of an nsys SQLite export, a parquet export folder, or a torch.profiler JSON.

    Raises InputError for what is none of these, saying what it is and what to do.
    """
    if path.suffix == ".qdstrm":
        raise InputError(
            f"{path}: an unfinished stream, not a report", "Finish it with QdstrmImporter of the nsys that made it."
        )
    if path.suffix in REPORT_SUFFIXES:
        raise InputError(f"{path}: Nsight's own format", "Export it first: ddpprof export REPORT")
    if path.is_dir():
        from ddpprof.analysis import nsys_reader

        return nsys_reader.read(path, step_pattern)
    if is_kineto(path):
        from ddpprof.analysis import kineto_reader

        return kineto_reader.read(path, step_pattern)
    from ddpprof.analysis import nsys_reader

    return nsys_reader.read(path, step_pattern)


def is_kineto(path: Path) -> bool:
    """Whether a file is JSON or gzip by its first bytes; one that cannot be opened is not."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError:
        return False
    return head.startswith(b"\x1f\x8b") or head.lstrip()[:1] in (b"{", b"[") or path.name.endswith((".json", ".json.gz"))


def is_report(path: Path) -> bool:
    """Whether a path in a folder of reports is one: an export, a profiler trace or a parquet export folder."""
    if path.is_dir():
        return any(path.glob("*.parquet"))
    return path.suffix in (".sqlite", *REPORT_SUFFIXES) or path.name.endswith((".json", ".json.gz", ".pt.trace.json"))
