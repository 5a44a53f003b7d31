"""Running sessions: what may be fed, what comes back, and the errors; compared with onnxruntime where both agree."""

from __future__ import annotations

import threading
from collections import OrderedDict, UserDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.values.element_types import is_float8
from sardonyx.kernel.dtypes import FLOAT8
from tests.api import session_models as models

X = np.arange(6, dtype=np.float32).reshape(2, 3)
ADD = models.add()

# Feeds for x of x + y, and whether the messages agree to the last letter.
FEEDS: dict[str, Any] = {
    "array": X,
    "list": [[1, 2, 3]],
    "list of texts": [["1", "2", "3"]],
    "fortran": np.asfortranarray(X),
    "strided": np.repeat(X, 2, axis=1)[:, ::2],
    "negative strides": X[::-1, ::-1],
    "masked": np.ma.masked_array(X),
    "one row": X[:1],
    "no rows": X[:0],
    "tuple": ((1, 2, 3),),
    "number": 1.0,
    "numpy number": np.float32(1),
    "words": [["a", "b", "c"]],
    "ragged": [[1, 2], [1]],
    "dicts": [{"a": 1}],
    "texts": np.array([["a"]]),
    "objects": np.array([[1, 2, 3]], object),
    "double": X.astype(np.float64),
    "rank": X[0],
    "columns": np.ones((2, 4), np.float32),
    "datetime": np.ones((1, 3), "M8[s]"),
}


def outcome(package: Any, run: Callable[[Any], Any]) -> tuple[str, Any]:
    try:
        return "result", run(package)
    except Exception as error:
        return type(error).__name__, str(error).partition("]")[0] + str(error).partition("]")[2]


@pytest.mark.parametrize("case", FEEDS)
def test_feeds_are_taken_as_by_onnxruntime(case: str) -> None:
    theirs = pytest.importorskip("onnxruntime")
    y = np.ones((1, 3), np.float32)

    def run(package: Any) -> Any:
        return package.InferenceSession(ADD).run(None, {"x": FEEDS[case], "y": y})[0]

    kind, expected = outcome(theirs, run)
    found_kind, found = outcome(ort, run)
    assert found_kind == kind
    if kind == "result":
        np.testing.assert_array_equal(found, expected)
        assert type(found) is np.ndarray
        assert found.dtype == expected.dtype
    else:
        assert found.startswith(expected.rstrip(".\n"))


@pytest.mark.parametrize(
    "given", [X.astype(">f4"), np.frombuffer(b"_" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 3)]
)
def test_foreign_byte_order_and_odd_addresses_are_read_right(given: Any) -> None:
    np.testing.assert_array_equal(ort.InferenceSession(ADD).run(None, {"x": given, "y": X})[0], X + X)


def test_messages_name_the_input() -> None:
    session = ort.InferenceSession(ADD)
    with pytest.raises(errors.InvalidArgument) as caught:
        session.run(None, {"x": X.astype(np.float64), "y": X})
    assert caught.value.message == (
        "Unexpected input data type. Actual: (tensor(double)) , expected: (tensor(float)) for input: x"
    )
    with pytest.raises(
        errors.InvalidArgument, match=r"Got invalid dimensions for input: y .*\n index: 1 Got: 4 Expected: 3"
    ):
        session.run(None, {"x": X, "y": np.ones((2, 4), np.float32)})


NAMES: dict[str, tuple[Any, Any]] = {
    "unknown input": (None, {"x": X, "y": X, "q": X}),
    "unknown output": (["q"], {"x": X, "y": X}),
    "missing input": (None, {"x": X}),
    "feeds in a list": (None, [X, X]),
    "no feeds": (None, None),
    "no names": ([], {"x": X, "y": X}),
    "tuple of names": (("z",), {"x": X, "y": X}),
    "set of names": ({"z"}, {"x": X, "y": X}),
    "twice": (["z", "z"], {"x": X, "y": X}),
    "ordered": (None, OrderedDict(x=X, y=X)),
}


@pytest.mark.parametrize("case", NAMES)
def test_names_are_taken_as_by_onnxruntime(case: str) -> None:
    theirs = pytest.importorskip("onnxruntime")
    outputs, feed = NAMES[case]
    expected = outcome(theirs, lambda package: [v.tolist() for v in package.InferenceSession(ADD).run(outputs, feed)])
    assert (
        outcome(ort, lambda package: [v.tolist() for v in package.InferenceSession(ADD).run(outputs, feed)]) == expected
    )


