"""FactorGraph: binary variables with an oracle for each constraint."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError, UnknownNameError, UnsupportedError
from ..kernels.arrays import as_tensor
from ..oracle import Oracle
from ..parts import Parts, as_tuple
from ..registry import ORACLES
from ..validation.method_calls import validate_form
from .exact import ExactFactorGraph
from .group import Factor, FactorGroup
from .logic import LOGIC_FACTORS

__all__ = ["FactorGraph"]


class FactorGraph(ExactFactorGraph):
    """Binary variables that satisfy several constraints at once, each given by an oracle.

    Each factor is an oracle whose parts are some of the variables. A structure of the graph is a vector of variables
    that forms a structure of every factor.

    - Scores θ: the score of each variable, shape (..., *shape). If factors have scores of their own, such as the
      transitions of a chain, θ is a tuple: the variables first, then the additional tensors, factor by factor.
    - Structure y, in the form of θ: the value of each variable, 0 or 1, and the additional parts of each factor.
    - Labels, integers (..., *shape): the value of each variable.

    Parameters
    ----------
    shape : int or sequence of int
        The shape of the tensor of variables.

    Notes
    -----
    The relaxations ``lp_map`` and ``lp_sparsemap`` need only the argmax of each factor. ``argmax`` of the graph is
    exact, and so are sums over structures: each connected component with a single factor takes one call of the factor's
    oracle. A component of several factors lists its joint structures, at most 100,000, from the lists of its factors.
    Other graphs raise UnsupportedError, and so do relaxations that need an argmax or a sum, such as ``sparsemap``.

    No factor takes instance data, and the first use freezes the graph.

    References
    ----------
    A. Martins, M. Figueiredo, P. Aguiar, N. Smith & E. Xing, AD3: Alternating directions dual decomposition for MAP
    inference in graphical models, JMLR 16, 2015, §2 and §5.
    V. Niculae & A. Martins, LP-SparseMAP: Differentiable relaxed optimization for sparse structured prediction, ICML
    2020, §3.

    Examples
    --------
    A matching of three rows with three columns that uses at most one of the diagonal cells:

    >>> import structinf as si
    >>> graph = si.FactorGraph((3, 3))
    >>> graph.add("assignment", graph.variables)
    >>> graph.add("budget", graph.variables.diagonal(), k=1)
    >>> si.relax(torch.eye(3), graph, "map")
    tensor([[1., 0., 0.],
            [0., 0., 1.],
            [0., 1., 0.]])
    """

    name: ClassVar[str] = "factor_graph"
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            ability: f"the library has no algorithm for {what} of a graph; for tables of scores alone, use markov_field"
            for ability, what in (("KBest", "the k best structures"), ("Samplable", "samples"))
        }
    )

    def __init__(self, shape: int | Sequence[int]) -> None:
        sizes = (shape,) if isinstance(shape, int | np.integer) and not isinstance(shape, bool) else shape
        if not isinstance(sizes, Sequence) or isinstance(sizes, str) or not sizes or not all(map(_is_size, sizes)):
            raise InvalidInputError(f"shape must be a positive integer or a tuple of positive integers, got {shape!r}")
        super().__init__(torch.Size(map(int, sizes)))

    # -- construction ------------------------------------------------------------------------

    @property
    def factors(self) -> tuple[str, ...]:
        """The name and the size of each factor, in the order of :meth:`add`."""
        return tuple(factor.name for factor in self._factors)

    def add(
        self,
        factor: str | Oracle,
        variables: Any,
        *,
        negated: Any = False,
        additional: Sequence[Sequence[int]] | None = None,
        **options: Any,
    ) -> None:
        """Add a factor: the variables must form a structure of an oracle.

        =============  =================================================================
        name           constraint on variables x_1 ... x_d
        =============  =================================================================
        "xor"          exactly one is 1
        "or"           at least one is 1
        "at_most_one"  at most one is 1
        "imply"        if x_1 ... x_{d−1} are all 1, so is x_d
        "or_out"       x_d is 1 if and only if one of x_1 ... x_{d−1} is
        "and_out"      x_d is 1 if and only if all of x_1 ... x_{d−1} are
        "budget"       at most ``k`` are 1
        "pair"         none, but an additional score of each combination of 2 variables
        "table"        none, but an additional score of each combination
        =============  =================================================================

        Parameters
        ----------
        factor : str or Oracle
            A name of the table, a name of :func:`structinf.list_oracles`, or an oracle without instance data.
        variables : integer tensor or array
            Flat indices of variables, in the event shape of the oracle's scores, or of the first tensor if the scores
            are a tuple. :attr:`variables` has these indices. A bool tensor of the graph's shape selects variables in
            order, for oracles of one dimension. A variable may occur several times.
        negated : bool tensor or array
            Whether the factor's part is 1 − x instead of the variable x; broadcast to the shape of ``variables``.
        additional : sequence of shapes, optional
            The event shapes of the oracle's other tensors, whose parts are not variables. A chain of 3 states takes
            ``additional=[(3, 3)]``, the transitions. "pair" and "table" need no such option.
        **options
            Options of an oracle given by name, and ``k`` of "budget".

        Raises
        ------
        InvalidInputError
            If an index is out of range, or the oracle does not accept scores of these shapes.
        UnsupportedError
            If the graph is frozen, or the oracle takes only scores of at most 0.
        """
        if self._is_frozen:
            raise UnsupportedError("factor_graph: the graph is frozen by its first use; build a new graph")
        index = self._indices(variables)
        flips = _flags(negated, index)
        logic = LOGIC_FACTORS.get(factor) if isinstance(factor, str) else None
        if logic is not None:
            if index.ndim != 1:
                raise InvalidInputError(
                    f"variables of {factor} must have one dimension, got shape {tuple(index.shape)}"
                )
            if set(options) != set(logic.options) or additional is not None:
                given = ", ".join([*options, *(["additional"] if additional is not None else [])]) or "none"
                raise InvalidInputError(
                    f"{factor} takes the options: {', '.join(logic.options) or 'none'}; got: {given}"
                )
            oracle = logic.make(len(index), **options)
            flips = flips ^ torch.tensor(logic.negates(len(index)), device="cpu")
            shapes = (torch.Size([2] * len(index)),) * logic.table
            label = str(factor)
        else:
            try:
                oracle = ORACLES.get(factor, **options)
            except UnknownNameError as error:
                raise UnknownNameError(f"{error}. Other factors: {', '.join(LOGIC_FACTORS)}") from None
            shapes = _shapes(additional)
            label = oracle.label()
        number = len(self._factors)
        name = f"factor {number}, {label} of variables {_summary(index, self.shape)},"
        self._check_oracle(oracle, index, shapes, f"variables of factor {number}")
        first = 1 + sum(len(f.additional) for f in self._factors)
        self._factors.append(Factor(oracle, index, flips, shapes, first, name))

    def _indices(self, variables: Any) -> Tensor:
        """Return ``variables`` as flat indices, int64 on the CPU."""
        count = math.prod(self.shape)
        try:
            given = as_tensor(variables).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidInputError(f"variables must be a tensor of integers, got {variables!r}") from error
        if given.dtype is torch.bool:
            if given.shape != self.shape:
                raise InvalidInputError(
                    f"variables: a bool tensor must have the shape {tuple(self.shape)} of the graph, got "
                    f"{tuple(given.shape)}"
                )
            given = given.flatten().nonzero()[:, 0]
        if given.is_floating_point() or given.is_complex() or given.numel() == 0:
            raise InvalidInputError(
                f"variables must be flat indices of at least one variable, integers from 0 to {count - 1}, got "
                f"{'none' if given.numel() == 0 else f'a tensor of {given.dtype}'}; graph.variables holds the indices"
            )
        index = given.long().clone()
        if bool(((index < 0) | (index >= count)).any()):
            wrong = int(index[(index < 0) | (index >= count)][0])
            raise InvalidInputError(f"variables must be flat indices from 0 to {count - 1}, got {wrong}")
        return index

    def _check_oracle(self, oracle: Oracle, index: Tensor, shapes: tuple[torch.Size, ...], what: str) -> None:
        if oracle is self:
            raise UnsupportedError("factor_graph: a graph cannot be a factor of itself; add a copy of the graph")
        if oracle.bound:
            raise UnsupportedError(f"factor_graph: {oracle.label()} has bound instance data; factors take none")
        if oracle.requires_nonpositive_theta:
            raise UnsupportedError(
                f"factor_graph: {oracle.label()} takes only scores of at most 0, and the relaxations of a graph change "
                "the scores of factors"
            )
        zeros = [torch.zeros(1, *shape, dtype=torch.float64, device="cpu") for shape in (index.shape, *shapes)]
        form = tuple(zeros) if shapes else zeros[0]
        hint = (
            "pass the variables in the shape of the first tensor of scores of one instance, and the shapes of the "
            "other tensors as additional=[...]"
        )
        try:
            ndims = oracle.resolve_event_ndim(form)
            if ndims != tuple(t.ndim - 1 for t in zeros):
                given = _join(t.ndim - 1 for t in zeros)
                raise InvalidInputError(f"{oracle.label()} takes scores with {_join(ndims)} dimensions, got {given}")
            validate_form(oracle, form, 1)
        except (InvalidInputError, TypeError) as error:
            raise InvalidInputError(f"{what}: {error}; {hint}") from None

    # -- for relaxations ----------------------------------------------------------------------

    @functools.cached_property
    def groups(self) -> list[FactorGroup]:
        """The factors by oracle, for batched calls."""
        self.freeze()
        return FactorGroup.of(self._factors)

    def factor_name(self, number: int) -> str:
        """Return the words of messages for a factor.

        Parameters
        ----------
        number : int
            The position of the factor among the calls of :meth:`add`.
        """
        return self._factors[number].name

    # -- the oracle ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        """Return the shape and the number of factors."""
        return f"FactorGraph({tuple(self.shape)}, factors={len(self._factors)})"

    @property
    def event_ndim(self) -> int | tuple[int, ...]:  # type: ignore[override]
        """The number of dimensions of the variables; a tuple with additional scores."""
        additional = [len(shape) for f in self._factors for shape in f.additional]
        return (len(self.shape), *additional) if additional else len(self.shape)

    @property
    def label_ndim(self) -> int:  # type: ignore[override]
        """The number of dimensions of the variables."""
        return len(self.shape)

    def validate(self, theta: Parts) -> None:
        self.freeze()
        for i, (t, shape) in enumerate(zip(as_tuple(theta), self.event_shapes(), strict=True)):
            if t.shape[1:] != shape:
                name = f"theta[{i}]" if isinstance(theta, tuple) else "theta"
                raise InvalidInputError(
                    f"{name}: the graph takes scores of shape {tuple(shape)}, got {tuple(t.shape[1:])} after the batch "
                    "dimensions"
                )

    def has_binary_parts(self, theta: Parts) -> bool:
        tensors = as_tuple(theta)
        for f in self._factors:
            zeros = [torch.zeros(1, *shape, device="cpu") for shape in (f.variables.shape, *f.additional)]
            if not f.oracle.has_binary_parts(tuple(zeros) if f.additional else zeros[0]):
                return False
        return bool(tensors)

    def readout(self, y: Parts) -> Parts:
        """Return the variables."""
        return as_tuple(y)[0]

    def hamming_cost(self, y: Parts) -> Parts:
        """Return costs that count the wrong variables."""
        costs = [1 - 2 * as_tuple(y)[0], *map(torch.zeros_like, as_tuple(y)[1:])]
        return tuple(costs) if isinstance(y, tuple) else costs[0]

    def describe_part(self, y: Parts, tensor: int, index: tuple[int, ...]) -> str:
        if tensor == 0:
            return f"variable {index[0] if len(index) == 1 else index}"
        return f"additional part {index} of theta[{tensor}]"

    def encode(self, labels: Tensor, like: Parts) -> Parts:
        if labels.shape[1:] != self.shape:
            raise InvalidInputError(
                f"labels must be the values of the variables, shape (..., {', '.join(map(str, self.shape))}), got "
                f"{tuple(labels.shape)} with the batch flat"
            )
        wrong = (labels != 0) & (labels != 1)
        if bool(wrong.any()):
            index = int(wrong.nonzero()[0, 0])
            raise InvalidInputError(
                f"labels must be the values of the variables, 0 or 1, got {labels[wrong][0].item()} at batch index "
                f"{index}"
            )
        values = labels.to(as_tuple(like)[0].dtype)
        others: list[Tensor] = []
        for f in self._factors:
            parts = values.flatten(1)[:, f.variables.flatten()].reshape(-1, *f.variables.shape)
            parts = torch.where(f.negated.to(parts.device), 1 - parts, parts)
            # Among structures of 0 and 1, the argmax for scores 2z − 1 is z if and only if z is a structure.
            zeros = [parts.new_zeros(len(parts), *shape) for shape in f.additional]
            best = as_tuple(f.oracle.argmax((2 * parts - 1, *zeros) if zeros else 2 * parts - 1))
            wrong = (best[0] != parts).flatten(1).any(1).nonzero()
            if len(wrong):
                raise InvalidInputError(f"labels are no structure of {f.name} at batch index {int(wrong[0, 0])}")
            others += best[1:]
        return (values, *others) if isinstance(like, tuple) else values

    def decode(self, y: Parts) -> Tensor:
        return as_tuple(y)[0].round().long()


def _is_size(n: Any) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool) and int(n) > 0


def _flags(negated: Any, index: Tensor) -> Tensor:
    try:
        flags = as_tensor(negated).detach().cpu()
        if flags.dtype is not torch.bool:
            raise TypeError
        return flags.broadcast_to(index.shape).clone()
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInputError(
            f"negated must be a bool, or a bool tensor that broadcasts to the shape {tuple(index.shape)} of variables, "
            f"got {negated!r}"
        ) from None


def _shapes(additional: Sequence[Sequence[int]] | None) -> tuple[torch.Size, ...]:
    try:
        given = [tuple(shape) for shape in additional or ()]
        if all(all(map(_is_size, shape)) for shape in given):
            return tuple(map(torch.Size, given))
    except TypeError:
        pass
    raise InvalidInputError(f"additional must be a list of shapes, such as [(3, 3)], got {additional!r}")


def _summary(index: Tensor, shape: torch.Size) -> str:
    """Return the first and the last of the variables, for messages."""
    places = [tuple(int(i) for i in np.unravel_index(int(v), shape)) for v in index.flatten()[[0, -1]]]
    first, last = (p[0] if len(p) == 1 else p for p in places)
    return f"{first}" if index.numel() == 1 else f"{first} to {last}"


def _join(ndims: Iterable[int]) -> str:
    """Return "2" for one tensor, and "2 and 2" for two."""
    return " and ".join(map(str, ndims))
