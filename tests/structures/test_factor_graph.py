"""FactorGraph: the exact argmax, the list of structures, logic factors, labels, and wrong arguments."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import structinf as si
from structinf.testing import check_oracle

DOUBLE = torch.float64


def bits_in_a_chain() -> si.FactorGraph:
    """Return four bits, each a state of a chain, exactly two of which are 1."""
    graph = si.FactorGraph(4)
    both = torch.stack([graph.variables, graph.variables], 1)
    graph.add("chain", both, negated=torch.tensor([True, False]), additional=[(2, 2)])
    graph.add("subset", graph.variables, k=2)
    return graph


BITS = torch.tensor([0.6, 0.1, -0.2, 0.3], dtype=DOUBLE), torch.tensor([[0.0, 0.0], [0.0, 0.8]], dtype=DOUBLE)


def all_bits(d: int) -> torch.Tensor:
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=d)), dtype=DOUBLE)


LOGIC = {
    "xor": lambda x: x.sum(1) == 1,
    "or": lambda x: x.sum(1) >= 1,
    "at_most_one": lambda x: x.sum(1) <= 1,
    "imply": lambda x: x[:, :-1].amin(1) <= x[:, -1],
    "or_out": lambda x: x[:, :-1].amax(1) == x[:, -1],
    "and_out": lambda x: x[:, :-1].amin(1) == x[:, -1],
    "budget": lambda x: x.sum(1) <= 2,
}


@pytest.mark.parametrize("name", LOGIC)
def test_logic_factor_allows_the_stated_values(name: str) -> None:
    graph = si.FactorGraph(5)
    graph.add(name, [4, 1, 3, 0], **({"k": 2} if name == "budget" else {}))
    x = all_bits(5)
    expected = x[LOGIC[name](x[:, [4, 1, 3, 0]])]
    listed = graph.enumerate((5,))
    assert sorted(map(tuple, listed.tolist())) == sorted(map(tuple, expected.tolist()))
    theta = torch.randn(20, 5, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    assert torch.equal(graph.argmax(theta), expected[(theta @ expected.T).argmax(1)])


@pytest.mark.parametrize("name", ["or", "imply", "or_out", "and_out"])
def test_negated_variables_are_flipped(name: str) -> None:
    graph = si.FactorGraph(3)
    graph.add(name, graph.variables, negated=[True, False, True])
    x = all_bits(3)
    expected = x[LOGIC[name]((x - torch.tensor([1.0, 0.0, 1.0])).abs())]
    assert sorted(map(tuple, graph.enumerate((3,)).tolist())) == sorted(map(tuple, expected.tolist()))


def test_table_scores_combinations() -> None:
    graph = si.FactorGraph(3)
    graph.add("table", [2, 0, 1])
    generator = torch.Generator().manual_seed(1)
    theta = (
        torch.randn(6, 3, dtype=DOUBLE, generator=generator),
        torch.randn(6, 2, 2, 2, dtype=DOUBLE, generator=generator),
    )
    y, entry = graph.argmax(theta)
    x = all_bits(3)
    scores = (
        theta[0] @ x.T + theta[1].flatten(1)[:, (x[:, [2, 0, 1]] @ torch.tensor([4.0, 2.0, 1.0], dtype=DOUBLE)).long()]
    )
    assert torch.equal(y, x[scores.argmax(1)])
    assert torch.equal((entry != 0).nonzero()[:, 1:], y[:, [2, 0, 1]].long())


def test_argmax_of_a_chain_with_a_budget() -> None:
    solution = si.infer(BITS, bits_in_a_chain(), "map")
    assert solution.mean[0].tolist() == [1, 1, 0, 0]
    assert solution.mean[1].tolist() == [[1, 0], [1, 1]]
    assert solution.value.item() == pytest.approx(1.5)


def test_sparsemap_of_a_chain_with_a_budget() -> None:
    solution = si.infer(BITS, bits_in_a_chain(), "sparsemap", penalty="readout", tolerance=0.0)
    torch.testing.assert_close(solution.mean[0], torch.tensor([0.65, 0.65, 0.35, 0.35], dtype=DOUBLE))
    assert solution.value.item() == pytest.approx(0.745)


def test_sums_over_structures() -> None:
    solution = si.infer(BITS, bits_in_a_chain(), "marginals")
    assert solution.value.item() == pytest.approx(2.667110, abs=1e-6)
    expected = torch.tensor([0.585702, 0.554737, 0.414298, 0.445263], dtype=DOUBLE)
    torch.testing.assert_close(solution.mean[0], expected, atol=1e-6, rtol=0)


def test_sums_with_negated_and_free_variables() -> None:
    graph = si.FactorGraph(4)
    graph.add("subset", [0, 2, 3], k=1, negated=[False, True, False])
    theta = torch.randn(3, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(3))
    listed = graph.enumerate((4,))
    assert len(listed) == 6
    torch.testing.assert_close(si.log_partition(theta, graph), (theta @ listed.T).logsumexp(1))
    marginals = (theta @ listed.T).softmax(1) @ listed
    torch.testing.assert_close(si.relax(theta, graph, "marginals"), marginals)


def test_factor_alone_takes_the_argmax_of_its_oracle() -> None:
    graph = si.FactorGraph((7, 7))
    graph.add("assignment", graph.variables[:6, :6])
    theta = torch.randn(3, 7, 7, generator=torch.Generator().manual_seed(2))
    y = si.relax(theta, graph, "map")
    assert torch.equal(y[:, :6, :6], si.relax(theta[:, :6, :6], "assignment", "map"))
    assert torch.equal(y[:, 6], (theta[:, 6] > 0).float())


def test_too_many_joint_structures_are_refused() -> None:
    graph = si.FactorGraph((10, 10))
    graph.add("assignment", graph.variables)
    graph.add("budget", graph.variables.diagonal(), k=2)
    with pytest.raises(si.UnsupportedError, match=r"100000.*use the relaxation lp_map or lp_sparsemap"):
        si.relax(torch.zeros(10, 10), graph, "map")


def test_lists_of_one_factor_are_limited() -> None:
    graph = si.FactorGraph((10, 10))
    graph.add("assignment", graph.variables, negated=graph.variables == 0)
    theta = torch.zeros(10, 10)
    theta[0, 0] = -torch.inf
    with pytest.raises(si.UnsupportedError, match=r"lists the structures, at most 100000, but factor 0, assignment"):
        si.relax(theta, graph, "map")


def test_contradicting_factors_are_named() -> None:
    graph = si.FactorGraph(3)
    graph.add("xor", graph.variables)
    graph.add("subset", graph.variables, k=2)
    with pytest.raises(si.InfeasibleError, match="factor 1, subset of variables 0 to 2"):
        si.relax(torch.zeros(3), graph, "map")


def test_forbidden_variables() -> None:
    graph = si.FactorGraph(4)
    graph.add("xor", [0, 1, 2])
    graph.add("xor", [2, 3], negated=[True, False])
    theta = torch.tensor([[1.0, -torch.inf, 2.0, -torch.inf], [-torch.inf, -torch.inf, -1.0, 0.0]])
    assert si.relax(theta, graph, "map").tolist() == [[1, 0, 0, 0], [0, 0, 1, 1]]
    with pytest.raises(si.InfeasibleError, match=r"structure of factor 0 and factor 1 together .* batch index 1"):
        si.relax(torch.tensor([[1.0] * 4, [-torch.inf] * 3 + [0.0]]), graph, "map")
    alone = si.FactorGraph(2)
    alone.add("or", [0, 1])
    with pytest.raises(si.InfeasibleError, match=r"factor 0, or of .* of finite score .* batch index 0"):
        si.relax(torch.tensor([-torch.inf] * 2), alone, "marginals")


def test_labels_are_the_variables() -> None:
    graph = bits_in_a_chain()
    labels = torch.tensor([1, 0, 1, 0])
    y = si.encode(labels, BITS, graph)
    assert y[1].tolist() == [[0, 1], [2, 0]]
    assert torch.equal(si.decode(y, graph), labels)
    with pytest.raises(si.InvalidInputError, match="labels are no structure of factor 1, subset"):
        si.encode(torch.tensor([1, 1, 1, 0]), BITS, graph)


@pytest.mark.parametrize("value", [2, -1])
def test_labels_of_free_variables_are_0_or_1(value: int) -> None:
    graph, theta = si.FactorGraph(3), torch.zeros(2, 3)
    graph.add("xor", [0, 1])
    labels = torch.tensor([[1, 0, 1], [1, 0, value]])
    with pytest.raises(si.InvalidInputError, match=f"0 or 1, got {value} at batch index 1"):
        si.encode(labels, theta, graph)
    with pytest.raises(si.InvalidInputError, match=f"0 or 1, got {value} at batch index 1"):
        si.FenchelYoungLoss(graph, "lp_map")(theta, labels.float())


def test_unknown_factors_list_all_names() -> None:
    with pytest.raises(si.UnknownNameError, match=r"no factor is called 'xorr'; did you mean 'xor'.* Known: xor, "):
        si.FactorGraph(3).add("xorr", [0, 1])


def _add_mistakes() -> dict[str, tuple[dict, str]]:
    return {
        "range": ({"factor": "xor", "variables": [0, 6]}, "from 0 to 5, got 6"),
        "float": ({"factor": "xor", "variables": [0.0]}, "integers"),
        "none": ({"factor": "xor", "variables": []}, "at least one variable"),
        "mask": ({"factor": "xor", "variables": torch.ones(3, dtype=torch.bool)}, "shape"),
        "negated": ({"factor": "xor", "variables": [0, 1], "negated": [1, 0]}, "negated must be a bool"),
        "dimensions": ({"factor": "xor", "variables": [[0, 1]]}, "one dimension"),
        "shape": ({"factor": "arborescence", "variables": [[0, 1, 2]]}, "variables of factor 0"),
        "no option": ({"factor": "xor", "variables": [0], "k": 3}, "xor takes the options: none; got: k"),
        "missing option": ({"factor": "budget", "variables": [0]}, "budget takes the options: k"),
        "additional": ({"factor": "chain", "variables": [[0, 1]], "additional": [3]}, "list of shapes"),
        "wrong additional": ({"factor": "chain", "variables": [[0, 1]], "additional": [(3, 3)]}, "additional="),
        "pair": ({"factor": "pair", "variables": [0, 1, 2]}, "a pair has 2 variables"),
    }


@pytest.mark.parametrize("mistake", _add_mistakes())
def test_wrong_arguments_of_add(mistake: str) -> None:
    arguments, message = _add_mistakes()[mistake]
    with pytest.raises(si.InvalidInputError, match=message):
        si.FactorGraph(6).add(**arguments)


@pytest.mark.parametrize("shape", [0, -1, True, "3", (2, 0), (), 2.5, None])
def test_wrong_shapes_of_graphs(shape: object) -> None:
    with pytest.raises(si.InvalidInputError, match="shape must be"):
        si.FactorGraph(shape)


def test_sizes_may_be_integers_of_numpy() -> None:
    assert si.FactorGraph(np.int64(3)).shape == (3,)
    assert si.FactorGraph((np.int32(2), 3)).shape == (2, 3)


def test_graph_is_frozen_by_its_first_use() -> None:
    graph = si.FactorGraph(2)
    graph.add("xor", graph.variables)
    si.relax(torch.zeros(2), graph, "map")
    with pytest.raises(si.UnsupportedError, match="frozen"):
        graph.add("or", graph.variables)


def test_oracles_that_cannot_be_factors() -> None:
    graph = si.FactorGraph(3)
    with pytest.raises(si.UnsupportedError, match="instance data"):
        graph.add(si.get_oracle("subset", k=1).bind(lengths=[2]), graph.variables)
    with pytest.raises(si.UnsupportedError, match="at most 0"):
        graph.add("path", graph.variables, graph=[(0, 1), (1, 2), (0, 2)], source=0, target=2, directed=False)


def test_wrong_scores() -> None:
    graph = bits_in_a_chain()
    with pytest.raises(si.InvalidInputError, match="tuple of 2 tensors"):
        si.relax(BITS[0], graph, "map")
    with pytest.raises(si.InvalidInputError, match=r"theta\[1\]: the scores for .* must have shape \(2, 2\)"):
        si.relax((BITS[0], torch.zeros(3, 2, dtype=DOUBLE)), graph, "map")


def test_conformance(conformance_dtypes: Any) -> None:
    graph = si.FactorGraph((2, 3))
    graph.add("xor", graph.variables[0])
    graph.add("or_out", graph.variables[:, 1].flip(0))
    graph.add("pair", [5, 2])
    check_oracle(graph, ((2, 3), (2, 2)), dtypes=conformance_dtypes)


@pytest.mark.parametrize("relaxation", ["map", "marginals", "lp_map"])
def test_all_instances_of_contradicting_factors_are_infeasible(relaxation: str) -> None:
    graph = si.FactorGraph(3)
    graph.add("xor", graph.variables)
    graph.add("subset", graph.variables, k=2)
    with pytest.raises(si.InfeasibleError) as caught:
        si.relax(torch.zeros(2, 3), graph, relaxation)
    assert caught.value.batch_indices == (0, 1)
    solution = si.infer(torch.zeros(2, 3), graph, relaxation, on_infeasible="zero")
    assert torch.equal(solution.mean, torch.zeros(2, 3))
    assert solution.infeasible is not None
    assert solution.infeasible.all()


def test_log_partition_of_an_empty_batch() -> None:
    theta = torch.zeros(0, 4, dtype=DOUBLE), BITS[1].clone().requires_grad_()
    value = si.log_partition(theta, bits_in_a_chain())
    assert value.shape == (0,)
    assert torch.equal(torch.autograd.grad(value.sum(), theta[1])[0], torch.zeros(2, 2, dtype=DOUBLE))


def test_a_graph_is_no_factor_of_itself() -> None:
    graph = si.FactorGraph(3)
    graph.add("xor", graph.variables)
    with pytest.raises(si.UnsupportedError, match="a graph cannot be a factor of itself"):
        graph.add(graph, graph.variables)
    outer = si.FactorGraph(4)
    outer.add(graph, [3, 1, 0])
    assert si.relax(torch.tensor([0.5, 1.0, 1.0, -1.0]), outer, "map").tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("relaxation", ["map", "sparsemap", "lp_map", "lp_sparsemap"])
@pytest.mark.parametrize("is_joined", [False, True])
def test_values_of_variables_are_0_or_1(relaxation, is_joined):
    graph = si.FactorGraph(3)
    graph.add("ranking", graph.variables)
    if is_joined:
        graph.add("or", graph.variables[:2])
    with pytest.raises(si.InvalidInputError, match=r"factor 0, ranking .* must be 0 or 1"):
        si.relax(torch.tensor([0.3, 1.0, -0.4]), graph, relaxation)
