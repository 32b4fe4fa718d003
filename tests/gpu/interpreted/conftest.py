"""Tests of Triton kernels on CPU tensors, in the interpreter of triton, run by tests/gpu/test_interpreted.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from structinf.kernels.gpu import interprets_kernels

# triton reads TRITON_INTERPRET when it is imported, so these tests need a process of their own.
collect_ignore_glob = [] if interprets_kernels() else ["test_*.py"]


def patched_once(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return ``patch`` of the interpreter, which replaces operations of triton, without effect if they are replaced.

    The interpreter calls it for each kernel, and again for each call of a device function, where nothing is left to
    replace. That takes 0.5 ms, and most of the time of a kernel with many such calls.
    """
    from triton import language
    from triton.runtime import interpreter

    def patch_language(function: Any) -> Any:
        used = [value for value in function.__globals__.values() if value is language or value is language.core]
        if used and not any(language.core.is_builtin(value.load) for value in used):
            return interpreter._LangPatchScope()
        return patch(function)

    return patch_language


if interprets_kernels():
    from triton.runtime import interpreter

    interpreter._patch_lang = patched_once(interpreter._patch_lang)
