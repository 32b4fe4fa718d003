"""What queries answer, against enumeration, for every structure that has them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import enumerators
import structinf as si
import toy_oracles
from oracle_examples import parametrize
from structinf.dp import HypergraphProgram
from structinf.parts import as_tuple, map_parts

pytestmark = pytest.mark.slow

BATCH = (2, 1)

listed = parametrize(lambda example: example.listing is not None)


def draw(example, infinite=0.0):
    """θ of batch shape (2, 1); each instance's structures of finite score, one at least, and their scores."""
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(*BATCH, *shape, dtype=torch.float64, generator=generator) for shape in example.shapes]
    if example.oracle().requires_nonpositive_theta:
        tensors = [-t.abs() for t in tensors]
    every = example.listing(None)
    hidden = torch.rand(tensors[0].shape, generator=generator) < infinite
    tensors[0].masked_fill_(hidden & torch.from_numpy(every[len(every) // 2][0] == 0), -math.inf)
    found = []
    for b in range(2):
        own = [t[b, 0].numpy() for t in tensors]
        scores = np.array([enumerators.score(own, y) for y in every])
        found.append(([y for y, s in zip(every, scores, strict=True) if s > -math.inf], scores[scores > -math.inf]))
    return tuple(tensors) if example.is_tuple else tensors[0], found


def has(example, ability):
    return isinstance(example.oracle(), ability)


def flat(structures, index):
    """The parts of the structures (k, 2, 1, *event) of one instance, (k, P)."""
    return torch.cat([t[:, index, 0].flatten(1) for t in as_tuple(structures)], 1).numpy()


def rows(structures):
    return np.array([np.concatenate([t.ravel() for t in y]) for y in structures])


@pytest.mark.sampled(3)
@listed
def test_topk(example):
    if not has(example, si.KBest):
        pytest.skip("no k best")
    theta, found = draw(example)
    best = si.topk(theta, example.oracle(), 4)
    for b, (_, scores) in enumerate(found):
        expected = np.sort(scores)[::-1][:4]
        valid = best.valid[:, b, 0].numpy()
        assert valid.sum() == len(expected)
        np.testing.assert_allclose(best.scores[valid, b, 0], expected, atol=1e-10)
        listed = flat(best.structures, b)[valid]
        np.testing.assert_allclose(listed @ flat(map_parts(lambda t: t[None], theta), b)[0], expected, atol=1e-10)
        assert len({tuple(y) for y in listed}) == len(listed)


@listed
def test_count_and_entropy(example):
    theta, found = draw(example)
    oracle = example.oracle()
    p = [np.exp(s - s.max()) / np.exp(s - s.max()).sum() for _, s in found]
    if isinstance(oracle, HypergraphProgram):
        assert si.count(theta, oracle) == [len(s) for _, s in found]
    if isinstance(oracle, si.GibbsOracle):
        expected = [-(q * np.log(q)).sum() for q in p]
        np.testing.assert_allclose(si.entropy(theta, oracle)[:, 0], expected, atol=1e-9)


@listed
def test_probabilities(example):
    if not has(example, si.GibbsOracle):
        pytest.skip("no sum over structures")
    theta, found = draw(example)
    for k in (0, -1):
        pieces = [
            torch.from_numpy(np.stack([y[k][i] for y, _ in found])).unsqueeze(1) for i in range(len(example.shapes))
        ]
        y = tuple(pieces) if example.is_tuple else pieces[0]
        for temperature in (1.0, 2.5):
            expected = [(s / temperature)[k] - np.logaddexp.reduce(s / temperature) for _, s in found]
            got = si.log_prob(theta, y, example.oracle(), temperature=temperature)
            np.testing.assert_allclose(got[:, 0], expected, atol=1e-9)


@pytest.mark.matrix
@listed
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_nonzero_mixes_to_the_smoothed_mean(example, temperature):
    if not has(example, HypergraphProgram):
        pytest.skip("no graph")
    theta, found = draw(example)
    choice = {"regularizer": "squared_l2", "temperature": temperature}
    structures, probabilities = si.enumerate_support(theta, example.oracle(), **choice)
    mean = si.relax(theta, example.oracle(), "smoothed", **choice)
    entropy = si.entropy(theta, example.oracle(), **choice)
    for b, (every, _) in enumerate(found):
        p = probabilities[:, b, 0].numpy()
        known = {tuple(y) for y in rows(every)}
        assert {tuple(y) for y in flat(structures, b)[p > 0]} <= known
        assert (np.diff(p) <= 0).all()
        np.testing.assert_allclose(p.sum(), 1, atol=1e-9)
        np.testing.assert_allclose(p @ flat(structures, b), flat(map_parts(lambda t: t[None], mean), b)[0], atol=1e-9)
        np.testing.assert_allclose(entropy[b, 0], -(p[p > 0] * np.log(p[p > 0])).sum(), atol=1e-9)


@pytest.mark.matrix
@listed
@pytest.mark.parametrize("regularizer", ["negentropy", "squared_l2"])
def test_samples_have_the_mean(example, regularizer):
    oracle = example.oracle()
    if not isinstance(oracle, si.Samplable) or (regularizer != "negentropy" and not hasattr(oracle, "smoothed_sample")):
        pytest.skip("draws none")
    theta, found = draw(example, infinite=0.2)
    choice = {"regularizer": regularizer, "temperature": 1.5}
    drawn = si.sample(theta, oracle, 2000, generator=torch.Generator().manual_seed(3), **choice)
    relaxation = ("marginals", 1.5) if regularizer == "negentropy" else ("smoothed", 1.5)
    kind = {} if regularizer == "negentropy" else {"regularizer": regularizer}
    mean = si.relax(theta, oracle, relaxation[0], temperature=1.5, **kind)
    for b, (every, _) in enumerate(found):
        known = {tuple(y) for y in rows(every)}
        own = flat(drawn, b)
        assert {tuple(y) for y in own} <= known
        expected = flat(map_parts(lambda t: t[None], mean), b)[0]
        error = 6 * own.std(0) / len(own) ** 0.5 + 1e-9  # passed once in a billion
        never = 20 / len(own)  # and what was never drawn is rare
        assert (np.abs(own.mean(0) - expected) <= np.where(own.std(0) > 0, error, never)).all()


# ----------------------------------------------------------------------------- forms and refusals


def test_lengths_may_be_a_list_and_potentials_shared():
    unary, transition = torch.randn(3, 5, 2), torch.randn(2, 2)
    best = si.topk((unary, transition), "chain", 2, lengths=[5, 1, 3])
    assert best.structures[0].shape == (2, 3, 5, 2)
    assert best.structures[1].shape == (2, 3, 2, 2)
    assert best.structures[0][:, 1, 1:].sum() == 0
    assert si.count((unary, transition), "chain", lengths=[5, 1, 3]) == [32, 2, 8]
    assert si.sample((unary, transition), "chain", 4, lengths=[5, 1, 3])[0].shape == (4, 3, 5, 2)


def test_no_batch_dimension_and_half_precision():
    theta = torch.randn(4, 4, dtype=torch.float16)
    best = si.topk(theta, "dtw", 3)
    assert best.structures.shape == (3, 4, 4)
    assert best.structures.dtype == best.scores.dtype == torch.float16
    assert si.entropy(theta, "dtw").shape == ()


def test_a_band_of_each_instance():
    theta = torch.zeros(3, 4, 4)
    assert si.count(theta, "dtw", band=torch.tensor([0, 1, 9])) == [1, 41, 63]
    assert si.count(theta, "dtw", band=torch.tensor([0, 1, 9]), lengths=[[2, 2], [2, 2], [3, 3]]) == [1, 3, 13]
    p = si.enumerate_support(theta, "dtw", regularizer="negentropy", band=torch.tensor([0, 1, 3])).probabilities
    assert (p > 0).sum(0).tolist() == [1, 41, 63]


@pytest.mark.parametrize("name", ["chain", "dtw", "arborescence", "categorical", "subset"])
@pytest.mark.parametrize("n", [-1, 2.5, True])
def test_numbers_of_samples_are_checked(name, n):
    theta = (torch.zeros(3, 2), torch.zeros(2, 2)) if name == "chain" else torch.zeros(3, 3)
    options = {"k": 1} if name == "subset" else {}
    with pytest.raises(si.InvalidInputError, match="number of samples, must be an integer of at least 0"):
        si.sample(theta, name, n, **options)


@listed
def test_no_samples(example):
    if not has(example, si.Samplable):
        pytest.skip("draws none")
    theta, _ = draw(example)
    for y, t in zip(as_tuple(si.sample(theta, example.oracle(), 0)), as_tuple(theta), strict=True):
        assert y.shape == (0, *t.shape)


@pytest.mark.parametrize(
    ("query", "name", "lack"),
    [
        (lambda t: si.count(t, "assignment"), "assignment", "graph"),
        (lambda t: si.topk(t[0], toy_oracles.Knapsack(2), 2), "toy_knapsack", "KBest"),
        (lambda t: si.sample(t, "assignment"), "assignment", "Samplable"),
        (lambda t: si.entropy(t, "assignment"), "assignment", "#P-complete"),
        (lambda t: si.entropy(t, "arborescence", regularizer="squared_l2"), "arborescence", "recursion of maxima"),
        (lambda t: si.sample(t, "arborescence", regularizer="squared_l2"), "arborescence", "random walk"),
    ],
)
def test_what_cannot_be_asked(query, name, lack):
    with pytest.raises(si.UnsupportedError, match=rf"{name}.*{lack}"):
        query(torch.zeros(3, 3))


@pytest.mark.parametrize("name", ["arborescence", "spanning_tree"])
def test_trees_are_counted_by_the_log_partition_function(name):
    theta = torch.randn(4, 5, 5, dtype=torch.float16)
    theta[1, 0, 1] = theta[1, 1, 0] = -math.inf
    theta[2] = -math.inf
    assert si.count(theta, name)[::3] == [125, 125]
    assert si.count(theta, name)[1:3] == [75, 0]
    assert si.count(theta[2], name) == [0]
    assert si.count(torch.zeros(9, 9), name) == [9**7]
    with pytest.raises(
        si.UnsupportedError, match=rf"{name} counts at most 1e\+09 structures .* index 1 .*; call log_p"
    ):
        si.count(torch.stack([torch.full((12, 12), -math.inf), torch.zeros(12, 12)]), name)


def test_choices_and_subsets_are_counted():
    theta = torch.tensor([[0.0, 3.0, -math.inf, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert si.count(theta, "categorical") == [3, 4]
    assert si.count(theta, "bits") == [8, 16]
    assert si.count(theta, "subset", k=2) == [3, 6]


def test_wrong_input_is_refused_as_in_relax():
    theta = torch.zeros(2, 4, 4)
    for query in (lambda **o: si.topk(theta, "dtw", 2, **o), lambda **o: si.sample(theta, "dtw", **o)):
        with pytest.raises(si.InvalidInputError, match="lengths must lie between 1 and 4"):
            query(lengths=[[4, 4], [3, 9]])
    with pytest.raises(TypeError, match=r"torch\.Generator or None, got int"):
        si.sample(torch.zeros(4), "bits", generator=0)
    with pytest.raises(si.InvalidInputError, match="NaN"):
        si.count(theta * math.nan, "dtw")
    with pytest.raises(si.InfeasibleError):
        si.entropy(torch.full((3, 3), -math.inf), "dtw")


# ----------------------------------------------------------------------------- oracles bound by hand


@pytest.mark.parametrize(
    "name", ["dtw", "grid_path", "chain", "arborescence", "assignment", "projective_tree", "binary_tree"]
)
@pytest.mark.parametrize("wrong", ["beyond", "too few"])
@pytest.mark.parametrize("method", ["argmax", "topk", "sample", "marginals"])
def test_lengths_bound_by_hand_cannot_lead_loops_astray(name, wrong, method):
    oracle = si.get_oracle(name)
    if not hasattr(oracle, method):
        pytest.skip("lacks it")
    pair = oracle.instance_ndim["lengths"] == 1
    good, far = ([2, 2], [9, 9]) if pair else (2, 9)
    bound = oracle.bind(lengths=[good, far] if wrong == "beyond" else [good])
    theta = (torch.zeros(2, 4, 3), torch.zeros(1, 3, 3)) if name == "chain" else torch.zeros(2, 4, 4)
    more = {"topk": (2,), "sample": (3,)}.get(method, ())
    with pytest.raises(si.InvalidInputError, match="lengths"):
        getattr(bound, method)(theta, *more)


# ----------------------------------------------------------------------------- log-partitions, samples in front


@pytest.mark.parametrize("name", ["arborescence", "chain", "dtw"])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
def test_log_prob_takes_sample_dimensions_as_gibbs_does(name, batch):
    torch.manual_seed(0)
    theta = (torch.randn(*batch, 4, 3), torch.randn(*batch, 3, 3)) if name == "chain" else torch.randn(*batch, 4, 4)
    y = si.sample(theta, name, 5)
    expected = si.Gibbs(theta, name).log_prob(y)
    found = si.log_prob(theta, y, name)
    assert found.shape == (5, *batch)
    torch.testing.assert_close(found, expected)
    if name != "dtw" and not batch:  # a structure of the samples as a batch has the same labels
        torch.testing.assert_close(si.log_prob(theta, si.decode(y, name), name), expected)
    several = map_parts(lambda t: t.expand(2, *t.shape), y)
    assert si.log_prob(theta, several, name).shape == (2, 5, *batch)


def test_log_prob_of_samples_with_lengths_and_a_shared_transition():
    theta, lengths = (torch.randn(2, 4, 3), torch.randn(3, 3)), [4, 2]
    y = si.sample(theta, "chain", 6, lengths=lengths)
    found = si.log_prob(theta, y, "chain", lengths=lengths)
    one_by_one = torch.stack([si.log_prob(theta, (u, t), "chain", lengths=lengths) for u, t in zip(*y, strict=True)])
    torch.testing.assert_close(found, one_by_one)
    assert si.log_prob(theta, map_parts(lambda t: t[:0], y), "chain", lengths=lengths).shape == (0, 2)


@pytest.mark.parametrize("name", ["arborescence", "chain", "spanning_tree"])
def test_log_prob_of_no_samples(name):
    theta = torch.zeros(2, 3, 2, 2) if name == "chain" else torch.zeros(2, 4, 4)
    assert si.log_prob(theta, si.sample(theta, name, 0), name).shape == (0, 2)


def test_log_prob_of_a_wrong_batch_is_refused():
    with pytest.raises(si.InvalidInputError, match="y must have shape"):
        si.log_prob(torch.zeros(2, 3, 3), torch.zeros(5, 3, 3, 3), "arborescence")


@pytest.mark.parametrize("name", ["arborescence", "chain", "bits", "subset"])
def test_log_partition(name):
    options = {"k": 2} if name == "subset" else {}
    theta = torch.randn(2, *{"arborescence": (4, 4), "chain": (3, 2, 2), "bits": (5,), "subset": (5,)}[name]).double()
    theta.requires_grad_()
    value = si.log_partition(theta, name, temperature=0.7, **options)
    torch.testing.assert_close(value, si.Gibbs(theta, name, temperature=0.7, **options).log_partition)
    (gradient,) = torch.autograd.grad(value.sum(), theta, create_graph=True)
    torch.testing.assert_close(0.7 * gradient, si.relax(theta, name, "marginals", temperature=0.7, **options))
    assert torch.autograd.gradgradcheck(lambda t: si.log_partition(t, name, temperature=0.7, **options), theta)


def test_log_partition_is_refused_where_nothing_can_be_summed():
    with pytest.raises(si.UnsupportedError, match="GibbsOracle"):
        si.log_partition(torch.zeros(3, 3), "assignment")
    with pytest.raises(si.InvalidInputError, match="temperature"):
        si.log_partition(torch.zeros(3, 3), "arborescence", temperature=0.0)


# ----------------------------------------------------------------------------- gradients


@pytest.mark.sampled(3)
@listed
def test_gradients_of_log_prob_and_entropy(example):
    if not has(example, si.GibbsOracle):
        pytest.skip("no sum over structures")
    theta, found = draw(example)
    oracle = example.oracle()
    pieces = [torch.from_numpy(np.stack([y[0][i] for y, _ in found])).unsqueeze(1) for i in range(len(example.shapes))]
    y = tuple(pieces) if example.is_tuple else pieces[0]
    tensors = [t.clone().requires_grad_() for t in as_tuple(theta)]

    def parts(ts):
        return tuple(ts) if example.is_tuple else ts[0]

    for query in (lambda *ts: si.log_prob(parts(ts), y, oracle), lambda *ts: si.entropy(parts(ts), oracle)):
        assert torch.autograd.gradcheck(query, tensors, fast_mode=True)
        assert torch.autograd.gradgradcheck(query, tensors, fast_mode=True)
        with torch.no_grad():
            without = query(*tensors)
        torch.testing.assert_close(query(*tensors).detach(), without)


def test_log_prob_has_the_gradient_of_the_crf_loss():
    torch.manual_seed(0)
    theta = (torch.randn(2, 6, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True))
    gold, lengths = torch.randint(3, (2, 6)), [6, 4]
    loss = si.FenchelYoungLoss("chain", "marginals", reduction="none")(theta, gold, lengths=lengths)
    log_prob = si.log_prob(theta, gold, "chain", lengths=lengths)
    torch.testing.assert_close(log_prob, -loss)
    for found, expected in zip(
        torch.autograd.grad(log_prob.sum(), theta), torch.autograd.grad(-loss.sum(), theta), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_gradients_of_samples_in_front_and_of_forbidden_parts():
    theta = torch.zeros(2, 4, 4, dtype=torch.float64)
    theta[:, 0, 1] = -math.inf
    theta.requires_grad_()
    y = si.sample(theta, "arborescence", 5)
    log_prob = si.log_prob(theta, y, "arborescence", temperature=2.0)
    (gradient,) = torch.autograd.grad(log_prob.sum(), theta, retain_graph=True)
    mean = si.relax(theta.detach(), "arborescence", "marginals", temperature=2.0)
    torch.testing.assert_close(gradient, (y.sum(0) - 5 * mean) / 2)
    impossible = torch.zeros(2, 4, 4, dtype=torch.float64)
    impossible[:, 0] = 1
    assert si.log_prob(theta, impossible.index_fill(2, torch.tensor(0), 0), "arborescence").tolist() == [-math.inf] * 2
    (gradient,) = torch.autograd.grad(si.entropy(theta, "arborescence").sum(), theta)
    assert gradient.isfinite().all()
    assert (gradient[:, 0, 1] == 0).all()


@pytest.mark.parametrize("query", ["log_prob", "entropy"])
def test_random_walks_of_other_regularizers_refuse_the_backward_pass(query):
    theta = torch.randn(3, 4, requires_grad=True)
    options = {"k": 2, "regularizer": "squared_l2"}
    if query == "log_prob":
        found = si.log_prob(theta, si.relax(theta, "subset", "map", k=2).detach(), "subset", **options)
    else:
        found = si.entropy(theta, "subset", **options)
    with pytest.raises(si.UnsupportedError, match=rf"{query} has no gradient for regularizers.*'smoothed'"):
        found.sum().backward()


def test_log_prob_and_entropy_inside_torch_func():
    theta = torch.randn(4, 4, dtype=torch.float64)
    y = si.sample(theta, "arborescence", 1)[0]
    mean = si.relax(theta, "arborescence", "marginals")
    torch.testing.assert_close(torch.func.grad(lambda t: si.log_prob(t, y, "arborescence"))(theta), y - mean)
    leaf = theta.clone().requires_grad_()
    (expected,) = torch.autograd.grad(si.entropy(leaf, "arborescence"), leaf)
    torch.testing.assert_close(torch.func.grad(lambda t: si.entropy(t, "arborescence"))(theta), expected)
