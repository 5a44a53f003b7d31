"""Folders of models with random weights at real sizes, or tiny ones, as their users lay them out.

All are kept: a folder is complete or absent. The models are those of one seed; PyTorch reads its weights from
`model.safetensors` beside the ONNX files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.zoo import store

GPT2 = "gpt2-decode"
WEIGHTS = "weights"  # the folder within a model's that other tools export from


@dataclass(frozen=True)
class Places:
    """Where models are kept, and the interpreters of the tools that make some of them: `optimum` and `genai`."""

    folder: Path
    zoo: Path
    pythons: dict[str, str]
    tiny: bool = False


def default_folder() -> Path:
    """Where the folders are kept."""
    return store.cache_folder("generation", "SARDONYX_GENERATION")


def ensure(name: str, places: Places) -> Path:
    """The folder of a model, which is built first where it is missing; RuntimeError where a tool for it is missing."""
    root = places.folder / "tiny" if places.tiny else places.folder
    target = root / name
    with store.locked(name, root):
        if not (target / "config.json").exists():
            partial = root / f".{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            _BUILDERS[name](partial, places)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
    return target


def model_bytes(folder: Path) -> int:
    """The bytes of the ONNX files of a folder, with their weights."""
    return sum(file.stat().st_size for file in folder.glob("*.onnx*"))


def cache_bytes(folder: Path, positions: int) -> int:
    """The bytes of a float32 cache of so many positions, by the configuration of GPT-2."""
    config = json.loads((folder / "config.json").read_text())
    return config["n_layer"] * 2 * config["n_embd"] * 4 * positions


def _gpt2(folder: Path, places: Places) -> None:
    """GPT-2 124M: the model is the zoo's; the tiny one is exported."""
    if places.tiny:
        sizes = {"n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 64, "vocab_size": 200}
        _export("gpt2", _GPT2_CONFIG | sizes, "AutoModelForCausalLM", folder)
        return
    for file in store.ensure(GPT2, places.zoo).glob("model.onnx*"):
        os.link(file, folder / file.name)  # a link by name would lead out of the folder
    _write(folder / "generation_config.json", {"eos_token_id": None, "pad_token_id": 0})
    _write(folder / "config.json", _GPT2_CONFIG | {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})


def _t5(folder: Path, places: Places) -> None:
    tiny = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 200}
    _export("t5", _T5 | (tiny if places.tiny else {}), "AutoModelForSeq2SeqLM", folder)


def _m2m100(folder: Path, places: Places) -> None:
    tiny = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 200}
    tiny |= {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in _TINY_SIDE.items()}
    _export("m2m_100", _M2M100 | (tiny if places.tiny else {}), "AutoModelForSeq2SeqLM", folder)


def _whisper(folder: Path, places: Places) -> None:
    """Whisper-small as Optimum exports it, for both engines."""
    import torch

    tiny = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
    tiny |= {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in _TINY_SIDE.items()}
    config = _WHISPER | (tiny if places.tiny else {})
    model = _random("whisper", config, "WhisperForConditionalGeneration")
    for name, value in _WHISPER_GENERATION.items():
        setattr(model.generation_config, name, value)
    # Else transformers makes it anew from the model's config when it is saved, and exporters read that.
    model.generation_config._from_model_config = False
    with torch.no_grad():  # scores of 0: a time that is not asked for, but the likeliest token, would begin a window
        model.get_input_embeddings().weight[_WHISPER_GENERATION["no_timestamps_token_id"] + 1 :] = 0
    model.save_pretrained(folder / WEIGHTS)
    del model
    task = "automatic-speech-recognition-with-past"
    tool = ["optimum.exporters.onnx", "--model", str(folder / WEIGHTS), "--task", task, str(folder)]
    _run(places.pythons["optimum"], tool)
    shutil.rmtree(folder / WEIGHTS)


