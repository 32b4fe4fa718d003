"""Wrong arguments of oracles' methods, called without a public function: each call raises the error of ``relax``.

The wrong scores and instance data are made from the examples of all registered oracles.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from oracle_example import Example
from oracle_examples import parametrize
from structinf.calls.problem import Problem
from structinf.dp import HypergraphProgram
from structinf.errors import InvalidInputError, StructinfError
from structinf.oracle import (
    EntropyProjectable,
    Enumerable,
    GibbsOracle,
    KBest,
    Oracle,
    Projectable,
    Samplable,
    TransportPolytope,
)
from structinf.parts import as_tuple, map_parts, pack_like
from structinf.regularizers import NEGENTROPY
from structinf.smoothing import Smoothable

BATCH = 5

Call = Callable[[Any, Any], Any]


def _weight(theta: Any) -> Tensor:
    return torch.ones(BATCH)


CALLS: dict[type, dict[str, Call]] = {
    Oracle: {
        "argmax": lambda oracle, theta: oracle.argmax(theta),
        "argmax by keyword": lambda oracle, theta: oracle.argmax(theta=theta),
        "hamming_cost": lambda oracle, theta: oracle.hamming_cost(theta),
        "readout_transpose": lambda oracle, theta: oracle.readout_transpose(torch.zeros(BATCH, 1), theta),
    },
    GibbsOracle: {
        "log_partition": lambda oracle, theta: oracle.log_partition(theta),
        "marginals": lambda oracle, theta: oracle.marginals(theta),
        "log_partition_and_marginals": lambda oracle, theta: oracle.log_partition_and_marginals(theta),
        "log_partition_vjp": lambda oracle, theta: oracle.log_partition_vjp(theta, _weight(theta)),
        "covariance_product": lambda oracle, theta: oracle.covariance_product(theta, theta),
    },
    Smoothable: {
        "smoothed_value": lambda oracle, theta: oracle.smoothed_value(theta, NEGENTROPY),
        "smoothed_mean": lambda oracle, theta: oracle.smoothed_mean(theta, NEGENTROPY),
        "smoothed_value_and_mean": lambda oracle, theta: oracle.smoothed_value_and_mean(theta, NEGENTROPY),
        "smoothed_vjp": lambda oracle, theta: oracle.smoothed_vjp(theta, _weight(theta), NEGENTROPY),
        "smoothed_hessian_product": lambda oracle, theta: oracle.smoothed_hessian_product(theta, theta, NEGENTROPY),
    },
    Samplable: {"sample": lambda oracle, theta: oracle.sample(theta, 2)},
    KBest: {"topk": lambda oracle, theta: oracle.topk(theta, 2)},
    Projectable: {"project": lambda oracle, theta: oracle.project(theta)},
    EntropyProjectable: {"project_entropy": lambda oracle, theta: oracle.project_entropy(theta, binary=False)},
    TransportPolytope: {"margins": lambda oracle, theta: oracle.margins(theta)},
    HypergraphProgram: {
        "smoothed_sample": lambda oracle, theta: oracle.smoothed_sample(theta, 2, NEGENTROPY),
        "entropy": lambda oracle, theta: oracle.entropy(theta),
        "log_prob": lambda oracle, theta: oracle.log_prob(theta, theta),
        "count": lambda oracle, theta: oracle.count(theta),
        "enumerate_support": lambda oracle, theta: oracle.enumerate_support(theta, NEGENTROPY),
    },
}


def calls_of(oracle: Oracle) -> dict[str, Call]:
    """Return the methods of the oracle that take scores, as functions."""
    found: dict[str, Call] = {}
    for ability, calls in CALLS.items():
        found |= calls if isinstance(oracle, ability) else {}
    if type(oracle).valid_parts is not Oracle.valid_parts:
        found["valid_parts"] = lambda oracle, theta: oracle.valid_parts(theta)
    if type(oracle).decode is not Oracle.decode:
        found["decode"] = lambda oracle, theta: oracle.decode(theta)
        labels = torch.zeros((BATCH,) + (1,) * oracle.label_ndim, dtype=torch.int64)
        found["encode"] = lambda oracle, theta: oracle.encode(labels, theta)
    if hasattr(oracle, "solve_quadratic"):
        found["solve_quadratic"] = lambda oracle, theta: oracle.solve_quadratic(theta, 1e-6, 10)
    return found


# ----------------------------------------------------------------------------- wrong arguments


def scores(example: Example) -> Any:
    """Return scores 0 of some instances."""
    tensors = [torch.zeros(BATCH, *shape) for shape in example.shapes]
    return tuple(tensors) if example.is_tuple else tensors[0]


def replace_tensor(theta: Any, i: int, tensor: Any) -> Any:
    """Return ``theta`` with another tensor number ``i``."""
    return pack_like([tensor if j == i else t for j, t in enumerate(as_tuple(theta))], theta)


def other_sizes(theta: Any) -> Iterator[Any]:
    """Yield scores with the right number of dimensions, of which one has another size."""
    for i, t in enumerate(as_tuple(theta)):
        for dim in range(1, t.ndim):
            for size in {0, 1, t.shape[dim] + 1, t.shape[dim] + 7} - {t.shape[dim]}:
                shape = [*t.shape]
                shape[dim] = size
                yield replace_tensor(theta, i, torch.zeros(shape))


def wrong_forms(theta: Any) -> Iterator[Any]:
    """Yield scores that no method accepts, whatever the oracle."""
    yield from (None, 3, "theta", (), [*as_tuple(theta)], map_parts(lambda t: t.numpy(), theta))
    yield (*as_tuple(theta), torch.zeros(BATCH, 2), torch.zeros(BATCH, 2))
    for convert in (
        Tensor.long,
        Tensor.half,
        Tensor.to_sparse,
        lambda t: t.to(torch.complex64),
        lambda t: t.to("meta"),
    ):
        yield map_parts(convert, theta)
    for i, t in enumerate(as_tuple(theta)):
        yield replace_tensor(theta, i, t[0])
        yield replace_tensor(theta, i, t[None])
        yield replace_tensor(theta, i, torch.zeros(()))
        if isinstance(theta, tuple):
            yield replace_tensor(theta, i, t.double())
            yield replace_tensor(theta, i, torch.zeros(BATCH + 1, *t.shape[1:]))


def wrong_data(oracle: Oracle, right: Mapping[str, Tensor]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield instance data for :meth:`Oracle.bind`, and whether the data are wrong for any oracle."""
    for name in oracle.instance_ndim:
        value = right.get(name, torch.ones((BATCH,) + (1,) * oracle.instance_ndim[name], dtype=torch.int64))
        for number in (-1, -(10**7), 10**7, 2**62, 0, 1, 9):
            yield {**right, name: torch.full_like(value, number)}, False
            changed = value.clone()
            changed.view(-1)[-1] = number
            yield {**right, name: changed}, False
        yield {**right, name: value[:1]}, True
        yield {**right, name: torch.cat([value, value])}, True
        yield {**right, name: value.unsqueeze(-1)}, True
        yield {**right, name: value.sum()}, True
        if name == "lengths":
            yield {**right, name: value.float()}, True
            yield {**right, name: value > 0}, True


