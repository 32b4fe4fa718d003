"""The data of a picture, read from a solution: the mean, and the structures of largest weight."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..distributions import SparseDistribution
from ..errors import InvalidInputError
from ..estimators.equal_rows import group_equal_rows
from ..parts import Parts, as_tuple
from ..solution import Solution
from ..validation import check_natural
from .style import as_percent

__all__ = ["Mixture", "PlotData", "PlotInput", "find_heaviest", "read_solution"]


class Mixture(NamedTuple):
    """A mean (..., *event), and if known, the structures (K, ..., *event) and weights (K, ...)."""

    mean: Parts
    support: Parts | None
    weights: Tensor | None

    @classmethod
    def of(cls, solution: PlotInput) -> Mixture:
        """Convert a Solution or a SparseDistribution; raise TypeError for other types."""
        if isinstance(solution, Mixture):
            return solution
        if isinstance(solution, SparseDistribution):
            return cls(solution.mean, solution.structures, solution.weights)
        if not isinstance(solution, Solution):
            raise TypeError(
                "solution must be the result of structinf.infer or a SparseDistribution, got a "
                f"{type(solution).__name__}"
            )
        return cls(solution.mean, solution.support, solution.weights)


PlotInput: TypeAlias = Solution | SparseDistribution | Mixture


class PlotData(NamedTuple):
    """The tensors of the mean, (*event) each, and of the structures, (K, *event), by decreasing weight, on the CPU.

    K is 0 if the relaxation keeps no support. ``rest`` is a note on the omitted structures.
    """

    mean: tuple[Tensor, ...]
    structures: tuple[Tensor, ...]
    weights: Tensor
    rest: str


def read_solution(
    solution: PlotInput, *forms: str, max_structures: int | None = None, single_instance: bool = True
) -> PlotData:
    """Return the mean and the ``max_structures`` structures of largest weight.

    ``forms`` are the accepted shapes of the mean, for example "T S, T-1 S S" for a tuple of two tensors. With
    ``single_instance=False``, a solution without a support raises InvalidInputError.
    """
    solution = Mixture.of(solution)
    shapes = [tuple(t.shape) for t in as_tuple(solution.mean)]
    if not any(_has_form(shapes, form) for form in forms):
        raise InvalidInputError(
            "solution must be the solution of one instance, with a mean of shape "
            f"{' or '.join(map(_as_shapes, forms))}; got {' and '.join(map(str, shapes))}; for instance b of a batch, "
            "pass infer(theta[b], ...)"
        )
    mean = tuple(t.detach().cpu() for t in as_tuple(solution.mean))
    if solution.support is None or solution.weights is None:
        if not single_instance:
            raise InvalidInputError(
                "solution has no support to draw; pass the result of infer with the relaxation 'sparsemap' or 'map'"
            )
        return PlotData(mean, tuple(t[None][:0] for t in mean), torch.zeros(0, device="cpu"), "")
    return PlotData(mean, *find_heaviest(solution.support, solution.weights, max_structures))


def find_heaviest(
    support: Parts, weights: Tensor, max_structures: int | None = None
) -> tuple[tuple[Tensor, ...], Tensor, str]:
    """Return the ``max_structures`` structures of largest weight of one instance, their weights, and a note on the
    rest.

    Equal structures, for example samples, are merged, and their weights added.
    """
    if max_structures is not None:
        check_natural("max_structures", max_structures, 0)
    used = weights.detach() > 0
    structures = tuple(t.detach()[used].cpu() for t in as_tuple(support))
    weights = weights.detach()[used].cpu()
    kind = group_equal_rows([t.flatten(1) for t in structures])
    places = torch.arange(len(kind), device="cpu")
    # The index of the first structure equal to each structure.
    first = torch.zeros_like(kind).scatter_reduce(0, kind, places, "amin", include_self=False)[kind]
    weights = torch.zeros_like(weights).index_add(0, first, weights)
    distinct = places[first == places]
    order = distinct[weights[distinct].argsort(descending=True, stable=True)]
    drawn, left = order[:max_structures], order[len(order) if max_structures is None else max_structures :]
    rest = f"and {len(left)} more of {as_percent(weights[left].sum().item())} together" if len(left) else ""
    return tuple(t[drawn] for t in structures), weights[drawn], rest


def _has_form(shapes: list[tuple[int, ...]], form: str) -> bool:
    """Return whether ``shapes`` have the numbers of dimensions of ``form``, and equal sizes for equal names."""
    wanted = [tensor.split() for tensor in form.split(",")]
    if [len(sizes) for sizes in wanted] != [len(shape) for shape in shapes]:
        return False
    known: dict[str, int] = {}
    for token, size in zip(chain(*wanted), chain(*shapes), strict=True):
        name = token.rstrip("+-0123456789")
        size -= int(token[len(name) :] or 0)
        if known.setdefault(name, size if name else 0) != size:
            return False
    return True


def _as_shapes(form: str) -> str:
    shapes = (tensor.split() for tensor in form.split(","))
    return " and ".join(f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})" for sizes in shapes)
