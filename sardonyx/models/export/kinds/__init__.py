"""The graphs that kinds of architectures are made of: one file a kind."""
