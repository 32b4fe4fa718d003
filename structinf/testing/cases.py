"""The inputs that checks run on: scores of every family, with the oracle and its instance data.

The inputs depend only on the seed.
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
from ..kernels.arrays import as_tensor
from ..oracle import Enumerable, Oracle
from ..parts import Parts, as_tuple, map_parts, pack_like
from ..relaxation import Relaxation
from ..relaxations.sparsemap import SparseMAP
from .comparisons import CheckFailed
from .enumeration import Enumeration
from .theta_families import FAMILIES, forbid, instance, magnitude, normal

__all__ = ["Case", "CheckTarget", "InstanceData"]

InstanceData = Mapping[str, Any] | Callable[[int, torch.Generator], Mapping[str, Any]]
"""Instance data to draw from, a row for an instance; or a function of a batch size and a generator that draws it."""

BATCH = 4


@dataclass(frozen=True, eq=False)
class CheckTarget:
    """An oracle, or a relaxation of an oracle, with the sizes and instance data for the checks.

    Attributes
    ----------
    event_shapes : tuple of tuple of int
        The event shape of each tensor of θ.
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
        """Make a target from the arguments of the public checks."""
        # An oracle may bind data in its constructor. The given instance data then replace them in every check.
        replaced = set(instance_data) if isinstance(instance_data, Mapping) else set()
        if not callable(instance_data) and not replaced >= set(oracle.bound):
            raise InvalidInputError(
                f"oracle: instance data {list(oracle.bound)} is bound; pass instance_data={{...}} instead"
            )
        event_shape = (event_shape,) if isinstance(event_shape, int) else event_shape
        is_tuple = bool(event_shape) and not isinstance(event_shape[0], int)
        given: Any = event_shape if is_tuple else [event_shape]
        if not all(isinstance(s, Sequence) and all(isinstance(n, int) and n >= 0 for n in s) for s in given):
            raise InvalidInputError(
                f"event_shape must hold sizes, integers of at least 0, got {event_shape!r}; pass the shape of one "
                "structure, or a tuple of shapes if theta is a tuple"
            )
        shapes = tuple(map(tuple, given))
        target = cls(oracle, shapes, is_tuple, instance_data, **rest)
        ndims = oracle.resolve_event_ndim(target._zeros())
        if ndims != tuple(map(len, shapes)):
            raise InvalidInputError(
                f"event_shape must be {_describe_ndims(ndims, is_tuple)} for {oracle.label()}, got {event_shape}; "
                + ("give a shape for each tensor of theta" if is_tuple else "a tuple of scores needs a tuple of shapes")
            )
        lengths = target._find_lengths() if instance_data is None else None
        return replace(target, instance_data={"lengths": lengths}) if lengths else target

    @property
    def event_shape(self) -> Any:
        """The event shape, in the form given by the user."""
        return self.event_shapes if self.is_tuple else self.event_shapes[0]

    @property
    def num_parts(self) -> int:
        """Number of parts of one instance."""
        return sum(map(math.prod, self.event_shapes))

    @property
    def display_name(self) -> str:
        """The name of the target in messages."""
        what = repr(self.oracle)
        return what if self.relaxation is None else f"{self.relaxation!r} of {what}"

    def __repr__(self) -> str:
        return f"{self.display_name} on {self.event_shape}"

    def cases(self, families: Sequence[str], dtypes: Sequence[torch.dtype] | None = None) -> Iterator[Case]:
        """Yield inputs of these families in each dtype."""
        for i, dtype in enumerate(dtypes or self.dtypes):
            for family in families:
                num_shares = len(self._variants(family, 0))
                for share_index, variant in enumerate(self._variants(family, i), list(FAMILIES).index(family)):
                    key = (dtype, *variant, family)
                    if key not in self._cases:
                        self._cases[key] = replace(self._draw(*key), share_index=share_index, num_shares=num_shares)
                    yield self._cases[key]

    def generator(self, *seed_offset: Any) -> torch.Generator:
        """Return a fresh generator that depends only on the seed and ``seed_offset``."""
        mixed = functools.reduce(lambda h, c: (h * 1_000_003 + ord(c)) % 2**62, repr(seed_offset), self.seed)
        return torch.Generator().manual_seed(mixed)

    def sample_instance_data(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return instance data for ``size`` instances; an empty mapping if the target has no instance data."""
        if self.instance_data is None:
            return {}
        if callable(self.instance_data):
            return {key: as_tensor(value) for key, value in self.instance_data(size, generator).items()}
        values = {key: as_tensor(value) for key, value in self.instance_data.items()}
        count = min(map(len, values.values()))
        # Each batch holds the first row, and different values if enough values exist.
        rows = torch.cat(
            [torch.randperm(count, generator=generator, device="cpu") for _ in range(math.ceil(size / count))]
        )[:size]
        return {key: value[rows] for key, value in values.items()}

    def to_valid_sign(self, t: Tensor) -> Tensor:
        """Return ``t``, or −|t| if the oracle takes only costs: 0, or farther from 0 than the step of finite
        differences.
        """
        return torch.where(t == 0, t, -t.abs().clamp(min=1e-4)) if self.oracle.requires_nonpositive_theta else t

    def try_argmax(self, instance_data: Mapping[str, Any]) -> None:
        """Maximise one instance of zeros, as a public call would."""
        problem = Problem.build(self._zeros(), self.oracle, instance_data)
        if problem.solved is not None:
            raise InvalidInputError("lengths: public calls answer instances of length 0 without the oracle")
        problem.oracle.argmax(problem.theta)

    @functools.cached_property
    def parts_in_use(self) -> Parts | None:
        """Return masks (*event) of the parts used by any structure without instance data; None if unknown."""
        if not isinstance(self.oracle, Enumerable) or False not in self._bind_options:
            return None
        return map_parts(lambda y: (y != 0).any(0), self.list_structures(self.oracle))

    def list_structures(self, oracle: Enumerable) -> Parts:
        """Return the structures from ``enumerate``; raise CheckFailed unless they have the form of θ."""
        listed: Any = oracle.enumerate(self.event_shape)
        if isinstance(listed, tuple) != self.is_tuple or not all(isinstance(y, Tensor) for y in as_tuple(listed)):
            form = f"a tuple of {len(self.event_shapes)} tensors" if self.is_tuple else "one tensor"
            raise CheckFailed(
                f"enumerate must return {form}, the structures one after another, got a {type(listed).__name__}"
            )
        return listed

    # -- inside ------------------------------------------------------------------------------

    def _zeros(self) -> Parts:
        """Return scores 0 of one instance, (1, *event)."""
        zeros = tuple(torch.zeros(1, *shape, device="cpu") for shape in self.event_shapes)
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
        # Every instance keeps a structure: the best structure for scores unrelated to θ.
        unrelated = case.with_tensors([self.to_valid_sign(normal(t.shape, generator)).to(dtype) for t in drawn])
        kept = unrelated.oracle.argmax(unrelated.theta)
        return replace(case, user_theta=forbid(theta, kept, generator))

    def _variants(self, family: str, i: int) -> list[tuple[bool, tuple[bool, ...]]]:
        """Return variants of this family in dtype number ``i``: with or without instance data, and the shared tensors.

        The first family gets all combinations. In the first dtype, every other family gets each option once, in pairs
        different from the family before. In each further dtype, other families get a single combination.
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
        """Return which tensors have a batch dimension of 1: no tensor, or one of several tensors."""
        count = len(self.event_shapes)
        alone = [tuple(i == j for j in range(count)) for i in range(count)]
        return [(False,) * count, *(alone if count > 1 else [])]

    @functools.cached_property
    def _bind_options(self) -> list[bool]:
        """Return whether to bind instance data: never, always (if the oracle requires instance data), or both."""
        if self.instance_data is None:
            return [False]
        if self.oracle.bound:
            return [True]
        try:
            self.try_argmax({})
        except Exception:  # the conformance check "instance_data" reports wrong errors
            return [True]
        return [False, True]

    def _find_lengths(self) -> list[Any]:
        """Return lengths accepted by the oracle, found by trial: a number, or a number for each dimension of the first
        tensor.
        """
        ndim = self.oracle.instance_ndim.get("lengths")
        if ndim == 0:
            longest = max((d for shape in self.event_shapes for d in shape), default=0)
            return list(filter(self._accepts_length, range(longest + 1)))
        if ndim == 1 and self.event_shapes[0]:
            whole = self.event_shapes[0]
            rows = product(*(sorted({d, d - 1, 1} - {0, -1}, reverse=True) for d in whole))
            # Lengths may have another meaning for the oracle, so any error is possible.
            return [row for row in rows if self._accepts_length(row, Exception)]
        return []

    def _accepts_length(self, length: Any, *error_types: type[Exception]) -> bool:
        try:
            self.try_argmax({"lengths": [length]})
        except (InvalidInputError, InfeasibleError, *error_types):
            return False
        return True


def _describe_ndims(ndims: Sequence[int], is_tuple: bool) -> str:
    """Return the required form of ``event_shape`` in words."""
    dims = [f"{n} dimension{'s' * (n != 1)}" for n in ndims]
    if not is_tuple:
        return f"one shape of {dims[0]}"
    return f"a tuple of {len(dims)} shape{'s' * (len(dims) != 1)}, of {' and '.join(dims)}"


@dataclass(frozen=True, eq=False)
class Case:
    """A flat batch of instances.

    Attributes
    ----------
    user_theta : (B | 1, *event) Parts
        The scores in the form of a public call.
    instance_data : mapping
        Instance data, (B, ...) each.
    share_index, num_shares : int
        The number of this input in its family, and the number of inputs of the family.
    """

    target: CheckTarget
    user_theta: Parts
    instance_data: Mapping[str, Any]
    share_index: int = 0
    num_shares: int = 1

    @functools.cached_property
    def problem(self) -> Problem:
        """The case in the form that public functions pass to oracles."""
        return Problem.build(self.user_theta, self.target.oracle, self.instance_data)

    @property
    def oracle(self) -> Oracle:
        """The oracle with bound instance data."""
        return self.problem.oracle

    @property
    def theta(self) -> Parts:
        """The scores passed to the methods of the oracle: 0 in the padding.

        Each access gives a copy. A method that writes into its copy changes neither the printed input nor other checks.
        """
        return map_parts(torch.clone, self.problem.theta)

    @property
    def size(self) -> int:
        """The batch size B."""
        return math.prod(self.problem.batch_shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the scores."""
        return as_tuple(self.user_theta)[0].dtype

    def determined_parts(self, mean: Parts) -> Parts:
        """Return the parts of a mean that its relaxation determines also at ties: those with a penalty."""
        relaxation = self.target.relaxation
        is_readout = isinstance(relaxation, SparseMAP) and relaxation.penalises_readout(self.oracle, self.theta)
        return self.oracle.readout(mean) if is_readout else mean

    @functools.cached_property
    def scale(self) -> Tensor:
        """The largest Σ |θ_i y_i| of the best structures y in the batch, in float64."""
        return magnitude(self.theta, self.oracle.argmax(self.theta)).double().max()

    def rounding_error(self, magnitude: Tensor | float, factor: float = 32) -> Tensor:
        """Return a bound on rounding errors in sums of terms with the total ``magnitude``."""
        return as_tensor(magnitude, torch.float64) * (factor * torch.finfo(self.dtype).eps)

    @functools.cached_property
    def tolerance(self) -> Tensor:
        """The tolerance for the rounding of a result per instance, relative to the score of the best structure."""
        return self.rounding_error(1 + self.scale, factor=64)

    def select_share(self, options: Sequence[Any]) -> list[Any]:
        """Return the options for this input, at least one option. The inputs of a family share the ``options``."""
        count = math.ceil(len(options) / self.num_shares)
        return [options[i % len(options)] for i in range(self.share_index * count, (self.share_index + 1) * count)]

    @property
    def relaxation(self) -> Relaxation:
        """The tested relaxation. Each access gives a copy that draws the same noise."""
        assert self.target.relaxation is not None
        return self.target.relaxation.with_generator(self.noise_generator())

    def noise_generator(self) -> torch.Generator:
        """Return a fresh generator for relaxations that draw noise, with the same state at every call."""
        return self.generator("noise")

    def rows(self, rows: Sequence[int]) -> Case:
        """Return the case with only these instances, in this order."""
        index = torch.tensor(rows, dtype=torch.int64, device="cpu")
        theta = map_parts(lambda t: t[index] if t.shape[0] == self.size else t, self.user_theta)
        return replace(self, user_theta=theta, instance_data={key: t[index] for key, t in self.instance_data.items()})

    def with_tensors(self, tensors: Sequence[Tensor]) -> Case:
        """Return the case with other scores of the same form."""
        return replace(self, user_theta=pack_like(tensors, self.user_theta))

    def generator(self, seed_offset: Any = 0) -> torch.Generator:
        """Return a fresh generator, with the same state at every call."""
        return self.target.generator("check", seed_offset)

    def structure_near(self, i: int) -> Parts:
        """Return the structures (B, *event) from argmax for the ``i``-th noisy copy of θ, or for pure noise."""
        generator, moved = self.generator(("near", i)), []
        for t in as_tuple(self.user_theta):
            size = t.abs().nan_to_num(posinf=0).mean().item()
            noise = torch.randn(t.shape, generator=generator, dtype=torch.float64, device="cpu").to(t)
            noise = noise * (size or 1) * 2.0 ** (i % 7 - 4)
            moved.append(torch.where(t.isneginf(), t, self.target.to_valid_sign(noise if i % 3 == 0 else t + noise)))
        near = self.with_tensors(moved)
        return near.oracle.argmax(near.theta)

    def enumeration(self, b: int) -> Enumeration | None:
        """Return all structures of instance ``b``; None if the oracle cannot list structures."""
        if not isinstance(self.oracle, Enumerable):
            return None
        key = tuple((name, tuple(value[b].flatten().tolist())) for name, value in sorted(self.instance_data.items()))
        known = self.target._enumerations
        if key not in known:
            known[key] = Enumeration(self.target.list_structures(self.oracle[[b]]))
        return known[key]

    def enumerations(self) -> Iterator[tuple[int, Parts, Enumeration]]:
        """Yield index, scores (1, *event) and structures of each instance; nothing if the oracle cannot list
        structures.
        """
        for b in range(self.size):
            enumeration = self.enumeration(b)
            if enumeration is not None:
                yield b, instance(self.theta, b), enumeration
