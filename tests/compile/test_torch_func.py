"""The transforms of torch.func over every kind of module: what they give is what autograd gives, or a clear refusal."""

from __future__ import annotations

import copy
from typing import ClassVar

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap

import structinf as si
from module_examples import CASES

pytestmark = pytest.mark.slow

every_case = pytest.mark.parametrize("name", CASES)
imports_more_of_torch = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
STRUCTURED = [name for name, case in CASES.items() if not case.native]


def _scalar(name, module=None):
    case = CASES[name]
    module = case.make() if module is None else module

    def function(x):
        out = case.call(module, x)
        return (out * torch.linspace(-1, 2, out.numel()).view(out.shape)).sum() + out.square().sum()

    return function


@every_case
def test_grad(name):
    module, x = CASES[name].make(), CASES[name].draw()
    twin = copy.deepcopy(module)  # one of them may learn at each step back
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(_scalar(name, module)(leaf), leaf)
    torch.testing.assert_close(grad(_scalar(name, twin))(x), expected)
    assert expected.any() or name in ("layer, map", "layer, lp_map")


@pytest.mark.parametrize(
    "name", ["layer, marginals", "layer, smoothed", "layer, sinkhorn", "Fenchel-Young loss, sparsemap"]
)
def test_second_derivatives(name):
    function, x = _scalar(name), CASES[name].draw().double()
    direction = torch.randn_like(x)
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(leaf), leaf, create_graph=True)
    (expected,) = torch.autograd.grad((first * direction).sum(), leaf)
    found = grad(lambda x: (grad(function)(x) * direction).sum())(x)
    torch.testing.assert_close(found, expected)
    assert expected.any()


def test_third_derivatives():
    x = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)

    def ours(x):
        return si.infer(x, "categorical", "marginals").value

    def right(x):
        return x.logsumexp(0)

    def third(f):
        return grad(lambda x: grad(lambda x: grad(f)(x).square().sum())(x)[0])(x)

    torch.testing.assert_close(third(ours), third(right))


def test_second_derivatives_that_are_not_offered():
    with pytest.raises(si.UnsupportedError, match="sparsemap of assignment offers first derivatives only"):
        grad(lambda x: grad(_scalar("layer, sparsemap"))(x).sum())(CASES["layer, sparsemap"].draw())


def test_gradients_in_parameters_and_in_a_tuple():
    torch.manual_seed(0)
    linear, layer = torch.nn.Linear(3, 2), si.Layer("chain", "sparsemap")
    features, transition = torch.randn(2, 4, 3), torch.randn(2, 2)

    def function(weights, transition):
        tags, counts = layer((functional_call(linear, weights, features), transition), lengths=[4, 2])
        return tags.square().sum() + counts.sin().sum()

    weights = dict(linear.named_parameters())
    found, of_transition = grad(function, argnums=(0, 1))(weights, transition)
    leaf = transition.clone().requires_grad_()
    expected = torch.autograd.grad(function(weights, leaf), (*weights.values(), leaf))
    torch.testing.assert_close([*found.values(), of_transition], list(expected))


def test_jacobians_and_vector_products():
    def marginals(x):
        return si.relax(x, "categorical", "marginals")

    x = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = x.softmax(0)
    for chunk_size in (None, 1, 3):
        torch.testing.assert_close(jacrev(marginals, chunk_size=chunk_size)(x), p.diag() - torch.outer(p, p))
    mean, pull_back = vjp(marginals, x)
    torch.testing.assert_close(mean, p)
    for v in torch.eye(4, dtype=torch.float64)[:2]:
        torch.testing.assert_close(pull_back(v)[0], p * v - p * (p @ v))


def test_a_solution_within_a_transform():
    def value(x):
        solution = si.infer(x, "assignment", "sparsemap")
        return solution.value.sum(), (solution.mean, solution.converged, solution.support)

    x = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0))
    found, (mean, converged, support) = grad(value, has_aux=True)(x)
    expected = si.infer(x, "assignment", "sparsemap")
    torch.testing.assert_close((found, mean, support), (expected.mean, expected.mean, expected.support))
    assert converged.all()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: si.sinkhorn(x).square().sum(),
        lambda x: si.soft_rank(x).square().sum(),
        lambda x: si.soft_sort(x).sin().sum(),
        lambda x: si.soft_dtw(x.square()),
        lambda x: si.soft_dtw_between(x, x.T.sin()),
        lambda x: si.soft_dtw_divergence(x, x.T.sin()),
        lambda x: si.pairwise_cost(x, x.T).sin().sum(),
        lambda x: si.Gibbs(x, "arborescence").entropy(),
    ],
    ids=["sinkhorn", "soft_rank", "soft_sort", "soft_dtw", "between", "divergence", "pairwise_cost", "Gibbs"],
)
def test_functions(function):
    x = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(grad(function)(x), torch.autograd.grad(function(leaf), leaf)[0])


