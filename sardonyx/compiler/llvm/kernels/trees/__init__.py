"""Decision trees and what models of ai.onnx.ml do around them."""
