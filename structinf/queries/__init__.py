"""Queries over all structures of an oracle: k best, samples, counts, entropies, log-probabilities and supports."""
