"""Pictures of attention: heads, words on both sides, weights in the cells, runs of keys."""

from __future__ import annotations

import pytest
import torch

import structinf as si

pytest.importorskip("matplotlib")
from matplotlib.patches import Rectangle

from figure_contents import cut_off, decimals, render, shown_decimals, texts
from structinf import plot
from structinf.attention import StructuredMultiheadAttention

pytestmark = pytest.mark.slow


def words(of: str, count: int) -> list[str]:
    return [f"{of}{i}" for i in range(count)]


def shaded(axes) -> torch.Tensor:
    """What the cells of a head show; those of weight 0 are nan."""
    return torch.as_tensor(axes.images[0].get_array().filled(torch.nan))


def outlines(axes) -> list[tuple[int, int, int]]:
    """Row, first and last column of each outline."""
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return [(round(b.get_y() + 0.5), round(b.get_x() + 0.5), round(b.get_x() + b.get_width() - 0.5)) for b in boxes]


@pytest.mark.matrix
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (1, 4, 4), (3, 1, 6), (4, 3, 2), (9, 2, 8), (2, 12, 30)])
@pytest.mark.parametrize("normalise", [torch.softmax, si.simplex.sparsemax], ids=["dense", "sparse"])
def test_every_head_shows_its_weights(shape, normalise):
    weights = normalise(3 * torch.randn(shape), -1).double()
    heads = words("head", shape[0]) if len(shape) == 3 else None
    queries, keys = words("query", shape[-2]), words("key", shape[-1])
    figure = plot.attention(weights, queries=queries, keys=keys, heads=heads, title="a title")
    assert render(figure).startswith(b"\x89PNG")
    assert not cut_off(figure)
    shown = texts(figure)
    assert {"a title", *keys, *queries, *(heads or [])} <= set(shown)
    maps = torch.cat([shaded(axes) for axes in figure.axes]).reshape(shape)
    expected = weights.float().where(weights > 0, torch.nan)
    torch.testing.assert_close(maps.float(), expected, equal_nan=True)
    if shape[-1] <= 6:
        assert shown_decimals(figure) == decimals(weights)


def test_keys_stand_above_every_head_and_queries_beside_the_first_of_a_line():
    figure = plot.attention(torch.rand(3, 2, 3), queries=["q1", "q2"], keys=["k1", "k2", "k3"])
    shown = texts(figure)
    assert [shown.count(word) for word in ("k1", "k2", "k3")] == [3, 3, 3]
    assert [shown.count(word) for word in ("q1", "q2")] == [1, 1]


def test_heads_of_one_query_are_rows():
    figure = plot.attention(torch.rand(3, 1, 5), queries=["what"], keys=words("key", 5), heads=["a", "b", "c"])
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert "what" in texts(figure)


def test_many_heads_take_several_lines():
    figure = plot.attention(torch.rand(8, 5, 5))
    tops = {round(axes.get_position().y1, 6) for axes in figure.axes}
    assert len(figure.axes) == 8
    assert len(tops) > 1
    assert figure.get_figwidth() < 12
    assert [f"head {h + 1}" in texts(figure) for h in range(8)] == [True] * 8


def test_lines_have_as_many_heads():
    positions = [axes.get_position() for axes in plot.attention(torch.rand(4, 9, 20)).axes]
    assert len({round(place.y1, 6) for place in positions}) == 2
    assert len({round(place.x0, 6) for place in positions}) == 2


def test_runs_of_keys_are_outlined():
    weights = torch.tensor([[0.5, 0.5, 0.0, 0.2, 0.0], [0.2, 0.2, 0.2, 0.2, 0.2], [0.0, 0.0, 0.0, 0.0, 0.0]])
    (axes,) = plot.attention(weights, runs=True).axes
    assert outlines(axes) == [(0, 0, 1), (0, 3, 3)]  # dense rows have none, and rows without keys neither
    (axes,) = plot.attention(weights).axes
    assert outlines(axes) == []


def test_long_keys_are_turned():
    figure = plot.attention(torch.rand(2, 3), keys=["a", "b", "a key of considerable length"])
    assert not cut_off(figure)
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {90}


def test_weights_of_a_layer():
    layer = StructuredMultiheadAttention(8, 2, batch_first=True, weights="sparsemax")
    x = torch.randn(1, 4, 8)
    _, weights = layer(x, x, x, average_attn_weights=False)
    before = weights.clone()
    figure = plot.attention(weights[0], queries=list("abcd"), keys=list("abcd"), heads=["one", "two"])
    render(figure)
    assert weights.requires_grad
    assert torch.equal(weights, before)


def test_wrong_weights_or_words_are_refused():
    weights = torch.rand(2, 3, 4)
    with pytest.raises(si.InvalidInputError, match=r"got \(1, 2, 3, 4\); pass the weights of one instance"):
        plot.attention(weights[None])
    with pytest.raises(si.InvalidInputError, match=r"weights must have shape .*, not empty, got \(2, 0, 4\)"):
        plot.attention(weights[:, :0])
    with pytest.raises(si.InvalidInputError, match=r"weights must be finite and at least 0, got a minimum of -0\.5"):
        plot.attention(torch.tensor([[1.0, -0.5]]))
    with pytest.raises(si.InvalidInputError, match="weights must be finite"):
        plot.attention(torch.tensor([[1.0, torch.nan]]))
    with pytest.raises(
        si.InvalidInputError, match="keys must have 4 entries, one for each of the keys in the weights, got 3"
    ):
        plot.attention(weights, keys="abc")
    with pytest.raises(
        si.InvalidInputError, match="queries must have 3 entries, one for each of the queries in the weights, got 4"
    ):
        plot.attention(weights, queries="abcd")
    with pytest.raises(
        si.InvalidInputError, match="heads must have 2 entries, one for each of the heads in the weights, got 1"
    ):
        plot.attention(weights, heads=["one"])
