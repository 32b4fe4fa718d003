"""The arguments of FactorGraph: variables, negation, shapes, and instance data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError, UnsupportedError
from ..kernels.arrays import as_tensor
from ..parts import Parts, as_tuple
from ..solvers.graph_factors import Factor
from ..validation.method_calls import validate_form

__all__ = [
    "additional_shapes",
    "check_factor",
    "data_keywords",
    "flat_indices",
    "is_size",
    "negation_flags",
    "summarize_variables",
    "zero_scores",
]


def flat_indices(variables: Any, shape: torch.Size) -> Tensor:
    """Return ``variables`` as flat indices, int64 on the CPU."""
    count = math.prod(shape)
    try:
        given = as_tensor(variables).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"variables must be a tensor of integers, got {variables!r}") from error
    if given.dtype is torch.bool:
        if given.shape != shape:
            raise InvalidInputError(
                f"variables: a bool tensor must have the shape {tuple(shape)} of the graph, got {tuple(given.shape)}"
            )
        given = given.flatten().nonzero()[:, 0]
    if given.is_floating_point() or given.is_complex() or given.numel() == 0:
        raise InvalidInputError(
            f"variables must be flat indices of at least one variable, integers from 0 to {count - 1}, got "
            f"{'none' if given.numel() == 0 else f'a tensor of {given.dtype}'}; graph.variables holds the indices"
        )
    index = given.long().clone()
    if bool(((index < 0) | (index >= count)).any()):
        wrong = int(index[(index < 0) | (index >= count)][0])
        raise InvalidInputError(f"variables must be flat indices from 0 to {count - 1}, got {wrong}")
    return index


def zero_scores(factor: Factor, size: int, device: torch.device | str = "cpu") -> Parts:
    """Return scores of 0 of the factor's oracle, for a batch of ``size``."""
    shapes = factor.variables.shape, *factor.additional
    zeros = [torch.zeros((), dtype=torch.float64, device=device).expand(size, *shape) for shape in shapes]
    return tuple(zeros) if factor.additional else zeros[0]


def data_keywords(instance_data: Any) -> dict[str, str]:
    """Return the keyword of each of the oracle's instance data."""
    is_list = isinstance(instance_data, Sequence) and not isinstance(instance_data, str)
    given = {name: name for name in instance_data} if is_list else instance_data
    if not isinstance(given, Mapping) or not all(isinstance(k, str) and k.isidentifier() for k in given.values()):
        raise InvalidInputError(
            'instance_data must be a list of names, such as ["lengths"], or a mapping of names to keywords of calls, '
            f'such as {{"lengths": "sizes"}}, got {instance_data!r}'
        )
    return dict(given)


def is_size(n: Any) -> bool:
    """Return whether ``n`` is a positive integer."""
    return isinstance(n, int | np.integer) and not isinstance(n, bool) and int(n) > 0


def negation_flags(negated: Any, index: Tensor) -> Tensor:
    """Return ``negated`` as a bool tensor of the shape of ``index``, on the CPU."""
    try:
        flags = as_tensor(negated).detach().cpu()
        if flags.dtype is not torch.bool:
            raise TypeError
        return flags.broadcast_to(index.shape).clone()
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInputError(
            f"negated must be a bool, or a bool tensor that broadcasts to the shape {tuple(index.shape)} of variables, "
            f"got {negated!r}"
        ) from None


def additional_shapes(additional: Sequence[Sequence[int]] | None) -> tuple[torch.Size, ...]:
    """Return the shapes ``additional`` of tensors; InvalidInputError for other values."""
    try:
        given = [tuple(shape) for shape in additional or ()]
        if all(all(map(is_size, shape)) for shape in given):
            return tuple(map(torch.Size, given))
    except TypeError:
        pass
    raise InvalidInputError(f"additional must be a list of shapes, such as [(3, 3)], got {additional!r}")


def summarize_variables(index: Tensor, shape: torch.Size) -> str:
    """Return the first and the last of the variables, for messages."""
    places = [tuple(int(i) for i in np.unravel_index(int(v), shape)) for v in index.flatten()[[0, -1]]]
    first, last = (p[0] if len(p) == 1 else p for p in places)
    return f"{first}" if index.numel() == 1 else f"{first} to {last}"


def check_factor(factor: Factor, what: str, others: Mapping[str, int]) -> None:
    """Raise an error if an oracle cannot be a factor, or does not accept scores in the shapes of the factor.

    Parameters
    ----------
    factor : Factor
        The factor.
    what : str
        What has the shapes, for the message.
    others : mapping of str to int
        The keywords of the instance data of other factors, with the number of dimensions of one instance's value.
    """
    oracle = factor.oracle
    if oracle.bound:
        raise UnsupportedError(
            f"factor_graph: {oracle.label()} has bound instance data; add the oracle without data, with "
            f"instance_data={[*oracle.bound]}, and pass the data in calls of the graph"
        )
    if oracle.requires_nonpositive_theta:
        raise UnsupportedError(
            f"factor_graph: {oracle.label()} takes only scores of at most 0, and the relaxations of a graph change "
            "the scores of factors"
        )
    for name, keyword in factor.data.items():
        own = oracle.instance_ndim
        if name not in own:
            known = ", ".join(own) or "none"
            raise InvalidInputError(f"instance_data: {oracle.label()} takes no {name!r} (it takes: {known})")
        if others.get(keyword, own[name]) != own[name]:
            raise InvalidInputError(
                f"instance_data: {keyword!r} has {others[keyword]} dimensions for another factor, and "
                f"{own[name]} for {oracle.label()}; pass another keyword, instance_data={{{name!r}: ...}}"
            )
    try:
        _check_form(factor)
    except (InvalidInputError, TypeError) as error:
        raise InvalidInputError(f"{what}: {error}; {_form_hint(factor)}") from None


def _check_form(factor: Factor) -> None:
    """Raise InvalidInputError or TypeError if the oracle does not accept scores in the shapes of the factor."""
    oracle, zeros = factor.oracle, zero_scores(factor, 1)
    ndims, given = oracle.resolve_event_ndim(zeros), tuple(t.ndim - 1 for t in as_tuple(zeros))
    if ndims != given:
        wanted, received = (" and ".join(map(str, each)) for each in (ndims, given))
        raise InvalidInputError(f"{oracle.label()} takes scores with {wanted} dimensions, got {received}")
    if not factor.data:
        validate_form(oracle, zeros, 1)


def _form_hint(factor: Factor) -> str:
    """Return what to do if the oracle does not accept the variables or the additional tensors of a factor."""
    states = factor.variables.shape[-1] if factor.variables.ndim else 1
    chained = replace(factor, additional=(torch.Size((states, states)),))
    try:
        _check_form(chained)
    except (InvalidInputError, TypeError):
        return (
            "pass the variables in the shape of the first tensor of scores of one instance, and the shapes of the "
            "other tensors as additional=[...]"
        )
    return f"pass the shape of the transitions between the {states} states: additional=[({states}, {states})]"
