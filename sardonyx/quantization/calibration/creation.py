"""The calibrator of a method with its options, ready to collect."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sardonyx.quantization.calibration.base import CalibraterBase
from sardonyx.quantization.calibration.histogram_calibrater import (
    DistributionCalibrater,
    EntropyCalibrater,
    PercentileCalibrater,
)
from sardonyx.quantization.calibration.method import CalibrationMethod
from sardonyx.quantization.calibration.min_max import MinMaxCalibrater
from sardonyx.quantization.refusal import InvalidQuantization

# Of each method: its class, and its options with the values that they have unless they are given.
_METHODS: dict[CalibrationMethod, tuple[type[CalibraterBase], dict[str, Any]]] = {
    CalibrationMethod.MinMax: (
        MinMaxCalibrater,
        {
            "symmetric": False,
            "moving_average": False,
            "averaging_constant": 0.01,
            "max_intermediate_outputs": None,
            "per_channel": False,
        },
    ),
    CalibrationMethod.Entropy: (
        EntropyCalibrater,
        {"num_bins": 128, "num_quantized_bins": 128, "symmetric": False},
    ),
    CalibrationMethod.Percentile: (
        PercentileCalibrater,
        {"num_bins": 2048, "percentile": 99.999, "symmetric": True},
    ),
    CalibrationMethod.Distribution: (DistributionCalibrater, {"num_bins": 2048, "scenario": "same"}),
}
_COMMON = ("OrtCompatible", "progress", "state_path", "state_every")
_KNOWN = {*_COMMON, *(name for _, options in _METHODS.values() for name in options)}


def create_calibrator(
    model: str | Path,
    op_types_to_calibrate: Sequence[str] | None = None,
    augmented_model_path: str | os.PathLike[str] = "augmented_model.onnx",
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    use_external_data_format: bool = False,
    providers: Sequence[Any] | None = None,
    extra_options: Mapping[str, Any] = {},
) -> Any:
    """A calibrator for the model in a file, its session open.

    `op_types_to_calibrate` are the operators whose inputs and results are calibrated, all by default. The model with
    more outputs is written to `augmented_model_path`. Options, of which None stands for the default:

    - MinMax: `symmetric` (False), `moving_average` (False), `averaging_constant` (0.01), `per_channel` (False),
      `max_intermediate_outputs` (no effect);
    - Entropy: `num_bins` (128), `num_quantized_bins` (128), `symmetric` (False);
    - Percentile: `num_bins` (2048), `percentile` (99.999), `symmetric` (True: of absolute values);
    - Distribution: `num_bins` (2048), `scenario` ("same" or "p3");
    - all: `progress`, a function of the samples done and their number (or None); `state_path` and `state_every` (50),
      see `CalibraterBase.resume_from`; `OrtCompatible`, the numbers of onnxruntime 1.31.

    Options of another method are left out. `errors.InvalidArgument`, also a ValueError, for an unknown method or
    option; the typed errors of loading a model.
    """
    options = {name: value for name, value in (extra_options or {}).items() if value is not None}
    for name in options:
        if name not in _KNOWN:
            near = difflib.get_close_matches(str(name), _KNOWN, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(sorted(_KNOWN))}"
            raise InvalidQuantization(f"extra_options: a calibrator has no option {name!r}; {hint}")
    if calibrate_method not in _METHODS:
        known = ", ".join(str(method) for method in CalibrationMethod)
        raise InvalidQuantization(f"There is no method {calibrate_method!r} of calibration: choose one of {known}")
    cls, defaults = _METHODS[calibrate_method]
    calibrator: Any = cls(
        model,
        op_types_to_calibrate,
        augmented_model_path,
        use_external_data_format=use_external_data_format,
        **{name: options.get(name, value) for name, value in defaults.items()},
    )
    calibrator.progress = options.get("progress")
    calibrator.ort_compatible = bool(options.get("OrtCompatible", False))
    calibrator.augment_graph()
    if providers:
        calibrator.execution_providers = list(providers)
    calibrator.create_inference_session()
    if "state_path" in options:
        calibrator.resume_from(options["state_path"], int(options.get("state_every", 50)))
    return calibrator
