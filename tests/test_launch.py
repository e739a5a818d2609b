from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from ddpprof import launch, machine, nsys
from ddpprof.errors import DdpprofError, ToolError, UsageError, WorkloadError
from ddpprof.launch import Finished, Job
from ddpprof.model import FailureRecord
from ddpprof.nsys import Nsys
from ddpprof.rundir import RunDir, record_line

NSYS = Nsys(Path("/opt/nsys"), "2023.4.4.54", "PATH")
RUN = RunDir(Path("/runs/here"))

# ------------------------------------------------------------------------------------------------ the command line


def test_a_case_runs_its_ranks_under_torchrun_on_loopback():
    job = Job(case="delay_cap4", ranks=4, device="cpu", capture="none")
    assert launch.case_command(job, RUN) == [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "4"),
        *("-m", "ddpprof.workloads.run", "delay_cap4", "--run-dir", "/runs/here", "--device", "cpu", "--capture", "none"),
    ]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("torchrun --nproc-per-node 4 train.py --config other.py", "train"),
        ("python -m torch.distributed.run --nproc-per-node 4 src/train-v2.py", "train-v2"),
        ("torchrun --nproc-per-node 4 -m pkg.train", "train"),
        ("python -m torch.distributed.run -m pkg.train x.py", "train"),
        ("accelerate launch ./run.sh", "run"),
        ("train --lr 1", "job"),
        ("make -m 8", "job"),
        ("python .py", "job"),
        ("python -m", "job"),
    ],
)
def test_a_job_is_named_by_its_script(command, name):
    assert launch.name_of(command.split()) == name


def test_every_choice_reaches_the_ranks():
    job = Job(case="c", ranks=2, device="cuda", share_gpu=True, port=29501, iterations=3, seed=7, bucket_cap_mb=2.5)
    command = launch.case_command(job, RUN)
    assert command[3:7] == ["--master-addr", "127.0.0.1", "--master-port", "29501"]
    assert command[command.index("--capture") :] == [
        *("--capture", "nsys", "--share-gpu", "--iterations", "3", "--seed", "7", "--bucket-cap-mb", "2.5"),
    ]


