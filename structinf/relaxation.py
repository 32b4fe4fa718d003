"""The base classes of relaxations: maps from scores to a mean, with a gradient rule."""

from __future__ import annotations

import abc
import copy
import dataclasses
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from typing_extensions import Self

from . import autograd
from .errors import InvalidInputError, UnknownNameError, UnsupportedError
from .oracle import (
    EntropyProjectable,
    Factorized,
    GibbsOracle,
    KBest,
    Oracle,
    Projectable,
    Samplable,
    TransportPolytope,
)
from .parts import Parts, as_tuple, divide_by_temperature, map_parts, multiply_by_temperature
from .registry import Registry
from .shapes import Float
from .smoothing import Smoothable
from .solution import Solution
from .validation import check_generator, check_in_range

__all__ = [
    "RELAXATIONS",
    "GradientRelaxation",
    "RegularizedRelaxation",
    "Relaxation",
    "inner_modules",
    "missing_ability_reason",
    "noise_unsupported_reason",
    "register_parameters",
    "resolve_relaxation",
    "with_parameters_of",
    "zero_omega",
]

RelaxationT = TypeVar("RelaxationT", bound="Relaxation")

_ABILITY_METHODS: dict[type[Oracle], str] = {
    GibbsOracle: "log_partition(theta)",
    Samplable: "sample(theta, n, generator)",
    KBest: "topk(theta, k)",
    Projectable: "project(theta)",
    EntropyProjectable: "project_entropy(theta, binary=...)",
    Smoothable: "smoothed_value(theta, regularizer)",
    TransportPolytope: "margins(theta)",
    Factorized: "factorization()",
}


def missing_ability_reason(oracle: Oracle, ability: type[Oracle]) -> str | None:
    """Return the reason why ``oracle`` lacks ``ability``, as a clause of a message; None if it has the ability."""
    reason = oracle.unsupported.get(ability.__name__)
    if isinstance(oracle, ability) and reason is None:
        return None
    method = f", the method {_ABILITY_METHODS[ability]}" if ability in _ABILITY_METHODS else ""
    return f"{oracle.label()} lacks the ability {ability.__name__}{method}" + (f": {reason}" if reason else "")


def noise_unsupported_reason(oracle: Oracle, but: str = "") -> str | None:
    """Return the reason why the oracle does not support additive noise, with the alternative ``but``; else None."""
    if not oracle.requires_nonpositive_theta:
        return None
    return f"{oracle.label()} takes scores of at most 0, and additive noise makes scores positive" + (
        f"; {but} does not" if but else ""
    )


