"""Smoothed Viterbi: Hessian-vector products compared with autograd through the recursion, and hypergraph loops with
chain loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

import torch
from torch import Tensor

import structinf as si
from structinf.dp import HypergraphProgram
from structinf.regularizers import get_regularizer

from .case import STRUCTINF, Case, Contender, Target

__all__ = ["CASES"]

LOOP = "autograd through a plain torch loop"
LAYER = "structinf, layer and backward"
DENSE = "dense loops"
QUICK = {"batch": 2, "steps": 4, "states": 3}
SIZES = ({"batch": 32, "steps": 100, "states": 16}, {"batch": 256, "steps": 100, "states": 32})


# ----------------------------------------------------------------------------- the same work, plainly


def sparse_max(x: Tensor, dim: int) -> Tensor:
    """Return max ⟨x, q⟩ − (‖q‖² − 1) / 2 along ``dim``: sparsemax by sorting, twice differentiable by autograd."""
    x = x.movedim(dim, -1)
    top = x.detach().amax(-1, keepdim=True)
    y = x - top
    with torch.no_grad():
        descending = y.sort(-1, descending=True).values
        sums, k = descending.cumsum(-1), torch.arange(1, y.shape[-1] + 1, dtype=y.dtype)
        size = (1 + k * descending > sums).sum(-1, keepdim=True)
        chosen = y > (sums.gather(-1, size - 1) - 1) / size
    y = y * chosen
    tau = (y.sum(-1, keepdim=True) - 1) / size
    return (top + 0.5 * (y * y).sum(-1, keepdim=True) - 0.5 * size * tau * tau + 0.5).squeeze(-1)


PLAIN: Mapping[str, Callable[[Tensor, int], Tensor]] = {"negentropy": torch.logsumexp, "squared_l2": sparse_max}


def value_loop(smax: Callable[[Tensor, int], Tensor], *theta: Tensor) -> Tensor:
    """Return DP_Ω (B,) of unary scores and a transition, or of edge scores alone."""
    if len(theta) == 1:
        v = theta[0].new_zeros(len(theta[0]), theta[0].shape[-1])
        for scores in theta[0].unbind(1):
            v = smax(v.unsqueeze(2) + scores, 1)
        return smax(v, 1)
    v, *rest = theta[0].unbind(1)
    for scores in rest:
        v = smax(v.unsqueeze(2) + theta[1], 1) + scores
    return smax(v, 1)


# ----------------------------------------------------------------------------- cases


def _inputs(form: str, batch: int, steps: int, states: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return θ and a direction, with a transition shared by all steps and instances, or with edge scores."""
    generator = torch.Generator().manual_seed(0)
    edges = [(batch, steps - 1, states, states)]
    shapes = edges if form == "edges" else [(batch, steps, states), (states, states)]
    theta, v = (tuple(torch.randn(*shape, generator=generator) for shape in shapes) for _ in range(2))
    return theta, v


def hessian_product(
    modules: Mapping[str, ModuleType], regularizer: str, form: str, batch: int, steps: int, states: int
) -> Iterator[Contender]:
    """Compute the Hessian of DP_Ω along a direction."""
    theta, v = _inputs(form, batch, steps, states)
    omega, chain = get_regularizer(regularizer), si.get_oracle("chain")
    leaves = tuple(t.clone().requires_grad_() for t in theta)
    layer = si.Layer("chain", "smoothed", regularizer=regularizer)

    def flat(tensors: tuple[Tensor, ...]) -> si.Parts:
        # The oracle's methods take one batch dimension.
        return tensors[0] if form == "edges" else (tensors[0], tensors[1].unsqueeze(0))

    def through(mean: Callable[[], tuple[Tensor, ...]]) -> Callable[[], tuple[Tensor, ...]]:
        def run() -> tuple[Tensor, ...]:
            along = torch.stack([(m * z).sum() for m, z in zip(mean(), v, strict=True)]).sum()
            return torch.autograd.grad(along, leaves)

        return run

    def looped() -> tuple[Tensor, ...]:
        return torch.autograd.grad(value_loop(PLAIN[regularizer], *leaves).sum(), leaves, create_graph=True)

    def layered() -> tuple[Tensor, ...]:
        mean = layer(leaves[0] if form == "edges" else leaves)
        return mean if isinstance(mean, tuple) else (mean,)

    def read(product: si.Parts) -> tuple[Tensor, ...]:
        return (product,) if isinstance(product, Tensor) else (product[0], product[1].sum(0))

    yield Contender(STRUCTINF, lambda: chain.smoothed_hessian_product(flat(theta), flat(v), omega), read)
    # In float32, a loop with growing scores finds other supports in 2 to 5 of 256 rows.
    yield Contender(LOOP, through(looped), exact=regularizer == "negentropy")
    yield Contender(LAYER, through(layered))


def mean(
    modules: Mapping[str, ModuleType], regularizer: str, form: str, batch: int, steps: int, states: int
) -> Iterator[Contender]:
    """Compute the expected structure by the loops for hypergraphs and by the loops for chains."""
    theta, _ = _inputs(form, batch, steps, states)
    omega, chain = get_regularizer(regularizer), si.get_oracle("chain")
    flat = theta[0] if form == "edges" else (theta[0], theta[1].unsqueeze(0))
    yield Contender(STRUCTINF, lambda: HypergraphProgram.smoothed_value_and_mean(chain, flat, omega)[1])
    yield Contender(DENSE, lambda: chain.smoothed_mean(flat, omega))


FORMS = {"shared": "shared transition", "edges": "edge scores"}
WORDS = {"negentropy": "negentropy", "squared_l2": "squared l2"}
CASES = (
    *(
        Case(
            f"smoothed-hessian-{regularizer}-{form}-{size['states']}",
            f"Hessian product of smoothed Viterbi, {WORDS[regularizer]}, "
            f"B={{batch}} T={{steps}} S={{states}}, {FORMS[form]}",
            hessian_product,
            {"regularizer": regularizer, "form": form, **size},
            {"regularizer": regularizer, "form": form, **QUICK},
            target=Target(12, (LOOP,)) if form == "shared" else None,
        )
        for form in FORMS
        for regularizer in WORDS
        for size in SIZES
    ),
    *(
        Case(
            f"hypergraph-chain-{regularizer}-{form}",
            f"expected tags by the loops for any hypergraph, {WORDS[regularizer]}, "
            f"B={{batch}} T={{steps}} S={{states}}, {FORMS[form]}",
            mean,
            {"regularizer": regularizer, "form": form, "batch": 32, "steps": 100, "states": 50},
            {"regularizer": regularizer, "form": form, **QUICK},
            target=Target(1 / 3, (DENSE,)) if form == "edges" else None,
        )
        for form in FORMS
        for regularizer in WORDS
    ),
)
