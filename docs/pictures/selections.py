"""Pictures of selections from a list."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

import structinf as si
from structinf import plot

from .gallery import picture


@picture
def bits() -> Figure:
    genres = ["comedy", "drama", "crime", "romance", "horror"]
    theta = torch.tensor([1.2, -0.1, 0.65, 1.4, -0.5])
    return plot.selection(si.infer(theta, "bits", "sparsemap"), names=genres, title="Any genres of a film")


@picture
def subset() -> Figure:
    names = ["shot put", "sprint", "hurdles", "high jump", "javelin", "800 m"]
    theta = torch.tensor([0.55, 1.9, 1.6, 0.9, 0.7, -0.4])
    return plot.selection(si.infer(theta, "subset", "sparsemap", k=3), names=names, title="Three of six disciplines")


@picture
def correlated_subset() -> Figure:
    words = ["pours", "dark", "with", "a", "thick", "creamy", "head", "and", "smells", "of", "coffee"]
    scores = {"dark": 0.6, "thick": 0.5, "creamy": 0.8, "head": 0.4, "coffee": 0.9}
    unary = torch.tensor([scores.get(word, -0.5) for word in words])
    pair = torch.full((len(words) - 1,), 0.4)
    solution = si.infer((unary, pair), "correlated_subset", "sparsemap", k=4, temperature=0.45)
    return plot.selection(solution, names=words, title="Four words as a rationale, neighbours preferred")


@picture
def knapsack() -> Figure:
    items = {"tent": (5, 1.6), "stove": (2, 0.7), "books": (3, 0.48), "camera": (2, 0.8), "guitar": (4, 0.9)}
    weights, values = zip(*items.values(), strict=True)
    solution = si.infer(torch.tensor(values), "knapsack", "sparsemap", weights=weights, capacity=9)
    names = [f"{name}, {kilos} kg" for name, (kilos, _) in items.items()]
    return plot.selection(solution, names=names, title="At most 9 kg in the rucksack")


@picture
def milp() -> Figure:
    """Draw a choice of at most three courses and 12 hours a week, with the seminar only together with the lecture."""
    hours = {"lecture": 4, "seminar": 3, "lab": 6, "French": 4, "chess": 2, "choir": 3}
    rows = [list(hours.values()), [1] * len(hours), [-1, 1, 0, 0, 0, 0]]
    theta = torch.tensor([0.6, 1.2, 1.1, 0.8, 0.7, 0.3])
    solution = si.infer(theta, "milp", "sparsemap", A=rows, upper=[12, 3, 0], temperature=0.5)
    names = [f"{name}, {hour} h" for name, hour in hours.items()]
    return plot.selection(solution, names=names, title="At most three courses and 12 hours a week")
