"""The public calls: expect, and the registry of estimators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..calls.resolution import prepare
from ..compile.public_call import public_call
from ..errors import InvalidInputError
from ..oracle import Oracle
from ..parts import Parts
from ..shapes import Float
from ..validation import check_generator
from .base import ESTIMATORS, Estimator

__all__ = ["expect", "get_estimator", "list_estimators", "register_estimator"]


def register_estimator(name: str, factory: Callable[..., Estimator] | None = None) -> Any:
    """Register an estimator class under ``name``; a decorator, or a call with the class.

    Parameters
    ----------
    name, factory
        As for :func:`structinf.register_oracle`.
    """
    return ESTIMATORS.register(name, factory)  # type: ignore[arg-type]


def list_estimators() -> list[str]:
    """Names of all estimators.

    Examples
    --------
    >>> "score_function" in list_estimators()
    True
    """
    return ESTIMATORS.names()


def get_estimator(estimator: str | Estimator, **options: Any) -> Estimator:
    """The estimator called ``estimator``, made with ``options``; an object is returned as it is.

    Parameters
    ----------
    estimator, **options
        As for :func:`structinf.get_oracle`, which lists the errors.

    Examples
    --------
    >>> get_estimator("topk_sparsemax", k=5)
    TopKSparsemax(k=5, temperature=1.0)
    """
    return ESTIMATORS.get(estimator, **options)


@public_call
def expect(
    f: Callable[..., Tensor],
    theta: Parts,
    oracle: str | Oracle,
    estimator: str | Estimator = "exact",
    *,
    inputs: Tensor | Sequence[Tensor] = (),
    generator: torch.Generator | None = None,
    **options: Any,
) -> Float[Tensor, "*batch"]:
    """E[f(Y)] over random structures Y, differentiable in θ and in whatever f depends on.

    ================  ================================================  ==================================
    estimator         distribution of Y                                 of value and gradient
    ================  ================================================  ==================================
    exact             p(y) ∝ exp⟨θ, y⟩                                  exact
    score_function    the same                                          unbiased
    sum_and_sample    the same                                          unbiased, and varying less
    sparsemax         sparsemax of all scores ⟨θ, y⟩                    exact
    topk_sparsemax    sparsemax of the k highest scores                 exact
    sparsemap         weights of the SparseMAP solution                 exact
    perturbed         argmax ⟨θ + σU, y⟩ for noise U                    unbiased
    ================  ================================================  ==================================

    Parameters
    ----------
    f : callable
        Called once, as ``f(y, *rows)``, with all structures that have a weight, those of all instances stacked: y is
        (N, *event) in θ's form and dtype, and N varies from call to call. It returns a real number for each, (N,). Its
        own gradient is used if it has one, and none is needed: it may be a black box. Where there is nothing to
        evaluate, in the empty batch, it is not called.
    theta : (*batch, *event) Tensor, or tuple of them
        As for :func:`structinf.relax`; parts of −inf are used by no structure, and have a gradient of 0.
    oracle : str or Oracle
    estimator : str or Estimator
        A name of :func:`list_estimators`, or an object, which may have state and parameters.
    inputs : (*batch, ...) Tensor, or several
        What f depends on beside the structure: ``rows`` are the (N, ...) ones of the instances that the structures
        belong to.
    generator : torch.Generator, optional
        The only source of randomness, for estimators that sample; on θ's device. Torch's own one by default.
    **options
        Instance data of the oracle (``lengths=...``), and options of whatever was given by name.

    Returns
    -------
    (*batch) Tensor
        In θ's dtype.

    Raises
    ------
    UnsupportedError
        If the oracle cannot serve the estimator: a TypeError that says which ones it can.
    InvalidInputError
        If f returns anything but a number for each structure, an input has another batch than θ, or an estimator by
        name would forget what it learns; and as :func:`structinf.relax`.

    References
    ----------
    Niculae, Corro, Nangia, Mihaylova & Martins 2023, Discrete Latent Structure in Neural Networks, chapter 5.

    Examples
    --------
    The expected cost of a pair out of three elements, of which one is exactly so much, with three evaluations, and two:

    >>> theta, cost = torch.tensor([[1.0, 2.0, 0.5]]), torch.tensor([3.0, 1.0, 2.0])
    >>> expect(lambda y: y @ cost, theta, "subset", k=2)
    tensor([3.7905])
    >>> expect(lambda y: y @ cost, theta, "subset", "sparsemax", k=2)
    tensor([3.7500])
    """
    if not callable(f):
        raise TypeError(f"f: a function of structures is needed, got {type(f).__name__}; f comes first, then theta")
    check_generator(generator)
    found, problem = prepare(ESTIMATORS, theta, oracle, estimator, options)
    if isinstance(estimator, str) and found.has_state:
        raise InvalidInputError(
            f"estimator: {found.label()} with these options remembers what it has seen, and one given by name is made "
            "anew at each call; make it once with get_estimator(...) and pass the object"
        )
    return problem.restore(found(f, problem, (inputs,) if isinstance(inputs, Tensor) else tuple(inputs), generator))
