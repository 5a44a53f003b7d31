"""Conversions between the types of activations, where some of them are wider than the others.

What a node of QNN reads and makes is of one type. A caller names the tensors that need another one; the nodes around
them are given it too, and every tensor between two types is converted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import onnx_ir as ir
from onnx import ModelProto

from sardonyx.quantization.job import Job
from sardonyx.quantization.options import Options
from sardonyx.quantization.quant_utils import QuantType, ir_type
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.tensor_quant_overrides import Override, QuantTypeInfo, TensorQuantOverridesHelper
from sardonyx.transformers.large_weights import load_proto

logger = logging.getLogger(__name__)


@dataclass
class _Request:
    """The types that nodes need of a tensor: the one that makes it, and those of its readers that need another."""

    made: QuantTypeInfo | None = None
    read: QuantTypeInfo | None = None
    readers: set[str] = field(default_factory=set)


class MixedPrecisionTensorQuantOverridesFixer:
    """Completes overrides of single tensors, so that each node reads and makes one type."""

    def __init__(self, overrides: TensorQuantOverridesHelper, job: Job) -> None:
        self.overrides = overrides
        self._job = job
        self._quantized = frozenset(job.nodes())
        made = [value for node in job.graph for value in node.outputs]
        self._values = {value.name or "": value for value in (*job.graph.inputs, *made)}

    @staticmethod
    def create_from_model(
        overrides: TensorQuantOverridesHelper, model: ModelProto, default_activation_qtype: QuantType
    ) -> MixedPrecisionTensorQuantOverridesFixer:
        """The one of a message whose nodes are all quantised; `InvalidQuantization` for overrides that are wrong."""
        kind = ir_type(default_activation_qtype)
        job = Job(
            load_proto(model),
            Options.parse({"TensorQuantOverrides": overrides.get_dict()}),
            weight_type=kind,
            activation_type=kind,
            operators={node.op_type for node in model.graph.node},
        )
        return MixedPrecisionTensorQuantOverridesFixer(overrides, job)

    def apply(self, default_activation_qtype: QuantType, default_activation_symmetric: bool = False) -> None:
        """Change the overrides in place.

        An override that says how its tensor is converted is taken as it is. Types alone ask for conversions: whether
        the default is symmetric has no effect. `InvalidQuantization` where nodes need a
        tensor in types that one conversion cannot give, or a node that needs a conversion has no name.
        """
        for name, request in self._requests(default_activation_qtype).items():
            self._fulfil(name, request, default_activation_qtype)

    def _requests(self, default: QuantType) -> dict[str, _Request]:
        requests: dict[str, _Request] = {}
        for name, given in self.overrides.items():
            value = self._values.get(name)
            if not self._is_activation(value) or not given or "convert" in given[0]:
                continue
            assert value is not None
            info = QuantTypeInfo(given[0].get("quant_type", default), given[0].get("symmetric"))
            if info.quant_type == default:
                continue
            producer = value.producer()
            around = [producer] if producer is not None and producer in self._quantized else []
            for node in (*around, *self._readers(value)):
                self._request(requests, node, info)
        return requests

    def _is_activation(self, value: ir.Value | None) -> bool:
        """Whether a value is made of real numbers and differs from run to run."""
        return self._job.is_float(value) and not self._job.is_constant(value)

    def _readers(self, value: ir.Value) -> list[ir.Node]:
        """The quantised nodes that read a value, each once."""
        return list(dict.fromkeys(use.node for use in value.uses() if use.node in self._quantized))

    def _request(self, requests: dict[str, _Request], node: ir.Node, info: QuantTypeInfo) -> None:
        """Let a node read and make one type."""
        if not node.name:
            raise InvalidQuantization(
                f"The {node.op_type} that makes '{node.outputs[0].name}' has no name, by which conversions of types "
                "tell it from others: qnn_preprocess_model gives names"
            )
        for made in node.outputs:
            if made.name and self._is_activation(made):
                request = requests.setdefault(made.name, _Request())
                request.made = _agreed(request.made, info, f"'{made.name}' would be made")
        for read in node.inputs:
            if read is not None and read.name and self._is_activation(read):
                request = requests.setdefault(read.name, _Request())
                request.read = _agreed(request.read, info, f"'{read.name}' would be read")
                request.readers.add(node.name)

    def _fulfil(self, name: str, request: _Request, default: QuantType) -> None:
        given = self.overrides.setdefault(name, [{}])
        if not given:
            given.append({})
        own = given[0]
        if "quant_type" not in own:
            # A scale that the caller gave is for the type that the tensor has without other overrides.
            own |= {"quant_type": default} if request.made is None or "scale" in own else _entry(request.made)
        made = own["quant_type"]
        if request.made is not None and request.made.quant_type != made:
            raise InvalidQuantization(
                f"TensorQuantOverrides of '{name}' say {made.name}, and the node that makes it needs "
                f"{_name(request.made)} as another override asks: change one of them"
            )
        if "convert" in own:
            self._join(name, own, request)
            return
        every = {node.name or "" for node in self._readers(self._values[name])}
        rest = every - request.readers
        if request.read is None or request.read.quant_type == made:
            if rest and made != default:
                own["convert"] = {"quant_type": default, "recv_nodes": rest}
            return
        own["convert"] = {**_entry(request.read), "recv_nodes": request.readers}
        if rest and made != default:
            logger.warning(
                "'%s' is made in %s and converted to %s; %s read it as it is made, since a tensor has one conversion",
                *(name, made.name, _name(request.read), ", ".join(sorted(rest))),
            )

    @staticmethod
    def _join(name: str, own: Override, request: _Request) -> None:
        """Check that nodes get the type that they need by the conversion that the caller gave, or add them to it."""
        if request.read is None:
            return
        convert = own["convert"]
        receivers = convert.get("recv_nodes")
        if request.read.quant_type == convert["quant_type"]:
            if receivers is not None:
                convert["recv_nodes"] = set(receivers) | request.readers
            return
        converted = request.readers if receivers is None else request.readers & set(receivers)
        if converted or request.read.quant_type != own["quant_type"]:
            raise InvalidQuantization(
                f"TensorQuantOverrides of '{name}' convert it to {convert['quant_type'].name}, and "
                f"{', '.join(sorted(converted or request.readers))} need {_name(request.read)} as another override "
                "asks: change 'recv_nodes', or one of the types"
            )


def _agreed(one: QuantTypeInfo | None, other: QuantTypeInfo, told: str) -> QuantTypeInfo:
    """The type that two requests name."""
    if one is None:
        return other
    if one.quant_type != other.quant_type:
        raise InvalidQuantization(
            f"TensorQuantOverrides contradict each other: {told} in {_name(one)} and in {_name(other)}; what a node "
            "reads and makes is of one type"
        )
    return one


def _name(info: QuantTypeInfo) -> str:
    return "the default" if info.quant_type is None else info.quant_type.name


def _entry(info: QuantTypeInfo) -> Override:
    """A type as overrides write it."""
    entry: Override = {}
    info.save_to_dict(entry)
    return entry
