"""What a caller says of single tensors (extra option ``TensorQuantOverrides``): types, ranges, scales, conversions."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.quantization.quant_utils import QuantType, ir_type
from sardonyx.quantization.quantized_numbers import INTEGERS, type_range
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.selection import nearest

Override = dict[str, Any]

_KEYS = frozenset(
    {"quant_type", "axis", "scale", "zero_point", "symmetric", "reduce_range", "rmin", "rmax", "convert", "recv_nodes"}
)
_BESIDE_SCALES = ("reduce_range", "rmax", "rmin", "symmetric")  # which say how to find what is given
_OF_ALL_CHANNELS = ("quant_type", "symmetric", "reduce_range")


@dataclass(eq=False)
class QuantTypeInfo:
    """The type that a tensor is quantised to; None stands for the default."""

    quant_type: QuantType | None
    symmetric: bool | None = None
    reduce_range: bool | None = None
    axis: int | None = None  # None: one scale for the tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QuantTypeInfo):
            return NotImplemented
        return (
            self.quant_type == other.quant_type
            and self.axis == other.axis
            and all(
                None in pair or pair[0] == pair[1]
                for pair in ((self.symmetric, other.symmetric), (self.reduce_range, other.reduce_range))
            )
        )

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def load_from_dict(
        raw_dict: Mapping[str, Any],
        default_qtype: QuantType | None = None,
        default_symmetric: bool | None = None,
        default_reduce_range: bool | None = None,
    ) -> QuantTypeInfo:
        return QuantTypeInfo(
            raw_dict.get("quant_type", default_qtype),
            raw_dict.get("symmetric", default_symmetric),
            raw_dict.get("reduce_range", default_reduce_range),
            raw_dict.get("axis"),
        )

    def save_to_dict(self, raw_dict: MutableMapping[str, Any]) -> None:
        raw_dict["quant_type"] = self.quant_type
        for name in ("symmetric", "reduce_range", "axis"):
            if getattr(self, name) is not None:
                raw_dict[name] = getattr(self, name)


class TensorQuantOverridesHelper(MutableMapping[str, list[Override]]):
    """The overrides by the names of tensors: a list of one dictionary, or of one for each channel.

    Per channel, the first dictionary says the `axis`, and one dictionary alone is of all channels.
    """

    def __init__(self, raw_overrides: MutableMapping[str, list[Override]]) -> None:
        self.overrides = raw_overrides

    # Looking up

    def has_per_tensor_overrides(self, tensor_name: str) -> bool:
        found = self.overrides.get(tensor_name)
        return bool(found) and "axis" not in self.overrides[tensor_name][0]

    def has_per_channel_overrides(self, tensor_name: str) -> bool:
        found = self.overrides.get(tensor_name)
        return bool(found) and "axis" in self.overrides[tensor_name][0]

    def overrides_scale_zp(self, tensor_name: str) -> bool:
        found = self.overrides.get(tensor_name)
        return bool(found) and {"scale", "zero_point"} <= self.overrides[tensor_name][0].keys()

    def get_per_tensor_overrides(self, tensor_name: str, default_val: Override | None = None) -> Override | None:
        """What is said of a tensor as a whole; ValueError where something is said of its channels."""
        found = self.overrides.get(tensor_name)
        if not found:
            return default_val
        if "axis" in found[0]:
            raise InvalidQuantization(
                f"TensorQuantOverrides of '{tensor_name}' are per channel, where one scale is needed: leave out 'axis'"
            )
        return found[0]

    def get_per_channel_overrides(
        self, tensor_name: str, default_val: list[Override] | None = None
    ) -> list[Override] | None:
        """What is said of the channels of a tensor; ValueError where they have no axis."""
        found = self.overrides.get(tensor_name) or default_val
        if found and "axis" not in found[0]:
            raise InvalidQuantization(
                f"TensorQuantOverrides of '{tensor_name}' have no 'axis' in the first dictionary, which says what its "
                "channels are"
            )
        return found or None

    def get_quant_types(self) -> set[QuantType]:
        """All types that the overrides name."""
        found: set[QuantType] = set()
        for one in (one for many in self.overrides.values() for one in many):
            found |= {part["quant_type"] for part in (one, one.get("convert", {})) if "quant_type" in part}
        return found

    def get_node_output_qtype_info(
        self, output_name: str, default_qtype: QuantType | None, default_symmetric: bool | None = None
    ) -> QuantTypeInfo:
        """The type that a node gives for an output."""
        found = (self.overrides.get(output_name) or [{}])[0]
        return QuantTypeInfo(found.get("quant_type", default_qtype), found.get("symmetric", default_symmetric))

    def get_node_input_qtype_info(
        self,
        input_name: str,
        node_name: str,
        default_qtype: QuantType | None,
        default_symmetric: bool | None = None,
        default_reduce_range: bool | None = None,
    ) -> QuantTypeInfo:
        """The type that a node gets for an input, which may be converted for it."""
        found = (self.overrides.get(input_name) or [{}])[0]
        if "convert" not in found:
            return QuantTypeInfo.load_from_dict(found, default_qtype, default_symmetric, default_reduce_range)
        convert = found["convert"]
        is_converted = convert.get("recv_nodes") is None or node_name in convert["recv_nodes"]
        kind = convert["quant_type"] if is_converted else found.get("quant_type", default_qtype)
        return QuantTypeInfo(kind, convert.get("symmetric", default_symmetric))

    # Changing

    def update_tensor_overrides(
        self,
        tensor_name: str,
        new_vals: Override,
        channels: Collection[int] | None = None,
        overwrite: bool = True,
    ) -> bool:
        """Add to what is said of a tensor or of some of its channels; False where that would overwrite something."""
        if not new_vals:
            return False
        changed = [
            one
            for channel, one in enumerate(self.overrides.get(tensor_name, []))
            if channels is None or channel in channels
        ]
        if not overwrite and any(new_vals.keys() & one.keys() for one in changed):
            return False
        if not self.overrides.get(tensor_name):
            changed = self.overrides[tensor_name] = [{}]
        for one in changed:
            one.update(new_vals)
        return True

    # Checking

    def check(
        self,
        weights: Mapping[str, Sequence[int]],
        tensors: Mapping[str, Collection[str]],
        activation_type: ir.DataType,
        weight_type: ir.DataType | None = None,
    ) -> None:
        """`InvalidQuantization` for overrides that contradict themselves or the model.

        `weights` are the shapes of constants, `tensors` the nodes that read each value. The types are those of tensors
        whose overrides name none; what depends on that of weights is not looked at where it is None.
        """
        for name, given in self.overrides.items():
            told = f"TensorQuantOverrides of '{name}'"
            if name not in weights and name not in tensors:
                raise InvalidQuantization(f"{told}: the model has no such tensor.{nearest(name, tensors)}")
            if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
                raise InvalidQuantization(f"{told}: a list of dictionaries is needed, not {type(given).__name__}")
            for one in given:
                _check_one(one, told, weight_type if name in weights else activation_type)
            if not any(given):
                continue
            if name not in weights and len(given) > 1:
                raise InvalidQuantization(f"{told}: one dictionary is needed for an activation, not {len(given)}")
            if len(given) > 1 or given[0].get("axis") is not None:
                _check_channels(given, told, weights.get(name))
            if name in weights:
                if any("convert" in one for one in given):
                    raise InvalidQuantization(f"{told}: 'convert' is for activations, and it is a constant")
            else:
                _check_activation(given[0], told, tensors[name], activation_type)

    def is_valid(
        self,
        initializers: Mapping[str, Any],
        activation_names: Collection[str],
        default_activation_qtype: Any,
    ) -> tuple[bool, str | None]:
        """`check` for initializers as messages: whether the overrides are valid, and what is wrong with them."""
        shapes = {name: tuple(tensor.dims) for name, tensor in initializers.items()}
        try:
            self.check(shapes, dict.fromkeys(activation_names, ()), ir_type(default_activation_qtype))
        except InvalidQuantization as error:
            return False, error.message
        return True, None

    # A mapping

    def pprint_str(self, indent: int | None = None) -> str:
        return json.dumps(self.overrides, default=str, indent=indent)

    def empty(self) -> bool:
        return not self.overrides

    def get_dict(self) -> MutableMapping[str, list[Override]]:
        return self.overrides

    def __setitem__(self, key: str, value: list[Override]) -> None:
        self.overrides[key] = value

    def __getitem__(self, key: str) -> list[Override]:
        return self.overrides[key]

    def __delitem__(self, key: str) -> None:
        del self.overrides[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.overrides)

    def __len__(self) -> int:
        return len(self.overrides)

    def __str__(self) -> str:
        return str(self.overrides)

    def __repr__(self) -> str:
        return f"TensorQuantOverridesHelper({self.overrides!r})"


def _check_one(given: Override, told: str, default: ir.DataType | None) -> None:
    """Check one dictionary by itself, and the `convert` in it; `default` is the type where it names none."""
    unknown = sorted(given.keys() - _KEYS)
    if unknown:
        raise InvalidQuantization(f"{told}: there is no key '{unknown[0]}'.{nearest(str(unknown[0]), _KEYS)}")
    if ("scale" in given) != ("zero_point" in given):
        raise InvalidQuantization(f"{told}: 'scale' and 'zero_point' are only given together")
    beside = [key for key in _BESIDE_SCALES if key in given]
    if "scale" in given and beside:
        raise InvalidQuantization(f"{told}: {', '.join(beside)} contradicts 'scale' and 'zero_point', which say it all")
    kind = ir_type(given["quant_type"]) if "quant_type" in given else default
    if "scale" in given:
        scale = np.asarray(given["scale"], np.float64)
        if scale.size != 1 or not (np.isfinite(scale).all() and (scale > 0).all()):
            raise InvalidQuantization(f"{told}: 'scale' must be one number above 0, not {given['scale']}")
        zero = np.asarray(given["zero_point"])
        if kind is not None and kind in INTEGERS:
            lowest, highest = type_range(kind)
            if zero.size != 1 or not lowest <= int(zero.reshape(-1)[0]) <= highest:
                raise InvalidQuantization(
                    f"{told}: 'zero_point' {given['zero_point']} is not in {lowest}..{highest} of {kind.name}"
                )
    bounds = [float(given[key]) for key in ("rmin", "rmax") if given.get(key) is not None]
    if not all(map(math.isfinite, bounds)) or (len(bounds) == 2 and bounds[0] > bounds[1]):
        raise InvalidQuantization(f"{told}: 'rmin' {given.get('rmin')} and 'rmax' {given.get('rmax')} are no range")
    if "convert" in given:
        if not isinstance(given["convert"], dict) or "quant_type" not in given["convert"]:
            raise InvalidQuantization(f"{told}: 'convert' must be a dictionary with a 'quant_type'")
        _check_one(given["convert"], f"{told}, convert", default)


def _check_channels(given: Sequence[Override], told: str, shape: Sequence[int] | None) -> None:
    """Check that the dictionaries of channels go together, and with the weight."""
    if shape is None:
        raise InvalidQuantization(f"{told} are per channel, which only constants can be: leave out 'axis'")
    axis = given[0].get("axis")
    if axis is None:
        raise InvalidQuantization(f"{told} are per channel, and the first dictionary has no 'axis'")
    if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        raise InvalidQuantization(f"{told}: 'axis' {axis} is none of a constant of shape {tuple(shape)}")
    if len(given) not in (1, shape[axis]):
        raise InvalidQuantization(
            f"{told}: one dictionary or one for each of the {shape[axis]} channels of axis {axis} is needed, not "
            f"{len(given)}"
        )
    first = given[0]
    if ("rmin" in first) != ("rmax" in first):
        raise InvalidQuantization(f"{told}: 'rmin' and 'rmax' are only given together for channels")
    for index, one in enumerate(given[1:], 1):
        for key in _OF_ALL_CHANNELS:
            if key in one and one[key] != first.get(key):
                raise InvalidQuantization(f"{told}: '{key}' of channel {index} is not that of channel 0")
        if "axis" in one and one["axis"] % len(shape) != axis % len(shape):
            raise InvalidQuantization(f"{told}: 'axis' of channel {index} is not that of channel 0")
        for pair in (("scale", "zero_point"), ("rmin", "rmax")):
            if (pair[0] in first) != (pair[0] in one and pair[1] in one):
                raise InvalidQuantization(
                    f"{told}: {' and '.join(pair)} are given for all channels or for none, and channel {index} differs"
                )


def _check_activation(given: Override, told: str, readers: Collection[str], activation_type: ir.DataType) -> None:
    """Check what is said of a tensor that differs from run to run."""
    for part in (given, given.get("convert", {})):
        if "reduce_range" in part:
            raise InvalidQuantization(f"{told}: 'reduce_range' is for constants, and it is an activation")
    if "convert" not in given:
        return
    own = ir_type(given["quant_type"]) if "quant_type" in given else activation_type
    if ir_type(given["convert"]["quant_type"]) == own:
        raise InvalidQuantization(f"{told}: it is {own.name} and converted to {own.name}: leave out 'convert'")
    wanted = given["convert"].get("recv_nodes")
    unknown = sorted(set(wanted or ()) - set(readers)) if readers else []
    if unknown:
        raise InvalidQuantization(
            f"{told}: 'recv_nodes' names {unknown[0]}, which does not read it.{nearest(unknown[0], readers)}"
        )
