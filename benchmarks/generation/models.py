"""Folders of models with random weights at real sizes, as Optimum lays them out."""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks.zoo import store

GPT2 = "gpt2-decode"


def default_folder() -> Path:
    """Where the folders are kept."""
    return store.cache_folder("generation", "SARDONYX_GENERATION")


def gpt2(folder: Path, zoo: Path) -> Path:
    """GPT-2 124M with its configuration beside it; the model itself is the zoo's, which is built if it is missing."""
    built = store.ensure(GPT2, zoo)
    target = folder / "gpt2"
    target.mkdir(parents=True, exist_ok=True)
    for file in built.glob("model.onnx*"):
        link = target / file.name
        if not link.exists():
            os.link(file, link)  # a link by name would lead out of the folder
    _write(target / "config.json", _GPT2_CONFIG)
    _write(target / "generation_config.json", {"eos_token_id": None, "pad_token_id": 0})
    return target


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


_GPT2_CONFIG = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
    "bos_token_id": None,
    "eos_token_id": None,
    "use_cache": True,
}
