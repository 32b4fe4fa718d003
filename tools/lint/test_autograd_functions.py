"""Check that only the allowed modules use torch.autograd.Function; import-linter cannot check names of torch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FILES = sorted([*(ROOT / "structinf").rglob("*.py"), *(ROOT / "oracles").rglob("*.py")])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_autograd_functions_stand_in_one_place(path):
    if path.parent == ROOT / "structinf" / "autograd" or path == ROOT / "structinf" / "compile" / "functorch.py":
        return
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        where = f"line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Attribute):
            assert not ast.unparse(node).endswith("autograd.Function"), where
        elif isinstance(node, ast.ImportFrom) and (node.module or "").endswith("autograd"):
            assert "Function" not in {alias.name for alias in node.names}, where
