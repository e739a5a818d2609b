"""The facts of ``ddpprof.reducer.FACTS``, each held against the PyTorch that runs this: a small scene with a known outcome.

``python -m ddpprof.workloads.fact_checks NUMBER...`` writes a JSON line before and after each check (see ``facts``).

No ``from __future__ import annotations`` here: DDP compares the annotations of a comm hook with real types.
"""

import functools
import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BuiltinCommHookType, GradBucket, _compute_bucket_assignment_by_size
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ddpprof.reducer import MIB, Parameter, Status, capacity
from ddpprof.workloads.probe import Branches, Driven, Sent, Watched, assignment, join_alone

TIMEOUT = timedelta(seconds=30)
"""How long one of two ranks waits for the other."""

TINY = 4 / MIB
"""A cap of four bytes: a bucket for each parameter."""

Reduced = torch.futures.Future[torch.Tensor]
Check = Callable[[], None]
CHECKS: dict[int, Check] = {}
"""Fact number to its check, which returns when the fact holds, in a gloo group of one; in the order in which they run."""


class Differs(Exception):
    """PyTorch does otherwise than the fact says."""


class Absent(Exception):
    """This PyTorch lacks what the fact is about, or nothing shows it."""


def fact(number: int) -> Callable[[Check], Check]:
    """Registers the check of a fact."""

    def register(check: Check) -> Check:
        CHECKS[number] = check
        return check

    return register


def expect(seen: object, expected: object) -> None:
    if seen != expected:
        raise Differs(f"expected {expected}, saw {seen}")


def expect_error(text: str, act: Callable[[], object]) -> None:
    try:
        act()
    except Exception as error:
        if text not in str(error):
            raise Differs(f"expected an error with {text!r}, saw {type(error).__name__}: {error}") from None
    else:
        raise Differs(f"expected an error with {text!r}, saw none")


def needs(option: str) -> None:
    if option not in inspect.signature(DistributedDataParallel).parameters:
        raise Absent(f"DDP of torch {torch.__version__} has no {option}")


def f32(*counts: int) -> list[Parameter]:
    """Parameters of so many elements."""
    return [Parameter(size_bytes=4 * count) for count in counts]


def mixed(*dtypes: str, size_bytes: int = 200) -> list[Parameter]:
    return [Parameter(size_bytes=size_bytes, dtype=dtype) for dtype in dtypes]


def done(reduced: torch.Tensor) -> Reduced:
    """What a comm hook returns that has nothing left to do."""
    future: Reduced = torch.futures.Future()
    future.set_result(reduced)
    return future


def gradients(module: torch.nn.Module) -> list[float | None]:
    """The gradient of each parameter, all of one element; None where there is none."""
    return [None if parameter.grad is None else parameter.grad.item() for parameter in module.parameters()]


SPARSE = Parameter(size_bytes=4, is_sparse=True)


# ------------------------------------------------------------------------------------------------------- assignment


@fact(1)
def fills_a_bucket_for_each_kind() -> None:
    expect(assignment(f32(100, 200, 100, 50), [400]).parameters, ((0,), (1,), (2,), (3,)))
    expect(assignment(mixed(*["float32", "float64"] * 3), [400]).parameters, ((0, 2), (1, 3), (4,), (5,)))
    devices = [Parameter(size_bytes=200, device=device) for device in ("cpu", "meta", "cpu", "meta")]
    expect(assignment(devices, [400]).parameters, ((0, 2), (1, 3)))


@fact(2)
def never_splits_a_tensor() -> None:
    expect(assignment(f32(3, 3, 3), [20]).size_bytes, (24, 12))
    expect(assignment(f32(10), [4]).size_bytes, (40,))


@fact(3)
def consumes_limits_for_each_kind() -> None:
    expect(assignment(mixed(*["float32", "float64"] * 3), [200, 400]).parameters, ((0,), (1,), (2, 4), (3, 5)))


@fact(4)
def sparse_is_alone() -> None:
    seen = assignment([*f32(1), SPARSE, *f32(1)], [1000])
    expect([(bucket.parameters, bucket.limit_bytes) for bucket in seen.buckets], [((0, 2), 1000), ((1,), 0)])


