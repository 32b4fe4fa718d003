"""Gold structures that are scores or costs: refused by what an oracle tells about its structures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si


class Bits(si.Oracle):
    """Any subset of the parts, without labels."""

    event_ndim = 1

    def has_binary_parts(self, theta: Any) -> bool:
        return True

    def argmax(self, theta: Any) -> Tensor:
        return (theta > 0).to(theta)


class Signs(Bits):
    """Any vector of −1 and 1, without labels."""

    def has_binary_parts(self, theta: Any) -> bool:
        return False

    def argmax(self, theta: Any) -> Tensor:
        return torch.where(theta > 0, 1.0, -1.0).to(theta)

    def contains(self, y: Any) -> Tensor:
        return (y.abs() == 1).all(1)


LOSSES: dict[str, Any] = {
    "Fenchel-Young with a cost": lambda o: si.FenchelYoungLoss(o, "perturbed", cost="hamming"),
    "relaxed": lambda o: si.RelaxedLoss(o, "perturbed"),
    "cone": si.ConeLoss,
    "contrastive": si.ContrastiveLoss,
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("oracle", [Bits(), Signs()], ids=lambda o: type(o).__name__)
def test_oracles_without_labels(name: str, oracle: si.Oracle) -> None:
    loss, theta = LOSSES[name](oracle), torch.tensor([[0.5, -0.5], [1.0, 0.2]])
    y = si.relax(theta, oracle, "map")
    assert loss(theta, y).isfinite()
    for wrong in (0.3, 2.0):
        with pytest.raises(si.InvalidInputError, match=r"^y is not a structure of .* index 1; .* not scores or costs$"):
            loss(theta, torch.where(torch.tensor([[False], [True]]), wrong, y))


@pytest.mark.parametrize(
    ("oracle", "options", "good", "wrong", "message"),
    [
        (Bits(), {}, [0.3, 0.7], [0.3, -0.7], "a part must lie between 0 and 1, got -0.7"),
        ("milp", {"A": [[1, 1]], "upper": 4, "bounds": (0, 3)}, [2.5, 1.5], [3.5, 0.0], "between 0 and 3, got 3.5"),
        ("subset", {"k": 1}, [0.3, 0.7], [0.3, 0.6], "outside of the convex hull"),
        ("ranking", {}, [1.25, 1.75], [1.25, 1.5], "outside of the convex hull"),
        ("categorical", {}, [0.3, 0.7], [0.6, 0.6], "must have the sum 1"),
        ("flow", {"graph": [(0, 1), (0, 1)], "supplies": {0: 1, 1: -1}}, [0.3, 0.7], [0.5, -0.5], "got -0.5"),
    ],
    ids=str,
)
def test_means(oracle: Any, options: Any, good: list[float], wrong: list[float], message: str) -> None:
    loss = si.FenchelYoungLoss(oracle, "perturbed", reduction="none", **options)
    theta, y = torch.zeros(2, 2), torch.tensor([good, good])
    assert loss(theta, y).isfinite().all()
    y[1] = torch.tensor(wrong)
    with pytest.raises(
        si.InvalidInputError, match=rf"^y is not a mean of .* index 1: .*{message}.*not scores or costs$"
    ):
        loss(theta, y)


def test_counts_of_a_recursion_are_not_negative() -> None:
    theta = torch.zeros(3, 2), torch.zeros(2, 2)
    y = si.relax(theta, "chain", "marginals")
    loss = si.FenchelYoungLoss("chain", "perturbed")
    assert loss(theta, y).isfinite()
    with pytest.raises(si.InvalidInputError, match=r"a part must lie between 0 and inf, got -0\.5"):
        loss(theta, (y[0], y[1] - 1))
