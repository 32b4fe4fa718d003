"""Kernels of rooted trees: the best tree, and sums over all trees by elimination."""
