"""Small models of many kinds, from which the fuzzer makes its mutants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.small_models import SMALL_MODELS, SmallModel

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def _info(name: str, shape: list[int | str], kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _weights(name: str, *shape: int) -> onnx.TensorProto:
    size = int(np.prod(shape))
    return numpy_helper.from_array(np.linspace(-1, 1, size, dtype=np.float32).reshape(shape), name)


def _numbers(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: list[onnx.TensorProto],
    opset: int = 17,
    domains: tuple[str, ...] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "seed", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def layers() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "kernel"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", ["m"], ["s"]),
        node("Gather", ["s", "zero"], ["batch"]),
        node("Concat", ["batch", "rest"], ["target"], axis=0),
        node("Reshape", ["m", "target"], ["flat"]),
        node("Gemm", ["flat", "w", "b"], ["g"], transB=0),
        node("Softmax", ["g"], ["y"], axis=-1),
    ]
    constants = [
        _weights("kernel", 4, 2, 3, 3),
        _weights("w", 16, 5),
        _weights("b", 5),
        _numbers("zero", 0),
        _numbers("rest", -1),
    ]
    return _model(nodes, [_info("x", ["n", 2, 4, 4])], [_info("y", ["n", 5])], constants)


def shapes() -> onnx.ModelProto:
    nodes = [
        node("Expand", ["x", "wide"], ["e"]),
        node("Tile", ["e", "twice"], ["t"]),
        node("Pad", ["t", "pads"], ["p"]),
        node("Slice", ["p", "starts", "ends"], ["s"]),
        node("Transpose", ["s"], ["tr"], perm=[1, 0]),
        node("Range", ["from", "to", "step"], ["r"]),
        node("ConstantOfShape", ["wide"], ["z"], value=_weights("", 1)),
        node("ReduceMean", ["z"], ["mean"], axes=[1], keepdims=1),
        node("Cast", ["r"], ["rf"], to=FLOAT),
        node("Resize", ["image", "", "scales"], ["big"], mode="nearest"),
        node("OneHot", ["twice", "depth", "pair"], ["hot"]),
    ]
    constants = [
        _numbers("wide", 3, 4),
        _numbers("twice", 1, 2),
        _numbers("pads", 0, 1, 1, 0),
        _numbers("starts", 0, 0),
        _numbers("ends", 3, 4),
        numpy_helper.from_array(np.array(0, np.int64), "from"),
        numpy_helper.from_array(np.array(6, np.int64), "to"),
        numpy_helper.from_array(np.array(2, np.int64), "step"),
        numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
        _weights("image", 1, 1, 2, 2),
        numpy_helper.from_array(np.array(4, np.int64), "depth"),
        _weights("pair", 2),
    ]
    outputs = [_info("tr", ["a", "b"]), _info("mean", [3, 1]), _info("rf", [3]), _info("big", [1, 1, 4, 4])]
    return _model(nodes, [_info("x", [1, 4])], [*outputs, _info("hot", [2, 4])], constants)


def _body(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto] | None = None,
) -> onnx.GraphProto:
    return helper.make_graph(nodes, "body", inputs, outputs, constants or [])


def control_flow() -> onnx.ModelProto:
    loop = _body(
        [node("Add", ["state", "x"], ["next"]), node("Identity", ["go"], ["going"]), node("Neg", ["next"], ["row"])],
        [_info("i", [], INT64), _info("go", [], BOOL), _info("state", [2])],
        [_info("going", [], BOOL), _info("next", [2]), _info("row", [2])],
    )
    then = _body([node("Mul", ["last", "two"], ["a"])], [], [_info("a", [2])], [_weights("two", 2)])
    other = _body([node("Sub", ["last", "x"], ["b"])], [], [_info("b", [2])])
    scan = _body(
        [node("Add", ["carry", "item"], ["sum"]), node("Identity", ["sum"], ["copy"])],
        [_info("carry", [2]), _info("item", [2])],
        [_info("sum", [2]), _info("copy", [2])],
    )
    nodes = [
        node("Loop", ["trips", "yes", "x"], ["last", "rows"], body=loop),
        node("If", ["yes"], ["y"], then_branch=then, else_branch=other),
        node("Scan", ["x", "rows"], ["total", "sums"], body=scan, num_scan_inputs=1),
    ]
    constants = [
        numpy_helper.from_array(np.array(3, np.int64), "trips"),
        numpy_helper.from_array(np.array(True), "yes"),
    ]
    return _model(nodes, [_info("x", [2])], [_info("y", [2]), _info("sums", [3, 2])], constants)


def functions() -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    scaled = onnx.NodeProto(op_type="LeakyRelu", input=["a"], output=["b"], name="leak")
    scaled.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    inner = helper.make_function("local", "Leak", ["a"], ["b"], [scaled], opsets, ["slope"])
    call = node("Leak", ["p"], ["q"], domain="local", slope=0.5)
    outer = helper.make_function("local", "Twice", ["p"], ["r"], [call, node("Add", ["q", "p"], ["r"])], opsets)
    nodes = [node("Twice", ["x"], ["h"], domain="local"), node("Twice", ["h"], ["y"], domain="local")]
    model = _model(nodes, [_info("x", [3])], [_info("y", [3])], [], domains=("local",))
    model.functions.extend([inner, outer])
    return model


def quantised() -> onnx.ModelProto:
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        node("MatMul", ["d", "w"], ["m"]),
        node("LayerNormalization", ["m", "gain"], ["n"], axis=-1),
        node("Gelu", ["n"], ["u"], domain="com.microsoft"),
        node("TopK", ["u", "k"], ["values", "indices"], axis=-1),
        node("Where", ["flags", "values", "values"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.array(0.1, np.float32), "scale"),
        numpy_helper.from_array(np.array(3, np.uint8), "zero"),
        _weights("w", 4, 6),
        _weights("gain", 6),
        _numbers("k", 2),
        numpy_helper.from_array(np.array([True, False]), "flags"),
    ]
    return _model(
        nodes,
        [_info("x", [2, 4])],
        [_info("y", [2, 2]), _info("indices", [2, 2], INT64)],
        constants,
        domains=("com.microsoft",),
    )


def external() -> onnx.ModelProto:
    """Reads 64 bytes at offset 64 of a file that the fuzzer puts beside it, and as many of itself."""
    weights = TensorProto(name="w", data_type=FLOAT, dims=[4, 4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "weights.bin"), ("offset", "64"), ("length", "64")):
        weights.external_data.add(key=key, value=value)
    large = _weights("large", 4, 300)
    sparse = helper.make_sparse_tensor(_weights("thin", 2), _numbers("", 1, 3), [4])
    model = _model(
        [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "large"], ["l"]), node("Add", ["h", "thin"], ["y"])],
        [_info("x", [1, 4])],
        [_info("y", [1, 4]), _info("l", [1, 300])],
        [weights, large],
    )
    model.graph.sparse_initializer.append(sparse)
    return model


def encoder() -> onnx.ModelProto:
    """Embeddings, attention with heads, a mask, a normalisation, GELU: what becomes a few native kernels."""
    nodes = [
        node("Gather", ["table", "ids"], ["x"]),
        node("MatMul", ["x", "wq"], ["q0"]),
        node("Add", ["q0", "bq"], ["q1"]),
        node("Reshape", ["q1", "split"], ["q2"]),
        node("Transpose", ["q2"], ["q"], perm=[0, 2, 1, 3]),
        node("MatMul", ["x", "wk"], ["k0"]),
        node("Reshape", ["k0", "split"], ["k2"]),
        node("Transpose", ["k2"], ["k"], perm=[0, 2, 3, 1]),
        node("MatMul", ["x", "wv"], ["v0"]),
        node("Reshape", ["v0", "split"], ["v2"]),
        node("Transpose", ["v2"], ["v"], perm=[0, 2, 1, 3]),
        node("MatMul", ["q", "k"], ["s0"]),
        node("Div", ["s0", "root"], ["s1"]),
        node("Unsqueeze", ["mask", "front"], ["m1"]),
        node("Cast", ["m1"], ["m2"], to=BOOL),
        node("Where", ["m2", "s1", "low"], ["s2"]),
        node("Softmax", ["s2"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o0"]),
        node("Transpose", ["o0"], ["o1"], perm=[0, 2, 1, 3]),
        node("Reshape", ["o1", "join"], ["o2"]),
        node("Add", ["o2", "x"], ["o3"]),
        node("LayerNormalization", ["o3", "gain"], ["n"], axis=-1),
        node("MatMul", ["n", "wide"], ["w0"]),
        node("Gelu", ["w0"], ["w1"], domain="com.microsoft"),
        node("ReduceMean", ["w1"], ["pooled"], axes=[1], keepdims=0),
        node("ArgMax", ["w1"], ["best"], axis=-1, keepdims=0),
        node("CumSum", ["mask", "one"], ["positions"]),
    ]
    constants = [
        _weights("table", 11, 8),
        *(_weights(name, 8, 8) for name in ("wq", "wk", "wv")),
        _weights("bq", 8),
        _weights("gain", 8),
        _weights("wide", 8, 40),
        _numbers("split", 0, 0, 2, 4),
        _numbers("join", 0, 0, 8),
        _numbers("front", 1, 2),
        numpy_helper.from_array(np.array(2, np.float32), "root"),
        numpy_helper.from_array(np.array(-1e9, np.float32), "low"),
        numpy_helper.from_array(np.array(1, np.int64), "one"),
    ]
    return _model(
        nodes,
        [_info("ids", ["batch", "length"], INT64), _info("mask", ["batch", "length"], INT64)],
        [
            _info("pooled", ["batch", 40]),
            _info("best", ["batch", "length"], INT64),
            _info("positions", ["batch", "length"], INT64),
        ],
        constants,
        domains=("com.microsoft",),
    )


def movement() -> onnx.ModelProto:
    """Indices that come with the run, parts of tensors, and padding: kernels whose addresses depend on data."""
    nodes = [
        node("Split", ["x"], ["left", "right"], axis=1),
        node("Concat", ["right", "left", "x"], ["c"], axis=1),
        node("Slice", ["c", "starts", "ends", "axes", "steps"], ["s"]),
        node("Transpose", ["s"], ["t"], perm=[1, 0]),
        node("Gather", ["t", "ids"], ["g"], axis=0),
        node("GatherElements", ["x", "places"], ["e"], axis=1),
        node("ScatterElements", ["x", "places", "e"], ["scattered"], axis=1, reduction="add"),
        node("Unsqueeze", ["ids", "one"], ["rows"]),
        node("GatherND", ["t", "rows"], ["nd"]),
        node("ScatterND", ["t", "rows", "g"], ["y"]),
        node("Pad", ["nd", "pads"], ["padded"], mode="edge"),
        node("ReduceMax", ["padded"], ["largest"], axes=[0], keepdims=0),
        node("Mul", ["x", "x"], ["squares"]),
        node("Add", ["squares", "scattered"], ["sums"]),
    ]
    constants = [
        _numbers("starts", -1, 0),
        _numbers("ends", -100, 100),
        _numbers("axes", 1, 0),
        _numbers("steps", -2, 1),
        _numbers("one", 1),
        _numbers("pads", 1, 0, 0, 2),
    ]
    return _model(
        nodes,
        [_info("x", ["n", 6]), _info("ids", ["k"], INT64), _info("places", ["n", 2], INT64)],
        [_info("y", [6, "n"]), _info("largest", ["w"]), _info("sums", ["n", 6])],
        constants,
    )


SEEDS: dict[str, Callable[[], onnx.ModelProto]] = {
    "layers": layers,
    "shapes": shapes,
    "control_flow": control_flow,
    "functions": functions,
    "quantised": quantised,
    "external": external,
    "encoder": encoder,
    "movement": movement,
}


def _family(small: SmallModel) -> Callable[[], onnx.ModelProto]:
    return lambda: small.model


# Small models of families of kernels that the seeds above leave out.
FAMILIES: dict[str, Callable[[], onnx.ModelProto]] = {
    name: _family(SMALL_MODELS[name])
    for name in (
        *("windows", "transposed convolution", "pools", "resampling", "regions", "recurrent layers"),
        *("places", "indices", "selection", "counted", "suppression", "classic", "loops"),
        *("quantised network", "quantised products", "cached attention", "padded attention", "rotary heads"),
    )
}
