"""Baselines of sampled gradients: values subtracted from each f(y) before the product with ∇log p(y)."""

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
    """A value b for each sample that lowers the variance of the gradient (f(y) − b) ∇log p(y).

    The expectation of the gradient stays the same.

    Attributes
    ----------
    name : str
        The name of the baseline, for messages.
    min_samples : int
        The least number of samples of an instance.
    needs_argmax : bool
        Whether f is also evaluated at argmax ⟨θ, y⟩, for ``found.controls()``.
    has_state : bool
        Whether the baseline keeps a state between calls.
    """

    name: ClassVar[str] = ""
    min_samples: ClassVar[int] = 1
    needs_argmax: ClassVar[bool] = False
    has_state: ClassVar[bool] = False

    @abc.abstractmethod
    def forward(self, found: FunctionValues, samples: int) -> Tensor | None:
        """Return b (N,), or None for 0. The weights of the structures are their fractions of the ``samples`` samples.

        Law: b of a sample does not depend on this sample.

        Parameters
        ----------
        found : FunctionValues
            The values of f at the sampled structures.
        samples : int
            The number of samples of each instance.
        """


class NoBaseline(Baseline):
    """The baseline 0."""

    name = "none"

    def forward(self, found: FunctionValues, samples: int) -> Tensor | None:
        return None


class LeaveOneOut(Baseline):
    """The mean of f over the instance's other samples.

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
    """The value of f at the structure of highest score, with one more evaluation for each instance.

    References
    ----------
    Rennie, Marcheret, Mroueh, Ross & Goel 2017, Self-Critical Sequence Training for Image Captioning.
    """

    name = "self_critic"
    needs_argmax = True

    def forward(self, found: FunctionValues, samples: int) -> Tensor | None:
        return found.controls()


class MovingAverage(Baseline):
    """The mean of f over earlier calls, where the call t calls ago has the weight decay^t; 0 in the first call.

    The buffers ``average`` and ``calls`` are updated only in training mode.

    Parameters
    ----------
    decay : float
        The decay of the weights, at least 0 and below 1.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]])
    >>> cost = torch.tensor([3.0, 1.0, 2.0])
    >>> baseline = MovingAverage(decay=0.99)
    >>> estimator = si.get_estimator(
    ...     "score_function", samples=1, baseline=baseline
    ... )
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
        self.register_buffer("average", torch.zeros((), dtype=torch.float64, device="cpu"))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64, device="cpu"))

    def forward(self, found: FunctionValues, samples: int) -> Tensor | None:
        # The weights of all calls so far sum to 1 − decay^calls.
        known = self.average / (1 - self.decay ** self.calls.double()) if self.calls else self.average
        if self.training and len(found.values):
            self.average = self.decay * self.average + (1 - self.decay) * found.means().mean().to(self.average)
            self.calls = self.calls + 1
        return known.to(found.values).expand(len(found.values))

    def extra_repr(self) -> str:
        return f"decay={self.decay}"


class LearnedBaseline(Baseline):
    """A module's prediction of E[f(Y)], trained by its squared error.

    The module is called as ``module(*inputs)`` with the inputs of :func:`structinf.expect`, or without inputs with
    the tensors of θ. It returns one number for each instance, in the batch's shape. The inputs of the module get no
    gradient.

    In the backward pass, the module's parameters get the gradient of the mean over samples of (b − f(y))², times
    the absolute value of the gradient of the instance's estimate. The absolute value makes gradient descent reduce
    the error whether f is minimised or maximised.

    Parameters
    ----------
    module : nn.Module
        The module that predicts b.

    References
    ----------
    Mnih & Gregor 2014, Neural Variational Inference and Learning in Belief Networks.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]], requires_grad=True)
    >>> cost = torch.tensor([3.0, 1.0, 2.0])
    >>> critic = nn.Sequential(nn.Linear(3, 1), nn.Flatten(-2))
    >>> baseline = LearnedBaseline(critic)
    >>> estimator = si.get_estimator(
    ...     "score_function", samples=1, baseline=baseline
    ... )
    >>> value = si.expect(lambda y: y @ cost, theta, "subset", estimator, k=2)
    >>> value.sum().backward()
    >>> theta.grad.shape, critic[0].weight.grad.shape
    (torch.Size([1, 3]), torch.Size([1, 3]))
    """

    name = "learned"

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, found: FunctionValues, samples: int) -> Tensor | None:
        batch_shape = found.batch_shape
        prediction: Any = self.module(*found.contexts())
        if not isinstance(prediction, Tensor) or prediction.shape != batch_shape:
            received = (
                f"shape {tuple(prediction.shape)}" if isinstance(prediction, Tensor) else type(prediction).__name__
            )
            raise InvalidInputError(
                f"baseline: the module must return one number for each instance, a tensor of shape "
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
    """Return the baseline with this name.

    A Baseline is returned unchanged, and another module as a :class:`LearnedBaseline`.
    """
    if isinstance(baseline, Baseline):
        return baseline
    if isinstance(baseline, nn.Module):
        return LearnedBaseline(baseline)
    if not (isinstance(baseline, str) and baseline in _BASELINES):
        known = ", ".join(f'"{name}"' for name in _BASELINES)
        raise InvalidInputError(f"baseline must be {known} or a torch.nn.Module, got {baseline!r}")
    return _BASELINES[baseline]()
