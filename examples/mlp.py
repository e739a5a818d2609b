"""A small model for `ddpprof layout examples.mlp:make`: a factory returns the model, here with inputs for one step."""

import torch


class Mlp(torch.nn.Module):
    """Token embedding, four layers of 1024, and a head that is registered first though it is used last."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(1024, 1000)
        self.embedding = torch.nn.Embedding(8000, 1024)
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens)).relu().mean(1))


def model() -> torch.nn.Module:
    """The model alone: `ddpprof layout` then assumes that gradients come in the reverse order of registration."""
    return Mlp()


def make() -> tuple[torch.nn.Module, torch.Tensor]:
    """The model and example inputs: `ddpprof layout` then runs one step without memory and sees the true order."""
    return Mlp(), torch.zeros(2, 16, dtype=torch.int64)
