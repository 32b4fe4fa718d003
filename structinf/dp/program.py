"""Oracles defined by a hypergraph."""

from __future__ import annotations

import abc
import functools
import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..kernels.gpu import interprets_kernels, uses_triton
from ..linear_constraints import LinearConstraints, LinearlyConstrained
from ..noise import Gumbel
from ..oracle import Enumerable, KBest, Samplable, computed_on_cpu
from ..parts import Parts, as_tuple, batch_size, divide_by_temperature, map_parts, pack_like, sum_to_batch_of
from ..regularizers import NEGENTROPY, UNREGULARIZED, Regularizer
from ..shapes import Bool, Float
from ..smoothing import SmoothableGibbs, kernel_alpha, triton_alpha
from ..validation import check_count, check_enumerable, check_feasible, check_instances, check_k
from . import dispatch, queries, torch_backend
from .distinct_samples import distinct_derivations, log_probabilities
from .flow_constraints import flow_constraints
from .hypergraph import Hypergraph
from .hypergraph_cache import build_once, latest_hypergraph, store_latest_hypergraph
from .relaxed_walks import RelaxedWalks, relaxed_walks

__all__ = ["HypergraphProgram"]


_METHODS_OF_RECURSION = (
    *("argmax", "argmax_indices", "contains", "count", "covariance_product", "entropy", "enumerate"),
    *("has_faster_argmax", "known_set", "linear_constraints", "log_partition", "log_partition_and_marginals"),
    *("log_partition_vjp", "log_prob", "marginals", "sample", "sample_without_replacement"),
    *("smoothed_hessian_product", "smoothed_sample", "smoothed_value", "smoothed_value_and_mean", "smoothed_vjp"),
    "topk",
)
"""The methods and attributes that depend on the hypergraph."""


