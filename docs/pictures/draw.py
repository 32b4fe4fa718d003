"""Draws the pictures of the documentation, NAME.svg beside this file: python docs/pictures/draw.py [NAME ...]"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from ortools.sat.python import cp_model

import structinf as si
from structinf import plot
from structinf.attention import GridWeights, SegmentationWeights

HERE = Path(__file__).parent
PICTURES: dict[str, Callable[[], Figure]] = {}


def picture(draw: Callable[[], Figure]) -> Callable[[], Figure]:
    """Of the structure that the function is named after, or of what one can do with structures."""
    PICTURES[draw.__name__] = draw
    return draw


# ----------------------------------------------------------------------------- one or some of a list


@picture
def categorical() -> Figure:
    words = ["tea", "coffee", "water", "soup", "rain"]
    theta = torch.tensor([1.5, 1.3, 0.8, 0.4, -1.0])
    return plot.selection(si.infer(theta, "categorical", "sparsemap"), names=words, title="“I’d love a cup of …”")


@picture
def bits() -> Figure:
    genres = ["comedy", "drama", "crime", "romance", "horror"]
    theta = torch.tensor([0.9, 0.3, 0.55, 1.4, -0.5])
    return plot.selection(si.infer(theta, "bits", "sparsemap"), names=genres, title="Any genres of a film")


@picture
def subset() -> Figure:
    names = ["shot put", "sprint", "hurdles", "high jump", "javelin", "800 m"]
    theta = torch.tensor([0.3, 1.2, 0.9, 0.6, 0.5, -0.4])
    return plot.selection(si.infer(theta, "subset", "sparsemap", k=3), names=names, title="Three of six disciplines")


@picture
def correlated_subset() -> Figure:
    words = ["pours", "dark", "with", "a", "thick", "creamy", "head", "and", "smells", "of", "coffee"]
    scores = {"dark": 0.6, "thick": 0.5, "creamy": 0.8, "head": 0.4, "coffee": 0.9}
    unary = torch.tensor([scores.get(word, -0.5) for word in words])
    pair = torch.full((len(words) - 1,), 0.4)
    solution = si.infer((unary, pair), "correlated_subset", "sparsemap", k=4)
    return plot.selection(solution, names=words, title="Four words as a rationale, neighbours preferred")


@picture
def knapsack() -> Figure:
    items = {"tent": (5, 1.6), "stove": (2, 0.7), "books": (3, 0.5), "camera": (2, 0.8), "guitar": (4, 0.9)}
    weights, values = zip(*items.values(), strict=True)
    solution = si.infer(torch.tensor(values), "knapsack", "sparsemap", weights=weights, capacity=9)
    names = [f"{name}, {kilos} kg" for name, (kilos, _) in items.items()]
    return plot.selection(solution, names=names, title="At most 9 kg in the rucksack")


@picture
def milp() -> Figure:
    """No more than three courses, 12 hours a week, and the seminar only along with the lecture."""
    hours = {"lecture": 4, "seminar": 3, "lab": 6, "French": 4, "chess": 2, "choir": 3}
    rows = [list(hours.values()), [1] * len(hours), [-1, 1, 0, 0, 0, 0]]
    theta = torch.tensor([0.6, 1.2, 1.1, 0.8, 0.7, 0.3])
    solution = si.infer(theta, "milp", "sparsemap", A=rows, upper=[12, 3, 0])
    names = [f"{name}, {hour} h" for name, hour in hours.items()]
    return plot.selection(solution, names=names, title="At most three courses and 12 hours a week")


@picture
def ranking() -> Figure:
    names = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn"]
    scores = torch.tensor([7.6, 3.1, 5.2, 5.9, 0.4, 5.6])
    return plot.ranking(si.infer(scores, "ranking", "sparsemap"), scores, names=names, title="Who is best?")


# ----------------------------------------------------------------------------- sequences


def tag() -> tuple[si.Solution, dict[str, Any]]:
    words, tags = ["time", "flies", "like", "an", "arrow"], ["noun", "verb", "prep.", "det."]
    unary = torch.tensor([[1.6, 0.9, 0, 0], [0.7, 1.0, 0, 0], [0, 0.9, 1.0, 0], [0, 0, 0, 2.0], [2.0, 0.3, 0, 0]])
    transition = torch.tensor([[0.2, 0.6, 0.0, -1], [0.3, -1, 0.6, 0.4], [0, -1, -1, 0.5], [1, -1, -1, -1]])
    solution = si.infer((unary, transition), "chain", "sparsemap", temperature=0.8)
    return solution, {"words": words, "tags": tags}


@picture
def chain() -> Figure:
    solution, names = tag()
    return plot.lattice(solution, **names, title="Parts of speech")


@picture
def semi_markov() -> Figure:
    """Activity by the size of a movement: rest, walk, run."""
    levels, longest = torch.tensor([0.1, 1.0, 2.2]), 14
    truth = torch.tensor([0.1, 1.0, 1.6, 2.2, 1.0]).repeat_interleave(torch.tensor([9, 8, 7, 6, 10]))
    x = truth + 0.25 * torch.randn(40, generator=torch.Generator().manual_seed(6))
    fit = -(x[:, None] - levels).square()  # of a step with a label
    total = torch.cat([torch.zeros(1, 3), fit.cumsum(0)])
    theta = torch.full((40, longest, 3), -torch.inf)
    for t in range(40):
        for d in range(min(longest, t + 1)):
            theta[t, d] = total[t + 1] - total[t - d] - 1.0
    solution = si.infer(theta, "semi_markov", "sparsemap", temperature=0.5)
    return plot.segments(solution, x=x, labels=["rest", "walk", "run"], title="Activities, by the strength of movement")


# ----------------------------------------------------------------------------- grids


def beats(n: int, places: list[float], width: float) -> torch.Tensor:
    """A series of bumps."""
    t = torch.linspace(0, 1, n)
    return sum(((-(((t - place) / width) ** 2)).exp() for place in places), torch.zeros(n))


@picture
def dtw() -> Figure:
    x, y = beats(40, [0.2, 0.45, 0.8], 0.06), beats(50, [0.3, 0.65, 0.85], 0.05)
    theta = -si.pairwise_cost(x, y)
    solution = si.infer(theta, "dtw", "sparsemap", temperature=0.05)
    return plot.alignment(solution, x=x, y=y, title="Two series, aligned")


@picture
def grid_path() -> Figure:
    i, j = torch.meshgrid(torch.arange(12.0), torch.arange(18.0), indexing="ij")
    hills = torch.exp(-((i - 5.5) ** 2 + (j - 8) ** 2) / 8) + 0.6 * torch.exp(-((i - 11) ** 2 + (j - 14) ** 2) / 6)
    theta = -2 * hills - 0.25
    solution = si.infer(theta, "grid_path", "sparsemap", moves="with-diagonal")
    return plot.alignment(solution, title="Ways around a hill")


@picture
def monotonic_alignment() -> Figure:
    letters, frames = "hello", 28
    loudness = beats(frames, [0.3, 0.78], 0.16)
    expected = torch.tensor([0.1, 1.0, 0.4, 0.3, 0.9])
    theta = -(loudness - expected[:, None]).square()
    solution = si.infer(theta, "monotonic_alignment", "sparsemap", surjective=True, temperature=0.2)
    return plot.alignment(solution, x=letters, y=loudness, title="Letters, and the loudness of a voice")


@picture
def needleman_wunsch() -> Figure:
    one, other = "GATTACA", "GCATGCU"
    same = torch.tensor([[float(a == b) for b in other] for a in one])
    theta = (2 * same - 1, torch.tensor([-0.6, -0.6]))
    solution = si.infer(theta, "needleman_wunsch", "sparsemap")
    return plot.alignment(solution, x=one, y=other, title="Matches of two sequences")


# ----------------------------------------------------------------------------- graphs


@picture
def dag_path() -> Figure:
    heard = {
        ("0", "3"): ("recognise", -2.2),
        ("0", "1"): ("wreck", -0.6),
        ("1", "2"): ("a", -0.4),
        ("2", "3"): ("nice", -1.0),
        ("1", "3"): ("an ice", -1.9),
        ("3", "6"): ("speech", -1.2),
        ("3", "4"): ("peach", -1.3),
        ("4", "6"): ("y", -1.4),
        ("3", "5"): ("beach", -0.9),
        ("5", "6"): ("…", -0.5),
    }
    names, scores = zip(*heard.values(), strict=True)
    edges = list(heard)
    solution = si.infer(torch.tensor(scores), "dag_path", "sparsemap", graph=edges)
    return plot.route(solution, edges, names=names, title="What was said?")


@picture
def path() -> Figure:
    places = {
        "home": (0, 1), "park": (2, 2.4), "mill": (1.8, 0), "lake": (4, 1.2), "school": (5.2, 2.6), "shop": (5, -0.1),
        "work": (7, 1.2),
    }  # fmt: skip
    minutes = {
        ("home", "park"): 6.0, ("home", "mill"): 5.0, ("park", "lake"): 5.2, ("mill", "lake"): 5.7,
        ("park", "mill"): 6.0, ("park", "school"): 7.0, ("mill", "shop"): 7.0, ("lake", "school"): 4.0,
        ("lake", "shop"): 4.0, ("lake", "work"): 8.0, ("school", "work"): 5.0, ("shop", "work"): 4.6,
    }  # fmt: skip
    oracle = si.get_oracle("path", graph=list(minutes), source="home", target="work", directed=False)
    solution = si.infer(-torch.tensor(list(minutes.values())), oracle, "sparsemap")
    return plot.network(
        solution, list(minutes), positions=places, directed=False, title="Home to work, both ways along each road"
    )


@picture
def flow() -> Figure:
    places = {"spring": (0, 1), "dam": (2, 2), "mill": (2, 0), "plant": (4, 2), "farm": (4, 0), "town": (6, 1)}
    cost = {
        ("spring", "dam"): 1.0, ("spring", "mill"): 1.2, ("dam", "plant"): 1.5, ("dam", "farm"): 2.0,
        ("mill", "farm"): 1.0, ("mill", "plant"): 2.2, ("farm", "plant"): 0.4, ("plant", "town"): 1.0,
        ("farm", "town"): 1.4, ("plant", "farm"): 0.4,
    }  # fmt: skip
    pipes = si.get_oracle(
        "flow",
        graph=list(cost),
        supplies={"spring": 6, "town": -5, "farm": -1},
        capacities=[4, 4, 3, 2, 3, 2, 2, 4, 3, 2],
    )
    solution = si.infer(-torch.tensor(list(cost.values())), pipes, "sparsemap")
    return plot.network(solution, list(cost), positions=places, title="Water for a farm and a town")


@picture
def spanning_tree() -> Figure:
    cities = {
        "Lisbon": (-9.1, 38.7), "Madrid": (-3.7, 40.4), "Paris": (2.4, 48.9), "London": (-0.1, 51.5),
        "Berlin": (13.4, 52.5), "Rome": (12.5, 41.9), "Vienna": (16.4, 48.2), "Zurich": (8.5, 47.4),
    }  # fmt: skip
    where = torch.tensor(list(cities.values())) * torch.tensor([0.68, 1.0])
    solution = si.infer(-torch.cdist(where, where), "spanning_tree", "sparsemap", temperature=1.5)
    return plot.network(solution, nodes=list(cities), positions=where, title="Joining eight cities")


@picture
def matching() -> Figure:
    people = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn"]
    liking = torch.rand(6, 6, generator=torch.Generator().manual_seed(1))
    solution = si.infer(3 * liking, "matching", "sparsemap")
    return plot.network(solution, nodes=people, title="Three pairs for a card game")


@picture
def tour() -> Figure:
    """The wind makes it dearer to go west."""
    where = torch.tensor([[0.0, 0.0], [2.0, 0.6], [3.8, 0.0], [4.4, 1.8], [2.6, 2.4], [2.2, 1.5], [0.2, 2.2]])
    ahead = where - where[:, None]
    miles = ahead.norm(dim=2) + 0.3 * (-ahead[..., 0]).clamp(min=0)
    islands = ["Port", "Gull", "Rock", "Light", "Sand", "Palm", "Seal"]
    solution = si.infer(-miles, "tour", "sparsemap", temperature=0.5)
    return plot.network(solution, nodes=islands, positions=where, title="A round trip by sail")


@picture
def assignment() -> Figure:
    people, shifts = ["Ada", "Ben", "Cleo", "Dan", "Eve"], ["Mon", "Tue", "Wed", "Thu", "Fri"]
    theta = torch.randn(5, 5, generator=torch.Generator().manual_seed(4))
    theta[1, 1] += 1.5
    solution = si.infer(theta, "assignment", "sparsemap")
    return plot.assignment(solution, rows=people, columns=shifts, title="A shift for everyone")


@picture
def transportation() -> Figure:
    bakeries, cafés = ["Rye 6", "Oat 3", "Spelt 4"], ["Anker", "Bär", "Clou", "Drei"]
    distance = torch.tensor([[1.0, 2.0, 3.0, 2.6], [2.4, 1.0, 1.2, 3.0], [3.2, 2.2, 1.5, 1.0]])
    solution = si.infer(-distance, "transportation", "sparsemap", supplies=[6, 3, 4], demands=[4, 3, 3, 3])
    return plot.assignment(solution, rows=bakeries, columns=cafés, title="Bread for four cafés")


@picture
def constraint_model() -> Figure:
    """Two teams of three: each has a driver, Ada or Dan or Finn, and Ben and Cleo stay together."""
    people, teams = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn"], ["red", "blue"]

    def build() -> tuple[cp_model.CpModel, list[list[Any]]]:
        model = cp_model.CpModel()
        joins = [[model.new_bool_var(f"{person} {team}") for team in teams] for person in people]
        for person in joins:
            model.add_exactly_one(person)
        for k in range(len(teams)):
            model.add(sum(person[k] for person in joins) == 3)
            model.add_at_least_one(joins[i][k] for i in (0, 3, 5))
            model.add(joins[1][k] == joins[2][k])
        return model, joins

    theta = torch.tensor([[0.9, 0.2], [0.5, 0.6], [0.4, 0.7], [0.1, 0.3], [0.3, 0.1], [0.5, 0.4]])
    solution = si.infer(theta, "constraint_model", "sparsemap", build=build)
    return plot.assignment(solution, rows=people, columns=teams, title="Two teams with a driver each")


# ----------------------------------------------------------------------------- trees


def arcs(words: list[str], scores: dict[tuple[str, str], float]) -> torch.Tensor:
    """Scores of arcs from a head to a dependent; "" is the root."""
    theta = torch.full((len(words) + 1, len(words) + 1), -3.0)
    for (head, dependent), score in scores.items():
        theta[["", *words].index(head), ["", *words].index(dependent)] = score
    return theta


@picture
def arborescence() -> Figure:
    """An arc crosses another one: on the issue is what the hearing is about."""
    words = ["A", "hearing", "is", "scheduled", "on", "the", "issue", "today"]
    scores = {("", "is"): 2.0, ("is", "hearing"): 2.0, ("hearing", "A"): 2.0, ("is", "scheduled"): 2.0}
    scores |= {("issue", "the"): 2.0, ("on", "issue"): 2.0, ("scheduled", "today"): 1.1, ("is", "today"): 0.7}
    scores |= {("hearing", "on"): 1.2, ("scheduled", "on"): 1.0}
    solution = si.infer(arcs(words, scores), "arborescence", "sparsemap", single_root=True)
    return plot.trees(solution, words, title="What is about the issue?")


@picture
def projective_tree() -> Figure:
    words = ["She", "saw", "the", "man", "with", "a", "telescope"]
    scores = {("", "saw"): 2.0, ("saw", "She"): 2.0, ("saw", "man"): 2.0, ("man", "the"): 2.0}
    scores |= {("telescope", "a"): 2.0, ("with", "telescope"): 2.0, ("saw", "with"): 1.0, ("man", "with"): 0.8}
    solution = si.infer(arcs(words, scores), "projective_tree", "sparsemap", single_root=True)
    return plot.trees(solution, words, title="Who has the telescope?")


@picture
def binary_tree() -> Figure:
    words, labels = ["old", "men", "and", "women"], ["NP", "adj.", "noun", "conj.", "CP"]
    theta = torch.full((4, 4, len(labels)), -2.0)
    for first, last, label, score in [
        (0, 0, 1, 1.0), (1, 1, 2, 1.0), (2, 2, 3, 1.0), (3, 3, 2, 1.0), (2, 3, 4, 1.0),
        (0, 1, 0, 1.2), (1, 3, 0, 1.0), (0, 3, 0, 1.0),
    ]:  # fmt: skip
        theta[first, last, label] = score
    solution = si.infer(theta, "binary_tree", "sparsemap", labelled=True)
    return plot.constituents(solution, words, labels=labels, title="Who is old?")


# ----------------------------------------------------------------------------- attention and supports


@picture
def attention() -> Figure:
    """Of one query to words that say how a beer looks, in two places."""
    words = ["pours", "dark", "with", "a", "thick", "creamy", "head", "and", "smells", "of", "coffee"]
    scores = torch.tensor([-0.5, 1.4, -1.2, -1.0, 0.3, 1.7, 1.1, -1.0, -1.5, -1.5, -0.6])[None]
    segments = SegmentationWeights("smoothed", regularizer="squared_l2", temperature=1.0)
    segments.transition.data = torch.tensor([[0.4, -0.4], [-0.4, 0.4]])
    maps = {
        "softmax": scores.softmax(-1),
        "sparsemax": si.simplex.sparsemax(scores),
        "fusedmax": si.simplex.fusedmax(scores, 0.3),
        "segments": segments(scores),
    }
    weights = torch.stack(list(maps.values()))
    return plot.attention(weights, keys=words, heads=list(maps), runs=True, title="What does it look like?")


@picture
def attention_heads() -> Figure:
    """Of a translation: which "die" is which "the" is seen from the order alone."""
    english, german = ["the", "cat", "sees", "the", "mouse"], ["die", "Katze", "sieht", "die", "Maus"]
    same = {"die the": 2.0, "Katze cat": 1.8, "Maus mouse": 1.6, "Katze mouse": 1.0, "Maus cat": 0.9, "sieht sees": 1.4}
    scores = torch.tensor([[same.get(f"{query} {key}", 0.2) for key in english] for query in german])
    maps = {
        "softmax": scores.softmax(-1),
        "sparsemax": si.simplex.sparsemax(scores),
        "alignment": GridWeights("monotonic_alignment", "sparsemap", transposed=True)(scores[None])[0],
    }
    weights = torch.stack(list(maps.values()))
    return plot.attention(weights, queries=german, keys=english, heads=list(maps), title="Which “the” is it?")


@picture
def support() -> Figure:
    solution, names = tag()
    return plot.support(solution, plot.lattice, **names, title="Two taggings of the support", most=2)


@picture
def samples() -> Figure:
    where = torch.tensor([[0.0, 0.0], [1.0, 1.3], [1.4, 0.2], [2.6, 1.1], [2.9, 0.0]])
    g = torch.Generator().manual_seed(0)
    solution = si.infer(-torch.cdist(where, where), "spanning_tree", "perturbed", sigma=0.3, samples=100, generator=g)
    return plot.support(solution, plot.network, nodes="ABCDE", title="100 trees of noisy lengths", most=3)


def main(names: list[str]) -> None:
    for name in names or PICTURES:
        # Text as text, and nothing in the file that differs from run to run.
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
            PICTURES[name]().savefig(HERE / f"{name}.svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main(sys.argv[1:])
