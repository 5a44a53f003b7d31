"""LSTMs with weights of bytes against the operator's own NumPy, for every instruction set of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.kernels.recurrent.quantized import DynamicQuantizeLSTMKernel
from sardonyx.compiler.llvm.library import KernelLibrary, library
from sardonyx.compiler.llvm.target import Caches
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.kernel.program import Template
from sardonyx.ops.framework.facts import tensor
from sardonyx.ops.framework.operator import Operator
from sardonyx.ops.framework.registry import operator_of
from sardonyx.runtime.settings import RunSettings
from tests.compiler.steps import PRODUCT_VARIANTS, bind, outputs_of, run_plan

Array = np.ndarray[Any, Any]
Inputs = list["Array | None"]

WEIGHTS = (1, 2, 8, 9, 10, 11)
FAR = Caches(48 << 10, 16 << 10, 400 << 20)


def _operator(inputs: Inputs, attributes: Mapping[str, Any], outputs: int = 3) -> Operator:
    values = [None if array is None else ir.Value(name=f"x{index}") for index, array in enumerate(inputs)]
    results = [ir.Value(name=f"y{index}") for index in range(outputs)]
    attrs = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
    return operator_of(ir.Node("com.microsoft", "DynamicQuantizeLSTM", values, attrs, outputs=results, version=1))


def _kernel(operator: Operator, inputs: Inputs) -> DynamicQuantizeLSTMKernel:
    lowered = operator.lower([None if array is None else array.dtype for array in inputs])
    assert isinstance(lowered, Template)
    return DynamicQuantizeLSTMKernel(lowered.parameters)


def _inputs(
    rng: np.random.Generator,
    sizes: tuple[int, int, int, int],
    directions: int = 1,
    *,
    dtypes: tuple[Any, Any] = (np.int8, np.int8),
    per_column: bool = False,
    optional: float = 1.0,
) -> Inputs:
    """All inputs, the optional ones with this probability; sizes are steps, batch, width and hidden."""
    steps, batch, width, hidden = sizes
    columns = 4 * hidden

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    def perhaps(array: Array) -> Array | None:
        return array if rng.random() < optional else None

    def weight(dtype: Any, rows: int) -> tuple[Array, Array, Array]:
        limits = np.iinfo(dtype)
        shape = (directions, columns) if per_column else (directions,)
        scale = rng.uniform(0.5, 1, shape).astype(np.float32) / np.float32(127 * max(1, hidden) ** 0.5)
        middle = (int(limits.min) + int(limits.max) + 1) // 2
        zero = (middle + rng.integers(-3, 4, shape)).astype(dtype)
        values = rng.integers(limits.min, limits.max + 1, (directions, rows, columns), dtype=dtype)
        return values, scale, zero

    w, w_scale, w_zero = weight(dtypes[0], width)
    r, r_scale, r_zero = weight(dtypes[1], hidden)
    lengths = rng.integers(0, steps + 1, batch).astype(np.int32)
    state = directions, batch, hidden
    more = [normal(directions, 2 * columns), lengths, normal(*state), normal(*state), normal(directions, 3 * hidden)]
    return [normal(steps, batch, width), w, r, *map(perhaps, more), w_scale, w_zero, r_scale, r_zero]


def _compare(found: Sequence[Array], expected: Sequence[Array]) -> None:
    """A state that rounds to another byte here and there moves what follows by about a hundredth at most."""
    for mine, right in zip(found, expected, strict=True):
        assert mine.dtype == np.float32
        assert mine.shape == right.shape
        np.testing.assert_allclose(mine, right, atol=2e-2)
        assert not mine.size or np.median(np.abs(mine - right)) < 1e-6


def _check(inputs: Inputs, attributes: Mapping[str, Any], variant: str = "", **options: Any) -> None:
    operator = _operator(inputs, attributes)
    known = [*WEIGHTS, *options.pop("known", ())]
    found = outputs_of(_kernel(operator, inputs), inputs, variant, known=known, **options)
    _compare(found, operator.run(*inputs))


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
@pytest.mark.parametrize("dtypes", [(np.int8, np.int8), (np.uint8, np.int8), (np.int8, np.uint8), (np.uint8, np.uint8)])
def test_random_layers(dtypes: tuple[Any, Any], variant: str) -> None:
    rng = np.random.default_rng(1)
    for hidden in (1, 7, 16, 33, 65):
        direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
        attributes: dict[str, Any] = {"direction": direction, "input_forget": int(rng.integers(0, 2))}
        if rng.random() < 0.5:
            attributes |= {"clip": 0.7, "hidden_size": hidden}
        sizes = (int(rng.integers(1, 5)), int(rng.integers(1, 9)), int(rng.integers(1, 20)), hidden)
        directions = 2 if direction == "bidirectional" else 1
        per_column = bool(rng.random() < 0.5)
        inputs = _inputs(rng, sizes, directions, dtypes=dtypes, per_column=per_column, optional=0.6)
        known = [3, 7] if rng.random() < 0.5 else []
        _check(inputs, attributes, variant, known=known, threads=int(rng.integers(1, 5)))


def test_activations_of_each_direction() -> None:
    inputs = _inputs(np.random.default_rng(2), (4, 3, 5, 21), 2)
    names = ["HardSigmoid", "Softsign", "Tanh", "Sigmoid", "ScaledTanh", "Relu"]
    parameters = {"activation_alpha": [0.3, 0.5], "activation_beta": [0.4, 0.9]}
    _check(inputs, {"direction": "bidirectional", "activations": names, **parameters})


def test_sequences_end_at_the_same_step_backwards() -> None:
    """Their states are quantised together, so that it matters which steps of them go together."""
    rng = np.random.default_rng(3)
    inputs = _inputs(rng, (6, 4, 5, 20), optional=0.0)
    inputs[4] = np.array([6, 1, 3, 0], np.int32)
    _check(inputs, {"direction": "reverse"})


def test_many_rows_are_quantised_together() -> None:
    inputs = _inputs(np.random.default_rng(4), (2, 101, 3, 20))
    x = inputs[0]
    assert x is not None
    x[:, 100] *= 30
    _check(inputs, {})


def test_nothing_to_do() -> None:
    for sizes in ((0, 2, 3, 5), (2, 0, 3, 5), (2, 2, 0, 5), (2, 2, 3, 0)):
        _check(_inputs(np.random.default_rng(5), sizes), {})


def test_outputs_that_nobody_asked_for() -> None:
    inputs = _inputs(np.random.default_rng(6), (3, 2, 4, 9))
    attributes: dict[str, Any] = {}
    operator = _operator(inputs, attributes, outputs=1)
    found = outputs_of(_kernel(operator, inputs), inputs, known=WEIGHTS)
    _compare(found, operator.run(*inputs)[:1])


@pytest.mark.parametrize("wrong", [-1, 4])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_lengths_that_are_no_number_of_time_steps(direction: str, wrong: int) -> None:
    inputs = _inputs(np.random.default_rng(7), (3, 2, 4, 9))
    inputs[4] = np.array([2, wrong], np.int32)
    binder, memory, _ = bind(_kernel(_operator(inputs, {"direction": direction}), inputs), inputs, known=WEIGHTS)
    (message,) = memory.run(binder)
    assert f"seq_length=3, not {wrong}" in message


@pytest.mark.parametrize("bound_for", [1, 2, 3])
@pytest.mark.parametrize("caches", [None, FAR], ids=["own", "far"])
def test_threads_change_no_bits(caches: Caches | None, bound_for: int) -> None:
    """Nor does it matter whether they share turns or take whole strands."""
    inputs = _inputs(np.random.default_rng(8), (20, 3, 8, 200), 2)
    kernel = _kernel(_operator(inputs, {"direction": "bidirectional"}), inputs)
    results = [outputs_of(kernel, inputs, threads=5, known=WEIGHTS)]
    results += [outputs_of(kernel, inputs, threads=5, known=WEIGHTS, one_by_one=True)]
    own = library().target
    kernels = KernelLibrary(own if caches is None else replace(own, caches=caches), library().cache)
    for threads in (1, 2, 5):
        binder = Binder(kernels, settings=RunSettings(threads=bound_for))
        tensors = [
            None if a is None else binder.constant(a) if i in WEIGHTS else binder.external(i, a.dtype, a.shape)
            for i, a in enumerate(inputs)
        ]
        given = [one for one in kernel.bind(binder, *tensors) if one is not None]
        bound = binder.finish(given, len(inputs), contiguous)
        fed = [np.zeros(1) if a is None else a for a in inputs]
        results += [run_plan(bound, fed, threads)[: len(given)] for _ in range(3)]
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, same)


def test_wrong_shapes_are_named() -> None:
    inputs = _inputs(np.random.default_rng(9), (3, 2, 4, 6))
    names = {1: "W must", 2: "R must", 3: "B must", 4: "sequence_lens must", 6: "initial_c must", 8: "W_scale must"}
    for place, message in names.items():
        wrong = list(inputs)
        array = wrong[place]
        assert array is not None
        wrong[place] = np.concatenate([array, array], -1)
        with pytest.raises(ValueError, match=message):
            bind(_kernel(_operator(wrong, {}), wrong), wrong, known=WEIGHTS)
        if place in (1, 2, 8):
            with pytest.raises(ValueError, match=message):
                _operator(wrong, {}).run(*wrong)


def test_what_is_declined() -> None:
    inputs = _inputs(np.random.default_rng(10), (1, 1, 1, 1))
    kernel = _kernel(_operator(inputs, {}), inputs)
    assert kernel.declines([tensor(ir.DataType.FLOAT, [1, 1, 1])], []) is None
    assert "float32" in str(kernel.declines([tensor(ir.DataType.DOUBLE, [1, 1, 1])], []))
