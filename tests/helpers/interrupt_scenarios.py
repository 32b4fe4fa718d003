"""A program for the tests of interrupts: long calls, one after the other, each of which waits for a SIGINT.

For each argument NAME:THREADS:HANDLER the program prints "begin", calls a solver that needs at least 10 seconds, and
prints how the call ended, and after how many seconds. After the interrupt the same solver solves a small problem.
"""

from __future__ import annotations

import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

import structinf as si
from structinf.kernels import parallel_rows

Scenario: TypeAlias = tuple[Callable[[], Any], Callable[[], Any]]
"""The long call, and whether the solver is right about a small problem."""

LIMIT = 60.0
"""Seconds after which an outside solver gives up."""


def draw(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


# ----------------------------------------------------------------------------- outside solvers


def tour(batch: int = 1, limit: float = LIMIT) -> Scenario:
    points = draw(batch, 70, 2)
    oracle = si.get_oracle("tour", on_limit="warn", time_limit=limit)
    theta = -torch.cdist(points, points)
    square = -torch.cdist(points[:1, :4], points[:1, :4])
    return lambda: oracle.argmax(theta), lambda: oracle.argmax(square).sum().item() == 4


def split(solver: str, batch: int = 1, limit: float = LIMIT) -> Scenario:
    """Integer programs with 40 rows that no solver solves within minutes."""
    generator = np.random.default_rng(0)
    matrix = generator.integers(1, 60, (40, 150))
    oracle = si.get_oracle("milp", A=matrix, upper=matrix.sum(1) // 2, solver=solver, on_limit="warn", time_limit=limit)
    small = si.get_oracle("milp", A=[[1, 1, 1, 1], [-1, 0, 0, 1]], upper=[2, 0], solver=solver)
    theta = torch.from_numpy(generator.integers(30, 60, (batch, 150))).float()
    scores = torch.tensor([[0.5, 1.0, 1.2, 1.5]])
    return lambda: oracle.argmax(theta), lambda: small.argmax(scores).tolist() == [[0.0, 1.0, 1.0, 0.0]]


def constraint_model() -> Scenario:
    generator = np.random.default_rng(0)
    weights = generator.integers(1, 60, (40, 150)).tolist()

    def build() -> Any:
        from ortools.sat.python import cp_model

        model = cp_model.CpModel()
        parts = [model.new_bool_var("") for _ in range(150)]
        for row in weights:
            model.add(cp_model.LinearExpr.weighted_sum(parts, row) <= sum(row) // 2)
        return model, parts

    oracle = si.get_oracle("constraint_model", build=build, on_limit="warn", time_limit=LIMIT)
    theta = torch.from_numpy(generator.integers(30, 60, (1, 150))).float()
    return lambda: oracle.argmax(theta), lambda: not oracle.argmax(-theta).any()


def solutions() -> Scenario:
    def build(size: int = 40) -> Any:
        from ortools.sat.python import cp_model

        model = cp_model.CpModel()
        places = [model.new_int_var(0, size - 1, "") for _ in range(size)]
        for shift in (-1, 0, 1):
            model.add_all_different(place + shift * i for i, place in enumerate(places))
        return model, places

    oracle = si.get_oracle("constraint_model", build=build)
    small = si.get_oracle("constraint_model", build=lambda: build(6))
    return lambda: oracle.enumerate((40,)), lambda: len(small.enumerate((6,))) == 4


# ----------------------------------------------------------------------------- compiled loops


def spin(start: int, stop: int, loops: int, out: np.ndarray) -> None:
    for i in range(start, stop):
        x = 1.0
        for _ in range(loops):
            x = x * 0.999999 + 1e-9
        out[i] = x


def rows(count: int, loops: int) -> Scenario:
    from numba import njit

    out, kernel = np.zeros(count), njit(nogil=True)(spin)

    def is_right() -> bool:
        parallel_rows(kernel, count, 0, out, work=1e12)
        return bool((out == 1.0).all())

    return lambda: parallel_rows(kernel, count, loops, out, work=count * loops), is_right


def assignment() -> Scenario:
    size = 3000
    i = torch.arange(size).float()
    theta = -(i[:, None] * i)[None]
    small = theta[:, :3, :3]  # the best assignment is the antidiagonal
    return (
        lambda: si.relax(theta, "assignment", "map"),
        lambda: torch.equal(si.relax(small, "assignment", "map"), torch.eye(3).flip(0)[None]),
    )


def matching() -> Scenario:
    size = 12000
    generator = np.random.default_rng(0)
    edges = generator.integers(0, size, (8 * size, 2))
    circle = np.stack([np.arange(size), (np.arange(size) + 1) % size], 1)
    edges = np.concatenate([edges[edges[:, 0] != edges[:, 1]], circle])
    oracle, small = si.get_oracle("matching", edges=edges), si.get_oracle("matching")
    theta = torch.from_numpy(generator.normal(size=(1, len(edges))))
    scores = torch.zeros(1, 4, 4).index_put((torch.tensor(0), torch.tensor(0), torch.tensor(2)), torch.tensor(1.0))
    return lambda: oracle.argmax(theta), lambda: small.decode(small.argmax(scores)).tolist() == [[2, 3, 0, 1]]


def compilation() -> Scenario:
    x = torch.tensor([1.0, 0.5, -1.0])
    return lambda: si.simplex.sparsemax(x), lambda: si.simplex.sparsemax(x).tolist() == [0.75, 0.25, 0.0]


def perturbed_tours() -> Scenario:
    points = draw(1, 30, 2)
    theta = -torch.cdist(points, points).requires_grad_()
    layer = si.Layer("tour", "perturbed", samples=200)
    return lambda: layer(theta), lambda: layer(theta[:, :4, :4]).shape == (1, 4, 4)


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "tour": tour,
    "tours": lambda: tour(5),
    "milp-cp_sat": lambda: split("cp_sat"),
    "milp-highs": lambda: split("highs"),
    "milps-highs": lambda: split("highs", 5),
    "constraint_model": constraint_model,
    "solutions": solutions,
    "one-row": lambda: rows(1, 10**9),
    "rows": lambda: rows(3000, 10**7),
    "assignment": assignment,
    "matching": matching,
    "perturbed": perturbed_tours,
    "compilation": compilation,
    "tour-limit": lambda: tour(limit=1.5),
    "milp-highs-limit": lambda: split("highs", limit=1.5),
}


def run(name: str) -> None:
    call, is_right = SCENARIOS[name]()
    if name != "compilation":
        is_right()  # compiles
    handler = signal.getsignal(signal.SIGINT)
    print("begin", name, sep="\t", flush=True)
    begin = time.monotonic()
    outcome = "returned"
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        outcome += "".join(f" with {w.category.__name__}" for w in caught)
    except BaseException as error:
        outcome = type(error).__name__
    seconds = time.monotonic() - begin
    try:
        state = "right" if is_right() else "wrong"
    except BaseException as error:
        state = repr(error)
    if signal.getsignal(signal.SIGINT) is not handler:
        state = "another handler"
    print("end", name, outcome, f"{seconds:.2f}", state, sep="\t", flush=True)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        scenario, threads, raises = argument.split(":")
        torch.set_num_threads(int(threads))
        signal.signal(signal.SIGINT, signal.default_int_handler if raises == "raises" else lambda *_: None)
        run(scenario)
