"""Sequences against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peer import compare, ours

RNG = np.random.default_rng(3)
ITEMS = [RNG.normal(size=(rows, 3)).astype(np.float32) for rows in (2, 1, 4)]
NEW = RNG.normal(size=(2, 2)).astype(np.float32)


@pytest.mark.parametrize("position", [np.array(0), np.array(-1), np.array([1]), np.array(-3), np.array(2, np.int32)])
def test_positions(position: Any) -> None:
    compare("SequenceAt", [ITEMS, position])
    compare("SequenceErase", [ITEMS, position])
    compare("SequenceInsert", [ITEMS, NEW, position])


@pytest.mark.parametrize("position", [4, -4])
@pytest.mark.parametrize("op_type", ["SequenceAt", "SequenceErase", "SequenceInsert"])
def test_positions_out_of_range(op_type: str, position: int) -> None:
    inputs = [ITEMS, *([NEW] if op_type == "SequenceInsert" else []), np.array(position)]
    with pytest.raises(errors.InvalidArgument, match="Invalid sequence index"):
        ours(op_type, inputs)


def test_without_a_position() -> None:
    compare("SequenceErase", [ITEMS])
    compare("SequenceInsert", [ITEMS, NEW])
    compare("SequenceInsert", [ITEMS, NEW, np.array(3)])
    compare("SequenceLength", [ITEMS])
    compare("SequenceConstruct", ITEMS)


@pytest.mark.parametrize("split", [None, np.array(2), np.array(9), np.array([2, 3]), np.array([1, 0, 4], np.int32)])
@pytest.mark.parametrize("rows", [5, 0])
def test_split(split: Any, rows: int) -> None:
    if rows == 0 and split is not None and split.ndim:
        split = np.array([0, 0])
    data = RNG.integers(0, 9, (rows, 4))
    for values in (data, data.astype(np.float32)):
        compare("SplitToSequence", [values] if split is None else [values, split], axis=0)
    if split is None:
        compare("SplitToSequence", [data], axis=-1, keepdims=0)


@pytest.mark.parametrize("split", [[2, 2], [-1, 6]])
def test_split_refuses(split: list[int]) -> None:
    with pytest.raises(errors.OnnxRuntimeError, match="Cannot split"):
        ours("SplitToSequence", [np.zeros((5, 4), np.float32), np.array(split)])


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_concat(axis: int) -> None:
    equal = [ITEMS[0], ITEMS[0] + 1]
    compare("ConcatFromSequence", [equal], axis=axis, new_axis=1)
    if -2 <= axis < 2:
        compare("ConcatFromSequence", [equal], axis=axis)
    if axis == 1:
        with pytest.raises(errors.OnnxRuntimeError):
            ours("ConcatFromSequence", [ITEMS], axis=axis)
