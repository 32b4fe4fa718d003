"""Regularizers of means for tests, and their solutions over listed structures by scipy."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize

VARIANTS = ("fully_corrective", "vanilla")


def draw(seed: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
    """Normal potentials in float64."""
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def quadratic(width: int, seed: int = 0):
    """½ μᵀ Q μ with a random positive definite Q."""
    root = draw(seed, width, width)
    matrix = root @ root.T / width + 0.2 * torch.eye(width, dtype=torch.float64)

    def omega(mean: torch.Tensor) -> torch.Tensor:
        flat = mean.flatten(1)
        return 0.5 * ((flat @ matrix.to(flat)) * flat).sum(1)

    return omega


def cubic(mean: torch.Tensor) -> torch.Tensor:
    """Σ μ³ + ½ ‖μ‖²."""
    flat = mean.flatten(1)
    return flat.pow(3).sum(1) + 0.5 * flat.square().sum(1)


def own_entropy(mean: torch.Tensor) -> torch.Tensor:
    """Σ μ log μ, as a user would write it."""
    return torch.special.xlogy(mean, mean).flatten(1).sum(1)


def _own_entropy_of_flat(x: torch.Tensor) -> torch.Tensor:
    return torch.special.xlogy(x, x).sum(1)


FLAT = {
    "squared_l2": lambda x: 0.5 * x.square().sum(1),
    "entropy": _own_entropy_of_flat,
    "binary_entropy": lambda x: _own_entropy_of_flat(x) + _own_entropy_of_flat(1 - x),
}
"""Ω by name, of vectors."""


def solution(structures: np.ndarray, theta: np.ndarray, omega) -> tuple[np.ndarray, float]:
    """argmax ⟨θ, μ⟩ − Ω(μ) and its value, over weights of the listed structures without parts of −inf.

    By SLSQP; or, for entropies, whose slopes are infinite where weights are 0, by L-BFGS on weights softmax(z).
    """
    allowed = structures[~((structures != 0) & np.isneginf(theta)).any(1)].astype(float)
    varying = allowed.min(0) != allowed.max(0)  # Ω of the others is constant
    rows, scores = torch.from_numpy(allowed), torch.from_numpy(np.where(np.isneginf(theta), 0.0, theta))
    steep = omega in (FLAT["entropy"], FLAT["binary_entropy"])
    kept = torch.from_numpy(varying) if steep else torch.ones(len(theta), dtype=torch.bool)

    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.tensor(z, requires_grad=True)
        mean = (leaf.softmax(0) if steep else leaf) @ rows
        value = omega(mean[None, kept])[0] - scores @ mean
        (gradient,) = torch.autograd.grad(value, leaf)
        return value.item(), gradient.numpy()

    if steep:
        options = {"ftol": 0.0, "gtol": 1e-12, "maxiter": 20000, "maxfun": 50000}
        found = minimize(loss, np.zeros(len(rows)), jac=True, method="L-BFGS-B", options=options)
        weights = np.exp(found.x - found.x.max())
    else:
        found = minimize(
            loss,
            np.full(len(rows), 1 / len(rows)),
            jac=True,
            method="SLSQP",
            bounds=[(0, 1)] * len(rows),
            constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones_like(p)},
            options={"ftol": 1e-15, "maxiter": 1000},
        )
        weights = found.x.clip(0)
    return weights / weights.sum() @ allowed, -found.fun


def certified_gap(structures: np.ndarray, theta: np.ndarray, mean: np.ndarray, omega) -> float:
    """max ⟨θ − ∇Ω(μ), y − μ⟩ over the listed structures, which are without parts of −inf."""
    x = torch.tensor(mean[None], requires_grad=True)
    (slope,) = torch.autograd.grad(omega(x).sum(), x)
    return ((structures - mean) @ (theta - slope[0].numpy())).max()
