"""Kernels of network flows."""
