"""Attention: its shape rule against the run, and its cost."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx.ops.framework.facts import tensor
from sardonyx.ops.framework.registry import operator_of
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
