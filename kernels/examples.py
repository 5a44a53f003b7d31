"""The models whose kernels are made ready: those of the zoo, Magika's, and small ones of kinds that people train."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from benchmarks.zoo import registry, store, test_data
from kernels.collecting import Example, Inputs

# How many files a client of Magika asks about at once.
_MAGIKA_BATCHES = (1, 2, 7, 32)


class MissingModelError(Exception):
    """A model that is not built or installed."""


def examples(zoo: Path) -> list[Example]:
    """All of them; MissingModelError where one is not there."""
    missing = [name for name in registry.names() if not store.is_built(name, zoo)]
    if missing:
        raise MissingModelError(f"models of the zoo are missing: python -m benchmarks.zoo {' '.join(missing)}")
    of_zoo = [Example(name, str(zoo / name / "model.onnx"), partial(_beside, zoo / name)) for name in registry.names()]
    return [*of_zoo, Example("magika", str(_magika()), _magika_inputs), *small()]


def small() -> list[Example]:
    """Those that are made here."""
    return [Example(name, _small(*one), partial(_random, _small(*one), one[2])) for name, one in _SMALL.items()]


def _beside(folder: Path) -> list[Inputs]:
    """The inputs of a model of the zoo, of one or two sets of sizes."""
    return [test_data.load(one)[0] for one in sorted(folder.glob("test_data_set_*"))]


def _magika() -> Path:
    spec = importlib.util.find_spec("magika")
    if spec is None or spec.origin is None:
        raise MissingModelError("magika is not installed")
    return sorted(Path(spec.origin).parent.glob("models/*/model.onnx"))[-1]


def _magika_inputs() -> list[Inputs]:
    rng = np.random.default_rng(1)
    return [{"bytes": rng.integers(0, 257, (count, 2048), np.int32)} for count in _MAGIKA_BATCHES]


_HEAD = '<ir_version: 10, opset_import: ["": 20, "ai.onnx.ml": 3]>'

Sizes = Sequence[Mapping[str, int]]

_ROWS: Sizes = ({"n": 1}, {"n": 3}, {"n": 64}, {"n": 1000})
_TOKENS: Sizes = ({"n": 1, "t": 32}, {"n": 5, "t": 17})

# In ONNX's own text, with the shapes of constants, and the sizes of runs.
_SMALL: Mapping[str, tuple[str, Mapping[str, tuple[int, ...]], Sizes]] = {
    "perceptron": (
        """g (float[n, 20] x) => (float[n, 5] y) {
            a = Gemm<transB = 1>(x, w1, b1)  h = Relu(a)
            c = Gemm<transB = 1>(h, w2, b2)  i = Relu(c)
            d = Gemm<transB = 1>(i, w3, b3)  y = Softmax<axis = -1>(d)
        }""",
        {"w1": (64, 20), "b1": (64,), "w2": (32, 64), "b2": (32,), "w3": (5, 32), "b3": (5,)},
        _ROWS,
    ),
    "autoencoder": (
        """g (float[n, 784] x) => (float[n, 784] y) {
            a = MatMul(x, w1)  b = Add(a, b1)  c = Tanh(b)
            d = MatMul(c, w2)  e = Add(d, b2)  y = Sigmoid(e)
        }""",
        {"w1": (784, 64), "b1": (64,), "w2": (64, 784), "b2": (784,)},
        _ROWS,
    ),
    "digits": (
        """g (float[n, 1, 28, 28] x) => (float[n, 10] y) {
            a = Conv<kernel_shape = [5, 5], pads = [2, 2, 2, 2]>(x, w1, b1)  b = Relu(a)
            c = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(b)
            d = Conv<kernel_shape = [5, 5], pads = [2, 2, 2, 2]>(c, w2, b2)  e = Relu(d)
            f = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(e)
            h = Flatten<axis = 1>(f)  i = Gemm<transB = 1>(h, w3, b3)  y = LogSoftmax<axis = 1>(i)
        }""",
        {"w1": (16, 1, 5, 5), "b1": (16,), "w2": (32, 16, 5, 5), "b2": (32,), "w3": (10, 1568), "b3": (10,)},
        _ROWS[:3],
    ),
    "gru": (
        """g (float[t, n, 40] x) => (float[n, 8] y) {
            a, h = GRU<hidden_size = 64, linear_before_reset = 1>(x, w, r, b)
            zero = Constant<value_ints = [0]>()  i = Squeeze(h, zero)  y = Gemm<transB = 1>(i, v, c)
        }""",
        {"w": (1, 192, 40), "r": (1, 192, 64), "b": (1, 384), "v": (8, 64), "c": (8,)},
        _TOKENS,
    ),
    "lstm in both directions": (
        """g (float[t, n, 40] x) => (float[t, n, 8] y) {
            a, h, k = LSTM<hidden_size = 64, direction = "bidirectional">(x, w, r, b)
            p = Transpose<perm = [0, 2, 1, 3]>(a)  form = Constant<value_ints = [0, 0, -1]>()
            q = Reshape(p, form)  s = MatMul(q, v)  y = Add(s, c)
        }""",
        {"w": (2, 256, 40), "r": (2, 256, 64), "b": (2, 512), "v": (128, 8), "c": (8,)},
        _TOKENS,
    ),
    "encoder": (
        """g (float[n, t, 64] x) => (float[n, t, 64] y) {
            heads = Constant<value_ints = [0, 0, 4, 16]>()  rows = Constant<value_ints = [0, 0, 64]>()
            q1 = MatMul(x, wq)  q2 = Add(q1, bq)  q3 = Reshape(q2, heads)  q = Transpose<perm = [0, 2, 1, 3]>(q3)
            k1 = MatMul(x, wk)  k2 = Add(k1, bk)  k3 = Reshape(k2, heads)  k = Transpose<perm = [0, 2, 3, 1]>(k3)
            v1 = MatMul(x, wv)  v2 = Add(v1, bv)  v3 = Reshape(v2, heads)  v = Transpose<perm = [0, 2, 1, 3]>(v3)
            s1 = MatMul(q, k)  four = Constant<value_float = 4.0>()  s2 = Div(s1, four)  s = Softmax<axis = -1>(s2)
            a1 = MatMul(s, v)  a2 = Transpose<perm = [0, 2, 1, 3]>(a1)  a3 = Reshape(a2, rows)
            a4 = MatMul(a3, wo)  a5 = Add(a4, bo)  a6 = Add(a5, x)
            a = LayerNormalization<axis = -1, epsilon = 1e-5>(a6, g1, h1)
            f1 = MatMul(a, w1)  f2 = Add(f1, b1)  f3 = Gelu(f2)  f4 = MatMul(f3, w2)  f5 = Add(f4, b2)
            f = Add(f5, a)  y = LayerNormalization<axis = -1, epsilon = 1e-5>(f, g2, h2)
        }""",
        {
            **dict.fromkeys(("wq", "wk", "wv", "wo"), (64, 64)),
            **dict.fromkeys(("bq", "bk", "bv", "bo", "g1", "h1", "b2", "g2", "h2"), (64,)),
            "w1": (64, 256),
            "b1": (256,),
            "w2": (256, 64),
        },
        _TOKENS,
    ),
    "linear classifier": (
        """g (float[n, 4] x) => (int64[n] label, float[n, 3] scores) {
            a = ai.onnx.ml.Scaler<offset = [5.8, 3.0, 3.7, 1.2], scale = [1.2, 2.3, 0.6, 1.3]>(x)
            label, b = ai.onnx.ml.LinearClassifier<classlabels_ints = [0, 1, 2], post_transform = "SOFTMAX",
                coefficients = [-1.0, 0.5, -2.0, -1.5, 0.5, -0.25, -0.5, -1.0, 0.5, -0.25, 2.5, 2.5],
                intercepts = [0.5, 1.5, -2.0]>(a)
            scores = ai.onnx.ml.Normalizer<norm = "L1">(b)
        }""",
        {},
        _ROWS,
    ),
}


def _small(text: str, constants: Mapping[str, tuple[int, ...]], sizes: Sizes) -> bytes:
    del sizes
    model = parser.parse_model(_HEAD + text)
    rng = np.random.default_rng(2)
    for name, shape in constants.items():
        weight = (rng.standard_normal(shape) / max(1, shape[-1]) ** 0.5).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _random(model: bytes, sizes: Sizes) -> list[Inputs]:
    """Inputs of runs with these sizes."""
    rng, inputs = np.random.default_rng(3), onnx.load_from_string(model).graph.input

    def shape(value: onnx.ValueInfoProto, given: Mapping[str, int]) -> list[int]:
        return [given[dim.dim_param] if dim.dim_param else dim.dim_value for dim in value.type.tensor_type.shape.dim]

    return [
        {value.name: rng.standard_normal(shape(value, given)).astype(np.float32) for value in inputs} for given in sizes
    ]
