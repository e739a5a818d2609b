"""Starting the job: its command line, its process tree (which it never outlives), and why it failed in one line."""

from __future__ import annotations

import os
import platform
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import ddpprof
from ddpprof import machine
from ddpprof.errors import InputError, ToolError, UsageError, WorkloadError
from ddpprof.model import FailureRecord
from ddpprof.nsys import Nsys, has_nsys, profile_command
from ddpprof.rundir import RunDir, read_records

MOST_RANKS_A_CORE = 16
_GRACE_S = 3.0
_TAIL_BYTES = 1 << 18
_MEMBER = "DDPPROF_JOB"
"""Environment variable that every process of a job inherits; nsys puts its agent and the job in sessions of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of a case. None leaves a choice to the case. ``port`` None: a free one."""

    case: str
    ranks: int
    device: Literal["cuda", "cpu"]
    capture: Literal["nsys", "torch", "none"] = "nsys"
    share_gpu: bool = False
    report_per_rank: bool = False
    port: int | None = None
    iterations: int | None = None
    seed: int | None = None
    bucket_cap_mb: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended. ``returncode`` is negative when a signal ended it."""

    returncode: int
    stderr_tail: str
    timed_out: bool = False


def case_command(job: Job, run: RunDir, nsys: Nsys | None = None) -> list[str]:
    """The whole command line of a job: torchrun and the ranks, under ``nsys`` if given.

    One nsys above torchrun records all ranks in one report; with ``report_per_rank`` each rank has its own.
    """
    rank = ["-m", "ddpprof.workloads.run", job.case, "--run-dir", str(run.path), "--device", job.device]
    rank += ["--capture", job.capture]
    rank += ["--share-gpu"] * job.share_gpu + ["--report-per-rank"] * job.report_per_rank
    for option in ("iterations", "seed", "bucket_cap_mb"):
        if (value := getattr(job, option)) is not None:
            rank += [f"--{option.replace('_', '-')}", str(value)]
    if job.port is None:
        meeting = ["--standalone", "--local-addr", "127.0.0.1"]
    else:
        meeting = ["--master-addr", "127.0.0.1", "--master-port", str(job.port)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *meeting, "--nproc-per-node", str(job.ranks)]
    if nsys is None:
        return torchrun + rank
    has_cuda, output = job.device == "cuda", run.nsys_report()
    if not job.report_per_rank:
        return profile_command(nsys, output, torchrun + rank, has_cuda=has_cuda)
    under_nsys = profile_command(nsys, output, [sys.executable, *rank], has_cuda=has_cuda, report_rank_pattern=True)
    return [*torchrun, "--no-python", *under_nsys]


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, in which the ranks find ddpprof in a plain checkout too, and ``extra``."""
    root = Path(ddpprof.__file__).resolve().parents[1]
    paths = [str(root)] if (root / "pyproject.toml").is_file() else []
    paths += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return os.environ | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {}) | dict(extra)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log_dir: Path,
    say: Callable[[str], None] = lambda line: None,
    timeout_s: float | None = None,
) -> Finished:
    """Runs ``command`` to its end, its output in ``stdout.log`` and ``stderr.log`` of ``log_dir``; no process survives it.

    An exception here, such as the KeyboardInterrupt that SIGINT and (by ``ddpprof.cli``) SIGTERM raise, ends the whole tree
    first: SIGTERM to its leader, to all, then SIGKILL, 3 s apart. An nsys in it has a temporary folder of its own, gone
    afterwards: what it streams there holds the environment. Raises ToolError when the command cannot be started.
    """
    token = secrets.token_hex(16)
    timed_out = False
    with (
        tempfile.TemporaryDirectory(prefix="ddpprof-", ignore_cleanup_errors=True) as own,
        (log_dir / "stdout.log").open("wb") as out,
        (log_dir / "stderr.log").open("w+b") as err,
    ):
        env = {**env, _MEMBER: token} | ({"TMPDIR": own} if has_nsys(command) else {})
        try:
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as error:
            name, reason = Path(command[0]).name, error.strerror or error
            raise ToolError(f"{name}: cannot be started: {reason}", "Is it installed, and on PATH?") from error
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            say(f"not done after {timeout_s:g} s: stopping the job")
        except KeyboardInterrupt:
            say("interrupted: stopping the job")
            raise
        finally:
            _end_all(process, token)
            status = process.wait()
        err.seek(max(0, err.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return Finished(status, err.read().decode(errors="replace"), timed_out)


def name_of(command: Sequence[str]) -> str:
    """What to call somebody's own job: by its script or module, ``train`` for ``torchrun … train.py``; else ``job``."""
    for before, word in zip(["", *command], command, strict=False):
        name = word.rpartition(".")[2] if before == "-m" else Path(word).stem if word.endswith((".py", ".sh")) else ""
        if re.fullmatch(r"[A-Za-z_][\w.-]*", name) and not word.startswith(_LAUNCHERS):
            return name
    return "job"


_LAUNCHERS = ("torch.distributed.", "accelerate.")
"""Modules that start somebody's job and are not it."""


def last_lines(stderr: str, failure: str, count: int = 15) -> str:
    """The last lines of the rank that ``failure`` names; of any, where none is marked as its own; never torchrun's account."""
    lines = _TORCHRUN.split(stderr)[0].rstrip().splitlines()
    named = re.match(r"rank \d+", failure)
    own = [line for line in lines if named and line.startswith(f"[{named[0].replace(' ', '')}]:")]
    return "\n".join((own or lines)[-count:])


def explain_failure(finished: Finished, run: RunDir, ranks: int | None = None) -> WorkloadError | ToolError:
    """The error that tells which rank of a failed job died first, and its last words: no traceback, no host name.

    ``ranks`` None: it is not known how many there are.
    """
    if finished.timed_out:
        return WorkloadError("the job did not end in time and was stopped", "A rank may be waiting for one that is not there.")
    deaths = _deaths(finished.stderr_tail)
    killed = [rank for rank, status in deaths.items() if status < 0 and status != -signal.SIGTERM]
    rank = killed[-1] if killed else next(reversed(deaths), None)
    failure = None if killed else _first_failure(run, rank)
    if failure is not None:
        rank, words = failure.rank, f"failed in step {failure.step}: {failure.error}: {failure.message}"
    else:
        words = _last_words(finished.stderr_tail, rank, finished.returncode if rank is None else deaths[rank])
    plain, hint = _known(_CAUSES_ANYWHERE, finished.stderr_tail) or _known(_CAUSES, words) or (None, None)
    words = plain or _without_host(words)
    if rank is None:
        return ToolError(f"the job {words}", hint)
    return WorkloadError(f"rank {rank}{'' if ranks is None else f' of {ranks}'} {words}", hint)


def check_capacity(ranks: int, device: str, share_gpu: bool, gpu_count: int) -> None:
    """Returns when this machine can hold the job. Raises UsageError saying why not."""
    if ranks < 1:
        raise UsageError(f"--ranks {ranks}: a job has at least one rank", "Give --ranks 1 or more.")
    if device == "cuda" and gpu_count == 0:
        raise UsageError("--device cuda: this machine has no GPU that can be used", "Use --device cpu.")
    if device == "cuda" and ranks > gpu_count and not share_gpu:
        raise UsageError(
            f"--ranks {ranks}: more ranks than GPUs ({gpu_count})",
            f"Use --ranks {gpu_count}, or --share-gpu to time-slice one GPU.",
        )
    most = MOST_RANKS_A_CORE * machine.cpu_count()
    if ranks > most:
        raise UsageError(
            f"--ranks {ranks}: more than {MOST_RANKS_A_CORE} ranks a core ({machine.cpu_count()} cores)",
            f"Use --ranks {most} at most: beyond that the ranks only wait for a core.",
        )


def port_problem(port: int) -> str | None:
    """Why the ranks cannot meet at ``port`` of this machine, None when they can."""
    if not 0 < port < 65536:
        return f"port {port}: not a port number (1 to 65535)"
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            return f"port {port}: {(error.strerror or str(error)).lower()}"
    return None


def _end_all(process: subprocess.Popen[bytes], token: str) -> None:
    """Ends every process that carries ``token``, its leader first: nsys then closes its session and removes its files.

    Another Ctrl-C cuts the grace short.
    """
    if process.poll() is None:
        with suppress(ProcessLookupError, subprocess.TimeoutExpired, KeyboardInterrupt):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(_GRACE_S)
    for number in (signal.SIGTERM, signal.SIGKILL):
        told: set[int] = set()
        deadline = time.monotonic() + _GRACE_S
        with suppress(KeyboardInterrupt):
            while (members := _members(token)) and time.monotonic() < deadline:
                for pid in members - told:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                told |= members
                time.sleep(0.05)


def _members(token: str) -> set[int]:
    """Ids of the living processes that inherited ``token``, in whatever group or session they are by now."""
    mark = f"{_MEMBER}={token}".encode()
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # gone by now, or somebody else's
            if mark in path.read_bytes():
                found.add(int(path.parent.name))
    return found


def _deaths(stderr: str) -> dict[int, int]:
    """Rank to exit status (negative: signal) as torchrun sums them up, the one it takes for the root cause last."""
    pairs = re.findall(r"^ +rank +: (\d+) \(local_rank.*\n^ +exitcode +: (-?\d+)", stderr, re.MULTILINE)
    # An nsys around the rank tells a signal as a shell does: 128 + its number.
    return {int(rank): 128 - int(status) if int(status) > 128 else int(status) for rank, status in pairs}


def _first_failure(run: RunDir, suspect: int | None) -> FailureRecord | None:
    """The failure that a rank recorded and that is no mere echo of another rank's end; of several ``suspect``'s own."""
    try:
        failures = [row for row in read_records(run).failures if not row.is_expected]
    except InputError:  # a rank was killed while it wrote
        return None
    return min(failures, key=lambda row: (bool(_ECHO.search(row.message)), row.rank != suspect, row.rank), default=None)


_ECHO = re.compile(r"closed by peer|Connection (?:closed|reset|refused)|Broken pipe|remote process exited")

_EXCEPTION = re.compile(r"^(?:\[rank(\d+)\]: ?|rank (\d+): )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)


def _last_words(stderr: str, rank: int | None, status: int) -> str:
    """How it ended: its signal, the exception it printed (else anybody's but torchrun's own), or the last line written."""
    if status < 0:
        return f"was killed by {_signal_name(-status)}"
    said = [(match[1] or match[2], match[3]) for match in _EXCEPTION.finditer(stderr) if "ChildFailedError" not in match[3]]
    own = [text for speaker, text in said if speaker == str(rank)] or [text for _, text in said]
    if own:
        return f"failed: {own[-1]}"
    lines = [line.strip() for line in _TORCHRUN.split(stderr)[0].splitlines() if re.search(r"\w", line)]
    return f"ended with status {status}{': ' + lines[-1] if lines else ', and said nothing'}"


_TORCHRUN = re.compile(r"^[WEI]\d{4} .*torch/distributed/elastic", re.MULTILINE)
"""Where torchrun's own account of a failed rank begins."""


_CAUSES_ANYWHERE = (
    (
        "Duplicate GPU detected|Multiple Ranks are using the same GPU",
        "was given a GPU that another rank has",
        "Add --share-gpu, or use fewer --ranks.",
    ),
    ("unrecogni[sz]ed option", "did not start: nsys refused an option", "Give another nsys with --nsys; see ddpprof doctor."),
)
"""What only a line before the last one tells (a regular expression), how to say it, and what to do."""

_CAUSES = (
    ("EADDRINUSE|[Aa]ddress already in use", "could not listen: the port is in use", "Leave the port out to get a free one."),
    (
        r"CUDA enabled|No CUDA GPUs|CUDA is not available|Found no NVIDIA driver|no GPU \d",
        "cannot use a GPU: CUDA is not available to torch",
        "Use --device cpu, or see: ddpprof doctor",
    ),
    (
        "out of memory|OutOfMemoryError|can't allocate memory|Cannot allocate memory|MemoryError",
        None,
        "Not enough memory: use fewer --ranks or a smaller case.",
    ),
    ("SIGKILL", None, "The kernel does so when memory runs out: use fewer --ranks or a smaller case."),
    ("No module named '(torch|nvtx)", None, "Install what the workloads need: pip install 'ddpprof[run]'"),
    ("[Tt]imed out|TimeoutError|RendezvousConnectionError", None, "The ranks did not meet, or one of them stopped answering."),
)
"""What the last words tell, how to say it (None: as they do), and what to do."""


def _known(causes: Sequence[tuple[str, str | None, str]], text: str) -> tuple[str | None, str] | None:
    return next(((plain, hint) for pattern, plain, hint in causes if re.search(pattern, text)), None)


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _without_host(text: str) -> str:
    name = platform.node()
    return re.sub(rf"\b{re.escape(name)}\b", "this machine", text)[:300] if name else text[:300]
