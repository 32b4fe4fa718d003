"""Random numbers by a counter, and products of noise with structures."""
