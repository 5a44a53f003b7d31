"""Transposed and deformable convolutions and Col2Im against their meaning in NumPy, for every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx.compiler.binding import Binder
from sardonyx.compiler.llvm.target import host_targets
from tests.compiler.layouts import bound, is_channels_last, kernel_of, operator_of, result_of
from tests.compiler.steps import VARIANTS, new_binder

Array = np.ndarray[Any, Any]

variants = pytest.mark.parametrize("variant", VARIANTS)

CASES = [
    ((2, 5, 7, 9), (5, 6, 2, 2), {"strides": (2, 2)}),
    ((1, 8, 7, 9), (8, 3, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((2, 32, 7, 9), (32, 70, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 32, 5, 6), (32, 70, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}),
    ((1, 6, 5, 6), (6, 2, 3, 3), {"group": 2, "strides": (2, 3), "dilations": (2, 1)}),
    ((1, 18, 5, 6), (18, 1, 4, 4), {"group": 18, "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((1, 12, 8, 8), (12, 1, 3, 3), {"group": 12, "pads": (1, 1, 1, 1)}),
    ((1, 6, 5, 6), (6, 2, 2, 2), {"group": 6, "strides": (2, 2)}),
    ((2, 4, 9), (4, 7, 5), {"strides": (3,)}),
    ((2, 4, 9), (4, 7, 3), {"strides": (3,)}),
    ((2, 33, 5, 40), (33, 20, 3, 2), {"strides": (3, 2)}),
    ((1, 4, 3, 4, 5), (4, 3, 2, 2, 2), {"strides": (2, 2, 2)}),
    ((1, 3, 3, 3), (3, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
    ((1, 3, 3, 3), (3, 2, 4, 3), {"auto_pad": "SAME_LOWER", "strides": (2, 2)}),
    ((1, 3, 3, 3), (3, 2, 3, 3), {"output_shape": (10, 8), "strides": (3, 2)}),
    ((1, 4, 6, 6), (4, 5, 3, 3), {"pads": (3, 3, 3, 3)}),
    ((1, 4, 6, 6), (4, 5, 1, 1), {"strides": (2, 2)}),
    ((1, 40, 6), (40, 40, 3), {"group": 2, "pads": (1, 1)}),
    ((2, 9, 5, 21), (9, 2, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((1, 9, 5, 21), (9, 2, 3, 3), {"strides": (3, 4), "output_padding": (1, 3), "dilations": (1, 3)}),
    ((2, 9, 17), (9, 1, 5), {"strides": (2,), "pads": (3, 0)}),
    ((1, 3, 2, 3, 19), (3, 2, 2, 2, 3), {"strides": (2, 1, 4)}),
    ((2, 20, 1, 1), (20, 35, 4, 4), {}),
    ((2, 20, 1, 1), (20, 6, 3, 3), {"pads": (1, 0, 0, 1)}),
    ((0, 4, 6, 6), (4, 5, 2, 2), {"strides": (2, 2)}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
]


def values(shape: tuple[int, ...], dtype: Any, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@variants
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("shape", "weights", "attributes"), CASES, ids=str)
def test_it_spreads_kernels(
    shape: tuple[int, ...], weights: tuple[int, ...], attributes: dict[str, Any], last: bool, variant: str
) -> None:
    operator = operator_of("ConvTranspose", 11, attributes)
    filters = weights[1] * attributes.get("group", 1)
    inputs = [values(shape, np.float32), values(weights, np.float32, 2), values((filters,), np.float32, 3)]
    (expected,) = operator.run(*(array.astype(np.float64) for array in inputs))
    found = result_of(kernel_of(operator, inputs), inputs, variant, last=last, constants=[1] if last else [])
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * float(np.prod(weights)) ** 0.5 * 8)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float16, 4e-3), (np.float64, 1e-13)])
@pytest.mark.parametrize(("shape", "weights", "attributes"), CASES[:8], ids=str)
def test_other_types(
    shape: tuple[int, ...], weights: tuple[int, ...], attributes: dict[str, Any], dtype: Any, tolerance: float
) -> None:
    operator = operator_of("ConvTranspose", 11, attributes)
    inputs = [values(shape, dtype), values(weights, dtype, 2)]
    (expected,) = operator.run(*(array.astype(np.float64) for array in inputs))
    found = result_of(kernel_of(operator, inputs), inputs)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * (1 + float(np.abs(expected).max())))


FILTERS = 24


def session_of(shape: tuple[int, ...], w: Array, attributes: dict[str, Any], kernels: str) -> ort.InferenceSession:
    """silu(ConvTranspose(x) + residual)."""
    graph = helper.make_graph(
        [
            helper.make_node("ConvTranspose", ["x", "w", "b"], ["c"], **attributes),
            helper.make_node("Add", ["c", "r"], ["s"]),
            helper.make_node("Sigmoid", ["s"], ["g"]),
            helper.make_node("Mul", ["s", "g"], ["y"]),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info(
                "r", TensorProto.FLOAT, ["n", "c", *(f"d{i}" for i in range(len(shape) - 2))]
            ),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(values((FILTERS,), np.float32), "b")],
    )
    options = ort.SessionOptions()
    options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    options.intra_op_num_threads = 1
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return ort.InferenceSession(model.SerializeToString(), options)


@pytest.mark.parametrize("variant", list(host_targets()))
@pytest.mark.parametrize(
    ("weights", "attributes"),
    [
        ((12, 24, 2, 2), {"strides": (2, 2)}),
        ((12, 24, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ((12, 24, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((12, 4, 3, 3), {"group": 6, "strides": (2, 1)}),
    ],
)
def test_epilogues(weights: tuple[int, ...], attributes: dict[str, Any], variant: str) -> None:
    shape, w = (2, 12, 6, 7), values(weights, np.float32)
    native, plain = (session_of(shape, w, attributes, kernels) for kernels in (variant, "numpy"))
    x = values(shape, np.float32, 5)
    operator = operator_of("ConvTranspose", 11, attributes)
    residual = values(operator.run(x, w)[0].shape, np.float32, 6)
    feeds = {"x": x, "r": residual}
    np.testing.assert_allclose(native.run(None, feeds)[0], plain.run(None, feeds)[0], rtol=1e-5, atol=2e-5)


def test_weights_may_be_computed() -> None:
    for shape, weights, attributes in CASES[:6]:
        operator = operator_of("ConvTranspose", 11, attributes)
        graph = helper.make_graph(
            [
                helper.make_node("Add", ["w", "w"], ["w2"]),
                helper.make_node("ConvTranspose", ["x", "w2"], ["y"], **attributes),
            ],
            "g",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
                helper.make_tensor_value_info("w", TensorProto.FLOAT, weights),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        session = ort.InferenceSession(model.SerializeToString())
        assert [step.kind for step in session._sess._plan.steps] == ["segment"]
        x, w = values(shape, np.float32), values(weights, np.float32, 2)
        (expected,) = operator.run(x, w + w)
        np.testing.assert_allclose(session.run(None, {"x": x, "w": w})[0], expected, rtol=1e-4, atol=1e-4)


def test_turned_weights_are_transformed_once() -> None:
    """What is made of a constant that was itself made of the model's weights is kept for other plans, too."""
    w = values((32, 40, 3, 3), np.float32)
    operator = operator_of("ConvTranspose", 11, {"pads": (1, 1, 1, 1)})
    kernel = kernel_of(operator, [w, w])
    first = new_binder()
    first.lasting = {id(w)}
    counts = []
    for _ in range(3):
        binder = Binder(first.library, lasting=first.lasting, prepared=first.prepared)
        x = binder.external(0, w.dtype, (1, 32, 16, 16))
        kernel.bind(binder, x, binder.constant(w))
        counts.append(len(first.prepared))
    assert counts[0] >= 2  # the turned weights, and what the convolution makes of them
    assert counts[0] == counts[1] == counts[2]
    turned = [made.buffer.array for _, made, _ in first.prepared.values()]
    assert any(source is one for source, _, _ in first.prepared.values() for one in turned)


