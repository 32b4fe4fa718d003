"""How f is called, what goes in and comes out, and what bad input gets; for every estimator."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import structinf as si
from estimator_enumeration import SMALL, Listed, cost, flat, generator, gradients, potentials, tensors
from oracle_example import Example
from structinf.estimators import Estimator, ScoreFunction, WeightedStructures
from structinf.estimators.equal_rows import group_equal_rows

pytestmark = pytest.mark.slow

OF_ALL = [name for name in si.list_estimators() if name not in ("rebar", "relax")]
SERVED = {
    "categorical": si.list_estimators(),
    "bits": si.list_estimators(),
    "subset": OF_ALL,
    "arborescence": ["exact", "perturbed", "score_function", "sparsemap", "sparsemax"],
    "assignment": ["exact", "perturbed", "sparsemap", "sparsemax", "topk_sparsemax"],
    "chain": OF_ALL,
}
PAIRS = [(example, name) for example in SMALL for name in SERVED[example.name]]
pairs = pytest.mark.parametrize(("example", "estimator"), PAIRS, ids=lambda case: str(case))
estimators = pytest.mark.parametrize("estimator", si.list_estimators())
DRAWS = ("muprop", "perturbed", "rebar", "relax", "score_function", "sum_and_sample", "unordered_set")
AT_MEANS = {"muprop": 1, "rebar": 2, "relax": 2}
"""Estimators that evaluate f, and its derivative, at so many points of an instance that are no structures."""


class Recorder:
    """f, and with what it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[torch.Tensor, tuple[torch.Tensor, ...]]] = []

    def __call__(self, y: Any, *rows: torch.Tensor) -> torch.Tensor:
        self.calls.append((flat(y), rows))
        return cost(y)


# ----------------------------------------------------------------------------- how f is called


@pairs
def test_f_is_called_once_with_distinct_structures_and_the_rows_of_their_instances(example: Example, estimator: str):
    theta, f, batch = potentials(example, 6), Recorder(), 6
    with torch.no_grad():
        tensors(theta)[0].view(batch, -1)[::2, 1] = -torch.inf
    inputs = [torch.arange(batch), torch.randn(batch, 3, 2)]
    value = si.expect(f, theta, example.oracle(), estimator, inputs=inputs, generator=generator())
    assert value.shape == (batch,)
    assert len(f.calls) == 1
    y, (instance, rows) = f.calls[0]
    assert torch.equal(rows, inputs[1][instance])
    assert instance.tolist() == sorted(instance.tolist())
    assert set(instance.tolist()) == set(range(batch))
    assert len(torch.cat([instance[:, None], y], 1).unique(dim=0)) == len(y)
    if estimator in AT_MEANS:
        y = y.detach()[(y == y.round()).all(1)]
        assert len(y) == len(instance) - AT_MEANS[estimator] * batch
        return
    known = {tuple(row) for row in Listed.of(example).rows.tolist()}
    assert {tuple(row) for row in y.tolist()} <= known
    assert not y[instance % 2 == 0, 1].any()  # the forbidden part


@pairs
def test_a_black_box_is_enough(example: Example, estimator: str):
    theta = potentials(example, 3)

    def black_box(y: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray([float(v) for v in cost(y).numpy()]))

    if estimator in AT_MEANS:
        with pytest.raises(RuntimeError, match="requires grad"):
            si.expect(black_box, theta, example.oracle(), estimator)
        return
    value, plain = (si.expect(f, theta, example.oracle(), estimator, generator=generator()) for f in (black_box, cost))
    torch.testing.assert_close(value, plain, rtol=0, atol=0)
    torch.testing.assert_close(gradients(value, theta), gradients(plain, theta), rtol=0, atol=0)


