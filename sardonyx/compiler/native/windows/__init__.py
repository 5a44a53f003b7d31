"""How kernels over sliding windows bind."""
