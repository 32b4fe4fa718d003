"""What an example of an oracle is: a size to check it on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import structinf
from enumerators import Structure
from structinf import Oracle, Parts
from structinf.testing import InstanceData


@dataclass(frozen=True)
class Example:
    """One small size of one oracle.

    Attributes
    ----------
    name : str
        Under which the oracle is registered.
    event_shape : tuple
        As for :func:`structinf.testing.check_oracle`.
    options : mapping
    structure : mapping, optional
        Instance data to draw from; acceptable scalar lengths are found without it.
    listing : callable, optional
        From an instance's lengths (None for the whole) to all structures, independent of the library.
    lengths : sequence
        Those that ``listing`` takes.
    part_cost : float
        What a part of the first tensor that differs adds to the Hamming distance: a wrong token changes two parts.
    distance : callable, optional
        The Hamming distance of two structures, where the first tensor does not show all of it.
    power : int
        Of the difference, where it is not 0 or 1.
    relaxed : bool
        Whether relaxations of it are checked too, which takes longer.
    """

    name: str
    event_shape: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    instance_data: InstanceData | None = None
    listing: Callable[[Any], list[Structure]] | None = None
    lengths: Sequence[Any] = ()
    part_cost: float = 0.5
    distance: Callable[[Structure, Structure], float] | None = None
    power: int = 1
    relaxed: bool = False

    def oracle(self) -> Oracle:
        """Made with the options."""
        return structinf.get_oracle(self.name, **self.options)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Event shapes of the tensors of θ."""
        return self.event_shape if self.is_tuple else (self.event_shape,)

    @property
    def is_tuple(self) -> bool:
        """Whether θ is a tuple."""
        return not isinstance(self.event_shape[0], int)

    @property
    def parts(self) -> int:
        """Number of parts."""
        return sum(map(math.prod, self.shapes))

    def draw(self, batch: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Parts:
        """Normal scores (batch, *event), at most 0 if the oracle requires it; the same in each dtype."""
        generator = torch.Generator().manual_seed(seed)
        drawn = [torch.randn(batch, *s, generator=generator, dtype=torch.float64).to(dtype) for s in self.shapes]
        if self.oracle().requires_nonpositive_theta:
            drawn = [-t.abs() for t in drawn]
        return tuple(drawn) if self.is_tuple else drawn[0]

    def __str__(self) -> str:
        options = "".join(f"-{key}={value}" for key, value in self.options.items())
        return f"{self.name}{options}-{self.event_shape}".replace(" ", "")
