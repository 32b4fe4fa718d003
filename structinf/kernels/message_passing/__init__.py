"""Messages between the factors and the variables of a discrete model."""