@pytest.mark.parametrize("names", ["z", [1], 5])
def test_names_of_outputs_are_texts_in_a_sequence(names: Any) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        ort.InferenceSession(ADD).run(names, {"x": X, "y": X})


def test_any_mapping_is_a_feed() -> None:
    np.testing.assert_array_equal(ort.InferenceSession(ADD).run(None, UserDict(x=X, y=X))[0], X + X)


def test_values_of_the_class_ort_value_are_taken() -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X)
    np.testing.assert_array_equal(ort.InferenceSession(ADD).run(None, {"x": value, "y": X})[0], X + X)


def test_symbolic_dimensions_need_not_agree() -> None:
    result = ort.InferenceSession(ADD).run(None, {"x": X, "y": X[:1]})[0]
    np.testing.assert_array_equal(result, X + X[:1])


def test_a_kernel_failure_names_the_node(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.Fail, match=r"Non-zero status code returned while running Add node\. Name:'add0'"):
        ort.InferenceSession(ADD).run(None, {"x": np.ones((4, 3), np.float32), "y": X})
    assert "[E:onnxruntime:" in capfd.readouterr().err


def test_an_absent_value_is_named() -> None:
    with pytest.raises(errors.Fail, match="Missing Input: y"):
        ort.InferenceSession(ADD).run(None, {"x": X, "y": None})


def test_results_belong_to_the_caller() -> None:
    session = ort.InferenceSession(models.identity(TensorProto.FLOAT))
    x = np.arange(4, dtype=np.float32)
    first = session.run(None, {"x": x})[0]
    assert first.flags.writeable
    assert first.flags.c_contiguous
    assert not np.shares_memory(first, x)
    first += 1
    second = session.run(None, {"x": x})[0]
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(second, [0, 1, 2, 3])


def test_results_alias_neither_constants_nor_each_other() -> None:
    nodes = [
        helper.make_node("Identity", ["w"], ["a"]),
        helper.make_node("Reshape", ["x", "shape"], ["b"]),
        helper.make_node("Transpose", ["x"], ["c"]),
    ]
    source = models.model(
        nodes,
        [models.value("x", models.FLOAT, [2, 3])],
        [models.value(name, models.FLOAT, None) for name in ("a", "b", "c", "x", "w")],
        [models.weights(), helper.make_tensor("shape", TensorProto.INT64, [1], [6])],
    ).SerializeToString()
    session = ort.InferenceSession(source)
    results = [*session.run(None, {"x": X}), *session.run(None, {"x": X}), X]
    for index, one in enumerate(results):
        assert one.flags.c_contiguous
        assert one.flags.writeable
        for other in results[:index]:
            assert not np.shares_memory(one, other)
    np.testing.assert_array_equal(results[2], X.T)
    results[0][:] = 9
    np.testing.assert_array_equal(session.run(["a"], {"x": X})[0], [1, 2, 3])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.uint4])
def test_arrays_of_ml_dtypes_go_in_and_come_out(dtype: Any) -> None:
    kind = {"bfloat16": TensorProto.BFLOAT16, "int4": TensorProto.INT4, "uint4": TensorProto.UINT4}[
        np.dtype(dtype).name
    ]
    x = np.array([1, 2, 3]).astype(dtype)
    source = onnx.load_model_from_string(models.identity(kind))
    source.opset_import[0].version = 21
    result = ort.InferenceSession(source).run(None, {"x": x})[0]
    assert result.dtype == dtype
    np.testing.assert_array_equal(result.astype(np.float32), [1, 2, 3])


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
        (TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz),
        (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
        (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
    ],
)
def test_float8_goes_in_as_itself_and_comes_out_as_bytes(number: int, dtype: type) -> None:
    x = np.array([1, 2, 3]).astype(dtype)
    session = ort.InferenceSession(models.identity(number))
    for _ in range(3):  # later runs take a shorter way
        result = session.run(None, {"x": x})[0]
        assert result.dtype == np.uint8
        np.testing.assert_array_equal(result, x.view(np.uint8))
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(x, number)
    assert value.numpy().dtype == np.uint8


