"""Training by stochastic gradients, with the best epoch kept."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

__all__ = ["Fit", "fit"]


class Fit(NamedTuple):
    """Mean loss of each epoch, the best score on the development set, and seconds of training."""

    losses: list[float]
    dev: float
    seconds: float


def fit(
    model: nn.Module,
    losses: Sequence[Callable[[Any], Tensor]],
    batches: Callable[[], Sequence[Any]],
    score: Callable[[], float],
    *,
    rate: float,
    about: str,
) -> Fit:
    """Minimise ``loss(batch)``, and leave the model as it was after the epoch of the highest ``score()``.

    Parameters
    ----------
    losses : sequence of callables
        The loss of each epoch.
    batches : callable
        Makes those of an epoch.
    rate : float
        Adam's at first; it falls linearly.
    about : str
        What the progress bar says.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / (len(losses) + 1))
    means, best, state, seconds = [], -1.0, model.state_dict(), 0.0
    for epoch, loss in enumerate(losses, 1):
        model.train()
        total, start = 0.0, time.perf_counter()
        made = batches()
        for batch in tqdm(made, desc=f"{about}, epoch {epoch} of {len(losses)}", leave=False, disable=None):
            value = loss(batch)
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            total += value.item()
        schedule.step()
        seconds += time.perf_counter() - start
        means.append(total / len(made))
        model.eval()
        with torch.no_grad():
            now = score()
        if now > best:
            best, state = now, copy.deepcopy(model.state_dict())
    model.load_state_dict(state)
    return Fit(means, best, seconds)
