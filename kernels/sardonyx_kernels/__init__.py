"""Kernels of Sardonyx compiled ahead: this folder holds packs, which it finds here. There is nothing to import."""
