"""Models of sessions, loaded as their options say: where external data may lie, and what takes its place."""

from __future__ import annotations

import os
from typing import TypeAlias

import onnx
from google.protobuf.message import DecodeError

from sardonyx import errors
from sardonyx.api.building.model_overrides import replace_external_initializers
from sardonyx.api.building.session_request import EXTERNAL_FOLDER, HARD_LINKS, OTHER_FOLDERS
from sardonyx.api.options.config_keys import is_on
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.graph.load import LoadedModel, load_model
from sardonyx.runtime.files.opening import open_file

Source: TypeAlias = str | bytes | onnx.ModelProto


def load(source: Source, options: SessionOptions) -> LoadedModel:
    """A model as the options say; the errors of `load_model`, `Fail` for a model in ORT format."""
    if source == "":
        raise errors.NoSuchFile("Load model from '' failed. File doesn't exist.")
    config = options._config
    text = config.get("session.load_model_format", "")
    if text == "ORT" or (isinstance(source, str) and source.endswith(".ort") and text != "ONNX"):
        if isinstance(source, str) and not os.path.exists(source):
            load_model(source)  # raises the error that tells what is wrong
        raise errors.Fail(
            "ORT model verification failed: models in ORT format are not read; load the ONNX model it was made from"
        )
    path = None
    if options._external:
        proto = message_of(source)
        replace_external_initializers(proto, options._external)
        path = source if isinstance(source, str) else None
        source = proto
    return load_model(
        source,
        external_folder=config.get(EXTERNAL_FOLDER) or None,
        external_buffers=options._external_files or None,
        allow_unreleased_opsets=None if is_on(config, "session.allow_released_opsets_only") else True,
        model_path=path,
        hard_links=is_on(config, HARD_LINKS),
        other_folders=_folders(config.get(OTHER_FOLDERS, "")),
    )


def _folders(listed: str) -> list[str]:
    """The folders of a list as `PATH` has it; InvalidArgument for one that is relative or not there."""
    folders = [folder for folder in listed.split(os.pathsep) if folder]
    for folder in folders:
        if not os.path.isabs(folder) or not os.path.isdir(folder):
            problem = "is not there" if os.path.isabs(folder) else "is relative"
            raise errors.InvalidArgument(
                f"The folder {folder!r} of the session config entry '{OTHER_FOLDERS}' {problem}: give full paths of "
                f"folders, with {os.pathsep!r} between them"
            )
    return folders


def message_of(source: Source) -> onnx.ModelProto:
    """The model as a message of its own, its external data left outside."""
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return copy
    try:
        if isinstance(source, bytes):
            return onnx.load_model_from_string(source)
        with open_file(source) as file:
            return onnx.load_model_from_string(file.read())
    except (OSError, DecodeError):
        load_model(source)  # raises the error that tells what is wrong
        raise
