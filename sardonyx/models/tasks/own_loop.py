"""Which calls of `generate` our own loop does, and doing them: without copies of caches, and without tensors inside."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.models.arrays import Array, as_numpy, as_tensor, is_tensor
from sardonyx.models.base import LOG
from sardonyx.models.generation.loop import Steps, generate
from sardonyx.models.generation.settings import Settings
from sardonyx.models.requirements import require

# Arguments of `generate` that only transformers' generation knows, where they are given.
_THEIRS = (
    "assistant_model",
    "assistant_tokenizer",
    "custom_generate",
    "negative_prompt_attention_mask",
    "negative_prompt_ids",
    "prefix_allowed_tokens_fn",
)
# Arguments that say nothing to a model of one process.
_IDLE = ("synced_gpus", "use_model_defaults", "trust_remote_code", "use_cache")
# What drawing goes by, where nothing is drawn.
_EVEN = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None, "typical_p": 1.0}
# Settings of GenerationConfig beyond what `Settings` names, which change what comes out.
_SETTINGS = ("forced_decoder_ids", "return_dict_in_generate")


class Call:
    """One call of `generate`: its settings by transformers' rules, and the arguments that are inputs of the model.

    `reason` says why our loop cannot do it, None where it can.
    """

    def __init__(self, model: Any, arguments: Mapping[str, Any]) -> None:
        given = {name: value for name, value in arguments.items() if value is not None and name not in _IDLE}
        self.theirs = [name for name in _THEIRS if given.pop(name, None) is not None]
        self.processors = given.pop("logits_processor", None)
        self.stopping = given.pop("stopping_criteria", None)
        self.streamer = given.pop("streamer", None)
        self.tokenizer = given.pop("tokenizer", None)
        inputs = given.pop("inputs", None)
        generation_config = given.pop("generation_config", None)
        length = given.get("max_length")
        self.config, rest = prepared(model, generation_config, given)
        self.values = {name: value for name, value in rest.items() if value is not None}
        if inputs is not None:
            self.values.setdefault(model.main_input_name, inputs)
        self.settings = Settings.of(self.config, **changes(self.config, length))
        self.reason = self._reason(model)

    def _reason(self, model: Any) -> str | None:
        found = [*self.theirs, *self.settings.unsupported]
        found += [name for name in _SETTINGS if getattr(self.config, name, None)]
        found += [name for name in self.values if name not in model.own_arguments]
        if self.streamer is not None and (self.settings.num_beams > 1 or self.settings.num_return_sequences > 1):
            found.append("streamer beside several sequences")
        return ", ".join(found) or None

    def run(
        self, steps: Steps, prompt: Array, mask: Array | None, others: Mapping[str, Any] | None = None
    ) -> np.ndarray[Any, Any]:
        """The sequences (rows, tokens) of a prompt of arrays, prompt included."""
        return generate(
            steps,
            prompt,
            self.settings,
            attention_mask=mask,
            processors=self.processors,
            stopping=self.stopping,
            streamer=self.streamer,
            tokenizer=self.tokenizer,
            others=others,
            gives_cache=False,
        ).sequences


def changes(config: Any, length: Any) -> dict[str, Any]:
    """What differs for our loop from a generation config: transformers does not look at it, or means nothing by it."""
    changes: dict[str, Any] = {} if length is None else {"max_length": length}
    if not config.do_sample:
        changes |= _EVEN
    if isinstance(config.pad_token_id, int) and config.pad_token_id < 0:
        changes["pad_token_id"] = None
    return changes


def prepared(model: Any, generation_config: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The generation config of a call, and the arguments that are none of its settings.

    `errors.InvalidArgument` for settings that transformers refuses.
    """
    prepare = getattr(model, "_prepare_generation_config", None)
    try:
        if prepare is not None:
            found: tuple[Any, dict[str, Any]] = prepare(generation_config, **given)
            return found
        config = copy.deepcopy(generation_config if generation_config is not None else model.generation_config)
        return config, config.update(**given)
    except (ValueError, TypeError, AttributeError) as error:
        raise errors.InvalidArgument(f"The settings of this generation cannot be taken: {error}") from error


def tell(model: Any, reason: str) -> None:
    """Say in the log why a call goes through transformers' generation."""
    LOG.info(f"{type(model).__name__}.generate goes through transformers' generation, for {reason}", "generate")


def started(call: Call, rows: int, given: Array | None) -> np.ndarray[Any, Any]:
    """The tokens (rows, length) that a decoder begins with: those given, else the one that its config names."""
    start = call.config.decoder_start_token_id
    start = call.config.bos_token_id if start is None else start
    if given is not None:
        return as_numpy(given, "decoder_input_ids")
    if start is None:
        raise errors.InvalidArgument(
            "The generation config names no token to begin with: set decoder_start_token_id, or pass decoder_input_ids"
        )
    return np.broadcast_to(np.asarray(start, np.int64).reshape(-1, 1), (rows, 1)).copy()


def encoder_mask(call: Call, main: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Which tokens of an encoder count where nobody says so: transformers 4 takes padding for none, 5 does not."""
    pad = call.settings.pad_token_id
    if main.ndim != 2 or main.dtype.kind not in "iu" or pad is None or pad in call.settings.eos_token_id:
        return None
    if int(require("transformers", "Generation").__version__.partition(".")[0]) >= 5:
        return None
    mask: np.ndarray[Any, Any] = (main != pad).astype(np.int64)
    return mask


def like(found: np.ndarray[Any, Any], given: Array) -> Array:
    """The sequences as a tensor, where the inputs were one."""
    return as_tensor(found) if is_tensor(given) else found
