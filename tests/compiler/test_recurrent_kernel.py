"""RNN, GRU and LSTM against their definition in float64, for every instruction set of this machine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

import sardonyx as ort
from sardonyx import errors
from sardonyx.compiler.binding import Binder
from sardonyx.compiler.choice.gemm_choice import bf16_product
from sardonyx.compiler.kernels.recurrent.recurrent import RecurrentKernel
from sardonyx.compiler.kernels.recurrent.time_loop import RecurrentSpec, emit_recurrent
from sardonyx.compiler.kernels.recurrent.unit_rows import block_units
from sardonyx.compiler.llvm.codegen import compile_object
from sardonyx.compiler.llvm.library import KernelLibrary, library
from sardonyx.compiler.llvm.target import Caches, Target, aarch64_targets, host_targets, x86_64_targets
from sardonyx.compiler.llvm.types import F32
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.kernel.program import Template
from sardonyx.ops.framework.facts import tensor
from sardonyx.ops.framework.operator import Operator
from sardonyx.ops.framework.registry import operator_of
from sardonyx.runtime.settings import RunSettings
from tests.compiler.steps import VARIANTS, bind, new_binder, outputs_of, run_plan

Array = np.ndarray[Any, Any]

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}
# A second cache that holds a strand of the largest layers here, before a near cache; and one that holds none, before a
# far one.
NEAR, FAR = Caches(48 << 10, 1 << 20, 32 << 20), Caches(48 << 10, 64 << 10, 400 << 20)
EVERY_ACTIVATION = (
    *("Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh"),
    *("Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
)


def _operator(kind: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any]) -> Operator:
    values = [None if array is None else ir.Value(name=f"x{index}") for index, array in enumerate(inputs)]
    outputs = [ir.Value(name=f"y{index}") for index in range(1 + STATES[kind])]
    attrs = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
    return operator_of(ir.Node("", kind, values, attrs, outputs=outputs, version=22))


def _kernel(operator: Operator, inputs: Sequence[Array | None]) -> RecurrentKernel:
    lowered = operator.lower([None if array is None else array.dtype for array in inputs])
    assert isinstance(lowered, Template)
    return RecurrentKernel(lowered.parameters)


def _inputs(
    rng: np.random.Generator,
    kind: str,
    sizes: tuple[int, int, int, int],
    directions: int = 1,
    *,
    batch_first: bool = False,
    dtype: Any = np.float32,
    optional: float = 1.0,
) -> list[Array | None]:
    """All inputs, the optional ones with this probability; sizes are steps, batch, width and hidden."""
    steps, batch, width, hidden = sizes
    rows = GATES[kind] * hidden

    def draw(*shape: int) -> Array:
        return rng.uniform(-1, 1, shape).astype(dtype)

    def perhaps(array: Array) -> Array | None:
        return array if rng.random() < optional else None

    x = draw(batch, steps, width) if batch_first else draw(steps, batch, width)
    state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    scale = np.asarray(max(1, hidden) ** -0.5, dtype)
    inputs = [x, draw(directions, rows, width) * scale, draw(directions, rows, hidden) * scale]
    lengths = rng.integers(0, steps + 1, batch).astype(np.int32)
    more = [perhaps(draw(directions, 2 * rows)), perhaps(lengths), perhaps(draw(*state))]
    if kind == "LSTM":
        more += [perhaps(draw(*state)), perhaps(draw(directions, 3 * hidden))]
    return [*inputs, *more]


def _wide(inputs: Sequence[Array | None]) -> list[Array | None]:
    return [
        array if array is None or array.dtype == np.int32 else array.astype(np.float32).astype(np.float64)
        for array in inputs
    ]


def _check(
    kind: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any],
    variant: str = "",
    tolerance: float = 3e-6,
    known: Sequence[int] = (),
    threads: int = 0,
) -> None:
    operator = _operator(kind, inputs, attributes)
    expected = _operator(kind, inputs, attributes).run(*_wide(inputs))
    found = outputs_of(_kernel(operator, inputs), inputs, variant, known=known, threads=threads)
    assert len(found) == len(expected) == 1 + STATES[kind]
    for mine, right in zip(found, expected, strict=True):
        assert mine.dtype == inputs[0].dtype  # type: ignore[union-attr]
        assert mine.shape == right.shape
        np.testing.assert_allclose(mine.astype(np.float64), right, atol=tolerance, rtol=tolerance)


def _reference_lstm(inputs: Sequence[Array | None]) -> list[Array]:
    """A forward LSTM with everything, written down from the specification, in float64."""
    x, w, r, bias, lengths, h, c, p = (None if array is None else array.astype(np.float64) for array in inputs)
    assert x is not None
    assert w is not None
    assert r is not None
    assert bias is not None
    assert lengths is not None
    assert h is not None
    assert c is not None
    assert p is not None
    size = r.shape[2]
    wb, rb = bias[0, : 4 * size], bias[0, 4 * size :]
    pi, po, pf = p[0, :size], p[0, size : 2 * size], p[0, 2 * size :]
    hidden, cell = h[0].copy(), c[0].copy()
    results = np.zeros((len(x), 1, *hidden.shape))
    for time, now in enumerate(x):
        for row in range(len(hidden)):
            if time >= lengths[row]:
                continue
            i, o, f, g = np.split(w[0] @ now[row] + wb + r[0] @ hidden[row] + rb, 4)
            i = 1 / (1 + np.exp(-(i + pi * cell[row])))
            f = 1 / (1 + np.exp(-(f + pf * cell[row])))
            cell[row] = f * cell[row] + i * np.tanh(g)
            o = 1 / (1 + np.exp(-(o + po * cell[row])))
            hidden[row] = o * np.tanh(cell[row])
            results[time, 0, row] = hidden[row]
    return [results, hidden[None], cell[None]]


def test_an_lstm_is_what_the_specification_says() -> None:
    inputs = _inputs(np.random.default_rng(1), "LSTM", (6, 4, 5, 37))
    found = outputs_of(_kernel(_operator("LSTM", inputs, {}), inputs), inputs)
    for mine, right in zip(found, _reference_lstm(inputs), strict=True):
        np.testing.assert_allclose(mine, right, atol=3e-6)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", GATES)
def test_random_layers(kind: str, variant: str) -> None:
    rng = np.random.default_rng(GATES[kind])
    for hidden in (1, 7, 16, 33, 65):
        direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
        batch_first = bool(rng.random() < 0.4)
        attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction, "layout": int(batch_first)}
        if kind == "GRU":
            attributes["linear_before_reset"] = int(rng.integers(0, 2))
        if rng.random() < 0.5:
            attributes["clip"] = 0.7
        if kind == "LSTM":
            attributes["input_forget"] = int(rng.integers(0, 2))
        sizes = (int(rng.integers(1, 5)), int(rng.integers(1, 9)), int(rng.integers(1, 20)), hidden)
        inputs = _inputs(
            rng, kind, sizes, 2 if direction == "bidirectional" else 1, batch_first=batch_first, optional=0.6
        )
        known = [1, 2, 3, 7] if rng.random() < 0.5 else []
        _check(kind, inputs, attributes, variant, known=known, threads=int(rng.integers(1, 5)))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("behind", [0, 1])
def test_both_forms_of_the_reset_gate(behind: int, variant: str) -> None:
    inputs = _inputs(np.random.default_rng(5), "GRU", (4, 2, 3, 40), 2)
    _check("GRU", inputs, {"linear_before_reset": behind, "direction": "bidirectional"}, variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-13), (np.float16, 2e-3), (ml_dtypes.bfloat16, 1e-2)])
def test_other_types(dtype: Any, tolerance: float, variant: str) -> None:
    for kind in GATES:
        inputs = _inputs(np.random.default_rng(6), kind, (3, 2, 5, 19), 2, dtype=dtype)
        wide = inputs if dtype is np.float64 else _wide(inputs)
        attributes = {"direction": "bidirectional"}
        expected = _operator(kind, wide, attributes).run(*wide)
        found = outputs_of(_kernel(_operator(kind, inputs, attributes), inputs), inputs, variant)
        for mine, right in zip(found, expected, strict=True):
            assert mine.dtype == dtype
            np.testing.assert_allclose(mine.astype(np.float64), right, atol=tolerance)


@pytest.mark.parametrize("known", [[], [1, 2, 3, 7]], ids=["given", "constant"])
@pytest.mark.parametrize("variant", [name for name, target in host_targets().items() if bf16_product(target)])
@pytest.mark.parametrize("kind", GATES)
def test_weights_kept_as_bfloat16(kind: str, variant: str, known: Sequence[int]) -> None:
    """Only R is rounded here: X and W are numbers of bfloat16 already."""
    rng = np.random.default_rng(21)
    for batch, hidden in ((1, 40), (9, 33), (3, 1)):
        inputs = _inputs(rng, kind, (4, batch, 6, hidden), 2)
        rounded = [array.astype(ml_dtypes.bfloat16).astype(np.float32) for array in inputs[:3] if array is not None]
        inputs[:2] = rounded[:2]
        attributes = {"direction": "bidirectional"}
        operator, wide = _operator(kind, inputs, attributes), _wide([*rounded, *inputs[3:]])
        binder = Binder(new_binder(variant).library, RunSettings(precision="bfloat16"))
        found = outputs_of(_kernel(operator, inputs), inputs, known=known, binder=binder)
        for mine, right in zip(found, _operator(kind, wide, attributes).run(*wide), strict=True):
            np.testing.assert_allclose(mine, right, atol=3e-6)
        assert any("kept as bfloat16" in step.detail() for step in binder.steps if callable(step.detail))


@pytest.mark.parametrize("name", EVERY_ACTIVATION)
def test_every_activation(name: str) -> None:
    rng = np.random.default_rng(7)
    inputs = _inputs(rng, "LSTM", (3, 2, 4, 21), 2, optional=0.8)
    others = [str(other) for other in rng.choice(EVERY_ACTIVATION, 4)]
    attributes = {
        "direction": "bidirectional",
        "activations": [name, "Tanh", name, *others[:2], name],
        "activation_alpha": [0.3, 0.2, 0.5],
        "activation_beta": [0.1, 0.4],
        "clip": 3.0,
    }
    _check("LSTM", inputs, attributes, tolerance=2e-5)


def test_many_rows_make_several_groups() -> None:
    for batch in (47, 48, 101):
        inputs = _inputs(np.random.default_rng(8), "LSTM", (2, batch, 3, 20))
        _check("LSTM", inputs, {})


def test_nothing_to_do() -> None:
    for sizes in ((0, 2, 3, 5), (2, 0, 3, 5), (2, 2, 0, 5)):
        inputs = _inputs(np.random.default_rng(9), "LSTM", sizes)
        _check("LSTM", inputs, {})


def test_special_numbers_stay_in_their_row() -> None:
    inputs = _inputs(np.random.default_rng(10), "LSTM", (3, 4, 5, 18), optional=0.0)
    clean = outputs_of(_kernel(_operator("LSTM", inputs, {}), inputs), inputs)[0]
    x = inputs[0]
    assert x is not None
    x[1, 2, 3], x[0, 0, 0] = np.nan, np.inf
    found = outputs_of(_kernel(_operator("LSTM", inputs, {}), inputs), inputs)[0]
    assert np.isnan(found[1:, 0, 2]).all()
    assert np.isfinite(found[0, 0, 2]).all()
    assert not np.isnan(found[:, 0, 0]).any()
    np.testing.assert_array_equal(found[:, 0, [1, 3]], clean[:, 0, [1, 3]])


@pytest.mark.parametrize("caches", [NEAR, FAR], ids=["near", "far"])
@pytest.mark.parametrize("bound_for", [1, 2, 3])
@pytest.mark.parametrize("kind", GATES)
def test_threads_change_no_bits(kind: str, bound_for: int, caches: Caches) -> None:
    """Nor does it matter whether they share turns, one strand after the other where caches are far, or take whole
    strands."""
    inputs = _inputs(np.random.default_rng(11), kind, (20, 3, 8, 200), 2)
    attributes = {"direction": "bidirectional"}
    results = []
    kernels = KernelLibrary(replace(library().target, caches=caches), library().cache)
    for settings, threads in itertools.product((RunSettings(threads=1), RunSettings(threads=bound_for)), (1, 2, 5)):
        binder = Binder(kernels, settings=settings)
        tensors = [None if a is None else binder.external(i, a.dtype, a.shape) for i, a in enumerate(inputs)]
        outputs = _kernel(_operator(kind, inputs, attributes), inputs).bind(binder, *tensors)
        given = [one for one in outputs if one is not None]
        chunks = max(step.chunks for step in binder.steps if step.kernel == "recurrent")
        takes_strands = settings.threads == 1 or (settings.threads == 2 and caches is NEAR)
        assert chunks == 2 if takes_strands else chunks > 2
        bound = binder.finish(given, len(inputs), lambda b, t: contiguous(b, t))
        fed = [np.zeros(1) if a is None else a for a in inputs]
        results += [run_plan(bound, fed, threads)[: len(given)] for _ in range(3)]
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, same)


@pytest.mark.parametrize("strides", [(0, 0, 0), (1, 512, 2)])
def test_initial_states_are_copied_before_threads_read_them(strides: tuple[int, int, int]) -> None:
    """As those that are expanded from one number, whose rows do not lie in one piece."""
    x, w, r, *_ = inputs = _inputs(np.random.default_rng(15), "LSTM", (3, 64, 8, 256), 2)
    binder = Binder(library(), settings=RunSettings(threads=2))
    sized = [None if a is None else binder.external(i, a.dtype, a.shape) for i, a in enumerate([x, w, r])]
    h, c = (binder.external(i, np.dtype(np.float32), (64 * 512,)).reshaped((2, 64, 256), strides) for i in (3, 4))
    kernel = _kernel(_operator("LSTM", [*inputs[:3], None, None, *inputs[5:7]], {"direction": "bidirectional"}), inputs)
    outputs = kernel.bind(binder, *sized, None, None, h, c, None)
    names = [step.kernel for step in binder.steps]
    bound = binder.finish([one for one in outputs if one is not None], 5, contiguous)
    meets = [bool(flags & 1) for flags in bound.plan.steps[:, 4]]
    rows = [index for index, name in enumerate(names) if name == "unit_rows"]
    copies = [index for index, name in enumerate(names) if name in ("fill", "strided")]
    assert all(any(meets[copied + 1 : read + 1]) for copied, read in zip(copies, rows, strict=True))


@pytest.mark.parametrize("batch_first", [False, True])
def test_inputs_of_whole_pages_are_copied_into_longer_rows(batch_first: bool) -> None:
    inputs = _inputs(np.random.default_rng(14), "LSTM", (9, 2, 1024, 20), 2, batch_first=batch_first)
    attributes = {"direction": "bidirectional", "layout": int(batch_first)}
    _check("LSTM", inputs, attributes, tolerance=1e-5, known=[1, 2, 3])
    kernel = _kernel(_operator("LSTM", inputs, attributes), inputs)
    few = [inputs[0][:2, :2], *inputs[1:4], *[None] * 4]  # type: ignore[index]
    many = [inputs[0], *few[1:]]
    longer = [sum(step.kernel == "unit_rows" for step in bind(kernel, one)[0].steps) for one in (few, many)]
    assert longer[1] == longer[0] + 1


def test_a_late_seat_finds_nothing_left() -> None:
    """Whichever seat is taken first does the work of all; the others return at once."""
    inputs = _inputs(np.random.default_rng(12), "LSTM", (5, 2, 8, 8 * block_units(library().target, F32)))
    kernel = _kernel(_operator("LSTM", inputs, {}), inputs)
    expected = outputs_of(kernel, inputs, threads=4)
    found = outputs_of(kernel, inputs, one_by_one=True, threads=4)
    binder, _, _ = bind(kernel, inputs, threads=4)
    assert max(step.chunks for step in binder.steps if step.kernel == "recurrent") > 1
    for mine, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, right)


def test_constants_are_packed_once() -> None:
    inputs = _inputs(np.random.default_rng(13), "LSTM", (3, 1, 8, 40))
    kernel = _kernel(_operator("LSTM", inputs, {}), inputs)
    constant, _, _ = bind(kernel, inputs, known=[1, 2, 3, 7])
    given, _, _ = bind(kernel, inputs)
    assert "recurrent_panels" in {step.kernel for step in given.steps}
    assert "recurrent_panels" not in {step.kernel for step in constant.steps}
    assert len(constant.steps) < len(given.steps)


def test_wrong_shapes_are_named() -> None:
    inputs = _inputs(np.random.default_rng(14), "LSTM", (3, 2, 4, 6))
    names = {1: "W must have shape", 3: "B must have shape", 4: "sequence_lens must", 5: "initial_h must", 7: "P must"}
    for place, message in names.items():
        wrong = list(inputs)
        array = wrong[place]
        assert array is not None
        wrong[place] = np.concatenate([array, array], -1)
        with pytest.raises(ValueError, match=message):
            bind(_kernel(_operator("LSTM", wrong, {}), wrong), wrong)


@pytest.mark.parametrize("kernels", ["", "numpy"], ids=["native", "host"])
@pytest.mark.parametrize("wrong", [-1, 4])
def test_lengths_that_are_no_number_of_time_steps(wrong: int, kernels: str) -> None:
    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        m (float[t, b, 2] x, float[1, 15, 2] w, float[1, 15, 5] r, int32[b] lengths) => (float[t, 1, b, 5] y) {
            y = GRU<hidden_size = 5>(x, w, r, "", lengths) }""")
    options = ort.SessionOptions()
    options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    session = ort.InferenceSession(model.SerializeToString(), options)
    feeds: dict[str, Array] = {"x": np.ones((3, 2, 2), np.float32)}
    feeds |= {"w": np.ones((1, 15, 2), np.float32), "r": np.ones((1, 15, 5), np.float32)}
    session.run(None, {**feeds, "lengths": np.array([0, 3], np.int32)})
    for _ in range(2):
        with pytest.raises(errors.InvalidArgument, match=f"sequence_lens.*seq_length=3, not {wrong}"):
            session.run(None, {**feeds, "lengths": np.array([1, wrong], np.int32)})


