"""Elements moved by their place."""
