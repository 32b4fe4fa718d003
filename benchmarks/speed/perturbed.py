"""Structures under noise, forward and backward, compared with the bare oracle and with research codes.

Results are random, so the check compares only a property shared by all results: the number of parts of a structure.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import structinf as si
from structinf.noise import SumOfGamma, get_noise
from structinf.parts import as_tuple, map_parts
from structinf.solvers.perturbation import perturb

from .case import STRUCTINF, Case, Contender, Target

__all__ = ["CASES"]

BARE = "the oracle alone, on noisy potentials"
IMLE, PERTURBATIONS = "torch-imle", "perturbations"
LAMBDA = 10.0
Run = Callable[[], tuple[Tensor, ...]]


def _potentials(*shapes: tuple[int, ...]) -> si.Parts:
    generator = torch.Generator().manual_seed(0)
    first, *others = (torch.randn(*shape, generator=generator) for shape in shapes)
    return (first, *others) if others else first


def _trained(layer: Callable[[si.Parts], si.Parts], theta: si.Parts) -> Run:
    """Return a function for a forward and a backward pass. The result is the first tensor of the mean, and the
    gradient.
    """
    leaves = map_parts(lambda t: t.clone().requires_grad_(), theta)
    v = map_parts(torch.randn_like, map_parts(torch.Tensor.detach, layer(theta)))

    def run() -> tuple[Tensor, ...]:
        mean = layer(leaves)
        return as_tuple(mean)[0], torch.autograd.grad(as_tuple(mean), as_tuple(leaves), as_tuple(v))[0]

    return run


def _free_much() -> None:
    """Free 30 MB, as training does all the time.

    Before the first such call, glibc returns freed tensors to the system, and the system clears the memory at each
    use.
    """
    torch.empty(30 * 2**18).zero_()


def _amount(result: tuple[Tensor, ...]) -> Tensor:
    """Return the number of parts of a structure, and the number of entries of the gradient."""
    mean, gradient = result
    return torch.stack([mean.detach().flatten(1).sum(1), gradient.isfinite().flatten(1).sum(1).float()], 1)


# ----------------------------------------------------------------------------- the oracle alone


SETS: Mapping[str, tuple[str, Mapping[str, Any], tuple[tuple[int, ...], ...]]] = {
    "subset": ("subsets of 10 out of 100", {"k": 10}, ((100,),)),
    "chain": ("chains of T=50 S=10", {}, ((50, 10), (10, 10))),
    "assignment": ("assignments 20 x 20", {}, ((20, 20),)),
    "arborescence": ("arborescences of n=20", {}, ((20, 20),)),
}


def overhead(
    modules: Mapping[str, ModuleType], structure: str, relaxation: str, batch: int, samples: int
) -> Iterator[Contender]:
    """Compare a forward and a backward pass with an equal number of bare oracle calls."""
    _, options, (own, *shared) = SETS[structure]
    oracle = si.get_oracle(structure, **options)
    theta = _potentials((batch, *own), *shared)
    noise = get_noise(NOISE[relaxation])
    layer = si.Layer(oracle, relaxation, samples=samples, noise=noise)
    _free_much()
    calls = 1 if relaxation == "perturbed" else 2
    flat = map_parts(lambda t: t if len(t) == batch else t[None], theta)
    copies = perturb(oracle, flat, noise, 1.0, samples, torch.Generator().manual_seed(0))

    def bare() -> si.Parts:
        for _ in range(calls - 1):
            copies.oracle.argmax(copies.theta)
        return copies.oracle.argmax(copies.theta)

    yield Contender(STRUCTINF, _trained(layer, theta), lambda result: _amount(result)[:, 0])
    yield Contender(BARE, bare, lambda y: as_tuple(y)[0].view(samples, batch, -1).mean(0).sum(1))


# ----------------------------------------------------------------------------- research codes


def _best_subsets(k: int) -> Callable[[Tensor], Tensor]:
    return lambda theta: torch.zeros_like(theta).scatter_(1, theta.topk(k, dim=1).indices, 1.0)


def _best_paths(theta: Tensor) -> Tensor:
    """Return the best paths through scores (B, n, n), from corner to corner by steps down, right or diagonal: a
    Python program.
    """
    y = torch.zeros_like(theta)
    for b, scores in enumerate(theta.tolist()):
        n = len(scores)
        best: dict[tuple[int, int], tuple[float, tuple[int, int]]] = {}
        for i in range(n):
            for j in range(n):
                before = [((i - di), (j - dj)) for di, dj in ((1, 1), (1, 0), (0, 1)) if i >= di and j >= dj]
                total, cell = max(((best[c][0], c) for c in before), default=(0.0, (-1, -1)))
                best[i, j] = total + scores[i][j], cell
        cell = (n - 1, n - 1)
        while cell != (-1, -1):
            y[b, cell[0], cell[1]] = 1
            cell = best[cell][1]
    return y


def _peer(modules: Mapping[str, ModuleType], name: str, best: Callable[[Tensor], Tensor], samples: int, k: int) -> Any:
    """Return the layer of the package for an oracle, with sum-of-Gamma or normal noise."""
    if name == PERTURBATIONS:
        return modules[name].perturbed(best, num_samples=samples, sigma=1.0, noise="normal", device="cpu")
    noise = importlib.import_module("imle.noise").SumOfGammaNoiseDistribution(k=k, nb_iterations=10)
    target = importlib.import_module("imle.target").TargetDistribution(alpha=1.0, beta=LAMBDA)
    solved = modules[name].imle(best, target_distribution=target, noise_distribution=noise, nb_samples=samples)
    return lambda theta: solved(theta).unflatten(0, (len(theta), samples)).mean(1)


def _ours(oracle: si.Oracle, name: str, samples: int, k: int) -> si.Layer:
    if name == PERTURBATIONS:
        return si.Layer(oracle, "perturbed", samples=samples)
    return si.Layer(oracle, "imle", samples=samples, lambda_=LAMBDA, noise=SumOfGamma(k=k))


def subsets(
    modules: Mapping[str, ModuleType], peer: str, batch: int, n: int, k: int, samples: int
) -> Iterator[Contender]:
    """Find the k best of n under noise."""
    _free_much()
    theta = _potentials((batch, n))
    yield Contender(STRUCTINF, _trained(_ours(si.get_oracle("subset", k=k), peer, samples, k), theta), _amount)
    if peer in modules:
        yield Contender(peer, _trained(_peer(modules, peer, _best_subsets(k), samples, k), theta), _amount)


def paths(modules: Mapping[str, ModuleType], peer: str, batch: int, n: int, samples: int) -> Iterator[Contender]:
    """Find the best path through n × n cells under noise. The packages leave the argmax to the user."""
    _free_much()
    theta = _potentials((batch, n, n))

    def corners(result: tuple[Tensor, ...]) -> Tensor:
        mean, gradient = result
        return torch.stack([mean[:, 0, 0], mean[:, -1, -1], gradient.isfinite().flatten(1).all(1).float()], 1).detach()

    oracle = si.get_oracle("grid_path", moves="with-diagonal")
    yield Contender(STRUCTINF, _trained(_ours(oracle, peer, samples, n), theta), corners)
    if peer in modules:
        yield Contender(peer, _trained(_peer(modules, peer, _best_paths, samples, n), theta), corners)


NOISE = {"perturbed": "normal", "imle": "gumbel"}
CASES = (
    *(
        Case(
            f"{relaxation}-{structure}",
            f"{relaxation} with {NOISE[relaxation]} noise, {SETS[structure][0]}, B={{batch}}, {{samples}} samples, "
            "forward and backward",
            overhead,
            {"structure": structure, "relaxation": relaxation, "batch": 32, "samples": 30},
            {"structure": structure, "relaxation": relaxation, "batch": 2, "samples": 3},
            target=Target(1 / 1.2, (BARE,)),
        )
        for relaxation in NOISE
        for structure in SETS
    ),
    *(
        Case(
            f"{name}-subset-{samples}",
            f"{name} with {noise} noise, subsets of {{k}} out of {{n}}, B={{batch}}, {{samples}} samples, "
            "forward and backward",
            subsets,
            {"peer": peer, "batch": 32, "n": 100, "k": 10, "samples": samples},
            {"peer": peer, "batch": 2, "n": 6, "k": 2, "samples": 3},
            peers=(peer,),
            target=Target(ratio, (peer,)),
        )
        for name, peer, noise, samples, ratio in (
            ("imle", IMLE, "sum-of-Gamma", 10, 10),
            ("perturbed", PERTURBATIONS, "normal", 100, 2),
        )
    ),
    *(
        Case(
            f"{name}-grid-path",
            f"{name} with {noise} noise, paths through {{n}} x {{n}} cells, B={{batch}}, {{samples}} samples, "
            "forward and backward",
            paths,
            {"peer": peer, "batch": 32, "n": 12, "samples": 10},
            {"peer": peer, "batch": 2, "n": 3, "samples": 3},
            peers=(peer,),
            target=Target(10, (peer,)),
        )
        for name, peer, noise in (("imle", IMLE, "sum-of-Gamma"), ("perturbed", PERTURBATIONS, "normal"))
    ),
)
