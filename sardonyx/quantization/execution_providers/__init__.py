"""Settings and preparations for models that run elsewhere, a package for each provider of onnxruntime."""
