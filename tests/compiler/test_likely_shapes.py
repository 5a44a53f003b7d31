"""What symbolic dimensions are taken for ahead of the first run."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from sardonyx.compiler.likely_shapes import likely_shapes
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import Inference


def likely(*shapes: list[str | int] | None, more: int = 0) -> list[tuple[int, ...]]:
    inference = Inference({"": 20}, 10)
    values = [ir.Value(name=str(index)) for index in range(len(shapes))]
    for value, shape in zip(values, shapes, strict=True):
        dims = None if shape is None else tuple(one if isinstance(one, int) else ir.SymbolicDim(one) for one in shape)
        inference.facts[value] = Fact(ir.TensorType(ir.DataType.FLOAT), dims)
    return likely_shapes(values, inference, more)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (["n", 3, 224, 224], (1, 3, 224, 224)),
        (["n", 3, "h", "w"], (1, 3, 512, 512)),
        (["n", "h", "w", 1], (1, 512, 512, 1)),
        (["n", 64, 56, 56], (16, 64, 56, 56)),
        (["n", "length"], (16, 16)),
        (["n", 3, "h", 7, 7], (16, 3, 16, 7, 7)),
        (None, ()),
    ],
)
def test_images_come_one_by_one(shape: list[str | int] | None, expected: tuple[int, ...]) -> None:
    assert likely(shape) == [expected]


def test_a_symbol_has_one_size_everywhere() -> None:
    assert likely(["n", "k"], ["n", 3, "h", "h"], ["h // 2", "2*n"]) == [(1, 16), (1, 3, 512, 512), (256, 2)]


def test_more_changes_every_symbol_but_no_number() -> None:
    assert likely(["n", 3, "h", 8], ["k"], more=1) == [(2, 3, 513, 8), (17,)]
