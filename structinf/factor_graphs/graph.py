"""FactorGraph: binary variables with an oracle for each constraint."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import InfeasibleError, InvalidInputError, UnsupportedError
from ..kernels.logsumexp import logsumexp
from ..oracle import Enumerable, GibbsOracle, Oracle
from ..parts import Parts, as_tuple, batch_size
from ..registry import ORACLES
from ..validation import check_feasible
from ..validation.method_calls import validate_form
from .group import Factor, FactorGroup
from .logic import LOGIC_FACTORS
from .structures import MOST_STRUCTURES, components, join, list_structures

__all__ = ["FactorGraph"]

_BEYOND_ARGMAX = "use the relaxation lp_map or lp_sparsemap, which need no argmax of the graph"


class FactorGraph(GibbsOracle, Enumerable):
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

    def __init__(self, shape: int | Sequence[int]) -> None:
        sizes = (shape,) if isinstance(shape, int) and not isinstance(shape, bool) else shape
        if not isinstance(sizes, Sequence) or isinstance(sizes, str) or not all(map(_is_size, sizes)):
            raise InvalidInputError(f"shape must be a positive integer or a tuple of positive integers, got {shape!r}")
        self.shape = torch.Size(sizes)
        self._factors: list[Factor] = []
        self._is_frozen = False

    # -- construction ------------------------------------------------------------------------

    @property
    def variables(self) -> Tensor:
        """The flat index of each variable, an int64 tensor of the shape of the variables."""
        return torch.arange(math.prod(self.shape), device="cpu").reshape(self.shape)

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
            oracle = ORACLES.get(factor, **options)
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
            given = torch.as_tensor(variables).detach().cpu()
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
        if oracle.bound:
            raise UnsupportedError(f"factor_graph: {oracle.label()} has bound instance data; factors take none")
        if oracle.requires_nonpositive_theta:
            raise UnsupportedError(
                f"factor_graph: {oracle.label()} takes only scores of at most 0, and the relaxations of a graph change "
                "the scores of factors"
            )
        zeros = [torch.zeros(1, *shape, dtype=torch.float64, device="cpu") for shape in (index.shape, *shapes)]
        form = tuple(zeros) if shapes else zeros[0]
        hint = "variables have the event shape of the first tensor, additional= the shapes of the others"
        try:
            ndims = oracle.resolve_event_ndim(form)
            if ndims != tuple(t.ndim - 1 for t in zeros):
                raise InvalidInputError(
                    f"{oracle.label()} takes {ndims} dimensions, got {tuple(t.ndim - 1 for t in zeros)}"
                )
            validate_form(oracle, form, 1)
        except (InvalidInputError, TypeError) as error:
            raise InvalidInputError(f"{what}: {error}; {hint}") from None

    # -- for relaxations ----------------------------------------------------------------------

    def freeze(self) -> None:
        """Refuse further factors from now on."""
        self._is_frozen = True

    @functools.cached_property
    def groups(self) -> list[FactorGroup]:
        """The factors by oracle, for batched calls."""
        self.freeze()
        return FactorGroup.of(self._factors)

    @functools.cached_property
    def degree(self) -> Tensor:
        """The number of factor parts of each variable, (n,) int64."""
        self.freeze()
        indices = [f.variables.flatten() for f in self._factors]
        return torch.bincount(torch.cat([*indices, self.variables.flatten()[:0]]), minlength=math.prod(self.shape))

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

    def event_shapes(self) -> tuple[torch.Size, ...]:
        """Return the shapes of the variables and of each additional tensor."""
        return (self.shape, *(shape for f in self._factors for shape in f.additional))

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

    # -- the exact argmax -----------------------------------------------------------------------

    def argmax(self, theta: Parts) -> Parts:
        self.freeze()
        tensors, size = as_tuple(theta), batch_size(theta)
        scores = tensors[0].expand(size, *self.shape).flatten(1)
        y = [t.new_zeros(size, *t.shape[1:]) for t in tensors]
        values = y[0].flatten(1)
        values.copy_((scores > 0) & (self.degree == 0).to(scores.device))
        for numbers in self._components:
            factor = self._factors[numbers[0]]
            if len(numbers) == 1 and self._is_plain(factor, scores):
                self._maximise_factor(factor, scores, tensors, y)
            else:
                self._maximise_list(numbers, scores, tensors, y)
        return tuple(y) if isinstance(theta, tuple) else y[0]

    @functools.cached_property
    def _components(self) -> list[list[int]]:
        return components(self._factors, math.prod(self.shape))

    def _is_plain(self, factor: Factor, scores: Tensor) -> bool:
        """Return whether the factor's argmax is that of its oracle: each variable occurs once, and no −inf negated."""
        index = factor.variables.flatten()
        if len(index.unique()) < len(index):
            return False
        negated = index[factor.negated.flatten()]
        return not bool(scores[:, negated.to(scores.device)].isneginf().any())

    def _maximise_factor(self, factor: Factor, scores: Tensor, tensors: tuple[Tensor, ...], y: list[Tensor]) -> None:
        with _name_factor(factor):
            best = as_tuple(factor.oracle.argmax(_own_scores(factor, scores, tensors)))
        index, flips = factor.variables.flatten().to(scores.device), factor.negated.flatten().to(scores.device)
        found = best[0].flatten(1)
        y[0].flatten(1)[:, index] = torch.where(flips, 1 - found, found)
        for i, part in enumerate(best[1:], factor.first):
            y[i].copy_(part)

    def _maximise_list(self, numbers: list[int], scores: Tensor, tensors: tuple[Tensor, ...], y: list[Tensor]) -> None:
        variables, values, others = self._joint_structures(tuple(numbers))
        best = self._list_scores(numbers, scores, tensors).max(1)
        self._check_feasible(numbers, best.values)
        y[0].flatten(1)[:, variables.to(scores.device)] = values.to(scores)[best.indices]
        for i, listed in others.items():
            y[i].copy_(listed.to(scores)[best.indices].view_as(y[i]))

    def _check_feasible(self, numbers: list[int], value: Tensor) -> None:
        check_feasible(value, f"structure of {' and '.join(f'factor {k}' for k in numbers)} together")

    def _list_scores(self, numbers: list[int], scores: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
        """Return the scores of the joint structures of a component, (B, N)."""
        variables, values, others = self._joint_structures(tuple(numbers))
        size = len(scores)
        pieces = [(scores[:, variables.to(scores.device)], values.to(scores))]
        pieces += [(tensors[i].expand(size, *tensors[i].shape[1:]).flatten(1), o.to(scores)) for i, o in others.items()]
        rows = []
        for b in range(size):  # row by row, so that the result of an instance does not depend on the batch
            total = scores.new_zeros(len(values))
            for t, listed in pieces:
                forbidden = t[b].isneginf()
                total = total + listed @ t[b].masked_fill(forbidden, 0)
                if bool(forbidden.any()):
                    total = total.masked_fill((listed[:, forbidden] != 0).any(1), -torch.inf)
            rows.append(total)
        return torch.stack(rows) if rows else scores.new_zeros(0, len(values))

    def _joint_structures(self, numbers: tuple[int, ...]) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        """Return the variables (V,) of a component, their values (N, V), and the additional parts by position."""
        known = self._lists
        if numbers not in known:
            try:
                joint = join(self._factors, numbers)
            except UnsupportedError as error:
                raise UnsupportedError(
                    f"factor_graph: the exact argmax lists the joint structures of {len(numbers)} factors that share "
                    f"variables, at most {MOST_STRUCTURES}, but {error}; {_BEYOND_ARGMAX}"
                ) from None
            others = {}
            for k, rows in joint.rows.items():
                listed = list_structures(self._factors[k])[1:]
                for i, part in enumerate(listed, self._factors[k].first):
                    others[i] = part.flatten(1)[torch.from_numpy(rows)]
            known[numbers] = torch.from_numpy(joint.variables), torch.from_numpy(joint.values), others
        return known[numbers]

    @functools.cached_property
    def _lists(self) -> dict[tuple[int, ...], tuple[Tensor, Tensor, dict[int, Tensor]]]:
        return {}

    def log_partition(self, theta: Parts) -> Tensor:
        self.freeze()
        tensors, size = as_tuple(theta), batch_size(theta)
        scores = tensors[0].expand(size, *self.shape).flatten(1)
        alone = scores[:, (self.degree == 0).to(scores.device)]
        both = torch.stack([torch.zeros_like(alone), alone], 2)
        total = logsumexp(both, 2).sum(1)
        for numbers in self._components:
            factor = self._factors[numbers[0]]
            if len(numbers) == 1 and isinstance(factor.oracle, GibbsOracle) and self._is_plain(factor, scores):
                # A negated variable scores θ x = θ − θ (1 − x).
                negated = factor.variables.flatten()[factor.negated.flatten()].to(scores.device)
                with _name_factor(factor):
                    value = factor.oracle.log_partition(_own_scores(factor, scores, tensors))
                total = total + scores[:, negated].sum(1) + value
            else:
                value = logsumexp(self._list_scores(numbers, scores, tensors), 1)
                self._check_feasible(numbers, value.detach())
                total = total + value
        return total

    def enumerate(self, event_shape: Any) -> Parts:
        shapes = self.event_shapes()
        free = (self.degree == 0).nonzero()[:, 0].tolist()
        blocks: list[dict[Any, Tensor]] = [
            {("variable", v): torch.tensor([[0.0], [1.0]], dtype=torch.float64, device="cpu")} for v in free
        ]
        for numbers in self._components:
            variables, values, others = self._joint_structures(tuple(numbers))
            columns = {("variable", int(v)): values[:, [j]] for j, v in enumerate(variables)}
            blocks.append({**columns, **{("tensor", i): part.double() for i, part in others.items()}})
        counts = [len(next(iter(block.values()))) for block in blocks]
        if math.prod(counts) > MOST_STRUCTURES:
            raise UnsupportedError(f"factor_graph lists at most {MOST_STRUCTURES} structures, got {math.prod(counts)}")
        rows = np.array(list(itertools.product(*map(range, counts))), np.int64).reshape(math.prod(counts), len(counts))
        listed = [torch.zeros(len(rows), math.prod(shape), dtype=torch.float64, device="cpu") for shape in shapes]
        for j, block in enumerate(blocks):
            for (kind, i), part in block.items():
                chosen = part[torch.from_numpy(rows[:, j])]
                if kind == "variable":
                    listed[0][:, i] = chosen[:, 0]
                else:
                    listed[i] = chosen
        shaped = [t.reshape(-1, *shape) for t, shape in zip(listed, shapes, strict=True)]
        return tuple(shaped) if len(shapes) > 1 else shaped[0]


def _own_scores(factor: Factor, scores: Tensor, tensors: tuple[Tensor, ...]) -> Parts:
    """Return the scores of the factor's oracle, for the ``scores`` (B, n) of variables and all ``tensors`` of θ."""
    flips = factor.negated.flatten().to(scores.device)
    own = scores[:, factor.variables.flatten().to(scores.device)]
    own = torch.where(flips, -own, own).reshape(-1, *factor.variables.shape).contiguous()
    others = tensors[factor.first : factor.first + len(factor.additional)]
    return (own, *others) if others else own


class _name_factor:
    """Add the name of a factor to InfeasibleErrors of its oracle."""

    def __init__(self, factor: Factor) -> None:
        self.factor = factor

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, InfeasibleError):
            message = f"{self.factor.name} has no structure of finite score: {error}"
            raise InfeasibleError(message, error.batch_index, error.batch_indices) from None


def _is_size(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n > 0


def _flags(negated: Any, index: Tensor) -> Tensor:
    try:
        flags = torch.as_tensor(negated).detach().cpu()
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