@fact(5)
def sorts_only_as_registered() -> None:
    parameters = [*f32(1), *mixed("float64", size_bytes=8), *f32(1)]
    expect(assignment(parameters, [8]).parameters, ((0, 2), (1,)))
    expect(assignment(parameters, [8], [0, 1, 2]).parameters, ((1,), (0, 2)))


@fact(6)
def open_buckets_come_last() -> None:
    expect(assignment(mixed("float32", "float64"), [1000], [0, 1]).parameters, ((1,), (0,)))
    three = assignment(mixed("float32", "float64", "float16", "float16"), [300], [2, 0, 1, 3]).parameters
    expect((three[0], sorted(three[1:])), ((2, 3), [(0,), (1,)]))


@fact(7)
def returns_the_limits() -> None:
    expect([bucket.limit_bytes for bucket in assignment(f32(10, 10, 10, 10), [40, 80]).buckets], [40, 80, 80])


@fact(8)
def edges_of_the_assignment() -> None:
    one = torch.zeros(1)
    expect_error("", lambda: _compute_bucket_assignment_by_size([], [1]))
    expect_error("No support for sparse tensors.", lambda: _compute_bucket_assignment_by_size([one.to_sparse()], [1]))
    expect_error("", lambda: _compute_bucket_assignment_by_size([one, one], [1], [True]))
    expect(assignment(f32(1, 1), [0]).parameters, ((0,), (1,)))
    expect(assignment(f32(0, 1, 0), [8]).parameters, ((0, 1, 2),))


# ----------------------------------------------------------------------------------------------------------- layouts


