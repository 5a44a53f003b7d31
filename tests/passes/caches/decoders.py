"""Small decoders with caches, as exporters write them, and what they compute, in float64 and without caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

Array = np.ndarray[Any, Any]

LAYERS, WIDTH, SIZE, VOCABULARY, POSITIONS, WINDOW = 2, 8, 4, 7, 16, 3
LOWEST = float(np.finfo(np.float32).min)

# Forms of attention: how the model writes it, the type of its numbers, heads of queries and of keys, and its opset.
FORMS = {
    "parts": ("float", 2, 2, 17),
    "parts of float16": ("float16", 2, 2, 17),
    "parts of float64": ("double", 2, 2, 17),
    "repeated keys": ("float", 4, 2, 17),
    "multi head": ("float", 2, 2, 17),
    "heads": ("double", 4, 2, 23),
    "rows": ("double", 4, 2, 23),
}
_DTYPES: dict[str, Any] = {"float": np.float32, "double": np.float64, "float16": np.float16}

_MASKS = """
   past_shape = Shape (past_key_values_0_key)
   past = Gather (past_shape, two)
   new_shape = Shape (inputs_embeds)
   new = Gather (new_shape, one)
   batch = Gather (new_shape, zero)
   whole = Add (past, new)
   columns = Range (zero, whole, one)
   rows = Range (past, whole, one)
   {positions}
   hidden_0 = Add (inputs_embeds, embedded)
   columns_2 = Unsqueeze (columns, axis_0)
   rows_2 = Unsqueeze (rows, axis_1)
   before = LessOrEqual (columns_2, rows_2)
   {window}
   wide = Unsqueeze (seen, axes_01)
   mask_4 = Unsqueeze (attention_mask, axes_12)
   given = Cast <to = 9> (mask_4)
   kept = And (wide, given)
   bias = Where (kept, nothing, lowest)
"""
_POSITIONS = {
    "gathered": "embedded = Gather (table, rows)",
    "sliced": """begin = Unsqueeze (past, axis_0)
   end = Unsqueeze (whole, axis_0)
   embedded = Slice (table, begin, end, axis_0)""",
}
_WINDOWS = {
    False: "seen = Identity (before)",
    True: """first = Sub (rows_2, window)
   near = Greater (columns_2, first)
   seen = And (before, near)""",
}
_HEADS = """
   {n}_{i} = MatMul (hidden_{i}, w{n}_{i})
   {n}s_{i} = Reshape ({n}_{i}, split_{n})
   {n}h_{i} = Transpose <perm = [0, 2, 1, 3]> ({n}s_{i})
"""
_APPENDED = """
   present_{i}_key = Concat <axis = -2> (past_key_values_{i}_key, kh_{i})
   present_{i}_value = Concat <axis = -2> (past_key_values_{i}_value, vh_{i})
"""
_REPEATED = """
   {n}5_{i} = Unsqueeze (present_{i}_{long}, axis_2)
   {n}to_{i} = Concat <axis = 0> (batch_1, heads_1, group_1, whole_1, size_1)
   {n}e_{i} = Expand ({n}5_{i}, {n}to_{i})
   {n}all_{i} = Concat <axis = 0> (batch_1, queries_1, whole_1, size_1)
   {n}r_{i} = Reshape ({n}e_{i}, {n}all_{i})
"""
_PARTS = """
   kt_{i} = Transpose <perm = [0, 1, 3, 2]> ({k})
   product_{i} = MatMul (qh_{i}, kt_{i})
   scaled_{i} = Mul (product_{i}, scale)
   masked_{i} = Add (scaled_{i}, bias)
   weights_{i} = Softmax <axis = -1> (masked_{i})
   mixed_{i} = MatMul (weights_{i}, {v})
   turned_{i} = Transpose <perm = [0, 2, 1, 3]> (mixed_{i})
   merged_{i} = Reshape (turned_{i}, merge)
"""
_ENDS = """
   made_{i} = MatMul (merged_{i}, wo_{i})
   hidden_{next} = Add (hidden_{i}, made_{i})
