"""The functions :func:`relax`, :func:`infer`, :func:`encode` and :func:`decode`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from .calls.allowed_parts import allowed_masks, restrict_scores
from .calls.arguments import OnInfeasible, argument_shapes, blame_argument, check_on_infeasible
from .calls.gold import encode_labels, structures_to_decode
from .calls.problem import Problem
from .calls.resolution import get_oracle, prepare, prepare_oracle, resolve, without_instance_data
from .compile.functorch import functorch_compatible
from .compile.public_call import UNKNOWN_TENSOR, OperatorSpec, public_call
from .compile.torch_private import without_fake_tensors
from .errors import InvalidInputError
from .option_key import option_key
from .oracle import Oracle
from .parts import Parts, PartsT, as_tuple, list_to_tuple, map_parts, pack_like
from .relaxation import RELAXATIONS, Relaxation
from .solution import PADDING, Solution
from .support_cache import CachedSupports

__all__ = ["decode", "encode", "infer", "relax", "restrict", "same_instances"]


def _without_tensor_temperature(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with 1 for a tensor ``temperature``, which decides neither shapes nor noise."""
    is_tensor = isinstance(options.get("temperature"), Tensor) or options.get("temperature") is UNKNOWN_TENSOR
    return {**options, "temperature": 1.0} if is_tensor else dict(options)


def _mean_like(theta: Parts, oracle: str | Oracle, relaxation: str | Relaxation = "sparsemap", **options: Any) -> Parts:
    theta = list_to_tuple(theta)
    options.pop("generator", None)
    options.pop("on_infeasible", None)
    options = _without_tensor_temperature(options)
    batch, events = argument_shapes(theta, resolve(oracle, relaxation, without_instance_data(oracle, options))[0])
    means = [t.new_empty(batch + event) for t, event in zip(as_tuple(theta), events, strict=True)]
    return pack_like(means, theta)


def _is_deterministic(
    theta: Any,
    oracle: str | Oracle,
    relaxation: str | Relaxation = "sparsemap",
    generator: torch.Generator | None = None,
    on_infeasible: OnInfeasible = "raise",
    **options: Any,
) -> bool:
    check_on_infeasible(on_infeasible)
    relaxation_options = without_instance_data(oracle, _without_tensor_temperature(options))
    if any(option is UNKNOWN_TENSOR for option in relaxation_options.values()):
        return False  # the relaxation cannot be created before the value of the tensor option is known
    return generator is None and not resolve(oracle, relaxation, relaxation_options)[1].is_stochastic


@public_call(operator=OperatorSpec(_mean_like, _is_deterministic), functorch=True)
def relax(
    theta: PartsT,
    oracle: str | Oracle,
    relaxation: str | Relaxation = "sparsemap",
    *,
    generator: torch.Generator | None = None,
    on_infeasible: OnInfeasible = "raise",
    **options: Any,
) -> PartsT:
    """Return the relaxed structure μ(θ) = argmax ⟨θ, μ⟩ − Ω(μ) over μ ∈ conv(Y), differentiable in θ.

    Y is the oracle's set of structures, conv(Y) is the convex hull of Y, and Ω is the relaxation's regularizer.
    Surrogate relaxations (``"straight_through"``, ``"imle"``, ...) instead return structures of highest score, with a
    substitute for their derivative 0.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of them
        Scores θ of the parts in floating point, with any number of leading batch dimensions; −inf forbids a part.
        The class of the oracle documents the event shapes, and whether θ is a tensor or a tuple. Inside a tuple,
        the batch shares a tensor with no batch dimensions or with batch dimensions of size 1.
    oracle : str or Oracle
        The set of structures: an object, or a name. :func:`list_oracles` lists the built-in names with their classes.
        The parameters of a class are the oracle's options.
    relaxation : str or Relaxation
        The map from θ to μ: an object, or a name. :func:`list_relaxations` lists the built-in names with their
        classes. The parameters of a class are the relaxation's options.
    generator : torch.Generator, optional
        The source of all noise, on the device of θ. If None, noise comes from torch's default generator.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or return zeros for the
        instance, with gradient 0. The results of the other instances are the same in both cases.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle or a relaxation given by
        name. An object already has its options.

    Returns
    -------
    (..., *event) Tensor, or tuple of them
        μ in the form and dtype of θ, with the full batch shape. A relaxation with the option ``reduction="none"``
        adds a dimension of samples in front of the batch.

    Raises
    ------
    InvalidInputError
        If θ holds NaN or +inf, a shape is wrong, or lengths are out of range. It is a ValueError.
    InfeasibleError
        If an instance has no structure of finite score, with ``on_infeasible="raise"``. It is a ValueError with the
        attribute ``batch_index``.
    UnsupportedError
        If the relaxation does not support the oracle. It is a TypeError, and its message lists supported relaxations.
    UnknownNameError
        If no oracle or relaxation has the name.
    TypeError
        If neither the oracle nor the relaxation has an option.

    Examples
    --------
    >>> import torch
    >>> relax(
    ...     torch.tensor([[1.0, 0.0], [0.0, 0.5]]), "assignment", "sparsemap"
    ... )
    tensor([[0.8750, 0.1250],
            [0.1250, 0.8750]])
    """
    resolved, problem = prepare(RELAXATIONS, theta, oracle, relaxation, options, on_infeasible)
    solve = functools.partial(_mean, resolved.with_generator(generator))
    return cast(PartsT, problem.solve_feasible(solve, generator=generator, draws=resolved.is_stochastic))


