"""Small sets of structures, and expectations over them from their lists, written from the definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import structinf as si
from oracle_example import Example
from oracle_examples import EXAMPLES

NAMES = ("categorical", "bits", "subset", "arborescence", "assignment", "chain")
SMALL = [next(example for example in EXAMPLES if example.name == name) for name in NAMES]
GIBBS = [example for example in SMALL if example.name != "assignment"]
LISTS_BEST = [example for example in SMALL if example.name != "arborescence"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def potentials(example: Example, batch: int = 1, seed: int = 0, scale: float = 1.0) -> Any:
    """(batch, *event) leaves in float64, different for each instance."""
    g = generator(seed)
    drawn = [scale * torch.randn(batch, *shape, dtype=torch.float64, generator=g) for shape in example.shapes]
    return tuple(t.requires_grad_() for t in drawn) if example.is_tuple else drawn[0].requires_grad_()


def repeated(theta: Any, times: int) -> Any:
    """So many equal instances of one, as leaves of their own."""
    copies = [t.detach().repeat(times, *[1] * (t.ndim - 1)).requires_grad_() for t in tensors(theta)]
    return tuple(copies) if isinstance(theta, tuple) else copies[0]


def tensors(theta: Any) -> tuple[Tensor, ...]:
    return theta if isinstance(theta, tuple) else (theta,)


def flat(parts: Any) -> Tensor:
    """(B, P), whatever the form."""
    return torch.cat([t.flatten(1) for t in tensors(parts)], 1)


def gradients(value: Tensor, theta: Any) -> Tensor:
    """d value / dθ, (B, P)."""
    return flat(tuple(torch.autograd.grad(value.sum(), tensors(theta))))


def cost(y: Any) -> Tensor:
    """Some number for each structure, (N,), that is not linear in it."""
    rows = flat(y)
    return 2 + (rows @ torch.linspace(0.5, 3, rows.shape[1], dtype=rows.dtype)).sin()


@dataclass(frozen=True)
class Listed:
    """All structures of an example, as rows (Y, P)."""

    rows: Tensor

    @classmethod
    def of(cls, example: Example, lengths: Any = None) -> Listed:
        assert example.listing is not None
        rows = [np.concatenate([part.ravel() for part in y]) for y in example.listing(lengths)]
        return cls(torch.tensor(np.array(rows), dtype=torch.float64))

    def scores(self, theta: Any) -> Tensor:
        """⟨θ, y⟩, (B, Y); −inf where a part of −inf is used."""
        own = flat(theta).detach()
        used = (own.isinf()[:, None] & (self.rows != 0)[None]).any(2)
        return torch.where(used, -torch.inf, torch.where(own.isinf(), 0.0, own) @ self.rows.T)

    def costs(self) -> Tensor:
        return 2 + (self.rows @ torch.linspace(0.5, 3, self.rows.shape[1], dtype=torch.float64)).sin()

    def gibbs(self, theta: Any) -> tuple[Tensor, Tensor]:
        """E[f(Y)], (B,), under exp⟨θ, y⟩ / Z, and its gradient Σ p (f − E f) y, (B, P)."""
        scores = self.scores(theta)
        p = (scores - scores.amax(1, keepdim=True)).exp()
        p = p / p.sum(1, keepdim=True)
        mean = p @ self.costs()
        return mean, (p * (self.costs() - mean[:, None])) @ self.rows

    def sparsemax(self, theta: Any, k: int | None = None, temperature: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """The same, under the projection of the k highest scores onto the simplex, and how many have a weight, (B,)."""
        values, slopes, sizes = [], [], []
        for row in self.scores(theta) / temperature:
            best, order = row.sort(descending=True)
            best, order = best[:k], order[:k]
            size = max(j for j in range(1, len(best) + 1) if 1 + j * best[j - 1] > best[:j].sum())
            p, f = best[:size] - (best[:size].sum() - 1) / size, self.costs()[order[:size]]
            values.append(p @ f)
            slopes.append((f - f.mean()) @ self.rows[order[:size]] / temperature)
            sizes.append(size)
        return torch.stack(values), torch.stack(slopes), torch.tensor(sizes)


def oracle_of(example: Example) -> si.Oracle:
    return example.oracle()


def near(samples: Tensor, exact: Tensor, errors: float = 4.0) -> bool:
    """Whether the mean of ``samples`` (n, ...) is so many standard errors from ``exact`` (...), at most."""
    deviation = samples.std(0) / len(samples) ** 0.5
    return bool(((samples.mean(0) - exact).abs() <= errors * deviation + 1e-12).all())
