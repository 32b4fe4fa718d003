"""Gibbs, as a torch.distributions.Distribution: hard inputs, shapes, and the interface."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch.distributions import Independent, kl_divergence

import structinf as si
from gibbs_examples import BATCH, close, draw, one_each, pair
from structinf.parts import as_tuple, map_parts

# ----------------------------------------------------------------------------- hard inputs


@pytest.mark.parametrize(
    ("forbidden", "count"),
    [
        ((slice(None), 0, 1), 21),  # the edge from 0 to 1, at both steps
        ((0, slice(None), 1), 18),  # a state that the middle step cannot reach
    ],
)
def test_forbidden_parts(forbidden, count):
    edges = torch.zeros(2, 3, 3, dtype=torch.float64)
    edges[forbidden] = -math.inf
    edges.requires_grad_()
    gibbs = si.Gibbs(edges, "chain")
    assert gibbs.entropy().item() == pytest.approx(math.log(count), abs=1e-12)
    assert gibbs.log_partition.item() == pytest.approx(math.log(count), abs=1e-12)
    listed_ = gibbs.enumerate_support()
    log_p = gibbs.log_prob(listed_)
    assert int((log_p > -math.inf).sum()) == count
    divergence = kl_divergence(gibbs, si.Gibbs(torch.zeros(2, 3, 3, dtype=torch.float64), "chain"))
    assert divergence.item() == pytest.approx(math.log(27 / count), abs=1e-12)
    for value in (gibbs.entropy(), log_p[log_p > -math.inf].sum(), divergence, gibbs.variance.sum()):
        (gradient,) = torch.autograd.grad(value, edges)
        assert bool(gradient.isfinite().all())
        assert not gradient[edges.isneginf()].any()


def test_infinite_divergences_have_the_gradient_0():
    p = torch.zeros(2, 3, requires_grad=True)
    q = torch.zeros(2, 3).index_fill(0, torch.tensor([0]), 0)
    q[0, 2] = -math.inf
    q.requires_grad_()
    a, b = si.Gibbs(p, "categorical"), si.Gibbs(q, "categorical")
    found = kl_divergence(a, b)
    assert found.tolist() == [math.inf, 0.0]
    assert a.cross_entropy(b)[0] == math.inf
    for gradient in torch.autograd.grad(found[1] + found[0], (p, q)):
        assert bool(gradient.isfinite().all())
    assert kl_divergence(b, a)[0].item() == pytest.approx(math.log(1.5))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@one_each
def test_log_probabilities_are_never_above_0(example, scale):
    theta = map_parts(lambda t: (t * scale).float(), draw(example))
    gibbs = si.Gibbs(theta, example.oracle())
    best = gibbs.log_prob(gibbs.mode)
    assert bool((best <= 0).all())
    assert bool((gibbs.entropy() >= 0).all())
    close(kl_divergence(gibbs, gibbs), np.zeros(BATCH), atol=1e-12)
    exact = si.Gibbs(map_parts(torch.Tensor.double, theta), example.oracle())
    close(best, exact.log_prob(exact.mode), atol=1e-5)
    close(gibbs.entropy(), exact.entropy(), atol=1e-5)
    assert all(bool(((v >= 0) & v.isfinite()).all()) for v in as_tuple(gibbs.variance))


def test_chains_of_different_lengths():
    theta = torch.randn(5, 4, 6), torch.randn(6, 6)
    gibbs = si.Gibbs(theta, "chain", lengths=[4, 1, 3, 2, 4])
    value = gibbs.log_prob(gibbs.mode)
    assert bool((value <= 0).all())
    torch.testing.assert_close(
        value, si.infer(theta, "chain", "map", lengths=[4, 1, 3, 2, 4]).value - gibbs.log_partition
    )
    tags = torch.randint(6, (7, 5, 4))
    torch.testing.assert_close(gibbs.log_prob(tags)[2], si.log_prob(theta, tags[2], "chain", lengths=[4, 1, 3, 2, 4]))
    with pytest.raises(si.InvalidInputError, match="different lengths"):
        gibbs.enumerate_support()


def test_whatever_lies_in_the_padding():
    unary, transition = torch.randn(2, 4, 3), torch.randn(3, 3)
    clean = si.Gibbs((unary.clone(), transition), "chain", lengths=[4, 2])
    unary[1, 2:] = math.nan
    gibbs = si.Gibbs((unary, transition), "chain", lengths=[4, 2])
    for of in (si.Gibbs.entropy, lambda p: p.log_prob(p.mode), lambda p: p.variance, lambda p: p.expand((3, 2)).mean):
        close(of(gibbs), of(clean))


def test_variances_of_nearly_certain_parts():
    for dtype in (torch.float32, torch.float64):
        value = si.Gibbs(torch.tensor([0.0, -20.0], dtype=dtype), "categorical").variance
        assert value.tolist() == pytest.approx([math.exp(-20.0)] * 2, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_types_are_kept(dtype):
    gibbs = si.Gibbs(torch.zeros(1, 3, 3, dtype=dtype), "arborescence")
    values = [gibbs.log_partition, gibbs.entropy(), gibbs.log_prob(gibbs.mode), gibbs.mean, gibbs.variance]
    values += [gibbs.sample((2,)), gibbs.mode, gibbs.enumerate_support(), kl_divergence(gibbs, gibbs)]
    assert {v.dtype for v in values} == {dtype}
    assert float(values[0]) == pytest.approx(math.log(3), abs=1e-2)


@one_each
def test_empty_batches_and_other_layouts(example):
    gibbs = si.Gibbs(draw(example, batch=(0,)), example.oracle(), relaxation="map")
    assert gibbs.entropy().shape == gibbs.log_prob(gibbs.sample((3,)))[0].shape == (0,)
    for t in (gibbs.mean, gibbs.mode, gibbs.variance, gibbs.rsample((2,))):
        assert all(0 in part.shape for part in as_tuple(t))
    theta = draw(example, batch=(3, BATCH))
    other = map_parts(lambda t: t.transpose(0, 1), theta)
    close(si.Gibbs(other, example.oracle()).entropy(), si.Gibbs(theta, example.oracle()).entropy().T)


# ----------------------------------------------------------------------------- shapes


@one_each
def test_expanding(example):
    gibbs = si.Gibbs(draw(example, batch=(BATCH, 1)), example.oracle())
    wide = gibbs.expand((4, BATCH, 3))
    assert (wide.batch_shape, wide.event_shape) == ((4, BATCH, 3), gibbs.event_shape)
    assert repr(wide) != repr(gibbs)
    y = gibbs.sample()
    close(wide.log_prob(y), gibbs.log_prob(y).expand(4, BATCH, 3))
    close(wide.entropy(), gibbs.entropy().expand(4, BATCH, 3))
    close(wide.mean, map_parts(lambda t: t.unsqueeze(0).expand(4, BATCH, 3, *t.shape[2:]), gibbs.mean))
    drawn = wide.sample((5,))
    assert [tuple(t.shape) for t in as_tuple(drawn)] == [(5, 4, BATCH, 3, *shape) for shape in example.shapes]
    assert gibbs.log_prob(drawn).shape == (5, 4, BATCH, 3)
    shapes = tuple(t.shape for t in as_tuple(drawn))
    assert wide._extended_shape((5,)) == (shapes if example.is_tuple else shapes[0])


def test_a_shared_transition_and_lengths_expand():
    gibbs = pair(lengths=[4, 2, 1])
    wide = gibbs.expand((5, 3))
    assert wide.theta[1].numel() == 4
    assert wide.oracle.bound["lengths"].shape == (15,)
    close(wide.mean[1], gibbs.mean[1].expand(5, 3, 2, 2))
    with pytest.raises(si.InvalidInputError, match="must broadcast"):
        gibbs.expand((3, 5))
    with pytest.raises(si.InvalidInputError, match=r"\(3,\) cannot be expanded to \(3, 1\)"):
        gibbs.expand((3, 1))


def test_values_are_broadcast():
    gibbs = si.Gibbs(torch.randn(3, 1, 4), "categorical")
    assert gibbs.log_prob(torch.eye(4)[0]).shape == (3, 1)
    assert gibbs.log_prob(torch.eye(4)[:2]).shape == (3, 2)
    assert gibbs.log_prob(torch.tensor(1)).shape == (3, 1)
    assert gibbs.log_prob(torch.tensor([[[0]], [[1]]])).shape == (2, 3, 1)
    wide = si.Gibbs(torch.randn(2, 3, 1, 4), "categorical")
    assert kl_divergence(gibbs, wide).shape == kl_divergence(wide, gibbs).shape == (2, 3, 1)


def test_independent_batches():
    gibbs = si.Gibbs(torch.randn(5, 2, 3, 3), "arborescence")
    joint = Independent(gibbs, 1)
    assert (joint.batch_shape, joint.event_shape) == ((5,), (2, 3, 3))
    y = joint.sample((4,))
    close(joint.log_prob(y), gibbs.log_prob(y).sum(-1))
    close(joint.entropy(), gibbs.entropy().sum(-1))
    assert not joint.has_rsample
    assert bool(joint.support.check(y).all())


# ----------------------------------------------------------------------------- the interface


@pytest.mark.parametrize("validate", [True, False, None])
@one_each
def test_every_public_name_works_with_its_defaults(example, validate):
    gibbs = si.Gibbs(draw(example), example.oracle(), relaxation="sparsemap", validate_args=validate)
    y = gibbs.sample()
    for name in dir(gibbs):
        if name.startswith("_") or name in ("cdf", "icdf", "sample_n", "set_default_validate_args"):
            continue
        attribute = getattr(gibbs, name)
        if callable(attribute) and not isinstance(attribute, si.Oracle | si.Relaxation):
            arguments = {
                "log_prob": (y,),
                "expand": ((3, BATCH),),
                "cross_entropy": (gibbs,),
                "sample_unordered": (2,),
            }.get(name, ())
            attribute(*arguments)
    assert example.name.replace("_", "") in repr(gibbs).lower()
    again = pickle.loads(pickle.dumps(copy.deepcopy(gibbs)))
    close(again.log_prob(y), gibbs.log_prob(y))


def test_randomness_is_the_generators_alone():
    gibbs = pair(relaxation="marginals")
    before = torch.get_rng_state()
    for draws in (gibbs.sample, gibbs.rsample):
        a, b = (draws((6,), generator=torch.Generator().manual_seed(1)) for _ in range(2))
        close(a, b, atol=0)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(gibbs.sample((50,))[0], gibbs.sample((50,))[0])


def test_relaxed_samples():
    theta = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    gibbs = si.Gibbs(theta, "categorical", temperature=2.0, relaxation=si.get_relaxation("marginals", temperature=0.5))
    assert gibbs.has_rsample
    y = gibbs.rsample((3, 4), generator=torch.Generator().manual_seed(0))
    assert y.shape == (3, 4, 2, 5)
    close(y.detach().sum(-1), np.ones((3, 4, 2)))
    (gradient,) = torch.autograd.grad(y[..., 0].sum(), theta)
    assert bool((gradient[:, 0] > 0).all())
    hard = si.Gibbs(theta, "categorical", relaxation="map").rsample((4000,))
    assert bool(
        (hard.mean(0) - theta.softmax(1)).detach().abs().max() < 0.05
    )  # the maximum of Gumbel noise is a sample here
    own = si.get_relaxation("stochastic", base_relaxation="map", noise="none")
    assert torch.equal(si.Gibbs(theta, "categorical", relaxation=own).rsample(), si.Gibbs(theta, "categorical").mode)
    assert gibbs.rsample((0,)).shape == gibbs.sample((0,)).shape == (0, 2, 5)


class Blank(type(si.get_oracle("categorical"))):
    """One that has no labels."""

    encode, decode = si.Oracle.encode, si.Oracle.decode


def test_the_support_of_an_oracle_without_labels():
    gibbs = si.Gibbs(torch.zeros(3), Blank())
    value = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1], [math.nan, 0, 0]])
    assert gibbs.support.check(value).tolist() == [True, False, False, True, False]
    with pytest.raises(si.InvalidInputError, match="not a structure of categorical at batch index 1"):
        gibbs.log_prob(value[:4])
    assert gibbs.support.check(torch.ones(4)).item() is False
    with pytest.raises(si.UnsupportedError, match="no integer labels"):
        gibbs.log_prob(torch.tensor(1))


def test_what_is_no_structure():
    gibbs = pair(lengths=[4, 2, 1])
    good = gibbs.sample((2,))
    bad = good[0].clone(), good[1]
    bad[0][1, 0, 1] = 1.0
    assert gibbs.support.check(bad).tolist() == [[True, True, True], [False, True, True]]
    with pytest.raises(si.InvalidInputError, match="value is not a structure of chain at batch index 3"):
        gibbs.log_prob(bad)
    free = pair(lengths=[4, 2, 1], validate_args=False)
    assert free.log_prob(bad).shape == (2, 3)
    close(free.log_prob(good), gibbs.log_prob(good))
    with pytest.raises(si.InvalidInputError, match="must have the form of theta"):
        gibbs.log_prob(good[0])
    with pytest.raises(si.InvalidInputError, match="value"):
        gibbs.log_prob((good[0][..., :1], good[1]))
    with pytest.raises(si.InvalidInputError, match=r"batch dimensions must broadcast, got \(2,\) and \(3,\)"):
        gibbs.log_prob(map_parts(lambda t: t[0, :2], good))
    with pytest.raises(si.InvalidInputError, match="labels must lie between 0 and 1"):
        gibbs.log_prob(torch.full((3, 4), 2))


def test_refusals():
    theta = torch.zeros(3, 3)
    with pytest.raises(si.UnsupportedError, match=r"#P-complete.*SparseDistribution\.of"):
        si.Gibbs(theta, "assignment")
    with pytest.raises(si.InvalidInputError, match="temperature"):
        si.Gibbs(theta, "arborescence", temperature=0.0)
    with pytest.raises(si.InvalidInputError, match="NaN"):
        si.Gibbs(theta * math.nan, "arborescence")
    with pytest.raises(si.UnsupportedError, match="smoothed does not work for arborescence"):
        si.Gibbs(theta, "arborescence", relaxation="smoothed")
    gibbs = si.Gibbs(theta, "arborescence")
    with pytest.raises(si.UnsupportedError, match="this Gibbs has no relaxation"):
        gibbs.rsample()
    with pytest.raises(TypeError, match=r"torch\.Generator or None, got int"):
        gibbs.sample(generator=0)
    for other in (
        si.Gibbs(theta, "arborescence", single_root=True),
        si.Gibbs(theta, "dtw"),
        si.Gibbs(torch.zeros(4, 4), "arborescence"),
        si.Gibbs(theta, "arborescence", lengths=2),
    ):
        with pytest.raises(si.UnsupportedError, match="over the same structures"):
            kl_divergence(gibbs, other)
    with pytest.raises(si.InfeasibleError):
        si.Gibbs(torch.full((3,), -math.inf), "categorical").sample()
    with pytest.raises(NotImplementedError):
        kl_divergence(gibbs, torch.distributions.Normal(0.0, 1.0))


# ----------------------------------------------------------------------------- sizes

DISTRIBUTIONS = [
    si.Gibbs(torch.zeros(2, 4), "categorical", relaxation="marginals"),
    si.SparseDistribution.of(torch.zeros(2, 4), "categorical"),
    si.HardConcrete(torch.zeros(2, 4)),
    si.GaussianSparsemax(torch.zeros(2, 4)),
    si.GumbelSparsemax(torch.zeros(2, 4)),
]


@pytest.mark.parametrize("method", ["sample", "rsample", "expand"])
@pytest.mark.parametrize("size", [3.5, "ab", None, 3, True, torch.tensor(3), (True,), (2.5,), ("a",), [None]])
def test_sizes_are_sequences_of_integers(method, size):
    for distribution in DISTRIBUTIONS:
        name = "batch_shape" if method == "expand" else "sample_shape"
        if method != "rsample" or distribution.has_rsample:
            hint = r"; write \w+=\(3,\)$" if size is not True and isinstance(size, int) else "$"
            with pytest.raises(
                TypeError, match=rf"^{name} must be a sequence of integers, such as \(5,\), got .*{hint}"
            ):
                getattr(distribution, method)(size)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda d: type(d).__name__)
def test_sizes_are_natural(distribution):
    with pytest.raises(si.InvalidInputError, match=r"^sample_shape must hold integers of at least 0, got \(-1,\)"):
        distribution.sample((-1,))
    with pytest.raises(si.InvalidInputError, match=r"^batch_shape: .*\(3, 5\)"):
        distribution.expand((3, 5))
    assert distribution.sample([0]).shape[0] == 0
    assert distribution.sample(torch.Size([2, 1])).shape[:2] == (2, 1)


def test_structures_have_no_relaxed_samples():
    with pytest.raises(si.UnsupportedError, match=r"^rsample: .*SparseDistribution .*; use sample\(\), or"):
        DISTRIBUTIONS[1].rsample((2,))
