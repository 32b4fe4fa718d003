"""Chains smoothed by any regularizer: the dense loops against the hypergraph."""

from __future__ import annotations

import math

import pytest
import torch

import structinf
from chain_enumeration import CHAIN, DTYPES, FORMS, NEG, copies, forbid, potentials, tolerance
from chain_enumeration import assert_parts_close as close
from regularizers_by_alpha import FAMILY, TwiceNegentropy
from structinf.dp import HypergraphProgram
from structinf.errors import InfeasibleError
from structinf.parts import (
    as_tuple,
    hessian_product_by_autograd,
    map_parts,
    pack_like,
    scale_per_instance,
    sum_to_batch_of,
)
from structinf.regularizers import Tsallis
from structinf.relaxations.smoothed import Smoothed
from structinf_oracles.chain import Chain
from structinf_oracles.common.chain_potentials import original_form
from structinf_oracles.kernels.chain import torch_backend

pytestmark = pytest.mark.slow

alphas = pytest.mark.parametrize("alpha", FAMILY)
forms = pytest.mark.parametrize("form", FORMS)


def double(theta):
    return map_parts(lambda t: t.double(), theta)


def by_graph(theta, regularizer, chain=CHAIN):
    """The mean that the hypergraph's passes give; other methods of theirs would ask the chain's own for it."""
    return HypergraphProgram.smoothed_value_and_mean(chain, theta, regularizer)[1]


# ----------------------------------------------------------------------------- against the hypergraph


@pytest.mark.matrix
@pytest.mark.matrix
@alphas
@forms
@pytest.mark.parametrize("shape", [(3, 4, 3), (3, 5, 20), (2, 3, 16)], ids=str)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("cut", [False, True])
def test_dense_loops_equal_the_hypergraph(alpha, form, shape, scale, cut):
    theta = potentials(form, scale=scale, shape=shape)
    theta = forbid(theta, unreachable=True) if cut else theta
    regularizer, generic = FAMILY[alpha], HypergraphProgram
    chain = CHAIN.bind(lengths=torch.tensor([shape[1], 1, 2][: shape[0]]))
    v, weight = map_parts(torch.cos, potentials(form, shape=shape)), torch.linspace(-1, 2, shape[0]).double()
    rounding = 100 * tolerance(theta)

    value = chain.smoothed_value(theta, regularizer)
    close(value, generic.smoothed_value(chain, theta, regularizer), rounding)
    close(chain.smoothed_value(copies(theta), regularizer).detach(), value, rounding)
    mean = by_graph(theta, regularizer, chain)
    close(chain.smoothed_mean(theta, regularizer), mean, rounding)
    product = generic.smoothed_hessian_product(chain, theta, v, regularizer)
    close(chain.smoothed_hessian_product(theta, v, regularizer), product, 10 * rounding)
    vjp = sum_to_batch_of(scale_per_instance(mean, weight), theta)
    close(chain.smoothed_vjp(theta, weight, regularizer), vjp, rounding)

    single, loss = map_parts(lambda t: t.float(), theta), tolerance(map_parts(lambda t: t.float(), theta))
    exact = double(single)
    found = chain.smoothed_value(single, regularizer)
    assert found.dtype == torch.float32
    close(found, generic.smoothed_value(chain, exact, regularizer), loss, rtol=1e-6)
    if alpha < math.inf:  # the nearest of many sequences may be another one
        means = chain.smoothed_mean(single, regularizer)
        assert all(m.dtype == torch.float32 for m in as_tuple(means))
        close(means, by_graph(exact, regularizer, chain), 2 * loss)


@alphas
@forms
def test_torch_recursions_equal_the_loops(alpha, form):
    theta, regularizer = forbid(potentials(form), unreachable=True), FAMILY[alpha]
    chain = CHAIN.bind(lengths=torch.tensor([4, 1, 3]))
    inputs = chain._inputs(theta)

    def smax(x, dim):
        return regularizer.value(x.movedim(dim, -1))

    def choices(x, _):
        return regularizer.gradient(x.movedim(1, -1)).movedim(-1, 1)

    value, nodes, edges = torch_backend.value_and_mean(*inputs, smax, choices)
    close(value, chain.smoothed_value(theta, regularizer), 1e-12)
    close(original_form(nodes, edges, theta), chain.smoothed_mean(theta, regularizer), 1e-12)


