"""Calls that no model can serve: one typed error each, and the model is usable afterwards."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from sardonyx.models import ORTModelForCausalLM, ORTModelForSeq2SeqLM, ORTModelForSequenceClassification
from tests.models.tasks.conftest import Generators
from tests.models.tiny_models import Folders

PROMPT = np.array([[5, 6, 7]])


@pytest.fixture(scope="module")
def model(generators: Generators) -> Any:
    return generators("gpt2")


@pytest.fixture(scope="module")
def expected(model: Any) -> Any:
    return model.generate(PROMPT, max_new_tokens=5)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.zeros((1, 0), np.int64), "with one token or more"),
        (np.zeros((0, 3), np.int64), "with one token or more"),
        (np.array([5, 6]), r"shape \[2\]"),
        ([[5, 6], [7]], "Pad rows to one length"),
        ("hello", "whole numbers"),
        (np.full((1, 3), np.nan), "whole numbers"),
        (np.array([[None]]), "no array of numbers"),
        (np.ones((1, 500), np.int64), "the model has 128"),
        (np.array([[5, 999]]), "belongs to another model"),
        (np.array([[5, -1]]), "belongs to another model"),
        (np.array([[2**64 - 1]], np.uint64), "belongs to another model"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"num_beams": 2}, {"output_scores": True, "return_dict_in_generate": True}])
def test_prompts(model: Any, expected: Any, ids: Any, message: str, more: dict[str, Any]) -> None:
    """Whether our own loop has them or transformers'."""
    with pytest.raises(errors.InvalidArgument, match=message):
        model.generate(ids, max_new_tokens=3, **more)
    assert np.array_equal(model.generate(PROMPT, max_new_tokens=5), expected)


@pytest.mark.parametrize(
    "settings",
    [
        *({"do_sample": True, "temperature": value} for value in (0, -1.0, float("nan"), "x")),
        *({"do_sample": True, "top_k": value} for value in (-1, 1.5)),
        *({"do_sample": True, "top_p": value} for value in (2, -1, float("nan"))),
        *({"num_beams": value} for value in (0, -2, 2.5, "3", 10**30)),
        *({"do_sample": True, "num_return_sequences": value} for value in (0, 10**12)),
        *({"max_new_tokens": value} for value in (0, -1, "a", 10**15)),
        *({"max_length": value} for value in (0, 2, float("nan"), 10**15)),
        *({"stop_strings": value} for value in ("", [""], [5], 5, "x")),
        {"stop_strings": "x", "tokenizer": 5},
        *({"eos_token_id": value} for value in (-5, 10**30, "a", [[1]])),
        *({"pad_token_id": value} for value in (10**30, "a")),
        {"early_stopping": "sometimes", "num_beams": 2},
        {"guidance_scale": "x"},
        {"no_such_argument": 1},
        {"streamer": 5},
        {"logits_processor": 5},
        {"logits_processor": [5]},
        {"stopping_criteria": [5]},
        {"stopping_criteria": [lambda ids, scores: np.ones(7, bool)]},
        {"logits_processor": [lambda ids, scores: scores[:, :5]]},
        {"attention_mask": np.ones((1, 7), np.int64)},
        {"attention_mask": np.ones((2, 3), np.int64)},
    ],
    ids=lambda one: repr(one).partition(" at 0x")[0],  # the same in every process
)
def test_settings(model: Any, expected: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidArgument):
        model.generate(PROMPT, **{**({} if "max_length" in settings else {"max_new_tokens": 3}), **settings})
    assert np.array_equal(model.generate(PROMPT, max_new_tokens=5), expected)


@pytest.mark.parametrize("more", [{}, {"do_sample": True}, {"num_beams": 3}, {"num_beams": 3, "do_sample": True}])
def test_a_model_that_gives_no_numbers(model: Any, more: dict[str, Any]) -> None:
    with pytest.raises(errors.Fail, match=r"No token can be (chosen|drawn)"):
        model.generate(PROMPT, max_new_tokens=3, logits_processor=[lambda ids, scores: scores * float("nan")], **more)


def test_more_beams_than_tokens(model: Any, generators: Generators) -> None:
    torch = pytest.importorskip("torch")
    beams = model.vocabulary + 20
    found = model.generate(PROMPT, max_new_tokens=2, num_beams=beams)
    theirs = generators.pytorch("gpt2").generate(torch.from_numpy(PROMPT), max_new_tokens=2, num_beams=beams)
    assert np.array_equal(found, theirs.numpy())


