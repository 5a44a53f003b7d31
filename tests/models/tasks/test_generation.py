"""Classes that generate: the same tokens as PyTorch, by our own loop and by transformers' over `forward`."""

from __future__ import annotations

import copy
import importlib
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from sardonyx import errors
from sardonyx.models import ORTModelForCausalLM
from sardonyx.models.part import LaterPart, Part
from tests.models.tasks import exports
from tests.models.tasks.conftest import GENERATORS, Generators

torch = pytest.importorskip("torch", reason="the extra `models` is not installed")
transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

NAMES = list(GENERATORS)
CACHED = [name for name in NAMES if "whole" not in name]
ENCODERS = [name for name in NAMES if name.split()[0] not in ("gpt2", "llama")]

pytestmark = pytest.mark.xdist_group("tiny_models")


def inputs(name: str) -> dict[str, Any]:
    """Two rows, the first with padding where there can be any."""
    chance = np.random.default_rng(3)
    if name.startswith("whisper"):
        return {"input_features": exports.random_sound(2)}
    if name.startswith("trocr"):
        return {"pixel_values": torch.tensor(chance.standard_normal((2, 3, 16, 16)), dtype=torch.float32)}
    if name.startswith("pix2struct"):
        return exports.random_patches(2)
    ids = chance.integers(6, 200, (2, 7))
    mask = np.ones_like(ids)
    padding = slice(None, 3) if name.split()[0] in ("gpt2", "llama") else slice(-3, None)
    ids[0, padding], mask[0, padding] = 0, 0
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def through_transformers(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no call be our own loop's."""
    monkeypatch.setattr(model, "_why_not", lambda call: "this test")


SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"max_new_tokens": 64, "do_sample": False},
    "beams": {"max_new_tokens": 12, "num_beams": 3, "num_return_sequences": 2, "do_sample": False},
    "changed scores": {
        "max_new_tokens": 16,
        "do_sample": False,
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "min_new_tokens": 5,
        "suppress_tokens": [7, 9],
    },
}


def asked(name: str, settings: str) -> dict[str, Any]:
    """Settings of a call; where each token computes the whole text again, fewer tokens."""
    most = 12 if "whole" in name else 64
    found = SETTINGS[settings]
    return {**found, "max_new_tokens": min(most, found["max_new_tokens"])}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_pytorch(generators: Generators, name: str, settings: str) -> None:
    given = inputs(name)
    expected = generators.pytorch(name).generate(**given, **asked(name, settings))
    found = generators(name).generate(**given, **asked(name, settings))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("settings", ["greedy", "beams"])
