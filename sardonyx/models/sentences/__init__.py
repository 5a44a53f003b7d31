"""Vectors of texts and scores of pairs, as sentence-transformers makes them: without it, and without torch."""
