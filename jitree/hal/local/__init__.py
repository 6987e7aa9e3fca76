"""Drives this machine's processors: host memory, kernels called in this process."""
