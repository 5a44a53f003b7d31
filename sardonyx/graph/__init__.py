"""The model as a graph: loading, checking, saving, types and partition. A thin layer on `onnx_ir`."""
