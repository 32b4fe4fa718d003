"""Scores and instance data in the form that an oracle accepts, on the CPU and on devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..compile.torch_private import has_forward_derivative
from ..deferred_checks import DeferredChecks, data_checks_wait, skips_checks
from ..errors import InvalidInputError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from ..validation.method_calls import accept_form, accepts_data, is_accepted, validate_form, validate_scores
from .solved_rows import SolvedRows

__all__ = ["accepted_form", "bind_on_device", "validate_rest", "zeros_on_cpu"]


def accepted_form(oracle: Oracle, theta: Any) -> Parts | None:
    """Return θ if it is in the flat form on the CPU that the oracle has accepted in an earlier call, else None.

    Tensors shared by the batch may lack the batch dimension.
    """
    form = theta
    if not is_accepted(oracle, form):
        if type(theta) is not tuple or not all(type(t) in (Tensor, Parameter) and t.is_cpu for t in theta):
            return None
        most = max([t.ndim for t in theta], default=0)
        form = tuple([t.unsqueeze(0) if t.ndim < most else t for t in theta])
        if not is_accepted(oracle, form):
            return None
    if torch.is_inference_mode_enabled():
        return None
    for t, flat, n in zip(as_tuple(theta), as_tuple(form), oracle.resolve_event_ndim(theta), strict=True):
        if not t.is_cpu or flat.ndim != n + 1 or has_forward_derivative(t):
            return None
    return form


def validate_rest(solved: SolvedRows, oracle: Oracle, form: Parts) -> tuple[SolvedRows, Parts]:
    """Validate the scores ``form`` (K, *event) beside empty instances.

    If all instances are empty, the padded size may be 0 too, which oracles refuse. No instances of size 2 then take the
    place of the scores, as a differentiable function of the scores.
    """
    try:
        validate_scores(oracle, form, len(solved.index))
    except InvalidInputError:
        larger = map_parts(_with_size_2, form)
        if len(solved.index) or all(t is s for t, s in zip(as_tuple(form), as_tuple(larger), strict=True)):
            raise
        validate_scores(oracle, larger, 0)
        return dataclasses.replace(solved, event_shapes=tuple(t.shape[1:] for t in as_tuple(form))), larger
    return solved, form


def _with_size_2(t: Tensor) -> Tensor:
    shape = [max(size, 2) for size in t.shape[1:]]
    return t if shape == list(t.shape[1:]) else t.new_zeros(t.shape[0], *shape) + t[:0].sum()


def zeros_on_cpu(form: Parts) -> Parts:
    """Return zeros on the CPU of the shapes and dtypes of ``form``, which take no memory."""
    return map_parts(lambda t: torch.zeros((), dtype=t.dtype, device="cpu").expand(t.shape), form)


def bind_on_device(
    oracle: Oracle, bound: Mapping[str, Tensor], form: Parts, stand_in: Parts, batch: int, checks: DeferredChecks
) -> Oracle:
    """Return the validated oracle with the data ``bound``, copied to the device of ``form``.

    Data given on the CPU are validated there, with ``stand_in`` in place of the scores: reading the device would wait.
    Lengths on the device are validated by ``checks``, if the call can start again. Data of the oracle on the CPU, such
    as the default numbers of graphs, are copied too. An oracle whose data are on the device already is validated by the
    first call with scores of a form.
    """
    own, device = oracle.bound, as_tuple(form)[0].device
    if own and not bound and not any(t.is_cpu for t in own.values()):
        if not accepts_data(oracle, form, device):
            validate_form(oracle, form, batch)
            accept_form(oracle, form, batch, None if skips_checks(as_tuple(form)[0]) else device)
        return oracle
    # A check that waits changes the lengths, which must not be those of the user's own binding.
    bound = {**own, **bound}
    is_on_cpu = all(t.is_cpu for t in bound.values())
    on_cpu = oracle.bind(**bound) if bound and is_on_cpu else oracle
    if is_on_cpu:
        validate_form(on_cpu, stand_in, batch)
    if bound:
        oracle = oracle.bind(**{name: t.to(device, non_blocking=True) for name, t in bound.items()})
    if bound and is_on_cpu:
        oracle.store_data_on_cpu(on_cpu.bound)
    if not is_on_cpu:
        with data_checks_wait(checks):
            validate_form(oracle, form, batch)
    accept_form(oracle, form, batch)
    return oracle
