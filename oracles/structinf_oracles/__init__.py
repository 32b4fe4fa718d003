"""The built-in structures, one oracle a file, with compiled kernels of their own."""
