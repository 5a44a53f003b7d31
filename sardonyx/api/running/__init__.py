"""A run: what is fed, the short way for calls that repeat, bindings, results, and the memory that it takes."""
