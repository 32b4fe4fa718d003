"""The cache of supports: starts of infer by example, its checks, its bounds and its state."""

from __future__ import annotations

import copy
import io
import pickle
import sys
from typing import Any

import pytest
import torch

import structinf as si
from structinf.option_key import option_key


def _scores(oracle, seed, batch, size):
    generator = torch.Generator().manual_seed(seed)
    unary = torch.randn(batch, size, size, generator=generator, dtype=torch.float64)
    if oracle == "chain":
        return unary, torch.randn(size, size, generator=generator, dtype=torch.float64)
    return unary + unary.mT if oracle == "spanning_tree" else unary


@pytest.mark.parametrize("relaxation", ["sparsemap", "frank_wolfe"])
@pytest.mark.parametrize("oracle", ["chain", "spanning_tree"])
def test_a_cached_start_has_the_same_mean_with_fewer_calls(oracle, relaxation):
    theta = _scores(oracle, 0, 4, 5)
    options = {"tolerance": 1e-9} if relaxation == "sparsemap" else {"tolerance": 1e-7, "max_iter": 5000}
    cold = si.infer(theta, oracle, relaxation, **options)
    cache = si.SupportCache()
    cache.update([3, 1, 4, 15], cold)
    assert len(cache) == 4
    order = torch.tensor([2, 0, 3])
    some = (theta[0][order], theta[1]) if isinstance(theta, tuple) else theta[order]
    warm = si.infer(some, oracle, relaxation, warm_start=cache.select([4, 3, 15]), **options)
    assert warm.oracle_calls is not None
    assert cold.oracle_calls is not None
    assert warm.oracle_calls < cold.oracle_calls / 2
    means = zip(*(m if isinstance(m, tuple) else (m,) for m in (warm.mean, cold.mean)), strict=True)
    assert all(torch.allclose(w, c[order], atol=1e-4) for w, c in means)


def test_examples_without_structures_start_cold():
    theta = _scores("assignment", 0, 2, 6)
    cache = si.SupportCache()
    assert si.infer(theta, "assignment", warm_start=cache.select([0, 1])).oracle_calls == (
        si.infer(theta, "assignment").oracle_calls
    )
    cache.update([0], si.infer(theta[:1], "assignment", tolerance=0))
    both = si.infer(theta, "assignment", tolerance=0, warm_start=cache.select([0, 1]))
    exact = si.relax(theta, "assignment", tolerance=0)
    assert torch.allclose(both.mean, exact, atol=1e-9)