def test_results_lie_channels_last() -> None:
    operator = operator_of("ConvTranspose", 11, {"strides": (2, 2)})
    inputs = [values((1, 8, 6, 7), np.float32), values((8, 24, 4, 4), np.float32)]
    binder, _, result = bound(kernel_of(operator, inputs), inputs, last=True, constants=[1])
    assert is_channels_last(result)
    assert len(binder.steps) == 2  # the product, and the sums


def test_shapes_that_do_not_fit() -> None:
    operator = operator_of("ConvTranspose", 11, {})
    for shape, weights, bias in [((1, 5, 4, 4), (4, 2, 3, 3), 2), ((1, 4, 4), (4, 2, 3, 3), 2)]:
        inputs = [values(shape, np.float32), values(weights, np.float32), values((bias,), np.float32)]
        with pytest.raises(ValueError, match="do not fit"):
            bound(kernel_of(operator, inputs), inputs)
    inputs = [values((1, 4, 4, 4), np.float32), values((4, 2, 3, 3), np.float32), values((3,), np.float32)]
    with pytest.raises(ValueError, match="there are 2 filters"):
        bound(kernel_of(operator, inputs), inputs)


@variants
@pytest.mark.parametrize(
    ("image", "block", "attributes", "places"),
    [
        ((10, 9), (3, 2), {"strides": (2, 1), "pads": (1, 0, 1, 1)}, 5 * 9),
        ((12,), (3,), {}, 10),
        ((8, 8), (4, 4), {"strides": (4, 4)}, 4),
        ((5, 6, 7), (2, 2, 3), {"dilations": (2, 1, 2)}, 3 * 5 * 3),
        ((4, 6, 6), (2, 3, 2), {"strides": (2, 3, 2)}, 2 * 2 * 3),
        ((11, 9), (5, 3), {"strides": (5, 3)}, 2 * 3),
        ((5, 70), (2, 5), {"pads": (0, 2, 1, 3)}, 5 * 71),
        ((150,), (9,), {"dilations": (3,), "pads": (30, 1)}, 157),
        ((2, 3), (2, 7), {"pads": (1, 5, 1, 5)}, 3 * 7),
        ((3,), (2,), {"dilations": (9,), "pads": (4, 4)}, 2),
    ],
)
def test_blocks_put_back(
    image: tuple[int, ...], block: tuple[int, ...], attributes: dict[str, Any], places: int, variant: str
) -> None:
    operator = operator_of("Col2Im", 18, attributes)
    data = values((2, 5 * int(np.prod(block)), places), np.float32)
    inputs = [data, np.array(image), np.array(block)]
    (expected,) = operator.run(*inputs)
    np.testing.assert_allclose(result_of(kernel_of(operator, inputs), inputs, variant), expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="does not hold blocks"):
        bound(kernel_of(operator, inputs), [data[:, :, :-1], *inputs[1:]])


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_blocks_of_other_types_put_back(dtype: Any) -> None:
    for image, block, attributes, places in (
        ((9, 20), (3, 3), {"pads": (1, 1, 1, 1)}, 9 * 20),
        ((6, 8), (3, 2), {"strides": (3, 2)}, 8),
    ):
        operator = operator_of("Col2Im", 18, attributes)
        inputs = [values((1, 3 * int(np.prod(block)), places), dtype), np.array(image), np.array(block)]
        (expected,) = operator.run(inputs[0].astype(np.float64), *inputs[1:])
        found = result_of(kernel_of(operator, inputs), inputs, VARIANTS[0])
        np.testing.assert_allclose(found.astype(np.float64), expected, rtol=np.finfo(dtype).eps, atol=1e-14)


