"""On a CUDA device every oracle and relaxation gives what it gives on the CPU, and gives it there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.parts import as_tuple, map_parts, pack_like, sum_to_batch_of

pytestmark = pytest.mark.cuda

DEVICE = "cuda"
BATCH = 3


@dataclass(frozen=True)
class Form:
    """Event shapes of potentials, and instance data."""

    shapes: tuple[tuple[int, ...], ...]
    instance_data: dict[str, Any] = field(default_factory=dict)
    shared: tuple[int, ...] = ()  # which of several tensors have a batch dimension of 1


FORMS: dict[str, list[Form]] = {
    "arborescence": [Form(((5, 5),)), Form(((5, 5),), {"lengths": [4, 2, 1]})],
    "assignment": [
        Form(((4, 4),)),
        Form(((3, 5),)),
        Form(((4, 2),)),
        Form(((4, 4),), {"lengths": [[4, 4], [2, 3], [3, 1]]}),
    ],
    "categorical": [Form(((6,),))],
    "chain": [
        Form(((4, 3), (3, 3)), shared=(1,)),
        Form(((4, 3), (3, 3)), {"lengths": [4, 2, 1]}),
        Form(((4, 3), (3, 3, 3)), {"lengths": [1, 3, 4]}),
        Form(((3, 3, 3),)),
    ],
}

CASES = [(name, i) for name in si.list_oracles() for i in range(len(FORMS.get(name, [None])))]
PAIRS = [(name, relaxation, i) for name, i in CASES for relaxation in si.list_relaxations()]
DTYPES = [torch.float64, torch.float32]


def draw(name: str, i: int, dtype: torch.dtype, forbidden: bool = False) -> tuple[si.Parts, dict[str, Any]]:
    """Potentials on the CPU, and instance data; some parts forbidden, but not all structures."""
    if name not in FORMS:
        pytest.fail(f"add the event shapes of {name} to FORMS")
    form = FORMS[name][i]
    tensors = [
        torch.randn(1 if j in form.shared else BATCH, *shape, dtype=dtype) for j, shape in enumerate(form.shapes)
    ]
    theta = tuple(tensors) if len(tensors) > 1 else tensors[0]
    if forbidden:
        kept = si.relax(map_parts(torch.randn_like, theta), name, "map", **form.instance_data)
        used = map_parts(lambda y, t: (y != 0).any(0) if t.shape[0] == 1 else y != 0, kept, theta)
        theta = map_parts(lambda t, u: t.masked_fill(~u & (torch.rand(t.shape) < 0.3), -torch.inf), theta, used)
    return theta, form.instance_data


def skip_unless_fit(name: str, relaxation: str) -> None:
    missing = si.get_relaxation(relaxation).missing(si.get_oracle(name))
    if missing is not None:
        pytest.skip(missing)


def on_device(theta: si.Parts) -> si.Parts:
    return map_parts(lambda t: t.detach().to(DEVICE), theta)


def leaves(theta: si.Parts) -> si.Parts:
    return map_parts(lambda t: t.detach().clone().requires_grad_(), theta)


def assert_same(there: si.Parts, here: si.Parts) -> None:
    """``there`` lies on the device and equals ``here``, which lies on the CPU."""
    assert isinstance(there, tuple) == isinstance(here, tuple)
    for a, b in zip(as_tuple(there), as_tuple(here), strict=True):
        assert a.device.type == DEVICE
        assert a.dtype == b.dtype
        tolerance = 1e-8 if b.dtype == torch.float64 else 2e-4
        torch.testing.assert_close(a.cpu(), b, atol=tolerance, rtol=tolerance)


def weighted_sum(y: si.Parts) -> Tensor:
    """A function of every entry, the same on both devices."""
    return sum(
        (t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view(t.shape).to(t.device)).sum() for t in as_tuple(y)
    )


# ----------------------------------------------------------------------------- relaxations and losses


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("forbidden", [False, True])
@pytest.mark.parametrize(("name", "relaxation", "i"), PAIRS)
def test_relaxation(name: str, relaxation: str, i: int, dtype: torch.dtype, forbidden: bool) -> None:
    skip_unless_fit(name, relaxation)
    theta, instance_data = draw(name, i, dtype, forbidden)
    here, there = leaves(theta), leaves(on_device(theta))
    mean_here = si.relax(here, name, relaxation, **instance_data)
    mean_there = si.relax(there, name, relaxation, **instance_data)
    assert_same(mean_there, mean_here)
    gradient_here = torch.autograd.grad(weighted_sum(mean_here), as_tuple(here))
    gradient_there = torch.autograd.grad(weighted_sum(mean_there), as_tuple(there))
    assert_same(gradient_there, gradient_here)


@pytest.mark.parametrize(("name", "relaxation", "i"), PAIRS)
def test_solution(name: str, relaxation: str, i: int) -> None:
    skip_unless_fit(name, relaxation)
    theta, instance_data = draw(name, i, torch.float64)
    here = si.infer(theta, name, relaxation, **instance_data)
    there = si.infer(on_device(theta), name, relaxation, **instance_data)
    assert_same(there.value, here.value)
    if here.weights is not None:
        assert there.converged.all()
        weights = there.weights
        assert_same(weights.sum(0), torch.ones(BATCH, dtype=torch.float64))
        mixture = map_parts(
            lambda y: (y * weights.view(*weights.shape, *[1] * (y.ndim - 2))).sum(0),
            there.support,
        )
        assert_same(mixture, map_parts(torch.Tensor.cpu, there.mean))


@pytest.mark.parametrize("cost", [None, "hamming"])
@pytest.mark.parametrize(("name", "relaxation", "i"), PAIRS)
def test_loss(name: str, relaxation: str, i: int, cost: str | None) -> None:
    skip_unless_fit(name, relaxation)
    if not isinstance(si.get_relaxation(relaxation), si.RegularizedRelaxation):
        pytest.skip("generates no loss")
    theta, instance_data = draw(name, i, torch.float64)
    gold = si.relax(map_parts(torch.randn_like, theta), name, "map", **instance_data)
    loss = si.FenchelYoungLoss(name, relaxation, cost=cost, reduction="none")
    here, there = leaves(theta), leaves(on_device(theta))
    value_here, value_there = loss(here, gold, **instance_data), loss(there, on_device(gold), **instance_data)
    assert_same(value_there, value_here)
    assert_same(
        torch.autograd.grad(value_there.sum(), as_tuple(there)), torch.autograd.grad(value_here.sum(), as_tuple(here))
    )


@pytest.mark.parametrize(("name", "i"), CASES)
def test_labels(name: str, i: int) -> None:
    theta, instance_data = draw(name, i, torch.float64)
    y = si.relax(on_device(theta), name, "map", **instance_data)
    labels = si.decode(y, name, **instance_data)
    assert labels.device.type == DEVICE
    assert_same(si.encode(labels, on_device(theta), name, **instance_data), map_parts(torch.Tensor.cpu, y))


# ----------------------------------------------------------------------------- oracles


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("forbidden", [False, True])
@pytest.mark.parametrize(("name", "i"), CASES)
def test_sums(name: str, i: int, dtype: torch.dtype, forbidden: bool) -> None:
    oracle = si.get_oracle(name)
    if not isinstance(oracle, si.GibbsOracle):
        pytest.skip("cannot sum")
    theta, instance_data = draw(name, i, dtype, forbidden)
    here, theta = bound(oracle, theta, instance_data)
    there, moved = bound(oracle, on_device(theta), instance_data)
    direction = map_parts(torch.randn_like, theta)
    weight = torch.randn(BATCH, dtype=dtype)
    assert_same(there.log_partition(moved), here.log_partition(theta))
    assert_same(there.marginals(moved), here.marginals(theta))
    assert_same(there.log_partition_vjp(moved, weight.to(DEVICE)), here.log_partition_vjp(theta, weight))
    assert_same(there.covariance_product(moved, on_device(direction)), here.covariance_product(theta, direction))


@pytest.mark.parametrize(("name", "i"), CASES)
def test_second_derivatives(name: str, i: int) -> None:
    oracle = si.get_oracle(name)
    if not isinstance(oracle, si.GibbsOracle):
        pytest.skip("cannot sum")
    theta, instance_data = draw(name, i, torch.float64)
    there = leaves(on_device(theta))

    def mean(*tensors: Tensor) -> tuple[Tensor, ...]:
        return as_tuple(si.relax(pack_like(tensors, there), name, "marginals", **instance_data))

    assert torch.autograd.gradcheck(mean, as_tuple(there), fast_mode=True)
    assert torch.autograd.gradgradcheck(mean, as_tuple(there), fast_mode=True)


@pytest.mark.parametrize(("name", "i"), CASES)
def test_k_best(name: str, i: int) -> None:
    oracle = si.get_oracle(name)
    if not isinstance(oracle, si.KBest):
        pytest.skip("has no k best")
    theta, instance_data = draw(name, i, torch.float64)
    here, theta = bound(oracle, theta, instance_data)
    there, moved = bound(oracle, on_device(theta), instance_data)
    for a, b in zip(there.topk(moved, 4), here.topk(theta, 4), strict=True):
        assert_same(a, b)


@pytest.mark.parametrize("generator_device", ["cpu", DEVICE])
@pytest.mark.parametrize(("name", "i"), CASES)
def test_samples(name: str, i: int, generator_device: str) -> None:
    oracle = si.get_oracle(name)
    if not (isinstance(oracle, si.Samplable) and isinstance(oracle, si.GibbsOracle)):
        pytest.skip("cannot sample")
    theta, instance_data = draw(name, i, torch.float64)
    there, moved = bound(oracle, on_device(theta), instance_data)
    samples = there.sample(moved, 4000, torch.Generator(generator_device).manual_seed(0))
    for y, mean in zip(as_tuple(samples), as_tuple(there.marginals(moved)), strict=True):
        assert y.device.type == DEVICE
        # The mean of 4000 indicators errs by at most 0.008 (one standard deviation); counts vary more.
        error = (y.mean(0) - mean).abs() / y.var(0).div(4000).sqrt().clamp(min=1e-3)
        assert error.max() < 5


def bound(oracle: si.Oracle, theta: si.Parts, instance_data: dict[str, Any]) -> tuple[Any, si.Parts]:
    """What oracles see: instance data bound, the padding zero."""
    device = as_tuple(theta)[0].device
    oracle = oracle.bind(**{key: torch.tensor(value, device=device) for key, value in instance_data.items()})
    masks = oracle.valid_parts(theta)
    return oracle, theta if masks is None else map_parts(lambda t, mask: torch.where(mask, t, 0.0), theta, masks)


# ----------------------------------------------------------------------------- precision, autocast, errors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "relaxation", "i"), PAIRS)
def test_half_precision(name: str, relaxation: str, i: int, dtype: torch.dtype) -> None:
    skip_unless_fit(name, relaxation)
    theta, instance_data = draw(name, i, torch.float32)
    half = map_parts(lambda t: t.to(DEVICE, dtype), theta)
    mean = si.relax(half, name, relaxation, **instance_data)
    exact = si.relax(map_parts(torch.Tensor.float, half), name, relaxation, **instance_data)
    for a, b in zip(as_tuple(mean), as_tuple(exact), strict=True):
        assert a.dtype == dtype
        assert torch.equal(a, b.to(dtype))


@pytest.mark.parametrize(("name", "relaxation", "i"), PAIRS)
def test_autocast(name: str, relaxation: str, i: int) -> None:
    skip_unless_fit(name, relaxation)
    theta, instance_data = draw(name, i, torch.float32)
    there = leaves(on_device(theta))
    layer = si.Layer(name, relaxation)
    with torch.autocast(DEVICE, dtype=torch.float16):
        mean = layer(there, **instance_data)
        total = weighted_sum(mean)
    gradient = torch.autograd.grad(total, as_tuple(there))
    plain = layer(there, **instance_data)
    assert_same(mean, map_parts(lambda t: t.detach().cpu(), plain))
    assert all(bool(g.isfinite().all()) for g in gradient)


@pytest.mark.parametrize(("name", "i"), CASES)
def test_bad_input(name: str, i: int) -> None:
    theta, instance_data = draw(name, i, torch.float32)
    allowed = sum_to_batch_of(si.relax(theta, name, "map", **instance_data), theta)
    used = map_parts(lambda y: y != 0, allowed)
    for value, message in ((torch.nan, "NaN"), (torch.inf, r"\+inf")):
        spoilt = map_parts(lambda t, u, v=value: t.masked_fill(u, v), theta, used)
        with pytest.raises(si.InvalidInputError, match=message):
            si.relax(on_device(spoilt), name, "map", **instance_data)
    nothing = map_parts(lambda t: torch.full_like(t, -torch.inf), theta)
    with pytest.raises(si.InfeasibleError):
        si.relax(on_device(nothing), name, "map", **instance_data)


def test_lengths_may_lie_elsewhere() -> None:
    theta = torch.randn(BATCH, 5, 5, device=DEVICE)
    for lengths in ([4, 2, 1], torch.tensor([4, 2, 1]), torch.tensor([4, 2, 1], dtype=torch.int32, device=DEVICE)):
        assert si.relax(theta, "arborescence", "marginals", lengths=lengths).device.type == DEVICE


@pytest.mark.parametrize("penalty", ["all", "readout"])
def test_large_active_sets(penalty: str) -> None:
    unary, transition = torch.randn(8, 30, 6), torch.randn(6, 6)
    here, there = leaves((unary, transition)), leaves(on_device((unary, transition)))
    solutions = [si.infer(theta, "chain", "sparsemap", penalty=penalty) for theta in (here, there)]
    assert solutions[1].converged.all()
    # With the readout penalty only the unary parts are determined.
    for a, b in list(zip(solutions[1].mean, solutions[0].mean, strict=True))[: 1 if penalty == "readout" else 2]:
        assert_same(a, b)
    gradients = [
        torch.autograd.grad(weighted_sum(solution.mean[0]), theta)
        for solution, theta in zip(solutions, (here, there), strict=True)
    ]
    assert_same(gradients[1], gradients[0])
