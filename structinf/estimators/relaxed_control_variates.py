"""rebar and relax: samples, with control variates that are functions of the noise behind the samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ..calls.problem import Problem
from ..dp import HypergraphProgram
from ..errors import InvalidInputError
from ..noise import Exponential, Gumbel, Logistic
from ..oracle import GibbsOracle, Oracle, Samplable
from ..parts import Parts, as_tuple, map_parts, pack_like, parts_to_vectors, vectors_to_parts
from ..shapes import Float
from ..solvers.conditional_noise import gumbel_scores_given_choice, logistic_scores_given_bits
from ..validation import check_feasible, check_in_range, check_natural, check_nonnegative, check_positive
from .base import Estimator, evaluate, flat_rows
from .score_function import ScoreFunction
from .weighted_structures import WeightedStructures, needs_gradient

__all__ = ["Rebar", "Relax"]

_KNOWN_SETS = ("one_of_n", "all_bits")
"""The sets of structures with closed forms for noise, whose parts are the choices themselves."""


@dataclass(frozen=True)
class _NoisyScores:
    """Structures of noisy scores θ (N, d), and other noisy scores with the same structures. Vectors have all parts.

    Attributes
    ----------
    y : (N, d) Tensor
        The structures, samples of the Gibbs distribution.
    relaxed, relaxed_given_y : (N, d) Tensor
        Relaxed structures of the noisy scores, and of noisy scores drawn given y; differentiable in θ.
    score : (N, d) Tensor
        ∇log p(y).
    """

    y: Tensor
    relaxed: Tensor
    relaxed_given_y: Tensor
    score: Tensor

    @classmethod
    def of_program(
        cls,
        program: HypergraphProgram,
        theta: Tensor,
        like: Parts,
        temperature: float,
        generator: torch.Generator | None,
    ) -> tuple[_NoisyScores, Tensor]:
        """Draw the noise at the choices of a dynamic program; return log Z, (N,), too. ``like`` has the form of θ."""
        scores = vectors_to_parts(theta, like)
        walks = program.relaxed_sample_pairs(scores, generator, relaxation_temperature=temperature)
        drawn, again = walks.drawn.to(theta.dtype), walks.relaxed_again
        assert again is not None
        score = torch.zeros_like(drawn)
        if theta.requires_grad:
            (mean,) = torch.autograd.grad(walks.value.sum(), theta, retain_graph=True)
            score = drawn - mean
        return cls(drawn, walks.relaxed.to(theta.dtype), again.to(theta.dtype), score), walks.value.detach()

    @classmethod
    def draw(
        cls, theta: Tensor, valid: Tensor, is_choice: bool, temperature: float, generator: torch.Generator | None
    ) -> _NoisyScores:
        """Draw the noise of choices or bits. Parts that are not ``valid`` are 0 in the result."""
        options: Any = {"dtype": theta.dtype, "device": theta.device, "generator": generator}
        finite = torch.where(valid, theta, 0.0)
        exponential = Exponential().sample(theta.shape, **options)
        if is_choice:
            z = torch.where(valid, finite + Gumbel().sample(theta.shape, **options), -torch.inf)
            y = one_hot(z.detach().argmax(1), theta.shape[1]).to(theta.dtype)
            again = gumbel_scores_given_choice(torch.where(valid, theta, -torch.inf), y, exponential.log())
            relaxed, relaxed_again = ((noisy / temperature).softmax(1) for noisy in (z, again))
            mean = torch.where(valid, theta, -torch.inf).softmax(1)
        else:
            z = finite + Logistic().sample(theta.shape, **options)
            y = torch.where(valid, z.detach() > 0, False).to(theta.dtype)
            again = logistic_scores_given_bits(finite, y, (-exponential).exp())
            relaxed, relaxed_again = (torch.where(valid, (t / temperature).sigmoid(), 0.0) for t in (z, again))
            mean = torch.where(valid, finite.sigmoid(), 0.0)
        return cls(y, relaxed, relaxed_again, (y - mean).detach())


class _RelaxedControlVariate(Estimator):
    """The gradient (f(y) − c(z̃)) ∇log p(y) + ∇c(z) − ∇c(z̃), for noisy scores z of y, and z̃ drawn given y.

    The control variate is c(z) = η f(r(z)) + control(r(z)), for a relaxation r(z).
    """

    requires = (GibbsOracle, Samplable)

    def __init__(self, samples: int, eta: float, temperature: float, control: nn.Module | None = None) -> None:
        super().__init__()
        check_natural("samples", samples)
        check_nonnegative("eta", eta)
        check_positive("temperature", temperature)
        self.samples, self.eta, self.temperature, self.control = samples, eta, temperature, control

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        reason = super().unsupported_reason(oracle)
        if reason is None and oracle.known_set not in _KNOWN_SETS and not isinstance(oracle, HypergraphProgram):
            reason = (
                f"{self.label()} draws noise given a structure, which has a closed form for one choice among n, free "
                "bits, and the choices of a dynamic program (HypergraphProgram) only; muprop has a control variate for "
                "every oracle with samples"
            )
        return reason

    def weighted_structures(
        self, oracle: Any, theta: Parts, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        return ScoreFunction(samples=self.samples, baseline="none").weighted_structures(oracle, theta, generator)

    def forward(
        self,
        f: Callable[..., Tensor],
        problem: Problem,
        inputs: Sequence[Tensor] = (),
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " batch"]:
        check_in_range("temperature", self.temperature, problem.dtypes[0])
        if self.eta:
            check_in_range("eta", self.eta, problem.dtypes[0])
        size, n, like = problem.batch_shape.numel(), self.samples, problem.theta
        rows = [flat_rows(x, f"inputs[{i}]", problem.batch_shape) for i, x in enumerate(inputs)]
        whole = map_parts(lambda t: t.expand(size, *t.shape[1:]), like)
        theta = parts_to_vectors(whole)
        allowed = theta.detach() > -torch.inf
        mask = problem.oracle.valid_parts(whole)
        if mask is not None:
            allowed = allowed & parts_to_vectors(map_parts(lambda m: m.expand(size, *m.shape[1:]), mask))
        valid = allowed.repeat_interleave(n, 0)
        leaf = theta.detach().repeat_interleave(n, 0).requires_grad_(needs_gradient(theta))
        instance = torch.arange(size, device=leaf.device).repeat_interleave(n)
        what = f"structure of {problem.oracle.label()}"
        with problem.plain_modes():
            if problem.oracle.known_set in _KNOWN_SETS:
                is_choice = problem.oracle.known_set == "one_of_n"
                if is_choice:
                    check_feasible(allowed.any(1), what)
                drawn = _NoisyScores.draw(leaf, valid, is_choice, self.temperature, generator)
            else:
                program: Any = problem.oracle[instance]
                drawn, value = _NoisyScores.of_program(program, leaf, like, self.temperature, generator)
                check_feasible(value[::n], what)

        def as_parts(points: Tensor) -> Parts:
            tensors = as_tuple(vectors_to_parts(points, like))
            return pack_like([t.to(dtype) for t, dtype in zip(tensors, problem.dtypes, strict=True)], like)

        def of_rows(points: Tensor) -> Tensor:
            """Return f at K points of each sample, (K, N): f itself gets them sorted by instance."""
            count = len(points) // max(len(instance), 1)
            order = instance.repeat(count).argsort(stable=True)
            sorted_instance = instance.repeat(count)[order]
            ones = leaf.new_ones(len(order))
            structures = as_parts(points[order])
            every = WeightedStructures(structures, sorted_instance, ones, ones, size)
            values = evaluate(f, every, structures, rows)
            return values[order.argsort()].view(count, -1) if len(order) else values.view(count, 0)

        if not len(leaf):
            return theta.sum(1)
        if not needs_gradient(theta):
            return of_rows(drawn.y)[0].view(size, n).mean(1)
        selected = [x.index_select(0, instance.to(x.device)) for x in rows]
        values, gradients = self._values_and_gradients(of_rows, as_parts, drawn, leaf, selected)
        gradients = torch.where(valid, gradients, 0.0).view(size, n, -1).mean(1)
        # 0, with the gradient of the estimate.
        zero = torch.where(allowed, theta - theta.detach(), 0.0)
        summed = values.view(size, n).mean(1) + (zero * gradients.detach()).sum(1)
        return summed + _squared_norms(gradients) if gradients.requires_grad else summed

    def _values_and_gradients(
        self,
        f: Callable[[Tensor], Tensor],
        as_parts: Callable[[Tensor], Parts],
        drawn: _NoisyScores,
        theta: Tensor,
        inputs: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return f(y), (N,), and the gradient in ``theta`` for each sample, (N, d), differentiable in ``control``.

        ``f`` takes K points of each sample, (K N, d), and returns (K, N). ``as_parts`` gives points the form of θ.
        """
        relaxed = drawn.relaxed, drawn.relaxed_given_y
        path, control = torch.zeros_like(theta), torch.zeros_like(theta[:, 0])
        if self.eta:
            points = [r.detach().requires_grad_() for r in relaxed]
            values, at_z, at_z_given_y = f(torch.cat([drawn.y, *points]))
            slopes = self._slopes((at_z - at_z_given_y).sum(), points)
            if slopes is None:
                self._refuse_unless_constant(torch.stack([values, at_z, at_z_given_y]))
                slopes = [torch.zeros_like(t) for t in points]
            along = torch.stack([(r * g).sum() for r, g in zip(relaxed, slopes, strict=True)]).sum()
            (path,) = torch.autograd.grad(self.eta * along, theta, retain_graph=True)
            control = self.eta * at_z_given_y.detach()
        else:
            (values,) = f(drawn.y)
        if self.control is not None:
            fixed = [x.detach() for x in inputs]
            at_z, at_z_given_y = (self._control(r, as_parts(r), fixed) for r in relaxed)
            found = None
            if (at_z - at_z_given_y).requires_grad:
                difference = (at_z - at_z_given_y).sum()
                (found,) = torch.autograd.grad(difference, theta, create_graph=True, allow_unused=True)
            path = path if found is None else path + found
            control = control + at_z_given_y
        weight = values.detach() - control
        return values, weight[:, None] * drawn.score + path

    @staticmethod
    def _slopes(difference: Tensor, points: Sequence[Tensor]) -> Sequence[Tensor] | None:
        """Return the gradients of f(r(z)) − f(r(z̃)) in the points; None if there is none."""
        if not difference.requires_grad:
            return None
        slopes = torch.autograd.grad(difference, points, retain_graph=True, allow_unused=True)
        return None if any(slope is None for slope in slopes) else slopes

    def _refuse_unless_constant(self, values: Tensor) -> None:
        """Raise InvalidInputError for an f without a gradient, which would give the estimate a bias."""
        if bool((values != values.flatten()[0]).any()):
            raise InvalidInputError(
                f"{self.label()} with eta above 0 needs an f whose value has a gradient in the structure, but "
                "f(structures) has none; for functions such as argmax or detach(), use relax with eta=0, or the "
                "estimator score_function"
            )

    def _control(self, relaxed: Tensor, parts: Parts, inputs: Sequence[Tensor]) -> Tensor:
        found: Any = self.control(parts, *inputs)  # type: ignore[misc]
        if not isinstance(found, Tensor) or found.shape != relaxed.shape[:1]:
            received = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise InvalidInputError(f"control must return a tensor of shape ({len(relaxed)},), got {received}")
        return found.to(relaxed.dtype)

    def extra_repr(self) -> str:
        return f"samples={self.samples}, eta={self.eta}, temperature={self.temperature}"


