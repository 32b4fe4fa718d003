"""Compiled calls whose options, attributes and oracles change from call to call, or are wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import structinf as si
from compile_assertions import assert_equal, every_backend, marks, scores, whole
from structinf import simplex
from structinf.attention import GridWeights
from structinf.relaxations.marginals import Marginals

pytestmark = [*marks, pytest.mark.slow]


# ----------------------------------------------------------------------------- numbers


NUMBERS: dict[str, tuple[Callable[..., Tensor], list[Any]]] = {
    "k": (lambda x, k: si.relax(x, "subset", "sparsemap", k=k), [1, 2, 3, 2]),
    "temperature": (lambda x, t: si.relax(x, "subset", "marginals", k=2, temperature=t), [0.5, 0.7, 2.0]),
    "flag": (lambda x, m: si.relax(x, "subset", "map", k=3, at_most=m), [False, True]),
    "name": (lambda x, name: si.relax(x, "subset", name, k=2), ["map", "marginals"]),
    "list": (lambda x, n: si.relax(x, "subset", "marginals", k=1, lengths=n), [[3, 4], [1, 4], [2, 2]]),
    "alpha": (simplex.entmax, [1.3, 1.6, 2.0]),
    "dim": (simplex.sparsemax, [-1, 0]),
    "budget": (simplex.budget, [1.5, 2.5, 0.5]),
    "strength": (si.soft_rank, [1.0, 0.1, 0.3]),
    "reduction": (
        lambda x, reduction: simplex.simplex_loss(x, torch.tensor([0, 3]), "sparsemax", reduction=reduction),
        ["mean", "none", "sum"],
    ),
}


@pytest.mark.matrix
@every_backend
@pytest.mark.parametrize("name", NUMBERS)
def test_options_that_change(name, backend):
    function, options = NUMBERS[name]

    def model(x: Tensor, option: Any) -> Tensor:
        return function(2 * x, option).sin()

    compiled = whole(model, backend)
    for option in options:
        assert_equal(compiled, model, scores(2, 4), option)


@every_backend
def test_options_that_depend_on_shapes(backend):
    def model(x: Tensor) -> Tensor:
        return si.relax(2 * x, "subset", "marginals", k=x.shape[-1] // 2, temperature=1 / x.shape[-1])

    compiled = whole(model, backend, dynamic=True)
    for n in (4, 6, 7):
        assert_equal(compiled, model, scores(2, n))


def test_shapes_that_change_need_no_other_graph():
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda x, k: si.relax(x, "subset", "marginals", k=k), backend=backend, fullgraph=True)
    for k, found in ((2, 1), (2, 1), (1, 2), (2, 2), (1, 2)):
        compiled(scores(2, 4), k)
        assert len(graphs) == found
    for rows in (3, 4, 5, 6):
        compiled(scores(rows, 4), 1)
    assert len(graphs) == 3


# ----------------------------------------------------------------------------- attributes


Y = torch.tensor([0, 3])


def _each_cost() -> list[Any]:
    return ["hamming", scores(2, 4).detach(), scores(1, 4, seed=1).detach(), None]


ATTRIBUTES: dict[str, tuple[Callable[[], nn.Module], str, Callable[[], list[Any]]]] = {
    "reduction": (
        lambda: si.FenchelYoungLoss("categorical", "marginals"),
        "reduction",
        lambda: ["sum", "none", "mean"],
    ),
    "cost": (lambda: si.FenchelYoungLoss("categorical", "marginals"), "cost", _each_cost),
    "distance": (lambda: si.RelaxedLoss("categorical", "marginals"), "distance", lambda: ["kl", "squared_l2"]),
    "relaxation of a loss": (
        lambda: si.FenchelYoungLoss("categorical", "map"),
        "relaxation",
        lambda: [si.get_relaxation("sparsemap"), si.get_relaxation("marginals", temperature=0.3)],
    ),
    "relaxation": (
        lambda: si.Layer("subset", "marginals", k=2),
        "relaxation",
        lambda: [si.get_relaxation("marginals", temperature=t) for t in (0.3, 2.0)],
    ),
    "oracle": (
        lambda: si.Layer("subset", "marginals", k=2),
        "oracle",
        lambda: [si.get_oracle("subset", k=k) for k in (3, 1)],
    ),
}


@pytest.mark.matrix
@every_backend
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_that_change(name, backend):
    make, attribute, values = ATTRIBUTES[name]
    module = make()

    def model(x: Tensor) -> Tensor:
        return (module(2 * x) if isinstance(module, si.Layer) else module(2 * x, Y)).sin()

    compiled = whole(model, backend)
    assert_equal(compiled, model, scores(2, 4))
    for value in values():
        setattr(module, attribute, value)
        assert_equal(compiled, model, scores(2, 4))


@pytest.mark.matrix
@every_backend
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_that_change_before_the_backward_pass(name, backend):
    make, attribute, values = ATTRIBUTES[name]
    module, x = make(), scores(2, 4)

    def model(x: Tensor) -> Tensor:
        return (module(2 * x) if isinstance(module, si.Layer) else module(2 * x, Y)).sin().sum()

    (expected,) = torch.autograd.grad(model(x), x)
    value = whole(model, backend)(x)
    setattr(module, attribute, values()[0])
    (found,) = torch.autograd.grad(value, x)
    torch.testing.assert_close(found, expected)


@every_backend
def test_costs_are_read_anew(backend):
    cost = scores(2, 4).detach()
    loss = si.FenchelYoungLoss("categorical", "marginals", cost=cost)
    compiled = whole(loss, backend)
    assert_equal(compiled, loss, scores(2, 4), Y)
    cost.mul_(2)
    assert_equal(compiled, loss, scores(2, 4), Y)
    loss.cost = scores(2, 4, seed=1).detach()
    assert_equal(compiled, loss, scores(2, 4), Y)


@every_backend
def test_costs_have_gradients(backend):
    x, cost = scores(2, 4), scores(2, 4, seed=1)
    loss = si.FenchelYoungLoss("categorical", "marginals", cost=cost)
    results = [torch.autograd.grad(f(x, Y), [x, cost]) for f in (whole(loss, backend), loss)]
    torch.testing.assert_close(*results)


def test_costs_of_tuples():
    cost = scores(3, 4, 2).detach(), scores(2, 2).detach()
    loss = si.FenchelYoungLoss("chain", "marginals", cost=cost)
    tags = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]])

    def model(unary: Tensor, transition: Tensor) -> Tensor:
        return loss((unary, transition), tags)

    compiled = whole(model)
    for _ in range(2):
        assert_equal(compiled, model, scores(3, 4, 2), scores(2, 2))
        cost[0].mul_(3)


def test_a_relaxation_that_comes_to_draw():
    layer = si.Layer("categorical", "marginals")
    compiled = torch.compile(layer, backend="eager")
    compiled(scores(2, 4))
    layer.relaxation = si.get_relaxation("perturbed", samples=3)
    torch.manual_seed(0)
    found = compiled(scores(2, 4))
    torch.manual_seed(0)
    torch.testing.assert_close(found, layer(scores(2, 4)))


class _Weighted(si.FenchelYoungLoss):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64), requires_grad=False)

    def _losses(self, *args: Any) -> Tensor:
        return self.weight * super()._losses(*args)


def test_a_parameter_that_is_unfrozen():
    loss, x = _Weighted("categorical", "marginals"), scores(2, 4)
    compiled = torch.compile(loss, backend="eager")
    assert_equal(compiled, loss, x, Y)
    loss.weight.requires_grad_()
    torch.testing.assert_close(*[torch.autograd.grad(f(x, Y), [x, loss.weight]) for f in (compiled, loss)])


def test_transforms_of_compiled_functions():
    loss, layer = si.FenchelYoungLoss("categorical", "marginals"), si.Layer("subset", "marginals", k=2)

    def model(x: Tensor) -> Tensor:
        return loss(2 * x, Y) + layer(x).sin().sum()

    compiled, x = torch.compile(model, backend="aot_eager"), scores(2, 4).detach()
    torch.testing.assert_close(torch.func.grad(compiled)(x), torch.func.grad(model)(x))


def test_the_layer_within_attention():
    weights = GridWeights("assignment", "sparsemap")
    compiled = whole(lambda x: weights(x), "aot_eager")
    x = scores(2, 3, 3)
    (expected,) = torch.autograd.grad(weights(x).sin().sum(), x)
    value = compiled(x).sin().sum()
    weights.layer.relaxation = si.get_relaxation("sparsemap", temperature=3.0)
    (found,) = torch.autograd.grad(value, x)
    torch.testing.assert_close(found, expected)
    assert_equal(compiled, weights, x)


# ----------------------------------------------------------------------------- objects made within


@every_backend
def test_objects_that_the_compiled_program_makes(backend):
    """Their options are read from the program, and not from the classes' defaults."""

    def model(x: Tensor, t: float) -> Tensor:
        return si.relax(x, "subset", Marginals(temperature=t), k=2)

    compiled = whole(model, backend)
    for t in (0.5, 0.2):
        assert_equal(compiled, model, scores(2, 4), t)


