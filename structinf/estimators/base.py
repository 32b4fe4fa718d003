"""Base class of estimators: weighted structures whose sum over f estimates E[f(Y)] and its gradient."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..calls.problem import Problem
from ..errors import InvalidInputError, PluginError, UnsupportedError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts, pack_like
from ..registry import Registry
from ..relaxation import missing_ability_reason
from ..shapes import Float
from ..transitions import TransitionSystem
from .row_check import check_rows, reads_rows
from .weighted_structures import FunctionValues, WeightedStructures

__all__ = ["ESTIMATORS", "Estimator", "evaluate", "flat_rows", "point_gradients"]


class Estimator(nn.Module, abc.ABC):
    """Structures y_i and weights w_i(θ) for an oracle and scores, such that Σ w_i f(y_i) estimates E[f(Y)].

    Subclasses are modules. Their constructors take only options, by keyword. Any state is in buffers.

    Attributes
    ----------
    requires : tuple of type
        The abilities required of the oracle.
    name : str
        The name under which the estimator was registered, for messages.
    search_terms : tuple of str
        Other names in the field, such as "reinforce". The error about an unknown name suggests the estimator for them.
    has_state : bool
        Whether the estimator keeps a state between calls. An estimator created by name for each call would lose it.
    """

    requires: ClassVar[tuple[type[Oracle], ...]] = ()
    name: ClassVar[str] = ""
    search_terms: ClassVar[tuple[str, ...]] = ()
    has_state: bool = False

    @abc.abstractmethod
    def weighted_structures(
        self, oracle: Oracle, theta: Parts, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        """Return the structures at which f is evaluated, with differentiable weights.

        Laws, for the distribution of Y documented by the estimator and for every f: Σ w_i f(y_i) estimates E[f(Y)],
        and Σ f(y_i) ∇w_i estimates the gradient of E[f(Y)] in θ. The structures are sorted by instance, and
        distinct within an instance. Apart from random draws, the structures of an instance do not depend on the
        rest of the batch.

        Parameters
        ----------
        oracle : Oracle
            The set Y of structures.
        theta : (B | 1, *event) Parts
            The scores, with one batch dimension, in float32 or float64.
        generator : torch.Generator, optional
            The only random generator, if given.
        """

    def control_variate(self, found: FunctionValues) -> Tensor | None:
        """Return a control variate b (N,) for the values ``found`` of f, or None for 0.

        The gradient is then estimated by Σ (f(y_i) − b_i) ∇w_i, which can have a lower variance. Law: the
        expectation of Σ b_i ∇w_i is 0.

        Parameters
        ----------
        found : FunctionValues
            The values of f at the structures.
        """
        return None

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        """Return why this estimator cannot work with ``oracle``, as a clause, or None if it can.

        Parameters
        ----------
        oracle : Oracle
            The set Y of structures.
        """
        return next(filter(None, (missing_ability_reason(oracle, ability) for ability in self.requires)), None)

    def label(self) -> str:
        """Return the name of this estimator in messages."""
        return self.name or type(self).__name__

    def forward(
        self,
        f: Callable[..., Tensor],
        problem: Problem,
        inputs: Sequence[Tensor] = (),
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " batch"]:
        """Return the estimate for a flat batch, (B,). Users call :func:`structinf.expect` instead.

        Parameters
        ----------
        f : callable
            Maps structures to a value for each structure, as for :func:`structinf.expect`.
        problem : Problem
            The oracle with the flattened scores.
        inputs : sequence of Tensor
            Batches passed to f along with the structures.
        generator : torch.Generator, optional
            The source of all samples.
        """
        rows = [flat_rows(x, f"inputs[{i}]", problem.batch_shape) for i, x in enumerate(inputs)]
        with problem.plain_modes():
            terms = self.weighted_structures(problem.oracle, problem.theta, generator)
        if not isinstance(terms, WeightedStructures):
            raise PluginError(
                f"weighted_structures() of {self.label()} must return "
                f"structinf.estimators.WeightedStructures, got {type(terms).__name__}"
            )
        structures = [t.to(dtype) for t, dtype in zip(as_tuple(terms.structures), problem.dtypes, strict=True)]
        values = evaluate(f, terms, pack_like(structures, problem.theta), rows)
        return self._weighted_sum(FunctionValues(terms, values.detach(), problem, tuple(inputs)), values)

    def weighted_sequences(
        self, system: TransitionSystem, inputs: Any, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        """Return the structures at which f is evaluated, as :meth:`weighted_structures`, for a transition system.

        Parameters
        ----------
        system : TransitionSystem
            The system, whose sequences of actions have the distribution of :class:`structinf.TransitionSystem`.
        inputs : any
            The inputs of the system's ``start``.
        generator : torch.Generator, optional
            The only random generator, if given.

        Raises
        ------
        UnsupportedError
            If the estimator has no method for transition systems.
        """
        known = [name for name in ESTIMATORS.names() if _has_sequences(ESTIMATORS.factory(name))]
        raise UnsupportedError(
            f"{self.label()} does not work for transition systems. Supported estimators: {', '.join(known)}"
        )

    def expect_sequences(
        self,
        f: Callable[..., Tensor],
        system: TransitionSystem,
        system_inputs: Any,
        inputs: Sequence[Tensor] = (),
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " batch"]:
        """Return the estimate for a transition system, (B,). Users call :func:`structinf.expect` instead.

        Parameters
        ----------
        f : callable
            Maps structures to a value for each structure, as for :func:`structinf.expect`.
        system : TransitionSystem
            The system.
        system_inputs : any
            The inputs of the system's ``start``.
        inputs : sequence of Tensor
            Batches passed to f along with the structures.
        generator : torch.Generator, optional
            The source of all samples.
        """
        terms = self.weighted_sequences(system, system_inputs, generator)
        rows = [flat_rows(x, f"inputs[{i}]", torch.Size([terms.batch])) for i, x in enumerate(inputs)]
        values = evaluate(f, terms, terms.structures, rows)
        return self._weighted_sum(FunctionValues(terms, values.detach(), None, tuple(inputs)), values)

    def _weighted_sum(self, found: FunctionValues, values: Tensor) -> Tensor:
        b, terms = self.control_variate(found), found.weighted_structures
        w = terms.weights
        summands = w * values
        if b is not None:
            # Both added terms are 0. The first has the gradient −b ∇w, and the second passes a gradient to a learned b.
            fixed = b.detach()
            summands = summands - (w - w.detach()) * fixed + w.detach() * (b - fixed)
        return terms.sum(summands)


ESTIMATORS: Registry[Estimator] = Registry("estimator", Estimator, "structinf.estimators")


def _has_sequences(factory: Callable[..., Estimator]) -> bool:
    method = getattr(factory, "weighted_sequences", None)
    return method is not None and method is not Estimator.weighted_sequences


def flat_rows(x: Any, name: str, batch: torch.Size) -> Tensor:
    """Return ``x`` (*batch, ...) as (B, ...). Errors name the argument ``name``."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.shape[: len(batch)] != batch:
        raise InvalidInputError(
            f"{name} must have a shape that starts with the batch shape of theta, {tuple(batch)}, got {tuple(x.shape)}"
        )
    return x.reshape(batch.numel(), *x.shape[len(batch) :])


