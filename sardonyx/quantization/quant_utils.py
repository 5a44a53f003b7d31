"""Types, names and numeric helpers of quantization, under the names of `onnxruntime.quantization.quant_utils`."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, external_data_helper

from sardonyx.quantization import quantized_numbers as core
from sardonyx.quantization.calibration.table import write_calibration_table as write_calibration_table
from sardonyx.quantization.refusal import InvalidQuantization

Array = np.ndarray[Any, Any]

__producer__ = "onnx.quantize"
__version__ = "0.1.0"
onnx_domain = "ai.onnx"
ms_domain = "com.microsoft"
QUANT_OP_NAME = "QuantizeLinear"
QUANT_INPUT_SUFFIX = "_QuantizeLinear_Input"
DEQUANT_OP_NAME = "DequantizeLinear"
DEQUANT_OUTPUT_SUFFIX = "_DequantizeLinear_Output"
TENSOR_NAME_QUANT_SUFFIX = "_quantized"
MODEL_SIZE_THRESHOLD = 2147483648  # bytes; a larger model needs external data
FLOAT8_TYPES = (
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
)
type_to_name = {int(number): name for name, number in TensorProto.DataType.items()}


class _Named(Enum):
    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_string(cls, name: str) -> Any:
        """The member of this name; a ValueError where there is none."""
        if name in cls.__members__:
            return cls[name]
        raise InvalidQuantization(f"{cls.__name__} has no '{name}'; it has {', '.join(cls.__members__)}")


class QuantizationMode(_Named):
    """IntegerOps: scales of activations are found in each run; QLinearOps: they are fixed by calibration."""

    IntegerOps = 0
    QLinearOps = 1


class QuantizedValueType(_Named):
    """Where a quantised value comes from."""

    Input = 0
    Initializer = 1


class QuantType(_Named):
    """The types that weights and activations are quantised to."""

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6

    @property
    def tensor_type(self) -> int:
        """The number of the type in `onnx.TensorProto`."""
        return int(_TENSOR_TYPES[self])


_TENSOR_TYPES = {
    QuantType.QInt8: TensorProto.INT8,
    QuantType.QUInt8: TensorProto.UINT8,
    QuantType.QFLOAT8E4M3FN: TensorProto.FLOAT8E4M3FN,
    QuantType.QInt16: TensorProto.INT16,
    QuantType.QUInt16: TensorProto.UINT16,
    QuantType.QInt4: TensorProto.INT4,
    QuantType.QUInt4: TensorProto.UINT4,
}


class QuantFormat(_Named):
    """QOperator: integer operators (QLinearConv ...); QDQ: float operators between pairs of QuantizeLinear and
    DequantizeLinear."""

    QOperator = 0
    QDQ = 1


def checked_format(quant_format: Any) -> QuantFormat:
    """The format that a caller gave, perhaps by its name; `InvalidQuantization` where there is no such one."""
    if isinstance(quant_format, QuantFormat):
        return quant_format
    name = getattr(quant_format, "name", quant_format)  # a member of an enumeration of the same names
    if isinstance(name, str) and name in QuantFormat.__members__:
        return QuantFormat[name]
    raise InvalidQuantization(f"quant_format must be QuantFormat.QOperator or QuantFormat.QDQ, not {quant_format!r}")


ONNX_TYPE_TO_NP_TYPE: dict[int, Any] = {
    TensorProto.INT8: np.dtype("int8"),
    TensorProto.UINT8: np.dtype("uint8"),
    TensorProto.INT16: np.dtype("int16"),
    TensorProto.UINT16: np.dtype("uint16"),
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.INT4: ml_dtypes.int4,
    TensorProto.UINT4: ml_dtypes.uint4,
}


def _ranges(reduced: bool = False, symmetric: bool = False) -> dict[int, tuple[Array, Array]]:
    found = {}
    for dtype in (ir.DataType(number) for number in ONNX_TYPE_TO_NP_TYPE):
        if dtype in core.FLOAT8 or (symmetric and dtype not in (ir.DataType.INT8, ir.DataType.INT16)):
            continue
        kind = core.narrow_dtype(dtype)
        least, largest = core.type_range(dtype, reduced=reduced, symmetric=symmetric)
        found[int(dtype)] = np.array(least, kind), np.array(largest, kind)
    return found


ONNX_INT_TYPE_RANGE = _ranges()
ONNX_INT_TYPE_SYMMETRIC_RANGE = _ranges(symmetric=True)
ONNX_INT_TYPE_REDUCED_RANGE = _ranges(reduced=True)


class QuantizedInitializer:
    """A weight and what it was quantised to."""

    def __init__(
        self,
        name: str,
        initializer: Any,
        rmins: Any,
        rmaxs: Any,
        zero_points: Any,
        scales: Any,
        data: Any = (),
        quantized_data: Any = (),
        axis: int | None = None,
    ) -> None:
        self.name = name
        self.initializer = initializer
        self.rmins = rmins
        self.rmaxs = rmaxs
        self.zero_points = zero_points
        self.scales = scales
        self.data = data
        self.quantized_data = quantized_data
        self.axis = axis


class QuantizedValue:
    """The names of a value's quantised form, its scale and its zero point."""

    def __init__(
        self,
        name: str,
        new_quantized_name: str,
        scale_name: str,
        zero_point_name: str,
        quantized_value_type: QuantizedValueType,
        axis: int | None = None,
        node_type: str | None = None,
        node_qtype: int | None = None,
        scale_type: int | None = None,
    ) -> None:
        self.original_name = name
        self.q_name = new_quantized_name
        self.scale_name = scale_name
        self.zp_name = zero_point_name
        self.value_type = quantized_value_type
        self.axis = axis
        self.node_type = node_type
        self.node_qtype = node_qtype
        self.scale_type = scale_type


