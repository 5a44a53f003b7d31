"""Kernels that choose elements by value: the best of a row, those that differ, those that are not zero."""