@pairs
def test_what_f_depends_on_gets_its_gradient(example: Example, estimator: str):
    theta = potentials(example, 3)
    weights = torch.linspace(-1, 1, example.parts, dtype=torch.float64).requires_grad_()
    scale = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def linear(y: Any, s: torch.Tensor) -> torch.Tensor:
        return s * (flat(y) @ weights)

    def total() -> torch.Tensor:
        return si.expect(linear, theta, example.oracle(), estimator, inputs=scale, generator=generator()).sum()

    found = torch.autograd.grad(total(), (weights, scale))
    # The expectation is linear in both: the gradients are its values for the unit vectors.
    with torch.no_grad():
        mean = torch.stack([
            si.expect(lambda y, i=i: flat(y)[:, i], theta, example.oracle(), estimator, generator=generator())
            for i in range(example.parts)
        ])  # fmt: skip
    torch.testing.assert_close(found[0], mean.sum(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(found[1], weights.detach() @ mean, rtol=0, atol=1e-12)


def test_the_mean_structure_under_exact_is_the_marginals():
    theta = (torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64))
    unary, transition = si.relax(theta, "chain", "marginals", lengths=[4, 2])
    for i in range(3):
        value = si.expect(lambda y, i=i: y[0][:, 1, i] + y[1][:, i, 0], theta, "chain", lengths=[4, 2])
        torch.testing.assert_close(value, unary[:, 1, i] + transition[:, i, 0])


@pytest.mark.parametrize(
    "parts",
    [
        [torch.randint(2, (200, 6)).float()],
        [torch.randint(2, (200, 3)).float(), torch.randint(-3, 4, (200, 2)).double()],
        [torch.randint(4, (300, 4)).double() / 3],
        [torch.randint(2, (50, 4)).double() * 1e300],
        [torch.zeros(5, 0), torch.tensor([0.0, -0.0, 1.0, 0.0, 1.0])[:, None]],
        [torch.zeros(4, 0)],
        [torch.zeros(0, 3)],
    ],
    ids=["bits", "several", "fractions", "large", "no-parts-of-one-kind", "no-parts", "none"],
)
def test_equal_structures_are_found(parts: list[torch.Tensor]):
    rows = torch.cat([t.double() for t in parts], 1)
    same = (rows[:, None] == rows[None]).all(2)
    kind = group_equal_rows(parts)
    assert torch.equal(kind[:, None] == kind[None], same)


# ----------------------------------------------------------------------------- shapes, dtypes, lengths


@pairs
def test_the_empty_batch(example: Example, estimator: str):
    theta, f = potentials(example, 0), Recorder()
    value = si.expect(f, theta, example.oracle(), estimator, inputs=torch.zeros(0, 2))
    assert value.shape == (0,)
    assert not f.calls
    assert all(g.shape[0] == 0 for g in torch.autograd.grad(value.sum(), tensors(theta)))


@pairs
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(example: Example, estimator: str, dtype: torch.dtype):
    exact = potentials(example, 2)
    theta = [t.detach().to(dtype).requires_grad_() for t in tensors(exact)]
    given = tuple(theta) if example.is_tuple else theta[0]
    wide = [t.detach().double().requires_grad_() for t in theta]
    seen = []

    def seeing(y: Any) -> torch.Tensor:
        seen.append(tensors(y)[0].dtype)
        return cost(y)

    options: Any = {} if estimator in DRAWS and estimator != "sum_and_sample" else {"estimator": estimator}
    value = si.expect(seeing, given, example.oracle(), **options)
    double = si.expect(cost, tuple(wide) if example.is_tuple else wide[0], example.oracle(), **options)
    assert value.dtype == dtype
    assert seen == [dtype]
    torch.testing.assert_close(value.double(), double, rtol=0, atol=50 * torch.finfo(dtype).eps)
    for g, wanted in zip(torch.autograd.grad(value.sum(), theta), torch.autograd.grad(double.sum(), wide), strict=True):
        assert g.dtype == dtype
        torch.testing.assert_close(g.double(), wanted, rtol=0, atol=50 * torch.finfo(dtype).eps)


@estimators
def test_batches_of_several_dimensions_and_none(estimator: str):
    theta = torch.randn(2, 3, 4, dtype=torch.float64)
    inputs = torch.randn(2, 3, 5, dtype=torch.float64)

    def f(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        assert x.shape == (len(y), 5)
        return cost(y) * x.sum(1)

    flat_value = si.expect(
        f, theta.flatten(0, 1), "categorical", estimator, inputs=inputs.flatten(0, 1), generator=generator()
    )
    value = si.expect(f, theta, "categorical", estimator, inputs=inputs, generator=generator())
    torch.testing.assert_close(value, flat_value.view(2, 3))
    one = si.expect(f, theta[0, 0], "categorical", estimator, inputs=[inputs[0, 0]], generator=generator())
    assert one.shape == ()


@pytest.mark.parametrize("estimator", SERVED["chain"])
def test_lengths(estimator: str):
    example = SMALL[-1]
    lengths, batch = [3, 1, 2, 1], 4
    unary, transition = potentials(example, batch)
    with torch.no_grad():
        unary[1, 1:] = torch.nan  # the padding
    f = Recorder()
    value = si.expect(
        f, (unary, transition), "chain", estimator, lengths=lengths, inputs=torch.arange(batch), generator=generator()
    )
    slope = gradients(value, (unary, transition))
    assert slope.isfinite().all()
    y, (instance,) = f.calls[0]
    for b, length in enumerate(lengths):
        listed = Listed.of(example, length)
        own = (unary[b : b + 1].nan_to_num(), transition[b : b + 1])
        if estimator not in AT_MEANS:
            assert {tuple(row) for row in y[instance == b].tolist()} <= {tuple(row) for row in listed.rows.tolist()}
        if estimator == "exact":
            exact, wanted = listed.gibbs(own)
            torch.testing.assert_close(value[b], exact[0], rtol=0, atol=1e-12)
            torch.testing.assert_close(slope[b], wanted[0], rtol=0, atol=1e-12)


def test_a_shared_tensor_gets_the_sum_of_the_gradients():
    example = SMALL[-1]
    unary, transition = potentials(example, 3)
    shared = transition[0].detach().requires_grad_()
    own = shared.detach().expand(3, 2, 2).clone().requires_grad_()
    for estimator in SERVED["chain"]:
        values = [si.expect(cost, (unary, t), "chain", estimator, generator=generator()) for t in (shared, own)]
        torch.testing.assert_close(values[0], values[1])
        slopes = [torch.autograd.grad(v.sum(), t)[0] for v, t in zip(values, (shared, own), strict=True)]
        if estimator != "perturbed":  # whose copies of a shared tensor have noise of their own
            torch.testing.assert_close(slopes[0], slopes[1].sum(0))


def test_numbers_of_any_kind():
    theta = torch.zeros(2, 3, requires_grad=True)
    for f in (lambda y: y.argmax(1), lambda y: y[:, 0] > 0, lambda y: y[:, 0].double()):
        value = si.expect(f, theta, "categorical")
        assert value.dtype == torch.float32
        value.sum().backward()
    torch.testing.assert_close(si.expect(lambda y: y.argmax(1), theta, "categorical"), torch.ones(2))


@estimators
def test_modes(estimator: str):
    theta = torch.randn(2, 4)
    seen = []

    def decoder(y: torch.Tensor) -> torch.Tensor:
        seen.append((y @ torch.ones(4, 4)).dtype)
        return 1.5 * y[:, 0] - y[:, 1]

    plain = si.expect(decoder, theta, "categorical", estimator, generator=generator())
    with torch.autocast("cpu", torch.bfloat16):
        mixed = si.expect(decoder, theta, "categorical", estimator, generator=generator())
    assert seen == [torch.float32, torch.bfloat16]  # f keeps the caller's surroundings
    with torch.inference_mode():
        torch.testing.assert_close(si.expect(decoder, theta, "categorical", estimator, generator=generator()), plain)
    torch.testing.assert_close(mixed, plain)


# ----------------------------------------------------------------------------- randomness


@estimators
def test_the_generator_alone_is_drawn_from(estimator: str):
    theta, state = torch.zeros(50, 4), torch.get_rng_state()
    options: Any = {"k": 1} if estimator == "sum_and_sample" else {}
    first, again, other = (
        si.expect(cost, theta, "categorical", estimator, generator=generator(seed), **options) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (estimator not in DRAWS)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(1)
    fresh = [si.expect(cost, theta, "categorical", estimator, **options) for _ in range(2)]
    assert torch.equal(*fresh) == (estimator not in DRAWS)


# ----------------------------------------------------------------------------- objects and names


@estimators
def test_estimators_are_modules_that_can_be_copied(estimator: str):
    theta, found = torch.randn(3, 4), si.get_estimator(estimator)
    assert isinstance(found, Estimator)
    assert isinstance(found, torch.nn.Module)
    value = si.expect(cost, theta, "categorical", found, generator=generator())
    for twin in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert torch.equal(si.expect(cost, theta, "categorical", twin, generator=generator()), value)
        assert repr(twin) == repr(found)
    assert si.get_estimator(found) is found


def test_options_are_shared_out_by_name():
    theta = torch.randn(2, 5)
    value = si.expect(cost, theta, "subset", "sparsemap", k=2, temperature=0.5)
    assert torch.equal(value, si.expect(cost, theta, si.get_oracle("subset", k=2), "sparsemap", temperature=0.5))
    with pytest.raises(
        TypeError,
        match=r"'k' is ambiguous, because both subset and topk_sparsemax have it; .*get_estimator\('topk_sparsemax'",
    ):
        si.expect(cost, theta, "subset", "topk_sparsemax", k=2)
    with pytest.raises(TypeError, match=r"no option 'sample' .*did you mean 'samples'"):
        si.expect(cost, theta, "bits", "score_function", sample=3)


def test_an_estimator_of_one_s_own():
    class First(Estimator):
        """The best structure alone."""

        def weighted_structures(self, oracle: si.Oracle, theta: Any, generator: Any = None) -> WeightedStructures:
            y: Any = oracle.argmax(theta.detach())
            return WeightedStructures.of(y[None], theta.new_ones(1, len(theta)))

    theta = torch.randn(3, 4)
    torch.testing.assert_close(si.expect(cost, theta, "categorical", First()), cost(torch.eye(4)[theta.argmax(1)]))


def test_a_score_function_needs_no_list():
    theta = torch.randn(2, 200, requires_grad=True)
    value = si.expect(lambda y: y.mean(1), theta, "bits", ScoreFunction(samples=4), generator=generator())
    value.sum().backward()
    assert theta.grad is not None
    assert theta.grad.isfinite().all()
