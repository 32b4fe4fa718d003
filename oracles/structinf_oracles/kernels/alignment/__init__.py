"""Kernels of alignments in a grid (DTW)."""