def test_structures_of_other_options_data_or_sizes_are_not_used():
    theta = torch.randn(2, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cache = si.SupportCache()
    cache.update([0, 1], si.infer(theta, "subset", k=2))
    for options in ({"k": 3}, {"k": 2, "at_most": True}, {"k": torch.tensor([2, 3])}):
        found = si.infer(theta, "subset", warm_start=cache.select([0, 1]), tolerance=0, **options)
        assert torch.allclose(found.mean, si.relax(theta, "subset", tolerance=0, **options), atol=1e-9)
    larger = torch.randn(2, 7, dtype=torch.float64)
    found = si.infer(larger, "subset", k=2, warm_start=cache.select([0, 1]), tolerance=0)
    assert torch.allclose(found.mean, si.relax(larger, "subset", k=2, tolerance=0), atol=1e-9)
    assert si.infer(theta, "categorical", warm_start=cache.select([0, 1])).oracle_calls == (
        si.infer(theta, "categorical").oracle_calls
    )


def _positive_parts(theta):
    return (theta > 0).astype(float)


def _large_parts(theta):
    return (theta > 1).astype(float)


def _above(bound):
    return si.oracle_from_function(lambda theta: (theta > bound).astype(float), event_ndim=1)


def _one_of_each(*pairs):
    graph = si.FactorGraph((4,))
    for pair in pairs:
        graph.add("subset", list(pair), k=1)
    graph.freeze()
    return graph


# Pairs of oracles with the same repr, each with other structures
WITH_EQUAL_REPR = {
    "edges": lambda: (
        si.get_oracle("spanning_tree", edges=[(0, 1), (1, 2), (2, 0), (2, 3)]),
        si.get_oracle("spanning_tree", edges=[(0, 1), (1, 2), (2, 3), (3, 1)]),
    ),
    "constraints": lambda: tuple(
        si.get_oracle("milp", A=[row], upper=[1.0], bounds=(0, 1)) for row in ([1, 1, 0, 1], [0, 1, 1, 1])
    ),
    "matrix": lambda: tuple(si.Affine("bits", g=scale * torch.eye(4)) for scale in (1, 2)),
    "factors": lambda: (_one_of_each((0, 1), (2, 3)), _one_of_each((0, 2), (1, 3))),
    "closures": lambda: (_above(0), _above(1)),
    "functions": lambda: tuple(
        si.oracle_from_function(f, event_ndim=1, name="parts") for f in (_positive_parts, _large_parts)
    ),
    "pooled": lambda: tuple(
        si.pooled(si.get_oracle("spanning_tree", edges=edges), solve_ratio=1.0)
        for edges in ([(0, 1), (1, 2), (2, 0), (2, 3)], [(0, 1), (1, 2), (2, 3), (3, 1)])
    ),
}


@pytest.mark.parametrize("case", WITH_EQUAL_REPR)
def test_structures_of_oracles_with_equal_repr_are_not_used(case):
    one, other = WITH_EQUAL_REPR[case]()
    assert repr(one) == repr(other)
    theta = torch.tensor([[0.9, 0.7, 0.8, 0.6]], dtype=torch.float64)
    cache = si.SupportCache()
    first = si.infer(theta, one, tolerance=0)
    cache.update([0], first)
    assert not cache.select([0]).structures(other, theta, [theta.shape[1:]]).any()
    found = si.infer(theta, other, tolerance=0, warm_start=cache.select([0]))
    assert torch.allclose(found.mean, si.relax(theta, other, tolerance=0), atol=1e-9)
    with pytest.raises(si.InvalidInputError, match="other options"):
        si.infer(theta, other, warm_start=first)
    # The structures of the same oracle are used, also for equal options and in another process.
    copies = [one] if case in ("closures", "pooled") else [one, WITH_EQUAL_REPR[case]()[0]]
    for oracle in copies:
        assert cache.select([0]).structures(oracle, theta, [theta.shape[1:]]).any()
    loaded = si.SupportCache()
    loaded.load_state_dict(cache.state_dict())
    assert len(loaded) == len(copy.deepcopy(cache)) == len(pickle.loads(pickle.dumps(cache))) == len(copies) - 1


def test_a_function_defined_again_makes_another_oracle(monkeypatch):
    digests = []
    for value in ("1", "2", "1"):
        space: dict[str, Any] = {"__name__": __name__}
        exec(f"def scale(theta, factor={value}):\n    return factor * theta + {value}", space)
        monkeypatch.setattr(sys.modules[__name__], "scale", space["scale"], raising=False)
        digests.append(option_key(si.oracle_from_function(space["scale"], event_ndim=1, name="f")))
    assert not digests[0].objects
    assert digests[0] == digests[2] != digests[1]


def test_lengths_allow_another_padding():
    unary, transition = _scores("chain", 2, 2, 5)
    lengths = torch.tensor([3, 2])
    cache = si.SupportCache()
    exact = {"tolerance": 1e-9}
    cold = si.infer((unary, transition), "chain", lengths=lengths, **exact)
    cache.update([0, 1], cold)
    for size in (3, 4):
        found = si.infer(
            (unary[:, :size], transition), "chain", lengths=lengths, warm_start=cache.select([0, 1]), **exact
        )
        assert found.oracle_calls == 1
        assert torch.allclose(found.mean[0], cold.mean[0][:, :size], atol=1e-7)
    longer = torch.nn.functional.pad(unary, (0, 0, 0, 3))
    found = si.infer((longer, transition), "chain", lengths=lengths, warm_start=cache.select([0, 1]), **exact)
    assert found.oracle_calls == 1
    assert torch.allclose(found.mean[0][:, :5], cold.mean[0], atol=1e-7)
    # Another length is another problem.
    found = si.infer((unary, transition), "chain", lengths=[4, 2], warm_start=cache.select([0, 1]), **exact)
    assert torch.allclose(found.mean[0], si.relax((unary, transition), "chain", lengths=[4, 2], **exact)[0], atol=1e-4)


def test_empty_and_infeasible_instances():
    unary, transition = _scores("chain", 3, 3, 4)
    unary[1] = -torch.inf
    lengths = torch.tensor([0, 4, 4])
    cache = si.SupportCache()
    options = {"lengths": lengths, "on_infeasible": "zero", "tolerance": 1e-9}
    first = si.infer((unary, transition), "chain", **options)
    cache.update([5, 6, 7], first)
    again = si.infer((unary, transition), "chain", warm_start=cache.select([5, 6, 7]), **options)
    assert again.oracle_calls == 1
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(again.mean, first.mean, strict=True))
    empty = si.infer(torch.zeros(0, 3, 3), "assignment", warm_start=cache.select([]))
    cache.update([], empty)


