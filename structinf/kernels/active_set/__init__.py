"""The quadratic programs of the active set method, for a batch of instances."""
