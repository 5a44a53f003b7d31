"""The short way of runs with steps on the host gives what the long way gives, and declines what it does not take."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.engines.engine_compiler import compile_engine
from sardonyx.api.running.relay import RelayCall
from sardonyx.runtime.native.fast_call import is_usable

pytestmark = pytest.mark.skipif(
    not is_usable(), reason="the interpreter's objects are not laid out as native code reads"
)

ML = "ai.onnx.ml"
NAMES = ["red", "green", "blue"]


def model_of(nodes: list[Any], inputs: list[Any], outputs: list[Any], **fields: Any) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, **fields)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def opened(source: Any) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(source, options)


def session(nodes: list[Any], inputs: list[Any], outputs: list[Any], **fields: Any) -> ort.InferenceSession:
    return opened(model_of(nodes, inputs, outputs, **fields).SerializeToString())


def classifier() -> ort.InferenceSession:
    return opened(classifier_model().SerializeToString())


def classifier_model() -> onnx.ModelProto:
    """Numbers and a colour to a label, which is a text, and a map of scores."""
    nodes = [
        helper.make_node("LabelEncoder", ["colour"], ["place"], domain=ML, keys_strings=NAMES, values_int64s=[0, 1, 2]),
        helper.make_node("OneHotEncoder", ["place"], ["row"], domain=ML, cats_int64s=[0, 1, 2]),
        helper.make_node("Concat", ["x", "row"], ["features"], axis=1),
        helper.make_node(
            "LinearClassifier",
            ["features"],
            ["label", "scores"],
            domain=ML,
            classlabels_strings=["yes", "no", "maybe"],
            coefficients=[0.5, -1.0, 2.0, 1.0, 0.0, 1.5, 0.25, -2.0, 0.5, 1.0, 0.0, -1.0, 0.0, 3.0, 0.5],
            intercepts=[0.5, 0.0, -0.5],
            post_transform="SOFTMAX",
        ),
        helper.make_node("ZipMap", ["scores"], ["map"], domain=ML, classlabels_strings=["yes", "no", "maybe"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2]),
        helper.make_tensor_value_info("colour", TensorProto.STRING, ["n"]),
    ]
    scores = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.STRING, ["n"]),
        helper.make_value_info("map", scores),
    ]
    return model_of(nodes, inputs, outputs)


def feeds(rows: int = 2, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((rows, 2)).astype(np.float32),
        "colour": rng.choice(np.array([*NAMES, "other"], object), rows),
    }


def short(made: ort.InferenceSession, given: Any) -> list[Any] | None:
    assert made._fast is not None
    assert made._fast.__self__.__class__ is RelayCall
    return made._fast(None, given)


def check(results: list[Any] | None, given: dict[str, Any]) -> None:
    """The results are those of a session that has not run before."""
    assert results is not None
    expected = classifier().run(None, given)
    np.testing.assert_array_equal(results[0], expected[0])
    assert results[1] == expected[1]


def test_it_takes_the_second_run_of_a_kind() -> None:
    made = classifier()
    assert short(made, feeds()) is None
    for seed in range(4):
        check(made.run(None, feeds(seed=seed)), feeds(seed=seed))
        check(short(made, feeds(seed=seed)), feeds(seed=seed))
    assert len(made.run(["label"], feeds())) == 1
    check(made.run(None, feeds()), feeds())


def test_sessions_from_engines_have_it_too(tmp_path: Path) -> None:
    onnx.save(classifier_model(), tmp_path / "model.onnx")
    compile_engine(str(tmp_path / "model.onnx"), tmp_path / "model.engine")
    made = opened(str(tmp_path / "model.engine"))
    assert made._sess is not None
    assert made._sess._is_stored
    for rows in (2, 2, 5, 5, 5, 2):
        check(made.run(None, feeds(rows)), feeds(rows))
    assert short(made, feeds(5)) is None
    for _ in range(2):
        check(made.run(None, feeds(5)), feeds(5))
    check(short(made, feeds(5, seed=1)), feeds(5, seed=1))


def test_other_sizes_take_the_long_way_once() -> None:
    made = classifier()
    for rows in (2, 2, 5, 5, 5, 2, 0, 0, 1):
        check(made.run(None, feeds(rows)), feeds(rows))


def test_texts_come_as_any_kind_of_array() -> None:
    made = classifier()
    given = feeds()
    made.run(None, given)
    check(short(made, {**given, "colour": given["colour"].astype(str)}), given)
    mixed = np.array(["red", 7], object)
    assert short(made, {**given, "colour": mixed}) is None
    check(made.run(None, {**given, "colour": mixed}), {**given, "colour": np.array(["red", "7"], object)})


@pytest.mark.parametrize(
    "change",
    [
        {"x": np.zeros((2, 2))},
        {"x": np.zeros((2, 3), np.float32)},
        {"x": [[0.0, 0.0], [0.0, 0.0]]},
        {"x": np.zeros((2, 4), np.float32)[:, ::2]},
        {"colour": np.array([1, 2])},
        {"more": np.zeros(1)},
    ],
)
def test_it_declines_what_looks_otherwise(change: dict[str, Any]) -> None:
    made = classifier()
    made.run(None, feeds())
    assert short(made, {**feeds(), **change}) is None
    assert short(made, {"x": feeds()["x"]}) is None


def test_results_belong_to_the_caller() -> None:
    nodes = [helper.make_node("StringNormalizer", ["x"], ["low"], case_change_action="LOWER")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])]
    outputs = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in ("low", "x", "fixed")]
    made = session(nodes, inputs, outputs, initializer=[helper.make_tensor("fixed", TensorProto.STRING, [1], [b"a"])])
    given = np.array(["A"], object)
    for _ in range(3):
        low, same, fixed = made.run(None, {"x": given})
        assert (low[0], same[0], fixed[0]) == ("a", "A", "a")
        low[0] = same[0] = fixed[0] = "b"
    assert given[0] == "A"


def test_a_step_that_fails_says_so() -> None:
    nodes = [
        helper.make_node("LabelEncoder", ["x"], ["place"], domain=ML, keys_strings=NAMES, values_int64s=[0, 1, 9]),
        helper.make_node("Gather", ["table", "place"], ["y"], name="look"),
    ]
    table = helper.make_tensor("table", TensorProto.FLOAT, [2], [1.5, 2.5])
    made = session(
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        initializer=[table],
    )
    good, bad = np.array(["green", "red"], object), np.array(["green", "blue"], object)
    for _ in range(3):
        np.testing.assert_array_equal(made.run(None, {"x": good})[0], [2.5, 1.5])
        with pytest.raises(errors.OnnxRuntimeError, match="look"):
            made.run(None, {"x": bad})


def test_texts_of_other_counts_between_steps() -> None:
    nodes = [
        helper.make_node("StringSplit", ["x"], ["words", "counts"]),
        helper.make_node("LabelEncoder", ["words"], ["places"], domain=ML, keys_strings=NAMES, values_int64s=[1, 2, 3]),
        helper.make_node("ReduceSum", ["places"], ["y"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [])],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ML, 3)]
    made = ort.InferenceSession(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    for text, total in [("red", 1), ("red green", 3), ("blue", 3), ("blue blue", 6), ("red x", 0), ("green", 2)]:
        for _ in range(2):
            assert made.run(None, {"x": np.array([text], object)})[0] == total


def test_many_threads_at_once() -> None:
    made = classifier()
    made.run(None, feeds())
    given = [feeds(seed=seed) for seed in range(4)]
    expected = [classifier().run(None, one) for one in given]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            label, scores = made.run(None, given[number])
            if list(label) != list(expected[number][0]) or scores != expected[number][1]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=[number]) for number in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
