"""The papers' experiments with combinatorial structures: what they are made of, and small runs of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import structinf as si
from benchmarks.papers import (
    decision_problems,
    decisions,
    energy_knapsack,
    matching_digits,
    pyepo_methods,
    rationale_subsets,
    shortest_path,
    snli_alignment,
    sorting_sinkhorn,
)
from benchmarks.papers.training import fit
from paper_reports import folder, number, tables

pytestmark = pytest.mark.slow


def test_without_a_score_the_last_epoch_is_kept():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    seen = []

    def loss(batch):
        seen.append(model.weight.item())
        return model(batch).square().sum()

    result = fit(model, [loss] * 3, lambda: [torch.ones(1, 1)], rate=0.1, description="", decay=False)
    assert result.dev != result.dev  # nan
    assert seen == pytest.approx([1.0, 0.9, 0.8], abs=1e-2)
    assert model.weight.item() == pytest.approx(0.7, abs=1e-2)


# ----------------------------------------------------------------------------- decisions

SURROGATES = {"adaptive I-MLE", "I-MLE", "blackbox", "negative identity", "straight-through marginals", "SPIGOT"}


def test_arcs_and_paths_of_the_grid():
    assert len(shortest_path.arcs(5)) == 40
    assert shortest_path.PATH.count(torch.zeros(1, 40)) == [70]  # C(8, 4)


def test_drawn_costs():
    data, expected = shortest_path.draw(500, 0)
    factor = data.values / expected
    assert (expected < 0).all()
    assert (factor.min() >= 0.5) & (factor.max() <= 1.5)
    assert factor.mean().item() == pytest.approx(1, abs=0.01)
    assert torch.equal(data.best, si.relax(data.values, "dag_path", "map", graph=shortest_path.arcs(5)))


def test_published_draw():
    data, expected = shortest_path.published_draw()
    test = data.take(slice(shortest_path.PUBLISHED_HALF, None))
    # The regret of the noise-free costs on the test data, from PyEPO's generator and scikit-learn's division.
    lost = decisions.regret(expected[shortest_path.PUBLISHED_HALF :], test, shortest_path.PATH)
    assert lost == pytest.approx(5.8503, abs=1e-4)


def test_regret_of_a_decision():
    oracle = si.get_oracle("subset", k=1)
    values = torch.tensor([[-3.0, -1.0], [-2.0, -4.0]])
    data = decisions.Decisions(values, values, torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert decisions.regret(values, data, oracle) == 0
    assert decisions.regret(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), data, oracle) == pytest.approx(200 / 3)


def test_spo_plus_is_the_formula_of_its_paper():
    """max over y of (c − 2 ĉ)ᵀ y, plus 2 ĉᵀ y* − cᵀ y*, for costs c, of which values are the negatives."""
    generator = torch.Generator().manual_seed(0)
    costs, predicted = torch.rand(2, 4, 40, generator=generator)
    data = decisions.Decisions(costs, -costs, si.relax(-costs, shortest_path.PATH, "map"))
    paths = shortest_path.PATH.enumerate((40,)).float()
    best = ((costs - 2 * predicted) @ paths.T).amax(1) + ((2 * predicted - costs) * data.best).sum(1)
    loss = decisions.losses(shortest_path.PATH)["SPO+"](-predicted, data)
    torch.testing.assert_close(loss, best.mean())


def slope_of(loss, theta, batch):
    theta = theta.clone().requires_grad_()
    value = loss(theta, batch)
    return value, torch.autograd.grad(value, theta)[0]


def test_surrogates_of_the_mean_regret():
    """For mean regret, v = −t / B for values t: the gradients are those of the methods' formulas."""
    generator = torch.Generator().manual_seed(0)
    theta, values = -torch.rand(2, 6, 40, generator=generator)
    oracle = shortest_path.PATH
    best, chosen = si.relax(values, oracle, "map"), si.relax(theta, oracle, "map")
    batch = decisions.Decisions(values, values, best)
    found = {
        name: slope_of(loss, theta, batch) for name, loss in shortest_path.every_loss().items() if name in SURROGATES
    }
    lost = si.regret(theta, values, oracle).mean()
    for name in ("blackbox", "negative identity", "straight-through marginals", "SPIGOT"):
        torch.testing.assert_close(found[name][0], lost)
    v = -values / 6
    torch.testing.assert_close(found["negative identity"][1], v)
    moved = si.relax(theta - 20 * v, oracle, "map")
    torch.testing.assert_close(found["blackbox"][1], (chosen - moved) / 20)
    torch.testing.assert_close(
        found["SPIGOT"][1], chosen - si.relax(chosen - v, oracle, "sparsemap", tolerance=0), atol=1e-5, rtol=0
    )
    assert all(slope.isfinite().all() and slope.any() for _, slope in found.values())