# ----------------------------------------------------------------------------- vmap


@every_case
def test_vmap(name):
    case = CASES[name]
    module, x = case.make(), torch.stack([case.draw(seed) for seed in range(3)])
    expected = torch.stack([case.call(module, one) for one in x])
    torch.testing.assert_close(vmap(lambda x: case.call(module, x), randomness="same")(x), expected)


@pytest.mark.parametrize("name", STRUCTURED)
def test_gradients_of_each_slice(name):
    module, x = CASES[name].make(), torch.stack([CASES[name].draw(seed) for seed in range(3)])
    twin = copy.deepcopy(module)
    leaves = [one.clone().requires_grad_() for one in x]
    expected = [torch.autograd.grad(_scalar(name, module)(leaf), leaf)[0] for leaf in leaves]
    found = vmap(grad(_scalar(name, twin)), randomness="same")(x)
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("order", ["vmap within grad", "autograd"])
def test_gradients_of_all_slices(order):
    layer, x = si.Layer("assignment", "sparsemap"), torch.randn(3, 2, 3, 3)

    def function(x):
        return vmap(layer)(x).square().sum()

    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(layer(leaf).square().sum(), leaf)
    if order == "autograd":
        (found,) = torch.autograd.grad(function(leaf), leaf)
    else:
        found = grad(function)(x)
    torch.testing.assert_close(found, expected)


def test_nested_transforms():
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    p = x.softmax(-1)
    covariances = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    layer, loss = si.Layer("categorical", "marginals"), si.FenchelYoungLoss("categorical", "marginals")
    torch.testing.assert_close(vmap(vmap(jacrev(layer)))(x), covariances)

    def of_one(x):
        return loss(x[None], torch.tensor([1]))

    torch.testing.assert_close(vmap(vmap(jacrev(grad(of_one))))(x), covariances)
    torch.testing.assert_close(vmap(jacrev(vmap(grad(of_one))))(x)[:, 0, :, 0], covariances[:, 0])

    def third(x):
        return grad(lambda x: grad(of_one)(x).square().sum())(x)

    torch.testing.assert_close(vmap(third)(x[0]), torch.stack([third(one) for one in x[0]]))


def test_vmap_over_what_is_shared_or_integers():
    unary, transitions, lengths = torch.randn(2, 4, 3), torch.randn(5, 3, 3), torch.tensor([[4, 2], [1, 3]])
    layer = si.Layer("chain", "marginals")

    def tags(transition, lengths):
        return layer((unary, transition), lengths=lengths)[0]

    expected = [tags(transition, lengths[0]) for transition in transitions]
    torch.testing.assert_close(vmap(tags, (0, None))(transitions, lengths[0]), torch.stack(expected))
    torch.testing.assert_close(
        vmap(tags, (2, None), 1)(transitions.movedim(0, 2), lengths[0]), torch.stack(expected, 1)
    )
    expected = [tags(transitions[0], each) for each in lengths]
    torch.testing.assert_close(vmap(tags, (None, 0))(transitions[0], lengths), torch.stack(expected))


# ----------------------------------------------------------------------------- what is not offered


@imports_more_of_torch
@pytest.mark.parametrize("name", STRUCTURED)
def test_forward_mode_is_refused(name):
    case = CASES[name]
    module, x = case.make(), case.draw()
    with pytest.raises(
        si.UnsupportedError, match=r"structured calls have no forward-mode derivatives .* use reverse mode"
    ):
        jvp(lambda x: case.call(module, x), (x,), (x,))


