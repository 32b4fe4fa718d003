"""Draws the pictures of the built-in structures, NAME.svg beside this file: python docs/pictures/draw.py [NAME ...]"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure

import structinf as si
from structinf import plot

HERE = Path(__file__).parent
PICTURES: dict[str, Callable[[], Figure]] = {}


def picture(draw: Callable[[], Figure]) -> Callable[[], Figure]:
    """Of the structure that the function is named after."""
    PICTURES[draw.__name__] = draw
    return draw


# ----------------------------------------------------------------------------- one or some of a list


@picture
def categorical() -> Figure:
    words = ["tea", "coffee", "water", "soup", "rain"]
    theta = torch.tensor([1.5, 1.3, 0.8, 0.4, -1.0])
    return plot.selection(si.infer(theta, "categorical", "sparsemap"), names=words, title="“I’d love a cup of …”")


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


# ----------------------------------------------------------------------------- sequences


@picture
def chain() -> Figure:
    words, tags = ["time", "flies", "like", "an", "arrow"], ["noun", "verb", "prep.", "det."]
    unary = torch.tensor([[1.6, 0.9, 0, 0], [0.7, 1.0, 0, 0], [0, 0.9, 1.0, 0], [0, 0, 0, 2.0], [2.0, 0.3, 0, 0]])
    transition = torch.tensor([[0.2, 0.6, 0.0, -1], [0.3, -1, 0.6, 0.4], [0, -1, -1, 0.5], [1, -1, -1, -1]])
    solution = si.infer((unary, transition), "chain", "sparsemap", temperature=0.8)
    return plot.lattice(solution, words=words, tags=tags, title="Parts of speech")


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
def assignment() -> Figure:
    people, shifts = ["Ada", "Ben", "Cleo", "Dan", "Eve"], ["Mon", "Tue", "Wed", "Thu", "Fri"]
    theta = torch.randn(5, 5, generator=torch.Generator().manual_seed(4))
    theta[1, 1] += 1.5
    solution = si.infer(theta, "assignment", "sparsemap")
    return plot.assignment(solution, rows=people, columns=shifts, title="A shift for everyone")


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


def main(names: list[str]) -> None:
    for name in names or PICTURES:
        # Text as text, and nothing in the file that differs from run to run.
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
            PICTURES[name]().savefig(HERE / f"{name}.svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main(sys.argv[1:])
