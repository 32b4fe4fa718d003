"""Kernels of semi-Markov models whose segments are scored by steps, boundaries and durations."""
