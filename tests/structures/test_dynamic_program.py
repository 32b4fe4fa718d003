"""DynamicProgram: values and derivatives against what grammars say, and grammars against enumeration."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import structinf as si
from dynamic_program_examples import (
    FewOnes,
    Grid,
    Rod,
    Tags,
    Twins,
    assert_close,
    derived,
    every_alpha,
    every_example,
    every_smooth,
    flat,
    plain,
)
from hypergraph_program_examples import formed
from regularizers_by_alpha import REGULARIZERS
from structinf import autograd
from structinf.parts import as_tuple, map_parts, scale_per_instance
from structinf.regularizers import SquaredL2
from structinf.smoothing import smoothed_function

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------------------- the grammars


def listed(oracle, event_shape, lengths=None) -> Counter:
    return Counter(map(tuple, derived(plain(oracle, event_shape, lengths)).tolist()))


def test_grammars_of_strings_and_rods():
    strings = [s for s in itertools.product([0, 1], repeat=5) if not any(a and b for a, b in itertools.pairwise(s))]
    assert listed(FewOnes(k=2), (5,)) == Counter(s for s in strings if sum(s) <= 2)
    counts = itertools.product(range(6), repeat=3)
    assert listed(Rod(length=5), (3,)) == Counter(c for c in counts if c[0] + 2 * c[1] + 3 * c[2] == 5)


def test_grammar_of_tags():
    tagged = []
    for tags in itertools.product(range(2), repeat=3):
        unary, transition = np.zeros((4, 2)), np.zeros((2, 2))
        unary[range(3), tags] = 1
        np.add.at(transition, (tags[:-1], tags[1:]), 1)
        tagged.append((*unary.ravel(), *transition.ravel()))
    assert listed(Tags(), ((4, 2), (2, 2)), 3) == Counter(tagged)


def test_grammars_of_grids_and_twins_count():
    for n, m in itertools.product(range(3), range(4)):
        paths = listed(Grid(), (3, 4), (n + 1, m + 1))
        delannoy = sum(math.comb(n, k) * math.comb(n + m - k, n) for k in range(min(n, m) + 1))
        assert len(paths) == paths.total() == delannoy
    assert listed(Twins(), (5,)).total() == (4 + 1) ** 2 * 2 + 2


# ----------------------------------------------------------------------------- values and gradients


@every_example
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_gibbs_distribution_and_best_structure(example, scale):
    theta, v = example.draw(scale), example.draw()
    value, mean = example.bound.log_partition(theta), example.bound.marginals(theta)
    best, product = example.bound.argmax(theta), example.bound.covariance_product(theta, v)
    room = 1e-12 * max(1, scale)
    for b in range(3):
        y = derived(example.lists(b))
        scores, slopes = y @ flat(theta)[b], y @ flat(v)[b]
        p = scores.softmax(0)
        assert_close(value[b], scores.logsumexp(0), room)
        assert_close(flat(mean)[b], p @ y, room)
        assert_close(flat(product)[b], p * (slopes - p @ slopes) @ y, 10 * room)
        assert_close(flat(best)[b], y[scores.argmax()], 0)


@every_example
@every_alpha
@pytest.mark.parametrize("ties", [False, True])
def test_smoothed_value_and_mean(example, alpha, ties):
    theta = map_parts(torch.round, example.draw()) if ties else example.draw()
    regularizer = REGULARIZERS[alpha]
    value, mean = example.bound.smoothed_value(theta, regularizer), example.bound.smoothed_mean(theta, regularizer)
    for b in range(3):
        at, goal = example.at(theta, b, alpha)
        assert_close(value[b], at.v[goal])
        assert_close(flat(mean)[b], at.mean(goal))
    weight = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    assert_close(example.bound.smoothed_vjp(theta, weight, regularizer), scale_per_instance(mean, weight))


def test_a_shared_tensor_gets_the_sum_over_the_batch():
    theta = (torch.randn(3, 4, 2), torch.randn(1, 2, 2))
    weight = torch.tensor([0.5, -1.0, 2.0])
    unary, transition = Tags().smoothed_vjp(theta, weight, SquaredL2())
    means = scale_per_instance(Tags().smoothed_mean(theta, SquaredL2()), weight)
    assert_close((unary, transition), (means[0], means[1].sum(0, keepdim=True)), 1e-6)


@every_example
@every_alpha
def test_smoothed_hessian_product(example, alpha):
    theta, v = example.draw(), example.draw()
    product = flat(example.bound.smoothed_hessian_product(theta, v, REGULARIZERS[alpha]))
    for b in range(3):
        at, goal = example.at(theta, b, alpha)
        assert_close(product[b], at.hessian_product(goal, flat(v)[b].tolist()), 1e-11)


@pytest.mark.matrix
@every_example
@every_smooth
@pytest.mark.parametrize(
    "attach", [lambda f, theta: f.value(theta), autograd.value, autograd.gradient], ids=["plain", "value", "mean"]
)
def test_derivatives_of_every_order(example, alpha, attach):
    inputs = [t.requires_grad_() for t in as_tuple(example.draw())]

    def function(*tensors):
        return attach(smoothed_function(example.bound, REGULARIZERS[alpha]), formed(list(tensors), example.event_shape))

    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


def test_gradcheck_of_relax():
    theta = [torch.randn(2, *shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 2), (2, 2))]
    assert gradcheck(lambda *t: si.relax(t, Tags(), "marginals", lengths=[3, 2]), theta, fast_mode=True)
    assert gradgradcheck(lambda *t: si.relax(t, Tags(), "marginals", lengths=[3, 2]), theta, fast_mode=True)
