import gc

import ml_dtypes
import numpy as np
import pytest

from sardonyx import OrtValue, copy_tensors
from sardonyx.api.values.element_types import by_number, pack, unpack

FLOAT_ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
DTYPES = [np.float32, np.float64, np.float16, np.int8, np.uint8, np.int16, np.uint16]
DTYPES += [np.int32, np.uint32, np.int64, np.uint64, np.bool_]


def both(array):
    ort = pytest.importorskip("onnxruntime")
    return OrtValue.ortvalue_from_numpy(array), ort.OrtValue.ortvalue_from_numpy(array)


def facts(value):
    return (
        value.shape(),
        value.data_type(),
        value.element_type(),
        value.device_name(),
        value.tensor_size_in_bytes(),
        value.has_value(),
        value.is_tensor(),
        value.is_tensor_sequence(),
        value.is_sparse_tensor(),
        value.data_ptr(),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_share_memory_and_tell_what_onnxruntime_tells(dtype):
    array = np.ones((2, 3), dtype)
    ours, theirs = both(array)
    assert facts(ours) == facts(theirs)
    assert ours.data_ptr() == array.ctypes.data
    array[0, 0] = 0
    assert ours.numpy()[0, 0] == 0
    assert not ours.numpy().flags.owndata


def test_a_strided_array_is_copied():
    array = FLOAT_ARRAY.T
    value = OrtValue.ortvalue_from_numpy(array)
    assert value.data_ptr() != array.ctypes.data
    np.testing.assert_array_equal(value.numpy(), array)


def test_foreign_byte_order_is_converted():
    np.testing.assert_array_equal(OrtValue.ortvalue_from_numpy(FLOAT_ARRAY.astype(">f4")).numpy(), FLOAT_ARRAY)


def test_the_value_keeps_its_array_alive():
    view = OrtValue.ortvalue_from_numpy(np.arange(100_000)).numpy()
    gc.collect()
    assert view[-1] == 99_999


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn])
def test_ml_dtypes_make_tensors(dtype):
    value = OrtValue.ortvalue_from_numpy(np.ones(3, dtype))
    assert by_number(value.element_type()).dtype == dtype
    assert value.tensor_size_in_bytes() == {"bfloat16": 6, "int4": 2, "float8_e4m3fn": 3}[np.dtype(dtype).name]


def test_texts_make_tensors():
    value = OrtValue.ortvalue_from_numpy(np.array(["a", "bc"]))
    assert value.data_type() == "tensor(string)"
    assert value.numpy().tolist() == ["a", "bc"]


@pytest.mark.parametrize("thing", [[1, 2], None, {}, 1.5, np.float32(1), np.array(["2020"], "M8[D]"), np.array([b"a"])])
def test_other_things_are_refused(thing):
    with pytest.raises(RuntimeError, match="Creation of OrtValues is currently only supported"):
        OrtValue.ortvalue_from_numpy(thing)


@pytest.mark.parametrize("device", ["cuda", "cann", "dml", "npu", "gpu", "webgpu"])
def test_devices_without_memory_are_refused(device):
    with pytest.raises(RuntimeError, match="Can't allocate memory on the device"):
        OrtValue.ortvalue_from_numpy(FLOAT_ARRAY, device, 0)


@pytest.mark.parametrize("device", ["tpu", "CPU"])
def test_unknown_devices_are_refused_as_by_onnxruntime(device):
    ort = pytest.importorskip("onnxruntime")
    for module_value in (OrtValue, ort.OrtValue):
        with pytest.raises(Exception, match=f"Unsupported device type: {device}") as caught:
            module_value.ortvalue_from_numpy(FLOAT_ARRAY, device, 0)
        assert caught.type is Exception


@pytest.mark.parametrize("kind", [np.float32, np.dtype("int8"), "float16", float, int, bool, 1, 16, 17, 21, 22])
def test_shape_and_type(kind):
    ort = pytest.importorskip("onnxruntime")
    ours, theirs = (cls.ortvalue_from_shape_and_type((2, 3), kind) for cls in (OrtValue, ort.OrtValue))
    assert facts(ours)[:-1] == facts(theirs)[:-1]


@pytest.mark.parametrize(
    ("shape", "kind", "error"),
    [([2], "foo", RuntimeError), ([2], 99, RuntimeError), ([-1], np.float32, RuntimeError), ([2.5], float, TypeError)],
)
def test_bad_shapes_and_types(shape, kind, error):
    with pytest.raises(error):
        OrtValue.ortvalue_from_shape_and_type(shape, kind)