def test_every_float8_is_told_by_its_dtype() -> None:
    assert all(is_float8(dtype) for dtype in FLOAT8)
    assert not any(is_float8(np.dtype(other)) for other in (np.float16, np.int8, np.bool_, ml_dtypes.bfloat16, "V1"))


TEXTS: dict[str, Any] = {
    "unicode": np.array(["a", "bb"]),
    "objects": np.array(["a", None, b"x", 3], object),
    "list": ["a", "b"],
    "mixed list": ["a", 3],
    "numbers": np.array([1]),
    "empty": np.array([], object),
}


@pytest.mark.parametrize("case", TEXTS)
def test_texts_are_taken_as_by_onnxruntime(case: str) -> None:
    theirs = pytest.importorskip("onnxruntime")
    source = models.identity(TensorProto.STRING)

    def run(package: Any) -> Any:
        result = package.InferenceSession(source).run(None, {"x": TEXTS[case]})[0]
        return result.dtype, result.tolist()

    (kind, expected), (found_kind, found) = outcome(theirs, run), outcome(ort, run)
    assert found_kind == kind
    assert found == expected if kind == "result" else found.startswith(expected)


def test_texts_in_the_other_forms_of_numpy() -> None:
    session = ort.InferenceSession(models.identity(TensorProto.STRING))
    assert session.run(None, {"x": np.array(["é".encode(), b"b"])})[0].tolist() == ["é", "b"]
    assert session.run(None, {"x": np.array(["a"], np.dtypes.StringDType())})[0].tolist() == ["a"]


def sequence_model() -> bytes:
    return models.model(
        [helper.make_node("SequenceAt", ["s", "i"], ["z"], name="at"), helper.make_node("Identity", ["s"], ["t"])],
        [helper.make_tensor_sequence_value_info("s", models.FLOAT, None), models.value("i", TensorProto.INT64, [])],
        [models.value("z", models.FLOAT, None), helper.make_tensor_sequence_value_info("t", models.FLOAT, None)],
    ).SerializeToString()


def test_sequences() -> None:
    session = ort.InferenceSession(sequence_model())
    one, index = np.ones(2, np.float32), np.array(0)
    assert [(item.type, item.shape) for item in session.get_inputs()] == [
        ("seq(tensor(float))", []),
        ("tensor(int64)", []),
    ]
    first, everything = session.run(None, {"s": [one, one], "i": index})
    np.testing.assert_array_equal(first, one)
    assert isinstance(everything, list)
    assert not any(np.shares_memory(item, one) for item in [first, *everything])


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ([np.ones(2, np.int64)], RuntimeError, "different data type"),
        (
            np.ones(2, np.float32),
            errors.InvalidArgument,
            "input with name: 's' expected to be of type: 3 but received a",
        ),
        (((1.0,),), RuntimeError, "should be given as array for input 's'"),
        ([[1.0]], RuntimeError, "Input is not a tensor"),
    ],
)
def test_wrong_sequences(given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ort.InferenceSession(sequence_model()).run(None, {"s": given, "i": np.array(0)})


def test_a_scalar_may_come_with_one_dimension(capfd: pytest.CaptureFixture[str]) -> None:
    session = ort.InferenceSession(models.identity(TensorProto.FLOAT, []))
    assert session.run(None, {"x": np.ones(1, np.float32)})[0].item() == 1
    assert "[W:onnxruntime:" in capfd.readouterr().err


def test_a_wrong_declared_output_shape_is_only_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    source = models.model(
        [helper.make_node("Relu", ["x"], ["y"])],
        [models.value("x", models.FLOAT, ["n"])],
        [models.value("y", models.FLOAT, [5])],
    ).SerializeToString()
    result = ort.InferenceSession(source).run(None, {"x": np.ones(3, np.float32)})[0]
    assert result.shape == (3,)
    assert "Expected shape from model of {5} does not match actual shape of {3} for output y" in capfd.readouterr().err


def test_only_what_the_outputs_need_is_run() -> None:
    session = ort.InferenceSession(models.two_outputs())
    feed = {"x": np.ones(2, np.float32), "y": np.ones(3, np.float32)}
    np.testing.assert_array_equal(session.run(["a"], feed)[0], [1, 1])
    with pytest.raises(errors.Fail, match="Name:'bad'"):
        session.run(["b", "a"], feed)
    a, again = session.run(["a", "a"], feed)
    assert not np.shares_memory(a, again)


def test_initializers_that_may_be_overridden() -> None:
    session = ort.InferenceSession(models.add_weights(overridable=True))
    assert [item.name for item in session.get_inputs()] == ["x"]
    assert [(item.name, item.shape) for item in session.get_overridable_initializers()] == [("w", [3])]
    zero = np.zeros((1, 3), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": zero})[0], [[1, 2, 3]])
    np.testing.assert_array_equal(session.run(None, {"x": zero, "w": np.full(3, 9, np.float32)})[0], [[9, 9, 9]])
    with pytest.raises(errors.InvalidArgument, match="invalid dimensions for input: w"):
        session.run(None, {"x": zero, "w": np.zeros(4, np.float32)})


@pytest.mark.parametrize("source", [models.add_weights(), models.add_weights(overridable=True, ir_version=3)])
def test_constants_are_not_fed(source: bytes) -> None:
    session = ort.InferenceSession(source)
    assert session.get_overridable_initializers() == []
    with pytest.raises(errors.InvalidArgument, match="Invalid input name: w"):
        session.run(None, {"x": X, "w": np.zeros(3, np.float32)})


def test_control_flow_runs_its_branches() -> None:
    session = ort.InferenceSession(models.branches())
    x = -np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x, "c": np.array(True)})[0], [[0, 0, 0]])
    np.testing.assert_array_equal(session.run(None, {"x": x, "c": np.array(False)})[0], [[4, 4, 4]])


