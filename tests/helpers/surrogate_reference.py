"""Surrogate gradients by hand: their formulas over a list of all structures, an instance at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import enumerators
import structinf as si
from enumerators import Structure
from oracle_example import Example
from structinf.parts import as_tuple, map_parts

Rule = Callable[["Listed", Structure, Structure], Structure]
"""From all structures, θ and v = dL/dy to the gradient, for one instance."""


@dataclass(frozen=True)
class Listed:
    """All structures of an instance, and which parts are not padding."""

    structures: list[Structure]
    inside: Structure
    requires_nonpositive_theta: bool

    def best(self, theta: Structure) -> Structure:
        """The one of highest score."""
        return max(self.structures, key=lambda y: enumerators.score(theta, y))

    def beside(self, theta: Structure, v: Structure, step: float) -> Structure:
        """The best for θ + step v, where costs stay costs."""
        tilted = add(theta, v, step)
        return self.best(tuple(np.minimum(t, 0) for t in tilted) if self.requires_nonpositive_theta else tilted)

    def mean(self, theta: Structure) -> Structure:
        """E[Y] under p(y) ∝ exp⟨θ, y⟩."""
        return enumerators.mean(theta, self.structures)

    def project(self, theta: Structure) -> Structure:
        """The point of conv(Y) nearest to θ."""
        return enumerators.projection(theta, self.structures)


def add(a: Structure, b: Structure, step: float = 1.0) -> Structure:
    """a + step b."""
    return tuple(x + step * y for x, y in zip(a, b, strict=True))


def scaled(a: Structure, factor: float) -> Structure:
    return tuple(factor * x for x in a)


def flat(parts: Structure) -> np.ndarray:
    return np.concatenate([p.ravel() for p in parts])


def shaped(vector: np.ndarray, like: Structure) -> Structure:
    pieces = np.split(vector, np.cumsum([p.size for p in like])[:-1])
    return tuple(piece.reshape(p.shape) for piece, p in zip(pieces, like, strict=True))


# ----------------------------------------------------------------------------- the formulas


def identity(listed: Listed, _: Structure, v: Structure) -> Structure:
    return tuple(z * mask for z, mask in zip(v, listed.inside, strict=True))


def covariance(listed: Listed, theta: Structure, v: Structure) -> Structure:
    """Cov[Y] v = Σ p(y) ⟨y − E[Y], v⟩ y."""
    mean, total = listed.mean(theta), enumerators.log_partition(theta, listed.structures)
    result = np.zeros(flat(theta).size)
    for y in listed.structures:
        p = np.exp(enumerators.score(theta, y) - total)
        result += p * (flat(y) - flat(mean)) @ flat(v) * flat(y)
    return shaped(result, theta)


def projected(projection: str) -> Rule:
    """P'(θ)ᵀ v as a sum over the entries of the Jacobian, by hand."""

    def rule(listed: Listed, theta: Structure, v: Structure) -> Structure:
        inside = flat(listed.inside)
        x, z = flat(theta)[inside], flat(v)[inside]
        n = len(x)

        def filled(gradient: np.ndarray) -> Structure:
            full = np.zeros(inside.size)
            full[inside] = gradient
            return shaped(full, theta)

        centre = np.eye(n) - np.full((n, n), 1 / n)
        if projection == "mean":
            return filled(centre @ z)
        if projection == "std":
            x = centre @ x
        norm = np.sqrt(x @ x)
        sphere = np.eye(n) / norm - np.outer(x, x) / norm**3
        jacobian = sphere @ centre if projection == "std" else sphere
        return filled(jacobian.T @ z)

    return rule


def interpolated(lambda_: float, symmetric: bool = False) -> Rule:
    def rule(listed: Listed, theta: Structure, v: Structure) -> Structure:
        low = listed.beside(theta, v, -lambda_)
        if symmetric:
            return scaled(add(listed.beside(theta, v, lambda_), low, -1), 1 / (2 * lambda_))
        return scaled(add(listed.best(theta), low, -1), 1 / lambda_)

    return rule


