"""Answers of slow oracles from earlier structures, with a share of exact calls."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidInputError, renumber_instances
from ..oracle import Oracle
from ..parts import AnyParts, Parts, as_tuple, batch_size, list_to_tuple, map_parts, pack
from ..validation import check_natural, check_ratio
from .pool import StructurePool, is_due
from .wrapper import Wrapper

__all__ = ["PoolReport", "Pooled", "pooled"]

_ANSWERS_PER_EXAMPLE = 2
"""Exact answers kept for each example: losses such as SPO+ need the best structures for two kinds of scores."""


class PoolReport(NamedTuple):
    """What a pooled oracle has answered since its start, or since ``reset_report``.

    Attributes
    ----------
    answers : int
        Number of answered instances.
    exact : int
        Number of instances solved by the inner oracle.
    cached : int
        Number of instances with the same scores as an earlier instance, answered by its exact structure.
    hit_rate : float
        Share of the instances answered without the inner oracle; NaN without answers.
    gap : float
        Mean of (V − v) / |V| for the best score V ≠ 0 and the best score v in the pool, over the exact calls for which
        the pool had an answer: an estimate of the loss of the other answers. NaN without such calls.
    """

    answers: int
    exact: int
    cached: int
    hit_rate: float
    gap: float


def pooled(
    oracle: str | Oracle,
    *,
    solve_ratio: float = 0.1,
    capacity: int = 1000,
    cache: int = 10_000,
    **options: Any,
) -> Pooled:
    """Return an oracle that answers most calls by the best of the structures found in earlier calls.

    A share ``solve_ratio`` of the instances goes to ``oracle``, and its structures join the pool: instances 1, 11,
    21, ... for 0.1. All other instances get the structure of highest score in the pool. If the pool has no structure of
    finite score for an instance, ``oracle`` solves the instance. :meth:`Pooled.add` fills the pool before the start.
    If it holds the best structures for some scores, the answers for these scores are exact.

    Instances with different instance data, such as lengths, use different pools. An answer depends on earlier calls, so
    call :meth:`Pooled.exact` for an oracle without the pool, for example to compute the regret.

    Parameters
    ----------
    oracle : str or Oracle
        The slow oracle: an object, or a name of :func:`structinf.list_oracles`, with its options.
    solve_ratio : float
        The share of exact calls, between 0 and 1. With 1, all answers are exact, and repeated scores are answered from
        the cache.
    capacity : int
        The largest number of structures in all pools together. A new structure replaces a structure of the pool that
        was used the longest ago: the structure that was the answer of an instance the longest ago. For an
        oracle with an option ``capacity``, pass an object:
        ``pooled(get_oracle("knapsack", weights=[2, 3], capacity=4), capacity=100)``.
    cache : int
        The largest number of exact answers that are stored by the bytes of their scores; 0 stores none. Calls may pass
        the instance data ``example``, an integer for each instance. The cache then keeps the 2 latest answers of each
        example, for up to ``cache`` examples.
    **options
        Options of an oracle given by name. An object already has its options.

    Returns
    -------
    Pooled
        The oracle. It needs an argmax only, so it supports the relaxations that need only the argmax.

    References
    ----------
    Mulamba, Mandi, Diligenti, Lombardi, Bucarey & Guns 2021, Contrastive Losses and Solution Caching for
    Predict-and-Optimize, IJCAI, pages 2833-2840 (solution caching).

    Examples
    --------
    >>> import structinf as si
    >>> g = torch.Generator().manual_seed(0)
    >>> theta = torch.rand(1000, 6, generator=g)
    >>> oracle = si.pooled("subset", k=2, solve_ratio=0.1)
    >>> for batch in theta.split(50):
    ...     y = si.relax(batch, oracle, "map")
    >>> report = oracle.report()
    >>> report.exact, report.hit_rate
    (100, 0.9)
    >>> report.gap < 0.05
    True
    """
    return Pooled(oracle, solve_ratio, capacity, cache, options)


class Pooled(Wrapper):
    """The oracle that :func:`pooled` returns. Copies, and copies with instance data, share the pool.

    Parameters
    ----------
    oracle, solve_ratio, capacity, cache
        As for :func:`pooled`.
    options : mapping
        Options of an oracle given by name.

    Examples
    --------
    >>> import structinf as si
    >>> oracle = si.pooled("categorical", solve_ratio=0.5)
    >>> si.relax(torch.eye(3)[[0, 1, 2, 2]], oracle, "map").argmax(1)
    tensor([0, 0, 2, 2])
    """

    def __init__(
        self,
        oracle: str | Oracle,
        solve_ratio: float,
        capacity: int,
        cache: int,
        options: Mapping[str, Any],
    ) -> None:
        # 1000 is the default of pooled
        super().__init__(oracle, options, {} if capacity == 1000 else {"capacity": capacity})
        check_ratio("solve_ratio", solve_ratio)
        check_natural("capacity", capacity)
        check_natural("cache", cache, 0)
        self.solve_ratio = solve_ratio
        self._memory = _Memory(capacity, cache)

    def __repr__(self) -> str:
        memory = self._memory
        return (
            f"pooled({self.oracle!r}, solve_ratio={self.solve_ratio}, capacity={memory.capacity}, cache={memory.cache})"
        )

    @property
    def is_exact(self) -> bool:
        return self.solve_ratio == 1 and self.oracle.is_exact

    @property
    def instance_ndim(self) -> Mapping[str, int]:
        return {**self.oracle.instance_ndim, "example": 0}

    def validate(self, theta: AnyParts) -> None:
        if "example" in self.bound and self.bound["example"].dtype is not torch.int64:
            raise InvalidInputError(f"example must be an integer for each instance, got {self.bound['example'].dtype}")
        super().validate(theta)

    def argmax(self, theta: AnyParts) -> Parts:
        with self._memory.uncounted_if_failed():
            return self._answer(theta)

    def _answer(self, theta: AnyParts) -> Parts:
        memory, size = self._memory, batch_size(theta)
        whole = map_parts(lambda t: t.detach().expand(size, *t.shape[1:]), theta)
        keys = _Keys(whole, self.bound)
        found: list[Parts | None] = [memory.cached(*keys.of_answer(b)) for b in range(size)]
        unknown = [b for b in range(size) if found[b] is None]
        memory.counts["answers"] += size
        memory.counts["cached"] += size - len(unknown)
        due = [b for b in unknown if memory.is_due(self.solve_ratio)]
        self._solve(whole, due, keys, found)
        rest = [b for b in unknown if found[b] is None]
        for group, rows, pool, scores, places in self._best_of_pools(whole, rest, keys):
            memory.pools.move_to_end(group)
            taken = [i for i, score in enumerate(scores) if math.isfinite(score)]
            structures = pool.take(torch.tensor([places[i] for i in taken], dtype=torch.int64, device="cpu"), whole)
            for k, i in enumerate(taken):
                found[rows[i]] = map_parts(lambda t, k=k: t[k], structures)
        self._solve(whole, [b for b in rest if found[b] is None], keys, found)
        if not size:
            return self.inner.argmax(theta)
        columns = zip(*[as_tuple(y) for y in found if y is not None], strict=True)
        stacked = [torch.stack([t.to(like) for t in c]) for c, like in zip(columns, as_tuple(whole), strict=True)]
        return pack(tuple(stacked), isinstance(theta, tuple))

    def add(self, structures: Parts) -> None:
        """Add known structures to the pool, for example the best decisions of the training data.

        Parameters
        ----------
        structures : (K, *event) Tensor, or tuple of Tensors
            Structures of instances without instance data.
        """
        known: Parts = list_to_tuple(structures)
        tensors = as_tuple(known)
        for t in tensors:
            if not isinstance(t, Tensor) or not t.is_floating_point() or t.ndim < 2 or not bool(t.isfinite().all()):
                raise InvalidInputError("structures must be finite tensors (K, *event) in floating point")
        if self.bound:
            raise InvalidInputError("add: the oracle has instance data; its pools grow by calls only")
        try:
            ndims = self.oracle.resolve_event_ndim(known)
        except InvalidInputError as error:
            raise InvalidInputError(str(error).replace("theta", "structures", 1)) from None
        if tuple(t.ndim - 1 for t in tensors) != ndims:
            raise InvalidInputError(
                f"structures must have one batch dimension before the {list(ndims)} dimensions of a structure, got "
                f"shapes {[tuple(t.shape) for t in tensors]}"
            )
        group = _Keys(known, {}).group(0)
        for k in range(len(tensors[0])):
            self._memory.add(group, map_parts(lambda t, k=k: t[k], known))

    def exact(self) -> Oracle:
        """Return the inner oracle, whose answers do not depend on earlier calls."""
        return self.inner

    def report(self) -> PoolReport:
        """Return the numbers of answers since the start, or since the last :meth:`reset_report`."""
        counts = self._memory.counts
        answers, compared = int(counts["answers"]), counts["compared"]
        return PoolReport(
            answers,
            int(counts["exact"]),
            int(counts["cached"]),
            1 - counts["exact"] / answers if answers else math.nan,
            counts["gap"] / compared if compared else math.nan,
        )

    def reset_report(self) -> None:
        """Set the numbers of :meth:`report` to 0. The pool and the schedule stay."""
        self._memory.counts = dict.fromkeys(self._memory.counts, 0.0)

    def state_dict(self) -> dict[str, Any]:
        """Return the pools, the cache, the schedule and the numbers of the report, for ``torch.save``."""
        return self._memory.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`.

        Parameters
        ----------
        state : mapping
            The state of a pooled oracle with the same inner oracle.
        """
        self._memory.load(state)

    def _best_of_pools(
        self, theta: Parts, rows: list[int], keys: _Keys
    ) -> Iterator[tuple[str, list[int], StructurePool, list[float], list[int]]]:
        """Yield the instances of each pool, with the score and the place of the best structure of each instance."""
        for group, own in keys.groups(rows).items():
            pool = self._memory.pools.get(group)
            if pool is not None and len(pool):
                index = torch.tensor(own, device=as_tuple(theta)[0].device)
                best, place = pool.scores(_select(theta, index)).max(1)
                yield group, own, pool, best.tolist(), place.tolist()

    def _solve(self, theta: Parts, rows: list[int], keys: _Keys, found: list[Parts | None]) -> None:
        """Solve the instances ``rows`` exactly, and add the structures to the pools and to the cache."""
        if not rows:
            return
        memory = self._memory
        before = {
            b: score
            for _, own, _, scores, _ in self._best_of_pools(theta, rows, keys)
            for b, score in zip(own, scores, strict=True)
        }
        index = torch.tensor(rows, dtype=torch.int64, device=as_tuple(theta)[0].device)
        some = _select(theta, index)
        with renumber_instances(rows):
            y = self.inner[index].argmax(some)
        scores = self.oracle.score(map_parts(Tensor.double, some), map_parts(Tensor.double, y)).tolist()
        memory.counts["exact"] += len(rows)
        for i, (b, score) in enumerate(zip(rows, scores, strict=True)):
            own = map_parts(lambda t, i=i: t[i].clone(), y)
            found[b] = own
            if math.isfinite(before.get(b, math.inf)) and score:
                memory.counts["compared"] += 1
                memory.counts["gap"] += max(score - before[b], 0.0) / abs(score)
            memory.add(keys.group(b), own)
            memory.store(*keys.of_answer(b), own)


