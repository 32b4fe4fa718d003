"""Arc-standard and arc-hybrid: trees, and dynamic oracles against a search through all continuations."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import pytest
import torch

import structinf as si
from structinf.transitions import ArcHybrid, ArcStandard, ParserState, Shared, enumerate_sequences

Config = tuple[tuple[int, ...], int, tuple[int, ...]]
"""The stack, the first word of the buffer, and the heads of the words 1, ..., n (−1 for none)."""

PARSERS = [
    pytest.param(parser(single_root=single), id=f"{parser.__name__}-{single}")
    for parser in (ArcStandard, ArcHybrid)
    for single in (False, True)
]


def follow(parser, config: Config, n: int) -> dict[int, Config]:
    """Return the configurations after each allowed action, written from the definition of the systems."""
    stack, front, heads = config
    found: dict[int, Config] = {}

    def with_head(dependent: int, head: int) -> tuple[int, ...]:
        return tuple(head if m == dependent else h for m, h in enumerate(heads, 1))

    if front <= n:
        found[0] = (*stack, front), front + 1, heads
    if isinstance(parser, ArcHybrid) and len(stack) > 1 and front <= n:
        found[1] = stack[:-1], front, with_head(stack[-1], front)
    if isinstance(parser, ArcStandard) and len(stack) > 2:
        found[1] = (*stack[:-2], stack[-1]), front, with_head(stack[-2], stack[-1])
    if len(stack) > 1 and not (parser.single_root and stack[-2] == 0 and front <= n):
        found[2] = stack[:-1], front, with_head(stack[-1], stack[-2])
    return found


def is_final(config: Config, n: int) -> bool:
    return len(config[0]) == 1 and config[1] > n


def least(parser, n: int, gold: tuple[int, ...]):
    @functools.cache
    def loss(config: Config) -> int:
        if is_final(config, n):
            return sum(h != g for h, g in zip(config[2], gold, strict=True))
        return min(map(loss, follow(parser, config, n).values()))

    return loss


def every_config(parser, n: int) -> list[Config]:
    seen: dict[Config, None] = {}
    waiting = [((0,), 1, (-1,) * n)]
    while waiting:
        config = waiting.pop()
        if config not in seen:
            seen[config] = None
            if not is_final(config, n):
                waiting.extend(follow(parser, config, n).values())
    return [config for config in seen if not is_final(config, n)]


def as_state(configs: list[Config], n: int) -> ParserState:
    stacks = torch.tensor([[*stack, *[3] * (n + 1 - len(stack))] for stack, _, _ in configs])
    heads = torch.tensor([[-1, *heads] for _, _, heads in configs])
    rows = torch.zeros(len(configs), dtype=torch.int64)
    return ParserState(
        Shared(torch.zeros(1, n + 1, n + 1), rows), torch.full_like(rows, n), stacks,
        torch.tensor([len(stack) for stack, _, _ in configs]), torch.tensor([front for _, front, _ in configs]),
        heads, torch.where(heads >= 0, 0, -1),
    )  # fmt: skip


def trees(n: int, projective: bool = True) -> list[tuple[int, ...]]:
    """Return the heads of all dependency trees over n words."""

    def is_tree(heads: tuple[int, ...]) -> bool:
        for m in range(1, n + 1):
            steps = 0
            while m:
                m, steps = heads[m - 1], steps + 1
                if steps > n:
                    return False
        return True

    def crosses(heads: tuple[int, ...]) -> bool:
        arcs = [tuple(sorted((h, m))) for m, h in enumerate(heads, 1)]
        return any(a < c < b < d for (a, b), (c, d) in itertools.permutations(arcs, 2))

    found = [heads for heads in itertools.product(range(n + 1), repeat=n) if is_tree(heads)]
    return [heads for heads in found if not (projective and crosses(heads))]


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    ("n", "projective"), [(1, True), (3, False), (4, True), pytest.param(4, False, marks=pytest.mark.full)]
)
def test_costs_are_those_of_all_continuations(parser, n, projective):
    configs = every_config(parser, n)
    state = as_state(configs, n)
    # The closed form of arc-hybrid holds for projective gold trees.
    golds = trees(n, projective or (isinstance(parser, ArcHybrid) and not parser.single_root))
    for gold in golds[:: 7 if n == 4 and projective else 1]:
        loss = least(parser, n, gold)
        expected = torch.full((len(configs), 3), torch.inf, dtype=torch.float64)
        for i, config in enumerate(configs):
            for action, after in follow(parser, config, n).items():
                expected[i, action] = loss(after) - loss(config)
        costs = parser.costs(state, torch.tensor([gold]))
        assert (costs == expected).all()
        assert (costs.amin(1) == 0).all()


@pytest.mark.parametrize("parser", PARSERS)
def test_gold_actions_build_the_gold_tree(parser):
    golds = [heads for heads in trees(4) if not parser.single_root or heads.count(0) == 1]
    heads = torch.tensor(golds)
    theta = torch.zeros(len(golds), 5, 5)
    actions = parser.gold_actions(theta, heads)
    assert actions.shape == (len(golds), 8)
    assert (si.sequence_log_prob(parser, theta, actions) > -torch.inf).all()
    # Scores of 1 for the arcs of the gold tree alone, which is then the best sequence.
    theta = si.encode(heads, theta, "projective_tree", single_root=parser.single_root)
    total = si.sequence_log_prob(parser, theta, actions, normalize=False)
    assert (total == 4).all()


@pytest.mark.parametrize("parser", PARSERS)
def test_a_wide_beam_of_arc_scores_finds_the_best_tree(parser):
    theta = torch.randn(6, 5, 5, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([4, 4, 3, 1, 2, 4])
    found = si.decode_beam(parser, (theta, lengths), 200, normalize=False)
    oracle = si.get_oracle("projective_tree", single_root=parser.single_root)
    best = si.topk(theta, oracle, 1, lengths=lengths)
    torch.testing.assert_close(found.structures[0], best.structures[0])
    torch.testing.assert_close(found.scores[0].float(), best.scores[0])
    all_of = enumerate_sequences(parser, (theta, lengths))
    for b in range(6):
        trees_found = all_of.structures[all_of.valid[:, b], b].unique(dim=0)
        assert len(trees_found) == si.count(theta[b], oracle, lengths=lengths[b])[0]


@pytest.mark.parametrize("parser", [ArcStandard(labels=2), ArcHybrid(labels=2), ArcHybrid(labels=2, single_root=True)])
def test_labels(parser):
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(4, 4, 4, 2, generator=generator)
    oracle = si.get_oracle("projective_tree", labelled=True, single_root=parser.single_root)
    found = si.decode_beam(parser, theta, 200, normalize=False)
    torch.testing.assert_close(found.structures[0], si.topk(theta, oracle, 1).structures[0])
    gold = si.decode(found.structures[0], oracle)
    actions = parser.gold_actions(theta, gold[..., 0], gold[..., 1])
    score = si.sequence_log_prob(parser, theta, actions, normalize=False)
    torch.testing.assert_close(score, found.scores[0].float())
    start = parser.start(theta)
    after = parser.step(start, torch.zeros(4, dtype=torch.int64))
    costs = parser.costs(after, gold[..., 0], gold[..., 1])
    assert costs.shape == (4, 5)
    assert (costs.amin(1) == 0).all()


def test_costs_of_wrong_labels():
    parser, theta = ArcHybrid(labels=2), torch.zeros(1, 2, 2, 2)
    state = parser.step(parser.start(theta), torch.tensor([0]))
    costs = parser.costs(state, torch.tensor([[0]]), torch.tensor([[1]]))
    # shift, left and right with labels 0 and 1: only "right" is allowed.
    assert costs.tolist() == [[torch.inf, torch.inf, torch.inf, 1.0, 0.0]]


def test_wrong_inputs():
    with pytest.raises(si.InvalidInputError, match=r"shape \(B, n \+ 1, n \+ 1\)"):
        si.decode_greedy(ArcHybrid(), torch.zeros(1, 4, 3))
    with pytest.raises(si.InvalidInputError, match="lengths must be between 1 and n = 3"):
        si.decode_greedy(ArcHybrid(), (torch.zeros(1, 4, 4), torch.tensor([4])))
    with pytest.raises(si.InvalidInputError, match=r"heads must be an int64 tensor of shape \(1, 3\)"):
        ArcHybrid().gold_actions(torch.zeros(1, 4, 4), torch.zeros(1, 4, dtype=torch.int64))
    heads = torch.tensor([[0, 1, 9]])
    for parser in (ArcHybrid(), ArcStandard()):
        with pytest.raises(si.InvalidInputError, match="heads must be below 4, got 9"):
            parser.gold_actions(torch.zeros(1, 4, 4), heads)
    with pytest.raises(si.InvalidInputError, match="labels must be below 2, got 9"):
        ArcHybrid(labels=2).gold_actions(torch.zeros(1, 4, 4, 2), torch.tensor([[0, 1, 1]]), heads)
    for parser in (ArcHybrid(), ArcStandard()):
        with pytest.raises(si.InvalidInputError, match=r"labels must not be given.* labels=\.\.\."):
            parser.gold_actions(torch.zeros(1, 4, 4), torch.tensor([[0, 1, 1]]), torch.tensor([[0, 1, 1]]))
        with pytest.raises(TypeError, match=r"score must return a tensor \(1, 3\), got NoneType"):
            si.decode_greedy(replace(parser, score=lambda state: None), torch.zeros(1, 4, 4))
    with pytest.raises(si.InvalidInputError, match="score must return"):
        si.decode_greedy(ArcHybrid(lambda state: torch.zeros(1, 2)), torch.zeros(1, 4, 4))