@pytest.mark.parametrize("name", NAMES)
def test_transformers_loop_gives_the_same(
    generators: Generators, name: str, settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = generators(name)
    given = inputs(name)
    kwargs = asked(name, settings) | {"max_new_tokens": 12}
    own = model.generate(**given, **kwargs)
    through_transformers(model, monkeypatch)
    assert torch.equal(model.generate(**given, **kwargs), own)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_sessions_are_opened_when_they_are_needed(generators: Generators, tmp_path: Path, name: str) -> None:
    """That for `forward` is not where `generate` writes caches in place, in a session of its own."""
    source, unused = generators.folder(name), "model"
    if name == "t5":
        generators.pytorch(name).save_pretrained(tmp_path)
        source, unused = tmp_path, "decoder_with_past"
    model = type(generators(name)).from_pretrained(source, export=name == "t5")
    later = [part for part in model.parts.values() if isinstance(part, LaterPart)]
    assert model.parts[unused] in later
    assert not any(part.is_open for part in later)
    model.generate(**inputs(name), max_new_tokens=5, do_sample=False)
    assert not model.parts[unused].is_open
    for part in later:  # the file says of them what their sessions say
        declared = part.inputs, part.outputs, part.input_shapes
        opened = Part(part.session)
        assert declared == (opened.inputs, opened.outputs, opened.input_shapes)
        assert part.is_open


def test_a_file_that_is_no_model_is_an_error_at_once(generators: Generators, tmp_path: Path) -> None:
    shutil.copytree(generators.folder("gpt2"), tmp_path / "model")
    (path,) = (tmp_path / "model").glob("*.onnx")
    path.write_bytes(b"no model at all")
    with pytest.raises(errors.InvalidProtobuf, match=path.name):
        ORTModelForCausalLM.from_pretrained(tmp_path / "model")


def test_arrays_in_arrays_out(generators: Generators, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gpt2", "t5"):
        model = generators(name)
        tensors = inputs(name)
        arrays = {key: value.numpy() for key, value in tensors.items()}
        expected = model.generate(**tensors, max_new_tokens=5, do_sample=False).numpy()
        found = model.generate(**arrays, max_new_tokens=5, do_sample=False)
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, expected)
        through_transformers(model, monkeypatch)
        found = model.generate(**arrays, max_new_tokens=5, do_sample=False)
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["gpt2", "gpt2 whole", "t5", "t5 merged"])
def test_threads_get_the_tokens_of_each_alone(generators: Generators, name: str) -> None:
    model = generators(name)
    calls = [(rows, beams, seed) for seed in range(3) for beams in (1, 2) for rows in (1, 2)]

    def tokens(call: tuple[int, int, int]) -> Any:
        rows, beams, seed = call
        ids = torch.tensor(np.random.default_rng(seed).integers(6, 200, (rows, 4 + seed)))
        settings = {"max_new_tokens": 12, "do_sample": False, "num_beams": beams}
        return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **settings)

    wanted = [tokens(call) for call in calls]
    # As where no call has been made yet: what the first one makes is made once.
    model._steps = model._decoder_files = None
    with ThreadPoolExecutor(4) as pool:
        for found, expected in zip(pool.map(tokens, calls), wanted, strict=True):
            assert torch.equal(found, expected)


def test_what_our_loop_does_not_know_is_told(generators: Generators, capfd: pytest.CaptureFixture[str]) -> None:
    from sardonyx import log

    model, given = generators("gpt2"), inputs("gpt2")
    settings = {"max_new_tokens": 5, "do_sample": False}
    before = log.default_severity()
    log.set_default_severity(log.Severity.INFO)
    try:
        model.generate(**given, **settings)
        assert "transformers' generation" not in capfd.readouterr().err
        found = model.generate(**given, **settings, prefix_allowed_tokens_fn=lambda row, ids: [11, 12])
        assert "through transformers' generation, for prefix_allowed_tokens_fn" in capfd.readouterr().err
    finally:
        log.set_default_severity(before)
    assert set(found[:, 7:].flatten().tolist()) <= {11, 12}
    scored = model.generate(**given, **settings, return_dict_in_generate=True, output_scores=True)
    assert len(scored.scores) == 5


def test_what_drawing_goes_by_is_not_looked_at_where_nothing_is_drawn(generators: Generators) -> None:
    given = inputs("gpt2")
    expected = generators("gpt2").generate(**given, max_new_tokens=5, do_sample=False)
    found = generators("gpt2").generate(**given, max_new_tokens=5, do_sample=False, temperature=0.0, top_p=0.1)
    assert torch.equal(found, expected)
    with pytest.raises(errors.InvalidArgument, match="output_attentions"):
        generators("gpt2").generate(**given, max_new_tokens=5, output_attentions=True, return_dict_in_generate=True)


def test_assisted_generation_takes_positions_back(generators: Generators) -> None:
    ids = torch.tensor([[20, 30, 40, 20, 30]])
    for name in ("gpt2", "llama"):
        model = generators(name)
        greedy = model.generate(ids, max_new_tokens=12, do_sample=False)
        looked_up = model.generate(ids, max_new_tokens=12, do_sample=False, prompt_lookup_num_tokens=3)
        assert torch.equal(looked_up, greedy)


# What a call of the model gives