class Relaxation(abc.ABC):
    """A map from scores θ to a mean μ, over any oracle with the required ability.

    Subclasses are frozen dataclasses with options as fields, one file each in ``relaxations/``.

    Attributes
    ----------
    requires : type
        The ability that the oracle must have.
    name : str
        The registered name, used in messages.
    search_terms : tuple of str
        Other names in the field, such as "softmax" for ``marginals``. The error about an unknown name suggests the
        relaxation for them.
    step_option : str
        The name of the option that multiplies the gradient dL/dy of a surrogate, or "".
    """

    requires: ClassVar[type[Oracle]] = Oracle
    name: ClassVar[str] = ""
    search_terms: ClassVar[tuple[str, ...]] = ()
    step_option: ClassVar[str] = ""
    # Set by with_generator(). Not a dataclass field, so that equality, hash and repr depend on the options only.
    generator: ClassVar[torch.Generator | None] = None

    @property
    def is_stochastic(self) -> bool:
        """Whether the relaxation draws noise, so that results differ between calls."""
        return False

    @property
    def sample_ndim(self) -> int:
        """1 if the mean and the record have a sample dimension in front, (n, B, *event); else 0."""
        return 0

    def with_generator(self, generator: torch.Generator | None) -> Self:
        """Return a copy that draws only from ``generator``, or from torch's default generator if it is None.

        The copy passes the generator on to its inner relaxations.
        """
        check_generator(generator)
        if generator is None or not self.is_stochastic:
            return self
        new = copy.copy(self)
        object.__setattr__(new, "generator", generator)
        return new

    @property
    def mean_may_leave_hull(self) -> bool:
        """Whether the mean may lie outside conv(Y), in a larger polytope; by default False."""
        return False

    @property
    def piecewise_constant(self) -> bool:
        """Whether the gradient of the mean is 0 almost everywhere, so that the mean cannot train its input."""
        return False

    @abc.abstractmethod
    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        """Return the solution record for flat scores: one batch dimension, full precision, validated.

        ``warm_start`` holds structures (K, B, *event) for the start of iterative relaxations.

        Laws: the mean lies in conv(Y), unless :attr:`mean_may_leave_hull`. The mean has the documented gradient. The
        result of an instance does not depend on the other instances of the batch.
        """

    def mean(self, oracle: Oracle, theta: Parts) -> Parts:
        """Return only the mean. Override the method if the rest of the record takes extra time."""
        return self.solve(oracle, theta).mean

    @property
    def inner(self) -> tuple[Relaxation, ...]:
        """The relaxations inside this relaxation."""
        return ()

    def exact(self) -> Self:
        """Return a copy that solves its problems to rounding errors; the relaxation itself if it has no tolerance."""
        return self

    def defers_checks(self, oracle: Oracle) -> bool:
        """Return whether checks of values on a GPU wait until the mean, or a loss, is computed; by default False.

        Law: True only if :meth:`mean` and the methods of losses call each method of the oracle for the whole batch, and
        decide nothing by values. The oracle then receives scores that may hold NaN.
        """
        return False

    def solve_defers_checks(self, oracle: Oracle) -> bool:
        """Return whether :meth:`defers_checks` holds for :meth:`solve` too; by default False."""
        return False

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        """Return the reason why the relaxation does not support ``oracle``, as a clause; None if it does."""
        return missing_ability_reason(oracle, self.requires)

    def label(self) -> str:
        """Return the name of the relaxation in messages."""
        return self.name or type(self).__name__

    def refuse_warm_start(self, warm_start: Parts | None) -> None:
        """Raise UnsupportedError if ``warm_start`` is given, for relaxations without iterations."""
        if warm_start is not None:
            raise UnsupportedError(f"{self.label()} is not iterative and takes no warm_start")


def inner_modules(relaxation: Relaxation) -> list[nn.Module]:
    """Return the modules among the inner relaxations of ``relaxation``, at any depth.

    A layer registers these modules, so that their buffers are part of its ``state_dict``.
    """
    found: list[nn.Module] = []
    for one in relaxation.inner:
        found += [one] if isinstance(one, nn.Module) else []
        found += inner_modules(one)
    return found


def register_parameters(module: nn.Module, relaxation: Relaxation) -> None:
    """Make each option of ``relaxation`` that is an nn.Parameter a parameter of ``module`` under its name.

    Without a parameter of this name, the relaxation hands on the parameters of its inner relaxations.
    """
    names = set()
    for one in reversed((relaxation, *relaxation.inner)):
        if isinstance(one, nn.Module):  # registers its own parameters
            continue
        for name in _parameter_options(one):
            found = getattr(one, name, None)
            if isinstance(found, nn.Parameter):
                module.register_parameter(name, found)
                names.add(name)
    object.__setattr__(module, "_has_parameter_options", bool(names))


