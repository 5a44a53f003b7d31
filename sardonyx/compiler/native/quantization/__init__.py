"""How the kernels of quantised operators bind to shapes."""
