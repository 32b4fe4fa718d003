"""Passes over a hypergraph: smoothed values, gradients, samples and the k best derivations."""
