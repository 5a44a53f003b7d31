"""Tools for models, each usable alone and from the command line."""
