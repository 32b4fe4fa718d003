"""Attention: translation models with segmentation attention compared with softmax attention, and the layer alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType

import torch
from torch import Tensor, nn

from benchmarks.timing import alternate
from structinf.attention import SegmentationWeights, StructuredAttention

from .case import STRUCTINF, Case, Contender, Limit, Target
from .smoothing import PLAIN

__all__ = ["CASES", "LIMITS", "Translator"]

LOOP = "autograd through a plain torch loop"

# Sizes and temperatures of Mensch & Blondel 2018, appendix C.3, with a smaller batch that runs in seconds.
SIZE = {"batch": 16, "words": 50, "units": 500, "layers": 2}
QUICK = {"batch": 2, "words": 5, "units": 8, "layers": 1}
TEMPERATURES = {"negentropy": 2.0, "squared_l2": 10.0}

KINDS = {
    "sparsemax": {"weights": "sparsemax"},
    "subsets": {"oracle": "subset", "k": 3},
    "segments": {"oracle": "chain"},
    "sparse segments": {"oracle": "chain", "relaxation": "smoothed", "regularizer": "squared_l2"},
    "Sinkhorn's matchings": {"oracle": "assignment", "relaxation": "sinkhorn"},
    "alignments": {"oracle": "dtw", "relaxation": "smoothed", "normalized": True},
    "monotonic alignments": {"oracle": "monotonic_alignment", "relaxation": "marginals"},
    "heads in trees": {"oracle": "arborescence", "relaxation": "marginals"},
    "SparseMAP of matchings": {"oracle": "assignment"},
}


# ----------------------------------------------------------------------------- a model


class Translator(nn.Module):
    """A translation model: the states of a decoder attend to the states of an encoder, and score the next words.

    Parameters
    ----------
    units : int
        Size of each direction of the encoder, of the decoder, and of embeddings.
    layers : int
        Number of layers of the encoder and of the decoder.
    """

    def __init__(self, attention: StructuredAttention, units: int, layers: int, vocabulary: int = 1000) -> None:
        super().__init__()
        self.attention = attention
        self.source, self.target = (nn.Embedding(vocabulary, units) for _ in range(2))
        self.encoder = nn.LSTM(units, units, layers, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTM(units, units, layers, batch_first=True)
        self.bilinear = nn.Linear(units, 2 * units, bias=False)
        self.mix, self.next = nn.Linear(3 * units, units), nn.Linear(units, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of all words but the first."""
        states, _ = self.encoder(self.source(source))
        heads, _ = self.decoder(self.target(target[:, :-1]))
        context, _ = self.attention.attend(self.bilinear(heads) @ states.mT, states)
        scores = self.next(self.mix(torch.cat([context, heads], -1)).tanh())
        return nn.functional.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten())


def _segmentation(regularizer: str) -> StructuredAttention:
    options = {"regularizer": regularizer, "temperature": TEMPERATURES[regularizer]}
    return StructuredAttention(oracle="chain", relaxation="smoothed", **options)


def _step(attention: StructuredAttention, batch: int, words: int, units: int, layers: int) -> Callable[[], None]:
    """Return a function that computes the loss and the gradient of a batch."""
    generator = torch.Generator().manual_seed(0)
    model = Translator(attention, units, layers)
    source, target = torch.randint(1000, (2, batch, words + 1), generator=generator)

    def run() -> None:
        model.zero_grad()
        model(source[:, :-1], target).backward()

    return run


def _against_softmax(regularizer: str, repeats: int, quick: bool) -> list[float]:
    """Return the time of a step divided by the time of the softmax model, round by round."""
    size = QUICK if quick else SIZE
    steps = {"segmentation": _step(_segmentation(regularizer), **size), "softmax": _step(StructuredAttention(), **size)}
    for step in steps.values():
        step()
    samples = alternate(steps, repeats, budget=30.0)
    return [a / b for a, b in zip(samples["segmentation"], samples["softmax"], strict=False)]


# ----------------------------------------------------------------------------- the layer by itself


