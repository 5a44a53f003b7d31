"""Float32 numbers and tensors as float16, clipped to what float16 holds: none becomes zero or infinite."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

# The smallest number of float16 above zero (a little less, so that it rounds to that one), and the largest finite one.
SMALLEST = 5.96e-08
LARGEST = 65504.0

_BLOCK = 1 << 16  # numbers at a time: what is computed on the way stays in the caches


def check_limits(min_positive_val: float, max_finite_val: float) -> None:
    """ValueError for limits that float16 does not hold."""
    if not SMALLEST <= min_positive_val <= max_finite_val <= LARGEST:
        raise ValueError(
            f"min_positive_val={min_positive_val} and max_finite_val={max_finite_val}: float16 holds numbers from "
            f"{SMALLEST} (6.104e-05 with all its digits) to {LARGEST}; choose limits between them"
        )


def convert_np_to_float16(np_array: Any, min_positive_val: float = SMALLEST, max_finite_val: float = LARGEST) -> Any:
    """The numbers as float16, with the sign and the finiteness that they have.

    Those nearer to zero than `min_positive_val` become `min_positive_val`, those further away than `max_finite_val`
    become `max_finite_val`, each with its sign; 0, NaN and the infinities stay.
    """
    array = np.asarray(np_array)
    half = np.empty(array.shape, np.float16)
    numbers, results = array.reshape(-1), half.reshape(-1)
    for start in range(0, numbers.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        _round(numbers[block], results[block], min_positive_val, max_finite_val)
    return half if half.ndim else half[()]


def _round(numbers: Array, half: Array, least: float, most: float) -> None:
    """Write numbers as float16 to `half`, clipped."""
    with np.errstate(over="ignore"):
        half[...] = numbers
    size = np.abs(numbers)
    for limit, beyond in ((least, (size < least) & (size > 0)), (most, (size > most) & (size < np.inf))):
        if beyond.any():
            half[beyond] = np.copysign(limit, numbers[beyond])


def convert_tensor_float_to_float16(
    tensor: TensorProto, min_positive_val: float = SMALLEST, max_finite_val: float = LARGEST
) -> TensorProto:
    """Make a float32 tensor a float16 one, in place, and give it back; tensors of other types stay.

    ValueError for anything but a TensorProto, RuntimeError for one whose data lies in a file that was not read.
    """
    _check_tensor(tensor)
    if tensor.data_type == TensorProto.FLOAT:
        half = convert_np_to_float16(array_of_float(tensor), min_positive_val, max_finite_val)
        put_array(tensor, TensorProto.FLOAT16, np.asarray(half))
    return tensor


def convert_tensor_float_to_bfloat16(tensor: TensorProto) -> TensorProto:
    """The same for bfloat16, which has the range of float32: nothing is clipped."""
    _check_tensor(tensor)
    if tensor.data_type == TensorProto.FLOAT:
        put_array(tensor, TensorProto.BFLOAT16, array_of_float(tensor).astype(ml_dtypes.bfloat16))
    return tensor


def float_to_float16_max_diff(
    tensor: TensorProto, min_positive_val: float = SMALLEST, max_finite_val: float = LARGEST
) -> float:
    """The largest difference between a number of a float32 tensor and what float16 makes of it; 0 for no numbers.

    ValueError for anything but a TensorProto of float32, RuntimeError where its data was not read.
    """
    _check_tensor(tensor)
    if tensor.data_type != TensorProto.FLOAT:
        raise ValueError(
            f"Expected tensor data type is float, but {tensor.name} is {TensorProto.DataType.Name(tensor.data_type)}"
        )
    array = array_of_float(tensor)
    half = convert_np_to_float16(array, min_positive_val, max_finite_val)
    return float(np.max(np.abs(array - np.float32(half)), initial=0.0))


def make_value_info_from_tensor(tensor: TensorProto) -> ValueInfoProto:
    """The name, element type and shape of a tensor as a graph declares them."""
    return helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


def check_loaded(tensor: TensorProto) -> None:
    """RuntimeError where the contents of a tensor lie in a file that was not read."""
    if tensor.data_location == TensorProto.EXTERNAL:
        raise RuntimeError(
            f"external data not loaded! The numbers of {tensor.name} lie in a file: "
            "read the model with its external data (onnx.load does), or pass its path"
        )


def array_of_float(tensor: TensorProto) -> Array:
    """The numbers of a float32 tensor; RuntimeError where they were not read."""
    check_loaded(tensor)
    array: Array = numpy_helper.to_array(tensor)
    return array


def put_array(tensor: TensorProto, element: int, array: Array) -> None:
    """Replace the contents of a tensor by those of an array of the given element type."""
    for stored in ("float_data", "int32_data", "raw_data"):
        tensor.ClearField(stored)
    tensor.data_type = element
    tensor.raw_data = array.tobytes()


def _check_tensor(tensor: Any) -> None:
    if not isinstance(tensor, TensorProto):
        raise ValueError(f"Expected input type is an ONNX TensorProto but got {type(tensor)}")