class BiasToQuantize:
    """A bias and the input and the weight whose scales it takes."""

    def __init__(self, bias_name: str, input_name: str, weight_name: str) -> None:
        self.bias_name = bias_name
        self.input_name = input_name
        self.weight_name = weight_name


def ir_type(dtype: Any) -> ir.DataType:
    """The type that a `QuantType`, a number of `onnx.TensorProto` or an `onnx_ir.DataType` stands for."""
    number = getattr(dtype, "tensor_type", dtype)
    try:
        return ir.DataType(number)
    except ValueError:
        raise InvalidQuantization(
            f"{dtype!r} is no type to quantise to; it must be a member of QuantType: {', '.join(QuantType.__members__)}"
        ) from None


def get_qmin_qmax_for_qType(  # noqa: N802
    qType: int,  # noqa: N803
    reduce_range: bool = False,
    symmetric: bool = False,
) -> tuple[Array, Array]:
    """The least and the largest number stored in a type, as arrays of rank 0 of that type."""
    dtype = ir_type(qType)
    least, largest = core.type_range(dtype, reduced=reduce_range, symmetric=symmetric)
    kind = core.narrow_dtype(dtype)
    return np.array(least, kind), np.array(largest, kind)


def get_qrange_for_qType(qType: int, reduce_range: bool = False, symmetric: bool = False) -> Any:  # noqa: N802, N803
    """The difference of the largest and the least number stored in a type."""
    least, largest = core.type_range(ir_type(qType), reduced=reduce_range, symmetric=symmetric)
    return largest - least


