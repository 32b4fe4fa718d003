"""Elementary functions of one number, for use inside kernels."""
