"""What a caller of the weight-only quantizer asked for: its arguments and a configuration, checked and settled."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sardonyx.quantization.options import Options
from sardonyx.quantization.quant_utils import QuantFormat, checked_format
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.weight_only.configs import (
    Axes,
    DefaultWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
    checked_axes,
    checked_bits,
    checked_block,
    checked_operators,
)

# The blocks that MatMulNBits and GatherBlockQuantized take.
PACKED_BLOCKS = (16, 32, 64, 128, 256)
ACCURACY_LEVELS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Request:
    """How weights are quantised, of all nodes or of one. `channel_wise`: one scale for each column."""

    config: WeightOnlyQuantConfig
    bits: int
    block_size: int
    is_symmetric: bool
    accuracy_level: int | None
    nodes_to_exclude: frozenset[str]
    nodes_to_include: frozenset[str]
    quant_format: QuantFormat
    operators: frozenset[str]
    axes: Mapping[str, int]
    channel_wise: bool
    options: Options

    @property
    def is_qdq(self) -> bool:
        return self.quant_format == QuantFormat.QDQ

    def of_node(self, name: str) -> Request:
        """The request for one node: what ``customized_weight_config`` says of it counts more."""
        own = (self.config.customized_weight_config or {}).get(name)
        if own is None:
            return self
        return changed(self, own, f"customized_weight_config['{name}']")


def requested(
    *,
    bits: int,
    block_size: int,
    is_symmetric: bool,
    accuracy_level: int | None,
    nodes_to_exclude: Collection[str] | None,
    nodes_to_include: Collection[str] | None,
    quant_format: QuantFormat,
    op_types_to_quantize: Sequence[str] | None,
    quant_axes: Axes | None,
    channel_wise: bool,
    config: WeightOnlyQuantConfig | None,
    extra_options: Mapping[str, Any] | None,
) -> Request:
    """The request; a configuration counts more than the arguments where it says something itself."""
    if config is None:
        config = DefaultWeightOnlyQuantConfig(
            block_size,
            is_symmetric,
            accuracy_level,
            quant_format,
            op_types_to_quantize,
            quant_axes,
            bits,
            channel_wise,
        )
    if not isinstance(config, WeightOnlyQuantConfig):
        raise InvalidQuantization(
            f"algo_config must be a configuration such as DefaultWeightOnlyQuantConfig, not {type(config).__name__}"
        )
    if isinstance(config, DefaultWeightOnlyQuantConfig):
        bits, block_size, is_symmetric = config.bits, config.block_size, config.is_symmetric
        channel_wise = config.channel_wised_quantize
        accuracy_level = config.accuracy_level if config.accuracy_level is not None else accuracy_level
    elif isinstance(config, HQQWeightOnlyQuantConfig):
        bits, block_size = config.bits, config.block_size
    if accuracy_level is not None and accuracy_level not in ACCURACY_LEVELS:
        raise InvalidQuantization(f"accuracy_level must be a whole number from 0 to 4 or None, not {accuracy_level!r}")
    form = config.quant_format if config.quant_format != QuantFormat.QOperator else checked_format(quant_format)
    options = Options.parse({**(extra_options or {}), "EnableSubgraph": True})
    if options.use_qdq_contrib_ops:
        raise InvalidQuantization("UseQDQContribOps: the DequantizeLinear of com.microsoft has no blocks")
    request = Request(
        config=config,
        bits=checked_bits(bits),
        block_size=checked_block(block_size),
        is_symmetric=bool(is_symmetric),
        accuracy_level=accuracy_level,
        nodes_to_exclude=_names("nodes_to_exclude", nodes_to_exclude),
        nodes_to_include=_names("nodes_to_include", nodes_to_include),
        quant_format=form,
        operators=frozenset(
            config.op_types_to_quantize
            if config.op_types_given or op_types_to_quantize is None
            else checked_operators(op_types_to_quantize)
        ),
        axes=config.quant_axes if config.axes_given or quant_axes is None else checked_axes(quant_axes),
        channel_wise=bool(channel_wise),
        options=options,
    )
    _check_block(request, "block_size")
    if not request.operators and not request.nodes_to_include:
        raise InvalidQuantization("op_types_to_quantize is empty, and nodes_to_include names no nodes")
    return request


def changed(request: Request, own: Any, where: str) -> Request:
    """The request with what a dict of ``bits``, ``group_size`` and ``scheme`` says."""
    if not isinstance(own, Mapping):
        raise InvalidQuantization(f"{where} must be a dict such as {{'bits': 8}}, not {own!r}")
    known = {"bits", "group_size", "scheme", "algorithm"}
    if unknown := sorted(str(key) for key in own if key not in known):
        raise InvalidQuantization(f"{where}: there is no key '{unknown[0]}'; known are bits, group_size and scheme")
    scheme = own.get("scheme", "sym" if request.is_symmetric else "asym")
    if scheme not in ("sym", "asym"):
        raise InvalidQuantization(f"{where}: scheme must be 'sym' or 'asym', not {scheme!r}")
    block = own.get("group_size", request.block_size)
    result = replace(
        request,
        bits=checked_bits(own.get("bits", request.bits)),
        block_size=request.block_size if block == -1 else checked_block(block, f"{where}: group_size"),
        channel_wise=request.channel_wise or block == -1,
        is_symmetric=scheme == "sym",
    )
    _check_block(result, where)
    return result


def _check_block(request: Request, where: str) -> None:
    if request.is_qdq or request.block_size in PACKED_BLOCKS:
        return
    raise InvalidQuantization(
        f"{where}: blocks of {request.block_size} have no form of QuantFormat.QOperator; it takes "
        f"{', '.join(map(str, PACKED_BLOCKS))}. QuantFormat.QDQ takes any size"
    )


def _names(argument: str, names: Collection[str] | None) -> frozenset[str]:
    if names is None:
        return frozenset()
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise InvalidQuantization(f"{argument} must be a list of names of nodes, not {names!r}")
    return frozenset(names)