def test_what_is_declined() -> None:
    inputs = _inputs(np.random.default_rng(15), "RNN", (1, 1, 1, 1))
    kernel = _kernel(_operator("RNN", inputs, {}), inputs)
    facts = [tensor(ir.DataType.FLOAT, [1, 1, 1])] * 3
    assert kernel.declines(facts, []) is None
    assert "float8" in str(kernel.declines([tensor(ir.DataType.FLOAT8E4M3FN, [1, 1, 1])] * 3, []))
    lengths = tensor(ir.DataType.INT64, [1])
    assert "int32" in str(kernel.declines([*facts, None, lengths], []))


@pytest.mark.parametrize("system", ["linux", "windows", "darwin"])
def test_waiting_threads_give_way_on_every_system(system: str) -> None:
    """The loop knows a call of the system, which need not be there."""
    call = "SwitchToThread" if system == "windows" else "sched_yield"
    cells = _operator("RNN", [np.zeros((1, 1, 1), np.float32)] * 3, {}).lower([np.dtype(np.float32)] * 3)
    assert isinstance(cells, Template)
    spec = RecurrentSpec(F32, F32, cells.parameters["cells"], False, False, True, False)
    for target in _targets(system):
        text = emit_recurrent(target, spec)
        assert f"extern_weak i32 @{call}" in text
        assert len(compile_object(text, target)) > 200


def _targets(system: str) -> list[Target]:
    """The smallest variants of both architectures."""
    return [aarch64_targets(Caches(), system)["neon"], x86_64_targets(frozenset(), Caches(), system)["portable"]]
