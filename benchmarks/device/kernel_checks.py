"""Checks of Triton kernels through public calls, against torch operations in float64 and against the CPU."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

import structinf as si
from benchmarks.device.layers import SIZES, Size, grid_edges
from structinf.kernels.gpu import backend
from structinf.noise import get_noise
from structinf.parts import as_tuple, map_parts
from structinf.regularizers import Tsallis

__all__ = ["CHECKS", "perform", "torch_operations"]

BATCH = 6
REPEATS = 5
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-4}
# Newton's methods and active sets stop at a tolerance of their own, which is also that of their reference.
ITERATIVE_LIMITS = {torch.float64: 1e-8, torch.float32: 1e-3}

Results = dict[str, Tensor]
Parts = si.Parts

STRUCTURES: Mapping[str, Size] = {
    **{
        name: SIZES[name]
        for name in (
            *("arborescence", "assignment", "binary_tree", "categorical", "chain", "correlated_subset", "dag_path"),
            *("dtw", "grid_path", "knapsack", "monotonic_alignment", "needleman_wunsch", "projective_tree"),
            *("ranking", "semi_markov", "spanning_tree", "subset", "transportation"),
        )
    },
    "chain of edges": Size(((20, 40, 40),), ((2, 2, 2),)),
    "chain of 100 tags": Size(((12, 100), (100, 100)), ((3, 3), (3, 3))),
    "chain of steps": Size(((20, 16), (19, 16, 16)), ((3, 2), (2, 2, 2))),
    "semi_markov with boundaries": Size(((60, 5), (60, 2, 5), (40, 5), (5, 5)), ((3, 2), (3, 2, 2), (2, 2), (2, 2))),
    "dtw of 300": Size(((300, 200),), ((3, 4),)),
    "subset with lengths": SIZES["subset"],
    "spanning_tree of edges": Size(
        ((132,),), ((5,),), {"edges": grid_edges(8) + grid_edges(8)[:20]}, {"edges": [*grid_edges(2), (1, 0)]}
    ),
    "assignment of ties": Size(((60, 100),), ((3, 3),)),
    "ranking of ties": Size(((1000,),), ((5,),)),
    "subset of ties": Size(((3000,),), ((5,),), {"k": 800}, {"k": 2}),
    "arborescence of ties": Size(((61, 61),), ((4, 4),)),
    "spanning_tree of ties": Size(((60, 60),), ((4, 4),)),
    "assignment of 90": Size(((100, 90),), ((3, 4),)),
}
WITH_LENGTHS = {
    "chain": 0,
    "chain of 100 tags": 0,
    "semi_markov": 0,
    "semi_markov with boundaries": 0,
    "binary_tree": 0,
    "arborescence": 1,
    "subset with lengths": 0,
}
ONLY = {
    "assignment of ties": "map",
    "ranking of ties": "map",
    "subset of ties": "map",
    "arborescence of ties": "map",
    "spanning_tree of ties": "map",
    "assignment of 90": "sinkhorn",
}
# No kernel draws their samples or finds their k best structures.
WITHOUT_DRAWS = (
    *("arborescence", "assignment", "categorical", "ranking", "spanning_tree", "spanning_tree of edges"),
    "transportation",
)
# Layers and losses whose passes a CUDA graph can record.
RECORDED = (
    "chain",
    "dtw",
    "needleman_wunsch",
    "semi_markov",
    "semi_markov with boundaries",
    "binary_tree",
    "arborescence",
    "spanning_tree",
    "spanning_tree of edges",
    "knapsack",
)
RELAXATIONS: Mapping[str, Callable[[], Any]] = {
    "map": lambda: "map",
    "marginals": lambda: "marginals",
    "smoothed by Tsallis 1.5": lambda: si.get_relaxation("smoothed", regularizer=Tsallis(alpha=1.5)),
    "smoothed by squared L2": lambda: si.get_relaxation("smoothed", regularizer="squared_l2"),
    "sparsemap": lambda: si.get_relaxation("sparsemap", tolerance=0),
    "sinkhorn": lambda: "sinkhorn",
    "perturbed": lambda: "perturbed",
}
ITERATIVE = ("sparsemap", "sinkhorn")
SIMPLEX: Mapping[str, Mapping[str, Any]] = {
    "softmax": {},
    "sparsemax": {},
    "entmax15": {},
    "entmax": {"alpha": 1.3},
    "topk_sparsemax": {"k": 3},
    "budget": {"k": 2.5},
    "normmax": {},
    "fusedmax": {},
}
NOISE = ("gumbel", "normal", "logistic", "exponential", "sum_of_gamma")


@contextlib.contextmanager
def torch_operations() -> Iterator[None]:
    """Select torch operations, or the compiled loops on the CPU, in place of Triton kernels."""
    choice = backend._choice
    backend._choice = lambda: "torch"
    backend.interprets_kernels.cache_clear()
    try:
        yield
    finally:
        backend._choice = choice
        backend.interprets_kernels.cache_clear()


# ----------------------------------------------------------------------------- structures


class _Problem:
    """Random scores of a structure for a batch, on the CPU, and instance data."""

    def __init__(self, name: str, dtype: torch.dtype, device: str, quick: bool) -> None:
        size = STRUCTURES[name]
        options = (size.quick_options if quick else None) or size.options
        self.name, self.oracle = name, si.get_oracle(name.partition(" ")[0], **options)
        shapes = size.quick if quick else size.shapes
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        batch = 3 if quick else BATCH
        tensors = tuple(torch.randn(batch, *shape, generator=generator).to(dtype) for shape in shapes)
        if self.oracle.requires_nonpositive_theta:
            tensors = tuple(-t.abs() for t in tensors)
        if name.endswith("of ties"):
            tensors = tuple(t.round() for t in tensors)
        self.lengths = None
        if name in WITH_LENGTHS:
            most = shapes[0][0] - WITH_LENGTHS[name]
            self.lengths = torch.tensor([max(1, most - i) for i in range(batch)])
        theta = tensors if len(tensors) > 1 else tensors[0]
        self.theta = self._forbid(theta, generator, device)

    def data(self, rows: Tensor | None = None) -> dict[str, Any]:
        if self.lengths is None:
            return {}
        return {"lengths": self.lengths if rows is None else self.lengths[rows]}

    def _forbid(self, theta: Parts, generator: torch.Generator, device: str) -> Parts:
        """Give a fifth of the parts outside a best structure the score −inf, in every second instance."""
        with torch_operations():
            best = si.relax(map_parts(lambda t: t.to(device), theta), self.oracle, "map", **self.data())

        def forbid(t: Tensor, y: Tensor) -> Tensor:
            mask = (y.cpu() == 0) & (torch.rand(t.shape, generator=generator) < 0.2)
            mask[::2] = False
            return t.masked_fill(mask, -torch.inf)

        return map_parts(forbid, theta, best)


def _relax(problem: _Problem, relaxation: str, theta: Parts, rows: Tensor | None = None) -> Results:
    """Return the mean, the product of its Jacobian with a vector, and log Z and entropies for marginals."""
    device = as_tuple(theta)[0].device
    leaves = map_parts(lambda t: t.detach().clone().requires_grad_(), theta)
    made = RELAXATIONS[relaxation]()
    generator = torch.Generator().manual_seed(0)
    mean = si.relax(leaves, problem.oracle, made, generator=generator, **problem.data(rows))
    results = {f"mean {i}": t.detach() for i, t in enumerate(as_tuple(mean))}
    if relaxation == "map":
        return results
    weights = [
        torch.linspace(-1, 1, t[0].numel(), dtype=t.dtype, device=device).view(t[0].shape) for t in as_tuple(mean)
    ]
    total = sum((t * w).sum() for t, w in zip(as_tuple(mean), weights, strict=True))
    first = torch.autograd.grad(total, as_tuple(leaves))
    results |= {f"gradient {i}": t.detach() for i, t in enumerate(first)}
    if relaxation == "marginals":
        fixed = map_parts(Tensor.detach, leaves)
        results["log Z"] = si.log_partition(fixed, problem.oracle, **problem.data(rows))
        results["entropy"] = si.entropy(fixed, problem.oracle, **problem.data(rows))
    return results


def _check_structure(name: str, relaxation: str, dtype: torch.dtype, device: str, quick: bool, once: bool) -> list[str]:
    problem = _Problem(name, dtype, device, quick)
    theta = map_parts(lambda t: t.to(device), problem.theta)
    found = _relax(problem, relaxation, theta)
    if once:
        return []
    # Noise of both precisions has different random words.
    exact = dtype if relaxation == "perturbed" else torch.float64
    with torch_operations():
        expected = _relax(problem, relaxation, map_parts(lambda t: t.to(exact), theta))
    limit = 0.0 if relaxation == "map" else (ITERATIVE_LIMITS if relaxation in ITERATIVE else LIMITS)[dtype]
    faults = list(_differences(found, expected, limit))
    for _ in range(1 if quick else REPEATS - 1):
        faults += (f"another run: {fault}" for fault in _differences(_relax(problem, relaxation, theta), found, 0.0))
    if relaxation != "perturbed":
        rows = torch.arange(len(as_tuple(theta)[0])).flip(0).roll(1)[:-1]
        shuffled = _relax(problem, relaxation, map_parts(lambda t: t[rows.to(device)], theta), rows)
        kept = {key: t[rows.to(device)] for key, t in found.items()}
        faults += (f"shuffled rows: {fault}" for fault in _differences(shuffled, kept, 0.0))
    return faults


def _differences(found: Results, expected: Results, limit: float) -> Iterator[str]:
    """Name the results that differ by more than ``limit`` times the largest number, or by any infinity or NaN."""
    for key, t in expected.items():
        a, b = found[key].double().cpu(), t.double().cpu()
        finite = b.isfinite()
        if a.shape != b.shape or not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
            yield f"{key} has another shape or other infinities"
        elif finite.any():
            scale = max(1.0, float(b[finite].abs().max()))
            error = float((a[finite] - b[finite]).abs().max()) / scale
            if not error <= limit:
                yield f"{key} differs by {error:.2g} of its scale, where {limit:.0e} is allowed"


def _check_draws(name: str, dtype: torch.dtype, device: str, quick: bool, once: bool) -> list[str]:
    """Compare samples of the same seed and the k best structures with those of the CPU: equal exactly."""
    problem = _Problem(name, dtype, device, quick)
    theta = map_parts(lambda t: t.to(device), problem.theta)

    def draw(theta: Parts) -> Results:
        results = {}
        if isinstance(problem.oracle, si.Samplable):
            generator = torch.Generator().manual_seed(0)
            samples = si.sample(theta, problem.oracle, 4, generator=generator, **problem.data())
            results = {f"sample {i}": t for i, t in enumerate(as_tuple(samples))}
        if isinstance(problem.oracle, si.KBest):
            best = si.topk(theta, problem.oracle, 3, **problem.data())
            results |= {f"k best {i}": t for i, t in enumerate(as_tuple(best.structures))}
        return results

    found = draw(theta)
    if once:
        return []
    with torch_operations():
        return list(_differences(found, draw(problem.theta), 0.0))


def _check_infeasible(name: str, dtype: torch.dtype, device: str, quick: bool, once: bool) -> list[str]:
    problem = _Problem(name, dtype, device, quick)
    for relaxation in ("map", "marginals"):
        theta = map_parts(lambda t: t.to(device), problem.theta)
        for t in as_tuple(theta):
            t[1] = -torch.inf
        try:
            si.relax(theta, problem.oracle, relaxation, **problem.data())
        except si.InfeasibleError as error:
            if error.batch_index != 1:
                return [f"{relaxation} names the infeasible instance {error.batch_index} in place of 1"]
        else:
            return [f"{relaxation} of an infeasible instance raises no error"]
    return []


def _check_graph(name: str, dtype: torch.dtype, device: str, quick: bool, once: bool) -> list[str]:
    """Record a layer and a loss, forward and backward, in a CUDA graph, and replay it for other scores."""
    problem = _Problem(name, dtype, device, quick)
    theta = map_parts(lambda t: t.to(device).requires_grad_(), problem.theta)
    best = si.relax(problem.theta, problem.oracle, "map", **problem.data())
    labels = si.decode(best, problem.oracle, **problem.data()).to(device)
    data = {key: t.to(device) for key, t in problem.data().items()}
    loss = si.FenchelYoungLoss(problem.oracle, "marginals")
    line = [torch.linspace(-1, 1, t.shape[-1], dtype=t.dtype, device=device) for t in as_tuple(best)]

    def run() -> Results:
        with si.unchecked():
            mean = as_tuple(si.relax(theta, problem.oracle, "marginals", **data))
            of_mean = torch.autograd.grad(
                mean, as_tuple(theta), [w.expand_as(t) for w, t in zip(line, mean, strict=True)]
            )
            value = loss(theta, labels, **data)
            of_loss = torch.autograd.grad(value, as_tuple(theta))
        tensors = (*mean, value, *of_mean, *of_loss)
        return {f"result {i}": t.detach() for i, t in enumerate(tensors)}

    if once or device != "cuda":
        run()
        return []
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()  # compiles the kernels, and copies the tables of graphs, which later calls keep
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    for t in as_tuple(theta):
        t.data.mul_(0.5)
    graph.replay()
    return list(_differences(found, run(), 0.0))


# ----------------------------------------------------------------------------- rows of numbers


def _check_simplex(name: str, dtype: torch.dtype, device: str, quick: bool, once: bool) -> list[str]:
    faults: list[str] = []
    for n in (5,) if quick else (3, 64, 1000, 40_000):
        x = 2 * torch.randn(7, n, generator=torch.Generator().manual_seed(n)).to(dtype)
        x[1, 1:] = -torch.inf
        x[2, : n // 2] = -torch.inf

        def run(x: Tensor) -> Results:
            leaf = x.detach().clone().requires_grad_()
            y = getattr(si.simplex, name)(leaf, **SIMPLEX[name], dim=-1)
            weights = torch.linspace(-1, 1, x.shape[-1], dtype=y.dtype, device=y.device)
            (gradient,) = torch.autograd.grad((y * weights).sum(), leaf)
            return {f"mean, n={x.shape[-1]}": y.detach(), f"gradient, n={x.shape[-1]}": gradient}

        if name in ("fusedmax", "topk_sparsemax", "budget"):  # need more finite scores than one
            x[1] = x[0].flip(0)
        there = x.to(device)
        found = run(there)
        if once:
            continue
        with torch_operations():
            expected = run(there.double())
        faults += _differences(found, expected, LIMITS[dtype])
        faults += (f"another run: {fault}" for fault in _differences(run(there), found, 0.0))
    return faults


def _check_noise(name: str, dtype: torch.dtype, device: str, quick: bool, once: bool) -> list[str]:
    noise = get_noise(name)
    shape = (3, 7) if quick else (64, 1001)

    def draw(device: str) -> Results:
        generator = torch.Generator().manual_seed(3)
        return {"noise": noise.sample(shape, dtype=dtype, device=torch.device(device), generator=generator)}

    found = draw(device)
    if once:
        return []
    with torch_operations():
        return list(_differences(found, draw("cpu"), 1e-12 if dtype == torch.float64 else 2e-6))


# ----------------------------------------------------------------------------- all checks


def _checks() -> Iterator[tuple[str, Callable[..., list[str]], tuple[str, ...]]]:
    for name, size in STRUCTURES.items():
        oracle = si.get_oracle(name.partition(" ")[0], **size.options)
        if name in ONLY:
            yield f"{name}, {ONLY[name]}", _check_structure, (name, ONLY[name])
            continue
        for relaxation, make in RELAXATIONS.items():
            if si.get_relaxation(make()).unsupported_reason(oracle) is None:
                yield f"{name}, {relaxation}", _check_structure, (name, relaxation)
        if name not in WITHOUT_DRAWS:
            yield f"{name}, samples and k best", _check_draws, (name,)
        # The empty set is always a knapsack.
        if name != "knapsack" and si.get_relaxation("marginals").unsupported_reason(oracle) is None:
            yield f"{name}, infeasible", _check_infeasible, (name,)
    yield from ((f"{name}, CUDA graph", _check_graph, (name,)) for name in RECORDED)
    yield from ((f"simplex, {name}", _check_simplex, (name,)) for name in SIMPLEX)
    yield from ((f"noise, {name}", _check_noise, (name,)) for name in NOISE)


CHECKS: Mapping[str, Callable[..., list[str]]] = {
    f"{name}, {str(dtype).removeprefix('torch.')}": partial(function, *arguments, dtype)
    for name, function, arguments in _checks()
    for dtype in LIMITS
}
"""Functions of the device, ``quick`` and ``once``, by name, that return the faults found."""


def perform(name: str, device: str, quick: bool, once: bool = False) -> list[str]:
    """Return the faults that a check finds; with ``once``, only make the call that launches the kernels."""
    return CHECKS[name](device, quick, once)
