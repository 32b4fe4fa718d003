"""SparseMAP, solved to convergence, compared with the two C++ codes of its authors, which take one instance at a
time.

Without the C++ codes, another contender gives an estimate. The times of both were measured side by side on a machine
like the machine of benchmarks/README.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import structinf as si

from .case import STRUCTINF, Case, Contender, EstimatedPeer, Target
from .chain import log_partition_loop

__all__ = ["CASES"]

LP_SPARSEMAP = "lp-sparsemap"
VENE = "sparsemap"
CHAIN_LOOP = "plain torch loop for log Z of chains, B=32 T=100 S=50"
SCIPY = "scipy's assignment in a loop, B=128 n=50"
MAX_ITER = 1000


# ----------------------------------------------------------------------------- ours


def _ours(theta: tuple[Tensor, ...], oracle: str, backward: bool, **options: Any) -> Contender:
    """Return a contender: the layer, forward and optionally backward. An instance without convergence is an error."""
    layer = si.Layer(oracle, "sparsemap", tolerance=0, max_iter=MAX_ITER, on_failure="raise", **options)
    leaves = tuple(t.clone().requires_grad_(backward) for t in theta)
    form = leaves if len(leaves) > 1 else leaves[0]
    weight = torch.randn(leaves[0].shape, generator=torch.Generator().manual_seed(1))

    def run() -> Tensor:
        mean = layer(form)
        first = mean[0] if isinstance(mean, tuple) else mean
        if backward:
            torch.autograd.grad((first * weight).sum(), leaves)
        return first

    def facts(_: Tensor) -> dict[str, Any]:
        solution = layer.infer(form)
        sizes = (solution.weights > 0).sum(0).double()
        return {
            "oracle calls": solution.oracle_calls,
            "mean support": round(sizes.mean().item(), 1),
            "largest support": int(sizes.max()),
            "converged": f"{int(solution.converged.sum())} of {len(solution.converged)}",
        }

    return Contender(STRUCTINF, run, torch.Tensor.detach, facts)


# ----------------------------------------------------------------------------- theirs


def _lp_sparsemap(
    make: Callable[[], Any], unary: Tensor, additional: np.ndarray, read: Callable[[Tensor], Tensor]
) -> Contender:
    """Return a contender: the factors of lp-sparsemap, forward and backward, for unaries (B, d) and additional scores
    (a,) shared by all.
    """
    graph = importlib.import_module("lpsmap.ad3qp.factor_graph").PFactorGraph()
    variables = [
        graph.create_binary_variable() for _ in range(unary.shape[1])
    ]  # once, since each variable takes a call
    scores, extra = unary.double().tolist(), additional.tolist()

    def run() -> list[tuple[list[float], int]]:
        found = []
        for row in scores:
            factor = make()
            graph.declare_factor(factor, variables)
            factor.set_additional_log_potentials(extra)
            mean, _ = factor.solve_qp(row, extra, max_iter=MAX_ITER)
            factor.jacobian_vec(row)
            found.append((mean, len(factor.get_sparse_solution()[1])))
        return found

    def to_means(found: list[tuple[list[float], int]]) -> Tensor:
        return read(torch.tensor([mean for mean, _ in found]))

    def facts(found: list[tuple[list[float], int]]) -> dict[str, Any]:
        return {"mean support": round(float(np.mean([size for _, size in found])), 1)}

    return Contender(LP_SPARSEMAP, run, to_means, facts, exact=False)


def _vene(package: ModuleType, theta: Tensor) -> Contender:
    """Return a contender: the matching factor of sparsemap, forward."""
    matching = importlib.import_module("sparsemap._factors").PFactorMatching
    batch, n, m = theta.shape
    scores = theta.double().reshape(batch, -1).tolist()

    def run() -> list[Any]:
        found = []
        for row in scores:
            factor = matching()
            factor.initialize(n, m)
            found.append(package.sparsemap(factor, row, [], max_iter=MAX_ITER))
        return found

    def facts(found: list[Any]) -> dict[str, Any]:
        return {"mean support": round(float(np.mean([len(state["distribution"]) for _, _, state in found])), 1)}

    return Contender(
        VENE,
        run,
        lambda found: torch.from_numpy(np.stack([u for u, *_ in found])).view(theta.shape),
        facts,
        exact=False,
    )


def _chain_loop() -> Contender:
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(32, 100, 50, generator=generator).requires_grad_()
    transition = torch.randn(50, 50, generator=generator).requires_grad_()

    def run() -> tuple[Tensor, ...]:
        return torch.autograd.grad(log_partition_loop(unary, transition).sum(), (unary, transition))

    return Contender(CHAIN_LOOP, run, read=None)


def _scipy_loop() -> Contender:
    scores = torch.randn(128, 50, 50, generator=torch.Generator().manual_seed(0)).numpy()
    return Contender(SCIPY, lambda: [linear_sum_assignment(s, maximize=True) for s in scores], read=None)


# ----------------------------------------------------------------------------- cases


def chain(modules: Mapping[str, ModuleType], batch: int, steps: int, states: int, scale: float) -> Iterator[Contender]:
    """Compute SparseMAP of unary and shared transition scores. The quadratic penalty covers the unary parts, as first
    published.
    """
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(batch, steps, states, generator=generator) * scale
    transition = torch.randn(states, states, generator=generator) * scale
    yield _ours((unary, transition), "chain", backward=True, penalty="readout")
    if LP_SPARSEMAP not in modules:
        yield _chain_loop()
        return
    sequence = importlib.import_module("lpsmap.ad3ext.sequence").PFactorSequence

    def make() -> Any:
        factor = sequence()
        factor.initialize([states] * steps)
        return factor

    edges = np.tile(transition.double().numpy().ravel(), steps - 1)
    yield _lp_sparsemap(make, unary.flatten(1), edges, lambda mean: mean.view(unary.shape))


def assignment(modules: Mapping[str, ModuleType], batch: int, n: int, scale: float) -> Iterator[Contender]:
    """Project onto the doubly stochastic matrices; forward only."""
    theta = torch.randn(batch, n, n, generator=torch.Generator().manual_seed(0)) * scale
    yield _ours((theta,), "assignment", backward=False)
    yield _vene(package, theta) if (package := modules.get(VENE)) else _scipy_loop()


def arborescence(modules: Mapping[str, ModuleType], batch: int, words: int) -> Iterator[Contender]:
    """Project onto the arborescence polytope."""
    theta = torch.randn(batch, words + 1, words + 1, generator=torch.Generator().manual_seed(0))
    yield _ours((theta,), "arborescence", backward=True)
    if LP_SPARSEMAP not in modules:
        yield _chain_loop()
        return
    tree = importlib.import_module("lpsmap.ad3ext.tree").PFactorTree
    # Arcs of lp-sparsemap: for each modifier, all heads except the modifier itself.
    modifiers, heads = zip(*((m, h) for m in range(1, words + 1) for h in range(words + 1) if h != m), strict=True)

    def make() -> Any:
        factor = tree()
        factor.initialize(False, False, words)
        return factor

    def read(mean: Tensor) -> Tensor:
        full = torch.zeros(theta.shape)
        full[:, heads, modifiers] = mean
        return full

    yield _lp_sparsemap(make, theta[:, heads, modifiers], np.zeros(0), read)


_SMOOTH = {"assignment": "sinkhorn"}
"""What to train with instead of sparsemap; marginals for all other oracles."""

_SHAPES = {
    "arborescence": ((16, 16),),
    "assignment": ((20, 20),),
    "chain, transitions of each step": ((25, 7), (24, 7, 7)),
    "chain, shared transitions": ((25, 7), (7, 7)),
    "spanning_tree": ((16, 16),),
}


def training(
    modules: Mapping[str, ModuleType], batch: int, oracle: str, scale: float, penalty: str
) -> Iterator[Contender]:
    """A layer with default options, forward and backward, beside a dense relaxation of the same scores."""
    generator = torch.Generator().manual_seed(0)
    leaves = [(torch.randn(batch, *s, generator=generator) * scale).requires_grad_() for s in _SHAPES[oracle]]
    name = oracle.partition(",")[0]

    def contender(label: str, relaxation: str, **options: Any) -> Contender:
        layer = si.Layer(name, relaxation, **options)

        def run() -> Any:
            mean = layer(tuple(leaves) if len(leaves) > 1 else leaves[0])
            first = mean[0] if isinstance(mean, tuple) else mean
            return torch.autograd.grad(first.square().sum(), leaves, allow_unused=True)

        return Contender(label, run, read=None)

    smooth = _SMOOTH.get(name, "marginals")
    yield contender(STRUCTINF, "sparsemap", penalty=penalty)
    yield contender(smooth, smooth)
    yield contender("tolerance 0", "sparsemap", penalty=penalty, tolerance=0)


CASES = (
    *(
        Case(
            f"sparsemap-training-{oracle.replace(', ', '-').replace(' ', '-')}-{penalty}-x{scale:g}",
            "sparsemap with default options, forward and backward, {oracle}, penalty {penalty}, B={batch}, normal "
            "scores times {scale:g}",
            training,
            {"batch": 32, "oracle": oracle, "scale": scale, "penalty": penalty},
            {"batch": 2, "oracle": oracle, "scale": scale, "penalty": penalty},
        )
        for oracle in _SHAPES
        for penalty in (("all", "readout") if oracle.startswith("chain") else ("all",))
        for scale in (0.03, 0.3, 1.0)
    ),
    *(
        Case(
            f"sparsemap-chain-x{scale:g}",
            "SparseMAP of chains, forward and backward, B={batch} T={steps} S={states}, normal scores times {scale:g}",
            chain,
            {"batch": 32, "steps": 50, "states": 10, "scale": scale},
            {"batch": 2, "steps": 4, "states": 3, "scale": scale},
            peers=(LP_SPARSEMAP,),
            target=target,
            stand_in=EstimatedPeer(LP_SPARSEMAP, CHAIN_LOOP, milliseconds / 51),
            tolerance=1e-3,
        )
        for scale, milliseconds, target in ((1, 97, Target(2)), (0.5, 257, None), (5, 37, None))
    ),
    *(
        Case(
            f"sparsemap-assignment-{n}-x{scale:g}",
            "SparseMAP of assignments, forward, B={batch} n={n}, normal scores times {scale:g}",
            assignment,
            {"batch": 32, "n": n, "scale": scale},
            {"batch": 2, "n": 4, "scale": scale},
            peers=(VENE,),
            target=target,
            stand_in=EstimatedPeer(VENE, SCIPY, milliseconds / 8.1),
            tolerance=1e-3,
        )
        for n, scale, milliseconds, target in (
            (10, 1, 5.3, None),
            (20, 1, 34, Target(1)),
            (20, 0.5, 78, None),
            (20, 5, 7.5, None),
            (50, 1, 1866, Target(1)),
        )
    ),
    *(
        Case(
            f"sparsemap-arborescence-{n}",
            "SparseMAP of arborescences, forward and backward, B={batch} n={words}",
            arborescence,
            {"batch": 32, "words": n},
            {"batch": 2, "words": 4},
            peers=(LP_SPARSEMAP,),
            target=target,
            stand_in=EstimatedPeer(LP_SPARSEMAP, CHAIN_LOOP, milliseconds / 51),
            tolerance=1e-3,
        )
        for n, milliseconds, target in ((20, 59, None), (40, 660, Target(3)))
    ),
)