@fact(9)
def first_bucket_follows_a_given_cap() -> None:
    halves = [Parameter(size_bytes=MIB // 2)] * 5
    expect(Watched(halves, find_unused_parameters=True).layout(), ((2, 3, 4), (0, 1)))
    expect(Watched(halves, find_unused_parameters=True, bucket_cap_mb=1.5).layout(), ((3, 4), (0, 1, 2)))
    expect(Watched(halves, find_unused_parameters=True, bucket_cap_mb=0.25).layout(), ((4,), (3,), (2,), (1,), (0,)))


@fact(10)
def list_replaces_the_cap() -> None:
    needs("bucket_cap_mb_list")
    watched = Watched(f32(*[1] * 12), bucket_cap_mb=25, bucket_cap_mb_list=[TINY, 2 * TINY, 4 * TINY])
    expect([len(bucket) for bucket in watched.layout()], [1, 4, 4, 2, 1])
    watched.step()
    expect([len(sent.parameters) for sent in watched.step().sent], [1, 2, 4, 4, 1])


@fact(11)
def first_layout_is_one_bucket() -> None:
    for is_static, finds_unused in ((False, False), (True, False), (True, True), (False, True)):
        watched = Watched(f32(1, 1), bucket_cap_mb=TINY, static_graph=is_static, find_unused_parameters=finds_unused)
        expect(watched.layout(), ((1,), (0,)) if finds_unused and not is_static else ((0, 1),))


@fact(12)
def first_list_is_reversed() -> None:
    watched = Watched(f32(*[1] * 5), bucket_cap_mb=2 * TINY, find_unused_parameters=True)
    expect(watched.layout(), ((4,), (2, 3), (0, 1)))


@fact(13)
def takes_what_requires_a_gradient_once() -> None:
    module = Branches(f32(1, 1, 1, 1, 1))
    module.branches[1].weight.requires_grad_(False)
    module.branches[3].weight = module.branches[2].weight
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["branches.4.weight"])
    (bucket,) = DistributedDataParallel(module).reducer._get_zeros_like_grad_buckets()
    expect([id(parameter) for parameter in bucket.parameters()], [id(module.branches[index].weight) for index in (0, 2)])


@fact(14)
def runs_after_the_users_hook() -> None:
    watched = Watched(f32(1, 1), bucket_cap_mb=TINY)
    watched.step()
    expect(watched.step().sent, [Sent(0, (1,), 0), Sent(1, (0,), 1)])


@fact(15)
def accumulator_map() -> None:
    raise Absent("nothing outside the Reducer shows it")


@fact(16)
def records_only_passes_that_reduce() -> None:
    watched = Watched(f32(1, 1, 1))
    watched.step([2, 1, 0])
    with watched.ddp.no_sync():
        watched.step([0, 1, 2])
    watched.step([1, 0, 2])
    expect(watched.ddp._get_ddp_logging_data()["prev_iteration_grad_ready_order_indices"], "2, 1, 0")
    expect(watched.layout(), ((2, 1, 0),))


@fact(17)
def unused_are_ready_in_the_first_hook() -> None:
    watched = Watched(f32(1, 1, 1), [1, 0], bucket_cap_mb=TINY, find_unused_parameters=True)
    expect(watched.step().sent, [Sent(0, (2,), 0), Sent(1, (1,), 0), Sent(2, (0,), 1)])


@fact(18)
def rebuilds_once() -> None:
    for static_graph in (False, True):
        watched = Watched(f32(1, 1), [0, 1], bucket_cap_mb=TINY, static_graph=static_graph)
        layouts = [(watched.step(order), watched.layout())[1] for order in ([0, 1], [0, 1], [0, 1], [1, 0], [1, 0], [1, 0])]
        rebuilt = 2 if static_graph else 1
        expect(layouts, [((0, 1),)] * rebuilt + [((0,), (1,))] * (6 - rebuilt))
    watched = Watched(f32(1, 1), [0, 1], bucket_cap_mb=TINY, find_unused_parameters=True)
    expect([(watched.step(), watched.layout())[1] for _ in range(3)], [((1,), (0,))] * 3)


@fact(19)
def rebuilds_before_the_module_runs() -> None:
    watched = Watched(f32(1, 1), bucket_cap_mb=TINY)
    seen: list[bool] = []
    watched.module.register_forward_pre_hook(lambda *_: seen.append(watched.ddp._has_rebuilt_buckets))
    watched.step()
    with torch.no_grad():
        watched.ddp()
    watched.step()
    expect(seen, [False, False, True])


@fact(20)
def rebuilds_in_ready_order() -> None:
    watched = Watched([Parameter(size_bytes=4 * MIB)] * 12)
    watched.step()
    expect([len(sent.parameters) for sent in watched.step().sent], [1, 7, 4])
    watched = Watched(f32(1, 1, 1, 1), [1, 3, 0, 2], bucket_cap_mb=2 * TINY)
    watched.step()
    watched.step()
    expect(watched.layout(), ((1, 3), (0, 2)))


@fact(21)
def small_bucket_can_be_last() -> None:
    os.environ["DDP_SET_LAST_BUCKET_CAP"] = "1"
    try:
        watched = Watched([Parameter(size_bytes=4 * MIB)] * 12)
        watched.step()
        watched.step()
    finally:
        del os.environ["DDP_SET_LAST_BUCKET_CAP"]
    expect(watched.layout(), ((8, 9, 10, 11), (1, 2, 3, 4, 5, 6, 7), (0,)))


# ---------------------------------------------------------------------------------------------------------- launches


@fact(23)
def ready_twice_raises() -> None:
    driven = Driven(f32(1, 1), assignment(f32(1, 1), [8]), capacity())
    expect_error("Expected to mark a variable ready only once.", lambda: driven.backward([0, 0]))


@fact(24)
def complete_buckets_wait_for_the_head() -> None:
    for ready, positions in (([2, 1, 0], [2, 2, 2]), ([1, 0, 2], [1, 1, 2])):
        driven = Driven(f32(1, 1, 1), assignment(f32(1, 1, 1), [4]), capacity())
        expect([sent.position for sent in driven.backward(ready).sent], positions)


@fact(25)
def the_used_map_is_reduced_too() -> None:
    for is_dynamic in (False, True):
        ddp = DistributedDataParallel(Branches(f32(1, 1, 1)), bucket_cap_mb=TINY, find_unused_parameters=is_dynamic)
        ddp().backward()
        expect(_collectives(ddp().backward, "allreduce"), 3 + is_dynamic)


def _collectives(act: Callable[[], object], name: str) -> int:
    """How many collectives of this name ``act`` starts."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        act()
    return sum(event.name == f"c10d::{name}_" for event in profile.events())


@fact(28)
def ends_with_its_futures_and_checks_views() -> None:
    futures: list[Reduced] = []

    def late(state: object, bucket: GradBucket) -> Reduced:
        buffer = bucket.buffer()
        futures.append(torch.futures.Future())
        threading.Timer(0.01, futures[-1].set_result, [buffer]).start()
        return futures[-1]

    def replaces_gradients(state: object, bucket: GradBucket) -> Reduced:
        for parameter in bucket.parameters():
            parameter.grad = torch.ones_like(parameter)
        return done(bucket.buffer())

    ddp = DistributedDataParallel(Branches(f32(1, 1)))
    ddp.register_comm_hook(None, late)
    ddp().backward()
    expect([future.done() for future in futures], [True])
    ddp = DistributedDataParallel(Branches(f32(1)), gradient_as_bucket_view=True)
    ddp.register_comm_hook(None, replaces_gradients)
    expect_error("not the expected DDP bucket view", ddp().backward)


@fact(30)
def static_first_pass_sends_at_the_end() -> None:
    watched = Watched(f32(1, 1, 1), static_graph=True, bucket_cap_mb=TINY)
    expect(watched.step().sent, [Sent(0, (0, 1, 2), 2)])


class _Twice(torch.nn.Module):
    """One weight in two reentrant checkpoints: two hooks a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True)
        return x