def test_objects_that_the_compiled_program_makes_by_name():
    """Its graph may break, where it first looks for the names."""

    def model(x: Tensor) -> Tensor:
        found = si.relax(x, si.get_oracle("subset", k=2), si.get_relaxation("marginals", temperature=0.5))
        return found + si.Layer("subset", "marginals", k=3, temperature=0.2)(x)

    assert_equal(torch.compile(model, backend="eager"), model, scores(2, 4))


def test_entropies_that_the_compiled_program_makes():
    def model(x: Tensor) -> Tensor:
        return simplex.simplex_loss(x, Y, simplex.TsallisEntropy(1.3))

    assert_equal(whole(model), model, scores(2, 4))


class _Plain(si.Oracle):
    """Of no dataclass, so that there is no telling what makes one."""

    event_ndim = 1

    def __init__(self, sign: float = 1.0) -> None:
        self.sign = sign

    def argmax(self, theta: Any) -> Tensor:
        return nn.functional.one_hot((self.sign * theta).argmax(-1), theta.shape[-1]).to(theta)


class _Nameless(_Plain):
    def __repr__(self) -> str:
        return "Nameless()"


def test_objects_that_look_the_same():
    compiled = whole(lambda oracle, x: si.relax(x, oracle, "map"))
    for oracle in (_Nameless(), _Nameless(-1.0)):
        assert_equal(
            lambda x, oracle=oracle: compiled(oracle, x), lambda x, o=oracle: si.relax(x, o, "map"), scores(2, 4)
        )


