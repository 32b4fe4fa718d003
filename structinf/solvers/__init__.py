"""Algorithms without gradients of their own: plain functions that see only the oracle protocol."""
