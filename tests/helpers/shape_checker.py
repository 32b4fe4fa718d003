"""Check the shapes in annotations: at import, a decorator is put before each function whose annotations have shapes.

A function is checked at its first call with each combination of argument shapes and dtypes; later calls with the same
combination run unchecked, because the check costs more than most functions do. pyright checks all other annotations.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import jaxtyping
import torch
from typeguard import TypeCheckError, check_type

__all__ = ["annotated_modules", "checked", "install", "shapes_of"]


NAMES = ("Bool", "Float", "Float64", "Int", "Int64", "Shaped")
"""Those of structinf.shapes, which may not be imported before :func:`install`."""

SHAPE = re.compile(rf"\b(?:{'|'.join(NAMES)})\[")
IMPORT = re.compile(r"^from (?:structinf|\.+)\.?shapes import", re.MULTILINE)


def annotated_modules() -> Iterator[str]:
    """Modules of the library with shapes in their annotations; imports none of them."""
    for package in ("structinf", "structinf_oracles"):
        yield from _annotated(package, importlib.util.find_spec(package).submodule_search_locations)


def _annotated(package: str, folders: list[str]) -> Iterator[str]:
    for folder in folders:
        for module in pkgutil.iter_modules([folder]):
            name, path = f"{package}.{module.name}", Path(folder, module.name)
            if module.ispkg:
                yield from _annotated(name, [str(path)])
            elif IMPORT.search(path.with_suffix(".py").read_text("utf-8")):
                yield name


def install() -> None:
    """Check the annotated modules of the library, none of which may have been imported."""
    sys.meta_path.insert(0, _Finder(list(annotated_modules())))


def shapes_of(node: ast.AST) -> Iterator[str]:
    """The annotations of a function's arguments and result, or of a class's fields, that have shapes, as written."""
    found: list[ast.expr | None] = []
    if isinstance(node, ast.FunctionDef):
        a = node.args
        found = [arg.annotation for arg in (*a.posonlyargs, *a.args, a.vararg, *a.kwonlyargs, a.kwarg) if arg]
        found.append(node.returns)
    elif isinstance(node, ast.ClassDef):
        found = [field.annotation for field in node.body if isinstance(field, ast.AnnAssign)]
    yield from (text for hint in found if hint and SHAPE.search(text := ast.unparse(hint)))


def checked(function: Any) -> Any:
    """``function`` with a TypeError where an argument or result is not of its annotated shape; or such a dataclass."""
    if inspect.isclass(function):
        function.__init__ = checked(function.__init__)
        return function
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.KEYWORD_ONLY]

    @functools.cache
    def hints() -> dict[str, Any]:  # at the first call, when all names of the module are there
        given = {name: hint for name, hint in function.__annotations__.items() if SHAPE.search(str(hint))}
        known = {**function.__globals__, **{name: getattr(jaxtyping, name) for name in NAMES}}
        return {name: eval(hint, known) if isinstance(hint, str) else hint for name, hint in given.items()}

    def check(name: str, value: Any) -> None:
        if (hint := hints().get(name)) is not None:
            try:
                check_type(value, hint)
            except TypeCheckError as error:
                raise TypeError(f"{name} of {function.__qualname__} is not of its annotated shape: {error}") from None

    passed: set[Any] = set()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # shapes are symbols then, and checks are not to be traced
            return function(*args, **kwargs)
        key = (_kind(args), *((name, _kind(value)) for name, value in kwargs.items()))
        if key in passed:
            return function(*args, **kwargs)
        with jaxtyping.jaxtyped("context"):  # one meaning for each name of a dimension
            for name, value in (*zip(names, args, strict=False), *kwargs.items()):
                check(name, value)
            result = function(*args, **kwargs)
            check("return", result)
            passed.add(key)
            return result

    return call


def _kind(value: Any) -> Any:
    """Return what the check of ``value`` depends on: shapes and dtypes of tensors, numbers, types of other objects."""
    if isinstance(value, torch.Tensor):
        return type(value), value.shape, value.dtype
    if isinstance(value, (tuple, list)):
        return type(value), *map(_kind, value)
    return value if isinstance(value, (int, str, type(None))) else type(value)


class _Finder:
    """Loads the modules of these names so that they are checked."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = frozenset(modules)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._modules:
            return None
        spec = PathFinder.find_spec(name, path, target)
        spec.loader = _Loader(name, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    """Decorates what has shapes in its annotations; innermost for functions, outermost for dataclasses."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)  # never the bytecode that Python keeps of the plain file

    def source_to_code(self, data: bytes, path: str, **_: Any) -> CodeType:
        tree = ast.parse(data, path)
        for node in ast.walk(tree):
            if any(shapes_of(node)):
                decorator = ast.parse("__import__('shape_checker').checked", mode="eval").body
                for part in ast.walk(decorator):
                    ast.copy_location(part, node)
                place = 0 if isinstance(node, ast.ClassDef) else len(node.decorator_list)
                node.decorator_list.insert(place, decorator)
        return compile(tree, path, "exec", dont_inherit=True)
