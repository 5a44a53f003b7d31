"""The PyTorch model of a folder or an id, and the files beside it that a model needs in order to be used."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sardonyx import errors
from sardonyx.models.export import tasks
from sardonyx.models.folders.companions import copy_file
from sardonyx.models.folders.configs import check_counts
from sardonyx.models.folders.json_files import Section, read_json
from sardonyx.models.requirements import require

DTYPES = ("float32", "float16", "bfloat16")
_WEIGHTS = (".safetensors", ".bin", ".index.json")
# Of a folder: what tokenizers, feature extractors and image processors consist of. The rest is weights and notes.
_COPIED = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "chat_template*",
    "preprocessor_config.json",
    "processor_config.json",
    "image_processor_config.json",
    "video_preprocessor_config.json",
    "feature_extractor_config.json",
    "normalizer.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
)


def load(source: Any, task: str | None, dtype: str | None, hub: dict[str, Any]) -> tuple[Any, str]:
    """A model and its task, from a model, a folder or an id; `hub` goes to `from_pretrained`."""
    require("torch", "The export of a model")
    transformers = require("transformers", "The export of a model")
    if dtype is not None and dtype not in DTYPES:
        raise errors.InvalidArgument(f"dtype is {dtype}; expected one of {', '.join(DTYPES)}")
    if not isinstance(source, str | os.PathLike):
        return _given(source, task, dtype)
    name = os.fspath(source)
    if os.path.isdir(name):
        _look_for_weights(Path(name) / hub.get("subfolder", ""))
    config = _config(transformers, name, hub)
    task = tasks.of_config(config) if task is None else tasks.normal(task)
    auto = tasks.auto_class(task, config)
    with _quiet():
        try:
            model = auto.from_pretrained(name, config=config, dtype=dtype or DTYPES[0], **hub)
        except Exception as error:  # a half-downloaded file is an error of safetensors, others are of pickle
            raise errors.Fail(f"transformers cannot load the weights of {name}: {_line(error)}") from error
    return model, task


def _given(model: Any, task: str | None, dtype: str | None) -> tuple[Any, str]:
    import torch

    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise errors.InvalidArgument(
            f"model is a {type(model).__name__}; expected a model of transformers, or the folder or id of one"
        )
    if task is None:
        task = tasks.of_class(type(model).__name__, model.config) or tasks.of_config(model.config)
    if dtype is not None and model.dtype != getattr(torch, dtype):
        model = copy.deepcopy(model).to(getattr(torch, dtype))
    return model, tasks.normal(task)


def _config(transformers: Any, name: str, hub: dict[str, Any]) -> Any:
    path = Path(name) / hub.get("subfolder", "") / "config.json"
    if path.is_file():
        said = read_json(path)
        if isinstance(said, dict):
            check_counts(Section(said, os.fspath(path)))
    try:
        return transformers.AutoConfig.from_pretrained(name, **hub)
    except Exception as error:  # configs of wrong types raise whatever the code of their class does
        if os.path.exists(name):
            raise errors.InvalidArgument(f"transformers cannot read the config of {name}: {_line(error)}") from error
        raise errors.NoSuchFile(f"{name} is no folder, and cannot be had as a model's id: {_line(error)}") from error


def _look_for_weights(folder: Path) -> None:
    """NoSuchFile where a folder is not there, or has no config or no weights, with what it has."""
    if not folder.is_dir():
        there = ", ".join(sorted(one.name for one in folder.parent.iterdir())[:12]) if folder.parent.is_dir() else ""
        raise errors.NoSuchFile(f"There is no folder {folder}: {folder.parent} has {there or 'nothing'}")
    found = sorted(path.name for path in folder.iterdir())
    shown = ", ".join(found[:12]) or "nothing"
    if "config.json" not in found:
        raise errors.NoSuchFile(f"{folder} has no config.json: expected a model of transformers, found {shown}")
    if not any(name.endswith(_WEIGHTS) for name in found):
        raise errors.NoSuchFile(
            f"{folder} has no weights of a PyTorch model (model.safetensors or pytorch_model.bin), found {shown}"
        )


def save_beside(source: Any, model: Any, folder: Path, hub: dict[str, Any]) -> list[Path]:
    """Write config.json, generation_config.json and what the source has for its inputs into the folder."""
    written = []
    with _quiet():
        model.config.save_pretrained(folder)
        written.append(folder / "config.json")
        generation = getattr(model, "generation_config", None)
        if generation is not None and model.can_generate():
            generation.save_pretrained(folder)
            written.append(folder / "generation_config.json")
    if isinstance(source, str | os.PathLike):
        beside = _folder(os.fspath(source), hub)
        for path in _files_of_inputs(beside):
            target = folder / path.relative_to(beside)
            copy_file(path, target)
            written.append(target)
    return written


def _folder(name: str, hub: dict[str, Any]) -> Path:
    """A folder with the files of a model's inputs: the one of that name, or that of an id in the hub's cache."""
    subfolder: str = hub.get("subfolder", "")
    if os.path.isdir(name):
        return Path(name) / subfolder
    hub_package = require("huggingface_hub", "The export of a model by its id")
    taken = {key: hub[key] for key in ("revision", "cache_dir", "token", "local_files_only") if key in hub}
    patterns = [f"{subfolder}/{pattern}" if subfolder else pattern for pattern in _COPIED]
    return Path(hub_package.snapshot_download(name, allow_patterns=patterns, **taken)) / subfolder


def _files_of_inputs(folder: Path) -> list[Path]:
    found = {path for pattern in _COPIED for path in folder.glob(pattern) if path.is_file()}
    return sorted(path for path in found if path.suffix != ".onnx")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what transformers tells of weights and settings that it fills in."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _line(error: BaseException) -> str:
    """What an error says, and what the first of its causes says: of a module that cannot be imported, the reason."""
    first = error
    while (cause := first.__cause__ or (None if first.__suppress_context__ else first.__context__)) is not None:
        first = cause
    said = " ".join(str(error).split())[:600]
    if first is error or str(first) in said:
        return said
    return f"{said} (the cause: {type(first).__name__}: {' '.join(str(first).split())[:300]})"
