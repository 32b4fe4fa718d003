"""Oracles from a function that solves one instance in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InfeasibleError, InstanceError, InvalidInputError, PluginError
from ..kernels.arrays import to_numpy
from ..oracle import Oracle
from ..parts import AnyParts, Parts, as_tuple, batch_size, pack
from ..validation import check_flag, check_natural

__all__ = ["FunctionOracle", "oracle_from_function"]


def oracle_from_function(
    f: Callable[..., Any],
    event_ndim: int | tuple[int, ...],
    *,
    instance_ndim: Mapping[str, int] = MappingProxyType({}),
    requires_nonpositive_theta: bool = False,
    name: str = "",
) -> FunctionOracle:
    """Return an oracle whose argmax calls a function of one instance, with NumPy arrays.

    The function needs no knowledge of batches, tensors, dtypes or gradients, so it can call any solver. For a slow
    function, :func:`structinf.parallel` solves the instances of a batch in several processes.

    Parameters
    ----------
    f : callable
        Maps the scores of one instance, an array (*event) in float64, to the structure of highest score, an array of
        the same shape. For a tuple of tensors it gets a tuple of arrays, and returns a tuple. It gets instance data as
        keyword arguments, and returns None if the instance has no structure of finite score.
    event_ndim : int or tuple of int
        The number of dimensions of a structure, for each tensor if the scores are a tuple.
    instance_ndim : mapping of str to int
        The names of the instance data, with the number of dimensions of one instance's value.
    requires_nonpositive_theta : bool
        Whether scores must be at most 0, as the negative costs of a shortest-path algorithm.
    name : str
        The name in messages; by default the name of the function.

    Returns
    -------
    FunctionOracle
        The oracle, which supports the relaxations that need only the argmax.

    Raises
    ------
    PluginError
        In a call, if the function raises an error, or returns a wrong shape or NaN. The message names the instance.

    Examples
    --------
    >>> import numpy as np
    >>> import structinf as si
    >>> def best_pair(theta):
    ...     y = np.zeros_like(theta)
    ...     y[np.argsort(-theta)[:2]] = 1
    ...     return y
    >>> oracle = oracle_from_function(best_pair, event_ndim=1)
    >>> si.relax(torch.tensor([[0.5, 2.0, 1.0]]), oracle, "map")
    tensor([[0., 1., 1.]])
    """
    return FunctionOracle(f, event_ndim, instance_ndim, requires_nonpositive_theta, name)


class FunctionOracle(Oracle):
    """The oracle that :func:`oracle_from_function` returns.

    Parameters
    ----------
    f, event_ndim, instance_ndim, requires_nonpositive_theta, name
        As for :func:`oracle_from_function`.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        event_ndim: int | tuple[int, ...],
        instance_ndim: Mapping[str, int],
        requires_nonpositive_theta: bool,
        name: str,
    ) -> None:
        if not callable(f):
            raise TypeError(f"f must be a function of the scores of one instance, got {type(f).__name__}")
        for n in event_ndim if isinstance(event_ndim, tuple) else (event_ndim,):
            check_natural("event_ndim", n, 1)
        if not isinstance(instance_ndim, Mapping):
            raise TypeError(
                'instance_ndim must be a mapping of names to numbers of dimensions, for example {"capacity": 0}, got '
                f"{instance_ndim!r}"
            )
        for key, n in instance_ndim.items():
            check_natural(f"instance_ndim of {key}", n, 0)
        check_flag("requires_nonpositive_theta", requires_nonpositive_theta)
        self._function, self._ndim, self._data_ndim = f, event_ndim, dict(instance_ndim)
        self._nonpositive = requires_nonpositive_theta
        self._name = name or getattr(f, "__name__", type(f).__name__)

    def __repr__(self) -> str:
        return f"oracle_from_function({self._name}, event_ndim={self._ndim})"

    @property
    def event_ndim(self) -> int | tuple[int, ...]:  # type: ignore[override]
        return self._ndim

    @property
    def instance_ndim(self) -> Mapping[str, int]:  # type: ignore[override]
        return self._data_ndim

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._name

    @property
    def requires_nonpositive_theta(self) -> bool:
        return self._nonpositive

    def validate(self, theta: AnyParts) -> None:
        missing = [name for name in self._data_ndim if name not in self.bound]
        if missing:
            raise InvalidInputError(f"{missing[0]}: the function needs this instance data; pass {missing[0]}=...")

    def argmax(self, theta: AnyParts) -> Parts:
        size, is_tuple = batch_size(theta), isinstance(theta, tuple)
        tensors = as_tuple(theta)
        scores = to_numpy(*(t.double() for t in tensors))
        if self._nonpositive and any((s > 0).any() for s in scores):
            raise InvalidInputError(f"theta: {self._name} takes scores of at most 0, got a score above 0")
        data = {name: t.cpu().numpy() for name, t in self.bound.items()}
        results = [np.zeros((size, *s.shape[1:])) for s in scores]
        infeasible = []
        for b in range(size):
            own = tuple(np.array(s[0 if len(s) == 1 else b]) for s in scores)
            try:
                y = self._function(own if is_tuple else own[0], **{name: value[b] for name, value in data.items()})
            except InfeasibleError:
                y = None
            except InstanceError as error:
                error.renumber_instances([b])
                raise
            except Exception as error:
                raise PluginError(f"{self._name} failed at batch index {b}: {type(error).__name__}: {error}") from error
            if y is None:
                infeasible.append(b)
                continue
            arrays = y if is_tuple else (y,)
            if is_tuple != isinstance(y, tuple) or len(arrays) != len(results):
                raise PluginError(f"{self._name} must return {self._form(is_tuple)}, got {type(y).__name__}")
            for result, array in zip(results, arrays, strict=True):
                result[b] = self._checked(array, result.shape[1:], b)
        if infeasible:
            raise InfeasibleError(f"{self._name} found no structure of finite score", infeasible[0], infeasible)
        return pack(tuple(torch.from_numpy(r).to(t) for r, t in zip(results, tensors, strict=True)), is_tuple)

    def _form(self, is_tuple: bool) -> str:
        return "a tuple of arrays, as its scores are a tuple" if is_tuple else "one array, as its scores are one array"

    def _checked(self, array: Any, shape: tuple[int, ...], b: int) -> Any:
        if isinstance(array, Tensor):
            array = array.detach().cpu().numpy()
        try:
            if np.iscomplexobj(array):
                raise TypeError("the numbers are complex")
            array = np.asarray(array, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise PluginError(f"{self._name} must return an array of numbers at batch index {b} ({error})") from error
        if array.shape != shape or not np.isfinite(array).all():
            what = "NaN or infinity" if array.shape == shape else f"shape {array.shape}"
            raise PluginError(
                f"{self._name} must return finite numbers of shape {shape} at batch index {b}, got {what}"
            )
        return array
