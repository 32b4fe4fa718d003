"""Losses of partial labels and of allowed parts, and the scores restricted to allowed parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import enumerators
import oracle_examples
import structinf as si
from oracle_examples import Example
from structinf.parts import Parts, as_tuple, map_parts

REGULARIZED = [
    relaxation
    for relaxation in map(si.get_relaxation, si.list_relaxations())
    if isinstance(relaxation, si.RegularizedRelaxation)
]
LISTED = [e for e in oracle_examples.one_for_each(lambda oracle: type(oracle)) if e.listing is not None]
LABELLED = [
    e
    for e in oracle_examples.EXAMPLES
    if type(e.oracle()).allowed_parts is not si.Oracle.allowed_parts
    and e.listing is not None
    and not getattr(e.oracle(), "allow_unmatched", False)
]
BATCH = 2


def leaves(theta: Parts) -> Parts:
    return map_parts(lambda t: t.detach().clone().requires_grad_(), theta)


def random_masks(example: Example) -> tuple[Tensor, ...]:
    """Return masks (BATCH, *event) that allow the parts of one structure, and half of the others."""
    assert example.listing is not None
    structures, generator = example.listing(None), torch.Generator().manual_seed(1)
    masks = []
    for i, shape in enumerate(example.shapes):
        used = [torch.as_tensor(np.asarray(structures[b % len(structures)][i]) != 0) for b in range(BATCH)]
        masks.append(torch.stack(used) | (torch.rand(BATCH, *shape, generator=generator) < 0.5))
    return tuple(masks)


def allowed_structures(example: Example, masks: tuple[Tensor, ...], b: int) -> list[Any]:
    assert example.listing is not None
    return [
        y
        for y in example.listing(None)
        if all(not (np.asarray(z) != 0)[~m[b].numpy()].any() for z, m in zip(y, masks, strict=True))
    ]


def row(theta: Parts, b: int) -> tuple[np.ndarray, ...]:
    return tuple(t[b].detach().double().numpy() for t in as_tuple(theta))


PAIRS = [
    pytest.param(example, relaxation, dtype, id=f"{example}-{relaxation.name}-{dtype}")
    for i, example in enumerate(LISTED)
    for k, relaxation in enumerate(REGULARIZED)
    for j, dtype in enumerate((torch.float32, torch.float64))
    if (i + k + j) % 2 == 0 and relaxation.unsupported_reason(example.oracle()) is None
]


@pytest.mark.matrix
@pytest.mark.parametrize(("example", "relaxation", "dtype"), PAIRS)
def test_the_loss_is_a_difference_of_values(
    example: Example, relaxation: si.RegularizedRelaxation, dtype: torch.dtype
) -> None:
    oracle = example.oracle()
    theta, masks, exact = leaves(example.draw(BATCH, dtype)), random_masks(example), relaxation.exact()
    allowed = masks if example.is_tuple else masks[0]
    generator = torch.Generator().manual_seed(0)
    loss = si.FenchelYoungLoss(oracle, exact, reduction="none")
    losses = loss(theta, allowed=allowed, generator=generator)
    losses.sum().backward()
    assert (losses >= 0).all()
    restricted = si.restrict(map_parts(Tensor.detach, theta), oracle, allowed)
    found = si.infer(map_parts(Tensor.detach, theta), oracle, exact, generator=generator.manual_seed(0))
    other = si.infer(restricted, oracle, exact, generator=generator.manual_seed(0))
    tolerance = 1e-9 if dtype is torch.float64 else 2e-5
    if not relaxation.is_stochastic:
        for t, m, r in zip(*map(as_tuple, (theta, found.mean, other.mean)), strict=True):
            torch.testing.assert_close(t.grad, m - r, rtol=0, atol=math.sqrt(tolerance))
    for b in range(BATCH):
        if relaxation.is_stochastic and dtype is torch.float32:
            continue  # losses draw noise in float64
        expected = found.value[b] - other.value[b]
        torch.testing.assert_close(losses[b].detach(), expected, rtol=0, atol=tolerance)
        if relaxation.name == "marginals":
            kept = allowed_structures(example, masks, b)
            assert example.listing is not None
            difference = enumerators.log_partition(row(theta, b), example.listing(None)) - enumerators.log_partition(
                row(theta, b), kept
            )
            assert losses[b].item() == pytest.approx(difference, abs=tolerance)


@pytest.mark.parametrize("example", LABELLED, ids=str)
def test_allowed_parts_leave_the_structures_with_the_known_labels(example: Example) -> None:
    oracle: Any = example.oracle()
    assert example.listing is not None
    listed = example.listing(None)
    tensors = [
        torch.stack([torch.as_tensor(np.asarray(y[i]), dtype=torch.float64) for y in listed])
        for i in range(len(example.shapes))
    ]
    structures: Any = tuple(tensors) if example.is_tuple else tensors[0]
    labels = oracle.decode(structures)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        pick = int(torch.randint(len(listed), (), generator=generator))
        unknown = torch.rand(labels.shape[1:], generator=generator) < 0.5
        partial = labels[pick].masked_fill(unknown, -1)
        masks = as_tuple(oracle.allowed_parts(partial.unsqueeze(0), map_parts(lambda t: t[:1], structures)))
        allowed = torch.stack([~((t != 0) & ~m).flatten(1).any(1) for t, m in zip(tensors, masks, strict=True)]).all(0)
        agrees = (
            ((labels == partial) | (partial == -1)).flatten(1).all(1)
            if labels.ndim > 1
            else ((labels == partial) | (partial == -1))
        )
        assert allowed.tolist() == agrees.tolist()


def example_chain() -> tuple[Tensor, Tensor]:
    unary = torch.tensor([[0.0, 1.0], [0.5, 0.0], [0.0, 0.3]], dtype=torch.float64)
    return unary, torch.tensor([[0.2, -0.1], [0.0, 0.4]], dtype=torch.float64)


def test_the_loss_of_a_chain_with_one_known_tag():
    theta, y = leaves(example_chain()), torch.tensor([-1, 1, -1])
    loss = si.FenchelYoungLoss("chain", "marginals")
    restricted = si.restrict(theta, "chain", y)
    assert si.log_partition(theta, "chain").item() == pytest.approx(3.428015, abs=1e-6)
    assert si.log_partition(restricted, "chain").item() == pytest.approx(2.704599, abs=1e-6)
    assert loss(theta, y).item() == pytest.approx(0.723416, abs=1e-6)
    tags = torch.tensor([[True, True], [False, True], [True, True]])
    for allowed in (y, tags, (tags, None), (tags, torch.ones(2, 2).bool())):
        torch.testing.assert_close(loss(theta, allowed=allowed), loss(theta, y))
    assert gradcheck(lambda *theta: loss(theta, y), theta)
    assert gradcheck(lambda *theta: si.log_partition(si.restrict(theta, "chain", y), "chain"), theta)


def test_full_labels_have_the_same_loss_as_allowed_labels():
    theta, y = example_chain(), torch.tensor([0, 1, 1])
    for name in ("marginals", "sparsemap", "map", "smoothed"):
        loss = si.FenchelYoungLoss("chain", name)
        torch.testing.assert_close(loss(theta, allowed=y), loss(theta, y))


def test_batches_mix_known_and_unknown_labels_and_lengths():
    unary, transition = example_chain()
    theta = torch.stack([unary, 2 * unary, unary, -unary]), transition
    lengths, y = [3, 2, 0, 3], torch.tensor([[0, -1, 1], [1, -1, -1], [-1, -1, -1], [1, 1, 0]])
    loss = si.FenchelYoungLoss("chain", "marginals", reduction="none")
    losses = loss(theta, y, lengths=lengths)
    for b in range(4):
        alone = loss((theta[0][b], transition), allowed=y[b], lengths=lengths[b])
        torch.testing.assert_close(losses[b], alone, rtol=0, atol=1e-12)
    restricted = si.restrict(theta, "chain", y, lengths=lengths)
    best = si.decode(si.relax(restricted, "chain", "map", lengths=lengths), "chain", lengths=lengths)
    assert best[0].tolist()[0] == 0
    assert best[0].tolist()[2] == 1
    assert best[1:].tolist() == [[1, best[1, 1].item(), -1], [-1, -1, -1], [1, 1, 0]]
    # −1 in the padding alone is no unknown label
    full = loss(theta, torch.tensor([[0, 0, 1], [1, 1, -1], [-1, -1, -1], [1, 1, 0]]), lengths=lengths)
    assert (full[[0, 1, 3]] > 0).all()
    assert full[2] == 0


def test_impossible_restrictions():
    theta = tuple(t.expand(2, *t.shape) for t in example_chain())
    allowed = torch.ones(2, 3, 2, dtype=torch.bool)
    allowed[1, 0] = False
    with pytest.raises(si.InfeasibleError, match=r"allowed: no tag sequence .* batch index 1") as caught:
        si.FenchelYoungLoss("chain", "marginals")(theta, allowed=allowed)
    assert caught.value.batch_indices == (1,)
    loss = si.FenchelYoungLoss("chain", "marginals", reduction="none", on_infeasible="zero")
    losses = loss(theta, allowed=allowed)
    assert losses[0] == 0
    assert losses[1] == 0
    allowed[0, 1, 0] = False
    assert loss(theta, allowed=allowed)[0] > 0


@pytest.mark.parametrize(
    ("oracle", "theta", "allowed", "error", "match"),
    [
        ("bits", torch.zeros(3), torch.tensor([1, -1, 0]), si.UnsupportedError, "boolean masks"),
        ("bits", torch.zeros(3), torch.zeros(3), TypeError, "allowed must be a tensor of booleans"),
        ("bits", torch.zeros(3), torch.ones(2).bool(), si.InvalidInputError, r"allowed must have shape \(3,\)"),
        ("bits", torch.zeros(3), "all", si.InvalidInputError, "allowed must be masks"),
        ("chain", example_chain(), torch.tensor([0, 2, -1]), si.InvalidInputError, "neither a choice nor −1"),
        ("chain", example_chain(), torch.tensor([0, -2, -1]), si.InvalidInputError, "neither a choice nor −1"),
        ("chain", example_chain(), torch.tensor([0, -1]), si.InvalidInputError, "shape"),
        ("chain", example_chain(), (None, None), si.InvalidInputError, "allowed must be masks"),
    ],
)
def test_wrong_restrictions_are_refused(oracle, theta, allowed, error, match):
    with pytest.raises(error, match=match):
        si.restrict(theta, oracle, allowed)
    with pytest.raises(error, match=match):
        si.FenchelYoungLoss(oracle, "marginals")(theta, allowed=allowed)


def test_losses_take_one_target():
    theta, y = example_chain(), torch.tensor([0, -1, 1])
    with pytest.raises(TypeError, match="one target"):
        si.FenchelYoungLoss("chain")(theta)
    with pytest.raises(TypeError, match="y and allowed"):
        si.FenchelYoungLoss("chain")(theta, y, allowed=y)
    with pytest.raises(si.UnsupportedError, match="cost=None"):
        si.FenchelYoungLoss("chain", cost="hamming")(theta, y)
    with pytest.raises(si.UnsupportedError, match="cost"):
        si.FenchelYoungLoss("chain", cost="hamming")(theta, allowed=y)
    with pytest.raises(si.InvalidInputError, match="y: integer labels of chain must have the batch shape"):
        si.FenchelYoungLoss("chain")((torch.zeros(2, 3, 2), torch.zeros(2, 2)), y)
    with pytest.raises(si.InvalidInputError, match="pass allowed="):
        si.FenchelYoungLoss("bits")(torch.zeros(3), torch.tensor([1, -1, 0]))


def test_compiled_and_functional_calls():
    theta, y = example_chain(), torch.tensor([-1, 1, -1])
    loss = si.FenchelYoungLoss("chain", "marginals")
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(theta, y), loss(theta, y))
    torch.testing.assert_close(compiled(theta, allowed=y), loss(theta, y))
    own = leaves(theta)
    loss(own, y).backward()
    for g, t in zip(torch.func.grad(lambda t: loss(t, y))(theta), own, strict=True):
        torch.testing.assert_close(g, t.grad)
