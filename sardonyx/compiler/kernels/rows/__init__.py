"""Kernels along rows: running sums and products."""
