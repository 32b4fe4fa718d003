"""The inputs that checks run on: potentials of every family, with the oracle and its instance data.

They depend on the seed alone.
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
from .enumeration import Enumeration
from .theta_families import FAMILIES, forbid, instance, magnitude, normal

__all__ = ["Case", "CheckTarget", "InstanceData"]

InstanceData = Mapping[str, Any] | Callable[[int, torch.Generator], Mapping[str, Any]]
"""Instance data to draw from, a row for an instance; or a function of a batch size and a generator that draws it."""

BATCH = 4


@dataclass(frozen=True, eq=False)
class CheckTarget:
    """An oracle, or a relaxation of one, with the sizes and instance data to check it on.

    Attributes
    ----------
    event_shapes : tuple of tuple of int
        Of each tensor of θ.
    is_tuple : bool
        Whether θ is a tuple of tensors.
    instance_data : mapping or callable, optional
        See :data:`InstanceData`.
    """

    oracle: Oracle
    event_shapes: tuple[tuple[int, ...], ...]
    is_tuple: bool
    instance_data: InstanceData | None = None
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32)
    seed: int = 0
    relaxation: Relaxation | None = None
    _enumerations: dict[Any, Enumeration] = field(default_factory=dict, repr=False)
    _cases: dict[Any, Case] = field(default_factory=dict, repr=False)

    @classmethod
    def make(cls, oracle: Oracle, event_shape: Any, instance_data: InstanceData | None, **rest: Any) -> CheckTarget:
        """From the arguments of the public checks."""
        if oracle.bound:
            raise InvalidInputError(
                f"oracle: instance data {list(oracle.bound)} is bound; pass instance_data={{...}} instead"
            )
        event_shape = (event_shape,) if isinstance(event_shape, int) else event_shape
        is_tuple = bool(event_shape) and not isinstance(event_shape[0], int)
        shapes = tuple(tuple(map(int, s)) for s in (event_shape if is_tuple else [event_shape]))
        target = cls(oracle, shapes, is_tuple, instance_data, **rest)
        ndims = oracle.resolve_event_ndim(target._zeros())
        if ndims != tuple(map(len, shapes)):
            raise InvalidInputError(
                f"event_shape: {oracle.label()} takes, in this form, tensors of {' and '.join(map(str, ndims))} "
                f"event dimensions, got {event_shape}; give a shape for each tensor of theta"
            )
        lengths = target._find_lengths() if instance_data is None else None
        return replace(target, instance_data={"lengths": lengths}) if lengths else target

    @property
    def event_shape(self) -> Any:
        """As the user gave it."""
        return self.event_shapes if self.is_tuple else self.event_shapes[0]

    @property
    def num_parts(self) -> int:
        """Number of parts of one instance."""
        return sum(map(math.prod, self.event_shapes))

    @property
    def display_name(self) -> str:
        """Its name in messages."""
        what = repr(self.oracle)
        return what if self.relaxation is None else f"{self.relaxation!r} of {what}"

    def __repr__(self) -> str:
        return f"{self.display_name} on {self.event_shape}"

    def cases(self, families: Sequence[str], dtypes: Sequence[torch.dtype] | None = None) -> Iterator[Case]:
        """Inputs of these families in each dtype."""
        for i, dtype in enumerate(dtypes or self.dtypes):
            for family in families:
                num_shares = len(self._variants(family, 0))
                for share_index, variant in enumerate(self._variants(family, i), list(FAMILIES).index(family)):
                    key = (dtype, *variant, family)
                    if key not in self._cases:
                        self._cases[key] = replace(self._draw(*key), share_index=share_index, num_shares=num_shares)
                    yield self._cases[key]

    def generator(self, *seed_offset: Any) -> torch.Generator:
        """A fresh generator that depends on the seed and ``seed_offset`` alone."""
        mixed = functools.reduce(lambda h, c: (h * 1_000_003 + ord(c)) % 2**62, repr(seed_offset), self.seed)
        return torch.Generator().manual_seed(mixed)

    def sample_instance_data(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Instance data for ``size`` instances; none if the target has none."""
        if self.instance_data is None:
            return {}
        if callable(self.instance_data):
            return {key: torch.as_tensor(value) for key, value in self.instance_data(size, generator).items()}
        values = {key: torch.as_tensor(value) for key, value in self.instance_data.items()}
        count = min(map(len, values.values()))
        # Each batch holds different values where there are so many, the first row among them.
        rows = torch.cat([torch.randperm(count, generator=generator) for _ in range(math.ceil(size / count))])[:size]
        return {key: value[rows] for key, value in values.items()}

    def to_valid_sign(self, t: Tensor) -> Tensor:
        """``t``; or −|t| if the oracle takes costs alone: 0, or further from 0 than finite differences step."""
        return torch.where(t == 0, t, -t.abs().clamp(min=1e-4)) if self.oracle.requires_nonpositive_theta else t

    def try_argmax(self, instance_data: Mapping[str, Any]) -> None:
        """Maximise one instance of zeros, as a public call would."""
        problem = Problem.build(self._zeros(), self.oracle, instance_data)
        problem.oracle.argmax(problem.theta)

    @functools.cached_property
    def parts_in_use(self) -> Parts | None:
        """Masks (*event) of the parts that some structure uses without instance data; None if unknown."""
        if not isinstance(self.oracle, Enumerable) or False not in self._bind_options:
            return None
        return map_parts(lambda y: (y != 0).any(0), self.oracle.enumerate(self.event_shape))

    # -- inside ------------------------------------------------------------------------------

    def _zeros(self) -> Parts:
        """Potentials of one instance, (1, *event)."""
        zeros = tuple(torch.zeros(1, *shape) for shape in self.event_shapes)
        return zeros if self.is_tuple else zeros[0]

    def _draw(self, dtype: torch.dtype, with_data: bool, shared: tuple[bool, ...], family: str) -> Case:
        generator = self.generator(dtype, with_data, shared, family)
        draw, scale, has_forbidden = FAMILIES[family]
        drawn = [
            self.to_valid_sign(draw((1 if alone else BATCH, *shape), generator).mul(scale)).to(dtype)
            for shape, alone in zip(self.event_shapes, shared, strict=True)
        ]
        theta = tuple(drawn) if self.is_tuple else drawn[0]
        case = Case(self, theta, self.sample_instance_data(BATCH, generator) if with_data else {})
        if not has_forbidden:
            return case
        # Every instance keeps a structure: the best one for potentials unrelated to θ.
        unrelated = case.with_tensors([self.to_valid_sign(normal(t.shape, generator)).to(dtype) for t in drawn])
        kept = unrelated.oracle.argmax(unrelated.theta)
        return replace(case, user_theta=forbid(theta, kept, generator))

    def _variants(self, family: str, i: int) -> list[tuple[bool, tuple[bool, ...]]]:
        """Inputs of this family in dtype number ``i``: with instance data or without, and which tensors are shared.

        The first family gets all combinations. Another family gets, in the first dtype, as many as it takes for each
        option to come once, in other pairs than for the family before; in a further dtype, one.
        """
        data, patterns, j = self._bind_options, self._shared_batch_patterns, list(FAMILIES).index(family)
        every = list(product(data, patterns))
        if j == 0:
            return every
        if i > 0:
            return [every[(i + j) % len(every)]]
        return [(data[(j + k) % len(data)], patterns[k % len(patterns)]) for k in range(max(len(data), len(patterns)))]

    @property
    def _shared_batch_patterns(self) -> list[tuple[bool, ...]]:
        """Which tensors have a batch dimension of 1: none, or one of several."""
        count = len(self.event_shapes)
        alone = [tuple(i == j for j in range(count)) for i in range(count)]
        return [(False,) * count, *(alone if count > 1 else [])]

    @functools.cached_property
    def _bind_options(self) -> list[bool]:
        """Whether to bind instance data: never, always (where the oracle needs them), or both."""
        if self.instance_data is None:
            return [False]
        try:
            self.try_argmax({})
        except Exception:  # the conformance check "instance_data" reports wrong errors
            return [True]
        return [False, True]

    def _find_lengths(self) -> list[Any]:
        """Lengths that the oracle takes, found by trying: any number, or one for each dimension of the first tensor."""
        ndim = self.oracle.instance_ndim.get("lengths")
        if ndim == 0:
            longest = max((d for shape in self.event_shapes for d in shape), default=0)
            return list(filter(self._accepts_length, range(longest + 1)))
        if ndim == 1 and self.event_shapes[0]:
            whole = self.event_shapes[0]
            rows = product(*(sorted({d, d - 1, 1} - {0, -1}, reverse=True) for d in whole))
            # Lengths may have another meaning for the oracle, so that any error may come.
            return [row for row in rows if self._accepts_length(row, Exception)]
        return []

    def _accepts_length(self, length: Any, *error_types: type[Exception]) -> bool:
        try:
            self.try_argmax({"lengths": [length]})
        except (InvalidInputError, InfeasibleError, *error_types):
            return False
        return True


