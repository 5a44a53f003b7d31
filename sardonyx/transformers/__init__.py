"""Helpers for transformer models under the paths that callers of onnxruntime import."""
