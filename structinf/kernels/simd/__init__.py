"""Vectors of 16 numbers for use inside kernels."""