def evaluate(f: Callable[..., Tensor], terms: WeightedStructures, structures: Parts, rows: Sequence[Tensor]) -> Tensor:
    """Return f at all N ``structures``, (N,), on the device of the weights; do not call f if N is 0."""
    count = len(terms.instance)
    if not count:
        return terms.weights.new_zeros(0)
    selected = [x.index_select(0, terms.instance.to(x.device)) for x in rows]
    # With one structure for each instance, rows of a tensor that f reads are in the order of the structures.
    must_check = count != terms.batch and reads_rows(f, count)
    try:
        values: Any = f(structures, *selected)
    except RuntimeError as error:
        if count == terms.batch or "must match" not in str(error):
            raise
        raise InvalidInputError(
            f"f raised an error for the {count} structures of {terms.batch} instances: {error}; if f reads a tensor of "
            "the batch, pass the tensor as inputs=..., so that f gets a row of it for each structure"
        ) from error
    w = terms.weights
    if isinstance(values, Tensor) and values.shape == (count,) and not values.is_complex():
        if must_check:
            check_rows(f, lambda i: f(map_parts(lambda t: t[i], structures), *(x[i] for x in selected)), count)
        return values.to(w.device, torch.promote_types(values.dtype, w.dtype))
    received = f"shape {tuple(values.shape)} and {values.dtype}" if isinstance(values, Tensor) else repr(values)
    raise InvalidInputError(
        f"f gets the {count} structures of the whole batch in one call and must return a real tensor of shape "
        f"({count},), one number for each structure; got {received[:80]}"
    )


def point_gradients(value: Tensor, points: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of ``value`` in the ``points``; 0 for a point on which the value does not depend."""
    if not value.requires_grad:
        return [torch.zeros_like(t) for t in points]
    found = torch.autograd.grad(value, points, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, points, strict=True)]
