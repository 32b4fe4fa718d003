"""Copies of several tensors from a device to the CPU, joined into one copy."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["copy_to_cpu", "read_together"]


def read_together(numbers: list[Tensor]) -> list[list[float]]:
    """Return the values of each tensor, which one copy reads from the device."""
    if len(numbers) == 1:
        return [numbers[0].reshape(-1).tolist()]
    whole = torch.frombuffer(bytearray(_join(numbers).tolist()), dtype=torch.uint8)
    return [number.reshape(-1).tolist() for number in _split(whole, numbers)]


def copy_to_cpu(tensors: list[Tensor]) -> list[Tensor]:
    """Return the tensors on the CPU, from one copy."""
    if len(tensors) == 1:
        return [tensors[0].detach().cpu()]
    return _split(_join(tensors).cpu(), tensors)


def _join(tensors: list[Tensor]) -> Tensor:
    """Return the bytes of all tensors, (n,) uint8. One launch joins them; tensors of several dtypes would take more."""
    in_bytes = [tensors[i].detach().contiguous().view(-1).view(torch.uint8) for i in _by_itemsize(tensors)]
    return torch.cat(in_bytes)


def _split(whole: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Return views of the bytes ``whole`` (n,) as tensors like ``tensors``, the inverse of :func:`_join`."""
    order = _by_itemsize(tensors)
    pieces = whole.split([tensors[i].numel() * tensors[i].element_size() for i in order])
    views = {i: piece.view(tensors[i].dtype).view(tensors[i].shape) for i, piece in zip(order, pieces, strict=True)}
    return [views[i] for i in range(len(tensors))]


def _by_itemsize(tensors: list[Tensor]) -> list[int]:
    """Return the order of the tensors in which the bytes of each begin at a multiple of its item size."""
    return sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
