"""What the perf tests share: options, kernels, data and its validation, timing, tables."""
