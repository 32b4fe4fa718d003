"""Kernels of paths in graphs: Dijkstra's algorithm and the search for simple paths."""
