"""From a node to its operator."""

from __future__ import annotations

import functools
import importlib
import pkgutil

import onnx_ir as ir

import sardonyx.ops
from sardonyx.ops.framework.fallback import Reference
from sardonyx.ops.framework.operator import Operator, find_class


@functools.cache
def load_families() -> None:
    """Import every file of `ops/`, so that its operators are registered; a new family needs no list entry."""
    for module in pkgutil.walk_packages(sardonyx.ops.__path__, "sardonyx.ops."):
        if ".framework" not in module.name:
            importlib.import_module(module.name)


def operator_of(node: ir.Node) -> Operator:
    """The operator of a node whose `version` is set; the fallback where no class is registered."""
    load_families()
    version = node.version or 1
    cls = find_class(node.domain, node.op_type, version) or Reference
    return cls(node, version)
