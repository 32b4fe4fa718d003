"""Entropic transport compared with POT and ott-jax, at equal tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import structinf as si

from .case import STRUCTINF, Case, Contender, Target

__all__ = ["CASES"]

TOLERANCE = 1e-6  # ours for sums of 1; the peers' for the norm of errors of sums of 1 / n, a weaker condition


def plan(modules: Mapping[str, ModuleType], batch: int, n: int, temperature: float) -> Iterator[Contender]:
    """Compute plans between points of a square, by squared distance, and a gradient. float32 does not reach the
    tolerance.
    """
    generator = torch.Generator().manual_seed(0)
    cost = torch.cdist(*torch.rand(2, batch, n, 2, generator=generator, dtype=torch.float64)).square()
    direction = torch.rand(batch, n, n, generator=generator, dtype=torch.float64)

    def ours() -> tuple[Tensor, Tensor]:
        leaf = cost.clone().requires_grad_()
        found = si.sinkhorn(-leaf, temperature=temperature, tolerance=TOLERANCE)
        (gradient,) = torch.autograd.grad((found * direction).sum(), leaf)
        return found.detach(), gradient

    yield Contender(STRUCTINF, ours)
    if pot_batch := modules.get("POT"):

        def pot() -> tuple[Tensor, Tensor]:
            leaf = cost.clone().requires_grad_()
            options: dict[str, Any] = {"method": "log_sinkhorn", "grad": "autodiff", "max_iter": 10_000}
            result = pot_batch.solve_batch(leaf, reg=temperature, tol=TOLERANCE, **options)
            found = result.plan * n
            (gradient,) = torch.autograd.grad((found * direction).sum(), leaf)
            return found.detach(), gradient

        yield Contender("POT, batched, unrolled", pot, exact=False)
    if package := modules.get("ott-jax"):
        yield Contender("ott-jax, implicit", _ott(package, cost, direction, temperature), exact=False)


def soft_margins(modules: Mapping[str, ModuleType], batch: int, n: int, strength: float) -> Iterator[Contender]:
    """Compute plans with soft margins. POT takes one instance at a time."""
    generator = torch.Generator().manual_seed(0)
    cost = torch.cdist(*torch.rand(2, batch, n, 2, generator=generator, dtype=torch.float64)).square()
    margins = torch.full((n,), 1 / n, dtype=torch.float64)
    temperature = 0.05

    def ours() -> Tensor:
        # POT's entropy is Σ P log P − P.
        theta = temperature - cost
        return si.unbalanced_sinkhorn(theta, margins, margins, temperature, strength=strength, tolerance=TOLERANCE)

    yield Contender(STRUCTINF, ours)
    if "POT" in modules:
        unbalanced = __import__("ot.unbalanced", fromlist=["unbalanced"])
        options = {"reg": temperature, "reg_m": strength, "reg_type": "entropy", "method": "sinkhorn_stabilized"}

        def pot() -> Tensor:
            plans = [
                unbalanced.sinkhorn_unbalanced(margins, margins, c, stopThr=TOLERANCE, numItermax=100_000, **options)
                for c in cost
            ]
            return torch.stack(plans)

        yield Contender("POT in a loop", pot, exact=False)


def _ott(package: ModuleType, cost: Tensor, direction: Tensor, temperature: float) -> Any:
    import jax

    geometry = __import__("ott.geometry.geometry", fromlist=["geometry"])
    problems = __import__("ott.problems.linear.linear_problem", fromlist=["linear_problem"])
    n = cost.shape[-1]
    solver = package.Sinkhorn(threshold=TOLERANCE, max_iterations=10_000, lse_mode=True)

    def along(cost: Any, direction: Any) -> tuple[Any, Any]:
        result = solver(problems.LinearProblem(geometry.Geometry(cost_matrix=cost, epsilon=temperature)))
        found = result.matrix * n
        return (found * direction).sum(), found

    both = jax.jit(jax.vmap(jax.value_and_grad(along, has_aux=True)))
    arrays = cost.numpy(), direction.numpy()

    def run() -> tuple[Tensor, Tensor]:
        with jax.enable_x64(True):
            (_, found), gradient = both(*arrays)
            return torch.from_numpy(jax.device_get(found).copy()), torch.from_numpy(jax.device_get(gradient).copy())

    return run


CASES = tuple(
    Case(
        f"sinkhorn-{temperature:g}",
        "Sinkhorn plans and gradients, tolerance 1e-6, B={batch} n={n} ε={temperature:g}",
        plan,
        {"batch": 32, "n": 50, "temperature": temperature},
        {"batch": 2, "n": 4, "temperature": temperature},
        peers=("POT", "ott-jax"),
        target=Target(2.0, ("POT, batched, unrolled",)),
        tolerance=1e-3,
    )
    for temperature in (1.0, 0.1, 0.01)
)

CASES += tuple(
    Case(
        f"soft-margins-{strength:g}",
        "transport plans with soft margins (KL), tolerance 1e-6, B={batch} n={n} ε=0.05, strength {strength:g}",
        soft_margins,
        {"batch": 32, "n": 50, "strength": strength},
        {"batch": 2, "n": 4, "strength": strength},
        peers=("POT",),
        target=Target(2.0, ("POT in a loop",)),
        tolerance=1e-3,
    )
    for strength in (0.5, 5.0)
)
