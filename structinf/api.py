"""The public calls: relax, infer, encode, decode, and the two registries."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from .compiling import untraced
from .errors import InvalidInputError, PluginError, UnsupportedError
from .oracle import Oracle
from .parts import Potentials, as_tuple, map_parts
from .problem import Problem, mask_hint, renamed
from .registry import Registry, did_you_mean
from .relaxation import Relaxation
from .solution import Solution

__all__ = [
    "bind_problem",
    "check_supported",
    "decode",
    "encode",
    "get_oracle",
    "get_relaxation",
    "infer",
    "list_oracles",
    "list_relaxations",
    "prepare_oracle",
    "register_oracle",
    "register_relaxation",
    "relax",
    "resolve",
    "works_with",
]

_oracles: Registry[Oracle] = Registry("oracle", Oracle, "structinf.oracles")
_relaxations: Registry[Relaxation] = Registry("relaxation", Relaxation, "structinf.relaxations")


def register_oracle(name: str, factory: Callable[..., Oracle] | None = None) -> Any:
    """Register an oracle class under ``name``; a decorator, or a call with the class.

    Parameters
    ----------
    name : str
    factory : type or callable, optional
        Makes the oracle from its options.

    Raises
    ------
    PluginError
        If the name is taken by another class.
    """
    return _oracles.register(name, factory)  # type: ignore[arg-type]


def register_relaxation(name: str, factory: Callable[..., Relaxation] | None = None) -> Any:
    """Register a relaxation class under ``name``; a decorator, or a call with the class."""
    return _relaxations.register(name, factory)  # type: ignore[arg-type]


def list_oracles() -> list[str]:
    """Names of all oracles, built in, installed as plugins or registered at run time."""
    return _oracles.names()


def list_relaxations() -> list[str]:
    """Names of all relaxations."""
    return _relaxations.names()


def get_oracle(oracle: str | Oracle, **options: Any) -> Oracle:
    """The oracle called ``oracle``, made with ``options``; an object is returned as it is.

    Raises
    ------
    UnknownNameError
        If nothing has this name; the message lists close and known ones.
    TypeError
        If the oracle has no such option.
    PluginError
        If its plugin cannot be loaded, or two distributions declare the name.

    Examples
    --------
    >>> get_oracle("arborescence", single_root=True)
    Arborescence(single_root=True)
    """
    return _oracles.get(oracle, **options)


def get_relaxation(relaxation: str | Relaxation, **options: Any) -> Relaxation:
    """The relaxation called ``relaxation``, made with ``options``; an object is returned as it is.

    Examples
    --------
    >>> get_relaxation("marginals", temperature=0.5)
    Marginals(temperature=0.5)
    """
    return _relaxations.get(relaxation, **options)


def resolve(
    oracle: str | Oracle, relaxation: str | Relaxation, options: Mapping[str, Any]
) -> tuple[Oracle, Relaxation]:
    """Both objects, each option handed to whichever of the two named ones has it, and checked to fit.

    Raises
    ------
    TypeError
        If neither has an option, or both do.
    UnsupportedError
        If the oracle lacks what the relaxation needs.
    """
    known = [
        _oracles.options(oracle) if isinstance(oracle, str) else [],
        _relaxations.options(relaxation) if isinstance(relaxation, str) else [],
    ]
    shares: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for key, value in options.items():
        owners = [i for i in (0, 1) if key in known[i]]
        if len(owners) == 2:
            raise TypeError(
                f"both {oracle} and {relaxation} have an option {key!r}; pass get_oracle(...) or get_relaxation(...)"
            )
        if not owners:
            raise TypeError(_unknown_option(key, oracle, relaxation, options, known))
        shares[owners[0]][key] = value
    found = _oracles.get(oracle, **shares[0]), _relaxations.get(relaxation, **shares[1])
    check_supported(*found)
    return found


def _unknown_option(
    key: str, oracle: str | Oracle, relaxation: str | Relaxation, options: Mapping[str, Any], known: list[list[str]]
) -> str:
    """What to say about a keyword that neither the oracle nor the relaxation takes."""
    data = _instance_data(oracle, options)
    if key in data:
        return f"{key!r} is instance data, which goes with the potentials: layer(theta, {key}=...)"
    takes = [
        f"{item} has {', '.join(names) or 'none'}" if isinstance(item, str) else f"{item!r} has its own already"
        for item, names in zip((oracle, relaxation), known, strict=True)
    ]
    hint = did_you_mean(key, [*known[0], *known[1], *data]) or mask_hint(key, data)
    return f"there is no option {key!r} ({'; '.join(takes)}; instance data: {', '.join(data) or 'none'}){hint}"


def check_supported(oracle: Oracle, relaxation: Relaxation) -> None:
    """Raise UnsupportedError, saying what is missing and what works instead, unless the two fit."""
    missing = relaxation.missing(oracle)
    if missing is not None:
        others = [name + " with default options" * (name == relaxation.name) for name in works_with(oracle)]
        raise UnsupportedError(
            f"{relaxation.label()} does not work for {oracle.label()}: {missing}. "
            f"These relaxations do: {', '.join(others) or 'none'}"
        )


def works_with(oracle: Oracle) -> list[str]:
    """Names of the relaxations, with default options, that ``oracle`` can have."""
    return [name for name in _relaxations.names() if _default_works(name, oracle)]


def _default_works(name: str, oracle: Oracle) -> bool:
    try:
        parameters = inspect.signature(_relaxations.factory(name)).parameters.values()
    except PluginError:
        return False  # a broken plugin fails when it is asked for, and here another one was
    if any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return False  # needs arguments of its own
    return _relaxations.get(name).missing(oracle) is None


def bind_problem(theta: Any, oracle: Oracle, structure: Mapping[str, Any]) -> Problem:
    """Validate potentials and instance data and flatten their batch (see :class:`structinf.problem.Problem`)."""
    return Problem.build(theta, oracle, structure)


@untraced
def relax(
    theta: Potentials, oracle: str | Oracle, relaxation: str | Relaxation = "sparsemap", **options: Any
) -> Potentials:
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
    **options
        Instance data of the oracle (``lengths=...``), and options of whatever was given by name.

    Returns
    -------
    (..., *event) Tensor, or tuple of them
        In θ's form and dtype, with the full batch.

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
    found, problem = _prepare(theta, oracle, relaxation, options)
    with problem.plain_modes():
        mean = found.mean(problem.oracle, problem.theta)
    return problem.restore_parts(mean)


@untraced
def infer(
    theta: Potentials,
    oracle: str | Oracle,
    relaxation: str | Relaxation = "sparsemap",
    *,
    warm_start: Solution | None = None,
    **options: Any,
) -> Solution:
    """As :func:`relax`, with everything else that is known about the solution.

    Parameters
    ----------
    theta, oracle, relaxation, **options
        As for :func:`relax`.
    warm_start : Solution, optional
        An earlier solution for potentials of the same shape; iterative relaxations start from its support.

    Returns
    -------
    Solution
        mean, value, support, weights, gap, converged, oracle_calls.

    Examples
    --------
    >>> import torch
    >>> sol = infer(torch.tensor([[1.0, 0.0], [0.0, 0.5]]), "assignment", "sparsemap")
    >>> sol.weights
    tensor([0.8750, 0.1250])
    """
    found, problem = _prepare(theta, oracle, relaxation, options)
    with problem.plain_modes():
        start = None if warm_start is None else _flat_support(warm_start, problem)
        solution = found.solve(problem.oracle, problem.theta, start)
    return solution.restored(problem.restore, problem.restore_parts, problem.oracle)


def encode(labels: Tensor, like: Potentials, oracle: str | Oracle, **options: Any) -> Potentials:
    """The structure that integer labels describe, in the form of potentials ``like``.

    Parameters
    ----------
    labels : (..., *label dims) integer Tensor
        Tags, head indices, column indices, as the oracle documents; values in the padding are ignored.
    like : (..., *event) Tensor, or tuple of them
    oracle, **options
        As for :func:`relax`.

    Examples
    --------
    >>> import torch
    >>> encode(torch.tensor([1, 0]), torch.zeros(2, 2), "assignment")
    tensor([[0., 1.],
            [1., 0.]])
    """
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        came = f"a tensor of {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels: a tensor of integers is needed, got {came}")
    with renamed("like"):
        problem = prepare_oracle(like, oracle, options)
    return problem.restore_parts(problem.encode(labels, "labels"))


def decode(y: Potentials, oracle: str | Oracle, **options: Any) -> Tensor:
    """Integer labels of structures ``y`` (..., *event); the inverse of :func:`encode`, −1 in the padding.

    Examples
    --------
    >>> import torch
    >>> decode(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), "assignment")
    tensor([1, 0])
    """
    if isinstance(y, Tensor) and not y.is_floating_point():
        raise TypeError(f"y: a structure in floating point is needed, got {y.dtype}; call .float() first")
    with renamed("y"):
        problem = prepare_oracle(y, oracle, options)
    flat = problem.flatten_parts(y, "y")
    return problem.restore(problem.oracle.decode(flat))


# ----------------------------------------------------------------------------- shared steps


def _prepare(
    theta: Any, oracle: str | Oracle, relaxation: str | Relaxation, options: dict[str, Any]
) -> tuple[Relaxation, Problem]:
    names = _instance_data(oracle, options)
    structure = {key: options.pop(key) for key in list(options) if key in names}
    found_oracle, found = resolve(oracle, relaxation, options)
    return found, Problem.build(theta, found_oracle, structure)


def _instance_data(oracle: str | Oracle, options: Mapping[str, Any]) -> list[str]:
    """Names of the instance data that the oracle takes."""
    if isinstance(oracle, str):
        factory = _oracles.factory(oracle)
        if not inspect.isclass(factory):  # a function: what it makes may depend on its options
            factory = _oracles.get(oracle, **{k: v for k, v in options.items() if k in _oracles.options(oracle)})
        return list(factory.structure_ndim)  # type: ignore[attr-defined]
    if isinstance(oracle, Tensor | tuple | list):
        raise TypeError(
            f"oracle: a name or Oracle object is needed, got a {type(oracle).__name__}; potentials come first, then "
            "the oracle"
        )
    return list(_oracles.get(oracle).structure_ndim)


def prepare_oracle(theta: Any, oracle: str | Oracle, options: dict[str, Any]) -> Problem:
    """:func:`bind_problem` with an oracle by name or as an object; ``options`` are its own and its instance data."""
    names = _instance_data(oracle, options)
    known = [key for key in _oracles.options(oracle) if key not in names] if isinstance(oracle, str) else []
    found = _oracles.get(oracle, **{key: options.pop(key) for key in list(options) if key in known})
    return Problem.build(theta, found, options)


def _flat_support(warm_start: Solution, problem: Problem) -> Potentials:
    support = warm_start.support
    if support is None:
        raise InvalidInputError("warm_start: this solution has no support; take one of an iterative relaxation")
    if warm_start.oracle is not None and not _same_instances(warm_start.oracle, problem.oracle):
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


def _same_instances(a: Oracle, b: Oracle) -> bool:
    """Whether two oracles have the same options and the same instance data, so that their sets of structures agree."""
    if type(a) is not type(b) or (dataclasses.is_dataclass(a) and a != b) or a.bound.keys() != b.bound.keys():
        return False
    return all(
        t.shape == b.bound[key].shape and bool((t.to(b.bound[key].device) == b.bound[key]).all())
        for key, t in a.bound.items()
    )
