"""Each relaxation and loss refuses an oracle whose argmax or log_partition breaks the protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf import GibbsOracle, Oracle, PluginError
from structinf.calls.resolution import check_supported, get_relaxation, list_relaxations

# ----------------------------------------------------------------------------- argmax


def _one_hot(theta: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(theta.argmax(1), theta.shape[1]).to(theta.dtype)


class Plain(Oracle):
    """One of n parts, the largest; keeps its protocol."""

    event_ndim = 1
    name = "plain"

    def argmax(self, theta: Tensor) -> Tensor:
        return _one_hot(theta)


def _writes(self: Any, theta: Tensor) -> Tensor:
    theta.mul_(2)
    return _one_hot(theta)


def _writes_by_numpy(self: Any, theta: Tensor) -> Tensor:
    y = _one_hot(theta)
    theta.numpy()[:] += 1
    return y


def _reuses_its_buffer(self: Any, theta: Tensor) -> Tensor:
    key = tuple(theta.shape)
    if key not in self.buffers:
        self.buffers[key] = torch.empty_like(theta)
    return self.buffers[key].copy_(_one_hot(theta))


def _reuses_its_array(self: Any, theta: Tensor) -> Tensor:
    key = (*theta.shape, theta.dtype)
    if key not in self.buffers:
        self.buffers[key] = torch.empty_like(theta).numpy()
    self.buffers[key][:] = _one_hot(theta).numpy()
    return torch.from_numpy(self.buffers[key])


def _returns_theta(self: Any, theta: Tensor) -> Tensor:
    return theta


def _with(value: float) -> Callable[..., Tensor]:
    def argmax(self: Any, theta: Tensor) -> Tensor:
        y = _one_hot(theta)
        y[-1:, -1] = value
        return y

    return argmax


BROKEN: dict[str, tuple[Callable[..., Any], str]] = {
    "writes": (_writes, "it changed theta in place"),
    "writes by numpy": (_writes_by_numpy, "it changed theta in place"),
    "reuses its buffer": (_reuses_its_buffer, "it wrote its result over an earlier result"),
    "reuses its array": (_reuses_its_array, "it wrote its result over an earlier result"),
    "returns theta": (_returns_theta, "it returned memory of theta"),
    "NaN": (_with(torch.nan), "it returned NaN or infinity for batch index 1"),
    "inf": (_with(torch.inf), "it returned NaN or infinity for batch index 1"),
    "integers": (lambda self, theta: _one_hot(theta).long(), "the dtype of its result is torch.int64, but must be"),
    "one row": (lambda self, theta: _one_hot(theta)[:1], "the shape of its result is"),
    "a list": (lambda self, theta: _one_hot(theta).tolist(), "must return the form of theta"),
    "sparse": (lambda self, theta: _one_hot(theta).to_sparse(), "the layout of its result is"),
}


def _broken(argmax: Callable[..., Any]) -> Oracle:
    """Return an oracle of a new class, since the first call of each class is checked for more."""
    made: Any = type("Broken", (Plain,), {"argmax": argmax, "name": "broken"})()
    made.buffers = {}
    return made


def _supported(oracle: Oracle) -> list[str]:
    names = []
    for name in list_relaxations():
        try:
            check_supported(oracle, get_relaxation(name))
        except (si.UnsupportedError, TypeError):
            continue
        names.append(name)
    return names


RELAXATIONS = _supported(Plain())


def test_most_relaxations_need_only_argmax() -> None:
    assert {"map", "sparsemap", "frank_wolfe", "stochastic", "perturbed", "imle", "adaptive_imle"} <= set(RELAXATIONS)
    assert {"blackbox", "spigot", "straight_through", "negative_identity"} <= set(RELAXATIONS)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("how", [how for how in BROKEN if not how.startswith("reuses")])
def test_a_broken_argmax_is_refused_by_each_relaxation(relaxation: str, how: str) -> None:
    argmax, message = BROKEN[how]
    oracle, theta = _broken(argmax), torch.tensor([[1.0, 2.0, 0.0], [0.5, 0.0, 0.2]])
    with pytest.raises(PluginError, match=f"argmax of broken violates its protocol: .*{message}"):
        si.relax(theta, oracle, relaxation)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("how", ["reuses its buffer", "reuses its array"])
def test_an_oracle_that_reuses_memory_changes_no_earlier_answer(relaxation: str, how: str) -> None:
    oracle, message = _broken(BROKEN[how][0]), ""
    first: Any = None
    before: list[Tensor] = []
    try:
        first = si.infer(torch.tensor([[1.0, 2.0, 0.0]]), oracle, relaxation)
        before = [t.clone() for t in (first.mean, first.support) if t is not None]
        si.relax(torch.tensor([[9.0, 0.0, 5.0]]), oracle, relaxation)
    except PluginError as error:
        message = str(error)
    if message:
        assert "argmax of broken violates its protocol: it wrote its result over an earlier result" in message
        return
    assert how == "reuses its array"  # the buffer of a tensor is always noticed
    after = [t for t in (first.mean, first.support) if t is not None]
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("how", ["NaN", "inf", "reuses its buffer", "reuses its array"])
@pytest.mark.parametrize("relaxation", ["blackbox", "imle", "adaptive_imle", "perturbed"])
def test_a_broken_argmax_is_refused_in_the_backward_pass(relaxation: str, how: str) -> None:
    argmax, _ = BROKEN[how]
    calls = [0]

    def later(self: Any, theta: Tensor) -> Tensor:
        calls[0] += 1
        return argmax(self, theta) if how.startswith("reuses") or calls[0] > 1 else _one_hot(theta)

    options: dict[str, Any] = {"control_variate": "argmax"} if relaxation == "perturbed" else {}
    if relaxation != "blackbox":
        options["samples"] = 1
    theta = torch.randn(2, 3, requires_grad=True)
    mean = si.relax(theta, _broken(later), relaxation, **options)
    with pytest.raises(PluginError, match="argmax of broken violates its protocol"):
        mean.square().sum().backward()


def test_results_at_freed_memory_are_no_reuse() -> None:
    theta = torch.randn(4, 6)
    for _ in range(200):
        si.relax(theta, Plain(), "map")


def test_memory_of_results_is_forgotten() -> None:
    from structinf.solvers import argmax

    theta = torch.randn(2, 3)
    held = [si.relax(theta, Plain(), "map") for _ in range(1500)]
    assert len({t.untyped_storage().data_ptr() for t in held}) == 1500
    del held
    for _ in range(1500):
        si.relax(theta, Plain(), "map")
    assert len(argmax._memory) < 4000


def test_an_infeasible_structure_is_no_error_of_the_protocol() -> None:
    theta = torch.full((2, 3), -torch.inf)
    theta[0] = 0
    for relaxation in ("map", "perturbed", "imle", "blackbox"):
        with pytest.raises(si.InfeasibleError, match="batch index 1") as error:
            si.relax(theta, Plain(), relaxation)
        assert error.value.batch_index % 2 == 1


# ----------------------------------------------------------------------------- log_partition


class PlainSum(Plain, GibbsOracle):
    """The softmax; keeps its protocol."""

    def log_partition(self, theta: Tensor) -> Any:
        return theta.logsumexp(1)


BROKEN_SUMS: dict[str, tuple[Callable[..., Any], str]] = {
    "detached": (lambda self, theta: theta.detach().logsumexp(1), "its result has no gradient"),
    "integers": (lambda self, theta: theta.logsumexp(1).long(), "it returned torch.int64"),
    "a column": (lambda self, theta: theta.logsumexp(1, keepdim=True), r"it returned shape \(2, 1\)"),
    "a scalar": (lambda self, theta: theta.logsumexp(1).sum(), r"it returned shape \(\)"),
    "a number": (lambda self, theta: float(theta.detach().logsumexp(1).sum()), "it returned a float"),
}


def _broken_sum(function: Callable[..., Any], **methods: Any) -> Oracle:
    def log_partition(self: Any, theta: Tensor) -> Any:
        return function(self, theta)

    return type("Broken", (PlainSum,), {"log_partition": log_partition, "name": "broken", **methods})()


USES: dict[str, Callable[[Oracle, Tensor], Any]] = {
    "marginals": lambda oracle, theta: si.relax(theta, oracle, "marginals"),
    "infer": lambda oracle, theta: si.infer(theta, oracle, "marginals").value,
    "loss": lambda oracle, theta: si.FenchelYoungLoss(oracle, "marginals")(theta, _one_hot(theta.detach())),
    "log_prob": lambda oracle, theta: si.log_prob(theta, _one_hot(theta.detach()), oracle),
    "entropy": lambda oracle, theta: si.entropy(theta, oracle),
    "direct": lambda oracle, theta: oracle.marginals(theta.detach()),  # type: ignore[attr-defined]
    "covariance": lambda oracle, theta: oracle.covariance_product(theta.detach(), theta.detach()),  # type: ignore
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("how", BROKEN_SUMS)
@pytest.mark.parametrize("records", [True, False])
def test_a_broken_log_partition_is_refused(use: str, how: str, records: bool) -> None:
    log_partition, message = BROKEN_SUMS[how]
    oracle = _broken_sum(log_partition)
    theta = torch.tensor([[1.0, 2.0, 0.0], [0.5, 0.0, 0.2]], requires_grad=records)
    if how == "detached" and not records and use in ("loss", "log_prob"):
        USES[use](oracle, theta)  # the value is right, and needs no gradient
        return
    with pytest.raises(PluginError, match=f"log_partition of broken violates its protocol: {message}"):
        USES[use](oracle, theta)


def _replace_second(value: float) -> Callable[[Any, Tensor], Tensor]:
    def log_partition(self: Any, theta: Tensor) -> Tensor:
        index = torch.arange(len(theta))
        return torch.where(index == 1, value * theta.sum(1).abs(), theta.logsumexp(1))

    return log_partition


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(("value", "word"), [(torch.nan, "NaN"), (torch.inf, r"\+inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("records", [True, False])
def test_a_log_partition_that_is_not_finite_is_refused(
    use: str, value: float, word: str, dtype: torch.dtype, records: bool
) -> None:
    theta = torch.tensor([[1.0, 2.0, 0.0], [0.5, -torch.inf, 0.2], [0.1, 0.2, 0.3]], dtype=dtype)

    def log_partition(self: Any, theta: Tensor) -> Tensor:
        return _replace_second(value)(self, theta.clamp(min=-1e4))

    message = rf"log_partition of broken violates its protocol: it returned {word} for batch index 1, whose scores"
    with pytest.raises(PluginError, match=message):
        USES[use](_broken_sum(log_partition), theta.requires_grad_(records))


def test_a_query_of_a_log_partition_that_is_not_finite() -> None:
    oracle = _broken_sum(_replace_second(torch.nan))
    with pytest.raises(PluginError, match=r"log_partition of broken .* it returned NaN for batch index 1"):
        si.log_partition(torch.ones(3, 3), oracle)
    assert si.log_partition(torch.ones(1, 3), oracle).isfinite().all()


def test_scores_that_are_not_finite_are_no_fault_of_log_partition() -> None:
    oracle: Any = PlainSum()
    for value in (torch.nan, torch.inf):
        assert oracle.marginals(torch.tensor([[0.0, value, 1.0]])).isnan().any()

    def log_partition(self: Any, theta: Tensor) -> Tensor:
        return theta.sum(1)  # the one structure takes all parts

    huge = torch.full((2, 3), 3e38)
    _broken_sum(log_partition).marginals(huge)  # type: ignore[attr-defined]


def test_transforms_of_a_log_partition_that_is_not_finite() -> None:
    oracle: Any = _broken_sum(_replace_second(torch.nan))
    theta = torch.ones(2, 3, 3)
    assert torch.func.vmap(oracle.log_partition)(theta).isnan().any()
    right: Any = PlainSum()
    found = torch.func.vmap(lambda t: si.log_partition(t, right))(theta)
    assert torch.allclose(found, theta.logsumexp(-1))
    compiled = torch.compile(lambda t: si.log_partition(t, right), backend="eager")
    assert torch.allclose(compiled(theta), theta.logsumexp(-1))


def _clamps_theta(self: Any, theta: Tensor) -> Tensor:
    value = theta.logsumexp(1)
    theta.detach().clamp_(max=0.5)
    return value


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("records", [True, False])
def test_a_log_partition_that_writes_into_theta_is_refused(use: str, dtype: torch.dtype, records: bool) -> None:
    theta = torch.tensor([[1.0, 2.0, 0.0], [0.5, 0.0, 0.2]], dtype=dtype, requires_grad=records)
    oracle = _broken_sum(_clamps_theta)
    if use == "loss" and dtype == torch.float32 and not records:
        USES[use](oracle, theta)  # the method gets a copy in float64
        assert theta.max() == 2
        return
    with pytest.raises(PluginError, match="log_partition of broken violates its protocol: it changed theta in place"):
        USES[use](oracle, theta)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("records", [True, False])
def test_a_log_partition_that_writes_into_a_leaf_is_refused(use: str, records: bool) -> None:
    def log_partition(self: Any, theta: Tensor) -> Tensor:
        return theta.exp_().sum(1).log()

    theta = torch.ones(2, 3, dtype=torch.float64, requires_grad=records)
    with pytest.raises(PluginError, match="log_partition of broken violates its protocol: it changed theta in place"):
        USES[use](_broken_sum(log_partition), theta)


def test_a_query_of_a_log_partition_that_writes_into_theta() -> None:
    def log_partition(self: Any, theta: Tensor) -> Tensor:
        return theta.exp_().sum(1).log()

    with pytest.raises(PluginError, match="log_partition of broken violates its protocol: it changed theta in place"):
        si.log_partition(torch.zeros(2, 3, dtype=torch.float64), _broken_sum(log_partition))


def test_a_value_of_nan_is_named_before_a_second_derivative_of_nan() -> None:
    oracle: Any = _broken_sum(lambda self, theta: (theta - theta.amax(1, keepdim=True)).logsumexp(1))
    theta = torch.tensor([[0.0, 1.0], [-torch.inf, -torch.inf]])
    with pytest.raises(PluginError, match="it returned NaN for batch index 1"):
        oracle.covariance_product(theta, torch.ones(2, 2))


def test_a_log_partition_with_its_own_marginals_is_refused() -> None:
    def marginals(self: Any, theta: Tensor) -> Tensor:
        return theta.softmax(1)

    theta = torch.randn(2, 3, requires_grad=True)
    for how in ("a column", "a scalar", "integers"):
        loss = si.FenchelYoungLoss(_broken_sum(BROKEN_SUMS[how][0], marginals=marginals), "marginals")
        with pytest.raises(PluginError, match="log_partition of broken violates its protocol"):
            loss(theta, _one_hot(theta.detach()))


def test_results_may_move_to_shared_memory() -> None:
    results = []
    for _ in range(100):
        results.append(si.relax(torch.randn(3, 4, 4), "assignment", "map"))
        results[-1].share_memory_()
