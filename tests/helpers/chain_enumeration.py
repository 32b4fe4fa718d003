"""Potentials of linear chains, and all tag sequences listed in plain Python."""

from __future__ import annotations

import itertools
import math

import torch

from structinf.parts import as_tuple, inner_product, map_parts
from structinf_oracles.chain import Chain

CHAIN = Chain()
NEG = -math.inf
DTYPES = [torch.float32, torch.float64]
FORMS = ["shared", "own", "steps", "shared steps", "shared unary", "edges"]
SCALES = [1e-3, 1.0, 30.0, 1e3]
B, T, S = 3, 4, 3
LENGTHS = [4, 1, 3]


def potentials(form, dtype=torch.float64, scale=1.0, shape=(B, T, S)):
    b, t, s = shape
    unary = torch.randn(b, t, s, dtype=dtype) * scale
    steps = torch.randn(b, t - 1, s, s, dtype=dtype) * scale
    own = torch.randn(b, s, s, dtype=dtype) * scale
    return {
        "shared": (unary, own[:1]),
        "own": (unary, own),
        "steps": (unary, steps),
        "shared steps": (unary, steps[:1]),
        "shared unary": (unary[:1], own),
        "edges": steps,
    }[form]


def forbid(theta, share=0.15, unreachable=False):
    """Some parts at −inf, and perhaps one state that nothing leads to; but no part of the sequence 0, 0, 0, ..."""

    def cut(t, is_edges):
        t = torch.where(torch.rand(t.shape) < share, NEG, t)
        if is_edges and unreachable:
            t[..., -1] = NEG
        t[(..., 0, 0) if is_edges else (..., 0)] = 0.5
        return t

    return (cut(theta[0], False), cut(theta[1], True)) if isinstance(theta, tuple) else cut(theta, True)


def part_scores(theta, b):
    """unary(t, i) and transition(t, i, j), from token t to the next, of instance ``b``: plain numbers."""
    tensors = [t[min(b, len(t) - 1)].double() for t in as_tuple(theta)]
    if not isinstance(theta, tuple):
        return (lambda t, i: 0.0), (lambda t, i, j: tensors[0][t, i, j].item())
    unary, transition = tensors
    if transition.ndim == 2:
        return (lambda t, i: unary[t, i].item()), (lambda t, i, j: transition[i, j].item())
    return (lambda t, i: unary[t, i].item()), (lambda t, i, j: transition[t, i, j].item())


def sequences(theta, lengths):
    """For each instance, all its tag sequences and their scores; by edges alone, a single token has one, tag 0."""
    states = as_tuple(theta)[0].shape[-1]
    found = []
    for b, length in enumerate(lengths):
        unary, transition = part_scores(theta, b)
        scored = {}
        choices = range(states if isinstance(theta, tuple) or length > 1 else 1)
        for tags in itertools.product(choices, repeat=length):
            score = sum(unary(t, i) for t, i in enumerate(tags))
            scored[tags] = score + sum(transition(t, tags[t], tags[t + 1]) for t in range(length - 1))
        found.append(scored)
    return found


def indicators(theta, tags):
    """The structure (1, *event) of one tag sequence, in float64."""

    def fill(t, is_edges):
        y = torch.zeros(1, *t.shape[1:], dtype=torch.float64)
        for position in range(len(tags) - is_edges):
            if not is_edges:
                y[0, position, tags[position]] = 1
            elif t.ndim == 3:
                y[0, tags[position], tags[position + 1]] += 1
            else:
                y[0, position, tags[position], tags[position + 1]] = 1
        return y

    return (fill(theta[0], 0), fill(theta[1], 1)) if isinstance(theta, tuple) else fill(theta, 1)


def log_sum(scores):
    top = max(scores)
    return top + math.log(sum(math.exp(x - top) for x in scores))


class Exact:
    """Sums over all sequences of each instance, in float64."""

    def __init__(self, theta, lengths):
        self.theta, self.sequences = theta, sequences(theta, lengths)
        self.log_z = torch.tensor([log_sum(list(s.values())) for s in self.sequences], dtype=torch.float64)

    def mean(self, scale_per_instance=lambda b, tags, y: 1.0):
        """E[weight · Y], (B, *event)."""
        rows = []
        for b, scored in enumerate(self.sequences):
            total = map_parts(lambda t: torch.zeros(1, *t.shape[1:], dtype=torch.float64), self.theta)
            for tags, score in scored.items():
                y = indicators(self.theta, tags)
                factor = math.exp(score - self.log_z[b]) * scale_per_instance(b, tags, y)
                total = map_parts(lambda a, z, factor=factor: a + factor * z, total, y)
            rows.append(total)
        return map_parts(lambda *r: torch.cat(r), *rows)

    def covariance_product(self, v):
        v = map_parts(lambda t: t.double(), v)

        def along(b, tags, y):
            return float(inner_product(map_parts(lambda t: t[min(b, len(t) - 1)][None], v), y))

        mean, size = self.mean(), len(self.sequences)
        expected = [
            sum(math.exp(x - self.log_z[b]) * along(b, s, indicators(self.theta, s)) for s, x in scored.items())
            for b, scored in enumerate(self.sequences)
        ]
        shift = torch.tensor(expected, dtype=torch.float64)
        return map_parts(lambda a, m: a - shift.view(size, *[1] * (m.ndim - 1)) * m, self.mean(along), mean)


def assert_parts_close(found, exact, atol, rtol=0.0):
    for a, b in zip(as_tuple(found), as_tuple(exact), strict=True):
        torch.testing.assert_close(a.double(), b.double(), atol=atol, rtol=rtol)


def assert_equal_parts(found, wanted):
    for a, b in zip(as_tuple(found), as_tuple(wanted), strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)


def tolerance(theta):
    """Rounding of scores of this size, a few times over."""
    size = max(float(t.where(t > NEG, 0).abs().max()) for t in as_tuple(theta))
    return 20 * torch.finfo(as_tuple(theta)[0].dtype).eps * (1 + size)


def bound(lengths=LENGTHS):
    return CHAIN.bind(lengths=torch.tensor(lengths))


def copies(theta):
    return map_parts(lambda t: t.clone().requires_grad_(), theta)
