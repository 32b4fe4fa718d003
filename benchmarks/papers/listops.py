"""Learn the value of expressions from the trees of a latent parser: surrogates, relaxations and noise compared.

After Paulus, Choi, Tarlow, Krause & Maddison 2020, Gradient Estimation with Stochastic Softmax Tricks, §5 (ListOps of
Nangia & Bowman 2018 without sums, with bounded length and depth), and Corro & Titov 2019, Learning Latent Trees with
Stochastic Perturbations and Differentiable Dynamic Programming. A recurrent network scores the arcs of an
arborescence over the tokens. A second network sees single tokens, passes messages along the arcs, and predicts the
value.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import structinf as si

from .command import Report, run
from .text import buckets, lines_of, pad
from .training import Fit, fit, relax

__all__ = ["main"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    train: int = 20_000
    test: int = 2000
    shortest: int = 8  # tokens of an expression
    longest: int = 30
    deepest: int = 4  # brackets around a token
    epochs: int = 10
    batch: int = 64
    context: int = 32  # units of the recurrent network, in each direction
    hidden: int = 64  # units of the second network


def sizes(quick: bool) -> Sizes:
    return Sizes(train=256, test=100, shortest=4, longest=16, deepest=3, epochs=2, hidden=32) if quick else Sizes()


# ----------------------------------------------------------------------------- expressions

OPERATORS: Mapping[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(median(values)),
    "[SM": lambda values: sum(values) % 10,
}
DRAWN = "[MIN", "[MAX", "[MED"  # without sums modulo 10
TOKENS = {token: i for i, token in enumerate(["", *OPERATORS, "]", *map(str, range(10))])}
BRACKET, DIGIT = TOKENS["]"], TOKENS["0"]  # and all higher numbers


class Expression(NamedTuple):
    """Tokens, and the facts derived from the tokens.

    Attributes
    ----------
    words : list of str
        The tokens.
    heads : list of int
        For each token except the first (the outermost operator), the position of the operator around the token.
    value : int
        From 0 to 9.
    depth : int
        Number of nested brackets.
    """

    words: list[str]
    heads: list[int]
    value: int
    depth: int


def parse(tokens: Sequence[str]) -> Expression:
    """Parse an expression that begins with an operator."""
    heads, depth, value = [], 0, -1
    open_: list[tuple[int, list[int]]] = []  # open operators, with their values so far
    for place, token in enumerate(tokens):
        heads += [place for place, _ in open_[-1:]]
        if token in OPERATORS:
            open_.append((place, []))
            depth = max(depth, len(open_))
            continue
        value = OPERATORS[tokens[open_[-1][0]]](open_.pop()[1]) if token == "]" else int(token)
        if open_:
            open_[-1][1].append(value)
    return Expression(list(tokens), heads, value, depth)


def draw_tokens(random: Random, depth: int = 0) -> list[str]:
    """Draw an expression: operators of two to five arguments, each argument an operator with probability 1/4."""
    if depth and random.random() < 0.75:
        return [str(random.randrange(10))]
    inner = [token for _ in range(random.randint(2, 5)) for token in draw_tokens(random, depth + 1)]
    return [random.choice(DRAWN), *inner, "]"]


def allowed(expression: Expression, size: Sizes) -> bool:
    short = size.shortest <= len(expression.words) <= size.longest
    return short and expression.depth <= size.deepest and set(expression.words).isdisjoint({*OPERATORS} - {*DRAWN})


def draw(count: int, size: Sizes, seed: int) -> list[Expression]:
    """Draw expressions within the allowed sizes."""
    random, found = Random(seed), []
    while len(found) < count:
        expression = parse(draw_tokens(random))
        found += [expression] * allowed(expression, size)
    return found


def read(folder: Path) -> list[tuple[Expression, int]]:
    """Read the expressions of the official test set that begin with an operator, with their values."""
    rows = (line.split("\t") for line in lines_of(folder, "test_d20s.tsv"))
    split = ((int(value), [token for token in text.split() if token not in "()"]) for value, text, *_ in rows)
    return [(parse(tokens), value) for value, tokens in split if tokens[0] in OPERATORS]


class Batch(NamedTuple):
    """Tokens (B, T), heads (B, T - 1), numbers of tokens (B,) and values (B,)."""

    tokens: Tensor
    heads: Tensor
    lengths: Tensor
    values: Tensor


def collate(expressions: Sequence[Expression]) -> Batch:
    lengths, values = (torch.tensor(n) for n in zip(*((len(e.words), e.value) for e in expressions), strict=True))
    tokens = pad([[TOKENS[token] for token in e.words] for e in expressions])
    return Batch(tokens, pad([e.heads for e in expressions], -1), lengths, values)


# ----------------------------------------------------------------------------- trees

Trees = Callable[[Tensor, Batch], Tensor]
"""From scores (B, T, T) of arcs from head to token to how much of each is there; the first token is the root."""


def arborescence(relaxation: str | si.Relaxation, oracle: str = "arborescence") -> Trees:
    return lambda theta, batch: relax(theta, oracle, relaxation, lengths=batch.lengths - 1)


def separate_heads(relaxation: si.Relaxation) -> Trees:
    """Return a relaxation that chooses a head for each token independently."""

    def trees(theta: Tensor, batch: Batch) -> Tensor:
        place = torch.arange(theta.shape[1])
        inside = place < batch.lengths[:, None]
        wrong = ~inside[:, :, None] | (place == place[:, None])
        heads = relax(theta.masked_fill(wrong, -torch.inf).mT, "categorical", relaxation).mT
        return heads * (inside & (place > 0))[:, None]

    return trees


def right_trees(theta: Tensor, batch: Batch) -> Tensor:
    found = torch.zeros_like(theta)
    used = batch.heads >= 0
    instance, place = used.nonzero(as_tuple=True)
    found[instance, batch.heads[used], place + 1] = 1
    return found


def surrogate(name: str, **options: Any) -> si.Relaxation:
    """Return a random structure with a surrogate gradient."""
    return si.get_relaxation("stochastic", base_relaxation=si.get_relaxation(name, **options))


# A gap left after so many structures does no harm to messages.
SPARSE = {"tolerance": 0.015, "max_iter": 50, "on_failure": "ignore"}
TRICK = si.get_relaxation("stochastic", base_relaxation="marginals")
LSTM, RIGHT = "no tree: LSTM", "right parse"
TREES = 4
"""The number of trees at which an estimator evaluates the loss of an expression."""

ESTIMATORS: Mapping[str, Callable[[], si.Estimator]] = {
    "score function": partial(si.get_estimator, "score_function", samples=TREES),
    "unordered set": partial(si.get_estimator, "unordered_set", k=TREES),
    "MuProp": partial(si.get_estimator, "muprop", samples=TREES - 1),
}
"""Methods that estimate the expected loss over trees. Their test uses a sample for each expression."""

METHODS: dict[str, Trees | None] = {
    LSTM: None,
    RIGHT: right_trees,
    "marginals": arborescence("marginals"),
    "SparseMAP": arborescence(si.get_relaxation("sparsemap", **SPARSE)),
    "stochastic softmax trick": arborescence(TRICK),
    "independent heads": separate_heads(TRICK),
    "perturbed": arborescence(si.get_relaxation("perturbed", samples=10)),
    "straight-through": arborescence("straight_through"),
    "straight-through marginals": arborescence(si.get_relaxation("straight_through", backward="marginals")),
    "noisy straight-through": arborescence(surrogate("straight_through", backward="marginals")),
    "SPIGOT": arborescence("spigot"),
    # The gradient of a mean loss is divided by the batch size.
    "I-MLE": arborescence(si.get_relaxation("imle", lambda_=100.0, noise="gumbel")),
    "ReinMax": arborescence("reinmax"),
    "Gumbel-CRF": arborescence("gumbel_crf", "projective_tree"),
    "independent heads, gapped": separate_heads(si.get_relaxation("gapped_straight_through")),
    "independent heads, Gumbel-Rao": separate_heads(si.get_relaxation("gumbel_rao")),
    **dict.fromkeys(ESTIMATORS, arborescence("reinmax")),
}


# ----------------------------------------------------------------------------- model


class Network(nn.Module):
    """A network that returns scores (B, 10) of the values.

    The recurrent network sees all digits as one token, so its trees cannot reveal a computed value. Without trees,
    the network sees the digits and predicts the value.
    """

    def __init__(self, method: str, size: Sizes) -> None:
        super().__init__()
        self.trees = trees = METHODS[method]
        self.estimator = ESTIMATORS[method]() if method in ESTIMATORS else None
        self.rounds = size.deepest
        hidden, width = size.hidden, 2 * size.context
        self.seen, self.met = (nn.Embedding(len(TOKENS), d, padding_idx=0) for d in (width, hidden))
        self.context = nn.LSTM(width, size.context, batch_first=True, bidirectional=True)
        self.head, self.modifier = (nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(2))
        self.arc = nn.Linear(width, width)
        self.message = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU())
        self.update = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.value = nn.Sequential(nn.Linear(hidden if trees else width, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def states(self, batch: Batch) -> Tensor:
        """Return the states of the tokens, (B, T, 2 · hidden)."""
        seen = batch.tokens if self.trees is None else batch.tokens.clamp(max=DIGIT)
        packed = pack_padded_sequence(self.seen(seen), batch.lengths, True, enforce_sorted=False)
        return pad_packed_sequence(self.context(packed)[0], batch_first=True)[0]

    def arcs(self, batch: Batch) -> Tensor:
        """Return the scores of arcs from head to token, (B, T, T)."""
        states = self.states(batch)
        return self.arc(self.head(states)) @ self.modifier(states).mT / states.shape[2] ** 0.5

    def forward(self, batch: Batch, trees: Trees | None = None) -> Tensor:
        """Return the scores of values. ``trees`` may replace the trees of training."""
        use = trees or self.trees
        if use is None:
            return self.value(self.states(batch)[:, 0])
        return self.along(use(self.arcs(batch), batch), batch.tokens)

    def along(self, tree: Tensor, tokens: Tensor) -> Tensor:
        """Return the scores of values along trees (B, T, T)."""
        token = state = self.met(tokens)
        for _ in range(self.rounds):
            state = self.update(torch.cat([token, tree @ self.message(state)], 2))
        return self.value(state[:, 0])

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean loss of the values, or its expectation over trees by the estimator."""
        if self.estimator is None:
            return nn.functional.cross_entropy(self(batch), batch.values)

        def loss_along(tree: Tensor, tokens: Tensor, values: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.along(tree, tokens), values, reduction="none")

        inputs, lengths = (batch.tokens, batch.values), batch.lengths - 1
        theta, estimator = self.arcs(batch), self.estimator
        return si.expect(loss_along, theta, "arborescence", estimator, inputs=inputs, lengths=lengths).mean()


