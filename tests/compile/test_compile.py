"""Public calls as nodes of torch.compile's graphs: whole graphs, with the values and gradients of plain calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import oracle_examples
import structinf as si
from attention_kinds import KINDS, every_kind, make
from compile_assertions import assert_equal, every_backend, marks, scores, whole
from structinf import simplex
from structinf.attention import StructuredMultiheadAttention
from structinf.compile import custom_op
from structinf.compile.custom_op import call_operator
from structinf.parts import map_parts

pytestmark = [*marks, pytest.mark.slow]


def costs(*shape: int) -> Tensor:
    return (-scores(*shape).abs()).detach().requires_grad_()


# ----------------------------------------------------------------------------- maps to the simplex


MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": simplex.softmax,
    "sparsemax": simplex.sparsemax,
    "entmax15": simplex.entmax15,
    "entmax": lambda x: simplex.entmax(x, 1.3, 0),
    "normmax": simplex.normmax,
    "topk_sparsemax": lambda x: simplex.topk_sparsemax(x, 2),
    "budget": lambda x: simplex.budget(x, 2),
    "fusedmax": lambda x: simplex.fusedmax(x, dim=-2),
    "oscarmax": lambda x: simplex.oscarmax(x=x),
    "soft_rank": si.soft_rank,
    "soft_sort": lambda x: si.soft_sort(x, 0.5, descending=True),
}


@pytest.mark.matrix
@every_backend
@pytest.mark.parametrize("name", MAPS)
def test_maps(name, backend):
    def model(x: Tensor) -> Tensor:
        return MAPS[name](2 * x).sin() + 1

    compiled = whole(model, backend)
    for rows in (4, 6):
        assert_equal(compiled, model, scores(rows, 5))


@every_backend
def test_modules_and_what_they_learn(backend):
    module = simplex.Entmax(torch.tensor([[1.2], [1.5]], dtype=torch.float64), learnable=True)

    def model(x: Tensor, beta: Tensor) -> Tensor:
        return torch.func.functional_call(module, {"beta": beta}, x).square()

    assert_equal(whole(model, backend), model, scores(3, 2, 5), scores(2, 1))


@every_backend
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_losses_on_the_simplex(reduction, backend):
    def model(x: Tensor, target: Tensor) -> Tensor:
        return simplex.simplex_loss(2 * x, target, "entmax15", reduction=reduction)

    assert_equal(whole(model, backend), model, scores(3, 5), torch.tensor([4, -100, 0]))
    y = torch.full((3, 5), 0.2, dtype=torch.float64)
    assert_equal(whole(model, backend), model, scores(3, 5), y)


def test_half_precision_and_masks():
    x = torch.tensor([[0.0, 1.0, -torch.inf], [-torch.inf] * 3], dtype=torch.bfloat16)
    found = whole(simplex.sparsemax, "aot_eager")(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, simplex.sparsemax(x))


# ----------------------------------------------------------------------------- layers and losses over oracles


SOLVED = ["marginals", "smoothed", "map"]


@oracle_examples.parametrize(lambda example: example.relaxed)
def test_layers_over_every_oracle(example):
    oracle = example.oracle()
    relaxation = next(name for name in SOLVED if si.get_relaxation(name).unsupported_reason(oracle) is None)
    layer = si.Layer(oracle, relaxation)

    def model(*tensors: Tensor) -> Tensor:
        mean = layer(tensors if example.is_tuple else tensors[0])
        return torch.stack([m.sin().sum() for m in (mean if example.is_tuple else (mean,))]).sum()

    assert_equal(whole(model), model, *(costs(2, *shape) for shape in example.shapes))


CHAIN = (3, 5, 2), (2, 2)


@pytest.mark.matrix
@every_backend
@pytest.mark.parametrize("relaxation", [*SOLVED, "sparsemap", "blackbox"])
def test_tuples_and_lengths(relaxation, backend):
    layer = si.Layer("chain", relaxation)

    def model(unary: Tensor, transition: Tensor, lengths: Tensor) -> Tensor:
        mean, counts = layer((2 * unary, transition), lengths=lengths)
        return mean.sin().sum((1, 2)) + counts.cos().sum((1, 2))

    compiled = whole(model, backend)
    for batch in (3, 2, 4):
        tensors = scores(batch, 5, 2), scores(2, 2, seed=1)
        assert_equal(compiled, model, *tensors, torch.tensor([5, 3, 1, 2])[:batch])


@pytest.mark.matrix
@every_backend
@pytest.mark.parametrize("loss", ["crf", "svm", "sparsemap", "each", "relaxed"])
def test_losses(loss, backend):
    module = {
        "crf": lambda: si.FenchelYoungLoss("chain", "marginals"),
        "svm": lambda: si.FenchelYoungLoss("chain", "map", cost="hamming"),
        "sparsemap": lambda: si.FenchelYoungLoss("chain", "sparsemap", reduction="sum"),
        "each": lambda: si.FenchelYoungLoss("chain", "smoothed", reduction="none"),
        "relaxed": lambda: si.RelaxedLoss("chain", "marginals"),
    }[loss]()

    def model(unary: Tensor, transition: Tensor, tags: Tensor) -> Tensor:
        return module((2 * unary, transition), tags, lengths=[5, 3, 1])

    tags = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    tensors = [scores(*shape, seed=i) for i, shape in enumerate(CHAIN)]
    assert_equal(whole(model, backend), model, *tensors, tags)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_potentials_in_a_list(reduction):
    layer, loss = si.Layer("chain", "marginals"), si.FenchelYoungLoss("chain", "marginals", reduction=reduction)

    def model(unary: Tensor, transition: Tensor) -> Tensor:
        counts = layer([unary, transition])[1]
        return counts.sin().sum((1, 2)) + loss([unary, transition], torch.zeros(3, 5).long())

    assert_equal(whole(model, "aot_eager"), model, *(scores(*shape) for shape in CHAIN))


def test_names_and_options_given_to_the_call():
    def model(x: Tensor) -> Any:
        return si.relax(x, "subset", "marginals", k=2, temperature=0.5)

    assert_equal(whole(model), model, scores(3, 5))


def test_layers_of_one_class_are_told_apart():
    """Each has its own oracle and options, and the compiler's cache is that of their common code."""
    compiled = whole(lambda layer, x: layer(x))
    x = scores(2, 4)
    for layer in (si.Layer("subset", "marginals", k=k, temperature=t) for k in (1, 2) for t in (1.0, 0.3)):
        torch.testing.assert_close(compiled(layer, x), layer(x))