def data_of(example: Example, oracle: Oracle) -> dict[str, Tensor]:
    """Return valid instance data of some instances; empty if the example has none."""
    if example.instance_data is None:
        return {}
    if callable(example.instance_data):
        return {
            k: torch.as_tensor(v) for k, v in example.instance_data(BATCH, torch.Generator().manual_seed(0)).items()
        }
    drawn: Any = example.instance_data
    return {name: torch.as_tensor(rows)[:1].repeat_interleave(BATCH, 0) for name, rows in drawn.items()}


def error_of(function: Callable[[], Any]) -> Exception | None:
    """Return the error that ``function`` raises, or None."""
    try:
        function()
    except Exception as error:
        return error
    return None


OF_STRUCTURES = ("hamming_cost", "decode", "encode", "readout_transpose")
"""Methods that take structures of several instances with the data of one instance, and the reverse."""


def expect_error(oracle: Oracle, theta: Any, message: str | None, without: tuple[str, ...] = ()) -> None:
    """Assert that each method, ``without`` some, refuses ``theta``, with the ``message`` if it is given."""
    for name, call in calls_of(oracle).items():
        if name in without:
            continue
        error = error_of(lambda call=call: call(oracle, theta))
        assert isinstance(error, StructinfError | TypeError), f"{name} of {oracle!r}: {error!r}"
        # Methods with another argument in the form of theta name that argument.
        received = re.sub(r"^(y|like)\b", "theta", str(error))
        assert "theta" in received or message is not None, f"{name} of {oracle!r}: {error}"
        assert message is None or received == message, f"{name} of {oracle!r}: {error}"


# ----------------------------------------------------------------------------- tests


@parametrize()
def test_scores_of_a_wrong_form(example):
    oracle, theta = example.oracle(), scores(example)
    data = data_of(example, oracle)
    used = oracle.bind(**data)
    used.valid_parts(theta)  # from now on, scores of this form are accepted
    for wrong in wrong_forms(theta):
        expect_error(example.oracle().bind(**data), wrong, None)
        expect_error(used, wrong, None)


