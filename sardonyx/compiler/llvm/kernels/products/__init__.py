"""Kernels of matrix products: packing, micro-kernels, epilogues, products of quarters."""