def _mean(relaxation: Relaxation, problem: Problem) -> Parts:
    with problem.plain_modes(defers_checks=relaxation.defers_checks(problem.oracle)):
        mean = relaxation.mean(problem.oracle, problem.theta)
    return problem.restore_parts(mean, relaxation.sample_ndim)


@public_call
def infer(
    theta: Parts,
    oracle: str | Oracle,
    relaxation: str | Relaxation = "sparsemap",
    *,
    warm_start: Solution | CachedSupports | None = None,
    generator: torch.Generator | None = None,
    on_infeasible: OnInfeasible = "raise",
    **options: Any,
) -> Solution:
    """Return the relaxed structure together with its value, support, weights and convergence record.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of them
        Scores of the parts, as for :func:`relax`; −inf forbids a part.
    oracle : str or Oracle
        The set of structures: an object, or a name of :func:`list_oracles`, with its options.
    relaxation : str or Relaxation
        The map from θ to μ: an object, or a name of :func:`list_relaxations`, with its options.
    warm_start : Solution, or result of SupportCache.select, optional
        An earlier solution for scores of the same shape and the same instance data, or the supports of the same
        examples from a :class:`SupportCache`. Iterative relaxations start from the support; other relaxations raise
        UnsupportedError.
    generator : torch.Generator, optional
        The source of all noise, on the device of θ. If None, noise comes from torch's default generator.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or return the mean 0 and
        the value −inf for the instance. The field ``infeasible`` of the solution then marks the instance.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle or a relaxation given by
        name.

    Returns
    -------
    Solution
        The mean μ of :func:`relax`, and the fields of :class:`Solution`. Support and weights may differ between
        machines if several supports have the same mean; see :attr:`Solution.support`.

    Raises
    ------
    InvalidInputError, InfeasibleError, UnsupportedError, UnknownNameError, TypeError
        In the same cases as :func:`relax`.

    Examples
    --------
    >>> import torch
    >>> sol = infer(
    ...     torch.tensor([[1.0, 0.0], [0.0, 0.5]]), "assignment", "sparsemap"
    ... )
    >>> sol.weights
    tensor([0.8750, 0.1250])
    """
    solution, differentiable = _solve_problem(theta, oracle, relaxation, warm_start, generator, on_infeasible, options)
    make = solution.make_support
    return dataclasses.replace(
        solution, **differentiable, make_support=None if make is None else functorch_compatible(make)
    )


@functorch_compatible
def _solve_problem(
    theta: Parts,
    oracle: str | Oracle,
    relaxation: str | Relaxation,
    warm_start: Solution | CachedSupports | None,
    generator: torch.Generator | None,
    on_infeasible: OnInfeasible,
    options: dict[str, Any],
) -> tuple[Solution, dict[str, Any]]:
    """Return the solution, and a dict of its differentiable fields for :func:`functorch_compatible` to track."""
    resolved, problem = prepare(RELAXATIONS, theta, oracle, relaxation, options, on_infeasible)
    solve = functools.partial(_solution, resolved.with_generator(generator), warm_start)
    solution = problem.solve_feasible(solve, generator=generator, draws=resolved.is_stochastic)
    return solution, {"mean": solution.mean, "value": solution.value, "weights": solution.weights}


def _solution(relaxation: Relaxation, warm_start: Solution | CachedSupports | None, problem: Problem) -> Solution:
    with problem.plain_modes(defers_checks=relaxation.solve_defers_checks(problem.oracle)):
        start = None if warm_start is None else _flat_support(warm_start, problem)
        solution = relaxation.solve(problem.oracle, problem.theta, start)
    restored = solution.with_batch_shape(
        problem.restore, problem.restore_parts, problem.whole_oracle, relaxation.sample_ndim
    )
    return dataclasses.replace(restored, infeasible=problem.infeasible())


