"""float16 and bfloat16 tensors in native code: no step is left to the host, and results are rounded once.

Each operator alone is compared with itself in float64 on the same numbers, by NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import sardonyx as ort
from sardonyx import errors
from sardonyx.compiler.llvm.target import host_targets
from tests.compiler.small_models import SMALL_MODELS, Array, SmallModel
from tests.compiler.steps import VARIANTS
from tests.compiler.typed_models import typed

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor"),
    *("Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu"),
    *("Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh"),
    "ThresholdedRelu",
)
BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu", "Mean", "Sum")
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


def _within(low: float, high: float) -> Any:
    return lambda sizes: np.random.default_rng(7).uniform(low, high, (3, 41))


# Where an operator is defined, or its result is within float16.
DOMAINS = {
    **dict.fromkeys(("Acos", "Asin", "Atanh"), _within(-0.9, 0.9)),
    **dict.fromkeys(("Log", "Sqrt", "Reciprocal", "Pow", "Div", "ReduceLogSum"), _within(0.1, 4)),
    "Acosh": _within(1.1, 9),
    "ReduceProd": _within(0.9, 1.1),
}


def _operators() -> Mapping[str, SmallModel]:
    """Models of one operator each."""
    found: dict[str, SmallModel] = {}

    def add(name: str, text: str, **others: Any) -> None:
        found[name] = SmallModel(f"one {text}", **others)

    for name in UNARY:
        special = {"x": DOMAINS[name]} if name in DOMAINS else None
        add(name, f"(float[3, 41] x) => (float[3, 41] y) {{ y = {name}(x) }}", special=special)
    for name in BINARY:
        special = {"x": DOMAINS[name], "b": DOMAINS[name]} if name in DOMAINS else None
        text = f"(float[3, 41] x, float[3, 41] b) => (float[3, 41] y) {{ y = {name}(x, b) }}"
        add(name, text, special=special)
    for kind in REDUCTIONS:
        name = f"Reduce{kind}"
        special = {"x": DOMAINS.get(name, _within(-2, 2))}
        text = f"(float[3, 41] x) => (float[3, 1] y) {{ a = Constant<value_ints = [1]>() y = {name}(x, a) }}"
        add(name, text, special=special)
    for name in ("Softmax", "LogSoftmax", "LpNormalization", "Hardmax"):
        add(name, f"(float[3, 41] x) => (float[3, 41] y) {{ y = {name}(x) }}")
    norm = "(float[2, 6, 23] x, float[%s] s, float[%s] b) => (float[2, 6, 23] y) { y = %s(x, s, b) }"
    add("LayerNormalization", norm % (23, 23, "LayerNormalization"))
    add("GroupNormalization", norm % (6, 6, "GroupNormalization<num_groups = 2>"))
    add("InstanceNormalization", norm % (6, 6, "InstanceNormalization"))
    add(
        "RMSNormalization",
        "(float[2, 6, 23] x, float[23] s) => (float[2, 6, 23] y) { y = RMSNormalization(x, s) }",
    )
    add("CumSum", "(float[3, 41] x) => (float[3, 41] y) { a = Constant<value_int = 1>() y = CumSum(x, a) }")
    add("MatMul", "(float[7, 50] x, float[50, 21] w) => (float[7, 21] y) { y = MatMul(x, w) }")
    add("MatMul of a constant", "(float[7, 50] x) => (float[7, 21] y) { y = MatMul(x, w) }", constants={"w": (50, 21)})
    add("Gemm", "(float[7, 50] x, float[21] c) => (float[7, 21] y) { y = Gemm<transB = 1>(x, w, c) }",
        constants={"w": (21, 50)})  # fmt: skip
    add("Einsum", '(float[7, 50] x, float[50, 21] w) => (float[7, 21] y) { y = Einsum<equation = "ij,jk->ik">(x, w) }')
    image = "(float[2, 6, 9, 10] x) => (float[2, %s] y) { y = %s }"
    same = "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"
    for name in ("MaxPool", "AveragePool", "LpPool"):
        add(name, image % ("6, 9, 10", f"{name}<{same}>(x)"))
    for name in ("GlobalAveragePool", "GlobalMaxPool"):
        add(name, image % ("6, 1, 1", f"{name}(x)"))
    add("LRN", image % ("6, 9, 10", "LRN<size = 3>(x)"))
    add("Conv", image % ("8, 9, 10", "Conv<pads = [1, 1, 1, 1]>(x, w, b)"), constants={"w": (8, 6, 3, 3), "b": (8,)})
    add("Conv of groups", image % ("6, 9, 10", "Conv<group = 6, pads = [1, 1, 1, 1]>(x, w)"),
        constants={"w": (6, 1, 3, 3)})  # fmt: skip
    add("ConvTranspose", image % ("5, 18, 20", "ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w)"),
        constants={"w": (6, 5, 4, 4)})  # fmt: skip
    sizes = "(float[1, 2, 6, 7] x) => (float[1, 2, 12, 14] y) { s = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>() "
    for mode in ("nearest", "linear", "cubic"):
        add(f"Resize {mode}", f'{sizes} y = Resize<mode = "{mode}">(x, , s) }}')
    heads = "(float[2, 3, 9, 16] q, float[2, 3, 9, 16] k, float[2, 3, 9, 16] v) => (float[2, 3, 9, 16] y)"
    add("Attention", f"{heads} {{ y = Attention<is_causal = 1>(q, k, v) }}")
    add("Where", "(float[3, 41] x, float[3, 41] b) => (float[3, 41] y) { c = Less(x, b) y = Where(c, x, b) }")
    add("Clip", "(float[3, 41] x, float l, float h) => (float[3, 41] y) { y = Clip(x, l, h) }",
        special={"l": lambda _: np.array(-0.5), "h": lambda _: np.array(0.75)})  # fmt: skip
    add(
        "TopK",
        "(float[3, 41] x) => (float[3, 5] y, int64[3, 5] i) { k = Constant<value_ints = [5]>() y, i = TopK(x, k) }",
    )
    return found


OPERATORS = _operators()
# An instruction set of this machine for each width of its vectors.
KERNELS = [name for name in host_targets() if name in VARIANTS]
# Those which ONNX does not define for a type, of operators and of small models.
UNDEFINED = {("bfloat16", name) for name in ("Shrink", "Einsum", "places", "counted")}


def options(kernels: str = "") -> ort.SessionOptions:
    found = ort.SessionOptions()
    found.intra_op_num_threads = 1
    if kernels:
        found.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    return found


def host_steps(session: ort.InferenceSession) -> list[tuple[str, str | None]]:
    """Operators that are done in Python, with the reason, except those with bodies."""
    steps = session._sess._plan.steps
    found = [(step.op_type, step.reason) for step in steps if step.kind not in ("segment", "native")]
    return [(name, reason) for name, reason in found if name not in ("If", "Loop", "Scan")]


@pytest.mark.parametrize("variant", KERNELS)
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("name", list(OPERATORS))
def test_an_operator_rounds_once(name: str, dtype: str, variant: str) -> None:
    small = OPERATORS[name]
    narrow = typed(small.model, dtype)
    inputs = {key: array.astype(DTYPES[dtype]) for key, array in small.inputs({}).items()}
    wide_inputs = {key: array.astype(np.float64) for key, array in inputs.items()}
    if (dtype, name) in UNDEFINED:
        with pytest.raises(errors.InvalidGraph, match="Type Error"):
            ort.InferenceSession(narrow.SerializeToString(), options())
        return
    session = ort.InferenceSession(narrow.SerializeToString(), options(variant))
    assert host_steps(session) == []
    found = session.run(None, inputs)
    wide = typed(narrow, "float64", dtype).SerializeToString()
    expected = ort.InferenceSession(wide, options("numpy")).run(None, wide_inputs)
    for one, other in zip(found, expected, strict=True):
        check_rounded(one, other, dtype)


def check_rounded(found: Array, exact: Array, dtype: str) -> None:
    """Each result is as near to the exact one as the type allows, but for errors of computing in float32."""
    if found.dtype.kind == "i":
        np.testing.assert_array_equal(found, exact)
        return
    assert found.dtype == DTYPES[dtype]
    kind = ml_dtypes.finfo(DTYPES[dtype])
    half_step = np.maximum(np.abs(exact), float(kind.smallest_normal)) * float(kind.eps) / 2
    noise = 3e-6 * np.abs(exact).max(initial=0.0)
    np.testing.assert_array_less(np.abs(found.astype(np.float64) - exact), half_step * 1.001 + noise + 1e-30)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("name", [name for name, small in SMALL_MODELS.items() if not small.float32_alone])
def test_small_models_leave_nothing_to_the_host(name: str, dtype: str) -> None:
    model = typed(SMALL_MODELS[name].model, dtype).SerializeToString()
    if (dtype, name) in UNDEFINED:
        with pytest.raises(errors.InvalidGraph, match="Type Error"):
            ort.InferenceSession(model, options())
        return
    assert host_steps(ort.InferenceSession(model, options())) == []
