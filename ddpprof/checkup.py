"""What this machine can do, tried rather than guessed, and what to fix before a job is profiled on it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from ddpprof import launch, machine, marks, nsys_fetch
from ddpprof import nsys as nsight
from ddpprof.errors import DdpprofError, ToolError

NEEDED_BYTES = 1 << 30
"""Free space for a few runs."""

_INSTALL = "pip install 'ddpprof[run]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """The installed torch. ``sees_gpus`` and ``error`` are what importing it told, None when that was not tried."""

    version: str
    is_cuda_build: bool
    nccl_version: str | None
    sees_gpus: int | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """The facts. None: not there, or not tried. ``can_profile`` is false when `ddpprof profile` would end in an error."""

    python_version: str
    torch: Torch | None
    nvtx_version: str | None
    gpus: tuple[str, ...]
    driver_version: str | None
    cpu_count: int
    memory_bytes: int
    free_bytes: int
    nsys_version: str | None
    nsys_source: str | None
    nsys_path: str | None
    would_fetch_nsys: bool
    records_marks: bool | None
    can_profile: bool
    device: str
    capture: str
    fixes: tuple[str, ...]


def check(given_nsys: str | None = None, *, is_tested: bool = True) -> Checkup:
    """The Checkup of this machine; ``is_tested`` imports torch and takes a test capture (a few seconds).

    Raises ToolError when the nsys that was given by hand does not work. Nothing is fetched.
    """
    gpus, torch, nvtx = machine.gpu_names(), _torch(is_tested), _version("nvtx")
    nsys, no_nsys = _nsys(given_nsys)
    is_free_to_fetch = not os.environ.get("DDPPROF_NSYS") and os.environ.get("DDPPROF_FETCH_NSYS") != "0"
    would_fetch = nsys is None and is_free_to_fetch and nsys_fetch.can_fetch()
    free_bytes = shutil.disk_usage(Path.cwd()).free
    records_marks = _records_marks(nsys) if nsys and nvtx and is_tested else None
    blocking = [*_torch_problems(torch, gpus), *_marks_problems(nsys, nvtx, records_marks, would_fetch)]
    advice = [f"{no_nsys}; until it is there, torch.profiler captures"] if no_nsys and not would_fetch else []
    if gpus and torch and not torch.is_cuda_build:
        advice.append("there is a GPU, but torch is a CPU build: install torch for CUDA to profile on it")
    if free_bytes < NEEDED_BYTES:
        advice.append("less than 1 GiB is free here: a run may not fit")
    return Checkup(
        python_version=platform.python_version(),
        torch=torch,
        nvtx_version=nvtx,
        gpus=gpus,
        driver_version=machine.driver_version(),
        cpu_count=machine.cpu_count(),
        memory_bytes=machine.memory_bytes(),
        free_bytes=free_bytes,
        nsys_version=nsys.version if nsys else None,
        nsys_source=nsys.source if nsys else None,
        nsys_path=_below_home(nsys.path) if nsys else None,
        would_fetch_nsys=would_fetch,
        records_marks=records_marks,
        can_profile=not blocking,
        device="cuda" if gpus and torch and torch.is_cuda_build else "cpu",
        capture="nsys" if nsys or would_fetch else "torch",
        fixes=(*blocking, *advice),
    )


def _torch(is_tested: bool) -> Torch | None:
    installed = _version("torch")
    if installed is None:
        return None
    names = {str(item.metadata["Name"]).lower(): item.version for item in distributions()}
    nccl = next((number for name, number in names.items() if name.startswith("nvidia-nccl-cu")), None)
    sees_gpus = error = None
    if is_tested:
        command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            sees_gpus = int(done.stdout)
        else:
            error = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    has_cuda = machine.torch_has_cuda()
    return Torch(version=installed, is_cuda_build=has_cuda, nccl_version=nccl, sees_gpus=sees_gpus, error=error)


def _torch_problems(torch: Torch | None, gpus: tuple[str, ...]) -> list[str]:
    if torch is None:
        return [f"torch is not installed, so nothing can be run (reports can be analyzed): {_INSTALL}"]
    if torch.error:
        return [f"torch does not import ({torch.error}): install it again"]
    if gpus and torch.is_cuda_build and torch.sees_gpus == 0:
        return ["torch sees none of the GPUs: is the driver too old for it? Until then use --device cpu"]
    return []


def _nsys(given: str | None) -> tuple[nsight.Nsys | None, str | None]:
    """The nsys that would be used without a fetch, or why there is none."""
    try:
        return nsight.find(given, may_fetch=False), None
    except ToolError as error:
        if given:
            raise
        return None, error.message


def _marks_problems(nsys: nsight.Nsys | None, nvtx: str | None, records_marks: bool | None, would_fetch: bool) -> list[str]:
    """Why nsys would not see our marks."""
    number = nsys.version_info if nsys else nsys_fetch.LIKELY_VERSION if would_fetch else None
    if number is None or records_marks:
        return []
    if nvtx is None:
        return [f"nvtx is not installed, so nsys would see no marks: {_INSTALL}"]
    problem = nsight.nvtx_problem(number, nvtx)
    if problem is None and records_marks is False:
        problem = f"a test capture with nvtx {nvtx} shows no mark: try another nsys with --nsys"
    return [problem] if problem else []


def _records_marks(nsys: nsight.Nsys) -> bool:
    """Whether the mark of a tiny program is in the export of its capture."""
    program = "import nvtx\nfrom ddpprof import marks\nwith nvtx.annotate(marks.step(2**30), domain=marks.DOMAIN):\n    pass"
    with tempfile.TemporaryDirectory(prefix="ddpprof-") as folder:
        report = Path(folder) / "report.nsys-rep"
        command = nsight.profile_command(nsys, report, [sys.executable, "-c", program], has_cuda=False)
        try:
            launch.run(command, env=launch.environment({}), log_dir=Path(folder), timeout_s=60)
            if not report.exists():
                nsight.import_stream(nsys, report.with_suffix(nsight.STREAM_SUFFIX), report)
            # The number is spelt out nowhere but in the mark, so the program's own text in the report does not count.
            return marks.step(2**30).encode() in nsight.export(nsys, report).read_bytes()
        except DdpprofError:
            return False


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _below_home(path: Path) -> str:
    """The path without the user's name in it."""
    home = Path("~").expanduser()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
