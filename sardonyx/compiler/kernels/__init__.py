"""Kernels: a folder for each family, and in it a file for each kernel, from its code to how it binds to shapes."""
