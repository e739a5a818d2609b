"""When gradients were ready and what transfers took, from records (CPU) and from kernels (GPU)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from nsight import build
from recorded import MS, recorded, timeline

from ddpprof.analysis import nsys_reader
from ddpprof.analysis.moments import Hook, Transfer, run_of, shares
from ddpprof.analysis.whatif import predict
from ddpprof.reducer import MIB

ORDER = (2, 1, 0)


def ms(*values: int) -> list[int]:
    return [value * MS for value in values]


def test_a_transfer_alone_on_the_wire_has_all_of_it():
    """The second is half beside compute, which ends at 12."""
    first = Transfer(size_bytes=1, beside_ns=4 * MS, alone_ns=0)
    assert shares([1, 1], ms(0, 10), ms(4, 14), 2, 12 * MS) == (first, replace(first, beside_ns=2 * MS, alone_ns=2 * MS))


def test_two_at_once_have_half_each():
    """0 to 8 and 4 to 12: each 4 ms alone, and half of the 4 together."""
    assert [item.alone_ns for item in shares([1, 1], ms(0, 4), ms(8, 12), 2, 0)] == ms(6, 6)


def test_one_that_waits_for_a_lane_is_given_nothing_before():
    assert [item.alone_ns for item in shares([1, 1], ms(0, 1), ms(8, 12), 1, 0)] == ms(8, 4)


def host_run(tmp_path: Path, records, ranks: int = 2):
    traces = [nsys_reader.read(build(tmp_path / "report.sqlite", timeline(ranks, ORDER, records)))]
    return run_of(traces, records)


def test_every_timed_step_of_a_cpu_run_is_a_moment(tmp_path):
    found = host_run(tmp_path, recorded(cap_mb=1))
    assert [moment.step for moment in found.moments] == [3, 4, 5, 6, 7, 8]
    assert [moment.ranks[0].compute is None for moment in found.moments] == [True] * 5 + [False]
    first = found.moments[0].ranks[0]
    assert (first.order, list(first.ready_ns), first.rest_ns) == (ORDER, ms(10, 20, 30), 5 * MS)
    assert list(found.moments[-1].ranks[1].compute.start) == ms(2, 12, 22)


def test_ranks_are_on_the_clock_of_their_host_and_otherwise_begin_together(tmp_path):
    records = recorded(cap_mb=1)

    def later(by_ns: int):
        rows = [replace(row, started_ns=row.started_ns + row.rank * by_ns) for row in records.gradients]
        return host_run(tmp_path / str(by_ns), replace(records, gradients=tuple(rows))).moments[0].ranks[1]

    for folder in (3 * MS, 10**15):
        (tmp_path / str(folder)).mkdir()
    assert (later(3 * MS).start_ns, later(3 * MS).ready_ns[0]) == (3 * MS, 13 * MS)
    assert (later(10**15).start_ns, later(10**15).ready_ns[0]) == (0, 10 * MS)


def test_the_time_of_hooks_is_taken_out_of_what_follows(tmp_path):
    """Each hook begins 1 ms after its gradient and takes 2: the third gradient, at 30, had two before it."""
    records = recorded(cap_mb=1)
    rows = [replace(row, ready_ns=row.ready_ns + MS, launch_ns=row.launch_ns + 3 * MS) for row in records.buckets]
    found = host_run(tmp_path, replace(records, buckets=tuple(rows)))
    assert found.hook == Hook(lag_ns=MS, ns_per_byte=pytest.approx(2 * MS / MIB))
    assert list(found.moments[0].ranks[0].ready_ns) == ms(10, 18, 26)


def test_under_no_sync_a_gradient_is_ready_at_its_last_hook(tmp_path):
    """Two backwards in a step, of which the second reduces: hooks at 1, 2 and 3 ms, then at 10, 20 and 30."""
    records = recorded(cap_mb=1)
    rows = [replace(row, parameters=[*ORDER, *ORDER], ready_ns=[*ms(1, 2, 3), *row.ready_ns]) for row in records.gradients]
    traces = [nsys_reader.read(build(tmp_path / "report.sqlite", timeline(2, ORDER, records)))]
    found = run_of(traces, replace(records, gradients=tuple(rows)))
    assert (found.rebuild_order, found.moments[0].ranks[0].order) == (ORDER, ORDER)
    assert list(found.moments[0].ranks[0].ready_ns) == ms(10, 20, 30)


def test_steps_under_another_layout_are_no_moments(tmp_path):
    records = recorded(cap_mb=1)
    rows = [replace(row, parameters=[0, 1, 2]) if row.step == 4 else row for row in records.buckets]
    found = host_run(tmp_path, replace(records, buckets=tuple(rows)))
    assert [moment.step for moment in found.moments] == [3, 5, 6, 7, 8]


GPU = """
    process 100 rank=0 world=2 gpus=a
    N 1000..31000 "step/8" domain=ddpprof
    N 1000..9000 "backward" domain=ddpprof
    K dev0 s7   2000..12000 GEMM launch=1500..1501
    K dev0 s7  12000..22000 GEMM launch=2500..2501
    K dev0 s16 12000..18000 NCCL launch=2100..2101
    N 2050..2200 "bucket/0/1048576" domain=ddpprof
    K dev0 s16 22000..26000 NCCL launch=3100..3101
    N 3050..3200 "bucket/1/1048576" domain=ddpprof
    K dev0 s7  26000..27000 GEMM launch=9500..9501
    process 101 rank=1 world=2 gpus=b
    N 1000..31000 "step/8" domain=ddpprof
    N 1000..9000 "backward" domain=ddpprof
    K dev0 s7   2000..14000 GEMM launch=1500..1501
    K dev0 s7  14000..22000 GEMM launch=2500..2501
    K dev0 s16 14000..18000 NCCL launch=2100..2101
    N 2050..2200 "bucket/0/1048576" domain=ddpprof
    K dev0 s16 22000..26000 NCCL launch=3100..3101
    N 3050..3200 "bucket/1/1048576" domain=ddpprof
    K dev0 s7  26000..27000 GEMM launch=9500..9501