def _llama(folder: Path, places: Places) -> None:
    """A Llama of half a billion weights in int4, as onnxruntime-genai's builder makes it."""
    tiny = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    tiny |= {"num_key_value_heads": 2, "vocab_size": 256, "head_dim": 16}
    config = _LLAMA | (tiny if places.tiny else {})
    model = _random("llama", config, "AutoModelForCausalLM").half()
    model.save_pretrained(folder / WEIGHTS)
    del model
    _tokenizer(folder / WEIGHTS)
    tool = ["onnxruntime_genai.models.builder", "-i", str(folder / WEIGHTS), "-o", str(folder)]
    _run(places.pythons["genai"], [*tool, "-p", "int4", "-e", "cpu", "-c", str(folder / WEIGHTS / "cache")])
    shutil.copy(folder / WEIGHTS / "config.json", folder)
    shutil.rmtree(folder / WEIGHTS)


_BUILDERS: dict[str, Callable[[Path, Places], None]] = {
    "gpt2": _gpt2,
    "t5-small": _t5,
    "m2m100": _m2m100,
    "whisper-small": _whisper,
    "llama-int4": _llama,
}


def _random(kind: str, config: dict[str, Any], class_name: str) -> Any:
    """A model of transformers with the weights of one seed, whose texts never end by themselves."""
    import torch
    import transformers

    import benchmarks.zoo.architectures  # noqa: F401  torchvision, as transformers needs it

    torch.manual_seed(0)
    made = transformers.AutoConfig.for_model(
        kind, **{name: value for name, value in config.items() if name != "model_type"}
    )
    of = getattr(transformers, class_name)
    model = (of.from_config if class_name.startswith("Auto") else of)(made).eval()
    model.config.architectures = [type(model).__name__]
    return model


def _export(kind: str, config: dict[str, Any], class_name: str, folder: Path) -> None:
    """A random model's own weights and the files that `sardonyx.models` exports."""
    from sardonyx.models.export import export_model

    model = _random(kind, config, class_name)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    export_model(model, folder)


# Runs a module as a command, behind torchvision where that is installed, as transformers needs it.
_AS_COMMAND = """
import importlib.util, runpy, sys
if importlib.util.find_spec("torchvision"):
    import benchmarks.zoo.architectures
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def _run(python: str, module: list[str]) -> None:
    """A module of another environment, as a command."""
    done = subprocess.run([python, "-c", _AS_COMMAND, *module], capture_output=True, text=True)
    if done.returncode:
        told = done.stderr.strip().splitlines()
        raise RuntimeError(f"{module[0]}: {told[-1] if told else f'ended with {done.returncode}'}")


def _tokenizer(folder: Path) -> None:
    """A tokenizer of bytes: the builder wants one, no row uses it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


_TINY_SIDE = {"attention_heads": 2, "ffn_dim": 64}
_GPT2_CONFIG = {
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
    "bos_token_id": None,
    "eos_token_id": None,
    "use_cache": True,
}
_T5 = {
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "vocab_size": 32128,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": None,
}
_M2M100 = {
    "d_model": 1024,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "vocab_size": 128112,
    "max_position_embeddings": 1024,
    "decoder_start_token_id": 2,
    "pad_token_id": 1,
    "eos_token_id": None,
}
_WHISPER = {
    "d_model": 768,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "decoder_start_token_id": 50258,
    "bos_token_id": 50257,
    "eos_token_id": 50257,
    "pad_token_id": 50257,
}
# The multilingual Whisper's, but that the end of the text is suppressed: all texts have the length that is asked for.
_WHISPER_GENERATION: dict[str, Any] = {
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 50259, "<|de|>": 50261},
    "task_to_id": {"transcribe": 50359, "translate": 50358},
    "no_timestamps_token_id": 50363,
    "suppress_tokens": [1, 2, 7, 8, 9, 10, 14, 25, 50257, *range(50358, 50363)],
    "begin_suppress_tokens": [220, 50257],
    "max_length": 448,
}
_LLAMA = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 2048,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
