"""FactorGraph: binary variables with an oracle for each constraint."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import InvalidInputError, UnknownNameError, UnsupportedError
from ..oracle import Oracle
from ..parts import Parts, as_tuple
from ..registry import ORACLES, did_you_mean
from ..solvers.branch_and_bound import OnLimit
from ..solvers.graph_factors import Factor, GraphFactors, OracleGroup
from ..validation import check_choice, check_natural, check_positive
from ..validation.method_calls import validate_form
from .arguments import (
    additional_shapes,
    check_factor,
    data_keywords,
    flat_indices,
    is_size,
    negation_flags,
    summarize_variables,
    zero_scores,
)
from .exact import Solver
from .logic import LOGIC_FACTORS
from .ranked import RankedFactorGraph

__all__ = ["FactorGraph"]


class FactorGraph(RankedFactorGraph):
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
    solver : {"list", "milp", "branch_and_bound"}, default "list"
        How ``argmax`` finds the best structure of several factors that share variables. "list" lists their joint
        structures, at most 100,000. "milp" solves an integer program by HiGHS, and needs linear constraints of each
        factor. "branch_and_bound" takes any factors: it solves linear programs over the local polytope, and fixes
        variables until the solution has no fractions.
    time_limit : float, optional
        Seconds allowed for each instance with "milp". Default: no limit.
    node_limit : int, default 1000
        The number of linear programs, at most, after the first for an instance with "branch_and_bound". They are
        solved in pairs, so that their number may be higher by 1.
    on_limit : {"raise", "warn"}, default "raise"
        What happens if a limit stops a solver before it has a proof. "raise" raises SolverLimitError. "warn" returns
        the best structure found with a ConvergenceWarning. Both messages name the instance and bound the missing score.
        If no structure is found, the error is raised in either case.

    Notes
    -----
    The relaxations ``lp_map`` and ``lp_sparsemap`` need only the argmax of each factor, and ``belief_propagation`` the
    log-partition function of each factor. So does ``mean_field``, for factors that share no variable, and tables that
    join them. All other relaxations need ``argmax`` of the graph, or sums over its structures. Both are exact. A
    connected component with a single factor takes one call of the factor's oracle. A component of several factors uses
    ``solver`` for the argmax and the k best structures, and lists its joint structures for sums and samples.

    With "branch_and_bound", another structure may score higher by at most 1e-9 of the largest size of a score, with
    "milp" by 1e-13. These oracles have linear constraints: the factors by name, ``subset``, ``assignment`` (except with
    ``allow_unmatched=True``), ``arborescence``, ``spanning_tree``, ``matching``, ``tour``, all dynamic programs such as
    ``chain``, and oracles with a list of at most 1,000 structures.

    The first use freezes the graph.

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

    def __init__(
        self,
        shape: int | Sequence[int],
        *,
        solver: Solver = "list",
        time_limit: float | None = None,
        node_limit: int = 1000,
        on_limit: OnLimit = "raise",
    ) -> None:
        sizes = (shape,) if isinstance(shape, int | np.integer) and not isinstance(shape, bool) else shape
        if not isinstance(sizes, Sequence) or isinstance(sizes, str) or not sizes or not all(map(is_size, sizes)):
            raise InvalidInputError(f"shape must be a positive integer or a tuple of positive integers, got {shape!r}")
        check_choice("solver", solver, ("list", "milp", "branch_and_bound"))
        if time_limit is not None:
            check_positive("time_limit", time_limit)
        check_natural("node_limit", node_limit)
        check_choice("on_limit", on_limit, ("raise", "warn"))
        super().__init__(torch.Size(map(int, sizes)), solver, time_limit, node_limit, on_limit)

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
        instance_data: Mapping[str, str] | Sequence[str] = (),
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
        instance_data : sequence of str or mapping of str to str, optional
            The oracle's instance data that calls of the graph pass, such as ``["lengths"]``. A mapping gives the
            keyword of the calls for each name: with ``{"k": "limit"}``, ``limit=`` of a call is the oracle's ``k``.
            Factors may share a keyword. Without the keyword in a call, the oracle has no such data.
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
        index = flat_indices(variables, self.shape)
        flips = negation_flags(negated, index)
        data = data_keywords(instance_data)
        logic = LOGIC_FACTORS.get(factor) if isinstance(factor, str) else None
        if logic is not None:
            if index.ndim != 1:
                raise InvalidInputError(
                    f"variables of {factor} must have one dimension, got shape {tuple(index.shape)}"
                )
            given = {*options, *(name for name in data if name in logic.options)}
            if given != set(logic.options) or additional is not None:
                listed = ", ".join([*given, *(["additional"] if additional is not None else [])]) or "none"
                raise InvalidInputError(
                    f"{factor} takes the options: {', '.join(f'{o}=' for o in logic.options) or 'none'}; got: {listed}"
                )
            if "k" in data and "k" not in logic.options:
                raise InvalidInputError(f"instance_data: {factor} takes no 'k'; use budget, or the oracle subset")
            oracle = logic.make(len(index), **options)
            flips = flips ^ torch.tensor(logic.negates(len(index)), device="cpu")
            shapes = (torch.Size([2] * len(index)),) * logic.table
            label = str(factor)
        else:
            try:
                oracle = ORACLES.get(factor, **options)
            except UnknownNameError as error:
                logic_names = ", ".join(LOGIC_FACTORS)
                if hint := did_you_mean(str(factor), list(LOGIC_FACTORS)):
                    known = f"Known: {logic_names}, and the oracles {', '.join(ORACLES.names())}"
                    raise UnknownNameError(f"no factor is called {factor!r}{hint} {known}") from None
                raise UnknownNameError(f"{error}. Other factors: {logic_names}") from None
            shapes = additional_shapes(additional)
            label = oracle.label()
        number = len(self._factors)
        name = f"factor {number}, {label} of variables {summarize_variables(index, self.shape)},"
        first = 1 + sum(len(f.additional) for f in self._factors)
        new = Factor(oracle, index, flips, shapes, first, label, name, data)
        if oracle is self:
            raise UnsupportedError("factor_graph: a graph cannot be a factor of itself; add a copy of the graph")
        check_factor(new, f"variables of factor {number}", self.instance_ndim if data else {})
        self._factors.append(new)

    # -- for relaxations ----------------------------------------------------------------------

    @functools.cached_property
    def _groups(self) -> dict[frozenset[str], list[OracleGroup]]:
        return {}

    @property
    def grouped_factors(self) -> GraphFactors:
        """The factors by oracle, for batched calls, with the instance data."""
        self.freeze()
        keywords = frozenset(self.bound)
        if keywords not in self._groups:
            self._groups[keywords] = OracleGroup.of(self._factors, keywords)
        return GraphFactors(self._groups[keywords], tuple(f.name for f in self._factors), self.bound)

    def factor_name(self, number: int) -> str:
        """Return the words of messages for a factor.

        Parameters
        ----------
        number : int
            The position of the factor among the calls of :meth:`add`.
        """
        return self._factors[number].name

    # -- instance data ------------------------------------------------------------------------

    @property
    def instance_ndim(self) -> Mapping[str, int]:  # type: ignore[override]
        """The keywords of the factors' instance data, with the number of dimensions of one instance's value."""
        return {keyword: f.oracle.instance_ndim[name] for f in self._factors for name, keyword in f.data.items()}

    def resolve_instance_ndim(self, name: str, ndim: int, batch_ndim: int) -> int:
        owners = ((f.oracle, own) for f in self._factors for own, keyword in f.data.items() if keyword == name)
        return max(oracle.resolve_instance_ndim(own, ndim, batch_ndim) for oracle, own in owners)

    def hint_at_data(self, name: str) -> str:
        """Return how to pass instance data of factors that the graph does not take; empty for other names.

        Parameters
        ----------
        name : str
            A keyword of a call.
        """
        takers = [f"factor {i} ({f.label})" for i, f in enumerate(self._factors) if name in f.oracle.instance_ndim]
        if name in self.instance_ndim or not takers:
            return ""
        return f"; {takers[0]} takes {name} after graph.add(..., instance_data=[{name!r}])"

    def bind(self, **instance_data: Any) -> Self:
        for name in instance_data:
            if hint := self.hint_at_data(name):
                raise TypeError(f"factor_graph takes no instance data {name!r}{hint}")
        self.freeze()
        _ = self._groups, self._components, self.degree, self._lists, self._programs  # shared by all copies with data
        return super().bind(**instance_data)

    def __copy__(self) -> Self:
        """Return a graph to which other factors can be added, unless the graph is frozen."""
        new = type(self).__new__(type(self))
        vars(new).update(vars(self))
        new._factors = list(self._factors)
        return new

    def __getstate__(self) -> dict[str, Any]:
        """Return the factors and options, without the caches."""
        caches = ("_groups", "_components", "degree", "_lists", "_programs")
        return {key: value for key, value in vars(self).items() if key not in caches}

    def valid_parts(self, theta: Parts) -> Parts | None:
        if not self.bound:
            return None
        size = len(next(iter(self.bound.values())))
        device = as_tuple(theta)[0].device
        masks = [torch.ones(size, *shape, dtype=torch.bool, device=device) for shape in self.event_shapes()]
        for f in self._factors:
            oracle = f.bind(self.bound)
            valid = oracle.valid_parts(zero_scores(f, size, device)) if oracle.bound else None
            if valid is None:
                continue
            first, *others = as_tuple(valid)
            padded = ~first.expand(size, *f.variables.shape) & ~f.negated.to(device)
            count = torch.zeros(size, math.prod(self.shape), device=device)
            count.index_add_(1, f.variables.flatten().to(device), padded.flatten(1).float())
            masks[0] &= (count == 0).view_as(masks[0])
            for i, mask in enumerate(others, f.first):
                masks[i] = mask.expand_as(masks[i])
        return tuple(masks) if isinstance(theta, tuple) else masks[0]

    # -- the oracle ---------------------------------------------------------------------------

    @property
    def is_exact(self) -> bool:
        return self.solver == "list" or self.on_limit == "raise"

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

    @property
    def label_form(self) -> str:  # type: ignore[override]
        """The form of labels, for messages."""
        return f"the values of the variables, 0 or 1, of shape {tuple(self.shape)}"

    def resolve_event_ndim(self, theta: Parts) -> tuple[int, ...]:
        try:
            return super().resolve_event_ndim(theta)
        except InvalidInputError as error:
            forms = [f"{tuple(s)} for {owner}" for s, owner in zip(self.event_shapes(), self._owners(), strict=True)]
            raise InvalidInputError(f"{error}; the shapes are {', '.join(forms)}") from None

    def _owners(self) -> list[str]:
        """Return what each tensor of θ scores, for messages."""
        own = [f"factor {i} ({f.label})" for i, f in enumerate(self._factors) for _ in f.additional]
        return ["the variables", *own]

    def validate(self, theta: Parts) -> None:
        self.freeze()
        for i, (t, shape) in enumerate(zip(as_tuple(theta), self.event_shapes(), strict=True)):
            if t.shape[1:] != shape:
                name = f"theta[{i}]" if isinstance(theta, tuple) else "theta"
                raise InvalidInputError(
                    f"{name}: the scores for {self._owners()[i]} must have shape {tuple(shape)}, got "
                    f"{tuple(t.shape[1:])} after the batch dimensions"
                )
        for f in self._factors:
            if f.data:
                self._validate_data(f, as_tuple(theta)[0].device)

    def _validate_data(self, factor: Factor, device: torch.device) -> None:
        oracle = factor.bind(self.bound)
        size = len(next(iter(oracle.bound.values()))) if oracle.bound else 1
        try:
            validate_form(oracle, zero_scores(factor, size, device), size)
        except InvalidInputError as error:
            given = ", ".join(f"{keyword}= is {name}" for name, keyword in factor.data.items() if name != keyword)
            hint = f" (of the data, {given})" if given else ""
            raise InvalidInputError(f"{factor.name} {error}{hint}") from None

    def has_binary_parts(self, theta: Parts) -> bool:
        tensors = as_tuple(theta)
        for f in self._factors:
            oracle = f.bind(self.bound)
            size = len(next(iter(oracle.bound.values()))) if oracle.bound else 1
            if not oracle.has_binary_parts(zero_scores(f, size, tensors[0].device)):
                return False
        return bool(tensors)

    def readout(self, y: Parts) -> Parts:
        """Return the variables."""
        return as_tuple(y)[0]

    def hamming_cost(self, y: Parts) -> Parts:
        """Return costs that count the wrong variables."""
        values, valid = as_tuple(y)[0], self.valid_parts(y)
        cost = 1 - 2 * values
        cost = cost if valid is None else torch.where(as_tuple(valid)[0], cost, 0.0)
        costs = [cost, *map(torch.zeros_like, as_tuple(y)[1:])]
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
        valid = self.valid_parts(like)
        if valid is not None:
            labels = torch.where(as_tuple(valid)[0], labels, 0)
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
            best = as_tuple(f.bind(self.bound).argmax((2 * parts - 1, *zeros) if zeros else 2 * parts - 1))
            wrong = (best[0] != parts).flatten(1).any(1).nonzero()
            if len(wrong):
                raise InvalidInputError(f"labels are no structure of {f.name} at batch index {int(wrong[0, 0])}")
            others += best[1:]
        return (values, *others) if isinstance(like, tuple) else values

    def decode(self, y: Parts) -> Tensor:
        return as_tuple(y)[0].round().long()
