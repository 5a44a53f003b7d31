"""Bad models get the class that onnxruntime gives, and a text that names the culprit."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx import errors
from sardonyx.graph.load import load_model
from tests.graph.models import FLOAT, build, info, model, node, pair

RELU = node("Relu", ["x"], ["y"], name="n1")
CONDITION = helper.make_tensor("c", TensorProto.BOOL, [], [True])


def branch(nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, "b", [], [info(output)])


def conditional(nodes: list[onnx.NodeProto], output: str) -> onnx.ModelProto:
    other = branch([node("Relu", ["x"], ["o2"])], "o2")
    return model(
        [node("If", ["c"], ["y"], name="if", then_branch=branch(nodes, output), else_branch=other)],
        initializers=[CONDITION],
    )


def without_opset() -> onnx.ModelProto:
    proto = model([RELU])
    del proto.opset_import[:]
    return proto


def untyped_input() -> onnx.ModelProto:
    proto = model([RELU])
    proto.graph.input[0].ClearField("type")
    return proto


def nested(depth: int) -> bytes:
    """A model with an If inside an If and so on, as bytes: protobuf itself would not write it."""

    def field(number: int, data: bytes) -> bytes:
        size, head = len(data), bytearray([number << 3 | 2])
        while size >= 0x80:
            head.append(size & 0x7F | 0x80)
            size >>= 7
        return bytes(head) + bytes([size]) + data

    graph = b""
    for _ in range(depth):
        attribute = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        graph = field(1, field(4, b"If") + field(5, attribute))
    return b"\x08\x08" + field(7, graph) + field(8, b"\x10\x11")


# What is wrong, the model, and the core of the message.
CASES = {
    "no opset": (without_opset(), "Missing opset in the model"),
    "IR too new": (model([RELU], ir_version=99), "Unsupported model IR version: 99, max supported IR version"),
    "opset too new": (model([RELU], opset=99), "Opset 99 is under development and support for this is limited"),
    "ml opset too new": (model([RELU], imports=[("ai.onnx.ml", 99)]), "support for domain ai.onnx.ml is till opset"),
    "undefined input": (
        model([node("Relu", ["q"], ["y"])]),
        "Invalid model. Node input 'q' is not a graph input, initializer, or output of a previous node.",
    ),
    "no output": (model([node("Relu", ["x"], ["z"])]), "Graph output (y) does not exist in the graph."),
    "duplicate": (model([RELU, RELU]), "Error: Duplicate definition of name (y)."),
    "duplicate of an input": (model([node("Relu", ["x"], ["x"])], outputs=["x"]), "Duplicate definition of name (x)"),
    "duplicate of a weight": (
        model([node("Relu", ["x"], ["w"])], outputs=["w"], initializers=[pair("w")]),
        "Duplicate definition of name (w)",
    ),
    "duplicate inputs": (model([RELU], ["x", "x"]), "Duplicate definition-site for (x)"),
    "cycle": (model([node("Relu", ["y"], ["z"]), node("Relu", ["z"], ["y"])]), "the graph is not acyclic"),
    "own input": (model([node("Relu", ["y"], ["y"])]), "the graph is not acyclic"),
    "cycle through a body": (
        model(
            [
                node(
                    "If",
                    ["c"],
                    ["y"],
                    then_branch=branch([node("Relu", ["z"], ["o"])], "o"),
                    else_branch=branch([node("Relu", ["x"], ["p"])], "p"),
                ),
                node("Relu", ["y"], ["z"]),
            ],
            initializers=[CONDITION],
        ),
        "the graph is not acyclic",
    ),
    "undefined in a body": (conditional([node("Relu", ["q"], ["o"])], "o"), "input 'q' of node"),
    "no output of a body": (conditional([node("Relu", ["x"], ["o"])], "zz"), "Graph output (zz) does not exist"),
    "outer output of a body": (conditional([], "x"), "Subgraph output (x) is an outer scope value"),
    "duplicate in a body": (
        conditional([node("Relu", ["x"], ["o"]), node("Relu", ["x"], ["o"])], "o"),
        "Duplicate definition of name (o)",
    ),
    "untyped input": (untyped_input(), "Model input (x) does not have type information"),
    "no element type": (model([RELU], [info("x", (2,), 0)]), "Invalid tensor data type 0"),
    "unknown operator": (
        model([node("Sofmax", ["x"], ["y"], name="f")]),
        'In Node, ("f", Sofmax, "", -1) : ("x": tensor(float),) -> ("y": tensor(float),) , Error No Op registered for '
        "Sofmax with domain_version of 17. Did you mean Softmax",
    ),
    "operator of a later opset": (model([node("Gelu", ["x"], ["y"])]), "No Op registered for Gelu with domain_version"),
    "unknown domain": (
        model([node("Foo", ["x"], ["y"], domain="my.dom")], imports=[("my.dom", 1)]),
        "Fatal error: my.dom:Foo(-1) is not a registered function/op",
    ),
    "domain not imported": (
        model([node("Foo", ["x"], ["y"], domain="my.dom")]),
        "Error No opset import for domain 'my.dom'",
    ),
    "unknown operator of com.microsoft": (
        model([node("Foo", ["x"], ["y"], domain="com.microsoft")]),
        "Fatal error: com.microsoft:Foo(-1) is not a registered function/op",
    ),
    "deprecated": (
        model([node("Upsample", ["x", "s"], ["y"])], initializers=[pair("s")], opset=10),
        "Op registered for Upsample is deprecated in domain_version of 10",
    ),
    "empty operator": (model([node("", ["x"], ["y"])]), "Field 'op_type' of 'node' is required to be non-empty."),
    "too many inputs": (
        model([node("Add", ["x", "x", "x"], ["y"], name="n1")]),
        "Node(n1) with schema(::Add:14) has input size 3 not in range [min=2, max=2].",
    ),
    "too many outputs": (model([node("Relu", ["x"], ["y", "z"])]), "has output size 2 not in range [min=1, max=1]."),
    "missing input": (model([node("Relu", [""], ["y"])]), "input 0 is marked single but has an empty string"),
    "unknown attribute": (
        model([node("Relu", ["x"], ["y"], foo=1)]),
        "Unrecognized attribute: foo for operator Relu",
    ),
    "missing attribute": (model([node("Cast", ["x"], ["y"])]), "Required attribute 'to' is missing."),
    "wrong attribute type": (
        model([node("Cast", ["x"], ["y"], to="a")]),
        "Expected: 'INT', actual: 'STRING'",
    ),
    "types disagree": (
        model([node("Add", ["x", "w"], ["y"], name="n1")], initializers=[helper.make_tensor("w", 7, [2], [1, 2])]),
        "Type parameter (T) of Optype (Add) bound to different types (tensor(float) and tensor(int64) in node (n1).",
    ),
    "type not allowed": (
        model([node("Relu", ["x"], ["y"], name="n1")], [info("x", (2,), TensorProto.STRING)]),
        "Type 'tensor(string)' of input parameter (x) of operator (Relu) in node (n1) is invalid.",
    ),
    "declared type wrong": (
        model([RELU], outputs=[info("y", (2,), TensorProto.INT64)]),
        "Type (tensor(int64)) of output arg (y) of node (n1) does not match expected type (tensor(float)).",
    ),
    "shapes": (
        model([node("MatMul", ["x", "w"], ["y"])], initializers=[helper.make_tensor("w", FLOAT, [3, 3], [1.0] * 9)]),
        "Node () Op (MatMul) [ShapeInferenceError]",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_class_is_that_of_onnxruntime(case: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    proto, text = CASES[case]
    data = proto.SerializeToString()
    with pytest.raises(errors.OnnxRuntimeError) as ours:
        build(data)
    assert text in str(ours.value)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception, match="ONNXRuntimeError") as theirs:
        ort.InferenceSession(data, options)
    assert type(ours.value).__name__ == type(theirs.value).__name__


@pytest.mark.parametrize(
    ("content", "class_name"),
    [
        (b"", "InvalidArgument"),
        (b"hello world", "InvalidProtobuf"),
        (b'{"a": 1}\n' * 10, "InvalidProtobuf"),
        (b"\0" * 100, "InvalidProtobuf"),
        (model([RELU]).SerializeToString()[:-5], "InvalidProtobuf"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "InvalidProtobuf"),
    ],
)
def test_files_that_are_no_models(content: bytes, class_name: str, tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for source in (content, str(path)):
        with pytest.raises(errors.OnnxRuntimeError) as ours:
            load_model(source)
        with pytest.raises(Exception, match="ONNXRuntimeError") as theirs:
            ort.InferenceSession(source)
        assert type(ours.value).__name__ == type(theirs.value).__name__ == class_name


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(errors.NoSuchFile, match="File doesn't exist"):
        load_model(tmp_path / "none.onnx")
    with pytest.raises(errors.NoSuchFile):
        load_model("a\0b")
    with pytest.raises(errors.InvalidProtobuf, match=r"Load model from .* failed:Protobuf parsing failed."):
        load_model(tmp_path)


@pytest.mark.parametrize("depth", [40, 1_000, 10_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    with pytest.raises(errors.InvalidProtobuf):
        load_model(nested(depth))


def test_the_path_is_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model([RELU], ir_version=99), path)
    with pytest.raises(errors.Fail, match=f"Load model from {path} failed:Unsupported model IR version"):
        load_model(path)


def test_unreleased_opset_is_a_warning_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model([RELU], opset=99)
    assert "under development" in load_model(proto, allow_unreleased_opsets=True).warnings[0]
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    assert "under development" in load_model(proto).warnings[0]


def test_old_opset_is_a_warning() -> None:
    assert "opset version 7 or above" in load_model(model([RELU], opset=6)).warnings[0]


@pytest.mark.parametrize(
    "proto",
    [
        model([node("Relu", ["z"], ["y"]), node("Relu", ["x"], ["z"])]),
        model([RELU], outputs=["y", "y"]),
        model([], outputs=["x"]),
        model([RELU], opset=17, imports=[("ai.onnx", 16)]),
        model([node("Gelu", ["x"], ["y"], domain="com.microsoft")]),
        model([RELU], imports=[("unheard.of", 16)]),
        conditional([node("Relu", ["x"], ["y"])], "y"),
        model([node("LayerNormalization", ["x", "s"], ["y"])], initializers=[pair("s")], opset=13),
        model([node("SimplifiedLayerNormalization", ["x", "s"], ["y"])], initializers=[pair("s")], opset=13),
    ],
    ids=[
        "unsorted",
        "output twice",
        "no nodes",
        "ai.onnx",
        "implicit domain",
        "unused domain",
        "shadowed name",
        "LayerNormalization",
        "SimplifiedLayerNormalization",
    ],
)
def test_odd_models_that_onnxruntime_takes(proto: onnx.ModelProto) -> None:
    ort = pytest.importorskip("onnxruntime")
    data = proto.SerializeToString()
    assert ort.InferenceSession(data).get_outputs()
    assert build(data).compiled.plan.outputs
