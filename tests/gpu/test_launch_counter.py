"""The counter of launches itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from launch_counter import LaunchCounter, on_device


def test_counts_launches_of_tensors_on_the_device() -> None:
    x, on_cpu = on_device(torch.ones(3)), torch.ones(3)
    with LaunchCounter() as count:
        x.add(1).view(3, 1)[1:].mul_(2)
        x.sort()
        on_cpu.add(1).sort()
        torch.where(x > 0, 0.0, x)
        torch.where(on_cpu > 0, 0.0, on_cpu).sort()
        torch.zeros(3, device=x.device)
        torch.zeros(3)
    assert (count.launches, count.synchronisations, count.copies) == (2 + 6 + 3 + 1, 0, 0), count.report()


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: int(x[0]),
        lambda x: x.tolist(),
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: x.masked_select(x > 0),
        lambda x: x[x > 0],
        lambda x: x.index_put((x > 0,), x[0]),
        lambda x: torch.equal(x, x),
        lambda x: x.repeat_interleave(x.long()),
        lambda x: torch.linalg.solve(x.diag(), x),
    ],
)
def test_counts_synchronisations(read: object) -> None:
    with LaunchCounter() as count:
        read(on_device(torch.ones(3)))  # type: ignore[operator]
    assert (count.synchronisations, count.copies) == (1, 0), count.report()


@pytest.mark.parametrize(
    ("copy", "synchronisations"),
    [
        (lambda x: x.cpu(), 1),
        (lambda x: x.to("cpu", torch.float64), 1),
        (lambda x: torch.zeros(3).to(x), 1),
        (lambda x: torch.zeros(3).to(x.device, non_blocking=True), 0),
        (lambda x: torch.from_numpy(torch.zeros(3).numpy()).to(x.device), 1),
        (lambda x: torch.tensor([1.0], device=x.device), 1),
        (lambda x: x.new_tensor([1.0]), 1),
        (lambda x: x[[0, 2]], 1),
    ],
)
def test_counts_copies(copy: object, synchronisations: int) -> None:
    x = on_device(torch.ones(3))
    with LaunchCounter() as count:
        copy(x)  # type: ignore[operator]
    assert (count.copies, count.synchronisations) == (1, synchronisations), count.report()


def test_gradients_stay_on_the_device() -> None:
    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x.clone(), y.clone()

        @staticmethod
        def backward(ctx, first, second):
            assert all(t.is_cuda for t in (first, second))
            return first, second

    x = on_device(torch.ones(3), requires_grad=True)
    with LaunchCounter():
        First.apply(x, x)[0].sum().backward()
        assert x.grad is not None
        assert x.grad.device == x.device
        with pytest.raises(TypeError, match="numpy"):
            x.grad.numpy()


def test_undoes_all_replacements() -> None:
    before = {name: vars(Tensor).get(name) for name in dir(Tensor)}
    constructors = torch.tensor, torch.as_tensor, torch.cuda.current_device
    x = on_device(torch.ones(3))
    with LaunchCounter():
        assert (x.is_cuda, x.is_cpu, x.device.type) == (True, False, "cuda")
    with pytest.raises(RuntimeError, match="shape"), LaunchCounter():
        x.view(2, 2)
    assert {name: vars(Tensor).get(name) for name in dir(Tensor)} == before
    assert (torch.tensor, torch.as_tensor, torch.cuda.current_device) == constructors
    assert (x.is_cuda, x.is_cpu, x.device) == (False, True, torch.device("cpu"))
