"""Small models and samples of calibration tests."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

from sardonyx.quantization.calibrate import CalibrationDataReader

CONVOLUTION = """
<ir_version: 10, opset_import: ["" : {opset}]>
g (float[n, 3, 8, 8] x) => (float[n, 4] y) {{
  c = Conv(x, w)
  r = Relu(c)
  k = Clip(c, low, high)
  s = Add(r, k)
  p = GlobalAveragePool(s)
  y = Flatten(p)
}}
"""
TENSORS = ["x", "c", "r", "k", "s", "p", "y"]
WEIGHT = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
LOW, HIGH = -1.5, 2.25


def save_convolution(path, opset=18):
    """A model whose tensors are computed from each other by Relu, Clip and Flatten; its path."""
    model = onnx.parser.parse_model(CONVOLUTION.format(opset=opset))
    for name, array in (("w", WEIGHT), ("low", np.float32(LOW)), ("high", np.float32(HIGH))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    onnx.save(model, path)
    return str(path)


def save_text(path, text):
    """A model in ONNX's own syntax; its path."""
    onnx.save(onnx.parser.parse_model(text), path)
    return str(path)


def samples(count, shape=(2, 3, 8, 8), seed=0):
    """So many feeds of normal numbers."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def exact_tensors(feeds):
    """Of each feed, what the tensors of the model hold, in float64."""
    return [_tensors(feed["x"].astype(np.float64)) for feed in feeds]


def _tensors(x):
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    c = np.einsum("nchwij,ocij->nohw", windows, WEIGHT.astype(np.float64))
    r, k = np.maximum(c, 0), np.clip(c, LOW, HIGH)
    p = (r + k).mean(axis=(2, 3), keepdims=True)
    return {"x": x, "c": c, "r": r, "k": k, "s": r + k, "p": p, "y": p.reshape(len(p), -1)}


class Feeds(CalibrationDataReader):
    """A reader of a list that knows nothing but its next sample."""

    def __init__(self, feeds):
        self.feeds = iter(feeds)

    def get_next(self):
        return next(self.feeds, None)
