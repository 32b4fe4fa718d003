"""Chains: log-likelihood, marginals, Viterbi and sampling compared with sequence-labelling packages and torch loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import structinf as si

from .case import STRUCTINF, Case, Contender, Target

__all__ = ["CASES", "log_partition_loop"]

LOOP = "plain torch loop"
SIZE = {"batch": 32, "steps": 100, "states": 50}
QUICK = {"batch": 2, "steps": 4, "states": 3}


# ----------------------------------------------------------------------------- the same work, plainly


def log_partition_loop(unary: Tensor, transition: Tensor) -> Tensor:
    """Return log Z (B,) for a shared transition."""
    first, *rest = unary.unbind(1)
    alpha = first
    for scores in rest:
        alpha = torch.logsumexp(alpha.unsqueeze(2) + transition, 1) + scores
    return torch.logsumexp(alpha, 1)


def edge_log_partition_loop(edges: Tensor) -> Tensor:
    """Return log Z (B,) for edge scores (B, T-1, S, S)."""
    alpha = edges.new_zeros(edges.shape[0], edges.shape[2])
    for scores in edges.unbind(1):
        alpha = torch.logsumexp(alpha.unsqueeze(2) + scores, 1)
    return torch.logsumexp(alpha, 1)


def viterbi_loop(unary: Tensor, transition: Tensor) -> Tensor:
    """Return the best tags (B, T)."""
    first, *rest = unary.unbind(1)
    best, back = first, []
    for scores in rest:
        best, source = (best.unsqueeze(2) + transition).max(1)
        best = best + scores
        back.append(source)
    tags = [best.argmax(1)]
    for source in reversed(back):
        tags.append(source.gather(1, tags[-1].unsqueeze(1)).squeeze(1))
    return torch.stack(tags[::-1], 1)


def sample_loop(unary: Tensor, transition: Tensor) -> Tensor:
    """Sample tags (B, T): forward filtering, backward sampling."""
    first, *rest = unary.unbind(1)
    alphas = [first]
    for scores in rest:
        alphas.append(torch.logsumexp(alphas[-1].unsqueeze(2) + transition, 1) + scores)
    tags = [torch.multinomial(alphas[-1].softmax(1), 1).squeeze(1)]
    for alpha in reversed(alphas[:-1]):
        tags.append(torch.multinomial((alpha + transition[:, tags[-1]].T).softmax(1), 1).squeeze(1))
    return torch.stack(tags[::-1], 1)


# ----------------------------------------------------------------------------- inputs and their forms


def _inputs(batch: int, steps: int, states: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(batch, steps, states, generator=generator)
    return unary.requires_grad_(), torch.randn(states, states, generator=generator).requires_grad_()


def _to_edges(unary: Tensor, transition: Tensor) -> Tensor:
    """Return edge scores (B, T-1, S, S), from state i to state j, for the same distribution."""
    edges = transition + unary[:, 1:].unsqueeze(2)
    return torch.cat([edges[:, :1] + unary[:, :1].unsqueeze(3), edges[:, 1:]], 1)


def _to_nodes(edges: Tensor) -> Tensor:
    """Return the sums (B, T, S) of edges into each state: the transpose of :func:`_to_edges`."""
    return torch.cat([edges[:, :1].sum(3), edges.sum(2)], 1)


def _crf(package: ModuleType, transition: Tensor) -> Any:
    crf = package.CRF(len(transition), batch_first=True)
    with torch.no_grad():
        crf.start_transitions.zero_()
        crf.end_transitions.zero_()
        crf.transitions.copy_(transition)
    return crf


def _bordered(transition: Tensor) -> Tensor:
    """Add supar's row of start scores and column of end scores, all zero."""
    return torch.nn.functional.pad(transition, (0, 1, 0, 1))


# ----------------------------------------------------------------------------- cases


def log_likelihood(modules: Mapping[str, ModuleType], batch: int, steps: int, states: int) -> Iterator[Contender]:
    """Compute the negative log-likelihood of tags, and the gradient in unary and transition scores."""
    unary, transition = _inputs(batch, steps, states)
    tags = torch.randint(states, (batch, steps), generator=torch.Generator().manual_seed(1))

    def gold(unary: Tensor, transition: Tensor) -> Tensor:
        return unary.gather(2, tags.unsqueeze(2)).sum() + transition[tags[:, :-1], tags[:, 1:]].sum()

    def with_gradient(loss: Callable[[], Tensor], transition: Tensor = transition) -> Callable[[], tuple[Tensor, ...]]:
        def run() -> tuple[Tensor, ...]:
            value = loss()
            return value.detach()[None], *torch.autograd.grad(value, (unary, transition))

        return run

    crf_loss = si.FenchelYoungLoss("chain", "marginals", reduction="sum")
    yield Contender(STRUCTINF, with_gradient(lambda: crf_loss((unary, transition), tags)))
    loop = with_gradient(lambda: log_partition_loop(unary, transition).sum() - gold(unary, transition))
    yield Contender(LOOP, loop)
    if package := modules.get("pytorch-crf"):
        crf = _crf(package, transition)
        yield Contender("pytorch-crf", with_gradient(lambda: -crf(unary, tags), crf.transitions))
    if package := modules.get("supar"):
        chain = package.LinearChainCRF
        supar = with_gradient(lambda: -chain(unary, _bordered(transition)).log_prob(tags).sum())
        yield Contender("supar", supar)
    if package := modules.get("torch-struct"):
        chain_crf = package.LinearChainCRF  # edges run from the second index to the first
        parts = chain_crf.struct.to_parts(tags, states)
        edges = with_gradient(lambda: -chain_crf(_to_edges(unary, transition).mT.contiguous()).log_prob(parts).sum())
        yield Contender("torch-struct", edges)


