"""Temperatures as tensors: values, gradients, modules and schedules."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

import structinf as si
from structinf.errors import InvalidInputError

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "marginals arborescence": ((2, 3, 3), {}),
    "smoothed categorical": ((2, 4), {"regularizer": "tsallis"}),
    "sparsemap assignment": ((2, 3, 3), {"tolerance": 0.0}),
    "sparsemap subset": ((2, 4), {"k": 2}),
    "sparsemap arborescence": ((2, 4, 4), {"tolerance": 0.0}),
    "sinkhorn assignment": ((2, 2, 3), {}),
    "frank_wolfe subset": ((2, 4), {"k": 2, "regularizer": "binary_entropy"}),
    "frank_wolfe assignment": ((2, 3, 3), {}),
}
cases = pytest.mark.parametrize("case", CASES)


def number(value: float, *, grad: bool = True) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=grad)


@pytest.mark.matrix
@cases
def test_values_and_gradients(case: str) -> None:
    (relaxation, oracle), (shape, options) = case.split(), CASES[case]
    theta = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    data: dict[str, Any] = {"k": 2} if oracle == "subset" else {}
    gold = si.relax(theta.detach(), oracle, "map", **data)
    second = relaxation not in ("sparsemap", "frank_wolfe")

    def mean(theta: Tensor, t: Any) -> Any:
        return si.relax(theta, oracle, relaxation, temperature=t, **options)

    def value(theta: Tensor, t: Any) -> Any:
        return si.infer(theta, oracle, relaxation, temperature=t, **options).value

    def loss(theta: Tensor, t: Any) -> Any:
        return si.FenchelYoungLoss(oracle, relaxation, temperature=t, **options)(theta, gold)

    for function in (mean, value, loss):
        for t in (0.7, 1.0):
            torch.testing.assert_close(function(theta, number(t)), function(theta, t), rtol=1e-9, atol=1e-9)
        assert gradcheck(function, (theta, number(0.7)))
        torch.testing.assert_close(function(theta, number(0.7).view(1)), function(theta, 0.7), rtol=1e-9, atol=1e-9)
    if second:
        assert gradgradcheck(loss, (theta, number(0.7)))
    (slope,) = torch.autograd.grad(loss(theta, number(0.7)), theta)
    torch.testing.assert_close(slope, torch.autograd.grad(loss(theta, 0.7), theta)[0], rtol=1e-9, atol=1e-9)


def test_sinkhorn_between_margins() -> None:
    theta = torch.randn(2, 3, dtype=torch.float64)
    rows, columns = torch.full((2,), 0.5), torch.full((3,), 1 / 3)
    assert gradcheck(lambda t: si.sinkhorn(theta, rows, columns, temperature=t), number(0.5))


def test_forbidden_parts_and_half_precision() -> None:
    theta = torch.tensor([0.0, -torch.inf, 1.0], requires_grad=True)
    t = torch.tensor(2.0, requires_grad=True)
    mean = si.relax(theta, "categorical", "marginals", temperature=t)
    in_theta, in_t = torch.autograd.grad(mean[0], (theta, t))
    assert in_theta[1] == 0
    p = mean[0].item()
    assert in_t.item() == pytest.approx(p * (1 - p) / 4)
    half = si.relax(theta.detach().half(), "categorical", "marginals", temperature=t)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), mean.float(), atol=1e-3, rtol=0)


def test_functional_transforms_and_compile() -> None:
    theta = torch.randn(4)

    def first(t: Tensor) -> Tensor:
        return si.relax(theta, "categorical", "marginals", temperature=t)[0]

    t = torch.tensor(2.0, requires_grad=True)
    (expected,) = torch.autograd.grad(first(t), t)
    torch.testing.assert_close(torch.func.grad(first)(t.detach()), expected)
    compiled = torch.compile(first, backend="eager", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(t), t)[0], expected)


def test_parameters_of_modules() -> None:
    theta, gold = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 1, 2])
    makers: list[Any] = [si.Layer, si.FenchelYoungLoss, si.RelaxedLoss]
    module: Any = None
    for make in makers:
        module = copy.deepcopy(make("categorical", "marginals", temperature=nn.Parameter(torch.tensor(1.0)))).double()
        assert [name for name, _ in module.named_parameters()] == ["temperature"]
        assert module.relaxation.temperature is module.temperature
        result = module(theta) if make is si.Layer else module(theta, gold)
        result.square().sum().backward()
        assert module.temperature.grad != 0
        module.load_state_dict({"temperature": number(3.0)})
        assert module.relaxation.temperature.item() == 3
    stochastic = si.Layer("categorical", "stochastic", base_relaxation="marginals", temperature=module.temperature)
    assert [name for name, _ in stochastic.named_parameters()] == ["temperature"]


@pytest.mark.parametrize(
    ("temperature", "message"),
    [
        (torch.ones(2), "must be one number"),
        (torch.tensor(0.0), "above 0"),
        (torch.tensor(math.nan), "above 0"),
        (torch.tensor(math.inf), "above 0"),
    ],
)
def test_wrong_temperatures(temperature: Tensor, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        si.get_relaxation("marginals", temperature=temperature)
    with pytest.raises(TypeError, match="floating point"):
        si.get_relaxation("marginals", temperature=torch.tensor(1))
    with pytest.raises(InvalidInputError, match="take a tensor with one number"):
        si.get_relaxation("mean_field", temperature=torch.tensor(1.0))


def test_temperatures_that_become_wrong() -> None:
    t = torch.tensor(1.0)
    layer = si.Layer("categorical", "marginals", temperature=t)
    t.fill_(-1.0)
    with pytest.raises(InvalidInputError, match="the tensor now holds -1; learn its logarithm"):
        layer(torch.zeros(3))
    t.fill_(1e-38)
    with pytest.raises(InvalidInputError, match="overflows"):
        layer(torch.full((3,), 10.0))


def test_gradients_that_do_not_exist_are_refused() -> None:
    t = torch.tensor(1.0, requires_grad=True)
    with pytest.raises(InvalidInputError, match="straight_through has no gradient in the temperature"):
        si.get_relaxation("straight_through", backward="marginals", temperature=t)
    loss = si.FenchelYoungLoss("categorical", "marginals", temperature=t)
    with pytest.raises(InvalidInputError, match="the target depends on the temperature"):
        loss(torch.zeros(3), target_potentials=torch.zeros(3))


# ----------------------------------------------------------------------------- schedules


@pytest.mark.parametrize(("shape", "middle"), [("exponential", 0.2), ("linear", 0.52), ("cosine", 0.52)])
def test_schedules(shape: Any, middle: float) -> None:
    t = nn.Parameter(torch.tensor(1.0), requires_grad=False)
    layer: Any = si.Layer("categorical", "marginals", temperature=t)
    schedule = si.TemperatureSchedule(t, 0.04, 4, shape)
    found = []
    for _ in range(6):
        schedule.step()
        found.append(layer.temperature.item())
    assert found[1] == pytest.approx(middle)
    assert found[3:] == pytest.approx([0.04] * 3)
    assert found[:4] == sorted(found[:4], reverse=True)
    again = si.TemperatureSchedule(torch.tensor([5.0]), 0.04, 4, shape)
    schedule.count = 2
    again.load_state_dict(schedule.state_dict())
    assert again.temperature.item() == pytest.approx(middle)
    number = si.TemperatureSchedule(1, 0.04, 4, shape)
    assert number.temperature == 1.0
    number.load_state_dict(schedule.state_dict())
    assert number.temperature == pytest.approx(middle)
    number.step()
    assert number.temperature < middle


def test_wrong_schedules() -> None:
    t = torch.tensor(1.0)
    for start in (0.0, "1", torch.ones(2)):
        with pytest.raises(InvalidInputError, match="temperature must be"):
            si.TemperatureSchedule(start, 0.1, 10)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="requires a gradient"):
        si.TemperatureSchedule(nn.Parameter(t.clone()), 0.1, 10)
    with pytest.raises(InvalidInputError, match="end must be a finite number above 0"):
        si.TemperatureSchedule(t, 0.0, 10)
    with pytest.raises(InvalidInputError, match="steps"):
        si.TemperatureSchedule(t, 0.1, 0)
    with pytest.raises(InvalidInputError, match="shape"):
        si.TemperatureSchedule(t, 0.1, 10, "sine")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gumbel_rao", "gapped_straight_through"])
def test_temperatures_of_the_backward_pass(name: str) -> None:
    theta = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def gradient(temperature: Any, change: float | None = None) -> Tensor:
        layer: Any = si.Layer("categorical", name, backward_temperature=temperature)
        y = layer(theta, generator=torch.Generator().manual_seed(1))
        if change is not None:
            temperature.fill_(change)
        return torch.autograd.grad(y[:, 0].sum(), theta)[0]

    for shape in ((), (1,)):
        assert torch.equal(gradient(torch.full(shape, 0.5, dtype=torch.float64)), gradient(0.5))
    assert torch.equal(gradient(torch.tensor(0.5), change=2.0), gradient(0.5))
    assert not torch.equal(gradient(0.5), gradient(2.0))
    with pytest.raises(InvalidInputError, match="no gradient in the temperature of its backward pass"):
        gradient(torch.tensor(0.5, requires_grad=True))
    with pytest.raises(InvalidInputError, match="backward_temperature"):
        gradient(torch.tensor(-0.5))
    t = torch.nn.Parameter(torch.tensor(0.5), requires_grad=False)
    layer = si.Layer("categorical", name, backward_temperature=t)
    assert list(layer.state_dict()) == ["backward_temperature"]
    t.fill_(-1.0)
    with pytest.raises(InvalidInputError, match="backward_temperature"):
        layer(theta)


SAMPLERS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "reinmax": ("categorical", (2, 4), {}),
    "gumbel_rao": ("categorical", (2, 4), {"resamples": 3}),
    "gapped_straight_through": ("categorical", (2, 4), {}),
    "gumbel_crf": ("binary_tree", (2, 3, 3), {}),
    "soft_subset": ("subset", (2, 4), {"k": 2}),
}


@pytest.mark.parametrize("relaxation", SAMPLERS)
def test_samplers(relaxation: str) -> None:
    oracle, shape, options = SAMPLERS[relaxation]
    theta = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    v = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def mean(theta: Tensor, t: Any) -> Any:
        rng = torch.Generator().manual_seed(0)
        return si.relax(theta, oracle, relaxation, temperature=t, generator=rng, **options)

    t = number(0.7)
    torch.testing.assert_close(mean(theta, t), mean(theta, 0.7), rtol=1e-9, atol=1e-9)
    in_theta, in_t = torch.autograd.grad((mean(theta, t) * v).sum(), (theta, t))
    (expected,) = torch.autograd.grad((mean(theta, 0.7) * v).sum(), theta)
    torch.testing.assert_close(in_theta, expected, rtol=1e-9, atol=1e-9)
    if relaxation in ("gumbel_crf", "soft_subset"):
        assert gradcheck(mean, (theta, t))
    else:
        # the chain rule for a function of θ / temperature
        torch.testing.assert_close(in_t, -(in_theta * theta).sum().detach() / 0.7)
        rng = torch.Generator().manual_seed(0)
        found = si.infer(theta, oracle, relaxation, temperature=t, generator=rng, **options)
        torch.testing.assert_close(found.value, (theta * found.mean).sum(1))
    with pytest.raises(InvalidInputError, match="must be one number"):
        mean(theta, torch.ones(2))


def test_relaxation_temperature_of_gumbel_crf() -> None:
    theta = torch.tensor([[[0.3], [-torch.inf], [1.0]], [[0.1], [2.0], [-1.0]]]).double().expand(2, 3, 2).clone()
    theta[0, 1, 0] = 0.5
    scores = theta, torch.eye(2, dtype=torch.float64)

    def mean(t: Any) -> Any:
        rng = torch.Generator().manual_seed(0)
        return si.relax(scores, "chain", "gumbel_crf", relaxation_temperature=t, generator=rng)

    torch.testing.assert_close(mean(number(0.5)), mean(0.5))
    assert gradcheck(lambda t: mean(t)[0], number(0.5))


@pytest.mark.parametrize("make", [si.Layer, si.FenchelYoungLoss])
def test_a_module_uses_the_parameters_it_has_now(make):
    theta = torch.tensor([[1.0, 2.0, 0.5]])
    others = (torch.tensor([1]),) if make is si.FenchelYoungLoss else ()
    module = make("categorical", "marginals", temperature=torch.nn.Parameter(torch.tensor(1.0)))
    expected = make("categorical", "marginals", temperature=0.5)(theta, *others)
    temperature = torch.tensor(0.5, requires_grad=True)
    called = torch.func.functional_call(module, {"temperature": temperature}, (theta, *others))
    assert torch.equal(called, expected)
    called.square().sum().backward()
    assert temperature.grad is not None
    module.load_state_dict({"temperature": torch.tensor(0.5)}, assign=True)
    assert torch.equal(module(theta, *others), expected)
    module(theta, *others).square().sum().backward()
    torch.testing.assert_close(module.temperature.grad, temperature.grad)


def test_a_layer_hands_its_parameters_to_inner_relaxations():
    def gradient(start, **parameters):
        inner = si.get_relaxation("marginals", temperature=start)
        layer = si.Layer("categorical", si.get_relaxation("stochastic", base_relaxation=inner, noise="none"))
        leaf = torch.tensor([[1.0, 2.0, 0.5]], requires_grad=True)
        torch.func.functional_call(layer, parameters, (leaf,))[0, 0].backward()
        return leaf.grad

    found = gradient(torch.nn.Parameter(torch.tensor(1.0)), temperature=torch.tensor(0.5))
    assert torch.equal(found, gradient(0.5))


def test_other_parameters_keep_the_generator_and_reach_latent():
    theta, start = torch.tensor([[1.0, 2.0, 0.5]]), {"sigma": torch.nn.Parameter(torch.tensor(1.0))}
    now = {"sigma": torch.tensor(0.5)}

    def mean(parameters, **options):
        relaxation = si.get_relaxation("perturbed", **options).with_generator(torch.Generator().manual_seed(3))
        return torch.func.functional_call(si.Layer("categorical", relaxation), parameters, (theta,))

    assert torch.equal(mean(now, **start), mean({}, sigma=0.5))
    latent = si.Latent("categorical", "relax:marginals", temperature=torch.nn.Parameter(torch.tensor(1.0)))
    g = lambda y: y[..., 0]  # noqa: E731
    found = torch.func.functional_call(latent, {"temperature": torch.tensor(0.5)}, (g, theta))
    assert torch.equal(found, si.Latent("categorical", "relax:marginals", temperature=0.5)(g, theta))
