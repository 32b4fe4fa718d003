"""What DataLoader workers run, in a module of its own so that spawned processes can import it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset

import structinf as si

__all__ = ["Relaxed", "relaxed"]

ORACLES = {"categorical": (5,), "chain": ((6, 4), (4, 4)), "assignment": (5, 5), "arborescence": (6, 6)}


def relaxed(index: int) -> list[torch.Tensor]:
    """Structures and SparseMAP means of some oracles, with their gradients, for potentials that ``index`` seeds."""
    generator = torch.Generator().manual_seed(index)
    found = []
    for name, shapes in ORACLES.items():
        is_tuple = not isinstance(shapes[0], int)
        drawn = [torch.randn(2, *s, generator=generator).requires_grad_() for s in (shapes if is_tuple else [shapes])]
        theta = tuple(drawn) if is_tuple else drawn[0]
        for relaxation in ("map", "sparsemap"):
            mean = si.relax(theta, name, relaxation)
            first = mean[0] if is_tuple else mean
            (gradient,) = torch.autograd.grad(first.square().sum(), drawn[:1])
            found += [first.detach(), gradient]
    return found


@dataclass
class Relaxed(Dataset):
    """Layers at work in the workers; they travel there by fork or by pickling."""

    size: int
    layer: si.Layer = field(default_factory=lambda: si.Layer("arborescence", "marginals"))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        return [*relaxed(index), self.layer(torch.full((4, 4), float(index)))]
