"""Annealing: a tensor with a temperature that changes from step to step."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..regularizers import check_temperature
from ..validation import check_choice, check_natural

__all__ = ["TemperatureSchedule"]


class TemperatureSchedule:
    """Anneal a temperature: write the next temperature into a tensor at each step.

    With the start T₀, the end T₁ and the fraction f of the steps taken, at most 1, the temperature is

        T₀ (T₁ / T₀)^f                           "exponential"
        T₀ + (T₁ − T₀) f                         "linear"
        T₁ + (T₀ − T₁) (1 + cos π f) / 2         "cosine"

    and T₁ after the last step. The tensor is the option ``temperature`` of a layer, a loss or a call. In a module, use
    an nn.Parameter with ``requires_grad=False``, which keeps its identity if the module moves to another device.

    Parameters
    ----------
    temperature : Tensor
        A tensor with one number, the start T₀. Each step changes it in place, so call :meth:`step` after the backward
        pass.
    end : float
        T₁, above 0.
    steps : int
        The number of steps until T₁, at least 1.
    shape : "exponential", "linear" or "cosine"
        The formula.

    Raises
    ------
    InvalidInputError
        If the tensor requires a gradient, or a temperature is not above 0.

    Examples
    --------
    >>> import structinf as si
    >>> temperature = torch.nn.Parameter(
    ...     torch.tensor(1.0), requires_grad=False
    ... )
    >>> layer = si.Layer("chain", "marginals", temperature=temperature)
    >>> schedule = TemperatureSchedule(temperature, end=0.01, steps=2)
    >>> for _ in range(3):
    ...     schedule.step()
    ...     print(f"{layer.temperature.item():.2f}")
    0.10
    0.01
    0.01
    """

    def __init__(
        self,
        temperature: Tensor,
        end: float,
        steps: int,
        shape: Literal["exponential", "linear", "cosine"] = "exponential",
    ) -> None:
        if not isinstance(temperature, Tensor):
            raise TypeError(f"temperature must be a tensor, which the schedule changes, got {temperature!r}")
        check_temperature(temperature, allow_tensor=True)
        if temperature.requires_grad:
            raise InvalidInputError("temperature requires a gradient; pass a tensor with requires_grad=False")
        check_temperature(end, name="end")
        check_natural("steps", steps, 1)
        check_choice("shape", shape, ("exponential", "linear", "cosine"))
        self.temperature, self.start, self.end = temperature, temperature.item(), float(end)
        self.steps, self.shape, self.count = steps, shape, 0

    def step(self) -> None:
        """Write the next temperature into the tensor."""
        self.count += 1
        self._write()

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps taken and the start, for :meth:`load_state_dict`."""
        return {"count": self.count, "start": self.start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, and write its temperature into the tensor.

        Parameters
        ----------
        state : dict
            A result of :meth:`state_dict`.
        """
        self.count, self.start = state["count"], state["start"]
        self._write()

    @torch.no_grad()
    def _write(self) -> None:
        fraction = self.count / self.steps
        if fraction >= 1:
            value = self.end
        elif self.shape == "exponential":
            value = self.start * (self.end / self.start) ** fraction
        elif self.shape == "linear":
            value = self.start + (self.end - self.start) * fraction
        else:
            value = self.end + (self.start - self.end) * (1 + math.cos(math.pi * fraction)) / 2
        self.temperature.fill_(value)
