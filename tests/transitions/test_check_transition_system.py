"""The conformance suite of transition systems: the built-in systems pass, and each broken system fails its check."""

from __future__ import annotations

import pytest
import torch

import structinf as si
from structinf.transitions import ArcHybrid, ArcStandard, BitsInOrder, PlackettLuce, ShiftReduce

THETA = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([4, 1, 3])
SYSTEMS = {
    "shift_reduce": (ShiftReduce(), (THETA, LENGTHS)),
    "shift_reduce_labels": (ShiftReduce(labels=2), (torch.stack([THETA, THETA], 3), LENGTHS)),
    "arc_standard": (ArcStandard(), (THETA, LENGTHS)),
    "arc_hybrid": (ArcHybrid(single_root=True), (THETA, LENGTHS)),
    "arc_hybrid_labels": (ArcHybrid(labels=2), (torch.stack([THETA, THETA], 3), LENGTHS)),
    "plackett_luce": (PlackettLuce(), (THETA[:, 0], LENGTHS)),
    "plackett_luce_first": (PlackettLuce(2), THETA[:, 0]),
    "bits": (BitsInOrder(), (THETA[:, 0], LENGTHS)),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_built_in_systems(name):
    system, inputs = SYSTEMS[name]
    report = si.check_transition_system(system, inputs)
    assert len(report.passed) == 7
    assert not report.failed
    assert not report.not_applicable
    si.check_transition_system(system, _double(inputs), walks=1, seed=1)


def _double(inputs):
    return (inputs[0].double(), *inputs[1:]) if isinstance(inputs, tuple) else inputs.double()


class Right(si.TransitionSystem):
    """Two tokens of three."""

    def __init__(self):
        self.calls = 0

    def start(self, inputs):
        return {"scores": inputs, "tokens": torch.full((len(inputs), 2), -1), "count": torch.zeros(len(inputs)).long()}

    def actions(self, state):
        return state["scores"]

    def step(self, state, action):
        tokens = state["tokens"].scatter(1, state["count"][:, None], action[:, None])
        return {**state, "tokens": tokens, "count": state["count"] + 1}

    def done(self, state):
        return state["count"] == 2

    def structure(self, state):
        return state["tokens"]


class WritesToState(Right):
    def step(self, state, action):
        state["count"] += 1
        return super().step({**state, "count": state["count"] - 1}, action)


class WritesTheSameAgain(Right):
    def step(self, state, action):
        after = super().step(state, action)
        # The second call with the same state changes nothing.
        state["tokens"][:, 0] = 7
        return after


class WritesInDone(Right):
    def done(self, state):
        state["tokens"][:, 1] = 7
        return super().done(state)


class ReadsOtherRows(Right):
    def actions(self, state):
        return state["scores"] - state["scores"].mean(0)


class ReadsThePlaceInTheBatch(Right):
    def actions(self, state):
        return state["scores"] * (torch.arange(len(state["count"]))[:, None] + 1.0)


class Grows(Right):
    def step(self, state, action):
        after = super().step(state, action)
        return {**after, "scores": after["scores"].repeat(1, 2)}


class NeverEnds(Right):
    max_steps = 10

    def step(self, state, action):
        return state


class NoActions(Right):
    def actions(self, state):
        return torch.full_like(state["scores"], -torch.inf)


class Random(Right):
    def actions(self, state):
        self.calls += 1
        return state["scores"] + self.calls


class Noisy(Right):
    def actions(self, state):
        self.calls += 1
        return state["scores"] * (1 + 0.1 * self.calls)


class FailsWithoutStates(Right):
    def structure(self, state):
        return state["tokens"].reshape(len(state["tokens"]), state["tokens"].numel() // len(state["tokens"]))


class WrongDone(Right):
    def done(self, state):
        return (state["count"] == 2).float()


class HoldsANumber(Right):
    def start(self, inputs):
        return {**super().start(inputs), "step": 0}


@pytest.mark.parametrize(
    ("system", "check", "message"),
    [
        (WritesToState, "arguments_untouched", "step() writes"),
        (WritesTheSameAgain, "arguments_untouched", "step() writes"),
        (WritesInDone, "arguments_untouched", "done() writes"),
        (ReadsOtherRows, "rows_are_independent", "actions() of some rows"),
        (ReadsThePlaceInTheBatch, "rows_are_independent", "actions() of some rows"),
        (Grows, "form_of_states", "step() turns a tensor of shape (9, 3) in torch.float32 into shape (9, 6)"),
        (NeverEnds, "walks_end", "has not ended after max_steps = 10"),
        (NoActions, "walks_end", "without an allowed action"),
        (Noisy, "rows_are_independent", "actions() of some rows"),
        (FailsWithoutStates, "empty_batch", "ZeroDivisionError was raised"),
        (WrongDone, "form", "done() of WrongDone must return a bool tensor of shape (3,), got (3,) in torch.float32"),
        (HoldsANumber, "form", "got int; store a number of each instance in a tensor"),
    ],
)
def test_broken_systems(system, check, message):
    scores = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(si.testing.CheckError) as error:
        si.check_transition_system(system(), scores)
    assert error.value.check == check
    assert message in str(error.value)
    report = si.check_transition_system(system(), scores, raise_on_failure=False)
    assert check in report.failed


def test_scores_may_have_any_constant():
    """A log-softmax removes the constant, so that this system passes."""
    assert not si.check_transition_system(Random(), torch.zeros(2, 3)).failed


def test_inputs_of_one_instance():
    with pytest.raises(si.testing.CheckError, match="pass at least 2"):
        si.check_transition_system(Right(), torch.zeros(1, 3))
