"""Measurements of structinf; see benchmarks/README.md."""
