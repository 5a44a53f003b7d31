"""A product of channels and the depthwise windows over it as one step, against float64 and against two steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.explaining.explanation import explain
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import bf16_product
from sardonyx.compiler.kernels.template import Epilogue, Part
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.llvm.target import host_target, host_targets
from sardonyx.compiler.native.convolution import bands
from sardonyx.compiler.native.convolution.convolution import ConvolutionKernel, ConvolutionPair
from sardonyx.kernel import expr as e
from sardonyx.kernel.expr import Expr, Input
from sardonyx.ops.convolution import correlate
from sardonyx.ops.windows import WindowAttributes
from sardonyx.runtime.files.kernel_cache import KernelCache
from sardonyx.runtime.settings import RunSettings
from tests.compiler.machines import described, kernels_of
from tests.compiler.steps import VARIANTS, Memory
from tests.compiler.test_window_kernels import placed

Array = np.ndarray[Any, Any]
F, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)


def clip(x: Expr) -> Expr:
    return e.minimum(e.maximum(x, 0.0), 6.0)


def silu(x: Expr) -> Expr:
    return x / (1 + e.exp(-x))


def hard_swish(x: Expr) -> Expr:
    return x * e.minimum(e.maximum(x / 6 + 0.5, 0.0), 1.0)


ACTIVATIONS: dict[str, tuple[Callable[[Expr], Expr] | None, Callable[[Array], Array]]] = {
    "none": (None, lambda x: x),
    "clip": (clip, lambda x: np.clip(x, 0, 6)),
    "silu": (silu, lambda x: x / (1 + np.exp(-x))),
    "hard_swish": (hard_swish, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
}


@dataclass(frozen=True)
class Case:
    """Sizes of the input and the channels that are made of its own, the windows, and what follows each of both."""

    x: tuple[int, ...]
    channels: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    first: str
    second: str
    has_bias: bool
    has_residual: bool

    @property
    def attributes(self) -> WindowAttributes:
        return WindowAttributes.of(self.kernel, self.strides, self.dilations, self.pads, "NOTSET")

    @property
    def output(self) -> tuple[int, ...]:
        return self.attributes.windows(self.x[2:]).output


# Taps, stride and dilation along lines, for which kernels have code of their own: few, or tests would compile.
LINES = [(3, 1, 1), (3, 2, 1), (5, 1, 2), (2, 3, 1)]


def random_case(rng: np.random.Generator, dims: int = 2) -> Case:
    """Windows of 1 to 5 taps, with any pads up to their reach."""

    def some(*choices: int) -> tuple[int, ...]:
        return tuple(int(one) for one in rng.choice(choices, dims))

    kernel, strides, dilations = some(1, 2, 3, 5), some(1, 2, 3), some(1, 1, 2)
    line = LINES[int(rng.integers(len(LINES)))]
    kernel, strides, dilations = (
        (*own[:-1], of_line) for own, of_line in zip((kernel, strides, dilations), line, strict=True)
    )
    reach = [(taps - 1) * apart + 1 for taps, apart in zip(kernel, dilations, strict=True)]
    pads = tuple(int(rng.integers(0, most + 1)) for most in (*reach, *reach))
    sizes = [
        max(1, most - before - behind) + int(rng.choice([0, 1, 3, 8, 13]))
        for most, before, behind in zip(reach, pads[:dims], pads[dims:], strict=True)
    ]
    return Case(
        (int(rng.choice([1, 1, 2, 3])), int(rng.choice([2, 3, 7, 16, 21])), *sizes),
        int(rng.choice([16, 17, 24, 33, 48, 70])),
        kernel,
        strides,
        dilations,
        pads,
        str(rng.choice(list(ACTIVATIONS))),
        str(rng.choice(list(ACTIVATIONS))),
        bool(rng.integers(2)),
        bool(rng.integers(4) == 0),
    )


@dataclass(frozen=True)
class Given:
    """The contents that go with a case; the residual is added to what the windows give."""

    x: Array
    w: Array
    bias: Array | None
    taps: Array
    added: Array | None
    residual: Array | None

    @staticmethod
    def of(case: Case, rng: np.random.Generator) -> Given:
        def draw(*shape: int) -> Array:
            return rng.standard_normal(shape).astype(np.float32)

        ones = (1,) * len(case.kernel)
        return Given(
            draw(*case.x),
            draw(case.channels, case.x[1], *ones) * np.float32(0.5),
            draw(case.channels) if case.has_bias else None,
            draw(case.channels, 1, *case.kernel),
            draw(case.channels) if case.has_bias else None,
            draw(case.x[0], case.channels, *case.output) if case.has_residual else None,
        )


def expected(case: Case, given: Given) -> Array:
    """The same in float64."""
    ones = (1,) * len(case.kernel)
    point = WindowAttributes.of(ones, ones, ones, (0,) * (2 * len(ones)), "NOTSET")

    def spread(bias: Array | None) -> Any:
        return 0 if bias is None else bias.astype(np.float64).reshape(-1, *ones)

    made = correlate(given.x.astype(np.float64), given.w.astype(np.float64), point.windows(case.x[2:]), 1)
    made = ACTIVATIONS[case.first][1](made + spread(given.bias))
    windows = case.attributes.windows(case.x[2:])
    y = correlate(made, given.taps.astype(np.float64), windows, case.channels) + spread(given.added)
    return ACTIVATIONS[case.second][1](y) + (0 if given.residual is None else given.residual)


def epilogue(activation: str, residual: Tensor | None = None) -> Epilogue | None:
    rule = ACTIVATIONS[activation][0]
    value: Expr = Input(F, 0)
    value = value if rule is None else rule(value)
    if residual is None:
        return None if rule is None else Epilogue((value,), ())
    return Epilogue((value + Input(F, 1),), (residual,))


def kernels(case: Case) -> tuple[ConvolutionKernel, ConvolutionKernel]:
    ones = (1,) * len(case.kernel)
    point = WindowAttributes.of(ones, ones, ones, (0,) * (2 * len(ones)), "NOTSET")
    return (
        ConvolutionKernel({"group": 1, "attributes": lambda sizes: point}),
        ConvolutionKernel({"group": case.channels, "attributes": lambda sizes: case.attributes}),
    )


def computed(
    case: Case,
    given: Given,
    variant: str,
    *,
    two: bool = False,
    one_by_one: bool = False,
    precision: str = "float32",
) -> tuple[Array | None, Binder]:
    """What the pair computes in one step, or in `two`; None where one cannot do it."""
    binder, memory = Binder(kernels_of(variant), settings=RunSettings(precision=precision)), Memory()
    x = placed(binder, memory, given.x, by_channels=True)
    known = [None if one is None else binder.constant(one) for one in (given.w, given.bias, given.taps, given.added)]
    residual = None
    if given.residual is not None:
        residual = binder.external(1, F, given.residual.shape)
        memory.put(residual, given.residual)
    first, second = kernels(case)
    expand, windows = (
        Part([x, *known[:2]], epilogue(case.first)),
        Part([None, *known[2:]], epilogue(case.second, residual)),
    )
    if two:
        (between,) = first.bind(binder, *expand.inputs, epilogue=expand.epilogue)
        (y,) = second.bind(binder, between, *windows.inputs[1:], epilogue=windows.epilogue)
    else:
        pair = ConvolutionPair(first, second)
        call = first.call_of(binder, *expand.inputs, epilogue=expand.epilogue)
        if bands.predict(binder, call, pair._windows(binder, call, windows)) is None:
            return None, binder
        assert not binder.steps
        (y,) = pair.bind(binder, expand, windows)
    assert y is not None
    assert not memory.run(binder, one_by_one=one_by_one)
    return memory.read(y).copy(), binder


def check(found: Array | None, case: Case, given: Given) -> None:
    wanted = expected(case, given)
    assert found is not None, case
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5 * np.abs(wanted).max(initial=1.0), err_msg=str(case))


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_the_product_and_the_windows(variant: str) -> None:
    rng = np.random.default_rng(31)
    for number in range(4 if variant == "neon" else 14):
        case = random_case(rng, 1 if number % 7 == 3 else 2)
        given = Given.of(case, rng)
        check(computed(case, given, variant, one_by_one=number % 2 == 0)[0], case, given)


@pytest.mark.parametrize("is_stored", [True, False])
def test_products_of_pairs_of_bfloat16(is_stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an input that is rounded already, or that is rounded first."""
    monkeypatch.setattr(bands, "_SHARE_OF_L3", 1e9)  # no exact products
    rng = np.random.default_rng(33)
    for number in range(10):
        case = random_case(rng)
        given = Given.of(case, rng)
        rounded = replace(given, x=given.x.astype(BF16), w=given.w.astype(BF16).astype(np.float32))
        taken = replace(given, x=rounded.x) if is_stored else given
        for variant in [name for name, target in host_targets().items() if bf16_product(target) == "bf16"]:
            found, binder = computed(case, taken, variant, one_by_one=number % 2 == 0, precision="bfloat16")
            assert "bf16" in binder.steps[-1].arithmetic
            check(found, case, rounded)


