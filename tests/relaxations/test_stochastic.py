"""A relaxation at noisy potentials: samples, their shapes, their distributions and their gradients."""

from __future__ import annotations

import copy
import pickle

import pytest
import scipy.stats
import torch
from torch import Tensor

import structinf as si
from structinf.noise import Gumbel, Normal

CPU = torch.device("cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gumbel(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """What a layer draws from the generator of this seed."""
    return Gumbel().sample(shape, dtype=dtype, device=CPU, generator=generator(seed))


# ----------------------------------------------------------------------------- the tricks by name


def test_gumbel_softmax() -> None:
    theta = torch.randn(4, 5)
    found = si.relax(
        theta, "categorical", "stochastic", base_relaxation="marginals", temperature=0.5, generator=generator()
    )
    torch.testing.assert_close(found, ((theta + gumbel((1, 4, 5))[0]) / 0.5).softmax(1))


def test_gumbel_sinkhorn() -> None:
    theta = torch.randn(4, 3, 3)
    found = si.relax(
        theta, "assignment", "stochastic", base_relaxation="sinkhorn", temperature=0.3, generator=generator()
    )
    expected = si.relax(theta + gumbel((1, 4, 3, 3))[0], "assignment", "sinkhorn", temperature=0.3)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(1), torch.ones(4, 3))


def test_perturb_and_map_of_one_of_k_is_the_gibbs_distribution() -> None:
    theta, n = torch.tensor([0.5, -0.2, 0.9, -1.0]), 20_000
    layer = si.Layer("categorical", "stochastic", base_relaxation="map", samples=n, reduction="none")
    counts = layer(theta, generator=generator()).sum(0)
    assert scipy.stats.chisquare(counts.numpy(), (theta.double().softmax(0) * n).numpy()).pvalue > 1e-3


def test_gumbel_top_k_is_sampling_without_replacement() -> None:
    """argmax over k-subsets of θ + U: one item after the other by softmax, each time among those left."""
    theta, n = torch.tensor([0.7, 0.0, -0.5], dtype=torch.float64), 20_000
    layer = si.Layer("subset", "stochastic", base_relaxation="map", samples=n, reduction="none", k=2)
    found = layer(theta, generator=generator())
    p = theta.softmax(0)
    pair = {(i, j): p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j]) for i, j in [(0, 1), (0, 2), (1, 2)]}
    counts = [((found[:, i] == 1) & (found[:, j] == 1)).sum().item() for i, j in pair]
    assert scipy.stats.chisquare(counts, [q.item() * n for q in pair.values()]).pvalue > 1e-3


@pytest.mark.parametrize(
    ("oracle", "of", "shape"),
    [
        ("spanning_tree", "marginals", (4, 4)),
        ("arborescence", "marginals", (4, 4)),
        (si.get_oracle("subset", k=2), "marginals", (5,)),
        (si.get_oracle("subset", k=2), si.get_relaxation("frank_wolfe", regularizer="binary_entropy"), (5,)),
        ("assignment", "sparsemap", (3, 3)),
        ("dtw", si.get_relaxation("smoothed", regularizer="squared_l2"), (3, 4)),
    ],
)
def test_stochastic_softmax_tricks_are_the_relaxation_at_noisy_potentials(oracle, of, shape) -> None:
    theta = torch.randn(2, *shape, dtype=torch.float64, generator=generator(1))
    weight = torch.randn(2, *shape, dtype=torch.float64, generator=generator(2))
    noisy = (theta + gumbel((1, 2, *shape), dtype=torch.float64)[0]).requires_grad_()
    theta.requires_grad_()
    found = si.relax(theta, oracle, "stochastic", base_relaxation=of, generator=generator())
    expected = si.relax(noisy, oracle, of)
    torch.testing.assert_close(found, expected)
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(theta.grad, noisy.grad)


# ----------------------------------------------------------------------------- shapes


@pytest.mark.parametrize("of", ["map", "marginals", "sparsemap"])
def test_samples_stand_in_front_or_are_averaged(of: str) -> None:
    theta = (torch.randn(2, 3, 4, 2), torch.randn(2, 2))  # a batch of (2, 3)
    lengths = torch.tensor([[1, 2, 3], [4, 4, 2]])
    apart = si.Layer("chain", "stochastic", base_relaxation=of, samples=5, reduction="none")
    mean = si.Layer("chain", "stochastic", base_relaxation=of, samples=5)
    found = apart.infer(theta, lengths=lengths, generator=generator())
    average = mean.infer(theta, lengths=lengths, generator=generator())
    assert [t.shape for t in found.mean] == [(5, 2, 3, 4, 2), (5, 2, 3, 2, 2)]
    assert found.value.shape == (5, 2, 3)
    for a, b in zip(found.mean, average.mean, strict=True):
        torch.testing.assert_close(a.mean(0), b)
    torch.testing.assert_close(found.value.mean(0), average.value)
    for sol in (found, average):
        if of == "marginals":
            assert sol.support is sol.weights is None
            continue
        for y, m in zip(sol.support, sol.mean, strict=True):
            weights = sol.weights.reshape(*sol.weights.shape, *[1] * (y.ndim - sol.weights.ndim))
            torch.testing.assert_close((weights * y).sum(0), m)
        torch.testing.assert_close(sol.weights.sum(0), torch.ones_like(sol.value))
        assert sol.converged.shape == sol.value.shape
        assert sol.converged.all()


def test_every_sample_and_instance_has_noise_of_its_own() -> None:
    found = si.relax(
        torch.zeros(3, 4), "categorical", "stochastic", base_relaxation="marginals", samples=2, reduction="none"
    )
    rows = found.reshape(6, 4)
    assert len({tuple(row.tolist()) for row in rows}) == 6
    counts = si.relax((torch.zeros(3, 4, 2), torch.zeros(2, 2)), "chain", "stochastic", base_relaxation="marginals")[1]
    assert not torch.equal(counts[0], counts[1])  # also of a transition that the batch shares


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_empty_batch(reduction: str) -> None:
    theta = torch.zeros(0, 3, 3, requires_grad=True)
    found = si.infer(theta, "assignment", "stochastic", samples=4, reduction=reduction)
    assert found.mean.shape == ((4, 0, 3, 3) if reduction == "none" else (0, 3, 3))
    found.mean.sum().backward()
    assert theta.grad.shape == theta.shape


def test_padding_and_forbidden_parts_stay_0() -> None:
    theta = torch.randn(2, 3, 3)
    theta[:, 0, 1] = -torch.inf
    theta[0, 2] = theta[0, :, 2] = torch.nan  # padding of the first
    theta.requires_grad_()
    found = si.relax(theta, "assignment", "stochastic", lengths=[[2, 2], [3, 3]], samples=3, reduction="none")
    assert (found[:, :, 0, 1] == 0).all()
    assert (found[:, 0, 2] == 0).all()
    found.square().sum().backward()
    assert theta.grad.isfinite().all()


# ----------------------------------------------------------------------------- composition


def test_none_is_the_relaxation_itself() -> None:
    theta = torch.randn(2, 4)
    layer = si.Layer("categorical", "stochastic", base_relaxation="marginals", noise="none")
    assert not layer.relaxation.is_stochastic
    torch.testing.assert_close(layer(theta), theta.softmax(1))


def test_scale_and_kind_of_the_noise() -> None:
    theta = torch.randn(2, 4)
    u = Normal().sample((1, 2, 4), dtype=torch.float32, device=CPU, generator=generator())[0]
    found = si.relax(
        theta,
        "categorical",
        "stochastic",
        base_relaxation="marginals",
        noise="normal",
        sigma=0.3,
        generator=generator(),
    )
    torch.testing.assert_close(found, (theta + 0.3 * u).softmax(1))


def test_averaged_samples_train_through_a_relaxed_loss_and_samples_apart_do_not() -> None:
    theta, y = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 1, 2])
    loss = si.RelaxedLoss("categorical", "stochastic", base_relaxation="marginals", samples=3, reduction="sum")
    loss(theta, y, generator=generator()).backward()
    assert theta.grad.abs().sum() > 0
    apart = si.get_relaxation("stochastic", base_relaxation="marginals", reduction="none")
    with pytest.raises(si.UnsupportedError, match="returns separate samples"):
        si.RelaxedLoss("categorical", apart)
    with pytest.raises(si.UnsupportedError, match="therefore no Fenchel-Young loss"):
        si.FenchelYoungLoss("categorical", "stochastic")
    with pytest.raises(si.UnsupportedError, match=r"gradient of .* is 0"):
        si.RelaxedLoss("categorical", "stochastic", base_relaxation="map")


def test_state_of_the_base_relaxation_is_in_the_layer() -> None:
    inner = si.get_relaxation("adaptive_imle", noise="none", target_nonzeros=3.0)
    layer = si.Layer("subset", "stochastic", base_relaxation=inner, k=2)
    theta = torch.randn(3, 5, requires_grad=True)
    (layer(theta, generator=generator()) * torch.randn(5)).sum().backward()
    state = layer.state_dict()
    assert [key.rpartition(".")[2] for key in state] == ["alpha", "nonzeros"]
    again = copy.deepcopy(layer)
    assert again.inner[0] is again.relaxation.base_relaxation
    fresh = si.Layer(
        "subset",
        "stochastic",
        base_relaxation=si.get_relaxation("adaptive_imle", noise="none", target_nonzeros=3.0),
        k=2,
    )
    fresh.load_state_dict(state)
    assert fresh.relaxation.base_relaxation.alpha == inner.alpha != 1


def test_noise_within_noise_is_seeded_too() -> None:
    inner = si.get_relaxation("perturbed", samples=4)
    layer, theta = si.Layer("categorical", "stochastic", base_relaxation=inner, noise="none"), torch.zeros(6, 5)
    assert layer.relaxation.is_stochastic
    assert torch.equal(layer(theta, generator=generator()), layer(theta, generator=generator()))
    assert not torch.equal(layer(theta), layer(theta))


def test_draws_are_the_generators_or_torchs() -> None:
    theta, layer = torch.zeros(4, 5), si.Layer("categorical", "stochastic", base_relaxation="marginals")
    state = torch.get_rng_state()
    assert torch.equal(layer(theta, generator=generator()), layer(theta, generator=generator()))
    one = generator()
    assert not torch.equal(layer(theta, generator=one), layer(theta, generator=one))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(layer(theta), layer(theta))
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(again(theta, generator=generator()), layer(theta, generator=generator()))


# ----------------------------------------------------------------------------- refusals


def test_what_the_relaxation_cannot_do_is_refused() -> None:
    with pytest.raises(si.UnsupportedError, match="#P"):
        si.Layer("assignment", "stochastic", base_relaxation="marginals")
    path = si.get_oracle("path", graph=(("a", "b"),), source="a", target="b")
    with pytest.raises(si.UnsupportedError, match="additive noise makes scores positive"):
        si.Layer(path, "stochastic", base_relaxation="map")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples must be an integer of at least 1, got 0"),
        ({"sigma": 0}, "sigma must be a finite number above 0, got 0"),
        ({"reduction": "sum"}, 'reduction must be "mean" or "none"'),
        ({"noise": "unknown"}, "noise must be"),
        ({"base_relaxation": "map", "temperature": 0.5}, "temperature: map has no temperature"),
        ({"base_relaxation": "marginals", "temperature": 0.0}, "temperature must be a finite number above 0"),
        ({"base_relaxation": si.get_relaxation("stochastic", reduction="none")}, "returns separate samples"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(si.InvalidInputError, match=message):
        si.Layer("categorical", "stochastic", **options)


def test_unknown_relaxations_are_named() -> None:
    with pytest.raises(si.UnknownNameError, match="marginals"):
        si.Layer("categorical", "stochastic", base_relaxation="marginal")
