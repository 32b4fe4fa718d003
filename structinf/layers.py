"""A relaxation of an oracle as an nn.Module."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .api import infer, relax
from .calls.resolution import resolve
from .oracle import Oracle
from .parts import Parts, PartsT
from .relaxation import Relaxation, inner_modules
from .solution import Solution

__all__ = ["Layer"]


class Layer(nn.Module):
    """Potentials in, relaxed structures out.

    Parameters
    ----------
    oracle : str or Oracle
    relaxation : str or Relaxation
    **options
        Options of whatever was given by name.

    Raises
    ------
    UnsupportedError
        If the oracle cannot have the relaxation.

    Examples
    --------
    >>> import torch
    >>> layer = Layer("chain", "marginals", temperature=0.5)
    >>> unary, transition = torch.zeros(2, 3, 4), torch.zeros(4, 4)
    >>> mean, counts = layer((unary, transition), lengths=[3, 2])
    >>> mean[1, 2]
    tensor([0., 0., 0., 0.])
    """

    def __init__(self, oracle: str | Oracle, relaxation: str | Relaxation = "sparsemap", **options: Any) -> None:
        super().__init__()
        self.oracle, self.relaxation = resolve(oracle, relaxation, options)
        if inner := inner_modules(self.relaxation):
            self.inner = nn.ModuleList(inner)

    def forward(self, theta: PartsT, *, generator: torch.Generator | None = None, **instance_data: Any) -> PartsT:
        """μ(θ), (..., *event), for potentials of that shape; ``instance_data`` is instance data such as lengths."""
        return relax(theta, self.oracle, self.relaxation, generator=generator, **instance_data)

    def infer(
        self,
        theta: Parts,
        *,
        warm_start: Solution | None = None,
        generator: torch.Generator | None = None,
        **instance_data: Any,
    ) -> Solution:
        """The whole solution record, as :func:`structinf.infer`."""
        return infer(theta, self.oracle, self.relaxation, warm_start=warm_start, generator=generator, **instance_data)

    def extra_repr(self) -> str:
        return f"oracle={self.oracle!r}, relaxation={self.relaxation!r}"
