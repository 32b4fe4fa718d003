"""Sums over projective and binary trees, and the backward pass through the sums, compared with packages for parsing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import pad

import structinf as si

from .arborescence import root_on_diagonal
from .case import STRUCTINF, Case, Contender, Target

__all__ = ["CASES"]

Sum = Callable[[Tensor], Tensor]


def _sums(oracle: str, modules: Mapping[str, ModuleType]) -> Iterator[tuple[str, Sum]]:
    """Return log Z (B,) of our θ, by each package."""
    by_name = BINARY if oracle == "binary_tree" else PROJECTIVE
    for name, log_partition in by_name.items():
        if name in modules:
            yield name, partial(log_partition, modules[name])


# supar indexes spans by the gaps before and after them, and arcs as [m, h].
BINARY: Mapping[str, Callable[[ModuleType, Tensor], Tensor]] = {
    "torch-struct": lambda package, t: package.TreeCRF(t.unsqueeze(-1)).partition,
    "supar": lambda package, t: package.ConstituencyCRF(pad(t, (1, 0, 0, 1)), _all(t, 0)).log_partition,
}
PROJECTIVE: Mapping[str, Callable[[ModuleType, Tensor], Tensor]] = {
    "torch-struct": lambda package, t: package.DependencyCRF(root_on_diagonal(t), multiroot=True).partition,
    "supar": lambda package, t: package.DependencyCRF(t.mT, _all(t, 1), multiroot=True).log_partition,
}


def _all(theta: Tensor, root: int) -> Tensor:
    """Return the lengths (B,) of sentences without padding."""
    return torch.full((len(theta),), theta.shape[1] - root)


def marginals(
    modules: Mapping[str, ModuleType], oracle: str, batch: int, words: int, backward: bool
) -> Iterator[Contender]:
    """Compute the marginals of all parts; with ``backward``, the gradient of a linear function of the marginals."""
    size = words + (oracle == "projective_tree")
    generator = torch.Generator().manual_seed(0)
    theta, weight = (torch.randn(batch, size, size, generator=generator) for _ in range(2))
    leaf = theta.clone().requires_grad_()
    layer = si.Layer(oracle, "marginals")

    def read(found: Tensor) -> Tensor:
        return found.detach()

    def ours() -> Tensor:
        return torch.autograd.grad((layer(leaf) * weight).sum(), leaf)[0] if backward else layer(theta)

    def theirs(log_partition: Sum) -> Tensor:
        mean = torch.autograd.grad(log_partition(leaf).sum(), leaf, create_graph=backward)[0]
        return torch.autograd.grad((mean * weight).sum(), leaf)[0] if backward else mean

    yield Contender(STRUCTINF, ours, read)
    for name, log_partition in _sums(oracle, modules):
        yield Contender(name, partial(theirs, log_partition), read)


PACKAGES = ("torch-struct", "supar")
CASES = tuple(
    Case(
        f"{oracle.replace('_', '-')}-marginals{'-backward' if backward else ''}",
        f"{what} marginals{' and backward through them' if backward else ''}, B={{batch}} n={{words}}",
        marginals,
        {"oracle": oracle, "batch": 32, "words": 40, "backward": backward},
        {"oracle": oracle, "batch": 2, "words": 3, "backward": backward},
        PACKAGES,
        Target(10, PACKAGES),
    )
    for oracle, what in (("binary_tree", "binary tree"), ("projective_tree", "projective tree"))
    for backward in (False, True)
)