@parametrize()
def test_scores_of_another_size(example):
    oracle, theta = example.oracle(), scores(example)
    data = data_of(example, oracle)
    used = oracle.bind(**data)
    used.valid_parts(theta)
    for wrong in other_sizes(theta):
        expected = error_of(lambda wrong=wrong: Problem.build(wrong, example.oracle(), data))
        if expected is not None:
            expect_error(example.oracle().bind(**data), wrong, str(expected))
            expect_error(used, wrong, str(expected))


@parametrize(lambda example: bool(example.oracle().instance_ndim))
def test_wrong_instance_data(example):
    theta = scores(example)
    for wrong, is_wrong_form in wrong_data(example.oracle(), data_of(example, example.oracle())):
        expected = error_of(lambda wrong=wrong: Problem.build(theta, example.oracle().bind(**wrong), {}))
        assert expected is not None or not is_wrong_form
        if expected is not None:
            alone = any(value.shape[:1] == (1,) for value in wrong.values())
            expect_error(example.oracle().bind(**wrong), theta, str(expected), OF_STRUCTURES if alone else ())
            given = error_of(lambda wrong=wrong: Problem.build(theta, example.oracle(), wrong))
            assert is_wrong_form or str(given) == str(expected)


@parametrize(lambda example: example.relaxed)
def test_other_arguments_of_a_wrong_form(example):
    oracle, theta = example.oracle(), scores(example)
    oracle = oracle.bind(**data_of(example, oracle))
    narrower = map_parts(lambda t: t[..., :0], theta)
    longer = map_parts(lambda t: torch.cat([t, t]), theta)
    vectors = [narrower, longer, None, map_parts(Tensor.long, theta), (theta, theta)]
    weights = [torch.ones(BATCH + 1), torch.ones(()), torch.ones(BATCH, 1), torch.ones(BATCH).long(), 1.0]
    calls: list[tuple[Callable[..., Any], list[Any]]] = [(oracle.score, [narrower, longer, None, (theta, theta)])]
    if isinstance(oracle, GibbsOracle):
        calls += [(oracle.covariance_product, vectors), (oracle.log_partition_vjp, weights)]
    if isinstance(oracle, Smoothable):
        calls.append((lambda t, v: oracle.smoothed_hessian_product(t, v, NEGENTROPY), vectors))
        calls.append((lambda t, w: oracle.smoothed_vjp(t, w, NEGENTROPY), weights))
    if isinstance(oracle, HypergraphProgram):
        calls.append((oracle.log_prob, vectors))
    for call, arguments in calls:
        for argument in arguments:
            error = error_of(lambda call=call, argument=argument: call(theta, argument))
            assert isinstance(error, InvalidInputError | TypeError), f"{call} {argument!r}: {error!r}"
    if type(oracle).encode is not Oracle.encode:
        for labels in (
            None,
            3,
            torch.ones(BATCH),
            torch.zeros((), dtype=torch.int64),
            torch.zeros(BATCH + 1, 2).long(),
        ):
            error = error_of(lambda labels=labels: oracle.encode(labels, theta))  # pyright: ignore[reportArgumentType]
            assert isinstance(error, StructinfError | TypeError), f"{labels!r}: {error!r}"


@parametrize(lambda example: example.relaxed and isinstance(example.oracle(), Enumerable))
def test_enumerate_of_wrong_shapes(example):
    oracle = example.oracle()
    shape = example.event_shape
    several = tuple((*s, 1) for s in example.shapes)
    for wrong in (
        None,
        4,
        True,
        "ab",
        (),
        (-1,),
        (True,),
        (2.0,),
        ((1, 2), (3,), (4,)),
        torch.zeros(2),
        several if example.is_tuple else several[0],
    ):
        if wrong != shape:
            error = error_of(lambda wrong=wrong: oracle.enumerate(wrong))
            assert isinstance(error, InvalidInputError), f"{wrong!r}: {error!r}"
            assert "event_shape" in str(error)
    as_list = [list(s) for s in shape] if example.is_tuple else list(shape)
    found = zip(as_tuple(oracle.enumerate(as_list)), as_tuple(oracle.enumerate(shape)), strict=True)
    assert all(torch.equal(*pair) for pair in found)
    data = data_of(example, oracle)
    if data:
        with pytest.raises(InvalidInputError, match="bound for a batch of 5"):
            oracle.bind(**data).enumerate(shape)


