"""Check that no two modules import each other in a circle, with imports inside functions included.

Import-linter orders whole packages; this test also orders the modules inside packages. Imports for type checkers
count. Importing a module also runs the `__init__.py` files of its packages; this implicit import does not count. An
import of a name re-exported by an `__init__.py` counts as an import of the defining module.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = {"structinf": ROOT / "structinf", "structinf_oracles": ROOT / "oracles" / "structinf_oracles"}


def module_files(package: str, folder: Path) -> dict[str, Path]:
    """Return the file of each module of a package, by the full name of the module."""
    files = {}
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        files[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return files


def imported_names(module: str, path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield pairs of a module and an imported name, or None for the module itself."""
    for statement in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield alias.name, None
        if not isinstance(statement, ast.ImportFrom):
            continue
        source = statement.module or ""
        if statement.level:
            package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
            source = ".".join([*package[: len(package) - statement.level + 1], *source.split(".")]).rstrip(".")
        for alias in statement.names:
            yield source, alias.name


def import_graph(files: dict[str, Path]) -> dict[str, set[str]]:
    """Return the imports of each module."""
    statements = {module: list(imported_names(module, path)) for module, path in files.items()}

    def origin(module: str, name: str | None) -> str:
        """Return the module that defines ``name``, through the re-exports of packages."""
        if name is None:
            return module
        if f"{module}.{name}" in files:
            return f"{module}.{name}"
        if module in files and files[module].name == "__init__.py":
            for source, exported in statements[module]:
                if exported == name and source != module:
                    return origin(source, name)
        return module

    graph = {module: {origin(*pair) for pair in pairs} & files.keys() for module, pairs in statements.items()}
    return {module: targets - {module} for module, targets in graph.items()}


def find_cycle(graph: dict[str, set[str]]) -> list[str] | None:
    """Return a cycle of a graph as a list of nodes, with the first node again at the end, by depth-first search."""
    finished: set[str] = set()
    path: list[str] = []

    def visit(node: str) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in finished:
            return None
        path.append(node)
        for target in sorted(graph[node]):
            if (cycle := visit(target)) is not None:
                return cycle
        finished.add(path.pop())
        return None

    return next((cycle for node in sorted(graph) if (cycle := visit(node)) is not None), None)


def test_modules_do_not_import_each_other_in_a_circle():
    files = {name: path for package, folder in PACKAGES.items() for name, path in module_files(package, folder).items()}
    graph = import_graph(files)
    assert sum(map(len, graph.values())) > len(files)  # guards against a search that finds no imports
    cycle = find_cycle(graph)
    assert cycle is None, " -> ".join(cycle or [])


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("def f():\n    from .b import g", {"p.b"}),
        ("from . import b", {"p.b"}),
        ("from . import exported", {"p.b"}),
        ("from p import exported as e", {"p.b"}),
        ("import p.b", {"p.b"}),
        ("if TYPE_CHECKING:\n    from .b import g", {"p.b"}),
        ("try:\n    import p.b\nexcept ImportError:\n    pass", {"p.b"}),
        ("from .sub import h", {"p.sub.c"}),
    ],
)
def test_every_form_of_import_is_found(tmp_path, statement, expected):
    (tmp_path / "sub").mkdir()
    for name, text in {
        "__init__.py": "from .b import exported",
        "a.py": statement,
        "b.py": "exported = g = 1",
        "sub/__init__.py": "from .c import h",
        "sub/c.py": "from ..a import x\nh = 1",
    }.items():
        (tmp_path / name).write_text(text)
    graph = import_graph(module_files("p", tmp_path))
    assert graph["p.a"] == expected
    assert graph["p.sub.c"] == {"p.a"}
    assert find_cycle(graph) == (["p.a", "p.sub.c", "p.a"] if expected == {"p.sub.c"} else None)
