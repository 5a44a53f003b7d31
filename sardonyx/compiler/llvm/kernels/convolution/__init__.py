"""Convolutions that are no plain products: their own loops over tiles of the image."""
