"""Bands, lengths and labels of alignments, and their batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from dtw_enumeration import CASES, DTYPES, INF, ORACLE, UNKNOWN, instances, paths, scores
from regularizers_by_alpha import FAMILY
from structinf.errors import InfeasibleError, InvalidInputError
from structinf.regularizers import Negentropy, SquaredL2, Tsallis, Unregularized
from structinf_oracles.dtw import DTW


def test_a_wide_band_is_no_restriction():
    theta = scores(3, 4, 6)
    for oracle in (DTW(band=6), ORACLE.bind(band=torch.tensor([5, 6, 100]))):
        assert oracle.valid_parts(theta) is None
        assert torch.equal(oracle.log_partition(theta), ORACLE.log_partition(theta))
        assert torch.equal(oracle.marginals(theta), ORACLE.marginals(theta))


def test_a_band_of_the_instance_takes_the_place_of_the_option():
    theta = scores(2, 4, 4)
    oracle = DTW(band=0).bind(band=torch.tensor([3, 1]))
    assert torch.equal(oracle.marginals(theta)[1], DTW(band=1).marginals(theta)[1])
    assert torch.equal(oracle.marginals(theta)[0], ORACLE.marginals(theta)[0])
    assert DTW(band=0).marginals(theta)[0].tolist() == torch.eye(4).tolist()
    row, column = torch.arange(4).unsqueeze(1), torch.arange(4)
    assert torch.equal(oracle.valid_parts(theta)[1], (row - column).abs() <= 1)


def test_a_band_that_cannot_reach_the_corner():
    theta = torch.zeros(2, 3, 6)
    with pytest.raises(InvalidInputError, match=r"3 rows and 6 columns.*2 cells.*batch index 0.*at least 3"):
        DTW(band=2).validate(theta)
    with pytest.raises(InvalidInputError, match="batch index 1; pass a band of at least 3"):
        ORACLE.bind(band=torch.tensor([3, 0])).validate(theta)
    DTW(band=2).bind(lengths=torch.tensor([[3, 5], [1, 1]])).validate(theta)
    with pytest.raises(InvalidInputError, match="at least 3"):
        DTW(band=2).enumerate((3, 6))


@pytest.mark.parametrize("band", [-1, 1.5, True, "2"])
def test_bands_that_are_no_number_of_cells(band):
    with pytest.raises(InvalidInputError, match="band"):
        DTW(band=band)


def test_bound_data_that_does_not_fit():
    theta = torch.zeros(2, 3, 4)
    for lengths, message in (([[0, 1], [1, 1]], "between 1 and 3"), ([[1, 1], [3, 5]], "between 1 and 4")):
        with pytest.raises(InvalidInputError, match=message):
            ORACLE.bind(lengths=torch.tensor(lengths)).validate(theta)
    with pytest.raises(InvalidInputError, match=r"\(\.\.\., 2\)"):
        ORACLE.bind(lengths=torch.tensor([[1], [2]])).validate(theta)
    with pytest.raises(InvalidInputError, match="integers"):
        ORACLE.bind(band=torch.tensor([1.0, 2.0])).validate(theta)
    with pytest.raises(InvalidInputError, match="at least one row"):
        ORACLE.validate(torch.zeros(2, 0, 4))


@pytest.mark.parametrize("case", CASES)
def test_padding_is_not_read(case):
    oracle, theta, _ = instances(case, 4, 5)
    mask = oracle.valid_parts(theta)
    if mask is None:
        return
    noisy = torch.where(mask, theta, 100 * torch.randn_like(theta))
    for omega in (Negentropy(), SquaredL2(), UNKNOWN):
        assert torch.equal(oracle.smoothed_value(theta, omega), oracle.smoothed_value(noisy, omega))
        mean = oracle.smoothed_mean(noisy, omega)
        assert torch.equal(mean, oracle.smoothed_mean(theta, omega))
        assert not mean[~mask].any()
    assert torch.equal(oracle.topk(theta, 3)[0], oracle.topk(noisy, 3)[0])


def window_of_dtw_python(name, n, m, band):
    """Cells of itakuraWindow and slantedBandWindow of dtw-python 1.9.0."""
    i, j = np.indices((n, m))
    if name == "itakura":
        return (j <= 2 * i) & (i <= 2 * j + 1) & (i >= n - 2 * m + 2 * j) & (j > m - 2 * n + 2 * i)
    return np.abs(j - (i * (m - 1) / (n - 1) if n > 1 else 0)) <= band


@pytest.mark.parametrize(("name", "band"), [("itakura", None), ("slanted_band", 0), ("slanted_band", 1)])
def test_windows_by_name(name, band):
    oracle = DTW(window=name, band=band)
    for n, m in itertools.product(range(1, 6), repeat=2):
        window = window_of_dtw_python(name, n, m, band)
        expected = {p for p in paths(n, m) if all(window[cell] for cell in p)}
        found = oracle.decode(oracle.enumerate((n, m)).float())
        assert {tuple(map(tuple, t[t[:, 0] >= 0].tolist())) for t in found} == expected
        theta = torch.zeros(1, 5, 5)
        bound = oracle.bind(lengths=torch.tensor([[n, m]]))
        assert bound.count(theta) == [len(expected)]
        if expected:
            assert bound.log_partition(theta).exp().item() == pytest.approx(len(expected))
            assert torch.equal(bound.valid_parts(theta)[0, :n, :m], torch.from_numpy(window))
        else:
            with pytest.raises(InfeasibleError, match="batch index 0"):
                bound.argmax(theta)
    assert DTW(window="sakoe_chiba", band=1).count(torch.zeros(1, 4, 4)) == DTW(band=1).count(torch.zeros(1, 4, 4))
    widths = DTW(window="slanted_band", band=9).bind(band=torch.tensor([1, 2]))
    for row, width in enumerate((1, 2)):
        window = torch.from_numpy(window_of_dtw_python("slanted_band", 3, 6, width))
        assert torch.equal(widths.valid_parts(torch.zeros(2, 3, 6))[row], window)


def test_a_window_of_the_instance_forbids_cells():
    theta = scores(3, 4, 5)
    window = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0)) < 0.7
    window[:, :, -1] = window[:, 0] = True
    oracle, forbidden = ORACLE.bind(window=window), theta.masked_fill(~window, -INF)
    noisy, v = torch.where(window, theta, 100.0), torch.randn_like(theta)
    assert torch.equal(oracle.valid_parts(theta), window)
    for omega in (Negentropy(), SquaredL2(), Unregularized(), UNKNOWN):
        assert torch.equal(oracle.smoothed_value(noisy, omega), ORACLE.smoothed_value(forbidden, omega))
        assert torch.equal(oracle.smoothed_mean(noisy, omega), ORACLE.smoothed_mean(forbidden, omega))
        found = oracle.smoothed_hessian_product(noisy, v, omega)
        assert torch.equal(found, ORACLE.smoothed_hessian_product(forbidden, v, omega))
        assert not found[~window].any()
    assert torch.equal(oracle.topk(noisy, 3)[0], ORACLE.topk(forbidden, 3)[0])
    assert oracle.count(noisy) == ORACLE.count(forbidden)
    assert not oracle.sample(noisy, 20)[:, ~window].any()
    rows = oracle[[2]].enumerate((4, 5))
    assert len(rows) == oracle.count(noisy)[2]
    each = oracle[[2] * len(rows)]
    assert torch.equal(each.encode(each.decode(rows), rows), rows)
    leaf = noisy.clone().requires_grad_()
    oracle.log_partition(leaf).sum().backward()
    torch.testing.assert_close(leaf.grad, oracle.marginals(noisy))


def test_windows_that_do_not_fit():
    theta = torch.zeros(2, 3, 4)
    for window in (torch.ones(2, 3, 4), torch.ones(2, 4, 3, dtype=torch.bool)):
        with pytest.raises(InvalidInputError, match=r"a bool for each cell, shape \(\.\.\., 3, 4\), got torch"):
            ORACLE.bind(window=window).validate(theta)
    with pytest.raises(InvalidInputError, match=r'window="slanted_band" needs a band'):
        DTW(window="slanted_band").validate(theta)
    with pytest.raises(InvalidInputError, match=r'window must be "sakoe_chiba", .* or None'):
        DTW(window="none")
    with pytest.raises(InfeasibleError, match="batch index 1"):
        ORACLE.bind(window=torch.tensor([True, False])[:, None, None].expand(2, 3, 4)).argmax(theta)


def test_labels_of_all_paths():
    oracle = DTW(band=2).bind(lengths=torch.tensor([[3, 4]]))
    y = oracle.enumerate((4, 5)).float()
    assert {frozenset(map(tuple, t.nonzero().tolist())) for t in y} == {frozenset(p) for p in paths(3, 4, 2)}
    labels = oracle.decode(y)
    assert labels.shape == (len(y), 8, 2)
    assert {tuple(map(tuple, t[t[:, 0] >= 0].tolist())) for t in labels} == set(paths(3, 4, 2))
    again = DTW(band=2).bind(lengths=torch.tensor([[3, 4]]).expand(len(y), 2)).encode(labels, y)
    assert torch.equal(again, y)


def test_labels_that_are_no_path():
    like, cells = torch.zeros(1, 2, 3), [[0, 0], [0, 1], [1, 2]]
    for wrong, message in (
        ([[0, 1], [0, 2], [1, 2]], "must start in cell"),
        ([[0, 0], [1, 2]], "must be one row, one column or both"),
        ([[0, 0], [0, 1], [0, 1], [1, 2]], "must be one row, one column or both"),
        ([[0, 0], [0, 1]], "must end in the last cell"),
        ([[0, 0], [-1, -1], [0, 1], [1, 2]], "follows the padding"),
    ):
        labels = torch.tensor([wrong + [[-1, -1]] * (4 - len(wrong))])
        with pytest.raises(InvalidInputError, match=f"{message}.*batch index 0"):
            ORACLE.encode(labels, like)
    labels = torch.tensor([[*cells, [-1, -1]]])
    assert ORACLE.encode(labels, like).tolist() == [[[1, 1, 0], [0, 0, 1]]]
    with pytest.raises(InvalidInputError, match="inside the band"):
        DTW(band=1).encode(torch.tensor([[[0, 0], [0, 1], [0, 2], [1, 2]]]), like)
    with pytest.raises(InvalidInputError, match=r"\(\.\.\., 4, 2\)"):
        ORACLE.encode(torch.tensor([cells]), like)
    with pytest.raises(InvalidInputError, match="at most"):
        ORACLE.decode(torch.ones(1, 3, 3))


# ----------------------------------------------------------------------------- batches


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", FAMILY)
def test_batch_independence(alpha, dtype):
    """To the last bit, whatever lies beside an instance in its vectors."""
    theta, v, omega = scores(40, 13, 9, dtype), torch.randn(40, 13, 9, dtype=dtype), FAMILY[alpha]
    lengths = torch.stack([torch.arange(40) % 13 + 1, torch.arange(40) % 9 + 1], 1)
    oracle = ORACLE.bind(lengths=lengths)
    value, mean = oracle.smoothed_value(theta, omega), oracle.smoothed_mean(theta, omega)
    product = oracle.smoothed_hessian_product(theta, v, omega)
    for b in range(0, 40, 7):
        alone = oracle[[b]]
        assert torch.equal(alone.smoothed_value(theta[[b]], omega), value[[b]])
        assert torch.equal(alone.smoothed_mean(theta[[b]], omega), mean[[b]])
        assert torch.equal(alone.smoothed_hessian_product(theta[[b]], v[[b]], omega), product[[b]])


def test_input_may_be_any_view_and_is_left_alone():
    theta = scores(3, 5, 4).transpose(1, 2)
    copy = theta.clone()
    for method in ("argmax", "log_partition", "marginals"):
        found = getattr(ORACLE, method)(theta)
        assert torch.equal(found, getattr(ORACLE, method)(copy.contiguous()))
    assert torch.equal(theta, copy)
    assert torch.equal(ORACLE.smoothed_mean(theta, UNKNOWN), ORACLE.smoothed_mean(copy.contiguous(), UNKNOWN))


def test_empty_batch():
    theta = torch.zeros(0, 3, 4)
    assert ORACLE.argmax(theta).shape == ORACLE.marginals(theta).shape == (0, 3, 4)
    assert ORACLE.sample(theta, 2).shape == (2, 0, 3, 4)
    assert ORACLE.topk(theta, 2)[1].shape == (2, 0)
    for omega in (Negentropy(), UNKNOWN):
        assert ORACLE.smoothed_value(theta, omega).shape == (0,)
        assert ORACLE.smoothed_mean(theta, omega).shape == (0, 3, 4)
        assert ORACLE.smoothed_hessian_product(theta, theta, omega).shape == (0, 3, 4)
    leaf = theta.clone().requires_grad_()
    assert ORACLE.log_partition(leaf).requires_grad


def test_infeasible():
    theta = torch.zeros(3, 3, 3)
    theta[1, :, 1] = theta[1, 1, :] = -INF
    calls = [lambda: ORACLE.argmax(theta), lambda: ORACLE.topk(theta, 2), lambda: ORACLE.sample(theta, 2)]
    for omega in (Negentropy(), SquaredL2(), Tsallis(alpha=1.25), Unregularized(), UNKNOWN):
        calls += [lambda o=omega: ORACLE.smoothed_value(theta, o), lambda o=omega: ORACLE.smoothed_mean(theta, o)]
        calls += [lambda o=omega: ORACLE.smoothed_hessian_product(theta, theta.isfinite().float(), o)]
        calls += [lambda o=omega: ORACLE.smoothed_value(theta.clone().requires_grad_(), o)]
    for call in calls:
        with pytest.raises(InfeasibleError, match="no alignment") as error:
            call()
        assert error.value.batch_index == 1


def test_too_many_to_enumerate():
    with pytest.raises(InvalidInputError, match="45046719 structures of dtw"):
        ORACLE.enumerate((12, 12))
    assert len(DTW(band=1).enumerate((10, 10))) == len(paths(10, 10, 1))


@pytest.mark.cuda
@pytest.mark.parametrize("case", ["normal", "lengths", "band"])
def test_cuda(case):
    oracle, theta, _ = instances(case, 6, 5)
    moved = oracle.bind(**{name: t.cuda() for name, t in oracle.bound.items()})
    v = torch.randn_like(theta)
    for alpha in FAMILY:
        omega = FAMILY[alpha]
        for method, args in (("smoothed_value", ()), ("smoothed_mean", ()), ("smoothed_hessian_product", (v,))):
            found = getattr(moved, method)(theta.cuda(), *(a.cuda() for a in args), omega)
            assert found.is_cuda
            torch.testing.assert_close(found.cpu(), getattr(oracle, method)(theta, *args, omega), atol=1e-9, rtol=1e-7)
    assert torch.equal(moved.argmax(theta.cuda()).cpu(), oracle.argmax(theta))
