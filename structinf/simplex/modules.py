"""The maps to the simplex as modules, with the interface of torch.nn.Softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ..errors import InvalidInputError
from ..kernels.arrays import as_tensor
from ..shapes import Float
from ..validation import check_k
from .along_dim import RowParameter, check_parameter, read_parameter
from .capped_simplex import budget
from .entmax_family import entmax, entmax15, softmax, sparsemax, topk_sparsemax
from .grouping import fusedmax, oscarmax
from .norm_maps import normmax

__all__ = [
    "Budget",
    "Entmax",
    "Entmax15",
    "Fusedmax",
    "Normmax",
    "Oscarmax",
    "SimplexModule",
    "Softmax",
    "Sparsemax",
    "TopkSparsemax",
]


class SimplexModule(nn.Module):
    """Base class of maps to the simplex along ``dim``. Subclasses set ``function``.

    Parameters
    ----------
    dim : int
        The dimension of the map, by default the last.
    **options
        Options of the function, in the order of its arguments.
    """

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, dim: int = -1, **options: Any) -> None:
        super().__init__()
        self.dim, self._options = dim, tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Float[Tensor, "*shape"]:
        """Apply the function to scores x of any shape; the result has the shape and dtype of x."""
        return type(self).function(x, *(getattr(self, name) for name in self._options), self.dim)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in (*self._options, "dim"))


class Softmax(SimplexModule):
    """:func:`softmax` as a module: torch.nn.Softmax, except that a row of −inf gives 0.

    Parameters
    ----------
    dim : int
        The dimension along which the probabilities sum to 1, by default the last.

    Examples
    --------
    >>> import torch
    >>> Softmax(dim=-1)(torch.tensor([[1.0, 2.0], [-torch.inf, -torch.inf]]))
    tensor([[0.2689, 0.7311],
            [0.0000, 0.0000]])
    """

    function = staticmethod(softmax)

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)


class Sparsemax(SimplexModule):
    """:func:`sparsemax` as a module: the projection of scores onto the simplex.

    Parameters
    ----------
    dim : int
        The dimension along which the probabilities sum to 1, by default the last.

    Examples
    --------
    >>> import torch
    >>> Sparsemax(dim=-1)(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([0.0000, 0.2500, 0.7500])
    """

    function = staticmethod(sparsemax)

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)


class Entmax15(SimplexModule):
    """:func:`entmax15` as a module: sparse like sparsemax, but with a continuous derivative.

    Parameters
    ----------
    dim : int
        The dimension along which the probabilities sum to 1, by default the last.

    Examples
    --------
    >>> import torch
    >>> Entmax15(dim=-1)(torch.tensor([1.0, 2.0, 0.0]))
    tensor([0.1693, 0.8307, 0.0000])
    """

    function = staticmethod(entmax15)

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)


class Normmax(SimplexModule):
    """:func:`normmax` as a module: sparse probabilities, near uniform on their support for large α.

    Parameters
    ----------
    alpha : float
        α, above 1, default 2.
    dim : int
        The dimension along which the probabilities sum to 1, by default the last.

    Examples
    --------
    >>> import torch
    >>> Normmax(alpha=2.0)(torch.tensor([1.0, 2.0, 1.5]))
    tensor([0.0000, 0.6890, 0.3110])
    """

    function = staticmethod(normmax)

    def __init__(self, alpha: float = 2.0, dim: int = -1) -> None:
        check_parameter("alpha", alpha, 1, is_exclusive=True)
        super().__init__(dim, alpha=alpha)


class TopkSparsemax(SimplexModule):
    """:func:`topk_sparsemax` as a module: sparsemax of the k highest scores.

    Parameters
    ----------
    k : int
        The largest number of probabilities above 0, at least 1.
    dim : int
        The dimension along which the probabilities sum to 1, by default the last.

    Examples
    --------
    >>> import torch
    >>> TopkSparsemax(k=2)(torch.tensor([0.1, 0.2, 0.3]))
    tensor([0.0000, 0.4500, 0.5500])
    """

    function = staticmethod(topk_sparsemax)

    def __init__(self, k: int, dim: int = -1) -> None:
        check_k(k)
        super().__init__(dim, k=k)


class Budget(SimplexModule):
    """:func:`budget` as a module: numbers from 0 to 1 with sum k.

    Parameters
    ----------
    k : float
        The sum, from 0 to the size of ``dim``.
    dim : int
        The dimension along which the numbers sum to k, by default the last.

    Examples
    --------
    >>> import torch
    >>> Budget(k=2)(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    tensor([0.0000, 0.1250, 0.3750, 0.6250, 0.8750])
    """

    function = staticmethod(budget)

    def __init__(self, k: float, dim: int = -1) -> None:
        check_parameter("k", k, 0)
        super().__init__(dim, k=k)


class Fusedmax(SimplexModule):
    """:func:`fusedmax` as a module: sparse probabilities with equal values in runs of neighbours.

    Parameters
    ----------
    weight : float
        At least 0, default 0.1. Larger weights give longer runs.
    dim : int
        The dimension along which the probabilities sum to 1, by default the last.

    Examples
    --------
    >>> import torch
    >>> Fusedmax(weight=0.1)(torch.tensor([0.0, 0.6, 0.7, 0.6, 0.0, 0.2]))
    tensor([0.0000, 0.3333, 0.3333, 0.3333, 0.0000, 0.0000])
    """

    function = staticmethod(fusedmax)

    def __init__(self, weight: float = 0.1, dim: int = -1) -> None:
        check_parameter("weight", weight, 0)
        super().__init__(dim, weight=weight)


class Oscarmax(SimplexModule):
    """:func:`oscarmax` as a module: sparse probabilities with equal values in groups of arbitrary entries.

    Parameters
    ----------
    weight : float
        At least 0, default 0.1. Larger weights give larger groups.
    dim : int
        The dimension along which the probabilities sum to 1, by default the last.

    Examples
    --------
    >>> import torch
    >>> Oscarmax(weight=0.1)(torch.tensor([0.5, 0.0, 0.4, -0.5]))
    tensor([0.4333, 0.1333, 0.4333, 0.0000])
    """

    function = staticmethod(oscarmax)

    def __init__(self, weight: float = 0.1, dim: int = -1) -> None:
        check_parameter("weight", weight, 0)
        super().__init__(dim, weight=weight)


class Entmax(nn.Module):
    """:func:`entmax` as a module, with a fixed or a learnable α.

    Parameters
    ----------
    alpha : float or Tensor
        α, at least 1, default 1.5, as for :func:`entmax`. If ``learnable``, the initial value of α.
    dim : int
        The dimension along which the probabilities sum to 1, by default the last.
    learnable : bool
        Whether to train α, as α = 1 + softplus(β) with a parameter β of the module. Default False.

    Raises
    ------
    InvalidInputError
        If α is below 1, or if α is 1 and ``learnable``.

    Examples
    --------
    A learnable α for each of 8 heads, for scores (batch, head, query, key):

    >>> import torch
    >>> layer = Entmax(torch.full((8, 1, 1), 1.5), learnable=True)
    >>> layer(torch.zeros(2, 8, 3, 4)).shape, layer.alpha.shape
    (torch.Size([2, 8, 3, 4]), torch.Size([8, 1, 1]))
    """

    beta: Tensor | None

    def __init__(self, alpha: RowParameter = 1.5, dim: int = -1, *, learnable: bool = False) -> None:
        super().__init__()
        read = read_parameter("alpha", alpha)
        alpha = read.to(torch.get_default_dtype()) if isinstance(read, Tensor) and read is not alpha else read
        check_parameter("alpha", alpha, 1)
        self.dim = dim
        if learnable:
            if bool((as_tensor(alpha) == 1).any()):
                raise InvalidInputError(
                    "alpha must be above 1 if it is learnable, as 1 is the limit of 1 + softplus(β)"
                )
            start = alpha if isinstance(alpha, Tensor) else torch.tensor(float(alpha))  # on the default device
            self.beta = nn.Parameter(_inverse_softplus(start.detach() - 1))
        elif isinstance(alpha, Tensor):
            self.register_buffer("fixed", alpha.detach().clone())
            self.beta = None
        else:
            self.fixed, self.beta = float(alpha), None

    @property
    def alpha(self) -> float | Tensor:
        """The current value of α."""
        return self.fixed if self.beta is None else 1 + softplus(self.beta)

    def forward(self, x: Tensor) -> Float[Tensor, "*shape"]:
        """Return probabilities in the shape and dtype of x.

        Parameters
        ----------
        x : Tensor
            The scores.
        """
        return entmax(x, self.alpha, self.dim)

    def extra_repr(self) -> str:
        alpha = self.alpha
        shown = f"of shape {tuple(alpha.shape)}" if isinstance(alpha, Tensor) and alpha.numel() > 1 else f"{alpha:g}"
        return f"alpha={shown}, dim={self.dim}, learnable={self.beta is not None}"


def _inverse_softplus(y: Tensor) -> Tensor:
    return y + torch.log(-torch.expm1(-y))
