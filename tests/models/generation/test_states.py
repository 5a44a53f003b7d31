"""Decoders of states alone, as state-space models are exported: their mask is of the tokens of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from sardonyx import errors
from sardonyx.api.session import InferenceSession
from sardonyx.models.generation.decoder import Decoder
from sardonyx.models.generation.loop import generate
from sardonyx.models.generation.settings import Settings

SIZE = 5

# The state is the sum of the embeddings so far, without those that the mask hides; the logits are the sums on the way.
MODEL = f"""
<ir_version: 10, opset_import: ["" : 20]>
sums (int64[batch, n] input_ids, int64[batch, n] attention_mask, float[batch, 1, {SIZE}] past_ssm)
    => (float[batch, n, {SIZE}] logits, float[batch, 1, {SIZE}] present_ssm)
{{
    one = Constant <value = int64 {{1}}> ()
    axes = Constant <value = int64[1] {{2}}> ()
    rows = Gather (table, input_ids)
    seen = Unsqueeze (attention_mask, axes)
    weights = Cast <to = 1> (seen)
    kept = Mul (rows, weights)
    sums = CumSum (kept, one)
    logits = Add (sums, past_ssm)
    last = Constant <value = int64[1] {{-1}}> ()
    present_ssm = Gather <axis = 1> (logits, last)
}}"""


def decoder(rows: np.ndarray | None = None) -> Decoder:
    model = onnx.parser.parse_model(MODEL)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table() if rows is None else rows, "table"))
    return Decoder.of(InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]), {})


def table() -> np.ndarray:
    return np.random.default_rng(0).integers(-4, 5, (SIZE, SIZE)).astype(np.float32)


def test_the_mask_is_of_the_tokens_of_a_step() -> None:
    made = decoder()
    cache = made.cache(2)
    ids = np.array([[3, 1, 4], [1, 2, 0]])
    np.testing.assert_array_equal(made.step(ids, cache), table()[ids].sum(1))
    for token in (2, 4, 0):
        ids = np.concatenate([ids, [[token], [token]]], 1)
        np.testing.assert_array_equal(made.step(ids[:, -1:], cache), table()[ids].sum(1))


def test_padding_is_left_out() -> None:
    made = decoder()
    cache = made.cache(2)
    ids, mask = np.array([[3, 1, 4], [0, 2, 1]]), np.array([[1, 1, 1], [0, 1, 1]])
    expected = (table()[ids] * mask[..., None]).sum(1)
    np.testing.assert_array_equal(made.step(ids, cache, attention_mask=mask), expected)
    np.testing.assert_array_equal(made.step(np.array([[2], [2]]), cache), expected + table()[2])


@pytest.mark.parametrize("settings", [{}, {"num_beams": 2}, {"do_sample": True}], ids=str)
def test_a_model_that_gives_no_numbers_is_told(settings: dict[str, Any]) -> None:
    rows = table()
    rows[2, 3] = np.nan
    made = decoder(rows)
    with pytest.raises(errors.Fail, match="No token can be"):
        generate(made, np.array([[1, 2]]), Settings.of(max_new_tokens=3, **settings))
    found = generate(made, np.array([[1]]), Settings.of(max_new_tokens=1))
    assert found.sequences.tolist() == [[1, int(table()[1].argmax())]]
