"""From a model's values to what callers see of them: declarations of the file, and what inference adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx import errors, log
from sardonyx.api.building.model_metadata import NO_VERSION, ModelMetadata
from sardonyx.api.building.signature import Declared, Dim, ValueKind
from sardonyx.graph.types import MapType, numpy_dtype, type_name
from sardonyx.ops.framework.facts import Fact


def declared(value: ir.Value) -> Declared:
    """What the model file says of a value."""
    return Declared(value.name or "", kind_of(value.type), _dims(value))


def kind_of(type_: Any) -> ValueKind | None:
    """A type of onnx-ir, or a map, as callers see it; None for none."""
    if type_ is None:
        return None
    name = type_name(type_)
    if isinstance(type_, ir.SequenceType):
        return ValueKind("sequence", name, item=kind_of(type_.elem_type))
    if isinstance(type_, ir.OptionalType):
        return ValueKind("optional", name, item=kind_of(type_.elem_type))
    if isinstance(type_, MapType):
        return ValueKind("map", name, item=kind_of(type_.value), key=numpy_dtype(type_.key))
    is_sparse = isinstance(type_, ir.SparseTensorType)
    return ValueKind("sparse_tensor" if is_sparse else "tensor", name, numpy_dtype(type_.dtype))


def merged(declared: Declared, fact: Fact, symbols: set[str]) -> Declared:
    """An output's declaration together with what inference found.

    Declared names stay; numbers and the names of `symbols` (those that the model itself uses) fill what the model
    leaves open. A dimension in which the two contradict each other is unknown, and so is a rank.
    """
    kind = declared.kind if declared.kind is not None else kind_of(fact.type)
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
) -> tuple[str, ...]:
    """Warn where declared and inferred shapes contradict each other, `Fail` where `strict`; the lines of the log."""
    lines = []
    for value, said in declared.items():
        fact = facts.get(value)
        if fact is None or fact.shape is None or said.dims is None or _is_constant(value):
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
        shown = [",".join(map(str, dims)) for dims in (source, target)]
        lines.append(
            f"Error merging shape info for output. '{said.name}' source:{{{shown[0]}}} target:{{{shown[1]}}}. "
            "Falling back to lenient merge."
        )
        logger.warning(lines[-1], "inference")
    return tuple(lines)


def _is_constant(value: ir.Value) -> bool:
    """Whether a value is that of a Constant, whose tensor alone says what shape it has."""
    node = value.producer()
    return node is not None and node.op_type == "Constant" and node.domain == ""


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


def model_texts(model: ir.Model) -> dict[str, str]:
    """The same as texts, in the form in which functions that choose devices get it."""
    own = metadata(model)
    return {
        "producer_name": own.producer_name,
        "producer_version": model.producer_version or "",
        "domain": own.domain,
        "model_version": str(own.version),
        "doc_string": own.description,
        "graph_name": own.graph_name,
        "graph_description": own.graph_description,
    }