@pytest.mark.parametrize("name", CACHED)
def test_logits_are_those_of_pytorch(generators: Generators, name: str) -> None:
    given = inputs(name)
    model, theirs = generators(name), generators.pytorch(name)
    if name in ENCODERS:
        given["decoder_input_ids"] = torch.tensor([[5, 6, 7], [8, 9, 10]])
    with torch.no_grad():
        expected = theirs(**given).logits
    mask = given["attention_mask"].bool() if "attention_mask" in given and name not in ENCODERS else slice(None)
    torch.testing.assert_close(model(**given).logits[mask], expected[mask], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CACHED)
def test_steps_give_what_one_call_gives(generators: Generators, name: str) -> None:
    """Two tokens behind a past: also where the graph was made for one at a time."""
    model, given = generators(name), inputs(name)
    tokens = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    key = "decoder_input_ids" if name in ENCODERS else "input_ids"
    given = given if name in ENCODERS else {}
    whole = model(**given, **{key: tokens}, use_cache=False)
    first = model(**given, **{key: tokens[:, :2]})
    kept = getattr(first, "past_key_values", None)
    assert kept.get_seq_length() == 2
    assert kept[0][0].shape[2] == 2
    second = model(**given, **{key: tokens[:, 2:]}, past_key_values=kept)
    torch.testing.assert_close(second.logits, whole.logits[:, 2:], rtol=1e-4, atol=1e-5)
    # Caches are taken as tuples, too, as Optimum gives them.
    again = model(**given, **{key: tokens[:, 2:]}, past_key_values=tuple(kept))
    torch.testing.assert_close(again.logits, second.logits, rtol=0, atol=0)


def test_caches_can_be_rearranged(generators: Generators) -> None:
    model = generators("t5")
    tokens = torch.tensor([[5, 6, 7], [9, 10, 11]])
    kept = model(**inputs("t5"), decoder_input_ids=tokens).past_key_values
    swapped = model._reorder_cache(kept, torch.tensor([1, 0]))
    assert torch.equal(swapped[0][0], kept[0][0][[1, 0]])
    assert torch.equal(swapped[0][2], kept[0][2])  # rows of one input share what the encoder gave
    kept.crop(-1)
    assert kept.get_seq_length() == kept[0][0].shape[2] == 2
    assert kept[0][2].shape[2] == 7
    kept.batch_repeat_interleave(2)
    kept.batch_select_indices(torch.tensor([0, 3, 1]))
    assert [one.shape[0] for one in kept[0]] == [3, 3, 3, 3]


# Files


