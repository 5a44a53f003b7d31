"""Decoders whose mask says how much of one buffer is filled, as GroupQueryAttention works, and states of fixed size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx import errors
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


def _reference(tokens: list[int], with_state: bool, tables: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
    """Logits behind a text in float64: rotated keys and queries, groups of heads, a causal mask."""
    weights = {name: value.astype(np.float64) for name, value in (_weights() | dict(tables or {})).items()}
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


# Models as the builder of onnxruntime-genai writes them


def _long_rope(limit: int) -> onnx.ModelProto:
    """The model with other tables of rotary embeddings for texts of more than `limit` tokens."""
    model = _model(False)
    graph = model.graph
    tables = {one.name: numpy_helper.to_array(one) for one in graph.initializer if one.name in ("cos", "sin")}
    for one in [one for one in graph.initializer if one.name in tables]:
        graph.initializer.remove(one)
    branches = {}
    for branch, turned in (("then_branch", _LONG), ("else_branch", 1)):
        names = [f"{branch}_{name}" for name in tables]
        angles = np.arctan2(tables["sin"], tables["cos"]) if turned == 1 else _angles() * turned
        values = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
        nodes = [
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value, name))
            for name, value in zip(names, values, strict=True)
        ]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [128, SIZE // 2]) for name in names]
        branches[branch] = helper.make_graph(nodes, branch, [], outputs)
    graph.initializer.append(numpy_helper.from_array(np.array(limit), "limit"))
    place = next(place for place, node in enumerate(graph.node) if node.op_type == "GroupQueryAttention")
    graph.node.insert(place, helper.make_node("If", ["is_long"], ["cos", "sin"], **branches))
    graph.node.insert(place, helper.make_node("Greater", ["total64", "limit"], ["is_long"]))
    onnx.checker.check_model(model)
    return model


_LONG = 0.25


def _angles() -> np.ndarray:
    return np.arange(128)[:, None] / 100.0 ** (np.arange(SIZE // 2) / (SIZE // 2))


def _long_reference(tokens: list[int], limit: int) -> np.ndarray:
    angles = _angles() * (_LONG if len(tokens) > limit else 1)
    return _reference(tokens, False, {"cos": np.cos(angles), "sin": np.sin(angles)})


@pytest.mark.parametrize("prompt", [3, 15, 16, 17, 40])
@pytest.mark.parametrize("chunk", [8, 512])
def test_a_longer_text_has_other_tables_of_rotary_embeddings(
    prompt: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables are those of the text's length, however much room the buffer has; keys before are made anew."""
    decoder = Decoder.of(InferenceSession(_long_rope(16).SerializeToString()))
    monkeypatch.setattr(decoder, "_chunk", lambda rows: chunk)
    tokens = np.random.default_rng(5).integers(0, WORDS, prompt).tolist()
    found = generate(decoder, [tokens], Settings(max_new_tokens=20))
    wanted = list(tokens)
    for _ in range(20):
        wanted.append(int(_long_reference(wanted, 16).argmax()))
    assert found.sequences[0].tolist() == wanted
    # A shorter text that goes on from a cache of long ones is read anew.
    again = generate(decoder, [wanted[:12]], Settings(max_new_tokens=3), cache=found.cache)
    short = wanted[:12]
    for _ in range(3):
        short.append(int(_long_reference(short, 16).argmax()))
    assert again.sequences[0].tolist() == short


def test_a_cache_that_forgets_has_room_for_its_window() -> None:
    model = _model(False)
    node = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    node.attribute.extend(
        [helper.make_attribute("local_window_size", 100), helper.make_attribute("sliding_window_cache", 1)]
    )
    decoder = Decoder.of(InferenceSession(model.SerializeToString()))
    found = generate(decoder, [[3, 4, 5]], Settings(max_new_tokens=70)).sequences[0].tolist()
    assert found == _continued([3, 4, 5], 70, False)


