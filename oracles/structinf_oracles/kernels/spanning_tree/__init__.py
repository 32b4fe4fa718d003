"""Kernels of undirected spanning trees."""
