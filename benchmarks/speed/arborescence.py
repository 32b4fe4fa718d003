"""Arborescences: argmax against a C++ Chu-Liu-Edmonds, marginals against matrix-tree determinants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

import structinf as si
from structinf_oracles.arborescence import Arborescence

from .case import STRUCTINF, Case, Contender, Target

__all__ = ["CASES", "root_on_diagonal"]

SLOGDET = "torch.linalg.slogdet"
UFAL = "ufal.chu-liu-edmonds"


def _scores(batch: int, words: int) -> Tensor:
    """Return scores θ[h, m] of arcs h -> m between nodes 0 (the root) to ``words``."""
    return torch.randn(batch, words + 1, words + 1, generator=torch.Generator().manual_seed(0))


def _to_heads(y: Tensor) -> Tensor:
    """Return the heads (B, words) of trees (B, n+1, n+1)."""
    return y[:, :, 1:].argmax(1)


# ----------------------------------------------------------------------------- argmax


def argmax(modules: Mapping[str, ModuleType], batch: int, words: int, single_root: bool) -> Iterator[Contender]:
    """Find the best tree. The peer has no option for a single root, so it is called once for each root word."""
    theta = _scores(batch, words)
    layer = si.Layer("arborescence", "map", single_root=single_root)
    yield Contender(STRUCTINF, lambda: layer(theta), _to_heads)
    if package := modules.get(UFAL):
        solve = _best_of_roots if single_root else _best_heads
        search = partial(solve, package.chu_liu_edmonds, theta)
        yield Contender(UFAL, search, lambda heads: torch.from_numpy(np.stack(heads)))


def _best_heads(solve: Callable, theta: Tensor) -> list[np.ndarray]:
    # The package reads score[m, h], in float64.
    return [np.asarray(solve(s)[0][1:]) for s in np.ascontiguousarray(theta.mT.double().numpy())]


def _best_of_roots(solve: Callable, theta: Tensor) -> list[np.ndarray]:
    found = []
    for scores in np.ascontiguousarray(theta.mT.double().numpy()):
        best, best_heads = -math.inf, None
        for root in range(1, len(scores)):
            allowed = scores.copy()
            allowed[:, 0] = -math.inf
            allowed[root, 0] = scores[root, 0]
            heads, _ = solve(allowed)
            value = sum(scores[m, heads[m]] for m in range(1, len(scores)))
            if value > best:
                best, best_heads = value, np.asarray(heads[1:])
        assert best_heads is not None
        found.append(best_heads)
    return found


# ----------------------------------------------------------------------------- k best


def k_best(modules: Mapping[str, ModuleType], batch: int, words: int, k: int) -> Iterator[Contender]:
    """List the k best trees: by one search for two sets of trees, by restrictions of the argmax, and by networkx."""
    theta = _scores(batch, words)
    oracle = Arborescence()
    yield Contender(STRUCTINF, lambda: si.topk(theta, oracle, k).scores, lambda scores: scores.T)
    yield Contender(
        "restrictions of the argmax", lambda: si.Restrictable.topk(oracle, theta, k)[1], lambda scores: scores.T
    )
    if package := modules.get("networkx"):
        graphs = [_digraph(package, scores) for scores in theta]
        yield Contender("networkx", lambda: [_listed(package, graph, k) for graph in graphs], torch.tensor)


def _digraph(networkx: Any, theta: Tensor) -> Any:
    nodes = range(len(theta))
    graph = networkx.DiGraph()
    graph.add_weighted_edges_from((h, m, theta[h, m].item()) for h in nodes for m in nodes[1:] if h != m)
    return graph


def _listed(networkx: Any, graph: Any, k: int) -> list[float]:
    trees = itertools.islice(networkx.ArborescenceIterator(graph, minimum=False), k)
    return [tree.size(weight="weight") for tree in trees]


# ----------------------------------------------------------------------------- sums


def marginals(modules: Mapping[str, ModuleType], batch: int, words: int) -> Iterator[Contender]:
    """Compute the marginals of all arcs, with several arcs from the root allowed. The comparison ignores arcs of no
    tree.
    """
    theta = _scores(batch, words)
    layer = si.Layer("arborescence", "marginals")
    yield Contender(STRUCTINF, lambda: layer(theta), _arcs)
    yield from _marginal_contenders(modules, theta, create_graph=False)


def marginals_backward(modules: Mapping[str, ModuleType], batch: int, words: int) -> Iterator[Contender]:
    """Compute the marginals of all arcs, and the gradient of a linear function of the marginals."""
    theta = _scores(batch, words)
    weight = torch.randn(theta.shape, generator=torch.Generator().manual_seed(1))
    weight[:, :, 0] = 0
    weight.diagonal(0, 1, 2).zero_()
    leaf = theta.clone().requires_grad_()

    layer = si.Layer("arborescence", "marginals")
    yield Contender(STRUCTINF, lambda: torch.autograd.grad((layer(leaf) * weight).sum(), leaf)[0], _arcs)
    yield from _marginal_contenders(modules, theta, create_graph=True, weight=weight)


def _marginal_contenders(
    modules: Mapping[str, ModuleType], theta: Tensor, create_graph: bool, weight: Tensor | None = None
) -> Iterator[Contender]:
    """Return contenders for marginals of θ by ``torch.linalg`` and the packages; with ``weight``, for the gradient of
    ⟨weight, marginals⟩.
    """

    def contender(name: str, mean: Callable[[Tensor], Tensor], scores: Tensor, weight: Tensor | None, read: Callable):
        leaf = scores.clone().requires_grad_()

        def run() -> Tensor:
            mu = mean(leaf)
            return mu.detach() if weight is None else torch.autograd.grad((mu * weight).sum(), leaf)[0]

        return Contender(name, run, read)

    def by_slogdet(leaf: Tensor) -> Tensor:
        return torch.autograd.grad(_slogdet(leaf).sum(), leaf, create_graph=create_graph)[0]

    yield contender(SLOGDET, by_slogdet, theta, weight, _arcs)
    if package := modules.get("torch-struct"):
        crf = package.NonProjectiveDependencyCRF
        square = None if weight is None else root_on_diagonal(weight)
        yield contender(
            "torch-struct",
            lambda leaf: crf(leaf, multiroot=True).marginals,
            root_on_diagonal(theta),
            square,
            _unpacked,
        )
    if package := modules.get("supar"):
        tree = package.MatrixTree  # scores[m, h]
        transposed = None if weight is None else weight.mT
        yield contender(
            "supar",
            lambda leaf: tree(leaf, multiroot=True).marginals,
            theta.mT.contiguous(),
            transposed,
            lambda mu: _arcs(mu.mT),
        )


def _slogdet(theta: Tensor) -> Tensor:
    """Return log Z (B,) by Tutte's matrix-tree theorem, in the dtype of θ."""
    weights = theta.exp()
    weights = weights - torch.diag_embed(weights.diagonal(0, 1, 2))
    laplacian = torch.diag_embed(weights.sum(1)) - weights
    return torch.linalg.slogdet(laplacian[:, 1:, 1:])[1]


