"""Noise by Triton kernels, against the compiled loops of the CPU with the same generator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import structinf as si
from structinf import noise
from structinf.kernels.noise.counter_rng import words
from structinf.kernels.noise.triton_noise import fill, fill_sum_of_gamma
from structinf.noise import Exponential, Gumbel, Logistic, NoNoise, Normal, SumOfGamma

CPU = torch.device("cpu")
NOISES = [Gumbel(), Normal(), Logistic(), Exponential(), SumOfGamma(), SumOfGamma(k=5, iterations=3), NoNoise()]


def sample(kind: noise.Noise, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return kind.sample(shape, dtype=dtype, device=CPU, generator=torch.Generator().manual_seed(5))


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", NOISES, ids=repr)
def test_numbers_are_those_of_the_cpu(kind: noise.Noise, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (3, 487)  # the last chunk is not full
    found = sample(kind, shape, dtype)
    with monkeypatch.context() as patch:
        patch.setattr(noise, "uses_triton", lambda t: False)
        expected = sample(kind, shape, dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_words_give_the_uniform_numbers() -> None:
    """Logistic draws are log V − log(1 − V), with V from the words of the CPU's generator."""
    word = np.empty(128, np.uint64)
    words(np.uint64(2**63 - 1), 1, 0, word)
    out = torch.empty(256, dtype=torch.float64)
    fill("logistic", out, 2**63 - 1)
    v = torch.from_numpy((word >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    torch.testing.assert_close(out[128:], v.log() - (-v).log1p(), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keys_in_memory_and_of_few_bits(dtype: torch.dtype) -> None:
    for key in (0, 1, 2**40 + 3):
        one, other = torch.empty(100, dtype=dtype), torch.empty(100, dtype=dtype)
        fill("normal", one, key)
        fill("normal", other, torch.tensor(key))
        assert torch.equal(one, other)
        fill_sum_of_gamma(2, 4, one, key)
        fill_sum_of_gamma(2, 4, other, torch.tensor(key))
        assert torch.equal(one, other)


def test_prefixes_and_empty_samples() -> None:
    for kind in NOISES:
        assert sample(kind, (0, 3), torch.float32).shape == (0, 3)
        assert torch.equal(sample(kind, (70,), torch.float32), sample(kind, (700,), torch.float32)[:70])


def test_default_generator() -> None:
    torch.manual_seed(3)
    one = Normal().sample((5,), dtype=torch.float32, device=CPU)
    assert not torch.equal(one, Normal().sample((5,), dtype=torch.float32, device=CPU))
    torch.manual_seed(3)
    assert torch.equal(one, Normal().sample((5,), dtype=torch.float32, device=CPU))


@pytest.mark.parametrize("relaxation", ["perturbed", "stochastic"])
def test_relaxations(relaxation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theta = torch.randn(2, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def mean() -> torch.Tensor:
        generator = torch.Generator().manual_seed(2)
        return si.relax(theta, "categorical", relaxation, generator=generator)

    found = mean()
    monkeypatch.setattr(noise, "uses_triton", lambda t: False)
    torch.testing.assert_close(found, mean())
