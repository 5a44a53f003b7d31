"""Attention: its shape rule against the run, and its cost."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx.ops.framework.facts import tensor
from sardonyx.ops.framework.registry import operator_of
from tests.ops.levels import assert_refused, assert_results
from tests.ops.one_node import model_of
from tests.ops.single_node import compiled, make_model, ours, run_ours


@pytest.mark.parametrize("rank", [3, 4])
def test_symbols_survive_a_cache(rank: int) -> None:
    rng = np.random.default_rng(0)
    heads, groups, size = 4, 2, 8
    if rank == 4:
        shapes = [("b", heads, "s", size), ("b", groups, "s", size), ("b", groups, "s", size)]
    else:
        shapes = [("b", "s", heads * size), ("b", "s", groups * size), ("b", "s", groups * size)]
    shapes += [("b", groups, "p", size)] * 2
    numbers = {"b": 2, "s": 3, "p": 5}
    arrays = [rng.random([numbers.get(d, d) for d in shape]).astype(np.float32) for shape in shapes]
    attributes = {} if rank == 4 else {"q_num_heads": heads, "kv_num_heads": groups}
    inputs = [*arrays[:3], None, *arrays[3:]]
    proto = make_model("Attention", inputs, attributes, 23, outputs=4)
    for value, shape in zip(proto.graph.input, shapes, strict=True):
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape))
    feeds = {value.name: array for value, array in zip(proto.graph.input, arrays, strict=True)}
    results = run_ours(proto, feeds)
    for output, result in zip(compiled(proto).model.graph.outputs, results, strict=True):
        assert output.shape is not None
        assert [d if isinstance(d, int) else d.evaluate(numbers) for d in output.shape] == list(result.shape)


def test_attention_is_a_weighted_mean_of_the_values() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 2, 3, 4)).astype(np.float32) for _ in range(3))
    weights = np.exp(q.astype(np.float64) @ k.swapaxes(2, 3) / 2)
    expected = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(ours("Attention", q, k, v)[0], expected, rtol=1e-5, atol=1e-6)


def test_cost_counts_both_products() -> None:
    x = np.zeros((1, 2, 16, 8), np.float32)
    node = compiled(make_model("Attention", [x, x, x], {}, 23)).model.graph[0]
    fact = tensor(ir.DataType.FLOAT, x.shape)
    flops = operator_of(node).cost([fact, fact, fact], [fact]).flops
    products = 2 * 2 * 2 * 16 * 16 * 8
    assert flops is not None
    assert products < flops < 3 * products


def attention_model(
    given: dict[str, np.ndarray | None], outputs: list[str], opset: int, **attributes: object
) -> onnx.ModelProto:
    """One Attention whose inputs have symbolic sizes."""
    names = [name if array is not None else "" for name, array in given.items()]
    node = onnx.helper.make_node("Attention", names, outputs, **attributes)
    feeds = {name: array for name, array in given.items() if array is not None}
    shapes = {name: [f"{name}{axis}" for axis in range(array.ndim)] for name, array in feeds.items()}
    return model_of([node], feeds, [name for name in outputs if name], opset=opset, shapes=shapes)


def stages(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: np.ndarray, softcap: float
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The output, and the scores as they are, capped, masked and as weights, in float64."""
    raw = q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    capped = softcap * np.tanh(raw / softcap)
    masked = capped + bias
    top = np.max(masked, -1, keepdims=True, initial=-1e300)
    weights = np.exp(masked - top)
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return weights @ v, [raw, capped, masked, weights]


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("mode", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_the_scores_are_shown_as_the_mode_asks_at_every_level(opset: int, mode: int | None, masked: bool) -> None:
    rng = np.random.default_rng(5)
    feeds, wanted = [], []
    for rows, columns in ((3, 4), (1, 6), (2, 0), (0, 3)):
        q, k, v = (3 * rng.standard_normal((2, 2, n, 4)).astype(np.float32) for n in (rows, columns, columns))
        bias = rng.standard_normal((rows, columns)).astype(np.float32)
        bias[:1] = -np.inf
        y, shown = stages(q, k, v, bias if masked else np.zeros_like(bias), 1.5)
        feeds.append({"q": q, "k": k, "v": v} | ({"m": bias} if masked else {}))
        wanted.append([y.astype(np.float32), shown[mode or 0].astype(np.float32)])
    attributes = {"softcap": 1.5} | ({} if mode is None else {"qk_matmul_output_mode": mode})
    model = attention_model(feeds[0], ["y", "", "", "scores"], opset, **attributes)
    assert_results(model, feeds, wanted)


def visible(rows: int, keys: int, offset: np.ndarray, left: int, right: int, causal: bool) -> np.ndarray:
    """0 where a query may see a key by its place, else minus infinity; a row of keys for each offset and query."""
    result = np.full((len(offset), 1, rows, keys), -np.inf)
    for entry, row, key in np.ndindex(len(offset), rows, keys):
        distance = key - row - offset[entry]
        seen = (left < 0 or distance >= -left) and (right < 0 or distance <= right) and not (causal and distance > 0)
        result[entry, 0, row, key] = 0 if seen else -np.inf
    return result


@pytest.mark.parametrize("cache", ["none", "past", "lengths"])
@pytest.mark.parametrize(("left", "right", "causal"), [(-1, -1, True), (1, 1, False), (2, -1, True), (-1, 0, False)])
@pytest.mark.parametrize("scores", [False, True])
def test_places_are_counted_from_the_cache_at_every_level(
    cache: str, left: int, right: int, causal: bool, scores: bool
) -> None:
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal((2, heads, n, 4)).astype(np.float32) for heads, n in ((4, 3), (2, 5), (2, 5)))
    past = [rng.standard_normal((2, 2, 2, 4)).astype(np.float32) for _ in range(2)] if cache == "past" else [None] * 2
    lengths = np.array([4, 1]) if cache == "lengths" else None
    keys, values = k, v
    offset = np.zeros(2, np.int64)
    if cache == "past":
        keys, values = np.concatenate([past[0], k], 2), np.concatenate([past[1], v], 2)
        offset += 2
    bias = visible(3, keys.shape[2], offset if lengths is None else lengths - 3, left, right, causal)
    if lengths is not None:
        bias = np.where(np.arange(5) < lengths.reshape(2, 1, 1, 1), bias, -np.inf)
    y, shown = stages(q, np.repeat(keys, 2, 1), np.repeat(values, 2, 1), bias, 1e9)
    given = {"q": q, "k": k, "v": v, "m": None, "pk": past[0], "pv": past[1], "n": lengths}
    outputs = ["y", *(["pk1", "pv1"] if cache == "past" else ["", ""]), *(["scores"] if scores else [])]
    windows = {"left_window_size": left, "right_window_size": right, "is_causal": int(causal)}
    model = attention_model(given, outputs, 25, qk_matmul_output_mode=3, **windows)
    wanted = [y.astype(np.float32)] + ([keys, values] if cache == "past" else [])
    wanted += [shown[3].astype(np.float32)] if scores else []
    assert_results(model, [{name: array for name, array in given.items() if array is not None}], [wanted])


