"""Errors about instances: instance data, labels, and infeasible instances with their batch index."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf import InfeasibleError, InvalidInputError, PluginError, UnsupportedError, relax
from toy_oracles import Explicit, Knapsack, Walk, walk

INF, NAN = torch.inf, torch.nan

every_relaxation = pytest.mark.parametrize("relaxation", ["map", "marginals", "sparsemap"])


# ----------------------------------------------------------------------------- instance data and labels


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([4, 1], r"lengths must lie between 1 and 3 \(T = 3 steps\), got 4 at batch index 0"),
        ([1, 0], r"lengths must lie between 1 and 3 .* got 0 at batch index 1"),
        ([1, -2], r"got -2 at batch index 1"),
        ([1, 2, 3], r"^lengths must have the batch shape of theta, \(2,\), got shape \(3,\)"),
        ([[1, 2]], r"^lengths must .*\(2,\), got shape \(1, 2\)"),
        ([1.0, 2.0], r"^lengths must be integers, got torch.float32"),
        ([True, True], r"^lengths must be integers, got torch.bool"),
        ("long", r"^lengths must be a tensor or a list of numbers, got 'long'"),
    ],
)
def test_wrong_lengths(lengths, message):
    with pytest.raises(InvalidInputError, match=message):
        relax(walk(2), Walk(), "map", lengths=lengths)


def test_a_batch_given_time_first_is_noticed():
    unary, transition = walk(5)
    with pytest.raises(InvalidInputError, match=r"\(3,\), got shape \(5,\)"):
        relax((unary.transpose(0, 1), transition), Walk(), "map", lengths=[3] * 5)


def test_instance_data_that_the_oracle_does_not_take():
    with pytest.raises(TypeError, match=r"no option 'mask' \(.*instance data: lengths\)"):
        relax(walk(2), Walk(), "map", mask=torch.ones(2, 3))
    with pytest.raises(TypeError, match=r"toy_walk takes no instance data 'mask' \(it takes: lengths\)"):
        Walk().bind(mask=1)
    with pytest.raises(TypeError, match=r"no option 'mask' \(.*instance data: lengths\)"):
        si.Layer(Walk(), "map")(walk(2), mask=torch.ones(2, 3))
    assert relax(walk(2), Walk(), "map", lengths=None)[0].shape == (2, 3, 2)


def test_wrong_labels():
    with pytest.raises(
        InvalidInputError, match=r"^labels: integer labels of toy_walk .*\(2,\) and 1 more .*got shape \(3,\)"
    ):
        si.encode(torch.tensor([0, 1, 1]), walk(2), Walk())
    with pytest.raises(TypeError, match=r"^labels must be a tensor of integers, got a tensor of torch.float32"):
        si.encode(torch.zeros(2, 3), walk(2), Walk())
    with pytest.raises(InvalidInputError, match=r"tags must lie between 0 and 1 at batch index 0"):
        si.encode(torch.tensor([[7, 0, 0], [0, 0, 0]]), walk(2), Walk())
    with pytest.raises(UnsupportedError, match="toy_knapsack has no integer labels"):
        si.encode(torch.zeros(2, 1, dtype=torch.long), torch.zeros(2, 4), Knapsack(3))
    with pytest.raises(UnsupportedError, match="toy_knapsack has no integer labels"):
        si.decode(torch.zeros(2, 4), Knapsack(3))


# ----------------------------------------------------------------------------- infeasible instances


@every_relaxation
def test_an_infeasible_instance_is_named(relaxation):
    theta = torch.zeros(2, 3, 4)
    theta[1, 1] = -INF
    with pytest.raises(InfeasibleError, match=r"batch index 4\b.*\(2, 3\) its index is \(1, 1\); on_inf") as error:
        relax(theta, Explicit(), relaxation)
    assert error.value.batch_index == 4
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize("relaxation", ["map", "sparsemap"])
@pytest.mark.parametrize("cost", [[[1, INF], [2, INF]], [[INF, INF], [INF, INF]]])
def test_no_assignment(relaxation, cost):
    with pytest.raises(InfeasibleError, match=r"no assignment .* batch index 0"):
        relax(-torch.tensor(cost), "assignment", relaxation)


@every_relaxation
def test_no_arborescence(relaxation):
    theta = torch.zeros(2, 4, 4)
    theta[1, 0] = -INF  # nothing hangs from the root
    with pytest.raises(InfeasibleError, match=r"arborescence .* batch index 1"):
        relax(theta, "arborescence", relaxation)


@every_relaxation
def test_no_path(relaxation):
    theta = torch.zeros(3, 2), torch.full((2, 2), -INF)
    with pytest.raises(InfeasibleError, match="batch index 0"):
        relax(theta, "chain", relaxation)


@every_relaxation
def test_all_infeasible_instances_are_named(relaxation):
    theta = torch.zeros(2, 3, 4)
    theta[0, 2] = theta[1, 0] = theta[1, 2] = -INF
    with pytest.raises(
        InfeasibleError,
        match=r"for batch index 2, 3 and 5: too many of their parts .* drop the instances; in the batch of "
        r"shape \(2, 3\) their indices are \(0, 2\), \(1, 0\), \(1, 2\); on_infeasible=.zero. leaves out",
    ) as error:
        relax(theta, "categorical", relaxation)
    assert (error.value.batch_index, error.value.batch_indices) == (2, (2, 3, 5))
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.batch_index, again.batch_indices) == (str(error.value), 2, (2, 3, 5))


def test_ten_of_many_infeasible_instances_are_named():
    theta = torch.full((50, 3, 3), -INF)
    theta[0] = 0
    with pytest.raises(InfeasibleError, match="for batch index 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 39 more: ") as error:
        relax(theta, "assignment", "map")
    assert error.value.batch_indices == tuple(range(1, 50))
    with pytest.raises(InfeasibleError, match=r"their indices are \(0, 1\), .*\(1, 0\) and 39 more; on_inf"):
        relax(theta.view(5, 10, 3, 3), "assignment", "map")


@pytest.mark.parametrize(
    ("oracle", "options"),
    [
        ("path", {"graph": [(0, 1), (1, 2)], "source": 0, "target": 2}),
        ("matching", {"edges": [(0, 1), (2, 3)], "perfect": True}),
        ("flow", {"graph": [(0, 1), (1, 2)], "supplies": [1, 0, -1]}),
        ("dag_path", {"graph": [(0, 1), (1, 2)]}),
        ("transportation", {"supplies": [1], "demands": [0, 1]}),
        ("spanning_tree", {"edges": [(0, 1), (1, 2)]}),
    ],
)
def test_solvers_of_graphs_name_all_infeasible_instances(oracle, options):
    theta = torch.full((4, 2), -INF)
    theta[1:3] = 0
    with pytest.raises(InfeasibleError, match="batch index 0 and 3") as error:
        relax(theta.unsqueeze(1) if oracle == "transportation" else theta, oracle, "map", **options)
    assert error.value.batch_indices == (0, 3)


def test_all_instances_without_a_bound_are_named():
    graph = [(0, 1), (1, 0)]
    with pytest.raises(si.UnboundedError, match="batch index 0 and 2, as") as error:
        relax(torch.tensor([[1.0, 1], [-1, 0], [3, 0]]), "flow", "map", graph=graph, supplies={}, capacities=INF)
    assert error.value.batch_indices == (0, 2)


@dataclass(frozen=True)
class Marked(Explicit):
    """An oracle whose argmax is NaN for the instances marked by 7, from the second call on."""

    name: ClassVar[str] = "marked"
    instance_ndim: ClassVar = {"mark": 0}
    calls: ClassVar[list[int]] = []

    def argmax(self, theta: Tensor) -> Tensor:
        self.calls.append(len(theta))
        y = super().argmax(theta)
        return torch.where((self.bound["mark"] == 7)[:, None] & (len(self.calls) > 1), NAN, y)


@pytest.mark.parametrize("relaxation", ["sparsemap", "frank_wolfe"])
def test_errors_in_later_rounds_name_the_instance_of_the_batch(relaxation):
    theta = torch.zeros(5, 4, dtype=torch.float64)
    theta[:3] += 1000 * torch.tensor([1.0, 0, 0, 1])  # these instances end in the first round
    theta[3:] += torch.tensor([0.1, 0.2, 0.3, 0.1])
    Marked.calls.clear()
    with pytest.raises(PluginError, match=r"\bbatch index 4\b"):
        si.infer(theta, Marked(), relaxation, mark=[0, 0, 0, 0, 7])
    assert len(Marked.calls) > 1


def test_the_active_set_behind_a_direct_solver_names_the_instance_of_the_batch(monkeypatch):
    from structinf.relaxations import sparsemap as module
    from structinf.solvers.direct_mean import DirectMean

    def stops_early(oracle: Any, theta: Tensor, **_: Any) -> DirectMean:
        converged = torch.arange(len(theta)) < 3
        zero = theta.new_zeros(len(theta))
        return DirectMean(torch.zeros_like(theta), zero, zero, converged, lambda v: v)

    kind = type(si.get_oracle("assignment"))

    def argmax(self: Any, theta: Tensor) -> Tensor:
        raise PluginError(f"out of order for batch index {len(theta) - 1}, 0 and 1 more")

    monkeypatch.setattr(module, "project_transport", stops_early)
    monkeypatch.setattr(kind, "argmax", argmax)
    with pytest.raises(PluginError, match=r"^out of order for batch index 4, 3 and 1 more$"):
        relax(torch.randn(5, 3, 3), "assignment", "sparsemap")


def test_instances_of_a_selection_are_renumbered():
    for message, expected in [
        ("no path for batch index 1", "no path for batch index 9"),
        ("no path for batch index 0, 1, 2 and 30 more", "no path for batch index 8, 9, 11 and 30 more"),
        ("no path of 2 edges, 1 of 2", "no path of 2 edges, 1 of 2 (batch index 8)"),
        ("batch index 5", "batch index 5"),
    ]:
        error = InfeasibleError(message, 0, [0, 1, 2])
        with pytest.raises(InfeasibleError) as found, si.errors.renumber_instances(torch.tensor([8, 9, 11])):
            raise error
        assert str(found.value) == expected
        assert (found.value.batch_index, found.value.batch_indices) == (8, (8, 9, 11))


@pytest.mark.parametrize("relaxation", ["sparsemap", "frank_wolfe", "perturbed"])
def test_warnings_of_solvers_name_instances_of_the_whole_batch(relaxation):
    numbers = []

    class Limited(si.Oracle):
        event_ndim = 1
        instance_ndim: ClassVar = {"number": 0}

        def argmax(self, theta):
            numbers.append(self.bound["number"][-1].item())
            si.errors.warn_user(f"stopped at batch index {len(theta) - 1}", si.ConvergenceWarning)
            return (theta > 0).to(theta)

    theta = torch.tensor([[0.1, 0.2], [9.0, -9.0], [0.3, 0.4], [9.0, 9.0]])
    with pytest.warns(si.ConvergenceWarning) as found:
        relax(theta, Limited(), relaxation, number=[0, 1, 2, 3])
    named = [str(w.message) for w in found if "stopped at" in str(w.message)]
    assert named == [f"stopped at batch index {number}" for number in numbers]
    assert relaxation == "perturbed" or len(set(numbers)) > 1


def test_infeasible_errors_name_the_batch_index():
    assert str(InfeasibleError("no path", 3)) == "no path (batch index 3)"
    assert str(InfeasibleError("no path for batch index 3", 3)) == "no path for batch index 3"
