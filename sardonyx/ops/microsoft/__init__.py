"""The operators of `com.microsoft`: those that onnxruntime's optimizers and converters put into models."""
