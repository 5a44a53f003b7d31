"""Which ONNX file of a folder is the decoder that continues a text."""

from __future__ import annotations

from sardonyx.models.folders import layout
from sardonyx.models.folders.model_files import ModelFiles


def decoder_name(
    files: ModelFiles, file_name: str | None = None, use_cache: bool = True, use_merged: bool | None = None
) -> str:
    """``model.onnx`` and its like; else a merged decoder; else the one with caches, or without for no `use_cache`.

    `errors.NoSuchFile`, which lists what is there, for none of them.
    """
    roles = [layout.MODEL]
    if use_merged is not False:
        roles.append(layout.DECODER_MERGED)
    roles += [layout.DECODER_WITH_PAST, layout.DECODER] if use_cache else [layout.DECODER, layout.DECODER_WITH_PAST]
    if file_name is not None:
        return files.require(layout.MODEL, file_name)
    found = (files.find(role) for role in roles)
    return next((name for name in found if name is not None), None) or files.require(layout.MODEL)
