"""What the workers of a DataLoader run, in a module of its own so that spawned processes can import it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from module_examples import CASES

__all__ = ["Collate"]


@dataclass
class Collate:
    """A batch of seeds as what each of the modules makes of inputs drawn from their sum, with its gradient in them."""

    modules: dict[str, nn.Module]

    def __call__(self, seeds: list[int]) -> dict[str, tuple[Tensor, Tensor]]:
        found = {}
        for name, module in self.modules.items():
            x = CASES[name].draw(sum(seeds)).requires_grad_()
            out = CASES[name].call(module, x)
            found[name] = out.detach(), torch.autograd.grad(out.square().sum(), x)[0]
        return found
