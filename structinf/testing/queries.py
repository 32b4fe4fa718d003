"""The questions that can be put to an oracle, so that laws about form, batches and memory are written once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..oracle import EntropyProjectable, GibbsOracle, KBest, Oracle, Projectable, Samplable
from ..parts import Parts, as_tuple, batch_size, map_parts
from .compare import expect, fail, named_tensors

__all__ = ["QUERIES", "Answer", "Query", "ask", "directions", "queries_of"]

SAMPLES = 3
K = 3


def some_direction(theta: Parts) -> Parts:
    """Finite numbers of θ's form with the full batch; an instance's depend on its potentials alone."""

    def wave(t: Tensor) -> Tensor:
        places = torch.arange(math.prod(t.shape[1:]), device=t.device).reshape(1, *t.shape[1:])
        return torch.cos(torch.where(t.isneginf(), 0.5, t) + 2.0 * places).expand(size, *t.shape[1:]).contiguous()

    size = batch_size(theta)
    return map_parts(wave, theta)


def directions(theta: Parts) -> Iterator[Parts]:
    """One with the full batch, and one that is shared where ``theta`` is, if that is another."""
    full = some_direction(theta)
    yield full
    if any(t.shape[0] != z.shape[0] for t, z in zip(as_tuple(theta), as_tuple(full), strict=True)):
        yield map_parts(lambda z, t: z[: len(t)], full, theta)


def _weight(theta: Parts) -> Tensor:
    rows = [t.flatten(1).sum(1) for t in as_tuple(some_direction(theta))]
    return 1.5 + torch.stack(rows).sum(0).sin()


@dataclass(frozen=True)
class Piece:
    """One part of an answer: structures or scores for each instance, or a gradient in θ's own form."""

    name: str
    of: Literal["parts", "instances", "theta"]
    prefix: tuple[int, ...] = ()
    dtype: torch.dtype | None = None  # None: that of θ
    exact: bool = False


@dataclass(frozen=True)
class Query:
    """A method, how it is called, and what it must hand back."""

    name: str
    ability: type[Oracle]
    call: Callable[[Any, Parts], Any]
    pieces: tuple[Piece, ...]
    random: bool = False


QUERIES = (
    Query("argmax", Oracle, lambda oracle, theta: oracle.argmax(theta), (Piece("the structure", "parts", exact=True),)),
    Query(
        "log_partition",
        GibbsOracle,
        lambda oracle, theta: oracle.log_partition(theta),
        (Piece("log Z", "instances"),),
    ),
    Query("marginals", GibbsOracle, lambda oracle, theta: oracle.marginals(theta), (Piece("the mean", "parts"),)),
    Query(
        "log_partition_vjp",
        GibbsOracle,
        lambda oracle, theta: oracle.log_partition_vjp(theta, _weight(theta)),
        (Piece("the gradient", "theta"),),
    ),
    Query(
        "covariance_product",
        GibbsOracle,
        lambda oracle, theta: oracle.covariance_product(theta, some_direction(theta)),
        (Piece("the product", "parts"),),
    ),
    Query(
        "sample",
        Samplable,
        lambda oracle, theta: oracle.sample(theta, SAMPLES, torch.Generator().manual_seed(7)),
        (Piece("the sample", "parts", (SAMPLES,)),),
        random=True,
    ),
    Query(
        "topk",
        KBest,
        lambda oracle, theta: oracle.topk(theta, K),
        (
            Piece("the structures", "parts", (K,), exact=True),
            Piece("the scores", "instances", (K,)),
            Piece("valid", "instances", (K,), torch.bool, exact=True),
        ),
    ),
    Query("project", Projectable, lambda oracle, theta: oracle.project(theta), (Piece("the projection", "parts"),)),
    Query(
        "project_entropy",
        EntropyProjectable,
        lambda oracle, theta: tuple(oracle.project_entropy(theta, binary=binary) for binary in (False, True)),
        (Piece("the mean of most entropy", "parts"), Piece("that of most binary entropy", "parts")),
    ),
)


def queries_of(oracle: Oracle) -> list[Query]:
    """Those that ``oracle`` can answer."""
    return [query for query in QUERIES if isinstance(oracle, query.ability)]


@dataclass(frozen=True)
class Answer:
    """One tensor of an answer.

    Attributes
    ----------
    batch_dim : int or None
        None for gradients in θ's own form.
    exact : bool
        Whether rounding has no part in it.
    """

    name: str
    value: Tensor
    batch_dim: int | None
    exact: bool


def ask(query: Query, oracle: Oracle, theta: Parts) -> list[Answer]:
    """The answer of ``oracle``, tensor by tensor; Broken if its form, shape, dtype or device is wrong."""
    with torch.no_grad():
        answer = query.call(oracle, theta)
    if len(query.pieces) == 1:
        answer = (answer,)
    if not isinstance(answer, tuple) or len(answer) != len(query.pieces):
        fail(f"{query.name} must return {len(query.pieces)} results, got {_describe(answer)}")
    return [a for piece, value in zip(query.pieces, answer, strict=True) for a in _tensors(query, piece, value, theta)]


def _tensors(query: Query, piece: Piece, value: Any, theta: Parts) -> Iterator[Answer]:
    name = f"{piece.name} from {query.name}"
    size, first = batch_size(theta), as_tuple(theta)[0]
    if piece.of == "instances":
        wanted = [(*piece.prefix, size)]
    else:
        own = piece.of == "theta"
        wanted = [(*piece.prefix, *(t.shape if own else (size, *t.shape[1:]))) for t in as_tuple(theta)]
        if isinstance(value, tuple) != isinstance(theta, tuple) or len(as_tuple(value)) != len(wanted):
            form = f"a tuple of {len(wanted)} tensors" if isinstance(theta, tuple) else "one tensor"
            fail(f"{name} must have the form of theta, {form}; got {_describe(value)}")
    for (label, t), shape in zip(named_tensors(name, value), wanted, strict=True):
        expect(isinstance(t, Tensor), f"{label} must be a tensor, got {_describe(t)}")
        expect(t.shape == shape, f"{label} must have shape {shape}, got {tuple(t.shape)}")
        dtype = piece.dtype or first.dtype
        expect(t.dtype == dtype, f"{label} must have dtype {dtype}, got {t.dtype}")
        expect(t.device == first.device, f"{label} must be on {first.device}, got {t.device}")
        yield Answer(label, t, None if piece.of == "theta" else len(piece.prefix), piece.exact)


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple | list) else "")
