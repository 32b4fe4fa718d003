"""Construction of attention weights from a name, a function, or an oracle and a relaxation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..calls.resolution import ORACLES
from ..errors import UnsupportedError
from ..oracle import Oracle
from ..relaxation import Relaxation
from .base import AttentionWeights
from .dependency_weights import DependencyWeights
from .grid_weights import GridWeights
from .row_weights import RowWeights, SimplexWeights
from .segmentation_weights import SegmentationWeights

__all__ = ["choose_weights"]

# Oracles that need extra scores besides the scores of queries and keys, or whose rows are the keys.
_WEIGHTS_BY_ORACLE: dict[str, Callable[..., AttentionWeights]] = {
    "arborescence": DependencyWeights,
    "chain": SegmentationWeights,
    "monotonic_alignment": functools.partial(GridWeights, transposed=True),
    "projective_tree": DependencyWeights,
}
_WEIGHTS_BY_EVENT_NDIM: dict[Any, Callable[..., AttentionWeights]] = {1: RowWeights, 2: GridWeights}


def choose_weights(
    weights: str | Callable[..., Tensor] | AttentionWeights | None,
    oracle: str | Oracle | None,
    relaxation: str | Relaxation | None,
    options: dict[str, Any],
) -> AttentionWeights:
    """Return ``weights``, or construct weights from a map to the simplex or from an oracle and a relaxation.

    Raises TypeError for contradicting arguments, and UnsupportedError for an oracle without a matching weights class.
    """
    if oracle is None:
        if relaxation is not None:
            raise TypeError(f"relaxation={relaxation!r} needs an oracle; pass oracle=...")
        if not isinstance(weights, AttentionWeights):
            return SimplexWeights("softmax" if weights is None else weights, **options)
        if options:
            raise TypeError(
                f"options {sorted(options)} are accepted only with a name; set the options of the "
                f"{type(weights).__name__} object in its constructor"
            )
        return weights
    if weights is not None:
        raise TypeError(
            f"weights={weights!r} and oracle={oracle!r} exclude each other; pass one of them. If the oracle has an "
            "option named weights, pass an object: oracle=get_oracle(..., weights=...)"
        )
    name = oracle if isinstance(oracle, str) else oracle.name
    weights_class = _WEIGHTS_BY_ORACLE.get(name) or _WEIGHTS_BY_EVENT_NDIM.get(_event_ndim(oracle, options))
    if weights_class is None:
        raise UnsupportedError(
            f"{name}: attention supports oracles with vectors or matrices of scores; for this oracle, pass an object "
            "of a subclass of StructuredWeights whose mean() converts the scores of queries and keys"
        )
    given_options = {} if relaxation is None else {"relaxation": relaxation}
    return weights_class(oracle=oracle, **given_options, **options)


def _event_ndim(oracle: str | Oracle, options: dict[str, Any]) -> Any:
    if isinstance(oracle, str):
        # The number of event dimensions may depend on the options of the oracle.
        known = {key: value for key, value in options.items() if key in ORACLES.options(oracle)}
        factory = ORACLES.factory(oracle)
        class_event_ndim = getattr(factory, "event_ndim", None) if inspect.isclass(factory) else None
        return (
            class_event_ndim if isinstance(class_event_ndim, int | tuple) else ORACLES.get(oracle, **known).event_ndim
        )
    return getattr(oracle, "event_ndim", None)
