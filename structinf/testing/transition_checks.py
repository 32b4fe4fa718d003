"""The conformance suite of transition systems."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import PluginError
from ..noise import Gumbel
from ..parts import Parts, as_tuple
from ..transitions.sequences import sequence_log_prob
from ..transitions.states import State, concatenate, leaves, map_states, select
from ..transitions.system import CheckedSystem, TransitionSystem
from ..validation import check_natural
from .comparisons import CheckFailed, fail
from .report import CheckError, CheckReport, CheckResult

__all__ = ["check_transition_system"]


@dataclass(frozen=True)
class _Step:
    """Unfinished states on a random walk, their scores, and an allowed action of each."""

    state: State
    scores: Tensor
    action: Tensor


@dataclass
class _Target:
    """A system with inputs, and the random walks on which it is tested."""

    system: CheckedSystem
    inputs: Any
    generator: torch.Generator
    walks: int
    steps: list[_Step]
    finished: list[State]
    actions: Tensor
    total: Tensor
    is_endless: bool = False


def check_transition_system(
    system: TransitionSystem, inputs: Any, *, walks: int = 3, seed: int = 0, raise_on_failure: bool = True
) -> CheckReport:
    """Check a transition system against its protocol, on random sequences of allowed actions.

    Parameters
    ----------
    system : TransitionSystem
        The system. A module with dropout must be in evaluation mode.
    inputs : any
        The inputs of the system's ``start``: a batch of at least two instances, of different lengths if the system
        knows lengths.
    walks : int
        The number of random sequences of each instance, drawn with the probabilities of the system.
    seed : int
        The seed of the sequences.
    raise_on_failure : bool
        Whether to raise the first failure. If False, all checks run, and the report holds the failures.

    Returns
    -------
    CheckReport
        The checks that passed, failed or do not apply.

    Raises
    ------
    CheckError
        If a check fails. The message names the check, the requirement and the wrong result. The error is also an
        AssertionError.

    Examples
    --------
    >>> from structinf.transitions import ShiftReduce
    >>> inputs = torch.randn(2, 4, 4), torch.tensor([3, 4])
    >>> report = check_transition_system(ShiftReduce(), inputs)
    >>> report.passed[:3]
    ['form', 'walks_end', 'arguments_untouched']
    """
    check_natural("walks", walks)
    target = _Target(
        CheckedSystem(system),
        inputs,
        torch.Generator().manual_seed(seed),
        walks,
        [],
        [],
        torch.empty(0, device="cpu"),
        torch.empty(0, device="cpu"),
    )
    results: list[CheckResult] = []
    with torch.no_grad():
        for test in _CHECKS:
            start, error, reason, count = time.perf_counter(), None, None, 0
            if results and results[0].error is not None:
                reason = "the suite could not make any sequence"
            else:
                try:
                    count = test(target)
                except Exception as failure:
                    error = _error(test, target, failure)
            name, seconds = test.__name__.strip("_"), time.perf_counter() - start
            results.append(CheckResult(name, _requirement(test), count, reason, error, seconds))
            if error is not None and raise_on_failure:
                raise error
    return CheckReport(target.system.label, tuple(results))


def _requirement(test: Callable[[_Target], int]) -> str:
    return " ".join((test.__doc__ or "").split())


def _error(test: Callable[[_Target], int], target: _Target, failure: Exception) -> CheckError:
    name = test.__name__.strip("_")
    message = str(failure)
    if not isinstance(failure, CheckFailed | PluginError):
        message = f"{type(failure).__name__} was raised: {failure}"
    error = CheckError(
        f"{target.system.label} fails the check {name!r}: {_requirement(test)}\n{message}", name, message
    )
    error.__cause__ = None if isinstance(failure, CheckFailed) else failure
    return error


def _form(target: _Target) -> int:
    """All methods return tensors of the documented shapes, and scores without NaN and +inf."""
    system = target.system
    state, batch = system.start(target.inputs)
    if batch < 2:
        fail(f"the inputs have {batch} instances; pass at least 2, since the suite compares instances")
    done = system.done(_copy(state))
    state = select(state, torch.arange(batch, device=done.device).repeat(target.walks))
    running, history = torch.arange(batch * target.walks, device=done.device), []
    total = torch.zeros(len(running), dtype=torch.float64, device=done.device)
    ended = torch.zeros(len(running), dtype=torch.bool, device=done.device)
    for _ in range(system.system.max_steps + 1):
        # Each method gets a copy. The recorded states thus hold no writes of the methods, and a later check finds
        # also a write that changes nothing when it is repeated.
        done = system.done(_copy(state))
        if bool(done.any()):
            target.finished.append(select(state, done.nonzero()[:, 0]))
            ended[running[done]] = True
            state, running = select(state, (~done).nonzero()[:, 0]), running[~done]
        if not len(running):
            break
        scores = system.action_scores(_copy(state))
        alive = (scores > -torch.inf).any(1)
        state, running, scores = select(state, alive.nonzero()[:, 0]), running[alive], scores[alive]
        if not len(running):
            break
        noise = Gumbel().sample(scores.shape, dtype=scores.dtype, device=scores.device, generator=target.generator)
        action = (scores + noise).argmax(1)
        target.steps.append(_Step(state, scores, action))
        total[running] += scores.gather(1, action[:, None])[:, 0].double()
        history.append(torch.full((len(total),), -1, device=done.device).index_copy(0, running, action))
        state = system.step(_copy(state), action)
    for finished in target.finished:
        system.structure(_copy(finished))
    actions = torch.stack(history, 1) if history else torch.full((len(total), 0), -1, device=done.device)
    target.actions = actions.view(target.walks, batch, -1)
    target.total = total.view(target.walks, batch)
    target.is_endless = len(history) > system.system.max_steps
    return batch * target.walks


def _copy(state: State) -> State:
    return map_states(Tensor.clone, state)


def _walks_end(target: _Target) -> int:
    """Each sequence of allowed actions ends after at most max_steps actions, and some sequences are complete."""
    if target.is_endless:
        fail(f"a sequence has not ended after max_steps = {target.system.system.max_steps} actions")
    if not target.finished:
        fail("all sequences ran into a state without an allowed action")
    return sum(len(next(leaves(state))) for state in target.finished)


def _arguments_untouched(target: _Target) -> int:
    """No method writes to its arguments."""
    system = target.system.system
    for step in target.steps:
        for name, call in (
            ("actions", lambda state: system.actions(state)),
            ("done", lambda state: system.done(state)),
            ("step", lambda state, action=step.action: system.step(state, action)),
        ):
            _expect_untouched(name, call, step.state)
    for state in target.finished:
        _expect_untouched("structure", system.structure, state)
    return len(target.steps)


def _expect_untouched(name: str, call: Callable[[State], Any], state: State) -> None:
    before = [tensor.clone() for tensor in leaves(state)]
    call(state)
    if not all(torch.equal(old, new) for old, new in zip(before, leaves(state), strict=True)):
        fail(f"{name}() writes to a tensor of the state")


def _form_of_states(target: _Target) -> int:
    """A step keeps the form of the state, and the dtypes and shapes of its tensors."""
    for step in target.steps:
        after = target.system.step(step.state, step.action)
        try:
            map_states(_same_form, step.state, after)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as failure:
            fail(f"step() returns a state of another form: {failure}")
    return len(target.steps)


def _same_form(old: Tensor, new: Tensor) -> Tensor:
    if old.shape != new.shape or old.dtype != new.dtype:
        fail(
            f"step() turns a tensor of shape {tuple(old.shape)} in {old.dtype} into shape {tuple(new.shape)} in "
            f"{new.dtype}"
        )
    return old


def _rows_are_independent(target: _Target) -> int:
    """Row i of every result depends only on row i of the arguments."""
    system = target.system
    for step in target.steps:
        count = len(step.action)
        # All rows in another order, and one row alone.
        for rows in (
            torch.randperm(count, generator=target.generator, device="cpu"),
            torch.tensor([count - 1], device="cpu"),
        ):
            rows = rows.to(step.action.device)
            some = select(step.state, rows)
            _expect_equal("actions", system.action_scores(some), step.scores[rows])
            _expect_equal("done", system.done(some), system.done(step.state)[rows])
            after = system.step(step.state, step.action)
            selected = system.step(some, step.action[rows])
            for found, expected in zip(leaves(selected), leaves(select(after, rows)), strict=True):
                _expect_equal("step", found, expected)
    every = concatenate(target.finished)
    structures = system.structure(every)
    rows = torch.arange(len(next(leaves(every))), device=next(leaves(every)).device).flip(0)
    _expect_structures(system.structure(select(every, rows)), structures, rows)
    return len(target.steps)


def _expect_structures(found: Parts, expected: Parts, rows: Tensor) -> None:
    for one, other in zip(as_tuple(found), as_tuple(expected), strict=True):
        _expect_equal("structure", one, other[rows])


def _expect_equal(name: str, found: Tensor, expected: Tensor) -> None:
    # Matrix products of other sizes may round differently.
    eps = torch.finfo(found.dtype).eps if found.dtype.is_floating_point else 0.0
    if found.shape != expected.shape or not torch.allclose(
        found, expected, rtol=1e3 * eps, atol=1e3 * eps, equal_nan=True
    ):
        fail(f"{name}() of some rows of a batch differs from the same rows of its result for the whole batch")


def _empty_batch(target: _Target) -> int:
    """The methods done and structure accept a batch of no states."""
    every = concatenate(target.finished)
    none = select(every, torch.empty(0, dtype=torch.int64, device=next(leaves(every)).device))
    target.system.done(none)
    found, expected = target.system.structure(none), target.system.structure(every)
    for one, other in zip(as_tuple(found), as_tuple(expected), strict=True):
        if one.shape[1:] != other.shape[1:]:
            fail(f"structure() of no states has the event shape {tuple(one.shape[1:])}, not {tuple(other.shape[1:])}")
    return 1


def _repeatable(target: _Target) -> int:
    """The same inputs and actions give the same scores again."""
    found = sequence_log_prob(target.system.system, target.inputs, target.actions)
    expected = target.total.to(found.dtype)
    eps = torch.finfo(found.dtype).eps
    if not torch.allclose(found, expected, rtol=1e4 * eps, atol=1e4 * eps):
        fail(
            "the log-probabilities of the same sequences differ between two runs; is a module in training mode, with "
            "dropout?"
        )
    return found.numel()


_CHECKS = (
    _form,
    _walks_end,
    _arguments_untouched,
    _form_of_states,
    _rows_are_independent,
    _empty_batch,
    _repeatable,
)
