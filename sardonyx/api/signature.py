"""The inputs and outputs of a model as callers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from sardonyx import errors, log
from sardonyx.api.model_metadata import NO_VERSION, ModelMetadata
from sardonyx.api.node_arg import NodeArg
from sardonyx.graph.types import MapType, type_name
from sardonyx.ops.framework.facts import Fact

Dim = int | str | None


@dataclass(frozen=True, slots=True)
class Declared:
    """What the model file says of a value; `dims` is None where it states no rank."""

    name: str
    type: Any
    dims: tuple[Dim, ...] | None

    @classmethod
    def of(cls, value: ir.Value) -> Declared:
        return cls(value.name or "", value.type, _dims(value))

    def node_arg(self) -> NodeArg:
        return NodeArg(self.name, type_name(self.type), list(self.dims or ()) if _is_tensor(self.type) else [])

    @property
    def sizes(self) -> tuple[int | None, ...] | None:
        """The dimensions as a run checks them: a number, or None for any."""
        return None if self.dims is None else tuple(dim if isinstance(dim, int) else None for dim in self.dims)


@dataclass(frozen=True)
class Signature:
    """What callers see of a model. `order` are the names of all inputs as a run takes them, `overridable` those among
    them that have a value of their own; `declared_outputs` are the outputs as the model file states them."""

    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    overridable: tuple[Declared, ...]
    declared_outputs: tuple[Declared, ...]
    order: tuple[str, ...]
    metadata: ModelMetadata


def merged(declared: Declared, fact: Fact, symbols: set[str]) -> Declared:
    """An output's declaration together with what inference found.

    Declared names stay; numbers and the names of `symbols` (those that the model itself uses) fill what the model
    leaves open. A dimension in which the two contradict each other is unknown, and so is a rank.
    """
    kind = declared.type if declared.type is not None else fact.type
    if fact.shape is None:
        return Declared(declared.name, kind, declared.dims)
    inferred = tuple(_plain(dim, symbols) for dim in fact.shape)
    if declared.dims is None:
        return Declared(declared.name, kind, inferred)
    if len(inferred) != len(declared.dims):
        return Declared(declared.name, kind, None)
    return Declared(declared.name, kind, tuple(map(_merged_dim, declared.dims, inferred)))


def _merged_dim(declared: Dim, inferred: Dim) -> Dim:
    if isinstance(declared, int):
        return None if isinstance(inferred, int) and inferred != declared else declared
    return inferred if declared is None or isinstance(inferred, int) else declared


def _plain(dim: int | ir.SymbolicDim, symbols: set[str]) -> Dim:
    if isinstance(dim, int):
        return dim
    return dim.value if dim.value in symbols else None


def _is_tensor(kind: Any) -> bool:
    return not isinstance(kind, (ir.SequenceType, ir.OptionalType, MapType))


def _dims(value: ir.Value) -> tuple[Dim, ...] | None:
    if value.shape is None:
        return None
    plain = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    return tuple(None if isinstance(dim, int) and dim < 0 else dim for dim in plain)


def symbols_of(values: Sequence[Declared]) -> set[str]:
    """The names of dimensions that these values declare."""
    return {dim for value in values for dim in value.dims or () if isinstance(dim, str)}


def report_contradictions(
    declared: Mapping[ir.Value, Declared], facts: Mapping[ir.Value, Fact], strict: bool, logger: log.Logger
) -> bool:
    """Warn where declared and inferred shapes contradict each other, `Fail` where `strict`; whether some did."""
    contradicts = False
    for value, said in declared.items():
        fact = facts.get(value)
        if fact is None or fact.shape is None or said.dims is None:
            continue
        source = [dim if isinstance(dim, int) else -1 for dim in fact.shape]
        target = [dim if isinstance(dim, int) else -1 for dim in said.dims]
        same_rank = len(source) == len(target)
        wrong = [axis for axis, (a, b) in enumerate(zip(source, target, strict=False)) if a >= 0 and b >= 0 and a != b]
        if same_rank and not wrong:
            continue
        if strict:
            producer = value.producer()
            raise errors.Fail(
                f"Node:{producer.name if producer else ''} Output:{said.name} [ShapeInferenceError] "
                + _contradiction(source, target, wrong[0] if same_rank else None)
            )
        contradicts = True
        shown = [",".join(map(str, dims)) for dims in (source, target)]
        logger.warning(
            f"Error merging shape info for output. '{said.name}' source:{{{shown[0]}}} target:{{{shown[1]}}}. "
            "Falling back to lenient merge.",
            "inference",
        )
    return contradicts


def _contradiction(source: Sequence[int], target: Sequence[int], axis: int | None) -> str:
    if axis is None:
        return (
            "Mismatch between number of inferred and declared dimensions. "
            f"inferred={len(source)} declared={len(target)}"
        )
    return (
        "Can't merge shape info. Both inferred and declared dimension have values but they differ. "
        f"Inferred={source[axis]} Declared={target[axis]} Dimension={axis}"
    )


def metadata(model: ir.Model) -> ModelMetadata:
    """What the model file says about itself."""
    return ModelMetadata(
        producer_name=model.producer_name or "",
        graph_name=model.graph.name or "",
        domain=model.domain or "",
        description=model.doc_string or "",
        graph_description=model.graph.doc_string or "",
        version=NO_VERSION if model.model_version is None else model.model_version,
        custom_metadata_map=dict(model.metadata_props),
    )