def test_blocks_put_back_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    data = values((2, 5 * 6, 45), np.float32)
    operator = operator_of("Col2Im", 18, {"strides": (2, 1), "pads": (1, 0, 1, 0), "dilations": (1, 2)})
    expected = torch.nn.functional.fold(
        torch.from_numpy(data), (10, 11), (3, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 1)
    )
    (found,) = operator.run(data, np.array([10, 11]), np.array([3, 2]))
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-6)


DEFORMED = [
    ((2, 6, 9, 8), (4, 3, 3, 3), {"group": 2, "offset_group": 3, "pads": (1, 1, 1, 1)}, (9, 8), True),
    ((1, 4, 9, 8), (5, 4, 3, 2), {"strides": (2, 1), "dilations": (1, 2)}, (4, 6), False),
    ((1, 40, 5, 6), (8, 40, 1, 1), {}, (5, 6), True),
    ((1, 2, 12), (3, 2, 3), {}, (10,), True),
]


@variants
@pytest.mark.parametrize(("shape", "weights", "attributes", "places", "masked"), DEFORMED, ids=str)
def test_deformed_windows(
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    attributes: dict[str, Any],
    places: tuple[int, ...],
    masked: bool,
    variant: str,
) -> None:
    operator = operator_of("DeformConv", 19, attributes)
    taps = int(np.prod(weights[2:])) * attributes.get("offset_group", 1)
    offset = 2 * values((shape[0], taps * (len(shape) - 2), *places), np.float32, 4)
    mask = values((shape[0], taps, *places), np.float32, 5) if masked else None
    inputs = [values(shape, np.float32), values(weights, np.float32, 2), offset, None, mask]
    inputs[3] = values((weights[0],), np.float32, 3)
    (expected,) = operator.run(*inputs)
    for last in (False, True):
        constants = [1] if last else []
        found = result_of(kernel_of(operator, inputs), inputs, variant, last=last, constants=constants)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="the offset has shape"):
        bound(kernel_of(operator, inputs), [*inputs[:2], offset[..., :-1], *inputs[3:]])


