"""Calibration under the names of ``onnxruntime.quantization.calibrate``, and readers of common sources."""

from sardonyx.quantization.calibration.base import CalibraterBase
from sardonyx.quantization.calibration.collector import HistogramCollector
from sardonyx.quantization.calibration.creation import create_calibrator
from sardonyx.quantization.calibration.histogram_calibrater import (
    DistributionCalibrater,
    EntropyCalibrater,
    HistogramCalibrater,
    PercentileCalibrater,
)
from sardonyx.quantization.calibration.method import CalibrationMethod
from sardonyx.quantization.calibration.min_max import MinMaxCalibrater
from sardonyx.quantization.calibration.ranges import (
    CalibrationCacheEncoder,
    TensorData,
    TensorsData,
    load_tensors_data,
    save_tensors_data,
)
from sardonyx.quantization.calibration.readers import (
    CalibrationDataReader,
    DatasetReader,
    IterableReader,
    NpzFolderReader,
)

__all__ = [
    "CalibraterBase",
    "CalibrationCacheEncoder",
    "CalibrationDataReader",
    "CalibrationMethod",
    "DatasetReader",
    "DistributionCalibrater",
    "EntropyCalibrater",
    "HistogramCalibrater",
    "HistogramCollector",
    "IterableReader",
    "MinMaxCalibrater",
    "NpzFolderReader",
    "PercentileCalibrater",
    "TensorData",
    "TensorsData",
    "create_calibrator",
    "load_tensors_data",
    "save_tensors_data",
]
