"""Ranges that are the extremes of tensors, of all samples or on average."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.quantization.calibration import tensors
from sardonyx.quantization.calibration.base import Array, CalibraterBase
from sardonyx.quantization.calibration.method import CalibrationMethod
from sardonyx.quantization.calibration.moments import Moments, nodes_of
from sardonyx.quantization.calibration.ranges import TensorData, TensorsData
from sardonyx.quantization.calibration.tensors import Derived
from sardonyx.quantization.refusal import InvalidQuantization

_CLAMPS = frozenset({"Relu", "Clip"})
_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.float32), 10: np.dtype(np.float16)}


class MinMaxCalibrater(CalibraterBase):
    """The smallest and the largest element of each tensor; the model itself computes them.

    With `moving_average`, the extremes of the samples of one `collect_data` are averaged, and a later one moves the
    result by `averaging_constant` of the difference. `max_intermediate_outputs` bounded what onnxruntime's calibrator
    held in memory; here a few numbers of each tensor are held, whatever it says.

    Means and standard deviations are those of all samples. The results of Relu and Clip have none: their range follows
    from that of their input, and the exact zeros among them are no signal and get no noise.
    """

    def __init__(
        self,
        model_path: str | Path,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        moving_average: bool = False,
        averaging_constant: float = 0.01,
        max_intermediate_outputs: int | None = None,
        per_channel: bool = False,
    ) -> None:
        """Options as for `CalibraterBase`. `errors.InvalidArgument` for an `averaging_constant` outside of 0 to 1."""
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            symmetric=symmetric,
            use_external_data_format=use_external_data_format,
            per_channel=per_channel,
        )
        if moving_average and not 0 <= averaging_constant <= 1:
            raise InvalidQuantization(f"averaging_constant is {averaging_constant}: give a number from 0 to 1")
        self.moving_average = moving_average
        self.averaging_constant = averaging_constant
        self.max_intermediate_outputs = max_intermediate_outputs
        self.intermediate_outputs: list[Any] = []
        self.calibrate_tensors_range: TensorsData | None = None
        self._measured: list[str] = []
        self._derived: dict[str, Derived] = {}
        self._makers = {name: node.op_type for node in self.model.graph.node for name in node.output}
        self._added_up: list[str] = []
        self.clear_collected_data()

    def augment_graph(self) -> None:
        """Write the model with the extremes of its tensors as outputs."""
        chosen, _ = self.select_tensors_to_calibrate(self.model)
        every = [name for name in tensors.calibrated(self.model.graph, None) if name in chosen]
        self._derived = tensors.derived(self.model, chosen, self.per_channel)
        if self.moving_average:  # the average of what was clipped is not the average, clipped
            self._derived = {name: one for name, one in self._derived.items() if not one.clips}
        self._measured = [name for name in every if name not in self._derived]
        nodes, outputs = self.extremes(self._measured, self.per_channel)
        if not self.per_channel and not self.ort_compatible:
            infos = tensors.infos_of(self.model.graph)
            self._added_up = [name for name in self._measured if self._makers.get(name) not in _CLAMPS]
            for name in self._added_up:
                more, shown = nodes_of(name, infos[name])
                nodes[name] += more
                outputs += shown
        self.write_augmented(nodes, outputs)
        self.clear_collected_data()

    def clear_collected_data(self) -> None:
        """Forget the statistics."""
        self._samples = 0
        self._sizes: Array | None = None  # the number of channels of each measured tensor
        self._low: Array | None = None  # of all of them, one after the other; the average's where that is asked for
        self._high: Array | None = None
        self._pending: Array | None = None  # how many extremes are in the sums, which are no part of the result yet
        self._low_sum: Array | None = None
        self._high_sum: Array | None = None
        self._moments = Moments(self._added_up)

    def collect_sample(self, outputs: Mapping[str, Array]) -> None:
        """Take the extremes of one sample into the statistics."""
        lows = [outputs[f"{name}_ReduceMin"].reshape(-1) for name in self._measured]
        highs = [outputs[f"{name}_ReduceMax"].reshape(-1) for name in self._measured]
        sizes = np.array([one.size for one in lows])
        if self._sizes is None:
            self._sizes = sizes
        elif not np.array_equal(sizes, self._sizes):
            self._refuse_sizes(sizes)
        low = np.concatenate(lows, dtype=np.float64) if lows else np.zeros(0)
        high = np.concatenate(highs, dtype=np.float64) if highs else np.zeros(0)
        has_elements = ~((low == np.inf) & (high == -np.inf))
        wrong = has_elements & ~(np.isfinite(low) & np.isfinite(high))
        for place in np.flatnonzero(wrong):
            tensor = self._tensor_at(int(place))
            if not self.is_meant(tensor, low[place], high[place]):
                raise self.non_finite(tensor)
        if self.moving_average:
            self._add(low, high, has_elements)
        else:
            self._low = low if self._low is None else np.minimum(self._low, low)
            self._high = high if self._high is None else np.maximum(self._high, high)
        self._moments.add(outputs)

    def _tensor_at(self, place: int) -> str:
        assert self._sizes is not None
        return self._measured[int(np.searchsorted(np.cumsum(self._sizes), place, side="right"))]

    def _refuse_sizes(self, sizes: Array) -> None:
        assert self._sizes is not None
        index = int(np.flatnonzero(sizes != self._sizes)[0])
        raise InvalidQuantization(
            f"Calibration sample {self._samples}: tensor {self._measured[index]!r} has {sizes[index]} channels (axis "
            f"1), and had {self._sizes[index]} before. Ranges per channel need a number of channels that stays: pad "
            "the samples to one length, or calibrate without per_channel"
        )

    def _add(self, low: Array, high: Array, has_elements: Array) -> None:
        """Add the extremes of a sample, of those tensors that have elements, to the sums."""
        if self._pending is None or self._low_sum is None or self._high_sum is None:
            self._pending, self._low_sum, self._high_sum = (
                np.zeros(low.shape, int),
                np.zeros_like(low),
                np.zeros_like(low),
            )
        self._low_sum += np.where(has_elements, low, 0)
        self._high_sum += np.where(has_elements, high, 0)
        self._pending += has_elements

    def end_of_collection(self) -> None:
        """Move the averages by those of the samples since the last time."""
        if self._pending is None or self._low_sum is None or self._high_sum is None:
            return
        count = np.maximum(self._pending, 1)
        low = np.where(self._pending > 0, self._low_sum / count, np.inf)
        high = np.where(self._pending > 0, self._high_sum / count, -np.inf)
        if self._low is not None and self._high is not None:
            low, high = self._moved(self._low, low, np.inf), self._moved(self._high, high, -np.inf)
        self._low, self._high = low, high
        self._pending, self._low_sum, self._high_sum = None, None, None

    def _moved(self, old: Array, new: Array, empty: float) -> Array:
        """The averages, moved by new ones; `empty` is that of tensors that had no elements, and -`empty` stays."""
        both = np.isfinite(old) & np.isfinite(new)
        step = np.where(both, new, 0) - np.where(both, old, 0)
        moved = np.where(old == empty, new, old) + self.averaging_constant * step
        return np.where(new == -empty, new, moved)

    def compute_data(self) -> TensorsData | None:
        """The ranges; None before any sample."""
        if self._low is None or self._high is None or self._sizes is None:
            return None
        infos = tensors.infos_of(self.model.graph)
        ends = np.cumsum(self._sizes)
        ranges: dict[str, tuple[Array, Array]] = {}
        for name, start, end in zip(self._measured, ends - self._sizes, ends, strict=True):
            ranges[name] = self._low[start:end], self._high[start:end]
        moments = {name: self._moments.mean_and_deviation(name) for name in self._measured}
        for name, source in self._derived.items():
            moments[name] = None if source.clips else moments[source.source]
            ranges[name] = tuple(np.clip(end, source.low, source.high) for end in ranges[source.source])  # type: ignore[assignment]
        found: dict[str, TensorData] = {}
        for name in sorted(ranges, key={name: n for n, name in enumerate(self._order())}.__getitem__):
            dtype = _DTYPES[tensors.element_type(infos[name])]
            low, high = ranges[name]
            empty = low > high
            low, high = np.where(empty, 0.0, low), np.where(empty, 0.0, high)
            if self.symmetric:
                high = np.maximum(np.abs(low), np.abs(high))
                low = -high
            known = moments[name]
            more = {} if known is None else {"avg": dtype.type(known[0]), "std": dtype.type(known[1])}
            found[name] = TensorData(lowest=low.astype(dtype), highest=high.astype(dtype), **more)
        self.calibrate_tensors_range = TensorsData(CalibrationMethod.MinMax, found)
        return self.calibrate_tensors_range

    def _order(self) -> list[str]:
        """The tensors in the order in which the model computes them."""
        chosen = {*self._measured, *self._derived}
        return [name for name in tensors.calibrated(self.model.graph, None) if name in chosen]

    def merge_range(self, old_range: TensorsData | None, new_range: TensorsData) -> TensorsData:
        """Two results of calibrators of this model and these options as one."""
        if old_range is None:
            return new_range
        merged: dict[str, TensorData] = {}
        for name, old in old_range.items():
            (low, high), (new_low, new_high) = old.range_value, new_range[name].range_value
            if self.moving_average:
                low = low + self.averaging_constant * (new_low - low)
                high = high + self.averaging_constant * (new_high - high)
            else:
                low, high = np.minimum(low, new_low), np.maximum(high, new_high)
            merged[name] = TensorData(lowest=low, highest=high)
        return TensorsData(CalibrationMethod.MinMax, merged)

    def state_options(self) -> tuple[object, ...]:
        """The options on which the statistics depend, and what there is of them."""
        return *super().state_options(), self.moving_average, self.averaging_constant, "moments"

    def state_arrays(self) -> dict[str, Array]:
        """The extremes, the sums and their number, and the moments."""
        held = {
            "sizes": self._sizes,
            "low": self._low,
            "high": self._high,
            "pending": self._pending,
            "low_sum": self._low_sum,
            "high_sum": self._high_sum,
            "moments": self._moments.sums,
        }
        return {name: one for name, one in held.items() if one is not None}

    def restore_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Take over what `state_arrays` gave."""
        self._sizes, self._low, self._high = arrays.get("sizes"), arrays.get("low"), arrays.get("high")
        self._low_sum, self._high_sum = arrays.get("low_sum"), arrays.get("high_sum")
        self._moments.sums = arrays["moments"]
        self._pending = arrays.get("pending")