# Tiles that end with their line, two blocks that overlap, several bands, batches, and one place that windows reach.
SIZES = [
    Case((1, 16, 40, 31), 96, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "clip", "clip", True, False),
    Case((2, 24, 33, 17), 144, (5, 5), (2, 2), (1, 1), (2, 1, 1, 3), "silu", "silu", True, False),
    Case((3, 5, 6, 14), 50, (3, 3), (2, 1), (2, 1), (0, 1, 3, 0), "hard_swish", "none", False, True),
    Case((1, 3, 1, 1), 16, (3, 3), (1, 1), (1, 1), (2, 2, 2, 2), "clip", "none", True, False),
    Case((1, 4, 9, 9), 33, (1, 1), (3, 3), (1, 1), (0, 0, 0, 0), "none", "clip", True, False),
]


@pytest.mark.parametrize("case", SIZES, ids=str)
def test_sizes(case: Case) -> None:
    given = Given.of(case, np.random.default_rng(5))
    check(computed(case, given, "", one_by_one=True)[0], case, given)


def test_results_are_the_same_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones, where memory is far."""
    monkeypatch.setattr(bands, "asks_for_results", lambda target, nbytes, in_strips: True)
    for case in SIZES:
        given = Given.of(case, np.random.default_rng(7))
        check(computed(case, given, "", one_by_one=True)[0], case, given)


def test_not_numbers_and_infinities_stay_where_their_windows_are() -> None:
    case = Case((1, 16, 8, 20), 48, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "clip", "none", True, False)
    given = Given.of(case, np.random.default_rng(6))
    given.x[0, 3, 2, 5], given.x[0, 1, 7, 19] = np.nan, np.inf
    found, _ = computed(case, given, "")
    other, _ = computed(case, given, "", two=True)
    assert found is not None
    assert np.isnan(found[:, :, 1:4, 4:7]).all()
    np.testing.assert_allclose(found, other, rtol=1e-5, atol=1e-5)


def test_padding_is_zero_whatever_the_activation_makes_of_zero() -> None:
    """The bias and the activation apply to places of the input, not to the padding of what they make."""
    case = Case((1, 2, 3, 3), 16, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "silu", "none", True, False)
    given = Given.of(case, np.random.default_rng(7))
    given.w[...] = 0
    assert given.bias is not None
    given.bias[...] = 2.0
    given.taps[...] = 1.0
    assert given.added is not None
    given.added[...] = 0.0
    found, _ = computed(case, given, "")
    assert found is not None
    counts = np.array([[4, 6, 4], [6, 9, 6], [4, 6, 4]])
    np.testing.assert_allclose(found[0, 0], counts * 2 / (1 + np.exp(-2.0)), rtol=1e-6)


def refused() -> list[tuple[str, Case, Given]]:
    rng = np.random.default_rng(8)
    few = Case((1, 4, 9, 9), 2, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "clip", "clip", True, False)
    wide = Case((1, 4, 9, 9), 32, (3, 11), (1, 1), (1, 1), (1, 5, 1, 5), "clip", "clip", True, False)
    return [("few channels", few, Given.of(few, rng)), ("many taps", wide, Given.of(wide, rng))]


@pytest.mark.parametrize(("case", "given"), [one[1:] for one in refused()], ids=[one[0] for one in refused()])
def test_what_it_cannot_do_is_left_to_two_steps(case: Case, given: Given) -> None:
    assert computed(case, given, "")[0] is None
    check(computed(case, given, "", two=True)[0], case, given)


# x is expanded after a convolution that brings its channels to the end, once with one reader of what is between.
NETWORK = """
    a = Conv<pads=[1,1,1,1]>(x, w0) c = Conv(a, w1, b1)
    low = Constant<value_float=0.0>() high = Constant<value_float=6.0>()
    d = Clip(c, low, high) e = Conv<group=96, pads=[1,1,1,1], strides=[2,2]>(d, w2, b2) y = Clip(e, low, high)
