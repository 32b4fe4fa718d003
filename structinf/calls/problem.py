"""Convert the arguments of users to the arguments of oracles. Only this module handles several batch dimensions.

Every public call builds a :class:`Problem`. It validates the scores, binds the instance data, casts half precision to
float32, overwrites the padding, and flattens the batch dimensions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..compile.functorch import NO_FORWARD_MODE, check_not_captured
from ..compile.torch_private import has_forward_derivative
from ..deferred_checks import DeferredChecks, checks_for
from ..errors import (
    InfeasibleError,
    InstanceError,
    InvalidInputError,
    PluginError,
    UnsupportedError,
    renumber_instances,
)
from ..kernels.arrays import upcast_half
from ..oracle import Oracle
from ..parts import Parts, as_tuple, batch_size, list_to_tuple, map_parts, pack_like
from ..solution import ZERO, Fill
from ..solvers.argmax import best_structure
from ..solvers.perturbation import repeat_instances
from ..validation import check_real
from ..validation.method_calls import is_accepted, validate_scores
from ..validation.scores import check_score_tensors
from ..validation.tensors import check_dense
from .accepted_form import accepted_form, bind_on_device, validate_rest, zeros_on_cpu
from .arguments import (
    OnInfeasible,
    batch_shape_of,
    blame_argument,
    check_form,
    check_instance_data,
    check_on_infeasible,
    flatten_batch,
)
from .padding import check_scores_finite, check_whole_scores, checked_without_padding, without_padding
from .plain_modes import PlainModes
from .solved_rows import SolvedRows, without_empty_instances

__all__ = ["Problem"]

T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """A flat batch of instances, with methods that restore the user's shapes.

    The instance data are bound to ``oracle``. ``theta`` (B | 1, *event) is a differentiable function of the user's
    tensors, in float32 or float64. Results are cast to ``dtypes``, the dtypes of the user's tensors.

    Empty instances, and infeasible instances with ``on_infeasible="zero"``, are not part of ``oracle`` and ``theta``.
    The methods that restore the user's shapes insert the results of these instances.
    """

    oracle: Oracle
    theta: Parts
    batch_shape: torch.Size
    dtypes: tuple[torch.dtype, ...]
    checks: DeferredChecks | None = None
    """The checks of values on a GPU, which wait for the end of :meth:`plain_modes`; None on the CPU."""
    on_infeasible: OnInfeasible = "raise"
    """Whether :meth:`solve_feasible` raises InfeasibleError, or leaves out infeasible instances."""
    solved: SolvedRows | None = None
    """The instances of the user's batch in ``theta``; None for all instances."""
    is_finite: bool = False
    """Whether all scores are known to be finite, so that no part is forbidden. Always False on a GPU."""
    has_padding: bool = True
    """Whether the oracle may have padding; False if it has no mask of valid parts for the form of ``theta``."""

    @classmethod
    def build(
        cls, theta: Any, oracle: Oracle, instance_data: Mapping[str, Any], on_infeasible: OnInfeasible = "raise"
    ) -> Problem:
        """Validate and flatten the arguments. Raises InvalidInputError or TypeError with the position of the error.

        On a GPU, the check of finite scores waits until :meth:`plain_modes` or :meth:`finish_checks` is called.
        """
        check_on_infeasible(on_infeasible)
        if not (instance_data or oracle.bound) and (flat := accepted_form(oracle, theta)) is not None:
            batch = torch.Size((batch_size(flat),))
            form, is_finite = checked_without_padding(oracle, flat, batch, None)
            dtypes = tuple([t.dtype for t in as_tuple(flat)])
            return cls(oracle, form, batch, dtypes, None, on_infeasible, None, is_finite, form is not flat)
        theta = list_to_tuple(theta)
        check_score_tensors(theta)
        ndims = oracle.resolve_event_ndim(theta)
        tensors = as_tuple(theta)
        if any(has_forward_derivative(t) for t in tensors):
            raise UnsupportedError(NO_FORWARD_MODE)
        batch_shape = batch_shape_of(tensors, ndims, oracle)
        flat = [upcast_half(flatten_batch(t, n, batch_shape)) for t, n in zip(tensors, ndims, strict=True)]
        form = pack_like(flat, theta)
        for name, t in oracle.bound.items():
            check_not_captured(name, t)
        checks = checks_for(flat[0])
        stand_in = form if checks is None else zeros_on_cpu(form)
        given = {name: value for name, value in instance_data.items() if value is not None}
        try:
            bound = {name: check_instance_data(name, value, oracle, batch_shape, form) for name, value in given.items()}
        except InvalidInputError:
            check_form(oracle, stand_in)
            raise
        size, solved = math.prod(batch_shape), None
        is_checked = checks is not None and oracle.reads_data and bool(bound)
        if checks is not None and is_checked:
            check_whole_scores(form, batch_shape, checks)
        try:
            if checks is None:
                whole = oracle.bind(**bound) if bound else oracle
                if whole.bound or not is_accepted(whole, form):
                    validate_scores(whole, form, size)
            else:
                whole = bind_on_device(oracle, bound, form, stand_in, size, checks)
            oracle = whole
        except InvalidInputError:
            # Oracles refuse a length of 0. The search for such lengths costs nothing if there are none.
            solved = without_empty_instances(oracle, bound, form, size)
            if solved is None:
                raise
        if solved is not None:
            oracle, form = solved.oracle[solved.index], solved.select_parts(form)
            with _numbering(solved):
                solved, form = validate_rest(solved, oracle, form)
        rows = batch_shape if solved is None else solved.index.shape
        is_finite = False
        if not is_checked or solved is not None:
            with _numbering(solved):
                form, is_finite = checked_without_padding(oracle, form, rows, checks)
        if torch.is_inference_mode_enabled():
            # Autograd cannot record inference tensors, and some oracles use autograd.
            with torch.inference_mode(False):
                form = map_parts(torch.clone, form)
                oracle = oracle.with_cloned_data()
        dtypes = tuple([t.dtype for t in tensors])
        return cls(oracle, form, batch_shape, dtypes, checks, on_infeasible, solved, is_finite)

    # -- instances without a result of the oracle -------------------------------------------------

    @property
    def whole_oracle(self) -> Oracle:
        """The oracle with the data of all instances of the user's batch."""
        return self.oracle if self.solved is None else self.solved.oracle

    @property
    def event_shapes(self) -> tuple[torch.Size, ...]:
        """The event shape of each of the user's tensors."""
        if self.solved is not None and self.solved.event_shapes is not None:
            return self.solved.event_shapes
        return tuple(t.shape[1:] for t in as_tuple(self.theta))

    @property
    def has_size_0(self) -> bool:
        """Whether the user's batch has only empty instances, of a padded size that the oracle refuses."""
        return self.solved is not None and self.solved.event_shapes is not None

    def infeasible(self) -> Tensor | None:
        """Return which instances are left out as infeasible, (*batch) bool; None with ``on_infeasible="raise"``."""
        if self.on_infeasible == "raise":
            return None
        if self.solved is None:
            return torch.zeros(self.batch_shape, dtype=torch.bool, device=as_tuple(self.theta)[0].device)
        return self.solved.infeasible.view(self.batch_shape)

    def solve_feasible(
        self,
        compute: Callable[[Problem], T],
        *,
        reads_gold: bool = False,
        generator: torch.Generator | None = None,
        draws: bool = False,
    ) -> T:
        """Return ``compute(problem)``, in the user's shapes, for this problem without its infeasible instances.

        With ``on_infeasible="raise"`` the problem is this problem itself. With "zero", ``compute`` runs again without
        the instances of each InfeasibleError, so that a batch without infeasible instances costs nothing more.

        Parameters
        ----------
        compute : callable
            Maps a problem to a result. The result comes from methods such as :meth:`restore`.
        reads_gold : bool
            Whether ``compute`` raises InvalidInputError for gold structures, which an infeasible instance cannot have.
        generator : torch.Generator, optional
            The source of noise. A second run draws the same noise as a first run without the infeasible instances.
        draws : bool
            Whether ``compute`` draws noise.
        """
        if self.on_infeasible == "raise" and self.solved is None:
            try:
                return compute(self)
            except InfeasibleError as error:
                _add_option(error)
                raise
        source = (torch.default_generator if generator is None else generator) if draws else None
        state = None if source is None else source.get_state()
        problem = self
        while True:
            try:
                with problem.numbering():
                    return compute(problem)
            except InfeasibleError as error:
                rest = problem._without_infeasible(error.batch_indices)
                if rest is None:
                    problem._add_batch_position(error)
                    if self.on_infeasible == "raise":
                        _add_option(error)
                    raise
            except InstanceError as error:
                problem._add_batch_position(error)
                raise
            except InvalidInputError:
                rest = problem._without_infeasible(problem._find_infeasible()) if reads_gold else None
                if rest is None:
                    raise
            problem = rest
            if source is not None and state is not None:
                source.set_state(state)

    def numbering(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which errors and warnings number the instances of the user's batch."""
        return _numbering(self.solved)

    def _add_batch_position(self, error: InstanceError) -> None:
        if self.solved is not None:  # otherwise, the context of plain_modes has added the position
            error.add_batch_position(self.batch_shape)

    def _without_infeasible(self, rows: Iterable[int]) -> Problem | None:
        """Return the problem without the instances ``rows`` of the user's batch; None if they are left out already."""
        size = math.prod(self.batch_shape)
        if self.on_infeasible == "raise":
            return None
        before = self.solved or SolvedRows.all_of(self.oracle, size, as_tuple(self.theta)[0].device)
        after = before.without([row for row in rows if row < size], infeasible=True)
        if len(after.index) == len(before.index):
            return None
        kept = ~after.infeasible[before.index]
        within = SolvedRows(kept.nonzero()[:, 0], ~kept, self.oracle)
        oracle = self.oracle[within.index] if self.oracle.bound else self.oracle
        return dataclasses.replace(self, oracle=oracle, theta=within.select_parts(self.theta), solved=after)

    def _find_infeasible(self) -> tuple[int, ...]:
        """Return the first infeasible instances found by the argmax, as indices of the user's batch."""
        try:
            with self.numbering(), self.plain_modes():
                best_structure(self.oracle, self.theta)
        except InfeasibleError as error:
            return error.batch_indices
        return ()

    def scores_like(self, theta: Any, other: Any, name: str) -> tuple[Parts, bool]:
        """Return the scores ``other`` (B | 1, *event), which have the form of the user's scores ``theta``.

        Also return whether all of them are known to be finite.

        Parameters
        ----------
        theta : (..., *event) Tensor, or tuple of Tensors
            The user's scores.
        other : (..., *event) Tensor, or tuple of Tensors
            Other scores of the same shapes.
        name : str
            The name of the argument ``other``.
        """
        if self.has_flat_form(other) and isinstance(theta, Tensor) and theta.shape == other.shape:
            form = self.without_padding(other)
            return form, check_scores_finite(form, self.batch_shape, None, name)
        given, received = as_tuple(list_to_tuple(theta)), as_tuple(list_to_tuple(other))
        for t in received:
            if isinstance(t, Tensor):
                check_dense(name, t)
        shapes = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in received]
        wanted = [tuple(t.shape) for t in given]
        if shapes != wanted or isinstance(other, tuple | list) != isinstance(theta, tuple | list):
            raise InvalidInputError(f"{name} must have the form of theta, tensors of shapes {wanted}, got {shapes}")
        for t in received:
            check_real(name, t)
        converted = [t.to(like) for t, like in zip(received, as_tuple(self.theta), strict=True)]
        if any(has_forward_derivative(t) for t in converted):
            raise UnsupportedError(NO_FORWARD_MODE)
        if self.solved is None and self.checks is None and not torch.is_inference_mode_enabled():
            # The oracle has accepted scores of these shapes.
            ndims = [t.ndim - 1 for t in as_tuple(self.theta)]
            flat = [flatten_batch(t, n, self.batch_shape) for t, n in zip(converted, ndims, strict=True)]
            form = self.without_padding(pack_like(flat, self.theta))
            return form, check_scores_finite(form, self.batch_shape, None, name)
        with blame_argument(name):
            built = Problem.build(pack_like(converted, self.theta), self.whole_oracle, {})
            built.finish_checks()
        return self.same_rows(built), built.is_finite

    def has_flat_form(self, t: Any) -> bool:
        """Return whether ``t`` is a plain tensor of the shape, dtype and device of the scores, one tensor on the CPU.

        It then needs no conversion, and holds the instances of the problem.
        """
        like = self.theta
        if (
            type(t) is not Tensor
            or isinstance(like, tuple)
            or self.solved is not None
            or not (like.is_cpu and t.is_cpu)
        ):
            return False
        if t.is_nested or t.layout is not torch.strided or len(self.batch_shape) != 1 or has_forward_derivative(t):
            return False
        return t.dtype is like.dtype and t.shape == like.shape and not torch.is_inference_mode_enabled()

    def same_rows(self, other: Problem) -> Parts:
        """Return the scores (B | 1, *event) of ``other``, a problem of the same batch, for the instances of this one.

        Law: ``other`` has the same empty instances, and no infeasible instances left out.
        """
        if self.solved is None:
            return other.theta
        infeasible = self.solved.infeasible
        rows = infeasible if other.solved is None else infeasible[other.solved.index]
        return SolvedRows((~rows).nonzero()[:, 0], rows, self.oracle).select_parts(other.theta)

    def select(self, t: Tensor) -> Tensor:
        """Return the instances of the problem in ``t`` (B, ...), a tensor for the user's whole batch."""
        return t if self.solved is None else self.solved.select(t)

    def without_padding(self, form: Parts) -> Parts:
        """Return ``form`` (B | 1, *event) with 0 in the padding."""
        return without_padding(self.oracle, form) if self.has_padding else form

    def repeat(self, shape: torch.Size) -> Problem:
        """Return the problem with copies of all instances, in dimensions ``shape`` in front of the batch."""
        n = shape.numel()
        return dataclasses.replace(
            self,
            oracle=self.oracle.repeat(n),
            theta=repeat_instances(self.theta, n),
            batch_shape=shape + self.batch_shape,
            solved=None if self.solved is None else self.solved.repeat(n),
        )

    # -- the way back -------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of values: the widest dtype of the user's tensors."""
        return self.dtypes[0] if len(self.dtypes) == 1 else functools.reduce(torch.promote_types, self.dtypes)

    def restore(self, t: Tensor, dim: int = 0, fill: Fill = ZERO) -> Tensor:
        """Unflatten the batch dimension ``dim`` of ``t``, and cast floating-point tensors to the user's dtype.

        Instances outside of the problem get the values ``fill``.
        """
        t = self.scatter(t, dim, fill)
        t = t.reshape(t.shape[:dim] + self.batch_shape + t.shape[dim + 1 :])
        return t.to(self.dtype) if t.is_floating_point() else t

    def scatter(self, t: Tensor, dim: int = 0, fill: Fill = ZERO) -> Tensor:
        """Return ``t`` with all instances of the user's batch in the flat dimension ``dim``."""
        self._check_dense(t)
        return t if self.solved is None else self.solved.scatter(t, dim, fill)

    def restore_parts(self, parts: Parts, dim: int = 0, fill: Fill = ZERO) -> Parts:
        """Unflatten the batch dimension ``dim`` of parts, and cast each tensor to the dtype of its scores.

        Instances outside of the problem get the values ``fill``.
        """
        if self.solved is None and len(self.batch_shape) == 1:
            if isinstance(parts, Tensor) and parts is not self.theta:
                self._check_dense(parts)
                return parts if parts.dtype is self.dtypes[0] else parts.to(self.dtypes[0])
            if isinstance(parts, tuple) and all(map(_is_result, parts, as_tuple(self.theta), self.dtypes)):
                return parts
        parts = map_parts(lambda t: self.scatter(t, dim, fill), parts)
        if self.has_size_0:
            own = [t[(..., *map(slice, e))] for t, e in zip(as_tuple(parts), self.event_shapes, strict=True)]
            parts = pack_like(own, self.theta)
        restored = []
        for t, like, dtype in zip(as_tuple(parts), as_tuple(self.theta), self.dtypes, strict=True):
            # A reshape that changes nothing takes as long as a small kernel. The user's own tensor is not returned.
            if len(self.batch_shape) != 1 or t is like:
                t = t.reshape(t.shape[:dim] + self.batch_shape + t.shape[dim + 1 :])
            restored.append(t if t.dtype is dtype else t.to(dtype))
        return pack_like(restored, self.theta)

    def _check_dense(self, t: Tensor) -> None:
        if t.layout is not torch.strided:
            raise PluginError(
                f"a method of {self.oracle.label()} returned a tensor of layout {t.layout}, but results must be dense; "
                "call .to_dense() in the method"
            )

    def plain_modes(self, *, defers_checks: bool = False) -> contextlib.AbstractContextManager[None]:
        """Disable autocast, and replace inference mode by no_grad, while an oracle runs.

        Errors about one instance receive the batch index in the user's batch shape.

        Parameters
        ----------
        defers_checks : bool
            Whether checks of values on a GPU wait for the end of the context. The oracle then runs on scores that may
            hold NaN. By default, the start of the context finishes the checks.
        """
        # The position of an instance in the user's batch is known after its error has been renumbered.
        shape = self.batch_shape if self.solved is None else torch.Size()
        return PlainModes(as_tuple(self.theta)[0].device.type, shape, self.checks, defers_checks)

    def finish_checks(self) -> None:
        """Run the checks that wait, for calls without :meth:`plain_modes`."""
        if self.checks is not None:
            self.checks.finish()


def _is_result(t: Tensor, like: Tensor, dtype: torch.dtype) -> bool:
    """Return whether ``t`` is a dense tensor of this dtype, and not the user's tensor ``like``."""
    return t is not like and t.dtype is dtype and t.layout is torch.strided


def _numbering(solved: SolvedRows | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if solved is None else renumber_instances(solved.index)


def _add_option(error: InfeasibleError) -> None:
    """Add to the message how calls leave out infeasible instances. Direct calls of oracles have no such option."""
    if "on_infeasible" not in error.args[0]:
        error.args = (f'{error.args[0]}; on_infeasible="zero" leaves out such instances',)
