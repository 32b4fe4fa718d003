"""Entropies of probabilities and the maps that they generate."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from entropy_formulas import every_entropy, plain
from simplex_map_reference import DOUBLE, INF, double
from structinf.errors import InvalidInputError
from structinf.simplex import (
    NormEntropy,
    RenyiEntropy,
    ShannonEntropy,
    SquaredNormEntropy,
    TsallisEntropy,
    normmax,
    simplex_loss,
    softmax,
    sparsemax,
)

pytestmark = pytest.mark.slow


def some_probabilities(n, rows=200):
    p = np.random.default_rng(0).dirichlet(np.full(n, 0.5), rows)
    p[: rows // 4, 0] = 0
    return torch.from_numpy(p / p.sum(1, keepdims=True))


@every_entropy
def test_values(entropy):
    p = some_probabilities(5)
    found = entropy(p)
    np.testing.assert_allclose(found, plain(entropy, p.numpy()), rtol=1e-12, atol=1e-14)
    assert (found >= 0).all()
    assert torch.equal(entropy(torch.eye(4, dtype=DOUBLE)), torch.zeros(4, dtype=DOUBLE))
    assert (found <= entropy(torch.full((5,), 0.2, dtype=DOUBLE)) + 1e-15).all()
    torch.testing.assert_close(entropy(p.t(), 0), found)
    assert entropy(p.float()).dtype == torch.float32


@every_entropy
def test_of_probabilities_that_are_almost_0_and_1(entropy):
    small = 2.0**-40
    found = float(entropy(double(1 - small, small)))
    if entropy.margin < math.inf:  # it is the slope there, which powers of nearly 1 come to slowly
        assert found == pytest.approx(entropy.margin * small, rel=1e-2 if entropy.alpha > 1.4 else 0.3)
    else:
        assert found > 20 * small


@every_entropy
def test_gradients_of_values(entropy):
    p = torch.softmax(torch.randn(3, 4, dtype=DOUBLE), -1).requires_grad_()
    assert gradcheck(lambda t: entropy(t / t.sum(-1, keepdim=True)), p)


@every_entropy
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_maps_meet_the_conditions_of_optimality(entropy, scale):
    x = scale * torch.randn(50, 6, dtype=DOUBLE)
    x[0], x[1, :3] = 0, x[1, 0]
    p = entropy.probabilities(x)
    torch.testing.assert_close(p.sum(1), torch.ones(50, dtype=DOUBLE), rtol=0, atol=1e-14)
    q = p.clone().requires_grad_()
    (slope,) = torch.autograd.grad(entropy(q).sum(), q)
    # x + ∇H is the same for all that have a probability, and no larger elsewhere.
    total = x + slope
    level = torch.where(p > 0, p * total, 0.0).sum(1, keepdim=True)
    size = 1e-9 * max(1.0, scale)
    seen = p > 1e-100
    assert float((total - level)[seen].abs().max()) < size
    if entropy.margin < math.inf:
        assert (total - level)[~seen].lt(size).all()
    else:
        assert (p > 0).all()


@every_entropy
def test_maps_beat_other_probabilities(entropy):
    q = some_probabilities(4, 4000).numpy()
    for x in np.random.default_rng(1).normal(size=(5, 4)):
        p = entropy.probabilities(torch.from_numpy(x)).numpy()
        best = p @ x + plain(entropy, p)
        for share in (1e-4, 1e-2, 1.0):
            other = (1 - share) * p + share * q
            assert (other @ x + plain(entropy, other)).max() < best + 1e-14


@every_entropy
def test_derivatives_of_maps(entropy):
    x = torch.randn(3, 5, dtype=DOUBLE, requires_grad=True)
    assert gradcheck(entropy.probabilities, x)
    assert gradgradcheck(entropy.probabilities, x)


@every_entropy
def test_forms_of_input(entropy):
    x = torch.randn(2, 3, 4)
    for dim in (0, 1, -2, -1):
        found = entropy.probabilities(x, dim)
        torch.testing.assert_close(found, entropy.probabilities(x.movedim(dim, -1)).movedim(-1, dim))
    assert entropy.probabilities(x.half()).dtype == torch.float16
    assert entropy.probabilities(x[:0]).shape == (0, 3, 4)
    assert entropy.probabilities(x[..., :0]).shape == (2, 3, 0)
    assert entropy.probabilities(torch.tensor(2.0)) == 1
    assert entropy(torch.tensor(1.0)) == 0
    assert entropy(x[..., :0]).tolist() == [[0.0] * 3] * 2
    special = torch.tensor([[-INF] * 3, [torch.nan, 0, 1], [0, INF, 1], [1, -INF, 0]], requires_grad=True)
    p = entropy.probabilities(special)
    assert p[0].tolist() == [0, 0, 0]
    assert p[1:3].isnan().all()
    losses = simplex_loss(special, torch.tensor([1, 1, 0, 2]), entropy, reduction="none")
    assert losses[0].isposinf()
    assert losses[1:3].isnan().all()
    assert losses[3].isfinite()
    torch.testing.assert_close(p[3, [0, 2]], entropy.probabilities(torch.tensor([1.0, 0.0])))
    (g,) = torch.autograd.grad(p[[0, 3]].square().sum(), special)
    assert g[[0, 3]].isfinite().all()
    assert g[3, 1] == 0


@every_entropy
def test_large_scores_and_offsets(entropy):
    x = torch.randint(-3, 4, (20, 6)).double()
    torch.testing.assert_close(entropy.probabilities(x + 2.0**20), entropy.probabilities(x), rtol=0, atol=1e-12)
    far = entropy.probabilities(1e3 * torch.randn(20, 6, dtype=DOUBLE))
    torch.testing.assert_close(far.sum(1), torch.ones(20, dtype=DOUBLE))


@pytest.mark.parametrize("alpha", [170.0, 300.0])
def test_squared_norms_of_probabilities_whose_powers_are_too_small(alpha):
    """0.01^170 is no float; in units of the norm nothing is lost."""
    entropy, x = SquaredNormEntropy(alpha), torch.linspace(0, 1e-3, 100, dtype=DOUBLE).requires_grad_()
    p = entropy.probabilities(x).detach()
    assert p.sum().item() == pytest.approx(1, abs=1e-14)
    norm = p.max() * (p / p.max()).pow(alpha).sum().pow(1 / alpha)
    level = (x - norm * (p / norm).pow(alpha - 1)).detach()[p > 0]
    torch.testing.assert_close(level, level.mean().expand_as(level), rtol=0, atol=1e-14)
    (g,) = torch.autograd.grad(simplex_loss(x, torch.tensor(7), entropy), x)
    torch.testing.assert_close(g, p - torch.eye(100, dtype=DOUBLE)[7])
    # From there on, numbers that are all moved move no probability, and one that rises takes from all others.
    jacobian = torch.autograd.functional.jacobian(entropy.probabilities, x.detach())
    torch.testing.assert_close(jacobian.sum(1), torch.zeros(100, dtype=DOUBLE), rtol=0, atol=1e-9)
    step = torch.zeros(100, dtype=DOUBLE).index_fill(0, torch.tensor([80]), 1e-9)
    moved = (entropy.probabilities(x + step) - entropy.probabilities(x - step)).detach() / 2e-9
    torch.testing.assert_close(jacobian[:, 80], moved, rtol=1e-4, atol=1e-5)


def test_families_meet():
    x, p = torch.randn(5, 6, dtype=DOUBLE), some_probabilities(6)
    for one, other in [
        (RenyiEntropy(1 - 1e-9), ShannonEntropy()),
        (TsallisEntropy(1 + 1e-9), ShannonEntropy()),
        (SquaredNormEntropy(2), TsallisEntropy(2)),
        (SquaredNormEntropy(2 + 1e-9), TsallisEntropy(2)),
    ]:
        torch.testing.assert_close(one(p), other(p), rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(one.probabilities(x), other.probabilities(x), rtol=1e-7, atol=1e-7)
    assert torch.equal(ShannonEntropy().probabilities(x), softmax(x))
    assert torch.equal(TsallisEntropy(2).probabilities(x), sparsemax(x))
    assert torch.equal(NormEntropy(3).probabilities(x), normmax(x, 3))


def test_a_squared_norm_whose_probabilities_rise_steeply():
    # The second p is the seventh root of a number next to 0.
    x = double(-1.5877373309050127, 0.5374465203069525, 1.5309876967094584)
    p = SquaredNormEntropy(8.0).probabilities(x)
    norm = p.pow(8).sum() ** (1 / 8)
    level = x - norm**-6 * p**7
    assert 0 < p[1] < 0.01
    assert float(level[1] - level[2]) == pytest.approx(0, abs=1e-11)


@pytest.mark.parametrize(
    ("entropy", "margin"),
    [
        (ShannonEntropy(), INF),
        (TsallisEntropy(1), INF),
        (TsallisEntropy(1.25), 4),
        (TsallisEntropy(1.5), 2),
        (TsallisEntropy(2), 1),
        (TsallisEntropy(4), 1 / 3),
        (NormEntropy(1.5), 1),
        (NormEntropy(5), 1),
        (SquaredNormEntropy(1.3), 1),
        (SquaredNormEntropy(3), 1),
        (RenyiEntropy(0.5), INF),
        (RenyiEntropy(1), INF),
    ],
    ids=str,
)
def test_margins(entropy, margin):
    assert entropy.margin == margin
    others = -torch.rand(20, 5, dtype=DOUBLE)
    others[:, 0] = 0
    right = torch.full((20, 1), min(margin, 20.0), dtype=DOUBLE)
    p = entropy.probabilities(torch.cat([right, others], 1))[:, 0]
    if margin == INF:
        assert (p < 1).all()
    else:
        assert (p == 1).all()
        assert (entropy.probabilities(torch.cat([right - 1e-3, others], 1))[:, 0] < 1).all()


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (TsallisEntropy, 0.9),
        (TsallisEntropy, torch.tensor(0.5)),
        (NormEntropy, 1),
        (NormEntropy, INF),
        (SquaredNormEntropy, 1.0),
        (SquaredNormEntropy, True),
        (RenyiEntropy, 0),
        (RenyiEntropy, 1.1),
        (RenyiEntropy, "1"),
    ],
)
def test_other_parameters(kind, wrong):
    with pytest.raises(InvalidInputError, match=r"alpha|beta"):
        kind(wrong)


@pytest.mark.cuda
@every_entropy
def test_cuda(entropy):
    x = torch.randn(4, 6, dtype=DOUBLE)
    torch.testing.assert_close(entropy.probabilities(x.cuda()).cpu(), entropy.probabilities(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("alpha", [2.0, 10.0, 32.0, 100.0, 300.0])
@pytest.mark.parametrize("n", [2, 30, 1000])
def test_norms_of_uniform_distributions_of_any_exponent(n: int, alpha: float) -> None:
    p = torch.full((2, n), 1 / n, dtype=torch.float64, requires_grad=True)
    norm = n ** (1 / alpha - 1)  # ‖p‖_α, whose power α is far below the smallest number
    torch.testing.assert_close(NormEntropy(alpha)(p), torch.full((2,), 1 - norm, dtype=torch.float64))
    torch.testing.assert_close(SquaredNormEntropy(alpha)(p), torch.full((2,), (1 - norm**2) / 2, dtype=torch.float64))
    (slope,) = torch.autograd.grad(NormEntropy(alpha)(p).sum(), p)
    torch.testing.assert_close(slope, torch.full_like(p, -norm))  # −‖p‖^(1−α) p^(α−1) = −n^(1/α − 1)
    assert NormEntropy(alpha)(torch.full((n,), torch.nan)).isnan()