"""
WEIGHTS = {
    "w0": (16, 3, 3, 3),
    "w1": (96, 16, 1, 1),
    "b1": (96,),
    "w2": (96, 1, 3, 3),
    "b2": (96,),
    "w4": (96, 96, 1, 1),
}


def model_of(body: str) -> onnx.ModelProto:
    text = f'<ir_version: 9, opset_import: ["" : 18]> g (float[n, 3, h, w] x) => (float[] y) {{ {body} }}'
    made = onnx.parser.parse_model(text)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(9)
    for name, shape in WEIGHTS.items():
        array = (0.3 * rng.standard_normal(shape)).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


def session(body: str, kernels: str = "", threads: int = 1, items: str = "0") -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    options.add_session_config_entry("sardonyx.cpu.batch_items", items)
    return ort.InferenceSession(model_of(body).SerializeToString(), options)


def image(*shape: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(10).standard_normal(shape).astype(np.float32)}


def kernels_shown(body: str, feeds: dict[str, Array]) -> list[str]:
    return [row.kernel for row in explain(session(body), feeds).rows]


@pytest.fixture
def _bands_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they can be: whether they are the faster way depends on the machine."""
    predict = bands.predict

    def nearly_nothing(*calls: Any) -> float | None:
        return None if predict(*calls) is None else 1.0

    monkeypatch.setattr(bands, "predict", nearly_nothing)


