"""Classic models of ai.onnx.ml: linear ones, support vectors, and the features before them."""
