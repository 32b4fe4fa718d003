"""Tests of Triton kernels on CPU tensors, in the interpreter of triton, run by tests/gpu/test_interpreted.py."""

from structinf.kernels.gpu import interprets_kernels

# triton reads TRITON_INTERPRET when it is imported, so these tests need a process of their own.
collect_ignore_glob = [] if interprets_kernels() else ["test_*.py"]
