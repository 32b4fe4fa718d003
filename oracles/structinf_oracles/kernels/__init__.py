"""Compiled CPU loops of the built-in structures, over plain arrays; modules here are imported on first use."""
