"""latent: a model through a discrete latent structure, by any relaxation, surrogate or estimator, chosen by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..api import relax
from ..calls.problem import Problem
from ..calls.resolution import prepare, refuse_name, resolve_in
from ..compile.public_call import public_call
from ..errors import InvalidInputError, UnknownNameError
from ..oracle import Oracle
from ..parts import as_tuple, map_parts
from ..registry import Registry, did_you_mean
from ..relaxation import RELAXATIONS, Relaxation, inner_modules, register_parameters, with_parameters_of
from ..shapes import Float
from ..transitions import TransitionSystem
from .base import ESTIMATORS, Estimator, evaluate, flat_rows
from .expectation import expect
from .weighted_structures import WeightedStructures

__all__ = ["Latent", "Method", "evaluate_relaxed", "find_method", "latent", "list_methods", "value_at"]

Method: TypeAlias = str | Relaxation | Estimator
"""A name of :func:`list_methods`, or an object."""

_REGISTRIES: dict[str, Registry[Any]] = {"relax": RELAXATIONS, "expect": ESTIMATORS}
"""The registry of each prefix."""


def list_methods() -> list[str]:
    """Return the names of all methods of :func:`latent`: relaxations, surrogates and estimators.

    A name of a relaxation and of an estimator has the prefix "relax:" or "expect:".

    Examples
    --------
    >>> methods = list_methods()
    >>> "marginals" in methods, "expect:sparsemap" in methods
    (True, True)
    """
    names = {prefix: set(registry.names()) for prefix, registry in _REGISTRIES.items()}
    both = names["relax"] & names["expect"]
    found = [f"{prefix}:{name}" if name in both else name for prefix in names for name in names[prefix]]
    return sorted(found)


def find_method(method: Method) -> tuple[Registry[Any], Any]:
    """Return the registry of ``method``, and the method without the prefix of a name.

    Parameters
    ----------
    method : str, Relaxation or Estimator
        A name of :func:`list_methods`, or an object.
    """
    if isinstance(method, Relaxation):
        return RELAXATIONS, method
    if isinstance(method, Estimator):
        return ESTIMATORS, method
    if not isinstance(method, str):
        raise TypeError(
            f"method must be a name of list_methods(), a Relaxation or an Estimator, got {type(method).__name__}"
        )
    prefix, colon, name = method.partition(":")
    if colon and prefix in _REGISTRIES:
        return _REGISTRIES[prefix], name
    owners = [registry for registry in _REGISTRIES.values() if method in registry.names()]
    if len(owners) == 1:
        return owners[0], method
    if owners:
        raise InvalidInputError(
            f"method: {method!r} is the name of a relaxation and of an estimator; write 'relax:{method}' for g at the "
            f"relaxed structure, or 'expect:{method}' for the expectation of g"
        )
    known = list_methods()
    raise UnknownNameError(f"there is no method {method!r}{did_you_mean(method, known)} (known: {', '.join(known)})")


@public_call
def latent(
    g: Callable[..., Tensor],
    theta: Any,
    oracle: str | Oracle | TransitionSystem,
    method: Method,
    *,
    inputs: Tensor | Sequence[Tensor] = (),
    generator: torch.Generator | None = None,
    **options: Any,
) -> Float[Tensor, "*batch"]:
    """Evaluate g at a latent structure, by the method of your choice.

    A relaxation or a surrogate evaluates g at relaxed structures or at structures z, as g(relax(θ)). An estimator
    estimates E[g(Y)], as :func:`structinf.expect` does. Only the string ``method`` differs.

    Parameters
    ----------
    g : callable
        The function, called once as ``g(z, *rows)`` with all structures of all instances, stacked: z is (N, *event) in
        θ's form and dtype. g returns a real number for each structure, (N,). A relaxation needs a g that is defined and
        differentiable at means of structures, and a surrogate a g that is differentiable at structures. The other
        rules are those of :func:`structinf.expect`.
    theta : (*batch, *event) Tensor, or tuple of Tensors
        The scores, as for :func:`structinf.relax`. For a transition system, the inputs of its ``start``.
    oracle : str, Oracle or TransitionSystem
        The set of structures: an object, or a name of :func:`structinf.list_oracles`, with its options. A transition
        system works with the estimators of :func:`structinf.expect`.
    method : str, Relaxation or Estimator
        A name of :func:`list_methods`, or an object. A name shared by a relaxation and an estimator needs a prefix:
        "relax:sparsemap" is g at the mean of SparseMAP, and "expect:sparsemap" the mean of g under its weights.
    inputs : (*batch, ...) Tensor, or several
        Tensors used by g besides the structure. In the call of g, ``rows`` are (N, ...) tensors with the input of
        each structure's instance.
    generator : torch.Generator, optional
        The only source of randomness, on θ's device. By default torch's global generator.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle or a method given by name, for
        example ``temperature``.

    Returns
    -------
    (*batch) Tensor
        The values in θ's dtype. A relaxation or a surrogate with several samples returns the mean of g over its
        samples, instead of g at the mean of the samples.

    Raises
    ------
    UnsupportedError
        If the method does not support the oracle. The message lists supported methods of the same kind.
    UnknownNameError
        If no oracle or method has the name.
    InvalidInputError
        If the name of the method needs a prefix, if g does not return one number for each structure, and in the cases
        of :func:`structinf.relax` and :func:`structinf.expect`.

    References
    ----------
    Niculae, Corro, Nangia, Mihaylova & Martins 2023, Discrete Latent Structure in Neural Networks, Table 6.1.

    Examples
    --------
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]])
    >>> cost = torch.tensor([3.0, 1.0, 2.0])
    >>> g = lambda z: (z @ cost) ** 2
    >>> for method in ("marginals", "relax:sparsemap", "map", "exact"):
    ...     print(latent(g, theta, "subset", method, k=2))
    tensor([14.3675])
    tensor([14.0625])
    tensor([16.])
    tensor([14.7771])
    """
    registry, item = find_method(method)
    if registry is ESTIMATORS:
        return expect(g, theta, oracle, item, inputs=inputs, generator=generator, **options)
    _check_function(g, inputs)
    if isinstance(oracle, TransitionSystem):
        raise TypeError(
            f"method: a transition system needs an estimator, such as 'score_function', got the relaxation {item!r}"
        )
    relaxation, problem = prepare(RELAXATIONS, theta, oracle, item, options)
    return evaluate_relaxed(g, theta, relaxation, problem, inputs, generator)


def _check_function(g: Any, inputs: Any) -> None:
    if not callable(g):
        raise TypeError(f"g must be a function of structures, got {type(g).__name__}; pass g first, then theta")
    if not isinstance(inputs, Tensor | list | tuple):
        raise TypeError(f"inputs must be a tensor, or a list or tuple of tensors, got {type(inputs).__name__}")


def evaluate_relaxed(
    g: Callable[..., Tensor],
    theta: Any,
    relaxation: Relaxation,
    problem: Problem,
    inputs: Tensor | Sequence[Tensor],
    generator: torch.Generator | None,
) -> Tensor:
    """Return g at the relaxed structures, (*batch): the mean over the samples of a relaxation with samples.

    Parameters
    ----------
    g : callable
        The function of structures.
    theta : (*batch, *event) Tensor, or tuple of Tensors
        The scores.
    relaxation : Relaxation
        The relaxation.
    problem : Problem
        The batch of the scores.
    inputs : (*batch, ...) Tensor, or several
        Tensors used by g besides the structure.
    generator : torch.Generator, optional
        The only source of randomness.
    """
    separate = _with_separate_samples(relaxation)
    z = relax(theta, problem.whole_oracle, separate, generator=generator)
    return value_at(g, z, problem, inputs, separate.sample_ndim)


def value_at(
    g: Callable[..., Tensor], z: Any, problem: Problem, inputs: Tensor | Sequence[Tensor], sample_ndim: int = 0
) -> Tensor:
    """Return g at structures or means, averaged over the samples, (*batch).

    Parameters
    ----------
    g : callable
        The function of structures.
    z : (*samples, *batch, *event) Tensor, or tuple of Tensors
        The structures or means.
    problem : Problem
        The batch of the scores.
    inputs : (*batch, ...) Tensor, or several
        Tensors used by g besides the structure.
    sample_ndim : int
        The number of dimensions of samples.
    """
    batch, size = problem.batch_shape, problem.batch_shape.numel()
    given = (inputs,) if isinstance(inputs, Tensor) else inputs
    rows = [flat_rows(x, f"inputs[{i}]", batch) for i, x in enumerate(given)]
    front = as_tuple(z)[0].shape[:sample_ndim]
    samples = front.numel()
    flat = map_parts(lambda t: t.reshape(samples * size, *t.shape[len(front) + len(batch) :]), z)
    first = as_tuple(flat)[0]
    instance = torch.arange(size, device=first.device).repeat(samples)
    weights = first.new_full((samples * size,), 1 / max(samples, 1))
    terms = WeightedStructures(flat, instance, weights, torch.zeros_like(weights), size)
    values = evaluate(g, terms, flat, rows)
    return terms.sum(values * weights).view(batch).to(problem.dtypes[0])


def _with_separate_samples(relaxation: Relaxation) -> Relaxation:
    """Return the relaxation with separate samples, if it would return the mean of several samples."""
    if getattr(relaxation, "reduction", None) != "mean" or getattr(relaxation, "samples", 1) == 1:
        return relaxation
    if isinstance(relaxation, nn.Module) or not dataclasses.is_dataclass(relaxation):
        return relaxation
    return dataclasses.replace(relaxation, reduction="none")


class Latent(nn.Module):
    """A module that evaluates g at a latent structure with :func:`latent`.

    Options are fixed when the module is created. Estimators with a state, such as a learned baseline, keep it.

    Parameters
    ----------
    oracle : str, Oracle or TransitionSystem
        The set of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    method : str, Relaxation or Estimator
        A name of :func:`list_methods`, or an object.
    **options
        Options of an oracle or a method given by name. An object already has its options.

    Raises
    ------
    UnsupportedError, UnknownNameError, InvalidInputError
        In the cases of :func:`latent`.
    TypeError
        If neither the oracle nor the method has an option.

    Examples
    --------
    >>> import structinf as si
    >>> layer = Latent("subset", "marginals", k=2)
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]])
    >>> layer(lambda z: z.square().sum(1), theta)
    tensor([1.4235])

    A temperature that falls from 1 to 0.1 within 1000 steps:

    >>> temperature = nn.Parameter(torch.tensor(1.0), requires_grad=False)
    >>> layer = Latent("categorical", "marginals", temperature=temperature)
    >>> schedule = si.TemperatureSchedule(temperature, end=0.1, steps=1000)
    >>> value = layer(lambda z: z.square().sum(1), theta)
    >>> schedule.step()
    >>> print(f"{layer.temperature.item():.4f}")
    0.9977
    """

    def __init__(
        self,
        oracle: str | Oracle | TransitionSystem,
        method: Method,
        **options: Any,
    ) -> None:
        super().__init__()
        registry, item = find_method(method)
        if isinstance(oracle, TransitionSystem):
            self.oracle: Oracle | TransitionSystem = oracle
            self.method: Relaxation | Estimator = registry.get(item, **options)
        else:
            self.oracle, self.method = resolve_in(registry, oracle, item, options)
        if isinstance(self.method, Relaxation):
            register_parameters(self, self.method)
            if inner := inner_modules(self.method):
                self.inner = nn.ModuleList(inner)

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_name(name, value)
        super().__setattr__(name, value)

    def forward(
        self,
        g: Callable[..., Tensor],
        theta: Any,
        *,
        inputs: Tensor | Sequence[Tensor] = (),
        generator: torch.Generator | None = None,
        **instance_data: Any,
    ) -> Float[Tensor, "*batch"]:
        """Return the values of g, (*batch); see :func:`latent`.

        Parameters
        ----------
        g : callable
            The function of structures.
        theta : (*batch, *event) Tensor, or tuple of Tensors
            The scores.
        inputs : (*batch, ...) Tensor, or several
            Tensors used by g besides the structure.
        generator : torch.Generator, optional
            The only source of randomness. By default torch's global generator.
        **instance_data
            Instance data of the oracle, for example ``lengths``.
        """
        method = with_parameters_of(self, self.method) if isinstance(self.method, Relaxation) else self.method
        return latent(g, theta, self.oracle, method, inputs=inputs, generator=generator, **instance_data)

    def extra_repr(self) -> str:
        method = "" if isinstance(self.method, nn.Module) else f", method={self.method!r}"
        return f"oracle={self.oracle!r}{method}"
