"""Differentiable functions of tensors without an oracle: soft ranks, entropic transport, quantization, tag schemes."""
