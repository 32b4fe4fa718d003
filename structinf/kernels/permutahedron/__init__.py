"""Projection onto permutahedra by isotonic regression."""