@dataclass(frozen=True, eq=False)
class Case:
    """A flat batch of instances.

    Attributes
    ----------
    user_theta : (B | 1, *event) Parts
        As a user would pass them.
    instance_data : mapping
        Instance data, (B, ...) each.
    share_index, num_shares : int
        The number of this input among the inputs of its family, and how many there are.
    """

    target: CheckTarget
    user_theta: Parts
    instance_data: Mapping[str, Any]
    share_index: int = 0
    num_shares: int = 1

    @functools.cached_property
    def problem(self) -> Problem:
        """The case as the public functions pass it to oracles."""
        return Problem.build(self.user_theta, self.target.oracle, self.instance_data)

    @property
    def oracle(self) -> Oracle:
        """With the instance data bound."""
        return self.problem.oracle

    @property
    def theta(self) -> Parts:
        """The potentials that the oracle's methods see: 0 in the padding."""
        return self.problem.theta

    @property
    def size(self) -> int:
        """B."""
        return math.prod(self.problem.batch_shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the potentials."""
        return as_tuple(self.user_theta)[0].dtype

    @functools.cached_property
    def scale(self) -> Tensor:
        """Σ |θ_i y_i| of the best structures y, the largest of the batch, in float64."""
        return magnitude(self.theta, self.oracle.argmax(self.theta)).double().max()

    def rounding_error(self, magnitude: Tensor | float, factor: float = 32) -> Tensor:
        """A bound on rounding errors in sums of terms of this total ``magnitude``."""
        return torch.as_tensor(magnitude, dtype=torch.float64) * (factor * torch.finfo(self.dtype).eps)

    @functools.cached_property
    def tolerance(self) -> Tensor:
        """For rounding in a result per instance, relative to the score of the best structure."""
        return self.rounding_error(1 + self.scale, factor=64)

    def select_share(self, options: Sequence[Any]) -> list[Any]:
        """The options for this input, at least one: the inputs of a family divide ``options`` among themselves."""
        count = math.ceil(len(options) / self.num_shares)
        return [options[i % len(options)] for i in range(self.share_index * count, (self.share_index + 1) * count)]

    @property
    def relaxation(self) -> Relaxation:
        """The relaxation under test. Each access gives a copy that draws the same noise."""
        assert self.target.relaxation is not None
        return self.target.relaxation.with_generator(self.noise_generator())

    def noise_generator(self) -> torch.Generator:
        """A fresh generator for relaxations that draw noise, the same at every call."""
        return self.generator("noise")

    def rows(self, rows: Sequence[int]) -> Case:
        """The case of these instances alone, in this order."""
        index = torch.tensor(rows, dtype=torch.int64)
        theta = map_parts(lambda t: t[index] if t.shape[0] == self.size else t, self.user_theta)
        return replace(self, user_theta=theta, instance_data={key: t[index] for key, t in self.instance_data.items()})

    def with_tensors(self, tensors: Sequence[Tensor]) -> Case:
        """The case with other potentials of the same form."""
        return replace(self, user_theta=pack_like(tensors, self.user_theta))

    def generator(self, seed_offset: Any = 0) -> torch.Generator:
        """A fresh generator, the same at every call."""
        return self.target.generator("check", seed_offset)

    def structure_near(self, i: int) -> Parts:
        """The structures (B, *event) that argmax finds for a noisy copy of θ, the ``i``-th, or for pure noise."""
        generator, moved = self.generator(("near", i)), []
        for t in as_tuple(self.user_theta):
            size = t.abs().nan_to_num(posinf=0).mean().item()
            noise = torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)
            noise = noise * (size or 1) * 2.0 ** (i % 7 - 4)
            moved.append(torch.where(t.isneginf(), t, self.target.to_valid_sign(noise if i % 3 == 0 else t + noise)))
        near = self.with_tensors(moved)
        return near.oracle.argmax(near.theta)

    def enumeration(self, b: int) -> Enumeration | None:
        """All structures of instance ``b``; None if the oracle cannot list them."""
        if not isinstance(self.oracle, Enumerable):
            return None
        key = tuple((name, tuple(value[b].flatten().tolist())) for name, value in sorted(self.instance_data.items()))
        known = self.target._enumerations
        if key not in known:
            known[key] = Enumeration(self.oracle[[b]].enumerate(self.target.event_shape))
        return known[key]

    def enumerations(self) -> Iterator[tuple[int, Parts, Enumeration]]:
        """Index, potentials (1, *event) and structures of each instance; nothing if they cannot be listed."""
        for b in range(self.size):
            enumeration = self.enumeration(b)
            if enumeration is not None:
                yield b, instance(self.theta, b), enumeration
