"""Fourier transforms while binding."""