def _squared_norms(gradients: Tensor) -> Tensor:
    """Return zeros (B,) with the gradient of ‖gradients‖² (B, d), for the parameters behind the gradients.

    The backward pass multiplies by the absolute value of the incoming gradient, so that descent always lowers the norm.
    """
    norms = gradients.square().sum(1)
    norms.register_hook(torch.abs)
    return norms - norms.detach()


class Rebar(_RelaxedControlVariate):
    """E[f(Y)] under p(y) ∝ exp⟨θ, y⟩, as the mean of f over samples, with f at relaxed samples as control variate.

    A sample y is the best structure of noisy scores z. With the relaxation r(z) = softmax(z / temperature) (a sigmoid
    for bits), and noisy scores z̃ drawn given y, the gradient is

    (f(y) − η f(r(z̃))) ∇log p(y) + η ∇f(r(z)) − η ∇f(r(z̃)) + ∇f(y),

    where the last term is the gradient in the parameters of f. Value and gradient are unbiased for every f that is
    differentiable at relaxed structures. f is evaluated at three points for each sample. The gradient in θ has no
    derivative.

    The estimator works for ``categorical``, ``bits`` and all dynamic programs, such as ``chain``, ``projective_tree``
    and ``subset`` (:class:`structinf.dp.HypergraphProgram`). A sample of a dynamic program takes the choice of highest
    noisy score at each node from the goal down. r(z) divides each node among its choices by the softmax, as
    ``gumbel_crf`` does. Given y, the noisy scores of a node of y have their maximum at the choice of y, and the noise
    of the other nodes is independent of y.

    Parameters
    ----------
    samples : int
        The number of samples of each instance, at least 1.
    eta : float
        The factor η of the control variate, at least 0.
    temperature : float
        The temperature of the relaxation, above 0.

    References
    ----------
    Tucker, Mnih, Maddison, Lawson & Sohl-Dickstein 2017, REBAR: Low-variance, Unbiased Gradient Estimates for Discrete
    Latent Variable Models, §3. Fu, Tan, Bi, Chen, Feng & Rush 2020, Latent Template Induction with Gumbel-CRFs, for
    the noise of a dynamic program.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]], requires_grad=True)
    >>> cost = torch.tensor([3.0, 1.0, 2.0])
    >>> f = lambda y: (y @ cost).square()
    >>> value = si.expect(f, theta, "categorical", Rebar(samples=100))
    >>> value.sum().backward()
    >>> theta.grad.shape
    torch.Size([1, 3])
    """

    def __init__(self, *, samples: int = 1, eta: float = 1.0, temperature: float = 0.5) -> None:
        super().__init__(samples, eta, temperature)


