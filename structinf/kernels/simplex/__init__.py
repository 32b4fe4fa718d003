"""Maps to the simplex, row by row, and products with their Jacobians."""