def test_many_threads_run_one_session() -> None:
    session = ort.InferenceSession(models.branches())

    def run(number: int) -> bool:
        x = np.full((2, 4), number, np.float32)
        result = session.run(None, {"x": x, "c": np.array(True)})[0]
        return bool((result == 4 * number).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(200)))


def test_an_interrupt_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ort.InferenceSession(ADD)
    plan = session._sess._plan  # type: ignore[union-attr]

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    object.__setattr__(plan.steps[0], "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.run(None, {"x": X, "y": X})


def test_a_failing_provider_is_left_once(capfd: pytest.CaptureFixture[str]) -> None:
    session = ort.InferenceSession(ADD)
    plan = session._sess._plan  # type: ignore[union-attr]

    def failing(*_: Any) -> Any:
        raise errors.EPFail("the device is gone")

    object.__setattr__(plan.steps[0], "call", failing)
    np.testing.assert_array_equal(session.run(None, {"x": X, "y": X})[0], X + X)
    printed = capfd.readouterr().out
    assert "EP Error: [ONNXRuntimeError] : 11 : EP_FAIL :" in printed
    assert "Falling back to ['CPUExecutionProvider'] and retrying." in printed
    assert not session._enable_fallback


def test_run_async() -> None:
    session = ort.InferenceSession(ADD)
    done = threading.Event()
    got: list[Any] = []

    def callback(outputs: list[Any], user: Any, error: str) -> None:
        got.append((outputs, user, error, threading.current_thread() is threading.main_thread()))
        done.set()

    session.run_async(None, {"x": X, "y": X}, callback, "mine")
    assert done.wait(30)
    np.testing.assert_array_equal(got[0][0][0], X + X)
    assert got[0][1:] == ("mine", "", False)
    done.clear()
    session.run_async(None, {"x": X.astype(np.float64), "y": X}, callback, "mine")
    assert done.wait(30)
    assert got[1][0] == []
    assert got[1][2].startswith("Unexpected input data type.")
    with pytest.raises(ValueError, match="Required inputs"):
        session.run_async(None, {}, callback, None)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    with pytest.raises(errors.InvalidArgument, match="at least one thread for RunAsync"):
        ort.InferenceSession(ADD, options).run_async(None, {"x": X, "y": X}, callback, None)


def test_values_in_and_out() -> None:
    session = ort.InferenceSession(ADD)
    value = ort.OrtValue.ortvalue_from_numpy(X)
    (result,) = session.run_with_ort_values(None, {"x": value, "y": value})
    assert result.data_type() == "tensor(float)"
    np.testing.assert_array_equal(result.numpy(), X + X)
    with pytest.raises(AttributeError):
        session.run_with_ort_values(None, {"x": X, "y": X})  # type: ignore[dict-item]


def test_bindings() -> None:
    session, other = ort.InferenceSession(ADD), ort.InferenceSession(ADD)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("y", X)
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], X + X)
    with pytest.raises(ValueError, match="must be used with the session that created it"):
        other.run_with_iobinding(binding)


