"""Entropic optimal transport: plans, their Laplacians and derivatives."""