def test_batch_shapes_bounds_and_state():
    theta = _scores("assignment", 4, 6, 5).reshape(2, 3, 5, 5)
    cache = si.SupportCache(max_structures=2, capacity=4)
    numbers = torch.arange(6).reshape(2, 3)
    solution = si.infer(theta, "assignment")
    cache.update(numbers, solution)
    assert len(cache) == 4
    support = cache.select(numbers).structures(solution.oracle, theta, [theta.shape[2:]])
    assert support.shape == (2, 6, 5, 5)
    assert support[:, :2].count_nonzero() == 0
    assert torch.equal(support[0, 2:], solution.support[0].flatten(0, 1)[2:].to(support))
    file = io.BytesIO()
    torch.save(cache.state_dict(), file)
    file.seek(0)
    other = si.SupportCache()
    other.load_state_dict(torch.load(file))
    assert torch.equal(other.select(numbers).structures(solution.oracle, theta, [theta.shape[2:]]), support)
    single = si.infer(theta[0, 0], "assignment", warm_start=cache.select(torch.tensor(5)))
    cache.update(torch.tensor(9), single)
    assert repr(cache) == "SupportCache(max_structures=2, capacity=4, examples=4)"


def test_structures_with_fractions_and_gradients_stay_exact():
    structures = torch.tensor([[0.5, 0.0], [0.0, 1.5], [-1.0, 0.25]], dtype=torch.float64)

    class Listed(si.Oracle):
        event_ndim = 1

        def argmax(self, theta):
            return structures.to(theta)[(theta @ structures.to(theta).T).argmax(1)]

    theta = torch.tensor([[0.1, 0.2]], dtype=torch.float64, requires_grad=True)
    cache = si.SupportCache()
    first = si.infer(theta, Listed(), tolerance=0)
    cache.update([0], first)
    again = si.infer(theta, Listed(), tolerance=0, warm_start=cache.select([0]))
    assert torch.allclose(first.mean, again.mean, atol=1e-12)
    gradients = [torch.autograd.grad(s.mean[0, 0], theta)[0] for s in (first, again)]
    assert torch.allclose(*gradients, atol=1e-12)


def test_errors():
    theta = torch.randn(2, 4, 4)
    cache = si.SupportCache()
    solution = si.infer(theta, "assignment")
    with pytest.raises(si.InvalidInputError, match=r"examples must have the batch shape of the solution, \(2,\)"):
        cache.update([1], solution)
    with pytest.raises(si.InvalidInputError, match="no support"):
        cache.update([1, 2], si.infer(theta, "arborescence", "marginals"))
    with pytest.raises(TypeError, match="solution must be a Solution"):
        cache.update([1, 2], theta)
    for wrong in (torch.tensor([0.5, 1.0]), torch.tensor([True, False])):
        with pytest.raises(si.InvalidInputError, match="examples must be integers"):
            cache.select(wrong)
    with pytest.raises(TypeError, match="examples must be a tensor or a list"):
        cache.select("ab")
    with pytest.raises(si.InvalidInputError, match=r"SupportCache\.select"):
        si.infer(theta, "assignment", warm_start=cache.select([1]))
    # Before the first update too
    with pytest.raises(si.UnsupportedError, match="takes no warm_start"):
        si.infer(theta, "assignment", "map", warm_start=cache.select([1, 2]))
    cache.update([1, 2], solution)
    for state in ({}, None, {"entries": 3}, {"entries": [1]}, {"entries": [(1, 2, 3, 4)]}):
        with pytest.raises(si.InvalidInputError, match="state_dict"):
            cache.load_state_dict(state)
    assert len(cache) == 2
    with pytest.raises(si.InvalidInputError, match="capacity"):
        si.SupportCache(capacity=0)