def with_parameters_of(module: nn.Module, relaxation: RelaxationT) -> RelaxationT:
    """Return ``relaxation`` with the parameters that ``module`` has now.

    They differ from those of :func:`register_parameters` inside ``torch.func.functional_call``, and after
    ``load_state_dict(..., assign=True)``.
    """
    if not vars(module).get("_has_parameter_options", False) or isinstance(relaxation, nn.Module):
        return relaxation
    changed: dict[str, Any] = {}
    for name in _parameter_options(relaxation):
        own, now = getattr(relaxation, name, None), module._parameters.get(name)
        if isinstance(own, nn.Parameter) and now is not None and now is not own:
            changed[name] = now
    for one in dataclasses.fields(cast(Any, relaxation)) if relaxation.inner else ():
        value = getattr(relaxation, one.name)
        if isinstance(value, Relaxation) and (inner := with_parameters_of(module, value)) is not value:
            changed[one.name] = inner
    if not changed:
        return relaxation
    new = cast("RelaxationT", dataclasses.replace(cast(Any, relaxation), **changed))
    return new.with_generator(relaxation.generator)


def _parameter_options(relaxation: Relaxation) -> tuple[str, ...]:
    """Return the names of options that may be parameters."""
    step = relaxation.step_option
    return ("temperature", "backward_temperature", "sigma", *([step] if step else []))


