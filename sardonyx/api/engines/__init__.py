"""Engines: compiled models that are kept in the cache, written to files, opened from them and shared by sessions."""
