"""Caches of one capacity, written in place: the same logits as a whole text gives, in chunks of any sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx import errors
from tests.passes.caches.decoders import FORMS, LAYERS, SIZE, WIDTH, decoder, expected

Array = np.ndarray[Any, Any]

CAPACITY, BATCH, PADDING = 13, 2, 3
DTYPES: dict[str, Any] = {"float": np.float32, "double": np.float64, "float16": np.float16}


def session(model: onnx.ModelProto, **entries: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("sardonyx.caches_in_place", "1")
    for name, value in entries.items():
        options.add_session_config_entry(f"sardonyx.{name}", value)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Decoder:
    """A session with its caches, bound once."""

    def __init__(self, made: ort.InferenceSession, form: str, batch: int = BATCH, capacity: int = CAPACITY) -> None:
        kind, _, groups, _ = FORMS[form]
        self.session, self.dtype, self.capacity = made, DTYPES[kind], capacity
        # What lies beyond the filled positions is never read: it may be anything.
        self.caches = {
            f"past_key_values_{layer}_{name}": np.full((batch, groups, capacity, SIZE), np.nan, self.dtype)
            for layer in range(LAYERS)
            for name in ("key", "value")
        }
        self.mask = np.zeros((batch, capacity), np.int64)
        self.past = np.zeros((), np.int64)
        self.binding = made.io_binding()
        for name, array in (*self.caches.items(), ("attention_mask", self.mask), ("past_length", self.past)):
            self.binding.bind_cpu_input(name, array)
        for item in made.get_outputs():
            if item.name == "logits":
                self.binding.bind_output("logits")
            else:
                self._bind_output(item.name, self.caches[item.name.replace("present", "past_key_values")])

    def _bind_output(self, name: str, array: Array) -> None:
        self.binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def step(self, embedded: Array, mask: Array) -> Array:
        """The logits of new positions (batch, new, width)."""
        past, new = int(self.past), embedded.shape[1]
        self.mask[:, past : past + new] = mask
        given = np.ascontiguousarray(embedded, self.dtype)
        self.binding.bind_cpu_input("inputs_embeds", given)
        self.binding.bind_output("logits")
        self.session.run_with_iobinding(self.binding)
        self.past[...] = past + new
        logits: Array = self.binding.get_outputs()[0].numpy()
        return logits


def text(length: int = CAPACITY, batch: int = BATCH, padding: int = PADDING) -> tuple[Array, Array]:
    """Rows (batch, length, width) and their mask; the first row of the batch has padding on the left."""
    embedded = np.random.default_rng(0).standard_normal((batch, length, WIDTH)).astype(np.float32)
    mask = np.ones((batch, length), np.int64)
    mask[0, :padding] = 0
    return embedded, mask


def in_chunks(runner: Decoder, embedded: Array, mask: Array, chunks: tuple[int, ...]) -> Array:
    found, at = [], 0
    for count in chunks:
        found.append(runner.step(embedded[:, at : at + count], mask[:, at : at + count]))
        at += count
    return np.concatenate(found, axis=1)


CHUNKS = [(CAPACITY,), (1,) * CAPACITY, (6, 4, 1, 1, 1), (1, 9, 3)]


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_chunks_give_the_logits_of_the_whole_text(form: str, chunks: tuple[int, ...]) -> None:
    made = session(decoder(form))
    assert [item.name for item in made.get_inputs()][-1] == "past_length"
    embedded, mask = text()
    found = in_chunks(Decoder(made, form), embedded, mask, chunks)
    wanted = expected(form, embedded, mask)
    tolerance = {"double": 1e-12, "float": 2e-5, "float16": 2e-2}[FORMS[form][0]]
    real = mask != 0
    np.testing.assert_allclose(found[real], wanted[real], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("form", ["parts", "heads"])
def test_a_window_hides_what_is_far(form: str) -> None:
    embedded, mask = text(padding=0)
    made = session(decoder(form, has_window=True))
    found = in_chunks(Decoder(made, form), embedded, mask, (5, 1, 1, 6))
    np.testing.assert_allclose(found, expected(form, embedded, mask, has_window=True), rtol=2e-5, atol=2e-5)


def test_a_text_that_ends_may_be_taken_up_again_from_any_place() -> None:
    """What lies behind `past_length` is overwritten, whatever it was."""
    embedded, mask = text(padding=0)
    runner = Decoder(session(decoder("parts")), "parts")
    in_chunks(runner, embedded[:, ::-1], mask, (4, 4))
    runner.past[...] = 0
    runner.mask[...] = 0
    found = in_chunks(runner, embedded, mask, (6, 7))
    np.testing.assert_allclose(found, expected("parts", embedded, mask), rtol=2e-5, atol=2e-5)


def test_the_inputs_say_what_is_wanted() -> None:
    made = session(decoder("parts"))
    shapes = {item.name: (item.type, item.shape) for item in (*made.get_inputs(), *made.get_outputs())}
    assert shapes["past_length"] == ("tensor(int64)", [])
    assert shapes["attention_mask"] == ("tensor(int64)", ["batch", "cache_length"])
    for name in ("past_key_values_0_key", "present_1_value"):
        assert shapes[name] == ("tensor(float)", ["batch", 2, "cache_length", SIZE])
    assert shapes["logits"][1][:2] == ["batch", "new"]


def test_all_lengths_have_one_plan_and_no_host_step() -> None:
    runner = Decoder(session(decoder("parts")), "parts")
    embedded, mask = text(padding=0)
    given, logits = np.ascontiguousarray(embedded[:, :1]), np.zeros((BATCH, 1, 7), np.float32)
    runner.binding.bind_cpu_input("inputs_embeds", given)
    runner._bind_output("logits", logits)
    found = []
    for place in range(CAPACITY):
        given[...] = embedded[:, place : place + 1]
        runner.mask[:, place] = 1
        runner.past[...] = place
        runner.session.run_with_iobinding(runner.binding)
        found.append(logits.copy())
        assert runner.binding._iobinding._fast is not None
        if place > 0:  # the first run is the long way; the same native call serves all lengths then
            assert runner.binding._iobinding._fast.bound()
    np.testing.assert_allclose(np.concatenate(found, 1), expected("parts", embedded, mask), rtol=2e-5, atol=2e-5)


def test_a_plain_run_leaves_its_inputs_as_they_are() -> None:
    form = "parts"
    made, (embedded, mask) = session(decoder(form)), text(padding=0)
    caches = {name: np.zeros_like(array) for name, array in Decoder(made, form).caches.items()}
    feeds = {"inputs_embeds": embedded, "attention_mask": mask, "past_length": np.array(0), **caches}
    names = [item.name for item in made.get_outputs()]
    found = dict(zip(names, made.run(None, feeds), strict=True))
    np.testing.assert_allclose(found["logits"], expected(form, embedded, mask), rtol=2e-5, atol=2e-5)
    assert not any(array.any() for array in caches.values())
    assert found["present_0_key"].any()


@pytest.mark.parametrize("past", [CAPACITY, CAPACITY - 1, -1, 1 << 40])
def test_a_step_beyond_the_capacity_is_an_error(past: int) -> None:
    runner = Decoder(session(decoder("parts")), "parts")
    embedded, mask = text()
    runner.step(embedded[:, :2], mask[:, :2])
    before = {name: array.copy() for name, array in runner.caches.items()}
    runner.past[...] = past
    runner.binding.bind_cpu_input("inputs_embeds", embedded[:, :2].copy())
    with pytest.raises((errors.OnnxRuntimeError, RuntimeError), match=r"past_length|out of data bounds"):
        runner.session.run_with_iobinding(runner.binding)
    for name, array in runner.caches.items():
        np.testing.assert_array_equal(array, before[name])


def test_a_model_without_caches_stays_as_it_is() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Add (x, x) }'
    )
    made = session(model)
    assert [item.name for item in made.get_inputs()] == ["x"]
    np.testing.assert_array_equal(made.run(None, {"x": np.ones(3, np.float32)})[0], np.full(3, 2, np.float32))
