"""Errors about plugins that break their protocol, or leave something undone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf import InfeasibleError, InvalidInputError, PluginError, relax
from toy_oracles import Cube, Explicit, Knapsack

INF = torch.inf


# ----------------------------------------------------------------------------- plugins that break their protocol


@dataclass(frozen=True)
class Wrong(Knapsack):
    """A knapsack that answers in a wrong form."""

    how: str = ""
    name: ClassVar[str] = "wrong"

    def argmax(self, theta: Tensor) -> Any:
        y = super().argmax(theta)
        if self.how == "write":
            theta.zero_()
        return {
            "shape": y[:, 1:],
            "batch": y[:1],
            "dtype": y.half(),
            "device": y.to("meta"),
            "tuple": (y,),
            "list": y.tolist(),
            "write": y,
        }[self.how]


@pytest.mark.parametrize("how", ["shape", "batch", "dtype", "device", "tuple", "list", "write"])
def test_a_broken_argmax_is_noticed_at_run_time(how):
    with pytest.raises(PluginError, match=r"argmax of wrong violates its protocol: .*check_oracle"):
        relax(torch.randn(2, 4), Wrong(3, how), "map")
    if how != "write":
        with pytest.raises(PluginError, match="argmax of wrong violates its protocol"):
            relax(torch.randn(2, 4), Wrong(3, how), "sparsemap")


@pytest.mark.parametrize("sparse", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_sparse_results_are_refused(sparse):
    class Sparse(Explicit):
        def argmax(self, theta):
            return sparse(super().argmax(theta))

        def log_partition(self, theta):
            return super().log_partition(theta).to_sparse()

        def sample(self, theta, n, generator=None):
            return super().sample(theta, n, generator).to_sparse()

        def topk(self, theta, k):
            structures, scores, valid = super().topk(theta, k)
            return structures.to_sparse(), scores, valid

    class SparseCube(Cube):
        def project(self, theta):
            return sparse(super().project(theta))

    theta = torch.randn(2, 4)
    for relaxation in ("map", "sparsemap", "perturbed"):
        with pytest.raises(PluginError, match=r"argmax of \w+ violates its protocol: .*sparse"):
            relax(theta, Sparse(), relaxation)
    queries = [
        lambda: si.log_partition(theta, Sparse()),
        lambda: si.sample(theta, Sparse(), 3),
        lambda: si.topk(theta, Sparse(), 2),
        lambda: relax(theta, SparseCube(), "sparsemap"),
    ]
    for query in queries:
        with pytest.raises(
            PluginError, match=r"a method of \w+ returned a tensor of layout torch.sparse_\w+, .*to_dense"
        ):
            query()


def _results(change: Any) -> si.Oracle:
    class Changed(Explicit):
        def argmax(self, theta: Any) -> Any:
            return change(super().argmax(theta))

    return Changed()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda y: y.long(), "dtype of its result is torch.int64, but must be torch.float"),
        (lambda y: y[:, :-1], r"shape of its result is \(2, 3\), but must be \(2, 4\)"),
        (lambda y: y.to_sparse(), "layout of its"),
    ],
)
def test_a_result_of_wrong_form_names_one_property(change, wrong):
    with pytest.raises(PluginError, match=f"protocol: the {wrong}"):
        relax(torch.randn(2, 4), _results(change), "map")


class _Listed(Explicit, si.Enumerable):
    def enumerate(self, event_shape: Any) -> Any:
        return torch.eye(4).tolist()


def test_enumerate_must_return_tensors():
    with pytest.raises(si.testing.CheckError, match=r"enumerate must return one tensor.*, got a list"):
        si.testing.check_oracle(_Listed(), event_shape=(4,))


# ----------------------------------------------------------------------------- what plugins leave undone


def test_an_option_that_is_needed():
    si.register_oracle("toy_capacity", Knapsack)
    with pytest.raises(TypeError, match=r"^oracle 'toy_capacity' needs the option 'capacity': pass capacity=\.\.\.$"):
        relax(torch.zeros(2, 4), "toy_capacity", "map")


def test_instance_data_that_the_oracle_reads_but_nobody_gave():
    class Reads(Explicit):
        instance_ndim: ClassVar = {"mask": 1}

        def argmax(self, theta):
            return super().argmax(theta * self.bound["mask"])

    with pytest.raises(InvalidInputError, match=r"^mask: the oracle needs this instance data; pass mask=\.\.\."):
        relax(torch.zeros(2, 4), Reads(), "map")


def test_second_derivatives_of_nan_name_the_method():
    class Pairs(Explicit):
        def log_partition(self, theta):
            a, b, c, d = theta.unbind(1)
            return torch.logaddexp(torch.logaddexp(a, b), torch.logaddexp(c, d))

        log_partition_and_marginals = si.GibbsOracle.log_partition_and_marginals
        marginals = si.GibbsOracle.marginals
        covariance_product = si.GibbsOracle.covariance_product

    theta = torch.zeros(3, 4, dtype=torch.float64)
    theta[1, :2] = -INF
    theta.requires_grad_()
    mean = relax(theta, Pairs(), "marginals")
    message = (
        r"^log_partition of \w+ has a second derivative of NaN at batch index 1: torch.logaddexp .*covariance_product$"
    )
    with pytest.raises(PluginError, match=message):
        mean.square().sum().backward()


@pytest.mark.parametrize("relaxation", ["map", "marginals", "sparsemap", "frank_wolfe"])
def test_a_printed_solution_shows_its_support(relaxation):
    solution = si.infer(torch.tensor([[0.5, 0.25, 0.0]]), "categorical", relaxation)
    text = repr(solution)
    assert text.startswith("Solution(mean=tensor([[")
    assert ("support=tensor([[[" in text) == (solution.support is not None)
    assert "make_support" not in text
    assert "None" not in text
    large = si.infer(torch.zeros(2000, 60), "categorical", "map")
    assert "mean=<tensor of shape (2000, 60), torch.float32>" in repr(large)
    assert repr(large).endswith(", support=...)")
    assert "support" not in vars(large)


def test_an_oracle_without_event_ndim():
    class Bare(si.Oracle):
        def argmax(self, theta):
            return theta

    with pytest.raises(PluginError, match="Bare must define event_ndim"):
        relax(torch.zeros(2, 4), Bare(), "map")


@pytest.mark.parametrize("relaxation", ["map", "sparsemap", "perturbed", "blackbox", "imle", "stochastic"])
def test_an_argmax_that_does_not_notice_infeasibility(relaxation):
    class Blind(si.Oracle):
        event_ndim = 1

        def argmax(self, theta):
            return torch.nn.functional.one_hot(theta.argmax(-1), theta.shape[-1]).to(theta)

    theta = torch.zeros(3, 4)
    theta[1] = -torch.inf
    with pytest.raises((InfeasibleError, PluginError), match="batch index 1"):
        relax(theta, Blind(), relaxation)


def test_gold_that_beats_the_best_structure():
    theta = torch.ones(2, 4)
    with pytest.raises(InvalidInputError, match=r"^y is not a structure of toy_explicit at batch index 0"):
        si.FenchelYoungLoss(Explicit(), "map")(theta, torch.ones(2, 4))
