"""Versions: our own, and that of the onnxruntime API that we serve."""

__version__ = "0.1.0"

# Programs written for onnxruntime compare this with what they need.
API_VERSION = "1.31.1"
