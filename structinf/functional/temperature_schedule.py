"""Annealing: a temperature that changes from step to step."""

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
    """Anneal a temperature: compute the next temperature at each step, and write it into a tensor.

    With the start T₀, the end T₁ and the fraction f of the steps taken, at most 1, the temperature is

        T₀ (T₁ / T₀)^f                           "exponential"
        T₀ + (T₁ − T₀) f                         "linear"
        T₁ + (T₀ − T₁) (1 + cos π f) / 2         "cosine"

    and T₁ after the last step. The tensor is the option ``temperature`` of a layer, a loss or a call. In a module, use
    an nn.Parameter with ``requires_grad=False``, which keeps its identity if the module moves to another device.
    Methods that take no tensor, such as the function ``sparsemax``, get the number of the attribute ``temperature`` in
    each call.

    Parameters
    ----------
    temperature : Tensor or float
        The start T₀, above 0: a number, or a tensor with one number. Each step changes the tensor in place, so call
        :meth:`step` after the backward pass.
    end : float
        T₁, above 0.
    steps : int
        The number of steps until T₁, at least 1.
    shape : "exponential", "linear" or "cosine"
        The formula.

    Attributes
    ----------
    temperature : Tensor or float
        The tensor, or the number of the last step.

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

    A method that takes a number:

    >>> schedule = TemperatureSchedule(1.0, end=0.01, steps=2)
    >>> for _ in range(2):
    ...     value = si.latent(
    ...         lambda z: z.square().sum(1),
    ...         torch.tensor([[1.0, 2.0, 0.5]]),
    ...         "subset",
    ...         "sparsemax",
    ...         k=2,
    ...         temperature=schedule.temperature,
    ...     )
    ...     schedule.step()
    """

    def __init__(
        self,
        temperature: Tensor | float,
        end: float,
        steps: int,
        shape: Literal["exponential", "linear", "cosine"] = "exponential",
    ) -> None:
        check_temperature(temperature, allow_tensor=True)
        if isinstance(temperature, Tensor) and temperature.requires_grad:
            raise InvalidInputError("temperature requires a gradient; pass a tensor with requires_grad=False")
        check_temperature(end, name="end")
        check_natural("steps", steps, 1)
        check_choice("shape", shape, ("exponential", "linear", "cosine"))
        self.temperature = temperature if isinstance(temperature, Tensor) else float(temperature)
        self.start, self.end = float(temperature), float(end)
        self.steps, self.shape, self.count = steps, shape, 0

    def step(self) -> None:
        """Set the next temperature."""
        self.count += 1
        self._write()

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps taken and the start, for :meth:`load_state_dict`."""
        return {"count": self.count, "start": self.start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, and set its temperature.

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
        if isinstance(self.temperature, Tensor):
            self.temperature.fill_(value)
        else:
            self.temperature = value
