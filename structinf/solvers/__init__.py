"""Solvers as plain functions without gradients; they call oracles only by the methods of the oracle protocol."""
