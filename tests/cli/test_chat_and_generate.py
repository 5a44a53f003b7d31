"""`sardonyx chat` and `sardonyx generate`."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx.cli import language
from tests.cli.conftest import Command

torch = pytest.importorskip("torch", reason="the extra `models` is not installed")

from tests.models.tasks import exports  # noqa: E402

pytestmark = pytest.mark.xdist_group("generators")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 in Optimum's layout, with a tokenizer that has a chat template."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = exports.tokenizer()
    exports.save_decoder(exports.gpt2(len(tokenizer)), folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pytorch() -> tuple[Any, Any]:
    """The same model in PyTorch, and the tokenizer."""
    tokenizer = exports.tokenizer()
    return exports.gpt2(len(tokenizer)), tokenizer


def continued(pytorch: tuple[Any, Any], text: str, count: int) -> str:
    """What PyTorch makes of a text."""
    model, tokenizer = pytorch
    ids = tokenizer(text, return_tensors="pt").input_ids
    found = model.generate(ids, max_new_tokens=count, do_sample=False)
    return str(tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True))


def spoken(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Lines that the user types."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_generate_continues_as_pytorch(folder: Path, pytorch: tuple[Any, Any], command: Command) -> None:
    outcome = command("generate", folder, "hello world", "--max-new-tokens", 12, "--temperature", 0)
    assert (outcome.code, outcome.out) == (0, continued(pytorch, "hello world", 12) + "\n")
    assert re.search(r"12 tokens, first after \d+ ms, then [\d.]+ a second, prompt \d+ tokens", outcome.err)


def test_generate_reads_the_input_and_tells_in_json(
    folder: Path, pytorch: tuple[Any, Any], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    outcome = command("generate", folder, "-", "--max-new-tokens", 5, "--temperature", 0, "--json")
    report = json.loads(outcome.out)
    assert report["text"] == continued(pytorch, "hello", 5)
    assert report["tokens"] == 5
    assert report["seconds"]["total"] >= report["seconds"]["first"] > 0


def test_a_seed_makes_an_answer_again(folder: Path, command: Command) -> None:
    asked = ("generate", folder, "hello", "--max-new-tokens", 8, "--temperature", 1.5, "--top-k", 0)
    first, again, other = (command(*asked, "--seed", seed).out for seed in (1, 1, 2))
    assert first == again != other


def test_a_text_stops_it(folder: Path, pytorch: tuple[Any, Any], command: Command) -> None:
    whole = continued(pytorch, "hello world", 12)
    mark = whole[2]
    outcome = command("generate", folder, "hello world", "--max-new-tokens", 12, "--temperature", 0, "--stop", mark)
    assert outcome.out.rstrip("\n") == whole[: whole.index(mark) + 1]


def test_a_chat_reads_only_what_is_new(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    spoken(monkeypatch, "hi", "", "and again", "/clear", "hi", "/exit", "not read")
    outcome = command("chat", folder, "--max-new-tokens", 6, "--temperature", 0, "--system", "be kind")
    assert outcome.code == 0
    counts = re.findall(r"prompt (\d+) tokens, of which (\d+) were read", outcome.err)
    (first, read), (second, read_later), third = [tuple(map(int, pair)) for pair in counts]
    assert first == read
    assert second > first
    assert read_later < second - first + 1
    assert third == (first, first)
    answers = outcome.out.split("\n")
    assert answers[0] == answers[2]


def test_a_chat_has_the_template_of_its_tokenizer(
    folder: Path, pytorch: tuple[Any, Any], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken(monkeypatch, "hi")  # the end of the input ends it
    outcome = command("chat", folder, "--max-new-tokens", 6, "--temperature", 0)
    assert outcome.out == continued(pytorch, "<|user|>hi</s><|assistant|>", 6) + "\n"


@pytest.fixture
def ctrl_c_at_the_third_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user presses Ctrl-C once, while the first answer is made."""
    put, calls = language._Voice.put, []

    def counted(voice: Any, value: Any) -> None:
        calls.append(value)
        put(voice, value)
        if len(calls) == 4:  # the prompt is the first
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(language._Voice, "put", counted)


