"""Rewrites of the model, by optimisation level."""
