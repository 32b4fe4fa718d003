"""Compilation of the launched kernels for CUDA devices, on a machine without one."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

if not importlib.util.find_spec("triton"):
    collect_ignore_glob = ["test_*.py"]

CAPABILITIES = (80, 90)
"""The compute capabilities to compile for; without --full, only the last."""

MOST_SHARED_BYTES = 99 * 1024
"""A program of compute capability 8.6 can have this much shared memory; 8.0 and 9.0 have more."""

TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}


@dataclass(frozen=True)
class Compiled:
    """A kernel compiled for one compute capability, with its use of resources."""

    name: str
    capability: int
    constants: tuple[tuple[str, Any], ...]
    registers: int
    spilled_bytes: int
    shared_bytes: int


@pytest.fixture
def compile_launches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Callable[..., list[Compiled]]:
    """A function that calls ``run`` with CPU tensors and compiles the kernels that it launches, without running them.

    The functions that launch kernels must not read results, which are uninitialised.
    """
    from triton.runtime.jit import JITFunction

    launches: dict[Any, Any] = {}
    capabilities = CAPABILITIES if request.config.getoption("--full") else CAPABILITIES[-1:]

    def record(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        values = dict(zip(kernel.arg_names, arguments, strict=False))
        values.update({name: options.pop(name) for name in list(options) if name in kernel.arg_names})
        constants = {p.name: values.pop(p.name) for p in kernel.params if p.is_constexpr}
        constants |= {name: None for name, value in values.items() if value is None}
        signature = {name: "constexpr" if value is None else _type_of(value) for name, value in values.items()}
        signature |= dict.fromkeys(constants, "constexpr")
        ordered = {name: signature[name] for name in kernel.arg_names}
        launches[kernel, tuple(ordered.items()), tuple(constants.items()), tuple(options.items())] = None

    monkeypatch.setattr(JITFunction, "run", record)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def compile_all(run: Callable[[], Any], most_spilled: int = 0) -> list[Compiled]:
        launches.clear()
        run()
        assert launches, "no kernel was launched"
        found = [_compile(*launch, capability) for launch in launches for capability in capabilities]
        for kernel in found:
            assert kernel.spilled_bytes <= most_spilled, kernel
            assert kernel.shared_bytes <= MOST_SHARED_BYTES, kernel
        return found

    return compile_all


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"


def _compile(kernel: Any, signature: Any, constants: Any, options: Any, capability: int) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constexprs = {(kernel.arg_names.index(name),): value for name, value in constants}
    source = ASTSource(kernel, dict(signature), constexprs)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(options))
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [folder / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    numbers = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return Compiled(
        kernel.__name__,
        capability,
        constants,
        numbers["REG"],
        numbers["STACK"] + numbers["LOCAL"],
        compiled.metadata.shared,
    )
