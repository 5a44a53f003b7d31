"""Every compute operator in every form that ONNX's version rules give, against onnxruntime."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.ops.single_node import assert_same, ours, theirs

Array = np.ndarray[Any, Any]
OLDEST, NEWEST_OF_ONNXRUNTIME = 7, 26


@dataclass(frozen=True)
class Case:
    """A node that is valid in the opsets from `low` to `high`; `make` gives its inputs from a random generator."""

    op: str
    make: Callable[[np.random.Generator], list[Array | None]]
    attributes: dict[str, Any] = field(default_factory=dict)
    low: int = 7
    high: int = 99
    outputs: int = 1
    atol: float = 2e-6


def real(*shape: int, low: float = -2.0, high: float = 2.0) -> Callable[[np.random.Generator], Array]:
    return lambda rng: rng.uniform(low, high, shape).astype(np.float32)


def whole(*shape: int, dtype: type = np.int64, low: int = 0, high: int = 20) -> Callable[[np.random.Generator], Array]:
    return lambda rng: rng.integers(low, high, shape).astype(dtype)


def fixed(*values: Any, dtype: type = np.int64) -> Callable[[np.random.Generator], Array]:
    return lambda rng: np.array(values if len(values) != 1 else values[0], dtype)


def absent(rng: np.random.Generator) -> None:
    return None


def inputs(*makers: Callable[[np.random.Generator], Array | None]) -> Callable[[np.random.Generator], Any]:
    return lambda rng: [maker(rng) for maker in makers]


def truth(*shape: int) -> Callable[[np.random.Generator], Array]:
    return lambda rng: rng.random(shape) < 0.5


CASES = [
    *(Case(op, inputs(real(3, 4))) for op in (
        "Abs", "Atan", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "IsInf", "IsNaN",
        "LeakyRelu", "Neg", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Cosh", "Asinh", "Softplus",
        "Softsign", "Tan", "Tanh", "ThresholdedRelu", "Celu", "Gelu", "Mish", "Shrink",
    )),
    *(Case(op, inputs(real(3, 4, low=-0.9, high=0.9))) for op in ("Acos", "Asin", "Atanh")),
    *(Case(op, inputs(real(3, 4, low=1.1, high=4.0))) for op in ("Acosh", "Log", "Sqrt", "Reciprocal")),
    Case("Gelu", inputs(real(3, 4)), {"approximate": "tanh"}, 20),
    *(Case(op, inputs(real(2, 3, 4), real(3, 1))) for op in ("Add", "Sub", "Mul", "Div", "Greater", "Less",
        "GreaterOrEqual", "LessOrEqual", "PRelu")),
    *(Case(op, inputs(real(2, 3), real(2, 3), real(2, 3))) for op in ("Max", "Min", "Mean", "Sum")),
    *(Case(op, inputs(real(2, 3), real(1, 3)), low=8) for op in ("Max", "Min", "Mean", "Sum")),
    *(Case(op, inputs(whole(3, 4, low=-9), whole(4, low=1, high=5))) for op in ("Add", "Sub", "Mul", "Div", "Equal")),
    Case("Pow", inputs(real(2, 3, low=0.1), real(3))),
    Case("Pow", inputs(real(2, 3), fixed(2)), low=12),
    Case("Mod", inputs(whole(3, 4, low=-9), fixed(4, -3, 5, 7)), low=10),
    Case("Mod", inputs(real(3, 4), real(4, low=0.5)), {"fmod": 1}, 10),
    Case("Equal", inputs(real(3, 4), real(3, 4)), low=11),
    *(Case(op, inputs(truth(2, 3), truth(3))) for op in ("And", "Or", "Xor")),
    Case("Not", inputs(truth(2, 3))),
    *(Case("BitShift", inputs(whole(3, dtype=np.uint32), whole(3, dtype=np.uint32, high=9)), {"direction": d}, 11)
      for d in ("LEFT", "RIGHT")),
    *(Case(op, inputs(whole(3, 2, dtype=np.int32), whole(2, dtype=np.int32)), low=18)
      for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    Case("BitwiseNot", inputs(whole(3, dtype=np.int16)), low=18),
    Case("Clip", inputs(real(3, 4)), {"min": -0.5, "max": 1.0}, high=10),
    Case("Clip", inputs(real(3, 4), fixed(-0.5, dtype=np.float32), fixed(1.0, dtype=np.float32)), low=11),
    Case("Clip", inputs(real(3, 4), absent, fixed(1.0, dtype=np.float32)), low=11),
    Case("Where", inputs(truth(2, 1), real(2, 3), real(3)), low=9),
    *(Case("Cast", inputs(real(3, 4)), {"to": to}) for to in (6, 7, 9, 10, 11)),
    Case("CastLike", inputs(real(3, 4), whole(1)), low=15),
    *(Case(op, inputs(real(2, 3, 4)), {"axis": 1}) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    *(Case(op, inputs(real(2, 3, 4))) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    Case("MatMul", inputs(real(2, 3, 4), real(4, 5))),
    Case("MatMul", inputs(whole(3, 4, dtype=np.int32), whole(4, 2, dtype=np.int32)), low=9),
    Case("Gemm", inputs(real(3, 4), real(5, 4), real(5)), {"alpha": 0.5, "beta": 2.0, "transB": 1}),
    Case("Gemm", inputs(real(4, 3), real(4, 5)), {"transA": 1}, 11),
    Case("MatMulInteger", inputs(whole(3, 4, dtype=np.uint8), whole(4, 5, dtype=np.uint8), fixed(3, dtype=np.uint8),
                                 fixed(7, dtype=np.uint8)), low=10),
    Case("Einsum", inputs(real(2, 3, 4), real(2, 4, 5)), {"equation": "bij,bjk->bik"}, 12),
    Case("Conv", inputs(real(2, 4, 7, 6), real(6, 2, 3, 3), real(6)),
         {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 2], "dilations": [1, 2]}),
    Case("ConvTranspose", inputs(real(2, 4, 5, 4), real(4, 3, 3, 3), real(6)),
         {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 2], "output_padding": [1, 0]}),
    Case("ConvInteger", inputs(whole(1, 2, 5, 5, dtype=np.uint8), whole(3, 2, 3, 3, dtype=np.uint8),
                               fixed(4, dtype=np.uint8)), {"pads": [1, 1, 1, 1]}, 10),
    *(Case(op, inputs(real(2, 3, 7, 6)), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]})
      for op in ("MaxPool", "AveragePool", "LpPool")),
    Case("MaxPool", inputs(real(2, 3, 7, 6)), {"kernel_shape": [3, 2], "strides": [2, 2], "storage_order": 1},
         8, outputs=2),
    Case("MaxPool", inputs(real(2, 3, 8, 6)), {"kernel_shape": [3, 2], "dilations": [2, 1], "ceil_mode": 1,
                                               "strides": [2, 3]}, 10),
    Case("AveragePool", inputs(real(2, 3, 7, 6)),
         {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1, "pads": [1, 1, 0, 0]}, 19),
    *(Case(op, inputs(real(2, 3, 7, 6))) for op in ("GlobalAveragePool", "GlobalMaxPool")),
    Case("GlobalLpPool", inputs(real(2, 3, 7, 6)), {"p": 3}, high=21),  # onnxruntime has no kernel since 22
    Case("BatchNormalization", inputs(real(2, 3, 4, 4), real(3), real(3), real(3), real(3,
         low=0.5)), {"epsilon": 1e-3}),
    Case("InstanceNormalization", inputs(real(2, 3, 4, 4), real(3), real(3))),
    Case("GroupNormalization", inputs(real(2, 4, 3, 3), real(4), real(4)), {"num_groups": 2}, 21),
    Case("GroupNormalization", inputs(real(2, 4, 3, 3), real(2), real(2)), {"num_groups": 2}, 18, 20),
    Case("LayerNormalization", inputs(real(2, 3, 4), real(3, 4), real(3, 4)), {"axis": 1}, 17, outputs=3),
    Case("RMSNormalization", inputs(real(2, 3, 4), real(4)), low=23),
    Case("LpNormalization", inputs(real(2, 3, 4)), {"axis": 1, "p": 1}),
    Case("MeanVarianceNormalization", inputs(real(2, 3, 4, 4)), low=9),
    Case("LRN", inputs(real(2, 5, 4, 4)), {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 2.0}),
    *(Case(op, inputs(real(2, 3, 4, low=0.1)), {"axes": [0, -1], "keepdims": 0}, high=17 if op != "ReduceSum" else 12)
      for op in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
                 "ReduceProd", "ReduceSum", "ReduceSumSquare")),
    *(Case(op, inputs(real(2, 3, 4, low=0.1), fixed(0, 2)), {"keepdims": 0}, 18 if op != "ReduceSum" else 13)
      for op in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
                 "ReduceProd", "ReduceSum", "ReduceSumSquare")),
    *(Case(op, inputs(real(3, 5)), {"axis": 1, "keepdims": 0}) for op in ("ArgMax", "ArgMin")),
    *(Case(op, inputs(whole(3, 5, dtype=np.int32, high=3)), {"axis": 1, "select_last_index": 1}, 12)
      for op in ("ArgMax", "ArgMin")),
    Case("CumSum", inputs(real(3, 4), fixed(1)), {"exclusive": 1, "reverse": 1}, 11),
    Case("CumProd", inputs(real(3, 4), fixed(1)), low=26),
    Case("QuantizeLinear", inputs(real(3, 4), fixed(0.02, dtype=np.float32), fixed(5, dtype=np.int8)), low=10),
    Case("QuantizeLinear", inputs(real(3, 4), real(4, low=0.01, high=0.1), whole(4, dtype=np.uint8)), {"axis": 1}, 13),
    Case("QuantizeLinear", inputs(real(2, 6), real(2, 2, low=0.01), whole(2, 2, dtype=np.uint8)),
         {"axis": 1, "block_size": 3}, 21),
    Case("DequantizeLinear", inputs(whole(3, 4, dtype=np.uint8), fixed(0.02, dtype=np.float32),
                                    fixed(5, dtype=np.uint8)), low=10),
    Case("DequantizeLinear", inputs(whole(3, 4, dtype=np.int8), real(3, low=0.01), whole(3, dtype=np.int8)),
         {"axis": 0}, 13),
    Case("DynamicQuantizeLinear", inputs(real(3, 4)), low=11, outputs=3),
    Case("QLinearConv", inputs(whole(1, 2, 5, 5, dtype=np.uint8), fixed(0.02, dtype=np.float32),
                               fixed(7, dtype=np.uint8), whole(3, 2, 3, 3, dtype=np.int8, low=-9),
                               fixed(0.01, 0.02, 0.03, dtype=np.float32), fixed(0, 0, 0, dtype=np.int8),
                               fixed(0.05, dtype=np.float32), fixed(9, dtype=np.uint8),
                               whole(3, dtype=np.int32)), {"pads": [1, 1, 1, 1]}, 10),
    Case("QLinearMatMul", inputs(whole(3, 4, dtype=np.uint8), fixed(0.02, dtype=np.float32), fixed(7, dtype=np.uint8),
                                 whole(4, 5, dtype=np.uint8), fixed(0.03, dtype=np.float32), fixed(5, dtype=np.uint8),
                                 fixed(0.05, dtype=np.float32), fixed(9, dtype=np.uint8)), low=10),
    Case("GridSample", inputs(real(1, 2, 5, 4), real(1, 3, 6, 2)), {"padding_mode": "reflection"}, 16),
    Case("AffineGrid", inputs(real(2, 2, 3), fixed(2, 1, 4, 5)), {"align_corners": 1}, 20),
    Case("DeformConv", inputs(real(1, 2, 5, 5), real(3, 2, 2, 2), real(1, 8, 4, 4)), low=19),
    Case("MaxUnpool", inputs(real(1, 1, 2, 2), fixed([[[[5, 7], [13, 15]]]])),
         {"kernel_shape": [2, 2], "strides": [2, 2]}, 9),
    Case("MaxRoiPool", inputs(real(2, 3, 8, 8), fixed([1, 0, 0, 5, 6], [0, 2, 1, 7, 7], dtype=np.float32)),
         {"pooled_shape": [2, 3]}, high=21),  # onnxruntime has no kernel since 22
    Case("RoiAlign", inputs(real(2, 3, 8, 8), fixed([1, 1, 5, 6], [2, 1, 7, 7], dtype=np.float32), fixed(1, 0)),
         {"output_height": 2, "output_width": 3, "sampling_ratio": 2}, 10, 21),  # nor here
    Case("Col2Im", inputs(real(1, 8, 9), fixed(4, 4), fixed(2, 2)), low=18),
    Case("Det", inputs(real(2, 4, 4)), low=11),
    Case("Scatter", inputs(real(3, 3), lambda rng: np.array([[1, 0, 2]]), real(1, 3)), {"axis": 0}, 9, 10),
    Case("ConstantOfShape", inputs(fixed(2, 3)), low=9),
    Case("Swish", inputs(real(3, 4)), {"alpha": 0.7}, 24),
    Case("CenterCropPad", inputs(real(3, 8, 4), fixed(5, 7)), {"axes": [1, 2]}, 18),
    Case("DFT", inputs(real(1, 8, 1), fixed(6)), {"axis": 1, "onesided": 1}, 17, 19, atol=1e-5),
    Case("DFT", inputs(real(1, 8, 1), fixed(6), fixed(1)), {"onesided": 1}, 20, atol=1e-5),
    Case("STFT", inputs(real(1, 32, 1), fixed(4), real(8), fixed(8)), low=17),
    *(Case(op, inputs(fixed(9)), {"periodic": periodic}, 17)
      for op in ("HannWindow", "HammingWindow", "BlackmanWindow") for periodic in (0, 1)),
    Case("MelWeightMatrix", inputs(fixed(6), fixed(32), fixed(8000), fixed(100.0, dtype=np.float32),
                                   fixed(3500.0, dtype=np.float32)), low=17),
    Case("RotaryEmbedding", inputs(real(2, 3, 4, 8), real(2, 4, 4), real(2, 4, 4)), {"interleaved": 1}, 23),
    Case("Attention", inputs(real(1, 2, 4, 8), real(1, 2, 5, 8), real(1, 2, 5, 6)), {"scale": 0.4}, 23),
    Case("TensorScatter", inputs(real(2, 3, 6, 4), real(2, 3, 2, 4), fixed(1, 3)), low=24),
    Case("NegativeLogLikelihoodLoss", inputs(real(3, 5), whole(3, high=5)), {"reduction": "mean"}, 12),
    Case("SoftmaxCrossEntropyLoss", inputs(real(3, 5), whole(3, high=5)), {"reduction": "sum"}, 12),
    Case("Upsample", inputs(real(1, 2, 3, 4)), {"scales": [1.0, 1.0, 2.0, 1.5], "mode": "nearest"}, 7, 8),
    Case("Upsample", inputs(real(1, 2, 3, 4), fixed(1, 1, 2, 3, dtype=np.float32)), {"mode": "linear"}, 9, 9),
    Case("Resize", inputs(real(1, 2, 3, 4), fixed(1, 1, 2, 1.5, dtype=np.float32)), {"mode": "nearest"}, 10, 10),
    Case("Resize", inputs(real(1, 1, 5, 6), fixed(1, 1, 0.6, 0.6, dtype=np.float32)), {"mode": "linear"}, 10, 10),
    Case("Resize", inputs(real(1, 1, 5, 6), absent, fixed(1, 1, 2, 0.5, dtype=np.float32)), {"mode": "linear"}, 13),
    Case("Resize", inputs(real(1, 1, 5, 6), fixed([], dtype=np.float32), fixed(1, 1, 2, 0.5, dtype=np.float32)),
         {"mode": "cubic", "cubic_coeff_a": -0.5}, 11),
    Case("Resize", inputs(real(1, 1, 5, 6), absent, absent, fixed(1, 1, 8, 3)),
         {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, 13),
    Case("RNN", inputs(real(4, 2, 3), real(2, 5, 3), real(2, 5, 5), real(2, 10)),
         {"hidden_size": 5, "direction": "bidirectional"}, outputs=2),
    Case("GRU", inputs(real(4, 2, 3), real(1, 15, 3), real(1, 15, 5), real(1, 30), fixed(4, 2, dtype=np.int32)),
         {"hidden_size": 5, "linear_before_reset": 1, "direction": "reverse"}, outputs=2),
    Case("GRU", inputs(real(4, 2, 3), real(1, 15, 3), real(1, 15, 5)), {"hidden_size": 5}, outputs=2),
    Case("LSTM", inputs(real(4, 2, 3), real(2, 20, 3), real(2, 20, 5), real(2, 40), fixed(4, 3, dtype=np.int32),
                        real(2, 2, 5), real(2, 2, 5), real(2, 15)),
         {"hidden_size": 5, "direction": "bidirectional", "clip": 0.9}, outputs=3),
    Case("LSTM", inputs(real(4, 2, 3), real(1, 20, 3), real(1, 20, 5)),
         {"hidden_size": 5, "activations": ["HardSigmoid", "Relu", "Softsign"]}, outputs=3),
]  # fmt: skip


def versions(op: str) -> list[int]:
    return sorted(
        {s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op and s.domain == ""}
    )


def opsets(case: Case) -> list[int]:
    """The opsets that begin a form of the case's operator, within its range; the form before them too."""
    since = versions(case.op)
    start = max(OLDEST, case.low, since[0])
    top = min(case.high, NEWEST_OF_ONNXRUNTIME)
    return sorted({start, *(version for version in since if start <= version <= top)}) if start <= top else []