class Score(NamedTuple):
    """Per cent of right values, with the trees of training and with the best trees, and of right heads in the best
    trees.

    Heads of closing brackets do not count, since they do not change the value.
    """

    accuracy: float
    best: float
    precision: float


BEST = arborescence("map")


@torch.no_grad()
def score(model: Network, expressions: Sequence[Expression]) -> Score:
    sums = [0, 0, 0, 0]
    for bucket in buckets(expressions, 128):
        batch = collate(bucket)
        sums[0] += int((model(batch).argmax(1) == batch.values).sum())
        if model.trees is None:
            continue
        best = right_trees if model.trees is right_trees else BEST
        sums[1] += int((model(batch, best).argmax(1) == batch.values).sum())
        found = best(model.arcs(batch), batch)
        right = right_trees(found, batch) * (batch.tokens != BRACKET)[:, None]
        sums[2] += int((found * right).sum())
        sums[3] += int(right.sum())
    as_trained, by_best = (100 * n / len(expressions) for n in sums[:2])
    return Score(as_trained, by_best, 100 * sums[2] / max(sums[3], 1))


def train(
    method: str, data: Sequence[Expression], dev: Sequence[Expression], size: Sizes, seed: int
) -> tuple[Network, Fit]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Network(method, size)
    result = fit(
        model,
        [model.loss] * size.epochs,
        lambda: [collate(bucket) for bucket in buckets(data, size.batch, generator)],
        lambda: score(model, dev).accuracy,
        rate=3e-3,
        description=f"{method}, seed {seed}",
    )
    return model.eval(), result


