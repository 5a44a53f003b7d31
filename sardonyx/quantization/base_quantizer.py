"""`BaseQuantizer`: what the quantizers of all formats are made of and know."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto

from sardonyx.graph.load import LoadedModel, load_model
from sardonyx.quantization.job import Job
from sardonyx.quantization.onnx_model import ONNXModel
from sardonyx.quantization.opset import raise_opset
from sardonyx.quantization.options import Options
from sardonyx.quantization.quant_utils import QuantType, ir_type
from sardonyx.quantization.report import QuantizationReport
from sardonyx.transformers.large_weights import load_proto

Model: TypeAlias = str | os.PathLike[str] | bytes | ModelProto | LoadedModel


class QuantizationParams:
    """The scale, the zero point and the type of a tensor, by name; the values are numbers, texts or arrays."""

    def __init__(self, **data: Any) -> None:
        self.data: dict[str, Any] = {}
        for key, value in data.items():
            if not isinstance(value, int | None if key == "axis" else int | str | float | np.ndarray):
                raise TypeError(f"{key} must be a number, a text or an array, not {type(value)}")
            if key == "scale" and (kind := np.asarray(value).dtype) not in (np.float32, np.float16):
                raise ValueError(f"scale must be of float32 or float16, not {kind}")
            self.data[key] = value

    def get(self, key: str, default_value: Any = None) -> Any:
        return self.data.get(key, default_value)

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.data[key] = value

    def __len__(self) -> int:
        return len(self.data)


class BaseQuantizer:
    """A model, and how to quantise it, which `quantize_model` does once.

    `model` is a ModelProto, or, without a copy of it in memory, a path. `tensors_range` are TensorData by the names of
    values, None in dynamic mode. `job` holds the model meanwhile, `report` what was done.
    """

    def __init__(
        self,
        model: Model,
        per_channel: bool,
        reduce_range: bool,
        weight_qType: Any,  # noqa: N803
        activation_qType: Any,  # noqa: N803
        tensors_range: Mapping[str, Any] | None,
        nodes_to_quantize: Collection[str] | None,
        nodes_to_exclude: Collection[str] | None,
        op_types_to_quantize: Collection[str],
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.options = Options.parse(extra_options)
        self.extra_options: dict[str, Any] = dict(extra_options or {})
        self.per_channel = per_channel
        self.reduce_range = reduce_range
        self.weight_type = ir_type(weight_qType)
        self.activation_type = ir_type(activation_qType)
        self.weight_qType = int(self.weight_type)
        self.activation_qType = int(self.activation_type)
        self.tensors_range = tensors_range
        self.nodes_to_quantize = nodes_to_quantize
        self.nodes_to_exclude = nodes_to_exclude
        self.op_types_to_quantize = op_types_to_quantize
        self.job = Job(
            raise_opset(opened(model), self.options, self.weight_type, self.activation_type, contrib=True),
            self.options,
            weight_type=self.weight_type,
            activation_type=self.activation_type,
            operators=op_types_to_quantize,
            per_channel=per_channel,
            reduce_range=reduce_range,
            nodes_to_quantize=nodes_to_quantize,
            nodes_to_exclude=nodes_to_exclude,
            ranges=None if tensors_range is None else dict(tensors_range.items()),
        )

    def calibrated(self, tensors_range: Any) -> None:
        """Take the ranges of values: for a quantizer that was made to check its arguments before calibration."""
        self.tensors_range = tensors_range
        self.job.ranges = dict(tensors_range.items())

    @property
    def report(self) -> QuantizationReport:
        """What was done to each node."""
        return self.job.report

    @property
    def opset_version(self) -> int:
        """The version of ONNX's own operators that the quantised model has."""
        return self.job.opset

    @cached_property
    def model(self) -> ONNXModel:
        """The model as a message, as it is when this is first asked for; after `quantize_model` the quantised one."""
        return ONNXModel(self.job.message())

    def quantize_model(self) -> ModelProto:
        """Quantise the model: the message of it, which `model` holds from now on.

        `InvalidQuantization` where nothing of it can be quantised.
        """
        self.quantize()
        self.__dict__.pop("model", None)
        return self.model.model

    def quantize(self) -> None:
        """Quantise the model in `job`, without a message of it."""
        raise NotImplementedError(f"{type(self).__name__} says in no `quantize` how it does so")

    def is_per_channel(self) -> bool:
        return self.per_channel

    def is_weight_symmetric(self, weight_quant_type: Any) -> bool:
        """Whether weights of a type are quantised with zero in the middle."""
        return self.options.is_weight_symmetric(ir_type(weight_quant_type).is_signed())


def opened(model: Model) -> LoadedModel:
    """A model from wherever it is, its weights where they lie."""
    if isinstance(model, LoadedModel):
        return model
    return load_proto(model) if isinstance(model, ModelProto) else load_model(model)


__all__ = ["BaseQuantizer", "QuantType", "QuantizationParams", "opened"]
