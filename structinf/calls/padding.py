"""Overwrite the padding of scores, and check that the other scores are finite or −inf."""

from __future__ import annotations

import functools
import math
import operator

import torch
from torch import Tensor

from ..autograd.padding import keep_valid
from ..deferred_checks import DeferredChecks, skips_checks
from ..errors import InvalidInputError
from ..kernels.arrays import finite_if_all_are
from ..kernels.gpu import uses_triton
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts, pack_like

__all__ = ["check_scores_finite", "check_whole_scores", "checked_without_padding", "without_padding"]


def without_padding(oracle: Oracle, form: Parts) -> Parts:
    """Return ``form`` (B | 1, *event) with 0 in the padding."""
    return _kept(oracle, form)[0]


def checked_without_padding(
    oracle: Oracle, form: Parts, batch_shape: torch.Size, checks: DeferredChecks | None
) -> tuple[Parts, bool]:
    """Return the scores with 0 in the padding, and whether all are finite; always False with ``checks``.

    Raises InvalidInputError for NaN or +inf outside the padding.

    Parameters
    ----------
    oracle : Oracle
        The oracle with its instance data.
    form : (B | 1, *event) Tensor, or tuple of Tensors
        The scores.
    batch_shape : torch.Size
        The user's batch shape, for messages.
    checks : DeferredChecks, optional
        Where the check waits for the end of the call.
    """
    kept, wrong = _kept(oracle, form)
    return kept, _check(kept, wrong, batch_shape, checks)


def check_scores_finite(
    theta: Parts, batch_shape: torch.Size, checks: DeferredChecks | None, name: str = "theta"
) -> bool:
    """Raise InvalidInputError for NaN or +inf. Return whether all scores are finite; always False with ``checks``."""
    if not isinstance(theta, tuple):
        return _is_finite(theta, name, batch_shape, checks)
    found = [_is_finite(t, f"{name}[{i}]", batch_shape, checks) for i, t in enumerate(theta)]  # checks all tensors
    return all(found)


def check_whole_scores(form: Parts, batch_shape: torch.Size, checks: DeferredChecks) -> None:
    """Add the check of :func:`checked_without_padding` for scores without padding to ``checks``."""
    _check(form, None, batch_shape, checks)


def _check(form: Parts, wrong: Tensor | None, batch_shape: torch.Size, checks: DeferredChecks | None) -> bool:
    """Check scores, of which a kernel has found ``wrong`` ones; return whether all are known to be finite."""
    tensors = as_tuple(form)
    if wrong is None and uses_triton(tensors[0]) and not skips_checks(tensors[0]):
        from ..kernels.padding import triton_padding

        wrong = triton_padding.keep_valid([t.detach() for t in tensors], None)[1]
    if wrong is None:
        return check_scores_finite(form, batch_shape, checks)
    if wrong.numel() and not skips_checks(wrong):
        names = [f"theta[{i}]" for i in range(len(tensors))] if isinstance(form, tuple) else ["theta"]
        check = functools.partial(_raise_first_not_finite, [t.detach() for t in tensors], names, batch_shape)
        if checks is not None:
            checks.add(wrong, operator.not_, check)
        elif bool(wrong.any()):
            check()
    return False


def _kept(oracle: Oracle, form: Parts) -> tuple[Parts, Tensor | None]:
    """Return the scores with 0 in the padding, and what :func:`keep_valid` finds, None if it is not called."""
    masks = oracle.valid_parts(form)
    if masks is None:
        return form, None
    tensors = as_tuple(form)
    rows = tuple(_rows_like(mask, t) for mask, t in zip(as_tuple(masks), tensors, strict=True))
    if uses_triton(tensors[0]):
        kept, wrong = keep_valid(tensors, rows)
        return pack_like(kept, form), wrong
    # Not a product: 0 · NaN is NaN, and where() gives the padding a gradient of exactly 0.
    if tensors[0].is_cpu:
        return map_parts(lambda t, mask: torch.where(mask, t, 0.0), form, pack_like(rows, form)), None
    # On a device, torch.where would launch another kernel to fill a tensor with the number.
    return map_parts(lambda t, mask: t.masked_fill(~mask, 0), form, pack_like(rows, form)), None


def _rows_like(mask: Tensor, t: Tensor) -> Tensor:
    """Return ``mask`` for the tensor ``t``. For a shared tensor, a part is valid if it is valid in any instance."""
    return mask.any(0, keepdim=True) if t.shape[0] == 1 != mask.shape[0] else mask


def _is_finite(t: Tensor, name: str, batch_shape: torch.Size, checks: DeferredChecks | None) -> bool:
    t = t.detach() if t.requires_grad else t
    if skips_checks(t):
        return False
    if checks is None:
        # The maximum is finite or −inf only if no entry is NaN or +inf.
        if math.isfinite(finite_if_all_are(t)):
            return True
        if not t.amax().item() < math.inf:
            _raise_not_finite(t, name, batch_shape)
    elif t.numel():
        checks.add(t.amax(), _is_below_infinity, functools.partial(_raise_not_finite, t, name, batch_shape))
    return False


def _raise_first_not_finite(tensors: list[Tensor], names: list[str], batch_shape: torch.Size) -> None:
    for t, name in zip(tensors, names, strict=True):
        if t.numel() and not t.amax().item() < math.inf:
            _raise_not_finite(t, name, batch_shape)


def _is_below_infinity(number: float) -> bool:
    return number < math.inf  # False for NaN


def _raise_not_finite(t: Tensor, name: str, batch_shape: torch.Size) -> None:
    wrong = torch.isnan(t) | torch.isposinf(t)
    where = wrong.nonzero()[0].tolist()
    value = t[tuple(where)].item()
    shared = t.shape[0] == 1 and math.prod(batch_shape) != 1
    place = (
        f"part {tuple(where[1:])}, shared by the batch"
        if shared
        else f"batch index {where[0]}, part {tuple(where[1:])}"
    )
    raise InvalidInputError(
        f"{name} holds {'NaN' if math.isnan(value) else '+inf'} at {place}; "
        "scores must be finite, or −inf to forbid a part"
    )
