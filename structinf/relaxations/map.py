"""map: the structure itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..checks import check_feasible
from ..errors import PluginError
from ..oracle import Oracle
from ..parts import Potentials, as_tuple, batch_size, map_parts
from ..relaxation import RegularizedRelaxation, no_omega
from ..solution import Solution

if TYPE_CHECKING:
    import jaxtyping

__all__ = ["Map"]


@dataclass(frozen=True, kw_only=True)
class Map(RegularizedRelaxation):
    """argmax ⟨θ, y⟩ over y ∈ Y, a vertex.

    It is piecewise constant: its gradient is zero, so it trains nothing by itself. As a loss
    (Ω = 0) it is the structured perceptron, and with a cost the structured SVM.
    """

    name = "map"

    @property
    def piecewise_constant(self) -> bool:
        return True

    def solve(self, oracle: Oracle, theta: Potentials, warm_start: Potentials | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        y = _argmax(oracle, theta)
        value = _score(oracle, theta, y)
        return Solution(
            mean=_with_zero_gradient(y, theta),
            value=value,
            weights=torch.ones_like(value)[None],
            make_support=lambda: map_parts(lambda z: z[None], y),
            gap=torch.zeros_like(value),
            converged=torch.ones_like(value, dtype=torch.bool),
            oracle_calls=1,
        )

    def conjugate(self, oracle: Oracle, theta: Potentials) -> jaxtyping.Float[Tensor, " batch"]:
        """max ⟨θ, y⟩, (B,), with gradient the maximising structure."""
        return _score(oracle, theta, _argmax(oracle, theta))

    def omega(self, oracle: Oracle, y: Potentials) -> jaxtyping.Float[Tensor, " batch"]:
        """0, (B,)."""
        return no_omega(y)


def _argmax(oracle: Oracle, theta: Potentials) -> Potentials:
    """The oracle's answer, after the checks of a plugin that cost next to nothing."""
    detached = map_parts(torch.Tensor.detach, theta)
    versions = [t._version for t in as_tuple(detached)]
    with torch.no_grad():
        y = oracle.argmax(detached)
    wrong = _wrong_form(y, detached)
    if wrong is None and versions != [t._version for t in as_tuple(detached)]:
        wrong = "it wrote into theta"
    if wrong is not None:
        raise PluginError(
            f"argmax of {oracle.label()} breaks its protocol: {wrong}; structinf.testing.check_oracle says more"
        )
    return y


def _score(oracle: Oracle, theta: Potentials, y: Potentials) -> Tensor:
    """⟨θ, y⟩ for the best y; if that is −inf no structure has a finite score, whether or not the oracle said so."""
    value = oracle.score(theta, y)
    check_feasible(value.detach(), f"structure of {oracle.label()}")
    return value


def _wrong_form(y: Any, theta: Potentials) -> str | None:
    """What is wrong about the form of ``y``, in a clause."""
    if isinstance(y, tuple) != isinstance(theta, tuple) or len(as_tuple(y)) != len(as_tuple(theta)):
        return f"it returned {'a tuple' if isinstance(y, tuple) else 'no tuple'}, unlike theta"
    size = batch_size(theta)
    for z, t in zip(as_tuple(y), as_tuple(theta), strict=True):
        came = (tuple(z.shape), z.dtype, z.device) if isinstance(z, Tensor) else type(z).__name__
        wanted = ((size, *t.shape[1:]), t.dtype, t.device)
        if came != wanted:
            return f"it returned {came} where shape, dtype and device must be {wanted}"
    return None


def _with_zero_gradient(y: Potentials, theta: Potentials) -> Potentials:
    """``y`` as a function of all of θ with gradient 0, so that a loss on it can be differentiated.

    Sums over no elements add graph edges and no arithmetic (0 · −inf would be NaN). They are of squares,
    so that the gradient has a gradient, which is 0 too.
    """
    sources = [t for t in as_tuple(theta) if t.requires_grad]
    if not sources or not torch.is_grad_enabled():
        return y
    nothing = torch.stack([t[:0].square().sum() for t in sources]).sum()
    return map_parts(lambda z: z + nothing, y)
