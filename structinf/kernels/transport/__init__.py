"""Entropic optimal transport: plans, their Laplacians and their derivatives."""
