"""MurmurHash3 against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.ops.microsoft.hashing import hash_bytes
from tests.ops.microsoft import peer

INPUTS: list[Any] = [
    np.array([[0, 1, -1], [2**31 - 1, -(2**31), 7]], np.int32),
    np.array([0, 2**32 - 1], np.uint32),
    np.array([0, 2**40 + 3, -5], np.int64),
    np.array([0, 2**63 + 9], np.uint64),
    np.array([0, -1.5, np.inf], np.float32),
    np.array([0, -1.5, 1e300], np.float64),
    np.array(["", "a", "ab", "abc", "abcd", "hello, world", "Größe 漢字"], object),
]


@pytest.mark.parametrize("x", INPUTS, ids=lambda x: str(x.dtype))
@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("seed", [0, 42])
def test_murmur_hash(x: Any, positive: int, seed: int) -> None:
    peer.compare("MurmurHash3", [x], [12 if positive else 6], {"positive": positive, "seed": seed})


def test_published_values() -> None:
    assert hash_bytes(b"", 0) == 0
    assert hash_bytes(b"", 1) == 0x514E28B7
    assert hash_bytes(b"test", 0) == 0xBA6BD213
    assert hash_bytes(b"Hello, world!", 0) == 0xC0363E43
