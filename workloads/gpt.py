"""A small GPT of our own: token and position embeddings, pre-norm blocks, a head tied to the token embedding.

On a run without a device the marks are what shows its compute: ``compute/I`` in the forward and again in the backward of
section I, which is 0 for the embeddings, then a block each, then the head.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ddpprof import marks
from ddpprof.workloads.cases import Transformer
from ddpprof.workloads.recorder import Marker


class Block(nn.Module):
    """Attention and a feed-forward part of four times the width, each around a residual."""

    def __init__(self, shape: Transformer) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention = nn.LayerNorm(shape.width)
        self.attention = nn.Linear(shape.width, 3 * shape.width)
        self.projection = nn.Linear(shape.width, shape.width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(shape.width),
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, width = x.shape
        query, key, value = self.attention(self.before_attention(x)).view(tokens, 3, self.heads, -1).permute(1, 2, 0, 3)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(0, 1).reshape(tokens, width))
        deeper: torch.Tensor = self.feed_forward(x)
        return x + deeper


class Gpt(nn.Module):
    """The mean loss of the next token over one sequence, in bfloat16 where the device computes in it."""

    def __init__(self, shape: Transformer, seed: int, marker: Marker) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(shape.vocabulary, shape.width)
            self.position = nn.Embedding(shape.tokens, shape.width)
            self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
            self.norm = nn.LayerNorm(shape.width)
            for table in (self.embedding, self.position):
                nn.init.normal_(table.weight, std=0.02)
        self.sections = Sections(marker)
        self.embedding.weight.register_post_accumulate_grad_hook(lambda _: self.sections.leave())  # the last of all

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        sections, (tokens, targets) = self.sections, (sequence[:-1], sequence[1:])
        with mixed_precision(sequence.device):
            with sections.forward(0):
                x = sections.end(0, self.embedding(tokens) + self.position.weight)
            for number, block in enumerate(self.blocks, 1):
                with sections.forward(number):
                    x = sections.end(number, block(x))
            with sections.forward(len(self.blocks) + 1):
                return sections.end(len(self.blocks) + 1, F.cross_entropy(self.norm(x) @ self.embedding.weight.T, targets))


class Sections:
    """Marks the forward and backward of the parts of a model, of which the backward runs through the last first."""

    def __init__(self, marker: Marker) -> None:
        self.marker = marker
        self.open: AbstractContextManager[Any] | None = None

    def forward(self, number: int) -> AbstractContextManager[Any]:
        return self.marker.range(marks.compute(number))

    def end(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """``x``, the output of section ``number``, at whose gradient the backward enters the section."""
        if x.requires_grad:
            x.register_hook(lambda _: self.enter(number))
        return x

    def enter(self, number: int) -> None:
        self.leave()
        self.open = self.marker.range(marks.compute(number))
        self.open.__enter__()

    def leave(self) -> None:
        if self.open is not None:
            self.open.__exit__(None, None, None)
            self.open = None


def mixed_precision(device: torch.device) -> AbstractContextManager[Any]:
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext()


def sample(shape: Transformer, seed: int, number: int, row: int) -> torch.Tensor:
    """The tokens that rank ``row`` trains on in batch ``number``, and one more: each is to be told from those before it."""
    generator = torch.Generator().manual_seed(seed + 1_000_003 * (number + 1) + 1_009 * row)
    return torch.randint(shape.vocabulary, (shape.tokens + 1,), generator=generator)
