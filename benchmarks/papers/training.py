"""Training by stochastic gradients; the best epoch is kept."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from tqdm import tqdm

import structinf as si

__all__ = ["Fit", "fit", "relax"]


def relax(theta: Tensor, oracle: str | si.Oracle, relaxation: str | si.Relaxation = "map", **options: Any) -> Tensor:
    """Call :func:`structinf.relax` with scores in a single tensor."""
    return cast(Tensor, si.relax(theta, oracle, relaxation, **options))


class Fit(NamedTuple):
    """The mean loss of each epoch, the best score on the development set (nan without a score), and seconds of
    training.
    """

    losses: list[float]
    dev: float
    seconds: float


def fit(
    model: nn.Module,
    losses: Sequence[Callable[[Any], Tensor]],
    batches: Callable[[], Sequence[Any]],
    score: Callable[[], float] | None = None,
    *,
    rate: float,
    description: str,
    decay: bool = True,
    clip: float = 5.0,
    fused: bool = False,
) -> Fit:
    """Minimize ``loss(batch)``, and restore the model of the epoch with the highest ``score()``.

    Without a score, the model keeps the state after the last epoch.

    Parameters
    ----------
    model : nn.Module
        The model to train.
    losses : sequence of callables
        The loss of each epoch.
    batches : callable
        Makes the batches of an epoch.
    score : callable, optional
        Returns the score on the development set.
    rate : float
        Initial learning rate of Adam.
    description : str
        Text of the progress bar.
    decay : bool
        Whether the rate falls linearly with the epochs.
    clip : float
        Largest norm of the gradient.
    fused : bool
        Whether Adam takes each step in one kernel, for comparisons of time: the step then takes a smaller part of it.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - decay * epoch / (len(losses) + 1))
    means, best, state, seconds = [], -math.inf, None, 0.0
    for epoch, loss in enumerate(losses, 1):
        model.train()
        total, start = 0.0, time.perf_counter()
        epoch_batches = batches()
        for batch in tqdm(
            epoch_batches, desc=f"{description}, epoch {epoch} of {len(losses)}", leave=False, disable=None
        ):
            value = loss(batch)
            optimizer.zero_grad()
            value.backward()
            if clip < math.inf:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            total += value.item()
        schedule.step()
        seconds += time.perf_counter() - start
        means.append(total / len(epoch_batches))
        model.eval()
        if score is not None:
            with torch.no_grad():
                now = score()
            if now > best:
                best, state = now, copy.deepcopy(model.state_dict())
    if state is not None:
        model.load_state_dict(state)
    return Fit(means, best if state is not None else math.nan, seconds)
