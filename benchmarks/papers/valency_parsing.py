"""Dependency trees with limits on the dependents of each word, as a factor graph, on a treebank.

A log-linear model of tags and distances scores the arcs of a sentence, and learns from all trees. At test time, a
factor graph adds a limit for each word: the most dependents that words of its tag have in the training data, except for
the top shares of Sizes.shares. The limits are instance data of the graph.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import structinf as si
from structinf.demos.parse import Sentence, read_treebank

from .command import Report, run

__all__ = ["main"]

NEAR = 8  # larger distances count as this distance


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    train: int = 2000
    longest: int = 12  # words of a sentence, also of the test
    steps: int = 150
    shares: tuple[float, ...] = (0.0, 0.02)  # of words above the limit


def sizes(quick: bool) -> Sizes:
    return Sizes(train=200, longest=8, steps=30, shares=(0.02,)) if quick else Sizes()


class Batch(NamedTuple):
    """Tags, (B, n + 1) with 0 for the root, gold heads, (B, n), and lengths, (B,)."""

    tags: Tensor
    heads: Tensor
    lengths: Tensor


def make_batch(sentences: Sequence[Sentence], tags: dict[str, int], width: int) -> Batch:
    """Return the batch of sentences of at most ``width`` words."""
    rows = [[0, *(tags.get(tag, 1) for tag in s.tags), *[1] * (width - len(s.words))] for s in sentences]
    heads = [[*s.heads, *[-1] * (width - len(s.words))] for s in sentences]
    return Batch(torch.tensor(rows), torch.tensor(heads), torch.tensor([len(s.words) for s in sentences]))


class ArcModel(nn.Module):
    """Scores of an arc by the tags of its ends, and by tags with the signed distance."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.pair = nn.Parameter(torch.zeros(tags, tags))
        self.distance = nn.Parameter(torch.zeros(tags, tags, 2 * NEAR + 1))

    def forward(self, tags: Tensor) -> Tensor:
        place = torch.arange(tags.shape[1])
        away = (place[None] - place[:, None]).clamp(-NEAR, NEAR) + NEAR
        head, word = tags[:, :, None], tags[:, None, :]
        return self.pair[head, word] + self.distance[head, word, away]


def train(model: ArcModel, batch: Batch, steps: int) -> None:
    """Maximise the likelihood of the gold trees."""
    loss = si.FenchelYoungLoss("arborescence", "marginals", single_root=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=1e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(batch.tags), batch.heads, lengths=batch.lengths).backward()
        optimizer.step()


def limits_by_tag(batch: Batch, tags: int, share: float) -> Tensor:
    """Return the most dependents of a word of each tag, (tags,): at most ``share`` of the words have more.

    A limit is at least 1, so that each sentence has a tree.
    """
    counts: dict[int, list[int]] = defaultdict(list)
    for row, heads, n in zip(batch.tags.tolist(), batch.heads.tolist(), batch.lengths.tolist(), strict=True):
        for word in range(1, n + 1):
            counts[row[word]].append(heads[:n].count(word))
    limits = torch.full((tags,), batch.heads.shape[1])
    for tag, found in counts.items():
        limits[tag] = max(sorted(found)[max(len(found) - 1 - int(share * len(found)), 0)], 1)
    return limits


def limited_trees(width: int, **options: Any) -> si.FactorGraph:
    """Return the trees over at most ``width`` words, with a budget of dependents for each word."""
    graph = si.FactorGraph((width + 1, width + 1), **options)
    graph.add("arborescence", graph.variables, single_root=True, instance_data=["lengths"])
    for word in range(1, width + 1):
        graph.add("budget", graph.variables[word, 1:], instance_data={"k": f"dependents_{word}"})
    return graph


def limits_of(batch: Batch, limits: Tensor) -> dict[str, Tensor]:
    """Return the instance data of :func:`limited_trees`."""
    most = limits[batch.tags].minimum(torch.tensor(batch.heads.shape[1]))
    return {f"dependents_{word}": most[:, word] for word in range(1, most.shape[1])}


def score(mean: Tensor, batch: Batch) -> float:
    """Return the per cent of words whose arc of largest weight leads from the gold head."""
    inside = torch.arange(batch.heads.shape[1]) < batch.lengths[:, None]
    heads = mean[:, :, 1:].argmax(1)
    return 100 * float((heads == batch.heads)[inside].double().mean())


def decoders(width: int) -> Iterator[tuple[str, si.Oracle, str]]:
    yield "no limits, map", si.get_oracle("arborescence", single_root=True), "map"
    yield "limits, lp_map", limited_trees(width), "lp_map"
    yield "limits, exact by milp", limited_trees(width, solver="milp"), "map"


def experiment(folder: Path, size: Sizes, seeds: Sequence[int], report: Report) -> None:
    parts = read_treebank(folder)
    short = {name: [s for s in part if len(s.words) <= size.longest] for name, part in parts.items()}
    trained = list(islice(short["train"], size.train))
    tags = {tag: i for i, tag in enumerate(sorted({tag for s in trained for tag in s.tags}), 2)}
    gold, test = (make_batch(part, tags, size.longest) for part in (trained, short["test"]))
    model = ArcModel(len(tags) + 2)
    train(model, gold, size.steps)
    with torch.no_grad():
        theta = model(test.tags)
    words = int(test.lengths.sum())
    report.line(f"{len(trained)} training sentences, {len(theta)} test sentences of {words} words\n")
    report.columns({"share above the limit": 21, "decoder": 22, "heads": 6, "trees": 6, "seconds": 7})
    for number, share in enumerate(size.shares):
        limits = limits_by_tag(gold, len(tags) + 2, share)
        for name, oracle, relaxation in islice(decoders(size.longest), min(number, 1), None):  # no limits once
            data: dict[str, Any] = limits_of(test, limits) if isinstance(oracle, si.FactorGraph) else {}
            start = time.perf_counter()
            solution = si.infer(theta, oracle, relaxation, lengths=test.lengths, **data)
            seconds = time.perf_counter() - start
            assert isinstance(solution.mean, Tensor)
            whole = (solution.mean == solution.mean.round()).flatten(1).all(1)
            report.row(
                f"{share:g}" if data else "",
                name,
                score(solution.mean, test),
                100 * float(whole.double().mean()),
                seconds,
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment, and return the exit status."""
    return run(experiment, sizes, __doc__, arguments, seeds=1)


if __name__ == "__main__":
    sys.exit(main())
