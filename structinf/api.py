"""The public calls: relax, infer, encode, decode."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import torch
from torch import Tensor

from .calls.problem import Problem, blame_argument, shapes
from .calls.resolution import prepare, prepare_oracle, resolve, without_instance_data
from .compile.functorch import functorch_compatible
from .compile.public_call import UNKNOWN_TENSOR, OperatorSpec, public_call
from .errors import InvalidInputError
from .oracle import Oracle
from .parts import Parts, PartsT, as_tuple, list_to_tuple, map_parts, pack_like
from .relaxation import RELAXATIONS, Relaxation
from .solution import Solution

__all__ = ["decode", "encode", "infer", "relax", "same_instances"]


def _mean_like(theta: Parts, oracle: str | Oracle, relaxation: str | Relaxation = "sparsemap", **options: Any) -> Parts:
    theta = list_to_tuple(theta)
    options.pop("generator", None)
    batch, events = shapes(theta, resolve(oracle, relaxation, without_instance_data(oracle, options))[0])
    means = [t.new_empty(batch + event) for t, event in zip(as_tuple(theta), events, strict=True)]
    return pack_like(means, theta)


def _is_deterministic(
    theta: Any,
    oracle: str | Oracle,
    relaxation: str | Relaxation = "sparsemap",
    generator: torch.Generator | None = None,
    **options: Any,
) -> bool:
    relaxation_options = without_instance_data(oracle, options)
    if any(option is UNKNOWN_TENSOR for option in relaxation_options.values()):
        return False  # what it makes of an option is not known yet
    return generator is None and not resolve(oracle, relaxation, relaxation_options)[1].is_stochastic


@public_call(operator=OperatorSpec(_mean_like, _is_deterministic), functorch=True)
def relax(
    theta: PartsT,
    oracle: str | Oracle,
    relaxation: str | Relaxation = "sparsemap",
    *,
    generator: torch.Generator | None = None,
    **options: Any,
) -> PartsT:
    """The relaxed structure μ(θ) = argmax ⟨θ, μ⟩ − Ω(μ) over conv(Y), differentiable in θ.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of them
        Potentials of the parts, floating point, any number of leading batch dimensions; −inf forbids a part.
        In a tuple, a tensor without batch dimensions (or with ones) is shared by all instances; the oracle says
        which forms it takes.
    oracle : str or Oracle
        The structure: a name of :func:`list_oracles`, or an object.
    relaxation : str or Relaxation
        A name of :func:`list_relaxations`, or an object.
    generator : torch.Generator, optional
        The only source of randomness, for relaxations that draw noise; on θ's device. Torch's own one by default.
    **options
        Instance data of the oracle (``lengths=...``), and options of whatever was given by name.

    Returns
    -------
    (..., *event) Tensor, or tuple of them
        In θ's form and dtype, with the full batch; samples, where a relaxation keeps them apart, are in front of it.

    Raises
    ------
    InvalidInputError
        For NaN or +inf, wrong shapes, lengths out of range: a ValueError.
    InfeasibleError
        If some instance has no structure of finite score: a ValueError with ``batch_index``.
    UnsupportedError
        If the oracle cannot have the relaxation: a TypeError that says what works.

    Examples
    --------
    >>> import torch
    >>> relax(torch.tensor([[1.0, 0.0], [0.0, 0.5]]), "assignment", "sparsemap")
    tensor([[0.8750, 0.1250],
            [0.1250, 0.8750]])
    """
    resolved, problem = prepare(RELAXATIONS, theta, oracle, relaxation, options)
    resolved = resolved.with_generator(generator)
    with problem.plain_modes():
        mean = resolved.mean(problem.oracle, problem.theta)
    return cast(PartsT, problem.restore_parts(mean, resolved.sample_ndim))


@public_call
def infer(
    theta: Parts,
    oracle: str | Oracle,
    relaxation: str | Relaxation = "sparsemap",
    *,
    warm_start: Solution | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Solution:
    """As :func:`relax`, with everything else that is known about the solution.

    Parameters
    ----------
    theta, oracle, relaxation, generator, **options
        As for :func:`relax`.
    warm_start : Solution, optional
        An earlier solution for potentials of the same shape; iterative relaxations start from its support.

    Returns
    -------
    Solution
        mean, value, support, weights, gap, converged, oracle_calls. Support and weights may differ between machines
        where several supports have the same mean; see :attr:`Solution.support`.

    Examples
    --------
    >>> import torch
    >>> sol = infer(torch.tensor([[1.0, 0.0], [0.0, 0.5]]), "assignment", "sparsemap")
    >>> sol.weights
    tensor([0.8750, 0.1250])
    """
    solution, differentiable = _solve_problem(theta, oracle, relaxation, warm_start, generator, options)
    make = solution.make_support
    return dataclasses.replace(
        solution, **differentiable, make_support=None if make is None else functorch_compatible(make)
    )


@functorch_compatible
def _solve_problem(
    theta: Parts,
    oracle: str | Oracle,
    relaxation: str | Relaxation,
    warm_start: Solution | None,
    generator: torch.Generator | None,
    options: dict[str, Any],
) -> tuple[Solution, dict[str, Any]]:
    """The solution, and what of it has a gradient."""
    resolved, problem = prepare(RELAXATIONS, theta, oracle, relaxation, options)
    with problem.plain_modes():
        start = None if warm_start is None else _flat_support(warm_start, problem)
        solution = resolved.with_generator(generator).solve(problem.oracle, problem.theta, start)
    solution = solution.with_batch_shape(problem.restore, problem.restore_parts, problem.oracle, resolved.sample_ndim)
    return solution, {"mean": solution.mean, "value": solution.value, "weights": solution.weights}


@public_call
def encode(labels: Tensor, like: PartsT, oracle: str | Oracle, **options: Any) -> PartsT:
    """The structure that integer labels describe, in the form of potentials ``like``.

    Parameters
    ----------
    labels : (..., *label dims) integer Tensor
        Tags, head indices, column indices, as the oracle documents; values in the padding are ignored.
    like : (..., *event) Tensor, or tuple of them
    oracle, **options
        As for :func:`relax`.

    Returns
    -------
    (..., *event) Tensor, or tuple of them
        In the form and dtype of ``like``.

    Examples
    --------
    >>> import torch
    >>> encode(torch.tensor([1, 0]), torch.zeros(2, 2), "assignment")
    tensor([[0., 1.],
            [1., 0.]])
    """
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        received = f"a tensor of {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels: a tensor of integers is needed, got {received}")
    with blame_argument("like"):
        problem = prepare_oracle(like, oracle, options)
    return cast(PartsT, problem.restore_parts(problem.encode(labels, "labels")))


@public_call
def decode(y: Parts, oracle: str | Oracle, **options: Any) -> Tensor:
    """Integer labels of structures ``y`` (..., *event); the inverse of :func:`encode`, −1 in the padding.

    Parameters
    ----------
    y : (..., *event) Tensor, or tuple of them
    oracle, **options
        As for :func:`relax`.

    Returns
    -------
    (..., *label dims) integer Tensor
        As the oracle documents.

    Examples
    --------
    >>> import torch
    >>> decode(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), "assignment")
    tensor([1, 0])
    """
    if isinstance(y, Tensor) and not y.is_floating_point():
        raise TypeError(f"y: a structure in floating point is needed, got {y.dtype}; call .float() first")
    with blame_argument("y"):
        problem = prepare_oracle(y, oracle, options)
    flat = problem.flatten_parts(y, "y")
    return problem.restore(problem.oracle.decode(flat))


def _flat_support(warm_start: Solution, problem: Problem) -> Parts:
    support = warm_start.support
    if support is None:
        raise InvalidInputError("warm_start: this solution has no support; take one of an iterative relaxation")
    if warm_start.oracle is not None and not same_instances(warm_start.oracle, problem.oracle):
        raise InvalidInputError(
            f"warm_start: this solution is of other instances (lengths, options): of {warm_start.oracle!r} "
            f"where {problem.oracle!r} is at hand; its structures may not exist here"
        )
    size = math.prod(problem.batch_shape)

    def flat(t: Tensor, like: Tensor) -> Tensor:
        if t.shape[1:] != problem.batch_shape + like.shape[1:]:
            raise InvalidInputError(
                f"warm_start: its structures have shape {tuple(t.shape[1:])}, "
                f"theta needs {tuple(problem.batch_shape + like.shape[1:])}"
            )
        return t.detach().to(like).reshape(len(t), size, *like.shape[1:])

    if len(as_tuple(support)) != len(as_tuple(problem.theta)):
        raise InvalidInputError("warm_start: its structures and theta have different forms")
    return map_parts(flat, support, problem.theta)


def same_instances(a: Oracle, b: Oracle) -> bool:
    """Whether two oracles have the same options and the same instance data, so that their sets of structures agree."""
    if type(a) is not type(b) or (dataclasses.is_dataclass(a) and a != b) or a.bound.keys() != b.bound.keys():
        return False
    return all(
        t.shape == b.bound[key].shape and bool((t.to(b.bound[key].device) == b.bound[key]).all())
        for key, t in a.bound.items()
    )
