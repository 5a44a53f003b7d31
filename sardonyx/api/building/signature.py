"""The inputs and outputs of a model as callers see them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from sardonyx.api.building.model_metadata import ModelMetadata
from sardonyx.api.building.node_arg import NodeArg
from sardonyx.light_dataclass import dataclass

Dim = int | str | None


@dataclass(frozen=True, slots=True)
class ValueKind:
    """The type of an input or output: what it is, and its `name` as onnxruntime shows it (``seq(tensor(float))``).

    `dtype` holds the elements of a tensor, `key` the keys of a map; `item` is the type of a sequence's items, of a
    map's values, or of what is optional.
    """

    form: Literal["tensor", "sparse_tensor", "sequence", "map", "optional"]
    name: str
    dtype: np.dtype[Any] | None = None
    item: ValueKind | None = None
    key: np.dtype[Any] | None = None

    @property
    def has_shape(self) -> bool:
        """Whether it is a tensor, or an optional one."""
        return "tensor" in self.form or (self.form == "optional" and self.item is not None and self.item.has_shape)


@dataclass(frozen=True, slots=True)
class Declared:
    """What the model file says of a value; `dims` is None where it states no rank."""

    name: str
    kind: ValueKind | None
    dims: tuple[Dim, ...] | None

    def node_arg(self) -> NodeArg:
        """What `get_inputs` and `get_outputs` show; the type is known, as inference leaves none open."""
        assert self.kind is not None
        return NodeArg(self.name, self.kind.name, list(self.dims or ()) if self.kind.has_shape else [])

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
