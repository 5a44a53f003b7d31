"""A small transformer whose inputs have a batch and a length, and its sessions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort

WORDS, WIDTH, HEADS, LAYERS, LONGEST = 40, 32, 2, 2, 96

Feeds = dict[str, np.ndarray]


def write_transformer(path: Path) -> None:
    """Two layers of attention and products over embedded words and their positions, with a mask."""
    rng = np.random.default_rng(3)
    constants: dict[str, np.ndarray] = {
        "words": rng.standard_normal((WORDS, WIDTH)).astype(np.float32),
        "positions": rng.standard_normal((LONGEST, WIDTH)).astype(np.float32),
        "zero": np.array([0]),
        "one": np.array([1]),
        "step": np.array([1]),
        "split": np.array([0, 0, HEADS, WIDTH // HEADS]),
        "merged": np.array([0, 0, WIDTH]),
        "axes": np.array([1, 2]),
        "far": np.array(-1e4, np.float32),
        "scale": np.array((WIDTH // HEADS) ** -0.5, np.float32),
        "gain": rng.standard_normal(WIDTH).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["embedded"]),
        helper.make_node("Shape", ["ids"], ["shape"], start=1, end=2),
        helper.make_node("Slice", ["positions", "zero", "shape", "zero", "step"], ["place"]),
        helper.make_node("Add", ["embedded", "place"], ["x0"]),
        helper.make_node("Equal", ["mask", "no"], ["hidden"]),
        helper.make_node("Unsqueeze", ["hidden", "axes"], ["hidden_everywhere"]),
    ]
    constants["no"] = np.array(0)
    for layer in range(LAYERS):
        x = f"x{layer}"
        for part in "qkv":
            constants[f"{part}{layer}_w"] = (rng.standard_normal((WIDTH, WIDTH)) / 6).astype(np.float32)
            nodes += [
                helper.make_node("MatMul", [x, f"{part}{layer}_w"], [f"{part}{layer}"]),
                helper.make_node("Reshape", [f"{part}{layer}", "split"], [f"{part}{layer}_heads"]),
                helper.make_node(
                    "Transpose",
                    [f"{part}{layer}_heads"],
                    [f"{part}{layer}_t"],
                    perm=[0, 2, 3, 1] if part == "k" else [0, 2, 1, 3],
                ),
            ]
        constants[f"up{layer}"] = (rng.standard_normal((WIDTH, 2 * WIDTH)) / 6).astype(np.float32)
        constants[f"down{layer}"] = (rng.standard_normal((2 * WIDTH, WIDTH)) / 8).astype(np.float32)
        nodes += [
            helper.make_node("MatMul", [f"q{layer}_t", f"k{layer}_t"], [f"raw{layer}"]),
            helper.make_node("Mul", [f"raw{layer}", "scale"], [f"scores{layer}"]),
            helper.make_node("Where", ["hidden_everywhere", "far", f"scores{layer}"], [f"masked{layer}"]),
            helper.make_node("Softmax", [f"masked{layer}"], [f"share{layer}"], axis=-1),
            helper.make_node("MatMul", [f"share{layer}", f"v{layer}_t"], [f"mixed{layer}"]),
            helper.make_node("Transpose", [f"mixed{layer}"], [f"rows{layer}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"rows{layer}", "merged"], [f"whole{layer}"]),
            helper.make_node("Add", [x, f"whole{layer}"], [f"sum{layer}"]),
            helper.make_node("LayerNormalization", [f"sum{layer}", "gain"], [f"norm{layer}"], axis=-1),
            helper.make_node("MatMul", [f"norm{layer}", f"up{layer}"], [f"wide{layer}"]),
            helper.make_node("Relu", [f"wide{layer}"], [f"active{layer}"]),
            helper.make_node("MatMul", [f"active{layer}", f"down{layer}"], [f"x{layer + 1}"]),
        ]
    dims = ["batch", "length"]
    graph = helper.make_graph(
        nodes,
        "transformer",
        [helper.make_tensor_value_info(name, TensorProto.INT64, dims) for name in ("ids", "mask")],
        [
            helper.make_tensor_value_info(f"x{LAYERS}", TensorProto.FLOAT, [*dims, WIDTH]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, [1]),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def feeds(batch: int, length: int) -> Feeds:
    """Words, some of which a mask hides."""
    rng = np.random.default_rng(100 * batch + length)
    mask = np.ones((batch, length), np.int64)
    mask[-1, (length + 1) // 2 :] = 0
    return {"ids": rng.integers(0, WORDS, (batch, length)), "mask": mask}


def session(source: Path, entries: dict[str, str] | None = None, level: int = 2) -> ort.InferenceSession:
    """A session of a model or of an engine with these config entries."""
    options = ort.SessionOptions()
    options.log_severity_level = level
    options.intra_op_num_threads = 2
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def check_alike(found: ort.InferenceSession, wanted: ort.InferenceSession, batch: int, length: int) -> None:
    """See that both give the same bits, the second time, too, which takes another way."""
    given = feeds(batch, length)
    expected = wanted.run(None, given)
    for _ in range(2):
        for one, other in zip(found.run(None, given), expected, strict=True):
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            assert one.tobytes() == other.tobytes(), (batch, length)
