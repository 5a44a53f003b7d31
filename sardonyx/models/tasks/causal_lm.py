"""Decoders: text goes on from a prompt."""

from __future__ import annotations

import threading
from bisect import bisect_left
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from sardonyx import errors
from sardonyx.models import vocabulary
from sardonyx.models.arrays import Array, arrayed, as_numpy, as_tensor, is_tensor
from sardonyx.models.auto_classes import AutoClass
from sardonyx.models.base import refuse_unknown
from sardonyx.models.folders import layout
from sardonyx.models.folders.decoders import decoder_name
from sardonyx.models.generation import model_facts, signature
from sardonyx.models.generation.bound_decoder import counts_by_mask
from sardonyx.models.generation.decoder import Decoder
from sardonyx.models.generation.signature import Signature
from sardonyx.models.requirements import installed
from sardonyx.models.tasks import key_values as caches_of
from sardonyx.models.tasks import own_loop
from sardonyx.models.tasks.generating import Generating, Generation, ones, output
from sardonyx.models.tasks.key_values import key_values
from sardonyx.models.tasks.unpadded import run_unpadded

if TYPE_CHECKING:
    from sardonyx.models.folders.model_files import ModelFiles
    from sardonyx.models.sessions import SessionSettings

# Inputs that our own loop gives a decoder, beside its caches.
_KNOWN = (signature.IDS, signature.MASK, signature.POSITIONS, signature.PAST_LENGTH, signature.USE_CACHE)


