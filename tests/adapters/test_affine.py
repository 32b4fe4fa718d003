"""Objectives ⟨θ, g(y)⟩ + h(y): against enumeration, and against the inner oracle."""

from __future__ import annotations

import itertools

import pytest
import scipy.sparse
import torch

import structinf as si
from structinf import InvalidInputError, PluginError, UnsupportedError
from structinf.noise import get_noise
from structinf.parts import map_parts
from structinf.solvers.perturbation import perturb
from structinf.testing import check_oracle

G = torch.tensor([[1.0, 1.0, 0.0, 0.0, 2.0], [0.0, 3.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
H = torch.tensor([0.3, 1.0, 2.0, 0.5, 0.1], dtype=torch.float64)
SUBSETS = torch.tensor(
    [[float(i in chosen) for i in range(5)] for chosen in itertools.combinations(range(5), 2)], dtype=torch.float64
)
INF = torch.inf


def scores(rows=6, parts=3, seed=0):
    return torch.randn(rows, parts, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def finite(theta):
    return theta.double().nan_to_num(neginf=-1e9)


def best_subset(theta):
    return (finite(theta) @ G @ SUBSETS.T).argmax(1)


def best_subset_with_term(theta):
    return (finite(theta) @ G @ SUBSETS.T + SUBSETS @ H).argmax(1)


def counts(y):
    return SUBSETS[y] @ G.T


def value(y):
    return SUBSETS[y] @ H


def generalized(h=True):
    """The same objective as functions of the user, with an index as y."""
    return si.Generalized(best_subset_with_term if h else best_subset, counts, value if h else None)


ORACLES = {
    "dense": si.Affine("subset", G, H, k=2),
    "sparse": si.Affine("subset", G.to_sparse(), H, k=2),
    "generalized": generalized(),
}
every = pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)


@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.csc_matrix, scipy.sparse.coo_array])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_g_may_be_a_scipy_matrix(kind, dtype):
    matrix = G.numpy().astype(dtype)
    oracle, dense = (si.Affine("subset", g, H, k=2) for g in (kind(matrix), torch.from_numpy(matrix)))
    for found, wanted in zip(*(si.relax(o.scores(scores()), o, "map") for o in (oracle, dense)), strict=True):
        assert torch.equal(found, wanted)


def test_wrong_scipy_matrices():
    for matrix, message in (
        (G[:, :4], "a column for each"),
        (G * INF, "finite"),
        (G * 1j, "real"),
        (G[0], "g must be a"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            si.Affine("subset", scipy.sparse.coo_array(matrix.numpy()), H, k=2)
    doubled = scipy.sparse.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(1, 5))
    y = si.relax(torch.ones(1), si.Affine("subset", doubled, k=1), "map")
    assert y.tolist() == [3.0]


@every
def test_the_best_structure_by_enumeration(oracle):
    theta = scores()
    z, h = si.relax(oracle.scores(theta), oracle, "map")
    values = theta @ G @ SUBSETS.T + SUBSETS @ H
    best = values.argmax(1)
    torch.testing.assert_close(z, SUBSETS[best] @ G.T)
    torch.testing.assert_close(h[:, 0], SUBSETS[best] @ H)
    solution = si.infer(oracle.scores(theta), oracle, "map")
    torch.testing.assert_close(solution.value, values.amax(1))


def test_without_a_constant_term_or_without_a_matrix():
    theta = scores()
    z = si.relax(theta, si.Affine("subset", G, k=2), "map")
    torch.testing.assert_close(z, SUBSETS[(theta @ G @ SUBSETS.T).argmax(1)] @ G.T)
    torch.testing.assert_close(si.relax(theta, generalized(h=False), "map"), z)
    theta = scores(parts=5)
    y, h = si.relax((theta, theta.new_ones(1)), si.Affine("subset", h=H, k=2), "map")
    torch.testing.assert_close(y, si.relax(theta + H, "subset", "map", k=2))
    torch.testing.assert_close(h[:, 0], y @ H)


@every
def test_relaxations_of_the_argmax(oracle):
    """SparseMAP and the perturbed mean are combinations of the best structures of the objective with h."""
    theta = scores(3)
    points = torch.cat([SUBSETS @ G.T, (SUBSETS @ H)[:, None]], 1)
    solution = si.infer(oracle.scores(theta), oracle, "sparsemap", penalty="readout", tolerance=0.0)
    for b in range(3):
        mean = torch.cat([solution.mean[0][b], solution.mean[1][b]])
        # optimal: no structure is better along the gradient θ − z of the objective, with the weight 1 of h
        slope = torch.cat([theta[b] - mean[:3], torch.ones(1, dtype=torch.float64)])
        assert (points @ slope).amax() <= slope @ mean + 1e-9
    g = torch.Generator().manual_seed(0)
    mean = si.relax(oracle.scores(theta), oracle, "perturbed", samples=500, generator=g)
    noise = torch.randn(200_000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for b in range(3):
        best = (points @ torch.cat([theta[b] + noise, noise.new_ones(len(noise), 1)], 1).T).argmax(0)
        expected = points[best].mean(0)
        assert (torch.cat([mean[0][b], mean[1][b]]) - expected).abs().max() < 0.25


def test_noise_leaves_the_weight_alone():
    seen = []

    def maximiser(theta):
        seen.append(theta)
        return theta[:, 0] > 0

    oracle = si.Generalized(maximiser, lambda y: y[:, None].double(), lambda y: -0.5 * y)
    theta = torch.full((2, 1), 0.3, dtype=torch.float64, requires_grad=True)
    for relaxation in ("perturbed", "imle", "stochastic"):
        relaxed = si.relax(oracle.scores(theta), oracle, relaxation)
        assert relaxed[0].shape == (2, 1)
    assert len(seen) >= 3
    weights = si.Affine("subset", G, H, k=2)
    copies = perturb(weights, (scores(), scores().new_ones(1, 1)), get_noise("normal"), 1.0, 4, None)
    assert bool((copies.theta[1] == 1).all())
    assert not bool((copies.theta[0] == scores().repeat(4, 1)).any())


@pytest.mark.parametrize(
    "relaxation", ["blackbox", "imle", "negative_identity", "spigot", "straight_through", "perturbed"]
)
def test_gradients_reach_theta(relaxation):
    oracle = ORACLES["dense"]
    theta = scores().requires_grad_()
    layer = si.Layer(oracle, relaxation)
    z, _ = layer(oracle.scores(theta))
    (z * scores(seed=3)).sum().backward()
    assert bool(theta.grad.isfinite().all())
    assert bool(theta.grad.any())


def test_losses():
    oracle = ORACLES["dense"]
    theta = scores().requires_grad_()
    gold = oracle.image(si.relax(scores(parts=5, seed=2), "subset", "map", k=2))
    loss = si.FenchelYoungLoss(oracle, "map", reduction="none")(oracle.scores(theta), gold)
    values = theta @ G @ SUBSETS.T + SUBSETS @ H
    torch.testing.assert_close(loss, values.amax(1) - (theta * gold[0]).sum(1) - gold[1][:, 0])
    true = oracle.scores(scores(seed=4))
    assert bool((si.SPOPlusLoss(oracle)(oracle.scores(theta), true) >= 0).all())
    assert bool((si.regret(oracle.scores(theta), true, oracle) >= 0).all())


def test_structures_of_several_dimensions_tensors_and_instance_data():
    rows = torch.zeros(4, 9)
    for i in range(3):
        rows[i, 3 * i : 3 * i + 3] = 1.0
    rows[3] = torch.arange(9.0)
    square = si.Affine("assignment", rows, event_shape=(3, 3))
    theta = scores(5, 4)
    z = si.relax(theta, square, "map")
    inner = (theta @ rows.double()).view(5, 3, 3)
    torch.testing.assert_close(z, square.image(si.relax(inner, "assignment", "map")))
    assert bool((z[:, :3] == 1).all())
    shapes = (4, 2), (2, 2)
    chain = si.Affine("chain", torch.eye(12)[::2], event_shape=shapes)
    theta = scores(3, 6)
    lengths = [4, 2, 1]
    z = si.relax(theta, chain, "map", lengths=lengths)
    flat = theta @ torch.eye(12, dtype=torch.float64)[::2]
    pair = flat[:, :8].reshape(3, 4, 2), flat[:, 8:].reshape(3, 2, 2)
    y = si.relax(pair, "chain", "map", lengths=lengths)
    torch.testing.assert_close(z, chain.image(y))
    batches = si.relax(theta.view(3, 1, 6), chain, "map", lengths=torch.tensor(lengths).view(3, 1))
    assert torch.equal(batches[:, 0], z)
    constant = si.Affine("chain", h=(torch.ones(4, 2), torch.zeros(2, 2)))
    *y, h = si.relax(constant.scores(pair), constant, "map", lengths=lengths)
    assert h[:, 0].tolist() == lengths
    assert torch.equal(y[0], si.relax(pair, "chain", "map", lengths=lengths)[0])


WHOLE = torch.tensor([2.0, 3.0, 5.0, 4.0, 2.0])


def test_values_in_the_padding_have_no_effect():
    constant = torch.randn(3, 2), torch.zeros(2, 2)
    oracle = si.Affine("chain", h=constant)
    unary, transition = torch.randn(2, 3, 2), torch.zeros(2, 2)
    wanted = si.relax((unary + constant[0], transition), "chain", "map", lengths=[3, 1])
    unary[1, 1:] = torch.nan
    found = si.relax(oracle.scores((unary, transition)), oracle, "map", lengths=[3, 1])
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=False))


def test_laws(conformance_dtypes):
    assert not check_oracle(si.Affine("subset", G, k=2), event_shape=(3,), dtypes=conformance_dtypes).failed


@pytest.mark.full
@pytest.mark.parametrize(
    ("oracle", "shape"),
    [
        (si.Affine("subset", G.to_sparse(), WHOLE, k=2), ((3,), (1,))),
        (si.Affine("bits", h=WHOLE), ((5,), (1,))),
        (si.Affine("chain", h=(torch.ones(4, 2), torch.zeros(2, 2))), ((4, 2), (2, 2), (1,))),
        (generalized(h=False), (3,)),
    ],
    ids=["constant term", "lengths", "chain", "generalized"],
)
def test_laws_of_other_objectives(oracle, shape, conformance_dtypes):
    assert not check_oracle(oracle, event_shape=shape, dtypes=conformance_dtypes).failed


def test_forbidden_rows():
    oracle = si.Affine("subset", G, k=2)
    theta = scores(1)
    theta[0, 0] = -INF
    z = si.relax(theta, oracle, "map")
    # only the items 2 and 3 have no share in row 0
    assert z.tolist() == [[0.0, 1.0, 2.0]]
    with pytest.raises(si.InfeasibleError):
        si.relax(torch.full((1, 3), -INF), oracle, "map")
    signed = si.Affine("subset", -G, k=2)
    with pytest.raises(InvalidInputError, match="a score of −inf cannot forbid a row of g or h with negative numbers"):
        si.relax(theta, signed, "map")


def test_wrong_input():
    for make, error, message in (
        (lambda: si.Affine("subset", k=2), TypeError, "Affine needs g or h"),
        (lambda: si.Affine("subset", G[:, :, None], k=2), InvalidInputError, "g must be a matrix, got shape"),
        (lambda: si.Affine("subset", G, event_shape=4, k=2), TypeError, r"for example event_shape=\(4,\), got 4"),
        (lambda: si.Affine("assignment", G), TypeError, "event_shape: give the shape of a structure of assignment"),
        (lambda: si.Affine("assignment", G, event_shape=(5,)), InvalidInputError, "tensors of \\[2\\] dimensions"),
        (lambda: si.Affine("assignment", G, event_shape=(2, 2)), InvalidInputError, "a column for each of the 4 parts"),
        (lambda: si.Affine("subset", G, H[:3], k=2), InvalidInputError, "g must be a matrix with a column for each"),
        (lambda: si.Affine("subset", G * torch.nan, k=2), InvalidInputError, "g must be finite"),
        (lambda: si.Affine("subset", h=torch.tensor([INF]), k=1), InvalidInputError, "h must be finite"),
        (lambda: si.Affine("subset", G.clone().requires_grad_(), k=2), InvalidInputError, "g is a constant"),
        (lambda: si.Affine("subset", "G", k=2), InvalidInputError, "g must be a tensor of numbers"),
        (lambda: si.Affine("subset", G + 0j, k=2), InvalidInputError, "g must hold real numbers"),
        (lambda: si.Affine("path", G, graph=[(0, 1)], source=0, target=1), UnsupportedError, "scores of at most 0"),
        (lambda: si.Generalized(3, len), TypeError, "maximiser must be a function"),
        (lambda: si.Generalized(len, len, event_ndim=-1), InvalidInputError, "event_ndim must be"),
    ):
        with pytest.raises(error, match=message):
            make()
    oracle = si.Affine("subset", G, k=2)
    with pytest.raises(InvalidInputError, match=r"affine needs scores of shape \[\(3,\)\]"):
        si.relax(scores(parts=4), oracle, "map")
    with pytest.raises(InvalidInputError, match=r"needs the weight of h besides the scores; pass oracle.scores"):
        si.relax(scores(), ORACLES["dense"], "map")
    with pytest.raises(InvalidInputError, match="y must hold structures of shape"):
        oracle.image(torch.zeros(2, 4))
    with pytest.raises(UnsupportedError, match="lacks the ability GibbsOracle"):
        si.relax(scores(), oracle, "marginals")
    with pytest.raises(InvalidInputError, match="the weight of h must be above 0"):
        si.relax((scores(), scores().new_zeros(1)), generalized(), "map")
    for g in (lambda y: y, lambda y: torch.full((2, 3), torch.nan), lambda y: 3):
        with pytest.raises(PluginError, match=r"g\(y\) must return a finite tensor of shape \(2, 3\)"):
            si.relax(scores(2), si.Generalized(lambda theta: theta[:, 0], g), "map")


def test_equal_results_in_float32_and_half_precision():
    oracle = ORACLES["sparse"]
    theta = scores()
    expected = si.relax(oracle.scores(theta), oracle, "map")
    for dtype in (torch.float32, torch.float16):
        found = si.relax(oracle.scores(theta.to(dtype)), oracle, "map")
        assert found[0].dtype == dtype
        torch.testing.assert_close(map_parts(torch.Tensor.double, found)[0], expected[0], atol=1e-2, rtol=1e-2)
    assert si.relax(oracle.scores(theta[:0]), oracle, "map")[0].shape == (0, 3)
    assert repr(oracle) == "Affine(Subset(k=2, at_most=False), g=a matrix (3, 5), h=...)"
