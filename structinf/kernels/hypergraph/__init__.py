"""Passes over hypergraphs: smoothed values, gradients, samples and the k best derivations."""
