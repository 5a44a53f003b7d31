import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.transformers import float16

NUMBERS = np.array(
    [0.0, -0.0, 1.0, -2.5, 1e-9, -1e-9, 5.97e-8, 6e-5, 70000.0, -1e30, 65504.0, np.inf, -np.inf, np.nan, 1 / 3],
    np.float32,
)


@pytest.mark.parametrize(("least", "most"), [(5.96e-08, 65504.0), (1e-7, 1e4), (6.104e-05, 100.0)])
@pytest.mark.parametrize("shape", [(15,), (3, 5)])
def test_numbers_are_those_of_onnxruntime(least, most, shape):
    theirs = pytest.importorskip("onnxruntime.transformers.float16")
    array = NUMBERS.reshape(shape)
    ours = float16.convert_np_to_float16(array, least, most)
    wanted = theirs.convert_np_to_float16(array, least, most)
    assert ours.dtype == wanted.dtype == np.float16
    assert ours.view(np.uint16).tolist() == wanted.view(np.uint16).tolist()


def test_random_numbers_are_rounded_once_and_clipped():
    rng = np.random.default_rng(3)
    array = (rng.standard_normal(4000) * 10.0 ** rng.integers(-12, 9, 4000)).astype(np.float32)
    half = float16.convert_np_to_float16(array)
    assert np.isfinite(half).all()
    assert (half != 0).all()
    inside = (np.abs(array) < 65504) & (np.abs(array) > 5.96e-8)
    np.testing.assert_array_equal(half[inside], array[inside].astype(np.float16))
    assert (np.sign(half) == np.sign(array)).all()
    assert float16.convert_np_to_float16(np.float32(1e9)) == 65504


@pytest.mark.parametrize("raw", [True, False])
def test_tensors_change_in_place(raw):
    array = np.arange(6, dtype=np.float32).reshape(2, 3) / 3
    values = array.tobytes() if raw else array.ravel().tolist()
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [2, 3], values, raw=raw)
    assert float16.convert_tensor_float_to_float16(tensor) is tensor
    assert tensor.data_type == TensorProto.FLOAT16
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), array.astype(np.float16))
    info = float16.make_value_info_from_tensor(tensor)
    assert (info.name, info.type.tensor_type.elem_type) == ("w", TensorProto.FLOAT16)
    assert [dim.dim_value for dim in info.type.tensor_type.shape.dim] == [2, 3]


def test_the_largest_difference():
    theirs = pytest.importorskip("onnxruntime.transformers.float16")
    tensor = numpy_helper.from_array(np.array([1.0, 1 / 3, 1e6], np.float32), "w")
    assert float16.float_to_float16_max_diff(tensor) == theirs.float_to_float16_max_diff(tensor) == 1e6 - 65504
    assert float16.float_to_float16_max_diff(numpy_helper.from_array(np.zeros(0, np.float32), "empty")) == 0
    with pytest.raises(ValueError, match="w is INT64"):
        float16.float_to_float16_max_diff(numpy_helper.from_array(np.arange(2), "w"))


def test_what_is_no_tensor_or_has_no_contents_is_refused():
    for function in (float16.convert_tensor_float_to_float16, float16.float_to_float16_max_diff):
        with pytest.raises(ValueError, match="TensorProto but got"):
            function(np.zeros(2))
        with pytest.raises(RuntimeError, match="external data not loaded! The numbers of w lie in a file"):
            function(TensorProto(name="w", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL))


def test_the_lists_are_those_of_onnxruntime():
    theirs = pytest.importorskip("onnxruntime.transformers.float16")
    assert theirs.DEFAULT_OP_BLOCK_LIST == float16.DEFAULT_OP_BLOCK_LIST
    assert theirs.ALWAYS_FLOAT_INPUTS == float16.ALWAYS_FLOAT_INPUTS