@pytest.mark.parametrize("constants", [[], [1]])
def test_deformed_windows_of_float16(constants: list[int]) -> None:
    operator = operator_of("DeformConv", 19, {"pads": (1, 1)})
    inputs = [values((1, 4, 9), np.float16), values((3, 4, 3), np.float16, 2), values((1, 3, 9), np.float16, 4)]
    (expected,) = operator.run(*inputs)
    found = result_of(kernel_of(operator, inputs), inputs, constants=constants)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float32), expected.astype(np.float32), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("pads", [None, (1, 0, 1, 2)])
def test_pads_as_an_input(pads: tuple[int, ...] | None) -> None:
    operator = operator_of("ConvTransposeWithDynamicPads", 1, {"strides": (2, 2)}, "com.microsoft")
    given = None if pads is None else np.array(pads)
    inputs = [values((1, 4, 5, 6), np.float32), values((4, 3, 3, 3), np.float32, 2), given, values((3,), np.float32, 3)]
    (expected,) = operator.run(*inputs)
    found = result_of(kernel_of(operator, inputs), inputs)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_random_attributes(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def numbers(lowest: int, highest: int, count: int) -> tuple[int, ...]:
        return tuple(rng.integers(lowest, highest + 1, count).tolist())

    for _ in range(12):
        rank = int(rng.integers(1, 4))
        group, depth, filters = int(rng.choice([1, 1, 2, 3])), *numbers(1, 20, 2)
        size, kernel, strides, dilations = (numbers(1, most, rank) for most in (9, 5, 3, 2))
        pads = numbers(0, 2, 2 * rank)
        attributes = {"strides": strides, "dilations": dilations, "group": group, "pads": pads}
        operator = operator_of("ConvTranspose", 11, attributes)
        channels = group * depth
        inputs = [values((2, channels, *size), np.float32, seed), values((channels, filters, *kernel), np.float32)]
        kernels, last = kernel_of(operator, inputs), bool(rng.integers(2))
        try:
            (expected,) = operator.run(*(array.astype(np.float64) for array in inputs))
        except ValueError:
            with pytest.raises(ValueError, match="the pads cut more"):
                bound(kernels, inputs)
            continue
        found = result_of(kernels, inputs, last=last, constants=[1] if last else [])
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * (1 + np.abs(expected).max(initial=0)))
