"""Objectives ⟨θ, g(y)⟩ + h(y) over the structures y of another oracle, with affine g and h."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError, UnsupportedError
from ..kernels.arrays import as_tensor
from ..oracle import Oracle
from ..parts import AnyParts, Parts, as_tuple, batch_size, list_to_tuple, map_parts, pack
from ..registry import ORACLES
from .constant_term import WithConstantTerm, as_ndims

__all__ = ["Affine"]


class Affine(WithConstantTerm):
    """The objective ⟨θ, g(y)⟩ + h(y) over the structures y of ``oracle``, for linear maps g and h.

    The structures of this oracle are z = g(y). The argmax calls the argmax of ``oracle`` for the scores gᵀθ + h. Every
    relaxation that needs only the argmax works.

    - Scores θ: without ``h``, one tensor (..., m), the score of each row of ``g``. With ``h``, a tuple: these scores,
      and the weight w of h, (..., 1), or (1,) for the whole batch. :meth:`scores` adds the weight 1. A score of −inf
      forbids all structures with a nonzero entry of g(y), for rows of ``g`` without negative numbers and y ≥ 0.
    - Structure z, in the form of θ: g(y), and with ``h`` also h(y), (..., 1). Ties are broken by ``oracle``. A tied
      g(y) may lie inside conv(Z), without being a vertex.
    - Instance data of ``oracle``.

    Noise of relaxations leaves the weight w unchanged. ``sparsemap`` penalises g(y) only.

    Parameters
    ----------
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    g : (m, d) Tensor, dense or sparse, or scipy sparse matrix, optional
        The matrix of g, which acts on the d parts of y in row-major order, tensor by tensor. Without it, g(y) = y, in
        the form of y.
    h : Tensor in the shape of y, or tuple of Tensors, optional
        The constant score of each part of y: h(y) = ⟨h, y⟩.
    event_shape : tuple of int, or tuple of tuples, optional
        The shape of y, or of each of its tensors; by default the shape of ``h``, or the vector (d,).
    **options
        Options of an oracle given by name. An object already has its options.

    Raises
    ------
    InvalidInputError
        If a shape does not fit, or ``g`` or ``h`` is not finite.
    UnsupportedError
        If ``oracle`` accepts only scores of at most 0, because gᵀθ + h can be positive.

    Examples
    --------
    Items have known values h, and the predicted scores θ belong to two groups of items:

    >>> import structinf as si
    >>> groups = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> values = torch.tensor([3.0, 1.0, 2.0])
    >>> oracle = Affine("subset", groups, values, k=1)
    >>> theta = torch.tensor([[0.0, 0.5], [0.0, 1.5]])
    >>> counts, value = si.relax(oracle.scores(theta), oracle, "map")
    >>> counts, value
    (tensor([[1., 0.],
            [0., 1.]]), tensor([[3.],
            [2.]]))
    """

    name: ClassVar[str] = "affine"

    def __init__(
        self,
        oracle: str | Oracle,
        g: Tensor | None = None,
        h: Parts | None = None,
        *,
        event_shape: Any = None,
        **options: Any,
    ) -> None:
        self.oracle = ORACLES.get(oracle, **options)
        if self.oracle.requires_nonpositive_theta:
            raise UnsupportedError(f"{self.oracle!r} takes scores of at most 0, but gᵀθ + h can be positive")
        if self.oracle.bound:
            raise InvalidInputError("oracle: bind instance data to the Affine oracle, or pass them in the call")
        if g is None and h is None:
            raise TypeError("Affine needs g or h; without both, use the oracle itself")
        self.has_term = h is not None
        form = self.oracle.event_ndim
        self._inner_is_tuple = isinstance(form, tuple)
        self._rows = None if g is None else _matrix("g", g)
        if self._rows is not None and self._rows.ndim != 2:
            raise InvalidInputError(f"g must be a matrix, got shape {tuple(self._rows.shape)}")
        constant = None if h is None else tuple(_matrix("h", t) for t in as_tuple(list_to_tuple(h)))
        self._shapes = self._event_shapes(event_shape, constant)
        self._size = sum(map(math.prod, self._shapes))
        for part, shape in zip(constant or (), self._shapes, strict=False):
            if tuple(part.shape) != shape or len(constant or ()) != len(self._shapes):
                raise InvalidInputError(
                    f"h must have the shape of a structure of {self.oracle.label()}, {self._shapes}, got "
                    f"{[tuple(t.shape) for t in constant or ()]}"
                )
        if self._rows is not None and self._rows.shape[1] != self._size:
            raise InvalidInputError(
                f"g must be a matrix with a column for each of the {self._size} parts of a structure, got shape "
                f"{tuple(self._rows.shape)}"
            )
        self._constant = None if constant is None else torch.cat([t.flatten() for t in constant])
        own = [1] if self._rows is not None else [len(s) for s in self._shapes]
        self._is_tuple = self.has_term or (self._rows is None and self._inner_is_tuple)
        ndims = (*own, 1) if self.has_term else tuple(own)
        self._ndims = ndims if self._is_tuple else ndims[0]
        _ = self._on  # shared by all copies with data

    def __repr__(self) -> str:
        g = "" if self._rows is None else f", g=a matrix {tuple(self._rows.shape)}"
        return f"Affine({self.oracle!r}{g}{', h=...' if self.has_term else ''})"

    @property
    def is_exact(self) -> bool:
        return self.oracle.is_exact

    @property
    def instance_ndim(self) -> Mapping[str, int]:  # type: ignore[override]
        return self.oracle.instance_ndim

    def validate(self, theta: AnyParts) -> None:
        wanted = [(len(self._rows),)] if self._rows is not None else list(self._shapes)
        received = [tuple(t.shape[1:]) for t in as_tuple(theta)][: len(wanted)]
        if received != wanted:
            raise InvalidInputError(
                f"theta: {self.label()} needs scores of shape {wanted} after the batch, got {received}"
            )
        size = batch_size(theta)
        self._inner.validate(self._as_inner(as_tuple(theta)[0].new_zeros(size, self._size)))

    def valid_parts(self, theta: AnyParts) -> Parts | None:
        if self._rows is not None:
            return None
        tensors = as_tuple(theta)
        masks = self._inner.valid_parts(pack(tensors[: len(self._shapes)], self._inner_is_tuple))
        if masks is None:
            return None
        weight = [torch.ones_like(t[:1], dtype=torch.bool) for t in tensors[len(self._shapes) :]]
        return pack((*as_tuple(masks), *weight), self._is_tuple)

    def argmax(self, theta: AnyParts) -> Parts:
        tensors = as_tuple(theta)
        size = batch_size(theta)
        rows = torch.cat([t.double().flatten(1).expand(size, -1) for t in tensors], 1)
        matrices = self._matrices(rows.device)
        forbidden = rows.isneginf()
        scores = self._transposed(torch.where(forbidden, 0.0, rows), matrices)
        if bool(forbidden.any()):
            scores = torch.where(self._forbidden_parts(forbidden), -torch.inf, scores)
        inner = self._inner
        form = self._as_inner(scores)
        masks = inner.valid_parts(form)
        if masks is not None:
            form = map_parts(lambda t, mask: torch.where(mask, t, 0.0), form, masks)
        y = inner.argmax(form)
        flat = torch.cat([t.flatten(1) for t in as_tuple(y)], 1)
        pieces = self._image(flat, matrices)
        return pack(tuple(p.to(t).contiguous() for p, t in zip(pieces, tensors, strict=True)), self._is_tuple)

    def image(self, y: Parts) -> Parts:
        """Return g(y), and h(y) if the oracle has h, for structures ``y`` (..., *event) of the inner oracle.

        Parameters
        ----------
        y : (..., *event) Tensor, or tuple of Tensors
            Structures, or means of structures, of the inner oracle.
        """
        tensors = as_tuple(list_to_tuple(y))
        shapes = [tuple(t.shape[t.ndim - len(s) :]) for t, s in zip(tensors, self._shapes, strict=False)]
        if shapes != list(self._shapes) or len(tensors) != len(self._shapes):
            raise InvalidInputError(
                f"y must hold structures of shape {list(self._shapes)}, got {[tuple(t.shape) for t in tensors]}"
            )
        batch = tensors[0].shape[: tensors[0].ndim - len(self._shapes[0])]
        flat = torch.cat([t.double().reshape(batch.numel(), -1) for t in tensors], 1)
        pieces = self._image(flat, self._matrices(flat.device))
        return pack(tuple(p.reshape(batch + p.shape[1:]).to(tensors[0]) for p in pieces), self._is_tuple)

    # -- steps ----------------------------------------------------------------------------------

    def _event_shapes(self, event_shape: Any, constant: tuple[Tensor, ...] | None) -> tuple[tuple[int, ...], ...]:
        """Return the shape of each tensor of a structure of the inner oracle."""
        form = self.oracle.event_ndim
        if event_shape is not None:
            try:
                given = tuple(event_shape) if self._inner_is_tuple else (event_shape,)
                shapes = tuple(tuple(int(n) for n in s) for s in given)
            except (TypeError, ValueError):
                example = "((4, 3), (3, 3))" if self._inner_is_tuple else "(4,)" if form == 1 else "(4, 4)"
                raise TypeError(
                    f"event_shape must be the shape of a structure of {self.oracle.label()}, for example "
                    f"event_shape={example}, got {event_shape!r}"
                ) from None
        elif constant is not None:
            shapes = tuple(tuple(t.shape) for t in constant)
        elif form == 1 and self._rows is not None:
            shapes = ((self._rows.shape[1],),)
        else:
            raise TypeError(
                f"event_shape: give the shape of a structure of {self.oracle.label()}, for example event_shape=(4, 4)"
            )
        ndims = as_ndims(form)
        if tuple(map(len, shapes)) != ndims:
            raise InvalidInputError(
                f"the structures of {self.oracle.label()} have tensors of {list(ndims)} dimensions, got the shapes "
                f"{list(shapes)}; check event_shape, or h"
            )
        return shapes

    @property
    def _inner(self) -> Oracle:
        return self.oracle.bind(**self.bound) if self.bound else self.oracle

    def _as_inner(self, flat: Tensor) -> Parts:
        pieces = flat.split([math.prod(s) for s in self._shapes], 1)
        shaped = tuple(p.reshape(len(flat), *s) for p, s in zip(pieces, self._shapes, strict=True))
        return pack(shaped, self._inner_is_tuple)

    @functools.cached_property
    def _on(self) -> dict[Any, list[Tensor]]:
        """The tensors of g and h on each device that was used."""
        return {}

    def _matrices(self, device: torch.device) -> list[Tensor]:
        """Return g, gᵀ and h on the ``device``; without g only h."""
        if device not in self._on:
            rows = [] if self._rows is None else [self._rows, self._rows.transpose(0, 1)]
            rows = [t.coalesce() if t.layout is torch.sparse_coo else t for t in rows]
            self._on[device] = [t.to(device) for t in (*rows, *([] if self._constant is None else [self._constant]))]
        return self._on[device]

    def _transposed(self, rows: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """Return gᵀθ + w h, (B, d), for ``rows`` (B, m) or (B, m + 1)."""
        own = rows[:, :-1] if self.has_term else rows
        scores = own if self._rows is None else (matrices[1] @ own.T).T
        return scores + rows[:, -1:] * matrices[-1] if self.has_term else scores

    def _image(self, flat: Tensor, matrices: Sequence[Tensor]) -> list[Tensor]:
        """Return g(y), and h(y) if there is h, for ``flat`` (B, d)."""
        flat = flat.double()
        if self._rows is not None:
            pieces = [(matrices[0] @ flat.T).T]
        else:
            split = flat.split([math.prod(s) for s in self._shapes], 1)
            pieces = [p.reshape(len(flat), *s) for p, s in zip(split, self._shapes, strict=True)]
        return [*pieces, flat @ matrices[-1][:, None]] if self.has_term else pieces

    def _forbidden_parts(self, forbidden: Tensor) -> Tensor:
        """Return the parts of y that a score of −inf forbids, (B, d), for the rows of score −inf (B, m)."""
        used = forbidden.any(0)
        table = []
        if self._rows is not None:
            table.append(self._rows.to(forbidden.device).to_dense())
        else:
            table.append(torch.eye(self._size, dtype=torch.float64, device=forbidden.device))
        if self._constant is not None:
            table.append(self._constant.to(forbidden.device)[None])
        rows = torch.cat(table)
        if bool((rows[used] < 0).any()):
            raise InvalidInputError(
                "theta: a score of −inf cannot forbid a row of g or h with negative numbers, whose terms may cancel; "
                "forbid parts of the inner oracle instead, or use a large negative score"
            )
        return (forbidden.double() @ (rows != 0).double()) > 0


def _matrix(name: str, t: Any) -> Tensor:
    """Return ``t`` in float64 on the CPU, sparse as COO; raise InvalidInputError unless it is real and finite."""
    try:
        t = t if isinstance(t, Tensor) else _from_scipy(t) if name == "g" and hasattr(t, "tocoo") else as_tensor(t)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"{name} must be a tensor of numbers, got {type(t).__name__}") from error
    if t.requires_grad:
        raise InvalidInputError(f"{name} is a constant without a gradient, but it requires grad; pass {name}.detach()")
    if t.is_complex():
        raise InvalidInputError(f"{name} must hold real numbers, got {t.dtype}")
    t = t.detach().cpu().double()
    if t.layout is not torch.strided:
        t = t.to_sparse_coo().coalesce()
    values = t.values() if t.layout is torch.sparse_coo else t
    if not bool(values.isfinite().all()):
        raise InvalidInputError(f"{name} must be finite, got NaN or infinity")
    return t.clone()


def _from_scipy(matrix: Any) -> Tensor:
    """Return a sparse matrix of scipy as a sparse tensor; entries given twice are added."""
    coo = matrix.tocoo()
    if len(coo.shape) != 2:
        raise InvalidInputError(f"g must be a matrix, got shape {coo.shape}")
    places = torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64))
    return torch.sparse_coo_tensor(
        places, torch.as_tensor(coo.data, device="cpu"), coo.shape, device="cpu", check_invariants=True
    )