def test_which_file_is_the_decoder(generators: Generators, tmp_path: Path) -> None:
    source = generators.folder("gpt2")
    for names, expected in (
        (["model.onnx"], "model.onnx"),
        (["decoder_with_past_model.onnx", "decoder_model.onnx"], "decoder_with_past_model.onnx"),
        (["onnx/model_quantized.onnx"], "model_quantized.onnx"),
        (["decoder_model_merged.onnx", "decoder_model.onnx"], "decoder_model_merged.onnx"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        shutil.copy(source / "config.json", folder)
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(source / "model.onnx", folder / name)
        model = ORTModelForCausalLM.from_pretrained(folder)
        assert model.parts["model"].path.name == expected


def test_a_decoder_that_is_missing_is_named(generators: Generators, tmp_path: Path) -> None:
    folder = shutil.copytree(generators.folder("t5"), tmp_path / "model")
    (folder / "decoder_model.onnx").unlink()
    (folder / "decoder_with_past_model.onnx").unlink()
    with pytest.raises(errors.NoSuchFile, match=r"decoder of the model.*encoder_model\.onnx"):
        type(generators("t5")).from_pretrained(folder)
    with pytest.raises(errors.NoSuchFile, match=r"other\.onnx"):
        type(generators("t5")).from_pretrained(generators.folder("t5"), decoder_file_name="other.onnx")


def test_without_the_file_with_caches_all_is_computed_again(generators: Generators, tmp_path: Path) -> None:
    folder = shutil.copytree(generators.folder("t5"), tmp_path / "model")
    (folder / "decoder_with_past_model.onnx").unlink()
    model = type(generators("t5")).from_pretrained(folder)
    assert not model.can_use_cache
    given = inputs("t5")
    expected = generators("t5").generate(**given, max_new_tokens=6, do_sample=False)
    assert torch.equal(model.generate(**given, max_new_tokens=6, do_sample=False), expected)
    with pytest.raises(errors.InvalidArgument, match="take no caches"):
        model(**given, decoder_input_ids=torch.tensor([[0], [0]]), use_cache=True)


def test_saved_and_loaded_again(generators: Generators, tmp_path: Path) -> None:
    given = inputs("bart")
    model = generators("bart")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert again.generation_config.forced_eos_token_id == 2
    expected = model.generate(**given, max_new_tokens=6, do_sample=False)
    assert torch.equal(again.generate(**given, max_new_tokens=6, do_sample=False), expected)


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": torch.zeros((1, 0), dtype=torch.int64)}, "one token or more"),
        ({"input_ids": torch.tensor([[3, 5000]])}, "5000.*tokenizer"),
        ({"input_ids": torch.tensor([[3, -1]])}, "-1.*tokenizer"),
        ({"input_ids": torch.tensor([[3, 4]]), "max_new_tokens": 500}, "positions"),
    ],
)
def test_bad_prompts(generators: Generators, change: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        generators("gpt2").generate(**{"max_new_tokens": 4, "do_sample": False, **change})


def test_bad_calls(generators: Generators) -> None:
    model = generators("gpt2")
    with pytest.raises(errors.InvalidArgument, match="5000"):
        model(torch.tensor([[5000]]))
    with pytest.raises(errors.InvalidArgument, match="output_attentions"):
        model(torch.tensor([[5]]), output_attentions=True)
    with pytest.raises(errors.InvalidArgument, match="no caches"):
        model(torch.tensor([[5]]), past_key_values="caches")
    with pytest.raises(errors.InvalidArgument, match="decoder_input_ids"):
        generators("t5")(**inputs("t5"))


def test_an_interrupt_leaves_the_model_usable(generators: Generators) -> None:
    class Impatient:
        def put(self, value: Any) -> None:
            self.count = getattr(self, "count", 0) + 1
            if self.count == 4:
                raise KeyboardInterrupt

        def end(self) -> None:
            """Not reached."""

    for name in ("gpt2", "t5"):
        model = generators(name)
        given = {key: value[1:] for key, value in inputs(name).items()}
        expected = model.generate(**given, max_new_tokens=8, do_sample=False)
        with pytest.raises(KeyboardInterrupt):
            model.generate(**given, max_new_tokens=8, do_sample=False, streamer=Impatient())
        assert torch.equal(model.generate(**given, max_new_tokens=8, do_sample=False), expected)


# Whisper's own decoding


def whisper_equal(
    generators: Generators, features: Any, read: Callable[[Any], Any] = lambda found: found, **kwargs: Any
) -> None:
    torch.manual_seed(0)
    expected = generators.pytorch("whisper merged").generate(features, **kwargs)
    torch.manual_seed(0)
    found = generators("whisper merged").generate(features, **kwargs)
    assert torch.equal(read(found), read(expected))


@pytest.mark.parametrize(
    "settings",
    [
        {"language": "de", "task": "translate"},
        {"return_timestamps": True},
        {"return_timestamps": True, "num_beams": 2},
        {"language": ["en", "de"], "max_new_tokens": 8},
        {"prompt_ids": torch.tensor([exports.PREVIOUS, 5, 6])},
    ],
)
def test_whisper_decodes_as_transformers(generators: Generators, settings: dict[str, Any]) -> None:
    whisper_equal(generators, exports.random_sound(2), **settings)


def test_whisper_finds_languages(generators: Generators) -> None:
    features = exports.random_sound(3)
    expected = generators.pytorch("whisper merged").detect_language(features)
    assert torch.equal(generators("whisper merged").detect_language(features), expected)


@pytest.mark.parametrize("name", ["whisper attentive", "whisper attentive merged"])
@pytest.mark.parametrize(
    ("frames", "settings"),
    [
        (100, {}),
        (100, {"num_beams": 3}),
        (100, {"temperature": (0.0, 0.5), "logprob_threshold": -1.0}),
        (260, {"return_timestamps": True}),
    ],
)
def test_whisper_times_its_tokens(generators: Generators, name: str, frames: int, settings: dict[str, Any]) -> None:
    features = exports.random_sound(2, frames)
    given = {
        "return_token_timestamps": True,
        "attention_mask": torch.ones((2, frames), dtype=torch.int64),
        "language": "en",
        **settings,
    }
    torch.manual_seed(0)
    expected = generators.pytorch("whisper").generate(features, **given)
    torch.manual_seed(0)
    found = generators(name).generate(features, **given)
    assert torch.equal(found["sequences"], expected["sequences"])
    assert torch.allclose(found["token_timestamps"], expected["token_timestamps"])
    assert len(found["token_timestamps"].unique()) > 3


def test_whisper_says_how_to_export_attentions(generators: Generators) -> None:
    model, features = generators("whisper merged"), exports.random_sound(1)
    told = r"cross_attentions\.0.*output_attentions.*_timestamped"
    with pytest.raises(errors.InvalidArgument, match=told):
        model.generate(features, return_token_timestamps=True)
    with pytest.raises(errors.InvalidArgument, match=told):
        model(features, decoder_input_ids=torch.tensor([[exports.START]]), output_attentions=True)


def test_whisper_times_no_tokens_without_caches(generators: Generators) -> None:
    """transformers would give times, and wrong ones."""
    with pytest.raises(errors.InvalidArgument, match="use_cache=True"):
        generators("whisper attentive").generate(exports.random_sound(1), return_token_timestamps=True, use_cache=False)


def test_weights_of_attention_over_sound(generators: Generators) -> None:
    features, ids = exports.random_sound(2), torch.tensor([[exports.START, exports.EN, 5], [exports.START, 6, 7]])
    for model in (generators("whisper attentive"), generators("whisper attentive merged")):
        found = model(features, decoder_input_ids=ids, output_attentions=True)
        (weights,) = found.cross_attentions
        assert weights.shape == (2, 2, 3, 50)
        assert torch.allclose(weights.sum(-1), torch.ones(2, 2, 3), atol=1e-6)
        assert found.decoder_attentions == ()
        first = model(features, decoder_input_ids=ids[:, :1], use_cache=True)
        later = model(
            encoder_outputs=(found.encoder_last_hidden_state,),
            decoder_input_ids=ids[:, 1:],
            past_key_values=first.past_key_values,
            output_attentions=True,
        )
        assert torch.allclose(later.cross_attentions[0], weights[:, :, 1:], atol=1e-5)


def test_whisper_draws_by_the_seed_at_temperatures_above_0(generators: Generators) -> None:
    # Every window is too repetitive, so that all temperatures are tried.
    settings: dict[str, Any] = {"language": "en", "compression_ratio_threshold": 0.0, "temperature": (0.0, 0.7, 1.5)}
    features = exports.random_sound(1)
    with_scores = settings | {"logprob_threshold": 0.0}
    whisper_equal(generators, features, **with_scores)  # transformers draws, by torch's seed
    model = generators("whisper merged")
    drawn = []
    for seed in (0, 0, 1):  # our own loop draws
        torch.manual_seed(seed)
        drawn.append(model.generate(features, **settings))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], model.generate(features, **settings | {"temperature": (0.0,)}))
    assert int(drawn[0].max()) < exports.FIRST_TIME + 1501


