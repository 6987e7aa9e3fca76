"""The local drivers: host memory, kernels called in this process."""
