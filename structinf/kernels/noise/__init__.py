"""Counter-based random numbers, and products of noise with structures."""
