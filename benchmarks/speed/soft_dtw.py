"""Soft-DTW: value with gradient, and second derivatives, compared with packages for series and a torch recursion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

import torch
from torch import Tensor

import structinf as si

from .case import STRUCTINF, Case, Contender, Target

__all__ = ["CASES", "soft_dtw_recursion"]

RECURSION = "plain torch recursion"
# Recursions in float32 differ from ours by rounding errors that grow with the series: exact=False below.
FAR = 1e9  # cost of cells outside the grid; infinity would turn the gradients of plain recursions into NaN


# ----------------------------------------------------------------------------- the same work, plainly


def soft_dtw_recursion(cost: Tensor) -> Tensor:
    """Return soft-DTW (B,) at temperature 1, with all cells of an anti-diagonal at once."""
    batch, n, m = cost.shape
    # Shift row i to the right by i, so that anti-diagonals are columns.
    skewed = torch.nn.functional.pad(cost, (0, n)).flatten(1)[:, : n * (n + m - 1)].unflatten(1, (n, n + m - 1))
    first, *rest = skewed.unbind(2)
    one = torch.cat([first[:, :1], first.new_full((batch, n - 1), FAR)], 1)
    two = torch.full_like(one, FAR)
    for costs in rest:
        choices = torch.stack([_moved_down(two), _moved_down(one), one])
        two, one = one, costs - torch.logsumexp(-choices, 0)
    return one[:, -1]


def _moved_down(diagonal: Tensor) -> Tensor:
    return torch.nn.functional.pad(diagonal[:, :-1], (1, 0), value=FAR)


def _with_gradient(value: Callable[[], Tensor], cost: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
    def run() -> tuple[Tensor, Tensor]:
        values = value()
        return values.detach(), torch.autograd.grad(values.sum(), cost)[0]

    return run


# ----------------------------------------------------------------------------- cases


def _costs(batch: int, n: int) -> Tensor:
    """Return squared distances of random walks."""
    walks = torch.randn(2, batch, n, generator=torch.Generator().manual_seed(0)).cumsum(2) / n**0.5
    return (walks[0, :, :, None] - walks[1, :, None]).square().requires_grad_()


def value_and_gradient(modules: Mapping[str, ModuleType], batch: int, n: int) -> Iterator[Contender]:
    """Compute soft-DTW of given costs, and the gradient in the costs."""
    cost = _costs(batch, n)
    series = torch.zeros(batch, n, 1)  # the packages would compute the costs of these series
    yield Contender(STRUCTINF, _with_gradient(lambda: si.soft_dtw(cost), cost))
    if package := modules.get("tslearn"):
        tslearn = package.SoftDTWLossPyTorch(gamma=1.0, dist_func=lambda x, y: cost)
        yield Contender("tslearn", _with_gradient(lambda: tslearn(series, series), cost), exact=False)
    if package := modules.get("pysdtw"):
        pysdtw = package.SoftDTW(gamma=1.0, dist_func=lambda x, y: cost, use_cuda=False)
        yield Contender("pysdtw", _with_gradient(lambda: pysdtw(series, series), cost))
    yield Contender(RECURSION, _with_gradient(lambda: soft_dtw_recursion(cost), cost), exact=False)


def second_order(modules: Mapping[str, ModuleType], batch: int, n: int) -> Iterator[Contender]:
    """Compute the expected alignment, and the gradient of a linear function of the alignment. The packages return a
    wrong gradient.
    """
    cost = _costs(batch, n)
    weight = torch.randn(batch, n, n, generator=torch.Generator().manual_seed(1))

    def through(matrix: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return lambda: torch.autograd.grad((matrix() * weight).sum(), cost)[0]

    def by_autograd() -> Tensor:
        return torch.autograd.grad(soft_dtw_recursion(cost).sum(), cost, create_graph=True)[0]

    yield Contender(STRUCTINF, through(lambda: si.alignment_matrix(cost)))
    yield Contender(RECURSION, through(by_autograd), exact=False)


PACKAGES = ("tslearn", "pysdtw")
VALUE = "soft-DTW and gradient, B={batch} {n}x{n}"
QUICK = {"batch": 2, "n": 5}
CASES = (
    Case("soft-dtw", VALUE, value_and_gradient, {"batch": 32, "n": 256}, QUICK, PACKAGES, Target(5, PACKAGES)),
    Case("soft-dtw-short", VALUE, value_and_gradient, {"batch": 128, "n": 64}, QUICK, PACKAGES, Target(5, PACKAGES)),
    Case("soft-dtw-long", VALUE, value_and_gradient, {"batch": 8, "n": 1024}, QUICK, PACKAGES, Target(5, PACKAGES)),
    Case(
        "soft-dtw-second-order",
        "expected alignment and backward through it, B={batch} {n}x{n}",
        second_order,
        {"batch": 32, "n": 256},
        QUICK,
        target=Target(20),
    ),
)
