"""The work that `benchmarks.device.kernels` times: public calls, with the bytes and exponentials that they need."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import structinf as si
from benchmarks.device.layers import grid_edges

__all__ = ["PEERS", "ROWS", "Row", "Size", "Work"]

Size = Mapping[str, int]


@dataclass(frozen=True)
class Work:
    """A function to time, and its inputs."""

    run: Callable[[], tuple[Tensor, ...]]
    inputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class Row:
    """Work of one size for several batch sizes.

    ``levels`` counts the steps that wait for each other and ``hyperedges`` the exponentials of an instance in one
    pass; without them the row has no target. ``paths`` names what is timed: the Triton kernels, torch operations on
    the same device, and the compiled loops on the CPU.
    """

    make: Callable[..., Work]
    size: Size
    quick: Size
    levels: Callable[..., int] | None = None
    hyperedges: Callable[..., int] = lambda **size: 0
    passes: int = 1
    batches: tuple[int, ...] = (32, 1, 512)
    paths: tuple[str, ...] = ("triton", "torch")
    goal: float | None = None  # milliseconds, for a batch of 32


def _normal(device: str, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def _forward_and_backward(function: Callable[..., Any], *leaves: Tensor) -> Work:
    """Return the work of ``function`` of the leaves, and of the gradient of a weighted sum of its first result."""
    leaves = tuple(t.requires_grad_() for t in leaves)
    weights: list[Tensor] = []  # made by the first call, so that the others launch nothing for them

    def run() -> tuple[Tensor, ...]:
        result = function(*leaves)
        first = result[0] if isinstance(result, tuple) else result
        if not weights:
            line = torch.linspace(-1, 1, first.shape[-1], device=first.device, dtype=first.dtype)
            weights.append(line.expand_as(first))
        return (first.detach(), *torch.autograd.grad(first, leaves, weights[0]))

    return Work(run, leaves)


def _forward(function: Callable[..., Any], *tensors: Tensor) -> Work:
    def run() -> tuple[Tensor, ...]:
        result = function(*tensors)
        return result if isinstance(result, tuple) else (result,)

    return Work(run, tensors)


# ----------------------------------------------------------------------------- rows


def _chain_loss(device: str, batch: int, steps: int, states: int) -> Work:
    tags = torch.zeros(batch, steps, dtype=torch.int64, device=device)
    loss = si.FenchelYoungLoss("chain", "marginals", reduction="none")
    theta = _normal(device, batch, steps, states), _normal(device, states, states, seed=1)
    return _forward_and_backward(lambda u, a: loss((u, a), tags), *theta)


def _chain_argmax(device: str, batch: int, steps: int, states: int) -> Work:
    layer = si.Layer("chain", "map")
    theta = _normal(device, batch, steps, states), _normal(device, states, states, seed=1)
    return _forward(lambda u, a: layer((u, a)), *theta)


def _edge_marginals(device: str, batch: int, steps: int, states: int) -> Work:
    return _forward(si.Layer("chain", "marginals"), _normal(device, batch, steps - 1, states, states))


def _chain_layer(relaxation: str, **options: Any) -> Callable[..., Work]:
    def make(device: str, batch: int, steps: int, states: int) -> Work:
        layer = si.Layer("chain", relaxation, **options)
        theta = _normal(device, batch, steps, states), _normal(device, states, states, seed=1)
        return _forward_and_backward(lambda u, a: layer((u, a)), *theta)

    return make


def _soft_dtw(device: str, batch: int, n: int) -> Work:
    return _forward_and_backward(si.soft_dtw, _normal(device, batch, n, n).square())


def _needleman_wunsch(device: str, batch: int, n: int) -> Work:
    layer = si.Layer("needleman_wunsch", "marginals")
    theta = _normal(device, batch, n, n), -_normal(device, batch, 2).abs()
    return _forward_and_backward(lambda s, g: layer((s, g)), *theta)


def _squares(structure: str, relaxation: str = "marginals", more: int = 0, **options: Any) -> Callable[..., Work]:
    def make(device: str, batch: int, n: int) -> Work:
        return _forward_and_backward(
            si.Layer(structure, relaxation, **options), _normal(device, batch, n + more, n + more)
        )

    return make


def _semi_markov(device: str, batch: int, steps: int, longest: int, states: int) -> Work:
    return _forward_and_backward(
        si.Layer("semi_markov", "marginals"), _normal(device, batch, steps, longest, states, states)
    )


def _long_segmentation(device: str, batch: int, steps: int, longest: int, states: int) -> Work:
    layer = si.Layer("semi_markov", "marginals")
    boundaries = torch.zeros(1, steps, 2, states, device=device)
    theta = _normal(device, batch, steps, states), _normal(device, longest, states), _normal(device, states, states)
    return _forward_and_backward(lambda u, d, a: layer((u, boundaries, d, a)), *theta)


def _monotonic_alignment(device: str, batch: int, n: int, m: int) -> Work:
    return _forward_and_backward(si.Layer("monotonic_alignment", "marginals"), _normal(device, batch, n, m))


def _subset(device: str, batch: int, n: int, k: int) -> Work:
    return _forward_and_backward(si.Layer(si.get_oracle("subset", k=k), "marginals"), _normal(device, batch, n))


def _best_subset(device: str, batch: int, n: int, k: int) -> Work:
    return _forward(si.Layer(si.get_oracle("subset", k=k), "map"), _normal(device, batch, n))


def _edge_list(relaxation: str, work: Callable[..., Work]) -> Callable[..., Work]:
    def make(device: str, batch: int, n: int) -> Work:
        edges = grid_edges(n)
        layer = si.Layer(si.get_oracle("spanning_tree", edges=edges), relaxation)
        return work(layer, _normal(device, batch, len(edges)))

    return make


def _arborescence(device: str, batch: int, n: int) -> Work:
    theta = _normal(device, batch, n + 1, n + 1)
    return _forward_and_backward(lambda t: si.log_partition(t, "arborescence"), theta)


def _argmax(structure: str, more: int = 0) -> Callable[..., Work]:
    def make(device: str, batch: int, n: int) -> Work:
        return _forward(si.Layer(structure, "map"), _normal(device, batch, n + more, n + more))

    return make


def _simplex(name: str) -> Callable[..., Work]:
    def make(device: str, batch: int, n: int) -> Work:
        function = torch.softmax if name == "torch.softmax" else getattr(si.simplex, name)
        return _forward_and_backward(lambda t: function(t, dim=-1), 2 * _normal(device, batch, n))

    return make


_TAGS, _FEW_TAGS = {"steps": 100, "states": 50}, {"steps": 3, "states": 2}
_SHORT, _SQUARE, _SMALL = {"steps": 50, "states": 10}, {"n": 40}, {"n": 3}


def _transitions(steps: int, states: int) -> int:
    return (steps - 1) * states**2


_CHAIN: Mapping[str, Any] = {"levels": lambda steps, **_: steps, "hyperedges": _transitions}
_WIDE: Mapping[str, Any] = {"levels": lambda n: 1, "passes": 2, "batches": (1024, 1)}
_DIAGONALS: Mapping[str, Any] = {"levels": lambda n: 2 * n - 1, "hyperedges": lambda n: 3 * n * n, "passes": 2}
_CPU = ("triton", "cpu", "torch")

ROWS: Mapping[str, Row] = {
    "chain loss and gradient": Row(_chain_loss, _TAGS, _FEW_TAGS, **_CHAIN, passes=2, goal=0.25),
    "chain argmax": Row(_chain_argmax, _TAGS, _FEW_TAGS, levels=lambda steps, states: steps),
    "chain marginals of edge scores": Row(_edge_marginals, _TAGS, _FEW_TAGS, **_CHAIN, passes=2),
    "soft-DTW and gradient, 256": Row(_soft_dtw, {"n": 256}, _SMALL, **_DIAGONALS),
    "soft-DTW and gradient, 1024": Row(_soft_dtw, {"n": 1024}, _SMALL, **_DIAGONALS, batches=(32, 1)),
    "Needleman-Wunsch and gradient": Row(_needleman_wunsch, _SQUARE, _SMALL, **(_DIAGONALS | {"passes": 4})),
    "binary trees (CKY) and gradient": Row(
        _squares("binary_tree"), _SQUARE, _SMALL, lambda n: n, lambda n: (n**3 - n) // 6, passes=4
    ),
    "projective trees (Eisner) and gradient": Row(
        _squares("projective_tree", more=1), _SQUARE, _SMALL, lambda n: 2 * n, lambda n: 2 * n**3 // 3, passes=4
    ),
    "semi-Markov and gradient": Row(
        _semi_markov,
        {"steps": 50, "longest": 8, "states": 8},
        {"steps": 3, "longest": 2, "states": 2},
        levels=lambda steps, **_: steps,
        hyperedges=lambda steps, longest, states: steps * longest * states**2,
        passes=4,
    ),
    "long segmentations and gradient": Row(
        _long_segmentation,
        {"steps": 10_000, "longest": 100, "states": 8},
        {"steps": 3, "longest": 2, "states": 2},
        levels=lambda steps, **_: steps,
        hyperedges=lambda steps, longest, states: steps * states * (longest + states),
        passes=4,
    ),
    "monotonic alignment and gradient": Row(
        _monotonic_alignment,
        {"n": 100, "m": 200},
        {"n": 2, "m": 3},
        levels=lambda n, m: n + m - 1,
        hyperedges=lambda n, m: 2 * n * m,
        passes=4,
    ),
    "subset and gradient": Row(
        _subset, {"n": 100, "k": 10}, {"n": 4, "k": 2}, lambda n, k: n, lambda n, k: 2 * n * k, passes=4
    ),
    "subset argmax": Row(_best_subset, {"n": 1000, "k": 100}, {"n": 4, "k": 2}, paths=("triton", "torch", "cpu")),
    "spanning trees of a grid and gradient": Row(
        _edge_list("marginals", _forward_and_backward),
        {"n": 6},
        {"n": 2},
        lambda n: n * n,
        lambda n: n**6 // 3,
        passes=4,
    ),
    "spanning trees of a grid, argmax": Row(
        _edge_list("map", _forward), {"n": 20}, {"n": 2}, paths=("triton", "torch", "cpu")
    ),
    "arborescence log Z and gradient": Row(
        _arborescence, _SQUARE, _SMALL, lambda n: n, lambda n: (n + 1) * n, passes=2
    ),
    # Without kernels, the CPU finds these structures. The times decide up to which size the kernels are used.
    **{
        f"{structure} argmax, {n}": Row(_argmax(structure, more), {"n": n}, _SMALL)
        for structure, more in (("assignment", 0), ("arborescence", 1))
        for n in (20, 60, 120)
    },
    **{f"spanning_tree argmax, {n}": Row(_argmax("spanning_tree", 0), {"n": n}, _SMALL) for n in (60, 512)},
    "entmax15 and gradient": Row(_simplex("entmax15"), {"n": 1000}, {"n": 5}, **_WIDE),
    "sparsemax and gradient": Row(_simplex("sparsemax"), {"n": 1000}, {"n": 5}, **_WIDE),
    "torch.softmax and gradient": Row(
        _simplex("torch.softmax"), {"n": 1000}, {"n": 5}, **_WIDE | {"paths": ("torch",)}
    ),
    "SparseMAP of chains and gradient": Row(
        _chain_layer("sparsemap", penalty="readout", tolerance=0), _SHORT, _FEW_TAGS, batches=(4, 512), paths=_CPU
    ),
    "SparseMAP of assignments and gradient": Row(
        _squares("assignment", "sparsemap", tolerance=0), {"n": 20}, _SMALL, batches=(4, 512), paths=_CPU
    ),
    "Sinkhorn and gradient": Row(_squares("assignment", "sinkhorn"), {"n": 50}, _SMALL),
    "Sinkhorn and gradient, 200": Row(_squares("assignment", "sinkhorn"), {"n": 200}, _SMALL),
    "perturbed chains and gradient": Row(_chain_layer("perturbed"), _SHORT, _FEW_TAGS),
}
"""By name. A relaxation's gradient is a product with its Jacobian: two passes forward and two backward."""


