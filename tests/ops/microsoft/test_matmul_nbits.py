"""MatMulNBits against onnxruntime, and the cache of its real weight."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.graph.load import load_model
from sardonyx.ops.microsoft.matmul_nbits import MatMulNBits
from sardonyx.ops.microsoft.packed_weights import unpack
from tests.ops.microsoft import peer

N = 12


def weights(generator: np.random.Generator, length: int, bits: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    blocks = -(-length // block)
    b = generator.integers(0, 256, (N, blocks, block * bits // 8)).astype(np.uint8)
    return b, (generator.random((N, blocks)) * 0.1 + 0.01).astype(np.float32)


# onnxruntime has real zero points for 4 bits only.
KINDS = [(bits, zero) for bits in (2, 4, 8) for zero in ("none", "packed", "real") if bits == 4 or zero != "real"]


@pytest.mark.parametrize(("bits", "zero_points"), KINDS)
@pytest.mark.parametrize(("length", "block"), [(64, 32), (96, 16), (70, 32), (256, 128)])
@pytest.mark.parametrize("bias", [True, False])
def test_kinds_of_weights(bits: int, length: int, block: int, zero_points: str, bias: bool) -> None:
    generator = np.random.default_rng(1)
    b, scales = weights(generator, length, bits, block)
    blocks = scales.shape[1]
    zero = {
        "none": None,
        "packed": generator.integers(0, 256, (N, -(-blocks * bits // 8))).astype(np.uint8),
        "real": (generator.random((N, blocks)) * 15).astype(np.float32),
    }[zero_points]
    a = generator.standard_normal((2, 3, length)).astype(np.float32)
    c = generator.standard_normal(N).astype(np.float32) if bias else None
    attributes = {"K": length, "N": N, "bits": bits, "block_size": block}
    given = [a, b, scales, zero, None, c]
    if bits < 8:
        peer.compare("MatMulNBits", given, 1, attributes, constants=[1, 2, 3, 5], rtol=1e-4, atol=2e-4)
        return
    # onnxruntime computes 8 bits with int8 activations at some block sizes.
    (found,) = peer.run("MatMulNBits", given, 1, attributes, constants=[1, 2, 3, 5])
    origins = np.full(scales.shape, 128) if zero is None else zero.reshape(scales.shape)
    real = ((b.astype(np.float64) - origins[..., None]) * scales[..., None]).reshape(N, -1)[:, :length]
    np.testing.assert_allclose(found, a @ real.T + (0 if c is None else c), rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("constants", [[1, 2], []])
def test_int8_activations_may_differ_but_stay_close(constants: list[int]) -> None:
    generator = np.random.default_rng(2)
    b, scales = weights(generator, 128, 4, 32)
    a = generator.standard_normal((3, 128)).astype(np.float32)
    attributes = {"K": 128, "N": N, "bits": 4, "block_size": 32, "accuracy_level": 4}
    model = peer.one_node("MatMulNBits", [a, b, scales], 1, attributes, constants=constants)
    given = peer.feeds(model, [a, b, scales])
    (theirs,), (ours,) = peer.onnxruntime(model, given), peer.sardonyx(model, given)
    cosine = np.vdot(ours, theirs) / np.linalg.norm(ours) / np.linalg.norm(theirs)
    assert cosine > 0.9999


def test_groups_by_index() -> None:
    generator = np.random.default_rng(3)
    b, scales = weights(generator, 64, 4, 32)
    a = generator.standard_normal((2, 64)).astype(np.float32)
    groups = generator.integers(0, 2, 64).astype(np.int32)
    peer.compare(
        "MatMulNBits",
        [a, b, scales, None, groups],
        1,
        {"K": 64, "N": N, "bits": 4, "block_size": 32},
        constants=[1, 2, 4],
        atol=2e-4,
    )


def test_float16() -> None:
    generator = np.random.default_rng(4)
    b, scales = weights(generator, 64, 4, 32)
    a = generator.standard_normal((2, 64)).astype(np.float16)
    peer.compare(
        "MatMulNBits",
        [a, b, scales.astype(np.float16)],
        1,
        {"K": 64, "N": N, "bits": 4, "block_size": 32},
        constants=[1, 2],
        rtol=1e-2,
        atol=1e-2,
    )


def test_low_bits_come_first() -> None:
    np.testing.assert_array_equal(unpack(np.array([0b11100100], np.uint8), 2), [0, 1, 2, 3])
    np.testing.assert_array_equal(unpack(np.array([[0x21, 0x43]], np.uint8), 4), [[1, 2, 3, 4]])


def operator(constant: bool) -> tuple[MatMulNBits, np.ndarray, np.ndarray, np.ndarray]:
    """The node's operator, an activation and the weight's parts."""
    generator = np.random.default_rng(5)
    b, scales = weights(generator, 64, 4, 32)
    a = generator.standard_normal((2, 64)).astype(np.float32)
    attributes = {"K": 64, "N": N, "block_size": 32}
    model = peer.one_node("MatMulNBits", [a, b, scales], 1, attributes, constants=[1, 2] if constant else [])
    (node,) = load_model(model.SerializeToString()).model.graph
    return MatMulNBits(node, 1), a, b, scales


def test_a_constant_weight_is_made_real_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, a, b, scales = operator(constant=True)
    (first,) = found.run(a, b, scales)
    monkeypatch.setattr(found, "weight", lambda *parts: pytest.fail("the weight was computed again"))
    (second,) = found.run(a, b, scales)
    np.testing.assert_array_equal(first, second)


def test_a_weight_given_by_the_caller_is_read_at_every_run() -> None:
    found, a, b, scales = operator(constant=False)
    (first,) = found.run(a, b, scales)
    scales *= 2  # the same array with other contents
    (second,) = found.run(a, b, scales)
    np.testing.assert_allclose(second, 2 * first, rtol=1e-5, atol=1e-5)


def test_a_prepacked_weight_is_declined() -> None:
    b, scales = weights(np.random.default_rng(7), 64, 4, 32)
    attributes = {"K": 64, "N": N, "block_size": 32, "weight_prepacked": 1}
    with pytest.raises(Exception, match="weight_prepacked=1"):
        peer.run("MatMulNBits", [np.zeros((1, 64), np.float32), b, scales], 1, attributes)


def test_a_weight_of_the_wrong_size_is_named() -> None:
    b, scales = weights(np.random.default_rng(8), 64, 4, 32)
    with pytest.raises(Exception, match="'B' of shape"):
        peer.run("MatMulNBits", [np.zeros((1, 64), np.float32), b[:3], scales], 1, {"K": 64, "N": N, "block_size": 32})