def compute_scale_zp(
    rmin: Any, rmax: Any, qmin: Any, qmax: Any, symmetric: bool = False, min_real_range: float | None = None
) -> list[Array]:
    """The zero point, in the type of `qmin`, and the scale, in that of `rmax`, that store the floats from `rmin` to
    `rmax` as the numbers from `qmin` to `qmax`; in this order."""
    if qmin > 0 or qmax < 0:
        raise InvalidQuantization(f"qmin must not be above 0 and qmax not below it; they are {qmin} and {qmax}")
    low, high = np.asarray(rmin), np.asarray(rmax)
    if high.dtype.kind not in "fV":
        low, high = low.astype(np.float32), high.astype(np.float32)
    kind = np.asarray(qmin).dtype
    scale, zero_point = core.of_range(
        low, high, int(qmin), int(qmax), kind, symmetric, min_real_range, ort_compatible=True
    )
    return [zero_point, scale]


def snap_zero_point_to_uint8(
    rmin: Any, rmax: Any, qmin: int = 0, qmax: int = 255, min_real_range: float | None = None
) -> tuple[Array, Array]:
    """A zero point of uint8 that is `qmin`, where no number is negative, or else in the middle, and the scale for it,
    of float32."""
    low, high = (float(np.squeeze(one)) for one in (rmin, rmax))
    scale, zero_point = core.restricted(low, high, int(qmin), int(qmax), np.dtype(np.float32), min_real_range)
    return zero_point.astype(np.uint8), scale


def compute_scale_zp_float8(element_type: int, std: Array) -> list[Array]:
    """The zero point, which is 0, and the scale of an 8-bit float type, by the standard deviation of the data."""
    scale, zero_point = core.float8_parameters(np.asarray(std), ir_type(element_type))
    return [zero_point, scale]


def compute_scale_zp_blocked(
    weight: Array, quant_type: int, axis: int, block_size: int, symmetric: bool
) -> tuple[Array, Array]:
    """The zero points and the scales of blocks of `block_size` numbers along `axis`, of the rank of the weight."""
    found = core.parameters_of(
        weight, ir_type(quant_type), symmetric=symmetric, axis=axis, block_size=block_size, ort_compatible=True
    )
    return found.zero_point, found.scale


def compute_data_quant_params(
    data: Array,
    quant_type: int,
    symmetric: bool,
    reduce_range: bool = False,
    min_real_range: float | None = None,
    rmin_override: Any = None,
    rmax_override: Any = None,
) -> tuple[Array, Array]:
    """The zero point and the scale that store an array of floats; `rmin_override` and `rmax_override` stand for its
    extremes where given."""
    if not isinstance(data, np.ndarray):
        raise TypeError(f"Weight must be given as an array not {type(data)}.")
    dtype = ir_type(quant_type)
    if dtype in core.FLOAT8 and reduce_range:
        raise InvalidQuantization("reduce_range does not go with 8-bit floats")
    found = core.parameters_of(
        data,
        dtype,
        symmetric=symmetric,
        reduced=reduce_range,
        minimum_range=min_real_range,
        low=rmin_override,
        high=rmax_override,
        ort_compatible=True,
    )
    return found.zero_point, found.scale


def quantize_nparray(qType: int, arr: Array, scale: Any, zero_point: Any, low: Any = None, high: Any = None) -> Array:  # noqa: N803
    """An array of floats as it is stored with a scale and a zero point of rank 0, or of shapes that go with its own."""
    scale, zero_point = np.asarray(scale), np.asarray(zero_point)
    dtype = ir_type(qType)
    shape = np.broadcast_shapes(scale.shape, zero_point.shape)
    if math.prod(shape) == 1:
        return core.quantize(arr, core.Parameters(dtype, scale.reshape(()), zero_point.reshape(())), low, high)
    wide = np.broadcast_to(scale, arr.shape), np.broadcast_to(zero_point, arr.shape)
    return core.quantize(arr, core.Parameters(dtype, *wide, 0, 1), low, high)


