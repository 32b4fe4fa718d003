"""Kernels that solve the quadratic programs of the active set method for a batch of instances."""