@pytest.mark.usefixtures("ctrl_c_at_the_third_token")
def test_ctrl_c_stops_the_answer_and_not_the_chat(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken(monkeypatch, "hi", "go on")
    outcome = command("chat", folder, "--max-new-tokens", 20, "--temperature", 0)
    first, second = outcome.err.splitlines()
    assert outcome.code == 0
    assert "stopped, 3 tokens" in first
    assert "stopped" not in second


@pytest.mark.usefixtures("ctrl_c_at_the_third_token")
def test_ctrl_c_ends_generate(folder: Path, command: Command) -> None:
    outcome = command("generate", folder, "hello", "--max-new-tokens", 60, "--temperature", 0)
    assert outcome.code == 130
    assert "3 tokens" in outcome.err


def changed(folder: Path, tmp_path: Path, *, without: tuple[str, ...] = ()) -> Path:
    copy = shutil.copytree(folder, tmp_path / "copy")
    for name in without:
        (copy / name).unlink(missing_ok=True)
    return Path(copy)


def test_a_folder_without_a_tokenizer(folder: Path, tmp_path: Path, command: Command) -> None:
    bare = changed(folder, tmp_path, without=("tokenizer.json", "tokenizer_config.json"))
    for asked in (("chat", bare), ("generate", bare, "hello")):
        outcome = command(*asked)
        assert outcome.code == 1
        assert "There is no tokenizer" in outcome.err
        assert "model.onnx" in outcome.err


def test_a_tokenizer_of_another_model(folder: Path, tmp_path: Path, command: Command) -> None:
    other = changed(folder, tmp_path)
    tokenizer = exports.tokenizer()
    tokenizer.add_tokens([f"<{number}>" for number in range(9)])
    tokenizer.save_pretrained(other)
    outcome = command("generate", other, "hello")
    assert outcome.code == 1
    assert "that of another model" in outcome.err


def test_a_tokenizer_without_a_template(folder: Path, tmp_path: Path, command: Command) -> None:
    bare = changed(folder, tmp_path, without=("chat_template.jinja",))
    path = bare / "tokenizer_config.json"
    said = json.loads(path.read_text())
    said.pop("chat_template", None)
    path.write_text(json.dumps(said))
    outcome = command("chat", bare)
    assert outcome.code == 1
    assert "no chat template" in outcome.err


def test_a_conversation_longer_than_the_model(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    spoken(monkeypatch, "word " * 200)
    outcome = command("chat", folder)
    assert outcome.code == 1
    assert "128 positions" in outcome.err
    assert "/clear" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hello", "--temperature", 0, "--top-k", 3), "--temperature 0"),
        (("", "--temperature", 0), "no tokens"),
        (("hello", "--stop", ""), "--stop"),
        (("hello", "--file", "other.onnx"), "other.onnx"),
    ],
)
def test_what_generate_refuses(folder: Path, arguments: tuple[object, ...], message: str, command: Command) -> None:
    outcome = command("generate", folder, *arguments)
    assert outcome.code in (1, 2)
    assert message in outcome.err


def test_other_layouts(folder: Path, pytorch: tuple[Any, Any], tmp_path: Path, command: Command) -> None:
    """transformers.js keeps models in `onnx`; onnxruntime-genai names its file, and needs no config.json."""
    script = changed(folder, tmp_path)
    (script / "onnx").mkdir()
    (script / "model.onnx").rename(script / "onnx" / "model_quantized.onnx")
    expected = continued(pytorch, "hello", 4) + "\n"
    asked = ("hello", "--max-new-tokens", 4, "--temperature", 0)
    assert command("generate", script, *asked).out == expected
    genai = tmp_path / "genai"
    genai.mkdir()
    shutil.copy(folder / "model.onnx", genai / "decoder_q4.onnx")
    shutil.copy(folder / "tokenizer.json", genai)
    heads = {"filename": "decoder_q4.onnx", "head_size": 8, "hidden_size": 16, "num_attention_heads": 2}
    model = {"type": "gpt2", "decoder": heads, "vocab_size": 280, "context_length": 128, "eos_token_id": 2}
    (genai / "genai_config.json").write_text(json.dumps({"model": model, "search": {"do_sample": False}}))
    assert command("generate", genai, *asked).out == expected