class ORTModelForCausalLM(Generating):
    """A language model that continues a prompt.

    `forward` takes tokens and gives logits and caches; `generate` continues. Each has a session of its own, which is
    opened when it is first needed. Files without caches work too, and
    compute the whole text again for each token.
    """

    task = "text-generation-with-past"
    main_input_name = "input_ids"
    auto_model_class = AutoClass("AutoModelForCausalLM")

    @classmethod
    def _open(cls, files: ModelFiles, config: Any, settings: SessionSettings, **kwargs: Any) -> Self:
        """One file: ``model.onnx``; else a merged decoder, else the one with caches (without, for use_cache=False)."""
        said = Generation.taken(kwargs)
        file_name = kwargs.pop("file_name", None)
        refuse_unknown(cls, kwargs)
        path = files.path(decoder_name(files, file_name, said.use_cache, said.use_merged))
        config.is_decoder, config.is_encoder_decoder = True, False
        return cls(
            config=config,
            parts={layout.MODEL: settings.open_later(path)},
            model_save_dir=said.model_save_dir or path.parent,
            generation_config=said.config(files, config),
            settings=settings,
        )

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._steps: Decoder | None = None
        self._opening = threading.Lock()
        self._caches = caches_of.cache_names(self._main)
        part = self._main
        self._masks_new = "input_ids" in part.inputs and Signature.of(part.given, part.made).masks_new
        self.key_value_input_names = [one.input for one in self._caches]
        self.key_value_output_names = [one.output for one in self._caches if one.output is not None]

    @property
    def can_use_cache(self) -> bool:
        """Whether the model takes and gives caches."""
        return bool(self.key_value_input_names) and bool(self.key_value_output_names)

    @property
    def is_merged(self) -> bool:
        """Whether the file holds two graphs, without and with caches, of which an input chooses."""
        return "use_cache_branch" in self._main.inputs

    @property
    def use_merged(self) -> bool:
        """Whether the file holds two graphs, without and with caches, of which an input chooses."""
        return self.is_merged

    def forward(
        self,
        input_ids: Array | None = None,
        attention_mask: Array | None = None,
        past_key_values: Any = None,
        position_ids: Array | None = None,
        use_cache: bool | None = None,
        cache: Any = None,
        return_dict: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> Any:
        """Logits and caches for tokens: a `CausalLMOutputWithPast`.

        `input_ids` is (batch, length), `attention_mask` (batch, earlier positions + length), 1 where a position counts;
        `past_key_values`, or `cache` as transformers 5 calls it, is what an earlier call gave. `logits` are
        (batch, length, vocabulary), of the last `logits_to_keep` positions alone if that is not 0. Without
        `attention_mask` all positions count; without `position_ids` they follow each other.

        `errors.InvalidArgument` for tokens that the model has not, and for `use_cache` of a model without caches.
        """
        part = self._main
        self._refuse_what_is_not_there(kwargs)
        input_ids = arrayed(input_ids, "input_ids")
        attention_mask = arrayed(attention_mask, "attention_mask")
        position_ids = arrayed(position_ids, "position_ids")
        tokens = input_ids if input_ids is not None else kwargs.get("inputs_embeds")
        if tokens is None:
            raise errors.InvalidArgument("forward needs input_ids, of the shape (batch, length)")
        if input_ids is not None:
            self._check_ids(input_ids, self.vocabulary, "input_ids")
        keeps = self._wants_cache(use_cache)
        past = key_values(cache if cache is not None else past_key_values)
        batch, length = int(tokens.shape[0]), int(tokens.shape[1])
        earlier = past.get_seq_length() if past is not None else 0

        self._check_shapes(batch, earlier, length, attention_mask, position_ids)
        if past is not None and len(past.flat()) != len(self.key_value_input_names):
            raise errors.InvalidArgument(
                f"past_key_values has {len(past.flat())} arrays, and the model takes "
                f"{len(self.key_value_input_names)}: pass what an earlier call gave"
            )

        values: dict[str, Any] = {name: value for name, value in kwargs.items() if name in part.inputs}
        values["input_ids"] = input_ids
        if "attention_mask" in part.inputs:
            whole = earlier + length
            shown = attention_mask if attention_mask is not None else ones(batch, whole, tokens)
            values["attention_mask"] = shown[:, -length:] if self._masks_new else shown
        if "position_ids" in part.inputs:
            values["position_ids"] = position_ids
            if position_ids is None:
                values["position_ids"] = self._positions(batch, earlier, length, attention_mask)
        if self.is_merged:
            values["use_cache_branch"] = np.array([past is not None])
        if "num_logits_to_keep" in part.inputs:
            values["num_logits_to_keep"] = np.array(logits_to_keep, np.int64)
        if past is None:
            values |= caches_of.empty(part, self._caches, batch, head_size(self.config))
        else:
            values |= dict(zip(self.key_value_input_names, past.flat(), strict=True))

        wanted = ["logits", *(self.key_value_output_names if keeps else ())]
        mask = values.get("attention_mask")
        try:
            if self._counts_by_mask and mask is not None and not as_numpy(mask)[:, -length:].all():
                results = run_unpadded(part, values, wanted, self._caches)
            else:
                results = part.run(values, wanted)
        except errors.OnnxRuntimeError as error:
            raise vocabulary.explained(error, input_ids, self.config, earlier) from error
        logits = results["logits"]
        if logits_to_keep and logits.shape[1] > logits_to_keep:
            logits = logits[:, -logits_to_keep:]
        given = caches_of.by_layer(self._caches, results, earlier + length, past) if keeps else None
        return output("CausalLMOutputWithPast", return_dict, given, logits=logits)

    def _check_shapes(self, batch: int, earlier: int, length: int, mask: Array | None, positions: Array | None) -> None:
        """InvalidArgument for a mask or positions that are not of these tokens."""
        whole = (batch, earlier + length)
        fitting = (whole, (batch, length)) if self._masks_new else (whole,)
        if mask is not None and tuple(mask.shape) not in fitting:
            raise errors.InvalidArgument(
                f"attention_mask has the shape {list(mask.shape)}: expected {list(whole)}, which is (batch, earlier "
                "positions + length)"
            )
        if positions is not None and (not positions.ndim or positions.shape[-1] != length):
            raise errors.InvalidArgument(
                f"position_ids has the shape {list(positions.shape)}: expected {[batch, length]}, as of input_ids"
            )

    def prepare_inputs_for_generation(self, input_ids: Array, *args: Any, **kwargs: Any) -> Any:
        """transformers' own; where a longer text has other tables of rotary embeddings, all of it is read again."""
        name = "cache" if kwargs.get("cache") is not None else "past_key_values"
        past = key_values(kwargs.get(name))
        limits = self.session._session().length_limits.get("attention_mask")
        if past is not None and limits:
            earlier, whole = past.get_seq_length(), int(input_ids.shape[1])
            if bisect_left(limits, earlier) != bisect_left(limits, whole):
                kwargs |= {name: None, "next_sequence_length": None}
        return super().prepare_inputs_for_generation(input_ids, *args, **kwargs)

    @cached_property
    def _counts_by_mask(self) -> bool:
        """Whether the model takes the number of a row's tokens from its mask."""
        part = self._main
        return "input_ids" in part.inputs and counts_by_mask(self.session, Signature.of(part.given, part.made))

    @property
    def steps(self) -> Decoder:
        """The model as steps over caches, as our own loop takes it; made at the first use, once for all threads."""
        with self._opening:
            if self._steps is None and self._settings is not None:
                given = self._settings
                self._steps = Decoder.open(
                    self._main.path,
                    self.config,
                    session_options=given.session_options,
                    providers=given.providers,
                    provider_options=given.provider_options,
                )
            elif self._steps is None:
                self._steps = Decoder.of(self.session, self.config)
            return self._steps

    def _why_not(self, call: own_loop.Call) -> str | None:
        others = [name for name in self._main.inputs if name not in _KNOWN and name not in self.key_value_input_names]
        return f"the model's inputs {', '.join(others)}" if others else None

    def _require_positions(self, call: own_loop.Call) -> None:
        ids, positions = call.values.get("input_ids"), model_facts.number(self.config, model_facts.POSITIONS)
        if ids is None:
            return
        self._check_ids(ids, self.vocabulary, "input_ids")
        length = as_numpy(ids, "input_ids").shape[1]
        if positions is not None and length > positions:
            raise errors.InvalidArgument(
                f"A prompt of {length} tokens needs as many positions; the model has {positions}. Shorten the prompt"
            )

    def _own(self, call: own_loop.Call) -> Array:
        ids = call.values.get("input_ids")
        if ids is None:
            if call.config.bos_token_id is None:
                raise errors.InvalidArgument("There is no prompt: pass input_ids, of the shape (batch, length)")
            ids = np.array([[call.config.bos_token_id]], np.int64)
            ids = as_tensor(ids) if installed("torch") else ids
        prompt = as_numpy(ids, "input_ids")
        self._check_ids(prompt, self.vocabulary, "input_ids")
        mask = call.values.get("attention_mask")
        found = call.run(self.steps, prompt, None if mask is None else as_numpy(mask, "attention_mask"))
        return own_loop.like(found, ids)

    @property
    def vocabulary(self) -> int | None:
        """How many tokens the model has; None where its output leaves that open."""
        size = self._main.output_shapes["logits"][-1]
        return size if isinstance(size, int) else None

    def _positions(self, batch: int, earlier: int, length: int, mask: Array | None) -> Array:
        if self.config.model_type == "opt" and mask is not None:
            counted = np.cumsum(as_numpy(mask), axis=1) - 1
            found = np.where(as_numpy(mask) == 0, -1, counted)[:, earlier:].astype(np.int64)
        else:
            found = np.broadcast_to(np.arange(earlier, earlier + length, dtype=np.int64), (batch, length))
        if mask is not None and is_tensor(mask):
            import torch

            return torch.from_numpy(np.ascontiguousarray(found))
        return np.ascontiguousarray(found)


def head_size(config: Any) -> int:
    """The size of an attention head by a config of transformers."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    given = getattr(text, "head_dim", None) or getattr(text, "d_kv", None)
    return int(given) if given else int(text.hidden_size) // int(text.num_attention_heads)
