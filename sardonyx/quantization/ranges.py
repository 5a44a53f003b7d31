"""The calibrated ranges of activations, and how these are stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import nodes_of
from sardonyx.quantization.job import Job
from sardonyx.quantization.masks import masked
from sardonyx.quantization.quant_utils import ir_type
from sardonyx.quantization.quantized_numbers import (
    FLOAT8,
    Parameters,
    float8_parameters,
    narrow_dtype,
    restricted,
    scale_and_zero_point,
    type_range,
)
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.signal import signal_to_noise


@dataclass(frozen=True)
class Range:
    """A range that need not be calibrated."""

    low: float
    high: float

    @property
    def range_value(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def avg_std(self) -> tuple[float, float]:
        """The mean and the standard deviation of numbers that are spread evenly."""
        return (self.low + self.high) / 2, (self.high - self.low) / math.sqrt(12)


class Ranges:
    """What is known of the activations of a job, by the names of values: TensorData and overrides."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._known: dict[str, Any] = dict(job.ranges or {})
        self.left: set[str] = set()  # the values that stay float whatever is known of them
        if not job.options.ort_compatible:
            self._leave_masks()
            self._leave_weak_signals()
        self._made: dict[tuple[str, ir.DataType | None, np.dtype[Any] | None, bool], Parameters] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._known or self.job.overrides.overrides_scale_zp(name) or self._given(name) is not None

    def _given(self, name: str) -> Range | None:
        """The range that the overrides give, where they give both ends."""
        given = self.job.overrides.get_per_tensor_overrides(name, {}) or {}
        low, high = (given.get(key) for key in _ENDS)
        return None if low is None or high is None else Range(float(low), float(high))

    def _leave_masks(self) -> None:
        """Let masks of attention and infinite values stay float, but for those whose parameters the caller gave."""
        masks = {name for name in masked(self.job.graph, self._known) if not self.job.overrides.get(name)}
        self._leave(sorted(masks), "masks of attention, which 8 bits cannot beside scores")
        infinite = {name for name in self._known if self.is_infinite(name) and not self.job.overrides.get(name)}
        self._leave(sorted(infinite), "infinite numbers, for which there is no scale")

    def _leave_weak_signals(self) -> None:
        """Let tensors stay float that would be little but noise, but for those whose parameters the caller gave.

        Ranges tell how strong a signal is only where calibration says so. What a Relu or Clip alone reads is stored in
        the range of its result, so its own does not matter.
        """
        least = self.job.options.minimum_signal_to_noise
        if not least or self.job.activation_type not in _ROUNDED:
            return
        clamped = {
            node.inputs[0].name
            for node in nodes_of(self.job.graph)
            if node.op_type in ("Relu", "Clip") and node.inputs[0] is not None and len(node.inputs[0].uses()) == 1
        }
        names = []
        for name, known in self._known.items():
            if name in clamped or self.job.overrides.get(name):
                continue
            try:
                found = signal_to_noise(known, self._parameters(name, None, None, False))
            except (InvalidQuantization, TypeError, ValueError, AttributeError):
                continue  # a range that whoever reads it refuses
            if found is not None and found < least:
                names.append(name)
        bits = self.job.activation_type.bitwidth
        self._leave(names, f"a signal that {bits} bits keep less than {least:g} decibels above noise")

    def _leave(self, names: Sequence[str], what: str) -> None:
        self.left.update(names)
        for name in names:
            del self._known[name]
        if names:
            shown = f"{', '.join(names[:3])}{f' and {len(names) - 3} others' if len(names) > 3 else ''}"
            verb = "holds" if len(names) == 1 else "hold"
            self.job.report.note(f"{shown} {verb} {what}: {'it stays' if len(names) == 1 else 'they stay'} float")

    def bound(self, name: str, low: float, high: float) -> None:
        """Give a value a range that its operator has."""
        self._known[name] = Range(low, high)

    def is_infinite(self, name: str) -> bool:
        """Whether a value has infinite numbers, such as those of a mask, for which there is no scale."""
        known = self._known.get(name)
        ends = getattr(known, "range_value", ())
        return any(bool(np.isinf(end).any()) for end in ends) and not self.job.overrides.overrides_scale_zp(name)

    def take(self, name: str, other: str) -> None:
        """Give a value the range of another one, where that has one."""
        if other in self._known:
            self._known[name] = self._known[other]

    def parameters(
        self,
        name: str,
        dtype: ir.DataType | None = None,
        kind: np.dtype[Any] | None = None,
        converted: bool = False,
    ) -> Parameters | None:
        """How an activation is stored: as `dtype`, by default as the overrides or the job say, with a scale of the type
        `kind`, by default that of the calibrated numbers; None where nothing is known of it. `converted` asks for what
        the overrides say of the type that it is converted to.

        `InvalidQuantization` for a range that is none.
        """
        key = (name, dtype, kind, converted)
        if key not in self._made and name in self:
            self._made[key] = self._parameters(*key)
        return self._made.get(key)

    def _parameters(
        self, name: str, dtype: ir.DataType | None, kind: np.dtype[Any] | None, converted: bool
    ) -> Parameters:
        job, options = self.job, self.job.options
        given = job.overrides.get_per_tensor_overrides(name, {}) or {}
        if converted:
            given = given["convert"]
        if dtype is None:
            dtype = ir_type(given["quant_type"]) if "quant_type" in given else job.activation_type
        if "scale" in given and "zero_point" in given:
            scale = np.asarray(given["scale"])
            scale = scale.astype(kind or (scale.dtype if scale.dtype == np.float16 else np.float32)).reshape(())
            return Parameters(dtype, scale, np.asarray(given["zero_point"]).astype(narrow_dtype(dtype)).reshape(()))
        known: Any = self._known[name] if name in self._known else self._given(name)
        if dtype in FLOAT8:
            try:
                deviation = np.asarray(known.avg_std[1])
            except AttributeError as error:
                raise InvalidQuantization(
                    f"'{name}' is quantised to {dtype.name}, whose scale follows from a standard deviation, and only "
                    "its range is known. Give calibrate_method=CalibrationMethod.Distribution"
                ) from error
            return Parameters(dtype, *float8_parameters(deviation.astype(kind or deviation.dtype), dtype))
        ends = [np.asarray(end).reshape(()) for end in known.range_value]
        low, high = (ends[i] if given.get(key) is None else np.asarray(given[key]) for i, key in enumerate(_ENDS))
        kind = np.dtype(kind or (ends[1].dtype if ends[1].dtype in (np.float16, np.float32) else np.float32))
        low, high = low.astype(kind), high.astype(kind)
        if not (np.isfinite(low) and np.isfinite(high)) or low > high:
            raise InvalidQuantization(
                f"The calibrated range of '{name}' is {low} to {high}: calibrate with data that give finite numbers, "
                "or exclude the nodes that read and make it"
            )
        symmetric = given.get("symmetric", options.activation_symmetric)
        reduced = given.get("reduce_range", False)
        if options.activation_restricted_asymmetric and dtype == ir.DataType.UINT8 and not symmetric:
            least, largest = type_range(dtype, reduced=reduced)
            scale, zero_point = restricted(
                float(low), float(high), least, largest, kind, minimum_range=options.minimum_real_range
            )
            return Parameters(dtype, scale, zero_point.astype(narrow_dtype(dtype)))
        scale, zero_point = scale_and_zero_point(
            low,
            high,
            dtype,
            symmetric=symmetric,
            reduced=reduced,
            minimum_range=options.minimum_real_range,
            ort_compatible=options.ort_compatible,
        )
        return Parameters(dtype, scale, zero_point)


_ENDS = ("rmin", "rmax")
# Types whose steps are to hold a signal; whoever asks for fewer bits knows that they cannot.
_ROUNDED = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16})
