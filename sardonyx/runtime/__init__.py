"""What a run needs: the plan, its executor and the trace. Nothing here knows ONNX."""
