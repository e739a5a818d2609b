"""Programs that stand in for nsys, apt and the like: small scripts whose every answer a test can read."""

from __future__ import annotations

import sys
from pathlib import Path

EXPORTS = """
output = next(item for item in sys.argv if item.startswith("--output=")).removeprefix("--output=")
open(output, "w").write("export of " + open(sys.argv[-1]).read())
"""


COPIES = """
import shutil
output = next(item for item in sys.argv if item.startswith("--output=")).removeprefix("--output=")
shutil.copyfile(sys.argv[-1], output)
"""
"""For a "report" that is its own export."""


def program(path: Path, body: str) -> Path:
    """A Python script at ``path`` that runs ``body``; ``sys`` is imported."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable} -S\nimport sys\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def fake_nsys(path: Path, *, version: str = "2023.4.4.54", export: str = EXPORTS) -> Path:
    """An nsys that tells its version and whose ``export`` runs the given body."""
    body = "\n".join(f"    {line}" for line in export.strip().splitlines())
    return program(
        path,
        f"if sys.argv[1] == '--version':\n    print('NVIDIA Nsight Systems version {version}-1234v0')\n"
        f"elif sys.argv[1] == 'export':\n{body}",
    )
