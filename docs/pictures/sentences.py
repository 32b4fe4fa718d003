"""Pictures of trees over words."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

import structinf as si
from structinf import plot

from .gallery import picture


@picture
def arborescence() -> Figure:
    """Draw trees with a crossing arc: "on the issue" belongs to "hearing". The arc from the root has no head."""
    words = ["A", "hearing", "is", "scheduled", "on", "the", "issue", "today"]
    scores = {("", "is"): 2.0, ("is", "hearing"): 2.0, ("hearing", "A"): 2.0, ("is", "scheduled"): 2.0}
    scores |= {("issue", "the"): 2.0, ("on", "issue"): 2.0, ("scheduled", "today"): 1.1}
    scores |= {("hearing", "on"): 1.2, ("scheduled", "on"): 1.0, ("is", "on"): 0.9}
    theta = torch.full((9, 9), -3.0)
    for (head, dependent), score in scores.items():
        theta[["", *words].index(head), ["", *words].index(dependent)] = score
    solution = si.infer(theta, "arborescence", "sparsemap", single_root=True)
    return plot.trees(solution, words, title="What is about the issue?")


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
