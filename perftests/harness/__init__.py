"""Code shared by the perf tests: options, kernels, data and its validation, timing, and tables."""
