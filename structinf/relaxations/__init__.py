"""The built-in relaxations, a file each."""
