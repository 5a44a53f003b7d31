"""Encoder-decoders: an encoder that runs once, and a decoder that takes its states with each token."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from sardonyx import errors
from sardonyx.models.arrays import Array, as_numpy
from sardonyx.models.base import refuse_unknown
from sardonyx.models.folders import layout
from sardonyx.models.generation.decoder import ENTRIES
from sardonyx.models.generation.encoder_decoder import DecoderFiles, EncodedDecoder
from sardonyx.models.part import Part
from sardonyx.models.requirements import require
from sardonyx.models.tasks import key_values as caches_of
from sardonyx.models.tasks import own_loop
from sardonyx.models.tasks.causal_lm import head_size
from sardonyx.models.tasks.generating import Generating, Generation, ones, output
from sardonyx.models.tasks.key_values import KeyValues, key_values

if TYPE_CHECKING:
    from sardonyx.models.folders.model_files import ModelFiles
    from sardonyx.models.sessions import SessionSettings

_FILES = (layout.ENCODER, layout.DECODER, layout.DECODER_WITH_PAST)
# What outputs with the weights of attention are called, by layer: `cross_attentions.0`, …
_ATTENTIONS = ("decoder_attentions", "cross_attentions")


class ORTEncoder:
    """The encoder of a model: what it is called with goes to its ONNX inputs of these names.

    `main_input_name` is the first of them, and what generation gives it.
    """

    def __init__(self, part: Part, main_input_name: str) -> None:
        self.part = part
        self.main_input_name = main_input_name

    @property
    def session(self) -> Any:
        """The encoder's session."""
        return self.part.session

    def forward(self, *args: Array, return_dict: bool | None = None, **kwargs: Any) -> Any:
        """The states of the encoder as a `BaseModelOutput`: `last_hidden_state` (batch, length, size).

        Without `attention_mask` all positions count.
        """
        values: dict[str, Any] = dict(zip([self.main_input_name], args, strict=False)) | kwargs
        main = values.get(self.main_input_name)
        if main is None:
            raise errors.InvalidArgument(f"The encoder needs {self.main_input_name}")
        if "attention_mask" in self.part.inputs and values.get("attention_mask") is None:
            length = int(main.shape[-1] if main.ndim == 2 else main.shape[1])
            values["attention_mask"] = ones(int(main.shape[0]), length, main)
        found = self.part.run(values)
        states = found.get("last_hidden_state")
        if states is None:
            states = next(iter(found.values()))
        return output("BaseModelOutput", return_dict, last_hidden_state=states)

    def __call__(self, *args: Array, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)