def _select(theta: Parts, rows: Tensor) -> Parts:
    """Return the instances ``rows`` of ``theta`` (B, *event), whose tensors are not shared."""
    return map_parts(lambda t: t[rows], theta)


class _Keys:
    """Keys of the pools and of the cached answers of a batch: digests of scores and of instance data."""

    def __init__(self, theta: Parts, bound: Mapping[str, Tensor]) -> None:
        self._scores = [t.cpu().contiguous() for t in as_tuple(theta)]
        self._data = {name: t.cpu().contiguous() for name, t in sorted(bound.items()) if name != "example"}
        self._examples = bound["example"].tolist() if "example" in bound else None
        self._shapes = repr([(tuple(t.shape[1:]), t.dtype) for t in self._scores])

    def group(self, b: int) -> str:
        """Return the key of the pool of instance ``b``: its instance data and the shapes of its scores."""
        shapes = repr([tuple(t.shape[1:]) for t in self._scores])
        return _digest(shapes.encode(), *(name.encode() + t[b].numpy().tobytes() for name, t in self._data.items()))

    def groups(self, rows: list[int]) -> dict[str, list[int]]:
        """Return the instances ``rows`` by the keys of their pools."""
        found: dict[str, list[int]] = {}
        for b in rows:
            found.setdefault(self.group(b), []).append(b)
        return found

    def of_answer(self, b: int) -> tuple[int | None, str]:
        """Return the example of instance ``b``, and the digest of its scores and instance data."""
        digest = _digest(self._shapes.encode(), self.group(b).encode(), *(t[b].numpy().tobytes() for t in self._scores))
        return None if self._examples is None else self._examples[b], digest


