"""Resize and Upsample: sampling at other places, one axis after the other.

Every mode is a sum over taps: for each output position along an axis, a few input positions and their weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.program import Kernel
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import Dim, Fact, known, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator, template_unless_text
from sardonyx.ops.reduction import normalized_axes
from sardonyx.runtime.memory import memory

# What it takes to find the elements that a place of the result reads along an axis: for each of them.
_BYTES_PER_TAP = 80

# How far from a half a float32 coordinate may be and still count as a tie. Chosen because it leaves the fewest
# differences from onnxruntime over a sweep of sizes and scales, not derived.
TIE = 1e-6


@dataclass(frozen=True)
class AxisResize:
    """One axis of a resize: its lengths, the scale between them and the region of interest (0 to 1)."""

    length: int
    output: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    def coordinates(self, mode: str) -> Array:
        """The place in the input, as a real number, of every output position; ValueError for an unknown mode."""
        # In float32, as onnxruntime: 3.5 / 0.7 must be the tie that it is on paper.
        x = np.arange(self.output, dtype=np.float32)
        last = self.length - 1
        if mode == "half_pixel" or (mode == "pytorch_half_pixel" and self.output > 1):
            return (x + 0.5) / np.float32(self.scale) - 0.5
        if mode == "pytorch_half_pixel":
            return x * 0.0
        if mode == "half_pixel_symmetric":
            adjustment = np.float32(self.output) / (np.float32(self.scale) * np.float32(self.length))
            offset = np.float32(self.length / 2) * (np.float32(1) - adjustment)
            return offset + (x + 0.5) / np.float32(self.scale) - 0.5
        if mode == "align_corners":
            # The resized length is the real product, before it is rounded: ONNX's own tests say so.
            resized = self.scale * self.length
            return x * (last / (resized - 1)) if resized > 1 and self.output > 1 else x * 0.0
        if mode == "asymmetric":
            return x / np.float32(self.scale)
        if mode == "tf_half_pixel_for_nn":
            return (x + 0.5) / np.float32(self.scale)
        if mode == "tf_crop_and_resize":
            if self.output > 1:
                return self.start * last + x * ((self.end - self.start) * last / (self.output - 1))
            return x * 0.0 + 0.5 * (self.start + self.end) * last
        raise ValueError(f"unknown coordinate_transformation_mode '{mode}'")


def nearest(places: Array, mode: str, scale: float) -> Array:
    """Whole numbers near real places; `simple` is the rule before opset 11."""
    if mode == "round_prefer_floor":
        return np.ceil(places - 0.5 - TIE)
    if mode == "round_prefer_ceil":
        return np.floor(places + 0.5 + TIE)
    if mode == "floor":
        return np.floor(places)
    if mode == "ceil":
        return np.ceil(places)
    if mode == "simple":
        return np.ceil(places) if scale < 1 else np.floor(places)
    raise ValueError(f"unknown nearest_mode '{mode}'")


def linear(distance: Array) -> Array:
    """The weight of an element at that distance: a triangle of width 2."""
    return np.maximum(0.0, 1.0 - np.abs(distance))


def cubic(distance: Array, a: float) -> Array:
    """The convolution kernel of Keys, "Cubic Convolution Interpolation", 1981, equation (4), with coefficient a."""
    x = np.abs(distance)
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))


def taps(
    places: Array, kernel: Callable[[Array], Array], radius: int, shrink: float, length: int, exclude: bool
) -> tuple[Array, Array]:
    """Input positions and weights, (output, taps) each, of a kernel of that radius widened by 1 / `shrink`.

    Positions outside read the edge, or have no weight if `exclude`; the weights then sum to 1 again.
    """
    if not places.size:
        return np.zeros((0, 1), np.intp), np.zeros((0, 1))
    reach = math.floor(-radius / shrink) + 1
    offsets = np.arange(reach, 1 - reach + 1)
    positions = np.floor(places)[:, None] + offsets
    weights = kernel((positions - places[:, None]) * shrink)
    if exclude:
        weights = np.where((positions < 0) | (positions >= length), 0.0, weights)
    if exclude or shrink < 1:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(positions, 0, length - 1).astype(np.intp), weights


@dataclass(frozen=True)
class ResampleRule:
    """How places become elements: the attributes that every form of Resize has, or has fixed."""

    mode: str
    coordinates: str
    nearest_mode: str
    cubic_coeff_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation_value: float = 0.0

    @property
    def crops(self) -> bool:
        """Whether places may lie outside of the input, where the result is `extrapolation_value`."""
        return self.coordinates == "tf_crop_and_resize"

    def rounds(self, dtype: np.dtype[Any]) -> bool:
        """Whether results are rounded to the nearest of this type, halves away from zero, and not towards zero.

        onnxruntime does so with antialiasing alone, there after each axis.
        """
        return self.antialias and self.mode != "nearest" and dtype.kind in "iu"

    def keeps(self, resize: AxisResize) -> bool:
        """Whether an axis stays as it is."""
        return resize.scale == 1 and resize.output == resize.length and not self.crops

    def outside(self, resize: AxisResize) -> Array:
        """Which output positions lie outside of the input."""
        places = resize.coordinates(self.coordinates)
        return np.asarray((places < 0) | (places > resize.length - 1))

    def positions(self, resize: AxisResize) -> Array:
        """The input position that each output position reads, in mode `nearest`."""
        places = nearest(resize.coordinates(self.coordinates), self.nearest_mode, resize.scale)
        return np.clip(places, 0, resize.length - 1).astype(np.intp)

    def require_memory(self, plan: Sequence[AxisResize], itemsize: int) -> None:
        """`errors.Fail` where the result, or what is made for each line of it, does not fit into memory."""
        lines = sum(resize.output * self._taps_of(resize) for resize in plan if not self.keeps(resize))
        result = math.prod(resize.output for resize in plan) * itemsize
        memory.require_tables(int(min(_BYTES_PER_TAP * lines, 2.0**62)), "the places that a Resize reads", result)

    def _taps_of(self, resize: AxisResize) -> float:
        """How many taps a place of the result may have along an axis."""
        if self.mode == "nearest":
            return 1.0
        radius = 2 if self.mode == "cubic" else 1
        shrink = min(resize.scale, 1.0) if self.antialias else 1.0
        return 2.0 * radius / shrink if shrink > 0 else math.inf

    def taps(self, resize: AxisResize) -> tuple[Array, Array]:
        """Input positions and weights, (output, taps) each, in the other modes, without taps that weigh nothing."""
        if self.mode not in ("linear", "bilinear", "cubic"):
            raise ValueError(f"mode must be nearest, linear or cubic, not '{self.mode}'")
        shrink = min(resize.scale, 1.0) if self.antialias else 1.0
        wide = self.mode == "cubic"
        kernel = functools.partial(cubic, a=self.cubic_coeff_a) if wide else linear
        places = resize.coordinates(self.coordinates)
        positions, weights = taps(places, kernel, 2 if wide else 1, shrink, resize.length, self.exclude_outside)
        used = weights.any(axis=0)
        return positions[:, used], weights[:, used]


# From the input's shape and the other inputs' contents (None: absent) to what becomes of each axis.
Plan = Callable[..., Sequence[AxisResize]]


class Resampling(Operator):
    """What Resize and Upsample share: resampling the axes of a tensor."""

    antialias: int = 0
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"

    @property
    def rule(self) -> ResampleRule:
        return ResampleRule(
            self.mode,
            self.coordinate_transformation_mode,
            self.nearest_mode,
            self.cubic_coeff_a,
            bool(self.antialias),
            bool(self.exclude_outside),
            self.extrapolation_value,
        )

    def plan(self, shape: Sequence[int], *others: Array | None) -> Sequence[AxisResize]:
        """What becomes of each axis, given the inputs behind the first; ValueError where they contradict each other."""
        raise NotImplementedError

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {"rule": self.rule, "plan": self.plan, "known": self.deciding_inputs()}
        return template_unless_text("resize", parameters, self.run, inputs)

    def deciding_inputs(self) -> tuple[int, ...]:
        """The inputs that the plan depends on."""
        return (1,)

    def run(self, x: Array, *others: Array | None) -> Sequence[Value]:
        return (self.resample(x, self.plan(x.shape, *others)),)

    def resample(self, x: Array, plan: Sequence[AxisResize]) -> Array:
        """`x` with each axis resized as `plan` says."""
        rule = self.rule
        check_has_elements(x.shape, [resize.output for resize in plan])
        rule.require_memory(plan, x.dtype.itemsize)
        result = x if rule.mode == "nearest" else x.astype(_interpolated(x.dtype), copy=False)
        _require_stages(result, plan)
        outside: list[tuple[int, Array]] = []
        for axis, resize in enumerate(plan):
            if rule.keeps(resize):
                continue
            if rule.crops:
                outside.append((axis, rule.outside(resize)))
            result = _resampled(result, axis, rule, resize)
        for axis, where in outside:
            if where.any():
                result = result.copy() if np.may_share_memory(result, x) else result
                result[(slice(None),) * axis + (where,)] = rule.extrapolation_value
        if x.dtype.kind in "iu" and result.dtype != x.dtype:
            if rule.rounds(x.dtype):
                result = result + np.copysign(result.dtype.type(0.5), result)
            limits = np.iinfo(x.dtype)
            result = np.clip(result, limits.min, limits.max)
        result = result.astype(x.dtype, copy=False)
        return result.copy() if np.may_share_memory(result, x) else result


def _require_stages(x: Array, plan: Sequence[AxisResize]) -> None:
    """`errors.Fail` where what comes of `x` after one axis and another does not fit into memory."""
    shape, most, before = list(x.shape), 0, x.size
    for axis, resize in enumerate(plan):
        shape[axis] = resize.output
        after = math.prod(shape)
        most, before = max(most, before + 3 * after), after
    memory.require(most * x.itemsize, "the axes of a Resize")


def check_has_elements(shape: tuple[int, ...], output: Sequence[int]) -> None:
    """ValueError where something shall be made from nothing."""
    if 0 in shape and 0 not in output:
        raise ValueError(f"a tensor of the shape {shape} cannot be resized to {tuple(output)}: it has no elements")


def _resampled(x: Array, axis: int, rule: ResampleRule, resize: AxisResize) -> Array:
    if rule.mode == "nearest":
        return np.take(x, rule.positions(resize), axis=axis)
    positions, weights = rule.taps(resize)
    total = np.zeros((*x.shape[:axis], resize.output, *x.shape[axis + 1 :]), x.dtype)
    behind = (1,) * (x.ndim - axis - 1)
    for tap in range(positions.shape[1]):
        weight = weights[:, tap].astype(x.dtype)
        total += np.take(x, positions[:, tap], axis=axis) * weight.reshape(-1, *behind)
    return total


def _interpolated(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32) if dtype.kind in "iu" else working_dtype(dtype)


def scaled_length(length: int, scale: float) -> int:
    """floor(length * scale), the product rounded to float32 as shape inference does."""
    return math.floor(np.float32(length) * np.float32(scale))


def _scaled_shape(shape: Sequence[Dim], scales: Sequence[float]) -> tuple[Dim, ...]:
    result: list[Dim] = []
    for dim, scale in zip(shape, scales, strict=True):
        if isinstance(dim, int):
            result.append(scaled_length(dim, scale))
        elif scale == 1:
            result.append(dim)
        elif known(dim) and float(scale).is_integer():
            result.append(dims.multiply(dim, int(scale)))
        else:
            result.append(unknown_dim())
    return tuple(result)


def _scales_of(fact: Fact | None) -> list[float] | None:
    return None if fact is None or fact.constant is None else [float(item) for item in fact.constant.ravel()]


class ScaledUpsample(Resampling):
    """A resize by given scales alone: corner-aligned coordinates divided by the scale, the lower neighbour."""

    coordinate_transformation_mode = "asymmetric"
    nearest_mode = "simple"

    def scaled(self, shape: Sequence[int], scales: Sequence[float]) -> Sequence[AxisResize]:
        if len(scales) != len(shape) or min(scales, default=1) <= 0:
            raise ValueError(f"scales {list(scales)} must be {len(shape)} positive numbers, one for each dimension")
        return [AxisResize(n, scaled_length(n, s), float(s)) for n, s in zip(shape, scales, strict=True)]

    def inferred(self, x: Fact | None, scales: Sequence[float] | None) -> Sequence[Fact]:
        assert x is not None
        if x.shape is None or scales is None or len(scales) != len(x.shape):
            return [Fact(x.type, None if x.shape is None else tuple(unknown_dim() for _ in x.shape))]
        return [Fact(x.type, _scaled_shape(x.shape, scales))]


@operator("Upsample", since=7)
class OldUpsample(ScaledUpsample):
    """Upsample with the scales as an attribute."""

    scales: tuple[float, ...]

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return self.inferred(inputs[0], self.scales)

    def deciding_inputs(self) -> tuple[int, ...]:
        return ()

    def plan(self, shape: Sequence[int], *others: Array | None) -> Sequence[AxisResize]:
        return self.scaled(shape, self.scales)


@operator("Upsample", since=9)
@operator("Resize", since=10)
class Upsample(ScaledUpsample):
    """Upsample, and the first Resize, with the scales as an input."""

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return self.inferred(inputs[0], _scales_of(inputs[1]))

    def plan(self, shape: Sequence[int], *others: Array | None) -> Sequence[AxisResize]:
        (scales,) = others
        assert scales is not None
        return self.scaled(shape, [float(item) for item in scales.ravel()])


@operator("Resize", since=11)
class Resize(Resampling):
    """Resize to given scales or sizes, of all axes or of `axes`."""

    axes: tuple[int, ...] | None = None
    keep_aspect_ratio_policy: str = "stretch"

    def _axes(self, rank: int) -> tuple[int, ...]:
        return normalized_axes(self.axes, rank) if self.axes else tuple(range(rank))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, _, scales, sizes = (*inputs, None, None, None)[:4]
        assert x is not None
        if x.shape is None:
            return [Fact(x.type, None)]
        axes = self._axes(len(x.shape))
        shape = list(x.shape)
        factors = _scales_of(scales)
        if factors and len(factors) == len(axes):
            for axis, dim in zip(axes, _scaled_shape([shape[axis] for axis in axes], factors), strict=True):
                shape[axis] = dim
        elif sizes is not None and sizes.elements and self.keep_aspect_ratio_policy == "stretch":
            for axis, dim in zip(axes, sizes.elements, strict=True):
                shape[axis] = dim
        else:
            for axis in axes:
                shape[axis] = unknown_dim()
        return [Fact(x.type, tuple(shape))]

    def deciding_inputs(self) -> tuple[int, ...]:
        return (1, 2, 3) if self.rule.crops else (2, 3)

    def plan(self, shape: Sequence[int], *others: Array | None) -> Sequence[AxisResize]:
        roi, scales, sizes = (*others, None, None, None)[:3]
        axes = self._axes(len(shape))
        if (scales is None or scales.size == 0) == (sizes is None or sizes.size == 0):
            raise ValueError("Resize needs either scales or sizes")
        plan = [AxisResize(length, length, 1.0) for length in shape]
        region = [0.0] * len(axes) + [1.0] * len(axes)
        if roi is not None and roi.size and self.rule.crops:
            region = [float(item) for item in roi.ravel()]
        if len(region) != 2 * len(axes):
            raise ValueError(f"roi has {len(region)} numbers, expected {2 * len(axes)}")
        wanted = self._wanted([shape[axis] for axis in axes], scales, sizes)
        for index, (axis, (length, scale)) in enumerate(zip(axes, wanted, strict=True)):
            plan[axis] = AxisResize(shape[axis], length, scale, region[index], region[index + len(axes)])
        return plan

    def _wanted(self, lengths: Sequence[int], scales: Array | None, sizes: Array | None) -> list[tuple[int, float]]:
        """The output length and the scale of each axis that is resized."""
        if scales is not None and scales.size:
            factors = [float(item) for item in scales.ravel()]
            if len(factors) != len(lengths) or min(factors) <= 0:
                raise ValueError(f"scales {factors} must be {len(lengths)} positive numbers, one for each axis")
            return [(scaled_length(n, s), s) for n, s in zip(lengths, factors, strict=True)]
        assert sizes is not None
        targets = [int(item) for item in sizes.ravel()]
        if len(targets) != len(lengths):
            raise ValueError(f"sizes {targets} must have {len(lengths)} numbers, one for each axis")
        ratios = [target / max(n, 1) for target, n in zip(targets, lengths, strict=True)]
        if self.keep_aspect_ratio_policy == "stretch":
            return list(zip(targets, ratios, strict=True))
        if self.keep_aspect_ratio_policy not in ("not_larger", "not_smaller"):
            raise ValueError(f"unknown keep_aspect_ratio_policy '{self.keep_aspect_ratio_policy}'")
        ratio = min(ratios) if self.keep_aspect_ratio_policy == "not_larger" else max(ratios)
        return [(math.floor(ratio * n + 0.5), ratio) for n in lengths]