class ORTDecoder:
    """The decoder of a model: one file, or one for the first step and one for the others.

    A first step takes the encoder's states and gives caches of its own attention and of that over the states; the
    others take those. A file of both kinds (`is_merged`) has an input that says which it is.
    """

    main_input_name = "input_ids"

    def __init__(self, config: Any, first: Part, with_past: Part | None = None) -> None:
        self.config = config
        self.part = first
        self.with_past = with_past if with_past is not None else first
        if "logits" not in first.outputs:
            raise errors.InvalidArgument(
                f"The decoder {first.path} gives no logits, but {', '.join(first.outputs)}: it is the file of another "
                "part"
            )
        self.caches = caches_of.cache_names(self.with_past)
        self.is_merged = "use_cache_branch" in first.inputs
        self._given = [one.output or "" for one in caches_of.given_names(first)]
        self._attentions = {kind: _numbered(kind, first, self.with_past) for kind in _ATTENTIONS}

    @cached_property
    def _one_a_step(self) -> bool:
        """Whether later steps take one token each: graphs that were traced with one give wrong numbers for more,
        without a word."""
        outputs = {argument.name: argument.shape for argument in self.with_past.session.get_outputs()}
        return self.is_merged or outputs.get("logits", [None, None])[1] in (1, "1")

    @property
    def session(self) -> Any:
        """The session of the first step."""
        return self.part.session

    @property
    def key_value_input_names(self) -> list[str]:
        """The inputs that take caches."""
        return [one.input for one in self.caches]

    @property
    def key_value_output_names(self) -> list[str]:
        """The outputs of the first step that give caches."""
        return self._given

    @property
    def can_use_cache(self) -> bool:
        """Whether there are caches to take and to give."""
        return bool(self.caches) and bool(self._given)

    @property
    def vocabulary(self) -> int | None:
        """How many tokens the model has; None where its output leaves that open."""
        size = self.part.output_shapes["logits"][-1]
        return size if isinstance(size, int) else None

    def require_attentions(self) -> None:
        """`errors.InvalidArgument` where the files do not give the weights of attention over the encoder's states."""
        if not self._attentions["cross_attentions"]:
            raise errors.InvalidArgument(
                f"output_attentions and return_token_timestamps take a decoder with the outputs cross_attentions.0, …: "
                f"{self.with_past.path.name} gives {', '.join([*self.with_past.outputs][:3])}, … Export the model with "
                "Optimum's main_export(…, model_kwargs={'output_attentions': True}, no_post_process=True, "
                "custom_onnx_configs=…), whose configs of both decoders name these outputs, or take files that were, "
                "such as transformers.js' *_timestamped"
            )

    def forward(
        self,
        input_ids: Array,
        attention_mask: Array | None = None,
        encoder_hidden_states: Array | None = None,
        encoder_attention_mask: Array | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Logits (batch, length, vocabulary) and caches as a `Seq2SeqLMOutput`.

        With `output_attentions` also what the files give of `decoder_attentions` and `cross_attentions`, for each
        layer (batch, heads, length, positions); `errors.InvalidArgument` where they give none of the latter.
        """
        if output_attentions:
            self.require_attentions()
        wanted = [name for names in self._attentions.values() for name in names] if output_attentions else []
        keeps = self.can_use_cache if use_cache is None else use_cache
        past = key_values(past_key_values)
        shared = {"encoder_hidden_states": encoder_hidden_states, "encoder_attention_mask": encoder_attention_mask}
        length = int(input_ids.shape[1])
        if past is None or length == 1 or not self._one_a_step:
            found, past = self._step(input_ids, attention_mask, past, keeps, shared, wanted)
        else:
            pieces: list[dict[str, Array]] = []
            for column in range(length):
                mask = (
                    None
                    if attention_mask is None
                    else attention_mask[:, : attention_mask.shape[1] - length + column + 1]
                )
                piece, past = self._step(input_ids[:, column : column + 1], mask, past, True, shared, wanted)
                pieces.append(piece)
            found = {name: _joined([piece[name] for piece in pieces], name) for name in pieces[0]}
        fields: dict[str, Any] = {"logits": found["logits"]}
        if output_attentions:
            # No layers at all, and not None, is what transformers can go through.
            fields |= {kind: tuple(found[name] for name in names) for kind, names in self._attentions.items()}
        return output("Seq2SeqLMOutput", return_dict, past if keeps else None, **fields)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def _step(
        self,
        ids: Array,
        mask: Array | None,
        past: KeyValues | None,
        keeps: bool,
        shared: Mapping[str, Any],
        further: Sequence[str],
    ) -> tuple[dict[str, Array], KeyValues | None]:
        """The logits and further outputs by name, and the caches."""
        part = self.part if past is None else self.with_past
        batch, length = int(ids.shape[0]), int(ids.shape[1])
        earlier = past.get_seq_length() if past is not None else 0
        values: dict[str, Any] = {"input_ids": ids, **shared}
        if "encoder_attention_mask" in part.inputs and shared["encoder_attention_mask"] is None:
            states = shared["encoder_hidden_states"]
            columns = past[0][2].shape[2] if states is None and past is not None else states.shape[1]
            values["encoder_attention_mask"] = ones(batch, int(columns), ids)
        for name in ("attention_mask", "decoder_attention_mask"):
            if name in part.inputs:
                values[name] = mask if mask is not None else ones(batch, earlier + length, ids)
        if "cache_position" in part.inputs:
            values["cache_position"] = np.arange(earlier, earlier + length, dtype=np.int64)
        if self.is_merged:
            values["use_cache_branch"] = np.array([past is not None])
        if past is not None:
            values |= dict(zip(self.key_value_input_names, past.flat(), strict=True))
        elif self.is_merged or part is self.with_past:
            states = shared["encoder_hidden_states"]
            columns = 0 if states is None else int(states.shape[1])
            values |= caches_of.empty(part, self.caches, batch, head_size(self.config), columns)

        if past is None:
            wanted = self._given
        else:
            wanted = [one.output for one in self.caches if one.output is not None and not one.is_cross]
        results = part.run(values, ["logits", *further, *(wanted if keeps else ())])
        found = {name: results[name] for name in ("logits", *further)}
        if not keeps:
            return found, None
        names = self.caches if past is not None else caches_of.given_names(part)
        return found, caches_of.by_layer(names, results, earlier + length, past)


class ORTModelForConditionalGeneration(Generating):
    """An encoder-decoder with a language model's head: the base of the classes for text, speech and images.

    `encoder` and `decoder` are its halves; the parts are called ``encoder``, ``decoder`` and ``decoder_with_past``.
    """

    @classmethod
    def _open(cls, files: ModelFiles, config: Any, settings: SessionSettings, **kwargs: Any) -> Self:
        """An encoder and a decoder: a merged one, or one for the first step and one with caches for the others."""
        said = Generation.taken(kwargs)
        names = {role: kwargs.pop(f"{role}_file_name", None) for role in _FILES}
        refuse_unknown(cls, kwargs)
        found = {layout.ENCODER: files.require(layout.ENCODER, names[layout.ENCODER], "encoder_file_name")}
        found |= _decoder_files(files, names, said)
        paths = {role: files.path(name) for role, name in found.items()}
        opens = {layout.ENCODER: settings.open}
        parts = {role: opens.get(role, settings.open_later)(path) for role, path in paths.items()}
        config.is_encoder_decoder = True
        if hasattr(config, "is_decoder"):
            config.is_decoder = False
        return cls._of_kind(config)(
            config=config,
            parts=parts,
            model_save_dir=said.model_save_dir or paths[layout.ENCODER].parent,
            generation_config=said.config(files, config),
            settings=settings,
        )

    def __init__(self, *, parts: Mapping[str, Part], **kwargs: Any) -> None:
        super().__init__(parts=parts, **kwargs)
        self.encoder = ORTEncoder(self.parts["encoder"], self.main_input_name)
        self.decoder = ORTDecoder(self.config, self.parts["decoder"], self.parts.get("decoder_with_past"))
        self._decoder_files: DecoderFiles | None = None
        self._opening = threading.Lock()

    @property
    def own_arguments(self) -> tuple[str, ...]:  # type: ignore[override]
        """What of the arguments of `generate` our own loop knows as inputs of the model."""
        return (
            self.main_input_name,
            "attention_mask",
            "encoder_outputs",
            "decoder_input_ids",
            "decoder_attention_mask",
        )

    def _why_not(self, call: own_loop.Call) -> str | None:
        """Tokens to begin with that are not the model's own: transformers puts those before them."""
        given, start = call.values.get("decoder_input_ids"), call.config.decoder_start_token_id
        if given is not None and self.config.model_type != "whisper" and (as_numpy(given)[:, 0] != start).all():
            return "decoder_input_ids that do not begin with decoder_start_token_id"
        return None

    def _own(self, call: own_loop.Call) -> Array:
        main, states = call.values.get(self.main_input_name), call.values.get("encoder_outputs")
        like = main
        mask = call.values.get("attention_mask")
        mask = None if mask is None else as_numpy(mask, "attention_mask")
        if states is None:
            if main is None:
                raise errors.InvalidArgument(f"There is no input: pass {self.main_input_name}")
            main = as_numpy(main, self.main_input_name)
            if main.ndim == 2 and main.dtype.kind in "iu":
                self._check_ids(main, None, self.main_input_name)
            mask = own_loop.encoder_mask(call, main) if mask is None else mask
            states = self.encoder(**{self.main_input_name: main, "attention_mask": mask}).last_hidden_state
        else:
            states = like = states[0] if isinstance(states, tuple | list) else states.last_hidden_state
        steps = self.steps_over(as_numpy(states, "encoder_outputs"), mask)
        prompt = own_loop.started(call, len(states), call.values.get("decoder_input_ids"))
        self._check_ids(prompt, self.decoder.vocabulary, "decoder_input_ids")
        shown = call.values.get("decoder_attention_mask")
        shown = np.ones_like(prompt) if shown is None else as_numpy(shown, "decoder_attention_mask")
        return own_loop.like(call.run(steps, prompt, shown), like)

    def steps_over(self, states: np.ndarray[Any, Any], mask: np.ndarray[Any, Any] | None = None) -> EncodedDecoder:
        """The decoder as steps, as our own loop takes it, over the encoder's states (rows, length, size).

        `mask` is that of the encoder's inputs.
        """
        return EncodedDecoder(self._files_in_place(), self.config, states, self._states_mask(mask, states))

    def _files_in_place(self) -> DecoderFiles:
        """The decoder's sessions, with one that writes its caches in place, where that is possible; made once for all
        threads."""
        with self._opening:
            if self._decoder_files is None:
                placed = None
                decoder = self.decoder
                if self._settings is not None and decoder.can_use_cache:
                    entries = dict(ENTRIES)
                    if decoder.is_merged:
                        entries["sardonyx.use_cache_branch"] = "1"
                    placed = self._settings.open(decoder.with_past.path, entries).session
                self._decoder_files = DecoderFiles(decoder.part, decoder.with_past, placed)
            return self._decoder_files

    @classmethod
    def _of_kind(cls, config: Any) -> type[Self]:
        """The class of a model's kind."""
        return cls

    @property
    def decoder_with_past(self) -> ORTDecoder | None:
        """The decoder, where a file of its own takes caches."""
        return self.decoder if "decoder_with_past" in self.parts else None

    @property
    def can_use_cache(self) -> bool:
        """Whether the decoder takes and gives caches."""
        return self.decoder.can_use_cache

    @property
    def use_merged(self) -> bool:
        """Whether the decoder's file holds two graphs, of which an input chooses."""
        return self.decoder.is_merged

    def get_encoder(self, modality: str | None = None) -> ORTEncoder:
        """The encoder."""
        return self.encoder

    def get_decoder(self) -> ORTDecoder:
        """The decoder."""
        return self.decoder

    def _forward(
        self,
        main: Array | None,
        attention_mask: Array | None,
        decoder_input_ids: Array | None,
        decoder_attention_mask: Array | None,
        encoder_outputs: Any,
        past_key_values: Any,
        use_cache: bool | None,
        return_dict: bool | None,
        kwargs: dict[str, Any],
    ) -> Any:
        output_attentions = bool(kwargs.pop("output_attentions", None))
        if output_attentions:
            self.decoder.require_attentions()
        self._refuse_what_is_not_there(kwargs)
        if decoder_input_ids is None:
            raise errors.InvalidArgument("forward needs decoder_input_ids, of the shape (batch, length)")
        self._check_ids(decoder_input_ids, self.decoder.vocabulary, "decoder_input_ids")
        keeps = self._wants_cache(use_cache)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(**{self.main_input_name: main, "attention_mask": attention_mask})
        states = encoder_outputs[0] if isinstance(encoder_outputs, tuple | list) else encoder_outputs.last_hidden_state
        found = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=states,
            encoder_attention_mask=self._states_mask(attention_mask, states),
            past_key_values=past_key_values,
            use_cache=keeps,
            return_dict=True,
            output_attentions=output_attentions,
        )
        return output(
            "Seq2SeqLMOutput",
            return_dict,
            found.get("cache", found.get("past_key_values")),
            logits=found.logits,
            encoder_last_hidden_state=states,
            **{kind: found[kind] for kind in _ATTENTIONS if output_attentions},
        )

    def _states_mask(self, attention_mask: Array | None, states: Array) -> Array | None:
        """Which of the encoder's states count: the mask of its inputs where there is one state for each of them."""
        if attention_mask is None or attention_mask.shape[-1] != states.shape[1]:
            return None
        return attention_mask


