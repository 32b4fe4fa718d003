"""Options of a wrong kind: every option of every registered name is accepted, or refused with a sentence of ours."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch

import structinf as si
from oracle_examples import EXAMPLES
from structinf import StructinfError
from structinf.calls.resolution import ORACLES
from structinf.estimators.base import ESTIMATORS
from structinf.registry import Registry
from structinf.relaxation import RELAXATIONS

WRONG_KINDS: dict[str, Any] = {
    "none": None,
    "true": True,
    "integer": 3,
    "minus_one": -1,
    "huge": 10**30,
    "fraction": 1.5,
    "nan": float("nan"),
    "inf": float("inf"),
    "empty_string": "",
    "string": "abc",
    "bytes": b"abc",
    "empty_list": [],
    "numbers": [1, 2],
    "huge_numbers": [10**30] * 4,
    "nones": [None, None],
    "strings": ["home"],
    "lists": [[1, 2], [3, 4]],
    "ragged": [[1], [2, 3]],
    "pair": (0, 1),
    "triples": [(0, 1, 2)],
    "dict": {0: 1},
    "dict_of_lists": {"a": [1]},
    "set": {1, 2},
    "scalar": torch.tensor(1.0),
    "vector": torch.tensor([1.0, 2.0]),
    "matrix": torch.ones(2, 2),
    "integers": torch.ones(2, 2, dtype=torch.int64),
    "empty_tensor": torch.zeros(0),
    "nan_tensor": torch.full((3,), float("nan")),
    "object": object(),
    "class": int,
    "function": lambda *args, **kwargs: None,
    "generator": torch.Generator(),
}


def is_our_sentence(error: BaseException) -> bool:
    """Whether ``error`` is an error of the library, or a TypeError of one of its ``raise`` statements."""
    if isinstance(error, StructinfError) or not isinstance(error, TypeError):
        return isinstance(error, StructinfError)
    frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
    module = frame.f_globals.get("__name__", "").partition(".")[0]
    source = linecache.getline(frame.f_code.co_filename, line)
    return module in ("structinf", "structinf_oracles") and source.strip().startswith("raise ")


def options_of(registry: Registry[Any], name: str, given: Mapping[str, Any]) -> Iterator[Any]:
    for option in registry.options(name):
        if set(registry.required(name)) <= {*given, option}:
            yield pytest.param(partial(registry.get, name, **given), option, id=f"{name}-{option}")


CALLS = [
    *(call for example in EXAMPLES for call in options_of(ORACLES, example.name, example.options)),
    *(call for name in RELAXATIONS.names() for call in options_of(RELAXATIONS, name, {})),
    *(call for name in ESTIMATORS.names() for call in options_of(ESTIMATORS, name, {})),
]


@pytest.mark.parametrize(("make", "option"), CALLS)
def test_an_option_of_a_wrong_kind(make, option):
    obscure = {}
    for kind, value in WRONG_KINDS.items():
        options = {**make.keywords, option: value}
        try:
            make.func(*make.args, **options)
        except Exception as error:
            if not is_our_sentence(error) or option not in str(error):
                obscure[kind] = error
    assert not obscure


EDGES = [(0, 1), (1, 2), (0, 2)]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("transportation", {"supplies": 3, "demands": [1]}, r"^supplies must be a sequence of integers, got 3"),
        (
            "transportation",
            {"supplies": [1], "demands": {0: 1}},
            r"^demands must be a sequence of integers, got \{0: 1\}",
        ),
        (
            "transportation",
            {"supplies": torch.ones(2, 2).long(), "demands": [1]},
            r"^supplies .*array of shape \(2, 2\)",
        ),
        ("flow", {"graph": EDGES, "supplies": 3}, r"^supplies must be a mapping from nodes to numbers, or .*, got 3"),
        (
            "flow",
            {"graph": EDGES, "supplies": [(["a"], 1)]},
            r"^supplies: \['a'\] is not a node of the graph; its nodes",
        ),
        (
            "flow",
            {"graph": EDGES, "supplies": {5: 1, 0: -1}},
            r"^supplies: 5 is not a node of the graph; its nodes are 0",
        ),
        (
            "flow",
            {"graph": EDGES, "supplies": [(0, 1), (0, 2)]},
            r"^supplies must have one entry .* two for 0; add them",
        ),
        (
            "flow",
            {"graph": EDGES, "supplies": {}, "capacities": int},
            r"^capacities must be a number for all edges, or",
        ),
        (
            "binary_tree",
            {"labelled": True, "rules": 3},
            r"^rules must be a sequence of triples .*, got 3; give for example",
        ),
        ("binary_tree", {"labelled": True, "rules": {0: 1}}, r"^rules must be a sequence of triples .*, got \{0: 1\}"),
        (
            "binary_tree",
            {"labelled": True, "unary_rules": (0, 1)},
            r"^unary_rules must be a sequence of pairs .*, got \(0, 1\)",
        ),
        (
            "binary_tree",
            {"labelled": True, "roots": [True]},
            r"^roots: labels must be integers of at least 0, got \[True",
        ),
        (
            "dag_path",
            {"graph": EDGES, "source": ["home"]},
            r"^source: \['home'\] is not a node of the graph; its nodes are",
        ),
        ("dag_path", {"graph": EDGES, "target": torch.zeros(2)}, r"^target: tensor\(.*\) is not a node of the graph"),
        (
            "path",
            {"graph": EDGES, "source": 0, "target": {}},
            r"^target: \{\} is not a node of the graph; its nodes are",
        ),
        (
            "knapsack",
            {"weights": [10**30] * 4, "capacity": 1},
            r"^weights must have a sum of at most 2\^53, got 40+; div",
        ),
        (
            "knapsack",
            {"weights": torch.ones(2, 3), "capacity": 1},
            r"^weights must be integers of at least 0, got 1.0 for item 0; pass numbers of an integer type$",
        ),
        (
            "knapsack",
            {"weights": [[1, 2], [3, 4]], "capacity": 1},
            r"^capacity must hold a number for each of 2 rows of weights, got 1$",
        ),
        ("knapsack", {"weights": [1, 0.5], "capacity": 1}, r"^weights must be .*, got 0.5 for item 1; scale and round"),
        ("knapsack", {"weights": [1, "b"], "capacity": 1}, r"^weights must be .*, got 'b' for item 1$"),
    ],
)
def test_the_sentence_names_the_option_and_the_value(name, options, message):
    with pytest.raises(si.InvalidInputError, match=message):
        si.get_oracle(name, **options)


def test_a_capacity_beyond_64_bits():
    theta = torch.tensor([1.0, -1.0])
    wide = si.get_oracle("knapsack", weights=[1, 2], capacity=10**30)
    assert si.relax(theta, wide, "map").tolist() == [1, 0]
    assert si.encode(torch.tensor([1, 1]), theta, wide).tolist() == [1, 1]


def test_the_node_of_an_option_may_be_a_tensor_of_one_number():
    oracle = si.get_oracle("dag_path", graph=EDGES, source=torch.tensor(0), target=torch.tensor(2))
    assert si.relax(torch.tensor([0.0, 0.0, 1.0]), oracle, "map").tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: si.topk(torch.zeros(3, 3), "spanning_tree", 2, edge=[(0, 1)]),
            r"there is no option 'edge' \(spanning_tree has edges; instance data: lengths, graph_index\); did you mean "
            "'edges'",
        ),
        (lambda: si.log_partition(torch.zeros(3), "subset", kk=2), "did you mean 'k'\\?"),
        (lambda: si.relax(torch.zeros(3), "categorical", "sparsemap", tol=1e-3), "did you mean 'tolerance'\\?"),
        (lambda: si.get_relaxation("sparsemap", temp=2.0), "did you mean 'temperature'\\?"),
        (lambda: si.SPOPlusLoss("categorical")(torch.zeros(3)), r"SPOPlusLoss.forward\(\) missing .* 'true_theta'"),
        (
            lambda: si.sample(torch.zeros(3), si.get_oracle("subset", k=1), 2, length=2),
            r"the object Subset\(.*did you mean 'lengths'",
        ),
    ],
)
def test_queries_suggest_options(call, message):
    with pytest.raises(TypeError, match=message):
        call()
