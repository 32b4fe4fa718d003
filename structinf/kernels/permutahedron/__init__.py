"""Projections onto permutahedra by isotonic regression."""
