"""Fenchel-Young losses for means as targets: averages of annotations, and the scores of a teacher."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import oracle_examples
import structinf as si
from oracle_examples import Example
from structinf.parts import Parts, as_tuple, map_parts

EXACT = ("map", "sparsemap", "sinkhorn", "frank_wolfe")
"""Relaxations with a known Ω in conv(Y)."""

EXAMPLES = oracle_examples.one_for_each(lambda oracle: type(oracle))
PAIRS = [
    pytest.param(example, name, dtype, id=f"{example}-{name}-{dtype}")
    for i, example in enumerate(EXAMPLES)
    for k, name in enumerate((*EXACT, "marginals", "smoothed", "perturbed"))
    for j, dtype in enumerate((torch.float32, torch.float64))
    if (i + k + j) % 2 == 0 and si.get_relaxation(name).unsupported_reason(example.oracle()) is None
]


def leaves(theta: Parts) -> Parts:
    return map_parts(lambda t: t.detach().clone().requires_grad_(), theta)


@pytest.mark.matrix
@pytest.mark.parametrize(("example", "name", "dtype"), PAIRS)
def test_the_loss_of_a_mean_is_the_divergence_from_a_teacher(example: Example, name: str, dtype: torch.dtype) -> None:
    oracle, relaxation = example.oracle(), si.get_relaxation(name).exact()
    theta, teacher = example.draw(2, dtype, 0), example.draw(2, dtype, 1)
    loss = si.FenchelYoungLoss(oracle, relaxation, reduction="none")
    generator = torch.Generator()
    own, other = leaves(theta), leaves(theta)
    taught = loss(own, target_potentials=teacher, generator=generator.manual_seed(0))
    taught.sum().backward()
    tolerance = 1e-8 if dtype is torch.float64 else 2e-5
    assert (taught >= 0).all()
    at_minimum = loss(teacher, target_potentials=teacher, generator=generator.manual_seed(0))
    torch.testing.assert_close(at_minimum, torch.zeros(2, dtype=dtype), rtol=0, atol=tolerance)
    if relaxation.is_stochastic:
        return
    found = si.infer(map_parts(Tensor.double, teacher), oracle, relaxation)
    mean = map_parts(lambda t: t.to(dtype), found.mean)
    losses = loss(other, mean)
    losses.sum().backward()
    for t, o in zip(as_tuple(own), as_tuple(other), strict=True):
        torch.testing.assert_close(t.grad, o.grad, rtol=0, atol=tolerance**0.5)
    at_mean = torch.stack(
        [(t.double() * m).flatten(1).sum(1) for t, m in zip(as_tuple(teacher), as_tuple(found.mean), strict=True)]
    ).sum(0)
    # Without target_potentials, the value lacks Ω(μ) = ⟨η, μ⟩ − Ω*(η) for relaxations without a known Ω.
    missing = 0 if name in EXACT else at_mean - found.value
    torch.testing.assert_close(losses.double() + missing, taught.double(), rtol=0, atol=10 * tolerance)


def test_the_divergence_of_marginals_is_the_divergence_of_the_distributions():
    generator = torch.Generator().manual_seed(0)
    theta, teacher = (torch.randn(3, 4, 4, generator=generator).double() for _ in range(2))
    for temperature in (0.5, 1.0):
        loss = si.FenchelYoungLoss("arborescence", "marginals", temperature=temperature, reduction="none")
        p, q = (si.Gibbs(t, "arborescence", temperature=temperature) for t in (teacher, theta))
        expected = temperature * torch.distributions.kl_divergence(p, q)
        torch.testing.assert_close(loss(theta, target_potentials=teacher), expected)


def test_annotations_are_averaged():
    theta = torch.tensor([[0.5, 0.2, 0.1]], dtype=torch.float64, requires_grad=True)
    labels = [torch.tensor([0]), torch.tensor([2])]
    structures = [si.encode(y, theta, "categorical") for y in labels]
    mean = torch.stack(structures).mean(0)
    loss = si.FenchelYoungLoss("categorical", "marginals")
    cross_entropy = torch.nn.functional.cross_entropy(theta, mean)
    torch.testing.assert_close(loss(theta, mean), cross_entropy)
    torch.testing.assert_close(loss(theta, mean), torch.stack([loss(theta, y) for y in labels]).mean())
    assert gradcheck(lambda t: loss(t, mean), theta)
    assert gradcheck(lambda t: si.FenchelYoungLoss("categorical", "sparsemap")(t, mean), theta)


def test_batches_mix_structures_and_means():
    theta = torch.zeros(3, 2, 2, dtype=torch.float64)
    y = torch.stack([torch.eye(2), torch.full((2, 2), 0.5), torch.eye(2).flip(0)]).double()
    for name in ("sparsemap", "sinkhorn", "map"):
        loss = si.FenchelYoungLoss("assignment", name, reduction="none")
        for b in range(3):
            torch.testing.assert_close(loss(theta, y)[b], loss(theta[b], y[b]))
    wrong = y.clone()
    wrong[2] = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    with pytest.raises(si.InvalidInputError, match="batch index 2"):
        si.FenchelYoungLoss("assignment", "sinkhorn")(theta, wrong)


@pytest.mark.parametrize(
    ("oracle", "shape", "y", "match"),
    [
        ("assignment", (2, 2), torch.full((2, 2), 0.4), "wrong sums"),
        ("assignment", (1, 2), torch.tensor([[0.4, 0.4]]), "wrong sums"),
        ("arborescence", (2, 2), torch.tensor([[0.0, 1.5], [0.0, 0.0]]), "between 0 and 1"),
        ("categorical", (2,), torch.tensor([-0.5, 1.5]), "between 0 and 1"),
    ],
)
def test_points_outside_the_hull_are_refused(oracle, shape, y, match):
    with pytest.raises(si.InvalidInputError, match=f"y is not a mean of structures of {oracle}.*{match}"):
        si.FenchelYoungLoss(oracle, "map")(torch.zeros(shape), y)


def test_a_mean_that_scores_above_all_structures_is_refused():
    with pytest.raises(si.InvalidInputError, match="nor a mean of structures"):
        si.FenchelYoungLoss("arborescence", "map")(torch.ones(3, 3), torch.full((3, 3), 0.9))


def test_columns_that_stay_free_have_upper_bounds():
    theta, y = torch.zeros(2, 3), torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]])
    assert si.FenchelYoungLoss("assignment", "sinkhorn")(theta, y) >= 0


def test_costs_of_parts_go_with_means_and_hamming_costs_do_not():
    theta, y = torch.tensor([0.5, 0.2]), torch.tensor([0.5, 0.5])
    cost = torch.tensor([1.0, 0.0])
    loss = si.FenchelYoungLoss("categorical", "map", cost=cost)
    torch.testing.assert_close(loss(theta, y), si.FenchelYoungLoss("categorical", "map")(theta + cost, y))
    with pytest.raises(si.InvalidInputError, match="not a structure"):
        si.FenchelYoungLoss("categorical", "map", cost="hamming")(theta, y)
    with pytest.raises(si.UnsupportedError, match="cost"):
        si.FenchelYoungLoss("categorical", "map", cost=cost)(theta, target_potentials=theta)


def test_teachers_forbid_parts():
    theta, teacher = torch.zeros(1, 3), torch.tensor([[0.0, 1.0, -torch.inf]])
    loss = si.FenchelYoungLoss("categorical", "marginals")
    p = teacher.softmax(1)
    expected = (p[:, :2] * (p[:, :2].log() - theta.log_softmax(1)[:, :2])).sum()
    torch.testing.assert_close(loss(theta, target_potentials=teacher), expected)
    with pytest.raises(si.InvalidInputError, match="target_potentials: the mean at batch index 0 uses a part of score"):
        loss(teacher, target_potentials=theta)
    assert loss(teacher, target_potentials=teacher) == 0
    with pytest.raises(si.InvalidInputError, match="target_potentials must have the form of theta"):
        loss(theta, target_potentials=teacher[0])
    with pytest.raises(si.InvalidInputError, match="target_potentials holds NaN"):
        loss(theta, target_potentials=teacher * torch.nan)


def test_teachers_go_with_lengths_and_infeasible_instances():
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(4, 3, 2, generator=generator).double(), torch.zeros(2, 2).double()
    teacher = torch.randn(4, 3, 2, generator=generator).double(), torch.eye(2).double()
    theta[0][1, 0] = -torch.inf
    loss = si.FenchelYoungLoss("chain", "sparsemap", reduction="none", on_infeasible="zero")
    losses = loss(theta, target_potentials=teacher, lengths=[3, 2, 0, 2])
    assert losses[1] == 0
    assert losses[2] == 0
    for b, length in ((0, 3), (3, 2)):
        alone = [(s[0][b], s[1]) for s in (theta, teacher)]
        torch.testing.assert_close(losses[b], loss(alone[0], target_potentials=alone[1], lengths=length))


def test_losses_of_approximate_values_may_be_negative():
    field = si.get_oracle("markov_field", cardinalities=(2, 2, 2), factors=[(0, 1), (1, 2), (2, 0)])
    generator = torch.Generator().manual_seed(0)
    theta, teacher = (tuple(3 * torch.randn(500, 2, 2, generator=generator).double() for _ in range(3)) for _ in "12")
    found = si.infer(teacher, field, "mean_field")
    score = sum(((t - s) * m).sum((1, 2)) for t, s, m in zip(theta, teacher, found.mean, strict=True))
    expected = si.infer(theta, field, "mean_field").value - found.value - score
    losses = si.FenchelYoungLoss(field, "mean_field", reduction="none")(theta, target_potentials=teacher)
    assert (expected < -0.01).any()
    torch.testing.assert_close(losses, expected)


def test_infeasible_teachers_are_named():
    theta, teacher = torch.zeros(2, 3), torch.tensor([[0.0] * 3, [-torch.inf] * 3])
    loss = si.FenchelYoungLoss("categorical", "marginals", reduction="none", on_infeasible="zero")
    assert loss(theta, target_potentials=teacher).tolist() == pytest.approx([0, 0], abs=1e-6)
    loss.on_infeasible = "raise"
    with pytest.raises(si.InfeasibleError, match=r"^target_potentials: .*batch index 1.*scores of the teacher"):
        loss(theta, target_potentials=teacher)
