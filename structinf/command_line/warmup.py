"""The command ``structinf warmup``: compile kernels before their first use, and keep them on disk.

The kernels of a structure are compiled by relaxing tiny scores, forward and backward, with every relaxation of the
structure, and by asking for its support, its log-partition, its best structures and samples.
"""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import simplex
from ..api import infer, relax
from ..calls import resolution
from ..errors import InvalidInputError, StructinfError, UnknownNameError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from ..queries.k_best import topk
from ..queries.samples import sample
from ..queries.sums import log_partition
from ..registry import did_you_mean, signature_options
from ..relaxation import RELAXATIONS

__all__ = ["SIMPLEX", "SIMPLEX_MAPS", "WorkItem", "list_structures", "run", "work_items"]

SIMPLEX = "simplex"
"""The name of all maps of :mod:`structinf.simplex` together."""

SIMPLEX_MAPS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": simplex.softmax,
    "sparsemax": simplex.sparsemax,
    "entmax15": simplex.entmax15,
    "entmax-1.3": functools.partial(simplex.entmax, alpha=1.3),
    "entmax-3": functools.partial(simplex.entmax, alpha=3.0),
    "entmax-tensor": lambda x: simplex.entmax(x, torch.full((4, 1), 1.4, requires_grad=True, device="cpu")),
    "topk_sparsemax": functools.partial(simplex.topk_sparsemax, k=3),
    "budget": functools.partial(simplex.budget, k=2.0),
    "normmax": functools.partial(simplex.normmax, alpha=2.0),
    "fusedmax": simplex.fusedmax,
    "oscarmax": simplex.oscarmax,
    "entmax_loss": lambda x: simplex.entmax_loss(x, torch.zeros(4, dtype=torch.long, device="cpu")),
}
"""Each map with the arguments for a warm-up; the scores have shape (4, 9)."""


@dataclass(frozen=True)
class _Example:
    """Options without a default, and the shapes of scores if they are not 4 in each dimension."""

    options: Mapping[str, Any] = field(default_factory=dict)
    shapes: tuple[tuple[int, ...], ...] = ()


_EDGES = ((0, 1), (1, 2), (0, 2))
_EXAMPLES = {
    "correlated_subset": _Example({"k": 2}, ((4,), (3,))),
    "dag_path": _Example({"graph": _EDGES}, ((3,),)),
    "flow": _Example({"graph": _EDGES, "supplies": {0: 1, 2: -1}, "capacities": (1, 1, 1)}, ((3,),)),
    "knapsack": _Example({"weights": (1, 2, 2, 3), "capacity": 4}),
    "markov_field": _Example({"cardinalities": (2, 3), "factors": ((0,), (0, 1))}, ((2,), (2, 3))),
    "milp": _Example({"A": ((1.0, 1.0, 1.0, 1.0),), "upper": (2.0,)}),
    "needleman_wunsch": _Example({}, ((4, 4), (2,))),
    "path": _Example({"graph": _EDGES, "source": 0, "target": 2}, ((3,),)),
    "subset": _Example({"k": 2}),
    "transportation": _Example({"supplies": (1, 2), "demands": (2, 1)}, ((2, 2),)),
}


_LARGE = {"knapsack": {"weights": tuple(10**6 + pow(7919, i, 10**6 + 3) for i in range(40)), "capacity": 2 * 10**7}}
"""Options of an instance of 40 parts that takes another kernel than the example, because of its size."""


@dataclass(frozen=True)
class WorkItem:
    """A call that needs kernels: a relaxation of a structure, or a map to the simplex."""

    structure: str
    method: str
    dtype: torch.dtype = torch.float32

    def forward(self) -> Tensor:
        """Return a weighted sum of the result for normal scores. ``backward`` compiles the backward pass."""
        generator = torch.Generator().manual_seed(0)
        if self.structure == SIMPLEX:
            x = torch.randn(4, 9, generator=generator, dtype=self.dtype, device="cpu").requires_grad_()
            return SIMPLEX_MAPS[self.method](x).sum()
        theta = map_parts(Tensor.requires_grad_, _scores(self.structure, self.dtype, generator))
        means = as_tuple(relax(theta, _oracle(self.structure), self.method))
        weights = [torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device="cpu") for mean in means]
        return torch.stack([(mean * weight).sum() for mean, weight in zip(means, weights, strict=True)]).sum()


QUERIES: dict[str, Callable[[Parts, Oracle], Any]] = {
    "sparsemap with its support": lambda theta, oracle: infer(theta, oracle, "sparsemap"),
    "log_partition": log_partition,
    "topk": lambda theta, oracle: topk(theta, oracle, 2),
    "sample": lambda theta, oracle: sample(theta, oracle, 2),
}
"""Calls beside relaxations, with kernels of their own."""