SHAPES: dict[str, tuple[list[Any], list[Any] | None]] = {
    "undeclared": (["b", 4], None),
    "other name": (["b", 4], ["q", 4]),
    "unknown": (["b", 4], [None, None]),
    "name for a number": ([2, 4], ["q", None]),
    "contradiction": (["b", 4], ["b", 5]),
    "other rank": (["b", 4], ["b"]),
    "expression": (["past + new", 4], ["total length", None]),
    "negative": ([-1, 4], None),
    "scalar": ([], []),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_are_shown_as_by_onnxruntime(case: str) -> None:
    theirs = pytest.importorskip("onnxruntime")
    given, declared = SHAPES[case]
    source = models.model(
        [helper.make_node("Relu", ["x"], ["y"])],
        [models.value("x", models.FLOAT, given)],
        [models.value("y", models.FLOAT, declared)],
    ).SerializeToString()

    def shown(package: Any) -> Any:
        session = package.InferenceSession(source)
        return [str(item) for item in (*session.get_inputs(), *session.get_outputs())]

    assert shown(ort) == shown(theirs)


def test_what_is_shown_of_shapes_belongs_to_the_caller() -> None:
    (item,) = ort.InferenceSession(
        models.model(
            [helper.make_node("Relu", ["x"], ["y"])],
            [models.value("x", models.FLOAT, ["n", 4])],
            [models.value("y", models.FLOAT, ["n", 4])],
        )
    ).get_inputs()
    shape = item.shape
    shape[0] = 1
    assert item.shape == ["n", 4]
    with pytest.raises(AttributeError):
        item.shape = shape  # type: ignore[misc]


def test_metadata_is_that_of_onnxruntime() -> None:
    theirs = pytest.importorskip("onnxruntime")
    message = onnx.load_model_from_string(ADD)
    names = (
        "producer_name",
        "graph_name",
        "domain",
        "description",
        "graph_description",
        "version",
        "custom_metadata_map",
    )
    for filled in (False, True):
        if filled:
            message.producer_name, message.domain, message.doc_string, message.model_version = "me", "d", "text", 3
            entry = message.metadata_props.add()
            entry.key, entry.value = "classes", "cat,dog"
        metas = [package.InferenceSession(message.SerializeToString()).get_modelmeta() for package in (theirs, ort)]
        assert [getattr(metas[1], name) for name in names] == [getattr(metas[0], name) for name in names]


def test_what_a_session_tells() -> None:
    session = ort.InferenceSession(ADD)
    assert [info.name for info in session.get_input_memory_infos()] == ["Cpu", "Cpu"]
    assert [info.allocator_type for info in session.get_output_memory_infos()] == [
        ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    ]
    assert [device.ep_name for device in session.get_input_epdevices()] == ["CPUExecutionProvider"] * 2
    assert session.get_tuning_results() == []
    session.set_tuning_results([])
    session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
    with pytest.raises(TypeError):
        session.set_ep_dynamic_options({"key": 1})  # type: ignore[dict-item]
    session.release_captured_graph()
    value = session.create_ortvalue_from_shape_and_type([2, 3], np.float32)
    assert value.shape() == [2, 3]
    with pytest.raises(errors.Fail, match="record_ep_graph_assignment_info"):
        session.get_provider_graph_assignment_info()
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = ort.InferenceSession(models.branches(), options)
    assert session.get_input_memory_infos()[0].allocator_type == ort.OrtAllocatorType.ORT_DEVICE_ALLOCATOR
    parts = session.get_provider_graph_assignment_info()
    assert {part.ep_name for part in parts} == {"CPUExecutionProvider"}
    types = sorted([node.op_type for node in part.get_nodes()] for part in parts)
    assert types == [["If"], ["MatMul"], ["Neg"], ["Relu"]]
