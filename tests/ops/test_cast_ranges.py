"""Casts of numbers that their integer type does not hold: folded, native and in NumPy as onnxruntime has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import sardonyx
from sardonyx.graph.load import load_model
from sardonyx.kernel.integers import to_integers
from sardonyx.ops.framework.inference import infer_model
from tests.ops.levels import assert_results
from tests.ops.one_node import model_of

Array = np.ndarray[Any, Any]

INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]
EDGES = [float(1 << bits) for bits in (7, 8, 15, 16, 31, 32, 63, 64)]


def numbers(source: np.dtype[Any]) -> Array:
    """Around and far beyond the ends of every type."""
    if source.kind in "iu":
        limits = np.iinfo(source)
        wanted = [0, 1, 200, 40_000, 3_000_000_000, (1 << 62) + 5, limits.max, limits.min]
        return np.array(
            [sign * one for one in wanted for sign in (1, -1) if limits.min <= sign * one <= limits.max], source
        )
    found = [0.5, 1.9, 300.0, 5e9, 1e30, np.inf, np.nan, *EDGES, *(edge * 1.5 for edge in EDGES)]
    with np.errstate(over="ignore"):
        return np.array([*found, *(-one for one in found)]).astype(source)


def cast_model(x: Array, target: np.dtype[Any], *, constant: bool) -> bytes:
    """y = Cast(x); of a constant x, y = Concat(Cast(x), rest), which folding leaves."""
    types = [helper.np_dtype_to_tensor_dtype(dtype) for dtype in (x.dtype, target)]
    nodes = [helper.make_node("Cast", ["x"], ["cast"], to=types[1])]
    nodes.append(helper.make_node("Concat", ["cast", "rest"], ["y"], axis=0))
    inputs = [helper.make_tensor_value_info("rest", types[1], ["r"])]
    inputs += [] if constant else [helper.make_tensor_value_info("x", types[0], ["n"])]
    weights = [onnx.numpy_helper.from_array(x, "x")] if constant else []
    outputs = [helper.make_tensor_value_info("y", types[1], ["m"])]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def results(module: Any, x: Array, target: np.dtype[Any], *, constant: bool = False, kernels: str = "") -> Array:
    options = module.SessionOptions()
    if kernels:
        options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    model = cast_model(x, target, constant=constant)
    session = module.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {"rest": np.zeros(0, target)} | ({} if constant else {"x": x})
    return np.asarray(session.run(None, feeds)[0])


@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", [*FLOATS, np.dtype(np.int64), np.dtype(np.uint32)], ids=str)
def test_all_renderings_give_the_numbers_of_onnxruntime(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    x = numbers(source)
    native = results(sardonyx, x, target)
    np.testing.assert_array_equal(results(sardonyx, x, target, constant=True), native)
    for kernels in ("numpy", "portable"):
        np.testing.assert_array_equal(results(sardonyx, x, target, kernels=kernels), native)
    ort = pytest.importorskip("onnxruntime")
    expected = results(ort, x, target)
    if source.kind == "f" and target == np.uint32:
        # Those that do not fit, onnxruntime converts otherwise at the end of an array than before it.
        wide = x.astype(np.float64)
        fits = (wide >= -(2.0**31)) & (wide < 2.0**32)
        native, expected = native[fits], expected[fits]
    np.testing.assert_array_equal(native, expected)


def test_what_does_not_fit_is_the_lowest_number_cut_to_the_type() -> None:
    x = np.array([-1.9, 300.0, 3e9, -5e9, np.nan, np.inf], np.float32)
    lowest = -(2**31)
    expected = {
        "int8": [-1, 44, 0, 0, 0, 0],
        "uint8": [255, 44, 0, 0, 0, 0],
        "int32": [-1, 300, lowest, lowest, lowest, lowest],
        "uint32": [2**32 - 1, 300, 3_000_000_000, 2**31, 2**31, 0],
        "int64": [-1, 300, 3_000_000_000, -5_000_000_000, -(2**63), -(2**63)],
        "uint64": [2**64 - 1, 300, 3_000_000_000, 2**64 - 5_000_000_000, 2**63, 0],
    }
    for name, wanted in expected.items():
        np.testing.assert_array_equal(to_integers(x, np.dtype(name)), np.array(wanted, name), err_msg=name)


def test_inference_forgets_contents_that_their_type_does_not_hold() -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    graph (float[2] x) => (float[n] y) {
        size = Shape(x)
        factor = Constant<value_ints = [4294967299]>()
        product = Mul(size, factor)
        narrow = Cast<to = 6>(product)
        wide = Cast<to = 7>(narrow)
        y = ConstantOfShape(wide)
    }
    """)
    loaded = load_model(model.SerializeToString()).model
    facts = {value.name: fact for value, fact in infer_model(loaded).facts.items()}
    assert facts["product"].elements == (2 * 4294967299,)
    assert facts["narrow"].elements is None
    assert facts["wide"].elements is None
    session = sardonyx.InferenceSession(model.SerializeToString())
    assert session.run(None, {"x": np.zeros(2, np.float32)})[0].shape == (6,)


TINY = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_floats_are_rounded_to_tiny_integers_and_cut_to_their_bits(source: np.dtype[Any], name: str) -> None:
    pairs = [(0.5, 1), (-0.5, -1), (0.25, 0), (1.5, 2), (2.5, 3), (-2.5, -3), (3.75, 4), (7.5, 8), (-8.5, -9)]
    pairs += [(15.5, 16), (100.5, 101), (-129.5, -130), (0.499755859375, 0), (np.inf, 0), (-np.inf, 0), (np.nan, 0)]
    pairs += [] if source == np.float16 else [(np.nextafter(np.float32(0.5), np.float32(0)), 0), (3e9, 0)]
    x = np.array([one for one, _ in pairs], source)
    bits = TINY[name]
    whole = np.array([number for _, number in pairs], np.int64) & ((1 << bits) - 1)
    wanted = np.where(whole >> (bits - 1), whole - (1 << bits), whole) if name.startswith("i") else whole
    kind = onnx.TensorProto.DataType.Value(name.upper())
    nodes = [
        helper.make_node("Cast", ["x"], ["tiny"], to=kind),
        helper.make_node("Cast", ["tiny"], ["y"], to=onnx.TensorProto.INT32),
    ]
    model = model_of(nodes, {"x": x}, ["y"], opset=25, shapes={"x": ["n"]})
    model.ir_version = 13
    assert_results(model, [{"x": x}], [[wanted.astype(np.int32)]])
    constant = onnx.ModelProto.FromString(model.SerializeToString())
    constant.graph.initializer.append(onnx.numpy_helper.from_array(x, "x"))
    del constant.graph.input[:]
    assert_results(constant, [{}], [[wanted.astype(np.int32)]])
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], wanted)
