"""Small models that between them use every kind of native kernel, with inputs of sizes that leave tails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

Array = np.ndarray[Any, Any]

_OPSETS = '<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1, "ai.onnx.ml": 3, "ai.onnx.preview.training": 1]>'


@dataclass(frozen=True)
class SmallModel:
    """A model, the inputs of some runs of it, and how far its results may be from those of NumPy.

    Sessions alone are made for the `large` sizes, whose runs would take long. `tolerance` is relative to the largest
    magnitude of an output.
    """

    text: str
    sizes: tuple[Mapping[str, int], ...] = ({},)
    large: tuple[Mapping[str, int], ...] = ()
    constants: Mapping[str, tuple[int, ...]] | None = None
    special: Mapping[str, Callable[[Mapping[str, int]], Array]] | None = None  # inputs that are no normal numbers
    tolerance: float = 2e-6
    float32_alone: bool = False  # ONNX defines some of its operators for no other floating point type

    @property
    def model(self) -> onnx.ModelProto:
        model = parser.parse_model(_OPSETS + self.text)
        rng = np.random.default_rng(1)
        for name, shape in (self.constants or {}).items():
            weight = rng.standard_normal(shape).astype(np.float32) / max(1, shape[0]) ** 0.5
            model.graph.initializer.append(numpy_helper.from_array(weight, name))
        return model

    def sized(self, sizes: Mapping[str, int]) -> onnx.ModelProto:
        """The model for inputs whose symbolic dimensions have these values."""
        model = self.model
        for item in model.graph.input:
            for dim in item.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_value = sizes[dim.dim_param]
        return model

    def inputs(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """The inputs of a run with these values of the symbolic dimensions."""
        rng = np.random.default_rng(2)
        found: dict[str, Array] = {}
        for item in self.model.graph.input:
            if self.special and item.name in self.special:
                found[item.name] = self.special[item.name](sizes)
                continue
            kind = item.type.tensor_type
            shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in kind.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            found[item.name] = rng.standard_normal(shape).astype(dtype)
        return found


def _tokens(sizes: Mapping[str, int]) -> Array:
    return np.random.default_rng(3).integers(0, 50, (2, sizes["n"]))


def _whole_blocks(sizes: Mapping[str, int]) -> Array:
    """Rows whose blocks of 16 are exact in bytes: whole numbers up to 127, which comes in each of them."""
    rows = np.random.default_rng(6).integers(-127, 128, (sizes["n"], 48))
    rows[:, ::16] = 127
    return rows.astype(np.float32)


SMALL_MODELS: dict[str, SmallModel] = {
    "pointwise": SmallModel(
        """pointwise (float[n, 37] x, float[37] b) => (float[n, 37] y, bool[n, 37] z)
        { s = Add(x, b) g = Gelu(s) t = Tanh(x) m = Mul(g, t) e = Exp(t) y = Div(m, e) z = Less(x, b) }""",
        sizes=({"n": 1}, {"n": 9}),
    ),
    "casts": SmallModel(
        """casts (float[n, 21] x) => (float16[n, 21] h, bfloat16[n, 21] b, int8[n, 21] i, float[n, 21] y)
        { h = Cast<to = 10>(x) b = Cast<to = 16>(x) i = Cast<to = 3>(x) w = Cast<to = 1>(h) v = Cast<to = 1>(b)
          y = Sub(w, v) }""",
        sizes=({"n": 5},),
    ),
    "mixed types": SmallModel(
        """mixed (float[n, 21] x, float16[21] h, bfloat16[21] b, double[n, 21] d, bfloat16[37] bias, float16[37] more)
            => (float[n, 37] y, float16[n, 37] p, bfloat16[n, 37] q, double[n, 21] z, float16[n, 21] f,
                bfloat16[n, 21] g, float[n] t)
        { a = Cast<to = 1>(h) c = Cast<to = 1>(b) s = Add(x, a) m = Mul(s, c)
          o = MatMul(m, w) k = Cast<to = 1>(bias) l = Cast<to = 1>(more) r = Add(o, k) y = Sub(r, l)
          p = Cast<to = 10>(y) q = Cast<to = 16>(y)
          e = Cast<to = 11>(h) i = Cast<to = 11>(b) j = Add(e, i) z = Mul(d, j)
          f = Cast<to = 10>(d) g = Cast<to = 16>(d)
          u = Cast<to = 1>(f) axes = Constant<value_ints = [1]>() t = ReduceMean<keepdims = 0>(u, axes) }""",
        sizes=({"n": 1}, {"n": 6}),
        constants={"w": (21, 37)},
    ),
    "joint reductions": SmallModel(
        """joint (float[n, 37] x) => (float[n] low, float[n, 1] high, float[n] total, float squares, float norm)
        { axes = Constant<value_ints = [1]>() low = ReduceMin<keepdims = 0>(x, axes) high = ReduceMax(x, axes)
          total = ReduceSum<keepdims = 0>(x, axes)
          squares = ReduceSumSquare<keepdims = 0>(x) norm = ReduceL1<keepdims = 0>(x) }""",
        sizes=({"n": 1}, {"n": 9}),
        large=({"n": 4000},),
    ),
    "gemm": SmallModel(
        """gemm (float[n, 70] x) => (float[n, 45] y)
        { h = MatMul(x, w1) a = Add(h, b1) r = Relu(a) y = Gemm(r, w2, b2) }""",
        sizes=({"n": 1}, {"n": 3}, {"n": 50}),
        constants={"w1": (70, 130), "b1": (130,), "w2": (130, 45), "b2": (45,)},
    ),
    "product of many rows": SmallModel(
        """rows (float[n, 400] x) => (float[n, 420] y) { h = MatMul(x, w) y = Add(h, b) }""",
        sizes=({"n": 70}, {"n": 1200}),
        constants={"w": (400, 420), "b": (420,)},
    ),
    "products of activations": SmallModel(
        """products (float[2, 3, n, 17] a, float[2, 3, 17, m] b, double[n, 8] c, double[8, m] d)
            => (float[2, 3, n, m] y, double[n, m] z)
        { y = MatMul(a, b) z = MatMul(c, d) }""",
        sizes=({"n": 5, "m": 33}, {"n": 1, "m": 1}),
    ),
    "product of few columns": SmallModel(
        """few (float[n, 301] x) => (float[n, 2] y, float[n] z) { h = MatMul(x, w) y = Add(h, b) z = MatMul(x, v) }""",
        sizes=({"n": 1}, {"n": 23}),
        constants={"w": (301, 2), "b": (2,), "v": (301,)},
    ),
    "large product": SmallModel(
        """large (float[96, 1024] x) => (float[96, 1024] y) { y = MatMul(x, w) }""",
        constants={"w": (1024, 1024)},
        tolerance=1e-5,
    ),
    "product of many rows at times": SmallModel(
        """times (float[n, 1280] x) => (float[n, 1280] y) { y = MatMul(x, w) }""",
        sizes=({"n": 5},),
        large=({"n": 4096},),
        constants={"w": (1280, 1280)},
    ),
    "quantised network": SmallModel(
        """quantised (float[2, 5, n, 9] x, float[2, 40] v) => (float[2, 7, n, 4] y, float[2, 21] m, float[2, 18] p)
        { xs = Constant<value_float = 0.03>() ws = Constant<value_float = 0.02>()
          zero = Constant<value = uint8 {120}>() flat = Constant<value = int8 {0}>()
          q = QuantizeLinear(x, xs, zero) k = QuantizeLinear(filters, ws, flat)
          c = QLinearConv<pads = [1, 0, 1, 1], strides = [1, 2]>(q, xs, zero, k, ws, flat, xs, zero)
          y = DequantizeLinear(c, xs, zero)
          i, s, z = DynamicQuantizeLinear(v) w = QuantizeLinear(weights, ws, flat)
          t = MatMulInteger(i, w, z) f = Cast<to = 1>(t) both = Mul(s, ws) m = Mul(f, both)
          packed = Cast<to = 2>(numbers)
          p = com.microsoft.MatMulNBits<K = 40, N = 18, bits = 4, block_size = 16>(v, packed, scales) }""",
        sizes=({"n": 6},),
        constants={"filters": (7, 5, 3, 3), "weights": (40, 21), "numbers": (18, 3, 8), "scales": (54,)},
        tolerance=1e-5,
        float32_alone=True,
    ),
    "quantised products": SmallModel(
        """products (float[n, 48] x, float[1, 19, m, 7] maps) => (float[n, 18] p, float[n, 18] o, float[1, 19, m, 7] y)
        { packed = Cast<to = 2>(numbers) zeros = Cast<to = 2>(origins)
          p = com.microsoft.MatMulNBits<K = 48, N = 18, bits = 4, block_size = 16, accuracy_level = 4>(
              x, packed, scales)
          o = com.microsoft.MatMulNBits<K = 48, N = 18, bits = 4, block_size = 16, accuracy_level = 4>(
              x, packed, scales, zeros)
          xs = Constant<value_float = 0.03>() ws = Constant<value_float = 0.02>()
          zero = Constant<value = uint8 {120}>() flat = Constant<value = int8 {0}>()
          q = QuantizeLinear(maps, xs, zero) k = QuantizeLinear(filters, ws, flat)
          c = QLinearConv<pads = [1, 1, 1, 1], group = 19>(q, xs, zero, k, ws, flat, xs, zero)
          y = DequantizeLinear(c, xs, zero) }""",
        sizes=({"n": 1, "m": 4}, {"n": 6, "m": 5}),
        constants={"numbers": (18, 3, 8), "scales": (54,), "origins": (36,), "filters": (19, 1, 3, 3)},
        special={"x": _whole_blocks},
        tolerance=1e-5,
        float32_alone=True,
    ),
    "weights of few bits": SmallModel(
        """few_bits (float[n, 48] x, int64[2, n] tokens) => (float[n, 18] p, float[2, n, 32] rows)
        { packed = Cast<to = 2>(numbers) table = Cast<to = 2>(book)
          p = com.microsoft.MatMulNBits<K = 48, N = 18, bits = 4, block_size = 16>(x, packed, scales)
          rows = com.microsoft.GatherBlockQuantized<bits = 4, block_size = 16>(table, tokens, steps) }""",
        sizes=({"n": 3}, {"n": 100}),  # few rows meet packed weights, many ones real ones
        constants={"numbers": (18, 3, 8), "scales": (54,), "book": (50, 16), "steps": (50, 2)},
        special={"tokens": _tokens},
        tolerance=1e-5,
        float32_alone=True,
    ),
    "quantised convolutions": SmallModel(
        """convolutions (float[n, 64, m, 7] x) => (float[n, 64, m, 7] y, float[n, 33, k, 4] z)
        { xs = Constant<value_float = 0.03>() ws = Constant<value_float = 0.02>() big = Constant<value_float = 0.21>()
          zero = Constant<value = uint8 {120}>() flat = Constant<value = int8 {0}>()
          q = QuantizeLinear(x, xs, zero)
          k1 = QuantizeLinear(w1, ws, flat) k2 = QuantizeLinear(w2, ws, flat) k3 = QuantizeLinear(w3, ws, flat)
          a = QLinearConv<pads = [1, 1, 1, 1]>(q, xs, zero, k1, ws, flat, xs, zero)
          b = QLinearConv(q, xs, zero, k2, ws, flat, xs, zero)
          c = com.microsoft.QLinearAdd(a, xs, zero, b, xs, zero, big, zero) y = DequantizeLinear(c, big, zero)
          d = QLinearConv<strides = [2, 2]>(q, xs, zero, k3, ws, flat, xs, zero) z = DequantizeLinear(d, xs, zero) }""",
        sizes=({"n": 1, "m": 9, "k": 5}, {"n": 2, "m": 6, "k": 3}),
        large=({"n": 4, "m": 40, "k": 20},),
        constants={"w1": (64, 64, 3, 3), "w2": (64, 64, 1, 1), "w3": (33, 64, 1, 1)},
        tolerance=1e-5,
        float32_alone=True,
    ),
    "quantised maps of few channels": SmallModel(
        """maps (float[n, 7, m, 9] x) => (float[n, 7, k, 3] y)
        { xs = Constant<value_float = 0.03>() ws = Constant<value_float = 0.02>()
          zero = Constant<value = uint8 {120}>() flat = Constant<value = int8 {0}>()
          q = QuantizeLinear(x, xs, zero) f = QuantizeLinear(w, ws, flat)
          c = QLinearConv<pads = [1, 1, 1, 1], strides = [4, 4], group = 7>(q, xs, zero, f, ws, flat, xs, zero)
          y = DequantizeLinear(c, xs, zero) }""",
        sizes=({"n": 1, "m": 9, "k": 3}, {"n": 2, "m": 13, "k": 4}),
        constants={"w": (7, 1, 3, 3)},
        tolerance=1e-5,
        float32_alone=True,
    ),
    "softmax": SmallModel(
        """softmax (float[n, 7, 19] x) => (float[n, 7, 19] y, float[n, 7, 19] z)
        { y = Softmax<axis = -1>(x) z = LogSoftmax<axis = 1>(x) }""",
        sizes=({"n": 3},),
    ),
    "normalisation": SmallModel(
        """normalisation (float[n, 5, 40] x, float[40] s, float[40] b) => (float[n, 5, 40] y, float[n, 40] z)
        { r = Add(x, x) l = LayerNormalization<axis = -1>(r, s, b) y = RMSNormalization<axis = -1>(l, s)
          axes = Constant<value_ints = [1]>() z = ReduceMean<keepdims = 0>(l, axes) }""",
        sizes=({"n": 2},),
    ),
    "embedding": SmallModel(
        """embedding (int64[2, n] tokens) => (float[2, n, 24] y)
        { e = Gather<axis = 0>(table, tokens) y = LayerNormalization<axis = -1>(e, s) }""",
        sizes=({"n": 4}, {"n": 11}),
        constants={"table": (50, 24), "s": (24,)},
        special={"tokens": _tokens},
    ),
    "added embeddings": SmallModel(
        """added (int64[2, n] tokens, int64[2, n] kinds) => (float[2, n, 24] y, int32[2] ones, float[2, n, 24] total)
        { y, ones, total = com.microsoft.EmbedLayerNormalization(tokens, kinds, table, places, two, s, b, tokens) }""",
        sizes=({"n": 4}, {"n": 11}),
        constants={"table": (50, 24), "places": (11, 24), "two": (2, 24), "s": (24,), "b": (24,)},
        special={"tokens": _tokens, "kinds": lambda sizes: _tokens(sizes) % 2},
    ),
    "attention": SmallModel(
        """attention (float[2, 3, n, 16] q, float[2, 3, m, 16] k, float[2, 3, m, 16] v) => (float[2, 3, n, 16] y)
        { y = Attention<is_causal = 1>(q, k, v) }""",
        sizes=({"n": 9, "m": 9}, {"n": 1, "m": 21}),
        tolerance=1e-5,
    ),
    "exported attention": SmallModel(
        """exported (float[2, n, 48] x) => (float[2, n, 48] y)
        { shape = Constant<value_ints = [0, 0, 3, 16]>() back = Constant<value_ints = [0, 0, 48]>()
          q = MatMul(x, wq) q4 = Reshape(q, shape) qt = Transpose<perm = [0, 2, 1, 3]>(q4)
          k = MatMul(x, wk) k4 = Reshape(k, shape) kt = Transpose<perm = [0, 2, 3, 1]>(k4)
          v = MatMul(x, wv) v4 = Reshape(v, shape) vt = Transpose<perm = [0, 2, 1, 3]>(v4)
          s = MatMul(qt, kt) scale = Constant<value_float = 0.25>() t = Mul(s, scale) p = Softmax<axis = -1>(t)
          o = MatMul(p, vt) ot = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(ot, back) }""",
        sizes=({"n": 13},),
        constants={"wq": (48, 48), "wk": (48, 48), "wv": (48, 48)},
        tolerance=1e-5,
    ),
    "padded attention": SmallModel(
        """padded (float[2, n, 48] q, float[2, m, 48] k, float[2, m, 48] v, int32[2] lengths) => (float[2, n, 48] y)
        { y = com.microsoft.MultiHeadAttention<num_heads = 3>(q, k, v, , lengths) }""",
        sizes=({"n": 5, "m": 12},),
        special={"lengths": lambda sizes: np.array([sizes["m"], 7], np.int32)},
        tolerance=1e-5,
    ),
    "cached attention": SmallModel(
        """cached (float[2, 1, 64] q, float[2, 1, 32] k, float[2, 1, 32] v, float[2, 2, 20, 16] past_k,
                  float[2, 2, 20, 16] past_v, int32[2] seen)
            => (float[2, 1, 64] y, float[2, 2, 21, 16] new_k, float[2, 2, 21, 16] new_v)
        { total64 = Constant<value_ints = [21]>() total = Cast<to = 6>(total64)
          y, new_k, new_v = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(
              q, k, v, past_k, past_v, seen, total) }""",
        special={"seen": lambda _: np.array([20, 20], np.int32)},
        tolerance=1e-5,
    ),
    "cache": SmallModel(
        """cache (float[2, 3, 30, 16] past, float[2, 3, n, 16] new, int64[2] at) => (float[2, 3, 30, 16] present)
        { present = TensorScatter<axis = -2>(past, new, at) }""",
        sizes=({"n": 4},),
        special={"at": lambda _: np.array([3, 26])},
    ),
    "movement": SmallModel(
        """movement (float[n, 6, 33] x, float16[6, n] h) => (float[33, 6, n] t, float[m, 6, 33] c, float[n, 6, 11] s,
                    float[k, 8, 33] p, float16[n, 6] u)
        { t = Transpose<perm = [2, 1, 0]>(x) c = Concat<axis = 0>(x, x, x)
          from = Constant<value_ints = [0]>() to = Constant<value_ints = [33]>() axis = Constant<value_ints = [2]>()
          step = Constant<value_ints = [3]>() s = Slice(x, from, to, axis, step)
          room = Constant<value_ints = [1, 1, 0, 0, 1, 0]>() value = Constant<value_float = 7.0>()
          p = Pad(x, room, value) u = Transpose(h) }""",
        sizes=({"n": 4}, {"n": 70}),
    ),
    "interleaving": SmallModel(
        """interleaving (float[n, 1000, 2] pairs, float[3, n, 700] planes, float[1024, 512] square, float[n, 90, 1] one)
            => (float[n, 2, 1000] a, float[n, 700, 3] b, float[512, 1024] c, float[n, 90, 3] d)
        { a = Transpose<perm = [0, 2, 1]>(pairs) b = Transpose<perm = [1, 2, 0]>(planes) c = Transpose(square)
          d = Concat<axis = 2>(one, one, one) }""",
        sizes=({"n": 2},),
    ),
    "indices": SmallModel(
        """indices (float[n, 9] x, int64[n, 4] i, float[n, 4] u, int64[5, 1] rows, float[5, 9] new)
            => (float[n, 4] g, float[n, 9] s, float[n, 9] d, float[5, 9] r)
        { g = GatherElements<axis = 1>(x, i) s = ScatterElements<axis = 1>(x, i, u) d = ScatterND(x, rows, new)
          r = GatherND(x, rows) }""",
        sizes=({"n": 7},),
        special={
            "i": lambda sizes: np.argsort(np.random.default_rng(4).random((sizes["n"], 9)), 1)[:, :4].copy(),
            "rows": lambda _: np.array([[3], [0], [6], [1], [5]]),
        },
    ),
    "slices": SmallModel(
        """slices (float[n, 6, 7] x, float[n, 5, 3] y) => (float[n, 6, 7] z)
        { h = Relu(x) zero = Constant<value_int = 0>() one = Constant<value_int = 1>() first = Shape<end = 1>(x)
          n = Squeeze(first) items = Range(zero, n, one) wide = Constant<value_ints = [-1, 1, 1]>()
          i = Reshape(items, wide) rows = Constant<value_ints = [1, 2, 3, 4, 5]>()
          tall = Constant<value_ints = [-1, 1]>() r = Reshape(rows, tall) c = Constant<value_ints = [0, 2, 4]>()
          both = Add(i, r) all = Add(both, c) sizes = Shape(all) ei = Expand(i, sizes) er = Expand(r, sizes)
          ec = Expand(c, sizes) last = Constant<value_ints = [-1]>() ui = Unsqueeze(ei, last) ur = Unsqueeze(er, last)
          uc = Unsqueeze(ec, last) at = Concat<axis = -1>(ui, ur, uc) z = ScatterND(h, at, y) }""",
        sizes=({"n": 1}, {"n": 4}),
    ),
    "places": SmallModel(
        """places (float[n, 8, 8] x, int64[n] i, int64[n] lengths) => (float[n, 8, 8] u, float[n, 10] o,
                  float[n, 8, 8] r, float[n, 8, 8] c)
        { u = Trilu(x) depth = Constant<value_int = 10>() values = Constant<value_floats = [0.0, 1.0]>()
          o = OneHot(i, depth, values) r = ReverseSequence<batch_axis = 0, time_axis = 1>(x, lengths)
          axis = Constant<value_int = 1>() c = CumSum(x, axis) }""",
        sizes=({"n": 5},),
        special={
            "i": lambda sizes: np.arange(sizes["n"]) % 10,
            "lengths": lambda sizes: 1 + np.arange(sizes["n"]) % 8,
        },
    ),
    "selection": SmallModel(
        """selection (float[n, 37] x) => (float[n, 5] best, int64[n, 5] at, float[n, 1] first, int64[n, 1] there)
        { k = Constant<value_ints = [5]>() best, at = TopK(x, k)
          one = Constant<value_ints = [1]>() first, there = TopK(x, one) }""",
        sizes=({"n": 1}, {"n": 6}),
    ),
    "counted": SmallModel(
        """counted (float[n, 9] x, bool[n] chosen) => (int64[2, c] places, float[d, 9] kept, float[u] once,
                float[n, v] columns)
        { places = NonZero(x) kept = Compress<axis = 0>(x, chosen) once = Unique(x) columns = Unique<axis = 1>(x) }""",
        sizes=({"n": 6},),
        special={"chosen": lambda sizes: np.arange(sizes["n"]) % 2 == 0},
    ),
    "rotary heads": SmallModel(
        """rotary (float[2, n, 64] x, int64[2, n] places, float[40, 8] cos, float[40, 8] sin) => (float[2, n, 64] y)
        { y = com.microsoft.RotaryEmbedding<num_heads = 4>(x, places, cos, sin) }""",
        sizes=({"n": 6},),
        special={"places": lambda sizes: np.tile(np.arange(sizes["n"]), (2, 1))},
    ),
    "resampling": SmallModel(
        """resampling (float[1, 3, n, 20] x, uint8[1, 3, n, 20] bytes, float[2, 3, n, 20] maps, float[2, 5, 6, 2] grid,
                float[2, 2, 3] theta)
            => (float[1, 3, m, 40] a, float[1, 3, m, 40] b, float[1, 3, m, 30] c, float[1, 3, m, 30] d,
                uint8[1, 3, m, 30] f, float[2, 3, 5, 6] g, float[2, 4, 5, 2] p, float[1, 6, m, 20] e)
        { twice = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
          other = Constant<value_floats = [1.0, 1.0, 2.0, 1.5]>()
          a = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(x, , twice)
          d = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(x, , other)
          f = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(bytes, , other)
          b = Resize<mode = "linear">(x, , twice) c = Resize<mode = "cubic">(x, , other)
          inside = Constant<value_floats = [1.0, 2.0, 2.0, 1.0]>() e = Resize<mode = "linear">(x, , inside)
          size = Constant<value_ints = [2, 3, 4, 5]>() p = AffineGrid(theta, size)
          g = GridSample<padding_mode = "reflection">(maps, grid) }""",
        sizes=({"n": 5, "m": 10},),
        tolerance=1e-5,
    ),
    "regions": SmallModel(
        """regions (float[2, 20, n, 11] x, float[3, 4] boxes, int64[3] items, float[2, 5] rois)
            => (float[3, 20, 2, 3] a, float[2, 20, 2, 2] m, float[3, 20, 3, 5] c)
        { size = Constant<value_ints = [3, 5]>() tenth = Constant<value_float = 0.1>() parts = Mul(boxes, tenth)
          c = com.microsoft.CropAndResize(x, parts, items, size)
          a = RoiAlign<output_height = 2, output_width = 3, sampling_ratio = 2>(x, boxes, items)
          m = MaxRoiPool<pooled_shape = [2, 2]>(x, rois) }""",
        sizes=({"n": 9},),
        special={
            "boxes": lambda _: np.array([[0, 0, 5, 7], [-2, 1.5, 9, 4], [3, 3, 3.5, 12]], np.float32),
            "items": lambda _: np.array([1, 0, 1]),
            "rois": lambda _: np.array([[0, 1, 1, 5, 6], [1, 0, 2, 10, 12]], np.float32),
        },
    ),
    "outer products": SmallModel(
        "outer (float[n, 3] x) => (float[n, 530] y) { a = MatMul(x, w) b = Add(a, bias) y = Relu(b) }",
        sizes=({"n": 260},),
        constants={"w": (3, 530), "bias": (530,)},
    ),
    "expansion": SmallModel(
        """expansion (float[1, 4, n, 29] x) => (float[1, 40, m, 15] y)
        { a = Conv<pads = [1, 1, 1, 1]>(x, wa) b = Conv(a, wb, bb) s = Sigmoid(b) c = Mul(b, s)
          d = Conv<group = 40, strides = [2, 2], pads = [1, 1, 1, 1]>(c, wd, bb) y = Relu(d) }""",
        sizes=({"n": 25, "m": 13},),
        constants={"wa": (8, 4, 3, 3), "wb": (40, 8, 1, 1), "bb": (40,), "wd": (40, 1, 3, 3)},
        tolerance=1e-5,
    ),
    "convolution with large filters, normalised": SmallModel(
        """normalised (float[1, 40, n, 6] x) => (float[1, 46, n, 6] y)
        { c = Conv<pads = [1, 1, 1, 1]>(x, w) f = Softplus(variance)
          y = BatchNormalization(c, scale, bias, mean, f) }""",
        sizes=({"n": 5},),
        constants={"w": (46, 40, 3, 3), "scale": (46,), "bias": (46,), "mean": (46,), "variance": (46,)},
        tolerance=1e-5,
    ),
    "transposed convolution": SmallModel(
        """transposed (float[1, 18, n, 7] x, float[1, 18, n, 7] moves) => (float[1, 5, m, 14] a, float[1, 21, n, 7] b,
                  float[1, 18, m, 14] c, float[1, 6, n, 7] d, float[1, 2, k, 16] e, float[1, 1, k, 16] f)
        { r = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1]>(x, wa, ba) a = Relu(r)
          b = ConvTranspose<pads = [1, 1, 1, 1]>(x, wb)
          c = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1], group = 18>(x, wc)
          d = DeformConv<pads = [1, 1, 1, 1]>(x, wd, moves)
          s = ConvTranspose<strides = [2, 2]>(x, we, be) e = Tanh(s) f = Conv<pads = [1, 1, 1, 1]>(e, wf) }""",
        sizes=({"n": 6, "m": 12, "k": 14},),
        constants={
            "wa": (18, 5, 4, 4),
            "ba": (5,),
            "wb": (18, 21, 3, 3),
            "wc": (18, 1, 4, 4),
            "wd": (6, 18, 3, 3),
            "we": (18, 2, 4, 4),
            "be": (2,),
            "wf": (1, 2, 3, 3),
        },
        tolerance=1e-5,
    ),
    "overlaps": SmallModel(
        """overlaps (float[n, 18, 35] x, float[n, 18, 12] w) => (float[n, 2, 5, 7] y, float[n, 2, 5, 7] z)
        { size = Constant<value_ints = [5, 7]>() block = Constant<value_ints = [3, 3]>()
          y = Col2Im<pads = [1, 1, 1, 1]>(x, size, block)
          z = Col2Im<pads = [1, 1, 1, 1], strides = [2, 2]>(w, size, block) }""",
        sizes=({"n": 1}, {"n": 4}),
        tolerance=1e-5,
    ),
    "recurrent layers": SmallModel(
        """recurrent (float[n, 2, 9] x, int32[2] lengths, float[2, 2, 21] h, float[2, 2, 21] c,
                  float[1, 13, 13] rd, float[1, 13, 9] wd)
            => (float[n, 2, 2, 21] y, float[2, 2, 21] yh, float[2, 2, 21] yc, float[n, 1, 2, 10] z, float[1, 2, 10] zh,
                float[n, 1, 2, 13] u, float[1, 2, 13] uh)
        { y, yh, yc = LSTM<hidden_size = 21, direction = "bidirectional">(x, w, r, b, lengths, h, c, p)
          u, uh = RNN<hidden_size = 13>(x, wd, rd) z, zh = GRU<hidden_size = 10, direction = "reverse">(x, wg, rg) }""",
        sizes=({"n": 1}, {"n": 6}),
        constants={"w": (2, 84, 9), "r": (2, 84, 21), "b": (2, 168), "p": (2, 63), "wg": (1, 30, 9), "rg": (1, 30, 10)},
        special={"lengths": lambda sizes: np.array([sizes["n"], 1], np.int32)},
        tolerance=1e-5,
    ),
    "recurrent layers of bfloat16": SmallModel(
        """recurrent (float[n, 2, 9] x)
            => (bfloat16[n, 2, 2, 21] y, bfloat16[n, 1, 2, 10] z)
        { xb = Cast<to = 16>(x) wb = Cast<to = 16>(w) rb = Cast<to = 16>(r)
          wh = Cast<to = 16>(wg) rh = Cast<to = 16>(rg)
          y = LSTM<hidden_size = 21, direction = "bidirectional">(xb, wb, rb)
          z = GRU<hidden_size = 10, direction = "reverse">(xb, wh, rh) }""",
        sizes=({"n": 1}, {"n": 6}),
        constants={"w": (2, 84, 9), "r": (2, 84, 21), "wg": (1, 30, 9), "rg": (1, 30, 10)},
        tolerance=2e-2,
    ),
    "recurrent layer of bytes": SmallModel(
        """recurrent (float[n, 2, 9] x, int32[2] lengths, float[2, 2, 21] h, float[2, 2, 21] c)
            => (float[n, 2, 2, 21] y, float[2, 2, 21] yh, float[2, 2, 21] yc)
        { s = Constant<value_floats = [0.005, 0.004]>() z = Constant<value = int8[2] {0, 3}>()
          one = Constant<value_float = 0.005>() flat = Constant<value = int8 {0}>()
          wq = QuantizeLinear(w, one, flat) rq = QuantizeLinear(r, one, flat)
          y, yh, yc = com.microsoft.DynamicQuantizeLSTM<hidden_size = 21, direction = "bidirectional">
              (x, wq, rq, b, lengths, h, c, p, s, z, s, z) }""",
        sizes=({"n": 1}, {"n": 6}),
        constants={"w": (2, 9, 84), "r": (2, 21, 84), "b": (2, 168), "p": (2, 63)},
        special={"lengths": lambda sizes: np.array([sizes["n"], 1], np.int32)},
        tolerance=1e-2,
        float32_alone=True,
    ),
    "winograd": SmallModel(
        """winograd (float[2, 24, n, 13] x) => (float[2, 24, n, 13] y, float[2, 24, m, 7] z)
        { c = Conv<pads = [1, 1, 1, 1]>(x, w, b) s = Add(c, x) y = Relu(s)
          z = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(y, w) }""",
        sizes=({"n": 9, "m": 5},),
        constants={"w": (24, 24, 3, 3), "b": (24,)},
        tolerance=1e-5,
    ),
    "pools": SmallModel(
        """pools (float[n, 11, 9, 10] x, int8[n, 5, 6, 7] q, float[n, 35, 3, 5] s)
              => (float[n, 11, 5, 5] m, int64[n, 11, 5, 5] at,
                  float[n, 11, 9, 10] a, float[n, 11, 4, 5] l, float[n, 11, 9, 10] r, int8[n, 5, 5, 6] k,
                  float[n, 11, 10, 10] u, float[n, 35, 1, 1] g)
        { g = GlobalAveragePool(s) m, at = MaxPool<kernel_shape = [2, 2], strides = [2, 2], pads = [1, 0, 0, 0]>(x)
          p = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x) a = Relu(p)
          l = LpPool<kernel_shape = [2, 2], strides = [2, 2]>(x) r = LRN<size = 3>(x)
          k = MaxPool<kernel_shape = [2, 2]>(q) u = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(m, at) }""",
        sizes=({"n": 2},),
        special={
            "q": lambda sizes: np.random.default_rng(5).integers(-99, 99, (sizes["n"], 5, 6, 7)).astype(np.int8),
        },
    ),
    "windows": SmallModel(
        """windows (float[n, 3, 17, m] x, float[n, 20, 31] s) => (float[n, 34, 5, k] y, float[n, 10, 15] z)
        { c = Conv<strides = [2, 2], pads = [2, 2, 2, 2]>(x, w1, b1) h = HardSwish(c)
          d = Conv<strides = [2, 2], pads = [1, 1, 1, 1], auto_pad = "NOTSET">(h, w2) r = Relu(d)
          g = Conv<group = 2, dilations = [2, 1], pads = [2, 1, 2, 1]>(r, w3) j = Concat<axis = 1>(r, g)
          y = Conv(j, w4) z = Conv<strides = [2], pads = [0, 1]>(s, w5) }""",
        sizes=({"n": 2, "m": 22, "k": 6},),
        constants={
            "w1": (18, 3, 6, 6),
            "b1": (18,),
            "w2": (36, 18, 3, 3),
            "w3": (18, 18, 3, 3),
            "w4": (34, 54, 1, 1),
            "w5": (10, 20, 4),
        },
        tolerance=1e-5,
    ),
    "joined maps": SmallModel(
        """joined (float[n, 18, h, w] x) => (float[n, 34, h, w] y, float[n, 20, p, q] z)
        { a = Conv(x, w1) s = HardSwish(a) b = Conv<pads = [1, 1, 1, 1]>(s, w2) r = Add(s, b)
          d = Conv<group = 2>(x, w3) m = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(r)
          c = Concat<axis = 1>(m, r, d) t = Relu(c) f = Conv<group = 34, pads = [1, 1, 1, 1]>(d, w4)
          j = Concat<axis = 1>(m, r, d, f) y = Conv(j, w5)
          o = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(t) e = Conv(o, w6)
          g = ConvTranspose<kernel_shape = [2, 2], strides = [2, 2]>(e, w7, b7) v = Conv(x, w8)
          two = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
          u = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(e, , two)
          k = Concat<axis = 1>(u, v, g) i = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(k, w9) z = Elu(i) }""",
        sizes=({"n": 1, "h": 10, "w": 12, "p": 5, "q": 6}, {"n": 2, "h": 6, "w": 22, "p": 3, "q": 11}),
        constants={
            "w1": (22, 18, 1, 1),
            "w2": (22, 22, 3, 3),
            "w3": (34, 9, 1, 1),
            "w4": (34, 1, 3, 3),
            "w5": (34, 112, 1, 1),
            "w6": (22, 78, 1, 1),
            "w7": (22, 19, 2, 2),
            "b7": (19,),
            "w8": (17, 18, 1, 1),
            "w9": (20, 58, 3, 3),
        },
        tolerance=1e-5,
    ),
    "depthwise": SmallModel(
        """depthwise (float[n, 22, 9, 10] x, float[n, 3, 40] s) => (float[n, 22, 9, 10] y, float[n, 6, 40] z)
        { c = Conv<pads = [0, 0, 0, 0]>(x, w1) d = Conv<group = 22, pads = [1, 1, 1, 1]>(c, w2)
          h = HardSwish(d) y = Add(h, x) z = Conv<group = 3, pads = [2, 2]>(s, w3) }""",
        sizes=({"n": 1}, {"n": 2}),
        constants={"w1": (22, 22, 1, 1), "w2": (22, 1, 3, 3), "w3": (6, 1, 5)},
        tolerance=1e-5,
    ),
    "groups": SmallModel(
        """groups (float[n, 24, 9, 10] x) => (float[n, 48, 5, 5] y)
        { c = Conv(x, w1) d = Conv<group = 6, pads = [1, 1, 1, 1]>(c, w2, b2) h = Relu(d)
          e = Conv<group = 2, strides = [2, 2], pads = [1, 1, 1, 1]>(h, w3) y = HardSwish(e) }""",
        sizes=({"n": 1}, {"n": 2}),
        constants={"w1": (24, 24, 1, 1), "w2": (24, 4, 3, 3), "b2": (24,), "w3": (48, 12, 3, 3)},
        tolerance=1e-5,
    ),
    "loops": SmallModel(
        """loops (float[n, 9] x, float[9] start, bool flag) => (float[9] last, float[r, 9] all, float[9] total,
                  float[n, 9] sums, float[9] chosen)
        { most = Constant<value_int = 6>() yes = Constant<value = bool {1}>()
          last, all = Loop<body = round (int64 i, bool going, float[9] before)
                  => (bool more, float[9] after, float[9] seen)
              { f = Cast<to = 1>(i) moved = Add(before, f) after = Tanh(moved) seen = Mul(after, scale)
                four = Constant<value_int = 4>() more = Less(i, four) }>(most, yes, start)
          total, sums = Scan<num_scan_inputs = 1, body = item (float[9] so, float[9] row)
                  => (float[9] far, float[9] out)
              { far = Add(so, row) out = Sigmoid(far) }>(start, x)
          chosen = If<then_branch = a () => (float[9] y) { y = Exp(start) },
              else_branch = b () => (float[9] y) { y = Neg(start) }>(flag) }""",
        sizes=({"n": 1}, {"n": 7}),
        constants={"scale": (9,)},
        special={"flag": lambda sizes: np.array(sizes["n"] > 1)},
    ),
    "rows of windows": SmallModel(
        """rows (float[n, 1, 33, 40] x, float[n, 2, 61] s) => (float[n, 1, 17, 20] p, float[n, 2, 61] z)
        { m = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x)
          p = MaxPool<kernel_shape = [5, 5], pads = [2, 2, 2, 2]>(m)
          z = Conv<group = 2, pads = [3, 3]>(s, w) }""",
        sizes=({"n": 1}, {"n": 3}),
        constants={"w": (2, 1, 7)},
        tolerance=1e-5,
    ),
    "spectra": SmallModel(
        """spectra (float[n, 60, 1] x, float[n, 97, 1] s) => (float[n, 31, 2] y, float[n, 97, 2] z)
        { one = Constant<value_int = 1>() short = Constant<value_int = 60>() prime = Constant<value_int = 97>()
          y = DFT<onesided = 1>(x, short, one) z = DFT(s, prime, one) }""",
        sizes=({"n": 1}, {"n": 19}),
        tolerance=1e-5,
    ),
    "suppression": SmallModel(
        """suppression (float[1, n, 4] boxes, float[1, 2, n] scores) => (int64[k, 3] y)
        { most = Constant<value_ints = [3]>() over = Constant<value_floats = [0.3]>()
          y = NonMaxSuppression(boxes, scores, most, over) }""",
        sizes=({"n": 12}, {"n": 40}),
        float32_alone=True,
    ),
    "tiny types": SmallModel(
        """tiny (float[n, 21] x, float[n, 21] scale) => (float[n, 21] y, float[n, 21] z, float8e4m3fn[n, 21] q)
        { q = Cast<to = 17>(x) r = Cast<to = 19>(x) s = Cast<to = 1>(q) t = Cast<to = 1>(r) y = Add(s, t)
          one = Constant<value_float = 0.25>() i = QuantizeLinear<output_dtype = 22>(x, one)
          d = DequantizeLinear(i, one) z = Mul(d, scale) }""",
        sizes=({"n": 5},),
        float32_alone=True,
    ),
    "n-grams": SmallModel(
        """grams (int64[n, 23] x) => (float[n, 4] y)
        { y = TfIdfVectorizer<mode = "TFIDF", min_gram_length = 1, max_gram_length = 2, max_skip_count = 2,
                ngram_counts = [0, 2], ngram_indexes = [0, 1, 3, 0], pool_int64s = [1, 2, 1, 3, 1, 2],
                weights = [0.5, 0.25, 2.0, 4.0]>(x) }""",
        sizes=({"n": 1}, {"n": 40}),
        special={"x": lambda sizes: np.random.default_rng(8).integers(0, 5, (sizes["n"], 23))},
        float32_alone=True,
    ),
    "coupled classes": SmallModel(
        """coupled (float[n, 2] x) => (int64[n] labels, float[n, 3] chances)
        { labels, chances = ai.onnx.ml.SVMClassifier<vectors_per_class = [1, 1, 1], kernel_type = "RBF",
                support_vectors = [0.5, 1.0, -0.7, 0.1, 0.3, -1.2], coefficients = [1.0, 0.5, -0.8, 1.2, -0.4, -1.1],
                rho = [0.1, -0.2, 0.05], prob_a = [-1.5, -2.0, -1.0], prob_b = [0.1, -0.1, 0.3],
                kernel_params = [0.5, 0.0, 3.0], classlabels_ints = [0, 1, 2]>(x) }""",
        sizes=({"n": 2}, {"n": 30}),
        tolerance=1e-5,
        float32_alone=True,
    ),
    "matrices": SmallModel(
        """matrices (float[n, 5, 5] x) => (float[n] y) { y = Det(x) }""",
        sizes=({"n": 1}, {"n": 9}),
    ),
    "training": SmallModel(
        """training (float[n, 5, 7] x, float[5] s, float[5] b, float[5] m, float[5] v, float[n, 5, 7] g, int64 t)
            => (float[n, 5, 7] y, float[5] mean, float[5] variance, bool[n, 5, 7] kept, float[n, 5, 7] moved,
                float[n, 5, 7] state)
        { y, mean, variance = BatchNormalization<training_mode = 1>(x, s, b, m, v) d, kept = Dropout(x)
          rate = Constant<value_float = 0.1>() moved, state =
              ai.onnx.preview.training.Momentum<alpha = 0.9, beta = 0.8, mode = "nesterov", norm_coefficient = 0.1>(
                  rate, t, x, g, d) }""",
        sizes=({"n": 3},),
        special={"t": lambda sizes: np.array(2)},
        tolerance=1e-5,
        float32_alone=True,
    ),
    "classic": SmallModel(
        """classic (float[n, 3] x) => (float[n, 1] t, float[n, 3] e, float[n, 3] f, float[n, 3, 4] o)
        { t = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1, nodes_treeids = [0, 0, 0, 0, 0],
                nodes_nodeids = [0, 1, 2, 3, 4], nodes_featureids = [0, 1, 0, 0, 0],
                nodes_values = [0.1, -0.2, 0.0, 0.0, 0.0], nodes_truenodeids = [1, 3, 0, 0, 0],
                nodes_modes = ["BRANCH_LEQ", "BRANCH_LT", "LEAF", "LEAF", "LEAF"],
                nodes_falsenodeids = [2, 4, 0, 0, 0], target_treeids = [0, 0, 0], target_nodeids = [2, 3, 4],
                target_ids = [0, 0, 0], target_weights = [1.5, 2.5, -3.0]>(x)
          r = Round(x)
          e = ai.onnx.ml.LabelEncoder<keys_floats = [0.0, 1.0, -1.0], values_floats = [5.0, 6.0, 7.0],
                default_float = 9.0>(r)
          i = Constant<value_ints = [2, 0, 1]>() f = ai.onnx.ml.ArrayFeatureExtractor(x, i)
          o = ai.onnx.ml.OneHotEncoder<cats_int64s = [0, 1, -1, 70000000]>(r) }""",
        sizes=({"n": 3}, {"n": 40}),
        float32_alone=True,
    ),
}
