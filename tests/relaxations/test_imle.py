"""Implicit maximum likelihood by hand, with its noise, its samples, and the step that it learns."""

from __future__ import annotations

import copy
import pickle
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import oracle_examples
import structinf as si
from structinf import InvalidInputError
from structinf.noise import Exponential, Noise, SumOfGamma
from structinf.parts import as_tuple
from structinf.relaxations.adaptive_imle import AdaptiveIMLE
from structinf.solvers.perturbation import draw_noise
from surrogate_reference import add, draw, gradients, instance, listed, scaled
from toy_oracles import Explicit

THETA = torch.tensor([[1.0, 2.0, 0.0], [0.3, 0.1, 0.2]], dtype=torch.float64)
V = torch.tensor([[0.0, 1.0, -1.0], [2.0, -1.0, 0.5]], dtype=torch.float64)

NAMES = ["imle", "adaptive_imle"]

both = pytest.mark.parametrize("name", NAMES)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_hot(scores: Tensor) -> Tensor:
    return nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores)


def noise_of(samples: int, noise: Noise, seed: int = 0) -> Tensor:
    drawn = draw_noise(si.get_oracle("categorical"), THETA, noise, samples, generator(seed))
    assert isinstance(drawn, Tensor)
    return drawn


# ----------------------------------------------------------------------------- the gradient


@pytest.mark.parametrize("symmetric", [False, True])
@oracle_examples.parametrize(
    lambda e: e.relaxed and e.name in ("categorical", "chain", "assignment", "arborescence", "subset", "dtw")
)
def test_gradient_is_that_of_the_same_noise_in_both_calls(example: oracle_examples.Example, symmetric: bool) -> None:
    oracle, every, lambda_, sigma, n = example.oracle(), listed(example), 3.0, 0.8, 4
    theta, v = draw(example, 3)
    noise = draw_noise(oracle, theta, SumOfGamma(k=2), n, generator(5))
    options = {"lambda_": lambda_, "sigma": sigma, "samples": n, "noise": SumOfGamma(k=2), "symmetric": symmetric}
    relaxation = si.get_relaxation("imle", **options)
    mean = si.relax(theta, oracle, relaxation, generator=generator(5))
    found = gradients(theta, v, oracle, relaxation, generator=generator(5))
    for b in range(3):
        z = instance(v, b)
        total, middle = scaled(z, 0), scaled(z, 0)
        for s in range(n):
            u = tuple(t[s, b].numpy() for t in as_tuple(noise))
            noisy = add(instance(theta, b), u, sigma)
            low = every.beside(noisy, z, -lambda_)
            if symmetric:
                step = scaled(add(every.beside(noisy, z, lambda_), low, -1), 1 / (2 * lambda_))
            else:
                step = scaled(add(every.best(noisy), low, -1), 1 / lambda_)
            total, middle = add(total, step, 1 / n), add(middle, every.best(noisy), 1 / n)
        for g, m, wanted, y in zip(found, as_tuple(mean), total, middle, strict=True):
            torch.testing.assert_close(g[b], torch.as_tensor(wanted), atol=1e-12, rtol=0)
            torch.testing.assert_close(m[b], torch.as_tensor(y), atol=1e-12, rtol=0)


def test_samples_apart_have_their_own_cotangents_and_their_gradients_add_up() -> None:
    noise = noise_of(5, SumOfGamma())
    v = torch.randn(5, 2, 3, dtype=torch.float64)
    y = one_hot(THETA + noise)
    expected = ((y - one_hot(THETA + noise - 2.0 * v)) / 2.0).sum(0)
    layer = si.Layer("categorical", "imle", lambda_=2.0, samples=5, reduction="none")
    leaf = THETA.clone().requires_grad_()
    out = layer(leaf, generator=generator())
    assert torch.equal(out, y)
    out.backward(v)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, expected)


def test_a_loss_that_is_linear_sees_no_difference_between_a_mean_inside_and_one_outside() -> None:
    (inside,) = gradients(THETA, V, "categorical", "imle", samples=6, lambda_=2.0, generator=generator())
    leaf = THETA.clone().requires_grad_()
    apart = si.relax(leaf, "categorical", "imle", samples=6, lambda_=12.0, reduction="none", generator=generator())
    (apart.mean(0) * V).sum().backward()
    assert leaf.grad is not None
    # Each sample's cotangent is v / 6, and λ times it is what it is inside.
    torch.testing.assert_close(leaf.grad, inside)


@both
@pytest.mark.parametrize("batch", [(2,), (2, 3), (), (0,)])
def test_samples_never_go_into_the_batch(name: str, batch: tuple[int, ...]) -> None:
    theta = torch.randn(*batch, 3, 3, requires_grad=True)
    assert si.relax(theta, "assignment", name, samples=10).shape == (*batch, 3, 3)
    sol = si.infer(theta, "assignment", name, samples=10, reduction="none")
    assert sol.mean.shape == (10, *batch, 3, 3)
    assert sol.value.shape == (10, *batch)
    assert isinstance(sol.weights, Tensor)
    assert isinstance(sol.support, Tensor)
    assert sol.weights.shape == (1, 10, *batch)
    assert sol.support.shape == (1, 10, *batch, 3, 3)
    sol.mean.square().sum().backward()
    assert theta.grad is not None
    assert theta.grad.shape == theta.shape


