"""What several built-in structures share: labels, grids, graphs, subsets, solvers of integer programs."""
