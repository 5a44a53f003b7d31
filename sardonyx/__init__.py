"""Sardonyx."""