def spigot(eta: float) -> Rule:
    def rule(listed: Listed, theta: Structure, v: Structure) -> Structure:
        y = listed.best(theta)
        return add(y, listed.project(add(y, v, -eta)), -1)

    return rule


def spigot_cross_entropy(eta: float) -> Rule:
    def rule(listed: Listed, theta: Structure, v: Structure) -> Structure:
        mean = listed.mean(theta)
        return add(mean, listed.project(add(mean, v, -eta)), -1)

    return rule


def spigot_exponentiated(eta: float) -> Rule:
    def rule(listed: Listed, theta: Structure, v: Structure) -> Structure:
        return add(listed.mean(theta), listed.mean(add(theta, v, -eta)), -1)

    return rule


RULES: Mapping[str, tuple[si.Relaxation, Rule]] = {
    "straight_through": (si.get_relaxation("straight_through"), identity),
    "straight_through-marginals": (si.get_relaxation("straight_through", backward="marginals"), covariance),
    "negative_identity": (si.get_relaxation("negative_identity"), identity),
    **{
        f"negative_identity-{name}": (si.get_relaxation("negative_identity", projection=name), projected(name))
        for name in ("mean", "norm", "std")
    },
    "spigot": (si.get_relaxation("spigot", step_size=0.7), spigot(0.7)),
    "spigot-cross_entropy": (
        si.get_relaxation("spigot", step_size=0.7, variant="cross_entropy"),
        spigot_cross_entropy(0.7),
    ),
    "spigot-exponentiated_gradient": (
        si.get_relaxation("spigot", step_size=0.7, variant="exponentiated_gradient"),
        spigot_exponentiated(0.7),
    ),
    "blackbox": (si.get_relaxation("blackbox", lambda_=3.0), interpolated(3.0)),
    "imle-none": (si.get_relaxation("imle", lambda_=3.0, noise="none"), interpolated(3.0)),
    "imle-symmetric": (si.get_relaxation("imle", lambda_=3.0, noise="none", symmetric=True), interpolated(3.0, True)),
}
"""Every surrogate without noise, and its formula."""


# ----------------------------------------------------------------------------- potentials


def draw(example: Example, batch: int, seed: int = 0) -> tuple[si.Parts, si.Parts]:
    """Potentials without ties, and cotangents, (batch, *event) in float64."""
    g = torch.Generator().manual_seed(seed)
    theta = [torch.randn(batch, *shape, generator=g, dtype=torch.float64) for shape in example.shapes]
    if example.oracle().requires_nonpositive_theta:
        theta = [-t.abs() for t in theta]
    v = [torch.randn(batch, *shape, generator=g, dtype=torch.float64) for shape in example.shapes]
    return (tuple(theta), tuple(v)) if example.is_tuple else (theta[0], v[0])


def listed(example: Example, lengths: Any = None) -> Listed:
    """All structures of the example, of some lengths or the whole."""
    assert example.listing is not None
    oracle = example.oracle() if lengths is None else example.oracle().bind(lengths=[lengths])
    theta = draw(example, 1)[0]
    masks = oracle.valid_parts(theta)
    inside = map_parts(lambda t: torch.ones_like(t, dtype=torch.bool), theta) if masks is None else masks
    return Listed(list(example.listing(lengths)), instance(inside, 0), oracle.requires_nonpositive_theta)


def instance(parts: si.Parts, b: int) -> Structure:
    return tuple(t[b].detach().numpy() for t in as_tuple(parts))


def gradients(
    theta: si.Parts, v: si.Parts, oracle: str | si.Oracle, relaxation: str | si.Relaxation, **options: Any
) -> tuple[Tensor, ...]:
    """What v = dL/dy makes of θ."""
    leaves = [t.detach().clone().requires_grad_() for t in as_tuple(theta)]
    mean = si.relax(tuple(leaves) if isinstance(theta, tuple) else leaves[0], oracle, relaxation, **options)
    torch.autograd.backward(as_tuple(mean), as_tuple(v))
    assert all(t.grad is not None for t in leaves)
    return tuple(t.grad for t in leaves)  # type: ignore[misc]
