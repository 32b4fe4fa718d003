"""Batches of chains: instances alone and none, infeasible ones, threads, memory and devices."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from chain_enumeration import (
    CHAIN,
    FORMS,
    LENGTHS,
    NEG,
    B,
    Exact,
    assert_equal_parts,
    assert_parts_close,
    bound,
    copies,
    forbid,
    potentials,
)
from structinf.errors import InfeasibleError
from structinf.parts import as_tuple, batch_size, map_parts

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_an_instance_does_not_depend_on_its_batch(form, scale):
    theta = forbid(potentials(form, scale=scale))
    chain, v = bound(), map_parts(torch.randn_like, theta)
    for b, length in enumerate(LENGTHS):
        alone = map_parts(lambda t, b=b: t[min(b, len(t) - 1)][None], theta)
        along = map_parts(lambda t, b=b: t[min(b, len(t) - 1)][None], v)
        short = alone
        if form == "edges":
            short = alone[:, : length - 1]
        elif form in ("steps", "shared steps"):
            short = alone[0][:, :length], alone[1][:, : length - 1]
        else:
            short = alone[0][:, :length], alone[1]
        one = chain[b : b + 1]
        torch.testing.assert_close(chain.log_partition(theta)[b], one.log_partition(alone)[0], atol=0, rtol=1e-12)
        torch.testing.assert_close(chain.log_partition(theta)[b], CHAIN.log_partition(short)[0], atol=1e-10, rtol=1e-12)
        for together, single in (
            (chain.argmax(theta), one.argmax(alone)),
            (chain.marginals(theta), one.marginals(alone)),
            (chain.covariance_product(theta, v), one.covariance_product(alone, along)),
            (map_parts(lambda t: t[0], chain.topk(theta, 2)[0]), map_parts(lambda t: t[0], one.topk(alone, 2)[0])),
        ):
            assert_parts_close(map_parts(lambda t, b=b: t[b][None], together), single, 1e-10)


@pytest.mark.parametrize("form", ["shared", "steps", "edges"])
@pytest.mark.parametrize("shape", [(2, 1, 3), (2, 1, 1), (2, 3, 1), (0, 3, 2), (0, 1, 2), (2, 2, 2)])
def test_smallest_sizes(form, shape):
    theta = potentials(form, shape=shape)
    b, t, s = shape
    size = b
    if b == 0 and form == "shared":
        theta = theta[0], torch.randn(1, s, s).double()
    CHAIN.validate(theta)
    assert batch_size(theta) == size
    value = CHAIN.log_partition(theta)
    assert value.shape == CHAIN.log_partition(copies(theta)).shape == (size,)
    if size:
        torch.testing.assert_close(value, Exact(theta, [t] * b).log_z)
        assert_parts_close(CHAIN.marginals(theta), Exact(theta, [t] * b).mean(), 1e-12)
    for y in (CHAIN.argmax(theta), CHAIN.marginals(theta), CHAIN.covariance_product(theta, theta)):
        assert all(z.shape == (size, *x.shape[1:]) for z, x in zip(as_tuple(y), as_tuple(theta), strict=True))
    gradient = CHAIN.log_partition_vjp(theta, torch.ones(size).double())
    assert all(z.shape == x.shape for z, x in zip(as_tuple(gradient), as_tuple(theta), strict=True))
    top, scores, valid = CHAIN.topk(theta, 2)
    assert scores.shape == valid.shape == (2, size)
    for y in (top, CHAIN.sample(theta, 2)):
        assert all(z.shape == (2, size, *x.shape[1:]) for z, x in zip(as_tuple(y), as_tuple(theta), strict=True))
    assert CHAIN.decode(CHAIN.argmax(theta)).shape == (size, t)


@pytest.mark.parametrize("form", ["shared", "steps", "edges"])
@pytest.mark.parametrize("differentiable", [False, True])
def test_no_allowed_sequence(form, differentiable):
    theta = potentials(form)
    cut = theta[-1] if form == "steps" else as_tuple(theta)[0]
    cut[2, 1] = NEG
    theta = copies(theta) if differentiable else theta
    chain = bound([4, 4, 4])
    calls = [chain.log_partition]
    if not differentiable:
        calls += [
            chain.argmax,
            chain.marginals,
            lambda t: chain.topk(t, 2),
            lambda t: chain.sample(t, 2),
            lambda t: chain.covariance_product(t, t),
            lambda t: chain.log_partition_vjp(t, torch.ones(B).double()),
        ]
    for call in calls:
        with pytest.raises(InfeasibleError, match="no tag sequence of finite score exists for batch index 2") as caught:
            call(theta)
        assert caught.value.batch_index == 2
    # The instance is fine if it ends before.
    short = bound([4, 4, 1])
    short.log_partition(theta)
    short.argmax(map_parts(torch.Tensor.detach, theta))


@pytest.mark.parametrize("form", ["shared", "steps", "edges"])
def test_input_is_left_alone(form):
    theta = potentials(form, torch.float32)
    strided = map_parts(lambda t: t.mT.contiguous().mT, theta)
    assert not any(t.is_contiguous() for t in as_tuple(strided))
    before, versions = map_parts(torch.clone, theta), [t._version for t in as_tuple(strided)]
    chain = bound()
    for call in (
        chain.argmax,
        chain.marginals,
        chain.log_partition,
        lambda t: chain.log_partition_vjp(t, torch.ones(B)),
        lambda t: chain.covariance_product(t, t),
        lambda t: chain.topk(t, 2)[0],
        lambda t: chain.sample(t, 2, torch.Generator().manual_seed(0)),
    ):
        assert_equal_parts(call(strided), call(theta))
    assert_equal_parts(strided, before)
    assert [t._version for t in as_tuple(strided)] == versions
    assert not any(t.requires_grad for t in as_tuple(strided))
    # A leaf that requires grad, seen through a view.
    leaf = torch.randn(4, 2, requires_grad=True)
    CHAIN.log_partition((leaf[None], torch.zeros(1, 2, 2))).sum().backward()
    assert leaf._version == 0
    torch.testing.assert_close(leaf.grad.sum(1), torch.ones(4))


@pytest.mark.parametrize("form", FORMS)
def test_threads_change_nothing(form):
    theta = potentials(form, torch.float32, shape=(16, 30, 12))
    v, weight = map_parts(torch.randn_like, theta), torch.randn(16)
    wide = map_parts(lambda t: t * 50, theta)

    def results():
        return [
            *as_tuple(CHAIN.argmax(theta)),
            *as_tuple(CHAIN.marginals(theta)),
            *as_tuple(CHAIN.covariance_product(theta, v)),
            *as_tuple(CHAIN.log_partition_vjp(theta, weight)),
            *as_tuple(CHAIN.log_partition_vjp(wide, weight)),
        ]

    threads = torch.get_num_threads()
    found = []
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            found.append(results())
    finally:
        torch.set_num_threads(threads)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.full
def test_memory_grows_as_the_inputs_do():
    """T = 20,000; and S = 1,000 with a shared transition, where a (B, T, S, S) array would take 960 MB."""
    script = """
