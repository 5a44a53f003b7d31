"""Resizing, sampling at places, and pooling of regions."""
