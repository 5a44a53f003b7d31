"""Histograms of many tensors, and the ranges that follow from them by each method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from sardonyx.quantization.calibration.distribution import SCENARIOS, mean_and_deviation
from sardonyx.quantization.calibration.entropy import entropy_range
from sardonyx.quantization.calibration.histograms import Histogram
from sardonyx.quantization.calibration.known_tool import KnownTool
from sardonyx.quantization.calibration.percentile import percentile_range
from sardonyx.quantization.calibration.ranges import TensorData
from sardonyx.quantization.refusal import InvalidQuantization

Array = np.ndarray[Any, Any]

METHODS = ("entropy", "percentile", "distribution")
# The least number of bins: of any histogram, and for each level to which entropy rounds.
_LEAST_BINS = 4096
_BINS_PER_LEVEL = 16
MOST_BINS = 1 << 20  # each activation has 8 bytes for each of up to twice as many
MOST_LEVELS = MOST_BINS // _BINS_PER_LEVEL


class HistogramCollector:
    """Counts the values of tensors, float32 or float16, in bounded memory.

    `num_bins` is the least number of bins into which the range of a tensor is divided in the end; there are at most
    twice as many, as their width is a power of two. Entropy takes 16 for each of its levels (`num_quantized_bins`) at
    least: with as many bins as levels there would be nothing to choose from.

    With `ort_compatible`, tensors are kept, and `num_bins` is exact, for the numbers of onnxruntime 1.31.
    """

    def __init__(
        self,
        method: str,
        symmetric: bool,
        num_bins: int,
        num_quantized_bins: int,
        percentile: float,
        scenario: str,
        *,
        ort_compatible: bool = False,
    ) -> None:
        """`errors.InvalidArgument`, also a ValueError, for an unknown method or scenario, or a number out of range."""
        if method not in METHODS:
            raise InvalidQuantization(f"There is no method {method!r} of calibration: choose {', '.join(METHODS)}")
        if scenario not in SCENARIOS:
            raise InvalidQuantization(f"There is no scenario {scenario!r}: choose {', '.join(SCENARIOS)}")
        if not 0 <= percentile <= 100:
            raise InvalidQuantization(f"percentile is {percentile}: give a number from 0 to 100")
        bins = (("num_bins", num_bins, MOST_BINS), ("num_quantized_bins", num_quantized_bins, MOST_LEVELS))
        for name, number, most in bins:
            if not 1 <= number <= most:
                raise InvalidQuantization(f"{name} is {number}: give 1 to {most}")
        if method == "distribution" and ort_compatible and num_bins < 512:
            raise InvalidQuantization(f"num_bins is {num_bins}: the method distribution takes 512 or more")
        self.method = method
        self.symmetric = symmetric
        self.num_bins = num_bins
        self.num_quantized_bins = num_quantized_bins
        self.percentile = percentile
        self.scenario = scenario
        self.ort_compatible = ort_compatible
        self.histograms: dict[str, Histogram] = {}
        self._known_tool = KnownTool(num_bins, method == "percentile" and symmetric)

    @property
    def _bins(self) -> int:
        """The least number of bins in the end."""
        if self.method == "entropy":
            return max(self.num_bins, _BINS_PER_LEVEL * self.num_quantized_bins)
        return self.num_bins

    def collect(self, name_to_arr: Mapping[str, Array | Iterable[Array]]) -> None:
        """Count the values of tensors, each one array or several of them.

        `errors.InvalidArgument` for NaN or infinity, with the tensor's name.
        """
        for name, arrays in name_to_arr.items():
            for array in [arrays] if isinstance(arrays, np.ndarray) else arrays:
                values = np.asarray(array)
                if values.size:
                    low, high = float(values.min()), float(values.max())
                    if not np.isfinite([low, high]).all():
                        raise InvalidQuantization(f"tensor {name!r} holds NaN or infinity, so it has no range")
                    self.add(name, values, low, high)

    def add(self, name: str, values: Array, low: float, high: float) -> None:
        """Count the values of a tensor, which lie between `low` and `high`, its extremes."""
        if self.ort_compatible:
            self._known_tool.keep(name, values)
        elif not (histogram := self._histogram(name)).is_infinite:
            histogram.add(values, low, high)

    def add_infinite(self, name: str, low: float, high: float) -> None:
        """Take note that a tensor has infinite values: it has this range, and no histogram."""
        histogram = self._histogram(name)
        histogram.low, histogram.high = min(histogram.low, low), max(histogram.high, high)

    def _histogram(self, name: str) -> Histogram:
        if name not in self.histograms:
            self.histograms[name] = Histogram(max(_LEAST_BINS, 2 * self._bins) * 2)
        return self.histograms[name]

    def names(self) -> Iterable[str]:
        """The tensors of which there are values."""
        return self._known_tool.kept if self.ort_compatible else self.histograms

    def get_histogram_dict(self) -> dict[str, tuple[Array, Array, Any, Any, Any]]:
        """Of each tensor: counts [bins], edges [bins + 1], the smallest and the largest value, and the largest absolute
        value."""
        if self.ort_compatible:
            return self._known_tool.histograms()
        found = {}
        for name, histogram in self.histograms.items():
            low, high = np.float32(histogram.low), np.float32(histogram.high)
            found[name] = histogram.counts, histogram.edges.astype(np.float32), low, high, max(abs(low), abs(high))
        return found

    def compute_collection_result(self) -> dict[str, TensorData]:
        """The data of each tensor by the method. `errors.InvalidArgument` where nothing was collected."""
        if not list(self.names()):
            raise InvalidQuantization("Nothing has been collected: call collect() first")
        if self.ort_compatible:
            return self._known_tool.results(self.method, self.num_quantized_bins, self.percentile, self.scenario)
        return {name: self.result(histogram) for name, histogram in self.histograms.items()}

    def result(self, histogram: Histogram, dtype: Any = np.float32) -> TensorData:
        """What the method finds in a histogram, as numbers of `dtype`; the range of infinite values."""
        if histogram.is_infinite:
            return TensorData(lowest=dtype(histogram.low), highest=dtype(histogram.high))
        if not histogram.total:
            histogram = Histogram(1)
            histogram.add(np.zeros(1, np.float32), 0.0, 0.0)
            histogram.counts[:] = 0
        shown = histogram.at_most(2 * self._bins)
        edges = shown.edges.astype(dtype)
        if self.method == "distribution":
            mean, deviation = mean_and_deviation(shown.counts, shown.edges, self.scenario) if shown.total else (0, 0)
            return TensorData(
                avg=np.array(mean, dtype),
                std=np.array(deviation, dtype),
                hist=shown.counts,
                hist_edges=edges,
                lowest=dtype(histogram.low),
                highest=dtype(histogram.high),
            )
        choose: Callable[[], tuple[float, float]] = {
            "entropy": lambda: entropy_range(shown, self.num_quantized_bins),
            "percentile": lambda: percentile_range(histogram, self.percentile, self.symmetric),
        }[self.method]
        low, high = choose()
        if self.symmetric and self.method == "entropy":
            low, high = -max(-low, high), max(-low, high)
        moments = {}
        if histogram.total:
            mean, deviation = mean_and_deviation(histogram.counts, histogram.edges, "same")
            moments = {"avg": dtype(mean), "std": dtype(deviation)}
        return TensorData(lowest=dtype(low), highest=dtype(high), hist=shown.counts, bins=edges, **moments)