import resource, torch
from structinf_oracles.chain import Chain
chain = Chain()
def run(theta):
    weight = torch.ones(len(theta[0]))
    with torch.no_grad():
        chain.log_partition(theta), chain.log_partition_vjp(theta, weight), chain.argmax(theta), chain.sample(theta, 1)
run((torch.randn(2, 5, 4), torch.randn(1, 4, 4)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run((torch.randn(4, 60, 1000), torch.randn(1, 1000, 1000)))
run((torch.randn(4, 60, 1000), 30 * torch.randn(1, 1000, 1000)))
run((torch.randn(4, 20_000, 3), torch.randn(1, 3, 3)))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    if sys.platform != "linux":
        pytest.skip("ru_maxrss is in kB on Linux alone")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 250


@pytest.mark.cuda
@pytest.mark.parametrize("form", FORMS)
def test_cuda(form):
    theta = forbid(potentials(form))
    device = map_parts(lambda t: t.cuda(), theta)
    chain, on_device = bound(), CHAIN.bind(lengths=torch.tensor(LENGTHS).cuda())
    weight, v = torch.randn(B).double(), map_parts(torch.randn_like, theta)
    v_device = map_parts(lambda t: t.cuda(), v)
    for found, wanted in (
        (on_device.argmax(device), chain.argmax(theta)),
        (on_device.log_partition(device), chain.log_partition(theta)),
        (on_device.marginals(device), chain.marginals(theta)),
        (on_device.log_partition_vjp(device, weight.cuda()), chain.log_partition_vjp(theta, weight)),
        (on_device.covariance_product(device, v_device), chain.covariance_product(theta, v)),
        (on_device.topk(device, 3)[0], chain.topk(theta, 3)[0]),
        (on_device.encode(on_device.decode(on_device.argmax(device)), device), chain.argmax(theta)),
    ):
        assert all(t.is_cuda for t in as_tuple(found))
        assert_parts_close(map_parts(lambda t: t.cpu(), found), wanted, 1e-10)
    assert all(t.is_cuda for t in as_tuple(on_device.sample(device, 2, torch.Generator("cuda").manual_seed(0))))
