"""Families of potentials to test with: random, tied, zero, tiny, huge, with parts of −inf."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..parts import Parts, inner_product, map_parts

__all__ = ["FAMILIES", "forbid", "instance", "magnitude", "normal"]


def normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Standard normal numbers, in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _ties(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randint(-1, 2, tuple(shape), generator=generator).double()


def _zeros(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


FAMILIES: Mapping[str, tuple[Callable[[Sequence[int], torch.Generator], Tensor], float, bool]] = {
    # name: how entries are drawn, their scale, whether some are −inf
    "normal": (normal, 1.0, False),
    "ties": (_ties, 1.0, False),
    "zeros": (_zeros, 1.0, False),
    "small": (normal, 1e-3, False),
    "large": (normal, 1e3, False),
    "forbidden": (normal, 1.0, True),
    "forbidden ties": (_ties, 1.0, True),
    "forbidden large": (normal, 1e3, True),
}


def forbid(theta: Parts, structure: Parts, generator: torch.Generator) -> Parts:
    """``theta`` with −inf at 40 % of the parts that no instance of ``structure`` uses, at random."""

    def mask(t: Tensor, y: Tensor) -> Tensor:
        used = (y != 0).any(0, keepdim=True) if t.shape[0] == 1 else y != 0
        drawn = torch.rand(t.shape, generator=generator, dtype=torch.float64).to(t.device) < 0.4
        return t.masked_fill(drawn & ~used.to(t.device), -torch.inf)

    return map_parts(mask, theta, structure)


def instance(value: Parts, b: int) -> Parts:
    """Row ``b`` as a batch of one, (1, *event); the only row where all instances share it."""
    return map_parts(lambda t: t[b : b + 1] if t.shape[0] != 1 else t, value)


def magnitude(theta: Parts, y: Parts) -> Tensor:
    """Σ |θ_i y_i| for each instance, without forbidden parts."""
    sizes = map_parts(lambda t: t.abs().nan_to_num(posinf=0), theta)
    return inner_product(sizes, map_parts(torch.abs, y))
