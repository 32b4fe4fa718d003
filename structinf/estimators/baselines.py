"""Baselines of sampled gradients: what is taken from each f(y) before it is multiplied with ∇log p(y)."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import InvalidInputError
from ..validation import check_fraction
from .weighted_structures import FunctionValues

__all__ = ["Baseline", "LearnedBaseline", "LeaveOneOut", "MovingAverage", "NoBaseline", "SelfCritic", "get_baseline"]


class Baseline(nn.Module, abc.ABC):
    """A number b for each sample, so that (f(y) − b) ∇log p(y) has the mean of f(y) ∇log p(y) and varies less.

    Attributes
    ----------
    name : str
        For messages.
    min_samples : int
        How many samples of an instance it needs.
    needs_argmax : bool
        Whether f is also evaluated at argmax ⟨θ, y⟩, for ``found.controls()``.
    has_state : bool
        Whether it keeps what it has seen.
    """

    name: ClassVar[str] = ""
    min_samples: ClassVar[int] = 1
    needs_argmax: ClassVar[bool] = False
    has_state: ClassVar[bool] = False

    @abc.abstractmethod
    def forward(self, found: FunctionValues, samples: int) -> Tensor | None:
        """b (N,), for structures whose weights are their shares of so many ``samples``; None for 0.

        Law: a sample's b does not depend on that sample.
        """


class NoBaseline(Baseline):
    """0."""

    name = "none"

    def forward(self, found: FunctionValues, samples: int) -> Tensor | None:
        return None


class LeaveOneOut(Baseline):
    """The mean of the instance's other samples.

    References
    ----------
    Kool, van Hoof & Welling 2019, Buy 4 REINFORCE Samples, Get a Baseline for Free!
    """

    name = "leave_one_out"
    min_samples = 2

    def forward(self, found: FunctionValues, samples: int) -> Tensor | None:
        total = samples * found.means()
        return (total[found.weighted_structures.instance] - found.values) / (samples - 1)


class SelfCritic(Baseline):
    """f at the structure of highest score, one more evaluation for each instance.

    References
    ----------
    Rennie, Marcheret, Mroueh, Ross & Goel 2017, Self-Critical Sequence Training for Image Captioning.
    """

    name = "self_critic"
    needs_argmax = True

    def forward(self, found: FunctionValues, samples: int) -> Tensor | None:
        return found.controls()


class MovingAverage(Baseline):
    """The mean of f over earlier calls, of which those t calls ago count decay^t; 0 at the first.

    The buffers ``average`` and ``calls`` are updated in training mode only.

    Parameters
    ----------
    decay : float
        At least 0 and below 1.

    Examples
    --------
    >>> import structinf as si
    >>> theta, cost = torch.tensor([[1.0, 2.0, 0.5]]), torch.tensor([3.0, 1.0, 2.0])
    >>> estimator = si.get_estimator("score_function", samples=1, baseline=MovingAverage(decay=0.99))
    >>> for _ in range(3):
    ...     _ = si.expect(lambda y: y @ cost, theta, "subset", estimator, k=2)
    >>> estimator.baseline.calls
    tensor(3)
    """

    name = "moving_average"
    has_state = True
    average: Tensor
    calls: Tensor

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__()
        check_fraction("decay", decay)
        self.decay = decay
        self.register_buffer("average", torch.zeros((), dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, found: FunctionValues, samples: int) -> Tensor | None:
        # What the weights of all calls so far sum to is 1 − decay^calls.
        known = self.average / (1 - self.decay ** self.calls.double()) if self.calls else self.average
        if self.training and len(found.values):
            self.average = self.decay * self.average + (1 - self.decay) * found.means().mean().to(self.average)
            self.calls = self.calls + 1
        return known.to(found.values).expand(len(found.values))

    def extra_repr(self) -> str:
        return f"decay={self.decay}"


class LearnedBaseline(Baseline):
    """A module's guess of E[f(Y)], trained by its squared error.

    It is called as ``module(*inputs)`` with the inputs of :func:`structinf.expect`, or with θ's tensors where there are
    none, and gives a number for each instance, of the batch's shape. Whenever the estimate is differentiated, its
    parameters get the gradient of the mean over the samples of (b − f(y))², times the size of what arrives at the
    instance's estimate: by its sign f is minimised or maximised, and the error is minimised either way. What the module
    is called with gets none.

    Parameters
    ----------
    module : nn.Module

    References
    ----------
    Mnih & Gregor 2014, Neural Variational Inference and Learning in Belief Networks.

    Examples
    --------
    >>> import structinf as si
    >>> theta, cost = torch.tensor([[1.0, 2.0, 0.5]], requires_grad=True), torch.tensor([3.0, 1.0, 2.0])
    >>> critic = nn.Sequential(nn.Linear(3, 1), nn.Flatten(-2))
    >>> estimator = si.get_estimator("score_function", samples=1, baseline=LearnedBaseline(critic))
    >>> si.expect(lambda y: y @ cost, theta, "subset", estimator, k=2).sum().backward()
    >>> theta.grad.shape, critic[0].weight.grad.shape
    (torch.Size([1, 3]), torch.Size([1, 3]))
    """

    name = "learned"

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, found: FunctionValues, samples: int) -> Tensor | None:
        batch_shape = found.problem.batch_shape
        prediction: Any = self.module(*found.contexts())
        if not isinstance(prediction, Tensor) or prediction.shape != batch_shape:
            received = (
                f"shape {tuple(prediction.shape)}" if isinstance(prediction, Tensor) else type(prediction).__name__
            )
            raise InvalidInputError(
                f"baseline: one number for each instance is needed, a tensor of the batch's shape "
                f"{tuple(batch_shape)}, got {received}"
            )
        b = prediction.to(found.values).reshape(-1)[found.weighted_structures.instance]
        if b.requires_grad:
            slope = 2 * (b.detach() - found.values)
            b.register_hook(lambda g: g.abs() * slope)
        return b


_BASELINES: dict[str, type[Baseline]] = {
    kind.name: kind for kind in (NoBaseline, MovingAverage, LeaveOneOut, SelfCritic)
}


def get_baseline(baseline: str | nn.Module) -> Baseline:
    """The baseline called so; a Baseline as it is, and any other module as one that is :class:`LearnedBaseline`."""
    if isinstance(baseline, Baseline):
        return baseline
    if isinstance(baseline, nn.Module):
        return LearnedBaseline(baseline)
    if not (isinstance(baseline, str) and baseline in _BASELINES):
        known = ", ".join(f'"{name}"' for name in _BASELINES)
        raise InvalidInputError(f"baseline must be {known} or a torch.nn.Module, got {baseline!r}")
    return _BASELINES[baseline]()
