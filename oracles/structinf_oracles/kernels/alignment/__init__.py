"""Kernels of alignments in a grid (DTW, Needleman-Wunsch, monotonic alignments)."""
