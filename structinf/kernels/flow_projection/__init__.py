"""Quadratic programs over the flows of a hypergraph, by an interior-point method."""