def _scores(structure: str, dtype: torch.dtype, generator: torch.Generator) -> Parts:
    """Return normal scores of a batch of two small instances."""
    oracle = _oracle(structure)
    ndims = oracle.event_ndim if isinstance(oracle.event_ndim, tuple) else (oracle.event_ndim,)
    shapes = _EXAMPLES.get(structure, _Example()).shapes or [(4,) * n for n in ndims]
    scores = [torch.randn(2, *shape, generator=generator, dtype=dtype, device="cpu") for shape in shapes]
    scores = tuple(-t.abs() if oracle.requires_nonpositive_theta else t for t in scores)
    return scores if isinstance(oracle.event_ndim, tuple) else scores[0]


def list_structures() -> list[str]:
    """Return the names of the structures with an example: registered names whose options all have values."""
    return [name for name in resolution.list_oracles() if not _missing_options(name)]


def work_items(name: str, dtype: torch.dtype = torch.float32) -> list[WorkItem]:
    """Return the work for a structure, or for :data:`SIMPLEX`."""
    if name == SIMPLEX:
        return [WorkItem(SIMPLEX, method, dtype) for method in SIMPLEX_MAPS]
    oracle = _oracle(name)
    return [WorkItem(name, method, dtype) for method in resolution.list_relaxations() if _supports(oracle, method)]


def run(names: Sequence[str], dtypes: Sequence[torch.dtype]) -> int:
    """Compile the kernels of the given structures, or of all, with a progress bar or one line for each structure."""
    known = [SIMPLEX, *list_structures()]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or "."
            raise UnknownNameError(f"warmup has no example of {name!r}{hint} Known: {', '.join(known)}")
    chosen = list(names) or known
    failures: list[str] = []
    begin = time.perf_counter()
    with _Progress(len(chosen) * len(dtypes)) as progress:
        for name in chosen:
            for dtype in dtypes:
                progress.start(f"{name}, {str(dtype).removeprefix('torch.')}")
                failures += _warm(work_items(name, dtype))
                if name != SIMPLEX:
                    _warm_queries(name, dtype)
    print(f"Compiled the kernels of {', '.join(chosen)} in {time.perf_counter() - begin:.0f} s.")
    print("\n".join(failures), end="\n" * bool(failures))
    return 1 if failures else 0


def _warm_queries(structure: str, dtype: torch.dtype) -> None:
    """Call the queries that the structure supports."""
    theta, oracle = _scores(structure, dtype, torch.Generator().manual_seed(0)), _oracle(structure)
    for query in QUERIES.values():
        with contextlib.suppress(StructinfError, ModuleNotFoundError), torch.no_grad():
            query(theta, oracle)
    if structure in _LARGE:
        relax(0.5 ** torch.arange(40, dtype=dtype, device="cpu"), structure, "map", **_LARGE[structure])


def _warm(items: Sequence[WorkItem]) -> list[str]:
    """Run the work, and return the failures as text."""
    failures = []
    for item in items:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                total = item.forward()
                if total.requires_grad:
                    total.backward()
        except (StructinfError, ModuleNotFoundError) as error:
            failures.append(f"{item.structure} {item.method}: {error}")
    return failures


class _Progress:
    """A tqdm bar if tqdm is installed, else one line for each structure."""

    def __init__(self, count: int) -> None:
        self._count, self._done, self._bar = count, 0, None
        try:
            from tqdm import tqdm
        except ModuleNotFoundError:
            return
        self._bar = tqdm(total=count, unit="structure")

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.update(self._done - self._bar.n if error[0] else self._count - self._bar.n)
            self._bar.close()

    def start(self, name: str) -> None:
        """Show that the work for ``name`` begins."""
        if self._bar is None:
            print(f"{self._done + 1} of {self._count}: {name}", flush=True)
        else:
            self._bar.update(self._done - self._bar.n)
            self._bar.set_description(name)
        self._done += 1


def _oracle(name: str) -> Any:
    return resolution.get_oracle(name, **_EXAMPLES.get(name, _Example()).options)


def _missing_options(name: str) -> bool:
    given = _EXAMPLES.get(name, _Example()).options
    required = signature_options(resolution.ORACLES.factory(name))
    return any(needed and key not in given for key, needed in required.items())


def _supports(oracle: Any, method: str) -> bool:
    if any(signature_options(RELAXATIONS.factory(method)).values()):
        return False
    try:
        resolution.check_supported(oracle, resolution.get_relaxation(method))
    except (StructinfError, InvalidInputError):
        return False
    return True
