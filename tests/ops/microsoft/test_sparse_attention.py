"""SparseAttention against onnxruntime, whose kernel needs past and present in one buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(8)
BATCH, HEADS, KEY_HEADS, SIZE, LONGEST = 2, 4, 2, 16, 64
BASE = {"num_heads": HEADS, "kv_num_heads": KEY_HEADS, "sparse_block_size": 16}
# The two layouts of four by four blocks in the operator's documentation, in compressed rows.
ROWS = np.array([[0, 1, 3, 5, 8], [0, 1, 3, 6, 9]], np.int32)
COLUMNS = np.array([[0, 0, 1, 1, 2, 1, 2, 3, -1], [0, 0, 1, 0, 1, 2, 0, 2, 3]], np.int32)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


ANGLES = RNG.random((LONGEST, SIZE // 2)).astype(np.float32) * 6
ROTATION = [np.cos(ANGLES), np.sin(ANGLES)]


def in_place(given: list[np.ndarray | None], attributes: dict[str, Any]) -> list[np.ndarray]:
    """onnxruntime's outputs, the caches bound to the same memory as input and output."""
    ort = pytest.importorskip("onnxruntime")
    model = peer.one_node("SparseAttention", given, 3, attributes)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = {name: ort.OrtValue.ortvalue_from_numpy(array.copy()) for name, array in peer.feeds(model, given).items()}
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("out0")
    binding.bind_ortvalue_output("out1", values["in3"])
    binding.bind_ortvalue_output("out2", values["in4"])
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()


@pytest.mark.parametrize("interleaved", [None, 0, 1])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("lengths", [(40, 40, 40), (1, 60, 60)])
def test_sparse_attention(interleaved: int | None, packed: bool, lengths: tuple[int, int, int]) -> None:
    length, *ends = lengths
    parts: list[np.ndarray | None] = [normal(BATCH, length, heads * SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    if packed:
        parts = [np.concatenate([part for part in parts if part is not None], axis=-1), None, None]
    caches = [normal(BATCH, KEY_HEADS, LONGEST, SIZE) for _ in range(2)]
    given = [*parts, *caches, ROWS, COLUMNS, i32(max(ends)), i32(*ends)]
    attributes = dict(BASE)
    if interleaved is not None:
        given += ROTATION
        attributes |= {"do_rotary": 1, "rotary_interleaved": interleaved}
    found = peer.run("SparseAttention", given, 3, attributes)
    peer.check(found, in_place(given, attributes), 1e-4, 1e-5)


def test_lengths_beyond_the_cache_are_refused() -> None:
    caches = [normal(1, KEY_HEADS, 32, SIZE) for _ in range(2)]
    given = [normal(1, 1, 8 * SIZE), None, None, *caches, ROWS, COLUMNS, i32(33), i32(33)]
    with pytest.raises(Exception, match="do not fit a cache of 32"):
        peer.run("SparseAttention", given, 3, BASE)


def test_entries_of_different_lengths_equal_single_ones() -> None:
    """onnxruntime leaves parts of the shorter entry's output unset here, so single entries are the oracle."""
    query, caches = normal(2, 1, 8 * SIZE), [normal(2, KEY_HEADS, LONGEST, SIZE) for _ in range(2)]
    found = peer.run("SparseAttention", [query, None, None, *caches, ROWS, COLUMNS, i32(60), i32(60, 41)], 3, BASE)
    for entry, end in enumerate((60, 41)):
        own = [array[entry : entry + 1].copy() for array in (query, *caches)]
        given = [own[0], None, None, *own[1:], ROWS, COLUMNS, i32(end), i32(end)]
        expected = in_place(given, BASE)
        peer.check([array[entry : entry + 1] for array in found], expected, 1e-4, 1e-5)