def test_a_layer_within_a_model_that_learns():
    model = nn.Sequential(nn.Linear(3, 4), si.Layer("subset", "marginals", k=2), nn.Linear(4, 1)).double()
    x = scores(5, 3).detach()
    gradients = []
    for each in (model, whole(model, "aot_eager")):
        model.zero_grad()
        each(x).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*gradients)


@every_backend
@pytest.mark.parametrize("kind", ["sparsemax", "segmentation"])
def test_multihead_attention(kind, backend):
    attention = StructuredMultiheadAttention(8, 2, **KINDS[kind]).double()

    def model(x: Tensor) -> Tensor:
        return attention(x, x, x)[0]

    assert_equal(whole(model, backend), model, scores(2, 4, 8))


@pytest.mark.sampled(4)
@every_kind
def test_attention_and_what_it_learns(kind):
    attention = make(kind)
    flags = torch.tensor([[False, True, False, False], [False, False, False, True]])
    padding = dict.fromkeys(("key_padding_mask", "query_padding_mask"), flags)
    inputs = [scores(2, 4, 3) for _ in range(3)]

    def model(*inputs: Tensor) -> Tensor:
        return attention(*inputs, **padding)[0]

    results = [f(*inputs) for f in (whole(model, "aot_eager"), model)]
    torch.testing.assert_close(*results)
    variables = [*inputs, *attention.parameters()]
    torch.testing.assert_close(*[torch.autograd.grad(found.square().sum(), variables) for found in results])


# ----------------------------------------------------------------------------- derivatives, errors, and what is no step


def test_second_derivatives():
    layer = si.Layer("subset", "marginals", k=2)
    assert torch.autograd.gradgradcheck(whole(lambda x: layer(x).sin()), (scores(1, 4),))
    assert torch.autograd.gradgradcheck(whole(lambda x: simplex.entmax(x, 1.5)), (scores(1, 4),))


