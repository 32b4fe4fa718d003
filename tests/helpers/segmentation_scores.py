"""Scores of segmentations by steps, boundaries and durations, and the same scores by segments."""

from __future__ import annotations

import torch

from structinf_oracles.semi_markov import SemiMarkov


def scores_with_boundaries(steps, durations, labels, batch=1, transition=True, seed=0):
    """Scores of steps, boundaries, durations and transitions, and the same scores by segments and transitions."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, steps, labels), (batch, steps, 2, labels), (1, durations, labels), (1, labels, labels)]
    theta = tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return theta if transition else theta[:3]


def by_segments(theta):
    steps, boundaries, durations, *transition = theta
    segments = SemiMarkov.segment_scores(steps, durations, boundaries)
    return (segments, *transition) if transition else segments
