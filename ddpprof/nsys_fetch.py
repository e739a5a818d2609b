"""Nsight Systems out of the package archive that apt is set up with: found, downloaded, unpacked, trimmed; no root.

apt is asked where its archive is and works in a folder of its own, so neither the system's package lists nor its
packages are touched. Debian has nsys in ``non-free``, Ubuntu in ``multiverse``.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from ddpprof.errors import ToolError

OTHER_WAYS = "Give your own nsys with --nsys or DDPPROF_NSYS; a case can be captured without: --capture torch."

_ARCHIVES = {"debian": ("non-free", ("trixie", "bookworm")), "ubuntu": ("multiverse", ())}
"""Distribution to the component that holds nsys, and the suites worth asking beside the machine's own (newest wins)."""

LIKELY_VERSION = (2023, 4)
"""What a fetch brings today."""

_PACKAGES = ("nsight-systems", "nsight-systems-target", "libssh-4")
_EXTRA_PACKAGES = ("libarrow500",)
"""What a newer importer links too, where it is a package of its own."""

_TARGET_FILES = {
    "nsys",
    "nsys-launcher",
    "libToolsInjection64.so",
    "libToolsInjectionProxy64.so",
    "libToolsInjectionMemoryAllocator.so",
    "libLinuxKeyboardInterceptorProxy.so",
    "GpuMetrics",
    "GpuMetrics.config",
}
"""What ``profile --trace=nvtx`` and ``export`` need of the target tree."""


def can_fetch() -> bool:
    """Whether this machine has the programs for it. The network shows only when it is tried."""
    return all(shutil.which(program) for program in ("apt-get", "dpkg-deb", "ldd"))


def unpacked(work: Path, *, whole: bool, say: Callable[[str], None]) -> Path:
    """A folder in ``work`` with ``target-linux-*`` and ``host-linux-*``, ready to be moved. Raises ToolError.

    Without ``whole`` the target is cut down to what a machine without CUDA can use. The host side always is
    cut down to the importer and its libraries.
    """
    if not can_fetch():
        raise ToolError("nsys was not found, and without apt-get, dpkg-deb and ldd it cannot be fetched", OTHER_WAYS)
    raw = work / "raw"
    for package in _download(work, say):
        if _run(["dpkg-deb", "-x", str(package), str(raw)]).returncode:
            raise ToolError("the fetched nsys could not be unpacked (is the disk full?)", OTHER_WAYS)
        package.unlink()
    target, host = _place(raw, "target-linux-*/nsys"), _place(raw, "host-linux-*/QdstrmImporter")
    for library in raw.glob("usr/lib/*/lib*.so.*"):
        (host / library.name).unlink(missing_ok=True)  # the packaged link points out of the tree
        shutil.copy2(library, host / library.name)
    tree = work / "tree"
    tree.mkdir()
    target, host = (folder.rename(tree / folder.name) for folder in (target, host))
    if not whole:
        _keep_only(target, _TARGET_FILES)
    _keep_only(host, _importer_files(host))
    return tree


def _download(work: Path, say: Callable[[str], None]) -> list[Path]:
    """The packages, in ``work``."""
    family = _family()
    component, suites = _ARCHIVES[family]
    apt = ["apt-get", "-q", *_private_options(work)]
    offered = _run(["apt-get", "update", "--print-uris"]).stdout
    sources = re.findall(r"^'(\S+)/dists/([a-z]+)/InRelease'", offered, re.MULTILINE)
    (work / "sources" / "nsys.sources").write_text(_stanzas(sources, family, component, suites), encoding="utf-8")
    _run([*apt, "update"])  # some of these suites need not exist: what can be had shows below
    listed = _run([*apt, "download", "--print-uris", *_PACKAGES, *_EXTRA_PACKAGES]).stdout
    packages = re.findall(r"^'\S+' (([^\s_]+)_([0-9.]+)\S*\.deb) (\d+)", listed, re.MULTILINE)
    by_name = {name: (version, int(size)) for _, name, version, size in packages}
    if not by_name.keys() >= set(_PACKAGES):
        raise ToolError(
            f"nsys was not found, and this machine's package archive cannot be reached or has none in {component}", OTHER_WAYS
        )
    megabytes = sum(size for _, size in by_name.values()) // 1_000_000
    say(
        f"nsys was not found: fetching Nsight Systems {by_name['nsight-systems'][0]} from {component} of this machine's "
        f"{family.capitalize()} archive into the cache ({megabytes} MB; nothing is installed)"
    )
    if _run([*apt, "download", *by_name], cwd=work).returncode:
        raise ToolError("nsys could not be downloaded from this machine's package archive", OTHER_WAYS)
    return [work / filename for filename, *_ in packages]


def _family() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    names = [release.get("ID", "").lower(), *release.get("ID_LIKE", "").lower().split()]
    for family in ("ubuntu", "debian"):
        if family in names:
            return family
    raise ToolError("nsys was not found, and can be fetched on Debian and Ubuntu only", OTHER_WAYS)


def _private_options(work: Path) -> list[str]:
    """Options that keep apt to folders in ``work``, whoever runs it; proxies and the like stay as configured."""
    for name in ("sources", "lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": str(work / "sources"),
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State::Lists": str(work / "lists"),
        "Dir::Cache": str(work / "cache"),
        "APT::Default-Release": "",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::http::Timeout": "30",
        "Acquire::https::Timeout": "30",
        "Acquire::Retries": "2",
    }
    return [part for name, value in options.items() for part in ("-o", f"{name}={value}")]


def _stanzas(sources: list[tuple[str, str]], family: str, component: str, suites: tuple[str, ...]) -> str:
    """apt sources: the machine's own suites, whose libraries fit it, and the others for nsys alone."""
    own = {suite for _, suite in sources}
    keyrings = sorted(Path("/usr/share/keyrings").glob(f"{family}-archive-keyring.*"))
    head = f"Types: deb\nURIs: {' '.join(dict.fromkeys(site for site, _ in sources))}\n"
    head += f"Signed-By: {keyrings[0]}\n" if keyrings else ""
    text = f"{head}Suites: {' '.join(sorted(own))}\nComponents: main {component}\n"
    others = [suite for suite in suites if suite not in own]
    return text + (f"\n{head}Suites: {' '.join(others)}\nComponents: {component}\n" if others else "")


def _place(raw: Path, pattern: str) -> Path:
    """The real folder of the file that ``pattern`` names, wherever the package put it."""
    found = next((path for path in raw.rglob(pattern) if not path.parent.is_symlink()), None)
    if found is None:
        raise ToolError("the fetched packages hold no nsys", OTHER_WAYS)
    return found.parent


def _importer_files(host: Path) -> set[str]:
    """Names in ``host`` of the importer and every library that it loads from there, links and what they point to."""
    done = _run(["ldd", str(host / "QdstrmImporter")], LD_LIBRARY_PATH=str(host))
    missing = re.findall(r"^\s*(\S+) => not found", done.stdout, re.MULTILINE)
    if missing or done.returncode:
        raise ToolError(f"the fetched nsys does not run on this machine (no {', '.join(missing) or 'loader'})", OTHER_WAYS)
    names = {"QdstrmImporter", *re.findall(rf"=> {re.escape(str(host))}/(\S+)", done.stdout)}
    return names | {(host / name).resolve().name for name in names}


def _keep_only(folder: Path, names: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _run(command: list[str], cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"LC_ALL": "C"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
