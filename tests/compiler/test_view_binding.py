"""Views while binding against the same views of arrays that hold something."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.compiler.binding import Binder, Buffer, Tensor
from sardonyx.compiler.native.movement.view import apply_view, reshaped_strides
from sardonyx.kernel.program import Kernel, View
from sardonyx.ops.framework.registry import operator_of
from tests.compiler.steps import Memory, new_binder

Array = np.ndarray[Any, Any]

DTYPES = [np.float32, np.bool_, np.float16, ml_dtypes.bfloat16, np.int64, np.complex128]


def tensor_like(array: Array, base: Array) -> Tensor:
    """The value that `array`, a view of `base`, is over a buffer that holds all of `base`."""
    item = array.dtype.itemsize
    offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    strides = tuple(stride // item for stride in array.strides)
    return Tensor(array.dtype, array.shape, strides, Buffer(base.nbytes), offset if array.size else 0)


def check(kernel: View, array: Array, base: Array, *others: Array | None) -> tuple[Binder, Memory, Tensor]:
    """The results of the bound view hold what `kernel.apply` gives; returns them."""
    binder, memory = new_binder(), Memory()
    data = tensor_like(array, base)
    memory.place(data.buffer)[...] = base.reshape(-1).view(np.uint8)
    known = [None if other is None else binder.constant(other) for other in others]
    found = apply_view(binder, kernel, [data, *known])
    memory.run(binder)
    expected = kernel.apply(array, *others)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(found) == len(expected)
    for tensor, wanted in zip(found, expected, strict=True):
        assert tensor.shape == wanted.shape
        assert tensor.dtype == wanted.dtype
        np.testing.assert_array_equal(memory.read(tensor), wanted)
    return binder, memory, found[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("apply", "is_reshape", "shape"),
    [
        (lambda x: x.transpose(2, 0, 1), False, (2, 3, 4)),
        (lambda x: x[:, ::-1, 1:3], False, (2, 3, 4)),
        (lambda x: x[..., 3:0:-2], False, (2, 3, 5)),
        (lambda x: x[:0], False, (2, 3)),
        (lambda x: (x[:, :1], x[:, 1:]), False, (2, 3)),
        (lambda x: np.broadcast_to(x, (4, 3, 2)), False, (3, 1)),
        (lambda x: x, False, ()),
        (lambda x: np.broadcast_to(x, (2, 2)), False, ()),
        (lambda x: x.reshape(1, 1), True, ()),
        (lambda x: x.reshape(6, 4), True, (2, 3, 4)),
        (lambda x: x.reshape(0, 7), True, (3, 0)),
    ],
)
def test_views_of_contiguous_values(apply: Any, is_reshape: bool, shape: tuple[int, ...], dtype: Any) -> None:
    base = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
    binder, _, _ = check(View(apply, is_reshape), base, base)
    assert not binder.steps


def test_a_reshape_of_strided_values_copies_only_where_it_must() -> None:
    base = np.arange(2 * 3 * 8, dtype=np.float32).reshape(2, 3, 8)
    for array, shape, copies in [
        (base[:, :, ::2], (6, 4), 0),
        (base[:, :, ::2], (3, 2, 4), 0),
        (base[:, :, ::2], (24,), 0),
        (base[:, :, :4], (6, 2, 2), 0),
        (base[:, :, :4], (24,), 1),
        (base.transpose(1, 0, 2), (3, 16), 1),
        (base.transpose(1, 0, 2), (3, 2, 2, 4), 0),
        (base[::-1], (2, 24), 0),
        (base[::-1], (48,), 1),
        (np.broadcast_to(base[0, 0, :1], (4, 6)), (3, 8), 0),
    ]:
        for is_reshape in (True, False):
            binder, _, _ = check(View(lambda x, to=shape: x.reshape(to), is_reshape), array, base)
            assert len(binder.steps) == copies


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_strides_of_reshapes(data: st.DataObject) -> None:
    """Strides are found exactly where NumPy reshapes without a copy."""
    factors = data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), max_size=5))
    base = np.zeros([size * 2 for size in factors], np.int8)
    index = tuple(
        data.draw(st.sampled_from([slice(0, size), slice(None, None, 2), slice(None, None, -2)])) for size in factors
    )
    array = base[index] if factors else base
    array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    target: list[int] = []
    for size in factors if data.draw(st.booleans()) else data.draw(st.permutations(factors)):
        if target and data.draw(st.booleans()):
            target[-1] *= size
        else:
            target.append(size)
    found = reshaped_strides(array.shape, array.strides, target)
    expected = array.reshape(target)
    if np.shares_memory(expected, base):
        assert found is not None
        assert [one for one, size in zip(found, target, strict=True) if size > 1] == [
            one for one, size in zip(expected.strides, target, strict=True) if size > 1
        ]
    else:
        assert found is None


def lowered(op_type: str, version: int, attributes: dict[str, Any], inputs: int, outputs: int = 1) -> Kernel:
    """The kernel of a node with float32 data and int64 other inputs."""
    values = [ir.Value(name=f"x{index}") for index in range(inputs)]
    node = ir.Node("", op_type, values, [ir.Attr(*_attribute(name, value)) for name, value in attributes.items()],
                   num_outputs=outputs)  # fmt: skip
    for index, value in enumerate(node.outputs):
        value.name = f"y{index}"
    node.version = version
    return operator_of(node).lower([np.dtype(np.float32), *[np.dtype(np.int64)] * (inputs - 1)])


def _attribute(name: str, value: Any) -> tuple[str, Any, Any]:
    if isinstance(value, int):
        return name, ir.AttributeType.INT, value
    return name, ir.AttributeType.INTS, value


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize(
    ("op_type", "version", "attributes", "others", "outputs"),
    [
        ("Reshape", 13, {}, [ints(2, -1)], 1),
        ("Reshape", 13, {}, [ints(0, 2, -1)], 1),
        ("Transpose", 13, {"perm": (2, 0, 1)}, [], 1),
        ("Transpose", 13, {}, [], 1),
        ("Flatten", 13, {"axis": 2}, [], 1),
        ("Flatten", 13, {"axis": 0}, [], 1),
        ("Unsqueeze", 13, {}, [ints(0, -1)], 1),
        ("Unsqueeze", 11, {"axes": (1,)}, [], 1),
        ("Identity", 13, {}, [], 1),
        ("Expand", 13, {}, [ints(2, 1, 1, 1)], 1),
        ("Slice", 13, {}, [ints(1), ints(3), ints(1)], 1),
        ("Slice", 13, {}, [ints(-1, 0), ints(-100, 2), ints(2, 0), ints(-2, 1)], 1),
        ("Slice", 13, {}, [ints(3), ints(1)], 1),
        ("Slice", 9, {"starts": (1,), "ends": (3,)}, [], 1),
        ("Split", 13, {"axis": 1}, [ints(1, 3)], 2),
        ("Split", 13, {"axis": -1}, [], 3),
        ("Split", 11, {"axis": 1, "split": (2, 2)}, [], 2),
        ("Dropout", 13, {}, [], 1),
        ("Dropout", 7, {}, [], 1),
        ("Concat", 13, {"axis": 1}, [], 1),
        ("Cast", 13, {"to": 1}, [], 1),
    ],
)
def test_operators_that_view(
    op_type: str, version: int, attributes: dict[str, Any], others: list[Array], outputs: int
) -> None:
    kernel = lowered(op_type, version, attributes, 1 + len(others), outputs)
    assert isinstance(kernel, View)
    for array, base in _examples():
        binder, _, _ = check(kernel, array, base, *others)
        assert len(binder.steps) <= kernel.is_reshape


def _examples() -> list[tuple[Array, Array]]:
    """Values of shape (3, 4, 6), contiguous and not."""
    plain = np.arange(3 * 4 * 6, dtype=np.float32).reshape(3, 4, 6)
    wide = np.arange(6 * 5 * 12, dtype=np.float32).reshape(6, 5, 12)
    turned = plain.reshape(6, 3, 4)
    return [(plain, plain), (wide[::-2, 1:, ::2], wide), (turned.transpose(1, 2, 0), turned)]


def test_squeeze_views() -> None:
    base = np.arange(12, dtype=np.float32).reshape(1, 3, 1, 4)
    for version, attributes, others, shape in [
        (13, {}, [ints(0, 2)], (3, 4)),
        (13, {}, [], (3, 4)),
        (11, {"axes": (2,)}, [], (1, 3, 4)),
    ]:
        kernel = lowered("Squeeze", version, attributes, 1 + len(others))
        assert isinstance(kernel, View)
        binder, _, result = check(kernel, base, base, *others)
        assert result.shape == shape
        assert not binder.steps


def test_an_absent_optional_input_keeps_its_place() -> None:
    kernel = lowered("Slice", 13, {}, 5)
    assert isinstance(kernel, View)
    base = np.arange(12, dtype=np.float32)
    _, _, result = check(kernel, base, base, ints(0), ints(12), None, ints(3))
    assert result.strides == (3,)


def test_contents_stay_known() -> None:
    binder = new_binder()
    data = binder.constant(np.arange(6, dtype=np.int64).reshape(2, 3))
    (result,) = apply_view(binder, View(lambda x: x[::-1].T), [data])
    assert result.array is not None
    np.testing.assert_array_equal(result.array, np.arange(6).reshape(2, 3)[::-1].T)
    assert not binder.steps


def test_unknown_contents_of_other_inputs_are_refused() -> None:
    binder = new_binder()
    data, shape = binder.new(np.dtype(np.float32), (6,)), binder.new(np.dtype(np.int64), (2,))
    with pytest.raises(ValueError, match="input 1 decides"):
        apply_view(binder, View(lambda x, to: x.reshape(to), True), [data, shape])


def test_values_larger_than_any_memory_have_views() -> None:
    binder = new_binder()
    data = binder.new(np.dtype(np.float32), (1 << 16, 1 << 14))
    (result,) = apply_view(binder, View(lambda x: x.T), [data])
    assert result.strides == (1, 1 << 14)
    assert result.offset == 0
