"""relax, infer and Layer: one result by three calls, its derivatives, warm starts, copies and threads."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from structinf import (
    ConvergenceError,
    ConvergenceWarning,
    FenchelYoungLoss,
    InvalidInputError,
    Layer,
    UnsupportedError,
    get_oracle,
    get_relaxation,
    infer,
    relax,
)
from toy_oracles import Explicit, Knapsack, Walk

pytestmark = pytest.mark.slow

RELAXATIONS = ["map", "marginals", "sparsemap"]
every_relaxation = pytest.mark.parametrize("relaxation", RELAXATIONS)


def walk(*batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(*batch, 3, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)


# ----------------------------------------------------------------------------- the layer


@every_relaxation
def test_a_layer_a_call_and_a_solution_agree(relaxation):
    theta = walk(4)
    layer = Layer(Walk(), relaxation)
    lengths = [3, 1, 2, 3]
    mean = layer(theta, lengths=lengths)
    torch.testing.assert_close(mean, relax(theta, Walk(), relaxation, lengths=lengths))
    torch.testing.assert_close(mean, layer.infer(theta, lengths=lengths).mean)
    torch.testing.assert_close(mean, infer(theta, Walk(), relaxation, lengths=lengths).mean)


def test_sparsemap_is_the_default():
    theta = torch.randn(3, 4)
    assert torch.equal(Layer("categorical")(theta), relax(theta, "categorical", "sparsemap"))
    torch.testing.assert_close(relax(theta, "categorical"), infer(theta, "categorical").mean)


def test_a_layer_says_what_it_is():
    layer = Layer("arborescence", "marginals", temperature=0.5, single_root=True)
    assert repr(layer) == "Layer(oracle=Arborescence(single_root=True), relaxation=Marginals(temperature=0.5))"
    assert not list(layer.parameters())
    assert not layer.state_dict()


def test_layers_compose():
    model = nn.Sequential(nn.Linear(7, 4), Layer("categorical", "sparsemap"), nn.Linear(4, 1))
    assert all(p.isfinite().all() for p in model.parameters())
    model(torch.randn(5, 7)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_an_oracle_of_one_method_trains():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(64, 5, generator=generator)
    teacher = torch.randn(5, 6, generator=generator)
    wanted = relax(features @ teacher, Knapsack(7), "map")
    model = nn.Sequential(nn.Linear(5, 6, bias=False), Layer(Knapsack(7), "sparsemap"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def right() -> float:
        return (relax(model[0](features), Knapsack(7), "map") == wanted).all(1).float().mean().item()

    before = right()
    for _ in range(60):
        optimizer.zero_grad()
        (model(features) - wanted).square().sum(1).mean().backward()
        optimizer.step()
    assert right() > 0.8 > before


@pytest.mark.parametrize("how", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
@every_relaxation
def test_copies_and_pickles(relaxation, how):
    layer = Layer("categorical", relaxation)
    twin = how(layer)
    assert (twin.oracle, twin.relaxation) == (layer.oracle, layer.relaxation)
    theta = torch.randn(3, 4)
    assert torch.equal(twin(theta), layer(theta))


def test_saving_a_whole_model():
    buffer = io.BytesIO()
    torch.save(nn.Sequential(nn.Linear(3, 4), Layer("categorical")), buffer)
    buffer.seek(0)
    model = torch.load(buffer, weights_only=False)
    assert model(torch.randn(2, 3)).shape == (2, 4)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler looks at it
@pytest.mark.parametrize("oracle", ["categorical", "chain"])
@every_relaxation
def test_under_torch_compile(relaxation, oracle):
    shapes = {"categorical": [(3, 4)], "chain": [(3, 5, 2), (2, 2)]}[oracle]
    tensors = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    layer = Layer(oracle, relaxation)

    def model(*tensors: Tensor) -> Tensor:
        mean = layer(tensors if oracle == "chain" else tensors[0])
        return 2 * (mean[0] if oracle == "chain" else mean).sin() + 1

    torch.compiler.reset()
    found, expected = torch.compile(model, backend="eager")(*tensors), model(*tensors)
    torch.testing.assert_close(found, expected)
    for a, e in zip(*(torch.autograd.grad(out.sum(), tensors) for out in (found, expected)), strict=True):
        torch.testing.assert_close(a, e)


# ----------------------------------------------------------------------------- the solution


@pytest.mark.parametrize("batch", [(), (3,), (2, 2), (0,)])
@every_relaxation
def test_a_solution_has_the_batchs_shape(relaxation, batch):
    solution = infer(torch.randn(*batch, 4), Explicit(), relaxation)
    assert solution.mean.shape == (*batch, 4)
    assert solution.value.shape == batch
    for name in ("gap", "converged"):
        if (field := getattr(solution, name)) is not None:
            assert field.shape == batch
    if solution.weights is None:
        assert solution.support is None
        return
    assert solution.weights.shape[1:] == batch
    assert solution.support.shape == (*solution.weights.shape, 4)
    torch.testing.assert_close((solution.weights[..., None] * solution.support).sum(0), solution.mean)


def test_values():
    theta = torch.tensor([[1.0, 2.0, 0.0]])
    assert infer(theta, "categorical", "map").value.item() == 2
    assert infer(theta, "categorical", "marginals").value.item() == pytest.approx(2.407606)
    assert infer(theta, "categorical", "marginals", temperature=2.0).value.item() == pytest.approx(3.360539)
    assert infer(theta, "categorical", "sparsemap").value.item() == pytest.approx(1.5)


def test_the_support_of_an_assignment():
    solution = infer(torch.tensor([[1.0, 0.0], [0.0, 0.5]]), "assignment", "sparsemap", tolerance=0)
    torch.testing.assert_close(solution.mean, torch.tensor([[0.875, 0.125], [0.125, 0.875]]))
    assert sorted(solution.weights.tolist()) == pytest.approx([0.125, 0.875])
    assert solution.converged
    assert solution.oracle_calls >= 2


def test_a_map_solution_is_its_own_support():
    solution = infer(torch.randn(2, 4), Explicit(), "map")
    assert torch.equal(solution.support[0], solution.mean)
    assert solution.weights.tolist() == [[1, 1]]
    assert solution.gap.tolist() == [0, 0]
    assert solution.converged.all()


# ----------------------------------------------------------------------------- derivatives


def test_map_has_gradient_zero():
    theta = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    relax(theta, "categorical", "map").sum().backward()
    assert theta.grad.tolist() == [[0, 0, 0]]


def test_values_have_the_mean_as_gradient():
    for relaxation in RELAXATIONS:
        theta = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
        solution = infer(theta, Explicit(), relaxation)
        (gradient,) = torch.autograd.grad(solution.value.sum(), theta)
        torch.testing.assert_close(gradient, solution.mean.detach(), msg=relaxation)


@pytest.mark.parametrize("make", [lambda: Layer("chain", "marginals"), lambda: FenchelYoungLoss("chain", "marginals")])
def test_attributes_are_objects(make):
    module = make()
    module.oracle, module.relaxation = get_oracle("categorical"), get_relaxation("sparsemap")
    for name, value in (("oracle", "chain"), ("relaxation", "map")):
        with pytest.raises(TypeError, match=rf"must be an object, got the name '{value}'.*si\.get_{name}\('{value}'\)"):
            setattr(module, name, value)


def test_a_second_derivative_of_sparsemap_is_refused():
    theta = torch.randn(2, 4, requires_grad=True)
    mean = relax(theta, Explicit(), "sparsemap")
    (gradient,) = torch.autograd.grad(mean.square().sum(), theta, create_graph=True)
    with pytest.raises(
        UnsupportedError, match=r"sparsemap of toy_explicit offers first derivatives only; .* marginals"
    ):
        torch.autograd.grad(gradient.sum(), theta)


def test_marginals_are_differentiable_three_times():
    layer = Layer(Walk(), "marginals")
    theta = tuple(t.requires_grad_() for t in walk(2))

    def gradient(*tensors: Tensor) -> tuple[Tensor, ...]:
        mean = layer(tensors)
        return torch.autograd.grad(sum(m.pow(3).sum() for m in mean), tensors, create_graph=True)

    assert gradcheck(gradient, theta)
    assert gradgradcheck(gradient, theta, fast_mode=True)


def test_derivatives_along_a_direction_that_is_zero_in_places():
    """A read-out layer that starts at zero: its own gradient of the gradient is not zero."""
    theta = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.zeros(4, dtype=torch.float64, requires_grad=True)

    def gradient(theta: Tensor, weight: Tensor) -> Tensor:
        out = (relax(theta, Explicit(), "marginals") * weight).sum()
        return torch.autograd.grad(out, theta, create_graph=True)[0]

    assert gradcheck(gradient, (theta, weight))


def test_no_grad_and_detached_input():
    theta = torch.randn(2, 4, requires_grad=True)
    for relaxation in RELAXATIONS:
        with torch.no_grad():
            assert not relax(theta, Explicit(), relaxation).requires_grad
        assert not relax(theta.detach(), Explicit(), relaxation).requires_grad
        assert relax(theta, Explicit(), relaxation).requires_grad


# ----------------------------------------------------------------------------- warm starts and convergence


def test_a_warm_start_saves_oracle_calls():
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(4, 6, 6, generator=generator)
    first = infer(theta, "assignment", "sparsemap", tolerance=0)
    again = infer(
        theta + 1e-4 * torch.randn(4, 6, 6, generator=generator),
        "assignment",
        "sparsemap",
        tolerance=0,
        warm_start=first,
    )
    cold = infer(theta, "assignment", "sparsemap", tolerance=0)
    assert again.oracle_calls < cold.oracle_calls
    torch.testing.assert_close(again.mean, first.mean, atol=1e-3, rtol=0)


def test_a_warm_start_of_another_problem_changes_nothing_but_time():
    theta, other = torch.randn(2, 2, 3, 4, dtype=torch.float64)
    start = infer(other, Explicit(), "sparsemap", tolerance=0)
    warm = infer(theta, Explicit(), "sparsemap", tolerance=0, warm_start=start)
    torch.testing.assert_close(warm.mean, relax(theta, Explicit(), "sparsemap", tolerance=0))


def test_a_warm_start_has_the_same_gradient():
    theta = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    start = infer(theta, Explicit(), "sparsemap", tolerance=0)
    assert gradcheck(lambda t: infer(t, Explicit(), "sparsemap", tolerance=0, warm_start=start).mean, theta)


def test_warm_starts_that_do_not_fit():
    start = infer(torch.randn(2, 4), Explicit(), "sparsemap")
    with pytest.raises(InvalidInputError, match=r"have shape \(2, 4\), and theta needs shape \(3, 4\)"):
        infer(torch.randn(3, 4), Explicit(), "sparsemap", warm_start=start)
    with pytest.raises(InvalidInputError, match=r"^warm_start: the solution belongs to an oracle with other"):
        infer(walk(2), Walk(), "sparsemap", warm_start=start)
    with pytest.raises(InvalidInputError, match=r"^warm_start: the solution has no support"):
        infer(torch.randn(2, 4), Explicit(), "sparsemap", warm_start=infer(torch.randn(2, 4), Explicit(), "marginals"))
    for relaxation in ("map", "marginals"):
        with pytest.raises(UnsupportedError, match=f"{relaxation} is not iterative and takes no warm_start"):
            infer(torch.randn(2, 4), Explicit(), relaxation, warm_start=start)


@pytest.mark.parametrize("other", [{"lengths": [2, 3]}, {"lengths": [4, 4]}, {}])
def test_warm_starts_of_other_instances(other):
    theta = torch.randn(2, 5, 5)
    start = infer(theta, "arborescence", lengths=[4, 3])
    with pytest.raises(InvalidInputError, match=r"^warm_start: the solution belongs to an oracle with other"):
        infer(theta, "arborescence", warm_start=start, **other)
    again = infer(theta, "arborescence", warm_start=start, lengths=[4, 3])
    torch.testing.assert_close(again.mean, start.mean)


def test_a_solver_that_stops_early_says_so_with_numbers():
    theta = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(0))
    with pytest.warns(
        ConvergenceWarning, match=r"sparsemap of assignment: 3 of 3 instances .* gap of .*max_iter is 1 and"
    ) as seen:
        solution = infer(theta, "assignment", "sparsemap", max_iter=1)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert not solution.converged.any()
    assert (solution.gap > 0).all()
    best = infer(theta, "assignment", "sparsemap", tolerance=0).value
    assert (best <= solution.value + solution.gap + 1e-5).all()
    with pytest.raises(ConvergenceError, match="3 of 3 instances"):
        relax(theta, "spanning_tree", "sparsemap", max_iter=1, on_failure="raise")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        relax(theta, "spanning_tree", "sparsemap", max_iter=1, on_failure="ignore")


@pytest.mark.parametrize("tolerance", [1e-6, 1e-10])
def test_the_gradient_does_not_hang_on_the_solvers_tolerance(tolerance):
    theta = torch.randn(2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    exact, loose = (
        torch.autograd.grad(relax(theta, "assignment", "sparsemap", tolerance=t).square().sum(), theta)[0]
        for t in (1e-14, tolerance)
    )
    torch.testing.assert_close(loose, exact, atol=1e-5, rtol=0)


# ----------------------------------------------------------------------------- threads


ORACLES = {"categorical": (5,), "chain": ((6, 4), (4, 4)), "assignment": (5, 5), "arborescence": (6, 6)}


def relaxed(index: int) -> list[torch.Tensor]:
    """Structures and SparseMAP means of some oracles, with their gradients, for potentials that ``index`` seeds."""
    generator = torch.Generator().manual_seed(index)
    found = []
    for name, shapes in ORACLES.items():
        is_tuple = not isinstance(shapes[0], int)
        drawn = [torch.randn(2, *s, generator=generator).requires_grad_() for s in (shapes if is_tuple else [shapes])]
        theta = tuple(drawn) if is_tuple else drawn[0]
        for relaxation in ("map", "sparsemap"):
            mean = relax(theta, name, relaxation)
            first = mean[0] if is_tuple else mean
            (gradient,) = torch.autograd.grad(first.square().sum(), drawn[:1])
            found += [first.detach(), gradient]
    return found


def test_several_python_threads():
    expected = [relaxed(index) for index in range(6)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(relaxed, itertools.chain.from_iterable([range(6)] * 4)))
    for i, answers in enumerate(found):
        for a, e in zip(answers, expected[i % 6], strict=True):
            torch.testing.assert_close(a, e)
