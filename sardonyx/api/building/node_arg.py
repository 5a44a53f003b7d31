"""What a session tells about one of its inputs or outputs."""

from __future__ import annotations

from collections.abc import Sequence


class NodeArg:
    """An input, output or overridable initializer of a model.

    `type` is onnxruntime's text (``tensor(float)``). `shape` holds a number for a fixed dimension, the name of a
    symbolic one, None for an unknown one; it is ``[]`` for scalars, for tensors of unknown rank and for non-tensors.
    Each `shape` is a list of its own, which callers may change.
    """

    __slots__ = ("_name", "_shape", "_type")

    def __init__(self, name: str, type: str, shape: Sequence[int | str | None]) -> None:
        self._name = name
        self._type = type
        self._shape = tuple(shape)

    @property
    def name(self) -> str:
        return self._name

    @property
    def type(self) -> str:
        return self._type

    @property
    def shape(self) -> list[int | str | None]:
        return list(self._shape)

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape!r})"