@pytest.mark.parametrize("falls_back", [False, True])
def test_whisper_reads_long_sound_window_by_window(generators: Generators, falls_back: bool) -> None:
    settings: dict[str, Any] = {"return_timestamps": True, "language": "en"}
    if falls_back:  # a temperature of 0 alone: what is drawn differs between the two
        settings |= {
            "temperature": (0.0,),
            "compression_ratio_threshold": 1.35,
            "logprob_threshold": -1.0,
            "no_speech_threshold": 0.6,
            "condition_on_prev_tokens": True,
        }
    whisper_equal(generators, exports.random_sound(1, frames=260), **settings)


@pytest.mark.parametrize(
    ("name", "main"), [("ORTModelForMoonshine", "input_values"), ("ORTModelForPix2Struct", "flattened_patches")]
)
def test_other_names_of_the_main_input(monkeypatch: pytest.MonkeyPatch, name: str, main: str) -> None:
    module = importlib.import_module("sardonyx.models.tasks." + ("speech" if "Moon" in name else "vision"))
    kind = getattr(module, name)
    monkeypatch.setattr(kind, "_forward", lambda self, *given: given)
    model = kind.__new__(kind)
    wanted = (1, 2, 3, None, 4, 5, None, None, {"other": 6})
    assert (
        model.forward(**{main: 1}, attention_mask=2, decoder_input_ids=3, encoder_outputs=4, cache=5, other=6) == wanted
    )
    assert model.forward(1, 2, 3, None, 4, 5, other=6) == wanted


