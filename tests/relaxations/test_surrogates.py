"""Surrogate gradients against their formulas over all structures, and what holds for every one of them."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import oracle_examples
import structinf as si
from oracle_example import Example
from structinf import InvalidInputError, UnsupportedError
from structinf.noise import Gumbel
from structinf.parts import as_tuple, map_parts
from surrogate_reference import RULES, draw, gradients, instance, listed
from toy_oracles import Cube, Explicit, Listing, Walk

pytestmark = pytest.mark.slow

INF, NAN = torch.inf, torch.nan

THETA = torch.tensor([[1.0, 2.0, 0.0]])
V = torch.tensor([[0.0, 1.0, -1.0]])

every_rule = pytest.mark.parametrize("name", list(RULES))

NOISY = {
    "imle": si.get_relaxation("imle", samples=3),
    "adaptive_imle": si.get_relaxation("adaptive_imle", samples=3),
    "gumbel": si.get_relaxation(
        "stochastic", base_relaxation=si.get_relaxation("straight_through", backward="marginals")
    ),
}

SURROGATES = {**{name: relaxation for name, (relaxation, _) in RULES.items()}, **NOISY}

every_surrogate = pytest.mark.parametrize("relaxation", list(SURROGATES.values()), ids=list(SURROGATES))


def close(found: Tensor, expected: Any, atol: float = 1e-6) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), atol=atol, rtol=0)


# ----------------------------------------------------------------------------- the formulas


@pytest.mark.matrix
@every_rule
@oracle_examples.parametrize(lambda example: example.relaxed and example.listing is not None)
def test_backward_is_the_formula(example: Example, name: str) -> None:
    relaxation, rule = RULES[name]
    oracle, every = example.oracle(), listed(example)
    if (missing := relaxation.unsupported_reason(oracle)) is not None:
        with pytest.raises(UnsupportedError, match="Supported relaxations: ") as error:
            si.Layer(oracle, relaxation)
        assert missing in str(error.value)
        return
    theta, v = draw(example, 3)
    found = gradients(theta, v, oracle, relaxation)
    mean = si.relax(theta, oracle, relaxation)
    for b in range(3):
        t, z = instance(theta, b), instance(v, b)
        for g, y, wanted, best in zip(found, as_tuple(mean), rule(every, t, z), every.best(t), strict=True):
            close(g[b], wanted)
            close(y[b], best, atol=0)


@pytest.mark.parametrize(
    ("lambda_", "expected"), [(3.0, [0, 1 / 3, -1 / 3]), (10.0, [0, 0.1, -0.1]), (0.5, [0.0, 0.0, 0.0])]
)
@pytest.mark.parametrize("relaxation", ["blackbox", "imle"])
def test_the_step_divides_and_costs_get_minus_the_gradient(relaxation: str, lambda_: float, expected: list) -> None:
    options: dict[str, Any] = {"lambda_": lambda_} | ({"noise": "none"} if relaxation == "imle" else {})
    close(gradients(THETA, V, "categorical", relaxation, **options)[0][0], expected)
    costs = (-THETA).requires_grad_()
    si.relax(-costs, "categorical", relaxation, **options).backward(V)
    assert costs.grad is not None
    close(-costs.grad[0], expected)


@pytest.mark.parametrize("variant", ["projection", "cross_entropy"])
def test_spigot_projects_onto_the_structures_that_are_allowed(variant: str) -> None:
    theta, v = torch.tensor([[1.0, -INF, 0.8]]), torch.tensor([[2.0, 0.0, 0.0]])
    two, w = torch.tensor([[1.0, 0.8]]), torch.tensor([[2.0, 0.0]])
    found, expected = (
        gradients(t, z, "categorical", "spigot", variant=variant)[0][0] for t, z in ((theta, v), (two, w))
    )
    close(found[[0, 2]], expected)
    assert found[1] == 0


def test_costs_stay_costs() -> None:
    example = next(
        e for e in oracle_examples.EXAMPLES if e.oracle().requires_nonpositive_theta and e.listing is not None
    )
    theta, v = draw(example, 4)
    relaxation, rule = RULES["blackbox"]
    found = gradients(theta, map_parts(lambda z: 100 * z, v), example.oracle(), relaxation)  # θ − λv is above 0 here
    for b in range(4):
        wanted = rule(listed(example), instance(theta, b), tuple(100 * z for z in instance(v, b)))
        close(found[0][b], wanted[0])
    for name in ("imle", "adaptive_imle", "spigot"):
        with pytest.raises(UnsupportedError, match="of at most 0"):
            si.Layer(example.oracle(), name)


@every_rule
def test_padding_has_no_part_in_it(name: str) -> None:
    example = next(e for e in oracle_examples.EXAMPLES if e.name == "chain" and e.relaxed)
    relaxation, rule = RULES[name]
    theta, v = draw(example, 3)
    lengths = [3, 1, 2]
    v[0][1, 1:], v[0][2, 2:] = 1e30, NAN  # a loss that looks at the padding
    found = gradients(theta, v, "chain", relaxation, lengths=lengths)
    for b, length in enumerate(lengths):
        t, z = (tuple(part.copy() for part in instance(form, b)) for form in (theta, v))
        t[0][length:], z[0][length:] = 0, 0
        assert not found[0][b, length:].any()
        for g, wanted in zip(found, rule(listed(example, length), t, z), strict=True):
            close(g[b], wanted)


@every_rule
def test_what_the_batch_shares_gets_the_sum(name: str) -> None:
    example = next(e for e in oracle_examples.EXAMPLES if e.name == "chain" and e.relaxed)
    (unary, transition), v = draw(example, 3)
    shared = transition[0]
    found = gradients((unary, shared), v, "chain", RULES[name][0])
    apart = gradients((unary, shared.expand(3, 2, 2)), v, "chain", RULES[name][0])
    close(found[0], apart[0])
    close(found[1], apart[1].sum(0))


def test_projections_take_out_what_no_choice_depends_on() -> None:
    theta = torch.tensor([[1.0, -INF, 3.0, 2.0]], dtype=torch.float64)
    v = torch.tensor([[1.0, 5.0, -1.0, 3.0]], dtype=torch.float64)
    mean = gradients(theta, v, "categorical", "negative_identity", projection="mean")[0]
    close(mean, [[0.0, 0.0, -2.0, 2.0]])
    u = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64) / math.sqrt(14)
    w = torch.tensor([1.0, -1.0, 3.0], dtype=torch.float64)
    norm = gradients(theta, v, "categorical", "negative_identity", projection="norm")[0]
    close(norm[0, [0, 2, 3]], (w - u * (u @ w)) / math.sqrt(14))
    for projection in ("norm", "std"):
        assert not gradients(
            torch.zeros(2, 3), torch.ones(2, 3), "categorical", "negative_identity", projection=projection
        )[0].any()
    for scale in (1e-3, 1e3, 1e30):
        found = gradients(scale * THETA, V, "categorical", "negative_identity", projection="std")[0]
        close(scale * found, gradients(THETA, V, "categorical", "negative_identity", projection="std")[0])


# ----------------------------------------------------------------------------- straight-through


def test_straight_through_by_sparsemap_and_by_temperature() -> None:
    theta = torch.tensor([[0.5, 0.2, -2.0]], dtype=torch.float64)
    v = torch.tensor([[1.0, -1.0, 4.0]], dtype=torch.float64)
    close(gradients(theta, v, "categorical", "straight_through", backward="sparsemap")[0], [[1.0, -1.0, 0.0]])
    p = (theta[0] / 0.5).softmax(0)
    expected = (torch.diag(p) - torch.outer(p, p)) @ v[0] / 0.5
    close(gradients(theta, v, "categorical", "straight_through", backward="marginals", temperature=0.5)[0][0], expected)


def test_straight_through_gumbel() -> None:
    theta = torch.randn(4, 5, dtype=torch.float64)
    v = torch.randn(3, 4, 5, dtype=torch.float64)
    held = si.get_relaxation("straight_through", backward="marginals", temperature=0.7)
    layer = si.Layer("categorical", "stochastic", base_relaxation=held, samples=3, reduction="none")

    def g() -> torch.Generator:
        return torch.Generator().manual_seed(3)

    noise = Gumbel().sample((3, 4, 5), dtype=torch.float64, device=theta.device, generator=g())
    leaf = theta.clone().requires_grad_()
    y = layer(leaf, generator=g())
    noisy = theta + noise
    assert torch.equal(y, torch.nn.functional.one_hot(noisy.argmax(2), 5).double())
    y.backward(v)
    p = (noisy / 0.7).softmax(2)
    assert leaf.grad is not None
    close(leaf.grad, (p * (v - (p * v).sum(2, keepdim=True)) / 0.7).sum(0))


def test_straight_through_computes_what_it_holds_when_going_back_alone() -> None:
    @dataclass(frozen=True)
    class Shy(Explicit):
        calls: ClassVar[list[int]] = []

        def log_partition(self, theta: Tensor) -> Tensor:
            self.calls.append(len(theta))
            return super().log_partition(theta)

    theta = torch.randn(2, 4, requires_grad=True)
    y = si.relax(theta, Shy(), "straight_through", backward="marginals")
    assert not Shy.calls
    y.square().sum().backward()
    assert Shy.calls


def test_straight_through_needs_and_draws_as_what_it_holds() -> None:
    with pytest.raises(UnsupportedError, match="lacks the ability GibbsOracle"):
        si.Layer("assignment", "straight_through", backward="marginals")
    held = si.get_relaxation("straight_through", backward="perturbed")
    assert held.is_stochastic
    assert not si.get_relaxation("straight_through").is_stochastic
    found = [
        gradients(THETA, V, "categorical", held, generator=torch.Generator().manual_seed(seed))[0] for seed in (0, 0, 1)
    ]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert si.get_relaxation("straight_through", backward="map").piecewise_constant


# ----------------------------------------------------------------------------- all of them


@every_surrogate
def test_record(relaxation: si.Relaxation) -> None:
    theta = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    sol = si.infer(theta, Explicit(), relaxation)
    n = getattr(relaxation, "samples", 1)
    assert sol.oracle_calls == 1
    assert isinstance(sol.weights, Tensor)
    assert isinstance(sol.support, Tensor)
    assert sol.weights.shape == (n, 2, 3)
    assert sol.support.shape == (n, 2, 3, 4)
    close((sol.weights[..., None] * sol.support).sum(0), sol.mean.detach())
    if not relaxation.is_stochastic:
        close(sol.value, (theta * sol.mean).sum(-1))
    sol.value.sum().backward()
    assert theta.grad is not None
    close(theta.grad, sol.mean.detach())


@every_surrogate
def test_weights_carry_no_gradient(relaxation: si.Relaxation) -> None:
    sol = si.infer(THETA.clone().requires_grad_(), "categorical", relaxation)
    assert sol.weights is not None
    with pytest.raises(UnsupportedError, match="do not depend on theta and have no gradient; train through the mean"):
        sol.weights.sum().backward()
    sol = si.infer(THETA.clone().requires_grad_(), "categorical", relaxation)
    with pytest.raises(UnsupportedError, match="have no gradient"):  # nor beside the mean
        (sol.mean.sum() + (sol.weights * sol.support).sum()).backward()


@every_surrogate
def test_second_derivatives_are_refused(relaxation: si.Relaxation) -> None:
    theta = torch.randn(2, 4, requires_grad=True)
    loss = si.relax(theta, Explicit(), relaxation).square().sum()
    (gradient,) = torch.autograd.grad(loss, theta, create_graph=True)
    with pytest.raises(UnsupportedError, match="first derivatives only; a surrogate gradient has no derivative"):
        gradient.sum().backward()


@every_surrogate
def test_no_fenchel_young_loss(relaxation: si.Relaxation) -> None:
    with pytest.raises(UnsupportedError, match="therefore no Fenchel-Young loss"):
        si.FenchelYoungLoss("categorical", relaxation)
    loss = si.RelaxedLoss("categorical", relaxation)
    theta = torch.randn(3, 4, requires_grad=True)
    loss(theta, torch.tensor([0, 1, 2])).backward()
    assert bool(theta.grad.isfinite().all())


@every_surrogate
def test_forbidden_parts_get_exactly_no_gradient(relaxation: si.Relaxation) -> None:
    theta = torch.randn(3, 4, 4)
    theta[:, 1, 2] = theta[0, 3, 1] = -INF
    v = torch.randn(3, 4, 4)
    v[2] = INF
    (found,) = gradients(theta, v, "arborescence", relaxation)
    assert not found[theta.isneginf()].any()
    assert bool(found[:2].isfinite().all()) or relaxation is NOISY["adaptive_imle"]


@every_surrogate
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_gradients_of_a_loss_that_is_not_finite_are_nan(relaxation: si.Relaxation, value: float) -> None:
    v = torch.randn(3, 4)
    v[1] = value
    (found,) = gradients(torch.randn(3, 4), v, Explicit(), relaxation)
    assert not bool(found[1].isfinite().any())
    if relaxation is not NOISY["adaptive_imle"]:  # its step is the batch's
        assert bool(found[[0, 2]].isfinite().all())


@every_surrogate
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(relaxation: si.Relaxation, dtype: torch.dtype) -> None:
    theta, v = torch.randn(3, 4).to(dtype), torch.randn(3, 4).to(dtype)
    found = [
        gradients(t, z, Explicit(), relaxation, generator=torch.Generator().manual_seed(0))[0]
        for t, z in ((theta, v), (theta.float(), v.float()))
    ]
    assert found[0].dtype == dtype
    if relaxation is not NOISY["adaptive_imle"]:  # its state has moved on
        torch.testing.assert_close(found[0].float(), found[1], atol=0, rtol=torch.finfo(dtype).eps)


@every_surrogate
def test_form_of_the_input_does_not_matter(relaxation: si.Relaxation) -> None:
    assert si.relax(torch.zeros(0, 4, requires_grad=True), Explicit(), relaxation).shape == (0, 4)
    (nothing,) = gradients(torch.zeros(0, 4), torch.zeros(0, 4), Explicit(), relaxation)
    assert nothing.shape == (0, 4)
    theta, v = torch.randn(4, 3, 2).permute(2, 1, 0), torch.randn(4, 3, 2).permute(2, 1, 0)
    before = theta.clone(), v.clone()
    leaf = theta.detach().requires_grad_()
    si.relax(leaf, Explicit(), relaxation, generator=torch.Generator().manual_seed(0)).backward(v)
    assert torch.equal(leaf, before[0])
    assert torch.equal(v, before[1])
    assert leaf.grad.shape == (2, 3, 4)
    assert si.relax(torch.randn(5, 3, 4), "assignment", relaxation.__class__()).shape == (5, 3, 4)


@every_surrogate
def test_layers_are_copied_pickled_and_shown(relaxation: si.Relaxation) -> None:
    layer = si.Layer(Explicit(), relaxation)
    theta = torch.randn(3, 4)
    expected = layer(theta, generator=torch.Generator().manual_seed(0))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(theta, generator=torch.Generator().manual_seed(0)), expected)
    assert type(relaxation).__name__ in repr(layer)


# ----------------------------------------------------------------------------- instance data


@dataclass(frozen=True)
class Choices(Listing):
    """One of the parts that a mask has; without the mask there is no answer."""

    name: ClassVar[str] = "toy_choices"
    event_ndim = 1
    instance_ndim: ClassVar = {"open_parts": 1}

    def listed(self, theta: Tensor) -> Any:
        rows = torch.eye(theta.shape[1], dtype=theta.dtype)
        open_parts = self.bound["open_parts"]
        assert len(open_parts) == len(theta)
        return rows.expand(len(theta), *rows.shape), open_parts.bool()

    def enumerate(self, event_shape: Any) -> Tensor:
        return torch.eye(event_shape[0], dtype=torch.float64)[self.bound["open_parts"][0].bool()]


@pytest.mark.parametrize("name", si.list_relaxations())
def test_instance_data_reaches_every_call_of_the_oracle(name: str) -> None:
    relaxation, oracle = si.get_relaxation(name), Choices()
    if relaxation.unsupported_reason(oracle) is not None:
        pytest.skip(f"{name} asks for more than a list of structures")
    theta, v = torch.randn(3, 4), torch.randn(3, 4)
    open_parts = torch.tensor([[1, 1, 0, 1], [0, 0, 1, 0], [1, 0, 0, 1]])
    with pytest.raises(InvalidInputError, match="open_parts: the oracle needs this instance data"):
        si.relax(theta, oracle, relaxation)
    assert not si.relax(theta, oracle, relaxation, open_parts=open_parts)[open_parts == 0].any()
    leaf = theta.clone().requires_grad_()
    si.relax(leaf, oracle, relaxation, open_parts=open_parts).backward(v)
    assert bool(leaf.grad.isfinite().all())
    if isinstance(relaxation, si.RegularizedRelaxation):
        gold = torch.eye(4)[torch.tensor([0, 2, 3])]
        si.FenchelYoungLoss(oracle, relaxation)(leaf, gold, open_parts=open_parts).backward()
    assert bool(si.SPOPlusLoss(oracle)(leaf, v, open_parts=open_parts) >= 0)


# ----------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("blackbox", {"lambda_": 0.0}, "lambda_ must be a finite number above 0, got 0.0"),
        ("blackbox", {"lambda_": "3"}, "lambda_ must be a finite number above 0, got '3'"),
        ("spigot", {"step_size": -1.0}, "step_size must be a finite number above 0, got -1.0"),
        ("spigot", {"variant": "eg"}, 'variant must be "projection", "cross_entropy" or "exponentiated_gradient"'),
        ("negative_identity", {"projection": "max"}, 'projection must be "none", "mean", "norm" or "std", got \'max\''),
        ("straight_through", {"temperature": 1.0}, 'temperature: backward="identity" has no temperature'),
        ("straight_through", {"backward": "map", "temperature": 1.0}, "temperature: map has no temperature"),
    ],
)
def test_wrong_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        si.get_relaxation(name, **options)


def test_wrong_relaxations_to_hold() -> None:
    with pytest.raises(si.UnknownNameError, match="no relaxation is called 'identy'"):
        si.get_relaxation("straight_through", backward="identy")
    apart = si.get_relaxation("imle", samples=2, reduction="none")
    with pytest.raises(InvalidInputError, match='returns separate samples; set its reduction="mean"'):
        si.get_relaxation("straight_through", backward=apart)
    with pytest.raises(UnsupportedError, match="lacks the ability GibbsOracle"):
        si.Layer(Cube(), "spigot", variant="cross_entropy")
    theta = (torch.zeros(3, 2), torch.zeros(2, 2))
    earlier = si.infer(theta, Walk(), "sparsemap")
    with pytest.raises(UnsupportedError, match="takes no warm_start"):
        si.infer(theta, Walk(), "blackbox", warm_start=earlier)
