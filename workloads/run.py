"""The process that torchrun starts for each rank: ``torchrun … -m ddpprof.workloads.run CASE --run-dir DIR --device cpu``."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof.errors import DdpprofError, UsageError, WorkloadError
from ddpprof.model import RunRecord
from ddpprof.rundir import RunDir
from ddpprof.workloads.cases import FAILING_STEP, Case, find

if TYPE_CHECKING:
    import torch

    from ddpprof.workloads.training import Job

QUIET_KINETO = {"KINETO_LOG_LEVEL": "99"}
CPU_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo"}
SHARED_GPU_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "0",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_FAMILY": "AF_INET",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_MIN_NCHANNELS": "1",
    "NCCL_MAX_NCHANNELS": "1",
}
"""Makes NCCL take several ranks of one GPU for one-GPU nodes, with the fewest hand-shakes between their time slices.

``NCCL_HOSTID``, one a rank, is what does it; the rest keeps the data on loopback.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs this rank's part; exit status 0 (also where the case failed as it must), 1 (it failed) or 2 (called wrongly)."""
    options = _options(arguments)
    try:
        case = find(options.case)
        rank, world_size, local_rank = (_from_torchrun(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        _make(options.run_dir)
    except DdpprofError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    if options.bucket_cap_mb is not None:
        case = replace(case, bucket_cap_mb=options.bucket_cap_mb)
    for name, value in environment(options.device, rank, is_shared=options.share_gpu).items():
        os.environ.setdefault(name, value)

    import torch

    from ddpprof.workloads.training import Job

    gpu = torch.device("cuda", 0 if options.share_gpu else local_rank)
    job = Job(
        rank=rank,
        world_size=world_size,
        device=torch.device("cpu") if options.device == "cpu" else gpu,
        folder=RunDir(options.run_dir),
        iterations=options.iterations,
        seed=options.seed,
        capture=options.capture,
        is_report_per_rank=options.report_per_rank,
    )
    return work(case, job)


def work(case: Case, job: Job) -> int:
    """Trains ``case`` and writes the records of this rank, whatever comes of it. Its exit status."""
    import torch.distributed as dist

    from ddpprof.workloads.recorder import Recorder, first_line, marker_for
    from ddpprof.workloads.training import TIMEOUT, train

    recorder = Recorder(_describe(case, job), marker_for(job.capture))
    try:
        _claim(job.device)
        dist.init_process_group(recorder.run.backend, timeout=TIMEOUT)
        train(case, job, recorder)
    except Exception as error:
        is_expected = case.failure is not None and case.failure in str(error) and recorder.step == FAILING_STEP
        recorder.failure(error, is_expected=is_expected)
        if not is_expected:
            recorder.write(job.folder)
            traceback.print_exc()
            sys.stderr.write(f"rank {job.rank}: {type(error).__name__}: {first_line(error)}\n")
            return 1
    recorder.write(job.folder)
    dist.destroy_process_group()
    return 0


def _describe(case: Case, job: Job) -> RunRecord:
    import torch

    is_cuda = job.device.type == "cuda"
    has_nccl = is_cuda and torch.distributed.is_nccl_available()
    return RunRecord(
        rank=job.rank,
        world_size=job.world_size,
        case=case.name,
        device=job.device.type,
        backend="nccl" if is_cuda else "gloo",
        bucket_cap_mb=case.bucket_cap_mb,
        iterations=job.iterations,
        seed=job.seed,
        torch_version=torch.__version__,
        nccl_version=".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None,
        clock="cuda-event" if is_cuda else "wall",
    )


def environment(device: str, rank: int, *, is_shared: bool) -> dict[str, str]:
    """Variables that a rank sets for itself, where they are not set, before torch and NCCL look at them."""
    if device == "cpu":
        return QUIET_KINETO | CPU_ENVIRONMENT
    return QUIET_KINETO | (SHARED_GPU_ENVIRONMENT | {"NCCL_HOSTID": f"rank{rank}"} if is_shared else {})


def _claim(device: torch.device) -> None:
    """Makes ``device`` this process's own. Raises WorkloadError when it is not there."""
    import torch

    if device.type == "cpu":
        torch.set_num_threads(1)
        return
    count = torch.cuda.device_count()
    if device.index >= count:
        raise WorkloadError(f"no GPU {device.index}: torch sees {count}", "Start fewer ranks, or --share-gpu, or --device cpu.")
    torch.cuda.set_device(device)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkloadError(f"{folder}: cannot be made: {error.strerror}", "Choose another --run-dir.") from None


def _from_torchrun(name: str) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        raise UsageError(f"{name} is not set", "Start this with torchrun, or use: ddpprof profile CASE") from None


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ddpprof.workloads.run", description=__doc__)
    parser.add_argument("case", metavar="CASE")
    parser.add_argument("--run-dir", type=Path, required=True, metavar="DIR", help="where the records go")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--share-gpu", action="store_true", help="all ranks on one GPU, time-sliced")
    parser.add_argument("--iterations", type=int, default=10, metavar="N", help="timed steps (10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--capture", choices=("nsys", "torch", "none"), default="nsys", help="who reads the marks (nsys)")
    parser.add_argument("--report-per-rank", action="store_true", help="each rank runs under an nsys of its own")
    parser.add_argument("--bucket-cap-mb", type=float, metavar="X", help="instead of the case's own")
    options = parser.parse_args(arguments)
    if options.iterations < 1 or (options.bucket_cap_mb is not None and options.bucket_cap_mb <= 0):
        parser.error("--iterations and --bucket-cap-mb must be more than 0")
    return options


if __name__ == "__main__":
    status = main()
    if status or _options(None).capture != "nsys":
        # An orderly end of a failed rank would wait for ranks that wait for it, and gloo can abort that of a sound one.
        # Under nsys it is needed: the marks are written then.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
