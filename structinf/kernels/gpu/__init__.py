"""Triton kernels: the choice between the kernels and torch, launches, and device functions that kernels share.

Importing this package does not import triton. A kernel is a function with ``@triton.jit`` in a module
``triton_NAME.py`` beside the CPU loops of the same structure. The module's plain functions allocate results and launch
kernels.
"""

from .backend import interprets_kernels, uses_triton
from .launch import launch

__all__ = ["interprets_kernels", "launch", "uses_triton"]