def test_bytes_reinterpreted_as_another_type():
    array = np.array([1, 2, 3], np.uint16)
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(array, onnx_element_type=16)
    assert (value.data_type(), value.data_ptr(), value.shape()) == ("tensor(bfloat16)", array.ctypes.data, [3])
    with pytest.raises(RuntimeError, match="Items size in the incoming array: 2 specified by onnxtype: 4"):
        OrtValue.ortvalue_from_numpy_with_onnx_type(array, 1)
    with pytest.raises(RuntimeError, match="Not a valid ONNX Tensor data type: 99"):
        OrtValue.ortvalue_from_numpy_with_onnx_type(array, 99)
    with pytest.raises(TypeError):
        OrtValue.ortvalue_from_numpy_with_onnx_type([1], 1)


@pytest.mark.parametrize("number", [21, 22, 23, 25, 26])
def test_packing_small_elements_is_reversible(number):
    kind = by_number(number)
    array = np.random.default_rng(number).integers(0, 2, (3, 5)).astype(kind.dtype)
    np.testing.assert_array_equal(unpack(pack(array, kind), kind, (3, 5)), array)


def test_update_inplace_writes_the_shared_memory():
    array = np.zeros((2, 3), np.float32)
    value = OrtValue.ortvalue_from_numpy(array)
    value.update_inplace(np.ones((3, 2), np.float32))
    assert array.tolist() == [[1, 1, 1], [1, 1, 1]]
    value.update_inplace(OrtValue.ortvalue_from_numpy(FLOAT_ARRAY))
    np.testing.assert_array_equal(array, FLOAT_ARRAY)


def test_update_inplace_refuses_what_does_not_fit():
    value = OrtValue.ortvalue_from_numpy(np.zeros((2, 3), np.float32))
    with pytest.raises(RuntimeError, match="The input size of numpy arrays does not match the size of the OrtValue"):
        value.update_inplace(np.ones(4, np.float32))
    with pytest.raises(RuntimeError, match="must have the same data type"):
        value.update_inplace(np.ones((2, 3), np.float64))
    with pytest.raises(TypeError, match=r"data must be a numpy.ndarray or an OrtValue"):
        value.update_inplace([1.0] * 6)
    assert not value.numpy().any()


def test_copy_tensors():
    target = OrtValue.ortvalue_from_numpy(np.zeros((2, 3), np.float32))
    copy_tensors([OrtValue.ortvalue_from_numpy(FLOAT_ARRAY)], [target])
    np.testing.assert_array_equal(target.numpy(), FLOAT_ARRAY)
    with pytest.raises(RuntimeError, match="Invalid arguments provided to CopyTensors"):
        copy_tensors([], [])


def test_array_protocol():
    value = OrtValue.ortvalue_from_numpy(FLOAT_ARRAY.copy())
    assert np.asarray(value).ctypes.data == value.data_ptr()
    assert np.asarray(value, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="Unable to avoid copy"):
        np.array(value, dtype=np.float64, copy=False)


def test_dlpack_with_numpy():
    value = OrtValue.ortvalue_from_numpy(FLOAT_ARRAY.copy())
    assert value.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(value).ctypes.data == value.data_ptr()
    back = OrtValue.from_dlpack(value)
    assert back.data_ptr() == value.data_ptr()
    assert back.numpy().flags.writeable
    assert OrtValue.from_dlpack(np.array([True])).data_type() == "tensor(bool)"
    assert OrtValue.from_dlpack(FLOAT_ARRAY.__dlpack__()).data_type() == "tensor(float)"


def test_dlpack_with_torch():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64):
        tensor = torch.ones(4).to(dtype)
        value = OrtValue.from_dlpack(tensor)
        assert value.data_ptr() == tensor.data_ptr()
        back = torch.from_dlpack(value)
        assert (back.dtype, back.data_ptr()) == (dtype, tensor.data_ptr())


def test_dlpack_refuses_what_it_cannot_take():
    with pytest.raises(RuntimeError, match="ORT only supports contiguous tensor"):
        OrtValue.from_dlpack(FLOAT_ARRAY.T)
    with pytest.raises(TypeError, match="expected a valid DLPack capsule"):
        OrtValue.from_dlpack(3)
    capsule = FLOAT_ARRAY.__dlpack__()
    OrtValue.from_dlpack(capsule)
    with pytest.raises(TypeError, match="nobody has used yet"):
        OrtValue.from_dlpack(capsule)


def test_values_of_the_c_level_cannot_be_pickled():
    import pickle

    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(OrtValue.ortvalue_from_numpy(FLOAT_ARRAY))
    with pytest.raises(ValueError, match="Provided ortvalue"):
        OrtValue(None)


@pytest.mark.parametrize("shape", [[2**62], [2**62, 4], [2**31, 2**31, 2**10]])
def test_a_shape_beyond_all_addresses_is_refused(shape: list[int]) -> None:
    with pytest.raises(RuntimeError, match="Integer overflow"):
        OrtValue.ortvalue_from_shape_and_type(shape, np.float32)
