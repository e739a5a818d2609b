"""One gradient that comes last and is expected first: how it holds up all others, and what the rebuild does about it.

`gate` is registered last, so DDP takes its gradient for the first to come and puts it into the first bucket. But the forward
uses it first, so its gradient comes last. With find_unused_parameters=True the buckets stay like that for good, and nothing is
sent before the backward is over. Without, DDP sees one backward and rebuilds them in the true order.

    ddpprof layout examples.late:make --caps 4 --find-unused
    ddpprof layout examples.late:make --caps 4
    ddpprof profile -o runs/late -- torchrun --standalone --nproc-per-node 2 examples/late.py --find-unused
    ddpprof profile -o runs/rebuilt -- torchrun --standalone --nproc-per-node 2 examples/late.py
"""

import argparse
import os
import time

import nvtx
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import ddpprof

WIDTH = 1024
LAYERS = 6


class Held(torch.autograd.Function):
    """Passes its input on; its backward keeps the device busy for a while, as a larger layer would."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.index = index
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        with nvtx.annotate(f"delay/{ctx.index}", domain="ddpprof"):  # what a run without a GPU shows as compute
            if gradient.is_cuda:
                torch.cuda._sleep(10_000_000)
            elif not gradient.is_meta:
                time.sleep(0.010)
        return gradient, None


class Late(torch.nn.Module):
    """Layers of 4 MiB, and a gate that is registered after them and used before them."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.gate = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        x = Held.apply(self.gate(x), LAYERS)
        for index, layer in enumerate(self.layers):
            x = Held.apply(layer(x), index)
        return x


def make():
    """The model and example inputs, for `ddpprof layout examples.late:make`."""
    return Late(), torch.zeros(8, WIDTH)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--find-unused", action="store_true", help="find_unused_parameters=True: the buckets are never rebuilt")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()

    has_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_cuda else torch.device("cpu")
    if has_cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if has_cuda else "gloo")

    torch.manual_seed(0)
    kwargs = {"bucket_cap_mb": 4} | ddpprof.ddp_kwargs()
    model = DDP(Late().to(device), find_unused_parameters=options.find_unused, **kwargs)
    ddpprof.watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(options.steps):
        x = torch.randn(8, WIDTH, device=device)
        with ddpprof.timed_step(step):
            optimizer.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
