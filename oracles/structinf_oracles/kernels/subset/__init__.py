"""Kernels of subsets: the k highest scores."""
