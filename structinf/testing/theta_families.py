"""Families of scores to test with: random, tied, zero, of scale 1e-3 or 1e3, and with scores of −inf."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..parts import Parts, inner_product, map_parts

__all__ = ["FAMILIES", "forbid", "instance", "magnitude", "normal"]


def normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw standard normal numbers, in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")


def _ties(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randint(-1, 2, tuple(shape), generator=generator, device="cpu").double()


def _zeros(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64, device="cpu")


FAMILIES: Mapping[str, tuple[Callable[[Sequence[int], torch.Generator], Tensor], float, bool]] = {
    # name: the distribution of the entries, their scale, and whether parts are forbidden
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
    """Return ``theta`` with −inf at a random 40 % of the parts that ``structure`` does not use.

    In a tensor shared by the batch, a part counts as used if any instance uses the part.
    """

    def mask(t: Tensor, y: Tensor) -> Tensor:
        used = (y != 0).any(0, keepdim=True) if t.shape[0] == 1 else y != 0
        drawn = torch.rand(t.shape, generator=generator, dtype=torch.float64, device="cpu").to(t.device) < 0.4
        return t.masked_fill(drawn & ~used.to(t.device), -torch.inf)

    return map_parts(mask, theta, structure)


def instance(value: Parts, b: int) -> Parts:
    """Return row ``b`` as a batch of size 1, (1, *event). Tensors shared by the batch stay unchanged."""
    return map_parts(lambda t: t[b : b + 1] if t.shape[0] != 1 else t, value)


def magnitude(theta: Parts, y: Parts) -> Tensor:
    """Return Σ |θ_i y_i| of each instance, without forbidden parts."""
    sizes = map_parts(lambda t: t.abs().nan_to_num(posinf=0), theta)
    return inner_product(sizes, map_parts(torch.abs, y))
