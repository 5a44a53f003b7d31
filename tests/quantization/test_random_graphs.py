"""Random graphs, quantised in every form, stay as near to the float model as their scales say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.quantization.qdq_quantizer import QDQQuantizer
from sardonyx.quantization.quant_utils import QuantType
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.registry import QDQRegistry, QLinearOpsRegistry
from tests.quantization.quantizing import Array, Range, model, node, quantized, ranges_of, run, run_peer

U8, S8 = QuantType.QUInt8, QuantType.QInt8
IMAGE = (2, 4, 6, 6)
ROWS = (3, 5, 8)


class Graph:
    """A graph that grows by random nodes; `errors` bounds how far a quantised value may be from the float one.

    A value that is stored moves by at most one step of 1/255 of its range: half of one by rounding, and half by the
    zero point, which is a whole number.
    """

    def __init__(self, seed: int, shape: tuple[int, ...]) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.feeds: dict[str, Array] = {"x": self.floats(*shape)}
        self.exact: dict[str, Array] = dict(self.feeds)
        self.errors: dict[str, float] = {"x": 0.0}
        self.shape = shape
        self.names = ["x"]

    def floats(self, *shape: int) -> Array:
        return (self.random.standard_normal(shape) * self.random.uniform(0.3, 3)).astype(np.float32)

    def constant(self, name: str, array: Any) -> str:
        self.constants[name] = np.asarray(array)
        return name

    def proto(self) -> onnx.ModelProto:
        read = {name for one in self.nodes for name in one.input}
        outputs = [name for name in self.names if name not in read and name != "x"]
        return model(self.nodes, {"x": list(self.shape)}, outputs, self.constants)

    def step(self, name: str) -> float:
        array = self.exact[name]
        low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
        wide = max(high - low, 2 * max(high, -low))  # symmetric storage has the wider range
        return (wide + 2 * self.errors[name]) / 254

    def stored(self, name: str) -> float:
        """The error of a value as an operator reads it."""
        return self.errors[name] + self.step(name)

    def add(self, op_type: str, inputs: list[str], error: Callable[[Array], float], **attributes: Any) -> str:
        """A node of one output; `error` gives that of its result before it is stored, from the float result."""
        name = f"v{len(self.names)}"
        self.nodes.append(node(op_type, inputs, [name], **attributes))
        constants = [numpy_helper.from_array(self.constants[one], one) for one in set(inputs) if one in self.constants]
        outer = [one for one in dict.fromkeys(self._read(self.nodes[-1])) if one in self.exact]
        graph = helper.make_graph(
            [self.nodes[-1]],
            "one",
            [helper.make_tensor_value_info(one, TensorProto.FLOAT, self.exact[one].shape) for one in outer],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
            [
                *constants,
                *(
                    numpy_helper.from_array(self.constants[one], one)
                    for one in dict.fromkeys(self._read(self.nodes[-1]))
                    if one in self.constants and one not in inputs
                ),
            ],
        )
        single = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        (self.exact[name],) = run(single, {one: self.exact[one] for one in outer})
        self.names.append(name)
        self.errors[name] = 0.0
        self.errors[name] = error(self.exact[name])
        self.errors[name] += self.step(name)
        return name

    def _read(self, one: onnx.NodeProto) -> list[str]:
        inner = [name for attribute in one.attribute for each in attribute.g.node for name in self._read(each)]
        return [*one.input, *inner]

    def pick(self, rank: int | None = None, shape: tuple[int, ...] | None = None) -> str | None:
        fitting = [
            name
            for name in self.names
            if (rank is None or self.exact[name].ndim == rank) and (shape is None or self.exact[name].shape == shape)
        ]
        return None if not fitting else fitting[int(self.random.integers(len(fitting)))]


def _product_error(graph: Graph, source: str, weight: Array, axes: tuple[int, ...]) -> float:
    """The error of sums of products with a weight, `axes` being those that are summed over."""
    count = int(np.prod([weight.shape[axis] for axis in axes]))
    spread = max(np.abs(weight).max() / 127 * 0.51, (max(weight.max(), 0) - min(weight.min(), 0)) / 255)
    before = graph.stored(source)
    largest = float(np.abs(graph.exact[source]).max())
    return float(before * np.abs(weight).sum(axes).max() + (largest + before) * count * spread)


def _conv(graph: Graph, source: str) -> None:
    channels = graph.exact[source].shape[1]
    groups = channels if channels == 4 and graph.random.random() < 0.3 else 1
    weight = graph.floats(4, channels // groups, 3, 3) / np.float32(4 * channels)
    number = len(graph.names)
    inputs = [source, graph.constant(f"w{number}", weight)]
    if graph.random.random() < 0.6:
        inputs.append(graph.constant(f"b{number}", graph.floats(4)))
    graph.add(
        "Conv", inputs, lambda _: 1e-4 + _product_error(graph, source, weight, (1, 2, 3)), pads=[1] * 4, group=groups
    )


def _matmul(graph: Graph, source: str) -> None:
    size = graph.exact[source].shape[-1]
    shared = [
        name for name, one in graph.constants.items() if one.ndim == 2 and one.shape[0] == size and name[0] == "m"
    ]
    if shared and graph.random.random() < 0.5:
        name = shared[0]
    else:
        shape = (size, 8) if graph.random.random() < 0.7 else (3, size, 8)
        if graph.exact[source].ndim != 3 or graph.exact[source].shape[0] != 3:
            shape = (size, 8)
        name = graph.constant(f"m{len(graph.names)}", graph.floats(*shape) / np.float32(size))
    weight = graph.constants[name]
    graph.add("MatMul", [source, name], lambda _: _product_error(graph, source, weight, (weight.ndim - 2,)))


def _gemm(graph: Graph, source: str) -> None:
    size = graph.exact[source].shape[-1]
    rows = graph.constant(f"r{len(graph.names)}", np.array([-1, size]))
    flat = graph.add("Reshape", [source, rows], lambda _: graph.stored(source))
    alpha, beta = (float(graph.random.choice([1.0, 0.5, 2.0])) for _ in range(2))
    flipped = int(graph.random.integers(2))
    weight = graph.floats(6, size) / np.float32(size)
    number = len(graph.names)
    kept = weight if flipped else np.ascontiguousarray(weight.T)
    inputs = [flat, graph.constant(f"w{number}", kept), graph.constant(f"b{number}", graph.floats(6))]
    graph.add(
        "Gemm",
        inputs,
        lambda _: 1e-4 + alpha * _product_error(graph, flat, weight, (1,)),
        transB=flipped,
        alpha=alpha,
        beta=beta,
    )


def _one(op_type: str, slope: float = 1.0, **attributes: Any) -> Callable[[Graph, str], None]:
    return lambda graph, source: (
        graph.add(op_type, [source], lambda _: slope * graph.stored(source), **attributes),
        None,
    )[1]


def _clip(graph: Graph, source: str) -> None:
    low, high = sorted(graph.random.uniform(-1, 2, 2))
    number = len(graph.names)
    bounds = [
        graph.constant(f"l{number}", np.float32(low)),
        graph.constant(f"h{number}", np.float32(high)),
    ]
    graph.add("Clip", [source, *bounds], lambda _: graph.stored(source))


def _pair(graph: Graph, source: str) -> None:
    other = graph.pick(shape=graph.exact[source].shape)
    if other is None or graph.random.random() < 0.3:
        other = graph.constant(f"k{len(graph.names)}", graph.floats(*graph.exact[source].shape[-1:]))
        graph.exact[other], graph.errors[other] = graph.constants[other], 0.0
    one, two = graph.stored(source), graph.stored(other)
    if graph.random.random() < 0.5:
        graph.add("Add", [source, other], lambda _: one + two)
    else:
        left, right = (float(np.abs(graph.exact[name]).max()) for name in (source, other))
        graph.add("Mul", [source, other], lambda _: left * two + right * one + one * two)
    if other in graph.constants:
        del graph.exact[other]


def _concat(graph: Graph, source: str) -> None:
    other = graph.pick(shape=graph.exact[source].shape)
    assert other is not None
    error = max(graph.stored(source), graph.stored(other))
    graph.add("Concat", [source, other], lambda _: error, axis=1)


def _where(graph: Graph, source: str) -> None:
    other = graph.pick(shape=graph.exact[source].shape)
    assert other is not None
    flags = graph.constant(f"f{len(graph.names)}", graph.random.random(graph.exact[source].shape) < 0.5)
    error = max(graph.stored(source), graph.stored(other))
    graph.add("Where", [flags, source, other], lambda _: error)


def _pad(graph: Graph, source: str) -> None:
    pads = graph.constant(f"p{len(graph.names)}", np.array([0, 0, 1, 0, 0, 0, 0, 1]))
    inputs = [source, pads]
    if graph.random.random() < 0.5:
        inputs.append(graph.constant(f"n{len(graph.names)}", np.float32(graph.random.uniform(-9, 9))))
    graph.add("Pad", inputs, lambda _: graph.stored(source))


def _resize(graph: Graph, source: str) -> None:
    scales = graph.constant(f"s{len(graph.names)}", np.array([1, 1, 2, 2], np.float32))
    graph.add("Resize", [source, "", scales], lambda _: graph.stored(source), mode="nearest")


def _softmax(graph: Graph, source: str) -> None:
    graph.add("Softmax", [source], lambda _: 2 * graph.stored(source) + 1 / 256, axis=-1)


def _gather(graph: Graph, source: str) -> None:
    number = len(graph.names)
    table = graph.floats(7, 8)
    name = graph.constant(f"t{number}", table)
    indices = graph.constant(f"i{number}", graph.random.integers(0, 7, (3, 5)))
    graph.add("Gather", [name, indices], lambda _: 2 * float(np.abs(table).max()) / 127)


def _condition(graph: Graph, source: str) -> None:
    """An If whose branches multiply a value of the graph around them by weights of both."""
    size = graph.exact[source].shape[-1]
    number = len(graph.names)
    flag = graph.constant(f"c{number}", np.array(bool(graph.random.integers(2))))
    outer = graph.constant(f"o{number}", graph.floats(size, 8) / np.float32(size))
    inner = graph.floats(size, 8) / np.float32(size)
    info = [helper.make_tensor_value_info(f"out{number}", TensorProto.FLOAT, None)]
    branches = {
        "then_branch": helper.make_graph(
            [node("MatMul", [source, outer], [f"out{number}"], name=f"then{number}")], "then", [], info
        ),
        "else_branch": helper.make_graph(
            [node("MatMul", [source, f"e{number}"], [f"out{number}"], name=f"else{number}")],
            "else",
            [],
            info,
            [numpy_helper.from_array(inner, f"e{number}")],
        ),
    }
    error = max(_product_error(graph, source, one, (0,)) for one in (graph.constants[outer], inner))
    graph.add("If", [flag], lambda _: error, **branches)


ON_IMAGES = [
    _conv,
    _conv,
    _clip,
    _pair,
    _concat,
    _where,
    _pad,
    _resize,
    _one("Relu"),
    _one("Sigmoid", 0.25),
    _one("LeakyRelu", alpha=0.1),
    _one("MaxPool", kernel_shape=[2, 2]),
    _one("AveragePool", kernel_shape=[2, 2]),
    _one("GlobalAveragePool"),
    _one("Transpose", perm=[0, 1, 3, 2]),
]
ON_ROWS = [
    _matmul,
    _matmul,
    _gemm,
    _gather,
    _softmax,
    _condition,
    _clip,
    _pair,
    _concat,
    _where,
    _one("Relu"),
    _one("Sigmoid", 0.25),
    _one("Transpose", perm=[0, 2, 1]),
]


def _grown(seed: int) -> Graph:
    shape, kinds = (IMAGE, ON_IMAGES) if seed % 2 else (ROWS, ON_ROWS)
    graph = Graph(seed, shape)
    (_conv if seed % 2 else _matmul)(graph, "x")
    kinds[seed // 2 % len(kinds)](graph, graph.names[-1])
    for _ in range(int(graph.random.integers(1, 5))):
        source = "x"
        while (found := graph.pick(rank=len(shape))) is not None:
            if min(graph.exact[found].shape[-2:]) > 1 or len(shape) < 4:  # windows of two places fit
                source = found
                break
        kinds[int(graph.random.integers(len(kinds)))](graph, source)
    return graph


def _qdq(proto: onnx.ModelProto, ranges: dict[str, Range], **arguments: Any) -> onnx.ModelProto:
    exclude = arguments.pop("exclude", [])
    per_channel = arguments.pop("per_channel", False)
    types = arguments.pop("weight_type", S8), arguments.pop("activation_type", U8)
    names = sorted({*QDQRegistry, *QLinearOpsRegistry})
    return QDQQuantizer(proto, per_channel, False, *types, ranges, [], exclude, names, arguments).quantize_model()


FORMS = {
    "dynamic": lambda proto, ranges, **more: quantized(proto, **more),
    "dynamic of u8": lambda proto, ranges, **more: quantized(proto, weight_type=U8, EnableSubgraph=True, **more),
    "integer": lambda proto, ranges, **more: quantized(proto, ranges=ranges, **more),
    "integer of s8": lambda proto, ranges, **more: quantized(proto, ranges=ranges, activation_type=S8, **more),
    "integer of u8": lambda proto, ranges, **more: quantized(
        proto, ranges=ranges, weight_type=U8, EnableSubgraph=True, **more
    ),
    "pairs": lambda proto, ranges, **more: _qdq(proto, ranges, **more),
    "pairs of s8": lambda proto, ranges, **more: _qdq(proto, ranges, activation_type=S8, **more),
}


@pytest.mark.parametrize(
    ("seed", "form"), [(seed, list(FORMS)[place % len(FORMS)]) for seed in range(30) for place in (seed, seed + 3)]
)
def test_random_graph(seed: int, form: str) -> None:
    graph = _grown(seed)
    proto = graph.proto()
    exact = run(proto, graph.feeds)
    names = [one.name for one in proto.graph.output]
    ranges = ranges_of(proto, graph.feeds)
    random = np.random.default_rng(seed)
    excluded = [one.name for one in proto.graph.node if random.random() < 0.2]
    arguments: dict[str, Any] = {"per_channel": bool(random.integers(2))}
    if excluded:
        arguments["exclude"] = excluded
    try:
        made = FORMS[form](proto, ranges, **arguments)
    except InvalidQuantization as error:
        if "No node of the model can be quantised" not in str(error):
            raise
        return
    kept = {one.name for one in made.graph.node if not one.op_type.startswith(("QLinear", "QGemm", "MatMulInteger"))}
    assert kept.issuperset(excluded)
    for engine in (run, run_peer):
        for name, one, other in zip(names, engine(made, graph.feeds), exact, strict=True):
            assert one.shape == other.shape
            difference = float(np.abs(one - other).max())
            assert difference <= graph.errors[name] * 1.01 + 1e-4, (name, engine.__name__)
