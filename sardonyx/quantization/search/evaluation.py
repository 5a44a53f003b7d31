"""Evaluations: a recipe is applied, the model it gives is judged, and what was found is kept in a file."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from sardonyx import errors
from sardonyx._version import __version__
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession
from sardonyx.quantization import calibrate
from sardonyx.quantization.calibration.readers import IterableReader
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.report import QuantizationReport
from sardonyx.quantization.search.comparison import Feeds, output_deviations, reference_outputs, worst
from sardonyx.quantization.search.recipe import Recipe
from sardonyx.runtime.files.opening import open_file, replacing

# A session of a quantised model to a number, higher is better.
Metric: TypeAlias = Callable[[InferenceSession], float]

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Verdict:
    """What an evaluation found: the largest relative error of an output, and the metric, if there is one."""

    error: float
    metric: float | None = None


class Evaluator:
    """Judges recipes for one model on one set of samples.

    `feeds` are what errors are measured on, `calibration` what ranges come from. `state` is a file that keeps every
    evaluation, so that a later process does none of them again; one of another model or other data is refused with
    `InvalidQuantization`. `told` is called with a line for each evaluation.
    """

    def __init__(
        self,
        model: Path,
        feeds: Sequence[Feeds],
        calibration: Sequence[Feeds],
        folder: Path,
        options: SessionOptions | None = None,
        metric: Metric | None = None,
        state: Path | None = None,
        told: Callable[[str], None] = lambda text: None,
    ) -> None:
        if not feeds:
            raise InvalidQuantization("A quantised model is judged on samples, and there are none: give data")
        self.model = model
        self.feeds = feeds
        self.calibration = calibration
        self.options = options or SessionOptions()
        self.metric = metric
        self._float_metric: float | None = None
        self.count = 0  # evaluations of this process
        self._folder = folder
        self._told = told
        self.expected = reference_outputs(model, feeds, self.options)
        self._ranges: dict[tuple[str, Path], Mapping[str, Any]] = {}
        self._reports: dict[str, QuantizationReport] = {}
        self._state = _State(state, _identity(model, feeds, calibration, metric is not None))

    def float_metric(self) -> float:
        """The metric of the float model, which is measured once."""
        assert self.metric is not None
        if self._float_metric is None:
            session = InferenceSession(os.fspath(self.model), self.options)
            self._float_metric = _number(self.metric(session), self.model)
        return self._float_metric

    def prepared(self, recipe: Recipe) -> Path:
        """The float model that a recipe quantises, whose values are those of `model` but where SmoothQuant scales."""
        return recipe.prepared(self.model, self.calibration, self._folder)

    def apply(self, recipe: Recipe, target: Path) -> QuantizationReport:
        """Write the model that a recipe gives; what it does to each node."""
        report = recipe.apply(self.prepared(recipe), target, self.ranges(recipe))
        self._reports[recipe.key] = report
        return report

    def ranges(self, recipe: Recipe) -> Mapping[str, Any] | None:
        """The ranges of all tensors by the recipe's calibration, computed once for each."""
        if recipe.calibration is None:
            return None
        key = recipe.calibration, self.prepared(recipe)
        if key not in self._ranges:
            self._told(f"calibration by {recipe.calibration} on {len(self.calibration)} samples")
            calibrator = calibrate.create_calibrator(
                self.prepared(recipe),
                list(recipe.operator_types),
                str(self._folder / "augmented.onnx"),
                calibrate.CalibrationMethod[recipe.calibration],
            )
            calibrator.collect_data(IterableReader(self.calibration))
            self._ranges[key] = dict(calibrator.compute_data().items())
        return self._ranges[key]

    def report(self, recipe: Recipe) -> QuantizationReport:
        """What a recipe does to each node."""
        if recipe.key not in self._reports:
            self.apply(recipe, self._folder / "candidate.onnx")
        return self._reports[recipe.key]

    def error(self, recipe: Recipe) -> float:
        """The largest relative error of an output."""
        return self._verdict(recipe, None).error

    def verdict(self, recipe: Recipe) -> Verdict:
        """What a recipe costs; known from the file, or found by quantising and running the model."""
        return self._verdict(recipe, self.metric)

    def _verdict(self, recipe: Recipe, judge: Metric | None) -> Verdict:
        known = self._state.get(recipe.key)
        if known is not None and (judge is None or known.metric is not None):
            return known
        target = self._folder / "candidate.onnx"
        self.apply(recipe, target)
        self.count += 1
        error = worst(output_deviations(target, self.feeds, self.expected, self.options))
        metric = None
        if judge is not None:
            metric = _number(judge(InferenceSession(os.fspath(target), self.options)), target)
        found = Verdict(error, metric)
        self._state.put(recipe.key, found)
        shown = "" if metric is None else f", metric {metric:.5g}"
        self._told(f"evaluation {self.count}: {len(recipe.kept_float)} nodes in float: error {error:.4g}{shown}")
        return found


def _number(value: Any, model: Path) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise InvalidQuantization(
            f"The metric gave {value!r} for {model.name}; it must give a number, higher is better"
        )
    return number


class _State:
    """Evaluations by the key of their recipe, in a JSON file."""

    def __init__(self, path: Path | None, identity: str) -> None:
        self._path = path
        self._identity = identity
        self._found: dict[str, Verdict] = {}
        if path is not None and path.exists():
            self._read(path)

    def get(self, key: str) -> Verdict | None:
        return self._found.get(key)

    def put(self, key: str, verdict: Verdict) -> None:
        self._found[key] = verdict
        if self._path is None:
            return
        rows = [
            {"recipe": json.loads(one), "error": found.error, "metric": found.metric}
            for one, found in self._found.items()
        ]
        text = json.dumps({"identity": self._identity, "evaluations": rows}, indent=1)
        try:
            with replacing(self._path) as file:
                file.write(text.encode())
        except OSError as error:
            raise errors.Fail(f"Saving the state to {self._path} failed: {error.strerror or error}") from error

    def _read(self, path: Path) -> None:
        try:
            with open_file(path) as file:
                content = json.load(file)
            identity = content["identity"]
            for row in content["evaluations"]:
                metric = row["metric"]
                key = json.dumps(row["recipe"], sort_keys=True)
                self._found[key] = Verdict(float(row["error"]), None if metric is None else float(metric))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidQuantization(
                f"{path} holds no state of a search ({error}); delete it, or name another"
            ) from None
        if identity != self._identity:
            raise InvalidQuantization(
                f"{path} is the state of a search with another model, other data or another version; delete it, or "
                "name another"
            )


def _identity(model: Path, feeds: Sequence[Feeds], calibration: Sequence[Feeds], has_metric: bool) -> str:
    """What evaluations depend on, as a hash: the model's file, the samples, this version."""
    digest = hashlib.sha256(f"{__version__} {has_metric}".encode())
    with open_file(model) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    for one in (*feeds, *calibration):
        for name, array in sorted(one.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()
