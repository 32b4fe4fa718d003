"""Every kind of module, with one call of each: what is tested of all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import structinf as si
from structinf import simplex

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """A module and the shape of its input; ``call(module, x)`` is its output, a tensor.

    Attributes
    ----------
    native : bool
        Whether torch.func.vmap goes through it.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    call: Callable[..., Tensor] = lambda module, x: module(x)
    native: bool = False

    def draw(self, seed: int = 0) -> Tensor:
        """An input."""
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(seed))


_FORMS = {"assignment": (2, 3, 3), "chain": (2, 2, 3, 3), "categorical": (2, 4), "factor_graph": (2, 3)}
_LABELS = {
    "assignment": [[0, 1, 2], [2, 1, 0]],
    "chain": [[0, 1, 2], [1, 1, 0]],
    "categorical": [0, 3],
    "factor_graph": [[0, 1, 0], [1, 0, 0]],
}


def _made(name: str) -> str | si.Oracle:
    """The oracle for a call: a graph as an object, others by name."""
    if name != "factor_graph":
        return name
    graph = si.FactorGraph(3)
    graph.add("at_most_one", graph.variables)
    graph.add("at_most_one", graph.variables[1:])
    return graph


def _oracle(works: Callable[[Any], Any]) -> str | None:
    """The first of the oracles that ``works``."""
    for name in _FORMS:
        try:
            works(_made(name))
        except si.UnsupportedError:
            continue
        return name
    return None


def _seeded(module: nn.Module, *tensors: Tensor) -> Tensor:
    return module(*tensors, generator=torch.Generator().manual_seed(1))


def _layers() -> dict[str, Case]:
    cases = {}
    for name in si.list_relaxations():
        oracle = _oracle(lambda o, name=name: si.Layer(o, name))
        if oracle is not None:
            make = lambda o=oracle, name=name: si.Layer(_made(o), name)  # noqa: E731
            cases[f"layer, {name}"] = Case(make, _FORMS[oracle], _seeded)
    return cases


def _losses() -> dict[str, Case]:
    cases = {}
    for name in si.list_relaxations():
        oracle = _oracle(lambda o, name=name: si.FenchelYoungLoss(o, name))
        if oracle is not None:
            gold = torch.tensor(_LABELS[oracle])
            cases[f"Fenchel-Young loss, {name}"] = Case(
                lambda o=oracle, name=name: si.FenchelYoungLoss(_made(o), name),
                _FORMS[oracle],
                lambda module, x, gold=gold: _seeded(module, x, gold),
            )
    gold, costs = torch.tensor(_LABELS["assignment"]), torch.arange(9.0).sin().view(3, 3)
    cases["relaxed loss"] = Case(
        lambda: si.RelaxedLoss("assignment", "sparsemap"), _FORMS["assignment"], lambda module, x: module(x, gold)
    )
    cases["SPO+ loss"] = Case(
        lambda: si.SPOPlusLoss("assignment"), _FORMS["assignment"], lambda module, x: module(x, costs.expand_as(x))
    )
    square = _FORMS["assignment"]
    cases["perturbation gradient loss"] = Case(
        lambda: si.PerturbationGradientLoss("assignment"), square, lambda module, x: module(x, costs.expand_as(x))
    )
    cases["cone loss"] = Case(lambda: si.ConeLoss("assignment"), square, lambda module, x: module(x, gold))
    pool = torch.eye(3)[torch.tensor(list(itertools.permutations(range(3))))]
    cases["ranking loss"] = Case(
        lambda: si.RankingLoss("assignment", pool=pool, solve_ratio=0.0),
        square,
        lambda module, x: module(x, costs.expand_as(x)),
    )
    cases["contrastive loss"] = Case(
        lambda: si.ContrastiveLoss("assignment", pool=pool), square, lambda module, x: module(x, gold)
    )
    cases["soft-DTW loss"] = Case(si.SoftDTWLoss, (2, 3, 2), lambda module, x: module(x, x.detach().flip(1).sin()))
    return cases


def _attention() -> dict[str, Case]:
    def attend(module: nn.Module, x: Tensor) -> Tensor:
        out = module(x, x, x)
        return out[0] if isinstance(out, tuple) else out

    kinds = {
        "sparsemax": {"weights": "sparsemax"},
        "matching": {"oracle": "assignment"},
        "segmentation": {"oracle": "chain"},
    }
    single = {
        f"attention, {name}": Case(
            lambda kind=kind: si.StructuredAttention(**kind), (2, 3, 4), attend, name == "sparsemax"
        )
        for name, kind in kinds.items()
    }
    heads = {
        f"multi-head attention, {name}": Case(
            lambda kind=kind: si.StructuredMultiheadAttention(4, 2, batch_first=True, **kind),
            (2, 3, 4),
            attend,
            name == "sparsemax",
        )
        for name, kind in kinds.items()
    }
    return single | heads


def _simplex() -> dict[str, Case]:
    arguments = {"Entmax": {"alpha": 1.3}, "Normmax": {"alpha": 3.0}, "TopkSparsemax": {"k": 2}, "Budget": {"k": 2}}
    names = ["Softmax", "Sparsemax", "Entmax15", "Entmax", "Normmax", "TopkSparsemax", "Budget", "Fusedmax", "Oscarmax"]
    maps = {
        name: Case(lambda name=name: getattr(simplex, name)(**arguments.get(name, {})), (2, 5), native=True)
        for name in names
    }
    losses = {
        f"{name} loss": Case(
            lambda name=name: simplex.SimplexLoss(name), (2, 5), lambda module, x: module(x, torch.tensor([1, 4])), True
        )
        for name in ("softmax", "sparsemax", "entmax15")
    }
    return maps | losses


CASES: dict[str, Case] = {
    **_layers(),
    **_losses(),
    **_attention(),
    **_simplex(),
    "vector quantizer": Case(lambda: si.VectorQuantizer(5, 4), (2, 3, 4), lambda module, x: module(x).quantized, True),
}
