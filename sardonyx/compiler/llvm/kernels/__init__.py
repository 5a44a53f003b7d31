"""Kernel templates, one file each."""
