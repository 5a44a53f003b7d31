"""A model a quarter of its size: dynamic and static quantization, as a program for onnxruntime writes it.

    python examples/quantize.py [MODEL.onnx]

Without a model it makes one: three layers with weights that were drawn at random. The samples are random as well; take
real ones, as the ranges of activations and the errors come from them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
from sardonyx.quantization.qdq_loss_debug import compute_signal_to_quantization_noice_ratio

SAMPLES = 16
WIDTH = 256


class Samples(CalibrationDataReader):
    """What the model is calibrated with: `get_next` gives one sample after the other, then None."""

    def __init__(self, samples: list[dict[str, np.ndarray]]) -> None:
        self._left = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        given = sys.argv[1:]
        model = Path(given[0]) if given else made(Path(folder) / "float.onnx")
        samples = drawn(model)
        dynamic, static = Path(folder) / "dynamic.onnx", Path(folder) / "static.onnx"
        # The ranges of activations come from each run ...
        quantize_dynamic(model, dynamic, per_channel=True, weight_type=QuantType.QInt8)
        # ... or from samples, once.
        quantize_static(model, static, Samples(samples), per_channel=True, activation_type=QuantType.QUInt8)
        exact = outputs(model, samples)
        for name, path in (("float", model), ("dynamic", dynamic), ("static", static)):
            ratio = compute_signal_to_quantization_noice_ratio(exact, outputs(path, samples))
            print(f"{name:8} {path.stat().st_size / 1e3:8.1f} kB   signal to noise {ratio:6.1f} dB")


def made(path: Path) -> Path:
    """A small float model."""
    draw = np.random.default_rng(0)
    weights = [(draw.standard_normal((WIDTH, WIDTH)) / 16).astype(np.float32) for _ in range(3)]
    nodes = []
    for layer in range(3):
        nodes.append(helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"p{layer}"], name=f"product{layer}"))
        nodes.append(helper.make_node("Relu", [f"p{layer}"], [f"x{layer + 1}"], name=f"relu{layer}"))
    graph = helper.make_graph(
        nodes,
        "example",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info("x3", TensorProto.FLOAT, ["batch", WIDTH])],
        [numpy_helper.from_array(array, f"w{layer}") for layer, array in enumerate(weights)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def drawn(model: Path) -> list[dict[str, np.ndarray]]:
    """Random samples for a model whose inputs are float32."""
    draw = np.random.default_rng(1)
    inputs = ort.InferenceSession(model).get_inputs()
    shapes = {one.name: [size if isinstance(size, int) else 4 for size in one.shape] for one in inputs}
    return [
        {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(SAMPLES)
    ]


def outputs(model: Path, samples: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    """The first output for each sample."""
    session = ort.InferenceSession(model)
    return [session.run(None, sample)[0] for sample in samples]


if __name__ == "__main__":
    main()
