"""Nsight Systems: where nsys is, its command lines, its exports. What a version takes or loses was found by running it."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from ddpprof import machine, nsys_fetch
from ddpprof.errors import InputError, ToolError, UsageError, nearest_path
from ddpprof.nsys_fetch import OTHER_WAYS
from ddpprof.rundir import whole_file

REPORT_SUFFIX = ".nsys-rep"
STREAM_SUFFIX = ".qdstrm"

_INSTALLS = (
    "opt/nvidia/nsight-systems/*/bin/nsys",
    "opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "opt/nvidia/nsight-systems-cli/*/target-linux-*/nsys",
    "opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Systems/bin/nsys",
    "usr/local/cuda*/bin/nsys",
    "usr/local/cuda*/nsight-systems*/bin/nsys",
    "usr/local/cuda*/nsight-systems*/target-linux-*/nsys",
    "usr/lib/nsight-systems/*/nsys",
)
"""Where NVIDIA's installers and the distributions put it, below /."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Nsys:
    """An nsys that answered. ``source``: option, DDPPROF_NSYS, PATH, NVIDIA install folder, cache or fetched."""

    path: Path
    version: str
    source: str

    @property
    def version_info(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split("."))


def find(explicit: str | Path | None = None, *, may_fetch: bool = True, say: Say = lambda line: None) -> Nsys:
    """The nsys to use: the given one, else of DDPPROF_NSYS, PATH, NVIDIA's folders, our cache; else it is fetched.

    A given one that does not work is an error, never passed over. In a folder of several the newest is taken.
    On a machine with an NVIDIA driver a cached tree without CUPTI does not count. Raises ToolError.
    """
    given, source = (explicit, "option") if explicit else (os.environ.get("DDPPROF_NSYS"), "DDPPROF_NSYS")
    if given:
        found = _probe(Path(shutil.which(given) or given), source)
        if found is None:
            raise ToolError(
                f"{given}: not a working nsys (from {source})",
                "Check the path: `PATH --version` must answer as Nsight Systems does.",
            )
        return found
    on_path = shutil.which("nsys")
    places = (
        ("PATH", [Path(on_path)] if on_path else []),
        ("NVIDIA install folder", [path for pattern in _INSTALLS for path in Path("/").glob(pattern)]),
        ("cache", list(_cached())),
    )
    for source, paths in places:
        working = [nsys for path in paths if (nsys := _probe(path, source))]
        if working:
            return max(working, key=lambda nsys: nsys.version_info)
    if not may_fetch:
        raise ToolError("nsys was not found on this machine", OTHER_WAYS)
    if os.environ.get("DDPPROF_FETCH_NSYS") == "0":
        raise ToolError("nsys was not found on this machine, and DDPPROF_FETCH_NSYS=0 forbids fetching it", OTHER_WAYS)
    return fetch(say)


def fetch(say: Say = lambda line: None) -> Nsys:
    """A fresh nsys in the cache, out of the package archive that this machine is set up with; needs no root.

    With an NVIDIA driver the target tree is kept whole, since CUDA traces need its CUPTI. Raises ToolError.
    """
    whole = machine.driver_version() is not None
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache_dir(), ignore_cleanup_errors=True) as work:
            tree = nsys_fetch.unpacked(Path(work), whole=whole, say=say)
            found = next((nsys for path in tree.glob("target-linux-*/nsys") if (nsys := _probe(path, "fetched"))), None)
            if found is None:
                raise ToolError("the nsys of the package archive does not run on this machine", OTHER_WAYS)
            home = cache_dir() / f"nsys-{found.version}-{'whole' if whole else 'trimmed'}"
            kept = replace(found, path=home / found.path.relative_to(tree))
            try:
                tree.rename(home)
            except OSError:
                if _probe(kept.path, kept.source) is None:  # else another process was first, and may be running it
                    raise
            return kept
    except OSError as error:
        reason = error.strerror or "disk error"
        raise ToolError(
            f"nsys could not be kept in the cache: {reason}", f"Set DDPPROF_CACHE to a folder with 1 GB free. {OTHER_WAYS}"
        ) from error


