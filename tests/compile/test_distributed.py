"""Gradients are the same in one process, in two that average theirs, and accumulated over parts of a batch."""

from __future__ import annotations

import multiprocessing

import pytest
import torch

from distributed_worker import MODELS, gradients_of, made, train

pytestmark = pytest.mark.slow

INDEPENDENT = [name for name in MODELS if name != "adaptive"]
"""Those in which an instance's gradient does not depend on its batch."""

every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The gradients of every model in each of two processes."""
    folder = tmp_path_factory.mktemp("group")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=train, args=(rank, str(folder)), daemon=True) for rank in range(2)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(120)
    finally:
        for process in processes:
            process.kill()
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def _at_once(name):
    """Two steps back on the whole batch in one process."""
    model, batch = made(name)
    for _ in range(2):
        model(batch).backward()
    return gradients_of(model)


def _accumulated(name):
    """The same, a half of the batch after the other."""
    model, batch = made(name)
    for _ in range(2):
        for half in batch.split(2):
            (model(half) / 2).backward()
    return gradients_of(model)


def _of_two_copies(name):
    """The means of the gradients of two copies, each on a half; both take each step from the first one's buffers."""
    (one, batch), (other, _) = made(name), made(name)
    for _ in range(2):
        for theirs, ours in zip(other.buffers(), one.buffers(), strict=True):
            theirs.copy_(ours)
        for model, half in zip((one, other), batch.split(2), strict=True):
            (model(half) / 2).backward()
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        ours.grad += theirs.grad
    return gradients_of(one)


@pytest.mark.slow
@every_model
def test_two_processes(found, name):
    first, second = (answers[name] for answers in found)
    torch.testing.assert_close(first, _of_two_copies(name))
    for parameter in dict(made(name)[0].named_parameters()):
        torch.testing.assert_close(second[parameter], first[parameter])


@pytest.mark.slow
@pytest.mark.parametrize("name", INDEPENDENT)
def test_two_processes_have_the_gradients_of_one(found, name):
    torch.testing.assert_close(found[0][name], _at_once(name))


@pytest.mark.parametrize("name", INDEPENDENT)
def test_accumulated_gradients(name):
    expected = _at_once(name)
    torch.testing.assert_close(_accumulated(name), expected)
    assert all(bool(gradient.any()) == (name != "map") for gradient in expected.values())


def test_the_step_of_adaptive_imle_is_relative_to_the_batch_at_hand():
    """So that the buffers learn once in each step back, and the gradients of halves are another estimate."""
    at_once, accumulated = _at_once("adaptive"), _accumulated("adaptive")
    steps = [round((1 - found["layer.relaxation.alpha"].item()) / 1e-3) for found in (at_once, accumulated)]
    assert steps == [2, 4]
    assert (
        torch.nn.functional.cosine_similarity(
            at_once["linear.weight"].flatten(), accumulated["linear.weight"].flatten(), dim=0
        )
        > 0.9
    )
