"""Kernel IR: what a provider executes, free of ONNX and of any machine.

`expr` holds scalar expressions and the primitives they are made of, `program` the kinds of kernels, `evaluate`
their meaning in NumPy, which every other rendering is compared with.
"""
