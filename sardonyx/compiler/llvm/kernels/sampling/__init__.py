"""Kernels that read tensors at other places: resizing, grids of samples, regions, and sums of overlapping windows."""
