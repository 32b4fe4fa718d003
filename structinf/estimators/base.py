"""What an estimator of expectations is: weighted structures whose sum over f estimates E[f(Y)], gradient and all."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..calls.problem import Problem
from ..errors import InvalidInputError, PluginError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, pack_like
from ..registry import Registry
from ..relaxation import missing_ability_reason
from ..shapes import Float
from .weighted_structures import FunctionValues, WeightedStructures

__all__ = ["ESTIMATORS", "Estimator"]


class Estimator(nn.Module, abc.ABC):
    """A choice of structures y_i and weights w_i(θ), given an oracle and potentials: Σ w_i f(y_i) estimates E[f(Y)].

    Subclasses are modules whose constructors take options alone, keyword-only; state, if any, is in buffers.

    Attributes
    ----------
    requires : tuple of type
        The abilities that the oracle must have.
    name : str
        The name under which the estimator was registered, for messages.
    has_state : bool
        Whether it keeps what it has seen, which is lost on one that is made anew, by name, for each call.
    """

    requires: ClassVar[tuple[type[Oracle], ...]] = ()
    name: ClassVar[str] = ""
    has_state: bool = False

    @abc.abstractmethod
    def weighted_structures(
        self, oracle: Oracle, theta: Parts, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        """Return the structures at which f is evaluated, with differentiable weights.

        Laws, for the distribution of Y that the estimator documents and every f: Σ w_i f(y_i) estimates E[f(Y)], and
        Σ f(y_i) ∇w_i estimates its gradient in θ. The structures are sorted by instance, and the structures of an
        instance are distinct. Apart from random draws, they do not depend on the rest of the batch.

        Parameters
        ----------
        theta : (B | 1, *event) Parts
            Flat, in full precision.
        generator : torch.Generator, optional
            The only source of randomness, if given.
        """

    def control_variate(self, found: FunctionValues) -> Tensor | None:
        """b (N,), for Σ (f(y_i) − b_i) ∇w_i as the gradient's estimate, which may vary less; None for 0.

        Law: Σ b_i ∇w_i is 0 in expectation.
        """
        return None

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        """Why this estimator cannot work over ``oracle``, in a clause; None if it can."""
        return next(filter(None, (missing_ability_reason(oracle, ability) for ability in self.requires)), None)

    def label(self) -> str:
        """How messages call this estimator."""
        return self.name or type(self).__name__

    def forward(
        self,
        f: Callable[..., Tensor],
        problem: Problem,
        inputs: Sequence[Tensor] = (),
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " batch"]:
        """The estimate for a flat batch, (B,): :func:`structinf.expect` is the way to call it."""
        rows = [_flat(x, f"inputs[{i}]", problem) for i, x in enumerate(inputs)]
        with problem.plain_modes():
            terms = self.weighted_structures(problem.oracle, problem.theta, generator)
        if not isinstance(terms, WeightedStructures):
            raise PluginError(
                f"weighted_structures() of {self.label()} must return "
                f"structinf.estimators.WeightedStructures, got {type(terms).__name__}"
            )
        values = _evaluate(f, terms, problem, rows)
        b = self.control_variate(FunctionValues(terms, values.detach(), problem, tuple(inputs)))
        w = terms.weights
        summands = w * values
        if b is not None:
            # 0, with the gradient −b ∇w; and, where b is learnt, 0 with the gradient that it asked for.
            fixed = b.detach()
            summands = summands - (w - w.detach()) * fixed + w.detach() * (b - fixed)
        return terms.sum(summands)


ESTIMATORS: Registry[Estimator] = Registry("estimator", Estimator, "structinf.estimators")


def _flat(x: Any, name: str, problem: Problem) -> Tensor:
    batch = problem.batch_shape
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: a tensor is needed, got {type(x).__name__}")
    if x.shape[: len(batch)] != batch:
        raise InvalidInputError(
            f"{name}: its shape must start with the batch shape of theta, {tuple(batch)}, got {tuple(x.shape)}"
        )
    return x.reshape(batch.numel(), *x.shape[len(batch) :])


def _evaluate(f: Callable[..., Tensor], terms: WeightedStructures, problem: Problem, rows: Sequence[Tensor]) -> Tensor:
    """f at all structures, (N,), on the weights' device; nothing is called for none."""
    count = len(terms.instance)
    if not count:
        return terms.weights.new_zeros(0)
    tensors = [t.to(dtype) for t, dtype in zip(as_tuple(terms.structures), problem.dtypes, strict=True)]
    values: Any = f(pack_like(tensors, problem.theta), *(x.index_select(0, terms.instance.to(x.device)) for x in rows))
    w = terms.weights
    if isinstance(values, Tensor) and values.shape == (count,) and not values.is_complex():
        return values.to(w.device, torch.promote_types(values.dtype, w.dtype))
    received = f"one of shape {tuple(values.shape)} and {values.dtype}" if isinstance(values, Tensor) else repr(values)
    raise InvalidInputError(
        f"f: it is given the {count} structures of the whole batch at once and must return a real number for each, a "
        f"tensor of shape ({count},), got {received[:80]}"
    )