def test_what_a_loss_remembers_is_not_shared():
    one, other = (shortest_path.every_loss()["adaptive I-MLE"] for _ in range(2))
    theta, values = -torch.rand(2, 6, 40, generator=torch.Generator().manual_seed(0))
    batch = decisions.Decisions(values, values, si.relax(values, shortest_path.PATH, "map"))
    states = [loss.__closure__[0].cell_contents.state_dict() for loss in (one, other)]
    slope_of(one, theta, batch)
    assert states[0]["relaxation.alpha"] != states[1]["relaxation.alpha"] == 1


@pytest.mark.full
def test_shortest_paths_of_predicted_costs(tmp_path):
    assert shortest_path.main(["--quick", "--out", str(tmp_path / "path.md")]) == 0
    (rows,) = tables(tmp_path / "path.md")
    found = {row[0]: number(row[1]) for row in rows if row[1]}
    assert set(found) == {*shortest_path.every_loss(), "noise-free costs"}
    assert {row[0] for row in rows if row[3]} == set(shortest_path.PUBLISHED)
    assert all(found["noise-free costs"] < regret < 20 for name, regret in found.items() if name != "noise-free costs")


def test_data_of_pyepo():
    features, expected, costs = decision_problems.draw_costs(300, 0)
    assert (features.shape, costs.shape, costs.dtype) == ((300, 5), (300, 40), np.float32)
    assert ((costs >= 0.499 * expected) & (costs <= 1.501 * expected)).all()
    assert len(set(decision_problems.grid_arcs(5))) == 40
    weights, features, values = decision_problems.draw_items(300, 0, 2)
    assert (weights.shape, features.shape, values.shape) == ((2, 16), (300, 5), (300, 16))
    assert ((weights >= 3) & (weights < 8)).all()
    assert (values == np.ceil(values)).all()
    features, costs = decision_problems.draw_distances(300, 0)
    assert (features.shape, costs.shape) == ((300, 5), (300, 28))
    covariance, features, returns = decision_problems.draw_returns(300, 0)
    assert (covariance.shape, features.shape, returns.shape) == ((20, 20), (300, 5), (300, 20))
    assert (np.linalg.eigvalsh(covariance) > 0).all()


@pytest.mark.parametrize("name", [name for name in decision_problems.PROBLEMS if name != "portfolios"])
def test_problems(name):
    task = decision_problems.PROBLEMS[name](12, 0)
    data, rows = task.data, slice(4, 12)
    assert task.network()(data.features).shape == data.values.shape == data.best.shape
    assert torch.equal(si.relax(data.values, task.oracle, "map"), data.best)
    assert task.regret(data.best[rows], rows) == pytest.approx(0, abs=1e-5)
    assert task.regret(si.relax(-data.best, task.oracle, "map")[rows], rows) > 1
    oracle = pyepo_methods.Counted(task)
    scale = dict.fromkeys(pyepo_methods.TUNED, 1.0)
    loss = pyepo_methods.own_losses(task, oracle, data, scale, 12)["perturbation gradient"]
    loss(data.values.requires_grad_(), data).backward()
    assert oracle.solved == [24]  # both decisions of an instance in one call


def test_costs_of_vehicles():
    task = decision_problems.vehicles(6, 0)
    alone, least = task.costs(torch.zeros(6, 21), slice(0, 6))
    # a vehicle for each trip has neither empty travel nor delays
    assert alone.tolist() == [700.0] * 6
    assert (least < alone).all()


def test_values_of_maintenance(monkeypatch):
    """For one machine, by value iteration over its three states."""
    monkeypatch.setattr(decision_problems, "MACHINES", 1)
    data = decision_problems.maintenance(40, 0).data
    found = []
    for x in data.features[:, 0].tolist():
        wear, failure, repair, state = x[0], 10 * x[1], 10 * x[2], int(x[5]) * 2 + int(x[4])
        value = [0.0] * 3
        for _ in range(300):
            later = [(1 - wear) * value[s] + wear * value[s + 1] for s in range(2)] + [value[2]]
            value = [failure * (s == 2) + min(0.9 * later[s], repair + 0.9 * value[0]) for s in range(3)]
        later = [(1 - wear) * value[s] + wear * value[s + 1] for s in range(2)] + [value[2]]
        found.append(0.9 * later[state] - repair - 0.9 * value[0])
    expected = torch.tensor(found)
    torch.testing.assert_close(data.values[:, 0], expected / expected.std(), rtol=1e-3, atol=1e-4)


