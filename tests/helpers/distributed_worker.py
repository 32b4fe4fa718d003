"""What the processes of a DistributedDataParallel group run, in a module of its own so that they can import it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

import structinf as si

__all__ = ["MODELS", "gradients_of", "made", "train"]


class Tagger(nn.Module):
    """A chain's SparseMAP loss, of tags scored by a linear map and a transition that all share."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.transition = nn.Linear(3, 2), nn.Parameter(torch.randn(2, 2))
        self.loss = si.FenchelYoungLoss("chain", "sparsemap")

    def forward(self, x: Tensor) -> Tensor:
        return self.loss((self.linear(x), self.transition), (x[..., 0] > 0).long())


class ViterbiTagger(nn.Module):
    """The best tags of a chain, whose gradient is 0, but there: a parameter without one is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.transition, self.layer = (
            nn.Linear(3, 2),
            nn.Parameter(torch.zeros(2, 2)),
            si.Layer("chain", "map"),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layer((self.linear(x), self.transition))[0].square().sum()


class AttentionReader(nn.Module):
    """Segmentation attention, its transition trained along."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = si.StructuredMultiheadAttention(4, 2, oracle="chain", batch_first=True)
        self.embed = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.attention(h, h, h)[0].square().mean()


class Matcher(nn.Module):
    """A matching by adaptive implicit maximum likelihood, whose buffers learn at each step back."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.layer = nn.Linear(3, 4), si.Layer("assignment", "adaptive_imle", noise="none")

    def forward(self, x: Tensor) -> Tensor:
        wanted = torch.eye(4).flip(0)
        return (self.layer(self.linear(x)) - wanted).square().mean()


MODELS = {"loss": Tagger, "map": ViterbiTagger, "attention": AttentionReader, "adaptive": Matcher}


def made(name: str) -> tuple[nn.Module, Tensor]:
    """The model of that name and a batch of four, the same in every process."""
    torch.manual_seed(0)
    return MODELS[name](), torch.randn(4, 4, 3)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """All parameters' gradients, and the buffers."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {**gradients, **{name: b.clone() for name, b in model.named_buffers()}}


def train(rank: int, folder: str) -> None:
    """Two steps back in every model on this process's half of the batch; the result goes into the ``folder``."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    found = {}
    for name in MODELS:
        model, batch = made(name)
        parallel = nn.parallel.DistributedDataParallel(model)
        for _ in range(2):  # a parameter that got no gradient in one step is an error in the next
            parallel(batch[2 * rank : 2 * rank + 2]).backward()
        found[name] = gradients_of(model)
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()
