"""The built-in relaxations, one file for each."""
