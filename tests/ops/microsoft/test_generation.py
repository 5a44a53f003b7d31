"""GreedySearch with small models against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.ops.microsoft import peer
from tests.ops.microsoft.generation_graphs import Layer

RNG = np.random.default_rng(8)
VOCABULARY, HEADS, SIZE, EOS, PAD = 12, 2, 3, 10, 11


def decoder() -> onnx.GraphProto:
    """Logits from the token, its position, the mask and the whole past; the past keeps an embedding of each token."""
    tables = {
        "words": RNG.standard_normal((VOCABULARY, VOCABULARY)),
        "places": RNG.standard_normal((32, VOCABULARY)),
        "memory": RNG.standard_normal((VOCABULARY, 2 * HEADS * SIZE)),
        "mix": RNG.standard_normal((2 * HEADS * SIZE, VOCABULARY)),
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["word"]),
        helper.make_node("Gather", ["places", "position_ids"], ["place"]),
        helper.make_node("Gather", ["memory", "input_ids"], ["held"]),
        helper.make_node("Reshape", ["held", "split"], ["held5"]),
        helper.make_node("Transpose", ["held5"], ["new"], perm=[2, 0, 3, 1, 4]),
        helper.make_node("Concat", ["past_0", "new"], ["present_0"], axis=3),
        helper.make_node("Cast", ["attention_mask"], ["visible"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["visible", "around"], ["visible5"]),
        helper.make_node("Mul", ["present_0", "visible5"], ["seen"]),
        helper.make_node("ReduceSum", ["seen", "length"], ["total"], keepdims=0),
        helper.make_node("Transpose", ["total"], ["total_b"], perm=[1, 0, 2, 3]),
        helper.make_node("Reshape", ["total_b", "join"], ["flat"]),
        helper.make_node("MatMul", ["flat", "mix"], ["mixed"]),
        helper.make_node("Add", ["word", "place"], ["sum"]),
        helper.make_node("Add", ["sum", "mixed"], ["logits"]),
    ]
    integers = {"split": [0, 0, 2, HEADS, SIZE], "around": [0, 2, 4], "length": [3], "join": [0, 1, 2 * HEADS * SIZE]}
    past = [2, "batch", HEADS, "past", SIZE]
    return helper.make_graph(
        nodes,
        "decoder",
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT32, ["batch", "length_"]),
            helper.make_tensor_value_info("position_ids", TensorProto.INT32, ["batch", "length_"]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT32, ["batch", "total_"]),
            helper.make_tensor_value_info("past_0", TensorProto.FLOAT, past),
        ],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length_", VOCABULARY]),
            helper.make_tensor_value_info("present_0", TensorProto.FLOAT, [2, "batch", HEADS, "all_", SIZE]),
        ],
        [
            *(numpy_helper.from_array(table.astype(np.float32), name) for name, table in tables.items()),
            *(numpy_helper.from_array(np.array(values, np.int64), name) for name, values in integers.items()),
        ],
    )


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


PROMPT = np.array([[PAD, 3, 4], [1, 2, 5]], np.int32)
MASKED = (RNG.random(VOCABULARY) > 0.3).astype(np.int32)


@pytest.mark.parametrize(
    ("optional", "attributes"),
    [
        ([], {}),
        ([None, np.array([1.7], np.float32)], {}),
        ([i32(9)], {}),
        ([None, None, MASKED], {}),
        ([None, None, None, np.stack([MASKED, 1 - MASKED])], {}),
        ([None, None, None, None, i32(0, 1, 1, 1, 0, 1).reshape(2, 3)], {}),
        ([], {"no_repeat_ngram_size": 1}),
        ([], {"no_repeat_ngram_size": 2}),
    ],
)
def test_greedy_search(optional: list[Any], attributes: dict[str, Any]) -> None:
    base = {"decoder": decoder(), "eos_token_id": EOS, "pad_token_id": PAD, "model_type": 0}
    given = [PROMPT, i32(12), *optional]
    model = peer.one_node("GreedySearch", given, [6], {**base, **attributes})
    (found,) = peer.sardonyx(model, peer.feeds(model, given))
    (expected,) = peer.onnxruntime(model, peer.feeds(model, given))
    # onnxruntime leaves what follows the end of every sequence unset; here it is the pad token.
    last = int(np.flatnonzero((found != PAD).any(axis=0))[-1]) + 1
    assert found.shape == expected.shape == (2, 12)
    np.testing.assert_array_equal(found[:, :last], expected[:, :last])


def test_a_prompt_as_long_as_the_limit_is_refused() -> None:
    with pytest.raises(Exception, match="'max_length' 3 must exceed the prompt's length 3"):
        peer.run(
            "GreedySearch", [PROMPT, i32(3)], [6], {"decoder": decoder(), "eos_token_id": EOS, "pad_token_id": PAD}
        )


@pytest.mark.parametrize(("with_decoder", "hidden", "whole"), [(True, True, False), (False, False, True)])
@pytest.mark.parametrize("ngram", [0, 1])
def test_greedy_search_of_an_encoder_and_a_decoder(with_decoder: bool, hidden: bool, whole: bool, ngram: int) -> None:
    # onnxruntime's GreedySearch has decoders alone; its BeamSearch with one beam chooses the same tokens.
    layer = Layer(2, VOCABULARY)
    attributes = {
        "encoder": layer.encoder(with_decoder=with_decoder),
        "decoder": layer.decoder(hidden=hidden, whole=whole),
        "model_type": 1,
        "decoder_start_token_id": 2,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "no_repeat_ngram_size": ngram,
    }
    for sources in (np.array([[PAD, 3, 4, 7, 1]], np.int32), np.array([[1, 2, 6]], np.int32)):
        (found,) = peer.run("GreedySearch", [sources, i32(9), i32(9)], [6], attributes)
        scalars = [i32(9), i32(9), i32(1), i32(1), np.ones(1, np.float32)]
        model = peer.one_node("BeamSearch", [sources, *scalars], [6], attributes)
        (expected,) = peer.onnxruntime(model, peer.feeds(model, [sources, *scalars]))
        np.testing.assert_array_equal(found, expected[:, 0])


def test_greedy_search_runs_an_initial_decoder_first() -> None:
    plain, other = decoder(), decoder()
    base = {"eos_token_id": EOS, "pad_token_id": PAD, "decoder": plain}
    (of_other,) = peer.run("GreedySearch", [PROMPT, i32(4)], [6], {**base, "decoder": other})
    (found,) = peer.run("GreedySearch", [PROMPT, i32(9)], [6], {**base, "init_decoder": other})
    np.testing.assert_array_equal(found[:, :4], of_other)
    # From then on it goes on as the decoder does with a past that both make alike.
    shared = {**base, "init_decoder": plain}
    np.testing.assert_array_equal(
        peer.run("GreedySearch", [PROMPT, i32(9)], [6], shared)[0],
        peer.run("GreedySearch", [PROMPT, i32(9)], [6], base)[0],
    )