@pytest.mark.parametrize(("symmetric", "calls"), [(False, [6, 6]), (True, [6, 6, 6])])
def test_one_call_of_the_oracle_each_way(symmetric: bool, calls: list[int]) -> None:
    class Counted(Explicit):
        rows_asked: ClassVar[list[int]] = []

        def argmax(self, theta: Tensor) -> Tensor:
            self.rows_asked.append(len(theta))
            return super().argmax(theta)

    gradients(torch.randn(2, 4), torch.randn(2, 4), Counted(), "imle", samples=3, symmetric=symmetric)
    assert Counted.rows_asked == calls


@both
def test_noise_is_fresh_unless_a_generator_is_passed(name: str) -> None:
    theta = torch.zeros(50, 8)
    layer = si.Layer("categorical", name)
    assert not torch.equal(layer(theta), layer(theta))
    before = torch.get_rng_state()
    assert torch.equal(layer(theta, generator=generator(3)), layer(theta, generator=generator(3)))
    found = [
        gradients(theta, torch.ones(50, 8).cumsum(1), "categorical", si.get_relaxation(name), generator=generator(4))[0]
        for _ in range(2)
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(torch.get_rng_state(), before)


def test_gumbel_noise_draws_of_the_softmax() -> None:
    theta = torch.tensor([0.5, -0.2, 0.9], dtype=torch.float64)
    mean = si.relax(theta, "categorical", "imle", noise="gumbel", samples=40_000, generator=generator())
    assert isinstance(mean, Tensor)
    p = theta.softmax(0)
    assert bool(((mean - p).abs() < 4 * (p * (1 - p) / 40_000).sqrt()).all())


@both
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_scales(name: str, scale: float) -> None:
    theta, v = scale * torch.randn(4, 5), torch.randn(4, 5)
    (found,) = gradients(theta, v, "categorical", name, sigma=scale, samples=4)
    assert bool(found.isfinite().all())


# ----------------------------------------------------------------------------- the step that is learned


def layer_of(**options: Any) -> tuple[si.Layer, AdaptiveIMLE]:
    layer = si.Layer("categorical", "adaptive_imle", **options)
    assert isinstance(layer.relaxation, AdaptiveIMLE)
    return layer, layer.relaxation


def step(layer: nn.Module, theta: Tensor, v: Tensor, seed: int = 0) -> Tensor:
    leaf = theta.clone().requires_grad_()
    layer(leaf, generator=generator(seed)).backward(v)
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("symmetric", [False, True])
def test_step_and_state_are_the_formula(symmetric: bool) -> None:
    layer, relaxation = layer_of(
        samples=4, alpha=0.7, target_nonzeros=1.5, alpha_step=0.05, decay=0.6, symmetric=symmetric
    )
    alpha, average = 0.7, 1.5
    for seed in range(6):
        v = V * (seed + 1)
        noisy = THETA + noise_of(4, SumOfGamma(), seed)
        lambda_ = alpha * THETA.norm() / v.norm()
        low = one_hot(noisy - lambda_ * v)
        difference = (one_hot(noisy + lambda_ * v) - low) / 2 if symmetric else one_hot(noisy) - low
        torch.testing.assert_close(step(layer, THETA, v, seed), (difference / lambda_).mean(0), atol=1e-5, rtol=1e-5)
        average = 0.6 * average + 0.4 * difference.count_nonzero().item() / 8
        alpha = max(alpha + (0.05 if average < 1.5 else -0.05), 0)
        assert relaxation.alpha.item() == pytest.approx(alpha, abs=1e-6)
        assert relaxation.nonzeros.item() == pytest.approx(average, abs=1e-6)


def test_step_grows_until_gradients_are_as_dense_as_wanted() -> None:
    layer, relaxation = layer_of(noise="none", alpha=0.0, target_nonzeros=1.0, alpha_step=0.05)
    theta, v = torch.tensor([[3.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]])
    assert not step(layer, theta, v).any()  # no step, no gradient
    for seed in range(200):
        step(layer, theta, v, seed)
    # The choice changes once λ = α · 3 is above 3.
    assert relaxation.alpha.item() == pytest.approx(1.0, abs=0.15)


def test_same_state_same_next_gradient() -> None:
    layer, relaxation = layer_of(samples=3, alpha_step=0.1)
    for seed in range(5):
        step(layer, THETA, V, seed)
    assert relaxation.alpha.item() != 1.0
    other, _ = layer_of(samples=3, alpha_step=0.1)
    other.load_state_dict(layer.state_dict())
    copies = [other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    expected = step(layer, THETA, V, 7)
    for one in copies:
        assert torch.equal(step(one, THETA, V, 7), expected)
        assert one.state_dict() == layer.state_dict()


def test_copies_that_draw_elsewhere_share_the_state() -> None:
    _, relaxation = layer_of()
    seeded = relaxation.with_generator(generator())
    assert seeded is not relaxation
    assert seeded.alpha is relaxation.alpha
    assert relaxation.generator is None
    gradients(THETA, V, "categorical", seeded)
    assert relaxation.alpha.item() != 1.0


def test_forward_alone_and_losses_that_are_not_finite_teach_nothing() -> None:
    layer, relaxation = layer_of()
    layer(THETA)
    assert bool(step(layer, THETA, V * torch.nan).isnan().all())
    step(layer, THETA[:0], V[:0])
    assert relaxation.alpha.item() == 1.0
    assert relaxation.nonzeros.item() == 1.0
    assert not step(layer, THETA, 0 * V).any()  # but one that does not care does, as nothing comes of it
    assert relaxation.alpha.item() > 1.0


def test_forbidden_and_shared_parts_and_padding_in_the_norms() -> None:
    theta = torch.tensor([[3.0, -torch.inf, 4.0]])
    v = torch.tensor([[0.0, 7.0, 2.0]])
    layer, _ = layer_of(noise="none", alpha=1.0)
    # ‖θ‖ = 5, ‖v‖ = 2 and λ = 2.5: the second choice scores 3 to −1.
    torch.testing.assert_close(step(layer, theta, v), torch.tensor([[-0.4, 0.0, 0.4]]))
    unary, transition = torch.randn(3, 4, 2), torch.randn(2, 2)
    cotangents = torch.randn(3, 4, 2), torch.randn(3, 2, 2)
    found = [
        gradients((unary, t), cotangents, "chain", si.get_relaxation("adaptive_imle", noise="none"), lengths=[4, 2, 3])
        for t in (transition, transition.expand(3, 2, 2))
    ]
    torch.testing.assert_close(found[0][1], found[1][1].sum(0))
    torch.testing.assert_close(found[0][0], found[1][0])


def test_state_keeps_its_precision_and_moves_with_the_module() -> None:
    layer, relaxation = layer_of(alpha_step=1e-3)
    layer.to(torch.bfloat16)
    layer.double()
    assert relaxation.alpha.dtype == torch.float32
    assert relaxation.alpha is dict(relaxation.named_buffers())["alpha"]
    assert layer.to("meta").relaxation.alpha.device.type == "meta"  # pyright: ignore
    layer.to_empty(device="cpu")
    assert relaxation.alpha.device.type == "cpu"


def test_modules_are_equal_to_themselves_alone_and_show_their_options() -> None:
    one, other = AdaptiveIMLE(samples=2), AdaptiveIMLE(samples=2)
    assert one == one
    assert one != other  # they learn apart
    assert len({one, other}) == 2
    assert repr(one) == (
        "AdaptiveIMLE(noise=SumOfGamma(k=1, iterations=10), sigma=1.0, samples=2, reduction='mean', symmetric=False, "
        "target_nonzeros=1.0, alpha_step=0.001, decay=0.9)"
    )


# ----------------------------------------------------------------------------- bad input


@both
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": 0.0}, "sigma must be a finite number above 0, got 0.0"),
        ({"samples": 0}, "samples must be an integer of at least 1, got 0"),
        ({"samples": 2.0}, "samples must be an integer of at least 1, got 2.0"),
        ({"noise": "uniform"}, "noise must be \"gumbel\", .* or a Noise, got 'uniform'"),
        ({"noise": 3}, "or a Noise, got 3"),
        ({"noise": Exponential}, "or a Noise, got <class"),
        ({"reduction": "sum"}, 'reduction must be "mean" or "none", got \'sum\''),
        ({"symmetric": 1}, "symmetric must be True or False, got 1"),
    ],
)
def test_wrong_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        si.get_relaxation(name, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("imle", {"lambda_": -1}, "lambda_ must be a finite number above 0, got -1"),
        ("imle", {"lambda_": torch.inf}, "lambda_ must be a finite number above 0, got inf"),
        ("adaptive_imle", {"alpha": -0.1}, "alpha must be a finite number of at least 0, got -0.1"),
        ("adaptive_imle", {"target_nonzeros": 0}, "target_nonzeros must be a finite number above 0, got 0"),
        ("adaptive_imle", {"alpha_step": 0}, "alpha_step must be a finite number above 0, got 0"),
        ("adaptive_imle", {"decay": 1.0}, "decay must be a number of at least 0 and below 1, got 1.0"),
    ],
)
def test_wrong_steps(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        si.get_relaxation(name, **options)


def test_noise_of_the_wrong_shape() -> None:
    class Flat(Noise):
        def sample(self, shape: Any, **options: Any) -> Tensor:
            return torch.zeros(3)

    with pytest.raises(InvalidInputError, match=r"noise: sample\(\) of .* must return shape \(1, 2, 3\)"):
        si.relax(THETA, "categorical", "imle", noise=Flat())
