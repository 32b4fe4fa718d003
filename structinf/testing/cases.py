"""The inputs on which laws are tried: potentials of every family, with the oracle and its instance data.

What is drawn depends on nothing but the seed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..calls.problem import Problem
from ..errors import InfeasibleError, InvalidInputError
from ..oracle import Enumerable, Oracle
from ..parts import Parts, as_tuple, map_parts, pack_like
from ..relaxation import Relaxation
from .compare import rounding
from .enumeration import Enumeration
from .potentials import FAMILIES, forbid, instance, magnitude, normal

__all__ = ["Case", "InstanceData", "Subject"]

InstanceData = Mapping[str, Any] | Callable[[int, torch.Generator], Mapping[str, Any]]
"""Values to draw each instance's from, a row each; or a function of a batch size and a generator that draws them."""

BATCH = 4


@dataclass(frozen=True, eq=False)
class Subject:
    """An oracle, or a relaxation of one, with the sizes and instance data to check it on.

    Attributes
    ----------
    event_shapes : tuple of tuple of int
        Of each tensor of θ.
    is_tuple : bool
        Whether θ is a tuple of tensors.
    data : mapping or callable, optional
        See :data:`InstanceData`.
    """

    oracle: Oracle
    event_shapes: tuple[tuple[int, ...], ...]
    is_tuple: bool
    data: InstanceData | None = None
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32)
    seed: int = 0
    relaxation: Relaxation | None = None
    _enumerations: dict[Any, Enumeration] = field(default_factory=dict, repr=False)
    _cases: dict[Any, Case] = field(default_factory=dict, repr=False)

    @classmethod
    def make(cls, oracle: Oracle, event_shape: Any, instance_data: InstanceData | None, **rest: Any) -> Subject:
        """From the arguments of the public checks."""
        if oracle.bound:
            raise InvalidInputError(
                f"oracle: instance data {list(oracle.bound)} is bound; pass instance_data={{...}} instead"
            )
        event_shape = (event_shape,) if isinstance(event_shape, int) else event_shape
        is_tuple = bool(event_shape) and not isinstance(event_shape[0], int)
        shapes = tuple(tuple(map(int, s)) for s in (event_shape if is_tuple else [event_shape]))
        subject = cls(oracle, shapes, is_tuple, instance_data, **rest)
        ndims = oracle.resolve_event_ndim(subject._zeros())
        if ndims != tuple(map(len, shapes)):
            raise InvalidInputError(
                f"event_shape: {oracle.label()} takes, in this form, tensors of {' and '.join(map(str, ndims))} "
                f"event dimensions, got {event_shape}; give a shape for each tensor of theta"
            )
        lengths = subject._acceptable_lengths() if instance_data is None else None
        return replace(subject, data={"lengths": lengths}) if lengths else subject

    @property
    def event_shape(self) -> Any:
        """As the user gave it."""
        return self.event_shapes if self.is_tuple else self.event_shapes[0]

    @property
    def parts(self) -> int:
        """Number of parts of one instance."""
        return sum(map(math.prod, self.event_shapes))

    @property
    def label(self) -> str:
        """How messages call it."""
        what = repr(self.oracle)
        return what if self.relaxation is None else f"{self.relaxation!r} of {what}"

    def __repr__(self) -> str:
        return f"{self.label} on {self.event_shape}"

    def cases(self, families: Sequence[str], dtypes: Sequence[torch.dtype] | None = None) -> Iterator[Case]:
        """Inputs of these families in each dtype."""
        for i, dtype in enumerate(dtypes or self.dtypes):
            for family in families:
                turns = len(self._variants(family, 0))
                for turn, variant in enumerate(self._variants(family, i), list(FAMILIES).index(family)):
                    key = (dtype, *variant, family)
                    if key not in self._cases:
                        self._cases[key] = replace(self._draw(*key), turn=turn, turns=turns)
                    yield self._cases[key]

    def generator(self, *salt: Any) -> torch.Generator:
        """A fresh generator that depends on the seed and ``salt`` alone."""
        mixed = functools.reduce(lambda h, c: (h * 1_000_003 + ord(c)) % 2**62, repr(salt), self.seed)
        return torch.Generator().manual_seed(mixed)

    def draw_data(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Instance data for ``size`` instances; none if the subject has none."""
        if self.data is None:
            return {}
        if callable(self.data):
            return {key: torch.as_tensor(value) for key, value in self.data(size, generator).items()}
        values = {key: torch.as_tensor(value) for key, value in self.data.items()}
        count = min(map(len, values.values()))
        # Each batch holds different values where there are so many, the first row among them.
        rows = torch.cat([torch.randperm(count, generator=generator) for _ in range(math.ceil(size / count))])[:size]
        return {key: value[rows] for key, value in values.items()}

    def signed(self, t: Tensor) -> Tensor:
        """``t``, or costs of its sizes where the oracle takes no others: 0, or further from it than differences step.

        (Those of :func:`structinf.testing.gradients.expect_derivative`.)
        """
        return torch.where(t == 0, t, -t.abs().clamp(min=1e-4)) if self.oracle.requires_nonpositive_theta else t

    def probe(self, instance_data: Mapping[str, Any]) -> None:
        """Maximise one instance of zeros, as a public call would."""
        problem = Problem.build(self._zeros(), self.oracle, instance_data)
        problem.oracle.argmax(problem.theta)

    @functools.cached_property
    def usable(self) -> Parts | None:
        """Masks (*event) of the parts that some structure uses without instance data; None if that is not known."""
        if not isinstance(self.oracle, Enumerable) or False not in self._data_options:
            return None
        return map_parts(lambda y: (y != 0).any(0), self.oracle.enumerate(self.event_shape))

    # -- inside ------------------------------------------------------------------------------

    def _zeros(self) -> Parts:
        """Potentials of one instance, (1, *event)."""
        zeros = tuple(torch.zeros(1, *shape) for shape in self.event_shapes)
        return zeros if self.is_tuple else zeros[0]

    def _draw(self, dtype: torch.dtype, with_data: bool, shared: tuple[bool, ...], family: str) -> Case:
        generator = self.generator(dtype, with_data, shared, family)
        draw, scale, holes = FAMILIES[family]
        drawn = [
            self.signed(draw((1 if alone else BATCH, *shape), generator).mul(scale)).to(dtype)
            for shape, alone in zip(self.event_shapes, shared, strict=True)
        ]
        theta = tuple(drawn) if self.is_tuple else drawn[0]
        case = Case(self, theta, self.draw_data(BATCH, generator) if with_data else {})
        if not holes:
            return case
        # Every instance keeps a structure: the best one for potentials unrelated to θ.
        unrelated = case.with_tensors([self.signed(normal(t.shape, generator)).to(dtype) for t in drawn])
        kept = unrelated.oracle.argmax(unrelated.theta)
        return replace(case, given=forbid(theta, kept, generator))

    def _variants(self, family: str, i: int) -> list[tuple[bool, tuple[bool, ...]]]:
        """Inputs of this family in dtype number ``i``: with instance data or without, and which tensors are shared.

        All combinations for the first family that there is. For another one in the first dtype so many that each of
        either comes, in other pairs than for the family before it; in a further dtype one.
        """
        data, sharings, j = self._data_options, self._sharings, list(FAMILIES).index(family)
        every = list(product(data, sharings))
        if j == 0:
            return every
        if i > 0:
            return [every[(i + j) % len(every)]]
        return [(data[(j + k) % len(data)], sharings[k % len(sharings)]) for k in range(max(len(data), len(sharings)))]

    @property
    def _sharings(self) -> list[tuple[bool, ...]]:
        """Which tensors have a batch dimension of 1: none, or one of several."""
        count = len(self.event_shapes)
        alone = [tuple(i == j for j in range(count)) for i in range(count)]
        return [(False,) * count, *(alone if count > 1 else [])]

    @functools.cached_property
    def _data_options(self) -> list[bool]:
        """Whether to bind instance data: never, always (where the oracle needs them), or both."""
        if self.data is None:
            return [False]
        try:
            self.probe({})
        except Exception:  # a law of its own says which ones are right
            return [True]
        return [False, True]

    def _acceptable_lengths(self) -> list[Any]:
        """Lengths that the oracle takes, found by trying: any number, or one for each dimension of the first tensor."""
        ndim = self.oracle.instance_ndim.get("lengths")
        if ndim == 0:
            longest = max((d for shape in self.event_shapes for d in shape), default=0)
            return list(filter(self._accepts_length, range(longest + 1)))
        if ndim == 1 and self.event_shapes[0]:
            whole = self.event_shapes[0]
            rows = product(*(sorted({d, d - 1, 1} - {0, -1}, reverse=True) for d in whole))
            # The oracle may mean others by them, and fail on these as it likes.
            return [row for row in rows if self._accepts_length(row, Exception)]
        return []

    def _accepts_length(self, length: Any, *refusals: type[Exception]) -> bool:
        try:
            self.probe({"lengths": [length]})
        except (InvalidInputError, InfeasibleError, *refusals):
            return False
        return True


@dataclass(frozen=True, eq=False)
class Case:
    """A flat batch of instances.

    Attributes
    ----------
    given : (B | 1, *event) Potentials
        As a user would pass them.
    instance_data : mapping
        Instance data, (B, ...) each.
    turn, turns : int
        Which one it is of the inputs of its family, and how many there are.
    """

    subject: Subject
    given: Parts
    instance_data: Mapping[str, Any]
    turn: int = 0
    turns: int = 1

    @functools.cached_property
    def problem(self) -> Problem:
        """The same, as the public functions hand it to oracles."""
        return Problem.build(self.given, self.subject.oracle, self.instance_data)

    @property
    def oracle(self) -> Oracle:
        """With the instance data bound."""
        return self.problem.oracle

    @property
    def theta(self) -> Parts:
        """What the oracle's methods see: 0 in the padding."""
        return self.problem.theta

    @property
    def size(self) -> int:
        """B."""
        return math.prod(self.problem.batch_shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the potentials."""
        return as_tuple(self.given)[0].dtype

    @functools.cached_property
    def scale(self) -> Tensor:
        """Σ |θ_i y_i| of the best structures y, the largest of the batch, in float64."""
        return magnitude(self.theta, self.oracle.argmax(self.theta)).double().max()

    @functools.cached_property
    def room(self) -> Tensor:
        """For rounding in a result per instance, of what the best structure sums up."""
        return rounding(self.dtype, 1 + self.scale, factor=64)

    def share(self, options: Sequence[Any]) -> list[Any]:
        """Those that fall to this input where the inputs of its family share them out; at least one."""
        count = math.ceil(len(options) / self.turns)
        return [options[i % len(options)] for i in range(self.turn * count, (self.turn + 1) * count)]

    @property
    def relaxation(self) -> Relaxation:
        """The one that is checked, ready to draw the same noise each time that it is asked for here."""
        assert self.subject.relaxation is not None
        return self.subject.relaxation.with_generator(self.is_stochastic())

    def is_stochastic(self) -> torch.Generator:
        """A generator for relaxations that draw noise, the same at every call."""
        return self.generator("draws")

    def rows(self, rows: Sequence[int]) -> Case:
        """The case of these instances alone, in this order."""
        index = torch.tensor(rows, dtype=torch.int64)
        size = self.size
        given = map_parts(lambda t: t[index] if t.shape[0] == size and size != 1 else t, self.given)
        if size == 1:
            given = map_parts(lambda t: t[index], self.given)
        return replace(
            self, given=given, instance_data={key: value[index] for key, value in self.instance_data.items()}
        )

    def with_tensors(self, tensors: Sequence[Tensor]) -> Case:
        """The case with other potentials of the same form."""
        return replace(self, given=pack_like(tensors, self.given))

    def generator(self, salt: Any = 0) -> torch.Generator:
        """A fresh generator, the same at every call."""
        return self.subject.generator("law", salt)

    def structure_near(self, i: int) -> Parts:
        """The structures (B, *event) that argmax finds for a noisy copy of θ, the ``i``-th, or for pure noise."""
        generator, moved = self.generator(("near", i)), []
        for t in as_tuple(self.given):
            size = t.abs().nan_to_num(posinf=0).mean().item()
            noise = torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)
            noise = noise * (size or 1) * 2.0 ** (i % 7 - 4)
            moved.append(torch.where(t.isneginf(), t, self.subject.signed(noise if i % 3 == 0 else t + noise)))
        near = self.with_tensors(moved)
        return near.oracle.argmax(near.theta)

    def enumeration(self, b: int) -> Enumeration | None:
        """All structures of instance ``b``; None if the oracle cannot list them."""
        if not isinstance(self.oracle, Enumerable):
            return None
        key = tuple((name, tuple(value[b].flatten().tolist())) for name, value in sorted(self.instance_data.items()))
        known = self.subject._enumerations
        if key not in known:
            known[key] = Enumeration(self.oracle[[b]].enumerate(self.subject.event_shape))
        return known[key]

    def enumerations(self) -> Iterator[tuple[int, Parts, Enumeration]]:
        """Index, potentials (1, *event) and structures of each instance; nothing if they cannot be listed."""
        for b in range(self.size):
            enumeration = self.enumeration(b)
            if enumeration is not None:
                yield b, instance(self.theta, b), enumeration