# ----------------------------------------------------------------------------- other libraries


def _torch_struct(distribution: str, *shape: int) -> Callable[[str], Work]:
    def make(device: str) -> Work:
        family = getattr(importlib.import_module("torch_struct"), distribution)
        return _forward_and_backward(lambda t: family(t).partition.reshape(-1), _normal(device, *shape))

    return make


def _pytorch_crf(device: str) -> Work:
    model = importlib.import_module("torchcrf").CRF(50, batch_first=True).to(device)
    tags = torch.zeros(32, 100, dtype=torch.int64, device=device)
    return _forward_and_backward(lambda t: model(t, tags, reduction="none"), _normal(device, 32, 100, 50))


def _entmax(name: str) -> Callable[[str], Work]:
    def make(device: str) -> Work:
        function = getattr(importlib.import_module("entmax"), name)
        return _forward_and_backward(lambda t: function(t, dim=-1), 2 * _normal(device, 1024, 1000))

    return make


def _pysdtw(n: int) -> Callable[[str], Work]:
    def make(device: str) -> Work:
        model = importlib.import_module("pysdtw").SoftDTW(gamma=1.0, use_cuda=device == "cuda")
        y = _normal(device, 32, n, 1, seed=1)
        return _forward_and_backward(lambda x: model(x, y), _normal(device, 32, n, 1))

    return make


PEERS: Mapping[str, Callable[[str], Work]] = {
    "torch-struct, chain, B=32 T=100 S=50": _torch_struct("LinearChainCRF", 32, 99, 50, 50),
    "torch-struct, binary trees, B=32 n=40": _torch_struct("TreeCRF", 32, 40, 40, 1),
    "torch-struct, projective trees, B=32 n=40": _torch_struct("DependencyCRF", 32, 40, 40),
    "pytorch-crf, chain loss, B=32 T=100 S=50": _pytorch_crf,
    "entmax, entmax15, B=1024 n=1000": _entmax("entmax15"),
    "entmax, sparsemax, B=1024 n=1000": _entmax("sparsemax"),
    "pysdtw (numba.cuda), soft-DTW, B=32 n=256": _pysdtw(256),
    "pysdtw (numba.cuda), soft-DTW, B=32 n=1024": _pysdtw(1024),
}
"""Values and gradients by other libraries, where they are installed."""