@forms
def test_a_regularizer_of_ones_own(form):
    theta, v = forbid(potentials(form), unreachable=True), potentials(form)
    chain, generic = CHAIN.bind(lengths=torch.tensor([4, 1, 3])), HypergraphProgram
    close(
        chain.smoothed_value(theta, TwiceNegentropy()), generic.smoothed_value(chain, theta, TwiceNegentropy()), 1e-12
    )
    close(chain.smoothed_mean(theta, TwiceNegentropy()), by_graph(theta, TwiceNegentropy(), chain), 1e-12)
    product = generic.smoothed_hessian_product(chain, theta, v, TwiceNegentropy())
    close(chain.smoothed_hessian_product(theta, v, TwiceNegentropy()), product, 1e-12)


@pytest.mark.parametrize("alpha", [1.001, 1.01, 1.1, 1.9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_alpha(alpha, dtype):
    theta, regularizer = potentials("shared", dtype, shape=(3, 6, 5)), Tsallis(alpha=alpha)
    exact, loss = double(theta), 10 * tolerance(theta) / (alpha - 1 if dtype == torch.float64 else 1)
    close(CHAIN.smoothed_value(theta, regularizer), HypergraphProgram.smoothed_value(CHAIN, exact, regularizer), loss)
    close(CHAIN.smoothed_mean(theta, regularizer), by_graph(exact, regularizer), loss)


# ----------------------------------------------------------------------------- ties, lengths, sizes


@alphas
@forms
def test_ties(alpha, form):
    theta, regularizer = map_parts(torch.round, potentials(form, scale=0.7)), FAMILY[alpha]
    close(CHAIN.smoothed_mean(theta, regularizer), by_graph(theta, regularizer), 1e-12)
    level = map_parts(torch.zeros_like, theta)
    mean = CHAIN.smoothed_mean(level, regularizer)
    if alpha < math.inf:
        expected = (1 / 3, 3 / 9) if form in ("shared", "own", "shared unary") else (1 / 3, 1 / 9)
        for m, e in zip(as_tuple(mean), expected if isinstance(theta, tuple) else expected[1:], strict=True):
            close(m, torch.full_like(m, e), 1e-12)


@alphas
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_chains(alpha, dtype):
    """In float32 as in float64, and in one direction as in the other."""
    unary, transition = potentials("shared", dtype, shape=(1, 5000, 3))
    regularizer = FAMILY[alpha]
    value = CHAIN.smoothed_value((unary, transition), regularizer)
    close(value, CHAIN.smoothed_value(double((unary, transition)), regularizer), 0, rtol=1e-6)
    nodes, edges = CHAIN.smoothed_mean((unary, transition), regularizer)
    close(nodes.sum(2), torch.ones(1, 5000), 1e-4)
    close(edges.sum(), torch.tensor(4999.0), 0, rtol=1e-5)
    if alpha < math.inf:
        exact = CHAIN.smoothed_mean(double((unary, transition)), regularizer)
        close(nodes, exact[0], 1e-4)
        v = potentials("shared", dtype, shape=(1, 5000, 3))
        product = CHAIN.smoothed_hessian_product((unary, transition), v, regularizer)
        exact = CHAIN.smoothed_hessian_product(double((unary, transition)), double(v), regularizer)
        close(product[0], exact[0], 2e-3)
    if alpha in (1, math.inf):
        close(value, CHAIN.smoothed_value((unary.flip(1), transition.mT), regularizer), 0, rtol=1e-6)


@alphas
@pytest.mark.parametrize("form", ["shared", "steps", "edges"])
@pytest.mark.parametrize("shape", [(2, 1, 3), (2, 1, 1), (2, 3, 1), (0, 3, 2), (0, 1, 2), (1, 2, 17)], ids=str)
def test_smallest_sizes(alpha, form, shape):
    b, _, s = shape
    theta, regularizer = potentials(form, shape=shape), FAMILY[alpha]
    if b == 0 and form == "shared":
        theta = theta[0], torch.randn(1, s, s).double()
    value = CHAIN.smoothed_value(theta, regularizer)
    assert value.shape == CHAIN.smoothed_value(copies(theta), regularizer).shape == (b,)
    mean, product = CHAIN.smoothed_mean(theta, regularizer), CHAIN.smoothed_hessian_product(theta, theta, regularizer)
    for y in (mean, product):
        assert all(z.shape == (b, *x.shape[1:]) for z, x in zip(as_tuple(y), as_tuple(theta), strict=True))
    gradient = CHAIN.smoothed_vjp(theta, torch.ones(b).double(), regularizer)
    assert all(z.shape == x.shape for z, x in zip(as_tuple(gradient), as_tuple(theta), strict=True))
    if b:
        close(value, HypergraphProgram.smoothed_value(CHAIN, theta, regularizer), 1e-12)
        close(mean, by_graph(theta, regularizer), 1e-12)
    if s == 1:  # one sequence: nothing to choose
        close(value, CHAIN.score(theta, CHAIN.argmax(theta)), 1e-12)
        assert not any(bool(z.any()) for z in as_tuple(product))


@alphas
@forms
def test_an_instance_does_not_depend_on_its_batch(alpha, form):
    theta, v, regularizer = (
        forbid(potentials(form, shape=(3, 4, 18)), unreachable=True),
        potentials(form, shape=(3, 4, 18)),
        None,
    )
    regularizer = FAMILY[alpha]
    chain = CHAIN.bind(lengths=torch.tensor([4, 1, 3]))
    value, mean = chain.smoothed_value(theta, regularizer), chain.smoothed_mean(theta, regularizer)
    product = chain.smoothed_hessian_product(theta, v, regularizer)
    for b in range(3):
        alone, along = (map_parts(lambda t, b=b: t[min(b, len(t) - 1)][None], x) for x in (theta, v))
        one = chain[b : b + 1]
        for together, single in (
            (value, one.smoothed_value(alone, regularizer)),
            (mean, one.smoothed_mean(alone, regularizer)),
            (product, one.smoothed_hessian_product(alone, along, regularizer)),
        ):
            close(map_parts(lambda t, b=b: t[b][None], together), single, 1e-12)


@alphas
@forms
def test_padding_is_never_used(alpha, form):
    theta, regularizer = potentials(form, torch.float32, shape=(3, 4, 18)), FAMILY[alpha]
    chain = CHAIN.bind(lengths=torch.tensor([2, 1, 3]))
    masks = chain.valid_parts(theta)
    used = map_parts(lambda m, t: torch.where(m, t, 0.0), masks, theta)
    poisoned = map_parts(lambda m, t: torch.where(m, t, math.nan), masks, theta)
    for call in (
        lambda t: chain.smoothed_value(t, regularizer),
        lambda t: chain.smoothed_mean(t, regularizer),
        lambda t: chain.smoothed_vjp(t, torch.ones(3), regularizer),
        lambda t: chain.smoothed_hessian_product(t, used, regularizer),
        lambda t: chain.smoothed_hessian_product(used, t, regularizer),
        lambda t: chain.smoothed_sample(t, 2, regularizer, torch.Generator().manual_seed(0)),
    ):
        for a, b in zip(as_tuple(call(poisoned)), as_tuple(call(used)), strict=True):
            torch.testing.assert_close(a, b, atol=0, rtol=0)


@alphas
@forms
def test_input_is_left_alone_and_threads_change_nothing(alpha, form):
    theta, regularizer = potentials(form, torch.float32, shape=(16, 30, 18)), FAMILY[alpha]
    strided = map_parts(lambda t: t.mT.contiguous().mT, theta)
    before, versions = map_parts(torch.clone, theta), [t._version for t in as_tuple(strided)]
    v, weight = map_parts(torch.cos, theta), torch.linspace(-1, 2, 16)

    def results(x):
        return [
            CHAIN.smoothed_value(x, regularizer),
            *as_tuple(CHAIN.smoothed_mean(x, regularizer)),
            *as_tuple(CHAIN.smoothed_vjp(x, weight, regularizer)),
            *as_tuple(CHAIN.smoothed_hessian_product(x, v, regularizer)),
        ]

    threads, found = torch.get_num_threads(), [results(strided)]
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            found.append(results(theta))
    finally:
        torch.set_num_threads(threads)
    for a, *others in zip(*found, strict=True):
        for b in others:
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    assert [t._version for t in as_tuple(strided)] == versions
    close(strided, before, 0)


# ----------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("alpha", [1, 1.5, 2])
@forms
def test_every_derivative(alpha, form):
    theta, regularizer = potentials(form, shape=(2, 3, 3)), FAMILY[alpha]
    chain, leaves = CHAIN.bind(lengths=torch.tensor([3, 2])), as_tuple(copies(theta))

    def value(*tensors):
        return chain.smoothed_value(pack_like(tensors, theta), regularizer)

    assert torch.autograd.gradcheck(value, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(value, leaves, fast_mode=True)

    relaxation = Smoothed(regularizer=regularizer, temperature=0.7)
    lengths, batched = torch.tensor([3, 2]), pack_like(leaves, theta)

    def mean(*tensors):
        return structinf.relax(pack_like(tensors, batched), CHAIN, relaxation, lengths=lengths)

    assert torch.autograd.gradcheck(mean, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(mean, leaves, fast_mode=True)


@alphas
@forms
def test_hessian_products_are_those_of_the_recorded_value(alpha, form):
    theta, v, regularizer = forbid(potentials(form), unreachable=True), potentials(form), FAMILY[alpha]
    chain = CHAIN.bind(lengths=torch.tensor([4, 1, 3]))
    product = hessian_product_by_autograd(lambda t: chain.smoothed_value(t, regularizer), theta, v)
    close(chain.smoothed_hessian_product(theta, v, regularizer), product, 1e-11)


# ----------------------------------------------------------------------------- infeasible, large


@pytest.mark.parametrize("alpha", [1, 1.25, 2, math.inf])
@pytest.mark.parametrize("form", ["shared", "steps", "edges"])
def test_no_allowed_sequence(alpha, form):
    theta, regularizer = potentials(form), FAMILY[alpha]
    cut = theta[-1] if form == "steps" else as_tuple(theta)[0]
    cut[2, 1] = NEG
    for call in (
        lambda t: CHAIN.smoothed_value(t, regularizer),
        lambda t: CHAIN.smoothed_value(copies(t), regularizer),
        lambda t: CHAIN.smoothed_mean(t, regularizer),
        lambda t: CHAIN.smoothed_vjp(t, torch.ones(3).double(), regularizer),
        lambda t: CHAIN.smoothed_hessian_product(t, t, regularizer),
        lambda t: CHAIN.smoothed_sample(t, 2, regularizer),
    ):
        with pytest.raises(InfeasibleError, match="no tag sequence of finite score exists for batch index 2"):
            call(theta)
    short = CHAIN.bind(lengths=torch.tensor([4, 4, 1]))
    assert bool(short.smoothed_value(theta, regularizer).isfinite().all())


@alphas
def test_dense_loops_build_no_graph(alpha, monkeypatch):
    monkeypatch.setattr(Chain, "build", lambda self, event_shape: pytest.fail("a graph was built"))
    regularizer = FAMILY[alpha]
    for shape in ((2, 20_000, 2), (2, 3, 1000)):
        theta = potentials("shared", torch.float32, shape=shape)
        CHAIN.smoothed_value(theta, regularizer)
        CHAIN.smoothed_vjp(theta, torch.ones(2), regularizer)
        CHAIN.smoothed_hessian_product(theta, theta, regularizer)
        CHAIN.smoothed_sample(theta, 1, regularizer)


@pytest.mark.cuda
@alphas
@forms
def test_cuda(alpha, form):
    theta, v, regularizer = forbid(potentials(form), unreachable=True), potentials(form), FAMILY[alpha]
    device, v_device = (map_parts(lambda t: t.cuda(), x) for x in (theta, v))
    chain = CHAIN.bind(lengths=torch.tensor([4, 1, 3]))
    on_device = CHAIN.bind(lengths=torch.tensor([4, 1, 3]).cuda())
    for found, wanted in (
        (on_device.smoothed_value(device, regularizer), chain.smoothed_value(theta, regularizer)),
        (on_device.smoothed_mean(device, regularizer), chain.smoothed_mean(theta, regularizer)),
        (
            on_device.smoothed_hessian_product(device, v_device, regularizer),
            chain.smoothed_hessian_product(theta, v, regularizer),
        ),
    ):
        assert all(t.is_cuda for t in as_tuple(found))
        close(map_parts(lambda t: t.cpu(), found), wanted, 1e-10)
