"""Shortest paths through grids of cells, by moves that may lead back: against lists of all paths, and scipy."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

import structinf as si
from enumerators import projection, score
from enumerators_graph_paths import EIGHT, FOUR, neighbour_paths
from structinf.calls.problem import Problem
from structinf.command_line.main import main
from structinf.errors import InfeasibleError, InvalidInputError
from structinf_oracles.common import shortest_paths
from structinf_oracles.grid_path import GridPath, GridShortestPath, grid_path

KNIGHT = ((1, 2), (2, 1), (-1, 2), (2, -1), (-2, 1), (1, -2), (-1, -2), (-2, -1))
MOVES = {"4-neighbours": FOUR, "8-neighbours": EIGHT, KNIGHT: KNIGHT}

every_moves = pytest.mark.parametrize("moves", MOVES, ids=lambda moves: moves if isinstance(moves, str) else "knight")


def draw(*shape: int, kind: str = "normal", dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if kind == "ties":
        return -torch.randint(0, 3, shape, generator=generator).to(dtype)
    return -torch.randn(*shape, generator=generator, dtype=torch.float64).abs().to(dtype)


# ----------------------------------------------------------------------------- the best path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "ties"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (2, 2), (3, 3), (2, 4), (4, 3)], ids=str)
@every_moves
def test_argmax_is_the_best_of_all_paths(moves, shape, kind, dtype) -> None:
    structures = list(neighbour_paths(*shape, MOVES[moves]))
    oracle = GridShortestPath(moves=moves)
    theta = draw(5, *shape, kind=kind, dtype=dtype)
    if not structures:
        with pytest.raises(InfeasibleError, match="batch index 0"):
            oracle.argmax(theta)
        return
    listed = {y.tobytes() for (y,) in structures}
    for t, y in zip(theta, oracle.argmax(theta), strict=True):
        assert y.dtype == dtype
        assert y.double().numpy().tobytes() in listed
        best = max(score((t.double().numpy(),), z) for z in structures)
        assert (t.double() * y).sum().item() == pytest.approx(best, abs=1e-6 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_walls_are_walked_round(seed) -> None:
    theta = draw(4, 3, 4, seed=seed)
    walls = torch.rand(4, 3, 4, generator=torch.Generator().manual_seed(seed)) < 0.35
    theta = theta.masked_fill(walls, -math.inf)
    structures = list(neighbour_paths(3, 4, EIGHT))
    for t in theta:
        best = max(score((t.numpy(),), z) for z in structures)
        if best == -math.inf:
            with pytest.raises(InfeasibleError):
                si.relax(t, "grid_path", "map", moves="8-neighbours")
        else:
            y = si.relax(t, "grid_path", "map", moves="8-neighbours")
            assert score((t.numpy(),), (y.numpy(),)) == pytest.approx(best)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("h", "w"), [(12, 12), (5, 20)])
def test_against_scipy(h, w, scale) -> None:
    theta = draw(8, h, w) * scale
    y = si.relax(theta, "grid_path", "map", moves="8-neighbours")
    cell = np.arange(h * w)
    near = [np.abs(np.subtract.outer(c, c)) <= 1 for c in (cell // w, cell % w)]
    tail, head = np.nonzero(near[0] & near[1] & (cell[:, None] != cell))
    for t, z in zip(theta.flatten(1).numpy(), y.flatten(1).numpy(), strict=True):
        graph = csr_array((-t[head], (tail, head)), shape=(h * w, h * w))
        assert -t @ z == pytest.approx(dijkstra(graph, indices=0)[-1] - t[0])


def test_lengths_say_where_the_path_ends() -> None:
    lengths = [(3, 4), (1, 1), (2, 3), (3, 1), (1, 4)]
    theta = draw(5, 3, 4)
    mean = si.relax(theta, "grid_path", "map", moves="4-neighbours", lengths=lengths)
    for t, y, (n, m) in zip(theta, mean, lengths, strict=True):
        alone = si.relax(t[:n, :m], "grid_path", "map", moves="4-neighbours")
        assert torch.equal(y[:n, :m], alone)
        assert y.sum() == alone.sum()
    with pytest.raises(InvalidInputError, match="lengths is bound for a batch of 5, but theta has a batch of 1"):
        GridShortestPath(moves="4-neighbours").bind(lengths=lengths).argmax(theta[:1])


def test_the_padding_may_hold_anything() -> None:
    theta = torch.full((2, 3, 3), math.nan)
    theta[:, :2, :2] = -1.0
    theta[:, 2, 2] = 5.0
    y = si.relax(theta, "grid_path", "map", moves="8-neighbours", lengths=[[2, 2], [1, 2]])
    assert y.nonzero().tolist() == [[0, 0, 0], [0, 1, 1], [1, 0, 0], [1, 0, 1]]


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_cells_without_a_cost_are_taken_once(zero) -> None:
    oracle = GridShortestPath(moves="8-neighbours")
    theta = torch.full((3, 6, 5), zero)
    y = oracle.argmax(theta)
    assert torch.equal(y[0], y[1])
    assert torch.equal(y[:1], oracle.argmax(theta[:1]))
    path = oracle.decode(y)[0]
    path = path[path[:, 0] >= 0]
    assert len(path.unique(dim=0)) == len(path) == y[0].sum()
    assert (path.diff(dim=0).abs().amax(1) == 1).all()
    assert path[0].tolist() == [0, 0]
    assert path[-1].tolist() == [5, 4]


def test_costs_at_the_far_end_of_float64() -> None:
    theta = torch.full((1, 2, 9), -1.7e308, dtype=torch.float64)
    assert GridShortestPath(moves="4-neighbours").argmax(theta).sum() == 10
    theta[0, 1, 4] = -math.inf
    assert GridShortestPath(moves="4-neighbours").argmax(theta)[0, 0, 4] == 1


def test_a_maze() -> None:
    rows = ["S.#.....", "#.#.###.", "..#.#...", ".##.#.##", ".....#..", "####...."]
    theta = torch.tensor([[-math.inf if c == "#" else -1.0 for c in row] for row in rows])
    cells = si.decode(si.relax(theta, "grid_path", "map", moves="4-neighbours"), "grid_path", moves="4-neighbours")
    with pytest.raises(InfeasibleError, match="no path of finite score exists for batch index 0"):
        si.relax(theta.masked_fill(torch.arange(8) == 3, -math.inf), "grid_path", "map", moves="4-neighbours")
    steps = cells[cells[:, 0] >= 0].diff(dim=0)
    assert (steps.abs().sum(1) == 1).all()
    assert (steps < 0).any()  # it has to go back


def test_input_is_left_alone_and_may_be_strided() -> None:
    theta = draw(4, 3, 2).permute(2, 1, 0)
    kept, oracle = theta.clone(), GridShortestPath(moves="8-neighbours")
    assert torch.equal(oracle.argmax(theta), oracle.argmax(theta.contiguous()))
    assert torch.equal(theta, kept)
    assert oracle.argmax(theta[:0]).shape == (0, *theta.shape[1:])
    assert oracle.decode(theta[:0]).shape == (0, theta[0].numel(), 2)


# ----------------------------------------------------------------------------- signs


def test_a_positive_potential_is_refused() -> None:
    theta = draw(3, 2, 4)
    theta[1, 1, 2] = 0.25
    with pytest.raises(
        InvalidInputError, match=r"got 0.25 for part \(1, 2\) at batch index 1; .* .*softplus.*\"down-right\""
    ):
        si.relax(theta, "grid_path", moves="4-neighbours")
    assert si.get_oracle("grid_path", moves="4-neighbours").requires_nonpositive_theta
    assert not si.get_oracle("grid_path").requires_nonpositive_theta
    theta[1, 1, 2] = 0.0
    si.relax(theta, "grid_path", moves="4-neighbours")


@pytest.mark.parametrize("holes", [False, True])
def test_sparsemap_is_the_projection(holes) -> None:
    theta, structures = draw(4, 3, 3), list(neighbour_paths(3, 3, EIGHT))
    if holes:
        theta[:, 1, 1] = theta[:, 0, 2] = -math.inf
    solution = si.infer(theta, "grid_path", "sparsemap", tolerance=0, moves="8-neighbours")
    assert solution.converged.all()
    for b in range(4):
        expected = projection((theta[b].numpy(),), structures)[0]
        np.testing.assert_allclose(solution.mean[b].numpy(), expected, atol=1e-6)


def test_the_hamming_cost_counts_missed_cells() -> None:
    theta, structures = draw(1, 3, 3), list(neighbour_paths(3, 3, FOUR))
    gold = torch.from_numpy(structures[2][0])
    loss = si.FenchelYoungLoss("grid_path", "map", cost="hamming", moves="4-neighbours")
    ahead = [score((theta[0].numpy(),), y) + (gold.numpy() > y[0]).sum() for y in structures]
    assert loss(theta, gold[None]).item() == pytest.approx(max(ahead) - (theta[0] * gold).sum().item())


# ----------------------------------------------------------------------------- labels


def test_labels_may_be_of_any_number() -> None:
    oracle, like = GridShortestPath(moves="8-neighbours"), torch.zeros(2, 3, 3)
    short = torch.tensor([[[0, 0], [1, 1], [2, 2]], [[0, 0], [1, 1], [2, 2]]])
    y = oracle.encode(short, like)
    assert y[0].tolist() == torch.eye(3).tolist()
    assert oracle.decode(y).shape == (2, 9, 2)
    assert torch.equal(oracle.encode(oracle.decode(y), like), y)


@pytest.mark.parametrize("moves", ["4-neighbours", "8-neighbours"])
@pytest.mark.parametrize(
    "path",
    [
        [(i, j if i % 2 == 0 else 6 - j) for i in range(7) for j in range(7)],  # touches itself everywhere
        [(k // 2, (k + 1) // 2) for k in range(79)],  # by eight neighbours, each corner could be cut
    ],
    ids=["snake", "stairs"],
)
def test_the_order_of_cells_that_touch_is_found(path, moves) -> None:
    oracle, like = GridShortestPath(moves=moves), torch.zeros(1, path[-1][0] + 1, path[-1][1] + 1)
    y = oracle.encode(torch.tensor([path]), like)
    assert y.sum() == len(path)
    assert torch.equal(oracle.encode(oracle.decode(y), like), y)


def test_what_is_given_up_is_said(monkeypatch) -> None:
    monkeypatch.setattr(shortest_paths, "MAX_SEARCHED_ARCS", 10_000)
    y = torch.ones(2, 8, 8)
    y[0] = torch.eye(8)
    oracle = GridShortestPath(moves="4-neighbours")
    with pytest.raises(InvalidInputError, match=r"y: the parts do not form a simple path .* at batch index 0"):
        oracle.decode(y)
    with pytest.raises(
        InvalidInputError, match=r"y: the search for the order of the parts took too long at batch index 0"
    ):
        oracle.decode(y[1:])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([[0, 0], [0, 1], [0, 2], [-1, -1]], "a cell lies outside the grid in use at batch index 1"),
        ([[0, 0], [-1, -1], [0, 1], [1, 1]], "a cell follows the padding at batch index 1"),
        ([[0, 1], [1, 1], [-1, -1], [-1, -1]], "the path must start at the source at batch index 1"),
        ([[-1, -1]] * 4, "the path must start at the source at batch index 1"),
        (
            [[0, 0], [1, 1], [-1, -1], [-1, -1]],
            "each node of the path must be a neighbour of the node before at batch index 1",
        ),
        ([[0, 0], [0, 1], [-1, -1], [-1, -1]], "the path must end at the target at batch index 1"),
        ([[0, 0], [0, 1], [0, 0], [1, 0]], "the path must end at the target at batch index 1"),
        ([[0, 0], [0, 1], [0, 1], [1, 1]], "the path must not visit a node twice at batch index 1"),
    ],
)
def test_wrong_labels_are_refused(wrong, message) -> None:
    oracle = GridShortestPath(moves="4-neighbours").bind(lengths=torch.tensor([[2, 2], [2, 2]]))
    right = [[0, 0], [0, 1], [1, 1], [-1, -1]]
    with pytest.raises(InvalidInputError, match=message):
        oracle.encode(torch.tensor([right, wrong]), torch.zeros(2, 2, 3))


def test_lists_of_labels_have_two_numbers_a_cell() -> None:
    oracle, like = GridShortestPath(moves="4-neighbours"), torch.zeros(1, 2, 2)
    for shape in ((1, 3), (1, 0, 2), (1, 5, 2)):
        with pytest.raises(InvalidInputError, match=r"labels must be a list of cells, shape \(\.\.\., \d, 2\), padded"):
            oracle.encode(torch.zeros(shape, dtype=torch.int64), like)


def test_too_many_paths_to_list() -> None:
    with pytest.raises(InvalidInputError, match="1000001 simple paths or more, too many to list"):
        GridShortestPath(moves="8-neighbours").enumerate((6, 6))
    assert len(GridShortestPath(moves="4-neighbours").enumerate((1, 50))) == 1


# ----------------------------------------------------------------------------- one name for both kinds


@pytest.mark.parametrize(
    ("moves", "kind"),
    [
        ("down-right", GridPath),
        ("with-diagonal", GridPath),
        (((1, 0), (0, 1), (2, 2)), GridPath),
        ("4-neighbours", GridShortestPath),
        ("8-neighbours", GridShortestPath),
        ([[1, 0], [0, 1], [1, np.int64(-1)]], GridShortestPath),
    ],
)
def test_moves_choose_the_kind(moves, kind) -> None:
    oracle = si.get_oracle("grid_path", moves=moves)
    assert type(oracle) is kind
    assert oracle.name == oracle.label() == "grid_path"
    assert oracle == grid_path(moves=moves) == kind(moves=moves)
    assert repr(oracle) == f"{kind.__name__}(moves={oracle.moves!r})"
    for twin in (copy.deepcopy(oracle), pickle.loads(pickle.dumps(oracle))):
        assert twin == oracle
        assert hash(twin) == hash(oracle)
    theta = draw(2, 3, 3)
    assert torch.equal(si.relax(theta, "grid_path", "map", moves=moves), si.relax(theta, oracle, "map"))
    assert torch.equal(si.Layer("grid_path", "sparsemap", moves=moves)(theta), si.relax(theta, oracle))


def test_the_name_alone_means_monotone_paths() -> None:
    assert si.get_oracle("grid_path") == GridPath()
    assert si.relax(torch.ones(2, 2), "grid_path", "marginals").shape == (2, 2)


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        (
            "up",
            "moves must be 'down-right' or 'with-diagonal' or '4-neighbours' or '8-neighbours', or pairs .*, got 'up'",
        ),
        (((1, 0), (0, 0)), r"moves: \(0, 0\) stays in its cell; di or dj must differ from 0"),
        (((1, 0.5),), r"moves must be pairs \(di, dj\) of integers, got \(1, 0.5\)"),
        ((), r"moves must hold at least one pair, and each pair only once, got \(\)"),
        (((-1, 0), (-1, 0)), "moves must hold at least one pair, and each pair only once"),
        (5, r"moves must be pairs \(di, dj\) of integers, got 5"),
    ],
)
def test_wrong_moves_are_refused(moves, message) -> None:
    with pytest.raises(InvalidInputError, match=message):
        grid_path(moves=moves)


def test_each_kind_knows_its_own_moves() -> None:
    with pytest.raises(InvalidInputError, match="moves must be '4-neighbours' or '8-neighbours', or pairs"):
        GridShortestPath(moves="down-right")
    with pytest.raises(InvalidInputError, match=r"moves: \(0, -1\) leads back or stays in its cell"):
        GridPath(moves=((1, 0), (0, -1)))


@pytest.mark.parametrize(
    ("shape", "lengths", "message"),
    [
        ((2, 3, 4), [[0, 1], [1, 1]], r"lengths must lie between 1 and 3 \(n = 3 rows\), got 0 at batch index 0"),
        (
            (2, 3, 4),
            [[3], [3]],
            r"lengths of grid_path must have shape \(\.\.\., 2\), the numbers of rows and of columns in use, got",
        ),
        ((2, 0, 4), None, r"theta: grid_path needs a grid of at least one row and one column, got shape \(0, 4\)"),
    ],
)
def test_wrong_grids_are_refused(shape, lengths, message) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Problem.build(torch.zeros(shape), GridShortestPath(moves="4-neighbours"), {"lengths": lengths})


def test_errors_name_the_option() -> None:
    with pytest.raises(TypeError, match=r"oracle 'grid_path' has no option 'move' \(it has: moves\).*'moves'"):
        si.get_oracle("grid_path", move="4-neighbours")
    with pytest.raises(TypeError, match=r"no option 'length' \(grid_path has moves.*instance data: lengths"):
        si.relax(torch.zeros(2, 2), "grid_path", "map", moves="4-neighbours", length=[2, 2])
    with pytest.raises(si.UnsupportedError, match=r"#P-complete.*Supported relaxations: .*map"):
        si.relax(torch.zeros(2, 2), "grid_path", "marginals", moves="4-neighbours")


def test_the_command_line(capsys) -> None:
    assert main(["check", "grid_path", "-o", "moves=4-neighbours", "--event-shape", "2,2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("GridShortestPath(moves='4-neighbours'), scores of shape (2, 2)")
    assert out.endswith(" 0 failed\n")