def edge_marginals(modules: Mapping[str, ModuleType], batch: int, steps: int, states: int) -> Iterator[Contender]:
    """Compute the marginals of edge scores. Peers restricted to a shared transition get the same distribution in this
    form.
    """
    unary, transition = _inputs(batch, steps, states)
    edges = _to_edges(unary, transition).detach()
    leaf = edges.clone().requires_grad_()
    ones = torch.nn.functional.one_hot(torch.zeros(batch, steps, dtype=torch.int64), states)

    layer = si.Layer("chain", "marginals")
    yield Contender(STRUCTINF, lambda: layer(edges), _to_nodes)
    yield Contender(LOOP, lambda: torch.autograd.grad(edge_log_partition_loop(leaf).sum(), leaf)[0], _to_nodes)
    if package := modules.get("pytorch-crf"):
        crf, zeros = _crf(package, transition), torch.zeros(batch, steps, dtype=torch.int64)
        # The gradient of the log-likelihood is gold minus marginals.
        yield Contender(
            "pytorch-crf", lambda: torch.autograd.grad(-crf(unary, zeros), unary)[0], lambda gradient: gradient + ones
        )
    if package := modules.get("supar"):
        chain = package.LinearChainCRF
        yield Contender("supar", lambda: chain(unary, _bordered(transition)).marginals.detach())
    if package := modules.get("torch-struct"):
        yield Contender(
            "torch-struct",
            lambda: package.LinearChainCRF(edges.mT.contiguous()).marginals.mT,
            lambda mean: _to_nodes(mean.detach()),
        )


def edge_marginals_backward(
    modules: Mapping[str, ModuleType], batch: int, steps: int, states: int
) -> Iterator[Contender]:
    """Compute the marginals of edge scores, and the gradient of a linear function of the marginals."""
    unary, transition = _inputs(batch, steps, states)
    leaf = _to_edges(unary, transition).detach().requires_grad_()
    node_weight = torch.randn(batch, steps, states, generator=torch.Generator().manual_seed(1))
    weight = _to_edges(node_weight, torch.zeros(states, states))

    def through(mean: Callable[[], Tensor], leaf: Tensor, weight: Tensor) -> Callable[[], Tensor]:
        return lambda: torch.autograd.grad((mean() * weight).sum(), leaf)[0]

    def looped() -> Tensor:
        return torch.autograd.grad(edge_log_partition_loop(leaf).sum(), leaf, create_graph=True)[0]

    layer = si.Layer("chain", "marginals")
    yield Contender(STRUCTINF, through(lambda: layer(leaf), leaf, weight), _to_nodes)
    yield Contender(LOOP, through(looped, leaf, weight), _to_nodes)
    if package := modules.get("supar"):
        chain = package.LinearChainCRF
        supar = through(lambda: chain(unary, _bordered(transition)).marginals, unary, node_weight)
        yield Contender("supar", supar)


def viterbi(modules: Mapping[str, ModuleType], batch: int, steps: int, states: int) -> Iterator[Contender]:
    """Find the best path for a shared transition."""
    unary, transition = (t.detach() for t in _inputs(batch, steps, states))
    layer = si.Layer("chain", "map")
    yield Contender(STRUCTINF, lambda: layer((unary, transition)), lambda y: y[0].argmax(-1))
    yield Contender(LOOP, lambda: viterbi_loop(unary, transition))
    if package := modules.get("pytorch-crf"):
        crf = _crf(package, transition)
        yield Contender("pytorch-crf", lambda: crf.decode(unary), torch.tensor)
    if package := modules.get("supar"):
        chain = package.LinearChainCRF
        yield Contender("supar", lambda: chain(unary.clone(), _bordered(transition)).argmax)


def sampling(modules: Mapping[str, ModuleType], batch: int, steps: int, states: int) -> Iterator[Contender]:
    """Draw one exact sample for a shared transition. The check covers only the form of a path."""
    unary, transition = (t.detach() for t in _inputs(batch, steps, states))
    theta = (unary, transition.unsqueeze(0))
    oracle = si.get_oracle("chain")
    generator = torch.Generator().manual_seed(1)
    yield Contender(STRUCTINF, lambda: oracle.sample(theta, 1, generator), lambda y: y[0][0].sum(-1))
    yield Contender(LOOP, lambda: sample_loop(unary, transition), lambda tags: torch.ones(tags.shape))


PACKAGES = ("pytorch-crf", "supar", "torch-struct")
CASES = (
    Case(
        "chain-loglik",
        "chain log-likelihood and gradient, B={batch} T={steps} S={states}, shared transition",
        log_likelihood,
        SIZE,
        QUICK,
        peers=PACKAGES,
        target=Target(8, PACKAGES),
    ),
    Case(
        "chain-marginals",
        "chain marginals of edge scores, B={batch} T={steps} S={states}",
        edge_marginals,
        SIZE,
        QUICK,
        peers=PACKAGES,
        target=Target(3),
    ),
    Case(
        "chain-marginals-backward",
        "chain marginals of edge scores and backward through them, B={batch} T={steps} S={states}",
        edge_marginals_backward,
        SIZE,
        QUICK,
        peers=("supar",),
    ),
    Case(
        "chain-viterbi",
        "chain argmax, B={batch} T={steps} S={states}, shared transition",
        viterbi,
        SIZE,
        QUICK,
        peers=("pytorch-crf", "supar"),
    ),
    Case(
        "chain-sample",
        "one exact sample of a chain, B={batch} T={steps} S={states}, shared transition",
        sampling,
        SIZE,
        QUICK,
    ),
)
