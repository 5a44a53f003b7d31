"""CausalConvWithState and LinearAttention at every level against float64, of no tokens, too, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.ops.levels import assert_refused, assert_results
from tests.ops.one_node import model_of

RNG = np.random.default_rng(13)
DOMAINS = ["", "com.microsoft"]
Given = dict[str, np.ndarray]


def normal(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / 2).astype(np.float32)


def node_model(
    operator: str, domain: str, names: list[str], given: Given, symbols: dict[str, list[Any]], **attributes: Any
) -> onnx.ModelProto:
    """A node whose inputs are those of `names` that are given; what is given and has no symbols is constant."""
    while names[-1] not in given:
        names = names[:-1]
    node = helper.make_node(
        operator, [name if name in given else "" for name in names], ["y", "state"], domain=domain, **attributes
    )
    feeds = {name: array for name, array in given.items() if name in symbols}
    constants = {name: array for name, array in given.items() if name not in symbols}
    domains = {domain: 1} if domain else {}
    return model_of([node], feeds, ["y", "state"], opset=27, shapes=symbols, constants=constants, domains=domains)


def convolved(given: Given, activation: str) -> list[np.ndarray]:
    x, weight = given["x"].astype(np.float64), given["w"][:, 0].astype(np.float64)
    taps = weight.shape[1]
    past = given.get("past", np.zeros((*x.shape[:2], taps - 1)))
    whole = np.concatenate([past, x], 2)
    y = np.zeros_like(x)
    for place in range(x.shape[2]):
        y[:, :, place] = (whole[:, :, place : place + taps] * weight).sum(2) + given.get("bias", np.zeros(()))
    y = y / (1 + np.exp(-y)) if activation == "silu" else y
    return [y.astype(np.float32), whole[:, :, whole.shape[2] - taps + 1 :].astype(np.float32)]


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("optional", [[], ["bias"], ["past"], ["bias", "past"]])
@pytest.mark.parametrize("lengths", [["l"], [0], [1], [4]])
def test_a_convolution_goes_on_where_it_stopped(
    domain: str, activation: str, optional: list[str], lengths: list[Any]
) -> None:
    weights: Given = {"w": normal(3, 1, 4)} | ({"bias": normal(3)} if "bias" in optional else {})
    feeds, wanted = [], []
    for length in (4, 0, 1, 0, 7) if lengths == ["l"] else lengths:
        feed = {"x": normal(2, 3, length)} | ({"past": normal(2, 3, 3)} if "past" in optional else {})
        feeds.append(feed)
        wanted.append(convolved(weights | feed, activation))
    symbols = {"x": ["b", 3, *lengths]} | ({"past": ["b", 3, 3]} if "past" in optional else {})
    names = ["x", "w", "bias", "past"]
    given = weights | feeds[0]
    model = node_model("CausalConvWithState", domain, names, given, symbols, activation=activation)
    assert_results(model, feeds, wanted)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_convolution_of_one_tap_and_weights_that_are_given(domain: str) -> None:
    for taps in (1, 3):
        feeds = [{"x": normal(2, 3, n), "w": normal(3, 1, taps)} for n in (2, 0, 5)]
        symbols: dict[str, list[Any]] = {"x": ["b", 3, "l"], "w": [3, 1, taps]}
        model = node_model("CausalConvWithState", domain, ["x", "w"], feeds[0], symbols)
        assert_results(model, feeds, [convolved(feed, "none") for feed in feeds])


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(
    ("changes", "attributes"),
    [
        ({"w": (1, 1, 4)}, {}),
        ({"w": (3, 2, 4)}, {}),
        ({"bias": (1,)}, {}),
        ({"past": (1, 3, 3)}, {}),
        ({"past": (2, 3, 2)}, {}),
        ({}, {"activation": "relu"}),
    ],
)
@pytest.mark.parametrize("declared", [False, True])
def test_a_convolution_broadcasts_nothing(
    domain: str, changes: dict[str, tuple[int, ...]], attributes: dict[str, str], declared: bool
) -> None:
    shapes = {"x": (2, 3, 5), "w": (3, 1, 4), "bias": (3,), "past": (2, 3, 3)} | changes
    given = {name: normal(*shape) for name, shape in shapes.items()}
    symbols = {
        name: list(shape) if declared else [f"{name}{axis}" for axis in range(len(shape))]
        for name, shape in shapes.items()
    }
    place = {"w": "weight", "bias": "bias", "past": "past_state"}.get(next(iter(changes), ""), "")
    model = node_model("CausalConvWithState", domain, ["x", "w", "bias", "past"], given, symbols, **attributes)
    assert_refused(model, given, f"input '{place}'" if changes else "must be silu, swish or none")


HEADS, DEPTH, WIDTH = 2, 3, 4


def attended(given: Given, rule: str, asked: int) -> list[np.ndarray]:
    query, key, value = (given[name].astype(np.float64) for name in ("q", "k", "v"))
    batch, tokens = query.shape[:2]
    query = query.reshape(batch, tokens, asked, DEPTH)
    key, value = key.reshape(batch, tokens, HEADS, DEPTH), value.reshape(batch, tokens, HEADS, WIDTH)
    state = given.get("past", np.zeros((batch, HEADS, DEPTH, WIDTH))).astype(np.float64)
    y = np.zeros((batch, tokens, asked, WIDTH))
    for token in range(tokens):
        if "decay" in given:
            decay = given["decay"][:, token].astype(np.float64)
            state = np.exp(decay.reshape(batch, HEADS, decay.shape[1] // HEADS, 1)) * state
        new = value[:, token]
        if "beta" in given:
            held = np.einsum("bhdw,bhd->bhw", state, key[:, token])
            new = given["beta"][:, token].astype(np.float64)[:, :, None] * (new - held)
        state = state + key[:, token][..., None] * new[:, :, None]
        y[:, token] = np.einsum("bhd,bhdw->bhw", query[:, token], np.repeat(state, asked // HEADS, 1))
    y = y.reshape(batch, tokens, asked * WIDTH) / np.sqrt(DEPTH)
    return [y.astype(np.float32), state.astype(np.float32)]


def recurrence(tokens: int, rule: str, asked: int, decays: int, betas: int, has_past: bool) -> Given:
    given = {
        "q": normal(2, tokens, asked * DEPTH),
        "k": normal(2, tokens, HEADS * DEPTH),
        "v": normal(2, tokens, HEADS * WIDTH),
    }
    given |= {"past": normal(2, HEADS, DEPTH, WIDTH)} if has_past else {}
    given |= {"decay": -np.abs(normal(2, tokens, HEADS * decays))} if rule.startswith("gated") else {}
    return given | ({"beta": np.abs(normal(2, tokens, betas))} if rule.endswith("delta") else {})


def attention_model(domain: str, given: Given, rule: str, asked: int) -> onnx.ModelProto:
    symbols: dict[str, list[Any]] = {
        name: ["b", *array.shape[1:]] if name == "past" else ["b", "t", array.shape[2]] for name, array in given.items()
    }
    names = ["q", "k", "v", "past", "decay", "beta"]
    attributes = {"q_num_heads": asked, "kv_num_heads": HEADS, "update_rule": rule}
    return node_model("LinearAttention", domain, names, given, symbols, **attributes)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize(("asked", "decays", "betas"), [(2, 1, 2), (4, 3, 1)])
@pytest.mark.parametrize("has_past", [False, True])
def test_a_recurrence_goes_on_where_it_stopped(
    domain: str, rule: str, asked: int, decays: int, betas: int, has_past: bool
) -> None:
    feeds = [recurrence(tokens, rule, asked, decays, betas, has_past) for tokens in (0, 4, 0, 1, 5)]
    wanted = [attended(feed, rule, asked) for feed in feeds]
    assert_results(attention_model(domain, feeds[0], rule, asked), feeds, wanted)


@pytest.mark.parametrize(
    ("rule", "without", "more", "asked", "words"),
    [
        ("gated", ["decay"], {}, 2, "needs the input 'decay'"),
        ("delta", ["beta"], {}, 2, "needs the input 'beta'"),
        ("linear", [], {"decay": (2, 3, 2)}, 2, "does not take the input 'decay'"),
        ("gated", [], {"beta": (2, 3, 2)}, 2, "does not take the input 'beta'"),
        ("other", [], {}, 2, "update_rule must be one of"),
        ("linear", [], {"q": (2, 3, 9)}, 3, "must be a positive multiple of kv_num_heads 2"),
        ("linear", [], {"k": (2, 3, 8)}, 2, "do not fit keys"),
        ("linear", [], {"v": (2, 3, 7)}, 2, "does not divide into 2 heads"),
    ],
)
def test_terms_that_go_unread_are_refused(
    rule: str, without: list[str], more: dict[str, tuple[int, ...]], asked: int, words: str
) -> None:
    given = recurrence(3, rule, 2, 1, 2, False) | {name: normal(*shape) for name, shape in more.items()}
    given = {name: array for name, array in given.items() if name not in without}
    assert_refused(attention_model("", given, rule, asked), given, words)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(
    "changes",
    [
        {"k": (2, 1, 6)},
        {"k": (1, 3, 6)},
        {"v": (1, 3, 8)},
        {"v": (2, 1, 8)},
        {"past": (1, HEADS, DEPTH, WIDTH)},
        {"past": (2, HEADS, 1, WIDTH)},
        {"decay": (2, 1, 2)},
        {"decay": (1, 3, 2)},
        {"beta": (2, 1, 2)},
        {"beta": (2, 3, 3)},
    ],
)
@pytest.mark.parametrize("declared", [False, True])
def test_a_recurrence_broadcasts_nothing(domain: str, changes: dict[str, tuple[int, ...]], declared: bool) -> None:
    given = recurrence(3, "gated_delta", 2, 1, 2, True) | {name: normal(*shape) for name, shape in changes.items()}
    symbols = {
        name: list(array.shape) if declared else [f"{name}{axis}" for axis in range(array.ndim)]
        for name, array in given.items()
    }
    names = ["q", "k", "v", "past", "decay", "beta"]
    attributes = {"q_num_heads": 2, "kv_num_heads": HEADS, "update_rule": "gated_delta"}
    model = node_model("LinearAttention", domain, names, given, symbols, **attributes)
    assert_refused(model, given, "")
