"""Functions of square matrices."""
