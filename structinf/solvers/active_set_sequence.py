"""The active-set method for one batch of scores after another, each solved from the supports of the last solutions."""

from __future__ import annotations

import torch
from torch import Tensor

from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from .active_set import ActiveSetResult, add_starting_structures, make_backend, run_rounds
from .active_set_backend import ActiveSetBackend
from .active_set_compiled import CompiledBackend
from .mean_problem import MeanProblem
from .sparse_vectors import SparseVectors

__all__ = ["ActiveSetSequence"]

_FACTORISE_EVERY = 50
"""Calls between two that compute the factorisations of the supports anew, which bounds their rounding errors."""


class ActiveSetSequence:
    """Solutions of max ⟨θ, μ⟩ − ½ ‖μ‖² over conv(Y) for a sequence of scores of the same shapes.

    On the CPU, all arrays stay in place between two calls for the same instances, so a call costs little more than its
    rounds.

    Parameters
    ----------
    oracle : Oracle
        The set Y of structures.
    first_tensor : bool
        Whether the penalty is ½ ‖first tensor of μ‖² instead.

    Attributes
    ----------
    mean : (B, m) Tensor
        The penalised coordinates of the last solutions.
    finished : (B,) bool Tensor
        Whether the last call had enough rounds for a solution up to rounding errors.
    oracle_calls : int
        The number of batched calls of the oracle.
    """

    def __init__(self, oracle: Oracle, first_tensor: bool) -> None:
        self.oracle, self.first_tensor = oracle, first_tensor
        self.oracle_calls = self._calls = 0
        self._last: CompiledBackend | ActiveSetResult | None = None
        self._places: Tensor | None = None  # the instances that are left in the last batch, if not all

    def solve(self, theta: Parts, rounds: int) -> None:
        """Solve for other scores, in at most ``rounds`` rounds, each a call of the oracle.

        Parameters
        ----------
        theta : (B, *event) tensor, or a tuple of them
            The scores in float64, finite or −inf.
        rounds : int
            At least 1. Instances that are not solved by then have the solution over the structures found so far.
        """
        self._calls += 1
        last, tensors = self._last, as_tuple(theta)
        renew = self._calls % _FACTORISE_EVERY == 0
        if isinstance(last, CompiledBackend) and self._places is None and not renew:
            last.restart(tensors)
            backend = last
        else:
            backend = self._backend(theta, renew)
        self.oracle_calls += run_rounds(backend, rounds, last_finishes=False)
        self._places = None
        self.finished = torch.ones(len(tensors[0]), dtype=torch.bool, device=tensors[0].device)
        self.finished[backend.unfinished] = False
        if isinstance(backend, CompiledBackend):
            self._last, mean = backend, backend.current_mean()
        else:
            self._last = result = ActiveSetResult(backend, 0)
            mean = torch.cat([t.flatten(1) for t in as_tuple(result.mean)], 1)
            self.finished |= result.converged  # on a GPU, finished instances may stay in the batch
        self.mean = mean[:, : tensors[0].shape[1:].numel()] if self.first_tensor else mean

    def _backend(self, theta: Parts, renew: bool) -> ActiveSetBackend:
        """Return a backend with the supports of the last solutions; with ``renew``, it factorises them anew."""
        problem = MeanProblem(self.oracle, theta, False, self.first_tensor)
        if isinstance(self._last, CompiledBackend) and not renew:
            return CompiledBackend(problem, self._last.take_support(self._instances()))
        backend = make_backend(problem)
        if self._last is not None:
            _, parts, others = self.support()
            parts = torch.cat([parts, others.dense()], 2) if self.first_tensor else parts
            add_starting_structures(backend, problem.flattening.unflatten(parts.transpose(0, 1)))
        return backend

    def _instances(self) -> Tensor:
        """Return the positions of the instances in the last batch."""
        if self._places is None:
            return torch.arange(len(self.finished), device=self.finished.device)
        return self._places

    def support(self, positions: Tensor | None = None) -> tuple[Tensor, Tensor, SparseVectors]:
        """Return the structures of the last solutions, with their weights, for R instances.

        Parameters
        ----------
        positions : (R,) int64 Tensor, optional
            The instances; by default all.

        Returns
        -------
        weights : (R, K) Tensor
            The weights, 0 beyond the support.
        penalised : (R, K, m) Tensor
            The penalised coordinates of the structures.
        others : SparseVectors (R, K, width)
            The other coordinates.
        """
        last, places = self._last, self._instances()
        assert last is not None
        places = places if positions is None else places[positions]
        m = self.mean.shape[1]
        if isinstance(last, CompiledBackend):
            return last.current_support(places, m)
        structures = map_parts(lambda t: t[:, places].transpose(0, 1), last.support())
        vectors = torch.cat([t.flatten(2) for t in as_tuple(structures)], 2)
        return last.weights[:, places].T, vectors[..., :m], SparseVectors.of(vectors[..., m:])

    def select(self, keep: Tensor, oracle: Oracle) -> None:
        """Keep only the instances ``keep``, positions in the batch; ``oracle`` is the oracle of these instances."""
        self.oracle = oracle
        self._places = keep if self._places is None else self._places[keep]