# ----------------------------------------------------------------------------- experiment


def experiment(folder: Path | None, size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Train with each method, and print accuracy and precision on drawn and on official expressions."""
    official = [] if folder is None else [expression for expression, _ in read(folder) if allowed(expression, size)]
    data, dev, test = (draw(n, size, seed) for seed, n in enumerate((size.train, size.test, size.test)))
    tests = {name: found for name, found in (("drawn", test), ("official", official)) if found}
    common = Counter(e.value for e in data).most_common(1)[0][0]
    report.line(
        f"{len(data)} expressions of {size.shortest} to {size.longest} tokens and depth up to {size.deepest} to train "
        f"on, {sum(len(e.words) for e in data) / len(data):.1f} tokens on average; {len(dev)} choose the epoch\n"
    )
    for name, expressions in tests.items():
        share = 100 * sum(e.value == common for e in expressions) / len(expressions)
        report.line(f"{name}: {len(expressions)} test expressions, {share:.1f} % of them with the value {common}\n")
    titles = {f"{name}, {what}, %": 12 for name in tests for what in ("accuracy", "by the best tree", "right heads")}
    report.columns({"method": 26, **titles, "last loss": 12, "seconds an epoch": 0})
    for name, trees in METHODS.items():
        fits, scores = [], []
        for seed in seeds:
            model, result = train(name, data, dev, size, seed)
            fits.append(result)
            scores.append([score(model, expressions) for expressions in tests.values()])
        shown = ("accuracy",) if trees is None else ("accuracy", "best", "precision")
        cells = [
            [getattr(s, field) for s in of_test] if field in shown else ""
            for of_test in zip(*scores, strict=True)
            for field in Score._fields
        ]
        seconds = sum(f.seconds for f in fits) / (len(fits) * size.epochs)
        report.row(name, *cells, [f.losses[-1] for f in fits], f"{seconds:.0f}")


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=1, reads=None)


if __name__ == "__main__":
    sys.exit(main())