def test_a_tokenizer_of_transformers_5(
    folder: Path, pytorch: tuple[Any, Any], tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names a class that transformers 4 does not have, and lists further tokens."""
    newer = changed(folder, tmp_path, without=("special_tokens_map.json",))
    said = json.loads((newer / "tokenizer_config.json").read_text())
    kept = {key: said[key] for key in ("bos_token", "eos_token", "pad_token", "model_max_length")}
    kept |= {"tokenizer_class": "TokenizersBackend", "backend": "tokenizers", "extra_special_tokens": ["<|user|>"]}
    if "chat_template" in said:
        kept["chat_template"] = said["chat_template"]
    (newer / "tokenizer_config.json").write_text(json.dumps(kept))
    outcome = command("generate", newer, "hello world", "--max-new-tokens", 12, "--temperature", 0)
    assert (outcome.code, outcome.out) == (0, continued(pytorch, "hello world", 12) + "\n")
    assert "not the same type" not in outcome.err
    spoken(monkeypatch, "hi")
    assert command("chat", newer, "--max-new-tokens", 4).code == 0


def test_text_is_shown_when_its_characters_are_whole() -> None:
    tokenizer = exports.tokenizer()
    tokens = tokenizer("né\nää").input_ids
    pieces: list[str] = []
    voice = language._Voice(tokenizer, pieces.append, keeps_special=False)
    voice.put(np.array([[5, 6]]))
    for token in tokens:
        voice.put(np.array([token]))
    voice.end()
    assert "".join(pieces) == voice.text == "né\nää"
    assert not any("\ufffd" in piece for piece in pieces)


# Models with an encoder


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """An M2M100 in Optimum's layout with a tokenizer that knows two languages, and both in PyTorch."""
    folder = tmp_path_factory.mktemp("translator")
    tokenizer = exports.tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["__en__", "__fr__"]})
    model = exports.m2m100(len(tokenizer))
    exports.save_encoder_decoder(model, folder, exports.read_by("m2m100"), merged=True)
    tokenizer.save_pretrained(folder)
    return folder, model, tokenizer


@pytest.mark.parametrize("language", [None, "__fr__"])
def test_an_encoder_decoder_answers_a_text(
    translator: tuple[Path, Any, Any], language: str | None, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model, tokenizer = translator
    kind = type(tokenizer)
    monkeypatch.setattr(kind, "src_lang", "__en__", raising=False)
    words = [] if language is None else ["--source-language", "__en__", "--target-language", language]
    outcome = command("generate", folder, "hello world", "--max-new-tokens", 12, "--temperature", 0, *words)
    ids = tokenizer("hello world", return_tensors="pt").input_ids
    forced = {} if language is None else {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(language)}
    found = model.generate(ids, max_new_tokens=12, do_sample=False, **forced)
    assert outcome.out == str(tokenizer.decode(found[0, 1:], skip_special_tokens=True)) + "\n"
    assert f"prompt {ids.shape[1]} tokens" in outcome.err
    if language is not None:
        outcome = command("generate", folder, "hello", "--target-language", "xx")
        assert (outcome.code, "does not know this language" in outcome.err) == (2, True)


def test_what_a_model_with_an_encoder_does_not_do(translator: tuple[Path, Any, Any], command: Command) -> None:
    outcome = command("chat", translator[0])
    assert (outcome.code, "holds no conversation; sardonyx generate does that" in outcome.err) == (1, True)
    outcome = command("generate", translator[0], "hello", "--target-language", "fr")
    assert (outcome.code, "knows no languages" in outcome.err) == (2, True)