def test_states_of_fixed_size_beside_padding() -> None:
    ids = np.array([[0, 0, 0, 5, 6], [7, 8, 9, 10, 11]])
    mask = np.array([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]])
    found = generate(grouped(True), ids, Settings(max_new_tokens=8), attention_mask=mask).sequences
    for row in range(2):
        wanted = _continued(ids[row][mask[row] > 0].tolist(), 8, True)
        assert found[row][5 - mask[row].sum() :].tolist() == wanted


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as the builder writes it: the model, and one file that says what it is."""
    onnx.save(_model(False), tmp_path / "model.onnx")
    said = {
        "model": {
            "type": "llama",
            "vocab_size": WORDS,
            "context_length": 128,
            "eos_token_id": 30,
            "pad_token_id": 0,
            "decoder": {
                "filename": "model.onnx",
                "head_size": SIZE,
                "hidden_size": WIDTH,
                "num_attention_heads": HEADS,
                "num_key_value_heads": GROUPS,
                "num_hidden_layers": 1,
            },
        },
        "search": {"max_length": 17, "do_sample": False, "early_stopping": True, "repetition_penalty": 1.5},
    }
    (tmp_path / "genai_config.json").write_text(json.dumps(said))
    return tmp_path


def test_a_call_of_the_model_leaves_padding_out(folder: Path) -> None:
    from sardonyx.models import ORTModelForCausalLM

    model = ORTModelForCausalLM.from_pretrained(folder)
    ids = np.array([[0, 0, 0, 5, 6], [7, 8, 9, 10, 11], [1, 2, 3, 0, 0]])
    mask = np.array([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    first = model(ids, attention_mask=mask)
    texts = [row[shown > 0].tolist() for row, shown in zip(ids, mask, strict=True)]
    for row, text in enumerate(texts):
        for count, place in enumerate(np.flatnonzero(mask[row])):
            expected = _reference(text[: count + 1], False)
            np.testing.assert_allclose(first.logits[row, place], expected, rtol=1e-4, atol=1e-4)
        assert not first.logits[row, mask[row] == 0].any()
    # Two further tokens, of which the last row has one.
    more, shown = np.array([[12, 13], [14, 15], [16, 17]]), np.array([[1, 1], [1, 1], [1, 0]])
    second = model(more, attention_mask=np.concatenate([mask, shown], axis=1), past_key_values=first.past_key_values)
    third = model(
        more[:, :1],
        attention_mask=np.concatenate([mask, shown, np.ones((3, 1), np.int64)], axis=1),
        past_key_values=second.past_key_values,
    )
    for row, text in enumerate(texts):
        text += more[row, shown[row] > 0].tolist()
        last = shown[row].sum() - 1
        np.testing.assert_allclose(second.logits[row, last], _reference(text, False), rtol=1e-4, atol=1e-4)
        expected = _reference([*text, int(more[row, 0])], False)
        np.testing.assert_allclose(third.logits[row, 0], expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(errors.InvalidArgument, match="attention_mask is 0"):
        model(ids[:1, :2], attention_mask=np.zeros((1, 2), np.int64))


def test_generation_follows_the_search_of_the_folder(folder: Path) -> None:
    from sardonyx.models import ORTModelForCausalLM

    model = ORTModelForCausalLM.from_pretrained(folder)
    assert model.generation_config.eos_token_id == 30
    found = model.generate(np.array([[3, 4, 5]]), eos_token_id=[])
    assert found.shape == (1, 17)
    settings = Settings(max_length=17, repetition_penalty=1.5)
    np.testing.assert_array_equal(found, generate(grouped(), [[3, 4, 5]], settings).sequences)
    said = json.loads((folder / "genai_config.json").read_text())
    for search, message in (({"repetition_penalty": "much"}, "repetition_penalty"), ([], "search in")):
        (folder / "genai_config.json").write_text(json.dumps({**said, "search": search}))
        with pytest.raises(errors.Fail, match=f"{message}.*genai_config|genai_config.*{message}"):
            ORTModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("prompt", [15, 16, 17])
@pytest.mark.parametrize("rows", [1, 2])
def test_transformers_reads_a_longer_text_again(folder: Path, prompt: int, rows: int) -> None:
    """What our loop does not know goes through transformers, which has to make keys of other tables anew as well."""
    torch = pytest.importorskip("torch", reason="the extra `models` is not installed")
    from sardonyx.models import ORTModelForCausalLM

    onnx.save(_long_rope(16), folder / "model.onnx")
    model = ORTModelForCausalLM.from_pretrained(folder)
    texts = np.random.default_rng(6).integers(1, 30, (rows, prompt))
    settings: dict[str, Any] = {"max_new_tokens": 8, "eos_token_id": [], "repetition_penalty": 1.0}
    words = list(range(WORDS))
    found = model.generate(torch.from_numpy(texts), prefix_allowed_tokens_fn=lambda row, ids: words, **settings)
    for row, tokens in enumerate(texts.tolist()):
        for _ in range(8):
            tokens.append(int(_long_reference(tokens, 16).argmax()))
        assert found[row].tolist() == tokens
