"""Code shared by the built-in oracles: labels, grids, graphs, subsets, and solvers of integer programs."""
