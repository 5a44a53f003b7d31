"""Calibration: the ranges of a model's activations, found by running it on samples."""
