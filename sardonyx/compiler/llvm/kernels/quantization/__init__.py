"""Kernels of quantised operators."""
