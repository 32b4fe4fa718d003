"""The kernel of knapsacks with many states: branch and bound."""
