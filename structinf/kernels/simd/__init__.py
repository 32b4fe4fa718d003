"""Vectors of 16 numbers, for kernels that process 16 instances at once."""
