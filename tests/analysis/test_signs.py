"""What a step shows, from timelines that can be read: the numbers that the rules of ``diagnose`` are about."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from nsight import GEMM, NCCL, K, N, Row, build
from oracle import timelines

from ddpprof.analysis import job, load, signs
from ddpprof.analysis.part import Options, measure
from ddpprof.analysis.signs import Bucket, Signs, Step

US = 1000


def look(report: Path, timeline: str | list[Row], **options: object) -> Signs:
    part = measure(load.read(build(report, timeline)), Options(**options))  # type: ignore[arg-type]
    (found,) = signs.look(part)
    return found


def only(found: Signs) -> Step:
    (step,) = found.steps
    return step


STEP = """
    process 100 rank=0 world=2
    N   0..90 "step/7"
    N  10..60 "backward"
    N  20..24 "bucket/0/4096" thread=2
    N  50..54 "bucket/1/1024" thread=2
    K dev0 s7   100..110 GEMM launch=5..6                # forward
    K dev0 s7   110..130 GEMM launch=12..13 thread=2
    K dev0 s7   130..131 GEMM launch=21..22 thread=2     # in the comm hook
    K dev0 s16  131..161 NCCL launch=23..24 thread=2
    K dev0 s7   140..200 GEMM launch=30..31 thread=2
    K dev0 s16  205..225 NCCL launch=52..53 thread=2
    K dev0 s7   230..240 GEMM launch=70..71              # optimizer
