"""BeamSearch with small models against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.ops.microsoft.beam_scorer import highest
from tests.ops.microsoft import peer
from tests.ops.microsoft.generation_graphs import Layer
from tests.ops.microsoft.test_generation import EOS, MASKED, PAD, VOCABULARY, decoder, i32

DECODER = decoder()
PROMPTS = np.array([[PAD, 3, 4], [1, 2, 5], [2, 6, 1], [7, 7, 8]], np.int32)
GPT = {"eos_token_id": EOS, "pad_token_id": PAD, "model_type": 0}


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def both(given: list[Any], attributes: dict[str, Any], op_type: str = "BeamSearch") -> tuple[list[Any], list[Any]]:
    """Outputs of a batch, and those of onnxruntime for its entries one by one.

    onnxruntime decides whether the second entry of a batch and those after it are done from scores of their
    neighbours, so that a batch has other results there than its entries alone.
    """
    model = peer.one_node(op_type, given, [6, 1, 1], attributes)
    feeds = peer.feeds(model, given)
    expected = [
        peer.onnxruntime(
            model, {name: array[[entry]] if len(array) == len(given[0]) else array for name, array in feeds.items()}
        )
        for entry in range(len(given[0]))
    ]
    return peer.sardonyx(model, feeds), [
        np.concatenate(parts, axis=axis) for parts, axis in zip(zip(*expected, strict=True), (0, 0, 1), strict=True)
    ]


def check(found: list[Any], expected: list[Any], prompt: int, pad: int = PAD) -> None:
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5)
    assert found[2].shape == expected[2].shape
    for entry in range(found[0].shape[0]):
        # Scores after the end of an entry are those of pad tokens here, and unset in onnxruntime.
        steps = max(1, int((found[0][entry] != pad).sum(axis=1).min()) - prompt)
        np.testing.assert_allclose(found[2][:steps, entry], expected[2][:steps, entry], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("beams", "returned", "length_penalty", "optional", "attributes"),
    [
        (4, 2, 1.0, [], {}),
        (3, 3, 0.3, [], {}),
        (2, 1, 2.0, [f32(1.4)], {"no_repeat_ngram_size": 2}),
        (3, 2, 1.0, [], {"early_stopping": 1}),
        (1, 1, 1.0, [], {}),
        (3, 2, -0.5, [], {}),
        (3, 1, 1.0, [None, MASKED], {}),
        (3, 1, 1.0, [None, None, np.stack([MASKED, 1 - MASKED, MASKED, MASKED])], {}),
        (2, 2, 1.0, [None, None, None, i32(0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0).reshape(4, 3)], {}),
    ],
)
@pytest.mark.parametrize("shortest", [0, 8])
def test_beams_of_a_decoder(
    beams: int, returned: int, length_penalty: float, optional: list[Any], attributes: dict[str, Any], shortest: int
) -> None:
    given = [PROMPTS, i32(12), i32(shortest), i32(beams), i32(returned), f32(length_penalty), *optional]
    found, expected = both(given, {**GPT, "decoder": DECODER, **attributes})
    assert found[0].shape == (len(PROMPTS), returned, 12)
    check(found, expected, PROMPTS.shape[1])


@pytest.mark.parametrize(
    ("with_decoder", "hidden", "whole"),
    [(True, True, False), (True, False, True), (True, False, False), (False, False, False), (False, False, True)],
)
@pytest.mark.parametrize("attributes", [{}, {"early_stopping": 1, "no_repeat_ngram_size": 2}])
@pytest.mark.parametrize("mask", [None, np.array([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1]], np.int32)])
def test_beams_of_an_encoder_and_a_decoder(
    with_decoder: bool, hidden: bool, whole: bool, attributes: dict[str, Any], mask: np.ndarray | None
) -> None:
    layer = Layer(3, VOCABULARY)
    models = {"encoder": layer.encoder(with_decoder=with_decoder), "decoder": layer.decoder(hidden=hidden, whole=whole)}
    sources = np.array([[PAD, 3, 4, 7, PAD], [1, 2, PAD, 6, 1]], np.int32)
    given = [sources, i32(12), i32(0), i32(3), i32(2), f32(0.8), None, None, None, mask]
    found, expected = both(given, {**GPT, **models, "model_type": 1, "decoder_start_token_id": 2, **attributes})
    assert (found[0][:, :, 0] == 2).all()
    check(found, expected, 1)


def test_an_initial_decoder_makes_the_first_run() -> None:
    other = decoder()
    scalars = [i32(4), i32(0), i32(2), i32(1), f32(1)]
    attributes = {**GPT, "decoder": DECODER, "init_decoder": other}
    (found,) = peer.run("BeamSearch", [PROMPTS, *scalars], [6], attributes)
    (expected,) = peer.run("BeamSearch", [PROMPTS, *scalars], [6], {**GPT, "decoder": other})
    np.testing.assert_array_equal(found, expected)
    longer = [PROMPTS, i32(7), *scalars[1:]]
    assert (
        peer.run("BeamSearch", longer, [6], attributes)[0]
        != peer.run("BeamSearch", longer, [6], {**GPT, "decoder": other})[0]
    ).any()


def test_scores_of_a_finished_search_are_zero() -> None:
    ends = {**GPT, "decoder": DECODER}
    allowed = np.zeros(VOCABULARY, np.int32)
    allowed[EOS] = 1
    given = [PROMPTS, i32(9), i32(0), i32(1), i32(1), f32(1), None, allowed]
    sequences, _, scores = peer.run("BeamSearch", given, [6, 1, 1], ends)
    np.testing.assert_array_equal(sequences[:, 0, :3], PROMPTS)
    assert (sequences[:, 0, 3:] == PAD).all()
    assert scores.shape == (6, 4, 1, VOCABULARY)
    assert scores[0].any()
    assert not scores[1:].any()


@pytest.mark.parametrize(
    ("returned", "attributes", "message"),
    [
        (3, {}, "'num_return_sequences' 3 must lie between 1 and 'num_beams' 2"),
        (1, {"model_type": 1}, "'decoder_start_token_id'"),
        (1, {"model_type": 1, "decoder_start_token_id": 2}, "needs attribute 'encoder'"),
        (1, {"model_type": 3}, "no model_type 3"),
    ],
)
def test_wrong_requests_are_refused(returned: int, attributes: dict[str, Any], message: str) -> None:
    given = [PROMPTS, i32(9), i32(0), i32(2), i32(returned), f32(1)]
    with pytest.raises(Exception, match=message):
        peer.run("BeamSearch", given, [6], {**GPT, "decoder": DECODER, **attributes})


def test_the_first_of_equal_scores_is_the_highest() -> None:
    generator = np.random.default_rng(6)
    for count in (1, 4, 30):
        scores = generator.integers(0, 5, 30).astype(np.float32)
        np.testing.assert_array_equal(highest(scores, count), np.argsort(-scores, kind="stable")[:count])


def test_a_decoder_reads_tables_of_the_outer_graph() -> None:
    given = [PROMPTS[:1], i32(10), i32(0), i32(2), i32(1), f32(1)]
    model = peer.one_node("BeamSearch", given, [6, 1], {**GPT, "decoder": DECODER})
    expected = peer.sardonyx(model, peer.feeds(model, given))
    body = next(attribute.g for attribute in model.graph.node[0].attribute if attribute.name == "decoder")
    model.graph.initializer.extend(body.initializer)
    del body.initializer[:]
    found = peer.sardonyx(model, peer.feeds(model, given))
    peer.check(found, expected, 0, 0)
    peer.check(found, peer.onnxruntime(model, peer.feeds(model, given)), 1e-4, 1e-5)
