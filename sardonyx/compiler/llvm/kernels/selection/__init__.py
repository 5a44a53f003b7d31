"""The code of kernels that choose elements by value."""
