"""Convolution: the choice of an algorithm, and each of them."""
