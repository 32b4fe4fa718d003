"""Barycenters: what they must be in simple cases, that they are minima, their form, and bad input."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch

from structinf.alignments import soft_dtw_barycenter, soft_dtw_between, soft_dtw_divergence
from structinf.errors import ConvergenceError, ConvergenceWarning, InvalidInputError

pytestmark = pytest.mark.slow

DOUBLE = torch.float64
FUNCTIONS = {False: soft_dtw_between, True: soft_dtw_divergence}


def waves(*lengths, features=2, dtype=DOUBLE):
    """Noisy waves of the same shape, out of step and of different lengths."""
    found = []
    for n in lengths:
        time = torch.linspace(0, 1, n, dtype=dtype)[:, None] + 0.1 * torch.rand(1, features, dtype=dtype)
        found.append((6 * time).sin() + 0.1 * torch.randn(n, features, dtype=dtype))
    return found


def mean_cost(z, series, weights, function, **options):
    values = torch.stack([function(z, x, **options) for x in series])
    return (values * torch.as_tensor(weights)).sum() / torch.as_tensor(weights).sum()


# ----------------------------------------------------------------------------- what they must be


@pytest.mark.parametrize(("temperature", "divergence"), [(0, False), (1e-3, False), (0.1, True), (1, True)])
def test_of_equal_series_it_is_the_series(temperature, divergence):
    (x,) = waves(12)
    found = soft_dtw_barycenter([x, x, x], temperature, divergence=divergence)
    torch.testing.assert_close(found.series, x, atol=1e-6 if divergence or temperature == 0 else 1e-2, rtol=0)
    assert found.converged


def test_soft_dtw_alone_is_biased():
    (x,) = waves(12)
    found = soft_dtw_barycenter([x], 1)
    assert found.series.std() < 0.95 * x.std()
    assert found.losses[-1] < soft_dtw_between(x, x, 1)


def test_short_hard_barycenter():
    short, long = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([3.0, 0.0, 0.0, 3.0, 0.0])
    for length, expected in ((5, [2.0, 0, 0, 2, 0]), (4, [2.0, 0, 2, 0])):
        found = soft_dtw_barycenter([short, long], 0.01, length=length)
        torch.testing.assert_close(found.series, torch.tensor(expected), atol=1e-3, rtol=0)
    heavy = soft_dtw_barycenter([short, long], 0.01, weights=[3, 1])
    torch.testing.assert_close(heavy.series, torch.tensor([1.5, 0, 0, 1.5, 0]), atol=1e-3, rtol=0)


@pytest.mark.parametrize("divergence", [False, True])
@pytest.mark.parametrize("regularizer", ["negentropy", "squared_l2"])
@pytest.mark.parametrize("metric", ["squared_euclidean", "cosine"])
def test_a_minimum(metric, regularizer, divergence):
    series, weights = waves(9, 14, 11), [1, 2, 0.5]
    options = {"temperature": 0.5, "metric": metric, "regularizer": regularizer}
    found = soft_dtw_barycenter(series, weights=weights, divergence=divergence, tolerance=1e-12, **options)
    assert found.series.shape == (14, 2)
    assert found.losses.diff().max() < 0
    z = found.series.requires_grad_()
    loss = mean_cost(z, series, weights, FUNCTIONS[divergence], **options)
    assert loss.item() == pytest.approx(found.losses[-1].item(), abs=1e-9)
    (gradient,) = torch.autograd.grad(loss, z)
    assert gradient.abs().max() < 1e-3
    with torch.no_grad():
        for _ in range(5):
            nearby = z + 0.05 * torch.randn_like(z)
            assert mean_cost(nearby, series, weights, FUNCTIONS[divergence], **options) > loss


def test_weights():
    series = waves(10, 10, 10)
    one = soft_dtw_barycenter(series, 0.1, weights=[0, 1, 0], divergence=True, init=series[1])
    torch.testing.assert_close(one.series, series[1])
    a = soft_dtw_barycenter(series, weights=torch.tensor([1, 2, 3]))
    b = soft_dtw_barycenter([*series, series[2]], weights=[2, 4, 3, 3])
    torch.testing.assert_close(a.series, b.series, atol=1e-5, rtol=0)
    assert a.losses[-1].item() == pytest.approx(b.losses[-1].item())


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_scale(scale):
    series = waves(9, 12)
    found = soft_dtw_barycenter(series, 0.5)
    scaled = soft_dtw_barycenter([scale * x for x in series], 0.5 * scale**2)
    torch.testing.assert_close(scaled.series / scale, found.series, atol=1e-7, rtol=0)
    assert len(scaled.losses) == len(found.losses)


def test_bands():
    series = waves(9, 12)
    free, tight = soft_dtw_barycenter(series, 0.1), soft_dtw_barycenter(series, 0.1, band=3)
    assert tight.losses[-1] > free.losses[-1]
    with pytest.raises(InvalidInputError, match="at least 3"):
        soft_dtw_barycenter(series, 0.1, band=2)


# ----------------------------------------------------------------------------- forms


@pytest.mark.parametrize("divergence", [False, True])
def test_a_padded_tensor_is_a_list(divergence):
    series = waves(6, 9, 7)
    padded = torch.full((3, 9, 2), torch.nan, dtype=DOUBLE)
    for row, x in zip(padded, series, strict=True):
        row[: len(x)] = x
    lengths = torch.tensor([6, 9, 7])
    a = soft_dtw_barycenter(padded, lengths=lengths, divergence=divergence)
    b = soft_dtw_barycenter(series, divergence=divergence)
    assert torch.equal(a.series, b.series)
    assert torch.equal(a.losses, b.losses)


def test_dtype_form_and_length():
    for dtype in (torch.float32, torch.float16):
        series = [x[:, 0] for x in waves(6, 9, features=1, dtype=dtype)]
        found = soft_dtw_barycenter(series, length=5)
        assert found.series.shape == (5,)
        assert found.series.dtype == dtype
        init = soft_dtw_barycenter(series, init=torch.zeros(4))
        assert init.series.shape == (4,)
    one = soft_dtw_barycenter(waves(1, 1, features=1), divergence=True)
    assert one.series.shape == (1, 1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_gradient_is_needed_and_none_flows(mode):
    series = [x.requires_grad_() for x in waves(6, 8)]
    expected = soft_dtw_barycenter(series)
    assert not expected.series.requires_grad
    assert all(x.grad is None for x in series)
    with mode():
        same = [x + 0 for x in series]
        found = soft_dtw_barycenter(same, divergence=False, init=same[1].mean(0).expand(8, 2) * 0 + expected.series)
        assert soft_dtw_barycenter(same).series.isfinite().all()
    torch.testing.assert_close(found.series, expected.series, atol=1e-3, rtol=0)


# ----------------------------------------------------------------------------- failures


def test_too_few_iterations():
    series = waves(9, 12)
    search = functools.partial(soft_dtw_barycenter, series, 0.1, max_iter=2)
    with pytest.warns(ConvergenceWarning, match="max_iter was reached after 2 iterations"):
        found = search()
    assert not found.converged
    assert len(found.losses) == 3
    with pytest.raises(ConvergenceError, match="max_iter"):
        search(on_failure="raise")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search(on_failure="ignore")


@pytest.mark.parametrize(
    ("series", "options", "said"),
    [
        ([], {}, "series must hold at least one series"),
        (torch.zeros(3, 4), {}, r"\(N, n, d\) if it is one tensor, got \(3, 4\)"),
        (
            [torch.zeros(3), torch.zeros(4, 1)],
            {},
            r"series\[1\] must match series\[0\] \(shape \(3,\).*got shape \(4, 1\)",
        ),
        ([torch.zeros(3), torch.zeros(4).double()], {}, "float64"),
        ([torch.zeros(3), torch.zeros(0)], {}, r"series\[1\].*not empty"),
        ([torch.tensor([0.0, torch.nan])], {}, r"series\[0\] must be finite"),
        (torch.zeros(2, 4, 1), {"lengths": [4, 5]}, "integers from 1 to 4"),
        (torch.zeros(2, 4, 1), {"lengths": [4]}, "lengths must be 2 integers"),
        ([torch.zeros(3)], {"lengths": [3]}, "must be omitted for a list of series"),
        ([torch.zeros(3)] * 2, {"weights": [1]}, "weights must be 2 finite"),
        ([torch.zeros(3)] * 2, {"weights": [0, 0]}, "not all 0"),
        ([torch.zeros(3)] * 2, {"weights": [1, -1]}, "at least 0"),
        ([torch.zeros(3)], {"length": 0}, "length must be an integer of at least 1"),
        ([torch.zeros(3)], {"length": 2.5}, "length must be an integer of at least 1, got 2.5"),
        ([torch.zeros(3)], {"length": -1, "init": torch.zeros(4)}, "length must be an integer of at least 1"),
        ([torch.zeros(3)], {"length": 3, "init": torch.zeros(4)}, "length must equal the length of init, 4, got 3"),
        ([torch.zeros(3)], {"init": "mean"}, "init must be a tensor or a list of numbers, got 'mean'"),
        ([torch.zeros(3)], {"init": 1.0}, r"init must be a finite series of 1 features, got shape \(\)"),
        ([torch.zeros(3)] * 2, {"weights": "equal"}, "weights must be a tensor or a list of numbers"),
        (torch.zeros(2, 4, 1), {"lengths": [4.0, 2.5]}, r"2 integers from 1 to 4, got \[4.0, 2.5\]"),
        (torch.zeros(2, 4, 1), {"lengths": [True, True]}, "2 integers from 1 to 4"),
        (torch.zeros(2, 4, 1), {"lengths": [[4], [2]]}, "2 integers from 1 to 4"),
        (torch.zeros(2, 4, 1), {"lengths": "all"}, "lengths must be a tensor or a list of numbers"),
        ([torch.zeros(3)], {"max_iter": 0}, "max_iter must be an integer of at least 1, got 0"),
        ([torch.zeros(3)], {"max_iter": -1}, "max_iter must be an integer of at least 1, got -1"),
        ([torch.zeros(3)], {"max_iter": 1.5}, "max_iter must be an integer of at least 1, got 1.5"),
        ([torch.zeros(3)], {"tolerance": -1e-3}, "tolerance must be a number of at least 0, got -0.001"),
        ([torch.zeros(3)], {"tolerance": torch.nan}, "tolerance must be a number of at least 0, got nan"),
        ([torch.zeros(3)], {"init": torch.zeros(4, 2)}, "init must be a finite series of 1 feature"),
        ([torch.zeros(3)], {"init": torch.tensor([torch.inf])}, "init must be a finite series"),
        ([torch.zeros(3)], {"on_failure": "stop"}, "on_failure"),
        ([torch.zeros(3)], {"temperature": -1}, "temperature"),
        ([torch.zeros(3)], {"metric": "l7"}, "metric must be"),
    ],
)
def test_bad_input(series, options, said):
    with pytest.raises(InvalidInputError, match=said):
        soft_dtw_barycenter(series, **options)


def test_the_start_in_any_form():
    flat = [x[:, 0] for x in waves(4, 5, features=1)]
    expected = soft_dtw_barycenter(flat, 0.5, init=flat[0]).series
    for form in (flat[0].tolist(), flat[0].numpy(), flat[0][:, None], flat[0].clone().requires_grad_()):
        assert torch.equal(soft_dtw_barycenter(flat, 0.5, init=form).series, expected)


def test_integers():
    with pytest.raises(TypeError, match=r"series\[1\] must be a tensor in floating point.*int64"):
        soft_dtw_barycenter([torch.zeros(3), torch.zeros(3, dtype=torch.int64)])


@pytest.mark.cuda
def test_cuda():
    series = waves(6, 8)
    expected = soft_dtw_barycenter(series)
    found = soft_dtw_barycenter([x.cuda() for x in series])
    assert found.series.is_cuda
    torch.testing.assert_close(found.series.cpu(), expected.series, atol=1e-2, rtol=0)
