import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.datasets import get_example

NAMES = ["logreg_iris.onnx", "mul_1.onnx", "sigmoid.onnx"]


def described(arguments):
    return [(argument.name, argument.type, argument.shape) for argument in arguments]


@pytest.mark.parametrize("name", NAMES)
def test_examples_take_and_give_what_those_of_onnxruntime_do(name):
    ort = pytest.importorskip("onnxruntime")
    theirs = ort.InferenceSession(pytest.importorskip("onnxruntime.datasets").get_example(name))
    ours = sardonyx.InferenceSession(get_example(name))
    assert described(ours.get_inputs()) == described(theirs.get_inputs())
    assert described(ours.get_outputs()) == described(theirs.get_outputs())


def test_the_examples_compute():
    x = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    onnx.checker.check_model(onnx.load(get_example("mul_1.onnx")))
    (product,) = sardonyx.InferenceSession(get_example("mul_1.onnx")).run(None, {"X": x})
    np.testing.assert_array_equal(product, x * x)
    irises = np.array([[5.0, 3.5], [5.7, 2.5], [7.5, 3.0]], np.float32)
    labels, chances = sardonyx.InferenceSession(get_example("logreg_iris.onnx")).run(None, {"float_input": irises})
    assert labels.tolist() == [0, 1, 2]
    assert [max(row, key=row.get) for row in chances] == [0, 1, 2]


def test_a_name_that_is_no_example():
    with pytest.raises(FileNotFoundError, match="Unable to find example 'missing'"):
        get_example("missing")
