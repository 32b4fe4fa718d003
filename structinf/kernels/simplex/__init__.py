"""Maps of rows to the simplex, and products with their Jacobians."""
