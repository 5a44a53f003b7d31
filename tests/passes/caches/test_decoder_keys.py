"""The other keys of decoders: one branch of a merged one, the last logits; what is declined, engines, memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.explaining.explanation import explain
from tests.api.engine_models import is_stored, keeps_every_engine, wait
from tests.passes.caches.decoders import decoder, expected
from tests.passes.caches.test_caches_in_place import CAPACITY, Decoder, in_chunks, session, text

MERGED = """<ir_version: 10, opset_import: ["": 17]>
merged (float[batch, new, 4] inputs_embeds, float[batch, 2, past, 4] past_key, bool[1] use_cache_branch)
    => (float[batch, n, 4] logits, float[batch, 2, whole, 4] present_key)
{
    logits, present_key = If (use_cache_branch) <
        then_branch = with_past () => (float[b, n, 4] first, float[b, h, w, 4] kept) {
            first = Add (inputs_embeds, inputs_embeds)
            wide = Unsqueeze (inputs_embeds, axis)
            both = Concat <axis = 1> (wide, wide)
            kept = Concat <axis = 2> (past_key, both)
        },
        else_branch = without () => (float[b, n, 4] other, float[b, h, w, 4] made) {
            other = Neg (inputs_embeds)
            wide_2 = Unsqueeze (inputs_embeds, axis)
            made = Concat <axis = 1> (wide_2, wide_2)
        }
    >
}"""


def merged() -> onnx.ModelProto:
    model = onnx.parser.parse_model(MERGED)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axis"))
    return model


def plain(model: onnx.ModelProto, **entries: str) -> ort.InferenceSession:
    return session(model, caches_in_place="0", **entries)


def test_one_branch_of_a_merged_decoder_is_taken() -> None:
    rows = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    with_past = plain(merged(), use_cache_branch="1")
    assert [item.name for item in with_past.get_inputs()] == ["inputs_embeds", "past_key"]
    past = np.ones((2, 2, 5, 4), np.float32)
    logits, present = with_past.run(None, {"inputs_embeds": rows, "past_key": past})
    np.testing.assert_array_equal(logits, 2 * rows)
    np.testing.assert_array_equal(present, np.concatenate([past, np.stack([rows, rows], 1)], 2))
    without = plain(merged(), use_cache_branch="0")
    assert [item.name for item in without.get_inputs()] == ["inputs_embeds"]
    logits, present = without.run(None, {"inputs_embeds": rows})
    np.testing.assert_array_equal(logits, -rows)
    np.testing.assert_array_equal(present, np.stack([rows, rows], 1))


def test_the_branch_with_a_past_writes_in_place() -> None:
    made = session(merged(), use_cache_branch="1")
    assert [item.name for item in made.get_inputs()] == ["inputs_embeds", "past_key", "past_length"]
    cache, row = np.zeros((1, 2, 4, 4), np.float32), np.full((1, 1, 4), 3, np.float32)
    found = made.run(["present_key"], {"inputs_embeds": row, "past_key": cache, "past_length": np.array(2)})[0]
    wanted = cache.copy()
    wanted[:, :, 2] = 3
    np.testing.assert_array_equal(found, wanted)


def declined(made: ort.InferenceSession, rewrite: str) -> str:
    """Why a rewrite was not done, as `explain` shows it."""
    (report,) = [one for one in explain(made, binds=False).declined if one.rule == rewrite]
    return " ".join((*report.nodes, report.reason))


def test_a_branch_of_a_model_with_none_says_so() -> None:
    made = plain(decoder("parts"), use_cache_branch="1")
    assert "no If of the model is decided by an input use_cache_branch" in declined(made, "use_cache_branch")


@pytest.mark.parametrize("form", ["parts", "rows"])
@pytest.mark.parametrize("in_place", ["0", "1"])
def test_the_last_logits_are_those_of_all(form: str, in_place: str) -> None:
    embedded, mask = text()
    made = session(decoder(form), caches_in_place=in_place, last_logits="1")
    wanted = expected(form, embedded, mask)
    assert made.get_outputs()[0].shape[1] == 1
    if in_place == "1":
        found = in_chunks(Decoder(made, form), embedded, mask, (6, 4, 1, 2))
        wanted = wanted[:, [5, 9, 10, 12]]
    else:
        feeds = {
            item.name: np.zeros((2, item.shape[1], 0, item.shape[3]), kind(item)) for item in made.get_inputs()[2:]
        }
        feeds |= {"inputs_embeds": embedded.astype(kind(made.get_inputs()[0])), "attention_mask": mask}
        found, wanted = made.run(["logits"], feeds)[0], wanted[:, -1:]
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("form", ["parts", "rows", "parts of float16"])
@pytest.mark.parametrize("last", ["0", "1"])
@pytest.mark.parametrize("in_place", ["0", "1"])
def test_greedy_tokens_are_the_places_of_the_largest_logits(form: str, last: str, in_place: str) -> None:
    embedded, mask = text()
    made = session(decoder(form), caches_in_place=in_place, last_logits=last, greedy_tokens="1")
    outputs = made.get_outputs()
    assert (outputs[-1].name, outputs[-1].type) == ("greedy_tokens", "tensor(int64)")
    assert outputs[-1].shape == outputs[0].shape[:2]
    assert ("past_length" in [item.name for item in made.get_inputs()]) == (in_place == "1")
    length = 16 if in_place == "1" else 0
    feeds = {
        item.name: np.zeros((2, item.shape[1], length, item.shape[3]), kind(item))
        for item in made.get_inputs()
        if item.name.startswith("past_key_values")
    }
    feeds |= {"inputs_embeds": embedded.astype(kind(made.get_inputs()[0])), "attention_mask": mask}
    if in_place == "1":
        feeds |= {"past_length": np.array(0), "attention_mask": np.pad(mask, ((0, 0), (0, 16 - mask.shape[1])))}
    logits, tokens = made.run(["logits", "greedy_tokens"], feeds)
    assert logits.shape[1] == (1 if last == "1" else embedded.shape[1])
    np.testing.assert_array_equal(tokens, logits.argmax(axis=2))


def test_the_greedy_token_is_the_first_of_equal_ones_and_the_first_nan() -> None:
    made = plain(
        onnx.parser.parse_model(
            """<ir_version: 10, opset_import: ["" : 20]>
            same (float[batch, n, 70] x) => (float[batch, n, 70] logits) { logits = Neg (x) }"""
        ),
        greedy_tokens="1",
    )
    x = np.zeros((2, 3, 70), np.float32)
    x[0, 1, [40, 41, 69]] = -2
    x[0, 2] = np.inf
    x[1, 0, [50, 33]] = np.nan
    x[1, 0, 7] = -np.inf
    x[1, 1, 69] = -1
    _, tokens = made.run(None, {"x": x})
    np.testing.assert_array_equal(tokens, [[0, 40, 0], [33, 69, 0]])


def test_models_without_logits_have_no_greedy_tokens() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
        other (float[batch, n, 4] x) => (float[batch, n, 4] {name}) {{ {name} = Neg (x) }}"""
    made = plain(onnx.parser.parse_model(text.format(name="y")), greedy_tokens="1")
    assert [item.name for item in made.get_outputs()] == ["y"]
    assert "no output logits of three dimensions" in declined(made, "GreedyTokens")
    taken = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        taken (float[batch, n, 4] x) => (float[batch, n, 4] logits, float[batch, n, 4] greedy_tokens)
        { logits = Neg (x) greedy_tokens = Abs (x) }"""
    )
    made = plain(taken, greedy_tokens="1")
    assert [item.name for item in made.get_outputs()] == ["logits", "greedy_tokens"]
    assert "a value greedy_tokens of its own" in declined(made, "GreedyTokens")


def kind(item: Any) -> Any:
    return {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}[item.type]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("grown = Identity (columns)", "output grown grows with the caches"),
        ("grown = ReduceSum <keepdims = 0> (attention_mask, axis_1)", r"ReduceSum \(grown\) is not known to work"),
        ("grown = Unsqueeze (past, axis_0)", "output grown grows with the caches"),
        ("grown = Size (present_0_key)", r"Size \(grown\) is not known to work"),
        ("reversed = ReverseSequence (bias_2, zeros)\n grown = Cast <to = 7> (reversed)", "ReverseSequence"),
    ],
)
def test_what_cannot_be_proved_is_declined_with_the_name_of_the_node(nodes: str, reason: str) -> None:
    model = decoder("parts", extra=nodes.replace("bias_2", "attention_mask").replace("zeros", "lengths"))
    if "lengths" in nodes or "zeros" in nodes:
        model.graph.input.append(onnx.helper.make_tensor_value_info("lengths", onnx.TensorProto.INT64, ["batch"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("grown", onnx.TensorProto.INT64, None))
    made = session(model)
    assert "past_length" not in [item.name for item in made.get_inputs()]
    assert re.search(reason, declined(made, "CachesInPlace"))


def test_engines_keep_caches_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_every_engine(tmp_path / "cache", monkeypatch)
    onnx.save(decoder("parts"), tmp_path / "decoder.onnx")
    options = ort.SessionOptions()
    options.add_session_config_entry("sardonyx.caches_in_place", "1")
    embedded, mask = text(padding=0)
    found = []
    for number in range(2):
        made = ort.InferenceSession(str(tmp_path / "decoder.onnx"), options, providers=["CPUExecutionProvider"])
        assert is_stored(made) == (number == 1)
        assert made.get_inputs()[-1].name == "past_length"
        found.append(in_chunks(Decoder(made, "parts"), embedded, mask, (5, 1, 7)))
        wait()
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], expected("parts", embedded, mask), rtol=2e-5, atol=2e-5)


def test_a_step_needs_no_room_for_a_second_cache() -> None:
    capacity = 1 << 16
    made = session(decoder("heads", positions="gathered"))
    runner = Decoder(made, "heads", batch=1, capacity=capacity)
    embedded, mask = text(batch=1, padding=0)
    in_chunks(runner, embedded, mask, (1,) * CAPACITY)
    one = next(iter(runner.caches.values())).nbytes
    report = made.memory_report()
    assert sum(execution_context.arena for execution_context in report.execution_contexts) + report.results.used < one


def test_another_value_of_the_branch_is_an_error() -> None:
    with pytest.raises(errors.OnnxRuntimeError, match="use_cache_branch"):
        plain(merged(), use_cache_branch="2")


def test_the_last_logits_are_one_row_whatever_is_known_of_their_number() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        chosen (float[batch, n, 4] x, bool[n] kept) => (float[batch, m, 4] logits)
        { some = Compress <axis = 1> (x, kept) logits = Neg (some) }"""
    )
    options = ort.SessionOptions()
    options.add_session_config_entry("sardonyx.last_logits", "1")
    made = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert made.get_outputs()[0].shape == ["batch", 1, 4]
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    (logits,) = made.run(None, {"x": x, "kept": np.array([True, True, False])})
    np.testing.assert_array_equal(logits, -x[:, 1:2])