@fact(31)
def static_counts_hooks_and_appends_unused() -> None:
    watched = Watched(f32(1, 1, 1, 1), [3, 1], static_graph=True, bucket_cap_mb=TINY)
    expect([(watched.step(), watched.layout())[1] for _ in range(3)][-1], ((3,), (1,), (0,), (2,)))
    expect([sends_at(_Twice(), is_static) for is_static in (True, False)], [[2, 2, 2], [1, 1, 1]])


def sends_at(module: _Twice, is_static: bool) -> list[int]:
    """After how many hooks the one bucket is sent, in each of three passes."""
    hooks, sent = 0, []

    def count(weight: torch.Tensor) -> None:
        nonlocal hooks
        hooks += 1

    def reduce(state: object, bucket: GradBucket) -> Reduced:
        sent.append(hooks)
        return done(bucket.buffer())

    ddp = DistributedDataParallel(module, static_graph=is_static)
    ddp.register_comm_hook(None, reduce)
    module.layer.weight.register_post_accumulate_grad_hook(count)
    for _ in range(3):
        hooks = 0
        ddp(torch.ones(1, 1, requires_grad=True)).backward()
    return sent


@fact(32)
def static_only_before_the_first_pass() -> None:
    watched = Watched(f32(1))
    watched.step()
    expect_error("should be called before training loop starts", watched.ddp._set_static_graph)


@fact(33)
def no_sync_only_adds_up() -> None:
    module = Branches(f32(1))
    given: list[float] = []

    def reduce(state: object, bucket: GradBucket) -> Reduced:
        given.append(bucket.buffer().item())
        return done(bucket.buffer())

    ddp = DistributedDataParallel(module)
    ddp.register_comm_hook(None, reduce)
    with ddp.no_sync():
        ddp().backward()
        ddp().backward()
    expect((given, ddp._has_rebuilt_buckets), ([], False))
    ddp().backward()
    expect((given, ddp._has_rebuilt_buckets), ([3.0], False))


@fact(34)
def a_missing_gradient_shows_one_forward_late() -> None:
    watched = Watched(f32(1, 1), [0])
    expect(watched.step().sent, [])
    with torch.no_grad():
        watched.ddp()
    expect_error("Expected to have finished reduction in the prior iteration", watched.step)


# ------------------------------------------------------------------------------------------------------------- hooks


@fact(35)
def what_a_comm_hook_must_be() -> None:
    def other_name(state: object, gradients: GradBucket) -> Any: ...

    def other_type(state: object, bucket: int) -> Any: ...

    def text(state: object, bucket: "GradBucket") -> Any: ...

    def plain(state, bucket):  # type: ignore[no-untyped-def]
        ...

    watched = Watched(f32(1))
    expect_error("can only be called once", lambda: watched.ddp.register_comm_hook(None, plain))
    ddp = DistributedDataParallel(Branches(f32(1)))
    expect_error("bucket", lambda: ddp.register_comm_hook(None, other_name))
    expect_error("should be dist.GradBucket", lambda: ddp.register_comm_hook(None, other_type))
    expect_error("should be dist.GradBucket", lambda: ddp.register_comm_hook(None, text))
    ddp.register_comm_hook(None, plain)


