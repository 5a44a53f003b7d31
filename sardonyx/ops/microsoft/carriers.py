"""Operators that carry a compiled program for one vendor's device, which only that vendor's provider can run."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from sardonyx import errors
from sardonyx.ops.framework.operator import Operator, describe, operator
from sardonyx.ops.microsoft.rules import DOMAIN


@operator("EPContext", domain=DOMAIN)
class EPContext(Operator):
    """A graph that an execution provider has compiled ahead of time."""

    inputs: ClassVar[str] = "inputs*"
    outputs: ClassVar[str] = "outputs*"
    main_context: int = 1
    embed_mode: int = 1
    ep_cache_context: str | None = None
    ep_sdk_version: str | None = None
    hardware_architecture: str | None = None
    partition_name: str | None = None
    source: str | None = None
    notes: str | None = None
    max_size: int = 0
    onnx_model_filename: str | None = None

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        raise errors.NotImplemented(
            f"Node {describe(node)} holds a graph compiled for {self.source or 'another execution provider'}; load the "
            "model from which it was compiled"
        )


@operator("Snpe", domain=DOMAIN)
class Snpe(Operator):
    """A container of Qualcomm's Snapdragon Neural Processing Engine."""

    inputs: ClassVar[str] = "inputs*"
    outputs: ClassVar[str] = "outputs*"
    DLC: str
    notes: str | None = None
    snpe_version: str | None = None
    target_device: str | None = None

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        raise errors.NotImplemented(
            f"Node {describe(node)} holds a container for Qualcomm's SNPE, which its devices run; load the model "
            "from which it was converted"
        )