def _selected(regularizer: str, scores: Tensor, transition: Tensor) -> Tensor:
    """Return the gradient of the smoothed recursion in (B, n, m) scores, summed over queries, by autograd through the
    loop.
    """
    smax, gamma = PLAIN[regularizer], TEMPERATURES[regularizer]
    unary = torch.stack([torch.zeros_like(scores), scores], -1).flatten(0, 1) / gamma
    first, *rest = unary.unbind(1)
    v = first
    for one in rest:
        v = smax(v.unsqueeze(2) + transition / gamma, 1) + one
    (mean,) = torch.autograd.grad(smax(v, 1).sum(), unary, create_graph=True)
    return mean[..., 1].view(scores.shape)


def layer(modules: Mapping[str, ModuleType], regularizer: str, batch: int, queries: int, keys: int) -> Iterator:
    """Compute the weights of segmentation attention, and the gradient along a direction."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(batch, queries, keys, generator=generator).requires_grad_()
    direction = torch.randn(batch, queries, keys, generator=generator)
    weights = SegmentationWeights("smoothed", regularizer=regularizer, temperature=TEMPERATURES[regularizer])
    nn.init.normal_(weights.transition, generator=generator)
    inputs = scores, weights.transition

    def with_gradient(attend: Callable[[], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        found = attend()
        by_scores, by_transition = torch.autograd.grad((found * direction).sum(), inputs)
        return found.detach(), by_scores, by_transition[None]

    def plainly() -> Tensor:
        selected = _selected(regularizer, *inputs)
        return selected / selected.sum(-1, keepdim=True)

    yield Contender(STRUCTINF, partial(with_gradient, lambda: weights(scores)))
    yield Contender(LOOP, partial(with_gradient, plainly))
    yield Contender("softmax", partial(_softmax_step, scores, direction), read=None)


def _softmax_step(scores: Tensor, direction: Tensor) -> Tensor:
    return torch.autograd.grad((scores.softmax(-1) * direction).sum(), scores)[0]


# ----------------------------------------------------------------------------- kinds of weights


def kinds(modules: Mapping[str, ModuleType], batch: int, words: int) -> Iterator[Contender]:
    """Compute contexts by weights of each kind, and the gradient in the scores. The ratios are relative to softmax."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(batch, words, words, generator=generator).requires_grad_()
    value = torch.randn(batch, words, 32, generator=generator)

    def step(attention: StructuredAttention) -> Tensor:
        return torch.autograd.grad(attention.attend(scores, value)[0].square().sum(), scores)[0]

    yield Contender(STRUCTINF, partial(step, StructuredAttention()))
    for name, options in KINDS.items():
        yield Contender(name, partial(step, StructuredAttention(**options)), read=None)


CASES = [
    Case(
        name="attention-kinds",
        what="attention by softmax and its gradient, {batch} matrices of {words} × {words}; beside it other weights",
        contenders=kinds,
        size={"batch": 128, "words": 16},
        quick={"batch": 2, "words": 4},
    )
] + [
    Case(
        name=f"attention-weights-{regularizer.replace('_', '-')}",
        what=f"segmentation attention's weights by {regularizer} and their gradient, "
        "{batch} sentences, {queries} queries of {keys} keys",
        contenders=partial(layer, regularizer=regularizer),
        size={"batch": 64, "queries": 50, "keys": 50},
        quick={"batch": 2, "queries": 3, "keys": 4},
        target=Target(3),
        tolerance=1e-3,
    )
    for regularizer in TEMPERATURES
]

LIMITS = [
    Limit(
        f"attention-model-{regularizer.replace('_', '-')}",
        "a training step of a translation model, {batch} sentences of {words} words, {layers} layers of {units} units, "
        "with segmentation attention by ".format(**SIZE)
        + regularizer,
        partial(_against_softmax, regularizer),
        "times its time with softmax",
        at_most,
    )
    for regularizer, at_most in (("negentropy", 1.3), ("squared_l2", 2.0))
]