def test_more_rows_than_there_is_memory_for(model: Any, expected: Any) -> None:
    with pytest.raises(errors.Fail, match="memory"):
        model.generate(np.repeat(PROMPT, 4096, axis=0), max_new_tokens=3, num_beams=1 << 20)
    assert np.array_equal(model.generate(PROMPT, max_new_tokens=5), expected)


@pytest.mark.parametrize("more", [{}, {"num_beams": 2}])
def test_limits_that_are_never_reached_cost_nothing(generators: Generators, more: dict[str, Any]) -> None:
    """T5 has no positions: rows end by their tokens, and room is made for those that come."""
    model = generators("t5")
    short = model.generate(PROMPT, max_new_tokens=6, **more)
    stop = [lambda ids, scores: ids.shape[1] >= short.shape[1]]
    long = model.generate(PROMPT, max_new_tokens=10**12, stopping_criteria=stop, **more)
    assert np.array_equal(long[:, : short.shape[1]], short)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention_mask": np.ones((1, 7), np.int64)}, r"attention_mask has the shape \[1, 7\]: expected \[1, 3\]"),
        ({"attention_mask": np.ones(3, np.int64)}, "attention_mask has the shape"),
        ({"position_ids": np.ones((1, 9), np.int64)}, r"position_ids has the shape \[1, 9\]: expected \[1, 3\]"),
        ({"past_key_values": 3}, "are no caches"),
        ({"past_key_values": ((np.zeros((1, 2, 3, 8), np.float32),),)}, "has 1 arrays, and the model takes 4"),
        ({"input_ids": np.ones((1, 500), np.int64)}, "the model has 128: shorten the input"),
        ({"input_ids": None}, "needs input_ids"),
    ],
)
def test_forward(model: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        model(**{"input_ids": PROMPT, **given})
    assert model([[5, 6, 7]]).logits.shape == (1, 3, model.vocabulary)


def test_tensors_without_contents(model: Any) -> None:
    torch = pytest.importorskip("torch")
    ids = torch.ones((1, 3), dtype=torch.int64, device="meta")
    for call in (model, model.generate):
        with pytest.raises(errors.InvalidArgument, match="on the device meta, has no numbers"):
            call(ids)


def test_tokens_of_another_model_in_one_pass(tiny: Folders) -> None:
    found = ORTModelForSequenceClassification.from_pretrained(tiny("text-classification"), subfolder="onnx")
    with pytest.raises(errors.InvalidArgument, match="belongs to another model"):
        found(input_ids=np.array([[1, 10**6]]))
    with pytest.raises(errors.InvalidArgument, match="shorten the input"):
        found(input_ids=np.ones((1, 5000), np.int64))


@pytest.mark.parametrize(
    "arguments",
    [
        {"provider": "CUDAExecutionProvider"},
        {"provider_options": 5},
        {"provider_options": [5]},
        {"provider_options": [{}, {}]},
        {"session_options": 5},
        {"subfolder": 5},
        {"file_name": 5},
        {"file_name": ""},
        {"config": 5},
        {"generation_config": 5},
    ],
    ids=repr,
)
def test_arguments_of_from_pretrained(generators: Generators, arguments: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidArgument):
        ORTModelForCausalLM.from_pretrained(generators.folder("gpt2"), **arguments)


@pytest.mark.parametrize("name", ["x" * 5000, "../" * 3000, "~nobody-of-this-name", os.devnull])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(errors.InvalidArgument):
        ORTModelForCausalLM.from_pretrained(name)


CONFIGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "deep": lambda said: {**said, "x": json.loads("[" * 900 + "]" * 900)},
    "labels": lambda said: {**said, "num_labels": 10**12},
    "layers": lambda said: {"model_type": "qwen2", "num_hidden_layers": 10**12},
    "nested layers": lambda said: {"model_type": "qwen2_vl", "text_config": {"num_hidden_layers": 10**12}},
    "type": lambda said: {**said, "model_type": ["gpt2"]},
    "dtype": lambda said: {**said, "dtype": "banana"},
    "method": lambda said: {**said, "to_dict": 5},
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_hostile_configs(generators: Generators, tmp_path: Path, kind: str) -> None:
    """In little time and memory: no list of a million million layers is made."""
    folder = shutil.copytree(generators.folder("gpt2"), tmp_path / "model")
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind](said)))
    with pytest.raises(errors.Fail, match=r"config\.json"):
        ORTModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize(
    "said",
    [
        *({"max_length": value} for value in (10**15, "a", [1], -5)),
        *({"num_beams": value} for value in (10**12, "x", -1)),
        {"do_sample": "maybe"},
        {"do_sample": True, "temperature": float("nan")},
        *({"eos_token_id": value} for value in ("x", [[1]], 10**30)),
        {"pad_token_id": [1, 2]},
        {"stop_strings": 5},
        {"guidance_scale": "x"},
        {"update": 5},
        {"watermarking_config": 5},
        {"x": json.loads("[" * 900 + "]" * 900)},
    ],
    ids=lambda said: repr(said)[:40],
)
def test_hostile_generation_configs(generators: Generators, tmp_path: Path, said: dict[str, Any]) -> None:
    folder = shutil.copytree(generators.folder("gpt2"), tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps(said))
    with pytest.raises((errors.Fail, errors.InvalidArgument)):
        ORTModelForCausalLM.from_pretrained(folder).generate(PROMPT)