@pytest.mark.parametrize(("name", "pays"), [("avx512", True), ("avx512vnni", True), ("avx2", False), ("neon", False)])
def test_bands_pay_where_arithmetic_takes_less_time_than_a_large_map(name: str, pays: bool, tmp_path: Path) -> None:
    case = Case((1, 16, 112, 112), 96, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "clip", "clip", True, False)
    given = Given.of(case, np.random.default_rng(14))
    target = described(takes_turns=True)[name]
    binder, memory = Binder(KernelLibrary(target, KernelCache(tmp_path)), settings=RunSettings()), Memory()
    x = placed(binder, memory, given.x, by_channels=True)
    known = [binder.constant(one) for one in (given.w, given.bias, given.taps, given.added) if one is not None]
    parts = Part([x, *known[:2]], epilogue(case.first)), Part([None, *known[2:]], epilogue(case.second))
    assert ConvolutionPair(*kernels(case)).pays(binder, *parts) == pays


@pytest.mark.usefixtures("_bands_pay")
def test_a_session_takes_one_step_where_the_map_between_is_large_and_explains_it() -> None:
    feeds = image(1, 3, 112, 112)
    assert "bands Conv+Conv" in kernels_shown(NETWORK, feeds)
    (wanted,) = session(NETWORK, kernels="numpy").run(None, feeds)
    found = [session(NETWORK, threads=threads).run(None, feeds)[0] for threads in (1, 2, 3)]
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=2e-5)
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


@pytest.mark.usefixtures("_bands_pay")
def test_one_thread_makes_no_line_twice_and_several_share_their_chunks_evenly() -> None:
    feeds = image(1, 3, 112, 112)
    bands = {}
    for threads in (1, 2):
        (row,) = [row for row in explain(session(NETWORK, threads=threads), feeds).rows if "bands" in row.kernel]
        bands[threads] = int(row.detail.split("in bands of ")[1].split()[0])
    assert bands[1] == 56
    assert bands[2] < 56


