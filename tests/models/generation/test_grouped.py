"""Decoders whose mask says how much of one buffer is filled, as GroupQueryAttention works, and states of fixed size."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession
from sardonyx.models.generation.bound_decoder import BoundDecoder
from sardonyx.models.generation.decoder import Decoder
from sardonyx.models.generation.loop import generate
from sardonyx.models.generation.settings import Settings

WORDS, HEADS, GROUPS, SIZE = 31, 4, 2, 8
WIDTH = HEADS * SIZE
CACHES = ("past_key_values.0.key", "past_key_values.0.value")


def _weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    angles = np.arange(128)[:, None] / 100.0 ** (np.arange(SIZE // 2) / (SIZE // 2))
    sizes = {"table": (WORDS, WIDTH), "q": (WIDTH, WIDTH), "k": (WIDTH, GROUPS * SIZE), "v": (WIDTH, GROUPS * SIZE)}
    made = {name: rng.normal(size=shape).astype(np.float32) for name, shape in sizes.items()}
    made["head"] = rng.normal(size=(WIDTH, WORDS)).astype(np.float32)
    return made | {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


def _model(with_state: bool) -> onnx.ModelProto:
    """A layer as onnxruntime-genai's builder writes it; with a running sum of embeddings as a state of fixed size."""
    cache = ["batch", GROUPS, "past", SIZE]
    whole = ["batch", GROUPS, "whole", SIZE]
    floats, ints = TensorProto.FLOAT, TensorProto.INT64
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"]),
        helper.make_node("MatMul", ["x", "q"], ["query"]),
        helper.make_node("MatMul", ["x", "k"], ["key"]),
        helper.make_node("MatMul", ["x", "v"], ["value"]),
        helper.make_node("ReduceSum", ["attention_mask", "one"], ["counts"], keepdims=1),
        helper.make_node("Sub", ["counts", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32),
        helper.make_node("Shape", ["attention_mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "one_scalar"], ["total64"]),
        helper.make_node("Cast", ["total64"], ["total"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention",
            ["query", "key", "value", *CACHES, "seqlens_k", "total", "cos", "sin"],
            ["attended", "present.0.key", "present.0.value"],
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=GROUPS,
            do_rotary=1,
        ),
        helper.make_node("Add", ["x", "attended"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("input_ids", ints, ["batch", "new"]),
        helper.make_tensor_value_info("attention_mask", ints, ["batch", "whole"]),
        helper.make_tensor_value_info("past_key_values.0.key", floats, cache),
        helper.make_tensor_value_info("past_key_values.0.value", floats, cache),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", floats, ["batch", "new", WORDS]),
        helper.make_tensor_value_info("present.0.key", floats, whole),
        helper.make_tensor_value_info("present.0.value", floats, whole),
    ]
    last = "y"
    if with_state:
        nodes += [
            helper.make_node("ReduceSum", ["x", "one"], ["added"], keepdims=0),
            helper.make_node("Add", ["past_sum.0", "added"], ["present_sum.0"]),
            helper.make_node("Unsqueeze", ["present_sum.0", "one"], ["row"]),
            helper.make_node("Add", ["y", "row"], ["z"]),
        ]
        inputs.append(helper.make_tensor_value_info("past_sum.0", floats, ["batch", WIDTH]))
        outputs.append(helper.make_tensor_value_info("present_sum.0", floats, ["batch", WIDTH]))
        last = "z"
    nodes.append(helper.make_node("MatMul", [last, "head"], ["logits"]))
    constants = [numpy_helper.from_array(value, name) for name, value in _weights().items()]
    constants += [numpy_helper.from_array(np.array([1]), "one"), numpy_helper.from_array(np.array(1), "one_scalar")]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model)
    return model


def _reference(tokens: list[int], with_state: bool) -> np.ndarray:
    """Logits behind a text in float64: rotated keys and queries, groups of heads, a causal mask."""
    weights = {name: value.astype(np.float64) for name, value in _weights().items()}
    x = weights["table"][tokens]
    count = len(tokens)

    def heads(name: str, number: int) -> np.ndarray:
        parts = (x @ weights[name]).reshape(count, number, SIZE).transpose(1, 0, 2)
        if name == "v":
            return parts
        low, high = parts[..., : SIZE // 2], parts[..., SIZE // 2 :]
        cos, sin = weights["cos"][:count], weights["sin"][:count]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    query = heads("q", HEADS)[:, -1]
    key, value = (np.repeat(heads(name, GROUPS), HEADS // GROUPS, axis=0) for name in ("k", "v"))
    scores = np.einsum("hd,hnd->hn", query, key) / np.sqrt(SIZE)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    y = x[-1] + np.einsum("hn,hnd->hd", shares, value).reshape(-1)
    return (y + x.sum(axis=0) * with_state) @ weights["head"]


def _continued(prompt: list[int], count: int, with_state: bool) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(_reference(tokens, with_state).argmax()))
    return tokens


def grouped(with_state: bool = False, greedy: str = "1") -> BoundDecoder:
    """A decoder whose session gives the likeliest tokens, too, or does not."""
    options = SessionOptions()
    options.add_session_config_entry("sardonyx.greedy_tokens", greedy)
    decoder = Decoder.of(InferenceSession(_model(with_state).SerializeToString(), options))
    assert isinstance(decoder, BoundDecoder)
    return decoder


def test_the_mask_as_wide_as_the_buffer_says_what_is_filled() -> None:
    decoder = grouped()
    assert decoder.form == "one buffer"
    prompt = [3, 14, 15, 9, 2]
    cache = decoder.cache(1, 64)
    np.testing.assert_allclose(decoder.step([prompt], cache)[0], _reference(prompt, False), rtol=1e-4, atol=1e-4)
    for token in (7, 30):
        prompt.append(token)
        found = decoder.step([[token]], cache)[0]
        np.testing.assert_allclose(found, _reference(prompt, False), rtol=1e-4, atol=1e-4)


def test_chunks_and_room_that_grows() -> None:
    decoder = grouped()
    text = np.random.default_rng(1).integers(0, WORDS, 90).tolist()
    cache = decoder.cache(1, 40)
    decoder.step([text[:30]], cache)
    decoder.step([text[30:50]], cache)
    found = decoder.step([text[50:]], cache)[0]
    assert cache.capacity == 128
    np.testing.assert_allclose(found, _reference(text, False), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("greedy", ["0", "1"])
def test_rows_of_different_lengths_leave_their_padding_out(greedy: str) -> None:
    ids = np.array([[0, 0, 0, 5, 6], [7, 8, 9, 10, 11], [0, 1, 2, 3, 4]])
    mask = np.array([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
    found = generate(grouped(greedy=greedy), ids, Settings(max_new_tokens=12), attention_mask=mask).sequences
    for row in range(3):
        wanted = _continued(ids[row][mask[row] > 0].tolist(), 12, False)
        assert found[row][5 - mask[row].sum() :].tolist() == wanted


@pytest.mark.parametrize("with_state", [False, True])
def test_beams_are_those_of_rows_read_anew(with_state: bool) -> None:
    settings = Settings(num_beams=3, max_new_tokens=8, num_return_sequences=3)
    found = generate(grouped(with_state), [[3, 4, 5]], settings)
    for tokens, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        total = 0.0
        for length in range(3, 11):
            logits = _reference(tokens[:length], with_state)
            total += logits[tokens[length]] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert score == pytest.approx(total / 8, rel=1e-3)


@pytest.mark.parametrize("greedy", ["0", "1"])
def test_states_of_fixed_size_take_turns(greedy: str) -> None:
    decoder = grouped(with_state=True, greedy=greedy)
    assert decoder.form == "one buffer"
    first = generate(decoder, [[3, 4, 5]], Settings(max_new_tokens=9))
    assert first.sequences[0].tolist() == _continued([3, 4, 5], 9, True)
    # A prompt that goes on where the cache ends keeps it; one that turns off before is read anew.
    for prompt in (first.sequences[0].tolist(), [3, 4, 6, 7]):
        again = generate(decoder, [prompt], Settings(max_new_tokens=4), cache=first.cache)
        assert again.sequences[0].tolist() == _continued(prompt, 4, True)
