"""What a model's configuration says that generation needs to know, whatever class the configuration is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Names of one and the same setting in the configurations of different architectures.
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "context_length", "max_seq_len", "max_sequence_length")
VOCABULARY = ("vocab_size",)
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
# Where models of several kinds of input keep the configuration of their text decoder.
_NESTED = ("text_config", "decoder", "model")


def number(config: object, names: tuple[str, ...]) -> int | None:
    """The first of these settings that is a positive whole number; None where there is none of them.

    `config` is a configuration of transformers, the content of a config.json or genai_config.json, or None.
    """
    for name in names:
        value = _setting(config, name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    for name in _NESTED:
        nested = _setting(config, name)
        if nested is not None and not isinstance(nested, (str, int, float, bool)):
            found = number(nested, names)
            if found is not None:
                return found
    return None


def head_size(config: object) -> int | None:
    """Elements of a key of one head; None where the configuration does not say."""
    found = number(config, ("head_dim", "head_size"))
    if found is not None:
        return found
    hidden, heads = number(config, _HIDDEN), number(config, _HEADS)
    return hidden // heads if hidden and heads else None


def _setting(config: object, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
