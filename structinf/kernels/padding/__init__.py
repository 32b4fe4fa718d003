"""Triton kernels that overwrite the padding of scores and check scores and lengths, in one launch for each call."""
