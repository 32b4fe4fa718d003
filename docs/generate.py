"""Regenerate the parts of pages between marks `<!-- NAME -->` from the code: python docs/generate.py, or make
generated.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeVar

from structinf.calls.resolution import ORACLES, RELAXATIONS
from structinf.command_line.listing import answers
from structinf.estimators import Estimator, list_methods
from structinf.estimators.latent import find_method
from structinf.lower_bound import divergences
from structinf.relaxation import Relaxation
from structinf.relaxations.surrogate import Surrogate

ROOT = Path(__file__).parent.parent
WIDTH = 72  # columns of the drawing

K = TypeVar("K", bound=Hashable)
Graph = Mapping[str, frozenset[str]]


def main() -> None:
    """Write the pages."""
    for path, text in pages().items():
        path.write_text(text, "utf-8")


def pages() -> dict[Path, str]:
    """Return the pages with regenerated parts."""
    found: dict[Path, str] = {}
    for (page, name), make in PARTS.items():
        path = ROOT / page
        before, mark, rest = (found.get(path) or path.read_text("utf-8")).partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"\n<!-- end of {name} -->\n")
        if not (mark and end):
            raise ValueError(f"{page}: there are no marks for {name!r}")
        found[path] = f"{before}{mark}\n{make()}\n{end}{after}"
    return found


def table(first: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (first, ["---"] * len(first), *rows))


def code(names: Iterable[str]) -> str:
    """Format names as inline code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def group_by_value(values: Mapping[str, K]) -> dict[K, list[str]]:
    """Return the names that share each value."""
    found: dict[K, list[str]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return found


# ----------------------------------------------------------------------------- what works with what


NEEDS = {
    "map": "needs `argmax`",
    "perturbed": "needs an `argmax` that accepts scores above 0",
    "belief_propagation": "needs tables over discrete variables",
    "lp_map": "needs a `FactorGraph`",
    "marginals": "needs `log_partition`",
    "smoothed": "needs a dynamic program",
    "gumbel_crf": "needs a hypergraph",
    "gumbel_rao": "needs one choice among n",
    "soft_subset": "needs subsets of exactly k",
    "sinkhorn": "needs matrices with given sums of rows and columns",
}
"""What a relaxation needs from an oracle. Relaxations that share a column of the table have the same need."""


def support_table() -> str:
    """Return the table of oracles and relaxations. Oracles with equal support share a row, and relaxations with equal
    support share a column. Most ticks come first. The heading of a column is "need: relaxations".
    """
    supported = answers(
        *([p.name for p in entry_points(group=r.entry_point_group) if _is_own(p)] for r in (ORACLES, RELAXATIONS))
    )
    columns = group_by_value(
        {
            relaxation: tuple(row[relaxation] for row in supported.values())
            for relaxation in next(iter(supported.values()))
        }
    )
    relaxations = [names for _, names in sorted(columns.items(), key=lambda item: -sum(item[0]))]
    rows = group_by_value({oracle: tuple(row[names[0]] for names in relaxations) for oracle, row in supported.items()})
    return table(
        ["oracles", *(f"{_need(names)}: {code(names)}" for names in relaxations)],
        (
            [code(names), *("✓" if has_tick else "" for has_tick in ticks)]
            for ticks, names in sorted(rows.items(), key=lambda item: -sum(item[0]))
        ),
    )


def _need(relaxations: Sequence[str]) -> str:
    (need,) = (NEEDS[name] for name in relaxations if name in NEEDS)
    return need


def _is_own(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == "structinf"


# ----------------------------------------------------------------------------- who imports whom


def layers() -> str:
    """Draw the modules of the engine as a stack: each module above all of its imports, as low as possible."""
    floors = group_by_value(layer_heights(imports()))
    lines = [f"┌{'─' * WIDTH}┐"]
    for height in sorted(floors, reverse=True):
        line = ""
        for name in sorted(floors[height]):
            if len(line) + len(name) + 2 > WIDTH:
                lines.append(f"│{line:{WIDTH}}│")
                line = ""
            line += f"  {name}"
        lines += [f"│{line:{WIDTH}}│", f"├{'─' * WIDTH}┤"]
    lines[-1] = f"└{'─' * WIDTH}┘"
    return "\n".join(["```text", *lines, "```"])


def modules() -> str:
    """Return the table of modules: the summary and the direct imports of each module."""
    graph = imports()
    height = layer_heights(graph)
    order = sorted(graph, key=lambda name: (-height[name], name))
    return table(
        ["module", "is", "stands on"],
        ([code([name]), summary(name), code(direct_imports(graph, name))] for name in order),
    )


def summary(module: str) -> str:
    """Return the first sentence of a module's docstring."""
    said = ast.get_docstring(ast.parse(next(sources(module)).read_text("utf-8"))) or ""
    first = re.split(r"\.(?:\s|$)", said, maxsplit=1)[0]
    plain = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", first)
    return " ".join(plain.replace("``", "`").replace("|", "\\|").split())


def layer_heights(graph: Graph) -> dict[str, int]:
    """Return the height of each module: one more than the highest of its imports."""
    found: dict[str, int] = {}
    for module in TopologicalSorter(graph).static_order():
        found[module] = 1 + max((found[other] for other in graph[module]), default=-1)
    return found


def direct_imports(graph: Graph, module: str) -> list[str]:
    """Return the imports of ``module`` without the imports of its imports."""
    order = reversed(list(TopologicalSorter(graph).static_order()))
    kept: list[str] = []
    reached: set[str] = set()
    for other in (name for name in order if name in graph[module]):
        if other not in reached:
            kept.append(other)
            reached |= transitive_imports(graph, other)
    return sorted(kept)


def transitive_imports(graph: Graph, module: str) -> set[str]:
    """Return all direct and indirect imports of a module."""
    found: set[str] = set()
    left = list(graph[module])
    while left:
        other = left.pop()
        if other not in found:
            found.add(other)
            left += graph[other]
    return found


@functools.cache
def imports() -> Graph:
    """Return the imports of each module of structinf, with a subpackage as one module. Imports inside functions
    count; imports for type checkers do not.
    """
    package = ROOT / "structinf"
    names = [path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    names.remove("__init__")
    return {
        name: frozenset(found for path in sources(name) for found in _imported(path) if found in names) - {name}
        for name in sorted(names)
    }


def sources(module: str) -> Iterator[Path]:
    """Yield the file of a module, or the files of a package, ``__init__.py`` first."""
    single, folder = ROOT / "structinf" / f"{module}.py", ROOT / "structinf" / module
    yield from [single] if single.exists() else sorted(folder.rglob("*.py"))


def _imported(path: Path) -> Iterator[str]:
    """Yield the modules of structinf imported by a file, with a subpackage as one module."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in _at_runtime(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            start = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{start}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("structinf."))


def _at_runtime(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below ``node``, except the code under ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from _at_runtime(child)


# ----------------------------------------------------------------------------- the methods of latent


def methods() -> str:
    """Return the table of the methods of :func:`structinf.latent`."""
    return table(
        ["method", "g is evaluated at", "structure or mean", "divergences of `elbo`"],
        ([code([name]), _points(made), _summary(made), ", ".join(divergences(made))] for name, made in _methods()),
    )


def _methods() -> Iterator[tuple[str, Relaxation | Estimator]]:
    for name in list_methods():
        registry, item = find_method(name)
        if any(_is_own(point) and point.name == item for point in entry_points(group=registry.entry_point_group)):
            yield name, registry.get(item, **({"control": None} if item == "relax" else {}))


def _points(method: Relaxation | Estimator) -> str:
    if isinstance(method, Estimator):
        return "structures"
    return "a structure" if isinstance(method, Surrogate) or method.piecewise_constant else "a mean"


def _summary(method: Relaxation | Estimator) -> str:
    first = re.split(r"[.;](?:\s|$)", " ".join((type(method).__doc__ or "").split()), maxsplit=1)[0]
    if len(first) > 150:
        first = first.partition(": ")[0]
    return re.sub(r":\w+:`~?\.?([^`<]+?)(?: <[^`]*)?`", r"`\1`", first).replace("``", "`").replace("|", "\\|")


PARTS: dict[tuple[str, str], Callable[[], str]] = {
    ("README.md", "what works with what"): support_table,
    ("docs/architecture.md", "layers"): layers,
    ("docs/architecture.md", "modules"): modules,
    ("docs/methods.md", "methods"): methods,
}

if __name__ == "__main__":
    main()
