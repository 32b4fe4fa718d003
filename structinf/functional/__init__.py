"""Differentiable functions of plain tensors that need no oracle: soft ranks, entropic transport, quantisation."""
