"""Kernels of the linear assignment problem: the best and the k best matchings."""