def _digest(*pieces: bytes) -> str:
    found = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


class _Memory:
    """The state shared by all copies of a pooled oracle."""

    def __init__(self, capacity: int, cache: int) -> None:
        self.capacity, self.cache = capacity, cache
        self.pools: OrderedDict[str, StructurePool] = OrderedDict()
        self.answers: OrderedDict[int | None, OrderedDict[str, Parts]] = OrderedDict()
        self.calls = 0
        self.counts = dict.fromkeys(("answers", "exact", "cached", "compared", "gap"), 0.0)

    @contextlib.contextmanager
    def uncounted_if_failed(self) -> Iterator[None]:
        """Restore the schedule and the numbers of the report if the context raises an error.

        The call may then run again without infeasible instances.
        """
        calls, counts = self.calls, dict(self.counts)
        try:
            yield
        except BaseException:
            self.calls, self.counts = calls, counts
            raise

    def is_due(self, ratio: float) -> bool:
        """Count an instance, and return whether the schedule sends it to the inner oracle."""
        self.calls += 1
        return is_due(self.calls, ratio)

    def add(self, group: str, y: Parts) -> None:
        """Add a structure to the pool ``group``."""
        pool = self.pools.setdefault(group, StructurePool(self.capacity))
        self.pools.move_to_end(group)
        pool.add(map_parts(lambda t: t[None], y))
        self._keep_to_capacity()

    def _keep_to_capacity(self) -> None:
        """Remove the oldest structures of the pools used the longest ago."""
        for _ in range(sum(map(len, self.pools.values())) - self.capacity):
            group = next(iter(self.pools))
            self.pools[group].drop_oldest()
            if not len(self.pools[group]):
                del self.pools[group]

    def cached(self, example: int | None, digest: str) -> Parts | None:
        """Return the stored answer, or None."""
        answers = self.answers.get(example)
        if answers is None or digest not in answers:
            return None
        self.answers.move_to_end(example)
        answers.move_to_end(digest)
        return answers[digest]

    def store(self, example: int | None, digest: str, y: Parts) -> None:
        """Store an exact answer."""
        if not self.cache:
            return
        answers = self.answers.setdefault(example, OrderedDict())
        self.answers.move_to_end(example)
        answers[digest] = map_parts(lambda t: t.cpu(), y)
        answers.move_to_end(digest)
        while len(answers) > (self.cache if example is None else _ANSWERS_PER_EXAMPLE):
            answers.popitem(last=False)
        while len(self.answers) > self.cache:
            self.answers.popitem(last=False)

    def state(self) -> dict[str, Any]:
        """Return the state in dicts, lists, numbers and tensors."""
        return {
            "pools": {group: pool.state() for group, pool in self.pools.items()},
            "answers": [
                (example, digest, y) for example, answers in self.answers.items() for digest, y in answers.items()
            ],
            "calls": self.calls,
            "counts": dict(self.counts),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Replace the state."""
        if not isinstance(state, Mapping) or not self.state().keys() <= state.keys():
            raise InvalidInputError(
                f"state must be the result of state_dict, a dict with {', '.join(self.state())}, got {state!r:.80}"
            )
        self.pools, self.answers = OrderedDict(), OrderedDict()
        for group, own in state["pools"].items():
            pool = StructurePool(self.capacity)
            pool.load(own)
            self.pools[group] = pool
        self._keep_to_capacity()
        for example, digest, y in state["answers"]:
            self.store(example, digest, y)
        self.calls, self.counts = state["calls"], dict(state["counts"])