"""


def _layer(form: str, i: int) -> str:
    heads, groups = FORMS[form][1:3]
    projections = "".join(_HEADS.format(n=n, i=i) for n in "qkv")
    caches = f"past_key_values_{i}_key, past_key_values_{i}_value"
    presents = f"present_{i}_key, present_{i}_value"
    if form.startswith("parts"):
        body = projections + _APPENDED.format(i=i) + _PARTS.format(i=i, k=f"present_{i}_key", v=f"present_{i}_value")
    elif form == "repeated keys":
        repeated = "".join(_REPEATED.format(n=n, i=i, long=long) for n, long in (("k", "key"), ("v", "value")))
        body = projections + _APPENDED.format(i=i) + repeated + _PARTS.format(i=i, k=f"kr_{i}", v=f"vr_{i}")
    elif form == "multi head":
        rows = "".join(f"\n   {n}_{i} = MatMul (hidden_{i}, w{n}_{i})" for n in "qkv")
        body = rows + (
            f"\n   merged_{i}, {presents} = com.microsoft.MultiHeadAttention <num_heads = {heads}> "
            f"(q_{i}, k_{i}, v_{i}, , , bias, {caches})"
        )
    elif form == "heads":
        body = projections + (
            f"\n   mixed_{i}, {presents} = Attention (qh_{i}, kh_{i}, vh_{i}, bias, {caches})"
            f"\n   turned_{i} = Transpose <perm = [0, 2, 1, 3]> (mixed_{i})"
            f"\n   merged_{i} = Reshape (turned_{i}, merge)"
        )
    else:
        rows = "".join(f"\n   {n}_{i} = MatMul (hidden_{i}, w{n}_{i})" for n in "qkv")
        body = rows + (
            f"\n   merged_{i}, {presents} = Attention <q_num_heads = {heads}, kv_num_heads = {groups}, is_causal = 1> "
            f"(q_{i}, k_{i}, v_{i}, kept, {caches})"
        )
    return body + _ENDS.format(i=i, next=i + 1)


def weights(form: str) -> dict[str, Array]:
    """The constants of a decoder by name."""
    kind, heads, groups, _ = FORMS[form]
    dtype, draw = _DTYPES[kind], np.random.default_rng(3)
    found: dict[str, Array] = {"table": draw.standard_normal((POSITIONS, WIDTH)).astype(dtype)}
    for i in range(LAYERS):
        for name, columns in (("q", heads * SIZE), ("k", groups * SIZE), ("v", groups * SIZE)):
            found[f"w{name}_{i}"] = draw.standard_normal((WIDTH, columns)).astype(dtype) / 4
        found[f"wo_{i}"] = draw.standard_normal((heads * SIZE, WIDTH)).astype(dtype) / 4
    found["head"] = draw.standard_normal((WIDTH, VOCABULARY)).astype(dtype)
    found |= {"nothing": np.array(0, dtype), "lowest": np.array(max(LOWEST, np.finfo(dtype).min), dtype), "scale": np.array(SIZE**-0.5, dtype)}
    numbers: dict[str, Any] = {"zero": 0, "one": 1, "two": 2, "window": WINDOW}
    numbers |= {"axis_0": [0], "axis_1": [1], "axis_2": [2], "axes_01": [0, 1], "axes_12": [1, 2]}
    numbers |= {"split_q": [0, 0, heads, SIZE], "split_k": [0, 0, groups, SIZE], "split_v": [0, 0, groups, SIZE]}
    numbers |= {"merge": [0, 0, heads * SIZE], "heads_1": [groups], "group_1": [heads // groups]}
    numbers |= {"queries_1": [heads], "size_1": [SIZE]}
    return found | {name: np.array(number, np.int64) for name, number in numbers.items()}


def decoder(form: str, *, positions: str = "gathered", has_window: bool = False, extra: str = "") -> onnx.ModelProto:
    """A decoder whose inputs are `inputs_embeds`, `attention_mask` and the caches; `extra` goes behind its nodes."""
    kind, _, groups, opset = FORMS[form]
    pasts = [f"past_key_values_{i}_{name}" for i in range(LAYERS) for name in ("key", "value")]
    sizes = "batch_1 = Unsqueeze (batch, axis_0)\n   whole_1 = Unsqueeze (whole, axis_0)"
    body = _MASKS.format(positions=_POSITIONS[positions], window=_WINDOWS[has_window]) + sizes
    body += "".join(_layer(form, i) for i in range(LAYERS))
    cache = f"{kind}[batch, {groups}, {{}}, {SIZE}]"
    inputs = ", ".join(f"{cache.format(f's{number}')} {name}" for number, name in enumerate(pasts))
    outputs = ", ".join(f"{kind}[b, h, l, s] {name.replace('past_key_values', 'present')}" for name in pasts)
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>
        decoder ({kind}[batch, new, {WIDTH}] inputs_embeds, int64[batch, columns] attention_mask, {inputs})
            => ({kind}[batch, new, {VOCABULARY}] logits, {outputs})
        {{
            {body}
            logits = MatMul (hidden_{LAYERS}, head)
            {extra}
        }}"""
    )
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights(form).items())
    return model


def expected(form: str, embedded: Array, mask: Array, *, has_window: bool = False) -> Array:
    """The logits of a whole text (batch, length, width) in float64; those of padding mean nothing."""
    _, heads, groups, _ = FORMS[form]
    given = {name: array.astype(np.float64) for name, array in weights(form).items()}
    length = embedded.shape[1]
    places = np.arange(length)
    seen = places[None] <= places[:, None]
    if has_window:
        seen &= places[None] > places[:, None] - WINDOW
    kept = seen[None, None] & (mask[:, None, None] != 0)
    hidden = embedded.astype(np.float64) + given["table"][:length]
    for i in range(LAYERS):
        q, k, v = (
            (hidden @ given[f"w{name}_{i}"]).reshape(*hidden.shape[:2], -1, SIZE).transpose(0, 2, 1, 3)
            for name in "qkv"
        )
        k, v = (np.repeat(one, heads // groups, axis=1) for one in (k, v))
        scores = np.where(kept, q @ k.swapaxes(2, 3) * SIZE**-0.5, LOWEST)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = powers / powers.sum(-1, keepdims=True) @ v
        hidden = hidden + mixed.transpose(0, 2, 1, 3).reshape(*hidden.shape[:2], -1) @ given[f"wo_{i}"]
    return hidden @ given["head"]