@pytest.mark.parametrize(
    ("name", "theta", "data", "message"),
    [
        ("ranking", torch.zeros(2, 4), {"lengths": [5, 5]}, "lengths must lie between 0 and 4"),
        ("ranking", torch.zeros(2, 4), {"lengths": [10**7, 4]}, "lengths must lie between 0 and 4"),
        ("chain", (torch.zeros(1, 3, 5), torch.zeros(1, 2, 2)), {}, "theta: chain takes unary"),
        ("chain", (torch.zeros(1, 3, 5), torch.zeros(5, 5)), {}, r"theta\[1\]: methods of chain take 3 dimensions"),
        ("arborescence", torch.zeros(1, 3, 4), {}, "theta: arborescence takes scores"),
        ("spanning_tree", torch.zeros(1, 3, 4), {}, "theta: spanning_tree takes scores"),
    ],
)
def test_calls_that_left_their_arrays(name, theta, data, message):
    with pytest.raises(InvalidInputError, match=f"^{message}"):
        si.get_oracle(name).bind(**data).argmax(theta)


# ----------------------------------------------------------------------------- how calls are checked


class Halves(Oracle):
    """A plugin with two arguments of a subclass: scores of an even size, of which the second half counts."""

    event_ndim = 1
    validated = 0

    def validate(self, theta: Tensor) -> None:
        type(self).validated += 1
        if theta.shape[1] % 2:
            raise InvalidInputError("theta must have an even size")

    def argmax(self, theta: Tensor) -> Tensor:
        """Return the best half."""
        return (theta > 0).to(theta)


class Whole(Halves):
    """A subclass that changes the form of the scores before it calls the parent's method."""

    def argmax(self, theta: Tensor) -> Tensor:
        return torch.cat([super().argmax(theta[:, :1]), super().argmax(theta[:, 1:])], 1)


class Mixin:
    """Overrides a method without being an oracle."""

    def argmax(self, theta: Tensor) -> Tensor:
        return super().argmax(theta)  # pyright: ignore[reportAttributeAccessIssue]


class Mixed(Mixin, Halves):
    """Inherits a method of a class that is no oracle."""


@pytest.mark.parametrize("kind", [Halves, Whole, Mixed])
def test_plugins_are_checked_once_for_each_form(kind, monkeypatch):
    monkeypatch.setattr(kind, "validated", 0)
    oracle = kind()
    for batch in (1, 3):
        oracle.argmax(torch.zeros(batch, 4))
    assert kind.validated == 1
    with pytest.raises(InvalidInputError, match="even size"):
        oracle.argmax(torch.zeros(1, 3))
    oracle.argmax(torch.zeros(1, 4))
    for again in (copy.copy(oracle), copy.deepcopy(oracle), pickle.loads(pickle.dumps(oracle))):
        with pytest.raises(InvalidInputError, match="even size"):
            again.argmax(torch.zeros(1, 3))


def test_a_public_call_validates_once(monkeypatch):
    monkeypatch.setattr(Halves, "validated", 0)
    si.relax(torch.randn(2, 4), Halves(), "sparsemap")
    assert Halves.validated == 1


def test_names_and_docs_of_methods_are_kept():
    assert Halves.argmax.__name__ == "argmax"
    assert Halves.argmax.__doc__ == "Return the best half."
    with pytest.raises(TypeError, match=r"Halves\.argmax\(\) missing 1 required positional argument: 'theta'"):
        Halves().argmax()  # pyright: ignore[reportCallIssue]


def test_rows_of_an_oracle_keep_their_data():
    chain = si.get_oracle("chain").bind(lengths=[3, 2, 1])
    theta = (torch.zeros(3, 3, 2), torch.zeros(1, 2, 2))
    chain.argmax(theta)
    rows = chain[torch.tensor([2, 0])]
    rows.argmax((theta[0][:2], theta[1]))
    for wrong in (rows, chain.repeat(2), chain[:1]):
        with pytest.raises(InvalidInputError, match="bound for a batch of"):
            wrong.argmax(theta)
    with pytest.raises(InvalidInputError, match="theta: chain takes unary"):
        rows.argmax((theta[0][:2], theta[1][..., :1]))
    ranking = si.get_oracle("ranking").bind(lengths=[3, 2])
    ranking.argmax(torch.zeros(2, 3))
    for wrong in (torch.zeros(()), torch.zeros(0), torch.zeros(1, 2), torch.zeros(1)):
        with pytest.raises(InvalidInputError):
            ranking[:1].argmax(wrong)


@pytest.mark.usefixtures("fresh_compiler")
def test_methods_of_plugins_are_traced_whole():
    oracle, theta = Halves(), torch.randn(2, 4)
    compiled = torch.compile(lambda t: oracle.argmax(t), backend="eager", fullgraph=True)
    assert torch.equal(compiled(theta), oracle.argmax(theta))


def test_an_oracle_with_slots_is_validated_at_each_call():
    class Slots(Halves):
        __slots__ = ()

    with pytest.raises(InvalidInputError, match="even size"):
        Slots().argmax(torch.zeros(1, 3))
