"""Where a run keeps each file, how its records are written and read, and how a file or folder appears whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddpprof.errors import DdpprofError, InputError
from ddpprof.model import RECORD_TABLES, Records

MANIFEST = "manifest.json"

STEPS_FOLDER = "DDPPROF_STEPS_FOLDER"
"""Environment variable that names the folder in which somebody's own job is to leave its step times."""

RECORDS_FOLDER = "DDPPROF_RECORDS_FOLDER"
"""The same for the records of ``ddpprof.watch``; set under capture only, so that timed runs are those of the job alone."""

_EXPORTS, _TRACES = r"report(\.rank\d+)?\.sqlite", r"trace\.rank\d+\.json\.gz"
_RECORDS, _STEPS = r"records\.rank\d+\.jsonl", r"steps\.rank\d+\.txt"
_OURS = re.compile(
    rf"{_EXPORTS}|{_TRACES}|{_RECORDS}|{_STEPS}|report(\.rank\d+)?\.(nsys-rep|qdstrm)|{re.escape(MANIFEST)}"
    r"|summary\.(md|json|html)|rank(\d+|-unknown-\d+-\d+)(-device\w+)?\.(md|json)|(timeline|sweep)\.png|\.partial\..+"
    r"|(cap[\d.e+-]+|round\d+)\.failed\.log"
)
"""What a run or a sweep leaves in its folder; all else there is somebody's own."""

_PARTS = re.compile(r"cap[\d.e+-]+|round\d+")
"""Folders of a sweep, of which the same is true."""


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
        return _named(self.path, _EXPORTS) or _named(self.path, _TRACES)

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


def holds(manifest: Mapping[str, Any]) -> str:
    """What the folder of this manifest is: ``a run of delay_cap4``, ``a sweep of your own job``."""
    return f"a {'sweep' if 'caps_mb' in manifest else 'run'} of {manifest['case'] or 'your own job'}"


def is_our_json(path: Path) -> bool:
    """Whether a file is one of our own JSON reports; False for what cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(32).startswith(b'{\n  "format_version"')
    except OSError:
        return False


def _named(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob("*") if re.fullmatch(pattern, path.name))


def read_records(run: RunDir) -> Records:
    """All record rows of all ranks; an empty Records when the folder has none. Unknown keys and tables are passed over.

    Raises InputError naming file and line when a line is not a record.
    """
    import msgspec

    rows: dict[str, list[Any]] = {name: [] for name in RECORD_TABLES}
    for path in _named(run.path, _RECORDS):
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
        models=tuple(rows["model"]),
        gradients=tuple(rows["gradient"]),
        failures=tuple(rows["failure"]),
    )


def read_steps(run: RunDir) -> list[tuple[int, int]]:
    """Number and length (ns) of every step that ``ddpprof.timed_step`` timed, all ranks. Raises InputError for other lines."""
    rows = []
    for path in _named(run.path, _STEPS):
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
def whole_folder(path: Path, what: str) -> Iterator[Path]:
    """A temporary folder beside ``path`` that takes its place when the block ends well; the old one stays till then.

    Replaced is only an empty folder or one that ``holds`` the same as the new one, ``what``; else DdpprofError. What is in it
    and not a run's own goes over into the new one. Files have the permissions that any file gets, whoever made them (below
    nsys there is no umask). An error of the block that names the temporary folder names ``path`` instead.
    """
    with _disk_errors(path):
        _check_replaceable(path, what)
        _make_parent(path)
        partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            yield partial
            allowed = 0o777 & ~_umask()
            partial.chmod(allowed)
            for item in partial.rglob("*"):
                if not item.is_symlink():
                    item.chmod(item.stat().st_mode & allowed)
            _take_place(partial, path)
        except DdpprofError as error:
            message, hint = (text and text.replace(str(partial), str(path)) for text in (error.message, error.hint))
            raise type(error)(message or "", hint) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _check_replaceable(path: Path, what: str) -> None:
    """Returns when ``path`` is free, an empty folder, or one that holds ``what`` by a manifest of ours."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not path.is_dir():
        raise DdpprofError(f"{path}: is a file, not a folder", "Choose another place with -o; nothing was changed.")
    manifest = RunDir(path).read_manifest() if RunDir(path).is_run() else {}
    if "case" not in manifest:
        raise DdpprofError(f"{path}: exists and is not a run folder", "Choose another place with -o; nothing was changed.")
    if holds(manifest) != what:
        raise DdpprofError(
            f"{path}: holds {holds(manifest)}, not {what}", "Choose another place with -o, or remove it; nothing was changed."
        )


def _take_place(partial: Path, path: Path) -> None:
    """Moves ``partial`` to ``path``, taking over what was there and is not a run's own; the rest of that is gone afterwards.

    When it fails, all is back where it was; when even that fails, it is left in a folder ``.NAME.old.*`` beside it.
    """
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    old = aside / "old"
    moved: list[Path] = []
    try:
        if path.exists():
            path.rename(old)
            for name in _foreign(old):
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                moved.append(name)
                (old / name).rename(partial / name)
        partial.rename(path)
    except BaseException:
        for name in moved:
            if os.path.lexists(partial / name):
                (partial / name).rename(old / name)
        if old.exists():
            old.rename(path)
        aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _foreign(folder: Path) -> list[Path]:
    """What lies in a run folder and is not a run's own, relative to it; nothing when the folder is a link to one."""
    if folder.is_symlink():
        return []
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and _PARTS.fullmatch(path.name):
            found += [Path(path.name, inner) for inner in _foreign(path)]
        elif not _OURS.fullmatch(path.name):
            found.append(Path(path.name))
    return found


def _make_parent(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise DdpprofError(f"{path.parent}: no permission to write there", "Choose another place.")


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        file = next((place for place in (path, *path.parents) if place.is_file()), None)
        reason = f"{file} is a file, not a folder" if file else error.strerror
        raise DdpprofError(f"{path}: cannot be written: {reason}", "Choose another place.") from error
    except OSError as error:
        raise DdpprofError(
            f"{path}: cannot be written: {error.strerror or error}", "Free some space or choose another place."
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