@pytest.mark.full
def test_methods_of_pyepo(tmp_path):
    assert pyepo_methods.main(["--quick", "--out", str(tmp_path / "methods.md")]) == 0
    found = tables(tmp_path / "methods.md")
    assert all(number(row[1]) >= 0 for rows in found for row in rows)
    assert {len(rows) for rows in found} <= {13, 14}  # no cone loss for portfolios


def test_days_of_the_knapsack():
    days = energy_knapsack.read(folder("energy_knapsack"))
    (train, prices), (test, _) = days.train, days.test
    assert (train.shape, prices.shape, test.shape) == ((552, 48, 8), (552, 48), (237, 48, 8))
    assert (len(days.weights), sum(days.weights)) == (48, 240)
    torch.testing.assert_close(train.mean((0, 1)), torch.zeros(8), atol=1e-3, rtol=0)
    assert prices.mean().item() == pytest.approx(1, abs=1e-4)


def test_knapsacks_of_predicted_prices(tmp_path):
    out = tmp_path / "knapsack.md"
    assert energy_knapsack.main([str(folder("energy_knapsack")), "--quick", "--out", str(out)]) == 0
    (rows,) = tables(out)
    assert [row[0] for row in rows] == list(decisions.losses(si.get_oracle("knapsack", weights=[1], capacity=1)))
    assert all(0 < number(row[1]) < 50 for row in rows)


# ----------------------------------------------------------------------------- digits


def test_grids_of_digits():
    assert matching_digits.neighbours(2).tolist() == [[0, 1], [2, 3], [0, 2], [1, 3]]
    assert len(matching_digits.neighbours(8)) == 112
    digits = torch.tensor([1, 2, 3])
    grids = matching_digits.draw(digits, 2, 20, torch.Generator().manual_seed(0))
    for image, costs, best in zip(*grids, strict=True):
        a, b, c, d = digits[image].tolist()
        assert costs.tolist() == [10 * a + b, 10 * c + d, 10 * a + c, 10 * b + d]
        assert (costs * best).sum() == min(costs[:2].sum(), costs[2:].sum())


def test_perfect_matchings_are_tilings():
    structures = matching_digits.matching(4).enumerate((24,))
    assert len(structures) == 36


def test_blackbox_counts_wrong_edges():
    """The Hamming distance from the right matching y*, with dL/dy = 1 − 2 y* and the step λ = 100 for the mean."""
    oracle = matching_digits.matching(4)
    theta = torch.randn(5, 24, generator=torch.Generator().manual_seed(0)).requires_grad_()
    right = si.relax(torch.randn(5, 24, generator=torch.Generator().manual_seed(1)), oracle, "map")
    y = si.relax(theta.detach(), oracle, "map")
    loss = matching_digits.losses(oracle)["blackbox"](theta, right)
    torch.testing.assert_close(loss, (y != right).sum() / 5)
    loss.backward()
    moved = si.relax(theta.detach() - 100 * (1 - 2 * right) / 5, oracle, "map")
    torch.testing.assert_close(theta.grad, (y - moved) / 100)


def test_a_reader_that_knows_the_costs_scores_all():
    digits, _ = matching_digits.read()
    oracle = matching_digits.matching(4)
    grids = matching_digits.draw(digits.digits, 4, 10, torch.Generator().manual_seed(0))

    class Known(matching_digits.EdgeScorer):
        def forward(self, images, grids):
            first, second = digits.digits[grids][:, self.ends].unbind(2)
            return -(10.0 * first + second)

    assert matching_digits.score(Known(4), digits, grids, oracle) == (100, 100, 0)
    assert matching_digits.score(matching_digits.EdgeScorer(4), digits, grids, oracle).excess > 0


@pytest.mark.full
def test_matchings_of_digits(tmp_path):
    assert matching_digits.main(["--quick", "--out", str(tmp_path / "digits.md")]) == 0
    ((*rows, _),) = tables(tmp_path / "digits.md")
    found = {row[0]: number(row[2]) for row in rows}
    assert list(found) == ["digits read first", "blackbox", "perceptron", "hinge", "SparseMAP"]
    assert max(found["hinge"], found["SparseMAP"]) > 25  # at random, 3
    assert found["blackbox"] > 10


# ----------------------------------------------------------------------------- sorting


