"""Options that overflow or vanish in the dtype of the scores are refused with a sentence; other results are finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
import structinf.simplex as simplex

VALUES = [1e-320, 1e-300, 1e-45, 1e-38, 1e-30, 1e30, 1e38, 1e45, 1e300]

OPTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("perturbed", "sigma", {}),
    ("perturbed", "sigma", {"perturbation": "multiplicative"}),
    ("perturbed", "sigma", {"noise": "gumbel", "control_variate": "argmax"}),
    ("imle", "lambda_", {}),
    ("imle", "lambda_", {"noise": "none", "symmetric": True}),
    ("imle", "sigma", {}),
    ("blackbox", "lambda_", {}),
    ("spigot", "step_size", {}),
    ("spigot", "step_size", {"variant": "cross_entropy"}),
    ("adaptive_imle", "sigma", {}),
    ("adaptive_imle", "alpha", {}),
    ("adaptive_imle", "alpha_step", {}),
    ("adaptive_imle", "target_nonzeros", {}),
    ("stochastic", "sigma", {}),
    ("stochastic", "temperature", {}),
    ("marginals", "temperature", {}),
    ("smoothed", "temperature", {}),
    ("smoothed", "temperature", {"regularizer": "squared_l2"}),
    ("smoothed", "temperature", {"regularizer": "tsallis"}),
    ("sparsemap", "temperature", {}),
    ("frank_wolfe", "temperature", {}),
    ("sinkhorn", "temperature", {}),
    ("sinkhorn", "initial_temperature", {}),
    ("straight_through", "temperature", {"backward": "marginals"}),
]  # fmt: skip


def call_relaxation(name: str, option: str, value: float, others: dict[str, Any], theta: Tensor) -> list[Tensor]:
    oracle = {"sinkhorn": "assignment", "smoothed": "dtw"}.get(name, "arborescence")
    relaxation = si.get_relaxation(name, **{option: value}, **others)
    generator = torch.Generator().manual_seed(0) if relaxation.is_stochastic else None
    found = si.infer(theta, oracle, relaxation, generator=generator)
    (gradient,) = torch.autograd.grad((found.mean * torch.linspace(-1, 1, 4)).sum(), theta)
    results = [found.mean, found.value, gradient]
    if isinstance(relaxation, si.RegularizedRelaxation):
        gold = si.relax(theta.detach(), oracle, "map")
        loss = si.FenchelYoungLoss(oracle, relaxation)(theta, gold, generator=generator)
        results += [loss, *torch.autograd.grad(loss, theta)]
    return results


def refuses_or_is_finite(call: Callable[[], list[Tensor]], option: str) -> None:
    try:
        results = call()
    except si.InvalidInputError as error:
        refusal = str(error)
    else:
        refusal = None
        assert all(t.isfinite().all() for t in results)
    assert refusal is None or option in refusal


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(("name", "option", "others"), OPTIONS)
@pytest.mark.filterwarnings("ignore::structinf.ConvergenceWarning")
def test_relaxations(name, option, others, value, dtype):
    theta = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(1), dtype=dtype).requires_grad_()
    refuses_or_is_finite(lambda: call_relaxation(name, option, value, others, theta), option)


REGULARIZED = [
    ("marginals", "temperature", "arborescence"),
    ("smoothed", "temperature", "dtw"),
    ("sparsemap", "temperature", "arborescence"),
    ("frank_wolfe", "temperature", "arborescence"),
    ("sinkhorn", "temperature", "assignment"),
    ("perturbed", "sigma", "arborescence"),
]


@pytest.mark.parametrize("value", [1e-40, 1e-30, 1e30, 1e36, 1e40])
@pytest.mark.parametrize(("name", "option", "oracle"), REGULARIZED)
@pytest.mark.filterwarnings("ignore::structinf.ConvergenceWarning")
def test_losses_and_layers_refuse_the_same_options(name, option, oracle, value):
    relaxation, theta = si.get_relaxation(name, **{option: value}), torch.randn(2, 4, 4)
    gold = si.relax(theta, oracle, "map")

    def refusal(call: Callable[[], Any]) -> str | None:
        try:
            call()
        except si.InvalidInputError as error:
            return str(error)
        return None

    layer = refusal(lambda: si.relax(theta, oracle, relaxation))
    assert refusal(lambda: si.FenchelYoungLoss(oracle, relaxation)(theta, gold)) == layer
    if name == "marginals":
        assert refusal(lambda: si.Gibbs(theta, oracle, temperature=value)) == layer


CALLS: dict[str, tuple[str, Callable[[Tensor, float], Tensor]]] = {
    "Gibbs": ("temperature", lambda t, v: si.Gibbs(t, "categorical", temperature=v).mean),
    "Gibbs.entropy": ("temperature", lambda t, v: si.Gibbs(t, "categorical", temperature=v).entropy()),
    "log_partition": ("temperature", lambda t, v: si.log_partition(t, "categorical", temperature=v)),
    "entropy": ("temperature", lambda t, v: si.entropy(t, "categorical", temperature=v)),
    "log_prob": ("temperature", lambda t, v: si.log_prob(t, torch.zeros(2).long(), "categorical", temperature=v)),
    "soft_rank": ("temperature", lambda t, v: si.soft_rank(t, v)),
    "soft_sort": ("temperature", lambda t, v: si.soft_sort(t, v)),
    "soft_dtw": ("temperature", lambda t, v: si.soft_dtw(t, v)[None]),
    "alignment_matrix": ("temperature", lambda t, v: si.alignment_matrix(t, v)),
    "sinkhorn": ("temperature", lambda t, v: si.sinkhorn(t, torch.ones(2) * 4 / 2, torch.ones(4), v)),
    "expect_sparsemax": (
        "temperature",
        lambda t, v: si.expect(lambda y: y[:, 0], t, "categorical", "sparsemax", temperature=v),
    ),
    "expect_topk": (
        "temperature",
        lambda t, v: si.expect(
            lambda y: y[:, 0], t, "subset", si.get_estimator("topk_sparsemax", k=3, temperature=v), k=2
        ),
    ),
    "hard_concrete": (
        "temperature",
        lambda t, v: si.HardConcrete(t, temperature=v).rsample(generator=torch.Generator().manual_seed(0)),
    ),
    "gaussian_sparsemax": (
        "scale",
        lambda t, v: si.GaussianSparsemax(t, v).rsample(generator=torch.Generator().manual_seed(0)),
    ),
    "gumbel_sparsemax": (
        "scale",
        lambda t, v: si.GumbelSparsemax(t, v).rsample(generator=torch.Generator().manual_seed(0)),
    ),
    "fusedmax": ("weight", lambda t, v: simplex.fusedmax(t, weight=v)),
    "oscarmax": ("weight", lambda t, v: simplex.oscarmax(t, weight=v)),
    "norm_softmax": ("gamma", lambda t, v: simplex.norm_softmax(t, gamma=v) if hasattr(simplex, "norm_softmax") else t),
}


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::structinf.ConvergenceWarning")
def test_functions(name, value, dtype):
    option, function = CALLS[name]
    theta = torch.randn(2, 4, generator=torch.Generator().manual_seed(1), dtype=dtype).requires_grad_()

    def call() -> list[Tensor]:
        found = function(theta, value)
        return [found, *torch.autograd.grad((found * torch.linspace(-1, 1, found.shape[-1])).sum(), theta)]

    refuses_or_is_finite(call, option)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("perturbed", "sigma", 1e-300), ("blackbox", "lambda_", 1e300), ("imle", "lambda_", 1e-300),
     ("spigot", "step_size", 1e300), ("marginals", "temperature", 1e300)],
)  # fmt: skip
def test_the_message_states_the_value_and_the_range(name, option, value):
    with pytest.raises(
        si.InvalidInputError,
        match=rf"{option} {value!r} is too (small|large) for computations in torch.float32: {option} must lie between "
        rf"1.2e-32 and 3.2e\+32; change {option}, or pass theta in float64".replace("1e+300", r"1e\+300"),
    ):
        si.relax(torch.randn(4), "categorical", name, **{option: value})
