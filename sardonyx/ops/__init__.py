"""Operators: one file per family. `framework` holds what they are made of.

An operator is one class: its attributes are typed fields, its meaning, its shape rule, its cost and its form as a
kernel are methods. An operator without a class here is still run, by `onnx.reference`.
"""