@public_call
def restrict(theta: PartsT, oracle: str | Oracle, allowed: Any, **options: Any) -> PartsT:
    """Return the scores ``theta`` with −inf for all parts that are not allowed.

    Any call with the restricted scores then uses only allowed structures: forced decoding, a prefix that the best
    structure must continue, or the probability of a set of structures.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of them
        Scores of the parts, as for :func:`relax`.
    oracle : str or Oracle
        The set of structures: an object, or a name of :func:`list_oracles`, with its options.
    allowed : bool Tensor, tuple of bool Tensors or None, or integer Tensor
        Masks in the form of θ, True for allowed parts, whose batch dimensions broadcast to the batch dimensions of θ.
        In a tuple, None allows all parts. If θ is a tuple, a single mask belongs to its first tensor: for a chain, the
        set of allowed tags of each token. Alternatively, integer labels as for :func:`encode`, with −1 for unknown
        labels, for oracles whose labels choose one part each (``Oracle.allowed_parts``).
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.

    Returns
    -------
    (..., *event) Tensor, or tuple of them
        The scores, with the gradient 0 for parts that are not allowed. Masks of several instances turn a tensor shared
        by the batch into a tensor for each instance.

    Raises
    ------
    InvalidInputError
        If the masks or labels have a wrong shape, or a label is invalid.
    UnsupportedError
        If the oracle takes no unknown labels.
    TypeError
        If ``allowed`` is a tensor of floating-point numbers.

    Examples
    --------
    The best three tags, and the best three tags that start with tag 1:

    >>> import torch
    >>> unary = torch.tensor([[0.3, 0.0], [0.5, 0.0], [0.0, 0.3]])
    >>> theta = unary, torch.eye(2)
    >>> decode(relax(theta, "chain", "map"), "chain")
    tensor([0, 0, 0])
    >>> prefix = torch.tensor([1, -1, -1])
    >>> restricted = restrict(theta, "chain", prefix)
    >>> decode(relax(restricted, "chain", "map"), "chain")
    tensor([1, 1, 1])
    """
    problem = prepare_oracle(theta, oracle, options)
    problem.finish_checks()
    with problem.numbering():
        return cast(PartsT, restrict_scores(problem, theta, allowed_masks(problem, allowed)))


@public_call
def encode(labels: Tensor, like: PartsT, oracle: str | Oracle, **options: Any) -> PartsT:
    """Return the structure described by integer labels, in the form of the scores ``like``.

    Parameters
    ----------
    labels : (..., *label dims) integer Tensor
        Labels in the format of the oracle's class: for example tags, head indices or column indices. Values in the
        padding are ignored.
    like : (..., *event) Tensor, or tuple of them
        Scores θ, or any tensors of the shapes and dtypes of θ.
    oracle : str or Oracle
        The set of structures: an object, or a name of :func:`list_oracles`, with its options.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.

    Returns
    -------
    (..., *event) Tensor, or tuple of them
        The structure in the form and dtype of ``like``.

    Raises
    ------
    InvalidInputError
        If the labels have a wrong shape or describe no structure.
    UnsupportedError
        If the oracle has no integer labels.
    TypeError
        If ``labels`` is not a tensor of integers.

    Examples
    --------
    >>> import torch
    >>> encode(torch.tensor([1, 0]), torch.zeros(2, 2), "assignment")
    tensor([[0., 1.],
            [1., 0.]])
    """
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        received = f"a tensor of {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels must be a tensor of integers, got {received}")
    with blame_argument("like"):
        problem = prepare_oracle(like, oracle, options)
        problem.finish_checks()
    with problem.numbering():
        return cast(PartsT, problem.restore_parts(encode_labels(problem, labels, "labels")))


def _labels_like(y: Parts, oracle: str | Oracle, **options: Any) -> Tensor:
    y = list_to_tuple(y)
    found = get_oracle(oracle, **without_instance_data(oracle, options))
    batch, events = argument_shapes(y, found)
    with without_fake_tensors():
        # The shape of the labels depends on the shape of the structure alone.
        zeros = [torch.zeros(1, *map(int, event), device="cpu") for event in events]
        one = found.bind(**found.data_on_cpu())[:1]
        labels = one.decode(one.argmax(pack_like(zeros, y)))
    return as_tuple(y)[0].new_empty((*batch, *labels.shape[1:]), dtype=labels.dtype)


