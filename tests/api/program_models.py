"""Models that are more than one native step, with what to feed them: other sizes each time."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

ML = "ai.onnx.ml"
OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid(ML, 4)]


class Program(NamedTuple):
    """A model, and inputs of several runs; `profile` is the shape of the first one's."""

    model: onnx.ModelProto
    feeds: list[dict[str, Any]]
    profile: str = ""


def _model(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Any]) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "program", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10)


def text_classifier() -> Program:
    """Words to labels, and to a map of probabilities for each text."""
    words = ["cat", "dog", "fish", "red", "blue"]
    rng = np.random.default_rng(0)
    labels = ["animal", "colour", "other"]
    ngrams = {"ngram_counts": [0], "ngram_indexes": list(range(5)), "pool_strings": words}
    nodes = [
        helper.make_node("StringNormalizer", ["text"], ["lower"], case_change_action="LOWER"),
        helper.make_node("Unsqueeze", ["lower", "first"], ["rows"]),
        helper.make_node(
            "TfIdfVectorizer", ["rows"], ["counts"], mode="TF", min_gram_length=1, max_gram_length=1,
            max_skip_count=0, **ngrams,
        ),
        helper.make_node("MatMul", ["counts", "weights"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"]),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
        helper.make_node(
            "LabelEncoder", ["best"], ["label"], domain=ML, keys_int64s=[0, 1, 2], values_strings=labels
        ),
        helper.make_node("ZipMap", ["probabilities"], ["maps"], domain=ML, classlabels_strings=labels),
        helper.make_node("SequenceConstruct", ["scores", "product"], ["both"]),
    ]  # fmt: skip
    a_map = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    model = _model(
        nodes,
        [helper.make_tensor_value_info("text", TensorProto.STRING, ["n"])],
        [
            helper.make_tensor_value_info("label", TensorProto.STRING, [1]),
            helper.make_value_info("maps", helper.make_sequence_type_proto(a_map)),
            helper.make_tensor_sequence_value_info("both", TensorProto.FLOAT, None),
        ],
        {
            "first": np.array([0], np.int64),
            "weights": rng.standard_normal((5, 3)).astype(np.float32),
            "bias": rng.standard_normal(3).astype(np.float32),
        },
    )
    texts = (["CAT", "dog"], ["Red"], ["blue", "cat", "stone", "red"])
    return Program(model, [{"text": np.array(text, object)} for text in texts], "text:2")


def branch_on_the_host() -> Program:
    """An If one of whose branches goes through strings; both read weights and values from outside."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        program (float[n, 3] x, bool is_text) => (float[n, 3] y)
        <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}>
        {
            p = MatMul(x, w)
            b = If(is_text) <
                then_branch = as_text () => (float[n, 3] t) { s = Cast<to = 8>(p)  q = Cast<to = 1>(s)  t = Add(q, x) },
                else_branch = as_numbers () => (float[n, 3] e) { r = MatMul(p, w)  e = Relu(r) }
            >
            y = Sub(b, x)
        }
    """)
    rng = np.random.default_rng(1)
    feeds = [
        {"x": rng.integers(-9, 9, (rows, 3)).astype(np.float32), "is_text": np.array(is_text)}
        for rows, is_text in ((4, True), (4, False), (2, True), (5, False))
    ]
    return Program(model, feeds, "x:4x3")


def image_decoder() -> Program:
    """The mean colours of a picture."""
    from PIL import Image

    nodes = [
        helper.make_node("ImageDecoder", ["bytes"], ["picture"]),
        helper.make_node("Cast", ["picture"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["numbers", "mix"], ["mixed"]),
        helper.make_node("ReduceMean", ["mixed", "axes"], ["mean"], keepdims=0),
    ]
    model = _model(
        nodes,
        [helper.make_tensor_value_info("bytes", TensorProto.UINT8, ["n"])],
        [helper.make_tensor_value_info("mean", TensorProto.FLOAT, [3])],
        {"axes": np.array([0, 1], np.int64), "mix": np.arange(9, dtype=np.float32).reshape(3, 3)},
    )
    feeds = []
    for size in (8, 5, 11):
        picture = np.random.default_rng(size).integers(0, 255, (size, size + 1, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(picture).save(file, format="png")
        feeds.append({"bytes": np.frombuffer(file.getvalue(), np.uint8)})
    return Program(model, feeds, f"bytes:{feeds[0]['bytes'].size}")


def loops_and_counts() -> Program:
    """Places that data decide, a loop with a scan output, and contents that steer."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        program (float[n, 3] x, int64[2] shape, int64 rounds) => (int64[2, c] places, float[a, b] z, float[r, n, 3] all)
        <float[3, 3] w = {1, 0, 2, 0, 1, 0, 1, 1, 0}, bool yes = {1}>
        {
            r = Relu(x)
            places = NonZero(r)
            s = Reshape(r, shape)
            z = Neg(s)
            last, all = Loop(rounds, yes, x) <
                body = step (int64 i, bool go, float[n, 3] v) => (bool on, float[n, 3] u, float[n, 3] out)
                { on = Identity(go)  u = MatMul(v, w)  out = Tanh(u) }
            >
        }
    """)
    rng = np.random.default_rng(2)
    feeds = [
        {
            "x": rng.standard_normal((rows, 3)).astype(np.float32),
            "shape": np.array(shape, np.int64),
            "rounds": np.array(rounds, np.int64),
        }
        for rows, shape, rounds in ((4, (3, 4), 5), (2, (1, 6), 4), (4, (2, 6), 0))
    ]
    return Program(model, feeds, "x:4x3")


def native_bodies() -> Program:
    """If, Loop and Scan over native bodies alone."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        program (float[n, 3] x, bool doubles, int64 rounds) => (float[n, 3] last, float[r, n, 3] all, float[n, 3] sums)
        <float[3, 3] w = {1, 0, 2, 0, 1, 0, 1, 1, 0}, bool yes = {1}, float[3] zero = {0, 0, 0}>
        {
            b = If(doubles) <
                then_branch = twice () => (float[n, 3] t) { t = Add(x, x) },
                else_branch = once () => (float[n, 3] e) { e = Relu(x) }
            >
            last, all = Loop(rounds, yes, b) <
                body = step (int64 i, bool go, float[n, 3] v) => (bool on, float[n, 3] u, float[n, 3] out)
                { on = Identity(go)  u = MatMul(v, w)  out = Tanh(u) }
            >
            sum, sums = Scan <num_scan_inputs = 1, body = add (float[3] s, float[3] item) => (float[3] t, float[3] kept)
                { t = Add(s, item)  kept = Mul(t, item) }
            > (zero, last)
        }
    """)
    rng = np.random.default_rng(3)
    feeds = [
        {"x": rng.standard_normal((rows, 3)).astype(np.float32), "doubles": np.array(yes), "rounds": np.array(rounds)}
        for rows, yes, rounds in ((4, True, 5), (4, False, 1), (2, True, 0), (6, False, 7))
    ]
    return Program(model, feeds, "x:4x3")


def sequence_map() -> Program:
    """A body for each item of a sequence, and a Scan along another axis, backwards."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        program (float[n, 3] x) => (seq(float[3]) mapped, float[1, 3] scanned)
        {
            rows = SplitToSequence <axis = 0, keepdims = 0>(x)
            mapped = SequenceMap(rows) < body = one (float[3] row) => (float[3] made) { made = Neg(row) } >
            scanned = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
                scan_output_axes = [-1], body = most (float[n] item) => (float[1] top) { top = ReduceMax(item) }
            > (x)
        }
    """)
    feeds = [{"x": np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)} for rows in (2, 4, 1)]
    return Program(model, feeds, "x:2x3")


