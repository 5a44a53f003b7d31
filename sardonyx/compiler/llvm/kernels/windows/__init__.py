"""Kernels over sliding windows: pools and depthwise convolutions."""
