"""Compiled CPU loops of the built-in oracles, over plain arrays. Modules here are imported on first use."""