@pytest.mark.parametrize("relaxation", ["marginals", "smoothed"])
def test_second_derivatives_of_losses(relaxation):
    """The gradient that comes with a number is differentiated as any other."""
    loss, tags = si.FenchelYoungLoss("chain", relaxation, temperature=2.0), torch.tensor([[0, 1, 1]])
    tensors = scores(1, 3, 2), scores(2, 2)
    assert torch.autograd.gradgradcheck(whole(lambda u, t: loss((u, t), tags) * u.sum()), tensors)
    target = torch.tensor([0, 2])
    assert torch.autograd.gradgradcheck(
        whole(lambda x: simplex.simplex_loss(x, target, "entmax15").square()), scores(2, 4)
    )


def test_derivatives_of_losses_to_the_order_that_they_have():
    loss, x, columns = si.FenchelYoungLoss("assignment", "sparsemap"), scores(2, 3, 3), torch.tensor([[0, 1, 2]] * 2)
    products = []
    for f in (whole(lambda x: loss(x, columns)), lambda x: loss(x, columns)):
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        (h,) = torch.autograd.grad(g.square().sum(), x, create_graph=True)
        products.append(h)
        with pytest.raises(si.UnsupportedError, match="first derivatives only"):
            h.sum().backward()
    torch.testing.assert_close(*products)


def test_second_derivatives_that_are_refused():
    layer = si.Layer("assignment", "sparsemap")
    x = scores(2, 3, 3)
    (g,) = torch.autograd.grad(whole(lambda x: layer(x).square().sum())(x), x, create_graph=True)
    with pytest.raises(si.UnsupportedError, match="first derivatives only"):
        g.sum().backward()


@every_backend
def test_errors_are_those_of_the_call(backend):
    layer = si.Layer("subset", "marginals", k=2)
    compiled = whole(lambda x: layer(x), backend)
    compiled(torch.zeros(2, 4))
    with pytest.raises(si.InvalidInputError, match="NaN at batch index 1"):
        compiled(torch.tensor([[0.0] * 4, [torch.nan] * 4]))
    with pytest.raises(si.InfeasibleError):
        compiled(torch.full((2, 4), -torch.inf))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    layer = si.Layer("subset", "marginals", k=2)
    with mode():
        found = whole(layer)(scores(2, 4))
    assert not found.requires_grad
    torch.testing.assert_close(found, layer(scores(2, 4)).detach())


def test_what_draws_breaks_the_graph():
    layer = si.Layer("categorical", "perturbed", samples=3)
    torch.manual_seed(0)
    found = torch.compile(layer, backend="eager")(scores(2, 4))
    torch.manual_seed(0)
    torch.testing.assert_close(found, layer(scores(2, 4)))


def test_parameters_that_an_object_holds_are_followed():
    """A graph breaks rather than lose a gradient."""
    weight = scores(1)
    loss = si.FenchelYoungLoss("categorical", "marginals", cost=lambda y: map_parts(lambda t: (1 - t) * weight, y))
    x, y = scores(2, 4), torch.tensor([0, 3])
    results = [torch.autograd.grad(f(x, y), [x, weight]) for f in (torch.compile(loss, backend="eager"), loss)]
    torch.testing.assert_close(*results)


def test_functions_of_any_kind_are_followed():
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    loss = si.RelaxedLoss("categorical", "marginals", distance=lambda y, m: (y - m).square().sum(1) * weight)
    product = si.FenchelYoungLoss("categorical", "marginals", cost=weight.mul)
    x, y = scores(2, 4), torch.tensor([0, 3])
    for module in (loss, product):
        found, expected = (
            torch.autograd.grad(f(x, y), [x, weight]) for f in (torch.compile(module, backend="eager"), module)
        )
        torch.testing.assert_close(found, expected)


def test_a_cost_that_changes_before_the_backward_pass():
    x, y = scores(2, 4), torch.tensor([0, 3])
    loss = si.FenchelYoungLoss("categorical", "marginals", cost=torch.ones(2, 4, dtype=torch.float64))
    loss.cost[0] = 0.0
    (expected,) = torch.autograd.grad(loss(x, y), x)
    value = torch.compile(loss, backend="aot_eager")(x, y)
    loss.cost = None
    (found,) = torch.autograd.grad(value, x)
    torch.testing.assert_close(found, expected)


# ----------------------------------------------------------------------------- the operator


