"""Attention weights computed separately for each query: maps to the simplex, and oracles over vectors."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import simplex
from ..calls.resolution import ORACLES
from ..errors import UnknownNameError
from ..oracle import Oracle
from ..registry import did_you_mean
from ..relaxation import Relaxation
from ..shapes import Float
from .base import AttentionWeights, StructuredWeights
from .padding import PaddedDim, check_mask

__all__ = ["RowWeights", "SimplexWeights"]


_FUNCTIONS = {
    name: getattr(simplex, name)
    for name in (
        "budget",
        "entmax",
        "entmax15",
        "fusedmax",
        "normmax",
        "oscarmax",
        "softmax",
        "sparsemax",
        "topk_sparsemax",
    )
}


class SimplexWeights(AttentionWeights):
    """Attention weights from a map to the simplex, applied to the scores of each query.

    If all keys of a query are padding or forbidden, its weights are 0. A custom function or module receives padded keys
    with score −inf.

    Parameters
    ----------
    function : str or callable
        A function name from :mod:`structinf.simplex`, such as "softmax" (the default), "sparsemax" or "entmax15". Or a
        function f(scores, dim=-1). Or a module f(scores), applied along the last dimension and trained with the model.
    **options
        Options of a function given by name, such as ``alpha=1.5`` for "entmax".

    Raises
    ------
    UnknownNameError
        If no function has the name.
    TypeError
        If an option is unknown or missing.

    Examples
    --------
    >>> weights = SimplexWeights("entmax", alpha=2.0)
    >>> weights(
    ...     torch.tensor([[1.0, 0.5, 2.0]]), torch.tensor([False, False, True])
    ... )
    tensor([[0.7500, 0.2500, 0.0000]])
    """

    def __init__(self, function: str | Callable[..., Tensor] = "softmax", **options: Any) -> None:
        super().__init__()
        if isinstance(function, str):
            function = _resolve_simplex_map(function, options)
        elif options:
            raise TypeError(
                f"options {sorted(options)} are accepted only with a name; bind them to {function!r} instead"
            )
        elif not callable(function) or inspect.isclass(function):
            hint = "; call it first" if callable(function) else ""
            raise TypeError(f"weights must be a name, a function or a module, got {function!r}{hint}")
        self.function = function

    def forward(
        self,
        scores: Tensor,
        key_padding_mask: Tensor | None = None,
        query_padding_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch queries keys"]:
        if key_padding_mask is None:
            weights = self._map(scores)
        else:
            check_mask("key_padding_mask", key_padding_mask, (*scores.shape[:-2], scores.shape[-1]))
            if _reads_order(self.function):
                keys = PaddedDim(key_padding_mask, -1)
                weights = keys.unpack(self._map(_mask_after(keys.lengths, keys.pack(scores))))
            else:
                weights = self._map(scores.masked_fill(key_padding_mask.unsqueeze(-2), -math.inf))
        if query_padding_mask is not None:
            check_mask("query_padding_mask", query_padding_mask, scores.shape[:-1])
            weights = weights.masked_fill(query_padding_mask.unsqueeze(-1), 0)
        return weights

    def _map(self, scores: Tensor) -> Tensor:
        if isinstance(self.function, nn.Module):
            return zero_where_all_masked(self.function, scores)
        function = functools.partial(self.function, dim=-1)
        # The maps in structinf.simplex already return zeros for rows of −inf.
        return function(scores) if _is_library_function(self.function) else zero_where_all_masked(function, scores)

    def extra_repr(self) -> str:
        return "" if isinstance(self.function, nn.Module) else _function_repr(self.function)


class RowWeights(StructuredWeights):
    """Attention weights from an oracle over vectors, such as "subset" or "bits": one relaxed structure for each query.

    If all keys of a query are padding or forbidden, its weights are 0. If the remaining keys admit no structure (fewer
    than k keys for subsets), the call raises InfeasibleError.

    Parameters
    ----------
    oracle : str or Oracle
        An oracle over vectors, "categorical" by default. :func:`structinf.list_oracles` lists the names.
    relaxation : str or Relaxation
        The relaxation, "sparsemap" by default. :func:`structinf.list_relaxations` lists the names.
    normalized : bool
        Whether to divide the weights of each query by their sum, default False.
    **options
        Options of an oracle or relaxation given by name.

    Examples
    --------
    >>> weights = RowWeights("subset", "sparsemap", k=2)
    >>> weights(torch.tensor([[2.0, 0.0, 0.1, 0.2]])).round(decimals=3)
    tensor([[1.0000, 0.2330, 0.3330, 0.4330]])
    """

    event_ndim = 1

    def __init__(
        self,
        oracle: str | Oracle = "categorical",
        relaxation: str | Relaxation = "sparsemap",
        *,
        normalized: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(oracle, relaxation, normalized, options)

    @property
    def masks_padding_in_place(self) -> bool:
        return self.layer.oracle.padding_stays_in_place

    def mean(
        self, scores: Tensor, queries: Tensor | None, keys: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        return zero_where_all_masked(lambda rows: self.relaxed_mean(rows, None, generator), _mask_after(keys, scores))


def _mask_after(keys: Tensor | None, scores: Tensor) -> Tensor:
    """Replace the scores after the first ``keys`` keys by −inf."""
    if keys is None:
        return scores
    place = torch.arange(scores.shape[-1], device=scores.device)
    return scores.masked_fill(place >= keys[..., None, None], -math.inf)


def zero_where_all_masked(function: Callable[[Tensor], Tensor], scores: Tensor) -> Float[Tensor, "*batch keys"]:
    """Apply ``function`` along the last dimension; rows of −inf get zeros with gradient 0."""
    empty = scores.isneginf().all(-1, keepdim=True)
    weights = function(scores.masked_fill(empty, 0))
    if not isinstance(weights, Tensor) or weights.shape != scores.shape:
        received = f"shape {tuple(weights.shape)}" if isinstance(weights, Tensor) else type(weights).__name__
        raise TypeError(
            f"weights: the map must return a tensor of the shape of the scores, {tuple(scores.shape)}, got {received}"
        )
    return weights.masked_fill(empty, 0)


def _resolve_simplex_map(name: str, options: dict[str, Any]) -> Callable[..., Tensor]:
    if name not in _FUNCTIONS:
        is_structure = name in ORACLES.names()
        hint = (
            f"; this name is a structure: pass oracle={name!r}."
            if is_structure
            else did_you_mean(name, list(_FUNCTIONS)) or "."
        )
        raise UnknownNameError(f"no map to the simplex is called {name!r}{hint} Known: {', '.join(_FUNCTIONS)}")
    function = _FUNCTIONS[name]
    try:
        inspect.signature(function).bind(None, **options)
    except TypeError as error:
        hint = (
            "; for a learnable map, pass an object: weights=Entmax(1.5, learnable=True)"
            if "learnable" in options
            else ""
        )
        raise TypeError(f"{name}: {error}{hint}") from None
    return functools.partial(function, **options) if options else function


def _unwrap_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.func if isinstance(function, functools.partial) else function


def _is_library_function(function: Callable[..., Any]) -> bool:
    return _unwrap_partial(function) in _FUNCTIONS.values()


def _reads_order(function: Callable[..., Any]) -> bool:
    """Return whether the map depends on the order of keys, so that padding between keys must move to the end."""
    return _unwrap_partial(function) is simplex.fusedmax or isinstance(function, simplex.Fusedmax)


def _function_repr(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        options = "".join(f", {key}={value!r}" for key, value in function.keywords.items())
        return _function_repr(function.func) + options
    return getattr(function, "__name__", repr(function))
