"""The native kernels of the attention operators against the operators' own meaning in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sardonyx.compiler.binding import Binder, Buffer, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, templates
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.kernel.program import Host, Template
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Operator
from sardonyx.ops.framework.registry import operator_of as find_operator
from sardonyx.runtime.files.kernel_cache import KernelCache
from sardonyx.runtime.settings import RunSettings
from tests.compiler.machines import kernels_of
from tests.compiler.steps import VARIANTS, Memory, new_binder

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"
variants = pytest.mark.parametrize("variant", VARIANTS)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def operator_of(
    op_type: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any], domain: str, outputs: Sequence[str]
) -> Operator:
    names = ["" if array is None else f"in{index}" for index, array in enumerate(inputs)]
    proto = helper.make_node(op_type, names, list(outputs), name="n", domain=domain, **attributes)
    node = ir.from_proto(proto)
    node.version = 1 if domain else 24
    return find_operator(node)


def fact(array: Array | None) -> Fact | None:
    if array is None:
        return None
    return Fact(ir.TensorType(ir.DataType.from_numpy(array.dtype)), array.shape)


def native_of(operator: Operator, inputs: Sequence[Array | None], outputs: Sequence[str]) -> NativeKernel | str:
    """The native kernel, or why there is none."""
    kernel = operator.lower([None if array is None else array.dtype for array in inputs])
    if isinstance(kernel, Host):
        return kernel.reason
    assert isinstance(kernel, Template)
    native = templates()[kernel.name](kernel.parameters)
    results = [fact(inputs[0]) if name else None for name in outputs]
    return native.declines([fact(array) for array in inputs], results) or native


def strided(array: Array, random: np.random.Generator) -> Array:
    """The same elements inside a larger array, contiguous along the last axis only."""
    room = random.standard_normal([size + 2 for size in array.shape]).astype(array.dtype)
    part = room[tuple(slice(1, size + 1) for size in array.shape)]
    part[...] = array
    return part


def run_native(
    native: NativeKernel, inputs: Sequence[Array | None], variant: str, known: Sequence[int], *, apart: bool
) -> list[Array | None]:
    """Bind and run; with `apart`, float inputs are parts of larger arrays."""
    binder, memory = new_binder(variant), Memory()
    random = np.random.default_rng(5)
    tensors: list[Tensor | None] = []
    for index, array in enumerate(inputs):
        if array is None:
            tensors.append(None)
        elif index in known:
            tensors.append(binder.constant(array))
        elif apart and array.dtype.kind == "f" and array.ndim > 1 and array.size:
            part = strided(array, random)
            assert part.base is not None
            whole = binder.new(array.dtype, part.base.shape)
            memory.put(whole, part.base)
            offset = sum(stride * array.dtype.itemsize for stride in whole.strides)
            tensors.append(whole.reshaped(array.shape, whole.strides, offset))
        else:
            tensor = binder.new(array.dtype, array.shape)
            memory.put(tensor, array)
            tensors.append(tensor)
    results = native.bind(binder, *tensors)
    memory.run(binder)
    return [None if tensor is None else memory.read(tensor).copy() for tensor in results]


def compare(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any],
    variant: str,
    *,
    outputs: Sequence[str] = ("a",),
    domain: str = MICROSOFT,
    known: Sequence[int] = (),
    apart: bool = False,
) -> None:
    operator = operator_of(op_type, inputs, attributes, domain, outputs)
    native = native_of(operator, inputs, outputs)
    assert isinstance(native, NativeKernel), native
    found = run_native(native, inputs, variant, known, apart=apart)
    expected = operator.run(*inputs)
    for index, name in enumerate(outputs):
        if name:
            one = found[index]
            assert one is not None
            assert one.shape == expected[index].shape
            np.testing.assert_allclose(one, expected[index], rtol=2e-5, atol=2e-5)


B, S, T, N, H, P = 2, 5, 7, 3, 8, 4
D = N * H
Q, K, V = normal(B, S, D), normal(B, T, D, seed=1), normal(B, T, D, seed=2)
BIAS = normal(3 * D, seed=3)
ADDED = normal(1, N, S, T, seed=4)
PAST = [normal(B, N, P, H, seed=5), normal(B, N, P, H, seed=6)]
KEEP = (normal(B, T, seed=7) > -0.5).astype(np.int32)
THREE = ("a", "b", "c")

LAYOUTS: dict[str, tuple[list[Array | None], tuple[str, ...]]] = {
    "three tensors": ([Q, K, V], ("a",)),
    "presents": ([Q, K, V], THREE),
    "one present": ([Q, K, V], ("a", "", "c")),
    "with bias": ([Q, K, V, BIAS], THREE),
    "with bias and mask": ([Q, K, V, BIAS, KEEP, ADDED], ("a",)),
    "lengths": ([Q, K, V, None, np.array([7, 3], np.int32)], ("a",)),
    "ends and starts": ([Q, K, V, None, np.array([7, 5, 2, 0], np.int32)], ("a",)),
    "mask of each query": (
        [Q, K, V, None, (normal(B, S, T, seed=8) > 0).astype(np.int32)],
        ("a",),
    ),
    "packed": ([normal(B, S, N, 3, H)], THREE),
    "packed with bias": ([normal(B, S, N, 3, H), None, None, BIAS], ("a",)),
    "packed along the width": ([normal(B, S, 3 * D)], ("a",)),
    "packed keys and values": ([Q, normal(B, T, N, 2, H)], ("a",)),
    "caches": ([Q, normal(B, N, T, H), normal(B, N, T, H, seed=9)], ("a",)),
    "caches with bias": ([Q, normal(B, N, T, H), normal(B, N, T, H, seed=9), BIAS], ("a",)),
    "past": ([Q, K, V, None, None, None, *PAST], THREE),
    "empty past": ([Q, K, V, None, None, None, *(past[:, :, :0] for past in PAST)], THREE),
    "past with bias and mask": (
        [Q, K, V, BIAS, None, normal(B, 1, S, P + T, seed=10), *PAST],
        THREE,
    ),
    "a token behind a long past": (
        [Q[:1, :1], K[:1, :1], V[:1, :1], None, None, None, normal(1, N, 2100, H), normal(1, N, 2100, H, seed=1)],
        THREE,
    ),
    "one token behind a past": ([Q[:, :1], K[:, :1], V[:, :1], None, None, None, *PAST], THREE),
}


@variants
@pytest.mark.parametrize("name", LAYOUTS)
def test_multi_head_attention(variant: str, name: str) -> None:
    inputs, outputs = LAYOUTS[name]
    compare("MultiHeadAttention", inputs, {"num_heads": N}, variant, outputs=outputs)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("apart", [False, True])
def test_multi_head_attention_of_parts_of_arrays(name: str, apart: bool) -> None:
    inputs, outputs = LAYOUTS[name]
    attributes = {"num_heads": N, "unidirectional": 1, "scale": 0.5, "mask_filter_value": -3.0}
    compare("MultiHeadAttention", inputs, attributes, "", outputs=outputs, apart=apart)


WEIGHTS, PROJECTION = normal(10, 3 * D, seed=11), normal(3 * D, seed=12)
X = normal(B, S, 10)
STACKED = normal(2, B, N, P, H, seed=13)
PROJECTED: dict[str, tuple[list[Array | None], tuple[str, ...], dict[str, Any]]] = {
    "plain": ([X, WEIGHTS, PROJECTION], ("a",), {}),
    "no bias": ([X, WEIGHTS], ("a",), {"unidirectional": 1}),
    "present": ([X, WEIGHTS, PROJECTION], ("a", "b"), {}),
    "past": ([X, WEIGHTS, PROJECTION, None, STACKED], ("a", "b"), {"unidirectional": 1}),
    "mask and bias": ([X, WEIGHTS, PROJECTION, KEEP[:, :S].copy(), None, normal(B, N, S, S)], ("a",), {"scale": 0.2}),
    "corner of a mask": ([X, WEIGHTS, None, (normal(B, 1, 9, 9) > 0).astype(np.int32)], ("a",), {}),
    "own widths": (
        [X, normal(10, D + D + 2 * D, seed=14), None],
        ("a",),
        {"qkv_hidden_sizes": [D, D, 2 * D]},
    ),
}


@pytest.mark.parametrize("variant", [VARIANTS[0], VARIANTS[-1]])
@pytest.mark.parametrize("name", PROJECTED)
def test_projected_attention(variant: str, name: str) -> None:
    inputs, outputs, attributes = PROJECTED[name]
    compare("Attention", inputs, {"num_heads": N, **attributes}, variant, outputs=outputs, known=(1,))


def four(array: Array, heads: int) -> Array:
    batch, rows, width = array.shape
    return np.ascontiguousarray(array.reshape(batch, rows, heads, width // heads).transpose(0, 2, 1, 3))


GROUPED: dict[str, tuple[list[Array | None], dict[str, Any]]] = {
    "plain": ([four(Q, N), four(K, N), four(V, N)], {}),
    "three axes": ([Q, K, V], {"q_num_heads": N, "kv_num_heads": N}),
    "shared heads": ([normal(B, 6, S, H), normal(B, 2, T, H), normal(B, 2, T, 12)], {"is_causal": 1}),
    "past": ([four(Q, N), four(K, N), four(V, N), None, *PAST], {"is_causal": 1}),
    "a long past": ([four(Q, N), four(K, N), four(V, N), None, *(normal(B, N, 4095, H, seed=i) for i in (1, 2))], {}),
    "shared heads behind a past": (
        [normal(B, 6, 1, H), normal(B, 2, 1, H), normal(B, 2, 1, 12), None, normal(B, 2, 9, H), normal(B, 2, 9, 12)],
        {"is_causal": 1},
    ),
    "past of rows": ([Q, K, V, None, *PAST], {"q_num_heads": N, "kv_num_heads": N, "scale": 0.1}),
    "mask": ([four(Q, N), four(K, N), four(V, N), normal(S, T) > -0.5], {}),
    "a row without keys": ([four(Q, N), four(K, N), four(V, N), np.arange(S * T).reshape(S, T) >= T], {}),
    "bias": ([four(Q, N), four(K, N), four(V, N), normal(B, 1, S, T)], {"softcap": 2.0}),
    "bias of heads": ([four(Q, N), four(K, N), four(V, N), normal(N, 1, T)], {}),
    "short mask": ([four(Q, N), four(K, N), four(V, N), normal(S, T - 2) > -0.5], {}),
    "short bias": ([four(Q, N), four(K, N), four(V, N), normal(1, 1, S, T - 3)], {}),
    "lengths": ([four(Q, N), four(K, N), four(V, N), None, None, None, np.array([7, 6])], {"is_causal": 1}),
}


@variants
@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("apart", [False, True])
def test_attention_of_onnx(variant: str, name: str, apart: bool) -> None:
    inputs, attributes = GROUPED[name]
    compare("Attention", inputs, attributes, variant, outputs=THREE, domain="", apart=apart)


def caches(rows: int, half: int) -> list[Array]:
    angle = normal(rows, half, seed=20)
    return [np.cos(angle), np.sin(angle)]


@variants
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("size", [8, 20, 64])
@pytest.mark.parametrize("four_axes", [False, True])
def test_rotary_embedding(variant: str, interleaved: int, size: int, four_axes: bool) -> None:
    half = 4 if size == 20 else size // 2
    x = normal(B, N, S, size) if four_axes else normal(B, S, N * size)
    positions = np.random.default_rng(0).integers(0, 9, (B, S))
    attributes = {"interleaved": interleaved, "num_heads": N, "rotary_embedding_dim": 2 * half}
    compare("RotaryEmbedding", [x, positions, *caches(9, half)], attributes, variant, apart=four_axes)
    compare("RotaryEmbedding", [x, np.array([3]), *caches(9, half)], attributes, variant)
    compare("RotaryEmbedding", [x, *caches(9, half), positions], attributes, variant, domain="")
    angles = normal(B, S, half)
    compare("RotaryEmbedding", [x, np.cos(angles), np.sin(angles)], attributes, variant, domain="")


@pytest.mark.parametrize("variant", [VARIANTS[0], VARIANTS[-1]])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("length", "total", "ends", "room"),
    [(5, 5, [5, 3], 0), (5, 5, [5, 2], 9), (1, 7, [7, 5], 6), (1, 7, [7, 5], 10), (3, 9, [9, 6], 8)],
)
@pytest.mark.parametrize(
    "options",
    [
        {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1, "local_window_size": 3},
        {"softcap": 1.5, "scale": 0.2},
        {"smooth_softmax": 1},
        {"causal": 0},
    ],
    ids=str,
)
def test_group_query_attention(
    variant: str, packed: bool, length: int, total: int, ends: list[int], room: int, options: dict[str, Any]
) -> None:
    heads, shared, size = 4, 2, 16
    q, k, v = (normal(B, length, count * size, seed=count) for count in (heads, shared, shared))
    given: list[Array | None] = [np.concatenate([q, k, v], -1), None, None] if packed else [q, k, v]
    past = [normal(B, shared, room, size, seed=30), normal(B, shared, room, size, seed=31)]
    rotary = caches(16, size // 2) if options.get("do_rotary") else [None, None]
    inputs = [*given, *past, np.array(ends, np.int32) - 1, np.array(total, np.int32), *rotary]
    attributes = {"num_heads": heads, "kv_num_heads": shared, **options}
    compare("GroupQueryAttention", inputs, attributes, variant, outputs=THREE, known=(6,))


def test_a_cache_that_is_its_own_past_is_written_in_place() -> None:
    heads, shared, size, room = 4, 2, 8, 12
    q, k, v = (normal(B, 1, count * size, seed=count) for count in (heads, shared, shared))
    past = [normal(B, shared, room, size, seed=30), normal(B, shared, room, size, seed=31)]
    inputs = [q, k, v, *past, np.array([6, 8], np.int32), np.array(9, np.int32)]
    operator = operator_of(
        "GroupQueryAttention", inputs, {"num_heads": heads, "kv_num_heads": shared}, MICROSOFT, THREE
    )
    native = native_of(operator, inputs, THREE)
    assert isinstance(native, NativeKernel)
    binder, memory = new_binder(), Memory()
    tensors = [binder.constant(a) if i == 6 else binder.new(a.dtype, a.shape) for i, a in enumerate(inputs)]
    for index, (tensor, array) in enumerate(zip(tensors, inputs, strict=True)):
        if index != 6:
            memory.put(tensor, array)
    results = native.bind(binder, *tensors)
    for before, present in zip(tensors[3:5], results[1:], strict=True):
        assert present is not None
        memory.share(present.buffer, before.buffer)
    memory.run(binder)
    expected = operator.run(*inputs)
    output = results[0]
    assert output is not None
    np.testing.assert_allclose(memory.read(output), expected[0], rtol=2e-5, atol=2e-5)
    for tensor, old, new in zip(tensors[3:5], past, expected[1:], strict=True):
        after = memory.read(tensor)
        for entry, end in enumerate((7, 9)):
            np.testing.assert_array_equal(after[entry, :, :end], new[entry, :, :end])
            np.testing.assert_array_equal(after[entry, :, end:], old[entry, :, end:])


DECLINED: list[tuple[str, str, list[Array | None], dict[str, Any], tuple[str, ...], str]] = [
    ("MultiHeadAttention", MICROSOFT, [Q, K, V], {"num_heads": N}, ("a", "", "", "d"), "the scores"),
    ("MultiHeadAttention", MICROSOFT, [Q.astype(np.int32)], {"num_heads": N}, ("a",), "int32"),
    ("Attention", "", [Q, K, V], {"q_num_heads": N, "kv_num_heads": N}, ("a", "", "", "d"), "the scores"),
    ("Attention", "", [Q, K, V.astype(np.float64)], {}, ("a",), "different types"),
    ("Attention", MICROSOFT, [X, WEIGHTS], {"num_heads": N, "do_rotary": 1}, ("a",), "rotary"),
    (
        "GroupQueryAttention",
        MICROSOFT,
        [Q, Q, Q, None, None, np.zeros(B, np.int32), np.array(S, np.int32)],
        {"num_heads": N, "kv_num_heads": N, "do_rotary": 1},
        ("a",),
        "'cos_cache'",
    ),
]


@pytest.mark.parametrize(("op_type", "domain", "inputs", "attributes", "outputs", "words"), DECLINED)
def test_what_is_declined_says_why(
    op_type: str,
    domain: str,
    inputs: list[Array | None],
    attributes: dict[str, Any],
    outputs: tuple[str, ...],
    words: str,
) -> None:
    reason = native_of(operator_of(op_type, inputs, attributes, domain, outputs), inputs, outputs)
    assert isinstance(reason, str)
    assert words in reason


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([Q[:, :, :-1].copy(), K, V], "does not divide into 3 heads"),
        ([Q, K, V, BIAS[:-1].copy()], "is expected to have 72 elements"),
        ([Q, K, V, None, np.ones((B, T + 1), np.int32)], "is no mask for batch 2"),
        ([Q, K, V, None, None, None, PAST[0][:, :2].copy(), PAST[1][:, :2].copy()], "a past of shape"),
        ([Q, K, V[:, :-1].copy()], "7 positions, values of"),
    ],
)
def test_shapes_that_contradict_each_other(inputs: list[Array | None], words: str) -> None:
    native = native_of(operator_of("MultiHeadAttention", inputs, {"num_heads": N}, MICROSOFT, ("a",)), inputs, ("a",))
    assert isinstance(native, NativeKernel)
    with pytest.raises(ValueError, match=words):
        run_native(native, inputs, "", (), apart=False)


def grouped(**changed: Array | None) -> list[Array | None]:
    """The inputs of GroupQueryAttention with 4 heads of 16 channels, which share 2; some of them replaced."""
    heads, shared, size, room = 4, 2, 16, 12
    inputs: dict[str, Array | None] = {
        "query": normal(B, 2, heads * size),
        "key": normal(B, 2, shared * size),
        "value": normal(B, 2, shared * size),
        "past_key": normal(B, shared, room, size),
        "past_value": normal(B, shared, room, size),
        "seqlens_k": np.array([6, 8], np.int32),
        "total": np.array(9, np.int32),
        "cos": None,
        "sin": None,
        "positions": None,
        "bias": None,
        "sink": None,
    }
    return list((inputs | changed).values())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"key": normal(B + 1, 2, 32)}, "keys of batch 3 and length 2, values of batch 2 and length 2 do not fit"),
        ({"value": normal(B + 5, 2, 32)}, "values of batch 7 and length 2 do not fit"),
        ({"key": normal(B, 9, 32), "value": normal(B, 9, 32)}, "keys of batch 2 and length 9"),
        ({"cos": normal(12, 8), "sin": normal(12, 7)}, "cannot be turned by caches"),
        ({"cos": normal(12, 9), "sin": normal(12, 9)}, "cannot be turned by caches"),
        ({"sink": normal(1)}, "not one for each of 4 heads"),
        ({"seqlens_k": np.array([8], np.int32)}, "do not fit batch 2"),
    ],
    ids=["key", "value", "rows", "sine", "cosine", "sink", "lengths"],
)
def test_grouped_inputs_that_contradict_each_other(changed: dict[str, Array], words: str) -> None:
    """None of them may be read or written beyond its end."""
    inputs, attributes = grouped(**changed), {"num_heads": 4, "kv_num_heads": 2, "do_rotary": int("cos" in changed)}
    native = native_of(operator_of("GroupQueryAttention", inputs, attributes, MICROSOFT, THREE), inputs, THREE)
    assert isinstance(native, NativeKernel)
    with pytest.raises(ValueError, match=words):
        run_native(native, inputs, "", (6,), apart=False)


@pytest.mark.parametrize("name", ["key", "value"])
def test_other_batches_of_keys_and_values_are_refused_on_the_host_too(name: str) -> None:
    inputs = grouped(**{name: normal(B + 1, 2, 32)})
    operator = operator_of("GroupQueryAttention", inputs, {"num_heads": 4, "kv_num_heads": 2}, MICROSOFT, THREE)
    with pytest.raises(ValueError, match="do not fit together"):
        operator.run(*inputs)


def session_outputs(model: bytes, feeds: Mapping[str, Array], threads: int) -> list[Array]:
    import sardonyx

    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = threads
    session = sardonyx.InferenceSession(model, options)
    return [session.run(None, dict(feeds))[index] for _ in range(3) for index in range(3)]


@pytest.mark.parametrize("length", [1, 70])
def test_sessions_give_the_same_bits_for_any_number_of_threads(length: int) -> None:
    names = ("q", "k", "v", "", "", "", "past_k", "past_v")
    node = helper.make_node("MultiHeadAttention", names, THREE, domain=MICROSOFT, num_heads=N, unidirectional=1)
    arrays = {name: normal(B, length, D, seed=index) for index, name in enumerate("qkv")}
    arrays |= {"past_k": PAST[0], "past_v": PAST[1]}
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * a.ndim) for name, a in arrays.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in THREE]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    graph = helper.make_graph([node], "g", given, results)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    inputs = [arrays.get(name) for name in names]
    attributes = {"num_heads": N, "unidirectional": 1}
    expected = operator_of("MultiHeadAttention", inputs, attributes, MICROSOFT, THREE).run(*inputs)
    first = session_outputs(model, arrays, 1)
    for threads in (1, 2, 3):
        for one, other in zip(session_outputs(model, arrays, threads), first, strict=True):
            assert one.tobytes() == other.tobytes()
    for found, wanted in zip(first, [*expected[:3]] * 3, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


class Aligned(Memory):
    """Buffers that begin so many bytes behind a multiple of 64."""

    def __init__(self, behind: int) -> None:
        super().__init__()
        self._behind = behind
        self._own: dict[int, tuple[Buffer, Array]] = {}

    def place(self, buffer: Buffer) -> Array:
        if id(buffer) not in self._own:
            room = np.full(buffer.nbytes + 128, 0xA5, np.uint8)
            self._own[id(buffer)] = buffer, room[-room.ctypes.data % 64 + self._behind :][: buffer.nbytes]
        return self._own[id(buffer)][1]


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if isinstance(variant, str)])
@pytest.mark.parametrize(("heads", "size", "behind"), [(3, 64, 0), (3, 64, 16), (2, 40, 0), (1, 128, 32)])
def test_large_caches_are_written_past_those_of_the_processor(variant: str, heads: int, size: int, behind: int) -> None:
    """Wherever they lie: what is near and what is far has the same bits."""
    q, k, v = (normal(1, 1, heads * size, seed=seed) for seed in range(3))
    pasts = [normal(1, heads, 37, size, seed=seed) for seed in (3, 4)]
    inputs = [q, k, v, None, None, None, *pasts]
    operator = operator_of("MultiHeadAttention", inputs, {"num_heads": heads}, MICROSOFT, THREE)
    native = native_of(operator, inputs, THREE)
    assert isinstance(native, NativeKernel), native
    found = []
    for l2 in (1 << 30, 1):
        target = kernels_of(variant).target
        target = replace(target, caches=replace(target.caches, l2=l2))
        binder = Binder(KernelLibrary(target, KernelCache(None)), settings=RunSettings())
        memory = Aligned(behind)
        tensors = [None if array is None else binder.new(array.dtype, array.shape) for array in inputs]
        for tensor, array in zip(tensors, inputs, strict=True):
            if tensor is not None and array is not None:
                memory.put(tensor, array)
        results = native.bind(binder, *tensors)
        memory.run(binder)
        found.append([memory.read(tensor).copy() for tensor in results if tensor is not None])
    for near, far in zip(*found, strict=True):
        np.testing.assert_array_equal(near, far)
    for cache, past, new in zip(found[1][1:], pasts, (k, v), strict=True):
        np.testing.assert_array_equal(cache, np.concatenate([past, new.reshape(1, heads, 1, size)], axis=2))
