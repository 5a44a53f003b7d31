"""The configurations of weight-only quantization, one for each method, under the names of onnxruntime."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from sardonyx import errors
from sardonyx.quantization.quant_utils import QuantFormat, checked_format
from sardonyx.quantization.refusal import InvalidQuantization

OPERATORS = ("MatMul", "Gather")
BITS = (2, 4, 8)
_AXES = {"MatMul": 0, "Gather": 1}

Axes = Iterable[tuple[str, int]] | Mapping[str, int]


class WeightOnlyQuantConfig:
    """What all methods share: the operators, the axis of blocks for each of them, and the form of the result.

    `customized_weight_config` gives single nodes their own ``{"bits": 8}``, ``{"group_size": 32}`` or
    ``{"scheme": "sym"}``, by their names.
    """

    method: ClassVar[str] = "RTN"

    def __init__(
        self,
        algorithm: str,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
        quant_axes: Axes | None = None,
        customized_weight_config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.quant_format = checked_format(quant_format)
        self.op_types_given = op_types_to_quantize is not None
        self.op_types_to_quantize = checked_operators(op_types_to_quantize)
        self.axes_given = quant_axes is not None
        self.quant_axes = checked_axes(quant_axes)
        self.customized_weight_config = customized_weight_config


class DefaultWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Rounding to the nearest over the range of each block of `block_size` weights."""

    def __init__(
        self,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
        quant_axes: Axes | None = None,
        bits: int = 4,
        channel_wised_quantize: bool = False,
    ) -> None:
        super().__init__("DEFAULT", quant_format, op_types_to_quantize, quant_axes)
        self.block_size = block_size
        self.is_symmetric = is_symmetric
        self.bits = checked_bits(bits)
        self.accuracy_level = accuracy_level
        self.channel_wised_quantize = channel_wised_quantize


class RTNWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Rounding to the nearest as Intel Neural Compressor has it; `ratios` shrink the ranges of weights, by name."""

    def __init__(
        self,
        ratios: Mapping[str, float] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
        customized_weight_config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__("RTN", quant_format, op_types_to_quantize, customized_weight_config=customized_weight_config)
        self.ratios = dict(ratios or {})


class KQuantWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """A search for the scale and zero point of each block, as in llama.cpp's k-quants."""

    def __init__(
        self,
        ratios: Mapping[str, float] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
        customized_weight_config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            "k_quant", quant_format, op_types_to_quantize, customized_weight_config=customized_weight_config
        )
        self.ratios = dict(ratios or {})


class GPTQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """GPTQ with the activations that calibration data cause.

    `percdamp` is added to the diagonal of their second moment, as a part of its mean; `block_size` inputs are visited
    before the others are brought up to date; `actorder` visits the most active ones first; `mse` searches ranges;
    without `perchannel` all columns share the parameters of a block.
    """

    def __init__(
        self,
        calibration_data_reader: Any = None,
        percdamp: float = 0.01,
        block_size: int = 128,
        actorder: bool = False,
        mse: bool = False,
        perchannel: bool = True,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
    ) -> None:
        super().__init__("GPTQ", quant_format, op_types_to_quantize)
        self.calibration_data_reader = calibration_data_reader
        self.percdamp = percdamp
        self.block_size = block_size
        self.actorder = actorder
        self.mse = mse
        self.perchannel = perchannel


class HQQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Half-quadratic quantisation; blocks of a weight lie along its rows, which `axis` 1 stands for."""

    def __init__(
        self,
        block_size: int = 128,
        bits: int = 4,
        axis: int = 1,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
        quant_axes: Axes | None = None,
    ) -> None:
        super().__init__("HQQ", quant_format, op_types_to_quantize, quant_axes)
        self.block_size = block_size
        self.bits = checked_bits(bits)
        if axis != 1:
            raise InvalidQuantization(
                f"HQQWeightOnlyQuantConfig: axis must be 1, not {axis}: products take blocks along the rows of a weight"
            )
        self.axis = axis


class NVAWQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """AWQ of NVIDIA's TensorRT Model Optimizer, which is not built here: `errors.NotImplemented`."""

    def __init__(
        self,
        tokenizer_dir: str,
        dataset_name: str = "cnn",
        cache_dir: str = "./cache",
        calibration_method: str = "awq_lite",
    ) -> None:
        raise errors.NotImplemented(
            "NVAWQWeightOnlyQuantConfig needs the package nvidia-modelopt, a tokenizer and a data set from the "
            "network, and has no counterpart here: take GPTQWeightOnlyQuantConfig, to which you pass calibration data"
        )


def checked_bits(bits: int) -> int:
    if isinstance(bits, bool) or bits not in BITS:
        raise InvalidQuantization(f"bits must be 2, 4 or 8, not {bits!r}")
    return int(bits)


def checked_block(block_size: int, what: str = "block_size") -> int:
    if isinstance(block_size, bool) or not isinstance(block_size, numbers.Integral) or block_size < 1:
        raise InvalidQuantization(f"{what} must be a positive whole number, not {block_size!r}")
    return int(block_size)


def checked_operators(op_types: Sequence[str] | None) -> set[str]:
    """The operators that are quantised; MatMul where nothing is said."""
    found = {"MatMul"} if op_types is None else {op_types} if isinstance(op_types, str) else set(op_types)
    if unknown := sorted(found - set(OPERATORS)):
        raise InvalidQuantization(
            f"op_types_to_quantize: weights of {', '.join(unknown)} cannot be quantised alone; "
            f"{' and '.join(OPERATORS)} are supported"
        )
    return found


def checked_axes(axes: Axes | None) -> dict[str, int]:
    """The axis along which the blocks of each operator's weights lie."""
    given = dict(axes or ())
    if unknown := sorted(set(given) - set(OPERATORS)):
        raise InvalidQuantization(f"quant_axes: {', '.join(unknown)} is none of {', '.join(OPERATORS)}")
    if given.get("MatMul", 0) not in (0, -2):
        raise InvalidQuantization(
            f"quant_axes: the blocks of a MatMul's weight lie along axis 0, over which it sums, not {given['MatMul']}"
        )
    return {**_AXES, **given}