@pytest.mark.parametrize("relaxation", ["map", "marginals", "sparsemap", "perturbed", "smoothed"])
def test_dual_tensors_are_refused(relaxation):
    theta = torch.randn(2, 4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(theta, torch.ones_like(theta))
        with pytest.raises(si.UnsupportedError, match=r"no forward-mode derivatives .* use reverse mode"):
            si.relax(dual, "categorical", relaxation)
        assert si.relax(theta, "categorical", relaxation).shape == theta.shape


@imports_more_of_torch
def test_hessians_by_forward_mode_are_refused():
    with pytest.raises(si.UnsupportedError, match="use reverse mode"):
        hessian(si.Layer("assignment", "sparsemap"))(torch.randn(3, 3))


def test_vmap_of_more_than_tensors_is_refused():
    with pytest.raises(si.UnsupportedError, match=r"the result of structinf\.infer; use structinf\.relax"):
        vmap(lambda x: si.infer(x, "categorical", "marginals").value)(torch.zeros(2, 3))


def test_vmap_of_nothing_is_refused():
    with pytest.raises(si.UnsupportedError, match="vmap over a dimension of size 0"):
        vmap(si.Layer("categorical", "map"))(torch.zeros(0, 3))


@pytest.mark.parametrize("is_own", [True, False])
def test_noise_within_vmap_says_how(is_own):
    layer = si.Layer("categorical", "perturbed")

    def call(x, randomness):
        options = {"generator": torch.Generator().manual_seed(0)} if is_own else {}
        torch.manual_seed(0)
        return vmap(lambda x: layer(x, **options), randomness=randomness)(x)

    x = torch.zeros(2, 50)
    with pytest.raises(si.UnsupportedError, match=r"randomness='different'.* or randomness='same'"):
        call(x, "error")
    first, second = call(x, "same")
    assert torch.equal(first, second)
    first, second = call(x, "different")
    assert not torch.equal(first, second)


def test_a_function_of_what_a_transform_follows_is_refused():
    x, y = torch.randn(4), torch.tensor(1)

    def with_cost(w):
        return si.FenchelYoungLoss("categorical", "marginals", cost=lambda gold: w * (1 - gold))(x, y)

    def with_distance(w):
        return si.RelaxedLoss("categorical", "marginals", distance=lambda y, mu: (w * (y - mu)).sum(1))(x, y)

    for function, option in ((with_cost, "cost"), (with_distance, "distance")):
        with pytest.raises(
            si.UnsupportedError,
            match=f"^{option}: torch.func cannot differentiate through an option that is a function",
        ):
            grad(function)(torch.tensor(0.5))


def test_a_tensor_that_a_transform_follows_must_be_an_argument():
    def with_cost(w):
        return si.FenchelYoungLoss("categorical", "marginals", cost=w)(torch.zeros(4), torch.tensor(1))

    with pytest.raises(si.UnsupportedError, match=r"^cost: .* pass the tensor as an argument of the call"):
        grad(with_cost)(torch.randn(4))


@pytest.mark.parametrize(
    ("relaxation", "option"), [("blackbox", "lambda_"), ("spigot", "step_size"), ("straight_through", "temperature")]
)
def test_tensors_without_a_gradient_stay_constants(relaxation, option):
    theta, weight = torch.randn(3, 5), torch.randn(5)
    more = {"backward": "marginals"} if relaxation == "straight_through" else {}

    def value(scores, step):
        return si.relax(scores, "subset", relaxation, k=2, **{option: step}, **more) @ weight

    found = vmap(grad(lambda scores: value(scores, torch.tensor(2.0))))(theta)
    torch.testing.assert_close(found, vmap(grad(lambda scores: value(scores, 2.0)))(theta))


def test_gradients_in_instance_data_that_is_an_argument_alone():
    scores, supply = torch.randn(1, 2, 2, dtype=torch.float64), torch.tensor([[0.4, 0.6]], dtype=torch.float64)

    def given(rows):
        return si.sinkhorn(scores, rows=rows, columns=torch.full((1, 2), 0.5, dtype=torch.float64)).square().sum()

    leaf = supply.clone().requires_grad_()
    torch.testing.assert_close(grad(given)(supply), torch.autograd.grad(given(leaf), leaf)[0])

    class Held(type(si.get_oracle("categorical"))):
        instance_ndim: ClassVar = {"cost": 1}

    def bound(cost):
        return si.relax(torch.zeros(1, 2), Held().bind(cost=cost[None]), "map").sum()

    with pytest.raises(si.UnsupportedError, match=r"^cost: .* pass the tensor as an argument of the call"):
        grad(bound)(torch.zeros(2))
