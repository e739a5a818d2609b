"""``--cluster``: a Dask cluster of two processes on loopback gives what one process gives, and says what it lacks."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsight import build

from ddpprof import inputs
from ddpprof.analysis.part import Options
from ddpprof.errors import InputError, ToolError

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'ddpprof[cluster]'")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A scheduler with two worker processes, on loopback, without a dashboard."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=":0", silence_logs=50
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six ranks, a report each: rank r has overlap 10 + r."""
    for rank in range(6):
        rows = f"""
            N 0..1000 "rank/{rank}/world/6/device/0" pid={100 + rank}
            N 0..900 "step/3" pid={100 + rank}
            K dev0 s7    0..100 GEMM launch=10..11 pid={100 + rank}
            K dev0 s16 {90 - rank}..150 NCCL launch=12..13 pid={100 + rank}
        """
        build(tmp_path / f"rank{rank}.sqlite", rows)
    return tmp_path


def test_the_answer_of_one_process(address: str, folder: Path) -> None:
    by_hand = inputs.survey([folder], Options(compute="gemm"))
    by_cluster = inputs.survey([folder], Options(compute="gemm"), cluster=address)
    assert by_cluster.analysis == by_hand.analysis
    assert [row.overlap_ns for row in by_cluster.analysis.ranks] == [10_000, 11_000, 12_000, 13_000, 14_000, 15_000]
    held = inputs.read([folder]).analyze(Options(compute="gemm"))
    assert by_hand.analysis == held


def test_a_broken_report_is_left_out_with_a_warning(address: str, folder: Path) -> None:
    (folder / "rank2.sqlite").write_bytes(b"")
    found = inputs.survey([folder], Options(), cluster=address).analysis
    assert [row.rank for row in found.ranks] == [0, 1, 3, 4, 5]
    assert "rank2.sqlite left out: is empty" in [warning.message for warning in found.warnings]


def test_a_broken_report_that_was_named_is_an_error_with_its_hint(address: str, folder: Path) -> None:
    (folder / "rank2.sqlite").write_bytes(b"")
    with pytest.raises(InputError, match="is empty") as error:
        inputs.survey([folder / "rank1.sqlite", folder / "rank2.sqlite"], Options(), cluster=address)
    assert error.value.hint is not None


def test_ranks_given_by_hand(address: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        build(tmp_path / f"{name}.sqlite", f"K dev0 s7 0..{100 + ord(name)} GEMM launch=1..2")
    given = ["a.sqlite=1", "b.sqlite=0"]
    found = inputs.survey([tmp_path], Options(), ranks=given, cluster=address).analysis
    assert [(row.rank, row.compute_ns) for row in found.ranks] == [(0, 198_000), (1, 197_000)]


def test_the_picture_is_of_the_first_reports(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "PICTURED", 2)
    found = inputs.survey([folder], Options(), cluster=address, wants_picture=True)
    assert [trace.report.path for trace in found.pictured] == ["rank0.sqlite", "rank1.sqlite"]
    assert len(found.analysis.ranks) == 6


def test_nobody_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "CLUSTER_TIMEOUT", 0.5)
    with pytest.raises(ToolError, match=r"tcp://127.0.0.1:1: no Dask scheduler answers"):
        inputs.survey([folder], Options(), cluster="tcp://127.0.0.1:1")


@pytest.mark.parametrize(
    ("address", "why"), [("nonsense://", "unknown address scheme"), ("127.0.0.1", "missing port number"), ("", "missing port")]
)
def test_no_address(folder: Path, monkeypatch: pytest.MonkeyPatch, address: str, why: str) -> None:
    """A Client is not even begun: one that cannot take its address apart hangs, and complains, when it is forgotten."""
    monkeypatch.setattr(distributed, "Client", None)
    with pytest.raises(ToolError, match=f"^{address}: no Dask scheduler answers: {why}"):
        inputs.survey([folder], Options(), cluster=address)


def test_no_workers(folder: Path) -> None:
    with (
        distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0", silence_logs=50) as cluster,
        pytest.raises(ToolError, match="the cluster has no workers"),
    ):
        inputs.survey([folder], Options(), cluster=cluster.scheduler_address)


def test_dask_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ToolError, match=r"(?s)needs Dask.*ddpprof\[cluster\]"):
        inputs.survey([folder], Options(), cluster="tcp://127.0.0.1:1")


def test_errors_travel_whole() -> None:
    error = pickle.loads(pickle.dumps(InputError("what", "do this")))
    assert (type(error), error.message, error.hint, str(error)) == (InputError, "what", "do this", "what\ndo this")


def test_a_worker_that_fails_otherwise_is_named_with_its_report(
    address: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_tried", _broken)
    with pytest.raises(ToolError, match=r"rank\d.sqlite: a worker of the cluster failed: ZeroDivisionError"):
        inputs.survey([folder], Options(), cluster=address)


def _broken(*_: object) -> None:
    raise ZeroDivisionError("division by zero")
