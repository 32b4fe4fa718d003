"""Experiments of papers, on real data; see benchmarks/papers/README.md."""
