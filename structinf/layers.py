"""The module :class:`Layer`, a relaxation of an oracle as an nn.Module."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .api import infer, relax
from .calls.arguments import OnInfeasible, check_on_infeasible
from .calls.resolution import refuse_name, resolve
from .compile.public_call import takes_one_theta
from .oracle import Oracle
from .parts import Parts, PartsT
from .relaxation import Relaxation, inner_modules, register_parameters, with_parameters_of
from .solution import Solution
from .support_cache import CachedSupports

__all__ = ["Layer"]


class Layer(nn.Module):
    """A module that maps scores θ to relaxed structures μ(θ) with :func:`structinf.relax`.

    Options are fixed when the layer is created. Instance data such as lengths is passed to each call.

    Parameters
    ----------
    oracle : str or Oracle
        The set of structures: an object, or a name. :func:`structinf.list_oracles` lists the built-in names with their
        classes. The parameters of a class are the oracle's options.
    relaxation : str or Relaxation
        The map from θ to μ: an object, or a name. :func:`structinf.list_relaxations` lists the built-in names with
        their classes. The parameters of a class are the relaxation's options.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or return zeros for the
        instance, with gradient 0.
    **options
        Options of an oracle or a relaxation given by name. An object already has its options.

    Raises
    ------
    UnsupportedError
        If the relaxation does not support the oracle. The message lists supported relaxations.
    UnknownNameError
        If no oracle or relaxation has the name.
    TypeError
        If neither the oracle nor the relaxation has an option.

    Examples
    --------
    >>> import torch
    >>> layer = Layer("chain", "marginals", temperature=0.5)
    >>> unary, transition = torch.zeros(2, 3, 4), torch.zeros(4, 4)
    >>> mean, counts = layer((unary, transition), lengths=[3, 2])
    >>> mean[1, 2]
    tensor([0., 0., 0., 0.])
    """

    def __init__(
        self,
        oracle: str | Oracle,
        relaxation: str | Relaxation = "sparsemap",
        *,
        on_infeasible: OnInfeasible = "raise",
        **options: Any,
    ) -> None:
        super().__init__()
        check_on_infeasible(on_infeasible)
        self.on_infeasible: OnInfeasible = on_infeasible
        self.oracle, self.relaxation = resolve(oracle, relaxation, options)
        register_parameters(self, self.relaxation)
        if inner := inner_modules(self.relaxation):
            self.inner = nn.ModuleList(inner)

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_name(name, value)
        super().__setattr__(name, value)

    @takes_one_theta
    def forward(self, theta: PartsT, *, generator: torch.Generator | None = None, **instance_data: Any) -> PartsT:
        """Return the relaxed structure μ(θ).

        Parameters
        ----------
        theta : (..., *event) Tensor, or tuple of them
            Scores of the parts, as for :func:`structinf.relax`.
        generator : torch.Generator, optional
            The source of all noise, on the device of θ. If None, noise comes from torch's default generator.
        **instance_data
            Instance data of the oracle, for example ``lengths``.

        Returns
        -------
        (..., *event) Tensor, or tuple of them
            μ(θ) in the form and dtype of θ.
        """
        return relax(
            theta,
            self.oracle,
            with_parameters_of(self, self.relaxation),
            generator=generator,
            on_infeasible=self.on_infeasible,
            **instance_data,
        )

    @takes_one_theta
    def infer(
        self,
        theta: Parts,
        *,
        warm_start: Solution | CachedSupports | None = None,
        generator: torch.Generator | None = None,
        **instance_data: Any,
    ) -> Solution:
        """Return the relaxed structure with its value, support and weights; see :func:`structinf.infer`.

        Parameters
        ----------
        theta : (..., *event) Tensor, or tuple of them
            Scores of the parts, as for :func:`structinf.relax`.
        warm_start : Solution, or result of SupportCache.select, optional
            An earlier solution for scores of the same shape. Iterative relaxations start from its support.
        generator : torch.Generator, optional
            The source of all noise, on the device of θ. If None, noise comes from torch's default generator.
        **instance_data
            Instance data of the oracle, for example ``lengths``.

        Returns
        -------
        Solution
            The mean μ(θ), and the other fields of :class:`structinf.Solution`.
        """
        return infer(
            theta,
            self.oracle,
            with_parameters_of(self, self.relaxation),
            warm_start=warm_start,
            generator=generator,
            on_infeasible=self.on_infeasible,
            **instance_data,
        )

    def extra_repr(self) -> str:
        rule = "" if self.on_infeasible == "raise" else f", on_infeasible={self.on_infeasible!r}"
        return f"oracle={self.oracle!r}, relaxation={self.relaxation!r}{rule}"
