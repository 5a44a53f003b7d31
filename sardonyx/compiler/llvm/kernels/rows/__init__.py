"""Kernels along rows: reductions, softmax, normalisations, running sums."""
