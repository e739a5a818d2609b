"""A DDP training script of its own, with the three lines that let ddpprof sweep it, and marks for a run without a GPU:

ddpprof sweep --caps 1,4,25 -- torchrun --standalone --nproc-per-node 2 examples/train.py
"""

import argparse
import os

import nvtx
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import ddpprof


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=1024, help="of a layer; its weights are width^2 * 4 bytes")
    options = parser.parse_args()

    has_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_cuda else torch.device("cpu")
    if has_cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if has_cuda else "gloo")

    torch.manual_seed(0)
    layers = [torch.nn.Linear(options.width, options.width) for _ in range(8)]
    if not has_cuda:
        mark_compute(layers)
    model = DDP(torch.nn.Sequential(*layers).to(device), **ddpprof.ddp_kwargs())  # the cap of a sweep
    model.register_comm_hook(None, marked_allreduce)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for step in range(options.steps):
        x = torch.randn(64, options.width, device=device)
        with ddpprof.timed_step(step):  # a step for nsys, and its time for a sweep
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}")
    dist.destroy_process_group()


def marked_allreduce(state, bucket):  # no annotations: DDP compares them with real types
    """The default all-reduce, its bucket marked with index and bytes; on a CPU also what runs until it is done."""
    index, gradients = bucket.index(), bucket.buffer()
    with nvtx.annotate(f"bucket/{index}/{gradients.nbytes}", domain="ddpprof"):
        running = None if gradients.is_cuda else nvtx.start_range(f"allreduce/{index}", domain="ddpprof")
        future = dist.all_reduce(gradients.div_(dist.get_world_size()), async_op=True).get_future()
        if running is not None:
            future.add_done_callback(lambda _: nvtx.end_range(running))
    return future.then(lambda done: done.value()[0])


def mark_compute(layers):
    """Marks the backward of each layer, until its weight has its gradient: on a GPU the kernels tell by themselves."""
    for index, layer in enumerate(layers):

        def start(layer, inputs, output, name=f"compute/{index}"):
            output.register_hook(lambda gradient: nvtx.push_range(name, domain="ddpprof"))

        layer.register_forward_hook(start)
        layer.weight.register_post_accumulate_grad_hook(lambda weight: nvtx.pop_range(domain="ddpprof"))


if __name__ == "__main__":
    main()