"""


def test_a_step_in_full(report: Path) -> None:
    found = look(report, STEP)
    assert only(found) == Step(
        step=7,
        is_step=True,
        start_ns=100 * US,
        end_ns=240 * US,
        exposed_ns=(140 - 131 + 20) * US,
        idle_ns=(5 + 5) * US,
        n_compute=5,
        compute_median_ns=10 * US,
        backward_ns=(20 + 60) * US,
        backward_end_ns=200 * US,
        n_backwards=1,
        buckets=(
            Bucket(
                place=0,
                bucket=0,
                size_bytes=4096,
                launch_ns=23 * US,
                start_ns=131 * US,
                end_ns=161 * US,
                exposed_ns=9 * US,
                ahead_ns=20 * US,
                n_between=2,
                alone_before_ns=31 * US,
                gap_compute_ns=0,
            ),
            Bucket(
                place=1,
                bucket=1,
                size_bytes=1024,
                launch_ns=52 * US,
                start_ns=205 * US,
                end_ns=225 * US,
                exposed_ns=20 * US,
                ahead_ns=80 * US,
                n_between=1,
                alone_before_ns=(31 + 39) * US,
                gap_compute_ns=39 * US,
            ),
        ),
        gaps_ns=9 * US,  # not the 30 in which the optimizer waits for the last collective
        n_gaps=1,
    )
    assert (found.evidence, found.periods_ns, found.contention) == ("gpu-kernels", (), None)
    assert (found.is_same_stream, found.shows_waits) == (False, True)


def test_without_a_backward_range_the_thread_of_the_last_bucket_tells_it(report: Path) -> None:
    unmarked = "\n".join(line for line in STEP.splitlines() if "backward" not in line)
    step = only(look(report, unmarked))
    assert (step.backward_ns, step.backward_end_ns, step.n_backwards) == (80 * US, 200 * US, 0)


def test_buckets_sent_together_have_no_compute_between(report: Path) -> None:
    step = only(
        look(
            report,
            """
            N  0..90 "step/1"
            N 20..24 "bucket/0/8" thread=2
            N 24..28 "bucket/1/8" thread=2
            K dev0 s7   0..100 GEMM launch=12..13 thread=2
            K dev0 s16 100..110 NCCL launch=21..22 thread=2
            K dev0 s7  100..101 GEMM launch=25..26 thread=2
            K dev0 s16 110..120 NCCL launch=27..28 thread=2
            """,
        )
    )
    assert [item.n_between for item in step.buckets] == [1, 0]


def test_unmarked_all_reduces_are_buckets_and_other_collectives_are_not(report: Path) -> None:
    gather = '"ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)"'
    step = only(
        look(
            report,
            f"""
            N 0..90 "step/1"
            K dev0 s7    0..100 GEMM launch=12..13
            K dev0 s16 100..110 {gather} launch=14..15
            K dev0 s16 110..120 NCCL launch=16..17
            """,
        )
    )
    assert [(item.place, item.bucket, item.size_bytes) for item in step.buckets] == [(1, None, None)]
    assert step.extras == (0, 0)


def test_a_collective_beside_marked_buckets_is_an_extra(report: Path) -> None:
    extra = STEP + "    K dev0 s16 226..228 NCCL launch=58..59 thread=2\n"
    step = only(look(report, extra))
    assert (len(step.buckets), step.extras) == (2, (1, 2 * US))


def test_gradients_sent_in_two_backwards(report: Path) -> None:
    step = only(
        look(
            report,
            """
            N  0..90 "step/1"
            N 10..20 "backward"
            N 30..40 "backward"
            K dev0 s7   0..100 GEMM launch=12..13 thread=2
            K dev0 s16 100..110 NCCL launch=14..15 thread=2
            K dev0 s16 110..120 NCCL launch=34..35 thread=2
            """,
        )
    )
    assert step.n_backwards == 2


# -- waits


def held(wait: str, *, hole: str = "50..90") -> str:
    low, high = hole.split("..")
    return f"""
    N 0..200 "step/1"
    K dev0 s7  10..{low} GEMM launch=1..2
    K dev0 s7  {high}..100 GEMM launch=80..81
    {wait}
    """


@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        ("R 99 20..52 cudaDeviceSynchronize_v3020", [(50, 90)]),  # began while the device was busy: the hole is its doing
        ("R 99 20..50 cudaDeviceSynchronize_v3020", [(50, 90)]),
        ("R 99 20..48 cudaDeviceSynchronize_v3020", [(50, 90)]),  # as far as the two clocks can be apart
        ("R 99 20..47.9 cudaDeviceSynchronize_v3020", []),
        ("R 99 60..70 cudaDeviceSynchronize_v3020", [(60, 70)]),  # began in the hole: accounts for itself
        ("R 99 95..150 cudaDeviceSynchronize_v3020", []),  # the last of the step
        ('N 20..60 "wait/item"', [(50, 90)]),
        ('N 55..85 "wait/data"', [(55, 85)]),
        ("R 99 20..70 cudaLaunchKernel_v7000", []),
    ],
)
def test_waits_of_the_host_and_the_hole_after(report: Path, wait: str, expected: list[tuple[int, int]]) -> None:
    step = only(look(report, held(wait)))
    assert [(low // US, high // US) for low, high in step.waits] == expected
    assert (step.waited_ns, step.n_waits) == (sum(high - low for low, high in step.waits), len(expected))
    assert step.n_gaps == (0 if expected else 1)


def test_a_long_hole_is_no_gap_between_launches(report: Path) -> None:
    assert only(look(report, held("", hole="50..1049.999"))).n_gaps == 0
    assert only(look(report, held("", hole="50..90"))).gaps_ns == 40 * US


def test_on_a_cpu_run_a_wait_accounts_for_itself_alone(report: Path) -> None:
    found = look(
        report,
        """
        process 100 rank=0 world=2
        N   0..200 "step/1" domain=ddpprof
        N  10..50 "compute/0" domain=ddpprof
        N  40..70 "wait/item" domain=ddpprof
        N  90..95 "compute/1" domain=ddpprof
        N60 93..99 "allreduce/0" domain=ddpprof
        """,
    )
    assert found.evidence == "host-ranges"
    assert only(found).waits == ((50 * US, 70 * US),)
    assert found.shows_waits


def test_a_cpu_run_without_marked_waits_shows_none(report: Path) -> None:
    found = look(report, 'process 100 rank=0\nN 0..9 "step/1" domain=ddpprof\nN 1..5 "compute/0" domain=ddpprof')
    assert not found.shows_waits


# -- any timeline


@settings(max_examples=25)
@given(timelines())
def test_signs_of_any_timeline_hold_together(tmp_path: Path, rows: list[Row]) -> None:
    trace = load.read(build(tmp_path / "drawn.sqlite", [*rows, K(0, 7, 0, "0.003")]))
    for found in signs.look(measure(trace, Options())):
        for step in found.steps:
            assert 0 <= step.waited_ns <= step.idle_ns <= step.step_ns
            assert 0 <= step.gaps_ns <= step.step_ns
            assert [item.launch_ns for item in step.buckets] == sorted(item.launch_ns for item in step.buckets)
            for item in step.buckets:
                assert 0 <= item.exposed_ns <= item.end_ns - item.start_ns
                assert 0 <= item.ahead_ns <= step.backward_ns
                assert 0 <= item.alone_before_ns <= item.start_ns - step.start_ns
    both = job.analyze([trace]), job.analyze([trace])
    assert both[0].findings == both[1].findings
    for finding in both[0].findings:
        assert finding.cost_ns is not None
        assert finding.step_ns is not None
        assert 0 <= finding.cost_ns <= finding.step_ns


# -- several steps


def steps(n: int, *, at: list[int] | None = None) -> list[Row]:
    starts = at or [100 * index for index in range(n)]
    rows: list[Row] = [N(start, start + 50, f"step/{index + 1}") for index, start in enumerate(starts)]
    return rows + [K(0, 7, start + 60, start + 70, GEMM, launch=(start + 1, start + 2)) for start in starts]


def test_periods_are_from_start_to_start(report: Path) -> None:
    assert look(report, steps(3, at=[0, 100, 350])).periods_ns == (100 * US, 250 * US)


def test_a_few_steps_stand_for_many(report: Path) -> None:
    found = look(report, steps(40))
    assert [step.step for step in found.steps] == [4, 7, 10, 14, 17, 20, 24, 27, 30, 34, 37, 40]
    assert len(found.periods_ns) == 39


def test_a_whole_capture_is_no_step(report: Path) -> None:
    found = look(report, "K dev0 s7 0..10 GEMM launch=-2..-1\nK dev0 s16 10..20 NCCL launch=-1..0")
    assert (only(found).is_step, found.periods_ns) == (False, ())


def test_communication_on_the_compute_stream(report: Path) -> None:
    found = look(report, "K dev0 s7 0..10 GEMM launch=-2..-1\nK dev0 s7 10..20 NCCL launch=-1..0")
    assert (found.is_same_stream, found.is_point_to_point) == (True, False)


@pytest.mark.parametrize(("stream", "expected"), [(7, (30, 2)), (16, (50, 1))])
def test_what_the_compute_stream_sends_is_no_hole_in_it(report: Path, stream: int, expected: tuple[int, int]) -> None:
    """20..70 has no compute; on the compute stream 40..60 is a send. The second send keeps the first from being the last."""
    send = "ncclDevKernel_SendRecv"
    rows = [K(0, 7, 0, 20), K(0, stream, 40, 60, send), K(0, 7, 70, 90), K(0, stream, 90, 99, send)]
    found = look(report, rows)
    assert (only(found).gaps_ns, only(found).n_gaps) == (expected[0] * US, expected[1])
    assert (found.is_same_stream, found.is_point_to_point) == (stream == 7, True)


def beside(alone: list[int], under: list[int]) -> list[Row]:
    """Kernels of these lengths alone, then each under communication that outlasts it by 10."""
    rows: list[Row] = []
    at = 0
    for length in alone:
        rows.append(K(0, 7, at, at + length, GEMM, launch=(at - 1, at)))
        at += length + 5
    for length in under:
        rows.append(K(0, 16, at, at + length + 10, NCCL, launch=(at - 1, at)))
        rows.append(K(0, 7, at, at + length, GEMM, launch=(at - 1, at)))
        at += length + 20
    return rows


def test_the_same_kernel_alone_and_beside_communication(report: Path) -> None:
    found = look(report, beside([100] * 5, [100, 110, 120, 130, 90])).contention
    assert found is not None
    assert (found.n_kernels, found.alone_ns, found.beside_ns, found.slower_ns) == (5, 500 * US, 550 * US, 60 * US)
    assert found.slowest == GEMM


@pytest.mark.parametrize(
    ("alone", "under"),
    [([100] * 4, [120] * 5), ([100] * 5, [120] * 4), ([100, 50, 100, 50, 75, 25], [120] * 5), ([100] * 5, [300] * 5)],
)
def test_too_few_or_of_several_sizes_tells_nothing(report: Path, alone: list[int], under: list[int]) -> None:
    found = look(report, beside(alone, under)).contention
    assert found is None or found.n_kernels == 0


def test_a_kernel_of_another_size_is_left_out(report: Path) -> None:
    found = look(report, beside([100] * 5, [100] * 5 + [300, 33])).contention
    assert found is not None
    assert (found.n_kernels, found.slower_ns) == (5, 0)
