"""A recipe: one complete way to quantise a model, and the presets of processors."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sardonyx.graph.constants import nodes_of
from sardonyx.graph.load import LoadedModel, load_model
from sardonyx.graph.saving import save_model
from sardonyx.quantization.base_quantizer import BaseQuantizer
from sardonyx.quantization.onnx_quantizer import ONNXQuantizer
from sardonyx.quantization.options import Options
from sardonyx.quantization.qdq_quantizer import QDQQuantizer
from sardonyx.quantization.quant_utils import QuantizationMode, QuantType
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry
from sardonyx.quantization.report import QuantizationReport
from sardonyx.quantization.smooth_quant import smoothed

# What a recipe of products alone quantises.
PRODUCTS = ("MatMul", "Gemm", "Gather")


@dataclass(frozen=True)
class Recipe:
    """How a model is quantised; types are names of `QuantType`, `kept_float` names of nodes.

    `operators` are the types that are quantised, None those that the format quantises by default. `calibration` names
    a `CalibrationMethod`; a dynamic recipe has none.
    """

    is_static: bool
    weights: str = "QInt8"
    activations: str = "QUInt8"
    per_channel: bool = True
    reduce_range: bool = False
    calibration: str | None = None
    operators: tuple[str, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    kept_float: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The recipe as text, the same for equal ones."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @property
    def operator_types(self) -> tuple[str, ...]:
        """The operator types that are quantised."""
        if self.operators is not None:
            return self.operators
        known = [*QLinearOpsRegistry, *QDQRegistry] if self.is_static else [*IntegerOpsRegistry]
        return tuple(dict.fromkeys(known))

    def with_changes(self, **changes: Any) -> Recipe:
        """The same but for these fields."""
        return dataclasses.replace(self, **changes)

    def with_kept(self, names: Iterable[str]) -> Recipe:
        """The same with these nodes in float."""
        return self.with_changes(kept_float=tuple(sorted(names)))

    @property
    def products_only(self) -> Recipe:
        """The same, static, but only inputs of products with constants, and tables, are stored in few bits.

        That is what transformers need: the sums between their blocks, and what is computed element by element, lose
        accuracy in 8 bits and gain little speed.
        """
        options = {
            **self.options,
            "MatMulConstBOnly": True,
            "OpTypesToExcludeOutputQuantization": list(PRODUCTS),
        }
        return self.with_changes(operators=PRODUCTS, options=options)

    def smoothed(self, alpha: float) -> Recipe:
        """The same after SmoothQuant, which moves so much of the outliers of activations into the weights."""
        return self.with_changes(options={**self.options, "SmoothQuant": True, "SmoothQuantAlpha": alpha})

    def prepared(self, model: str | os.PathLike[str], samples: Sequence[Mapping[str, Any]], folder: Path) -> Path:
        """The float model that `apply` quantises: the model file itself, or after SmoothQuant one in `folder`."""
        options = Options.parse(self.options)
        if not options.smooth_quant:
            return Path(model)
        target = folder / f"smoothed_{options.smooth_quant_alpha}_{options.smooth_quant_folding}.onnx"
        if target.exists():
            return target
        changed = smoothed(named_model(model), list(samples), options)
        save_model(changed.model, target, f"{target.name}.data")
        return target

    def apply(
        self, model: str | os.PathLike[str], target: str | os.PathLike[str], ranges: Mapping[str, Any] | None = None
    ) -> QuantizationReport:
        """Quantise a model file, `prepared` before, to another one; `ranges` are those of its tensors, which a static
        recipe needs."""
        quantizer = self._quantizer(named_model(model), ranges)
        quantizer.quantize()
        quantizer.job.save(target)
        return quantizer.report

    def _quantizer(self, model: LoadedModel, ranges: Mapping[str, Any] | None) -> BaseQuantizer:
        shared: dict[str, Any] = {
            "model": model,
            "per_channel": self.per_channel,
            "reduce_range": self.reduce_range,
            "weight_qType": QuantType[self.weights],
            "activation_qType": QuantType[self.activations],
            "nodes_to_quantize": [],
            "nodes_to_exclude": list(self.kept_float),
            "op_types_to_quantize": list(self.operator_types),
        }
        if self.is_static:
            if ranges is None:
                raise InvalidQuantization("A static recipe needs the ranges of the model's tensors, from a calibration")
            return QDQQuantizer(tensors_range=ranges, extra_options=dict(self.options), **shared)
        return ONNXQuantizer(
            mode=QuantizationMode.IntegerOps,
            static=False,
            tensors_range=None,
            extra_options={"MatMulConstBOnly": True, **self.options},
            **shared,
        )


def named_model(path: str | os.PathLike[str]) -> LoadedModel:
    """A model whose nodes all have names of their own, the same each time: recipes tell nodes by name."""
    loaded = load_model(path)
    taken = {node.name for node in nodes_of(loaded.model.graph)}
    seen: set[str] = set()
    for index, node in enumerate(nodes_of(loaded.model.graph)):
        name = node.name
        if not name or name in seen:
            numbered = (f"{node.op_type}_{index}{'_' * more}" for more in itertools.count())
            name = node.name = next(free for free in numbered if free not in taken)
            taken.add(name)
        seen.add(name)
    return loaded


_SYMMETRIC = {"ActivationSymmetric": True, "WeightSymmetric": True}
_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "avx2": {"weights": "QUInt8", "options": {"WeightSymmetric": True}},
    "avx512": {"weights": "QInt8"},
    "avx512_vnni": {"weights": "QInt8"},
    "arm64": {"weights": "QInt8"},
    "ppc64le": {"weights": "QInt8"},
    "tensorrt": {
        "weights": "QInt8",
        "activations": "QInt8",
        "options": {**_SYMMETRIC, "AddQDQPairToWeight": True},
    },
}
PRESETS = tuple(_PRESETS)


def preset(name: str | None, is_static: bool) -> Recipe:
    """The recipe of a preset of Optimum's `AutoQuantizationConfig`; without a name the one that suits this runtime.

    `InvalidQuantization` for another name, and for the static preset `tensorrt` in dynamic quantisation.
    """
    if name is not None and name not in _PRESETS:
        raise InvalidQuantization(f"There is no preset '{name}'; the presets are {', '.join(PRESETS)}")
    if name == "tensorrt" and not is_static:
        raise InvalidQuantization("The preset 'tensorrt' is for static quantisation")
    settings = dict(_PRESETS[name]) if name is not None else {}
    return Recipe(is_static, calibration="MinMax" if is_static else None, **settings)
