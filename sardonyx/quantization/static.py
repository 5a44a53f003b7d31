"""From a float model and samples to the ranges by which it is quantised."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sardonyx.graph.load import LoadedModel
from sardonyx.graph.saving import save_model
from sardonyx.quantization.calibration.method import CalibrationMethod
from sardonyx.quantization.configs import CALIBRATION_OPTIONS
from sardonyx.quantization.options import Options
from sardonyx.quantization.quant_utils import QuantFormat, QuantType
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.runtime.files.opening import open_file

if TYPE_CHECKING:
    from sardonyx.quantization.calibrate import TensorsData

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Calibration:
    """How ranges are found: by which samples, method and providers, for which operators, and where they are kept."""

    reader: Any
    method: CalibrationMethod
    operators: Collection[str]
    providers: Sequence[Any] | None
    options: Options
    cache: Path | None = None
    external: bool = False

    def ranges(self, loaded: LoadedModel) -> TensorsData:
        """The ranges of the model's values: those in the cache, or else those of the samples, which are kept there.

        `InvalidQuantization` where there are neither, and for a cache of another method.
        """
        found = self._kept()
        if found is not None:
            return found
        if self.reader is None:
            raise InvalidQuantization(
                "There is nothing to calibrate by: give a calibration_data_reader, or the path of ranges that were "
                "kept before as calibration_cache_path"
            )
        data = self._collected(loaded)
        if self.cache is not None:
            from sardonyx.quantization.calibrate import save_tensors_data

            save_tensors_data(data, self.cache, smooth_quant=self.options.smooth_quant)
        return data

    def _kept(self) -> TensorsData | None:
        if self.cache is None or not self.cache.exists():
            return None
        if not self.cache.is_file():
            raise InvalidQuantization(f"calibration_cache_path is not a file: {self.cache}")
        from sardonyx.quantization.calibrate import load_tensors_data

        found = load_tensors_data(self.cache)
        if _was_smoothed(self.cache) != self.options.smooth_quant:
            logger.warning("The ranges in %s are of another setting of SmoothQuant: they are found anew", self.cache)
            return None
        if found.calibration_method != self.method:
            raise InvalidQuantization(
                f"The ranges in {self.cache} were found by {found.calibration_method}, not by {self.method}: delete "
                "the file, or give its method as calibrate_method"
            )
        return found

    def _collected(self, loaded: LoadedModel) -> TensorsData:
        from sardonyx.quantization.calibrate import TensorsData, create_calibrator

        options = {
            name: getattr(self.options, field)
            for name, key in CALIBRATION_OPTIONS.items()
            if key in self.options.given and (field := _FIELDS[key])
        }
        if self.options.ort_compatible:
            options["OrtCompatible"] = True
        with tempfile.TemporaryDirectory(prefix="sardonyx.quantize.") as folder:
            calibrator = create_calibrator(
                _file_of(loaded, Path(folder)),
                list(self.operators),
                augmented_model_path=os.path.join(folder, "augmented_model.onnx"),
                calibrate_method=self.method,
                use_external_data_format=self.external,
                providers=self.providers,
                extra_options=options,
            )
            stride = self.options.calib_strided_min_max
            if stride:
                self._collect_in_parts(calibrator, stride)
            else:
                calibrator.collect_data(self.reader)
            data = calibrator.compute_data()
            del calibrator
        if not isinstance(data, TensorsData):
            raise TypeError(f"compute_data() of a calibrator must give TensorsData, not {type(data)}")
        return data

    def _collect_in_parts(self, calibrator: Any, stride: int) -> None:
        """Let the reader give `stride` samples at a time."""
        count = len(self.reader)
        if count % stride:
            raise InvalidQuantization(
                f"CalibStridedMinMax = {stride} does not divide the {count} samples of the reader"
            )
        for start in range(0, count, stride):
            self.reader.set_range(start_index=start, end_index=start + stride)
            calibrator.collect_data(self.reader)


_FIELDS = {
    "CalibTensorRangeSymmetric": "calib_tensor_range_symmetric",
    "CalibMovingAverage": "calib_moving_average",
    "CalibMovingAverageConstant": "calib_moving_average_constant",
    "CalibMaxIntermediateOutputs": "calib_max_intermediate_outputs",
    "CalibPercentile": "calib_percentile",
    "CalibNumBins": "calib_num_bins",
    "CalibNumQuantizedBins": "calib_num_quantized_bins",
}


def check_types(
    quant_format: QuantFormat, activation_type: QuantType, weight_type: QuantType, method: CalibrationMethod
) -> None:
    """`InvalidQuantization` for types that do not go together, or with the format or the method."""
    floats = [kind is QuantType.QFLOAT8E4M3FN for kind in (activation_type, weight_type)]
    if any(floats) and method is not CalibrationMethod.Distribution:
        raise InvalidQuantization(
            "Only Distribution calibration method is supported for float quantization: scales of 8-bit floats follow "
            "from standard deviations. Give calibrate_method=CalibrationMethod.Distribution"
        )
    if any(floats) != all(floats):
        raise InvalidQuantization(
            "8-bit floats are the type of both weights and activations or of neither, not "
            f"{activation_type} and {weight_type}"
        )
    if (activation_type, weight_type) == (QuantType.QInt8, QuantType.QUInt8):
        raise InvalidQuantization(
            "No operator multiplies activations of int8 by weights of uint8: quantise the weights to int8, or the "
            "activations to uint8"
        )
    bytes_only = {QuantType.QInt8, QuantType.QUInt8}
    if quant_format is QuantFormat.QOperator and not {activation_type, weight_type} <= bytes_only:
        raise InvalidQuantization(
            f"Only QuantFormat.QDQ supports types other than 8-bit integers, and {activation_type} and {weight_type} "
            "were asked for"
        )
    if quant_format is QuantFormat.QOperator and activation_type is QuantType.QInt8:
        logger.warning("Integer operators with activations of int8 are slow on x64: use QuantFormat.QDQ")


def _was_smoothed(path: Path) -> bool:
    with open_file(path) as file:
        return bool(json.load(file).get("smooth_quant", False))


def _file_of(loaded: LoadedModel, folder: Path) -> Path:
    """A file of the model as it is now: its own one, or one in the folder where it is not from a file, or changed."""
    if loaded.path is not None and not loaded.functions:
        return Path(loaded.path)
    path = folder / "model.onnx"
    save_model(loaded.model, path, "model.onnx.data")
    return path
