"""Kernels that move values without computing."""
