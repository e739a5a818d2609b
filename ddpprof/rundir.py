"""Where a run keeps each file, how its records are written and read, and how a file or folder appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddpprof.errors import DdpprofError, InputError
from ddpprof.model import RECORD_TABLES, Records

MANIFEST = "manifest.json"

STEPS_FOLDER = "DDPPROF_STEPS_FOLDER"
"""Environment variable that names the folder in which somebody's own job is to leave its step times."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """The files of one run folder. Nothing here touches the disk but ``reports`` and ``read_manifest``."""

    path: Path

    @property
    def manifest(self) -> Path:
        """Versions, device, world size, case, command, seed: what was run and on what."""
        return self.path / MANIFEST

    @property
    def summary(self) -> Path:
        """Stem of ``summary.md``, ``summary.json``."""
        return self.path / "summary"

    @property
    def timeline(self) -> Path:
        return self.path / "timeline.png"

    def records(self, rank: int) -> Path:
        return self.path / f"records.rank{rank}.jsonl"

    def steps(self, rank: int) -> Path:
        """``steps.rankN.txt``: what ``ddpprof.timed_step`` wrote, number and nanoseconds of a step a line."""
        return self.path / f"steps.rank{rank}.txt"

    def rank_report(self, rank: int | str) -> Path:
        """Stem of ``rankN.md``, ``rankN.json``."""
        return self.path / f"rank{rank}"

    def nsys_report(self, rank: int | None = None) -> Path:
        """``report.nsys-rep``, or ``report.rankN.nsys-rep`` of a run with a report a rank."""
        return self.path / ("report.nsys-rep" if rank is None else f"report.rank{rank}.nsys-rep")

    def sqlite(self, rank: int | None = None) -> Path:
        return self.nsys_report(rank).with_suffix(".sqlite")

    def torch_trace(self, rank: int) -> Path:
        """``trace.rankN.json.gz``: what torch.profiler wrote when nsys could not be had."""
        return self.path / f"trace.rank{rank}.json.gz"

    def reports(self) -> list[Path]:
        """The capture files to analyse: SQLite exports, else torch traces; sorted by name."""
        return sorted(self.path.glob("report*.sqlite")) or sorted(self.path.glob("trace.rank*.json.gz"))

    def is_run(self) -> bool:
        return self.manifest.is_file()

    def read_manifest(self) -> dict[str, Any]:
        """The manifest. Raises InputError when it is missing or not JSON."""
        try:
            data = json.loads(self.manifest.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{self.path}: not a run folder (no {MANIFEST})", "Make one with: ddpprof profile CASE") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{self.manifest}: cannot be read: {error}") from None
        if not isinstance(data, dict) or not (
            isinstance(data.get("case"), str | None) and isinstance(data.get("warnings"), list | None)
        ):
            raise InputError(f"{self.manifest}: not a manifest")
        return data


def read_records(run: RunDir) -> Records:
    """All record rows of all ranks; an empty Records when the folder has none. Unknown keys and tables are passed over.

    Raises InputError naming file and line when a line is not a record.
    """
    import msgspec

    rows: dict[str, list[Any]] = {name: [] for name in RECORD_TABLES}
    for path in sorted(run.path.glob("records.rank*.jsonl")):
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}", "Check its permissions.") from None
        for number, line in enumerate(lines, 1):
            try:
                raw = json.loads(line)
                name = raw.pop("table")
                if name in RECORD_TABLES:
                    rows[name].append(msgspec.convert(raw, RECORD_TABLES[name]))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError, msgspec.ValidationError):
                raise InputError(f"{path}:{number}: not a record line", "Run the case again to write fresh records.") from None
    return Records(
        runs=tuple(rows["run"]),
        iterations=tuple(rows["iteration"]),
        buckets=tuple(rows["bucket"]),
        loggers=tuple(rows["logger"]),
        layouts=tuple(rows["layout"]),
        failures=tuple(rows["failure"]),
    )


def read_steps(run: RunDir) -> list[tuple[int, int]]:
    """Number and length (ns) of every step that ``ddpprof.timed_step`` timed, all ranks. Raises InputError for other lines."""
    rows = []
    for path in sorted(run.path.glob("steps.rank*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                number, took_ns = map(int, line.split())
            except ValueError:
                raise InputError(f"{path}: not a line of ddpprof.timed_step: {line[:40]!r}") from None
            rows.append((number, took_ns))
    return rows


_NAMES = {table: name for name, table in RECORD_TABLES.items()}


def record_line(row: Any) -> str:
    """One record row as its JSON line, newline included."""
    return json.dumps({"table": _NAMES[type(row)]} | asdict(row), separators=(",", ":")) + "\n"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that becomes ``path`` when the block ends well, and vanishes when it does not."""
    with _disk_errors(path):
        _make_parent(path)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
        os.close(handle)
        partial = Path(name)
        try:
            yield partial
            partial.chmod(0o666 & ~_umask())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def whole_files(folder: Path) -> Iterator[Path]:
    """A temporary folder whose files move into ``folder`` when the block ends well, and vanish when it does not.

    Files of ``folder`` with other names stay as they are.
    """
    with _disk_errors(folder):
        is_new = not folder.exists()
        _make_parent(folder / MANIFEST)
        partial = Path(tempfile.mkdtemp(prefix=".partial.", dir=folder))
        try:
            yield partial
            for path in partial.iterdir():
                path.replace(folder / path.name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            if is_new and not any(folder.iterdir()):
                folder.rmdir()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path`` that takes its place when the block ends well; the old one stays till then.

    Only a run folder or an empty one is ever replaced: anything else there is somebody's work, and DdpprofError.
    An error of the block that names the temporary folder names ``path`` instead.
    """
    with _disk_errors(path):
        if path.exists() and not _is_replaceable(path):
            raise DdpprofError(f"{path}: exists and is not a run folder", "Choose another place with -o; nothing was changed.")
        _make_parent(path)
        partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            yield partial
            partial.chmod(0o777 & ~_umask())
            _take_place(partial, path)
        except DdpprofError as error:
            message, hint = (text and text.replace(str(partial), str(path)) for text in (error.message, error.hint))
            raise type(error)(message or "", hint) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _is_replaceable(path: Path) -> bool:
    """Whether ``path`` is an empty folder, or a run folder by its manifest (other programs have files of that name)."""
    if not path.is_dir():
        return False
    return not any(path.iterdir()) or (RunDir(path).is_run() and "case" in RunDir(path).read_manifest())


def _take_place(partial: Path, path: Path) -> None:
    """Moves ``partial`` to ``path``; what was there is gone afterwards, or back where it was when that fails."""
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    old = aside / path.name
    try:
        if path.exists():
            path.rename(old)
        partial.rename(path)
    except BaseException:
        if old.exists():
            old.rename(path)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _make_parent(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise DdpprofError(f"{path.parent}: no permission to write there", "Choose another place with -o.")


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DdpprofError(
            f"{path}: cannot be written: {error.strerror or error}", "Free some space or choose another place with -o."
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