def test_pull_backs_need_no_trace():
    """A compiled backward pass may come from a cache of another process."""
    x = scores(2, 3, 3)
    f = whole(lambda t: si.relax(t, "assignment", "sparsemap"), "aot_eager")
    torch.autograd.grad(f(x).square().sum(), x)
    assert custom_op._FUNCTIONS
    assert not any(key.startswith(("vjp[", "grad[")) for key in custom_op._FUNCTIONS)


class _Constant:
    def run(self, tensors: Any) -> tuple[Tensor, ...]:
        return (tensors[0].detach() + 1,)

    def output_like(self, tensors: Any) -> tuple[Tensor, ...]:
        return (tensors[0],)


def test_gradients_of_what_does_not_depend_on_the_tensors():
    x = scores(2, 4)
    (found,) = call_operator(custom_op.register_function("constant", _Constant(), lambda _: False), [x])
    assert torch.equal(*torch.autograd.grad(found.sum(), x), torch.zeros_like(x))


class _Counted(si.Oracle):
    event_ndim = 1

    def __init__(self) -> None:
        self.calls = 0

    def argmax(self, theta: Any) -> Tensor:
        self.calls += 1
        return nn.functional.one_hot(theta.argmax(-1), theta.shape[-1]).to(theta)


@every_backend
def test_losses_are_solved_once(backend):
    loss, y = si.FenchelYoungLoss(_Counted(), "map"), torch.eye(4, dtype=torch.float64)[:2]
    compiled = whole(lambda x: 3 * loss(2 * x, y), backend)
    calls = []
    for f in (compiled, compiled, loss):
        loss.oracle.calls = 0
        x = scores(2, 4)
        torch.autograd.grad(f(x) if f is compiled else 3 * f(2 * x, y), x)
        calls.append(loss.oracle.calls)
    assert calls[0] == calls[1] == calls[2]


def test_gradients_of_losses_in_half_precision_are_scaled_before_they_are_rounded():
    """Or else they would be 0, which scaled losses are for."""
    loss, y = si.FenchelYoungLoss("categorical", "marginals", reduction="sum"), torch.tensor([0, 0])
    x = torch.tensor([[20.0, 1.0, 0.0], [19.0, 0.0, 2.0]], dtype=torch.float16, requires_grad=True)
    found, expected = (torch.autograd.grad(f(x, y), x, x.new_tensor(2.0**14))[0] for f in (whole(loss), loss))
    assert found[0, 1] > 0
    torch.testing.assert_close(found, expected)


@every_backend
def test_gradients_of_losses_in_some_of_the_tensors(backend):
    loss, tags = si.FenchelYoungLoss("chain", "marginals"), torch.tensor([[0, 1, 1], [1, 0, 0]])
    compiled = whole(lambda u, t: loss((u, t), tags), backend)
    unary, transition = scores(2, 3, 2), scores(2, 2)
    for given in ((unary, transition), (unary.detach(), transition), (unary, transition.detach())):
        assert_equal(compiled, lambda u, t: loss((u, t), tags), *given)
    (found,) = torch.autograd.grad(compiled(unary, transition), transition)
    (expected,) = torch.autograd.grad(loss((unary, transition), tags), transition)
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        assert not compiled(unary, transition).requires_grad


@pytest.mark.parametrize("name", ["sparsemax", "chain", "loss"])
def test_opcheck(name):
    keys: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        keys.extend(node.args[0] for node in graph.graph.nodes if "structinf.call" in str(node.target))
        return graph

    if name == "chain":
        layer, tensors = si.Layer("chain", "marginals"), (scores(3, 5, 2), scores(2, 2), torch.tensor([5, 3, 1]))
        torch.compile(lambda u, t, n: layer((u, t), lengths=n), backend=backend, fullgraph=True)(*tensors)
    elif name == "loss":
        tensors = (scores(3, 5), torch.tensor([4, 0, 1]))
        torch.compile(simplex.simplex_loss, backend=backend, fullgraph=True)(*tensors, "entmax15")
    else:
        tensors = (scores(3, 5),)
        torch.compile(simplex.sparsemax, backend=backend, fullgraph=True)(*tensors)
    (key,) = keys
    assert set(torch.library.opcheck(call_operator, (key, list(tensors))).values()) == {"SUCCESS"}