@public_call(operator=OperatorSpec(_labels_like, returns_one_tensor=True), functorch=True)
def decode(y: Parts, oracle: str | Oracle, **options: Any) -> Tensor:
    """Return the integer labels of structures, the inverse of :func:`encode`.

    Parameters
    ----------
    y : (..., *event) Tensor, or tuple of them
        Structures in floating point, in the form of the scores θ.
    oracle : str or Oracle
        The set of structures: an object, or a name of :func:`list_oracles`, with its options.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.

    Returns
    -------
    (..., *label dims) integer Tensor
        Labels in the format of the oracle's class; −1 in the padding.

    Raises
    ------
    UnsupportedError
        If the oracle has no integer labels.
    InvalidInputError
        If ``y`` is no structure, such as a mean of several structures.
    TypeError
        If ``y`` is a tensor of integers or booleans.

    Examples
    --------
    >>> import torch
    >>> decode(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), "assignment")
    tensor([1, 0])
    """
    if isinstance(y, Tensor) and not y.is_floating_point():
        raise TypeError(f"y must be a structure in floating point, got {y.dtype}; call .float() first")
    with blame_argument("y"):
        problem = prepare_oracle(y, oracle, options)
        problem.finish_checks()
    with problem.numbering():
        flat = structures_to_decode(problem, y, "y")
        problem.finish_checks()
        labels = problem.oracle.decode(flat)
        return problem.restore(labels[:, :0] if problem.has_size_0 else labels, fill=PADDING)


def _flat_support(warm_start: Solution | CachedSupports, problem: Problem) -> Parts | None:
    """Return the structures of a warm start, (K, B, *event), for the instances of the problem."""
    if isinstance(warm_start, CachedSupports):
        if warm_start.examples.shape != problem.batch_shape:
            raise InvalidInputError(
                f"warm_start: the examples have shape {tuple(warm_start.examples.shape)}, and theta has the batch "
                f"shape {tuple(problem.batch_shape)}; pass a number for each instance to SupportCache.select"
            )
        support = warm_start.structures(problem.whole_oracle, problem.theta, problem.event_shapes)
    else:
        support = _support_of(warm_start, problem)
    if support is None or problem.has_size_0:
        return None
    if len(as_tuple(support)) != len(as_tuple(problem.theta)):
        raise InvalidInputError(
            f"warm_start: the structures of the solution have {len(as_tuple(support))} tensors, and theta has "
            f"{len(as_tuple(problem.theta))}; pass a solution for scores of the same form"
        )
    return map_parts(lambda t, like: _flat_structures(t, like, problem), support, problem.theta)


def _flat_structures(t: Tensor, like: Tensor, problem: Problem) -> Tensor:
    count, event = problem.batch_shape.numel(), like.shape[1:]
    if t.shape[1:] not in (problem.batch_shape + event, (count, *event)):
        raise InvalidInputError(
            f"warm_start: the structures of the solution have shape {tuple(t.shape[1:])}, and theta needs shape "
            f"{tuple(problem.batch_shape + event)}; pass a solution for scores of the same shape"
        )
    flattened = t.detach().to(like).reshape(len(t), count, *event)
    return flattened if problem.solved is None else problem.solved.select(flattened, 1)


def _support_of(warm_start: Solution, problem: Problem) -> Parts:
    if not isinstance(warm_start, Solution):
        raise TypeError(
            f"warm_start must be a Solution, as infer returns it, a SupportCache.select(...), or None, got "
            f"{type(warm_start).__name__}; pass the result of an earlier infer"
        )
    support = warm_start.support
    if support is None:
        raise InvalidInputError(
            "warm_start: the solution has no support; pass the solution of an iterative relaxation, such as sparsemap"
        )
    if warm_start.oracle is not None and not same_instances(warm_start.oracle, problem.whole_oracle):
        raise InvalidInputError(
            "warm_start: the solution belongs to an oracle with other options or instance data (lengths), so its "
            f"structures may be invalid here; got a solution of {warm_start.oracle!r}, and the call has "
            f"{problem.oracle!r}"
        )
    return support


def same_instances(a: Oracle, b: Oracle) -> bool:
    """Return whether two oracles have equal options and equal instance data, and therefore the same structures."""
    if type(a) is not type(b) or a.bound.keys() != b.bound.keys():
        return False
    has_equal_options = a is b or (dataclasses.is_dataclass(a) and a == b)
    if not has_equal_options and option_key(a).digest != option_key(b).digest:
        return False
    return all(
        t.shape == b.bound[key].shape and bool((t.to(b.bound[key].device) == b.bound[key]).all())
        for key, t in a.bound.items()
    )