"""


def gpu_run(tmp_path: Path):
    """Hooks at 1 and 2 ms of the step, on the host; the two kernels before them end at 11 (13) and 21 ms."""
    records = recorded(cap_mb=1, order=(1, 0), device="cuda")
    rows = [replace(row, ready_ns=ms(1, 2)) for row in records.gradients]
    return [nsys_reader.read(build(tmp_path / "gpu.sqlite", GPU))], replace(records, gradients=tuple(rows))


def test_a_gradient_is_ready_when_the_kernels_before_its_hook_are_done(tmp_path):
    traces, records = gpu_run(tmp_path)
    (moment,) = run_of(traces, records).moments
    assert [list(rank.ready_ns) for rank in moment.ranks] == [ms(12, 22), ms(14, 22)]
    assert [rank.start_ns for rank in moment.ranks] == [MS, MS]
    assert [rank.rest_ns for rank in moment.ranks] == [MS, MS]


def test_a_process_of_another_job_in_the_same_capture_is_passed_over(tmp_path):
    _, records = gpu_run(tmp_path)
    other = (
        'process 102 rank=2 world=3 gpus=c\nN 1000..2000 "step/8" domain=ddpprof\nK dev0 s7 2000..3000 GEMM launch=1500..1501'
    )
    traces = [nsys_reader.read(build(tmp_path / "more.sqlite", f"{GPU}\n{other}"))]
    assert [rank.rank for rank in run_of(traces, records).moments[0].ranks] == [0, 1]


def test_a_rank_without_compute_has_no_overlap_to_predict(tmp_path):
    _, records = gpu_run(tmp_path)
    bare = "\n".join(line for line in GPU.splitlines() if "GEMM" not in line)
    (row,) = predict([nsys_reader.read(build(tmp_path / "bare.sqlite", bare))], records, (1,)).rows
    assert (row.worst_rank, row.overlap_ns) == (None, None)


def test_transfers_of_kernels_are_the_shortest_over_ranks(tmp_path):
    traces, records = gpu_run(tmp_path)
    (moment,) = run_of(traces, records).moments
    assert [item.beside_ns + item.alone_ns for item in moment.transfers] == ms(4, 4)


def test_one_bucket_on_a_gpu(tmp_path):
    """2 MiB take 8 ms from 22 on, where two kernels of 4 ms were done at 26. Rank 0 waited from 12 to 14 in the first one."""
    traces, records = gpu_run(tmp_path)
    own, one = predict(traces, records, (1, 64)).rows
    seen = [(rank.overlap_ns, rank.exposed_comm_ns, rank.tail_ns) for rank in own.ranks]
    assert seen == [tuple(pytest.approx(time, rel=1e-3) for time in ms(*times)) for times in ((6, 4, 4), (4, 4, 4))]
    assert one.step_ns - own.step_ns == pytest.approx(4 * MS, rel=1e-3)
    assert one.overlap_ns == 0
