"""Convolution by Winograd's algorithm: exact transforms, errors against float64, tails, padding, epilogues, choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.llvm.kernels.convolution.winograd_transforms import SCHEMES, Scheme, Transforms
from sardonyx.compiler.llvm.target import host_target
from sardonyx.compiler.llvm.types import F32
from sardonyx.compiler.native.convolution import winograd
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.convolution.winograd_calls import declined, predict
from sardonyx.compiler.native.convolution.winograd_choice import Sizes, choose, cut_of, cuts
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.kernel.expr import Input, exp
from sardonyx.ops.windows import WindowAttributes
from tests.compiler.machines import described
from tests.compiler.steps import VARIANTS, Array, Memory, new_binder

REAL = np.dtype(np.float32)
PRODUCTS = {"float32": "f32", "float16": "f16", "bfloat16": "bfloat16"}
# By stride and outputs of a tile: errors relative to the largest result that these tests do not nearly reach.
BOUNDS = {(1, 4): 4e-6, (1, 2): 1.5e-6, (2, 4): 2e-6, (2, 2): 1.5e-6}
EVERY = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=lambda one: f"stride {one.stride}, m {one.outputs}")


def bound(scheme: Scheme) -> float:
    return BOUNDS[scheme.stride, scheme.outputs]


@dataclass(frozen=True)
class Exact:
    """A rational number that looks like a value of the kernel language."""

    number: Fraction

    type = F32

    def __add__(self, other: Any) -> Exact:
        return Exact(self.number + _fraction(other))

    def __sub__(self, other: Any) -> Exact:
        return Exact(self.number - _fraction(other))

    def __mul__(self, other: Any) -> Exact:
        return Exact(self.number * _fraction(other))


def _fraction(value: Any) -> Fraction:
    return value.number if isinstance(value, Exact) else Fraction(value)


class ExactArithmetic:
    """The part of the builder that transforms use; notes their constants."""

    def __init__(self) -> None:
        self.constants: list[float] = []

    def constant(self, type_: Any, number: float) -> Exact:
        self.constants.append(number)
        return Exact(Fraction(number))

    def fma(self, a: Exact, b: Exact, c: Exact) -> Exact:
        return Exact(a.number * b.number + c.number)


def exact_matrix(transform: Callable[[Any, Sequence[Any]], Sequence[Any]], count: int, k: Any) -> list[list[Fraction]]:
    """The columns of a transform: what it makes of each unit vector."""
    return [
        [value.number for value in transform(k, [Exact(Fraction(int(i == j))) for j in range(count)])]
        for i in range(count)
    ]


ALONG = dict.fromkeys(transforms for scheme in SCHEMES.values() for transforms in scheme.along)


@pytest.mark.parametrize("transforms", ALONG, ids=lambda one: f"F({one.outputs}, {one.taps})")
def test_transforms_are_those_of_a_correlation(transforms: Transforms) -> None:
    """Exactly, but for the division of the taps; and all constants of the other two are float32."""
    k = ExactArithmetic()
    inputs = exact_matrix(transforms.of_inputs, transforms.size, k)
    outputs = exact_matrix(transforms.of_outputs, transforms.size, k)
    assert all(float(np.float32(number)) == number for number in k.constants)
    taps = exact_matrix(transforms.of_taps, transforms.taps, k)
    for i, at_input in enumerate(inputs):
        for t, at_tap in enumerate(taps):
            shared = transforms.filters == 1
            products = [a * at_tap[0 if shared else point] for point, a in enumerate(at_input)]
            for y in range(transforms.outputs):
                found = sum(product * outputs[point][y] for point, product in enumerate(products))
                assert abs(found - int(i == y + t)) < 1e-14


@EVERY
def test_schemes_number_points_and_filters(scheme: Scheme) -> None:
    """Filters that several products share are one, and are needed one after the other."""
    assert scheme.size == scheme.stride * (scheme.outputs - 1) + 3
    assert len(scheme.filter_numbers) == scheme.points
    assert sorted(set(scheme.filter_numbers)) == list(range(scheme.filters))
    assert list(scheme.filter_numbers) == sorted(scheme.filter_numbers)
    products = {(1, 4): 36, (1, 2): 16, (2, 4): 81, (2, 2): 25}
    assert scheme.points == products[scheme.stride, scheme.outputs]


@EVERY
def test_filters_are_transformed_in_float64(scheme: Scheme) -> None:
    rng = np.random.default_rng(0)
    along = np.zeros((3, sum(transforms.filters for transforms in scheme.along)))
    first = 0
    for phase, transforms in enumerate(scheme.along):
        matrix = np.array(exact_matrix(transforms.of_taps, transforms.taps, ExactArithmetic()), np.float64)
        along[phase :: scheme.stride, first : first + transforms.filters] = matrix
        first += transforms.filters
    for filters, channels in [(37, 5), (16, 70), (65, 1)]:
        w = rng.standard_normal((filters, channels, 3, 3)).astype(np.float32)
        whole = np.einsum("ip,fcij,jq->pqcf", along, w.astype(np.float64), along)
        library = new_binder().library
        found = winograd.packed_filters(library, w, scheme)
        panel = library.target.lanes(F32) * 2
        panels = found.reshape(-1, scheme.filters, channels, panel).transpose(1, 2, 0, 3)
        columns = panels.reshape(scheme.filters, channels, -1)
        assert not columns[..., filters:].any()
        expected = whole.reshape(-1, channels, filters)
        numbers = [expected[number] for number in order_of_filters(scheme)]
        np.testing.assert_allclose(columns[..., :filters], np.stack(numbers), rtol=1.2e-7, atol=1e-14)


def order_of_filters(scheme: Scheme) -> list[int]:
    """The filters in their order, numbered row by row of all."""
    counts = [transforms.filters for transforms in scheme.along]
    starts = [sum(counts[:phase]) for phase in range(len(counts))]
    return [
        (starts[a] + i) * sum(counts) + starts[b] + j
        for a in range(len(counts))
        for b in range(len(counts))
        for i in range(counts[a])
        for j in range(counts[b])
    ]


def correlated(x: Array, w: Array, pads: Sequence[int], stride: int = 1) -> Array:
    """The convolution in float64, product by product, so that numbers that are not finite stay where they belong."""
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    lines, columns = ((size - 3) // stride + 1 for size in wide.shape[2:])
    total = np.zeros((x.shape[0], w.shape[0], lines, columns))
    with np.errstate(invalid="ignore"):
        for i in range(3):
            for j in range(3):
                part = wide[:, :, i::stride, j::stride][:, :, :lines, :columns]
                total += np.einsum("nchw,fc->nfhw", part, w[:, :, i, j].astype(np.float64))
    return total


def tensors(
    shape: tuple[int, int, int, int], filters: int, seed: int = 0, dtype: Any = np.float32
) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((filters, shape[1], 3, 3)) / (9 * shape[1]) ** 0.5
    return rng.standard_normal(shape).astype(dtype), w.astype(dtype)


def channels_last(memory: Memory, binder: Binder, array: Array, room: int = 0) -> Tensor:
    """[n, c, h, w] in the memory of a plan as [n, h, w, c + room]."""
    n, c, h, w = array.shape
    buffer = binder.new(array.dtype, (n, h, w, c + room))
    memory.put(buffer, np.asarray(np.nan).astype(array.dtype) if room else 0)
    part = buffer.reshaped((n, h, w, c), buffer.strides, offset=room // 2 * array.itemsize)
    tensor = transposed(part, (0, 3, 1, 2))
    memory.put(tensor, array)
    return tensor


def call_of(
    x: Tensor, w: Tensor, bias: Tensor | None, pads: Sequence[int], stride: int, epilogue: Epilogue | None = None
) -> ConvolutionCall:
    windows = WindowAttributes.of((3, 3), (stride, stride), None, pads, "NOTSET").windows(x.shape[2:])
    return ConvolutionCall(x, w, bias, windows, 1, epilogue, PRODUCTS[x.dtype.name])


def convolved(
    x: Array, w: Array, pads: Sequence[int], scheme: Scheme, block: int, variant: str = "", *, one_by_one: bool = False
) -> Array:
    """The convolution by a scheme, `block` tiles a chunk."""
    binder, memory = new_binder(variant), Memory()
    call = call_of(channels_last(memory, binder, x), binder.constant(w), None, pads, scheme.stride)
    cut = cut_of(binder.target, winograd.sizes_of(call), scheme, block)
    (y,) = winograd.bind_cut(binder, call, scheme, cut)
    memory.run(binder, one_by_one=one_by_one)
    return memory.read(y).copy()


@pytest.mark.parametrize("variant", VARIANTS)
@EVERY
def test_variants_and_sizes(variant: str, scheme: Scheme) -> None:
    """Odd numbers of everything: channels, filters, lines, columns, tiles of a block."""
    cases = [((1, 16, 8, 8), 32, (1, 1, 1, 1), 40), ((2, 19, 7, 11), 37, (1, 0, 2, 1), 3)]
    for shape, filters, pads, block in cases:
        x, w = tensors(shape, filters)
        expected = correlated(x, w, pads, scheme.stride)
        found = convolved(x, w, pads, scheme, block, variant)
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= bound(scheme) * np.abs(expected).max()


def test_random_sizes_in_any_order_of_chunks() -> None:
    """The same bits, too, for every cut into blocks of tiles."""
    rng = np.random.default_rng(5)
    for turn in range(30):
        shape = (int(rng.integers(1, 4)), int(rng.integers(1, 70)), *map(int, rng.integers(3, 20, 2)))
        pads = [int(pad) for pad in rng.integers(0, 3, 4)]
        x, w = tensors(shape, int(rng.integers(1, 90)), seed=turn)  # type: ignore[arg-type]
        for scheme in SCHEMES.values():
            expected = correlated(x, w, pads, scheme.stride)
            first, second = map(int, rng.integers(1, 30, 2))
            found = convolved(x, w, pads, scheme, first, one_by_one=True)
            assert np.abs(found - expected).max() <= bound(scheme) * np.abs(expected).max()
            assert np.array_equal(found, convolved(x, w, pads, scheme, second))


def test_many_channels_take_blocks_of_them() -> None:
    channels = 2 * host_target().caches.l1 // 4 // (2 * host_target().lanes(F32)) + 37
    x, w = tensors((1, channels, 6, 9), 35)
    for scheme in SCHEMES.values():
        expected = correlated(x, w, (1, 1, 1, 1), scheme.stride)
        found = convolved(x, w, (1, 1, 1, 1), scheme, 3)
        assert np.abs(found - expected).max() <= 2 * bound(scheme) * np.abs(expected).max()


def test_filters_and_image_in_other_orders() -> None:
    """The image is copied in each run, the filters once; no step but that of the image is added."""
    x, w = tensors((1, 20, 9, 12), 24)
    x[0, 3, 4, 5] = np.inf  # the filters themselves are read where it counts
    apart = np.ascontiguousarray(w.transpose(2, 3, 1, 0)).transpose(3, 2, 0, 1)
    for scheme in SCHEMES.values():
        expected = correlated(x, w, (1, 1, 1, 1), scheme.stride)
        binder, memory = new_binder(), Memory()
        image = binder.external(0, x.dtype, x.shape)
        memory.put(image, x)
        call = call_of(image, binder.constant(apart), None, (1, 1, 1, 1), scheme.stride)
        cut = cut_of(binder.target, winograd.sizes_of(call), scheme, 5)
        (y,) = winograd.bind_cut(binder, call, scheme, cut)
        assert len(binder.steps) == 3
        memory.run(binder)
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(np.isfinite(memory.read(y)), finite)
        np.testing.assert_allclose(memory.read(y)[finite], expected[finite], atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_tensors_are_computed_in_float32(dtype: Any) -> None:
    x, w = tensors((2, 21, 9, 6), 18, dtype=dtype)
    for scheme in SCHEMES.values():
        expected = correlated(x.astype(np.float32), w.astype(np.float32), (1, 1, 1, 1), scheme.stride)
        found = convolved(x, w, (1, 1, 1, 1), scheme, 4)
        assert found.dtype == dtype
        step = float(ml_dtypes.finfo(dtype).eps)
        assert np.abs(found.astype(np.float64) - expected).max() <= 0.51 * step * np.abs(expected).max()


@EVERY
def test_epilogue_with_two_outputs_and_every_kind_of_operand(scheme: Scheme) -> None:
    """Among channels of others, which hold NaN."""
    x, w = tensors((2, 24, 9, 13), 41, seed=3)
    y = correlated(x, w, (1, 1, 1, 1), scheme.stride)
    rng = np.random.default_rng(4)
    bias, residual, column, image = (
        rng.standard_normal(size).astype(np.float32) for size in (41, y.shape, (2, 1, *y.shape[2:]), (2, 1, 1, 1))
    )
    binder, memory = new_binder(), Memory()
    given = [channels_last(memory, binder, residual, room=7)]
    for array in (column, image):
        tensor = binder.new(REAL, array.shape)
        memory.put(tensor, array)
        given.append(tensor)
    total = Input(REAL, 0) * Input(REAL, 3) + Input(REAL, 1)
    silu = total / (1.0 + exp(-total))
    epilogue = Epilogue((silu * Input(REAL, 2), (Input(REAL, 0) + 1.0).cast(np.float16)), tuple(given))
    call = call_of(
        channels_last(memory, binder, x, room=5),
        binder.constant(w),
        binder.constant(bias),
        (1, 1, 1, 1),
        scheme.stride,
        epilogue,
    )
    cut = cut_of(binder.target, winograd.sizes_of(call), scheme, 9)
    first, second = winograd.bind_cut(binder, call, scheme, cut)
    memory.run(binder)
    y = y + bias[:, None, None]
    z = y * image + residual
    np.testing.assert_allclose(memory.read(first), z / (1 + np.exp(-z)) * column, rtol=1e-5, atol=2e-5)
    assert memory.read(second).dtype == np.float16
    np.testing.assert_allclose(memory.read(second).astype(np.float64), y + 1, rtol=1e-3, atol=1e-3)


@EVERY
@pytest.mark.parametrize("where", ["image", "filters", "huge"])
def test_what_is_not_finite_stays_where_it_belongs(where: str, scheme: Scheme) -> None:
    """Transforms would carry it to the whole tile, and turn infinity into NaN."""
    x, w = tensors((2, 17, 10, 9), 35, seed=6)
    if where == "image":
        x[0, 3, 4, 5], x[1, 16, 0, 0], x[1, 2, 9, 8] = np.inf, np.nan, -np.inf
    elif where == "filters":
        w[34, 16, 2, 2], w[3, 0, 0, 1] = np.nan, np.inf
    else:
        x[0, 3, 4, 5], w[:, 3] = 3e38, np.abs(w[:, 3]) * 0.1
    with np.errstate(over="ignore"):
        expected = correlated(x, w, (1, 1, 1, 1), scheme.stride).astype(np.float32)
    assert np.isfinite(expected).sum() > 200
    found = convolved(x, w, (1, 1, 1, 1), scheme, 4, one_by_one=True)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isposinf(found), np.isposinf(expected))
    finite = np.isfinite(expected)
    largest = 1.0 if where != "huge" else float(np.abs(expected[finite]).max())
    np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-5, atol=bound(scheme) * largest)


def test_every_cut_covers_all_tiles_and_keeps_scratch_apart() -> None:
    for target in described().values():
        for sizes in (Sizes(1, 64, 64, 56, 56), Sizes(8, 512, 512, 7, 7), Sizes(1, 17, 33, 101, 5)):
            for scheme in SCHEMES.values():
                points, outputs = scheme.points, scheme.outputs
                for cut in cuts(target, sizes, scheme):
                    assert cut.all_tiles == sizes.images * cut.tiles
                    assert cut.tiles == -(-sizes.lines // outputs) * cut.tiles_across
                    assert (cut.blocks - 1) * cut.tile_block < cut.all_tiles <= cut.blocks * cut.tile_block
                    assert cut.groups * cut.group * 2 * target.lanes(F32) >= sizes.filters
                    assert cut.v_stride >= points * cut.v_apart
                    assert cut.v_apart >= sizes.channels
                    assert cut.m_scratch - cut.v_scratch >= 4 * cut.tile_block * cut.v_stride
                    assert cut.o_scratch - cut.m_scratch >= 4 * cut.tile_block * points * 2 * target.lanes(F32)
                    assert cut.mark_scratch - cut.o_scratch >= 4 * outputs * cut.o_apart
                    assert cut.scratch - cut.mark_scratch >= 16


def test_few_places_with_many_channels_take_small_tiles() -> None:
    """Of which the transformed filters are fewer bytes."""
    target = described(takes_turns=True)["avx512vnni"]
    assert choose(target, Sizes(1, 64, 64, 56, 56))[0] is SCHEMES[1, 4]
    scheme, cut, _ = choose(target, Sizes(1, 512, 512, 7, 7))
    assert scheme is SCHEMES[1, 2] or cut.from_taps
    assert choose(target, Sizes(1, 64, 128, 80, 80, 2))[0] is SCHEMES[2, 4]
    assert choose(target, Sizes(1, 512, 512, 7, 7, 2))[0] is SCHEMES[2, 2]


def test_blocks_stay_in_the_second_cache() -> None:
    """Where that costs few more ways through the filters."""
    for target in described().values():
        for sizes in (Sizes(1, 32, 32, 160, 160), Sizes(1, 128, 128, 40, 40), Sizes(1, 128, 256, 40, 40, 2)):
            _, cut, _ = choose(target, sizes)
            assert cut.scratch <= 1.25 * target.caches.l2


def test_declined() -> None:
    binder, memory = new_binder(), Memory()
    x, w = tensors((1, 32, 8, 8), 32)
    tensor, weights = channels_last(memory, binder, x), binder.constant(w)
    call = call_of(tensor, weights, None, (1, 1, 1, 1), 1)
    assert declined(binder, call) is None
    assert predict(binder, call) is not None

    def windows(kernel: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int]) -> Any:
        return WindowAttributes.of(kernel, strides, dilations, (1, 1, 1, 1), "NOTSET").windows((8, 8))

    changed = {
        "not 3x3": [replace(call, windows=windows((3, 5), (1, 1), (1, 1))), replace(call, group=2)],
        " apart": [
            replace(call, windows=windows((3, 3), (2, 1), (1, 1))),
            replace(call, windows=windows((3, 3), (1, 1), (1, 2))),
        ],
        "products are": [replace(call, product="bf16"), replace(call, product="f64")],
        "no constant": [replace(call, w=binder.external(1, REAL, w.shape))],
        "too few": [replace(call, x=channels_last(memory, binder, x[:, :8])), replace(call, w=binder.constant(w[:7]))],
    }
    for reason, calls in changed.items():
        for one in calls:
            assert reason in (declined(binder, one) or "")
            assert predict(binder, one) is None
    binder.settings = replace(binder.settings, winograd=False)
    assert declined(binder, call) == "the session turns it off"


def model(shape: tuple[int, ...], filters: int, seed: int = 0) -> tuple[bytes, Array]:
    """Convolution, bias, residual and Relu, twice, and a convolution of stride 2."""
    rng = np.random.default_rng(seed)
    nodes, constants, last = [], [], "x"
    for turn in "ab":
        w = (rng.standard_normal((filters, filters, 3, 3)) / (9 * filters) ** 0.5).astype(np.float32)
        constants += [numpy_helper.from_array(w, f"w{turn}")]
        constants += [numpy_helper.from_array(rng.standard_normal(filters).astype(np.float32), f"b{turn}")]
        nodes += [helper.make_node("Conv", [last, f"w{turn}", f"b{turn}"], [f"c{turn}"], pads=[1, 1, 1, 1])]
        nodes += [helper.make_node("Add", [f"c{turn}", last], [f"s{turn}"])]
        nodes += [helper.make_node("Relu", [f"s{turn}"], [f"y{turn}"])]
        last = f"y{turn}"
    nodes += [helper.make_node("Conv", [last, "wa"], ["z"], pads=[1, 1, 1, 1], strides=[2, 2])]
    last = "z"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", filters, "h", "w"])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        constants,
    )
    text = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    return text, rng.standard_normal(shape).astype(np.float32)


def run(text: bytes, x: Array, threads: int, entries: Sequence[tuple[str, str]] = ()) -> Array:
    options = sx.SessionOptions()
    options.intra_op_num_threads = threads
    for key, value in entries:
        options.add_session_config_entry(key, value)
    session = sx.InferenceSession(text, options, providers=["CPUExecutionProvider"])
    for _ in range(2):  # what a run leaves in the memory of its threads is not taken for that of the next one
        result = np.asarray(session.run(None, {"x": x})[0])
        session.run(None, {"x": x[:, ::-1].copy()})
    return result


def test_sessions_have_the_same_bits_for_any_number_of_threads() -> None:
    text, x = model((2, 40, 23, 18), 40)
    off, meaning = (
        run(text, x, 2, [entry]) for entry in (("sardonyx.cpu.winograd", "0"), ("sardonyx.cpu.kernels", "numpy"))
    )
    alone = run(text, x, 1)
    assert not np.array_equal(alone, off)
    for threads in (2, 3, 5):
        assert np.array_equal(alone, run(text, x, threads))
    for found in (alone, off):
        assert np.abs(found - meaning).max() <= 5e-6 * np.abs(meaning).max()


def test_sessions_that_allow_bfloat16_may_take_it() -> None:
    """Fewer exact products or more coarse ones: both are within the bound of the coarse ones."""
    text, x = model((1, 32, 20, 20), 32)
    meaning = run(text, x, 1, [("sardonyx.cpu.kernels", "numpy")])
    for value in "10":
        found = run(text, x, 1, [("sardonyx.cpu.precision", "bfloat16"), ("sardonyx.cpu.winograd", value)])
        assert np.abs(found - meaning).max() <= 2.0**-7 * np.abs(meaning).max()