class HypergraphProgram(SmoothableGibbs, Samplable, KBest, Enumerable, LinearlyConstrained):
    """An oracle whose structures are the derivations of the goal of a hypergraph; subclasses implement :meth:`build`.

    Law: distinct derivations have distinct parts, so that a sum over derivations equals a sum over structures.

    Options must be hashable, because hypergraphs are cached by options and event shape. Instance data named ``lengths``
    selects the goal of each instance, ``goals[lengths]``. Override :meth:`goal_index` to select by other data.

    References
    ----------
    A. Mensch & M. Blondel, Differentiable dynamic programming for structured prediction and attention, ICML 2018.
    D. Klein & C. Manning, Parsing and hypergraphs, IWPT 2001.
    L. Huang & D. Chiang, Better k-best parsing, IWPT 2005.

    Examples
    --------
    Binary strings without two ones in a row:

    >>> from structinf.dp import HypergraphBuilder
    >>> from structinf.regularizers import SquaredL2
    >>> class NoTwoOnes(HypergraphProgram):
    ...     event_ndim = 1
    ...
    ...     def build(self, event_shape):
    ...         graph = HypergraphBuilder(event_shape)
    ...         # Nodes for prefixes of each length that end in 0 and in 1.
    ...         zero, one = graph.nodes(2, event_shape[0] + 1)
    ...         graph.add(zero[0])
    ...         graph.add(zero[1:], zero[:-1])
    ...         graph.add(zero[1:], one[:-1])
    ...         graph.add(one[1:], zero[:-1], part=graph.parts)
    ...         goal = graph.node()
    ...         graph.add(goal, [zero[-1], one[-1]])
    ...         return graph.build(goal, prune=True)
    >>> strings, theta = NoTwoOnes(), torch.tensor([[1.0, 1.5, 1.0]])
    >>> strings.argmax(theta), strings.count(theta)
    (tensor([[1., 0., 1.]]), [5])
    >>> strings.smoothed_mean(theta, SquaredL2())
    tensor([[0.7891, 0.2109, 0.7188]])
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A class may have loops of its own for its hypergraph. A subclass with another hypergraph must not use them.
        owners = list(itertools.takewhile(lambda base: base is not HypergraphProgram, cls.__mro__))
        builders = [place for place, base in enumerate(owners) if "build" in base.__dict__]
        if len(builders) > 1:
            own = {name for base in owners[: builders[0] + 1] for name in base.__dict__}
            for name in _METHODS_OF_RECURSION:
                general = getattr(HypergraphProgram, name)
                if name not in own and getattr(cls, name) is not general:
                    setattr(cls, name, general)

    @abc.abstractmethod
    def build(self, event_shape: Any) -> Hypergraph:
        """Return the hypergraph for ``event_shape``, a shape or a tuple of shapes.

        A subclass that replaces the hypergraph of its base class also replaces the algorithms of the base class by
        those for hypergraphs, unless it defines its own.

        Law: the hypergraph depends only on ``event_shape`` and on the options.
        """

    # -- graph and form ----------------------------------------------------------------------

    def goal_index(self, graph: Hypergraph) -> Tensor | None:
        """Return the index in ``graph.goals`` of each instance's goal, (B, ...) integers; by default the bound lengths.

        None stands for the last goal, for all instances.

        Parameters
        ----------
        graph : Hypergraph
            The hypergraph.
        """
        return self.bound.get("lengths")

    @property
    def varies_between_instances(self) -> bool:
        """Whether instances of a batch may have different hypergraphs, as components of one; False by default.

        ``sparsemap`` then uses the active-set method for every batch, so that an instance has the same result in each.
        """
        return False

    def has_faster_argmax(self, theta: Parts) -> bool:
        """Return whether ``argmax`` needs no hypergraph for θ, and is faster than to build one; False by default.

        ``sparsemap`` then uses the active-set method. Law: the answer depends on the event shapes and the options only.

        Parameters
        ----------
        theta : (B | 1, *event) Tensor, or tuple of Tensors
            Scores of the parts.
        """
        return False

    def hypergraph(self, theta: Parts) -> Hypergraph:
        """Return the hypergraph for θ with one batch dimension; the oracle builds one hypergraph per event shape."""
        shape = tuple(theta.shape[1:]) if isinstance(theta, Tensor) else tuple([tuple(t.shape[1:]) for t in theta])
        graph = latest_hypergraph(self, shape)
        if graph is None:
            graph = self._hypergraph_of(shape)
            store_latest_hypergraph(self, shape, graph)
        return graph

    def _hypergraph_of(self, event_shape: Any) -> Hypergraph:
        return build_once(self._with_instance_data({}) if self.bound else self, event_shape)

    def valid_parts(self, theta: Parts) -> Parts | None:
        if "lengths" not in self.bound:
            return None
        graph, device, size = self.hypergraph(theta), as_tuple(theta)[0].device, len(self.bound["lengths"])
        if uses_triton(as_tuple(theta)[0]):
            mask = dispatch.used_parts(graph, self._goals_on(device, graph, size, defers_check=True))
        else:
            mask = graph.part_mask(self._goals(graph, size), device)
        pieces = self._unflatten(mask, theta)
        return map_parts(lambda m, t: m.any(0, keepdim=True) if len(t) == 1 else m, pieces, theta)

    def _flatten(self, theta: Parts) -> Tensor:
        """Return the parts of each instance, (B, P), contiguous."""
        if isinstance(theta, Tensor) and theta.ndim == 2:
            return theta.contiguous()
        size = batch_size(theta)
        flat = [t.expand(size, *t.shape[1:]).reshape(size, math.prod(t.shape[1:])) for t in as_tuple(theta)]
        return flat[0].contiguous() if len(flat) == 1 else torch.cat(flat, 1)

    def _flatten_structure(self, y: Parts) -> Tensor:
        """Return the numbers of hyperedges with each part in the derivation of y, (B, P); any numbers for other y."""
        return self._flatten(y)

    def _unflatten(self, parts: Tensor, theta: Parts) -> Parts:
        """Reshape parts (..., P) to the event shapes of θ."""
        if isinstance(theta, Tensor) and theta.ndim == 2:
            return parts
        sizes = [math.prod(t.shape[1:]) for t in as_tuple(theta)]
        pieces = zip(parts.split(sizes, -1), as_tuple(theta), strict=True)
        return pack_like([p.reshape(*p.shape[:-1], *t.shape[1:]) for p, t in pieces], theta)

    def _graph_parts_goals(self, theta: Parts) -> tuple[Hypergraph, Tensor, Tensor]:
        """Return the hypergraph, the flattened θ (B, P), and the goals (B,) on the device of θ."""
        graph, flat = self.hypergraph(theta), self._flatten(theta)
        return graph, flat, self._goals_on(flat.device, graph, len(flat))

    def _graph_parts_unchecked_goals(self, theta: Parts) -> tuple[Hypergraph, Tensor, Tensor]:
        """Do the work of :meth:`_graph_parts_goals`, for passes that end with :meth:`_check_goals_and_values`."""
        graph, flat = self.hypergraph(theta), self._flatten(theta)
        return graph, flat, self._goals_on(flat.device, graph, len(flat), defers_check=True)

    def _goals_on(self, device: torch.device, graph: Hypergraph, batch: int, *, defers_check: bool = False) -> Tensor:
        """Return the goals on ``device``; with ``defers_check``, −1 for lengths without a goal, except on the CPU.

        The check of lengths on a device would wait for the device. The passes give the goal −1 the value −inf.
        """
        lengths = self.goal_index(graph)
        on_cpu = device.type == "cpu"
        if defers_check and lengths is not None and (not on_cpu or interprets_kernels()):
            check_instances("lengths", lengths, batch, shared=False)
        else:
            goals = self._goals(graph, batch)
            if on_cpu:
                return torch.from_numpy(goals)
        return graph.goal_on(device, lengths, batch)

    def _goals(self, graph: Hypergraph, batch: int) -> np.ndarray:
        """Return the goal of each instance, (B,) int64; raise InvalidInputError for lengths without a goal."""
        lengths = self.goal_index(graph)
        goals = graph.goal(lengths, batch)
        if lengths is None and graph.last_goal >= 0:
            return goals
        check_instances("lengths", goals, batch, shared=False)
        if (goals < 0).any():
            index = int(np.flatnonzero(goals < 0)[0])
            sizes = "these sizes" if lengths is None else f"lengths {lengths[index].tolist()} at batch index {index}"
            raise InvalidInputError(f"{self.label()} has no structure of {sizes}")
        return goals

    def _check_feasible(self, value: Tensor) -> None:
        check_feasible(value, f"structure of {self.label()}")

    def _check_goals_and_values(self, value: Tensor, graph: Hypergraph) -> None:
        """Raise InvalidInputError for the first length without a goal, InfeasibleError for other values of −inf."""
        check_feasible(value, f"structure of {self.label()}", functools.partial(self._goals, graph, len(value)))

    # -- smoothed recursion ------------------------------------------------------------------

    def smoothed_value(self, theta: Parts, regularizer: Regularizer) -> Float[Tensor, " batch"]:
        graph, flat, goal = self._graph_parts_unchecked_goals(theta)
        value = dispatch.value(graph, flat, goal, regularizer)
        self._check_goals_and_values(value.detach(), graph)
        return value.to(flat.dtype)

    def smoothed_value_and_mean(self, theta: Parts, regularizer: Regularizer) -> tuple[Tensor, Parts]:
        graph, flat, goal = self._graph_parts_unchecked_goals(theta)
        value, parts = dispatch.value_and_mean(graph, flat, goal, regularizer)
        self._check_goals_and_values(value, graph)
        return value.to(flat.dtype), self._unflatten(parts, theta)

    def smoothed_vjp(self, theta: Parts, weight: Tensor, regularizer: Regularizer) -> Parts:
        graph, flat, goal = self._graph_parts_unchecked_goals(theta)
        value, parts = dispatch.value_and_mean(graph, flat, goal, regularizer, weight)
        self._check_goals_and_values(value, graph)
        return sum_to_batch_of(self._unflatten(parts, theta), theta)

    def smoothed_hessian_product(self, theta: Parts, v: Parts, regularizer: Regularizer) -> Parts:
        graph, flat, goal = self._graph_parts_unchecked_goals(theta)
        direction = self._flatten(v).expand(flat.shape).contiguous()
        value, parts = dispatch.hessian_product(graph, flat, direction, goal, regularizer)
        self._check_goals_and_values(value, graph)
        return self._unflatten(parts, theta)

    # -- oracle methods ----------------------------------------------------------------------

    def argmax(self, theta: Parts) -> Parts:
        """Return a best structure; ties go to the hyperedge added first, from the goal down."""
        kind, whole = type(self), HypergraphProgram
        is_inherited = kind.smoothed_mean is whole.smoothed_mean
        is_inherited &= kind.smoothed_value_and_mean is whole.smoothed_value_and_mean
        if not is_inherited or kernel_alpha(theta, UNREGULARIZED) is None:
            return self.smoothed_mean(theta, UNREGULARIZED)
        graph, flat = self.hypergraph(theta), self._flatten(theta)
        value, parts = dispatch.best_on_cpu(graph, flat, self._goals(graph, len(flat)))
        # The sum is finite only if all values are, and takes a fifth of the time of the search.
        if not math.isfinite(np.add.reduce(value)) and -math.inf in value:
            self._check_goals_and_values(torch.from_numpy(value), graph)
        return self._unflatten(parts, theta)

    def sample(self, theta: Parts, n: int, generator: torch.Generator | None = None) -> Parts:
        return self.smoothed_sample(theta, n, NEGENTROPY, generator)

    @computed_on_cpu
    def topk(self, theta: Parts, k: int) -> tuple[Parts, Tensor, Tensor]:
        check_k(k)
        graph, flat, goal = self._graph_parts_goals(theta)
        scores, parts = dispatch.k_best(graph, flat, goal, k)
        self._check_feasible(scores[0])
        return self._unflatten(parts, theta), scores.to(flat.dtype), ~torch.isneginf(scores)

    def enumerate(self, event_shape: Any) -> Parts:
        """Return all structures, (n, *event); raise InvalidInputError for more than a million."""
        graph = self._hypergraph_of(event_shape)
        goal = int(self._goals(graph, 1)[0])
        count = queries.count(graph, goal)
        check_enumerable(count, f"structures of {self.label()}")
        is_tuple = not isinstance(event_shape[0], int)
        zeros = [torch.zeros(1, *shape, device="cpu") for shape in (event_shape if is_tuple else [event_shape])]
        return self._unflatten(queries.derivations(graph, goal, count), tuple(zeros) if is_tuple else zeros[0])

    def linear_constraints(self, event_shape: Any) -> LinearConstraints:
        """Return the constraints of the flows of the hypergraph, in which the parts come first."""
        graph = self._hypergraph_of(event_shape)
        goal = int(self._goals(graph, 1)[0])
        return flow_constraints(graph, goal, np.flatnonzero(~self._parts_in_use(event_shape)))

    def _parts_in_use(self, event_shape: Any) -> Bool[np.ndarray, " parts"]:
        """Return the mask of :meth:`valid_parts` for one instance."""
        is_tuple = bool(event_shape) and not isinstance(event_shape[0], int)
        device = next((t.device for t in self.bound.values() if isinstance(t, Tensor)), torch.device("cpu"))
        ones = tuple(torch.ones(1, *shape, device=device) for shape in (event_shape if is_tuple else [event_shape]))
        mask = self.valid_parts(ones if is_tuple else ones[0])
        return np.concatenate([t.flatten().cpu().numpy() != 0 for t in as_tuple(ones if mask is None else mask)])

    # -- random walks: θ is divided by the temperature of the regularizer ----------------------

    def smoothed_sample(
        self, theta: Parts, n: int, regularizer: Regularizer, generator: torch.Generator | None = None
    ) -> Parts:
        """Draw ``n`` independent structures per instance, (n, B, *event), with expectation ∇DP_Ω(θ / temperature).

        Each structure comes from a random walk from the goal, with hyperedge probabilities q = ∇max_Ω at each node.
        """
        check_count(n)
        scaled = divide_by_temperature(theta, regularizer.temperature)
        # A regularizer of a user may have tensors on the device of θ.
        is_on_device = regularizer.alpha is None or triton_alpha(scaled, regularizer) is not None
        return (self._sample if is_on_device else self._sample_on_cpu)(scaled, n, regularizer, generator)

    def _sample(self, theta: Parts, n: int, regularizer: Regularizer, generator: torch.Generator | None) -> Parts:
        graph, flat, goal = self._graph_parts_unchecked_goals(theta)
        value, parts = dispatch.sample(graph, flat, goal, regularizer, n, generator)
        self._check_goals_and_values(value, graph)
        return self._unflatten(parts, theta)

    _sample_on_cpu = computed_on_cpu(_sample)

    def sample_without_replacement(
        self,
        theta: Parts,
        n: int,
        generator: torch.Generator | None = None,
        regularizer: Regularizer = NEGENTROPY,
    ) -> tuple[Parts, Tensor]:
        """Draw ``n`` different structures per instance, each from :meth:`smoothed_sample` given the earlier ones.

        Returns
        -------
        structures : (n, B, *event) Tensor, or tuple of Tensors
            The structures in the order of the draws; 0 beyond the last structure of positive probability.
        valid : (n, B) bool Tensor
            False beyond the last structure.
        """
        check_count(n)
        graph, flat, goal = self._graph_parts_goals(divide_by_temperature(theta, regularizer.temperature))
        v, q = torch_backend.edge_probabilities(graph, flat, regularizer)
        self._check_feasible(torch_backend.at_goals(v, goal))
        log_q = log_probabilities(graph, flat, v) if regularizer.alpha == 1 else q.log()
        parts, valid = distinct_derivations(graph, log_q, goal, n, generator)
        return self._unflatten(parts.to(flat.dtype), theta), valid

    def relaxed_sample(
        self,
        theta: Parts,
        n: int,
        generator: torch.Generator | None = None,
        *,
        temperature: float | Tensor = 1.0,
        relaxation_temperature: float | Tensor = 1.0,
        straight_through: bool = False,
    ) -> Parts:
        """Draw ``n`` relaxed samples of p(y) ∝ exp(⟨θ, y⟩ / temperature), (n, B, *event), differentiable in θ.

        Each choice of a derivation is a softmax of its scores plus Gumbel noise.

        Parameters
        ----------
        theta : (B | 1, *event) Tensor, or tuple of Tensors
            Scores of the parts.
        n : int
            The number of samples.
        generator : torch.Generator, optional
            The source of the noise.
        temperature : float, or Tensor with one number
            The divisor of the scores of the distribution, above 0.
        relaxation_temperature : float, or Tensor with one number
            The divisor of the noisy scores in each softmax, above 0.
        straight_through : bool
            Whether the values are exact samples, with the gradient of the relaxed samples.
        """
        check_count(n)
        graph, flat, goal = self._graph_parts_goals(divide_by_temperature(theta, temperature))
        scores, goals = flat.double().repeat(n, 1), goal.repeat(n)
        noise = _edge_noise(graph, scores, generator)
        walks = relaxed_walks(graph, scores, goals, noise, relaxation_temperature)
        self._check_feasible(walks.value.detach()[: len(flat)])
        samples = walks.drawn + (walks.relaxed - walks.relaxed.detach()) if straight_through else walks.relaxed
        return self._unflatten(samples.to(flat.dtype).unflatten(0, (n, len(flat))), theta)

    def relaxed_sample_pairs(
        self, theta: Parts, generator: torch.Generator | None = None, *, relaxation_temperature: float = 1.0
    ) -> RelaxedWalks:
        """Draw a sample of p(y) ∝ exp⟨θ, y⟩ for each instance, and two relaxed samples of noise that leads to it.

        The first noise is the noise behind the sample. The second noise is drawn given the sample.

        Parameters
        ----------
        theta : (B | 1, *event) Tensor, or tuple of Tensors
            Scores of the parts.
        generator : torch.Generator, optional
            The source of the noise.
        relaxation_temperature : float
            The divisor of the noisy scores in each softmax, above 0.

        Returns
        -------
        RelaxedWalks
            The samples as vectors (B, P) of all parts, in float64. ``value`` is −inf for an instance without a
            structure.
        """
        graph, flat, goal = self._graph_parts_goals(theta)
        scores = flat.double()
        noise, again = (_edge_noise(graph, scores, generator) for _ in range(2))
        return relaxed_walks(graph, scores, goal, noise, relaxation_temperature, again)

    def entropy(self, theta: Parts, regularizer: Regularizer = NEGENTROPY) -> Float[Tensor, " batch"]:
        """Return the Shannon entropy in nats, (B,), of the structures drawn by :meth:`smoothed_sample`."""
        graph, flat, goal = self._graph_parts_goals(divide_by_temperature(theta, regularizer.temperature))
        value, entropy = queries.entropy(graph, flat, goal, regularizer)
        self._check_feasible(value)
        return entropy.to(flat.dtype)

    def log_prob(self, theta: Parts, y: Parts, regularizer: Regularizer = NEGENTROPY) -> Float[Tensor, " batch"]:
        """Return the log-probability, (B,), of ``y`` (B, *event) under :meth:`smoothed_sample`; −inf off the support.

        Raises InvalidInputError if ``y`` is no structure.
        """
        graph, flat, goal = self._graph_parts_goals(divide_by_temperature(theta, regularizer.temperature))
        flat_y = self._flatten_structure(y).double().expand_as(flat)
        value, log_prob, structure = queries.log_prob(graph, flat, goal, flat_y, regularizer)
        self._check_feasible(value)
        wrong = ~(structure == flat_y).all(1)
        if bool(wrong.any()):
            raise InvalidInputError(
                f"y is not a structure of {self.label()} at batch index {int(wrong.nonzero()[0, 0])}"
            )
        return log_prob.to(flat.dtype)

    @computed_on_cpu
    def count(self, theta: Parts) -> list[int]:
        """Return the exact number of structures of finite score for each instance."""
        graph, flat, goal = self._graph_parts_goals(theta)
        return [queries.count(graph, int(g), row) for g, row in zip(goal, torch.isneginf(flat).cpu(), strict=True)]

    def enumerate_support(
        self, theta: Parts, regularizer: Regularizer, max_structures: int = 10_000
    ) -> tuple[Parts, Tensor]:
        """Return all structures of positive probability under :meth:`smoothed_sample`, most probable first.

        With a sparse regularizer, the support can be much smaller than the set of structures.

        Parameters
        ----------
        theta : (B | 1, *event) Tensor, or tuple of Tensors
            Scores of the parts.
        regularizer : Regularizer
            Ω, which smooths each maximum; θ is divided by its temperature.
        max_structures : int
            Limit of structures per instance, default 10000.

        Returns
        -------
        structures : (K, B, *event) Tensor, or tuple of Tensors
            The structures, padded with 0 for instances with fewer than K.
        probabilities : (K, B) Tensor
            The probabilities, padded with 0.

        Raises
        ------
        InvalidInputError
            If an instance has more than ``max_structures`` structures of positive probability.
        """
        graph, flat, goal = self._graph_parts_goals(divide_by_temperature(theta, regularizer.temperature))
        v, q = torch_backend.edge_probabilities(graph, flat, regularizer)
        self._check_feasible(torch_backend.at_goals(v, goal))
        probabilities, parts = queries.support(graph, q, goal, max_structures)
        return self._unflatten(parts.to(flat.dtype), theta), probabilities.to(flat.dtype)


def _edge_noise(graph: Hypergraph, scores: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return Gumbel noise of each hyperedge for scores (B, P), and of none in the last column: (B, E + 1)."""
    shape = len(scores), graph.edges + 1
    return Gumbel().sample(shape, dtype=scores.dtype, device=scores.device, generator=generator)