def test_other_objects_that_the_compiled_program_makes():
    def model(x: Tensor) -> Tensor:
        return si.relax(x, _Plain(-1.0), "map")

    torch.testing.assert_close(torch.compile(model, backend="eager")(scores(2, 4)), model(scores(2, 4)))


# ----------------------------------------------------------------------------- errors and warnings


WRONG: dict[str, tuple[Callable[[Tensor], Any], type[Exception], str]] = {
    "name": (lambda x: si.relax(x, "chian", "map"), si.UnknownNameError, "did you mean .chain."),
    "relaxation": (lambda x: si.relax(x, "subset", "margnals", k=2), si.UnknownNameError, "did you mean .marginals."),
    "option": (lambda x: si.relax(x, "assignment", "map", k=2), TypeError, "there is no option .k."),
    "no option": (lambda x: si.relax(x, "dag_path", "map"), TypeError, "needs the option .graph."),
    "pair": (lambda x: si.relax(x, "assignment", "marginals"), si.UnsupportedError, "lacks the ability GibbsOracle"),
    "value": (lambda x: si.relax(x, "subset", "map", k=-1), si.InvalidInputError, "k must be"),
    "forgotten": (lambda x: si.relax("subset", x, "map"), TypeError, "must be a name or Oracle object, got a .ensor"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_names_and_options(name):
    from torch._dynamo.exc import Unsupported  # takes seconds

    function, kind, message = WRONG[name]
    with pytest.raises(Unsupported, match=f"raised exception .*{message}"):
        whole(function)(torch.zeros(2, 4))
    torch.compiler.reset()
    with pytest.raises(kind, match=message):
        torch.compile(function, backend="eager")(torch.zeros(2, 4))


LOSS = si.FenchelYoungLoss("categorical", reduction="none")
SHAPES: dict[str, tuple[Callable[..., Any], str]] = {
    "dimensions": (lambda x: si.relax(x[0], "assignment", "map"), "needs at least 2 dimensions"),
    "batches": (
        lambda x: si.relax((x.view(1, 2, 2).expand(3, 2, 2), x.view(1, 2, 2).expand(4, 2, 2)), "chain", "map"),
        "must broadcast",
    ),
    "a tuple": (lambda x: si.relax((x, x), "assignment", "map"), "takes one tensor, got a tuple of 2"),
    "too many": (lambda x: si.relax((x, x, x), "chain", "map"), "got 3 tensors"),
    "too few": (lambda x: si.relax(x, "subset", "map", k=9), "subset takes 9 of d elements, got d = 4"),
    "labels": (lambda x: LOSS(x, torch.zeros(3).long()), r"got shape \(3,\)"),
}


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_what_is_wrong_with_shapes(name, fullgraph):
    function, message = SHAPES[name]
    with pytest.raises(si.InvalidInputError, match=message):
        torch.compile(function, backend="eager", fullgraph=fullgraph)(torch.zeros(1, 4))


def test_calls_that_break_the_graph_warn_of_nothing():
    def model(labels: Tensor) -> Tensor:
        y = si.encode(labels, torch.zeros(3, 4), "subset", k=2)
        made = si.get_oracle("subset", k=2), si.get_relaxation("map")
        return si.decode(y, "subset", k=2) + si.infer(y, *made).mean

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.compile(model, backend="eager")(torch.tensor([[1, 1, 0, 0]]).expand(3, 4))