@pytest.mark.parametrize("keeps_types", [False, True])
def test_a_decoder_in_half_precision(generators: Generators, tmp_path: Path, keeps_types: bool) -> None:
    """The folder of transformers.js: onnx/model_fp16.onnx with its weights beside it."""
    from sardonyx.transformers.float16 import convert_float_to_float16

    source = generators.folder("gpt2")
    shutil.copy(source / "config.json", tmp_path)
    (tmp_path / "onnx").mkdir()
    halves = convert_float_to_float16(onnx.load(source / "model.onnx"), keep_io_types=keeps_types)
    path = tmp_path / "onnx" / "model_fp16.onnx"
    onnx.save(halves, path, save_as_external_data=True, location="model_fp16.onnx_data", size_threshold=0)
    model = ORTModelForCausalLM.from_pretrained(tmp_path)
    assert model.dtype == (torch.float32 if keeps_types else torch.float16)
    given = inputs("gpt2")
    reference = copy.deepcopy(generators.pytorch("gpt2")).half()
    expected = reference.generate(**given, max_new_tokens=16, do_sample=False)
    assert torch.equal(model.generate(**given, max_new_tokens=16, do_sample=False), expected)
    with torch.no_grad():
        logits = reference(**given).logits[1].float()
    torch.testing.assert_close(model(**given).logits[1].float(), logits, rtol=0.01, atol=0.02)


def test_images_to_text_by_the_name_of_transformers_5(generators: Generators) -> None:
    from sardonyx.models import ORTModelForImageTextToText

    model = ORTModelForImageTextToText.from_pretrained(generators.folder("trocr"))
    assert model.auto_model_class is transformers.AutoModelForImageTextToText
    given = inputs("trocr")
    expected = generators.pytorch("trocr").generate(**given, max_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(**given, max_new_tokens=8, do_sample=False), expected)


def test_a_decoder_of_embeddings_opens(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        rows (float[batch, n, 4] inputs_embeds, int64[batch, n] attention_mask) => (float[batch, n, 4] logits)
        { logits = Neg (inputs_embeds) }"""
    )
    onnx.save(model, tmp_path / "model.onnx")
    transformers.GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=4).save_pretrained(tmp_path)
    opened = ORTModelForCausalLM.from_pretrained(tmp_path, use_cache=False)
    rows = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    np.testing.assert_array_equal(opened(inputs_embeds=rows, use_cache=False).logits, -rows)