class RegularizedRelaxation(Relaxation):
    """A relaxation max ⟨θ, μ⟩ − Ω(μ), with a Fenchel-Young loss."""

    @property
    def value_may_miss_maximum(self) -> bool:
        """Whether the mean may be a stationary point that is not the maximum; by default False.

        A Fenchel-Young loss may then be negative.
        """
        return False

    @abc.abstractmethod
    def conjugate(self, oracle: Oracle, theta: Parts) -> Tensor:
        """Return Ω*(θ) = max ⟨θ, μ⟩ − Ω(μ), (B,), with gradient μ and Hessian dμ/dθ."""

    @abc.abstractmethod
    def omega(self, oracle: Oracle, y: Parts) -> Tensor:
        """Return Ω(y) at a structure y ∈ Y, (B,)."""

    def check_scale(self, dtype: torch.dtype) -> None:
        """Raise InvalidInputError if scores of ``dtype`` cannot be divided by the temperature, or get noise of σ.

        Losses call this method, since they compute in float64 whatever the dtype of the user's scores.

        Parameters
        ----------
        dtype : torch.dtype
            The dtype of the scores: float32 or float64.
        """
        for option in ("temperature", "sigma"):
            value = getattr(self, option, None)
            if isinstance(value, int | float):
                check_in_range(option, value, dtype)

    def _conjugate_at(self, mean: Parts, oracle: Oracle, theta: Parts) -> Tensor:
        """Return Ω*(θ) = ⟨θ, μ⟩ − Ω(μ), (B,), for a known ``mean`` μ, with its gradient by the envelope theorem."""
        fixed, at = (map_parts(Tensor.detach, parts) for parts in (mean, theta))
        return autograd.attach_envelope_gradient(oracle.score(at, fixed) - self.omega(oracle, fixed), theta, mean)

    def conjugate_and_omega(self, oracle: Oracle, theta: Parts, y: Parts) -> tuple[Tensor, Tensor]:
        """Return Ω*(θ) and Ω(y), (B,) each. Override the method if both are estimates from the same draws.

        Law: conjugate + omega − ⟨θ, y⟩ is at least 0, rounding aside, at every structure y ∈ Y, unless
        :attr:`value_may_miss_maximum`.
        """
        return self.conjugate(oracle, theta), self.omega(oracle, y)

    def float64_conjugate_and_omega(
        self, oracle: Oracle, theta: Parts, y: Parts, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return :meth:`conjugate_and_omega` in float64, for a loss that subtracts almost the same number.

        Parameters
        ----------
        oracle : Oracle
            The set Y of structures.
        theta : (B | 1, *event) Parts
            The scores, in float32 or float64.
        y : (B, *event) Parts
            The gold structures.
        dtype : torch.dtype
            The dtype of the user's scores, whose precision suffices for the gradient.
        """
        return self.conjugate_and_omega(oracle, *(map_parts(Tensor.double, parts) for parts in (theta, y)))


RELAXATIONS: Registry[Relaxation] = Registry("relaxation", Relaxation, "structinf.relaxations")


def resolve_relaxation(
    relaxation: str | Relaxation, temperature: float | Tensor | None = None, option: str = ""
) -> Relaxation:
    """Return an inner relaxation, by name or as an object, with ``temperature`` if it is not None.

    Messages start with the name ``option`` of the argument.
    """
    try:
        found = RELAXATIONS.get(relaxation)
    except (TypeError, UnknownNameError) as error:
        raise type(error)(f"{option}: {error}" if option else str(error)) from None
    if temperature is None:
        return found
    if not (dataclasses.is_dataclass(found) and "temperature" in (f.name for f in dataclasses.fields(found))):
        raise InvalidInputError(f"temperature: {found.label()} has no temperature; leave out the option")
    return dataclasses.replace(found, temperature=temperature)


def zero_omega(y: Parts) -> Float[Tensor, " batch"]:
    """Return zeros (B,): the omega of relaxations with Ω = 0 at all structures."""
    return as_tuple(y)[0].new_zeros(as_tuple(y)[0].shape[0])


class GradientRelaxation(RegularizedRelaxation):
    """The relaxation ∇f(θ / temperature) for a convex function f of the oracle with f* = 0 at all structures."""

    temperature: Any  # a float or a tensor with one number, once the relaxation is made

    @abc.abstractmethod
    def convex_function(self, oracle: Oracle) -> autograd.ConvexFunction:
        """Return f with its derivatives."""

    def defers_checks(self, oracle: Oracle) -> bool:
        return True

    def solve_defers_checks(self, oracle: Oracle) -> bool:
        return self.defers_checks(oracle)

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        value, mean = autograd.value_and_gradient(self.convex_function(oracle), self._scaled(theta))
        return Solution(mean=mean, value=self._unscaled(value))

    def mean(self, oracle: Oracle, theta: Parts) -> Parts:
        return autograd.gradient(self.convex_function(oracle), self._scaled(theta))

    def conjugate(self, oracle: Oracle, theta: Parts) -> Float[Tensor, " batch"]:
        """temperature · f(θ / temperature), (B,)."""
        return self._unscaled(autograd.value(self.convex_function(oracle), self._scaled(theta)))

    def float64_conjugate_and_omega(
        self, oracle: Oracle, theta: Parts, y: Parts, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        own = type(self).conjugate, type(self).conjugate_and_omega
        if own != (GradientRelaxation.conjugate, RegularizedRelaxation.conjugate_and_omega):
            return super().float64_conjugate_and_omega(oracle, theta, y, dtype)
        # Dividing float32 scores by the temperature would round them.
        is_one = not isinstance(self.temperature, Tensor) and self.temperature == 1
        scaled = theta if is_one else self._scaled(map_parts(Tensor.double, theta))
        value = autograd.float64_value(self.convex_function(oracle), scaled, dtype)
        return self._unscaled(value), self.omega(oracle, y)

    def omega(self, oracle: Oracle, y: Parts) -> Float[Tensor, " batch"]:
        """Return Ω(y) = 0 at each structure y, (B,).

        Parameters
        ----------
        oracle : Oracle
            The oracle of the structures.
        y : (B, *event) Tensor, or tuple of them
            Structures.

        Returns
        -------
        (B,) Tensor
            Zeros in the dtype and on the device of ``y``. Ω sums negative entropies of the choices of a random walk
            (Mensch & Blondel 2018, Differentiable dynamic programming, section 2), and a structure leaves no choice
            open. For ``marginals`` it is the negative Shannon entropy (Wainwright & Jordan 2008, section 3.6).
        """
        return zero_omega(y)

    def _scaled(self, theta: Parts) -> Parts:
        return divide_by_temperature(theta, self.temperature)

    def _unscaled(self, value: Tensor) -> Tensor:
        return multiply_by_temperature(value, self.temperature)