@fact(36)
def built_in_hooks_work_on_the_cpu() -> None:
    for kind in (BuiltinCommHookType.ALLREDUCE, BuiltinCommHookType.FP16_COMPRESS):
        ddp = DistributedDataParallel(Branches(f32(1)))
        ddp._register_builtin_comm_hook(kind)
        ddp().backward()
        expect(gradients(ddp), [1.0])


@fact(37)
def unused_buckets_can_be_skipped() -> None:
    needs("skip_all_reduce_unused_params")
    options = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
    watched = Watched(f32(1, 1, 1), [1, 0], bucket_cap_mb=TINY, **options)
    expect(watched.step().sent, [Sent(1, (1,), 0), Sent(2, (0,), 1)])


@fact(38)
def logger_samples() -> None:
    watched, sampled = Watched(f32(1)), []
    for _ in range(105):
        watched.step()
        sampled.append(watched.ddp._get_ddp_logging_data()["iteration"])
    expect(sorted(set(sampled)), [*range(11), 100])


# --------------------------------------------------------------------------------------------------------- two ranks


@fact(22)
def rank_0s_layout_wins() -> None:
    for rank in pair():
        expect(rank["layout"], [[2], [0], [1]])
        expect(rank["broadcasts"], 2)


@fact(26)
def divides_without_a_hook_only() -> None:
    expect([rank["given to the hook"] for rank in pair()], [1.0, 2.0])
    expect([rank["mean"] for rank in pair()], [1.5, 1.5])


@fact(27)
def divides_by_the_size_of_the_group() -> None:
    expect([rank["mean"] * 2 for rank in pair()], [3.0, 3.0])


@fact(29)
def unused_everywhere_is_left_alone() -> None:
    expect([rank["unused"] for rank in pair()], [[1.0, 0.5, None]] * 2)


@functools.cache
def pair() -> list[dict[str, Any]]:
    """What each of two ranks saw (see ``scene``)."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", __spec__.name, "rank", str(Path(folder) / "store")]
        ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
        try:
            return [json.loads(rank.communicate(timeout=TIMEOUT.total_seconds())[0]) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def scene(store: str, rank: int) -> dict[str, Any]:
    """Two ranks that differ in ready order, in gradients (1 and 2) and in what they use."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=TIMEOUT)
    watched = Watched(f32(1, 1, 1), [[2, 0, 1], [1, 0, 2]][rank], bucket_cap_mb=TINY)
    watched.step()
    broadcasts = _collectives(watched.step, "broadcast")

    given: list[float] = []

    def leaves(state: object, bucket: GradBucket) -> Reduced:
        given.append(bucket.buffer().item())
        return done(bucket.buffer())

    hooked = DistributedDataParallel(Branches(f32(1)))
    hooked.register_comm_hook(None, leaves)
    (hooked() * (rank + 1)).backward()
    plain = DistributedDataParallel(Branches(f32(1)))
    (plain() * (rank + 1)).backward()
    partly = DistributedDataParallel(Branches(f32(1, 1, 1), [[1, 0], [0]][rank]), find_unused_parameters=True)
    partly().backward()
    return {
        "layout": [list(bucket) for bucket in watched.layout()],
        "broadcasts": broadcasts,
        "given to the hook": given[0],
        "mean": gradients(plain)[0],
        "unused": gradients(partly),
    }


# --------------------------------------------------------------------------------------------------------------------


def outcome(check: Check) -> tuple[Status, str]:
    """Runs a check: its status and, when it did not pass, why."""
    try:
        check()
    except Absent as absent:
        return "skip", str(absent)
    except Differs as differs:
        return "fail", str(differs)
    except Exception as error:
        return "fail", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return "pass", ""


def main(words: list[str]) -> None:
    """Checks the facts with these numbers, or is one rank of ``pair``."""
    torch.set_num_threads(1)
    if words[0] == "rank":
        say(scene(words[1], int(words[2])))
        return
    join_alone()
    for number, check in CHECKS.items():
        if str(number) in words:
            say({"number": number})
            status, detail = outcome(check)
            say({"number": number, "status": status, "detail": detail})


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # taking a gloo group down can hang in torch 2.5: its threads may want the interpreter that waits for them