class Relax(_RelaxedControlVariate):
    """E[f(Y)] under p(y) ∝ exp⟨θ, y⟩, as the mean of f over samples, with a trained module in the control variate.

    A sample y is the best structure of noisy scores z. The control variate is c(z) = η f(r(z)) + control(r(z)), with
    the relaxation r(z) = softmax(z / temperature) (a sigmoid for bits). With noisy scores z̃ drawn given y, the gradient
    is

    (f(y) − c(z̃)) ∇log p(y) + ∇c(z) − ∇c(z̃) + ∇f(y),

    where the last term is the gradient in the parameters of f. Value and gradient are unbiased. With η = 0, f may be
    a black box. The estimator works for the structures of :class:`structinf.estimators.Rebar`. The gradient in θ has
    no derivative.

    In the backward pass, the parameters of ``control`` get the gradient of the squared norm of the estimate, summed
    over instances, times the absolute value of the gradient of the instance's value. Its expectation is the gradient of
    the variance, so that an optimizer of all parameters lowers the variance.

    Parameters
    ----------
    control : nn.Module, optional
        Called as ``control(structures, *inputs)`` with relaxed structures (N, *event) in the form of θ, N the number of
        instances times samples, and the rows of the inputs of :func:`structinf.expect`. Returns (N,). Must be twice
        differentiable. By default 0: the estimator is then :class:`structinf.estimators.Rebar`.
    samples : int
        The number of samples of each instance, at least 1.
    eta : float
        The factor η, at least 0. At 0, f is evaluated at samples only.
    temperature : float
        The temperature of the relaxation, above 0.

    References
    ----------
    Grathwohl, Choi, Wu, Roeder & Duvenaud 2018, Backpropagation through the Void: Optimizing Control Variates for
    Black-Box Gradient Estimation, §3.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]], requires_grad=True)
    >>> cost = torch.tensor([3.0, 1.0, 2.0])
    >>> control = nn.Sequential(
    ...     nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0)
    ... )
    >>> estimator = Relax(control=control, samples=10, eta=0.0)
    >>> f = lambda y: y @ cost
    >>> value = si.expect(f, theta, "categorical", estimator)
    >>> value.sum().backward()
    >>> theta.grad.shape, control[0].weight.grad.shape
    (torch.Size([1, 3]), torch.Size([8, 3]))
    """

    def __init__(
        self, *, control: nn.Module | None = None, samples: int = 1, eta: float = 1.0, temperature: float = 0.5
    ) -> None:
        if control is not None and not isinstance(control, nn.Module):
            raise InvalidInputError(f"control must be a torch.nn.Module or None, got {type(control).__name__}")
        super().__init__(samples, eta, temperature, control)