def cache_dir() -> Path:
    """``$DDPPROF_CACHE``, else ``$XDG_CACHE_HOME/ddpprof``, else ``~/.cache/ddpprof``."""
    own = os.environ.get("DDPPROF_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "ddpprof"


def profile_command(
    nsys: Nsys,
    output: Path,
    command: Sequence[str],
    *,
    has_cuda: bool,
    report_rank_pattern: bool = False,
    uses_range: bool = True,
) -> list[str]:
    """``command`` under nsys, writing ``output``.

    With ``report_rank_pattern`` each rank, under an nsys of its own, writes ``report.rankN.nsys-rep`` for ``report.nsys-rep``.
    On CUDA, ``uses_range`` records only what lies between cudaProfilerStart and Stop; without CUDA it is the whole run.
    The command finds the TMPDIR of this process, so that nsys may have one of its own.
    """
    stem = str(output).removesuffix(REPORT_SUFFIX).replace("%", "%%") + (".rank%q{RANK}" if report_rank_pattern else "")
    # Both of the first two: nsys 2022.4 hangs on new kernels with --sample=none alone.
    options = ["--sample=none", "--cpuctxsw=none", "--kill=none", "--force-overwrite=true", f"--output={stem}"]
    options += [f"{_JOB_TMPDIR}{tempfile.gettempdir()}"] * ("," not in tempfile.gettempdir())  # where nsys would split it
    if not has_cuda:
        return [str(nsys.path), "profile", "--trace=nvtx", *options, *command]
    options += ["--cuda-graph-trace=node"]
    if uses_range:
        options += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    if nsys.version_info >= (2025, 1):  # unknown to 2024.2; where it exists, tracing events disturbs overlap itself
        options += ["--cuda-event-trace=false"]
    return [str(nsys.path), "profile", "--trace=cuda,nvtx", *options, *command]


_JOB_TMPDIR = "--env-var=TMPDIR="


def has_nsys(command: Sequence[str]) -> bool:
    """Whether nsys stands somewhere in a command line, as ``profile_command`` puts it there."""
    return any(word.startswith(_JOB_TMPDIR) for word in command)


def export(nsys: Nsys, report: Path, output: Path | None = None) -> Path:
    """The SQLite export of ``report``, beside it unless ``output`` says where; it appears whole or not at all.

    Raises InputError when the report is missing, unfinished, newer than ``nsys`` or no report; ToolError when nsys fails.
    """
    output = output or report.with_suffix(".sqlite")
    check_is_report(report)
    if output.exists() and output.samefile(report):
        raise UsageError(f"{output}: would overwrite the report itself", "Give another name with -o.")
    with whole_file(output) as partial:
        options = ("--type=sqlite", "--force-overwrite=true", "--quiet=true", f"--output={partial}")
        done = _run(nsys.path, "export", *options, str(report))
        if done.returncode or not partial.stat().st_size:
            raise _export_error(nsys, report, done)
    return output


def check_is_report(report: Path) -> None:
    """Returns when ``report`` may be one. Raises InputError when it is missing, unreadable or an unfinished stream."""
    try:
        with report.open("rb") as file:
            head = file.read(64)
    except FileNotFoundError:
        raise InputError(f"{report}: no such report", nearest_path(report) or None) from None
    except OSError as error:
        raise InputError(f"{report}: cannot be read: {error.strerror or error}") from None
    if report.suffix == STREAM_SUFFIX or b"Nsight Systems Stream" in head:
        raise InputError(f"{report}: unfinished stream, not a report", _finish(report))


def is_export(path: Path) -> bool:
    """Whether a file is an SQLite export of nsys."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'StringIds'").fetchall())
    except sqlite3.Error:
        return False


def is_stale(report: Path, exported: Path) -> bool:
    """Whether ``report`` was written after its export (both exist)."""
    return report.stat().st_mtime > exported.stat().st_mtime


def import_stream(nsys: Nsys, stream: Path, output: Path) -> Path:
    """The report made of a ``.qdstrm`` that an nsys of the same version left because it had no importer beside it.

    Raises ToolError when ``nsys`` has none either, or when the importer refuses.
    """
    root = nsys.path.resolve().parent.parent
    importer = next(iter(sorted(root.glob("host-linux-*/QdstrmImporter"))), None)
    if importer is None:
        raise ToolError(f"{stream}: unfinished stream, and this nsys has no QdstrmImporter to finish it", _finish(stream))
    with whole_file(output) as partial:
        done = _run(importer, "--force-overwrite", "--input-file", str(stream), "--output-file", str(partial))
        if done.returncode or not partial.stat().st_size:
            raise ToolError(f"{stream}: QdstrmImporter {nsys.version} could not finish it: {_own_words(done)}", _finish(stream))
    return output


def nvtx_problem(nsys_version: tuple[int, ...], nvtx_version: str) -> str | None:
    """Why this pair records no NVTX range, without a word of its own; None when it does."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", nvtx_version)[:3])
    if numbers >= (0, 2, 12) and nsys_version[:2] <= (2024, 2):
        number = ".".join(str(part) for part in nsys_version[:3])
        return f"nsys {number} silently loses every range of nvtx {nvtx_version}: install 'nvtx<0.2.12'"
    return None


def _cached() -> Iterator[Path]:
    kinds = ("whole",) if machine.driver_version() else ("whole", "trimmed")
    for kind in kinds:
        yield from cache_dir().glob(f"nsys-*-{kind}/target-linux-*/nsys")


def _probe(path: Path, source: str) -> Nsys | None:
    try:
        done = _run(path, "--version", timeout_s=30)
    except ToolError:
        return None
    version = re.search(r"Nsight Systems version (\d+(?:\.\d+)+)", done.stdout)
    return Nsys(path, version[1], source) if version and done.returncode == 0 else None


def _run(program: Path, *arguments: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(program), *arguments]
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except OSError as error:
        raise ToolError(f"{program.name} could not be started: {error.strerror or error}", OTHER_WAYS) from error
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{program.name} did not answer within {timeout_s} s", OTHER_WAYS) from error


def _finish(stream: Path) -> str:
    report = stream.with_suffix(REPORT_SUFFIX)
    return f"Finish it with the nsys version that wrote it: host-linux-*/QdstrmImporter -i {stream} -o {report}"


def _export_error(nsys: Nsys, report: Path, done: subprocess.CompletedProcess[str]) -> InputError | ToolError:
    words = _own_words(done)
    newer = re.search(r"(?:Version number is invalid: |created in Nsight Systems version \()(\d{4}(?:[@.]\d+)+)", words)
    if newer:
        writer = newer[1].replace("@", ".")
        return InputError(
            f"{report}: written by nsys {writer}, newer than this nsys {nsys.version}: {words}",
            "Export it where it was captured (nsys export --type sqlite REPORT), or use a newer nsys with --nsys.",
        )
    if re.search("Cannot read from stream|magic number|Invalid version prefix", words):
        return InputError(f"{report}: not an Nsight Systems report, or cut short: {words}")
    return ToolError(f"{report}: nsys {nsys.version} could not export it: {words}")


def _own_words(done: subprocess.CompletedProcess[str]) -> str:
    """What the program said, in one line."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return " ".join(lines)[:300] or f"it said nothing and left nothing (status {done.returncode})"
