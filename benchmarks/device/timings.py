"""Time the same work on the CPU and on the GPU: ``python -m benchmarks.device.timings [--out FOLDER]``.

The first cases have the sizes of models. Then come all structures with all supported relaxations, one size each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import structinf as si
from benchmarks.device import layers
from benchmarks.speed import report, worker
from benchmarks.timing import alternate, quartiles, ratio

__all__ = ["CASES", "main"]

REPEATS = 15
SECONDS = 2.0  # spent on the samples of one case on one device


# ----------------------------------------------------------------------------- the work


def _normal(device: str, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(device)


def _chain_loss(device: str, batch: int, steps: int, states: int) -> Callable[[], Any]:
    unary = _normal(device, batch, steps, states).requires_grad_()
    transition = _normal(device, states, states).requires_grad_()
    tags = torch.zeros(batch, steps, dtype=torch.int64, device=device)
    loss = si.FenchelYoungLoss("chain", "marginals", reduction="sum")
    return lambda: torch.autograd.grad(loss((unary, transition), tags), (unary, transition))


def _chain_marginals(device: str, batch: int, steps: int, states: int) -> Callable[[], Any]:
    edges = _normal(device, batch, steps - 1, states, states)
    layer = si.Layer("chain", "marginals")
    return lambda: layer(edges)


def _chain_sparsemap(device: str, batch: int, steps: int, states: int) -> Callable[[], Any]:
    unary = _normal(device, batch, steps, states).requires_grad_()
    transition = _normal(device, states, states).requires_grad_()
    layer = si.Layer("chain", "sparsemap", penalty="readout", tolerance=0)

    def run() -> tuple[Tensor, ...]:
        mean, _ = layer((unary, transition))
        return torch.autograd.grad(mean[..., 0].sum(), (unary, transition))

    return run


def _arborescence_sums(device: str, batch: int, words: int) -> Callable[[], Any]:
    theta = _normal(device, batch, words + 1, words + 1).requires_grad_()
    loss = si.FenchelYoungLoss("arborescence", "marginals", reduction="sum")
    heads = torch.zeros(batch, words, dtype=torch.int64, device=device)
    return lambda: torch.autograd.grad(loss(theta, heads), theta)


def _assignment(device: str, batch: int, n: int) -> Callable[[], Any]:
    theta = _normal(device, batch, n, n)
    layer = si.Layer("assignment", "map")
    return lambda: layer(theta)


@dataclass(frozen=True)
class Case:
    """Work of one size. ``make(device, **size)`` returns the function to time on a device."""

    what: str
    make: Callable[..., Callable[[], Any]]
    size: Mapping[str, int]
    quick: Mapping[str, int]
    seconds: float = SECONDS

    def describe(self, quick: bool = False) -> str:
        """Return the description of the work, with the size."""
        return self.what.format(**(self.quick if quick else self.size))

    def measure(self, devices: list[str], quick: bool = False) -> dict[str, Any]:
        """Return milliseconds on each device, and the speed of the last device relative to the first."""
        size = self.quick if quick else self.size
        functions = {device: _synchronized(device, self.make(device, **size)) for device in devices}
        for function in functions.values():
            function()  # compiles, allocates
        samples = alternate(functions, 1 if quick else REPEATS, self.seconds)
        record: dict[str, Any] = {"what": self.describe(quick)}
        record["ms"] = {device: [1e3 * s for s in quartiles(samples[device])] for device in devices}
        record["ratio"] = ratio(samples[devices[0]], samples[devices[-1]])
        return record


def _synchronized(device: str, function: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap ``function`` so that a call ends when the GPU has finished."""
    if device == "cpu":
        return function

    def run() -> None:
        function()
        torch.cuda.synchronize()

    return run


_CHAIN, _TREES, _SQUARES = {"batch": 2, "steps": 4, "states": 3}, {"batch": 2, "words": 3}, {"batch": 2, "n": 4}
CASES = (
    *(
        Case("chain log-likelihood and gradient, B={batch} T={steps} S={states}", _chain_loss, size, _CHAIN)
        for size in ({"batch": 32, "steps": 100, "states": 50}, {"batch": 256, "steps": 200, "states": 64})
    ),
    *(
        Case("chain marginals of edge scores, B={batch} T={steps} S={states}", _chain_marginals, size, _CHAIN)
        for size in ({"batch": 32, "steps": 100, "states": 50}, {"batch": 128, "steps": 100, "states": 50})
    ),
    *(
        Case(
            "SparseMAP of chains, forward and backward, B={batch} T={steps} S={states}", _chain_sparsemap, size, _CHAIN
        )
        for size in ({"batch": 32, "steps": 50, "states": 10}, {"batch": 256, "steps": 50, "states": 10})
    ),
    *(
        Case("arborescence log-likelihood and gradient, B={batch} n={words}", _arborescence_sums, size, _TREES)
        for size in ({"batch": 32, "words": 40}, {"batch": 256, "words": 80})
    ),
    Case("assignment argmax (solved on the CPU), B={batch} n={n}", _assignment, {"batch": 128, "n": 50}, _SQUARES),
    *(
        Case(
            f"{structure}, {relaxation}, forward and backward",
            partial(layers.make, structure=structure, relaxation=relaxation),
            {"quick": False},
            {"quick": True},
            seconds=0.2,
        )
        for structure, relaxation in layers.combinations()
    ),
)


# ----------------------------------------------------------------------------- the command


def main(arguments: list[str] | None = None) -> int:
    """Print the table and write timings.txt and timings.json. Return 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only tries everything out")
    options = parser.parse_args(arguments)
    torch.set_num_threads(worker.cores())
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    machine = report.machine() | {"gpu": torch.cuda.get_device_name() if "cuda" in devices else "none"}
    text = [*(f"{key}: {value}" for key, value in machine.items()), "", _columns("median ms", devices, "cpu / cuda")]
    records = []
    for case in CASES:
        try:
            record = case.measure(devices, options.quick)
        except ImportError as error:  # the algorithm of the structure needs a missing library
            record = {"what": case.describe(options.quick), "left_out": str(error)}
        except Exception as error:  # measure the other cases anyway
            record = {"what": case.describe(options.quick), "error": f"{type(error).__name__}: {error}"}
        records.append(record)
        text.append(_line(record, devices))
    print("\n".join(text))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "timings.txt").write_text("\n".join(text) + "\n", "utf-8")
        (options.out / "timings.json").write_text(
            json.dumps({"machine": machine, "records": records}, indent=1), "utf-8"
        )
    return int(any("error" in record for record in records))


def _line(record: Mapping[str, Any], devices: list[str]) -> str:
    if "left_out" in record:
        return f"{record['what']}: left out: {record['left_out']}"
    if "error" in record:
        return f"{record['what']}: failed: {record['error']}"
    shown = f"{record['ratio']:.2f}" if len(devices) > 1 else ""
    return _columns(record["what"], [f"{record['ms'][device][1]:.3g}" for device in devices], shown)


def _columns(what: str, columns: list[str], last: str) -> str:
    return f"{what:<72}{''.join(f'{column:>10}' for column in columns)}{last:>12}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
