"""IR version and operator sets of a model: checked, completed, and stamped on every node."""

from __future__ import annotations

import os
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from sardonyx import errors
from sardonyx.graph.constants import nodes_of

_OLDEST_GUARANTEED = 7
_SMALLEST_IR = 3
_LARGEST = 2**31 - 1

# The newest version of each known domain; onnxruntime imports these for a model that uses one without saying so.
KNOWN_DOMAINS: Mapping[str, int] = {
    "": onnx.defs.onnx_opset_version(),
    "ai.onnx.ml": max(row[3] for row in onnx.helper.VERSION_TABLE),
    "ai.onnx.training": 1,
    "ai.onnx.preview": 1,
    "ai.onnx.preview.training": 1,
    "com.microsoft": 1,
    "com.microsoft.experimental": 1,
    "com.microsoft.nchwc": 1,
    "com.microsoft.dml": 1,
    "org.pytorch.aten": 1,
}


def check_versions(proto: onnx.ModelProto, allow_unreleased: bool | None, warnings: list[str]) -> None:
    """Check the IR version and the operator sets; the default domain is written as ``""`` afterwards.

    `allow_unreleased` turns an operator set newer than any that is known from an error into a warning; None asks the
    environment variable ALLOW_RELEASED_ONNX_OPSET_ONLY.
    """
    if allow_unreleased is None:
        allow_unreleased = os.environ.get("ALLOW_RELEASED_ONNX_OPSET_ONLY") == "0"
    if not proto.opset_import:
        raise errors.Fail(
            "Missing opset in the model. All ModelProtos MUST have at least one entry that specifies which version "
            "of the ONNX OperatorSet is being imported."
        )
    if not proto.HasField("ir_version"):
        raise errors.Fail("Missing model IR version.")
    if proto.ir_version > onnx.IR_VERSION:
        raise errors.Fail(
            f"Unsupported model IR version: {proto.ir_version}, max supported IR version: {onnx.IR_VERSION}"
        )
    proto.ir_version = max(proto.ir_version, _SMALLEST_IR)
    for function in proto.functions:
        for entry in function.opset_import:
            _check_number(entry)
    for entry in proto.opset_import:
        _check_number(entry)
        newest = KNOWN_DOMAINS.get(entry.domain)
        if newest is not None and entry.version > newest:
            text = _too_new(entry.domain or "ai.onnx", entry.version, newest)
            if not allow_unreleased:
                raise errors.Fail(text)
            warnings.append(text)
            entry.version = newest
        elif entry.domain == "" and entry.version < _OLDEST_GUARANTEED:
            warnings.append(
                "ONNX Runtime only *guarantees* support for models stamped with opset version 7 or above for opset "
                "domain 'ai.onnx'. Please upgrade your model to opset 7 or higher. For now, this opset "
                f"{entry.version} model may run depending upon legacy support of some older opset version operators."
            )


def _check_number(entry: onnx.OperatorSetIdProto) -> None:
    if entry.domain == "ai.onnx":
        entry.domain = ""
    if isinstance(entry.domain, bytes) or not -_LARGEST <= entry.version <= _LARGEST:
        raise errors.Fail(f"Invalid opset version {entry.version} of domain '{entry.domain}'")


def _too_new(domain: str, version: int, newest: int) -> str:
    return (
        "ONNX Runtime only *guarantees* support for models stamped with official released onnx opset versions. Opset "
        f"{version} is under development and support for this is limited. The operator schemas and or other "
        "functionality may change before next ONNX release and in this case ONNX Runtime will not guarantee backward "
        f"compatibility. Current official support for domain {domain} is till opset {newest}."
    )


def stamp_versions(model: ir.Model) -> None:
    """Give every node that has no version the one that its graph's or function's imports say.

    `errors.InvalidGraph` for a node of a domain that is neither imported nor known.
    """
    _stamp(model.graph, model.opset_imports, model)
    for function in model.functions.values():
        _stamp(function, {**model.opset_imports, **function.opset_imports}, model)


def _stamp(graph: ir.Graph | ir.Function, imports: Mapping[str, int], model: ir.Model) -> None:
    for node in nodes_of(graph):
        if node.version is not None:
            continue
        version = imports.get(node.domain)
        if version is None and node.op_identifier() in model.functions:
            version = 1
        elif version is None:
            version = KNOWN_DOMAINS.get(node.domain)
            if version is None:
                raise errors.InvalidGraph(
                    f'This is an invalid model. In Node, ("{node.name or ""}", {node.op_type}, "{node.domain}", -1) : '
                    f"Error No opset import for domain '{node.domain}'"
                )
            model.opset_imports[node.domain] = version
        node.version = version
