"""Weight-only quantization in one call, with the arguments of Intel Neural Compressor."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from onnx import ModelProto

from sardonyx.quantization.matmul_nbits_quantizer import (
    GPTQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    RTNWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
)
from sardonyx.quantization.onnx_model import ONNXModel
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.weight_only.moments import samples

_FLOAT = "fp32"  # what a node's configuration is that stays in float
_ANY_BLOCK = 128  # in which columns with one scale are stored

Model: TypeAlias = ModelProto | ONNXModel | str | os.PathLike[str]


def rtn_quantize(
    model: Model,
    weight_config: Mapping[str, Any] | None = None,
    num_bits: int = 4,
    group_size: int = 32,
    scheme: str = "asym",
    ratios: Mapping[str, float] | None = None,
    accuracy_level: int = 0,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    algorithm: str = "k_quant",
) -> ONNXModel:
    """The model with the weights of its MatMul nodes rounded to the nearest, or searched for with `k_quant`.

    `weight_config` gives single nodes their own ``{"bits", "group_size", "scheme"}``, or "fp32" to leave them.
    `group_size` -1 is one scale a column. `providers` are not used: nothing runs.
    """
    if algorithm not in ("k_quant", "rtn"):
        raise InvalidQuantization(f"algorithm must be 'k_quant' or 'rtn', not {algorithm!r}")
    kind = KQuantWeightOnlyQuantConfig if algorithm == "k_quant" else RTNWeightOnlyQuantConfig
    config = kind(ratios, customized_weight_config=_own(weight_config))
    return _run(model, config, weight_config, num_bits, group_size, scheme, accuracy_level)


def gptq_quantize(
    model: Model,
    dataloader: Any,
    weight_config: Mapping[str, Any] | None = None,
    num_bits: int = 4,
    group_size: int = 32,
    scheme: str = "asym",
    n_samples: int = 128,
    percdamp: float = 0.01,
    blocksize: int = 128,
    actorder: bool = False,
    mse: bool = False,
    perchannel: bool = True,
    accuracy_level: int = 0,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
) -> ONNXModel:
    """The model with the weights of its MatMul nodes quantised by GPTQ.

    `dataloader` gives feeds, or pairs of a feed and a label, of which `n_samples` count; a `CalibrationDataReader`
    will do. The other arguments are those of `rtn_quantize` and `GPTQWeightOnlyQuantConfig`.
    """
    config = GPTQWeightOnlyQuantConfig(samples(dataloader, n_samples), percdamp, blocksize, actorder, mse, perchannel)
    config.customized_weight_config = _own(weight_config)
    return _run(model, config, weight_config, num_bits, group_size, scheme, accuracy_level)


def _own(weight_config: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """What single nodes are told, those left out that stay in float."""
    return {name: own for name, own in (weight_config or {}).items() if own != _FLOAT}


def _run(
    model: Model,
    config: WeightOnlyQuantConfig,
    weight_config: Mapping[str, Any] | None,
    bits: int,
    group_size: int,
    scheme: str,
    accuracy_level: int,
) -> ONNXModel:
    if scheme not in ("sym", "asym"):
        raise InvalidQuantization(f"scheme must be 'sym' or 'asym', not {scheme!r}")
    if isinstance(model, str | os.PathLike):
        source: ModelProto | Path = Path(model)
    else:
        source = ModelProto()
        source.CopyFrom(model.model if isinstance(model, ONNXModel) else model)
    quantizer = MatMulNBitsQuantizer(
        source,
        bits,
        _ANY_BLOCK if group_size == -1 else group_size,
        scheme == "sym",
        accuracy_level or None,
        [name for name, own in (weight_config or {}).items() if own == _FLOAT],
        channel_wised_quantize=group_size == -1,
        algo_config=config,
    )
    quantizer.process()
    return quantizer.model
