"""Operators of ai.onnx.ml: models that are no neural networks."""
