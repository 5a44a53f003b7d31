"""Constants of a model as they are stored quantised: each once in each form, whoever reads it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.quantization.job import Job
from sardonyx.quantization.quant_utils import ir_type
from sardonyx.quantization.quantized_numbers import Parameters, narrow_dtype, new_workers, parameters_of, quantize
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.runtime.memory.mapped_pages import release_pages

Array = np.ndarray[Any, Any]

# A bias of int32 is kept this far from the ends of its type, for what rounding adds.
_MARGIN = 1.0001
_BIAS_RANGE = float((1 << 32) - 2)
_LARGEST_BIAS = (1 << 31) - 1


@dataclass(frozen=True)
class QuantizedTensor:
    """A value as it is stored, with the values of its scale and its zero point; `parameters` is None for one whose
    scale is found in each run."""

    values: ir.Value
    scale: ir.Value
    zero_point: ir.Value
    dtype: ir.DataType
    parameters: Parameters | None = None


class Weights:
    """Quantises the constants of a job.

    A float constant goes when nothing reads it any more: callers `release` what they read no longer.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._workers = new_workers()
        self._stored: dict[tuple[Any, ...], QuantizedTensor] = {}

    def parameters(
        self,
        value: ir.Value,
        dtype: ir.DataType,
        axis: int | None = None,
        block_size: int = 0,
        *,
        symmetric: bool | None = None,
        reduced: bool | None = None,
        kind: np.dtype[Any] | None = None,
    ) -> Parameters:
        """How a constant is stored: with one scale, one for each place along `axis`, or in blocks along it.

        What the overrides of its tensor say counts more than the arguments. `symmetric` and `reduced` are by default
        what the job says of weights, `kind` the type of the scales.
        """
        array = self._array(value)
        name = value.name or ""
        options = self.job.options
        if axis is None:
            given = [self.job.overrides.get_per_tensor_overrides(name, {}) or {}]
        else:
            axis %= array.ndim
            given = self.job.overrides.get_per_channel_overrides(name, [{"axis": axis}]) or []
            self._check_axis(name, given, axis, array)
        first = given[0] if given else {}
        if "quant_type" in first:
            dtype = ir_type(first["quant_type"])
        if symmetric is None:
            symmetric = options.is_weight_symmetric(dtype.is_signed())
        if reduced is None:
            reduced = self.job.reduce_range
        symmetric, reduced = first.get("symmetric", symmetric), first.get("reduce_range", reduced)
        kind = array.dtype if kind is None else kind
        if "scale" in first and "zero_point" in first:
            if not np.isfinite(array).all():
                raise InvalidQuantization(_not_finite(name, "it has numbers that are not finite (NaN or infinite)"))
            scales, zero_points = ([np.asarray(one[key]).item() for one in given] for key in ("scale", "zero_point"))
            shape = () if axis is None else (array.shape[axis],)
            return Parameters(
                dtype,
                np.broadcast_to(np.asarray(scales if axis is not None else scales[0], kind), shape),
                np.broadcast_to(
                    np.asarray(zero_points if axis is not None else zero_points[0]).astype(narrow_dtype(dtype)), shape
                ),
                axis,
            )
        low, high = (
            [one[key] for one in given] if all(one.get(key) is not None for one in given) else None
            for key in ("rmin", "rmax")
        )
        try:
            return parameters_of(
                array,
                dtype,
                symmetric=symmetric,
                reduced=reduced,
                axis=axis,
                block_size=block_size,
                minimum_range=options.minimum_real_range,
                low=low[0] if low and axis is None else low,
                high=high[0] if high and axis is None else high,
                kind=kind,
                ort_compatible=options.ort_compatible,
                workers=self._workers,
            )
        except InvalidQuantization as error:
            raise InvalidQuantization(_not_finite(name, error.message)) from None
        finally:
            release_pages(array)  # of weights that lie in a file, of which a large model has more than there is memory

    def _check_axis(self, name: str, given: list[dict[str, Any]], axis: int, array: Array) -> None:
        if given and given[0]["axis"] % array.ndim != axis:
            raise InvalidQuantization(
                f"TensorQuantOverrides of '{name}': 'axis' is {given[0]['axis']}, but the operator that reads it has "
                f"its channels along axis {axis}"
            )

    def quantized(
        self,
        value: ir.Value,
        dtype: ir.DataType,
        axis: int | None = None,
        block_size: int = 0,
        transposed: bool = False,
        *,
        parameters: Parameters | None = None,
        name: str | None = None,
    ) -> QuantizedTensor:
        """A constant as it is stored, made when it is first asked for in this form.

        `parameters` stand for the arguments before them, where the caller knows them. `transposed` stores the last two
        axes exchanged; the axis is that of the constant as it is. The names are those of `name`, or of the constant.
        """
        if parameters is None:
            parameters = self.parameters(value, dtype, axis, block_size)
        key = (value, transposed, *_key(parameters))
        found = self._stored.get(key)
        if found is None:
            found = self._stored[key] = self._store(value, parameters, transposed, name or value.name or "")
        return found

    def is_stored(self, value: ir.Value, parameters: Parameters) -> bool:
        """Whether a constant is stored like this already, not transposed."""
        return (value, False, *_key(parameters)) in self._stored

    def _store(self, value: ir.Value, parameters: Parameters, transposed: bool, name: str) -> QuantizedTensor:
        array = self._array(value)
        stored = quantize(array, parameters, workers=self._workers)
        release_pages(array)
        if transposed:
            stored = np.ascontiguousarray(np.swapaxes(stored, -1, -2))
        self.job.settle(value)
        scale, zero_point = self.scale_and_zero_point(name, parameters)
        values = self.job.initializer(f"{name}_quantized", stored, parameters.dtype)
        return QuantizedTensor(values, scale, zero_point, parameters.dtype, parameters)

    def scale_and_zero_point(self, name: str, parameters: Parameters) -> tuple[ir.Value, ir.Value]:
        """New constants of the scale and the zero point of the tensor called `name`."""
        return (
            self.job.initializer(f"{name}_scale", np.array(parameters.scale)),
            self.job.initializer(f"{name}_zero_point", np.array(parameters.zero_point), parameters.dtype),
        )

    def raised(
        self, value: ir.Value, parameters: Parameters, bias: ir.Value, input_scale: float, factor: float = 1.0
    ) -> Parameters:
        """The parameters of a weight, its scale so large that `bias` / (`input_scale` * scale * `factor`) fits int32.

        `bias` is of numbers for each channel, whose axis is the last, or broadcasts to that; `factor` is not 0. A scale
        that is raised is noted in the report.
        """
        numbers = np.abs(self._array(bias).astype(np.float64) / factor)
        scale = np.asarray(parameters.scale)
        if scale.ndim and numbers.ndim:
            if numbers.size % scale.size:
                numbers = np.broadcast_to(numbers, np.broadcast_shapes(numbers.shape, scale.shape))
            largest = numbers.reshape(-1, scale.shape[0]).max(0)
        else:
            largest = np.broadcast_to(numbers.max(initial=0.0), scale.shape)
        needed = _MARGIN * 2 * largest / _BIAS_RANGE
        reached = scale.astype(np.float64) * float(input_scale)
        short = (reached < needed) & (reached > 0)
        if not short.any():
            return parameters
        compatible = self.job.options.ort_compatible
        if compatible and (not parameters.dtype.is_signed() or np.asarray(parameters.zero_point).any()):
            return parameters
        ratio = needed / np.where(reached > 0, reached, 1)
        raised = np.where(short, scale.astype(np.float64) * ratio, scale).astype(scale.dtype)
        self.job.report.note(
            f"The scale of weight '{value.name}' is raised by up to {float(ratio[short].max()):.3g}, so that bias "
            f"'{bias.name}' fits int32: its numbers are stored less finely"
        )
        return replace(parameters, scale=raised)

    def bias(
        self,
        value: ir.Value,
        input_scale: float,
        parameters: Parameters,
        factor: float = 1.0,
        *,
        multiplier: float = 1.0,
        name: str | None = None,
    ) -> QuantizedTensor:
        """`multiplier` * the bias as int32, of the scale `input_scale` * that of the weight's `parameters` * `factor`.

        Made anew for each pair of an input and a weight. Where the scales are of more places than the bias, it becomes
        as many. A number that int32 does not hold is cut off, and noted: see `raised`.
        """
        array = self._array(value)
        weight_scale = np.asarray(parameters.scale, np.float32)
        scale = np.asarray(np.float32(input_scale) * weight_scale * np.float32(factor)).astype(array.dtype)
        name = name or value.name or ""
        key = (value, "bias", scale.tobytes(), multiplier)
        found = self._stored.get(key)
        if found is not None:
            return found
        numbers = np.round(array.astype(np.float64) * multiplier / scale.astype(np.float64))
        if not (np.abs(numbers) <= _LARGEST_BIAS).all():
            self.job.report.note(
                f"Bias '{name}' is cut off where it exceeds int32: the scale of its input times that of its weight is "
                "too small"
            )
        stored = np.clip(numbers, -_LARGEST_BIAS - 1, _LARGEST_BIAS).astype(np.int32)
        zero_point = np.zeros(scale.shape, np.int32)
        kept = Parameters(ir.DataType.INT32, scale, zero_point, stored.ndim - 1 if scale.ndim else None)
        if self.job.options.ort_compatible:
            kept = replace(kept, scale=scale.reshape(-1))
        values = self.job.initializer(f"{name}_quantized", stored)
        constants = self.scale_and_zero_point(f"{name}_quantized", kept)
        found = self._stored[key] = QuantizedTensor(values, *constants, ir.DataType.INT32, kept)
        return found

    def _array(self, value: ir.Value) -> Array:
        array = self.job.constant(value)
        assert array is not None, f"{value.name} is no constant"
        return array


def _not_finite(name: str, reason: str) -> str:
    return f"Constant '{name}' cannot be quantised: {reason}. Exclude the nodes that read it, or mend it"


def _key(parameters: Parameters) -> tuple[Any, ...]:
    scale, zero_point = np.asarray(parameters.scale), np.asarray(parameters.zero_point)
    return (
        parameters.dtype,
        parameters.axis,
        parameters.block_size,
        scale.shape,
        scale.tobytes(),
        zero_point.tobytes(),
    )
