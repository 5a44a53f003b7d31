"""What a session tells about one of its inputs or outputs."""

from __future__ import annotations

from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True, repr=False, eq=False)
class NodeArg:
    """An input, output or overridable initializer of a model.

    `type` is onnxruntime's text (``tensor(float)``). `shape` holds a number for a fixed dimension, the name of a
    symbolic one, None for an unknown one; it is ``[]`` for scalars, for tensors of unknown rank and for non-tensors.
    """

    name: str
    type: str
    shape: list[int | str | None]

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape!r})"
