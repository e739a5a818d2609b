"""What this machine has, told without importing torch: GPUs, driver, cores, memory. Never its name."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia")


def gpu_names() -> tuple[str, ...]:
    """Models of the GPUs that a job started here may use, CUDA_VISIBLE_DEVICES obeyed; empty without any."""
    installed = _installed_gpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(installed.values())
    chosen = []
    for item in visible.split(","):
        names = [name for uuid, name in installed.items() if item.strip() and uuid.startswith(item.strip())]
        if item.strip().isdigit():
            names = list(installed.values())[int(item) :]
        if not names:  # CUDA ends the list at the first entry that is no device
            break
        chosen.append(names[0])
    return tuple(chosen)


def driver_version() -> str | None:
    """Version of the NVIDIA driver, "unknown" when there is one that does not say, None when there is none."""
    try:
        text = (_DRIVER / "version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return found[0] if found else ("unknown" if text else None)


def cpu_count() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def cpu_model() -> str | None:
    """Model of the CPU, None when the kernel does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^model name\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return found[1] if found else None


def memory_bytes() -> int:
    """Physical memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _installed_gpus() -> dict[str, str]:
    """UUID to model of every GPU of the machine, in the driver's order."""
    listed = re.findall(r"^GPU \d+: (.+?) \(UUID: (\S+)\)", _nvidia_smi("-L"), re.MULTILINE)
    if listed:
        return {uuid: name for name, uuid in listed}
    gpus = {}
    for path in sorted(_DRIVER.glob("gpus/*/information")):
        facts = dict(re.findall(r"^(Model|GPU UUID):\s*(.+?)\s*$", path.read_text(encoding="utf-8"), re.MULTILINE))
        gpus[facts.get("GPU UUID", path.parent.name)] = facts.get("Model", "NVIDIA GPU")
    return gpus


def _nvidia_smi(*arguments: str) -> str:
    """Its output, "" when there is no nvidia-smi or it cannot talk to the driver."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, errors="replace", timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def torch_has_cuda() -> bool:
    """Whether the installed torch is a CUDA build, told without importing it."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^cuda\b[^=]*= *['\"]\d", text, re.MULTILINE) is not None
