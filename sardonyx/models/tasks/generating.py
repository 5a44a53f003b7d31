"""What classes that generate share: transformers' generation over `forward`, and the generation config."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx import errors
from sardonyx.models.arrays import Array, as_numpy, as_tensor, is_tensor
from sardonyx.models.base import LOG, ORTModel
from sardonyx.models.folders.generation_defaults import generation_defaults
from sardonyx.models.generation.settings import Settings
from sardonyx.models.requirements import installed, require
from sardonyx.models.tasks import own_loop
from sardonyx.models.tasks.key_values import KeyValues, key_values

if TYPE_CHECKING:
    from sardonyx.models.folders.model_files import ModelFiles
    from sardonyx.models.sessions import SessionSettings


def _mixin() -> Any:
    """transformers' GenerationMixin; nothing where torch, which it is made of, is not installed."""
    if not installed("torch"):
        return object
    return require("transformers", "Generation").GenerationMixin


class Generating(ORTModel, _mixin()):  # type: ignore[misc]
    """A model that generates: `forward` gives logits and caches, `generate` and its relatives are transformers'.

    `generation_config` is transformers' GenerationConfig.
    """

    # What transformers asks of a model that generates.
    _is_stateful = False
    _supports_cache_class = False
    hf_quantizer = None
    input_modalities = ("text",)
    output_modalities = ("text",)

    def __init__(
        self, *, generation_config: Any = None, settings: SessionSettings | None = None, **kwargs: Any
    ) -> None:
        """As of `ORTModel`; `settings` are those of the sessions, by which our own loop opens further ones."""
        super().__init__(**kwargs)
        self._settings = settings
        self._warned_of_types = False
        if generation_config is None and self.config is not None:
            generation_config = require("transformers", "Generation").GenerationConfig.from_model_config(self.config)
        self.generation_config = generation_config

    def can_generate(self) -> bool:
        """True."""
        return True

    @property
    def can_use_cache(self) -> bool:
        """Whether the model's files take and give caches."""
        raise NotImplementedError

    @property
    def use_cache(self) -> bool:
        """Whether the model's files take and give caches."""
        return self.can_use_cache

    @property
    def name_or_path(self) -> str:
        """The folder that the model's files lie in."""
        return os.fspath(self.model_save_dir)

    def is_remote_code(self) -> bool:
        """False: no code comes with the model."""
        return False

    def get_experts_implementation(self) -> dict[str, str]:
        """Empty: how experts are computed is not transformers' choice here."""
        return {}

    def _prepare_generation_config(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """transformers' own, without caches where the model's files take none, whatever the defaults say."""
        settings, rest = super()._prepare_generation_config(*args, **kwargs)
        settings.use_cache = bool(settings.use_cache) and self.can_use_cache
        return settings, rest

    # What of the arguments of `generate` our own loop knows as inputs of the model.
    own_arguments: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask")

    def generate(self, inputs: Array | None = None, generation_config: Any = None, **kwargs: Any) -> Any:
        """Sequences by greedy search, sampling or beams: (rows, tokens), a tensor for tensors, an array for arrays.

        The arguments are those of transformers' `generate`. Our own loop, in which caches are not copied, does what it
        knows; transformers' does the rest over `forward`, with the same tokens, and the log says at level INFO for
        which reason. `token_type_ids` are left out, with a warning, where the files have no input for them.
        `errors.InvalidArgument` for a prompt without tokens or with such as the model has not, and for
        more tokens than it has positions.
        """
        if kwargs.get("token_type_ids") is not None and not any(
            "token_type_ids" in p.inputs for p in self.parts.values()
        ):
            kwargs = {name: value for name, value in kwargs.items() if name != "token_type_ids"}
            self._warn_of_types()
        call = own_loop.Call(self, {"inputs": inputs, "generation_config": generation_config, **kwargs})
        reason = call.reason or self._why_not(call)
        if reason is None:
            return self._own(call)
        own_loop.tell(self, reason)
        self._require_positions(call)
        if not installed("torch"):
            raise errors.NotImplemented(f"{reason}: that is transformers' to do, which needs torch: pip install torch")
        given = [inputs, *kwargs.values()]
        as_arrays = any(isinstance(value, np.ndarray) for value in given)
        inputs, kwargs = _tensors(inputs), {name: _tensors(value) for name, value in kwargs.items()}
        found = super().generate(inputs, generation_config, **kwargs)
        return as_numpy(found) if as_arrays and is_tensor(found) else found

    def _warn_of_types(self) -> None:
        """Say once that types of tokens, which some tokenizers give unasked, go nowhere."""
        if not self._warned_of_types:
            self._warned_of_types = True
            LOG.warning(f"{type(self).__name__} has no input token_type_ids: it is left out", "generate")

    def _require_positions(self, call: own_loop.Call) -> None:
        """InvalidArgument for a prompt without tokens, and for more tokens than the model has positions."""

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        """transformers' own; InvalidArgument for arguments that nothing takes."""
        try:
            super()._validate_model_kwargs(model_kwargs)
        except ValueError as error:
            raise errors.InvalidArgument(f"{type(self).__name__}.generate: {error}") from None

    def _why_not(self, call: own_loop.Call) -> str | None:
        """Why our loop cannot do a call whose settings it knows; None where it can."""
        return None

    def _own(self, call: own_loop.Call) -> Array:
        """The sequences by our own loop."""
        raise NotImplementedError

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], mode: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing: caches are what `forward` gives. The assisted generation of later releases of transformers 5 alone
        asks for one before, which is empty."""
        is_assisted = getattr(mode, "value", None) == "assisted_generation"
        if is_assisted and generation_config.use_cache and _calls_it_cache("CausalLMOutputWithPast"):
            model_kwargs.setdefault("cache", KeyValues([]))

    @staticmethod
    def _reorder_cache(past_key_values: Any, beam_idx: Array) -> KeyValues:
        """The caches of these rows."""
        caches = key_values(past_key_values)
        if caches is None:
            raise errors.InvalidArgument("There are no caches to reorder")
        return caches.reordered(beam_idx)

    def _wants_cache(self, use_cache: bool | None) -> bool:
        if use_cache is None:
            use_cache = bool(getattr(self.config, "use_cache", True)) and self.can_use_cache
        if use_cache and not self.can_use_cache:
            raise errors.InvalidArgument(
                "use_cache=True: the ONNX files of this model take no caches. Export it with caches, by "
                f"`{type(self).__name__}.from_pretrained(…, export=True)`, or pass use_cache=False"
            )
        return bool(use_cache)

    def _refuse_what_is_not_there(self, kwargs: dict[str, Any]) -> None:
        for name in ("output_attentions", "output_hidden_states"):
            if kwargs.get(name):
                raise errors.InvalidArgument(f"{name}=True: an ONNX model gives its outputs alone, which those are not")

    def _check_ids(self, ids: Array, vocabulary: int | None, what: str) -> None:
        """InvalidArgument for ids that are not (batch, length), for none at all, and for such as the model has not."""
        array = as_numpy(ids, what)
        if array.dtype.kind not in "iu":
            raise errors.InvalidArgument(f"{what} must be whole numbers, not {array.dtype}")
        if array.ndim != 2 or not array.size:
            raise errors.InvalidArgument(
                f"{what} has the shape {list(array.shape)}: expected (batch, length), with one token or more"
            )
        if vocabulary is None:
            return
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= vocabulary:
            raise errors.InvalidArgument(
                f"{what} holds the token {low if low < 0 else high}, and the model's tokens are 0 to {vocabulary - 1}: "
                "the tokenizer belongs to another model"
            )


def output(name: str, return_dict: bool | None, caches: KeyValues | None = None, **fields: Any) -> Any:
    """A model output of transformers by the name of its class; a tuple if `return_dict` is False.

    Its field for caches is called `past_key_values`, and `cache` in the later releases of transformers 5.
    """
    kind = getattr(require("transformers.modeling_outputs", "Generation"), name)
    if caches is not None:
        fields["cache" if _calls_it_cache(name) else "past_key_values"] = caches
    found = kind(**fields)
    return found.to_tuple() if return_dict is False else found


def _calls_it_cache(name: str) -> bool:
    """Whether an output of transformers calls its caches `cache`, not `past_key_values`."""
    return "cache" in getattr(require("transformers.modeling_outputs", "Generation"), name).__dataclass_fields__


@dataclass(frozen=True)
class Generation:
    """What `from_pretrained` of classes that generate takes beyond what all classes take."""

    use_cache: bool
    use_merged: bool | None
    generation_config: Any
    model_save_dir: Any

    @staticmethod
    def taken(kwargs: dict[str, Any]) -> Generation:
        """These arguments, which are gone from `kwargs` then; a dtype, which changes nothing, is gone as well."""
        kwargs.pop("dtype", None)
        kwargs.pop("torch_dtype", None)
        use_cache = kwargs.pop("use_cache", None)
        return Generation(
            True if use_cache is None else bool(use_cache),
            kwargs.pop("use_merged", None),
            kwargs.pop("generation_config", None),
            kwargs.pop("model_save_dir", None),
        )

    def config(self, files: ModelFiles, config: Any) -> Any:
        """The generation config of a model: the one given, the folder's, or one with what its config says."""
        transformers = require("transformers", "Generation")
        given = self.generation_config
        if given is not None and not isinstance(given, transformers.GenerationConfig):
            raise errors.InvalidArgument(f"generation_config is transformers' GenerationConfig, and not {given!r:.60}")
        config.use_cache = self.use_cache
        found = copy.deepcopy(given)
        if found is None:
            said = generation_defaults(files)
            if said is None:
                found = transformers.GenerationConfig.from_model_config(config)
            else:
                values, name = said
                try:
                    found = transformers.GenerationConfig.from_dict(dict(values))
                    Settings.of(found, **own_loop.changes(found, None))
                except (errors.InvalidArgument, ValueError, TypeError, AttributeError) as error:
                    reason = error.message if isinstance(error, errors.InvalidArgument) else error
                    raise errors.Fail(f"{name} of {files.where} is no generation config: {reason}") from error
        found._from_model_config = False  # whatever wrote it: the model's config says nothing of generation here
        found.use_cache = self.use_cache
        found.cache_implementation = None
        _move_misplaced(config, found)
        return found


def _move_misplaced(config: Any, generation_config: Any) -> None:
    """What an old config says of generation goes to the generation config: transformers refuses it elsewhere."""
    listed = getattr(config, "_get_non_default_generation_parameters", None) or getattr(
        config, "_get_generation_parameters", None
    )
    for name, value in (listed() if listed is not None else {}).items():
        setattr(generation_config, name, value)
        setattr(config, name, None)


def _tensors(value: Any) -> Any:
    return as_tensor(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value


def ones(batch: int, length: int, like: Array) -> Array:
    """A mask of ones (batch, length), a tensor if `like` is one."""
    if is_tensor(like):
        import torch

        return torch.ones((batch, length), dtype=torch.int64)
    return np.ones((batch, length), np.int64)
