"""Check that each call of a tensor factory names a device, as torch.set_default_device moves all other tensors.

A module's parameter belongs on the default device; the comment ``# on the default device`` marks its factory call. The
demos are programs of a user, whose tensors are all on the default device.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils import _device

ROOT = Path(__file__).parent.parent.parent
FILES = [
    path
    for path in sorted([*(ROOT / "structinf").rglob("*.py"), *(ROOT / "oracles").rglob("*.py")])
    if ROOT / "structinf" / "demos" not in path.parents
]
FACTORIES = {function.__name__ for function in _device._device_constructors()}
MARK = "# on the default device"


def faults(source: str) -> Iterator[str]:
    """Yield a message for each factory call without a device."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            imported = {alias.name for alias in node.names} & FACTORIES
            if imported:
                yield f"line {node.lineno}: call {', '.join(sorted(imported))} as an attribute of torch"
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name = node.func.attr
        is_factory = name in FACTORIES and ast.unparse(node.func) == f"torch.{name}"
        has_device = any(keyword.arg in ("device", None) for keyword in node.keywords)
        if is_factory and not has_device and MARK not in lines[(node.end_lineno or node.lineno) - 1]:
            remedy = "use structinf.kernels.arrays.as_tensor" if name in ("as_tensor", "asarray") else "pass device=..."
            yield f"line {node.lineno}: torch.{name} creates a tensor on the default device; {remedy}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_factory_calls_name_a_device(path):
    assert list(faults(path.read_text("utf-8"))) == []


def test_the_check_finds_calls_without_a_device():
    source = """
import torch
from torch import Tensor, zeros
torch.zeros(3, dtype=torch.float64)
torch.zeros(3, device="cpu")
torch.zeros(3)  # on the default device
torch.as_tensor([1])
torch.zeros_like(x)
torch.arange(3, **options)
"""
    assert [fault.split(":")[0] for fault in faults(source)] == ["line 3", "line 4", "line 7"]