def test_masks_shorter_than_the_keys_rule_the_others_out() -> None:
    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal((1, 1, n, 4)).astype(np.float32) for n in (3, 5, 5))
    for mask in (rng.random((3, 3)) < 0.7, rng.standard_normal((3, 3)).astype(np.float32)):
        bias = np.full((3, 5), -np.inf)
        bias[:, :3] = np.where(mask, 0, -np.inf) if mask.dtype == np.bool_ else mask
        y, _ = stages(q, k, v, bias, 1e9)
        feeds = {"q": q, "k": k, "v": v, "m": mask}
        assert_results(attention_model(feeds, ["y"], 24), [feeds], [[y.astype(np.float32)]])


@pytest.mark.parametrize(
    ("attributes", "given", "words"),
    [
        ({"qk_matmul_output_mode": 4}, {}, "qk_matmul_output_mode must be 0, 1, 2 or 3, not 4"),
        ({"left_window_size": -2}, {}, "left_window_size must be -1 (all) or more, not -2"),
        ({}, {"pk": (1, 1, 2, 4)}, "past_key and past_value must be given together"),
        ({}, {"pk": (1, 1, 2, 4), "pv": (1, 1, 2, 4), "n": (1,)}, "does not go with past_key"),
        ({}, {"m": (3, 7)}, "an attn_mask of shape (3, 7) for 5 keys"),
        ({}, {"q": (2, 1, 3, 4)}, ""),
        ({}, {"v": (1, 1, 4, 4)}, ""),
        ({}, {"k": (1, 1, 5, 3)}, ""),
        ({}, {"n": (2,)}, ""),
    ],
)
def test_what_does_not_go_together_is_refused(
    attributes: dict[str, int], given: dict[str, tuple[int, ...]], words: str
) -> None:
    shapes = {"q": (1, 1, 3, 4), "k": (1, 1, 5, 4), "v": (1, 1, 5, 4)} | given
    arrays = {
        name: np.zeros(shapes[name], np.int64 if name == "n" else np.float32) if name in shapes else None
        for name in ("q", "k", "v", "m", "pk", "pv", "n")
    }
    model = attention_model(arrays, ["y"], 25, **attributes)
    assert_refused(model, {name: array for name, array in arrays.items() if array is not None}, words)
