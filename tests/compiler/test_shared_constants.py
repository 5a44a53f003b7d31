"""Tests of constants that sessions share."""

from __future__ import annotations

import gc

import numpy as np
import onnx_ir as ir
import pytest

from sardonyx.compiler.bound_step import ComputedBuffer, ComputedConstant
from sardonyx.compiler.computed_constants import computed_constant
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.shared_constants import LEAST_BYTES, ConstantShares
from sardonyx.graph.computed_tensor import JoinedTensor, ScaledTensor
from sardonyx.runtime.memory.memory import MemoryLimit, MemoryLimitError

COUNT = LEAST_BYTES // 4


def numbers(seed: int = 0, count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


class Maker:
    """Makes something of an array and counts how often."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.times = array, 0

    def __call__(self) -> np.ndarray:
        self.times += 1
        return self.array * 2


def test_equal_contents_are_made_once() -> None:
    first, second = ConstantShares("a target"), ConstantShares("a target")
    one, other = Maker(numbers()), Maker(numbers())
    use = first.make(one.array, "twice", one)
    assert not use.is_shared
    again = second.make(other.array, "twice", other)
    assert again.array is use.array
    assert (one.times, other.times) == (1, 0)
    assert use.is_shared
    assert again.is_shared
    del again
    assert not use.is_shared
    np.testing.assert_array_equal(use.array, numbers() * 2)


def test_what_differs_is_made_anew() -> None:
    shares = ConstantShares("a target")
    maker = Maker(numbers())
    use = shares.make(maker.array, "twice", maker)
    for other, key, array in (
        (ConstantShares("another target"), "twice", numbers()),
        (shares, "another key", numbers()),
        (shares, "twice", numbers(1)),
        (shares, "twice", numbers().reshape(2, -1)),
        (shares, "twice", numbers().view(np.int32)),
    ):
        assert other.make(array, key, Maker(array)).array is not use.array
    small = numbers(count=COUNT - 1)
    kept = shares.make(small, "twice", Maker(small))
    assert shares.make(small.copy(), "twice", Maker(small)).array is not kept.array


def test_what_nobody_uses_is_gone() -> None:
    shares = ConstantShares("a target")
    maker = Maker(numbers(2))
    use = shares.make(maker.array, "twice", maker)
    del use
    gc.collect()
    shares.make(maker.array, "twice", maker)
    assert maker.times == 2


def test_what_only_looks_at_the_contents_is_not_shared() -> None:
    shares, array = ConstantShares("a target"), numbers(3)
    use = shares.make(array, "turned", lambda: array[::-1])
    assert use.shared is None
    array[0] = 7
    other = numbers(3)
    np.testing.assert_array_equal(shares.make(other, "turned", lambda: other[::-1]).array, other[::-1])


def test_what_is_made_of_something_made_is_shared_without_a_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ConstantShares("a target"), ConstantShares("a target")
    array = numbers(4)
    uses = [shares.make(array, "twice", lambda: array * 2) for shares in (first, second)]
    made = uses[0].array
    monkeypatch.setattr("sardonyx.compiler.shared_constants.content_identity", lambda _: pytest.fail("looked at"))
    again = [shares.make(made, "thrice", lambda: made * 3) for shares in (first, second)]
    assert again[0].array is again[1].array


def test_uses_count_against_the_limit_of_each_session() -> None:
    limits = [MemoryLimit(6 * LEAST_BYTES, name) for name in ("one", "other")]
    uses = []
    for limit in limits:
        with limit.applied():
            shares = ConstantShares("a target")
        uses.append(shares.make(numbers(5), "twice", Maker(numbers(5))))
        assert sum(limit.held.values()) == LEAST_BYTES
    large = numbers(6, 6 * COUNT)
    with limits[0].applied():
        shares = ConstantShares("a target")
    with pytest.raises(MemoryLimitError):
        shares.make(large, "twice", Maker(large))
    del uses
    gc.collect()
    assert not limits[0].held
    assert not limits[1].held


def _filters() -> ir.Tensor:
    return ir.Tensor(numbers(7).reshape(64, -1), name="w")


def test_computed_constants_that_kernels_read_as_they_are_are_shared() -> None:
    factor = np.linspace(1, 2, 64)
    tensors = [computed_constant(library(), ScaledTensor(_filters(), factor, "scaled")) for _ in range(2)]
    assert tensors[0].buffer.address == tensors[1].buffer.address
    np.testing.assert_allclose(tensors[0].array, numbers(7).reshape(64, -1) * factor[:, None], rtol=1e-6)
    other = computed_constant(library(), ScaledTensor(_filters(), factor + 1, "scaled"))
    assert other.buffer.address != tensors[0].buffer.address
    joined = [computed_constant(library(), JoinedTensor([_filters(), _filters()], "joined")) for _ in range(2)]
    assert joined[0].buffer.address == joined[1].buffer.address


def test_computed_constants_without_an_identity_are_each_session_s_own() -> None:
    tensors = [ComputedConstant(lambda: numbers(8), np.dtype(np.float32), (COUNT,)) for _ in range(2)]
    assert all(isinstance(one.buffer, ComputedBuffer) for one in tensors)
    assert tensors[0].buffer.address != tensors[1].buffer.address
