"""Calibrators that choose ranges by histograms of the activations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, ValueInfoProto

from sardonyx.quantization.calibration import tensors
from sardonyx.quantization.calibration.base import Array, CalibraterBase
from sardonyx.quantization.calibration.collector import HistogramCollector
from sardonyx.quantization.calibration.histograms import Histogram
from sardonyx.quantization.calibration.method import CalibrationMethod
from sardonyx.quantization.calibration.ranges import TensorData, TensorsData
from sardonyx.quantization.calibration.tensors import Derived
from sardonyx.quantization.refusal import InvalidQuantization

_METHODS = {
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
    "distribution": CalibrationMethod.Distribution,
}
_TYPES: dict[int, Any] = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}


class HistogramCalibrater(CalibraterBase):
    """Counts the values of each tensor, and lets a method choose the range: see `HistogramCollector`."""

    def __init__(
        self,
        model_path: str | Path,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 2048,
        percentile: float = 99.999,
        scenario: str = "same",
    ) -> None:
        """`method` is entropy, percentile or distribution, `percentile` a number from 0 to 100, `scenario` (of the
        method distribution) same or p3; `errors.InvalidArgument`, also a ValueError, for anything else."""
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            symmetric=symmetric,
            use_external_data_format=use_external_data_format,
        )
        self.method = method
        self.num_bins = num_bins
        self.num_quantized_bins = num_quantized_bins
        self.percentile = percentile
        self.scenario = scenario
        self.tensors_to_calibrate: set[str] = set()
        self._measured: list[str] = []
        self._derived: dict[str, Derived] = {}
        self.collector: HistogramCollector | None = None
        self._new_collector()  # which checks the options

    def _new_collector(self) -> HistogramCollector:
        return HistogramCollector(
            self.method,
            self.symmetric,
            self.num_bins,
            self.num_quantized_bins,
            self.percentile,
            self.scenario,
            ort_compatible=self.ort_compatible,
        )

    def augment_graph(self) -> None:
        """Write the model with its tensors, and their extremes, as outputs."""
        self.tensors_to_calibrate, infos = self.select_tensors_to_calibrate(self.model)
        every = [name for name in tensors.calibrated(self.model.graph, None) if name in self.tensors_to_calibrate]
        self._derived = {} if self.ort_compatible else tensors.derived(self.model, every, per_channel=False)
        self._measured = [name for name in every if name not in self._derived]
        nodes, outputs = self.extremes(self._measured, per_channel=False)
        listed = [infos[name] for name in self._measured if name not in self.model_original_outputs]
        self.write_augmented(nodes, [*(self._as_output(info) for info in listed), *outputs])
        self.clear_collected_data()

    @staticmethod
    def _as_output(info: ValueInfoProto) -> ValueInfoProto:
        output = ValueInfoProto()
        output.CopyFrom(info)
        return output

    @property
    def unwanted_outputs(self) -> set[str]:
        """The outputs of the model that are not calibrated."""
        return self.model_original_outputs - set(self._measured)

    def clear_collected_data(self) -> None:
        """Forget the statistics."""
        self._samples = 0
        self.collector = None

    def collect_sample(self, outputs: Mapping[str, Array]) -> None:
        """Count the values of one sample."""
        if self.collector is None:
            self.collector = self._new_collector()
        for name in self._measured:
            values = outputs[name]
            if values.size:
                low, high = float(outputs[f"{name}_ReduceMin"]), float(outputs[f"{name}_ReduceMax"])
                if np.isfinite(low) and np.isfinite(high):
                    self.collector.add(name, values, low, high)
                elif self.is_meant(name, low, high):
                    self.collector.add_infinite(name, low, high)
                else:
                    raise self.non_finite(name)

    def compute_data(self) -> TensorsData:
        """The ranges. `errors.InvalidArgument`, also a ValueError, before any sample."""
        if self.collector is None:
            raise InvalidQuantization("Nothing has been collected: call collect_data() with samples first")
        if self.ort_compatible:
            return TensorsData(_METHODS[self.method], self.collector.compute_collection_result())
        infos = tensors.infos_of(self.model.graph)
        histograms = {name: self.collector.histograms.get(name, Histogram(1)) for name in self._measured}
        for name, source in self._derived.items():
            histograms[name] = histograms[source.source].clipped(source.low, source.high)
        found: dict[str, TensorData] = {}
        for name in tensors.calibrated(self.model.graph, None):
            if name in histograms:
                found[name] = self.collector.result(histograms[name], _TYPES[tensors.element_type(infos[name])])
        return TensorsData(_METHODS[self.method], found)

    def resume_from(self, path: str | os.PathLike[str], every: int = 50) -> None:
        """As `CalibraterBase.resume_from`; `errors.InvalidArgument` where activations are kept, which are not saved."""
        if self.ort_compatible:
            raise InvalidQuantization("With OrtCompatible the activations themselves are kept: take no file of state")
        super().resume_from(path, every)

    def state_arrays(self) -> dict[str, Array]:
        """The histograms."""
        assert self.collector is not None
        return {
            f"{name}/{part}": array
            for name, histogram in self.collector.histograms.items()
            for part, array in histogram.arrays().items()
        }

    def restore_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Take over what `state_arrays` gave."""
        self.collector = self._new_collector()
        parts: dict[str, dict[str, Array]] = {}
        for key, array in arrays.items():
            name, _, part = key.rpartition("/")
            parts.setdefault(name, {})[part] = array
        self.collector.histograms = {name: Histogram.of_arrays(one) for name, one in parts.items()}

    def state_options(self) -> tuple[object, ...]:
        """The options on which the histograms depend."""
        return *super().state_options(), self.method, self.num_bins, self.num_quantized_bins


class EntropyCalibrater(HistogramCalibrater):
    """Ranges that lose the least information: see `sardonyx.quantization.calibration.entropy`."""

    def __init__(
        self,
        model_path: str | Path,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "entropy",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 128,
    ) -> None:
        """Options as for `HistogramCalibrater`."""
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            use_external_data_format,
            method=method,
            symmetric=symmetric,
            num_bins=num_bins,
            num_quantized_bins=num_quantized_bins,
        )


class PercentileCalibrater(HistogramCalibrater):
    """Ranges that keep a share of the values: see `sardonyx.quantization.calibration.percentile`."""

    def __init__(
        self,
        model_path: str | Path,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 2048,
        percentile: float = 99.999,
    ) -> None:
        """Options as for `HistogramCalibrater`."""
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            use_external_data_format,
            method=method,
            symmetric=symmetric,
            num_bins=num_bins,
            num_quantized_bins=num_bins,
            percentile=percentile,
        )


class DistributionCalibrater(HistogramCalibrater):
    """Means and deviations, for 8-bit floats: see `sardonyx.quantization.calibration.distribution`."""

    def __init__(
        self,
        model_path: str | Path,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | os.PathLike[str] = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "distribution",
        num_bins: int = 128,
        scenario: str = "same",
    ) -> None:
        """Options as for `HistogramCalibrater`."""
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            use_external_data_format,
            method=method,
            num_bins=num_bins,
            num_quantized_bins=num_bins,
            scenario=scenario,
        )