PARAMETERS = [
    pytest.param(case, opset, id=f"{case.op}-{opset}-{index}")
    for index, case in enumerate(CASES)
    for opset in opsets(case)
]


@pytest.mark.parametrize(("case", "opset"), PARAMETERS)
def test_form_of_an_operator(case: Case, opset: int) -> None:
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(zlib.crc32(f"{case.op}{opset}".encode()))
    values = case.make(rng)
    expected = theirs(case.op, *values, opset=opset, outputs=case.outputs, **case.attributes)
    actual = ours(case.op, *values, opset=opset, outputs=case.outputs, **case.attributes)
    assert_same(actual, expected, rtol=2e-5, atol=case.atol)


# Forms that the cases above leave out: the reason, or the file in this folder that tests them.
ELSEWHERE = {
    "test_movement": (
        "Concat Expand EyeLike Flatten Gather GatherElements GatherND NonMaxSuppression Pad Range Reshape "
        "ScatterElements ScatterND Shape Size Slice Split Squeeze Tile Transpose Unsqueeze"
    ),
    "test_control_flow": "If Loop Scan",
    "test_ngrams": "TfIdfVectorizer",
    "test_random": "Bernoulli Dropout Multinomial RandomNormal RandomUniformLike",
    "test_regions": "MaxRoiPool RoiAlign",
    "test_selection": "Compress DepthToSpace NonZero OneHot ReverseSequence SpaceToDepth TopK Trilu Unique",
    "test_sequence": (
        "ConcatFromSequence SequenceAt SequenceConstruct SequenceErase SequenceInsert SequenceLength SplitToSequence"
    ),
    "test_text": "RegexFullMatch StringConcat StringNormalizer StringSplit",
}
NO_FORM_OF_ITS_OWN = {
    "Constant": "a value, not a computation: tests/graph loads every kind of it",
    "GlobalLpPool": "onnxruntime has no kernel of form 22",
    "Identity": "the backend suite runs it for tensors, sequences and optionals",
    "ImageDecoder": "onnxruntime has no kernel",
    "Optional": "the backend suite runs it: its outputs are no tensors",
    "OptionalGetElement": "the backend suite runs it: its inputs are no tensors",
    "OptionalHasElement": "the backend suite runs it: its inputs are no tensors",
    "RandomNormalLike": "RandomNormal of another's shape, both tested in test_random by their relatives",
    "RandomUniform": "shares its generator with RandomUniformLike, tested in test_random",
    "SequenceEmpty": "the backend suite runs it: its output is no tensor",
    "SequenceMap": "a function of other operators; the backend suite runs it",
    "BitCast": "onnxruntime has no kernel that the cases could compare with",
}


def test_every_form_is_covered_or_accounted_for() -> None:
    covered = set()
    for case in CASES:
        since = versions(case.op)
        covered |= {(case.op, max(v for v in since if v <= opset)) for opset in opsets(case)}
    elsewhere = {op for names in ELSEWHERE.values() for op in names.split()}
    for file, names in ELSEWHERE.items():
        text = (Path(__file__).parent / f"{file}.py").read_text("utf-8")
        unnamed = [op for op in names.split() if not re.search(rf"\b{op}\b", text)]
        assert not unnamed, f"{file}.py does not test {unnamed}"
    missing = sorted(
        {
            (schema.name, schema.since_version)
            for schema in onnx.defs.get_all_schemas_with_history()
            if schema.domain == "" and not schema.deprecated and schema.since_version >= OLDEST
            if schema.since_version <= NEWEST_OF_ONNXRUNTIME
            if (schema.name, schema.since_version) not in covered
            if schema.name not in elsewhere and schema.name not in NO_FORM_OF_ITS_OWN
        }
    )
    assert not missing, f"no test of these forms: {missing}"
