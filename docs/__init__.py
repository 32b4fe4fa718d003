"""The documentation, and what draws, writes and runs parts of it."""
