"""For a machine with a CUDA GPU: `benchmarks/device/run` there."""
