"""The command ``structinf warmup``: compile kernels before their first use, and keep them on disk.

The kernels of a structure are compiled by relaxing tiny scores, forward and backward, with every relaxation of the
structure, and by asking for its support, its log-partition, its best structures and samples. The option
``--relaxation`` chooses relaxations instead.
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

__all__ = ["QUERIES", "SIMPLEX", "SIMPLEX_MAPS", "WorkItem", "example", "list_structures", "run", "work_items"]

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


QUERIES: dict[str, Callable[[Parts, Oracle], Any]] = {
    "sparsemap with its support": lambda theta, oracle: infer(theta, oracle, "sparsemap"),
    "log_partition": log_partition,
    "topk": lambda theta, oracle: topk(theta, oracle, 2),
    "sample": lambda theta, oracle: sample(theta, oracle, 2),
}
"""Calls beside relaxations, with kernels of their own."""


_OF_LARGE_INSTANCE = "map of a large instance"


@dataclass(frozen=True)
class WorkItem:
    """A call that needs kernels: a relaxation or a query of a structure, or a map to the simplex."""

    structure: str
    method: str
    dtype: torch.dtype = torch.float32

    def run(self) -> None:
        """Make the call, and the backward pass of a relaxation or a map.

        Raises
        ------
        StructinfError, ModuleNotFoundError
            If a relaxation or a map fails. A structure need not support a query.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self.method in QUERIES:
                theta = _scores(self.structure, self.dtype, torch.Generator().manual_seed(0))
                with contextlib.suppress(StructinfError, ModuleNotFoundError), torch.no_grad():
                    QUERIES[self.method](theta, example(self.structure))
            elif self.method == _OF_LARGE_INSTANCE:
                theta = 0.5 ** torch.arange(40, dtype=self.dtype, device="cpu")
                relax(theta, self.structure, "map", **_LARGE[self.structure])
            else:
                total = self.forward()
                if total.requires_grad:
                    total.backward()

    def forward(self) -> Tensor:
        """Return a weighted sum of the result for normal scores. ``backward`` compiles the backward pass."""
        generator = torch.Generator().manual_seed(0)
        if self.structure == SIMPLEX:
            x = torch.randn(4, 9, generator=generator, dtype=self.dtype, device="cpu").requires_grad_()
            return SIMPLEX_MAPS[self.method](x).sum()
        theta = map_parts(Tensor.requires_grad_, _scores(self.structure, self.dtype, generator))
        means = as_tuple(relax(theta, example(self.structure), self.method))
        weights = [torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device="cpu") for mean in means]
        return torch.stack([(mean * weight).sum() for mean, weight in zip(means, weights, strict=True)]).sum()


def _scores(structure: str, dtype: torch.dtype, generator: torch.Generator) -> Parts:
    """Return normal scores of a batch of two small instances."""
    oracle = example(structure)
    ndims = oracle.event_ndim if isinstance(oracle.event_ndim, tuple) else (oracle.event_ndim,)
    shapes = _EXAMPLES.get(structure, _Example()).shapes or [(4,) * n for n in ndims]
    scores = [torch.randn(2, *shape, generator=generator, dtype=dtype, device="cpu") for shape in shapes]
    scores = tuple(-t.abs() if oracle.requires_nonpositive_theta else t for t in scores)
    return scores if isinstance(oracle.event_ndim, tuple) else scores[0]


def list_structures() -> list[str]:
    """Return the names of the structures with an example: registered names whose options all have values."""
    return [name for name in resolution.list_oracles() if not _missing_options(name)]


def work_items(name: str, dtype: torch.dtype = torch.float32) -> list[WorkItem]:
    """Return the relaxations of a structure, or the maps of :data:`SIMPLEX`."""
    if name == SIMPLEX:
        return [WorkItem(SIMPLEX, method, dtype) for method in SIMPLEX_MAPS]
    oracle = example(name)
    return [WorkItem(name, method, dtype) for method in resolution.list_relaxations() if _supports(oracle, method)]


def _chosen_items(name: str, dtype: torch.dtype, relaxations: Sequence[str]) -> list[WorkItem]:
    """Return the work for a structure: the given relaxations, or all relaxations and queries."""
    items = work_items(name, dtype)
    if name == SIMPLEX:
        return items
    if relaxations:
        items = [item for item in items if item.method in relaxations]
    others = [] if relaxations else [*QUERIES]
    if name in _LARGE and any(item.method == "map" for item in items):
        others.append(_OF_LARGE_INSTANCE)
    return items + [WorkItem(name, method, dtype) for method in others]


def run(names: Sequence[str], dtypes: Sequence[torch.dtype], relaxations: Sequence[str] = ()) -> int:
    """Compile kernels, with a progress bar or one line for each call.

    Parameters
    ----------
    names : sequence of str
        Structures, or :data:`SIMPLEX`; all by default.
    dtypes : sequence of torch.dtype
        The dtypes of the scores.
    relaxations : sequence of str
        The relaxations of the structures; by default all relaxations, and the queries.

    Returns
    -------
    int
        0, or 1 if a relaxation failed.
    """
    known = [SIMPLEX, *list_structures()]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or "."
            raise UnknownNameError(f"warmup has no example of {name!r}{hint} Known: {', '.join(known)}")
    if relaxations and SIMPLEX in names:
        raise InvalidInputError("warmup: the maps of simplex are no relaxations; leave out simplex, or --relaxation")
    for relaxation in map(resolution.get_relaxation, relaxations):
        for name in names:
            resolution.check_supported(example(name), relaxation)
    chosen = names or (list_structures() if relaxations else known)
    items = [item for name in chosen for dtype in dtypes for item in _chosen_items(name, dtype, relaxations)]
    failures: list[str] = []
    begin = time.perf_counter()
    with _Progress(len(items)) as progress:
        for item in items:
            progress.start(f"{item.structure} {item.method}, {str(item.dtype).removeprefix('torch.')}")
            try:
                item.run()
            except (StructinfError, ModuleNotFoundError) as error:
                failures.append(f"{item.structure} {item.method}: {error}")
    of = f" for {', '.join(relaxations)}" if relaxations else ""
    structures = ", ".join(dict.fromkeys(item.structure for item in items))
    print(f"Compiled the kernels of {structures}{of} in {time.perf_counter() - begin:.0f} s.")
    print("\n".join(failures), end="\n" * bool(failures))
    return 1 if failures else 0


class _Progress:
    """A tqdm bar if tqdm is installed, else one line for each call."""

    def __init__(self, count: int) -> None:
        self._count, self._done, self._bar = count, 0, None
        try:
            from tqdm import tqdm
        except ModuleNotFoundError:
            return
        self._bar = tqdm(total=count, unit="call")

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            if error[0] is None:
                self._bar.update(self._count - self._bar.n)
            self._bar.close()

    def start(self, name: str) -> None:
        """Show that the work for ``name`` begins."""
        if self._bar is None:
            print(f"{self._done + 1} of {self._count}: {name}", flush=True)
        else:
            self._bar.update(self._done - self._bar.n)
            self._bar.set_description(name)
        self._done += 1


def example(name: str) -> Any:
    """Return the oracle of a structure with the options of its example."""
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
