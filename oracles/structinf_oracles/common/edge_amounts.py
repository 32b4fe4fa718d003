"""Supplies of nodes and bounds of edges as options or instance data of flows: their forms, checks and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structinf.dp.graph import Graph
from structinf.dp.graph_batch import GraphBatch
from structinf.errors import InvalidInputError
from structinf.shapes import Float64

from .distinct_rows import refuse_gradient
from .integer_amounts import LARGEST
from .min_cost_flow import as_sequence

__all__ = ["amounts_of_edges", "bounds_table", "check_bounds", "check_supplies", "supplies_by_node", "supplies_table"]

PRECISION = 2.0**-52

_LARGEST_FLOAT = 2.0**1000
"""The largest fractional amount: sums of as many as there are edges do not overflow."""

_BALANCE = "balance the nodes of positive supply, where flow begins, and of negative supply, where flow ends"

_Amounts = int | float


def _checked(name: str, amounts: Any, least: float, *, unlimited: bool = False) -> tuple[_Amounts, ...]:
    """Return ``amounts`` as Python integers or floats; InvalidInputError for other values."""
    checked = []
    for i, amount in enumerate(amounts):
        value = amount.item() if hasattr(amount, "item") else amount
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        infinite = unlimited and is_number and value == math.inf
        if not is_number or not (infinite or (math.isfinite(value) and value >= least)):
            expected = "finite numbers" if least < 0 else "numbers of at least 0"
            raise InvalidInputError(
                f"{name} must be {expected}{', or math.inf' if unlimited else ''}, got {amount!r} at index {i}"
            )
        if not infinite and float(value).is_integer() and abs(value) <= LARGEST:
            value = int(value)
        if isinstance(value, float) and not infinite and abs(value) > _LARGEST_FLOAT:
            raise InvalidInputError(f"{name} must be at most 2^1000, got {amount!r} at index {i}")
        if isinstance(value, int) and abs(value) > LARGEST:
            raise InvalidInputError(f"{name}: integers must be at most 2^53, got {amount!r} at index {i}")
        checked.append(value)
    if not unlimited and all(isinstance(v, int) for v in checked) and sum(map(abs, checked)) > LARGEST:
        raise InvalidInputError(f"{name} must have a sum of magnitudes of at most 2^53, got {sum(map(abs, checked))}")
    return tuple(checked)


# ----------------------------------------------------------------------------- options


def supplies_by_node(supplies: Any, graph: Graph) -> tuple[tuple[Any, _Amounts], ...]:
    """Return the nonzero supplies by node, in the order of the graph's nodes.

    Parameters
    ----------
    supplies : mapping, sequence of pairs (node, number), or sequence of numbers
        The supplies of a graph.
    graph : Graph
        The graph.
    """
    if not isinstance(supplies, Mapping):
        given = as_sequence("supplies", supplies, "a mapping from nodes to numbers, or a sequence of numbers")
        if all(isinstance(item, tuple) and len(item) == 2 for item in given):
            numbers = [graph.number(node, "supplies") for node, _ in given]
            for i, n in enumerate(numbers):
                if n in numbers[:i]:
                    raise InvalidInputError(
                        f"supplies must have one entry for each node, got two for {given[i][0]!r}; add them up"
                    )
            supplies = dict(given)
        else:
            supplies = dict(enumerate(given))
    amounts = _checked("supplies", supplies.values(), -math.inf)
    allowed = 0.0 if all(isinstance(a, int) for a in amounts) else 64 * PRECISION * math.fsum(map(abs, amounts))
    if abs(math.fsum(amounts)) > allowed:
        raise InvalidInputError(f"supplies must sum to 0, got {math.fsum(amounts):g}; {_BALANCE}")
    named = {graph.number(node, "supplies"): amount for node, amount in zip(supplies, amounts, strict=True) if amount}
    return tuple((graph.nodes[i], named[i]) for i in sorted(named))


def amounts_of_edges(name: str, given: Any, graph: Graph, *, unlimited: bool = False) -> tuple[_Amounts, ...]:
    """Return a number for each edge.

    Parameters
    ----------
    name : str
        The name of the option.
    given : number, or sequence of E numbers
        The value of the option for a graph.
    graph : Graph
        The graph.
    unlimited : bool
        Whether ``math.inf`` is allowed.
    """
    edges = len(graph.ends)
    if getattr(given, "shape", None) == ():
        given = given.item()
    if isinstance(given, int | float):
        return _checked(name, [given], 0, unlimited=unlimited) * edges
    expected = "a number for all edges, or a sequence of one number for each edge"
    checked = _checked(name, as_sequence(name, given, expected), 0, unlimited=unlimited)
    if len(checked) != edges:
        raise InvalidInputError(f"{name} must hold one number for each of {edges} edges, got {len(checked)}")
    return checked


# ----------------------------------------------------------------------------- tables


def supplies_table(options: list[Any], graphs: list[Graph], nodes: int) -> Float64[np.ndarray, "graphs nodes"]:
    """Return the supplies of graphs, (G, N), from options checked by :func:`supplies_by_node`."""
    table = np.zeros((len(graphs), nodes))
    for row, option, graph in zip(table, options, graphs, strict=True):
        for node, amount in option:
            row[graph.number(node)] = amount
    return table


def bounds_table(options: list[Any], edges: int) -> Float64[np.ndarray, "graphs edges"]:
    """Return the numbers of the edges of graphs, (G, E), from options checked by :func:`amounts_of_edges`."""
    table = np.zeros((len(options), edges))
    for row, option in zip(table, options, strict=True):
        row[: len(option)] = option
    return table


# ----------------------------------------------------------------------------- instance data


def check_supplies(supplies: Tensor, graph: Graph | GraphBatch, nodes_in_use: np.ndarray | None) -> None:
    """Raise InvalidInputError unless ``supplies`` (B, N) are finite, have sums of 0, and are 0 in the padding."""
    nodes = len(graph.nodes) if isinstance(graph, Graph) else int(graph.node_counts.max())
    if supplies.shape[1] != nodes:
        raise InvalidInputError(
            f"supplies must have shape (..., {nodes}), a number for each node, got {supplies.shape[1]} numbers"
        )
    _check_numbers("supplies", supplies, supplies.isfinite() if supplies.is_floating_point() else None, "finite")
    amounts = supplies.double().cpu()
    sums, sizes = amounts.sum(1), amounts.abs().sum(1)
    allowed = 64 * precision_of(supplies) * sizes if supplies.is_floating_point() else torch.zeros_like(sizes)
    wrong = sums.abs() > allowed
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0, 0])
        raise InvalidInputError(
            f"supplies must sum to 0, got {float(sums[index]):g} at batch index {index}; {_BALANCE}"
        )
    if nodes_in_use is not None:
        outside = torch.arange(nodes, device="cpu") >= torch.from_numpy(nodes_in_use).unsqueeze(1)
        _reject("supplies", supplies, (outside & (amounts != 0)).any(1), "must be 0 beyond the nodes of the graph")


def check_bounds(name: str, bounds: Tensor, edges: int) -> None:
    """Raise InvalidInputError unless ``bounds`` (B, E) are at least 0; only capacities may be infinite."""
    if bounds.shape[1] != edges:
        raise InvalidInputError(
            f"{name} must have shape (..., {edges}), a number for each edge, got {bounds.shape[1]} numbers"
        )
    _check_numbers(name, bounds, (bounds >= 0) & (bounds < math.inf if name == "lower" else True), "at least 0")


def precision_of(amounts: Tensor) -> float:
    """Return the relative rounding error of the dtype of ``amounts``."""
    return torch.finfo(amounts.dtype).eps if amounts.is_floating_point() else PRECISION


def _check_numbers(name: str, amounts: Tensor, allowed: Tensor | None, expected: str) -> None:
    refuse_gradient(name, amounts)
    if amounts.dtype is torch.bool:
        raise InvalidInputError(f"{name} must be numbers, got {amounts.dtype}")
    if allowed is not None:
        _reject(name, amounts, ~allowed.all(1), f"must be numbers, {expected}")
    if amounts.is_floating_point():
        too_large = (amounts.abs() > _LARGEST_FLOAT) & amounts.isfinite()
        _reject(name, amounts, too_large.any(1), "must be at most 2^1000")
    else:
        too_large = (amounts.abs() > LARGEST).any(1) | (amounts.abs().double().sum(1) > LARGEST)
        _reject(name, amounts, too_large, "must be integers with a sum of magnitudes of at most 2^53")


def _reject(name: str, amounts: Tensor, wrong: Tensor, rule: str) -> None:
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0, 0])
        raise InvalidInputError(f"{name} {rule}, got {amounts[index].tolist()} at batch index {index}")
