"""What callers of onnxruntime use: the same names, defaults and behaviour."""