def _arcs(mean: Tensor) -> Tensor:
    """Return a copy without column 0 and the diagonal."""
    mean = mean.detach().clone()
    mean[:, :, 0] = 0
    mean.diagonal(0, 1, 2).zero_()
    return mean


def root_on_diagonal(theta: Tensor) -> Tensor:
    """Convert θ to the form of torch-struct: (B, n, n) among words, with arcs from the root on the diagonal."""
    inner = theta[:, 1:, 1:].clone()
    inner.diagonal(0, 1, 2).copy_(theta[:, 0, 1:])
    return inner


def _unpacked(mean: Tensor) -> Tensor:
    full = mean.new_zeros(len(mean), mean.shape[1] + 1, mean.shape[1] + 1)
    full[:, 1:, 1:] = mean
    full[:, 0, 1:] = mean.diagonal(0, 1, 2)
    return _arcs(full)


# ----------------------------------------------------------------------------- the table

QUICK = {"batch": 2, "words": 3}
CASES = (
    *(
        Case(
            f"arborescence-argmax-{n}",
            "arborescence argmax, B={batch} n={words}",
            partial(argmax, single_root=False),
            {"batch": 32, "words": n},
            QUICK,
            peers=(UFAL,),
            target=target,
        )
        for n, target in ((10, None), (20, Target(2)), (40, Target(2)), (80, None))
    ),
    *(
        Case(
            f"arborescence-argmax-single-{n}",
            "arborescence argmax with a single root, B={batch} n={words}, against n calls",
            partial(argmax, single_root=True),
            {"batch": 32, "words": n},
            QUICK,
            peers=(UFAL,),
            target=Target(10),
        )
        for n in (20, 40)
    ),
    Case(
        "arborescence-k-best",
        "the {k} best arborescences, B={batch} n={words}",
        k_best,
        {"batch": 1, "words": 30, "k": 32},
        {"batch": 2, "words": 3, "k": 4},
        peers=("networkx",),
        target=Target(50, ("networkx",)),
    ),
    Case(
        "arborescence-k-best-64",  # networkx would take about 400 s
        "the {k} best arborescences, B={batch} n={words}",
        k_best,
        {"batch": 64, "words": 30, "k": 32},
        {"batch": 2, "words": 3, "k": 4},
    ),
    *(
        Case(
            f"arborescence-marginals-{n}",
            "arborescence marginals, B={batch} n={words}",
            marginals,
            {"batch": 32, "words": n},
            QUICK,
            peers=("torch-struct", "supar"),
            target=Target(1, (SLOGDET,)) if n == 40 else None,
            tolerance=1e-3,  # torch-struct adds 1e-5 to every weight
        )
        for n in (20, 40, 80)
    ),
    Case(
        "arborescence-marginals-backward-40",
        "arborescence marginals and backward through them, B={batch} n={words}",
        marginals_backward,
        {"batch": 32, "words": 40},
        QUICK,
        peers=("torch-struct", "supar"),
        tolerance=1e-3,
    ),
)