def test_one_nsys_stands_above_torchrun_or_one_below_it_for_each_rank():
    together = launch.case_command(Job(case="c", ranks=2, device="cpu"), RUN, NSYS)
    assert together[:2] == ["/opt/nsys", "profile"]
    assert "--output=/runs/here/report" in together
    assert "--no-python" not in together
    apart = launch.case_command(Job(case="c", ranks=2, device="cpu", report_per_rank=True), RUN, NSYS)
    under = apart.index("--no-python") + 1
    assert apart[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert apart[under : under + 2] == ["/opt/nsys", "profile"]
    assert "--output=/runs/here/report.rank%q{RANK}" in apart
    assert apart[apart.index("ddpprof.workloads.run") - 2] == sys.executable
    assert apart[-1] == "--report-per-rank"


def test_ranks_of_a_plain_checkout_find_ddpprof(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    found = launch.environment({"NAME": "value"})
    assert found["PYTHONPATH"].split(os.pathsep)[-1] == "/mine"
    assert found["NAME"] == "value"
    program = "import ddpprof.workloads"
    subprocess.run([sys.executable, "-S", "-c", program], env=found, cwd="/", check=True)


# ------------------------------------------------------------------------------------------------------ the process


def python(program: str) -> list[str]:
    return [sys.executable, "-S", "-c", textwrap.dedent(program)]


def test_a_run_tells_its_status_and_last_words(tmp_path):
    program = "import sys; print('out'); print('last words', file=sys.stderr); sys.exit(3)"
    assert launch.run(python(program), env=os.environ, log_dir=tmp_path) == Finished(3, "last words\n")
    assert (tmp_path / "stdout.log").read_text() == "out\n"


def test_a_run_ended_by_a_signal_says_which(tmp_path):
    assert launch.run(python("import os; os.kill(os.getpid(), 11)"), env=os.environ, log_dir=tmp_path).returncode == -11


def test_a_command_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ToolError, match="no-such-torchrun: cannot be started"):
        launch.run(["no-such-torchrun"], env=os.environ, log_dir=tmp_path)


def test_nsys_has_a_temporary_folder_of_its_own_that_goes_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = """
        import os, pathlib
        place = pathlib.Path(os.environ["TMPDIR"])
        (place / "nsys-report.qdstrm").write_text("SECRET=1")
        print(place, oct(place.stat().st_mode & 0o777))
    """
    for command, is_own in ((python(program), False), ([*python(program), "--env-var=TMPDIR=/scratch"], True)):
        launch.run(command, env={"TMPDIR": str(tmp_path)}, log_dir=tmp_path)
        place, mode = (tmp_path / "stdout.log").read_text().split()
        assert (Path(place).parent == tmp_path, Path(place).exists()) == (is_own, not is_own)
        assert not is_own or mode == "0o700"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nsys-report.qdstrm", "stderr.log", "stdout.log"]


FAMILY = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for generation in ("child", "grandchild", "great-grandchild"):
        if os.fork():
            break
        os.setsid()
    open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
    time.sleep(60)
"""
"""Four generations, each in a session of its own, that a polite signal does not end."""


def living(mark: str) -> list[Path]:
    """The processes whose environment holds ``mark``; one that is dead but not yet waited for has none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(path)
    return found


def wait_for(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while (started := len(list(folder.iterdir()))) < count:
        assert time.monotonic() < deadline, f"{started} of {count} processes started"
        time.sleep(0.05)


def test_a_run_out_of_time_leaves_no_descendant(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "_GRACE_S", 0.2)
    said = []
    env = {"MARK": str(tmp_path)}
    (tmp_path / "pids").mkdir()
    command = [*python(FAMILY), str(tmp_path / "pids")]
    finished = launch.run(command, env=env, log_dir=tmp_path, say=said.append, timeout_s=2)
    assert finished.timed_out
    assert finished.returncode == -signal.SIGKILL
    assert said == ["not done after 2 s: stopping the job"]
    wait_for(tmp_path / "pids", 4)
    assert living(str(tmp_path)) == []


def test_what_a_run_leaves_behind_in_a_session_of_its_own_is_ended_too(tmp_path):
    program = "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)"
    assert launch.run(python(program), env={"MARK": str(tmp_path)}, log_dir=tmp_path).returncode == 0
    assert living(str(tmp_path)) == []


def interrupted(folder: Path, command: list[str], number: int, n_processes: int) -> tuple[str, str]:
    """Output of a ddpprof that got signal ``number`` when ``n_processes`` of its job were up; none may be left."""
    (folder / "pids").mkdir()
    (folder / "tmp").mkdir()
    driver = f"""
        import signal
        from pathlib import Path
        from ddpprof import cli, launch
        signal.signal(signal.SIGTERM, cli._interrupt)
        env = launch.environment({{"MARK": {str(folder)!r}}})
        launch.run({command!r}, env=env, log_dir=Path({str(folder)!r}), say=lambda line: print(line, flush=True))
    """
    script, env = textwrap.dedent(driver), {**os.environ, "TMPDIR": str(folder / "tmp")}
    child = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=-1, stderr=-1, text=True)
    try:
        wait_for(folder / "pids", n_processes)
        child.send_signal(number)
        said = child.communicate(timeout=60)
    finally:
        child.kill()
    assert living(f"MARK={folder}") == []
    return said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_all_it_started_and_passes_the_interrupt_on(tmp_path, number):
    program = FAMILY.replace("signal.SIG_IGN", "signal.SIG_DFL")
    out, err = interrupted(tmp_path, [*python(program), str(tmp_path / "pids")], number, 4)
    assert out == "interrupted: stopping the job\n"
    assert err.rstrip().endswith("KeyboardInterrupt")


SLEEPER = "import os, sys, time; open(os.path.join(sys.argv[1], str(os.getpid())), 'w').close(); time.sleep(60)"


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_an_interrupted_torchrun_leaves_no_rank(tmp_path):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    interrupted(tmp_path, [*torchrun, str(tmp_path / "sleeper.py"), str(tmp_path / "pids")], signal.SIGINT, 2)


def test_an_interrupted_nsys_leaves_neither_job_nor_agent(tmp_path):
    try:
        tool = nsys.find(may_fetch=False)
    except ToolError as error:
        pytest.skip(f"no real nsys: {error.message}")
    command = nsys.profile_command(tool, tmp_path / "report", [*python(SLEEPER), str(tmp_path / "pids")], has_cuda=False)
    interrupted(tmp_path, command, signal.SIGINT, 1)
    assert list((tmp_path / "tmp").iterdir()) == []


# ------------------------------------------------------------------------------------------------------ the reasons


def summary(*deaths: tuple[int, str]) -> str:
    """What torchrun prints when ranks died, the first of ``deaths`` being the root cause."""
    entries = [
        f"[{at}]:\n  time      : 2025-01-01_00:00:00\n  host      : node17\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {status}\n  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org\n"
        for at, (rank, status) in enumerate(deaths)
    ]
    log = "E0101 00:00:00.000000 10427 torch/distributed/elastic/multiprocessing/api.py:1002] failed\n"
    rule = "-" * 55 + "\n"
    return (
        f"{log}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \ntrain.py FAILED\n{rule}"
        f"Failures:\n{''.join(entries[1:])}{rule}Root Cause (first observed failure):\n{entries[0]}"
    )


def explain(stderr: str, run: RunDir, returncode: int = 1) -> DdpprofError:
    return launch.explain_failure(Finished(returncode, stderr), run, 4)


def test_the_rank_that_recorded_a_failure_is_named_with_its_words(tmp_path):
    run = RunDir(tmp_path)
    rows = {
        0: FailureRecord(rank=0, step=3, error="RuntimeError", message="Connection closed by peer", is_expected=False),
        2: FailureRecord(rank=2, step=3, error="ValueError", message="shapes differ", is_expected=False),
        3: FailureRecord(rank=3, step=1, error="RuntimeError", message="as it must", is_expected=True),
    }
    for rank, row in rows.items():
        run.records(rank).write_text(record_line(row))
    error = explain(summary((0, "1 (pid: 7)"), (2, "1 (pid: 9)")), run)
    assert isinstance(error, WorkloadError)
    assert str(error) == "rank 2 of 4 failed in step 3: ValueError: shapes differ"


def test_a_killed_rank_is_named_though_others_failed_for_want_of_it(tmp_path):
    run = RunDir(tmp_path)
    echo = FailureRecord(rank=0, step=3, error="RuntimeError", message="Connection reset by peer", is_expected=False)
    run.records(0).write_text(record_line(echo))
    run.records(2).write_text('{"table":"iter')  # killed while it wrote
    error = explain(summary((0, "1 (pid: 7)"), (2, "-9 (pid: 9)  (SIGKILL)"), (1, "-15 (pid: 8)  (SIGTERM)")), run)
    assert error.message == "rank 2 of 4 was killed by signal 9 (SIGKILL)"
    assert "memory" in error.hint


def test_a_signal_is_told_through_an_nsys_below_torchrun_too(tmp_path):
    error = explain(summary((1, "139 (pid: 7)"), (0, "143 (pid: 9)")), RunDir(tmp_path))
    assert error.message == "rank 1 of 4 was killed by signal 11 (SIGSEGV)"


def test_of_a_foreign_job_the_exception_of_the_first_dead_rank_is_told(tmp_path):
    said = (
        "[rank0]: Traceback (most recent call last):\n[rank0]: torch.distributed.DistBackendError: remote process exited\n"
        '[rank1]:   File "train.py", line 5, in <module>\n[rank1]: my.module.ShapeError: 3 is not 4\n'
    )
    error = explain(said + summary((1, "1 (pid: 7)"), (0, "1 (pid: 9)")), RunDir(tmp_path))
    assert str(error) == "rank 1 of 4 failed: my.module.ShapeError: 3 is not 4"


@pytest.mark.parametrize(
    ("said", "words", "hint"),
    [
        (
            "DistBackendError: NCCL error\nLast error:\nDuplicate GPU detected : rank 1 and rank 0",
            "another rank has",
            "--share-gpu",
        ),
        ("Multiple Ranks are using the same GPU", "another rank has", "--share-gpu"),
        ("UserWarning: Found no NVIDIA driver\nValueError: 3 is not 4", "failed: ValueError: 3 is not 4", None),
        ("torch.distributed.DistNetworkError: port: 29500, EADDRINUSE", "the port is in use", "port"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out of memory", "fewer --ranks"),
        ("AssertionError: Torch not compiled with CUDA enabled", "CUDA is not available", "--device cpu"),
        ("torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients", "Timed out", "did not meet"),
        ("ModuleNotFoundError: No module named 'nvtx'", "No module named", "ddpprof[run]"),
        ("usage: train.py\ntrain.py: error: no data", "ended with status 2: train.py: error: no data", None),
    ],
)
def test_known_causes_come_with_what_to_do(tmp_path, said, words, hint):
    error = explain(f"{said}\n" + summary((3, "2 (pid: 7)")), RunDir(tmp_path))
    assert error.message.startswith("rank 3 of 4 ")
    assert words in error.message
    assert "\n" not in error.message
    assert (error.hint is None) if hint is None else (hint in error.hint)


def test_a_job_that_names_no_rank_is_a_tool_that_failed(tmp_path):
    error = explain("Executable not found in current directory\n", RunDir(tmp_path))
    assert isinstance(error, ToolError)
    assert error.message == "the job ended with status 1: Executable not found in current directory"
    assert explain("", RunDir(tmp_path), 3).message == "the job ended with status 3, and said nothing"
    assert explain("", RunDir(tmp_path), -6).message == "the job was killed by signal 6 (SIGABRT)"
    assert "--nsys" in explain("unrecognised option '--x'\n\nTry 'nsys profile --help'", RunDir(tmp_path)).hint
    assert "in time" in launch.explain_failure(Finished(-9, "", timed_out=True), RunDir(tmp_path), 4).message


def test_no_host_name_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(launch.platform, "node", lambda: "node17.cluster")
    error = explain("RuntimeError: cannot reach node17.cluster:29500\n" + summary((0, "1")), RunDir(tmp_path))
    assert error.message == "rank 0 of 4 failed: RuntimeError: cannot reach this machine:29500"


def test_a_workload_that_fails_for_real_is_explained(tmp_path):
    pytest.importorskip("torch")
    run = RunDir(tmp_path)
    command = launch.case_command(Job(case="delay_cap4", ranks=2, device="cpu"), run)
    program = tmp_path / "train.py"
    program.write_text(
        "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('shapes differ')\nimport time; time.sleep(60)\n"
    )
    command[command.index("-m", 3) :] = [str(program)]
    finished = launch.run(command, env=launch.environment({}), log_dir=tmp_path, timeout_s=120)
    assert launch.explain_failure(finished, run, 2).message == "rank 1 of 2 failed: ValueError: shapes differ"


# ------------------------------------------------------------------------------------------------------ beforehand


@pytest.mark.parametrize(
    ("ranks", "device", "share_gpu", "gpu_count", "says"),
    [
        (0, "cpu", False, 0, "at least one rank"),
        (-3, "cuda", False, 4, "at least one rank"),
        (33, "cpu", False, 0, r"more than 16 ranks a core \(2 cores\)"),
        (1, "cuda", False, 0, "no GPU that can be used"),
        (5, "cuda", False, 4, r"more ranks than GPUs \(4\)(.|\n)*--share-gpu"),
        (33, "cuda", True, 1, "more than 16 ranks a core"),
    ],
)
def test_a_job_this_machine_cannot_hold_is_refused(monkeypatch, ranks, device, share_gpu, gpu_count, says):
    monkeypatch.setattr(machine, "cpu_count", lambda: 2)
    with pytest.raises(UsageError, match=says):
        launch.check_capacity(ranks, device, share_gpu, gpu_count)


def test_a_job_this_machine_can_hold_is_not(monkeypatch):
    monkeypatch.setattr(machine, "cpu_count", lambda: 2)
    launch.check_capacity(32, "cpu", False, 0)
    launch.check_capacity(4, "cuda", False, 4)
    launch.check_capacity(5, "cuda", True, 1)


def test_a_port_in_use_or_out_of_range_is_a_problem():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert launch.port_problem(port) == f"port {port}: address already in use"
    assert launch.port_problem(port) is None
    assert "not a port number" in launch.port_problem(70000)


def test_the_last_lines_are_those_of_the_rank_that_failed():
    account = "E1130 02:00:00.000000 7 torch/distributed/elastic/multiprocessing/api.py:1] failed (exitcode: 1)\n"
    stderr = f"a warning\n[rank1]: line 8\n[rank1]: ValueError: x\n[rank0]: RuntimeError: closed by peer\n{account}"
    assert launch.last_lines(stderr, "rank 1 of 2 failed: ValueError: x") == "[rank1]: line 8\n[rank1]: ValueError: x"
    assert launch.last_lines(stderr, "rank 1 failed", 1) == "[rank1]: ValueError: x"
    assert launch.last_lines(stderr, "the job failed", 2) == "[rank1]: ValueError: x\n[rank0]: RuntimeError: closed by peer"
    assert launch.last_lines("", "rank 1 failed") == ""