def quantize_data(
    data: Array,
    qType: int,  # noqa: N803
    symmetric: bool,
    reduce_range: bool = False,
    min_real_range: float | None = None,
    rmin_override: Any = None,
    rmax_override: Any = None,
) -> tuple[Array, Array, Array]:
    """The zero point and the scale of an array of floats, and the array as it is stored."""
    data = np.asarray(data)
    zero_point, scale = compute_data_quant_params(
        data, qType, symmetric, reduce_range, min_real_range, rmin_override, rmax_override
    )
    return zero_point, scale, quantize_nparray(qType, data, scale, zero_point)


def quantize_onnx_initializer(
    weight: onnx.TensorProto,
    quant_type: int,
    zero_point: Array,
    scale: Array,
    axis: int | None = None,
    quant_weight_name: str | None = None,
    block_size: int = 0,
) -> onnx.TensorProto:
    """A float initializer as it is stored: with one scale, with one for each place along `axis`, or in blocks."""
    array = tensor_proto_to_array(weight)
    dtype = ir_type(quant_type)
    name = quant_weight_name or f"{weight.name}{TENSOR_NAME_QUANT_SUFFIX}"
    scale, zero_point = np.asarray(scale), np.asarray(zero_point)
    if axis is None:
        scale, zero_point = scale.reshape(()), zero_point.reshape(())
    stored = core.quantize(array, core.Parameters(dtype, scale, zero_point, axis, block_size))
    return ir.to_proto(ir.Tensor(stored, dtype=dtype, name=name))


def pack_bytes_to_4bit(src_8bit: bytes) -> bytearray:
    """Numbers of 4 bits that have a byte each, two in a byte."""
    return bytearray(core.packed(np.frombuffer(src_8bit, np.uint8)))


def normalize_axis(axis: int, rank: int) -> tuple[bool, int]:
    """Whether an axis is one of a tensor of this rank, and the axis counted from the front."""
    place = axis + rank if axis < 0 else axis
    return 0 <= place < rank, place


def smooth_distribution(p: Array, eps: float = 0.0001) -> Array | None:
    """A histogram in which no place is zero: `eps` is given to each that was, in equal shares off the others. None for
    one that has nothing in it."""
    zeros = p == 0
    count = int(zeros.sum())
    if count == p.size:
        return None
    share = eps * count / (p.size - count)
    if share >= 1:
        raise InvalidQuantization(f"eps={eps} is too much: {count} of {p.size} places are empty")
    return np.where(zeros, eps, p - share).astype(np.float32)


def tensor_proto_to_array(initializer: onnx.TensorProto) -> Array:
    """The numbers of a float32 or float16 initializer; a ValueError for other types."""
    if initializer.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        kind = type_to_name.get(initializer.data_type, str(initializer.data_type))
        raise InvalidQuantization(f"Only float type is supported. Weights {initializer.name} is {kind}")
    array: Array = onnx.numpy_helper.to_array(initializer)
    return array


def attribute_to_kwarg(attribute: onnx.AttributeProto) -> dict[str, Any]:
    """An attribute as a keyword argument of `onnx.helper.make_node`."""
    if attribute.type == onnx.AttributeProto.UNDEFINED:
        raise InvalidQuantization(f"attribute {attribute.name} has no type")
    return {attribute.name: onnx.helper.get_attribute_value(attribute)}


def find_by_name(item_name: str, item_list: Iterable[Any]) -> Any:
    """The first of some messages that has this name, or None."""
    return next((item for item in item_list if item.name == item_name), None)


def get_elem_index(elem_name: Any, elem_list: list[Any]) -> int:
    """The last place of an element in a list; -1 where it is not there."""
    return max((index for index, one in enumerate(elem_list) if one == elem_name), default=-1)


def get_mul_node(inputs: list[str], output: str, name: str) -> onnx.NodeProto:
    """A Mul."""
    return onnx.helper.make_node("Mul", inputs, [output], name)


def generate_identified_filename(filename: Path, identifier: str) -> Path:
    """A file's path with `identifier` behind its stem."""
    return filename.parent.joinpath(filename.stem + identifier + filename.suffix)


