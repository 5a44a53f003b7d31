"""Tiny decoders, exported once, beside the torch models that they are of."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx.api.options.session_options import SessionOptions
from sardonyx.models.generation.decoder import Decoder

VOCABULARY = 97
POSITIONS = 256


@dataclass(frozen=True)
class Tiny:
    """An exported decoder: its file, the torch model and its configuration."""

    path: Path
    model: Any
    config: Any

    @functools.cached_property
    def decoder(self) -> Decoder:
        return Decoder.open(self.path, self.config)

    @functools.cached_property
    def growing(self) -> Decoder:
        """The same with caches that runs make anew."""
        options = SessionOptions()
        options.add_session_config_entry("sardonyx.caches_in_place", "0")
        return Decoder.open(self.path, self.config, session_options=options)

    def tokens(self, ids: np.ndarray, mask: np.ndarray | None = None, **settings: Any) -> np.ndarray:
        """What transformers generates, in float32 and eagerly."""
        return self.full(ids, mask, **settings).sequences.numpy()

    def full(self, ids: np.ndarray, mask: np.ndarray | None = None, **settings: Any) -> Any:
        torch = pytest.importorskip("torch")
        return self.model.generate(
            torch.from_numpy(ids),
            attention_mask=torch.from_numpy(np.ones_like(ids) if mask is None else mask),
            return_dict_in_generate=True,
            **settings,
        )


def _scaled(model: Any) -> Any:
    """Weights that make some tokens likelier than others, so that texts differ and do not stand still."""
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        for number, (name, weight) in enumerate(sorted(model.named_parameters())):
            values = torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
            if weight.ndim == 1:
                weight.copy_(0.1 * values + ("norm" in name or "ln_" in name) * name.endswith("weight"))
            else:
                weight.copy_(values * (1 if "wpe" in name else 0.5 if "wte" in name or "embed" in name else 0.2))
    return model.eval().float()


def _export(model: Any, config: Any, path: Path, heads: int, size: int) -> None:
    """Write a decoder with caches as inputs and outputs, named as Optimum's exporter names them."""
    torch = pytest.importorskip("torch")
    from transformers.cache_utils import DynamicCache

    layers = config.num_hidden_layers

    class WithPast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any, positions: Any, *past: Any) -> tuple[Any, ...]:
            cache = DynamicCache()
            for layer in range(layers):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            keys, queries = mask.shape[1], ids.shape[1]
            query = torch.arange(queries) + (keys - queries)
            seen = (torch.arange(keys)[None, :] <= query[:, None])[None, None] & mask[:, None, None, :].bool()
            bias = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
            result = self.model(ids, attention_mask=bias, position_ids=positions, past_key_values=cache, use_cache=True)
            kept = result.past_key_values.layers
            return (result.logits, *(one for layer in kept for one in (layer.keys, layer.values)))

    names = [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]
    ids = torch.ones(2, 3, dtype=torch.int64)
    caches = [torch.randn(2, heads, 5, size) for _ in names]
    batch, past = {0: "batch_size"}, {0: "batch_size", 2: "past_sequence_length"}
    torch.onnx.export(
        WithPast().eval(),
        (ids, torch.ones(2, 8, dtype=torch.int64), torch.arange(5, 8).expand(2, 3), *caches),
        str(path),
        dynamo=False,
        opset_version=17,
        input_names=["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{name}" for name in names)],
        output_names=["logits", *(f"present.{name}" for name in names)],
        dynamic_axes={
            "input_ids": batch | {1: "sequence_length"},
            "attention_mask": batch | {1: "past_sequence_length + sequence_length"},
            "position_ids": batch | {1: "sequence_length"},
            "logits": batch | {1: "sequence_length"},
            **{f"past_key_values.{name}": past for name in names},
            **{f"present.{name}": batch | {2: "past_sequence_length + sequence_length"} for name in names},
        },
    )


def _gpt2(folder: Path) -> Tiny:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=32,
        n_head=4,
        n_layer=2,
        vocab_size=VOCABULARY,
        n_positions=POSITIONS,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    model = _scaled(transformers.GPT2LMHeadModel(config))
    _export(model, config, folder / "gpt2.onnx", 4, 8)
    return Tiny(folder / "gpt2.onnx", model, config)


def _llama(folder: Path) -> Tiny:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=POSITIONS,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    model = _scaled(transformers.LlamaForCausalLM(config))
    _export(model, config, folder / "llama.onnx", 2, 8)
    return Tiny(folder / "llama.onnx", model, config)


_MADE: dict[str, Callable[[Path], Tiny]] = {"gpt2": _gpt2, "llama": _llama}


@pytest.fixture(scope="session")
def tiny_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tiny]:
    """Makes a decoder by its name, once for all tests."""
    pytest.importorskip("torch").set_num_threads(1)  # more only wait for each other where models are tiny
    importlib.import_module("benchmarks.zoo.architectures")  # makes torchvision's import succeed beside a CPU torch
    folder = tmp_path_factory.mktemp("decoders")
    made: dict[str, Tiny] = {}

    def of(name: str) -> Tiny:
        if name not in made:
            made[name] = _MADE[name](folder)
        return made[name]

    return of


@pytest.fixture(params=list(_MADE))
def tiny(request: pytest.FixtureRequest, tiny_of: Callable[[str], Tiny]) -> Tiny:
    return tiny_of(request.param)


@pytest.fixture
def gpt2(tiny_of: Callable[[str], Tiny]) -> Tiny:
    return tiny_of("gpt2")
