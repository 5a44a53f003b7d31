"""Random quantised tensors, and the comparison of quantised outputs in steps of their scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.ops.microsoft import peer

Array = np.ndarray[Any, Any]

U8, I8, I32, F32 = 2, 3, 6, 1


def random(generator: np.random.Generator, dtype: type, *shape: int) -> Array:
    """Values over the whole range of an integer type."""
    kind = np.iinfo(dtype)
    return generator.integers(kind.min, kind.max + 1, shape).astype(dtype)


def scale(value: float) -> Array:
    return np.array(value, np.float32)


def steps(
    op_type: str,
    inputs: Sequence[Array | None],
    outputs: Sequence[int] | int = 1,
    attributes: Mapping[str, Any] | None = None,
    *,
    allowed: int = 0,
    share: float = 1.0,
    **options: Any,
) -> Array:
    """Run a node on both engines: integer outputs may differ by `allowed` in at most `share` of the elements."""
    model = peer.one_node(op_type, inputs, outputs, attributes, **options)
    given = peer.feeds(model, inputs)
    (expected,) = peer.onnxruntime(model, given)
    (found,) = peer.sardonyx(model, given)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    difference = np.abs(found.astype(np.int64) - expected.astype(np.int64))
    assert difference.max(initial=0) <= allowed
    assert np.count_nonzero(difference) <= share * difference.size
    return np.asarray(found)
