"""What of transformers' GenerationConfig our own loop does, checked; what it does not do is named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sardonyx import errors

# New tokens where nothing says how many.
DEFAULT_NEW_TOKENS = 20

# Settings that our loop does not know, with the values that ask for nothing.
_NOT_OURS: Mapping[str, tuple[Any, ...]] = {
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "penalty_alpha": (0,),
    "guidance_scale": (1,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "constraints": (),
    "force_words_ids": (),
    "watermarking_config": (),
    "prompt_lookup_num_tokens": (0,),
    "assistant_early_exit": (),
    "dola_layers": (),
    "token_healing": (False,),
    "low_memory": (False,),
    "output_scores": (False,),
    "output_logits": (False,),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    "cache_implementation": ("dynamic", "static", "hybrid", "sliding_window", "offloaded", "offloaded_static"),
    "is_assistant": (False,),
    "top_h": (1,),
}


@dataclass(frozen=True)
class Settings:
    """How tokens are chosen, and when that ends: the names and meanings are those of GenerationConfig.

    Lengths count tokens; `max_length` and `min_length` count those of the prompt, too. `unsupported` names what the
    configuration asks for beyond this.
    """

    max_length: int | None = None
    max_new_tokens: int | None = None
    min_length: int = 0
    min_new_tokens: int | None = None
    max_time: float | None = None
    stop_strings: tuple[str, ...] = ()
    eos_token_id: tuple[int, ...] = ()
    pad_token_id: int | None = None
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    min_p: float | None = None
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    exponential_decay_length_penalty: tuple[int, float] | None = None
    remove_invalid_values: bool = False
    renormalize_logits: bool = False
    unsupported: tuple[str, ...] = ()

    @staticmethod
    def of(config: object = None, **changes: Any) -> Settings:
        """The settings of a GenerationConfig, or of a mapping with its names, with `changes` on top.

        `errors.InvalidArgument` for a value out of range. Names that are not settings are not looked at, as there.
        """
        given: dict[str, Any] = {}
        if isinstance(config, Mapping):
            given = dict(config)
        elif config is not None:
            given = dict(vars(config))
            if given.get("max_length") == DEFAULT_NEW_TOKENS:  # what transformers puts where nothing was said
                given["max_length"] = None
        given |= changes
        names = {field.name for field in fields(Settings)} - {"unsupported"}
        own = {name: value for name, value in given.items() if name in names and value is not None}
        for name, convert in _FORMS.items():
            if name in own:
                own[name] = convert(name, own[name])
        settings = Settings(**own, unsupported=tuple(_unsupported(given)))
        settings._check()
        return settings

    def require_supported(self) -> None:
        """`errors.NotImplemented` where `unsupported` names anything."""
        if self.unsupported:
            raise errors.NotImplemented(
                f"Our own loop does not know {', '.join(self.unsupported)}. Leave that out, or generate through "
                "transformers' GenerationMixin"
            )

    @property
    def padding(self) -> int:
        """The token that fills rows that have ended: the padding token, else the first one that ends a row."""
        if self.pad_token_id is not None:
            return self.pad_token_id
        return self.eos_token_id[0] if self.eos_token_id else 0

    def lengths(self, prompt: int, positions: int | None) -> tuple[int, int]:
        """The most and the least tokens of a row with a prompt of so many.

        `errors.InvalidArgument` where the prompt leaves no room, or where so many tokens were asked for that the model
        has no positions for them.
        """
        if self.max_new_tokens is not None:
            most = prompt + self.max_new_tokens
        elif self.max_length is not None:
            most = self.max_length
        else:
            most = prompt + DEFAULT_NEW_TOKENS
            most = max(min(most, positions), prompt + 1) if positions is not None else most
        if most <= prompt:
            raise errors.InvalidArgument(
                f"The prompt has {prompt} tokens, and max_length is {most}: there is no room for a new one. Raise "
                "max_length, or set max_new_tokens"
            )
        # The last token is never read, so that it needs no position.
        if positions is not None and most - 1 > positions:
            raise errors.InvalidArgument(
                f"A prompt of {prompt} tokens and {most - prompt} new ones need {most - 1} positions; the model has "
                f"{positions}. Ask for fewer new tokens, or shorten the prompt"
            )
        least = self.min_length if self.min_new_tokens is None else prompt + self.min_new_tokens
        return most, least

    def with_changes(self, **changes: Any) -> Settings:
        """The same with other values, checked."""
        settings = replace(self, **changes)
        settings._check()
        return settings

    def _check(self) -> None:
        for name, low, high, what in _RANGES:
            value = getattr(self, name)
            if value is not None and not (low <= value <= high):
                raise _wrong(name, value, what)
        # The bounds themselves would divide by nothing, or leave no token.
        for name in ("temperature", "typical_p", "repetition_penalty"):
            if not 0 < getattr(self, name) < math.inf:
                raise _wrong(name, getattr(self, name), "a number above 0")
        if self.early_stopping not in (True, False, "never"):
            raise _wrong("early_stopping", self.early_stopping, "True, False or 'never'")
        if self.num_return_sequences > self.num_beams and (self.num_beams > 1 or not self.do_sample):
            raise errors.InvalidArgument(
                f"num_return_sequences is {self.num_return_sequences} with num_beams {self.num_beams}: beams give one "
                "sequence each, and greedy search gives one. Use more beams, or do_sample=True"
            )


def _wrong(name: str, value: object, what: str) -> errors.InvalidArgument:
    return errors.InvalidArgument(f"{name} must be {what}, not {value!r}")


_ANY = math.inf
_MOST_ROWS = 1 << 20  # beyond which bookkeeping alone takes all memory
_RANGES: Sequence[tuple[str, float, float, str]] = (
    ("max_length", 1, _ANY, "a number of tokens, 1 or more"),
    ("max_new_tokens", 1, _ANY, "a number of tokens, 1 or more"),
    ("min_length", 0, _ANY, "a number of tokens, 0 or more"),
    ("min_new_tokens", 0, _ANY, "a number of tokens, 0 or more"),
    ("max_time", 0, _ANY, "a number of seconds, 0 or more"),
    ("top_k", 0, _ANY, "a number of tokens, or 0 for all"),
    ("top_p", 0, 1, "a share from 0 to 1"),
    ("min_p", 0, 1, "a share from 0 to 1"),
    ("typical_p", 0, 1, "a share from 0 to 1"),
    ("epsilon_cutoff", 0, 1, "a probability from 0 to 1"),
    ("eta_cutoff", 0, 1, "a probability from 0 to 1"),
    ("num_beams", 1, _MOST_ROWS, f"1 to {_MOST_ROWS}"),
    ("num_return_sequences", 1, _MOST_ROWS, f"1 to {_MOST_ROWS}"),
    ("length_penalty", -1e9, 1e9, "a finite number"),
    ("no_repeat_ngram_size", 0, _ANY, "a number of tokens, or 0 for none"),
)


def _unsupported(given: Mapping[str, Any]) -> list[str]:
    found = []
    for name, neutral in _NOT_OURS.items():
        value = given.get(name)
        if value is not None and neutral and isinstance(neutral[0], int) and not isinstance(neutral[0], bool):
            _number(name, value)
        if value is not None and not any(value == one for one in neutral):
            found.append(name)
    return found


# How values come in, by name.


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(name, value, "a whole number")
    return int(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise _wrong(name, value, "a number")
    return float(value)


def _flag(name: str, value: Any) -> bool:
    if value not in (True, False):
        raise _wrong(name, value, "True or False")
    return bool(value)


def _tokens(name: str, value: Any) -> tuple[int, ...]:
    values = value.tolist() if hasattr(value, "tolist") else value
    values = [values] if hasattr(values, "__index__") else values
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise _wrong(name, value, "a token or a list of tokens")
    tokens = tuple(_whole(name, one) for one in values)
    if any(one < 0 for one in tokens):
        raise _wrong(name, value, "tokens, which are 0 or more")
    return tokens


def _token(name: str, value: Any) -> int:
    tokens = _tokens(name, value)
    if len(tokens) != 1:
        raise _wrong(name, value, "one token")
    return tokens[0]


def _sequences(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise _wrong(name, value, "a list of lists of tokens")
    found = tuple(_tokens(name, list(one) if isinstance(one, tuple) else one) for one in value)
    if any(not one for one in found):
        raise _wrong(name, value, "a list of lists of tokens, none of them empty")
    return found


def _biases(name: str, value: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    try:
        found = tuple((_tokens(name, list(tokens)), _number(name, bias)) for tokens, bias in pairs)
    except (TypeError, ValueError):
        raise _wrong(name, value, "a bias for each of some sequences of tokens") from None
    if any(not tokens for tokens, _ in found):
        raise _wrong(name, value, "a bias for sequences of one or more tokens")
    return found


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, str) and not hasattr(value, "__iter__"):
        raise _wrong(name, value, "a text or a list of texts")
    texts = (value,) if isinstance(value, str) else tuple(value)
    if any(not isinstance(one, str) or not one for one in texts):
        raise _wrong(name, value, "texts that are not empty")
    return texts


def _decay(name: str, value: Any) -> tuple[int, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise _wrong(name, value, "the number of tokens that it begins after, and a factor")
    return _whole(name, value[0]), _number(name, value[1])


_FORMS: Mapping[str, Any] = {
    **dict.fromkeys(
        (
            "max_length",
            "max_new_tokens",
            "min_length",
            "min_new_tokens",
            "top_k",
            "num_beams",
            "num_return_sequences",
            "no_repeat_ngram_size",
        ),
        _whole,
    ),
    **dict.fromkeys(
        (
            "max_time",
            "temperature",
            "top_p",
            "min_p",
            "typical_p",
            "epsilon_cutoff",
            "eta_cutoff",
            "length_penalty",
            "repetition_penalty",
        ),
        _number,
    ),
    **dict.fromkeys(("do_sample", "remove_invalid_values", "renormalize_logits"), _flag),
    **dict.fromkeys(("eos_token_id", "suppress_tokens", "begin_suppress_tokens", "forced_eos_token_id"), _tokens),
    **dict.fromkeys(("pad_token_id", "forced_bos_token_id"), _token),
    "bad_words_ids": _sequences,
    "sequence_bias": _biases,
    "stop_strings": _texts,
    "exponential_decay_length_penalty": _decay,
}