def test_a_decoder_that_is_none(generators: Generators, tmp_path: Path) -> None:
    folder = shutil.copytree(generators.folder("t5"), tmp_path / "model")
    shutil.copy(folder / "encoder_model.onnx", folder / "decoder_model.onnx")
    with pytest.raises(errors.InvalidArgument, match="gives no logits"):
        ORTModelForSeq2SeqLM.from_pretrained(folder)


class _Counting:
    """A streamer that Ctrl-C comes to at the third token."""

    def __init__(self) -> None:
        self.count = 0

    def put(self, value: Any) -> None:
        self.count += 1
        if self.count == 4:
            os.kill(os.getpid(), signal.SIGINT)

    def end(self) -> None: ...


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("more", [{}, {"num_beams": 3}, {"do_sample": True}, {"streamer": True}])
def test_interruptions(model: Any, expected: Any, more: dict[str, Any]) -> None:
    """A real SIGINT in the middle; the model goes on as if nothing had been."""

    def generate_on() -> None:
        for _ in range(10_000):
            model.generate(PROMPT, max_new_tokens=100, eos_token_id=[], **more)

    if more.get("streamer"):
        more = {"streamer": _Counting()}
        timer = None
    else:
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        generate_on()
    if timer is not None:
        timer.join()
    assert np.array_equal(model.generate(PROMPT, max_new_tokens=5), expected)


def test_copies_share_sessions_and_nothing_that_changes(model: Any, expected: Any) -> None:
    for copied in (copy.copy(model), copy.deepcopy(model)):
        assert copied.session is model.session
        assert np.array_equal(copied.generate(PROMPT, max_new_tokens=5), expected)
    copied = copy.deepcopy(model)
    copied.generation_config.max_new_tokens = 1
    assert copied.generate(PROMPT).shape == (1, 4)
    assert model.generation_config.max_new_tokens is None
    with pytest.raises(TypeError, match=r"from_pretrained\('.*'\) in each process"):
        pickle.dumps(model)


def test_types_of_tokens_that_a_tokenizer_gives_unasked(model: Any, expected: Any) -> None:
    found = model.generate(input_ids=PROMPT, token_type_ids=np.zeros_like(PROMPT), max_new_tokens=5)
    assert np.array_equal(found, expected)


def test_threads(tiny: Folders) -> None:
    """A model without generation, called by four threads at once."""
    found = ORTModelForSequenceClassification.from_pretrained(tiny("text-classification"), subfolder="onnx")
    batches = [np.random.default_rng(seed).integers(5, 15, (1 + seed % 3, 2 + seed)) for seed in range(8)]
    expected = [found(input_ids=ids).logits for ids in batches]
    results: dict[int, list[Any]] = {}

    def work(number: int) -> None:
        results[number] = [found(input_ids=ids).logits for _ in range(5) for ids in batches]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        for at, logits in enumerate(results[number]):
            assert np.array_equal(logits, expected[at % len(batches)])
