"""The kernel of tours: Held and Karp's recursion."""