def test_places_in_the_sorted_list():
    numbers = torch.tensor([[0.3, 0.1, 0.2]])
    assert sorting_sinkhorn.places(numbers).tolist() == [[2, 0, 1]]
    theta = 1e3 * torch.nn.functional.one_hot(sorting_sinkhorn.places(numbers), 3).float()
    for name, loss in sorting_sinkhorn.LOSSES.items():
        assert loss(theta, numbers).item() == pytest.approx(0, abs=1e-4), name
        assert loss(-theta, numbers).item() > 0.01, name


@pytest.mark.full
def test_lists_are_sorted(tmp_path):
    assert sorting_sinkhorn.main(["--quick", "--out", str(tmp_path / "sorting.md")]) == 0
    (rows,) = tables(tmp_path / "sorting.md")
    assert [(row[0], row[1]) for row in rows] == list(sorting_sinkhorn.LOSSES)
    assert all(number(row[2]) < 5 for row in rows)


# ----------------------------------------------------------------------------- reviews


def test_words_of_reviews():
    words = rationale_subsets.words_of("It's a well-made film, 'a' GEM!")
    assert words == ["it's", "a", "well-made", "film", ",", "'", "a", "'", "gem", "!"]


def test_subsets_of_a_review():
    corpus = rationale_subsets.Corpus(folder("vader_reviews"), rationale_subsets.Sizes(reviews=50, subsets=(2,)))
    batch = corpus.batch(corpus.test)
    for relaxation in rationale_subsets.RELAXATIONS.values():
        model = rationale_subsets.SubsetRegressor(corpus.lexicon.known_count, 2, relaxation, 8).eval()
        chosen = model.subset(batch)
        expected = batch.lengths.float() if relaxation is None else torch.full((len(chosen),), 2.0)
        torch.testing.assert_close(chosen.sum(1), expected)
        hard = rationale_subsets.score(model, corpus, corpus.test)
        assert (hard.error == hard.relaxed) == (relaxation is None)
    low, most = rationale_subsets.chance(corpus, 2)
    assert 0 < low < most < 100


@pytest.mark.full
def test_ratings_from_two_words(tmp_path):
    out = tmp_path / "reviews.md"
    assert rationale_subsets.main([str(folder("vader_reviews")), "--quick", "--out", str(out)]) == 0
    (rows,) = tables(out)
    assert [row[0] for row in rows] == ["random words", "at most", *rationale_subsets.RELAXATIONS]
    assert all(0 < number(row[3]) < 4 for row in rows[2:])


# ----------------------------------------------------------------------------- pairs of sentences


@pytest.mark.parametrize("name", snli_alignment.ALIGNMENTS)
def test_weights_of_an_alignment(name):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 4, 5, generator=generator)
    lengths = torch.tensor([[4, 5], [2, 3], [3, 1]])
    moves = torch.zeros(2 * snli_alignment.REACH + 1, requires_grad=True)
    forth, back = snli_alignment.ALIGNMENTS[name](scores, moves, lengths)
    for b, (n, m) in enumerate(lengths.tolist()):
        for weights, words, other in ((forth[b], n, m), (back[b].T, m, n)):
            assert not weights[words:].any()
            assert not weights[:, other:].any()
            most = torch.full((words,), min(1.0, other / words) if "assignment" in name else 1.0)
            if "assignment" in name:
                assert (weights[:words].sum(1) <= 1 + 1e-5).all()
                assert weights.sum().item() == pytest.approx(min(n, m), abs=1e-4)
            else:
                torch.testing.assert_close(weights[:words].sum(1), most)


def test_a_chain_of_picks_sees_its_moves():
    moves = torch.full((2 * snli_alignment.REACH + 1,), -50.0)
    moves[snli_alignment.REACH + 1] = 0  # each word picks the one after its neighbour's
    align = snli_alignment.sequential("marginals")
    forth, back = align(torch.zeros(1, 3, 3), moves, torch.tensor([[3, 3]]))
    torch.testing.assert_close(forth[0], torch.eye(3))
    torch.testing.assert_close(back[0], torch.eye(3))


def test_pairs_of_sentences_learn(tmp_path):
    data = folder("snli_dev_test")
    size = snli_alignment.Sizes(train=40, longest=10, held_out=10, test=10, epochs=1, batch=10, hidden=4)
    corpus = snli_alignment.Corpus(data, size)
    assert [len(part) for part in (corpus.train, corpus.dev, corpus.test)] == [40, 10, 10]
    for name, align in snli_alignment.ALIGNMENTS.items():
        _, result = snli_alignment.train(corpus, align, size, 0, name)
        assert 0.5 < result.losses[0] < 2
