"""The ways of quantising that are compared, as calls of `quantization` packages that have the same names."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.accuracy.task import Feeds

TOOLS = ("sardonyx", "onnxruntime")
CALIBRATIONS = ("MinMax", "Entropy", "Percentile", "Distribution")


@dataclass(frozen=True)
class Method:
    """One way: its name in the table, and the arguments of `quantize_static` or, without `calibration`,
    `quantize_dynamic`."""

    name: str
    per_channel: bool
    calibration: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def apply(self, tool: str, model: Path, target: Path, data: Sequence[Feeds]) -> None:
        """Quantise a model file with the package of a tool."""
        package: Any = importlib.import_module(f"{tool}.quantization")
        if self.calibration is None:
            package.quantize_dynamic(str(model), str(target), per_channel=self.per_channel, **self.options)
            return
        package.quantize_static(
            str(model),
            str(target),
            _reader(package, data),
            per_channel=self.per_channel,
            activation_type=package.QuantType.QUInt8,
            calibrate_method=package.CalibrationMethod[self.calibration],
            **self.options,
        )


def all_methods() -> Iterator[Method]:
    for per_channel in (False, True):
        cut = "channel" if per_channel else "tensor"
        yield Method(f"dynamic, per {cut}", per_channel)
        for name in CALIBRATIONS:
            yield Method(f"{name}, per {cut}", per_channel, name)


def _reader(package: Any, data: Sequence[Feeds]) -> Any:
    """What a tool calibrates with: each batch once."""
    base: type = package.CalibrationDataReader

    class Reader(base):
        def __init__(self) -> None:
            self._left = iter(data)

        def get_next(self) -> Feeds | None:
            return next(self._left, None)

    return Reader()
