"""What classic models do with single features."""
