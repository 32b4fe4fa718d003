"""The papers' experiments with latent structures: what they are made of, and small runs of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.papers import listops
from paper_reports import folder, number, tables

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------------------- expressions

NESTED = ["[MAX", "2", "[MED", "9", "4", "[MIN", "7", "1", "]", "6", "]", "]"]


def tiny(method: str, **changes) -> listops.Network:
    torch.manual_seed(0)
    return listops.Network(method, replace(listops.sizes(quick=True), **changes)).eval()


def test_expressions_are_parsed():
    assert listops.parse(NESTED) == (NESTED, [0, 0, 2, 2, 2, 5, 5, 5, 2, 2, 0], 5, 3)
    assert listops.parse(["[SM", "9", "8", "4", "]"]).value == 1
    assert listops.parse(["[MED", "1", "4", "]"]).value == 2  # the integer part


def test_drawn_expressions_are_allowed():
    size = listops.sizes(quick=True)
    drawn = listops.draw(300, size, 0)
    assert all(4 <= len(e.words) <= 16 and e.depth <= 3 and "[SM" not in e.words for e in drawn)
    assert {e.value for e in drawn} == set(range(10))
    assert {e.depth for e in drawn} == {1, 2, 3}
    assert drawn == listops.draw(300, size, 0) != listops.draw(300, size, 1)


def test_official_expressions_have_their_values():
    found = listops.read(folder("listops_test"))
    assert len(found) == 9999  # one is a single digit
    assert all(expression.value == value for expression, value in found)


# ----------------------------------------------------------------------------- trees


def test_the_right_trees_are_arborescences():
    batch = listops.collate([listops.parse(NESTED), listops.parse(["[MIN", "3", "5", "]"])])
    theta = torch.zeros(2, 12, 12)
    trees = listops.right_trees(theta, batch)
    assert trees[1].nonzero().tolist() == [[0, 1], [0, 2], [0, 3]]
    assert torch.equal(listops.BEST(trees, batch), trees)  # the best for itself as scores


@pytest.mark.parametrize("method", [name for name, trees in listops.METHODS.items() if trees])
def test_each_token_has_one_head(method):
    batch = listops.collate(listops.draw(8, listops.sizes(quick=True), 0))
    model = tiny(method)
    trees = model.trees
    assert trees is not None
    theta = model.arcs(batch)
    tree = trees(theta, batch)
    inside = torch.arange(theta.shape[1]) < batch.lengths[:, None]
    heads = inside.float()
    heads[:, 0] = 0
    torch.testing.assert_close(tree.sum(1), heads, atol=1e-5, rtol=0)
    assert not tree[~inside].any()
    if method == listops.RIGHT:
        return
    model(batch).square().sum().backward()
    assert model.arc.weight.grad is not None
    assert model.arc.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("method", [listops.LSTM, "marginals", "straight-through"])
def test_values_do_not_depend_on_the_padding(method):
    both = [listops.parse(["[MIN", "3", "5", "]"]), listops.parse(NESTED)]
    model = tiny(method)
    torch.testing.assert_close(model(listops.collate(both))[0], model(listops.collate(both[:1]))[0])


def test_messages_reach_the_root_from_the_deepest_token():
    model = tiny(listops.RIGHT)
    values = [model(listops.collate([listops.parse(f"[MAX 2 [MED 1 [MIN {x} 3 ] 4 ] ]".split())])) for x in "12"]
    assert not torch.equal(*values)
    shallow = tiny(listops.RIGHT, deepest=2)
    values = [shallow(listops.collate([listops.parse(f"[MAX 2 [MED 1 [MIN {x} 3 ] 4 ] ]".split())])) for x in "12"]
    assert torch.equal(*values)


def test_scores_of_a_model_that_knows_the_trees():
    expressions = listops.draw(50, listops.sizes(quick=True), 0)

    class Known(listops.Network):
        def arcs(self, batch):
            size = batch.tokens.shape[1]
            return listops.right_trees(torch.zeros(len(batch.tokens), size, size), batch)

    model = Known("straight-through", listops.sizes(quick=True))
    found = listops.score(model, expressions)
    assert found.precision == 100
    assert found.accuracy == found.best


def test_a_folder_without_the_data(tmp_path, capsys):
    assert listops.main([str(tmp_path), "--quick"]) == 2
    assert f"{tmp_path} holds no test_d20s.tsv" in capsys.readouterr().err


def check(report, tests: int) -> None:
    (rows,) = tables(report)
    assert [row[0] for row in rows] == list(listops.METHODS)
    assert all(5 < number(cell) <= 100 for row in rows for cell in row[1 : 3 * tests : 3])
    assert {row[0]: row[3] for row in rows}[listops.RIGHT] == "100.00"


@pytest.mark.full
def test_values_of_expressions(tmp_path):
    assert listops.main(["--quick", "--out", str(tmp_path / "listops.md")]) == 0
    check(tmp_path / "listops.md", 1)


@pytest.mark.full
def test_values_of_official_expressions(tmp_path):
    out = tmp_path / "listops.md"
    assert listops.main([str(folder("listops_test")), "--quick", "--out", str(out)]) == 0
    check(out, 2)
