"""Tests and timings for a machine with a CUDA GPU: run `benchmarks/device/run` on the machine."""
