"""From a node to its operator."""

from __future__ import annotations

import functools

import onnx_ir as ir

import sardonyx.ops
from sardonyx.ops.framework.fallback import Reference
from sardonyx.ops.framework.operator import Operator, find_class
from sardonyx.ops.framework.registrations import Registrations

_FAMILIES = Registrations(sardonyx.ops, "operator", without="framework")


@functools.cache
def load_families() -> None:
    """Import every file of `ops/`, so that its operators are registered; a new family needs no list entry."""
    _FAMILIES.load_all()


def load_family(op_type: str, domain: str) -> None:
    """Import the files of `ops/` that register an operator of this name, except those of other domains if it is one of
    ONNX's own."""
    _FAMILIES.load(op_type, domains=domain != "")


def operator_of(node: ir.Node) -> Operator:
    """The operator of a node whose `version` is set; the fallback where no class is registered."""
    load_family(node.op_type, node.domain)
    version = node.version or 1
    cls = find_class(node.domain, node.op_type, version) or Reference
    return cls(node, version)
