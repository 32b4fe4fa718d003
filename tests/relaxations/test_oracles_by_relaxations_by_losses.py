"""Oracles × relaxations × losses through the public calls: values by independent enumeration, derivatives by gradcheck.

Generated from the registries: a new plugin is in it once tests/helpers/oracle_examples.py knows a size for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import enumerators
import oracle_examples
import structinf
from oracle_examples import Example
from structinf import (
    FenchelYoungLoss,
    GibbsOracle,
    Layer,
    Negentropy,
    Parts,
    RegularizedRelaxation,
    Regularizer,
    Relaxation,
    Smoothable,
    SquaredL2,
    Tsallis,
    get_relaxation,
    infer,
    relax,
)
from structinf.parts import as_tuple, map_parts
from structinf.relaxations.marginals import Marginals
from structinf.relaxations.sparsemap import SparseMAP

pytestmark = [pytest.mark.slow, pytest.mark.matrix]

BATCH = 2

# What each relaxation is, over a list of all structures.
SOLVED = {
    "map": lambda scores, structures: max(structures, key=lambda y: enumerators.score(scores, y)),
    "marginals": enumerators.mean,
    "frank_wolfe": enumerators.projection,
    "sparsemap": enumerators.projection,
}
SOLVED.update(dict.fromkeys(("straight_through", "negative_identity", "spigot", "blackbox"), SOLVED["map"]))

listed = oracle_examples.parametrize(lambda example: example.listing is not None)
costs = pytest.mark.parametrize("cost", [None, "hamming"])


def draw(example: Example, dtype: torch.dtype = torch.float64, scale: float = 1.0, seed: int = 0) -> Parts:
    """Normal potentials (BATCH, *event), or costs of their sizes."""
    generator = torch.Generator().manual_seed(seed)
    drawn = tuple(torch.randn(BATCH, *s, generator=generator, dtype=torch.float64) * scale for s in example.shapes)
    if example.oracle().requires_nonpositive_theta:
        drawn = tuple(-t.abs() for t in drawn)
    return map_parts(lambda t: t.to(dtype), drawn if example.is_tuple else drawn[0])


def with_holes(example: Example, theta: Parts, kept: int = 1) -> Parts:
    """``theta`` with −inf at a third of the parts that the structure number ``kept`` does not use."""
    structures = example.listing(None)
    y = structures[kept % len(structures)]
    generator = torch.Generator().manual_seed(1)
    holed = []
    for t, z in zip(as_tuple(theta), y, strict=True):
        drawn = torch.rand(t.shape, generator=generator) < 1 / 3
        holed.append(t.masked_fill(drawn & torch.as_tensor(z == 0), -torch.inf))
    return tuple(holed) if example.is_tuple else holed[0]


def row(theta: Parts, b: int) -> tuple[np.ndarray, ...]:
    return tuple(t[b].detach().double().numpy() for t in as_tuple(theta))


def pairs(
    kind: type = Relaxation,
    wanted: Callable[[Example], bool] = lambda example: example.relaxed,
    names: Iterable[str] = structinf.list_relaxations(),
) -> pytest.MarkDecorator:
    """Run a test for each example and name of a relaxation of this ``kind`` that works for it and draws no noise."""
    found = [
        pytest.param(example, name, id=f"{example}-{name}")
        for example in filter(wanted, oracle_examples.EXAMPLES)
        for name in names
        if isinstance(structinf.get_relaxation(name), kind)
        and not structinf.get_relaxation(name).is_stochastic
        and structinf.get_relaxation(name).unsupported_reason(example.oracle()) is None
    ]
    return pytest.mark.parametrize(("example", "relaxation"), found)


def leaves_of(theta: Parts) -> tuple[Tensor, ...]:
    return tuple(t.detach().clone().requires_grad_() for t in as_tuple(theta))


def on_tensors(example: Example, function: Callable[[Parts], Any]) -> Callable[..., Any]:
    """``function`` of θ as one of the tensors of θ, which gradcheck needs."""
    return lambda *tensors: function(tensors if example.is_tuple else tensors[0])


# ----------------------------------------------------------------------------- values


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0, 1000.0])
@listed
def test_values_at_every_scale(example: Example, scale: float, dtype: torch.dtype, holes: bool) -> None:
    theta = draw(example, dtype, scale)
    if holes:
        theta = with_holes(example, theta)
    oracle = example.oracle()
    structures = example.listing(None)
    found = infer(theta, oracle, "map")
    gibbs = infer(theta, oracle, "marginals") if isinstance(oracle, structinf.GibbsOracle) else None
    rounding = 16 * torch.finfo(dtype).eps
    for b in range(BATCH):
        scores = row(theta, b)
        size = 1 + np.abs([enumerators.score(scores, y) for y in structures]).max(
            initial=0, where=[enumerators.score(scores, y) > -np.inf for y in structures]
        )
        y = row(found.mean, b)
        assert any(all(np.array_equal(a, e) for a, e in zip(y, z, strict=True)) for z in structures)
        best = enumerators.best(scores, structures)
        assert enumerators.score(scores, y) == pytest.approx(best, abs=rounding * size)
        assert found.value[b].item() == pytest.approx(best, abs=rounding * size)
        if gibbs is not None:
            expected = enumerators.log_partition(scores, structures)
            assert gibbs.value[b].item() == pytest.approx(expected, abs=rounding * size)
            for a, e in zip(row(gibbs.mean, b), enumerators.mean(scores, structures), strict=True):
                np.testing.assert_allclose(a, e, atol=rounding * size, rtol=0)


@pairs(wanted=lambda example: bool(example.listing and example.lengths), names=SOLVED)
def test_lengths_all_shorter_than_the_padding(example: Example, relaxation: str) -> None:
    for lengths in example.lengths:
        structures = example.listing(lengths)
        theta = draw(example)
        options = {"penalty": "all"} if relaxation == "sparsemap" else {}
        exact = get_relaxation(relaxation, **options).exact()
        mean = relax(theta, example.oracle(), exact, lengths=[lengths] * BATCH)
        for b in range(BATCH):
            for a, e in zip(row(mean, b), SOLVED[relaxation](row(theta, b), structures), strict=True):
                np.testing.assert_allclose(a, e, atol=1e-6)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
@listed
def test_sparsemap_is_the_projection(example: Example, scale: float, holes: bool) -> None:
    theta = draw(example, scale=scale)
    if holes:
        theta = with_holes(example, theta)
    solution = infer(theta, example.oracle(), "sparsemap", penalty="all", tolerance=0)
    assert solution.converged.all()
    for b in range(BATCH):
        for a, e in zip(
            row(solution.mean, b), enumerators.projection(row(theta, b), example.listing(None)), strict=True
        ):
            np.testing.assert_allclose(a, e, atol=1e-6)


@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
@oracle_examples.parametrize(lambda example: example.listing is not None and example.oracle().has_readout)
def test_default_sparsemap_penalises_the_readout_of_counts_and_all_other_parts(example: Example, scale: float) -> None:
    theta, oracle = draw(example, scale=scale), example.oracle()
    counts = not oracle.has_binary_parts(theta)
    for mean in (relax(theta, oracle, "sparsemap", tolerance=0), infer(theta, oracle, "sparsemap", tolerance=0).mean):
        penalised = oracle.readout_transpose(oracle.readout(mean), theta) if counts else mean
        gradient = map_parts(torch.sub, theta, penalised)
        for b in range(BATCH):
            hull = enumerators.projection(row(mean, b), example.listing(None))
            for a, e in zip(row(mean, b), hull, strict=True):
                np.testing.assert_allclose(a, e, atol=1e-6)
            reached = enumerators.score(row(gradient, b), row(mean, b))
            assert enumerators.best(row(gradient, b), example.listing(None)) <= reached + 1e-6


@costs
@oracle_examples.parametrize(lambda example: bool(example.listing) and all(len(shape) < 3 for shape in example.shapes))
def test_losses_have_their_textbook_values(example: Example, cost: str | None) -> None:
    theta, oracle, structures = draw(example), example.oracle(), example.listing(None)
    gold = structures[len(structures) // 2]
    y = tuple(torch.as_tensor(np.stack([z] * BATCH)) for z in gold)

    def wrong(z: enumerators.Structure) -> float:
        """The parts of the first tensor that differ, or half of them: the wrong tokens where each has one part.

        Where there are only costs, the parts that are missed.
        """
        if cost and oracle.requires_nonpositive_theta:
            return (gold[0] > z[0]).sum()
        if example.distance and cost:
            return example.distance(z, gold)
        return (np.abs(z[0] - gold[0]) ** example.power).sum() * example.part_cost if cost else 0.0

    def loss(relaxation: str) -> list[float]:
        criterion = FenchelYoungLoss(oracle, relaxation, cost=cost, reduction="none")
        return criterion(theta, y if example.is_tuple else y[0]).tolist()

    scores = [row(theta, b) for b in range(BATCH)]
    ahead = [
        [enumerators.score(s, z) + wrong(z) - enumerators.score(s, gold) for z in structures] for s in scores
    ]  # by how much each structure beats the gold one
    assert loss("map") == pytest.approx([max(a) for a in ahead], abs=1e-12)
    if isinstance(oracle, GibbsOracle):
        assert loss("marginals") == pytest.approx([np.logaddexp.reduce(a) for a in ahead], abs=1e-12)


# ----------------------------------------------------------------------------- derivatives


@pairs(RegularizedRelaxation)
def test_gradcheck(example: Example, relaxation: str) -> None:
    layer = Layer(example.oracle(), get_relaxation(relaxation).exact())
    assert gradcheck(on_tensors(example, layer), leaves_of(draw(example)), fast_mode=True)


@pairs(Marginals)
def test_marginals_are_twice_differentiable(example: Example, relaxation: str) -> None:
    layer = Layer(example.oracle(), get_relaxation(relaxation).exact())
    assert gradgradcheck(on_tensors(example, layer), leaves_of(draw(example)), fast_mode=True)


smoothable = oracle_examples.parametrize(lambda example: example.relaxed and isinstance(example.oracle(), Smoothable))
regularizers = pytest.mark.parametrize(
    "regularizer", [Negentropy(), SquaredL2(), Tsallis(alpha=1.5), Tsallis(alpha=1.3)], ids=repr
)


@regularizers
@smoothable
def test_smoothed_is_twice_differentiable(example: Example, regularizer: Regularizer) -> None:
    layer = Layer(example.oracle(), "smoothed", regularizer=regularizer, temperature=0.7)
    assert gradcheck(on_tensors(example, layer), leaves_of(draw(example)), fast_mode=True)
    assert gradgradcheck(on_tensors(example, layer), leaves_of(draw(example)), fast_mode=True)


@costs
@pairs(RegularizedRelaxation)
def test_losses_are_twice_differentiable(example: Example, relaxation: str, cost: str | None) -> None:
    loss = FenchelYoungLoss(example.oracle(), get_relaxation(relaxation).exact(), cost=cost, reduction="none")
    gold = relax(draw(example, seed=3), example.oracle(), "map")
    function, theta = on_tensors(example, lambda theta: loss(theta, gold)), leaves_of(draw(example))
    assert gradcheck(function, theta, fast_mode=True)
    assert gradgradcheck(function, theta, fast_mode=True)


@pairs(SparseMAP)
def test_weights_have_a_gradient(example: Example, relaxation: str) -> None:
    oracle = example.oracle()
    weights = on_tensors(example, lambda theta: infer(theta, oracle, relaxation).weights)
    assert gradcheck(weights, leaves_of(draw(example)), fast_mode=True)