def _decoder_files(files: ModelFiles, names: Mapping[str, str | None], said: Generation) -> dict[str, str]:
    """The decoder's file or two files by role; `errors.NoSuchFile` where there is none."""
    first, second = names[layout.DECODER], names[layout.DECODER_WITH_PAST]
    if said.use_merged is not False and second is None:
        if said.use_merged:
            return {layout.DECODER: files.require(layout.DECODER_MERGED, first, "decoder_file_name")}
        merged = files.find(layout.DECODER_MERGED) if first is None else None
        if merged is not None:
            return {layout.DECODER: merged}
    found = {layout.DECODER: files.require(layout.DECODER, first, "decoder_file_name")}
    if said.use_cache:
        with_past = files.find(layout.DECODER_WITH_PAST, second, "decoder_with_past_file_name")
        if with_past is not None:
            found[layout.DECODER_WITH_PAST] = with_past
    return found


def _numbered(kind: str, first: Part, with_past: Part) -> list[str]:
    """The outputs `kind.0`, `kind.1`, … that both files have, in order."""
    found: list[str] = []
    while all(f"{kind}.{len(found)}" in part.outputs for part in (first, with_past)):
        found.append(f"{kind}.{len(found)}")
    return found


def _joined(pieces: list[Array], name: str) -> Array:
    """The logits or weights of attention of tokens one behind the other."""
    axis = 1 if name == "logits" else 2
    if name.startswith("decoder_attentions"):  # later tokens see more positions
        raise errors.NotImplemented(
            "output_attentions for several tokens behind others, with a file that was traced for one token: pass the "
            "tokens one by one"
        )
    first = pieces[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(pieces, axis=axis)
    return require("torch", "Tensors").cat(pieces, dim=axis)
