"""The built-in oracles, one structure in each module, with their compiled kernels."""