def greedy_search() -> Program:
    """An operator that runs its body itself, token by token."""
    from tests.ops.microsoft import peer
    from tests.ops.microsoft.test_generation import EOS, PAD, PROMPT, decoder

    given = [PROMPT, np.array([9], np.int32)]
    attributes = {"decoder": decoder(), "eos_token_id": EOS, "pad_token_id": PAD, "model_type": 0}
    model = peer.one_node("GreedySearch", given, [TensorProto.INT32], attributes)
    return Program(model, [peer.feeds(model, [PROMPT, np.array([end], np.int32)]) for end in (9, 6)])


def sequences_and_options() -> Program:
    """A sequence as input, an optional value, and a default that a caller may replace."""
    nodes = [
        helper.make_node("SequenceLength", ["items"], ["count"]),
        helper.make_node("ConcatFromSequence", ["items"], ["joined"], axis=0),
        helper.make_node("Mul", ["joined", "factor"], ["scaled"]),
        helper.make_node("Optional", ["scaled"], ["perhaps"]),
        helper.make_node("OptionalGetElement", ["perhaps"], ["y"]),
        helper.make_node("SplitToSequence", ["y"], ["parts"], axis=0),
    ]
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 2])
    model = _model(
        nodes,
        [
            helper.make_value_info("items", helper.make_sequence_type_proto(tensor)),
            helper.make_tensor_value_info("factor", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("count", TensorProto.INT64, []),
            helper.make_value_info("parts", helper.make_sequence_type_proto(tensor)),
        ],
        {"factor": np.array([2, 3], np.float32)},
    )
    items = [np.arange(2 * rows, dtype=np.float32).reshape(rows, 2) for rows in (1, 3, 2)]
    feeds = [{"items": items}, {"items": items[:1]}, {"items": items, "factor": np.array([5, 7], np.float32)}]
    return Program(model, feeds)


def features_by_name() -> Program:
    """A map as input."""
    nodes = [
        helper.make_node("DictVectorizer", ["given"], ["row"], domain=ML, string_vocabulary=["a", "b", "c"]),
        helper.make_node("MatMul", ["row", "weights"], ["y"]),
    ]
    kind = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    model = _model(
        nodes,
        [helper.make_value_info("given", kind)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        {"weights": np.arange(6, dtype=np.float32).reshape(3, 2)},
    )
    return Program(model, [{"given": {"a": 1.0, "c": 2.0}}, {"given": {"b": 3.0}}])


PROGRAMS: dict[str, Callable[[], Program]] = {
    made.__name__: made
    for made in (
        text_classifier,
        branch_on_the_host,
        image_decoder,
        loops_and_counts,
        native_bodies,
        sequence_map,
        greedy_search,
        sequences_and_options,
        features_by_name,
    )
}
