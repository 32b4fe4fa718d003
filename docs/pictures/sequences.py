"""Pictures of segments and alignments of sequences, and of paths through grids."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

import structinf as si
from structinf import plot

from .gallery import picture


@picture
def semi_markov() -> Figure:
    """Draw the activities rest, walk and run, segmented by the strength of a movement."""
    levels, longest = torch.tensor([0.1, 1.0, 2.2]), 14
    truth = torch.tensor([0.1, 1.0, 1.6, 2.2, 1.0]).repeat_interleave(torch.tensor([9, 8, 7, 6, 10]))
    x = truth + 0.25 * torch.randn(40, generator=torch.Generator().manual_seed(6))
    fit = -(x[:, None] - levels).square()  # the score of each step with each label
    total = torch.cat([torch.zeros(1, 3), fit.cumsum(0)])
    theta = torch.full((40, longest, 3), -torch.inf)
    for t in range(40):
        for d in range(min(longest, t + 1)):
            theta[t, d] = total[t + 1] - total[t - d] - 1.0
    solution = si.infer(theta, "semi_markov", "sparsemap", temperature=0.5)
    return plot.segments(solution, x=x, labels=["rest", "walk", "run"], title="Activities, by the strength of movement")


def bumps(n: int, places: list[float], width: float) -> torch.Tensor:
    """Return a series of bumps at the given places."""
    t = torch.linspace(0, 1, n)
    return sum(((-(((t - place) / width) ** 2)).exp() for place in places), torch.zeros(n))


@picture
def dtw() -> Figure:
    x, y = bumps(24, [0.2, 0.45, 0.8], 0.12), bumps(30, [0.3, 0.65, 0.85], 0.1)
    theta = -si.pairwise_cost(x, y)
    solution = si.infer(theta, "dtw", "sparsemap", temperature=0.005)
    return plot.alignment(solution, x=x, y=y, title="Two series, aligned")


@picture
def grid_path() -> Figure:
    i, j = torch.meshgrid(torch.arange(12.0), torch.arange(18.0), indexing="ij")
    hill = torch.exp(-((i - 5.7) ** 2 + (j - 8.6) ** 2) / 9)
    theta = -2 * hill - 0.25
    solution = si.infer(theta, "grid_path", "sparsemap", moves="with-diagonal", temperature=0.03)
    return plot.alignment(solution, title="Ways around a hill")


@picture
def monotonic_alignment() -> Figure:
    letters, frames = "hello", 28
    loudness = bumps(frames, [0.3, 0.78], 0.16)
    expected = torch.tensor([0.1, 1.0, 0.4, 0.3, 0.9])
    theta = -(loudness - expected[:, None]).square()
    solution = si.infer(theta, "monotonic_alignment", "sparsemap", surjective=True, temperature=0.03)
    return plot.alignment(solution, x=letters, y=loudness, title="Letters, and the loudness of a voice")


@picture
def needleman_wunsch() -> Figure:
    """Draw matches of two sequences. Letters of one kind, A and G or C and U, replace each other more often than
    letters of different kinds.
    """
    one, other = "GATTACA", "GCATGCU"
    kind = dict.fromkeys("AG", "purine") | dict.fromkeys("CTU", "pyrimidine")
    match = [[1.0 if a == b else -0.5 if kind[a] == kind[b] else -1.0 for b in other] for a in one]
    theta = (torch.tensor(match), torch.tensor([-0.6, -0.6]))
    solution = si.infer(theta, "needleman_wunsch", "sparsemap", penalty="all", temperature=0.7)
    return plot.alignment(solution, x=one, y=other, title="Matches of two sequences")
