"""Pictures of attention weights."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

import structinf as si
from structinf import plot
from structinf.attention import GridWeights, SegmentationWeights

from .gallery import picture


@picture
def attention() -> Figure:
    """Draw the attention of one query to words about the look of a beer, in two places of the sentence."""
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
    """Draw the attention of a translation. Only the order of the words tells which "die" belongs to which "the"."""
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