def model_has_external_data(model_path: Path) -> bool:
    """Whether any initializer of a model lies in another file."""
    model = onnx.load(str(model_path), load_external_data=False)
    return any(external_data_helper.uses_external_data(one) for one in model.graph.initializer)


def optimize_model(model_path: Path, opt_model_path: Path) -> None:
    """Write a model with its constants folded and its redundant nodes taken out."""
    from sardonyx.api.enums import GraphOptimizationLevel
    from sardonyx.api.options.session_options import SessionOptions
    from sardonyx.api.session import InferenceSession

    options = SessionOptions()
    options.optimized_model_filepath = str(opt_model_path)
    options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_BASIC
    InferenceSession(str(model_path), options, providers=["CPUExecutionProvider"])


def _mark(model: onnx.ModelProto, key: str) -> None:
    if all(entry.key != key for entry in model.metadata_props):
        model.metadata_props.add(key=key, value="onnxruntime.quant")


def _is_marked(model: onnx.ModelProto, key: str) -> bool:
    return any(entry.key == key and entry.value == "onnxruntime.quant" for entry in model.metadata_props)


def add_pre_process_metadata(model: onnx.ModelProto) -> None:
    """Note in a model that it went through `quant_pre_process`."""
    _mark(model, "onnx.quant.pre_process")


def model_has_pre_process_metadata(model: onnx.ModelProto) -> bool:
    """Whether a model went through `quant_pre_process`."""
    return _is_marked(model, "onnx.quant.pre_process")


def add_infer_metadata(model: onnx.ModelProto) -> None:
    """Note in a model that the types and shapes of its values are stated."""
    _mark(model, "onnx.infer")


def model_has_infer_metadata(model: onnx.ModelProto) -> bool:
    """Whether the types and shapes of a model's values are stated."""
    return _is_marked(model, "onnx.infer")


def get_opset_version(model: onnx.ModelProto) -> int:
    """The version of the standard operators that a model uses."""
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if len(versions) != 1:
        raise InvalidQuantization(f"The model imports the standard operators {len(versions)} times, not once")
    return int(versions[0])


def load_model_with_shape_infer(model_path: Path) -> onnx.ModelProto:
    """A model from a file, with the types and shapes of its values."""
    with tempfile.TemporaryDirectory() as folder:
        inferred = Path(folder) / "inferred.onnx"
        onnx.shape_inference.infer_shapes_path(str(model_path), str(inferred))
        model = onnx.load(str(inferred), load_external_data=False)
    external_data_helper.load_external_data_for_model(model, str(Path(model_path).parent))
    add_infer_metadata(model)
    return model


def save_and_reload_model_with_shape_infer(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model with the types and shapes of its values."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        onnx.save_model(copy, str(path), save_as_external_data=True)
        return load_model_with_shape_infer(path)


def add_quant_suffix(tensor_name: str) -> str:
    """The name of the QuantizeLinear of a tensor."""
    return f"{tensor_name}_QuantizeLinear"


def add_quant_input_suffix(tensor_name: str) -> str:
    """The name of what the QuantizeLinear of a tensor reads."""
    return f"{tensor_name}{QUANT_INPUT_SUFFIX}"


def add_quant_output_suffix(tensor_name: str) -> str:
    """The name of what the QuantizeLinear of a tensor gives."""
    return f"{tensor_name}_QuantizeLinear_Output"


def add_dequant_suffix(tensor_name: str) -> str:
    """The name of the DequantizeLinear of a tensor."""
    return f"{tensor_name}_DequantizeLinear"


def add_dequant_input_suffix(tensor_name: str) -> str:
    """The name of what the DequantizeLinear of a tensor reads."""
    return f"{tensor_name}_DequantizeLinear_Input"


def add_dequant_output_suffix(tensor_name: str) -> str:
    """The name of what the DequantizeLinear of a tensor gives."""
    return f"{tensor_name}{DEQUANT_OUTPUT_SUFFIX}"