# What squeeze-and-excitation makes of what the windows give: a mean of each map, which scales the map.
SQUEEZED = (
    NETWORK.split("d = Clip")[0]
    + """
    s = Sigmoid(c) d = Mul(c, s) e = Conv<group=96, pads=[1,1,1,1], strides=[2,2]>(d, w2, b2)
    t = Sigmoid(e) f = Mul(e, t) m = GlobalAveragePool(f) y = Mul(f, m)
"""
)


@pytest.mark.usefixtures("_bands_pay")
def test_a_map_that_is_averaged_is_the_same_for_any_number_of_threads() -> None:
    made = [session(SQUEEZED, threads=threads) for threads in (1, 2, 3)]
    reference, rounds = session(SQUEEZED, kernels="numpy"), session(SQUEEZED, items="1")
    for shape in ((1, 3, 112, 112), (1, 3, 95, 80), (3, 3, 64, 64), (1, 3, 5, 4)):
        feeds = image(*shape)
        found = [one.run(None, feeds)[0] for one in (*made, rounds)]
        np.testing.assert_allclose(found[0], reference.run(None, feeds)[0], rtol=1e-5, atol=2e-5)
        assert len({one.tobytes() for one in found}) == 1


def test_another_reader_of_an_averaged_map_reads_all_of_it() -> None:
    body = SQUEEZED.replace("y = Mul", "z = Mul") + " n = GlobalMaxPool(f) y = Add(z, n)"
    feeds = image(2, 3, 112, 112)
    np.testing.assert_allclose(
        session(body).run(None, feeds)[0], session(body, kernels="numpy").run(None, feeds)[0], rtol=1e-5, atol=2e-5
    )


def test_what_somebody_else_reads_is_made_whole() -> None:
    body = NETWORK.replace("y = Clip", "z = Clip") + "m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(d) y = Add(z, m)"
    feeds = image(1, 3, 64, 64)
    assert not any("bands" in kernel for kernel in kernels_shown(body, feeds))
    np.testing.assert_allclose(
        session(body).run(None, feeds)[0], session(body, kernels="numpy").run(None, feeds)[0], rtol=1e-5, atol=2e-5
    )


def test_sizes_may_change_from_run_to_run_and_batches_go_in_rounds() -> None:
    one, reference, rounds = session(NETWORK), session(NETWORK, kernels="numpy"), session(NETWORK, items="1")
    for shape in ((1, 3, 30, 50), (2, 3, 96, 80), (1, 3, 5, 4), (4, 3, 64, 64)):
        feeds = image(*shape)
        (wanted,) = reference.run(None, feeds)
        np.testing.assert_allclose(one.run(None, feeds)[0], wanted, rtol=1e-5, atol=2e-5)
        assert one.run(None, feeds)[0].tobytes() == rounds.run(None, feeds)[0].tobytes()


def test_shapes_that_do_not_fit_are_refused_in_the_name_of_their_node() -> None:
    body = NETWORK.replace("e = Conv<group=96", "[windows] e = Conv<group=48")
    with pytest.raises(errors.OnnxRuntimeError, match="windows"):
        session(body).run(None, image(1, 3, 20, 20))


@pytest.mark.parametrize(
    "body", [NETWORK, SQUEEZED.replace("m = GlobalAveragePool(f)", "k = GlobalAveragePool(f) m = Conv(k, w4)")]
)
def test_coarser_products_are_not_given_up_for_a_map_that_caches_hold(body: str) -> None:
    """Bands multiply pairs of bfloat16, too, where there is an instruction for them."""
    one = ort.SessionOptions()
    one.add_session_config_entry("sardonyx.cpu.precision", "bfloat16")
    feeds = image(1, 3, 112, 112)
    made = ort.InferenceSession(model_of(body).SerializeToString(), one)
    (wanted,) = session(body, kernels="numpy").run(None, feeds)
    (found,) = made.run(None, feeds)
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
    rows = explain(made, feeds).rows
    (bands_in,) = [row.detail for row in rows if "bands" in row.kernel] or [""]
    product = bf16_product(host_target())
    assert product in (None, "bf16 tiles") or "bf16" in bands_in
    assert product != "bf16 tiles" or not bands_in
