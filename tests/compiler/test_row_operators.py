"""Operators whose kernel is a reduction: the native kernel and the evaluator against the operator's own NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.native.rows.reduction import ReductionTemplate
from sardonyx.errors import EngineError
from sardonyx.kernel import expr as e
from sardonyx.kernel.evaluate import evaluate_reduction
from sardonyx.kernel.expr import Input
from sardonyx.kernel.program import Arrangement, Template
from sardonyx.ops.framework.operator import find_class
from sardonyx.ops.framework.registry import load_families
from sardonyx.ops.row_kernels import rows_template
from tests.compiler.steps import Memory, new_binder
from tests.compiler.test_pointwise_kernel import random, tensor_like
from tests.compiler.vector_calls import VARIANTS

MS = "com.microsoft"

load_families()


def operator_for(op_type, version, attributes, arrays, outputs=1, domain=""):
    inputs = [None if array is None else ir.Value(name=f"i{i}") for i, array in enumerate(arrays)]
    names = outputs if isinstance(outputs, list) else [f"o{i}" for i in range(outputs)]
    node = ir.node(op_type, inputs, attributes=attributes, domain=domain,
                   outputs=[ir.Value(name=name) for name in names])  # fmt: skip
    cls = find_class(domain, op_type, version)
    assert cls is not None
    return cls(node, version)


def check(op_type, arrays, attributes=None, *, version=23, outputs=1, domain="", variant="", rtol=2e-5, atol=2e-5):
    operator = operator_for(op_type, version, attributes or {}, arrays, outputs, domain)
    kernel = operator.lower([None if array is None else array.dtype for array in arrays])
    assert isinstance(kernel, Template)
    assert kernel.name == "reduction"
    native = ReductionTemplate(kernel.parameters)
    assert native.declines([], []) is None
    binder, memory = new_binder(variant), Memory()
    tensors = []
    for index, array in enumerate(arrays):
        if array is None:
            tensors.append(None)
        elif index in native.known_inputs:
            tensors.append(binder.constant(array))
        else:
            tensor = tensor_like(array)
            memory.put(tensor, array)
            tensors.append(tensor)
    results = native.bind(binder, *tensors)
    memory.run(binder)
    expected = operator.run(*arrays)
    names = outputs if isinstance(outputs, list) else ["o"] * outputs
    for index, (name, result) in enumerate(zip(names, results, strict=True)):
        assert (result is not None) == (name != "")
        if result is not None:
            wanted = expected[index]
            assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(
                memory.read(result).astype(float), wanted.astype(float), rtol=rtol, atol=atol, err_msg=f"output {index}"
            )
    _check_evaluator(native, arrays, expected, rtol, atol)
    return binder.steps


def _check_evaluator(native, arrays, expected, rtol, atol):
    arrangement = native.arrange([None if a is None else a.shape for a in arrays], arrays)
    read = [arrays[i].reshape(shape) for i, shape in zip(native.operands, arrangement.inputs, strict=True)]
    for position, array in zip(
        native.positions, evaluate_reduction(native.program, read, arrangement.axes), strict=True
    ):
        np.testing.assert_allclose(
            array.astype(float).ravel(), expected[position].astype(float).ravel(), rtol=rtol, atol=atol
        )


REDUCTIONS = ["ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2",
              "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"]  # fmt: skip


@pytest.mark.parametrize("op_type", REDUCTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64])
def test_reductions(op_type, dtype):
    x = np.abs(random((3, 4, 17), 1, dtype)) + np.asarray(1, dtype)
    if op_type == "ReduceProd":
        x = np.minimum(x, np.asarray(2 if np.dtype(dtype).kind in "iu" else 1.1, dtype))
    tolerance = {2: 1.7e-2}.get(np.dtype(dtype).itemsize, 1e-5)
    check(op_type, [x, np.array([-1])], rtol=tolerance)
    check(op_type, [x, np.array([0, 2])], {"keepdims": 0}, rtol=tolerance)


@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_reductions_of_everything_and_of_nothing(op_type):
    x = np.abs(random((3, 4), 1)) + 0.1
    check(op_type, [x])
    check(op_type, [x], {"keepdims": 0})
    check(op_type, [x], {"noop_with_empty_axes": 1})
    check(op_type, [x, np.zeros(0, np.int64)], {"noop_with_empty_axes": 1})
    check(op_type, [np.asarray(x[0, 0])])


@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_axes_as_an_attribute(op_type):
    check(op_type, [np.abs(random((3, 5, 4), 1)) + 0.1], {"axes": [1]}, version=11)


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceLogSumExp", "ReduceProd"])
def test_empty_sets(op_type):
    check(op_type, [np.zeros((3, 0, 2), np.float32), np.array([1])])
    check(op_type, [np.zeros((0, 3), np.float32), np.array([1])])


def test_log_sum_exp_of_infinities():
    x = np.array([[-np.inf, -np.inf], [np.inf, 1], [1000, 1000], [np.nan, 1]], np.float32)
    check("ReduceLogSumExp", [x, np.array([1])])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_softmax(op_type, variant):
    for version in (11, 13):
        for axis in (-1, 0, 1, 2):
            check(op_type, [random((3, 5, 34), 2)], {"axis": axis}, version=version, variant=variant)
    check(op_type, [random((3, 40), 2, np.float16)], variant=variant, rtol=2e-3)
    check(op_type, [random((2, 3), 2, np.float64)], variant=variant)
    check(op_type, [random((), 2)], variant=variant)
    check(op_type, [random((0, 3), 2)], variant=variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_layer_normalization(variant):
    x, scale, bias = random((2, 6, 48), 1), random((48,), 2), random((48,), 3)
    for outputs in (1, 3, ["y", "", "inverse"]):
        check("LayerNormalization", [x, scale, bias], outputs=outputs, variant=variant)
    check("LayerNormalization", [x, scale], variant=variant)
    check("LayerNormalization", [x, random((6, 48), 2), random((6, 48), 3)], {"axis": 1}, variant=variant)
    half = [array.astype(np.float16) for array in (x, scale, bias)]
    check("LayerNormalization", half, outputs=3, variant=variant, rtol=1e-2, atol=1e-2)
    check("RMSNormalization", [x, scale], variant=variant)
    check("LayerNormalization", [random((2, 48, 6), 1).transpose(0, 2, 1), scale], variant=variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
def test_indices_of_extremes(op_type, last, variant):
    for dtype, axes in (
        (np.float32, (0, 1, 2)),
        (np.int32, (1,)),
        (np.uint8, (2,)),
        (np.int64, (2,)),
        (np.float16, (0,)),
    ):
        x = random((4, 35, 18), 6, dtype)
        for axis in axes:
            attributes = {"axis": axis, "select_last_index": last, "keepdims": axis % 2}
            check(op_type, [np.round(x)], attributes, variant=variant)
    x = random((6, 50), 7)
    x[1, 20], x[2, 30], x[3], x[4] = np.nan, np.inf, -np.inf, np.inf
    x[1, 40] = np.nan
    check(op_type, [x], {"axis": 1, "select_last_index": last}, variant=variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_hardmax(variant):
    x = np.round(random((3, 5, 34), 2))
    for version in (11, 13):
        for axis in (1, 2):
            check("Hardmax", [x], {"axis": axis}, version=version, variant=variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16])
def test_quantization(dtype, variant):
    rng = np.random.default_rng(0)
    x = (random((3, 6, 35), 1) * 40).astype(np.float32)
    x[0, 0, :4] = [1e9, -1e9, 2.5, -2.5]
    scale = np.abs(random(6, 2)) + 0.1
    zero = rng.integers(0, 100, 6).astype(dtype)
    exact = {"rtol": 0, "atol": 0, "variant": variant}
    check("QuantizeLinear", [x, scale, zero], **exact)
    check("QuantizeLinear", [x, scale[:1], zero[:1]], **exact)
    check("QuantizeLinear", [x, np.abs(random(35, 2)) + 0.1, rng.integers(0, 9, 35).astype(dtype)], {"axis": -1},
          **exact)  # fmt: skip
    half = [np.clip(x, -6e4, 6e4).astype(np.float16) / 8, scale.astype(np.float16), zero]
    check("QuantizeLinear", half, **exact)
    quantized = rng.integers(0, 120, (3, 6, 35)).astype(dtype)
    check("DequantizeLinear", [quantized, scale, zero], **exact)
    check("DequantizeLinear", [quantized, scale], **exact)
    check("DequantizeLinear", [quantized.astype(np.int32) * 1000003, scale], **exact)


@pytest.mark.parametrize("variant", VARIANTS)
def test_dynamic_quantization(variant):
    exact = {"rtol": 0, "atol": 0, "variant": variant, "outputs": 3}
    for x in (random((4, 37), 1), np.abs(random(100, 2)), -np.abs(random((2, 3), 3)), np.zeros((3, 3), np.float32),
              np.zeros((0, 2), np.float32)):  # fmt: skip
        check("DynamicQuantizeLinear", [x], **exact)


def test_statistics_and_channels():
    x, scale, bias = random((2, 12, 5, 6), 1), random((12,), 2), random((12,), 3)
    mean, variance = random((12,), 4), np.abs(random((12,), 5)) + 0.1
    check("BatchNormalization", [x, scale, bias, mean, variance])
    check("BatchNormalization", [x[:, :, 0, 0], scale, bias, mean, variance])
    check("InstanceNormalization", [x, scale, bias])
    check("InstanceNormalization", [random((2, 5, 6, 12), 1).transpose(0, 3, 1, 2), scale, bias])
    check("GroupNormalization", [random((2, 5, 6, 12), 1).transpose(0, 3, 1, 2), scale, bias], {"num_groups": 3})
    check("GroupNormalization", [x, scale, bias], {"num_groups": 3}, version=21)
    check("GroupNormalization", [x, scale[:3], bias[:3]], {"num_groups": 3}, version=18)
    check("MeanVarianceNormalization", [x])
    for p in (1, 2):
        check("LpNormalization", [np.concatenate([x, 0 * x])], {"p": p, "axis": 1})


def test_maps_as_a_whole():
    x = random((2, 5, 7, 6), 1)
    for op_type in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        check(op_type, [x])
        check(op_type, [x[:, :, :, 0]])


@pytest.mark.parametrize("variant", VARIANTS)
def test_large_maps_of_few_channels_are_averaged_line_by_line(variant):
    for channels, steps in ((4, 2), (11, 2), (80, 1)):
        x = random((2, 65, 64, channels), 1).transpose(0, 3, 1, 2)
        assert len(check("GlobalAveragePool", [x], variant=variant)) == steps
        assert len(check("ReduceMean", [x, np.array([2, 3])], {"keepdims": 0}, variant=variant)) == steps
    for other in (x[:, :4, :63], np.ascontiguousarray(x[:, :4]), x[:, :4, :1]):
        assert len(check("GlobalAveragePool", [other], variant=variant)) == 1
    assert len(check("GlobalMaxPool", [x[:, :4]], variant=variant)) == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_normalizations_of_onnxruntime(variant):
    x, skip, gamma, beta, bias = (random(shape, 1) for shape in [(2, 6, 40), (1, 6, 40), (40,), (40,), (40,)])
    check("LayerNormalization", [x, gamma, beta], version=9, outputs=3, variant=variant)
    check("SimplifiedLayerNormalization", [x, gamma], outputs=2, variant=variant)
    for outputs, more in (
        (1, []),
        (4, [beta, bias]),
        (["y", "", "", "sum"], [beta]),
        (["y", "", "inverse"], [None, bias]),
    ):
        check("SkipLayerNormalization", [x, skip, gamma, *more], domain=MS, version=1, outputs=outputs,
              variant=variant)  # fmt: skip
    check("SkipSimplifiedLayerNormalization", [x, x, gamma, bias], domain=MS, version=1, outputs=4, variant=variant)
    half = [array.astype(np.float16) for array in (x, skip, gamma, beta)]
    check("SkipLayerNormalization", half, domain=MS, version=1, outputs=4, variant=variant, rtol=1e-2, atol=1e-2)
    scores, mask = random((2, 3, 5, 20), 1), random((2, 1, 1, 20), 2)
    check("BiasSoftmax", [scores, mask], {"axis": 3, "is_inner_broadcast": 0}, domain=MS, version=1, variant=variant)


def test_root_mean_squares_with_gates_and_branches():
    x, gate, scale = random((2, 3, 48), 1), random((2, 3, 48), 2), random((16,), 3)
    for activation in ("silu", "sigmoid"):
        check("GatedRMSNorm", [x, scale, gate], {"activation": activation}, domain=MS, version=1)
    check("BranchwiseRMSNorm", [x, random((48,), 4)], {"num_branches": 3}, domain=MS, version=1)
    check("BranchwiseRMSNorm", [x, scale], {"num_branches": 3}, domain=MS, version=1)
    check("BranchwiseRMSNorm", [x], {"num_branches": 4}, domain=MS, version=1)
    check("BranchwiseRMSNorm", [x.reshape(2, 3, 4, 12), random((4, 12), 5)], domain=MS, version=1)


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
def test_groups_of_channels(channels_last, activation):
    shape = (2, 4, 5, 12) if channels_last else (2, 12, 4, 5)
    x, gamma, beta, bias = random(shape, 1), random(12, 2), random(12, 3), random(12, 4)
    attributes = {"channels_last": channels_last, "activation": activation, "groups": 3}
    check("GroupNorm", [x, gamma, beta], attributes, domain=MS, version=1)
    vector = (2, 1, 1, 12) if channels_last else (2, 12, 1, 1)
    for skip in (random(shape, 5), random(vector, 6), random((2, 12), 7)):
        check("SkipGroupNorm", [x, gamma, beta, skip], attributes, domain=MS, version=1)
        check("SkipGroupNorm", [x, gamma, beta, skip, bias], attributes, domain=MS, version=1, outputs=2)


@pytest.mark.parametrize(("op_type", "arrays", "attributes", "steps"), [
    ("Softmax", [(3, 5, 40)], {}, 1),
    ("LayerNormalization", [(3, 5, 40), (40,), (40,)], {}, 1),
    ("Softmax", [(3, 5, 40)], {"axis": 1}, 1),
    ("InstanceNormalization", [(3, 5, 40), (5,), (5,)], {}, 1),
    ("BatchNormalization", [(3, 5, 40), (5,), (5,), (5,), (5,)], {}, 1),
    ("GroupNormalization", [(3, 5, 40), (5,), (5,)], {"num_groups": 1}, 2),
    ("ReduceMax", [(3, 5, 40)], {"keepdims": 0}, 2),
])  # fmt: skip
def test_an_epilogue(op_type, arrays, attributes, steps):
    values = [np.abs(random(shape, seed)) + 0.1 for seed, shape in enumerate(arrays)]
    operator = operator_for(op_type, 21, attributes, values)
    native = ReductionTemplate(operator.lower([value.dtype for value in values]).parameters)
    assert native.takes_epilogue
    result = operator.run(*values)[0]
    other = random(result.shape[-1:], 9)
    a, b = Input(result.dtype, 0), Input(other.dtype, 1)
    outputs = (e.maximum(a + b, 0), a * 2)
    for _ in range(2):
        binder, memory = new_binder(), Memory()
        tensors = [tensor_like(value) for value in (*values, other)]
        for tensor, value in zip(tensors, (*values, other), strict=True):
            memory.put(tensor, value)
        made = native.bind(binder, *tensors[:-1], epilogue=Epilogue(outputs, (tensors[-1],)))
        memory.run(binder)
        assert len(binder.steps) == steps
        for tensor, wanted in zip(made, (np.maximum(result + other, 0), result * 2), strict=True):
            np.testing.assert_allclose(memory.read(tensor), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("op_type", "arrays", "attributes", "message"), [
    ("InstanceNormalization", [(2, 3, 4), (2,), (3,)], {}, "one number for each channel"),
    ("GroupNormalization", [(2, 7, 4), (7,), (7,)], {"num_groups": 3}, "do not divide into 3 groups"),
    ("LayerNormalization", [(2, 3), (4,)], {}, "does not broadcast"),
    ("LayerNormalization", [(2, 3), (3,)], {"axis": 2}, "out of range"),
    ("Softmax", [(2, 3)], {"axis": 5}, "out of range"),
    ("ReduceSum", [(2, 3)], {"axes": [2]}, "out of range"),
])  # fmt: skip
def test_shapes_that_break_the_rule(op_type, arrays, attributes, message):
    values = [random(shape) for shape in arrays]
    version = 11 if op_type == "ReduceSum" else 21
    operator = operator_for(op_type, version, attributes, values)
    kernel = operator.lower([value.dtype for value in values])
    with pytest.raises(ValueError, match=message):
        ReductionTemplate(kernel.parameters).bind(new_binder(), *[tensor_like(value) for value in values])


def test_a_value_of_the_row_that_reads_a_scalar_beside_its_sum():
    """Such an expression has an element for each of the space; to arrange it as one of each row is a fault."""
    x, scale = random((3, 5), 1), np.asarray(2, np.float32)
    total = e.reduce("sum", Input(x.dtype, 0))
    beside = total * Input(scale.dtype, 1)
    within = e.reduce("sum", Input(x.dtype, 0) * Input(scale.dtype, 1))

    def arrange(shapes, contents):
        return Arrangement(tuple(shapes), (1,), ((3,),))

    def bound(result):
        kernel = rows_template([x.dtype, scale.dtype], [result], arrange, lambda *_: ())
        binder, memory = new_binder(), Memory()
        tensors = [tensor_like(x), tensor_like(scale)]
        for tensor, value in zip(tensors, (x, scale), strict=True):
            memory.put(tensor, value)
        (made,) = ReductionTemplate(kernel.parameters).bind(binder, *tensors)
        memory.run(binder)
        return memory.read(made)

    np.testing.assert_allclose(bound(within), (x * scale).sum(1), rtol=2e-5, atol=2e-5)
    with pytest.raises(EngineError, match=r"output 0 of a reduction has the shape \(3, 5\), arranged as \(3,\)"):
        bound(beside)
