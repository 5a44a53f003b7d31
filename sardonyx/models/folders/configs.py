"""The config of a model, as transformers reads it, also where transformers does not know the kind of model."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from sardonyx import errors
from sardonyx.models.folders.json_files import Section
from sardonyx.models.folders.layout import listed
from sardonyx.models.folders.model_files import CONFIG, GENAI_CONFIG, ModelFiles
from sardonyx.models.requirements import require

# Classes of configs make lists of so many elements, before anybody looks at them.
_COUNTS = re.compile(r"(^|_)(layers?|labels|blocks|stages|depths?)$")
_MOST_COUNTED = 1_000_000

# What onnxruntime-genai calls what transformers calls otherwise, of a model and of its decoder.
_OF_MODEL = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "pad_token_id",
    "decoder_start_token_id": "decoder_start_token_id",
}
_OF_DECODER = {
    "hidden_size": "hidden_size",
    "head_size": "head_dim",
    "num_attention_heads": "num_attention_heads",
    "num_hidden_layers": "num_hidden_layers",
    "num_key_value_heads": "num_key_value_heads",
}


def load_config(files: ModelFiles, *, trust_remote_code: bool = False) -> Any:
    """The config of a model's files: of ``config.json``, or of what onnxruntime-genai wrote in its place.

    A kind of model that transformers does not know, or whose code would come from the hub, has a plain
    `PretrainedConfig` with what the file says: sessions need no more. `errors.NoSuchFile` where there is no config,
    `errors.Fail` for one that cannot be read.
    """
    name = files.find_name(CONFIG)
    if name is not None:
        said = files.read_json(name)
        folder = files.folder() / PurePosixPath(name).parent
        return _of_file(folder, said, trust_remote_code)
    if files.genai_config is not None:
        return _of_genai(files.genai_config)
    raise errors.NoSuchFile(
        f"There is no {CONFIG} in {files.where}. Its files are {listed(files.names)}. Put the config of the model "
        "beside it, or pass config="
    )


def given_config(config: Any, *, trust_remote_code: bool = False, **hub: Any) -> Any:
    """A config that the caller gave: one itself, or the folder, file or id that it is read from."""
    if not isinstance(config, (str, os.PathLike)):
        if not hasattr(config, "model_type"):
            raise errors.InvalidArgument(
                f"config is a config of transformers, or the folder or id of one, and not {config!r:.60}"
            )
        return config
    path = Path(config)
    if path.is_file():
        path = path.parent
    from sardonyx.models.folders.opening import open_files

    files, _ = open_files(path if path.is_dir() else config, **hub)
    return load_config(files, trust_remote_code=trust_remote_code)


def check_counts(said: Section) -> None:
    """`errors.Fail` where a config says that a model has more layers or labels than any has: configs of transformers
    would fill all memory with a list of them."""
    sections: list[tuple[str, Any]] = [("", dict(said))]
    while sections:
        place, section = sections.pop()
        for name, value in section.items() if isinstance(section, dict) else enumerate(section):
            inner = f"{place}{name}"
            if isinstance(value, dict | list):
                sections.append((f"{inner}.", value))
            elif isinstance(value, int | float) and abs(value) > _MOST_COUNTED and _COUNTS.search(str(name)):
                raise errors.Fail(f"{inner} of {said.where} is {value}; expected at most {_MOST_COUNTED}")


def _of_file(folder: Path, said: Section, trust_remote_code: bool) -> Any:
    transformers = require("transformers", f"Reading {folder / CONFIG}")
    check_counts(said)
    known = (said.text("model_type") or "") in transformers.CONFIG_MAPPING
    try:
        if known or (trust_remote_code and "auto_map" in said):
            return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        return transformers.PretrainedConfig.from_dict(dict(said))
    except _refusals(OSError, ValueError, TypeError, KeyError, AttributeError, ImportError, ArithmeticError) as error:
        raise errors.Fail(f"{folder / CONFIG} is no config that transformers can read: {error}") from error


def _of_genai(said: Section) -> Any:
    transformers = require("transformers", f"Making a config of {GENAI_CONFIG}")
    check_counts(said)
    model = said.section("model")
    if not isinstance(model.get("type"), str):
        raise errors.Fail(f"{GENAI_CONFIG} does not say what model it is of: it has no model.type")
    decoder = model.get("decoder")
    values = {theirs: model[ours] for ours, theirs in _OF_MODEL.items() if model.get(ours) is not None}
    if isinstance(decoder, dict):
        values |= {theirs: decoder[ours] for ours, theirs in _OF_DECODER.items() if decoder.get(ours) is not None}
    try:
        if model["type"] in transformers.CONFIG_MAPPING:
            return transformers.AutoConfig.for_model(model["type"], **values)
        return transformers.PretrainedConfig.from_dict({"model_type": model["type"], **values})
    except _refusals(ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise errors.Fail(f"{GENAI_CONFIG} is no config that transformers can take: {error}") from error


def _refusals(*known: type[Exception]) -> tuple[type[Exception], ...]:
    """These, and what configs of transformers 5 raise for values of a wrong type or size: one of huggingface_hub."""
    found = getattr(require("huggingface_hub.errors", "Reading a config"), "StrictDataclassError", None)
    return known if found is None else (*known, found)
