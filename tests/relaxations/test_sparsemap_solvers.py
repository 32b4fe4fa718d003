"""The solvers of sparsemap: where direct solvers apply, and what an inexact solution means for losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import structinf as si
from structinf.relaxations.sparsemap import SparseMAP
from structinf_oracles.arborescence import Arborescence
from structinf_oracles.assignment import Assignment
from structinf_oracles.chain import Chain

pytestmark = pytest.mark.slow


class _Shifted:
    """Finds the best structures of other scores."""

    def argmax(self, theta: Any) -> Any:
        other = tuple(t.flip(0) for t in theta) if isinstance(theta, tuple) else theta.flip(0)
        return super().argmax(other)  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class ShiftedAssignment(_Shifted, Assignment): ...


@dataclass(frozen=True)
class ShiftedArborescence(_Shifted, Arborescence): ...


@dataclass(frozen=True)
class ShiftedChain(_Shifted, Chain): ...


SHAPES = {"assignment": ((4, 4),), "arborescence": ((4, 4),), "chain": ((4, 3), (3, 3, 3))}


def scores(name: str, *batch: int, scale: float = 1.0, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    drawn = tuple(scale * torch.randn(*batch, *s, dtype=torch.float64, generator=generator) for s in SHAPES[name])
    return drawn if len(drawn) > 1 else drawn[0]


@pytest.mark.parametrize("name", SHAPES)
def test_direct_solvers_serve_the_built_in_oracles(name: str) -> None:
    oracle = si.get_oracle(name)
    assert SparseMAP()._run_direct_solver(oracle, scores(name, 2)) is not None


@pytest.mark.parametrize(
    ("name", "oracle"),
    [("assignment", ShiftedAssignment()), ("arborescence", ShiftedArborescence()), ("chain", ShiftedChain())],
)
def test_an_overridden_argmax_is_not_ignored(name: str, oracle: si.Oracle) -> None:
    assert SparseMAP()._run_direct_solver(oracle, scores(name, 2)) is None


@pytest.mark.parametrize("penalty", ["all", "readout"])
@pytest.mark.parametrize("scale", [0.03, 1.0, 10.0])
@pytest.mark.parametrize("name", SHAPES)
def test_the_default_tolerance_bounds_the_error(name: str, scale: float, penalty: str) -> None:
    theta = scores(name, 5, scale=scale)
    solved = [si.relax(theta, name, "sparsemap", penalty=penalty, tolerance=t) for t in (0.05, 0)]
    found, exact = (m[0] if isinstance(m, tuple) else m for m in solved)
    best = si.relax(theta, name, "map")
    size = (best[0] if isinstance(best, tuple) else best).flatten(1).norm(dim=1).max()
    assert ((found - exact).flatten(1).norm(dim=1) <= 0.05 * size).all()


@pytest.mark.parametrize("name", ["assignment", "arborescence", "chain", "spanning_tree"])
@pytest.mark.parametrize("tolerance", [0.0, 0.05, 0.3])
def test_losses_are_at_least_the_exact_losses(name: str, tolerance: float) -> None:
    theta = scores("arborescence" if name == "spanning_tree" else name, 6, scale=0.3)
    gold = si.relax(scores("arborescence" if name == "spanning_tree" else name, 6, seed=1), name, "map")
    loss, exact = (
        si.FenchelYoungLoss(name, "sparsemap", tolerance=t, reduction="none")(theta, gold) for t in (tolerance, 0)
    )
    assert (loss >= exact - 1e-9).all()
    assert (loss >= 0).all()
    wide = tuple(100 * t for t in gold) if isinstance(gold, tuple) else 100 * gold
    assert (si.FenchelYoungLoss(name, "sparsemap", tolerance=tolerance, reduction="none")(wide, gold) <= 1e-9).all()


@pytest.mark.parametrize("penalty", ["all", "readout"])
def test_a_chain_does_not_depend_on_the_padding_and_on_the_other_instances(penalty: str) -> None:
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(4, 8, 3, dtype=torch.float64, generator=generator)
    transition = torch.randn(1, 7, 3, 3, dtype=torch.float64, generator=generator)
    padded = si.relax((unary, transition), "chain", "sparsemap", penalty=penalty, lengths=[5, 8, 8, 3])[0]
    alone = si.relax((unary[:1, :5], transition[:, :4]), "chain", "sparsemap", penalty=penalty)[0]
    torch.testing.assert_close(padded[:1, :5], alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mask", [-1e5, -1e12, -1e20, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("name", SHAPES)
def test_large_negative_scores_act_as_forbidden(name: str, mask: float) -> None:
    generator = torch.Generator().manual_seed(0)
    theta = scores(name, 8)
    tensors = theta if isinstance(theta, tuple) else (theta,)
    masks = [torch.rand(t.shape, generator=generator) < 0.2 for t in tensors]
    masks = [m & (y == 0) for m, y in zip(masks, _tuple(si.relax(theta, name, "map")), strict=True)]
    masked, forbidden = (
        tuple(t.masked_fill(m, v) for t, m in zip(tensors, masks, strict=True)) for v in (mask, -torch.inf)
    )
    found, expected = (_tuple(si.relax(t if len(t) > 1 else t[0], name, "sparsemap")) for t in (masked, forbidden))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def _tuple(parts: Any) -> tuple[torch.Tensor, ...]:
    return parts if isinstance(parts, tuple) else (parts,)


def test_huge_scores_of_trees() -> None:
    theta = 1e18 * torch.randn(20, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = si.relax(theta, "arborescence", "sparsemap")
    torch.testing.assert_close(mean, si.relax(theta, "arborescence", "map"))


def test_the_report_names_the_index_in_the_batch() -> None:
    theta = torch.full((6, 4, 4), 0.0, dtype=torch.float64)
    theta[5] = scores("assignment", 1)[0]
    relaxation = SparseMAP(tolerance=1e-9, max_iter=1, on_failure="raise")
    direct = relaxation._run_direct_solver(si.get_oracle("assignment"), theta)
    assert direct is not None
    object.__setattr__(direct, "converged", torch.arange(6) < 5)
    object.__setattr__(direct, "all_converged", False)
    object.__setattr__(relaxation, "_run_direct_solver", lambda *_: direct)
    with pytest.raises(si.ConvergenceError, match=r"1 of 6 instances .* the worst at batch index 5"):
        relaxation.mean(si.get_oracle("assignment"), theta)


def test_nearly_tied_transitions_need_no_oracle_calls():
    """After the first step of Adam from zeros, transitions differ by rounding errors, or by the step."""
    generator = torch.Generator().manual_seed(0)
    unary = (
        0.1
        * torch.randn(12, 6, generator=generator, dtype=torch.float64)[torch.randint(12, (8, 20), generator=generator)]
    )
    tied = 0.03 * torch.randn(6, 6, generator=generator, dtype=torch.float64).sign()
    near = tied + 1e-7 * torch.randn(6, 6, generator=generator, dtype=torch.float64)
    found = si.relax((unary, near), "chain", SparseMAP(max_iter=1, on_failure="raise"))[0]
    expected = si.relax((unary, tied), "chain", "sparsemap", tolerance=0)[0]
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
